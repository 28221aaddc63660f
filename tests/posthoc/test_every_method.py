"""What every calibrator promises: rows that sum to one, repair, state that travels, errors that explain."""

import copy
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calibrant.metrics import InputWarning
from calibrant.posthoc import (
    METHODS,
    BayesianBinning,
    BetaCalibration,
    Calibrator,
    CentredIsotonicCalibration,
    ConformalClassifier,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    PriorShift,
    SplineCalibration,
    TemperatureScaling,
    VectorScaling,
    VennAbers,
    logits_from_probabilities,
)
from calibrant.posthoc.fitted import Fitted
from tests.posthoc.data import ece, nll, overconfident

CALIBRATORS: dict[str, Callable[[], Calibrator]] = {
    **METHODS,
    "matrix": lambda: MatrixScaling(0.1, 0.1),
    "dirichlet": lambda: DirichletCalibration(0.1, 0.1),
    "platt top-label": lambda: PlattScaling("top-label"),
    "beta top-label": lambda: BetaCalibration("top-label"),
    "spline class-wise": lambda: SplineCalibration(view="class-wise"),
    "histogram class-wise": lambda: HistogramBinning(view="class-wise"),
    "histogram equal-width": lambda: HistogramBinning(mode="equal-width"),
    "isotonic top-label": lambda: IsotonicCalibration("top-label"),
    "centred-isotonic top-label": lambda: CentredIsotonicCalibration("top-label"),
    "venn-abers top-label": lambda: VennAbers("top-label"),
    "bbq top-label": lambda: BayesianBinning("top-label"),
    "prior-shift": lambda: PriorShift(method="temperature"),
}
WITH_LOGITS = [
    "auto",
    "temperature",
    "sms",
    "svs",
    "quadratic",
    "smooth",
    "vector",
    "matrix",
    "dirichlet",
    "prior-shift",
]
FIT, TARGET = overconfident(2000, 4, 2.5, seed=0)
TEST, TEST_TARGET = overconfident(2000, 4, 2.5, seed=1)


def fitted(name: str) -> Calibrator:
    return CALIBRATORS[name]().fit(FIT.float(), TARGET)


def test_methods_are_those_that_are_promised() -> None:
    assert " ".join(METHODS) == (
        "auto temperature sms svs quadratic smooth vector matrix dirichlet ensemble-temperature platt beta spline "
        "histogram isotonic centred-isotonic venn-abers bbq"
    )


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


