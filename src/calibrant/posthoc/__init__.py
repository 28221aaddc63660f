"""Post-hoc calibrators, fitted to held-out logits after training."""

from calibrant.inputs import FitWarning
from calibrant.posthoc.auto import AutoCalibration
from calibrant.posthoc.binning import BayesianBinning, HistogramBinning
from calibrant.posthoc.conformal import ConformalClassifier
from calibrant.posthoc.curves import (
    BetaCalibration,
    CentredIsotonicCalibration,
    IsotonicCalibration,
    PlattScaling,
    SmoothScaling,
    SplineCalibration,
    VennAbers,
)
from calibrant.posthoc.fit import Calibrator, logits_from_probabilities
from calibrant.posthoc.multi_label import MultiLabelCalibration
from calibrant.posthoc.prior import PriorShift
from calibrant.posthoc.saved import load, save, to_onnx
from calibrant.posthoc.scaling import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)

__all__ = [
    "AutoCalibration",
    "BayesianBinning",
    "BetaCalibration",
    "Calibrator",
    "CentredIsotonicCalibration",
    "ConformalClassifier",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FitWarning",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "MultiLabelCalibration",
    "PlattScaling",
    "PriorShift",
    "SmoothScaling",
    "SplineCalibration",
    "StructuredMatrixScaling",
    "StructuredVectorScaling",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbers",
    "load",
    "logits_from_probabilities",
    "save",
    "to_onnx",
]


def __dir__() -> list[str]:
    return __all__
