"""Scores of a trained network by column: a metric, as trained or after post-hoc scaling, and how it is displayed."""

import math
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from torch import Tensor

import calibrant as cal
from calibrant.metrics.registry import METRICS, Metric, described, find_metric
from calibrant_lab import plugins

BINS = 20  # of ECE, as in the paper
KEPT = ("accuracy", "ece", "nll", "ece+temperature", "accuracy+vector", "ece+vector")
REPAIRS = {"temperature": cal.posthoc.TemperatureScaling, "vector": cal.posthoc.VectorScaling}
AFTER = {"temperature": "after TS", "vector": "after VS"}
ALIASES = {"nll": "log_loss"}  # the name in stored trials


class MetricError(ValueError):
    """A user's metric that raises an exception."""


class Predicted(NamedTuple):
    """Logits of a network and the targets."""

    logits: Tensor
    target: Tensor


class Column(NamedTuple):
    """A column of a table."""

    key: str  # its name in a sweep
    heading: str  # one or two lines
    factor: float  # 100 for percentages
    digits: int
    better: int  # 1 if higher is better, -1 if lower is better

    @property
    def label(self) -> str:
        """The heading for use in a sentence."""
        return self.heading.replace(" %", "").replace("\n", " ")


def scores_of(validation: Predicted, test: Predicted, columns: Iterable[str] = KEPT) -> dict[str, float]:
    """Score a network on its test set; shares, not percent, NaN where no temperature could be fitted.

    Columns are names of metrics, or import paths of functions of :class:`calibrant.metrics.Predictions`. With
    ``+temperature`` or ``+vector`` the metric is computed after scaling fitted on the validation set.
    """
    return scored(columns, test.target, lambda repair: repaired(repair, validation, test))


def scored(columns: Iterable[str], target: Tensor, logits: Callable[[str], Tensor | None]) -> dict[str, float]:
    """Scores by column, from logits by post-hoc method; NaN if they are None."""
    found, known = {}, cache(logits)
    for key in columns:
        metric, _, repair = key.partition("+")
        scaled = known(repair)
        found[key] = math.nan if scaled is None else score(metric, Predicted(scaled, target))
    return found


def score(metric: str, predicted: Predicted) -> float:
    """One metric of predictions; ECE in the paper's 20 right-closed bins."""
    given = cal.metrics.predictions(logits=predicted.logits, target=predicted.target)
    try:
        return metric_of(metric).value(given)
    except Exception as error:  # user code may raise anything
        if ":" not in metric:
            raise
        frames = traceback.extract_tb(error.__traceback__)[2:]  # those of the user, after ours
        lines = [f" in {one.filename}, line {one.lineno}" for one in frames if one.filename == frames[0].filename]
        what = f"{type(error).__name__}: {error}{lines[-1] if lines else ''}"
        raise MetricError(f"the metric {plugins.short(metric)} failed ({what}): correct it") from error


def best_temperature(validation: Predicted) -> float:
    """The temperature fitted on a validation set; NaN if there is no best temperature."""
    try:
        return float(cal.posthoc.TemperatureScaling(strict=True).fit(*validation).temperature_)
    except ValueError:  # predictions that are all correct, or no better than chance, have no best temperature
        return math.nan


def column(key: str) -> Column:
    r"""A column by its name; raises ``ValueError`` for an unknown one.

    Example:
        >>> column("ece+temperature").heading, column("accuracy").better, column("log_loss").digits
        ('ECE %\nafter TS', 1, 4)
        >>> column("ece+temperature").label
        'ECE after TS'
    """
    metric, plus, repair = key.partition("+")
    if plus and repair not in REPAIRS:
        raise ValueError(f"unknown post-hoc method {repair!r} in {key!r}: choose from {', '.join(REPAIRS)}")
    metric_of(metric)  # raises if it is unknown
    known = described(ALIASES.get(metric, metric))
    is_percent = known.unit == "%"
    heading = known.label.strip().rpartition(":")[2] + (" %" if is_percent else "")
    heading += f"\n{AFTER[repair]}" if repair else ""
    return Column(key, heading, 100 if is_percent else 1, 2 if is_percent else 4, 1 if known.more_is_better else -1)


def metric_of(name: str) -> Metric:
    """Return a metric by its name, or a function by its import path; raise ``ValueError`` for an unknown one."""
    found = plugins.find(name, "metric", {key: key for key in METRICS} | ALIASES)
    if not isinstance(found, str) and not callable(found):
        raise ValueError(f"{name} must be a function of Predictions, got {type(found).__name__}")
    return find_metric(found, BINS)


def repaired(repair: str, validation: Predicted, test: Predicted) -> Tensor | None:
    """Test logits after a post-hoc method, unchanged for ``""``; None if the method could not be fitted."""
    if not repair:
        return test.logits
    try:
        fitted = REPAIRS[repair](strict=True).fit(*validation)  # as published, without mixing
    except ValueError:
        return None
    scaled: Tensor = fitted(test.logits)
    return scaled
