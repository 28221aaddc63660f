"""The methods by name, as the command line, the estimators and the arena offer them."""

from calibrant.posthoc import binning, curves, scaling
from calibrant.posthoc.auto import AutoCalibration
from calibrant.posthoc.fit import Calibrator

# All their options have defaults.
METHODS: dict[str, type[Calibrator]] = {
    "auto": AutoCalibration,
    "temperature": scaling.TemperatureScaling,
    "sms": scaling.StructuredMatrixScaling,
    "svs": scaling.StructuredVectorScaling,
    "smooth": curves.SmoothScaling,
    "vector": scaling.VectorScaling,
    "matrix": scaling.MatrixScaling,
    "dirichlet": scaling.DirichletCalibration,
    "ensemble-temperature": scaling.EnsembleTemperatureScaling,
    "platt": curves.PlattScaling,
    "beta": curves.BetaCalibration,
    "spline": curves.SplineCalibration,
    "histogram": binning.HistogramBinning,
    "isotonic": curves.IsotonicCalibration,
    "centred-isotonic": curves.CentredIsotonicCalibration,
    "venn-abers": curves.VennAbers,
    "bbq": binning.BayesianBinning,
}
