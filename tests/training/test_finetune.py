"""finetune(): equal to post-hoc scaling, honest in its choice, and careful with the network it is given."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from calibrant.posthoc import TemperatureScaling, VectorScaling
from calibrant.training import CalibrationWarning, finetune
from calibrant.training.finetune import Outputs, fit_heads, logits_after

Batch = tuple[Tensor, Tensor]


def data(count: int, seed: int = 0, features: int = 6, classes: int = 4) -> Batch:
    """Labels drawn from the softmax of the first features, times 1.5."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator)
    return x, torch.multinomial((1.5 * x[:, :classes]).softmax(1), 1, generator=generator).squeeze(1)


def network(scale: float = 3.0, features: int = 6, classes: int = 4, *, bias: bool = True) -> nn.Sequential:
    """Knows the truth of :func:`data`, and is ``scale`` times too sure."""
    last = nn.Linear(features, classes, bias=bias)
    with torch.no_grad():
        last.weight.copy_(1.5 * scale * torch.eye(classes, features))
        if bias:
            last.bias.zero_()
    return nn.Sequential(nn.Identity(), nn.Dropout(0.5), last)


def batches(xy: Batch, size: int = 100) -> list[Batch]:
    return list(zip(xy[0].split(size), xy[1].split(size), strict=True))


def log_loss(model: nn.Module, xy: Batch) -> float:
    model.eval()
    with torch.no_grad():
        return float(F.cross_entropy(model(xy[0]), xy[1]))


def test_temperature_is_that_of_temperature_scaling_and_is_folded_into_the_last_layer() -> None:
    model, fresh = network().eval(), data(1000)
    with torch.no_grad():
        before = model(fresh[0])
    scaling = TemperatureScaling(strict=True).fit(before, fresh[1])
    result = finetune(model, batches(fresh), method="temperature")
    assert result.temperature == pytest.approx(scaling.temperature_, rel=1e-6)
    torch.testing.assert_close(model(fresh[0]), scaling(before))
    assert not list(model.buffers())
    assert result.after.accuracy == result.before.accuracy
    assert result.after.log_loss < result.before.log_loss


@pytest.mark.parametrize("bias", [True, False])
def test_vector_is_that_of_vector_scaling(bias: bool) -> None:
    model, fresh = network(bias=bias).eval(), data(1000)
    with torch.no_grad():
        before = model(fresh[0])
    scaling = VectorScaling(strict=True).fit(before, fresh[1])
    assert finetune(model, batches(fresh), method="vector").method == "vector"
    torch.testing.assert_close(model(fresh[0]), scaling(before), rtol=1e-4, atol=1e-4)


def test_a_binary_network_with_one_logit_can_be_changed_in_every_way() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(800, 3, generator=generator)
    y = (torch.rand(800, generator=generator) < torch.sigmoid(x[:, 0] - 0.5)).long()
    for method in ("temperature", "vector", "head"):
        model = nn.Linear(3, 1)
        with torch.no_grad():
            model.weight.copy_(torch.tensor([[4.0, 1.0, 0.0]]))
            model.bias.zero_()
        result = finetune(model, [(x, y)], method=method)
        achieved = float(F.binary_cross_entropy_with_logits(model(x).squeeze(1), y.float()).detach())
        assert result.method == method
        assert achieved == pytest.approx(result.after.log_loss, abs=0.02)


def test_a_strong_penalty_of_the_head_is_temperature_scaling_and_a_weak_one_is_the_optimum() -> None:
    model, (x, y) = network(), data(600)
    layer = model[2]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        samples = Outputs(layer(x), y, x)
    strong, weak = fit_heads(samples, layer, [1e6, 1e-3])
    scaled = TemperatureScaling(strict=True).fit(samples.logits, y)(samples.logits)
    torch.testing.assert_close(logits_after(strong, samples).float(), scaled, rtol=1e-3, atol=1e-3)
    # An independent transcription of the objective, differentiated by autograd.
    temperature = TemperatureScaling(strict=True).fit(samples.logits, y).temperature_
    weight = weak.weight.clone().requires_grad_()
    sizes = x.double().square().mean(0).sqrt()
    away = (weight - layer.weight.detach().double() / temperature) * sizes
    objective = F.cross_entropy(x.double() @ weight.T + weak.bias, y) + 1e-3 / 2 * away.square().sum()
    objective.backward()
    assert weight.grad is not None
    assert float(weight.grad.abs().max()) < 1e-4


