"""The methods by name, as the command line, the estimators and the arena offer them."""

from calibrant.posthoc.affine import (
    DirichletCalibration,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    VectorScaling,
)
from calibrant.posthoc.auto import AutoCalibration
from calibrant.posthoc.binning import BayesianBinning, HistogramBinning, SplineCalibration
from calibrant.posthoc.fit import Calibrator
from calibrant.posthoc.isotonic import CentredIsotonicCalibration, IsotonicCalibration, VennAbers
from calibrant.posthoc.scores import BetaCalibration, PlattScaling
from calibrant.posthoc.smooth import SmoothScaling
from calibrant.posthoc.temperature import EnsembleTemperatureScaling, TemperatureScaling

# All their options have defaults.
METHODS: dict[str, type[Calibrator]] = {
    "auto": AutoCalibration,
    "temperature": TemperatureScaling,
    "sms": StructuredMatrixScaling,
    "svs": StructuredVectorScaling,
    "smooth": SmoothScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "dirichlet": DirichletCalibration,
    "ensemble-temperature": EnsembleTemperatureScaling,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "spline": SplineCalibration,
    "histogram": HistogramBinning,
    "isotonic": IsotonicCalibration,
    "centred-isotonic": CentredIsotonicCalibration,
    "venn-abers": VennAbers,
    "bbq": BayesianBinning,
}
