"""Bad input gets an error that says what came, what was expected and what to do."""

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import calibrant as cal
import calibrant.functional as F
from tests.cases import MODULES

LOGITS, TARGET = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
NAN = LOGITS.clone()
NAN[2, 1] = torch.nan

# Logits and target, the error, and a key of its message.
BAD_BATCHES: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "NaN logits": (NAN, TARGET, ValueError, "in 1 of 8 samples"),
    "label too large": (LOGITS, TARGET + 1, ValueError, r"0\.\.2 for 3 classes.* from 1 to 3"),
    "binary label 2": (LOGITS[:, 0], TARGET, ValueError, r"0\.\.1 for 2 classes.* from 0 to 2"),
    "target too short": (LOGITS, TARGET[:-1], ValueError, r"\(8,\) .* \(8, 3\), got \(7,\)"),
    "target not flat": (LOGITS, TARGET[:, None], ValueError, r"got \(8, 1\).*target\.squeeze\(1\)"),
    "float target": (LOGITS, TARGET.float(), TypeError, r"torch.float32: call target.long"),
    "integer logits": (LOGITS.long(), TARGET, TypeError, r"torch.int64: call logits.float"),
    "numpy logits": (LOGITS.numpy(), TARGET, TypeError, r"got ndarray: use torch.as_tensor"),
    "numpy target": (LOGITS, np.arange(8) % 3, TypeError, "target .*got ndarray"),
    "list target": (LOGITS, [0, 1, 2], TypeError, "target .*got list"),
    "scalar logits": (LOGITS[0, 0], TARGET[0], ValueError, "0-d"),
    "no class": (LOGITS[:, :0], TARGET, ValueError, "at least one class"),
    "empty batch": (LOGITS[:0], TARGET[:0], ValueError, r"at least \d sample.*got 0"),
    "other device": (LOGITS, TARGET.to("meta"), ValueError, "meta .* on cpu"),
    "an object": (SimpleNamespace(logits=LOGITS), TARGET, TypeError, r"outputs\.logits"),
    "a dict": ({"logits": LOGITS}, TARGET, TypeError, r"outputs\.logits"),
}


@pytest.mark.parametrize("bad", BAD_BATCHES)
@pytest.mark.parametrize("name", MODULES)
def test_bad_batches_are_named(name: str, bad: str) -> None:
    logits, target, error, message = BAD_BATCHES[bad]
    with pytest.raises(error, match=message):
        MODULES[name]()(logits, target)


@pytest.mark.parametrize("name", MODULES)
def test_bad_masks_are_named(name: str) -> None:
    module = MODULES[name]()
    with pytest.raises(TypeError, match=r"torch.int64: call mask.bool"):
        module(LOGITS, TARGET, mask=torch.ones(8, dtype=torch.long))
    with pytest.raises(ValueError, match=r"mask .*\(8,\) .*\(7,\)"):
        module(LOGITS, TARGET, mask=torch.ones(7, dtype=torch.bool))


def test_too_few_samples_say_what_to_do() -> None:
    message = "ESD .*3 samples, got 2: .*drop_last=True"
    with pytest.raises(ValueError, match=message):
        cal.ESDLoss()(LOGITS[:2], TARGET[:2])
    with pytest.raises(ValueError, match=message):
        F.esd(torch.rand(2), torch.ones(2))
    with pytest.raises(ValueError, match=message):
        cal.ESDLoss()(LOGITS[:2], TARGET[:2], mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=message):
        F.esd(torch.rand(2), torch.ones(2), mask=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"MMCE .*2 samples, got 1"):
        cal.MMCELoss(unbiased=True)(LOGITS[:1], TARGET[:1])
    assert cal.MMCELoss()(LOGITS[:1], TARGET[:1]).isfinite()
    assert cal.ESDLoss()(LOGITS[:3], TARGET[:3]).isfinite()


