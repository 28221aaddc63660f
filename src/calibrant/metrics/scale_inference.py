"""The test of calibration, and the interval of the gap, of predictions that do not fit in memory.

Both need no samples. The gap's interval follows from sums, exactly. The test draws the correctness of cells of
confidence: the 65,536 cells of :class:`calibrant.metrics.scale.Statistics`, neighbours merged while they hold few
samples. The right ones of a cell with n samples are drawn from a binomial distribution at their mean confidence. A cell
is at most 1/1024 wide, so its variance differs from that of the samples by less than 0.1 %. The data are judged by the
same cells: the test keeps its level, and only misses an error that changes sign within a cell.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from calibrant import inputs
from calibrant.metrics import resampling, rows
from calibrant.metrics.analytic import kuiper_of_groups
from calibrant.metrics.draws import judged, null_of_rows
from calibrant.metrics.judgement import DRAWS_EACH, EVENTS, ended_early, holm
from calibrant.metrics.resampling import Progress
from calibrant.metrics.rows import RowStatistic
from calibrant.metrics.scale import ClassSums, Statistics
from calibrant.metrics.sorting import TieGroups
from calibrant.metrics.table import METRICS
from calibrant.metrics.verdicts import CalibrationTest, Interval

# A merged cell ends when it holds this share of the samples, or has this width.
SHARE = 1 / 4096
WIDTH = 1 / 1024
STATISTICS: dict[str, Callable[[TieGroups], RowStatistic]] = {
    "esd": rows.esd_rows,
    "ks_error": rows.ks_rows,
    "gap": rows.gap_rows,
}


def calibration_test(
    found: Statistics,
    *,
    metric: Literal["esd", "ks_error", "gap"] = "esd",
    draws: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> CalibrationTest:
    """Test the hypothesis that the model is calibrated, as :func:`calibrant.metrics.calibration_test`, from cells.

    Args:
        found: Statistics of the predictions.
        metric: Metric that is compared with its draws. The value returned is exact; the cells' own is compared.
        draws: Number of data sets to draw. The smallest possible p-value is ``1 / (1 + draws)``.
        seed: Seed of the draws: the same seed gives the same result.
        progress: Called now and then with the number of draws done and ``draws``.
    """
    inputs.check_choice("metric", metric, tuple(STATISTICS))
    inputs.check_count("draws", draws)
    cells = merged(found.cells)
    value = STATISTICS[metric](cells)
    observed = float(value(resampling.observed_residuals(cells))[0])
    null = null_of_rows(value, resampling.consistent_group_residuals(cells, draws, seed), draws, progress)
    return replace(judged(METRICS[metric], observed, null), statistic=getattr(found, metric))


def gap_interval(found: Statistics, *, level: float = 0.95) -> Interval:
    """Confidence interval of the gap, as :func:`calibrant.metrics.confidence_interval` has it, from sums.

    Args:
        found: Statistics of the predictions.
        level: Probability with which such intervals should contain the population value.
    """
    inputs.check_range("level", level, low=0, high=1, open_low=True, open_high=True)
    variance = (found.brier_top - found.gap**2) / (found.samples - 1)
    if found.accuracy in (0.0, 1.0):  # the variance of correctness does not show
        z, samples, _ = found.cells
        variance = max(variance, float((samples * z * (1 - z)).sum()) / found.samples**2)
    reach = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(max(variance, 0.0))
    low, high = np.clip((found.gap - reach, found.gap + reach), -1, 1).tolist()
    return Interval("gap", found.gap, low, high, level, "jackknife")


@dataclass(frozen=True)
class ClassJudgement:
    """Test of one class.

    Attributes:
        name: Name of the class.
        gap: Mean probability of the class minus its share, with its 95 % interval.
        test: Test of the hypothesis that its probabilities are calibrated, with the ESD of cells.
        p_value: Its p-value, corrected by Holm's method for the number of classes.
    """

    name: str
    gap: Interval
    test: CalibrationTest
    p_value: float

    @property
    def rejected(self) -> bool:
        """Whether the hypothesis is rejected at 5 %, after the correction."""
        return self.p_value <= 0.05


def judge_classes(found: Statistics, *, draws: int = 1000, seed: int = 0) -> tuple[ClassJudgement, ...]:
    """Test each class that was summed, as :func:`calibrant.metrics.judge`, from cells.

    Args:
        found: Statistics of the predictions, with ``most_classes`` above 0.
        draws: Number of data sets to draw for each class, at least 40 for each of them; they end early if the answer is
            known.
        seed: Seed of the draws: the same seed gives the same result.
    """
    inputs.check_count("draws", draws)
    most = max(draws, DRAWS_EACH * len(found.of_classes))
    tests = [_class_test(merged(each.cells), most, seed) for each in found.of_classes]
    corrected = holm([test.p_value for test in tests])
    gaps = [_class_gap(each) for each in found.of_classes]
    names = [each.name for each in found.of_classes]
    return tuple(ClassJudgement(*each) for each in zip(names, gaps, tests, corrected, strict=True))


def _class_test(cells: TieGroups, draws: int, seed: int) -> CalibrationTest:
    value = rows.esd_rows(cells)
    observed = float(value(resampling.observed_residuals(cells))[0])
    events = float((cells.samples * cells.confidence * (1 - cells.confidence)).sum())
    analytic = kuiper_of_groups(cells).p_value if events >= EVENTS else 1.0
    return ended_early(
        value, observed, analytic, draws, lambda n: resampling.consistent_group_residuals(cells, n, seed)
    )


def _class_gap(found: ClassSums) -> Interval:
    z, samples, hits = found.cells
    total = float(samples.sum())
    gap = float((samples * z - hits).sum()) / total
    variance = (found.brier - gap**2) / (total - 1)
    if hits.sum() in (0.0, total):  # the variance of the event does not show
        variance = max(variance, float((samples * z * (1 - z)).sum()) / total**2)
    reach = NormalDist().inv_cdf(0.975) * math.sqrt(max(variance, 0.0))
    return Interval("gap", gap, max(gap - reach, -1.0), min(gap + reach, 1.0), 0.95, "jackknife")


def merged(cells: TieGroups) -> TieGroups:
    """Neighbouring cells as one while they hold few samples and are near each other.

    Example:
        >>> cells = TieGroups(np.array([0.5, 0.5001, 0.9]), np.array([1.0, 1.0, 10000.0]), np.array([1.0, 0.0, 9000.0]))
        >>> merged(cells).samples.tolist()
        [2.0, 10000.0]
    """
    z, samples, right = cells
    so_far = samples.cumsum()
    # Cells of one slice of the samples and one slice of [0, 1] are merged.
    slices = np.floor((so_far - samples / 2) / (SHARE * so_far[-1])), np.floor(z / WIDTH)
    changes = np.logical_or.reduce([np.diff(each, prepend=-1) != 0 for each in slices])
    # A confidence of 1 is never wrong, and stays apart.
    first = np.flatnonzero(changes | (z == 1))
    weight, hits, sums = (np.add.reduceat(each, first) for each in (samples, right, samples * z))
    return TieGroups(np.clip(sums / weight, 0, 1), weight, hits)
