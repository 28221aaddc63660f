"""Post-hoc calibration as scikit-learn estimators."""

from calibrant.estimators.predictions import PredictionCalibrator
from calibrant.estimators.recalibrated import RecalibratedClassifierCV

__all__ = ["PredictionCalibrator", "RecalibratedClassifierCV"]
