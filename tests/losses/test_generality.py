"""Dense and binary logits, ignored labels, masks: all the same objective of the samples that count."""

import pytest
import torch
from torch import Tensor

import calibrant as cal
from calibrant.losses import checks
from tests.cases import MODULES, random_logits, value_and_gradient


def dense(logits: Tensor, target: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
    """Fold (N * d1 * ..., C) into (N, C, d1, ...)."""
    return logits.reshape(*shape, -1).movedim(-1, 1), target.reshape(shape)


@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4)])
@pytest.mark.parametrize("name", MODULES)
def test_dense_logits_are_a_batch_of_positions(name: str, shape: tuple[int, ...]) -> None:
    module = MODULES[name]()
    logits, target = random_logits(24, 5, seed=0)
    value, gradient = value_and_gradient(module, logits, target)
    folded = dense(logits, target, *shape)
    folded_value, folded_gradient = value_and_gradient(module, *folded)
    torch.testing.assert_close(folded_value, value)
    torch.testing.assert_close(folded_gradient, dense(gradient, target, *shape)[0])


@pytest.mark.parametrize("form", ["(N,)", "(N, 1)", "(N, 1) with target (N, 1)", "(N, 1, 5)"])
@pytest.mark.parametrize("name", MODULES)
def test_binary_logits_are_two_classes(name: str, form: str) -> None:
    module = MODULES[name]()
    two, target = random_logits(20, 2, seed=1)
    expected = module(two, target)
    logit = two[:, 1] - two[:, 0]
    # A margin or a norm sees the logits themselves, of which binary has one.
    if "MarginLabelSmoothing" in name or "LogitNorm" in name:
        expected = module(torch.stack((torch.zeros_like(logit), logit), dim=1), target)
    given: dict[str, tuple[Tensor, Tensor]] = {
        "(N,)": (logit, target),
        "(N, 1)": (logit[:, None], target),
        "(N, 1) with target (N, 1)": (logit[:, None], target[:, None]),
        "(N, 1, 5)": (logit.reshape(4, 1, 5), target.reshape(4, 5)),
    }
    torch.testing.assert_close(module(*given[form]), expected)


@pytest.mark.parametrize("name", MODULES)
def test_samples_that_do_not_count_change_nothing(name: str) -> None:
    module = MODULES[name]()
    logits, target = random_logits(30, 4, seed=2)
    counts = torch.ones(30, dtype=torch.bool)
    counts[[0, 3, 7, 8, 20, 29]] = False
    value, gradient = value_and_gradient(module, logits[counts], target[counts])

    spoiled = logits.clone()
    spoiled[~counts] = torch.nan
    by_mask = value_and_gradient(lambda x, y: module(x, y, mask=counts), spoiled, target)
    by_label = value_and_gradient(module, spoiled, target.masked_fill(~counts, -100))
    for masked_value, masked_gradient in (by_mask, by_label):
        torch.testing.assert_close(masked_value, value)
        torch.testing.assert_close(masked_gradient[counts], gradient)
        assert (masked_gradient[~counts] == 0).all()


def test_prediction_follows_the_logits_where_probabilities_round_to_a_tie() -> None:
    logits = torch.tensor([[0.0, 1e-9]] * 4)
    assert logits.softmax(1).unique().numel() == 1
    pairs = checks.top_label_pairs(checks.classification(logits, torch.ones(4, dtype=torch.long)))
    assert pairs.correct.all()


def test_other_labels_can_be_ignored() -> None:
    logits, target = random_logits(10, 3, seed=5)
    expected = cal.ESDLoss(root=False)(logits[target != 2], target[target != 2])
    torch.testing.assert_close(cal.ESDLoss(root=False, ignore_index=2)(logits, target), expected)


def test_avuc_threshold_comes_from_data_and_survives_a_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> None:
    logits, target = random_logits(200, 6, seed=6)
    for loss in (cal.AvUCLoss(), cal.SoftAvUCLoss()):
        loss.fit_threshold(logits, target)
        p = logits.softmax(1)
        h = -(p * p.log()).sum(1)
        right = logits.argmax(1) == target
        scale = torch.tensor(6.0).log().item() if isinstance(loss, cal.SoftAvUCLoss) else 1.0
        assert loss.threshold == pytest.approx((h[right].mean() + h[~right].mean()).item() / 2 / scale)

        path = tmp_path_factory.mktemp("avuc") / "loss.pt"
        torch.save(loss.state_dict(), path)
        restored = type(loss)()
        restored.load_state_dict(torch.load(path, weights_only=True))
        assert restored.threshold == loss.threshold


def test_modules_show_their_options() -> None:
    assert repr(cal.ESDLoss(root=False)) == "ESDLoss(ignore_index=-100, root=False, sync=True, view='top-label')"


@pytest.mark.parametrize("name", MODULES)
def test_minimum_samples_is_the_fewest_that_are_accepted(name: str) -> None:
    module = MODULES[name]()
    minimum = module.minimum_samples()  # type: ignore[operator]
    logits, target = random_logits(minimum, 4, seed=0)
    assert module(logits, target).isfinite()
    with pytest.raises(ValueError, match=f"at least {minimum} sample"):
        module(logits[1:], target[1:])