@pytest.mark.parametrize("name", [*CALIBRATORS, "conformal"])
def test_state_travels_through_safetensors(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    makers: dict[str, Callable[[], Fitted]] = {**CALIBRATORS, "conformal": ConformalClassifier}
    calibrator, other, oldest = (makers[name]() for _ in range(3))
    calibrator.fit(FIT.float(), TARGET)
    save_file(calibrator.state_dict(), tmp_path / "calibrator.safetensors")
    other.load_state_dict(load_file(tmp_path / "calibrator.safetensors"))
    # Version 0.1 saved a dictionary where there are bytes now.
    settings = json.loads(bytes(calibrator.state_dict()["_extra_state"].tolist()))
    if "chosen_penalties_" in settings:
        settings["chosen_penalties_"] = tuple(settings["chosen_penalties_"])
    oldest.load_state_dict({**calibrator.state_dict(), "_extra_state": settings})
    for loaded in (other, oldest):
        assert repr(loaded) == repr(calibrator)
        for key, value in calibrator.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_hugging_face_model_that_holds_a_calibrator_is_saved(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import load_file

    class Calibrated(transformers.PreTrainedModel):  # type: ignore[misc, name-defined]
        config_class = transformers.PretrainedConfig

        def __init__(self, config: object) -> None:
            super().__init__(config)
            self.linear = nn.Linear(4, 4)
            self.calibrator = TemperatureScaling()
            self.post_init()

    model = Calibrated(transformers.PretrainedConfig())
    model.calibrator.fit(FIT.float(), TARGET)
    model.save_pretrained(tmp_path)
    other = Calibrated.from_pretrained(tmp_path)
    assert torch.equal(other.linear.weight, model.linear.weight)
    if transformers.__version__ >= "5":  # it leaves out buffers that a fresh model does not have, but not in silence
        with pytest.raises(RuntimeError, match="TemperatureScaling is not fitted"):
            other.calibrator(TEST)
        other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other.calibrator(TEST), model.calibrator(TEST))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_state_dict_goes_into_a_fresh_calibrator(name: str) -> None:
    calibrator = fitted(name)
    file = io.BytesIO()
    torch.save(nn.Sequential(nn.Identity(), calibrator).state_dict(), file)
    file.seek(0)
    other = CALIBRATORS[name]()
    nn.Sequential(nn.Identity(), other).load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.predict_proba(TEST), calibrator.predict_proba(TEST))
    smaller = CALIBRATORS[name]().fit(FIT[:300, :3], TARGET[:300].clamp_max(2))
    smaller.load_state_dict(calibrator.state_dict())
    assert torch.equal(smaller.predict_proba(TEST), calibrator.predict_proba(TEST))
    assert "class_count_=4" in repr(calibrator)
    copied = copy.deepcopy(calibrator)
    assert torch.equal(copied.predict_proba(TEST), calibrator.predict_proba(TEST))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_binary_logits_are_two_classes(name: str) -> None:
    logits, target = overconfident(1000, 2, 2.0, seed=2)
    one = (logits[:, 1] - logits[:, 0]).float()
    two = torch.stack((torch.zeros_like(one), one), dim=1)
    as_two = CALIBRATORS[name]().fit(two, target).predict_proba(two)
    for binary in (one, one.unsqueeze(1)):
        calibrator = CALIBRATORS[name]().fit(binary, target)
        torch.testing.assert_close(calibrator.predict_proba(binary), as_two, rtol=0, atol=1e-6)
        if name in WITH_LOGITS:
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
def test_precision_follows_the_logits_and_the_module_moves(name: str) -> None:
    calibrator = fitted(name)
    reference = calibrator.predict_proba(TEST)
    assert reference.dtype == torch.float64
    assert calibrator.predict_proba(TEST.half()).dtype == torch.float32
    wide = calibrator.double()
    assert all(buffer.dtype == torch.float64 for buffer in wide.buffers())
    torch.testing.assert_close(wide.predict_proba(TEST), reference, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_ignored_samples_do_not_count(name: str) -> None:
    logits, target = (
        torch.cat((FIT, torch.full((5, 4), torch.nan))).float(),
        torch.cat((TARGET, torch.full((5,), -100))),
    )
    assert torch.equal(
        CALIBRATORS[name]().fit(logits, target).predict_proba(TEST), fitted(name).predict_proba(TEST)
    )  # fmt: skip


@pytest.mark.parametrize("name", CALIBRATORS)
def test_misuse_is_explained(name: str) -> None:
    calibrator = CALIBRATORS[name]()
    with pytest.raises(RuntimeError, match=r"is not fitted: call fit\(logits, target\)"):
        calibrator.predict_proba(TEST)
    calibrator.fit(FIT, TARGET)
    with pytest.raises(ValueError, match=r"fitted on 4 classes, got 3 in logits of shape \(2000, 3\): use the model"):
        calibrator.predict_proba(TEST[:, :3])
    with pytest.raises(ValueError, match=r"fitted on 4 classes, got logits .* which are those of two classes"):
        calibrator.predict_proba(TEST[:, 0])
    bad = TEST.clone()
    bad[3, 1] = torch.nan
    with pytest.raises(ValueError, match="logits must be finite, got NaN"):
        calibrator.predict_proba(bad)
    with pytest.raises(ValueError, match="got NaN or infinity in 1 of 2000 samples: leave those samples out, or"):
        calibrator.fit(bad, TARGET)
    with pytest.raises(ValueError, match=r"got labels from 1 to 4"):
        calibrator.fit(FIT, TARGET + 1)
    with pytest.raises(ValueError, match=r"needs at least 1 sample to fit, got none"):
        calibrator.fit(FIT, torch.full_like(TARGET, -100))
    with pytest.raises(ValueError, match=r"shape \(4,\), which is a batch of binary logits: pass logits\[None\]"):
        calibrator.predict_proba(TEST[0])
    with pytest.raises(ValueError, match=r"must have shape \(N, C\).* got \(2, 0\): pass a batch"):
        calibrator.predict_proba(torch.zeros(2, 0))


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if name not in WITH_LOGITS])
def test_methods_without_logits_say_so(name: str) -> None:
    with pytest.raises(TypeError, match=r"has no calibrated logits, only probabilities: call predict_proba\(logits\)"):
        fitted(name)(TEST)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_saturated_logits_give_finite_rows(name: str) -> None:
    extreme = torch.tensor([[1e30, -1e30, 0.0, 0.0], [-1e30, -1e30, -1e30, 1e30], [0.0, 0.0, 0.0, 0.0], [3e38] * 4])
    for logits in (extreme, extreme.double()):
        rows = fitted(name).predict_proba(logits)
        assert rows.isfinite().all()
        assert (rows.sum(1) - 1).abs().max() < 1e-6


