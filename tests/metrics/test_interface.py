"""What the metrics accept, what they refuse, and how the scores of `evaluate` show."""

import inspect
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import calibrant as cal
from calibrant import metrics
from calibrant.metrics.binned import CONVENTIONS
from calibrant.metrics.evaluate import Scores
from calibrant.metrics.registry import METRICS

RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.standard_normal((300, 4))).astype(np.float32)
TARGET = RNG.integers(4, size=300)


def test_numpy_torch_and_lists_give_the_same_number() -> None:
    z, c = RNG.random(50), RNG.integers(2, size=50)
    value = metrics.ece(z, c)
    assert value == metrics.ece(torch.from_numpy(z), torch.from_numpy(c)) == metrics.ece(z.tolist(), c.tolist())
    assert value == metrics.ece(z[::-1], c[::-1]) == metrics.ece(z.astype(">f8"), c.astype(np.uint16))
    frozen = z.copy()
    frozen.flags.writeable = False
    assert metrics.ece(frozen, c > 0) == value
    assert metrics.ece(torch.from_numpy(z).requires_grad_(), torch.from_numpy(c)) == value


def test_metrics_leave_their_input_alone() -> None:
    z, c = RNG.random(50).astype(np.float32), RNG.integers(2, size=50)
    before = z.copy(), c.copy()
    metrics.evaluate(z, c)
    assert np.array_equal(z, before[0])
    assert np.array_equal(c, before[1])


def test_order_of_samples_does_not_matter() -> None:
    z, c = np.round(RNG.random(400), 2), RNG.integers(2, size=400)
    shuffle = RNG.permutation(400)
    one, other = metrics.evaluate(z, c), metrics.evaluate(z[shuffle], c[shuffle])
    for entry in one:
        assert other[entry.key] == pytest.approx(entry.value, rel=1e-12, abs=1e-15)


def test_rows_that_are_permutations_of_each_other_are_tied() -> None:
    for kind in (np.float32, np.float64):
        row = RNG.standard_normal(10).astype(kind)
        logits = np.stack([RNG.permutation(row) for _ in range(200)])
        assert len(metrics.predictions(logits=logits, target=np.zeros(200, int)).ties.samples) == 1


def test_binary_logits_and_probabilities_equal_two_classes() -> None:
    logit, y = RNG.standard_normal(100), RNG.integers(2, size=100)
    two = metrics.evaluate(logits=np.stack((np.zeros(100), logit), 1), target=y)
    p = 1 / (1 + np.exp(-logit))
    for scores in (
        metrics.evaluate(logits=logit, target=y),
        metrics.evaluate(logits=logit[:, None], target=y),
        metrics.evaluate(probabilities=p, target=y),
        metrics.evaluate(probabilities=p[:, None], target=y),
    ):
        assert scores.classes == 2
        for entry in two:
            assert scores[entry.key] == pytest.approx(entry.value, rel=1e-9, abs=1e-12)


def test_a_key_is_the_name_of_a_function_and_its_value_that_of_the_function() -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET)
    scores = metrics.evaluate(data)
    for key in METRICS:
        expected = getattr(metrics, key)(data)
        assert isinstance(expected, float)
        assert METRICS[key].value(data) == pytest.approx(expected, rel=1e-12), key
        assert not METRICS[key].evaluated or scores[key] == pytest.approx(expected, rel=1e-12), key
    assert set(scores.keys()) == set(METRICS) - {"integrated_calibration_index", "skce"}
    assert scores.accuracy == scores["accuracy"]
    assert "ece" in scores
    assert "ece" in dir(scores)


def test_every_metric_that_is_a_number_is_in_the_table() -> None:
    functions = {name: getattr(metrics, name) for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))}
    signatures = {name: inspect.signature(function) for name, function in functions.items()}
    numbers = {
        name
        for name, signature in signatures.items()
        if signature.return_annotation is float and not {"sets", "groups"} & set(signature.parameters)
    }
    assert numbers == set(METRICS)
    for metric in METRICS.values():
        assert metric.label
        assert metric.convention
        assert metric.meaning.endswith(".")


def test_bins_and_convention_reach_every_binned_score() -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET)
    scores = metrics.evaluate(data, bins=7, convention="netcal")
    rule: Any = {"bins": 7, "convention": "netcal"}
    for name in ("ece", "mce", "classwise_ece"):
        assert scores[name] == pytest.approx(getattr(metrics, name)(data, **rule), rel=1e-12)
    for name in ("equal_mass_ece", "debiased_l2"):
        assert scores[name] == pytest.approx(getattr(metrics, name)(data, bins=7), rel=1e-12)
    said = {score.key: score.convention for score in scores}
    assert said["ece"] == "netcal: 7 bins [lo, hi)"
    assert said["equal_mass_ece"] == "7 bins, ties together"


SAME_NAME = sorted(set(cal.functional.__all__) & set(metrics.__all__))


@pytest.mark.parametrize("name", SAME_NAME)
def test_functional_and_metrics_agree(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(module, name)).parameters for module in (metrics, cal.functional))
    data = metrics.predictions(logits=LOGITS, target=TARGET)
    rule = CONVENTIONS["paper"]
    for parameter in set(ours) & set(theirs) - {"confidence", "correct"}:
        mine = ours[parameter].default
        assert (rule.bins if parameter == "bins" and mine is None else mine) == theirs[parameter].default, parameter
    if "confidence" in theirs:
        given = torch.from_numpy(data.confidence), torch.from_numpy(data.correct)
    else:
        given = torch.from_numpy(LOGITS), torch.from_numpy(TARGET)
    function = getattr(cal.functional, name)
    assert function(*given).item() == pytest.approx(getattr(metrics, name)(data), rel=1e-6)
    if "sample_weight" in theirs:
        weight = RNG.integers(0, 4, 300).astype(np.float64)
        weighted = metrics.predictions(logits=LOGITS, target=TARGET, sample_weight=weight)
        found = function(*given, sample_weight=torch.from_numpy(weight)).item()
        assert found == pytest.approx(getattr(metrics, name)(weighted), rel=1e-5)