Z, C = torch.tensor([0.2, 0.5, 0.9, 0.7]), torch.tensor([0, 1, 1, 0])
PAIR_FUNCTIONS = [F.esd, F.mmce, F.mmce_weighted, F.soft_binned_ece, F.ece, F.dca]
BAD_PAIRS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "logits for confidence": (Z * 10, C, ValueError, r"\[0, 1\].* from 2 to 9"),
    "NaN confidence": (Z / torch.tensor([1, 0, 1, 0]) * 0, C, ValueError, "without NaN"),
    "integer confidence": (C, C, TypeError, "confidence .*torch.int64"),
    "array confidence": (Z.numpy(), C, TypeError, "got ndarray"),
    "correct not 0 or 1": (Z, C * 2, ValueError, "correct must hold"),
    "correct NaN": (Z, C * torch.nan, ValueError, "correct must hold"),
    "lengths differ": (Z, C[:3], ValueError, r"\(4,\) .* \(3,\)"),
    "0-d": (Z[0], C[0], ValueError, "0-d"),
}


@pytest.mark.parametrize("bad", BAD_PAIRS)
@pytest.mark.parametrize("function", PAIR_FUNCTIONS, ids=lambda f: f.__name__)
def test_bad_pairs_are_named(function: Callable[[Tensor, Tensor], Tensor], bad: str) -> None:
    confidence, correct, error, message = BAD_PAIRS[bad]
    with pytest.raises(error, match=message):
        function(confidence, correct)


Call = Callable[[], object]


def weighted(weight: Any) -> Call:
    return lambda: cal.ESDLoss()(LOGITS, TARGET, sample_weight=weight)


def labels(target: Any, logits: Any = LOGITS, **options: Tensor) -> Call:
    return lambda: cal.ESDLoss(view="multi-label")(logits, target, **options)


