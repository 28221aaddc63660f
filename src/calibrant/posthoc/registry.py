"""The methods by name, as the command line, the estimators and the arena offer them."""

from calibrant.posthoc.auto import AutoCalibration
from calibrant.posthoc.binning import BayesianBinning, HistogramBinning
from calibrant.posthoc.curves import (
    BetaCalibration,
    CentredIsotonicCalibration,
    IsotonicCalibration,
    PlattScaling,
    SmoothScaling,
    SplineCalibration,
    VennAbers,
)
from calibrant.posthoc.fit import Calibrator
from calibrant.posthoc.scaling import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    StructuredMatrixScaling,
    StructuredVectorScaling,
    TemperatureScaling,
    VectorScaling,
)

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
