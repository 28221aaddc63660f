"""The table of metrics: name, function, label, unit, meaning, convention, and what tests need of each.

A key is the name of a function in :mod:`calibrant.metrics`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from calibrant import inputs
from calibrant.metrics import binned, jackknife, proper, unbinned
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.jackknife import Jackknife
from calibrant.metrics.predictions import Predictions, Task
from calibrant.metrics.ties import DrawsMetric

# A metric by its key, or a function of the user.
Chosen = str | Callable[[Predictions], Any]


@dataclass(frozen=True)
class Metric:
    """One metric: how it is computed, how it is shown, and what inference may assume about it.

    Attributes:
        key: Name of its function, and its key in :class:`calibrant.metrics.evaluate.Scores`.
        value: Function that computes the metric of predictions.
        unit: ``"%"`` for a share that is shown in percent, ``"nats"``, or nothing.
        convention: How exactly it is computed: bins, edges, estimator.
        remark: Addition to the convention that depends on the predictions.
        evaluated: Whether ``evaluate`` computes it.
        kind: ``"error"`` of calibration alone, whose population value is 0 for a calibrated model and positive for any
            other; ``"signed"`` if such an error has a sign, so that comparisons use its absolute value; ``"mixed"`` if
            it measures something else too, so that low and high values alike show miscalibration; ``"own"`` of a
            user's function, which grows as calibration gets worse.
        of_draws: Computes it for many draws of the same ties at once.
        jackknife: Computes it with all leave-one-out values, if it is a U-statistic.
        of_classes: Whether it uses all classes if they are known, not only the predicted one.
        span: Smallest and largest possible population value.
    """

    key: str
    value: Callable[[Predictions], float]
    label: str
    unit: Literal["%", "nats", ""] = ""
    convention: str = ""
    meaning: str = ""
    remark: Callable[[Predictions], str] | None = None
    evaluated: bool = True
    kind: Literal["error", "signed", "mixed", "own"] = "error"
    more_is_better: bool = False
    of_draws: Callable[[Predictions], DrawsMetric] | None = None
    jackknife: Callable[[Predictions], Jackknife] | None = None
    minimum: int = 1
    of_classes: bool = False
    span: tuple[float, float] = (0.0, 1.0)

    def format(self, value: float, *, signed: bool = False) -> str:
        """Format a value, with a plus sign if ``signed`` and above 0."""
        sign = "+" if signed else ""
        if not math.isfinite(value):
            return str(value)
        if self.unit == "%":
            return f"{100 * value:{sign}z.2f} %"
        if value == 0:
            return "0"
        return f"{value:{sign}.4f}" if abs(value) >= 0.01 else f"{value:{sign}.2e}"


def find_metric(metric: Chosen, bins: int | None = None, convention: ConventionName = "paper") -> Metric:
    """Look up a metric by its key or its function, or wrap a function of the user."""
    table = metrics_table(bins, convention)
    if isinstance(metric, str):
        inputs.check_choice("metric", metric, tuple(table))
        return table[metric]
    if not callable(metric):
        raise TypeError(f"metric must be a name or a function of Predictions, got {type(metric).__name__}")
    name = getattr(metric, "__name__", type(metric).__name__)
    if name in table and getattr(metric, "__module__", "").startswith("calibrant.metrics."):
        return table[name]
    span = (-math.inf, math.inf)
    return Metric(name, lambda given: float(metric(given)), name, kind="own", of_classes=True, span=span)


# Display name and convention of metrics whose pairs are labels and their probabilities, not predictions.
OF_LABELS = {
    "accuracy": ("accuracy", "of all labels, at 0.5"),
    "mean_confidence": ("mean probability", "of all labels"),
    "gap": ("gap", "probability - share of positives"),
    "log_loss": ("NLL", "nats, mean over labels"),
    "brier": ("Brier", "mean over labels"),
    "classwise_ece": ("label-wise ECE", "mean of labels, bins as ECE"),
    "brier_top": ("Brier, all labels", "mean squared residual"),
    "brier_uncertainty": ("  UNC", "share (1 - share) of positives"),
    "aurc": ("AURC", "a label that does not apply is an error"),
}


def for_task(metric: Metric, task: Task) -> Metric:
    """Return a metric with the display name and convention that it has for predictions of this task."""
    if task != "multi-label":
        return metric
    label, convention = OF_LABELS.get(metric.key, (metric.label, f"{metric.convention}, all labels"))
    return replace(metric, label=label, convention=convention)


def described(key: str) -> Metric:
    """Return a metric by its key; for an unknown key, one with only a name."""
    return METRICS.get(key) or Metric(key, lambda _: math.nan, key)


def label(metric: str) -> str:
    """Display name of a metric."""
    return described(metric).label.strip()


def number(metric: str, value: float) -> str:
    """Format a value of a metric."""
    return described(metric).format(value)


def metrics_table(bins: int | None = None, convention: ConventionName = "paper") -> dict[str, Metric]:
    """Every metric, in the order shown, with the bins of :func:`calibrant.metrics.evaluate`."""
    rule = binned.convention_of(convention, bins)
    mass = binned.MASS_BINS if bins is None else bins
    widths: dict[str, Any] = {"bins": bins, "convention": convention}
    entries = (
        Metric(
            "accuracy", proper.accuracy, "accuracy", "%", "top label", "Share of predictions that are right.",
            jackknife=jackknife.accuracy_jackknife, more_is_better=True, kind="mixed",
        ),
        Metric(
            "mean_confidence", proper.mean_confidence, "mean confidence", "%", "top label",
            "Mean probability of the predicted class.", kind="mixed",
        ),
        Metric(
            "gap", proper.gap, "gap", "%", "confidence - accuracy",
            "Mean confidence minus accuracy: above 0 over-confident, below 0 under-confident.",
            of_draws=proper.gap_of_draws, jackknife=jackknife.gap_jackknife, kind="signed", span=(-1.0, 1.0),
            remark=_share_of_positives,
        ),
        Metric(
            "ece", partial(binned.ece, **widths), "ECE", "%", f"{convention}: {rule.describe()}",
            "Distance between confidence and accuracy in bins of confidence, averaged over samples. It depends on the "
            "bins: compare values of one convention only.",
            of_draws=partial(binned.ece_of_draws, **widths),
        ),
        Metric(
            "equal_mass_ece", partial(binned.equal_mass_ece, bins=mass), "equal-mass ECE", "%",
            f"{mass} bins, ties together", "ECE with bins that hold equally many samples.",
        ),
        Metric(
            "ece_sweep", binned.ece_sweep, "ECE-sweep", "%", "equal mass",
            "Equal-mass ECE with the most bins for which accuracy still rises from bin to bin.", remark=_number_of_bins,
        ),
        Metric(
            "smooth_ece", unbinned.smooth_ece, "smooth ECE", "%", "kernel as wide as the value",
            "ECE without bins: gaps are averaged by a kernel that is as wide as the value itself.",
        ),
        Metric(
            "debiased_l2", partial(binned.debiased_l2, bins=mass), "debiased L2", "%",
            f"{mass} equal-mass bins, rooted", "Root mean square of the bins' gaps, minus what chance adds to it.",
        ),
        Metric(
            "mce", partial(binned.mce, **widths), "MCE", "%", "as ECE",
            "Largest gap of any bin, often that of a bin with few samples.",
            remark=partial(_samples_of_worst_bin, **widths),
        ),
        Metric(
            "classwise_ece", partial(binned.classwise_ece, **widths), "class-wise ECE", "%",
            "mean of classes, bins as ECE",
            "ECE of the probability of one class on all samples, averaged over the classes.", of_classes=True,
        ),
        Metric(
            "ks_error", unbinned.ks_error, "KS error", "%", "cumulative, ties grouped",
            "Largest distance between cumulative confidence and cumulative accuracy. No bins.",
            of_draws=unbinned.ks_of_draws,
        ),
        Metric(
            "esd", unbinned.esd, "ESD", "", "unbiased, may be below 0",
            "Mean squared distance between these two curves. No bins; unbiased, so chance can take it below 0.",
            of_draws=unbinned.esd_of_draws, jackknife=jackknife.esd_jackknife, minimum=3,
        ),
        Metric(
            "integrated_calibration_index", unbinned.integrated_calibration_index, "ICI", "%",
            "kernel curve, Scott's width", "Mean distance between stated probabilities and a smooth calibration curve.",
            evaluated=False,
        ),
        Metric(
            "mmce_unbiased", unbinned.mmce_unbiased, "MMCE²", "", "unbiased, Laplace kernel 0.4",
            "Maximum mean calibration error, squared: products of the gaps of samples with similar confidence, "
            "averaged. Unbiased, so chance can take it below 0.",
            of_draws=unbinned.mmce_of_draws, jackknife=jackknife.mmce_jackknife, minimum=2,
        ),
        Metric(
            "skce", unbinned.skce, "SKCE", "", "unbiased, kernel of width 1",
            "Products of the residuals of samples with similar probabilities of all classes, averaged. Time grows with "
            "the square of the number of samples.",
            evaluated=False, minimum=2, of_classes=True, span=(0.0, 2.0),
        ),
        Metric(
            "log_loss", proper.log_loss, "NLL", "nats", "nats",
            "Mean negative logarithm of the probability of the true class: accuracy and calibration in one number.",
            remark=_smallest_probability, of_classes=True, span=(0.0, math.inf), kind="mixed",
        ),
        Metric(
            "brier", proper.brier, "Brier", "", "sum over classes",
            "Squared distance between probabilities and the truth, summed over classes: accuracy and calibration in "
            "one number.",
            of_classes=True, span=(0.0, 2.0), kind="mixed",
        ),
        Metric(
            "brier_top", proper.brier_top, "Brier, top label", "", "mean squared residual",
            "Squared distance between confidence and being right: MCB\xa0\N{MINUS SIGN}\xa0DSC\xa0+\xa0UNC.",
            remark=lambda _: " = MCB - DSC + UNC", kind="mixed",
        ),
        Metric(
            "brier_miscalibration", proper.brier_miscalibration, "  MCB", "", "miscalibration, isotonic",
            "Miscalibration: how much the best increasing map of confidences lowers the Brier score.",
        ),
        Metric(
            "brier_discrimination", proper.brier_discrimination, "  DSC", "", "discrimination",
            "Discrimination: how well confidence separates right from wrong. More is better.",
            more_is_better=True, kind="mixed",
        ),
        Metric(
            "brier_uncertainty", proper.brier_uncertainty, "  UNC", "", "accuracy (1 - accuracy)",
            "Uncertainty: the Brier score of a confidence that always equals the accuracy.", kind="mixed",
        ),
        Metric(
            "aurc", proper.aurc, "AURC", "", "risk-coverage, ties averaged",
            "Area under the risk-coverage curve: the share of errors among the most confident samples, averaged over "
            "how many of them are kept.", kind="mixed",
        ),
    )  # fmt: skip
    return {entry.key: entry for entry in entries}


def _share_of_positives(given: Predictions) -> str:
    return f" ({100 * proper.came_true(given):.2f} %)" if given.task == "multi-label" else ""


def _samples_of_worst_bin(given: Predictions, bins: int | None, convention: ConventionName) -> str:
    table = binned.equal_width_bins(given, bins=bins, convention=convention)
    samples = float(table.samples[np.abs(table.gaps).argmax()])
    number = f"{samples:,.0f}" if samples.is_integer() else f"{samples:,.2f}"
    return f"; its bin holds {number} sample{'s'[: samples != 1]}"


def _number_of_bins(given: Predictions) -> str:
    return f", {inputs.counted(len(given.once(binned.swept_bins).samples), 'bin')} chosen"


def _smallest_probability(given: Predictions) -> str:
    if given.logits is not None or given.probabilities is None:
        return ""
    return f"; p = 0 counts as {proper.SMALLEST_PROBABILITY:.1e}"


METRICS = metrics_table()
