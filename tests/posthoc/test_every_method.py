"""What every calibrator promises: rows that sum to one, repair, state that travels, errors that explain."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.metrics import InputWarning
from calibrant.posthoc import (
    Calibrator,
    TemperatureScaling,
    VectorScaling,
    logits_from_probabilities,
)
from calibrant.posthoc.registry import METHODS
from tests.posthoc.data import CALIBRATORS, FIT, TARGET, TEST, TEST_TARGET, ece, nll, overconfident


def fitted(name: str) -> Calibrator:
    return CALIBRATORS[name]().fit(FIT.float(), TARGET)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_rows_sum_to_one_and_calibration_improves(name: str) -> None:
    after = fitted(name).predict_proba(TEST.float())
    assert after.shape == TEST.shape
    assert after.dtype == torch.float32
    assert after.min() >= 0
    assert (after.sum(1) - 1).abs().max() < 1e-6
    before = TEST.softmax(1)
    assert ece(after.numpy(), TEST_TARGET.numpy()) < 0.5 * ece(before.numpy(), TEST_TARGET.numpy())
    if after.min() > 0:
        assert nll(after, TEST_TARGET) < nll(before, TEST_TARGET) - 0.15


@pytest.mark.parametrize("name", CALIBRATORS)
def test_copies_pickles_and_modules_predict_the_same(name: str) -> None:
    calibrator = fitted(name)
    expected = calibrator.predict_proba(TEST)
    for other in (copy.deepcopy(calibrator), pickle.loads(pickle.dumps(calibrator))):  # noqa: S301
        assert torch.equal(other.predict_proba(TEST), expected)
        assert repr(other) == repr(calibrator)
    assert "class_count_=4" in repr(calibrator)
    module: Any = calibrator.module()
    torch.testing.assert_close(module.predict_proba(TEST), expected, rtol=0, atol=1e-6)
    again = pickle.loads(pickle.dumps(module))  # noqa: S301
    other = CALIBRATORS[name]().fit(FIT[:300].float(), TARGET[:300]).module()
    assert torch.equal(again(TEST), module(TEST))
    if {key: value.shape for key, value in other.state_dict().items()} == {
        key: value.shape for key, value in module.state_dict().items()
    } and name not in ("prior-shift", "auto"):
        other.load_state_dict(module.state_dict())
        assert all(torch.equal(one, two) for one, two in zip(other.buffers(), module.buffers(), strict=True))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_binary_logits_are_two_classes(name: str) -> None:
    logits, target = overconfident(1000, 2, 2.0, seed=2)
    one = (logits[:, 1] - logits[:, 0]).float()
    two = torch.stack((torch.zeros_like(one), one), dim=1)
    as_two = CALIBRATORS[name]().fit(two, target).predict_proba(two)
    for binary in (one, one.unsqueeze(1)):
        calibrator = CALIBRATORS[name]().fit(binary, target)
        torch.testing.assert_close(calibrator.predict_proba(binary), as_two, rtol=0, atol=1e-6)
        again = calibrator(binary)
        assert again.shape == binary.shape
        torch.testing.assert_close(again.sigmoid().flatten(), as_two[:, 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_numpy_in_numpy_out(name: str) -> None:
    logits, target = FIT.float().numpy(), TARGET.numpy().astype(np.uint8)
    logits.flags.writeable = False
    probabilities = CALIBRATORS[name]().fit(logits, target).predict_proba(logits)
    assert isinstance(probabilities, np.ndarray)
    assert probabilities.dtype == np.float32
    np.testing.assert_array_equal(probabilities, fitted(name).predict_proba(FIT.float()).numpy())


@pytest.mark.parametrize("name", CALIBRATORS)
def test_precision_follows_the_logits_and_no_cast_loses_what_was_fitted(name: str) -> None:
    calibrator = CALIBRATORS[name]().fit(FIT, TARGET)
    assert calibrator.predict_proba(TEST).dtype == torch.float64
    assert calibrator.predict_proba(TEST.half()).dtype == torch.float32
    module: Any = calibrator.module()
    before = module.predict_proba(TEST)
    for cast in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(module.to(cast).predict_proba(TEST), before)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_ignored_samples_do_not_count(name: str) -> None:
    logits = torch.cat((FIT, torch.full((5, 4), torch.nan))).float()
    target = torch.cat((TARGET, torch.full((5,), -100)))
    found = CALIBRATORS[name]().fit(logits, target)
    assert torch.equal(found.predict_proba(TEST), fitted(name).predict_proba(TEST))


@pytest.mark.parametrize(("logits", "error", "token"), [
    (TEST[:, :3], ValueError, "got logits of 3 classes"),
    (TEST[:, 0], ValueError, "two classes"),
    (TEST[0], ValueError, r"logits\[None\]"),
    (torch.zeros(2, 0), ValueError, "at least one class"),
    (torch.tensor([[0.0, torch.nan, 1.0, 2.0]]), ValueError, "finite"),
    (np.array([["a"] * 4]), TypeError, "must hold numbers"),
])  # fmt: skip
def test_logits_that_do_not_fit_are_refused(logits: Any, error: type[Exception], token: str) -> None:
    for name in ("temperature", "isotonic", "auto"):
        with pytest.raises(RuntimeError, match="not fitted"):
            CALIBRATORS[name]().predict_proba(logits)
        for call in (fitted(name).predict_proba, fitted(name)):
            with pytest.raises(error, match=token):
                call(logits)


@pytest.mark.parametrize(("logits", "target", "token"), [
    (torch.where(torch.arange(2000)[:, None] == 3, torch.nan, FIT), TARGET, "in 1 of 2,000 samples"),
    (FIT, TARGET + 1, "labels from 1 to 4"),
    (FIT, torch.full_like(TARGET, -100), "at least 1 sample"),
])  # fmt: skip
def test_samples_that_do_not_fit_are_refused(logits: Any, target: Any, token: str) -> None:
    for name in ("temperature", "isotonic", "auto"):
        with pytest.raises(ValueError, match=token):
            CALIBRATORS[name]().fit(logits, target)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_the_softmax_of_calibrated_logits_are_the_probabilities(name: str) -> None:
    calibrator = fitted(name)
    torch.testing.assert_close(calibrator(TEST).softmax(1), calibrator.predict_proba(TEST), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_saturated_logits_give_finite_rows(name: str) -> None:
    extreme = torch.tensor([[1e30, -1e30, 0.0, 0.0], [-1e30, -1e30, -1e30, 1e30], [0.0, 0.0, 0.0, 0.0], [3e38] * 4])
    for logits in (extreme, extreme.double()):
        rows = fitted(name).predict_proba(logits)
        assert rows.isfinite().all()
        assert (rows.sum(1) - 1).abs().max() < 1e-6


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CALIBRATORS)
def test_export_with_a_dynamic_batch(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 4), fitted(name).module()).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(model, (torch.randn(3, 6),), dynamic_shapes=(batch,), strict=False)
    for samples in (1, 3, 17):
        inputs = torch.randn(samples, 6) * 5
        torch.testing.assert_close(program.module()(inputs), model(inputs))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_autocast_changes_nothing(name: str) -> None:
    calibrator = fitted(name)
    module: Any = calibrator.module()
    with torch.autocast("cpu", torch.bfloat16):
        found = module.predict_proba(TEST.float()), module(TEST.float())
    assert torch.equal(found[0], module.predict_proba(TEST.float()))
    assert torch.equal(found[1], module(TEST.float()))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_what_was_fitted_in_inference_mode_can_be_trained_through(name: str) -> None:
    with torch.inference_mode():
        calibrator = CALIBRATORS[name]().fit(FIT.float() * 1.0, TARGET * 1)
    rows = TEST[:5].float().requires_grad_()
    (calibrator.predict_proba(rows)[:, 0].sum() + 0 * rows.sum()).backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


FOLDED = ["temperature", "vector", "matrix"]


@pytest.mark.parametrize("name", FOLDED)
def test_folding_draws_nothing_and_keeps_what_is_frozen(name: str) -> None:
    calibrator = fitted(name)
    linear = nn.Linear(6, 4)
    linear.weight.requires_grad_(False)
    state = torch.get_rng_state()
    folded = calibrator.fold_into(linear)
    assert torch.equal(torch.get_rng_state(), state)
    assert not folded.weight.requires_grad
    assert folded.bias.requires_grad
    half = calibrator.fold_into(nn.Linear(6, 4).requires_grad_(False).half())
    assert half.weight.dtype == torch.float16
    assert not any(parameter.requires_grad for parameter in half.parameters())


@pytest.mark.parametrize("name", [*FOLDED, "sms", "svs", "smooth"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [4, 1])
def test_folded_layer_gives_calibrated_logits(name: str, bias: bool, outputs: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, outputs, bias=bias)
    untouched = copy.deepcopy(linear.state_dict())
    inputs = torch.randn(300, 6) * 3
    target = torch.randint(2 if outputs == 1 else 4, (300,))
    target[:200] = (
        linear(inputs[:200]).detach().gt(0).long().squeeze(1) if outputs == 1 else linear(inputs[:200]).argmax(1)
    )
    options = {"strict": True} if name in FOLDED else {}
    calibrator = METHODS[name](**options).fit(linear(inputs).detach(), target)
    folded = calibrator.fold_into(linear)
    assert folded is not linear
    torch.testing.assert_close(folded(inputs), calibrator(linear(inputs)), rtol=1e-5, atol=1e-5)
    assert all(torch.equal(value, untouched[key]) for key, value in linear.state_dict().items())
    if name == "temperature" and not bias:
        assert folded.bias is None


def test_folding_into_the_wrong_layer_is_explained() -> None:
    scaling = VectorScaling().fit(FIT, TARGET)
    with pytest.raises(ValueError, match="7 outputs"):
        scaling.fold_into(nn.Linear(3, 7))
    with pytest.raises(ValueError, match="1 output:"):
        scaling.fold_into(nn.Linear(3, 1))
    with pytest.raises(TypeError, match="got ReLU"):
        scaling.fold_into(nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not fitted"):
        TemperatureScaling().fold_into(nn.Linear(3, 4))


def test_a_softmax_over_one_class_is_recognised() -> None:
    with pytest.warns(InputWarning, match="over one class"):
        logits_from_probabilities(FIT[:, :1].softmax(1))


def test_probabilities_become_logits_and_come_back() -> None:
    probabilities = FIT.softmax(1)
    torch.testing.assert_close(logits_from_probabilities(probabilities).softmax(1), probabilities)
    from_array = logits_from_probabilities(probabilities.numpy())
    assert isinstance(from_array, np.ndarray)
    np.testing.assert_array_equal(from_array, logits_from_probabilities(probabilities).numpy())
    assert logits_from_probabilities(np.array([[0.0, 1.0]])).min() == pytest.approx(-87.3365)  # in float64 too
    one = torch.tensor([0.0, 1e-30, 0.3, 1.0])
    torch.testing.assert_close(logits_from_probabilities(one).sigmoid(), one)
    torch.testing.assert_close(logits_from_probabilities(one[:, None]), logits_from_probabilities(one)[:, None])
    assert logits_from_probabilities(torch.tensor([[0.0, 1.0]])).isfinite().all()
    with pytest.raises(ValueError, match="must sum to 1"):
        logits_from_probabilities(FIT.softmax(1) / 2)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        logits_from_probabilities(FIT[:, 0])
    with pytest.raises(ValueError, match=r"got \(1, 2, 2\)"):
        logits_from_probabilities(torch.full((1, 2, 2), 0.5))
