"""Post-hoc calibrators, fitted to held-out logits after training."""

from calibrant.posthoc.auto import AutoCalibration
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.bbq import BayesianBinning
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.centred_isotonic import CentredIsotonicCalibration
from calibrant.posthoc.conformal import ConformalClassifier
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.exported import to_onnx
from calibrant.posthoc.histogram import HistogramBinning
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.matrix import DirichletCalibration, MatrixScaling
from calibrant.posthoc.methods import METHODS
from calibrant.posthoc.multi_label import MultiLabelCalibration
from calibrant.posthoc.notices import FitWarning
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.prior import PriorShift
from calibrant.posthoc.probabilities import logits_from_probabilities
from calibrant.posthoc.quadratic import QuadraticScaling
from calibrant.posthoc.saved import load, save
from calibrant.posthoc.scores import ScoreCalibrator
from calibrant.posthoc.smooth import SmoothScaling
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.vector import VectorScaling
from calibrant.posthoc.venn_abers import VennAbers

__all__ = [
    "METHODS",
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
    "QuadraticScaling",
    "ScoreCalibrator",
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
