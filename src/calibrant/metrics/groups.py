"""Calibration of groups of samples and of windows of time, and what has changed between two sets."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Unpack

import numpy as np

from calibrant import frames, inputs
from calibrant.frames import Array, IndexArray, Marks
from calibrant.inputs import Values
from calibrant.metrics.binned import ece
from calibrant.metrics.closed_form import HypothesisTest, line_and_covariance, p_value, upper_tail
from calibrant.metrics.intervals import Interval, confidence_interval
from calibrant.metrics.jackknife import esd_jackknife, gap_jackknife, normal_difference
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.proper import came_true, mean_confidence
from calibrant.metrics.tests import DRAWS_EACH, CalibrationTest, holm, sequential_test, single
from calibrant.metrics.ties import SortedRows

# Fewest samples of a set, and of a window of time.
LEAST = 30
# One column of group labels, or several by name.
Columns = Values | Mapping[str, Values]


@dataclass(frozen=True)
class GroupScore(HypothesisTest):
    """Calibration of one group.

    Attributes:
        name: Values of the columns that make up the group.
        mean_confidence: Mean confidence, or mean probability of the event.
        accuracy: Share of samples that are right, or that have the event.
        gap: Mean confidence minus accuracy.
        ece: Expected calibration error, 20 bins of equal width.
        test: Test of the hypothesis that the group is calibrated, with ESD.
        p_value: Its p-value, corrected for the number of groups by Holm's method.
    """

    name: str
    samples: int
    mean_confidence: float
    accuracy: float
    gap: Interval
    ece: float
    test: CalibrationTest
    p_value: float


@dataclass(frozen=True)
class GroupCalibration:
    """Calibration of every group that is large enough, the worst first: rejected ones, then by the size of the gap.

    Attributes:
        too_small: Groups with fewer samples than ``least``, which are not judged, with their sizes.
        multicalibration_error: Largest error of any judged group in any range of confidences, times its share of the
            samples.
    """

    groups: tuple[GroupScore, ...]
    too_small: dict[str, int]
    least: int
    multicalibration_error: float

    @property
    def rejected(self) -> tuple[GroupScore, ...]:
        """Groups whose calibration is rejected at 5 %, after the correction."""
        return tuple(group for group in self.groups if group.rejected)

    def to_frame(self, backend: str | None = None) -> Any:
        """Return the groups as a data frame: :class:`GroupScore` but ``test``, and gap_low, gap_high and rejected."""
        rejected = [group.rejected for group in self.groups]
        return frames.made(frames.columns_of(self.groups) | {"rejected": rejected}, backend)


def calibration_by_group(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    groups: Columns,
    least: int = 30,
    draws: int = 1000,
    seed: int = 0,
    **keywords: Unpack[Keywords],
) -> GroupCalibration:
    """Score and test each group of samples; p-values are corrected for their number by Holm's method.

    With several columns, groups are the values of each column and of each combination of columns: they may overlap.

    Args:
        groups: Group of each sample, ``(N,)``; or several such columns by name.
        least: Smallest number of samples of a group that is judged; smaller ones are listed.
        draws: Number of data sets drawn for each test, at least 40 for each group.
        seed: Seed of the draws.
    """
    inputs.check_count("least", least)
    data = single(predictions(confidence, correct, minimum=4, name="calibration_by_group", **keywords))
    members = group_members(groups, len(data))
    parts = {name: data[rows].pairs for name, rows in members.items()}
    sizes = {name: round(part.total) for name, part in parts.items()}
    judged = {name: part for name, part in parts.items() if sizes[name] >= max(least, 4)}
    small = {name: size for name, size in sizes.items() if name not in judged}
    if not judged:
        raise ValueError(f"no group has {least} samples or more, of {len(parts)} groups: merge groups")
    many = max(draws, DRAWS_EACH * len(judged))
    tests = [sequential_test(part, many, seed) for part in judged.values()]
    corrected = holm([test.p_value for test in tests])
    scores = []
    for name, test, p in zip(judged, tests, corrected, strict=True):
        part = judged[name]
        gap = confidence_interval(part, metric="gap")
        scores.append(
            GroupScore(name, sizes[name], mean_confidence(part), came_true(part), gap, ece(part), test, p_value=p)
        )
    scores.sort(key=lambda score: (not score.rejected, -abs(score.gap.value)))
    error = multicalibration_error(data, [members[name] for name in judged])
    return GroupCalibration(tuple(scores), small, least, error)


def group_members(groups: Columns, samples: int) -> dict[str, IndexArray]:
    """Rows of each group: of each value of each column, then of each combination of columns."""
    columns = groups if isinstance(groups, Mapping) else {"": groups}
    if not columns:
        raise ValueError("groups must have at least one column, got none")
    labels = {name: _labels(name, values, samples) for name, values in columns.items()}
    found: dict[str, IndexArray] = {}
    for count in range(1, len(labels) + 1):
        for names in combinations(labels, count):
            keys = np.stack([np.unique(labels[name], return_inverse=True)[1] for name in names], axis=1)
            _, place = np.unique(keys, axis=0, return_inverse=True)
            order = np.argsort(place.reshape(-1), kind="stable")
            for rows in np.split(order, np.bincount(place.reshape(-1)).cumsum()[:-1]):
                values = []
                for name in names:
                    value = str(labels[name][rows[0]])
                    values.append(f"{name} = {value}" if name else value)
                found[", ".join(values)] = rows
    return found


def _labels(name: str, values: Any, samples: int) -> Marks:
    array: Marks = np.asarray(values)
    if array.dtype.kind == "O":
        texts = []
        for value in array.tolist():
            missing = value is None or value != value
            texts.append("missing" if missing else str(value))
        array = np.asarray(texts)
    if array.shape != (samples,):
        shown = f"group column {name!r}" if name else "groups"
        raise ValueError(f"{shown} must have one label for each of the {samples} samples, got shape {array.shape}")
    return array


def multicalibration_error(data: Predictions, members: Iterable[IndexArray]) -> float:
    r"""Largest error of any of these groups of rows in any range of confidences, times its share of the samples.

    .. math:: \max_{g} \max_{s < t} \frac1N \Big| \sum_{i \in g:\, s < z_i \le t} (c_i - z_i) \Big|
    """
    # Kuiper's statistic: the largest sum over a range is the range of the cumulative residuals.
    rows = SortedRows(data)
    residual = rows.weight * rows.residual
    place = np.full(len(data), -1)
    place[rows.order] = np.arange(len(rows.order))
    largest = 0.0
    for group in members:
        chosen = np.sort(place[group][place[group] >= 0])
        values = rows.confidence[chosen]
        ends = np.append(values[1:] != values[:-1], True)[: len(values)]
        largest = max(largest, float(np.ptp(np.append(0.0, residual[chosen].cumsum()[ends]))))
    return largest / data.total


@dataclass(frozen=True)
class Change:
    """Calibration of two sets of different samples.

    Attributes:
        before: Gap of the first set, with its interval; ``after`` is that of the second.
        difference: Difference of the gaps, second minus first; ``low`` and ``high`` are the ends of its 95 % interval.
        p_value: Test of the hypothesis that the calibration curve has not changed.
        worse_p_value: One-sided test of the hypothesis that ESD has not grown.
    """

    before: Interval
    after: Interval
    difference: float
    low: float
    high: float
    p_value: float
    worse_p_value: float

    @property
    def changed(self) -> bool:
        """Whether the hypothesis that calibration has not changed is rejected at 5 %."""
        return self.p_value <= 0.05

    @property
    def worse(self) -> bool:
        """Whether calibration has changed, and ESD is larger beyond chance, at 5 %."""
        return self.changed and self.worse_p_value <= 0.05

    def __str__(self) -> str:
        moved = (
            f"the average gap went from {100 * self.before.value:+z.2f} to {100 * self.after.value:+z.2f} points "
            f"(difference {100 * self.difference:+z.2f}, 95 % interval {100 * self.low:+z.2f} to "
            f"{100 * self.high:+z.2f})"
        )
        if not self.changed:
            return f"no change of calibration is detected ({p_value(self.p_value)}): {moved}"
        verdict = "and is worse" if self.worse else "but is not clearly worse"
        return f"calibration has changed ({p_value(self.p_value)}) {verdict}: {moved}"


def calibration_change(before: Predictions, after: Predictions) -> Change:
    r"""Test whether calibration differs between two sets of different samples, such as last month and this month.

    The test compares intercept and slope of :func:`calibration_line`, by Wald's test; if a set has no line, for example
    as all predictions are right, the average gaps. So other risks with the same errors at each risk are no change.
    Whether it is *worse* is a one-sided test of the difference in ESD. For two models on the same samples, use
    :func:`compare`, which is more sensitive.

    Args:
        before: Predictions of the first set, of 30 samples or more; ``after`` are those of the second.

    Example:
        >>> import numpy as np
        >>> from calibrant import metrics
        >>> generator = np.random.default_rng(0)
        >>> risk = generator.uniform(0.1, 0.9, (2, 3000))
        >>> event = generator.random((2, 3000)) < risk + [[0], [0.08]]
        >>> last, this = (metrics.predictions(p, y) for p, y in zip(risk, event))
        >>> print(metrics.calibration_change(last, this))
        calibration has changed (p < 0.001) and is worse: the average gap went from +0.44 to -7.52 points (difference
        -7.96, 95 % interval -10.17 to -5.75)
    """
    sets = [predictions(one, minimum=LEAST, name="calibration_change") for one in (before, after)]
    gaps = [confidence_interval(one, metric="gap") for one in sets]
    moved = gaps[1].value - gaps[0].value
    found = normal_difference(moved, math.hypot(*(gap_jackknife(one).spread for one in sets)), 0.95)
    try:
        lines = [line_and_covariance(one) for one in sets]
    except ValueError:
        changed = found.p_value
    else:
        distance = lines[1][0] - lines[0][0]
        wald = float(distance @ np.linalg.solve(lines[0][1] + lines[1][1], distance))
        changed = math.exp(-max(wald, 0.0) / 2)  # the tail of chi-squared with two degrees of freedom
    first, second = (esd_jackknife(one) for one in sets)
    grown, spread = second.value - first.value, math.hypot(first.spread, second.spread)
    worse = upper_tail(grown / spread) if spread > 0 else float(grown <= 0)
    return Change(gaps[0], gaps[1], moved, found.low, found.high, changed, worse)


@dataclass(frozen=True)
class Window:
    """Calibration in one window of time.

    Attributes:
        start: First time in it, as given; ``end`` is the last.
        samples: As in :class:`GroupScore`, and so are ``mean_confidence``, ``accuracy`` and ``gap``.
    """

    start: str
    end: str
    samples: int
    mean_confidence: float
    accuracy: float
    gap: Interval


@dataclass(frozen=True)
class TimeCalibration:
    """Calibration over time.

    Attributes:
        windows: Windows in order of time, with about as many samples each.
        p_value: Test of the hypothesis that the average gap has been the same all the time.
        change_at: Time after which it most likely changed.
    """

    windows: tuple[Window, ...]
    p_value: float
    change_at: str

    @property
    def changed(self) -> bool:
        """Whether a constant gap is rejected at 5 %."""
        return self.p_value <= 0.05

    def __str__(self) -> str:
        if not self.changed:
            return f"no change of the average gap over time is detected ({p_value(self.p_value)})"
        return f"the average gap changes over time ({p_value(self.p_value)}), most likely after {self.change_at}"

    def to_frame(self, backend: str | None = None) -> Any:
        """Return the windows as a data frame with the columns of :class:`Window`, gap_low and gap_high."""
        return frames.made(frames.columns_of(self.windows), backend)


def calibration_over_time(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    time: Any,
    windows: int = 10,
    **keywords: Unpack[Keywords],
) -> TimeCalibration:
    r"""Calibration in windows of time, and a test of change.

    The test is CUSUM (Brown, Durbin, Evans 1975): :math:`\max_k |\sum_{i \le k} (r_i - \bar r)| / (s \sqrt N)`, of
    residuals :math:`r_i = z_i - c_i` in order of time with standard deviation s, has Kolmogorov's law.

    Args:
        time: Time of each sample, ``(N,)``: numbers, dates, or texts in ISO format. Equal times stay together.
        windows: Number of windows; fewer if they would have less than 30 samples.
    """
    inputs.check_count("windows", windows)
    data = single(predictions(confidence, correct, minimum=LEAST, name="calibration_over_time", **keywords))
    moments = _moments(time, len(data))
    order = np.argsort(moments, kind="stable")
    ordered = moments[order]
    ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
    weight = data.counts[order]
    residual = (data.confidence.astype(np.float64) - data.correct)[order]
    p, at = _constancy(residual, weight, ends)
    cuts = _cuts(weight.cumsum()[ends], ends, windows)
    shown = _rounded(ordered, len(cuts))
    found = []
    for rows in cuts:
        part, first, last = data[order[rows]], _shown(shown[rows][0]), _shown(shown[rows][-1])
        gap = confidence_interval(part, metric="gap")
        found.append(Window(first, last, round(part.total), mean_confidence(part), came_true(part), gap))
    return TimeCalibration(tuple(found), p, _shown(shown[at]))


def _moments(time: Any, samples: int) -> Array:
    array = np.asarray(time)
    if array.dtype.kind in "OUS":
        try:
            array = np.asarray([str(each) for each in array.tolist()], dtype="datetime64")
        except ValueError:
            raise ValueError(
                "time must hold numbers, dates, or texts such as 2026-01-31 or 2026-01-31T12:00, got "
                f"{array.tolist()[0]!r}"
            ) from None
    if array.shape != (samples,):
        raise ValueError(f"time must have a value for each of the {samples} samples, got shape {array.shape}")
    if array.dtype.kind not in "Mfiu":
        raise TypeError(f"time must hold numbers or dates, got {array.dtype}")
    missing = int((array != array).sum())  # NaN or NaT
    if missing:
        raise ValueError(f"time is missing for {missing} of {samples} samples: leave them out")
    return array


def _constancy(residual: Array, weight: Array, ends: IndexArray) -> tuple[float, int]:
    """p-value of a constant mean by the CUSUM test, and the index after which it most likely changed."""
    from scipy.special import kolmogorov

    centred = residual - np.average(residual, weights=weight)
    spread = math.sqrt(float((weight * np.square(centred)).sum()))
    sums = np.abs((weight * centred).cumsum()[ends])
    at = int(ends[sums.argmax()])
    if spread == 0:
        return 1.0, at
    return float(kolmogorov(float(sums.max()) / spread)), at


def _cuts(so_far: Array, ends: IndexArray, windows: int) -> list[slice]:
    """Windows of about the same number of samples, and at least the fewest, that keep equal times together."""
    samples = float(so_far[-1])
    count = max(1, min(windows, int(samples // LEAST)))
    wanted = np.arange(1, count) * samples / count
    stops, taken = [0], 0.0
    for k in np.unique(np.clip(np.searchsorted(so_far, wanted), 0, len(ends) - 1)).tolist():
        if so_far[k] - taken >= LEAST and samples - so_far[k] >= LEAST:
            stops.append(int(ends[k]) + 1)
            taken = float(so_far[k])
    stops.append(int(ends[-1]) + 1)
    return [slice(a, b) for a, b in pairwise(stops)]


def _rounded(moments: Array, windows: int) -> Array:
    """Dates with no more digits than windows need: days if each has several, else minutes or seconds."""
    if moments.dtype.kind != "M" or moments.dtype.str[-3:] in ("[Y]", "[M]", "[W]", "[D]"):
        return moments
    seconds = (moments[-1] - moments[0]).astype("timedelta64[s]").astype(float) / windows
    unit = "D" if seconds >= 2 * 86400 else "m" if seconds >= 120 else "s"
    rounded: Array = moments.astype(f"M8[{unit}]")
    return rounded


def _shown(moment: Any) -> str:
    return str(moment) if np.asarray(moment).dtype.kind == "M" else f"{moment:.10g}"
