"""Calibration of groups of samples, and the largest error of any of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Unpack

import numpy as np

from calibrant import frames, inputs
from calibrant.frames import IndexArray, Marks
from calibrant.inputs import Values
from calibrant.metrics.binned import ece
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.intervals import Interval, confidence_interval
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Predictions, predictions
from calibrant.metrics.proper import came_true, mean_confidence
from calibrant.metrics.tests import DRAWS_EACH, CalibrationTest, holm, sequential_test, single
from calibrant.metrics.ties import SortedRows

# One column of group labels, or several by name.
Columns = Values | Mapping[str, Values]


@dataclass(frozen=True)
class GroupScore:
    """Calibration of one group.

    Attributes:
        name: Values of the columns that make up the group.
        samples: Number of samples.
        mean_confidence: Mean confidence, or mean probability of the event.
        accuracy: Share of samples that are right, or that have the event.
        gap: Mean confidence minus accuracy, with its interval.
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

    @property
    def rejected(self) -> bool:
        """Whether calibration is rejected at 5 %, after the correction."""
        return self.p_value <= 0.05

    def __str__(self) -> str:
        gap = self.gap
        return (
            f"{self.name}: gap {100 * gap.value:+z.2f} points (95 % interval {100 * gap.low:+z.2f} to "
            f"{100 * gap.high:+z.2f}), {p_value(self.p_value)} after correction, {self.samples:,} samples"
        )


@dataclass(frozen=True)
class GroupCalibration:
    """Calibration of every group that is large enough, the worst first: rejected ones, then by the size of the gap.

    Attributes:
        groups: One entry for each group.
        too_small: Groups with fewer samples than ``least``, with their sizes.
        least: Smallest number of samples of a group that is judged.
        multicalibration_error: Largest error of any judged group in any range of confidences, weighted by its share of
            the samples, as in the definition of multicalibration: small groups count little.
    """

    groups: tuple[GroupScore, ...]
    too_small: dict[str, int]
    least: int
    multicalibration_error: float

    @property
    def rejected(self) -> tuple[GroupScore, ...]:
        """Groups whose calibration is rejected at 5 %, after the correction."""
        return tuple(group for group in self.groups if group.rejected)

    def __str__(self) -> str:
        lines = [str(group) for group in self.groups]
        if self.too_small:
            names = ", ".join(f"{name} ({count})" for name, count in list(self.too_small.items())[:10])
            more = len(self.too_small) - 10
            lines.append(f"fewer than {self.least} samples: {names}{f' and {more} more' if more > 0 else ''}")
        return "\n".join(lines)

    def to_frame(self, backend: str | None = None) -> Any:
        """Return the judged groups as a data frame of a library.

        It has the columns of :class:`GroupScore` but ``test``, and gap_low, gap_high and rejected.
        """
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

    With several columns, groups are the values of each column and of each combination of columns, so they overlap. The
    correction is valid for overlapping groups too (Holm 1979; on multicalibration: Hébert-Johnson et al., ICML 2018).

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
        raise ValueError(f"no group has {least} samples or more, of {len(parts)} groups: lower least, or merge groups")
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
                values = [f"{name} = {labels[name][rows[0]]}" if name else str(labels[name][rows[0]]) for name in names]
                found[", ".join(values)] = rows
    return found


def _labels(name: str, values: Any, samples: int) -> Marks:
    array: Marks = np.asarray(values)
    if array.dtype.kind == "O":
        array = np.asarray(["missing" if value is None or value != value else str(value) for value in array.tolist()])
    if array.shape != (samples,):
        shown = f"group column {name!r}" if name else "groups"
        raise ValueError(f"{shown} must have one label for each of the {samples} samples, got shape {array.shape}")
    return array


def multicalibration_error(data: Predictions, members: Iterable[IndexArray]) -> float:
    r"""Largest error of any of these groups of rows in any range of confidences, weighted by its share of the samples.

    .. math:: \max_{g} \max_{s < t} \frac1N \Big| \sum_{i \in g:\, s < z_i \le t} (c_i - z_i) \Big|

    No bins: for each group the largest sum over a range is the range of the cumulative residuals, Kuiper's statistic.
    """
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
