"""Several labels per sample: scores against loops over labels in plain NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrant import metrics
from tests.metrics.reference import assert_same

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.standard_normal((200, 3))
P = 1 / (1 + np.exp(-LOGITS))
TARGET = (RNG.random((200, 3)) < P**2).astype(int)


def ece(p: Any, y: Any, bins: int = 20) -> float:
    """ECE of one column with bins (lo, hi], the first one with 0."""
    total = 0.0
    for k in range(bins):
        inside = (p > k / bins) & (p <= (k + 1) / bins) if k else p <= 1 / bins
        total += abs((p[inside] - y[inside]).sum())
    return total / len(p)


def test_scores_equal_loops_over_labels() -> None:
    loss = -np.log(np.where(TARGET == 1, P, 1 - P))
    for values in ({"probabilities": P}, {"logits": LOGITS}):
        scores = metrics.evaluate(**values, target=TARGET)  # type: ignore[arg-type]
        assert (scores.samples, scores.classes, scores.task) == (200, 3, "multi-label")
        assert scores.log_loss == pytest.approx(np.mean([loss[:, k].mean() for k in range(3)]))
        assert scores.brier == pytest.approx(np.mean([((P - TARGET) ** 2)[:, k].mean() for k in range(3)]))
        assert scores.classwise_ece == pytest.approx(np.mean([ece(P[:, k], TARGET[:, k]) for k in range(3)]))
        assert scores.accuracy == pytest.approx(((P > 0.5) == TARGET).mean())


def test_scores_of_pairs_are_those_of_all_labels() -> None:
    several = metrics.evaluate(probabilities=P, target=TARGET)
    pairs = metrics.evaluate(P.ravel(), TARGET.ravel())
    for entry in pairs:
        if entry.key == "accuracy":  # of labels, that of decisions at 0.5
            continue
        assert several[entry.key] == pytest.approx(entry.value, rel=1e-12), entry.key


def test_names_of_scores_say_what_they_are() -> None:
    scores = metrics.evaluate(probabilities=P, target=TARGET)
    shown = {entry.key: (entry.label, entry.convention) for entry in scores}
    assert shown["mean_confidence"] == ("mean probability", "of all labels")
    assert str(scores).startswith("200 samples, 3 labels")
    assert f"({100 * TARGET.mean():.2f} %)" in shown["gap"][1]


def test_nll_of_logits_is_exact() -> None:
    assert metrics.log_loss(logits=[[800.0, -800.0]], target=[[0, 1]], multi_label=True) == 800.0
    assert metrics.log_loss(logits=[[800.0, -800.0]], target=[[1, 0]], multi_label=True) == 0.0


@pytest.mark.parametrize("k", range(3))
def test_one_label_is_a_binary_problem(k: int) -> None:
    data = metrics.predictions(logits=LOGITS, target=TARGET, classes=["ant", "bee", "cow"])
    label = data.of_class(k)
    assert label.task == "multi-label"
    assert label.names == (("ant", "bee", "cow")[k],)
    np.testing.assert_array_equal(label.confidence, data.probabilities[:, k])  # type: ignore[index]
    np.testing.assert_array_equal(label.correct, TARGET[:, k] == 1)
    assert metrics.log_loss(label) == pytest.approx(metrics.log_loss(logits=LOGITS[:, k], target=TARGET[:, k]))
    assert metrics.brier(label) == pytest.approx(metrics.brier(logits=LOGITS[:, k], target=TARGET[:, k]) / 2)


def test_ignored_labels_are_left_out_one_by_one() -> None:
    target, spoiled = TARGET.copy(), LOGITS.copy()
    target[:50, 0] = target[60:70] = -100
    spoiled[target == -100] = np.nan
    kept = target != -100
    data = metrics.predictions(logits=spoiled, target=target)
    assert (len(data), data.samples) == (kept.sum(), 190)
    assert metrics.ece(data) == pytest.approx(ece(P[kept], TARGET[kept]))
    each = [ece(P[kept[:, k], k], TARGET[kept[:, k], k]) for k in range(3)]
    assert metrics.classwise_ece(data) == pytest.approx(np.mean(each))
    loss = -np.log(np.where(TARGET == 1, P, 1 - P))
    assert metrics.log_loss(data) == pytest.approx(loss[kept].mean())
    assert metrics.decomposition(data).loss == pytest.approx(metrics.log_loss(data), rel=1e-12)
    assert metrics.decomposition(data, score="brier").loss == pytest.approx(metrics.brier(data), rel=1e-12)
    assert metrics.log_loss(data.of_class(0)) == pytest.approx(loss[kept[:, 0], 0].mean())
    target[:, 0] = -100
    without: Any = metrics.predictions(logits=LOGITS, target=target)
    assert metrics.classwise_ece(without) == pytest.approx(np.mean(each[1:]))
    rows = np.array([3, 3, 100])
    some = data[rows]
    assert some.correct.tolist() == [*TARGET[3, 1:], *TARGET[3, 1:], *TARGET[110]]


def test_weights_belong_to_samples() -> None:
    weight = RNG.integers(1, 4, 200)
    data = metrics.predictions(probabilities=P, target=TARGET, sample_weight=weight)
    np.testing.assert_array_equal(data.weight, np.repeat(weight, 3))
    np.testing.assert_array_equal(data.of_class(1).weight, weight)
    np.testing.assert_array_equal(data[10:12].weight, np.repeat(weight[10:12], 3))
    repeated = metrics.log_loss(probabilities=P.repeat(weight, 0), target=TARGET.repeat(weight, 0))
    assert metrics.log_loss(data) == pytest.approx(repeated)


@pytest.mark.parametrize("values", ["logits", "probabilities"])
def test_dense_labels_are_rows_in_another_shape(values: str) -> None:
    rows = LOGITS if values == "logits" else P
    dense, target = (torch.from_numpy(each).view(2, 10, 10, 3).movedim(-1, 1) for each in (rows, TARGET))
    expected = metrics.evaluate(**{values: rows}, target=TARGET)  # type: ignore[arg-type]
    found = metrics.evaluate(**{values: dense}, target=target)  # type: ignore[arg-type]
    assert dict(found) == pytest.approx(dict(expected))


def test_what_could_be_one_hot_may_be_named() -> None:
    softmax, one_hot = RNG.dirichlet(np.ones(3), 20), np.eye(3, dtype=int)[RNG.integers(3, size=20)]
    assert metrics.predictions(probabilities=softmax, target=one_hot, multi_label=True).task == "multi-label"
    assert metrics.predictions(logits=np.log(softmax), target=one_hot, multi_label=True).task == "multi-label"
    assert metrics.predictions(probabilities=softmax / 2, target=one_hot).task == "multi-label"


def test_inference_asks_for_one_label() -> None:
    data = metrics.predictions(probabilities=P, target=TARGET)
    for infer in (metrics.calibration_test, metrics.confidence_interval, lambda given: metrics.compare(given, given)):
        with pytest.raises(ValueError, match="of_class"):
            infer(data)
    label = data.of_class(1)
    pairs = metrics.predictions(P[:, 1], TARGET[:, 1])
    for metric in ("esd", "ece", "smooth_ece"):
        found, expected = (metrics.calibration_test(each, metric=metric, draws=50) for each in (label, pairs))
        assert found == expected
    entropy = -(P * np.log(P) + (1 - P) * np.log(1 - P))[:, 1].mean()
    assert metrics.calibration_test(label, metric="log_loss", draws=200).null_mean == pytest.approx(entropy, rel=0.03)
    with pytest.raises(ValueError, match=r"SKCE .*of_class"):
        metrics.skce(data)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), samples=st.integers(1, 20), labels=st.integers(2, 4))
def test_any_selection_equals_the_predictions_of_those_samples(data: st.DataObject, samples: int, labels: int) -> None:
    p = data.draw(arrays(np.float64, (samples, labels), elements=st.floats(0, 1)))
    y = data.draw(arrays(np.int64, (samples, labels), elements=st.sampled_from([0, 1, -100])))
    y[:, 0] = np.where((y == -100).all(1), 0, y[:, 0])
    rows = data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=30))
    options: Any = {"multi_label": True, "sample_weight": np.arange(1, samples + 1)}
    found = metrics.predictions(probabilities=p, target=y, **options)[rows]
    options["sample_weight"] = options["sample_weight"][rows]
    assert_same(found, metrics.predictions(probabilities=p[rows], target=y[rows], **options))
