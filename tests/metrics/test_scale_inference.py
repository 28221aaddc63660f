"""The test of calibration and the interval of the gap from sums, against those of the samples themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
import pyarrow.parquet  # noqa: E402

from calibrant import metrics  # noqa: E402
from calibrant.metrics import scale  # noqa: E402
from calibrant.metrics.scale import Statistics, statistics_duckdb  # noqa: E402
from calibrant.metrics.tests import Judgement  # noqa: E402

Array = npt.NDArray[Any]


def summed(folder: Path, confidence: Array, correct: Array) -> Statistics:
    path = folder / "pairs.parquet"
    pyarrow.parquet.write_table(pa.table({"confidence": confidence, "correct": correct}), path)
    return statistics_duckdb(path)


def made(error: float, n: int = 40_000, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    confidence = 0.3 + 0.7 * generator.random(n) ** 0.2  # crowded towards 1
    return confidence, generator.random(n) < confidence - error


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("metric", ["esd", "ks_error", "gap"])
@pytest.mark.parametrize("error", [0.0, 0.002, 0.01])
def test_the_test_from_cells_agrees_with_that_of_the_samples(tmp_path: Path, metric: Any, error: float) -> None:
    pairs = made(error)
    ours = summed(tmp_path, *pairs).calibration_test(metric=metric, draws=1000)
    theirs = metrics.calibration_test(*pairs, metric=metric, draws=1000)
    assert ours.statistic == pytest.approx(theirs.statistic, rel=1e-9)
    # Two independent sets of draws: p-values differ by chance, by at most four of its standard deviations.
    assert abs(ours.p_value - theirs.p_value) < 4 * np.sqrt(2 * 0.25 / 1000)
    assert ours.critical_value == pytest.approx(theirs.critical_value, rel=0.35)


@pytest.mark.parametrize("error", [0.0, 0.01])
def test_the_interval_of_the_gap_is_that_of_the_samples(tmp_path: Path, error: float) -> None:
    pairs = made(error)
    ours = summed(tmp_path, *pairs).gap_interval()
    theirs = metrics.confidence_interval(*pairs, metric="gap")
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high), abs=1e-8)


def test_samples_that_are_all_right_have_an_interval_too(tmp_path: Path) -> None:
    confidence, _ = made(0)
    ours = summed(tmp_path, confidence, np.ones(len(confidence))).gap_interval()
    theirs = metrics.confidence_interval(confidence, np.ones(len(confidence)), metric="gap")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-4)


def test_merged_cells_are_narrow_and_lose_no_sample(tmp_path: Path) -> None:
    found = summed(tmp_path, *made(0.01))
    cells = scale.merged(found.cells)
    assert len(cells.samples) <= 1024 + 4096
    assert cells.samples.sum() == found.samples
    assert cells.right.sum() == pytest.approx(found.accuracy * found.samples)
    assert (cells.samples * cells.confidence).sum() == pytest.approx(found.mean_confidence * found.samples, rel=1e-12)
    assert (np.diff(cells.confidence) > 0).all()


@pytest.mark.slow
def test_p_values_of_calibrated_data_are_uniform(tmp_path: Path) -> None:
    p_values = []
    for seed in range(200):
        found = summed(tmp_path, *made(0.0, 2000, seed))
        p_values.append(found.calibration_test(draws=99, seed=seed).p_value)
    counts = np.histogram(p_values, bins=5, range=(0, 1))[0]
    assert ((counts - 40) ** 2 / 40).sum() < 18.5  # chi-squared with 4 degrees of freedom: 0.1 %


def classes(folder: Path, *, as_logits: bool, n: int = 20_000) -> tuple[Statistics, tuple[Judgement, ...]]:
    """Four classes of which two are mixed up by 3 points, beyond memory and in memory."""
    generator = np.random.default_rng(0)
    true = generator.dirichlet([4, 2, 1, 1], n)
    target = (true.cumsum(1) < generator.random((n, 1))).sum(1)
    stated = true + 0.03 * np.minimum(true[:, [2]], true[:, [3]]) / true[:, [2, 3]].mean() * np.array([0, 0, 1, -1])
    values = np.log(stated) + 1 if as_logits else stated
    name = "logits" if as_logits else "probabilities"
    path = folder / "classes.parquet"
    pyarrow.parquet.write_table(pa.table({name: list(values), "target": target}), path)
    given: dict[str, Any] = {name: values}
    return statistics_duckdb(path, most_classes=50), metrics.judge(metrics.predictions(**given, target=target))


@pytest.mark.parametrize("as_logits", [False, True])
def test_single_classes_are_judged_as_in_memory(tmp_path: Path, as_logits: bool) -> None:
    found, (_, *theirs) = classes(tmp_path, as_logits=as_logits)
    ours = found.judge_classes()
    assert [each.view.name for each in ours] == ["0", "1", "2", "3"]
    assert [each.rejected for each in ours] == [each.rejected for each in theirs] == [False, False, True, True]
    for one, other in zip(ours, theirs, strict=True):
        mine, gap = (metrics.confidence_interval(each.view.pairs, metric="gap") for each in (one, other))
        assert (mine.value, mine.low, mine.high) == pytest.approx((gap.value, gap.low, gap.high), abs=1e-8)
        assert one.test.statistic == pytest.approx(other.test.statistic, rel=0.02, abs=1e-6)


def test_of_many_classes_those_expected_most_often_are_judged(tmp_path: Path) -> None:
    found, _ = classes(tmp_path, as_logits=False)
    chosen = statistics_duckdb(tmp_path / "classes.parquet", most_classes=2)
    assert [each.name for each in chosen.of_classes] == ["0", "1"]
    assert (chosen.classes, found.classes) == (4, 4)
    assert all(len(each.cells.samples) <= 4097 for each in found.of_classes)
    assert statistics_duckdb(tmp_path / "classes.parquet").of_classes == ()
