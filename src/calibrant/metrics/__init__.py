"""Calibration metrics and tests of calibration, for NumPy arrays and torch tensors.

Every function takes ``(confidence, correct)``, or ``logits=`` or ``probabilities=`` with ``target=``, as arrays, data
frames or lists; :func:`predictions` has the details. Those of sets of classes take ``(sets, target)``.
"""

from typing import Any

from calibrant.hints import InputWarning
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
from calibrant.metrics.classwise import classwise_ece, classwise_errors
from calibrant.metrics.cumulative import esd, ks_error
from calibrant.metrics.evaluate import Score, Scores, evaluate
from calibrant.metrics.inference import (
    CalibrationTest,
    Comparison,
    Interval,
    calibration_test,
    compare,
    confidence_interval,
)
from calibrant.metrics.kernel import mmce_unbiased, skce
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.proper import (
    BrierDecomposition,
    Corp,
    accuracy,
    aurc,
    brier,
    brier_decomposition,
    brier_top,
    corp_decomposition,
    gap,
    mean_confidence,
    nll,
)
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

STREAMING = ("StreamingClasswiseECE", "StreamingECE", "StreamingESD", "StreamingGap", "StreamingKS", "StreamingMCE")

__all__ = [
    "CONVENTIONS",
    "METRICS",
    "BinTable",
    "BrierDecomposition",
    "CalibrationTest",
    "Comparison",
    "Convention",
    "Corp",
    "InputWarning",
    "Interval",
    "Metric",
    "Predictions",
    "Score",
    "Scores",
    "Stratum",
    "accuracy",
    "aurc",
    "brier",
    "brier_decomposition",
    "brier_top",
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
    "ece",
    "ece_guo",
    "ece_sweep",
    "equal_mass_bins",
    "equal_mass_ece",
    "equal_width_bins",
    "esd",
    "evaluate",
    "gap",
    "group_coverage",
    "ks_error",
    "mce",
    "mean_confidence",
    "mean_set_size",
    "mmce_unbiased",
    "nll",
    "predictions",
    "size_stratified_coverage",
    "skce",
    "smooth_ece",
    "swept_bins",
]


def __getattr__(name: str) -> Any:
    # torchmetrics is an extra, and takes a second to import.
    if name in STREAMING:
        from calibrant.metrics import streaming

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *STREAMING])