ONES = torch.ones(8, 3)
BAD: dict[str, tuple[Call, type[Exception], str]] = {
    "view": (lambda: cal.ESDLoss(view="classwise"), ValueError, "'multi-label', got 'classwise'"),  # type: ignore[arg-type]
    "bandwidth": (lambda: cal.MMCELoss(0.0), ValueError, "bandwidth"),
    "bandwidth NaN": (lambda: F.mmce(Z, C, float("nan")), ValueError, "bandwidth"),
    "bandwidth text": (lambda: F.mmce_weighted(Z, C, "0.4"), TypeError, "bandwidth .*got str"),  # type: ignore[arg-type]
    "bins": (lambda: cal.ECELoss(0), ValueError, "bins .*got 0"),
    "bins float": (lambda: F.ece(Z, C, 15.0), TypeError, "bins .*got float"),  # type: ignore[arg-type]
    "temperature": (lambda: cal.SoftBinnedECELoss(temperature=0), ValueError, "temperature"),
    "norm": (lambda: cal.SoftBinnedECELoss(norm=0.5), ValueError, "norm"),
    "form": (lambda: cal.SoftBinnedECELoss(form="soft"), ValueError, "'label-binned', 'binned'"),  # type: ignore[arg-type]
    "threshold": (lambda: cal.AvUCLoss(-1), ValueError, "threshold"),
    "soft threshold": (lambda: cal.SoftAvUCLoss(1.0), ValueError, "threshold"),
    "gamma": (lambda: cal.FocalLoss(-1), ValueError, "gamma"),
    "gamma name": (lambda: cal.FocalLoss("flsd"), ValueError, "'flsd-53'"),  # type: ignore[arg-type]
    "smoothing": (lambda: cal.LabelSmoothingLoss(1.0), ValueError, "smoothing"),
    "spread": (lambda: cal.LabelSmoothingLoss(spread="none"), ValueError, "'all', 'others'"),  # type: ignore[arg-type]
    "bsce-gra gamma": (lambda: cal.BSCEGRALoss(-1), ValueError, "gamma"),
    "adafocal bins": (lambda: cal.AdaFocalLoss(0), ValueError, "bins"),
    "adafocal gamma": (lambda: cal.AdaFocalLoss(gamma=30), ValueError, "gamma .*20"),
    "cals margin": (lambda: cal.CALSLoss(0), ValueError, "margin"),
    "cals rho": (lambda: cal.CALSLoss(rho=2, rho_max=1), ValueError, "rho_max .*2"),
    "kde bandwidth": (lambda: cal.ECEKDELoss(0), ValueError, "bandwidth"),
    "kde view": (lambda: cal.ECEKDELoss(view="class-wise"), ValueError, "'top-label', got 'class-wise'"),  # type: ignore[arg-type]
    "margin": (lambda: cal.MarginLabelSmoothingLoss(margin=-1), ValueError, "margin"),
    "negative weight": (weighted(torch.arange(8) - 1.0), ValueError, "sample_weight .*from -1 to 6"),
    "NaN weight": (weighted(torch.full((8,), torch.nan)), ValueError, "sample_weight .*finite"),
    "weight a list": (weighted([1.0] * 8), TypeError, "sample_weight .*got list"),
    "complex weight": (weighted(torch.ones(8, dtype=torch.complex64)), TypeError, "sample_weight .*real"),
    "weight elsewhere": (weighted(torch.ones(8, device="meta")), ValueError, "sample_weight .*meta"),
    "weight too small": (weighted(torch.full((8,), 0.1)), ValueError, r"sample_weight .*0\.8: .* w\.sum\(\)"),
    "weight of pairs": (lambda: F.esd(Z, C, sample_weight=-Z), ValueError, "sample_weight .*from -0.9"),
    "labels: class indices": (labels(TARGET), ValueError, r"\(8, 3\).* got \(8,\)"),
    "labels: soft": (labels(ONES / 2), ValueError, "only 0 and 1 .*round"),
    "labels: NaN": (labels(ONES * torch.nan), ValueError, "only 0 and 1"),
    "labels: NaN logits": (labels(ONES, NAN), ValueError, "logits must be finite"),
    "labels: none": (labels(ONES[:, :0], LOGITS[:, :0]), ValueError, "class or label"),
    "labels: elsewhere": (labels(ONES.to("meta")), ValueError, "target .*meta"),
    "labels: an object": (labels(ONES, SimpleNamespace(logits=LOGITS)), TypeError, r"outputs\.logits"),
    "labels: mask": (labels(ONES, mask=TARGET > 0), ValueError, r"mask .*\(8, 3\) .*\(8,\)"),
    "labels: weights": (labels(ONES, sample_weight=ONES), ValueError, r"sample_weight .*\(8,\) .*\(8, 3\)"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_options_weights_and_labels_are_named(bad: str) -> None:
    call, error, message = BAD[bad]
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("bad", ["x", 1.5, float("nan"), True, [1], torch.tensor(1)])
def test_ignore_index_is_a_whole_number_or_none(bad: Any) -> None:
    with pytest.raises(TypeError, match="ignore_index"):
        cal.ESDLoss(ignore_index=bad)


def test_options_may_be_numpy_numbers() -> None:
    assert F.mmce(Z, C, np.float64(0.4)) == F.mmce(Z, C, 0.4)
    bins: Any = np.int64(15)
    assert F.ece(Z, C, bins) == F.ece(Z, C, 15)


@pytest.mark.parametrize("form", ["sparse", "nested", "float8", "complex"])
def test_unusual_tensors_are_named(form: str) -> None:
    given: dict[str, Callable[[], Tensor]] = {
        "sparse": LOGITS.to_sparse,
        "nested": lambda: torch.nested.nested_tensor([LOGITS[0], LOGITS[1]]),
        "float8": lambda: LOGITS.to(torch.float8_e4m3fn),
        "complex": lambda: LOGITS.to(torch.complex64),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls nested tensors a prototype
        logits = given[form]()
    with pytest.raises(TypeError, match="logits must be"):
        cal.ESDLoss()(logits, TARGET)


def test_lazily_negated_tensors_are_read_as_they_are() -> None:
    z = torch.complex(Z, -Z).conj().imag
    assert z.is_neg()
    torch.testing.assert_close(F.esd(z, C), F.esd(Z, C))


def test_unsigned_labels_are_not_mistaken_for_ignored_ones() -> None:
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([156, 156, 156, 1, 2, 3, 4, 5], dtype=torch.uint8)  # 156 is -100 in eight bits
    module = cal.BrierLoss()
    torch.testing.assert_close(torch.vmap(module)(logits[None], target[None])[0], module(logits, target))


def test_soft_threshold_stays_inside_its_interval() -> None:
    undecided = torch.zeros(8, 3)
    for logits in (undecided, LOGITS.sign() * 1e4):
        loss = cal.SoftAvUCLoss().fit_threshold(logits, TARGET)
        assert 0 < loss.threshold < 1
        assert loss(logits, TARGET).isfinite()


def test_a_threshold_from_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match="state of S-AvUC"):
        cal.AvUCLoss().load_state_dict(cal.SoftAvUCLoss().state_dict())
    with pytest.raises(ValueError, match=r"threshold .*got 5"):
        cal.SoftAvUCLoss().set_extra_state({"objective": "S-AvUC", "threshold": 5.0})


def test_threshold_needs_both_kinds_of_predictions() -> None:
    with pytest.raises(ValueError, match="got 0 right and 8 wrong"):
        cal.AvUCLoss().fit_threshold(LOGITS, (LOGITS.argmax(1) + 1) % 3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool])
def test_every_integer_type_holds_labels(dtype: torch.dtype) -> None:
    logits, target = LOGITS[:, :2], TARGET.clamp(max=1)
    assert cal.ESDLoss(root=False)(logits, target.to(dtype)) == cal.ESDLoss(root=False)(logits, target)


@pytest.mark.parametrize("function", PAIR_FUNCTIONS, ids=lambda f: f.__name__)
def test_correct_may_be_bool_int_or_float(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert function(Z, C.bool()) == function(Z, C) == function(Z, C.double())


LABELS = torch.tensor([[1, 0, 1], [0, 0, 0]] * 4)
LIKELY: dict[str, tuple[Tensor, type[Exception], str]] = {
    "one-hot": (torch.eye(3, dtype=torch.uint8)[TARGET], ValueError, r"one-hot, pass target\.argmax"),
    "one-hot, float": (torch.eye(3)[TARGET], TypeError, "one-hot"),
    "labels": (LABELS, ValueError, "multi-label.*multi_label=True"),
    "labels, some ignored": (LABELS.masked_fill(torch.eye(8, 3) == 1, -100), ValueError, "multi-label"),
    "anything else": (torch.full((8, 3), 2), ValueError, r"got \(8, 3\)$"),
    "soft labels": (LOGITS.softmax(1), TypeError, r"target\.long"),
}


@pytest.mark.parametrize("likely", LIKELY)
def test_the_error_says_what_the_target_probably_is(likely: str) -> None:
    target, error, hint = LIKELY[likely]
    with pytest.raises(error, match=hint):
        cal.ESDLoss()(LOGITS, target)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_probabilities_in_place_of_logits_are_noticed(dtype: torch.dtype) -> None:
    logits, target = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
    spoiled = logits.softmax(1).to(dtype)
    spoiled[0] = torch.nan
    for loss in (cal.BrierLoss(), cal.ESDLoss()):
        with pytest.warns(UserWarning, match="look like probabilities"):
            loss(spoiled, target, mask=torch.arange(16) > 0)
        loss(spoiled, target, mask=torch.arange(16) > 0)  # once


def test_what_need_not_be_probabilities_is_not_warned_of() -> None:
    logits, target = torch.randn(16, 3, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
    p = logits.softmax(1)
    cal.ESDLoss()(logits, target)
    cal.ESDLoss()(p[:7], target[:7])  # so few may sum to 1 by chance
    cal.ESDLoss()(torch.where(torch.arange(16)[:, None] < 15, p, logits), target)
    cal.ESDLoss()(p.log(), target)
    cal.ESDLoss()(torch.cat((p + 1, p - 4 / 3), dim=1) / 2, target)
    cal.ESDLoss()(torch.ones(16), target % 2)  # binary logits have no rows to sum
    cal.ESDLoss(view="multi-label")(p, p.round())
    torch.vmap(cal.ESDLoss())(p[None], target[None])
