"""Metrics by name, each in the forms that inference needs. The names are those of :class:`calibrant.metrics.Scores`."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from calibrant import inputs
from calibrant.metrics import binned, classwise, cumulative, jackknife, kernel, proper, rows, smooth
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.jackknife import Jackknife
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.rows import RowStatistic

MetricName = Literal[
    "esd", "ks", "ece", "mmce", "gap", "ece_equal_mass", "ece_sweep", "smooth_ece", "debiased_l2", "mce",
    "classwise_ece", "skce", "brier", "nll", "accuracy", "aurc",
]  # fmt: skip
# Names of functions that go by another name among the scores.
Alias = Literal["ks_error", "equal_mass_ece"]
ALIASES: dict[str, str] = {"ks_error": "ks", "equal_mass_ece": "ece_equal_mass"}
Metric = MetricName | Alias | Callable[[Predictions], Any]


@dataclass(frozen=True)
class Statistic:
    """One metric, ready to be computed on many draws.

    Attributes:
        key: Its name.
        value: The metric of any predictions.
        rows: The same from many rows of residuals at once, for predictions that differ in nothing else.
        jackknife: The same with all leave-one-out values, if it is a U-statistic.
        minimum: How many samples it needs.
        signed: Whether it errs in two directions from 0. Comparisons ask for the size of the error only.
        two_sided: Whether calibration makes it neither least nor largest: too low is then as suspect as too high.
        of_classes: Whether it sees all classes where they are known, not only the predicted one.
        vanishes: Whether what it estimates is 0 for a calibrated model, and positive for any other.
        span: The least and the largest value that what it estimates can have.
    """

    key: str
    value: Callable[[Predictions], float]
    rows: Callable[[Predictions], RowStatistic] | None = None
    jackknife: Callable[[Predictions], Jackknife] | None = None
    minimum: int = 1
    signed: bool = False
    two_sided: bool = False
    of_classes: bool = False
    vanishes: bool = True
    span: tuple[float, float] = (0.0, 1.0)


def statistic(metric: Metric, bins: int | None, convention: ConventionName) -> Statistic:
    """Look a metric up by its name, or wrap a function of predictions."""
    inputs.check_choice("convention", convention, tuple(binned.CONVENTIONS))
    if bins is not None:
        inputs.check_count("bins", bins)
    name: str | None
    if isinstance(metric, str):
        name = ALIASES.get(metric, metric)
        inputs.check_choice("metric", name, get_args(MetricName))
    elif not callable(metric):
        raise TypeError(f"metric must be a name or a function of Predictions, got {type(metric).__name__}")
    elif (name := _name_of(metric)) is None:
        key = getattr(metric, "__name__", type(metric).__name__)
        span = (-math.inf, math.inf)
        return Statistic(key, lambda given: _number(metric(given)), of_classes=True, vanishes=False, span=span)
    known = (*_of_pairs(), *_of_bins(bins, convention), *_of_classes(bins, convention), *_of_answers())
    return next(entry for entry in known if entry.key == name)


def _name_of(metric: Callable[..., Any]) -> str | None:
    """The name of a metric that is one of this package's own functions."""
    ours: tuple[Callable[..., Any], ...] = (
        cumulative.esd, cumulative.ks_error, kernel.mmce, kernel.skce, smooth.smooth_ece,
        binned.ece, binned.mce, binned.equal_mass_ece, binned.debiased_l2, binned.ece_sweep, classwise.classwise_ece,
        proper.gap, proper.brier, proper.nll, proper.accuracy, proper.aurc,
    )  # fmt: skip
    return ALIASES.get(metric.__name__, metric.__name__) if metric in ours else None


def _number(found: Any) -> float:
    """A result as a number; some say more than their value."""
    return float(getattr(found, "value", found))


def _of_pairs() -> Iterator[Statistic]:
    yield Statistic(
        "esd",
        cumulative.esd,
        lambda given: rows.esd_rows(given.groups),
        jackknife.esd_jackknife,
        minimum=3,
    )
    yield Statistic(
        "mmce",
        kernel.mmce,
        lambda given: rows.mmce_rows(given.groups),
        jackknife.mmce_jackknife,
        minimum=2,
    )
    yield Statistic(
        "gap",
        proper.gap,
        lambda given: rows.gap_rows(given.groups),
        jackknife.gap_jackknife,
        signed=True,
        vanishes=False,
        span=(-1.0, 1.0),
    )
    yield Statistic("ks", cumulative.ks_error, lambda given: rows.ks_rows(given.groups))
    yield Statistic("smooth_ece", lambda given: smooth.smooth_ece_of(given).value)


def _of_bins(bins: int | None, convention: ConventionName) -> Iterator[Statistic]:
    yield Statistic(
        "ece",
        lambda given: binned.ece(given, bins=bins, convention=convention),
        lambda given: rows.ece_rows(given, bins, convention),
    )
    yield Statistic("mce", lambda given: binned.mce(given, bins=bins, convention=convention))
    yield Statistic("ece_equal_mass", lambda given: binned.equal_mass_ece(given, bins=bins or 15))
    yield Statistic("debiased_l2", lambda given: binned.debiased_l2(given, bins=bins or 15))
    yield Statistic("ece_sweep", lambda given: binned.ece_sweep(given).value)


def _of_classes(bins: int | None, convention: ConventionName) -> Iterator[Statistic]:
    def classwise_ece(given: Predictions) -> float:
        return float(classwise.classwise_errors(given, bins=bins, convention=convention).mean())

    yield Statistic("classwise_ece", classwise_ece, of_classes=True)
    yield Statistic("skce", kernel.skce, minimum=2, of_classes=True, span=(0.0, 2.0))
    yield Statistic("brier", proper.brier_of, two_sided=True, of_classes=True, vanishes=False, span=(0.0, 2.0))
    yield Statistic("nll", proper.nll_of, two_sided=True, of_classes=True, vanishes=False, span=(0.0, math.inf))


def _of_answers() -> Iterator[Statistic]:
    yield Statistic("accuracy", proper.accuracy, jackknife=jackknife.accuracy_jackknife, two_sided=True, vanishes=False)
    yield Statistic("aurc", proper.aurc, two_sided=True, vanishes=False)
