"""Calibration metrics and tests of calibration, for NumPy arrays and torch tensors.

Every function takes ``(confidence, correct)``, or ``logits=`` or ``probabilities=`` with ``target=``, as arrays, data
frames or lists; :func:`predictions` has the details. Those of sets of classes take ``(sets, target)``.
"""

from typing import Any

from calibrant.inputs import InputWarning
from calibrant.metrics.analytic import AnalyticTest, ks_test, kuiper_test, spiegelhalter_test
from calibrant.metrics.binned import (
    CONVENTIONS,
    BinTable,
    Convention,
    debiased_l2,
    ece,
    ece_guo,
    ece_sweep,
    equal_mass_bins,
    equal_mass_ece,
    equal_width_bins,
    mce,
    swept_bins,
)
from calibrant.metrics.change import (
    Change,
    TimeCalibration,
    Window,
    calibration_change,
    calibration_over_time,
)
from calibrant.metrics.classwise import classwise_ece, classwise_errors
from calibrant.metrics.comparison import Comparison, compare
from calibrant.metrics.corp import (
    Corp,
    brier_discrimination,
    brier_miscalibration,
    brier_uncertainty,
    corp_decomposition,
)
from calibrant.metrics.cox import CalibrationLine, calibration_line
from calibrant.metrics.cumulative import esd, ks_error
from calibrant.metrics.decomposition import Decomposition, decomposition
from calibrant.metrics.equivalence import Equivalence, equivalence
from calibrant.metrics.evaluate import Score, Scores, evaluate
from calibrant.metrics.groups import GroupCalibration, GroupScore, calibration_by_group, multicalibration_error
from calibrant.metrics.ici import integrated_calibration_index
from calibrant.metrics.inference import CalibrationTest, Interval, calibration_test, confidence_interval
from calibrant.metrics.judgement import Judgement, judge
from calibrant.metrics.kernel import mmce_unbiased, skce
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.proper import (
    BrierDecomposition,
    accuracy,
    brier,
    brier_decomposition,
    brier_top,
    gap,
    mean_confidence,
    nll,
)
from calibrant.metrics.risk_coverage import aurc
from calibrant.metrics.sets import (
    Stratum,
    class_coverage,
    coverage,
    coverage_by_size,
    group_coverage,
    mean_set_size,
    size_stratified_coverage,
)
from calibrant.metrics.smooth_ece import smooth_ece
from calibrant.metrics.table import METRICS, Metric
from calibrant.metrics.views import View, views

STREAMING = ("StreamingClasswiseECE", "StreamingECE", "StreamingESD", "StreamingGap", "StreamingKS", "StreamingMCE")

__all__ = [
    "CONVENTIONS",
    "METRICS",
    "AnalyticTest",
    "BinTable",
    "BrierDecomposition",
    "CalibrationLine",
    "CalibrationTest",
    "Change",
    "Comparison",
    "Convention",
    "Corp",
    "Decomposition",
    "Equivalence",
    "GroupCalibration",
    "GroupScore",
    "InputWarning",
    "Interval",
    "Judgement",
    "Metric",
    "Predictions",
    "Score",
    "Scores",
    "Stratum",
    "TimeCalibration",
    "View",
    "Window",
    "accuracy",
    "aurc",
    "brier",
    "brier_decomposition",
    "brier_discrimination",
    "brier_miscalibration",
    "brier_top",
    "brier_uncertainty",
    "calibration_by_group",
    "calibration_change",
    "calibration_line",
    "calibration_over_time",
    "calibration_test",
    "class_coverage",
    "classwise_ece",
    "classwise_errors",
    "compare",
    "confidence_interval",
    "corp_decomposition",
    "coverage",
    "coverage_by_size",
    "debiased_l2",
    "decomposition",
    "ece",
    "ece_guo",
    "ece_sweep",
    "equal_mass_bins",
    "equal_mass_ece",
    "equal_width_bins",
    "equivalence",
    "esd",
    "evaluate",
    "gap",
    "group_coverage",
    "integrated_calibration_index",
    "judge",
    "ks_error",
    "ks_test",
    "kuiper_test",
    "mce",
    "mean_confidence",
    "mean_set_size",
    "mmce_unbiased",
    "multicalibration_error",
    "nll",
    "predictions",
    "size_stratified_coverage",
    "skce",
    "smooth_ece",
    "spiegelhalter_test",
    "swept_bins",
    "views",
]


def __getattr__(name: str) -> Any:
    # torchmetrics is an extra, and takes a second to import.
    if name in STREAMING:
        from calibrant.metrics import streaming

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *STREAMING])
