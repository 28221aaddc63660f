import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant import metrics
from calibrant.report.statistics import class_rows, wilson_interval
from tests.report.data import classifier


@pytest.mark.parametrize(("right", "samples"), [(0, 1), (1, 1), (3, 10), (10, 10), (812, 1000)])
def test_the_box_is_the_wilson_interval(right: int, samples: int) -> None:
    low, high = wilson_interval(np.array([float(right)]), np.array([float(samples)]))
    expected = binomtest(right, samples).proportion_ci(method="wilson")
    assert (low[0], high[0]) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_class_rows_agree_with_counting_one_by_one() -> None:
    given = classifier(samples=200, classes=5, sharpness=2.0, shift=1.0)
    probabilities, target = given.of_classes("this test")
    predicted = probabilities.argmax(1)
    for row in class_rows(given, convention="guo"):
        k = int(row.name)
        mine, said = target == k, predicted == k
        assert row.samples == mine.sum()
        assert row.share == pytest.approx(mine.mean())
        assert row.recall == pytest.approx(said[mine].mean())
        assert row.precision == pytest.approx(mine[said].mean())
        assert row.probability == pytest.approx(probabilities[:, k].mean())
        assert row.gap.value == pytest.approx(row.probability - row.share)
        assert row.error == pytest.approx(metrics.ece(probabilities[:, k], mine, convention="guo"))


def test_whole_weights_count_as_repeated_rows_in_the_breakdown_by_class() -> None:
    given = classifier(samples=300, sharpness=2.0, shift=1.0)
    probabilities, target = given.of_classes("this test")
    times = np.arange(300) % 3 + 1
    weighted = metrics.predictions(probabilities=probabilities, target=target, sample_weight=times)
    repeated = metrics.predictions(probabilities=probabilities.repeat(times, 0), target=target.repeat(times))
    for one, other in zip(class_rows(weighted), class_rows(repeated), strict=True):
        assert one.name == other.name
        for key in ("share", "probability", "recall", "precision", "error"):
            assert getattr(one, key) == pytest.approx(getattr(other, key)), key


def test_labels_and_class_names_are_in_the_breakdown_and_ignored_labels_are_not() -> None:
    given = metrics.predictions(
        probabilities=[[0.9, 0.2, 0.5], [0.8, 0.1, 0.5]], target=[[1, 0, -1], [0, 0, -1]], multi_label=True,
        ignore_index=-1, classes=["cat", "dog", "emu"],
    )  # fmt: skip
    rows = class_rows(given)
    assert [(row.name, row.samples, row.recall) for row in rows[:1]] == [("cat", 1, 1.0)]
    assert [row.name for row in rows] == ["cat", "dog"]