class Probabilities(nn.Module):
    """A calibrator's probabilities as a module's output."""

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        self.calibrator = calibrator

    def forward(self, logits: Tensor) -> Tensor:
        return self.calibrator.predict_proba(logits)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", CALIBRATORS)
def test_export_with_a_dynamic_batch(name: str) -> None:
    torch.manual_seed(0)
    last = fitted(name) if name in WITH_LOGITS else Probabilities(fitted(name))
    model = nn.Sequential(nn.Linear(6, 4), last).eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(model, (torch.randn(3, 6),), dynamic_shapes=(batch,), strict=False)
    for samples in (1, 3, 17):
        inputs = torch.randn(samples, 6) * 5
        torch.testing.assert_close(program.module()(inputs), model(inputs))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_no_cast_loses_what_was_fitted(name: str) -> None:
    calibrator = fitted(name)
    before = calibrator.predict_proba(TEST)
    for cast in (torch.float16, torch.bfloat16):
        assert torch.equal(calibrator.to(cast).predict_proba(TEST), before)
    wide = CALIBRATORS[name]().fit(FIT, TARGET)
    before = wide.predict_proba(TEST)
    nn.Sequential(wide).float()
    assert torch.equal(wide.predict_proba(TEST), before)
    narrow = fitted(name)
    narrow.load_state_dict(wide.state_dict())
    assert torch.equal(narrow.predict_proba(TEST), before)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_autocast_changes_nothing(name: str) -> None:
    calibrator = fitted(name)
    with torch.autocast("cpu", torch.bfloat16):
        probabilities = calibrator.predict_proba(TEST.float())
        again = CALIBRATORS[name]().fit(FIT.float(), TARGET)
    assert torch.equal(probabilities, calibrator.predict_proba(TEST.float()))
    assert all(torch.equal(one, other) for one, other in zip(again.buffers(), calibrator.buffers(), strict=True))
    if name in WITH_LOGITS:
        with torch.autocast("cpu", torch.bfloat16):
            logits = calibrator(TEST.float())
        assert torch.equal(logits, calibrator(TEST.float()))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_what_was_fitted_in_inference_mode_can_be_trained_through(name: str) -> None:
    with torch.inference_mode():
        calibrator = CALIBRATORS[name]().fit(FIT.float() * 1.0, TARGET * 1)
    rows = TEST[:5].float().requires_grad_()
    (calibrator.predict_proba(rows)[:, 0].sum() + 0 * rows.sum()).backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_the_state_of_another_kind_or_view_is_refused_and_nothing_is_lost() -> None:
    binary = TEST[:, 1] - TEST[:, 0]
    for mine, theirs, message in [
        (
            PlattScaling("top-label"),
            PlattScaling("class-wise"),
            "PlattScaling with view='class-wise', not with view",
        ),
        (
            DirichletCalibration(1.0, 1.0),
            MatrixScaling(1.0, 1.0),
            "state of a MatrixScaling, not of a DirichletCalibration",
        ),
        (HistogramBinning(), HistogramBinning(view="class-wise"), "use the same options"),
    ]:
        mine.fit(binary, TEST_TARGET % 2)
        before = mine.predict_proba(binary)
        with pytest.raises(RuntimeError, match=message):
            mine.load_state_dict(theirs.fit(binary, TEST_TARGET % 2).state_dict())
        assert torch.equal(mine.predict_proba(binary), before)