def test_checked_predictions_stand_alone() -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET)
    with pytest.raises(ValueError, match="alone"):
        metrics.ece(data, logits=LOGITS, target=TARGET)


def test_whole_numbers_are_numbers() -> None:
    assert metrics.ece([1, 0, 1], [1, 0, 0]) == metrics.ece([1.0, 0.0, 1.0], [1, 0, 0])
    whole = np.round(LOGITS).astype(np.int16)
    assert metrics.log_loss(logits=whole, target=TARGET) == metrics.log_loss(logits=whole.astype(float), target=TARGET)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_rounding_pushed_out_of_range_is_put_back(kind: type) -> None:
    eps = np.finfo(kind).eps
    z: Any = np.array([1 + eps, -eps, 0.5], dtype=kind)
    assert metrics.ece(z, [1, 0, 1]) == metrics.ece(z.clip(0, 1), [1, 0, 1])


def test_targets_of_binary_losses_are_taken() -> None:
    logit, y = RNG.standard_normal((20, 1)), RNG.integers(2, size=(20, 1))
    p = 1 / (1 + np.exp(-logit))
    expected = metrics.log_loss(logits=logit[:, 0], target=y[:, 0])
    for target in (y, y.astype(np.float32), y[:, 0]):
        assert metrics.log_loss(logits=logit, target=target) == pytest.approx(expected)
        assert metrics.log_loss(probabilities=p, target=target) == pytest.approx(expected)


def test_numpy_may_be_told_to_raise() -> None:
    with np.errstate(all="raise"):
        metrics.evaluate(logits=np.array([[1e300, -1e300], [700.0, 0.0], [0.0, 1.0]]), target=[0, 0, 1])
        metrics.evaluate(np.array([1e-300, 1.0, 0.5]), [0, 1, 1])


def test_scores_are_a_mapping_and_pairs_have_none_of_classes() -> None:
    scores = metrics.evaluate([0.5, 0.7, 0.9], [0, 1, 1])
    assert dict(scores)["ece"] == scores.ece
    assert scores.classes is None
    assert "log_loss" not in scores
    with pytest.raises(KeyError, match="log_loss"):
        _ = scores["log_loss"]
    with pytest.raises(AttributeError, match="log_loss"):
        _ = scores.log_loss


def test_scores_print_and_serialise() -> None:
    scores = metrics.evaluate(logits=LOGITS, target=TARGET)
    text = str(scores)
    assert text == repr(scores)
    assert text.startswith("300 samples, 4 classes")
    assert all(entry.label.strip() in text for entry in scores)
    assert max(map(len, text.splitlines())) <= 100
    plain = json.loads(json.dumps(scores.to_dict()))
    assert plain["scores"]["ece"] == {"value": scores.ece, "convention": "paper: 20 bins (lo, hi]"}
    page = scores._repr_html_()
    assert page.count("<tr>") == len(scores.entries) + 1
    assert isinstance(scores, Scores)


@pytest.mark.parametrize("z", [np.zeros(5), np.ones(5), np.full(5, 0.5), np.array([0.0, 1, 0, 1, 1])])
@pytest.mark.parametrize("c", [np.zeros(5), np.ones(5), np.array([0, 1, 1, 0, 1])])
def test_every_score_of_saturated_predictions_is_finite(z: np.ndarray[Any, Any], c: np.ndarray[Any, Any]) -> None:
    assert all(np.isfinite(entry.value) for entry in metrics.evaluate(z, c))


PROGRAM = """
import sys
from typing import Any
sys.modules["torch"] = None  # as if it were not installed
import calibrant
from calibrant import metrics
given = dict(logits=[[2.0, 0.0], [0.0, 1.0], [1.0, 0.5], [0.2, 3.0]] * 20, target=[0, 1, 1, 1] * 20)
print(round(metrics.evaluate(**given).ece, 6), metrics.calibration_test(**given, draws=50).p_value)
try:
    calibrant.ESDLoss
except ImportError as error:
    print(error)
"""


def test_metrics_need_no_torch_and_an_objective_names_the_extra() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    given: dict[str, Any] = {
        "logits": np.tile([[2.0, 0.0], [0.0, 1.0], [1.0, 0.5], [0.2, 3.0]], (20, 1)),
        "target": [0, 1, 1, 1] * 20,
    }
    lines = ended.stdout.splitlines()
    assert lines[0] == f"{metrics.evaluate(**given).ece:.6f} {metrics.calibration_test(**given, draws=50).p_value}"
    assert "calibrant[torch]" in lines[1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_every_precision_are_taken(dtype: torch.dtype) -> None:
    confidence = torch.tensor([0.5, 0.75, 1.0], dtype=dtype, requires_grad=True)
    found = metrics.predictions(confidence, torch.tensor([0, 1, 1]))
    assert found.confidence.tolist() == [0.5, 0.75, 1.0]
    assert found.confidence.dtype == (np.float64 if dtype == torch.float64 else np.float32)
