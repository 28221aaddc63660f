"""Metrics by name, each in the forms that inference needs. The names are those of :class:`calibrant.metrics.Scores`."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from calibrant import inputs
from calibrant.metrics import binned, cumulative, jackknife, kernel, proper, rows, smooth
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.jackknife import Jackknife
from calibrant.metrics.predictions import Predictions
from calibrant.metrics.rows import RowStatistic

MetricName = Literal[
    "esd", "ks", "ece", "mmce", "gap", "ece_equal_mass", "ece_sweep", "smooth_ece", "debiased_l2", "mce",
    "classwise_ece", "brier", "nll",
]  # fmt: skip
Metric = MetricName | Callable[[Predictions], float]


@dataclass(frozen=True)
class Statistic:
    """One metric, ready to be computed on many draws.

    Attributes:
        key: Its name.
        value: The metric of any predictions.
        rows: The same from many rows of residuals at once, for predictions that differ in nothing else.
        jackknife: The same with all leave-one-out values, if it is a U-statistic.
        minimum: How many samples it needs.
        signed: Whether it errs in two directions. Tests and comparisons ask for the size of the error only.
        of_classes: Whether it sees all classes where they are known, not only the predicted one.
        vanishes: Whether what it estimates is 0 for a calibrated model, and positive for any other.
    """

    key: str
    value: Callable[[Predictions], float]
    rows: Callable[[Predictions], RowStatistic] | None = None
    jackknife: Callable[[Predictions], Jackknife] | None = None
    minimum: int = 1
    signed: bool = False
    of_classes: bool = False
    vanishes: bool = True


def statistic(metric: Metric, bins: int | None, convention: ConventionName) -> Statistic:
    """Look a metric up by its name, or wrap a function of predictions."""
    if not isinstance(metric, str):
        if not callable(metric):
            raise TypeError(f"metric must be a name or a function of Predictions, got {type(metric).__name__}")
        key = getattr(metric, "__name__", type(metric).__name__)
        return Statistic(key, lambda given: float(metric(given)), of_classes=True, vanishes=False)
    inputs.check_choice("metric", metric, get_args(MetricName))
    inputs.check_choice("convention", convention, tuple(binned.CONVENTIONS))
    if bins is not None:
        inputs.check_count("bins", bins)
    known = (*_of_pairs(), *_of_bins(bins, convention), *_of_classes(bins, convention))
    return next(entry for entry in known if entry.key == metric)


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
        return float(binned.classwise_errors(given, bins=bins, convention=convention).mean())

    yield Statistic("classwise_ece", classwise_ece, of_classes=True)
    yield Statistic("brier", proper.brier_of, of_classes=True, vanishes=False)
    yield Statistic("nll", proper.nll_of, of_classes=True, vanishes=False)
