"""Calibration metrics and tests of calibration, for NumPy arrays, torch tensors, data frames and lists.

Every function takes ``(confidence, correct)``, or ``logits=`` or ``probabilities=`` with ``target=``, or what
:func:`predictions` makes of them. Those of sets of classes take ``(sets, target)``. Metrics that are updated batch by
batch are in :mod:`calibrant.metrics.streaming`, those of predictions beyond memory in :mod:`calibrant.metrics.scale`.
"""

from calibrant.inputs import InputWarning
from calibrant.metrics.binned import classwise_ece, debiased_l2, ece, ece_sweep, equal_mass_ece, mce
from calibrant.metrics.closed_form import calibration_line, closed_form_test
from calibrant.metrics.evaluate import evaluate
from calibrant.metrics.groups import calibration_by_group, calibration_change, calibration_over_time
from calibrant.metrics.intervals import compare, confidence_interval, equivalence
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.proper import (
    accuracy,
    aurc,
    brier,
    brier_discrimination,
    brier_miscalibration,
    brier_top,
    brier_uncertainty,
    decomposition,
    gap,
    log_loss,
    mean_confidence,
)
from calibrant.metrics.sets import coverage, group_coverage, mean_set_size, size_stratified_coverage
from calibrant.metrics.tests import calibration_test, judge
from calibrant.metrics.unbinned import esd, integrated_calibration_index, ks_error, mmce_unbiased, skce, smooth_ece

__all__ = [
    "InputWarning",
    "Predictions",
    "accuracy",
    "aurc",
    "brier",
    "brier_discrimination",
    "brier_miscalibration",
    "brier_top",
    "brier_uncertainty",
    "calibration_by_group",
    "calibration_change",
    "calibration_line",
    "calibration_over_time",
    "calibration_test",
    "classwise_ece",
    "closed_form_test",
    "compare",
    "confidence_interval",
    "coverage",
    "debiased_l2",
    "decomposition",
    "ece",
    "ece_sweep",
    "equal_mass_ece",
    "equivalence",
    "esd",
    "evaluate",
    "gap",
    "group_coverage",
    "integrated_calibration_index",
    "judge",
    "ks_error",
    "log_loss",
    "mce",
    "mean_confidence",
    "mean_set_size",
    "mmce_unbiased",
    "predictions",
    "size_stratified_coverage",
    "skce",
    "smooth_ece",
]


def __dir__() -> list[str]:
    return __all__
