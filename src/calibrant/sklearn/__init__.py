"""Post-hoc calibration as scikit-learn estimators."""

from calibrant.sklearn.classifier import RecalibratedClassifierCV
from calibrant.sklearn.predictions import PredictionCalibrator

__all__ = ["PredictionCalibrator", "RecalibratedClassifierCV"]


def __dir__() -> list[str]:
    return __all__
