"""Post-hoc methods by name."""

from calibrant.posthoc.auto import AutoCalibration
from calibrant.posthoc.base import Calibrator
from calibrant.posthoc.bbq import BayesianBinning
from calibrant.posthoc.beta import BetaCalibration
from calibrant.posthoc.centred_isotonic import CentredIsotonicCalibration
from calibrant.posthoc.ensemble import EnsembleTemperatureScaling
from calibrant.posthoc.histogram import HistogramBinning
from calibrant.posthoc.isotonic import IsotonicCalibration
from calibrant.posthoc.matrix import DirichletCalibration, MatrixScaling
from calibrant.posthoc.platt import PlattScaling
from calibrant.posthoc.quadratic import QuadraticScaling
from calibrant.posthoc.smooth import SmoothScaling
from calibrant.posthoc.spline import SplineCalibration
from calibrant.posthoc.structured import StructuredMatrixScaling, StructuredVectorScaling
from calibrant.posthoc.temperature import TemperatureScaling
from calibrant.posthoc.vector import VectorScaling
from calibrant.posthoc.venn_abers import VennAbers

# Methods that the command line offers, by name. All their options have defaults.
METHODS: dict[str, type[Calibrator]] = {
    "auto": AutoCalibration,
    "temperature": TemperatureScaling,
    "sms": StructuredMatrixScaling,
    "svs": StructuredVectorScaling,
    "quadratic": QuadraticScaling,
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