@pytest.mark.parametrize("strict", [True, False])
def test_a_load_that_fails_leaves_the_calibrator_as_it_was(strict: bool) -> None:
    calibrator = fitted("vector")
    before = calibrator.predict_proba(TEST)
    with pytest.raises(RuntimeError, match="state of a VectorScaling that is not fitted: save it after fit"):
        calibrator.load_state_dict(VectorScaling().state_dict(), strict=strict)
    for lost in ("shift", "_extra_state"):
        state = CALIBRATORS["vector"]().fit(FIT[:100], TARGET[:100]).state_dict()
        del state[lost]
        if strict:
            with pytest.raises(RuntimeError, match=f'Missing key.*"{lost}"'):
                calibrator.load_state_dict(state)
        else:
            calibrator.load_state_dict(state, strict=False)
        assert torch.equal(calibrator.predict_proba(TEST), before)
    VectorScaling().load_state_dict(VectorScaling().state_dict(), strict=strict)


def test_nothing_is_told_before_fitting() -> None:
    for unfitted, attribute in [
        (TemperatureScaling(), "temperature_"), (EnsembleTemperatureScaling(), "temperature_"),
        (EnsembleTemperatureScaling(), "weights_"),
    ]:  # fmt: skip
        with pytest.raises(RuntimeError, match=r"is not fitted: call fit\(logits, target\)"):
            getattr(unfitted, attribute)


@pytest.mark.parametrize("name", WITH_LOGITS)
def test_numpy_logits_give_numpy_logits(name: str) -> None:
    calibrator = fitted(name)
    logits = calibrator(TEST.float().numpy())
    assert isinstance(logits, np.ndarray)
    np.testing.assert_array_equal(logits, calibrator(TEST.float()).numpy())
    binary = CALIBRATORS[name]().fit(FIT[:, 1] - FIT[:, 0], TARGET % 2)
    assert binary(TEST[:, :1].numpy()).shape == (2000, 1)


@pytest.mark.parametrize("name", ["temperature", "vector"])
def test_folding_draws_nothing_and_keeps_what_is_frozen(name: str) -> None:
    calibrator = fitted(name)
    assert isinstance(calibrator, TemperatureScaling | VectorScaling)
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


@pytest.mark.parametrize("name", ["temperature", "vector"])
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
    calibrator = METHODS[name](strict=True).fit(linear(inputs).detach(), target)
    assert isinstance(calibrator, TemperatureScaling | VectorScaling)
    folded = calibrator.fold_into(linear)
    assert folded is not linear
    torch.testing.assert_close(folded(inputs), calibrator(linear(inputs)), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(value, untouched[key]) for key, value in linear.state_dict().items())
    if name == "temperature" and not bias:
        assert folded.bias is None


def test_folding_into_the_wrong_layer_is_explained() -> None:
    scaling = VectorScaling().fit(FIT, TARGET)
    with pytest.raises(ValueError, match="fitted on 4 classes, got a layer with 7 outputs: pass the layer"):
        scaling.fold_into(nn.Linear(3, 7))
    with pytest.raises(ValueError, match="fitted on 4 classes, got a layer with 1 output:"):
        scaling.fold_into(nn.Linear(3, 1))
    with pytest.raises(TypeError, match=r"folds into a torch.nn.Linear, got ReLU"):
        scaling.fold_into(nn.ReLU())  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not fitted"):
        TemperatureScaling().fold_into(nn.Linear(3, 4))


def test_a_softmax_over_one_class_is_recognised() -> None:
    with pytest.warns(InputWarning, match="every probability of class 1 is 1, probably by a softmax over one class"):
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
    with pytest.raises(ValueError, match=r"shape \(N, C\), or \(N,\) or \(N, 1\) if binary, got \(1, 2, 2\)"):
        logits_from_probabilities(torch.full((1, 2, 2), 0.5))