def test_auto_chooses_the_simplest_change_that_is_enough() -> None:
    fresh, new = data(3000), data(20_000, seed=1)
    only_scale = network()
    assert finetune(only_scale, batches(fresh)).method == "temperature"
    wrong_bias = network()
    with torch.no_grad():
        wrong_bias[2].bias.copy_(torch.tensor([3.0, 0.0, 0.0, -3.0]))  # type: ignore[operator]
    assert finetune(wrong_bias, batches(fresh)).method == "vector"
    wrong_features = network()
    with torch.no_grad():
        wrong_features[2].weight[:, 4:] += 2.0 * torch.randn(4, 2, generator=torch.Generator().manual_seed(0))  # type: ignore[index, operator]
    assert finetune(wrong_features, batches(fresh)).method == "head"
    losses = [log_loss(model, new) for model in (only_scale, wrong_bias, wrong_features)]
    assert losses == pytest.approx([log_loss(network(1.0), new)] * 3, abs=0.01)


def test_auto_changes_nothing_when_nothing_helps_and_says_so() -> None:
    model = network(1.0)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(CalibrationWarning, match="left as it is"):
        result = finetune(model, batches(data(2000)))
    assert (result.method, result.temperature) == ("nothing", 1.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_auto_does_not_choose_a_head_that_over_fits() -> None:
    features = 60
    fresh, new = data(250, features=features), data(10_000, seed=1, features=features)
    model = network(3.0, features)
    layer = model[2]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        samples = Outputs(layer(fresh[0]), fresh[1], fresh[0])
    *_, weakest = fit_heads(samples, layer)
    on_fresh = float(F.cross_entropy(logits_after(weakest, samples), fresh[1]))
    on_new = float(F.cross_entropy(new[0].double() @ weakest.weight.T + weakest.bias, new[1]))
    assert on_fresh < 0.5 < 2 * log_loss(network(1.0, features), new) < on_new  # it does over-fit
    result = finetune(model, batches(fresh))
    assert result.method == "temperature"
    assert log_loss(model, new) == pytest.approx(result.after.log_loss, abs=4 * result.after.error)


def test_cross_validated_log_loss_of_the_head_holds_on_new_data() -> None:
    fresh, new = data(400, features=40), data(20_000, seed=1, features=40)
    model = network(3.0, 40)
    result = finetune(model, batches(fresh), method="head")
    assert result.after.log_loss == pytest.approx(log_loss(model, new), abs=3 * result.after.error)
    assert result.penalty is not None


def near_chance(seed: int, signal: float = 0.0) -> tuple[nn.Module, Batch]:
    """A network that is very sure of labels it hardly knows: on some parts of the data it looks better than chance."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(240, 4, generator=generator)
    y = torch.multinomial((signal * x).softmax(1), 1, generator=generator).squeeze(1)
    model = nn.Linear(4, 4)
    with torch.no_grad():
        model.weight.copy_(10 * torch.eye(4))
        model.bias.zero_()
    return model, (x, y)


def cross_fitted_temperature(logits: Tensor, target: Tensor) -> float:
    """Log loss of every sample at the temperature of the other folds, 1 where they have none."""
    total = 0.0
    for fold in torch.randperm(len(target), generator=torch.Generator().manual_seed(0)).tensor_split(5):
        rest = torch.ones(len(target)).bool()
        rest[fold] = False
        try:
            temperature = TemperatureScaling(strict=True).fit(logits[rest], target[rest]).temperature_
        except ValueError:
            temperature = 1.0
        total += float(F.cross_entropy(logits[fold].double() / temperature, target[fold], reduction="sum"))
    return total / len(target)


@pytest.mark.slow_after(4)
@pytest.mark.filterwarnings("ignore::calibrant.training.CalibrationWarning")
@pytest.mark.parametrize("method", ["auto", "temperature"])
@pytest.mark.parametrize("signal", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("seed", [0, 6, 8, 12])
def test_what_is_reported_is_what_the_model_does(seed: int, signal: float, method: Any) -> None:
    model, (x, y) = near_chance(seed, signal)
    before = copy.deepcopy(model)
    result = finetune(model, [(x, y)], method=method)
    logits, new = before(x).detach(), model(x).detach()
    assert result.before.log_loss == pytest.approx(log_loss(before, (x, y)), rel=1e-5)
    if result.method == "nothing":
        assert torch.equal(new, logits)
        assert result.after == result.before
    elif result.method == "temperature":
        assert result.temperature == pytest.approx(
            TemperatureScaling(strict=True).fit(logits, y).temperature_, rel=1e-6
        )
        torch.testing.assert_close(new, logits / result.temperature)
        assert result.after.log_loss == pytest.approx(cross_fitted_temperature(logits, y), rel=1e-5)
    else:
        assert result.temperature == 1
        # Fitted on all samples, the model does a little better on them than folds that did not see them.
        assert -0.01 < result.after.log_loss - log_loss(model, (x, y)) < 0.1


@pytest.mark.parametrize("method", ["temperature", "head"])
def test_a_network_at_chance_has_no_temperature_and_is_left_as_it_is(method: Any) -> None:
    model, fresh = near_chance(6)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(CalibrationWarning, match="left as it is"):
        result = finetune(model, [fresh], method=method)
    assert (result.method, result.temperature, result.penalty) == ("nothing", 1.0, None)
    assert [one.method for one in result.candidates] == ["nothing"]
    assert result.after == result.before
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_auto_says_that_a_network_at_chance_has_no_temperature() -> None:
    model, fresh = near_chance(6)
    with pytest.warns(CalibrationWarning, match="only 'vector'"):
        result = finetune(model, [fresh])
    assert [one.method for one in result.candidates] == ["nothing", "vector"]
    assert result.method == "vector"


def test_seen_samples_and_few_samples_are_warned_about() -> None:
    x, _ = data(400)
    model = network(1.0)
    y = (1.5 * x[:, :4]).argmax(1)
    y[0] = (y[0] + 1) % 4
    with pytest.warns(CalibrationWarning, match="trained on"):
        finetune(model, [(x, y)], method="temperature")
    with pytest.warns(CalibrationWarning, match="50 samples"):
        finetune(network(), [data(50)], method="temperature")


@pytest.mark.parametrize(
    ("batches", "error", "key"),
    [
        ([data(9)], ValueError, "10 samples"),
        (TensorDataset(*data(100)), TypeError, "DataLoader"),
        ([(x.numpy(), y.numpy()) for x, y in [data(20)]], TypeError, "ndarray"),
        ([(*data(20), torch.ones(20))], TypeError, "weights"),
    ],
)
def test_unsuitable_batches_are_refused(batches: Any, error: type[Exception], key: str) -> None:
    with pytest.raises(error, match=key):
        finetune(network(), batches)


def test_a_network_whose_logits_no_layer_makes_is_scaled() -> None:
    model = nn.Sequential(network()[2], nn.Hardtanh(-8, 8))
    fresh = data(1000)
    result = finetune(model, batches(fresh))
    assert result.method == "temperature"
    assert [one.method for one in result.candidates] == ["nothing", "temperature"]
    assert "calibrant_temperature" in model.state_dict()
    with pytest.raises(ValueError, match="temperature"):
        finetune(model, batches(fresh), method="vector")


def test_the_result_is_deterministic_and_leaves_modes_and_random_numbers_alone() -> None:
    fresh = batches(data(500))
    first, second = network().train(), network().eval()
    state = torch.get_rng_state()
    results = [finetune(model, fresh, method="head") for model in (first, second)]
    assert torch.equal(torch.get_rng_state(), state)
    assert results[0] == results[1]
    assert torch.equal(first[2].weight, second[2].weight)  # type: ignore[arg-type]
    assert first[1].training
    assert not second[1].training
    assert not first[2]._forward_pre_hooks


def test_ignored_samples_do_not_count() -> None:
    x, y = data(600)
    hidden = torch.cat((y[:500], torch.full((100,), -100)))
    some, all_of_them = network(), network()
    assert finetune(some, [(x, hidden)]) == finetune(all_of_them, [(x[:500], y[:500])])
    assert torch.equal(some[2].weight, all_of_them[2].weight)  # type: ignore[arg-type]


def test_the_result_reads_as_a_table() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = finetune(network(), batches(data(1000)))
    text = str(result)
    assert text.startswith(f"changed: temperature {result.temperature:.3g};")
    assert "1,000 samples" in text
    assert [line[2:].split()[0] for line in text.splitlines()[2:]] == ["nothing", "temperature", "vector", "head"]
    assert max(map(len, text.splitlines())) <= 80
