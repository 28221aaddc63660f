"""The same answers as other libraries, where they are installed and right."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from calibrant.posthoc import ConformalClassifier, TemperatureScaling
from tests.posthoc.data import overconfident

# Their warnings, on import and in use, are about their own code.
pytestmark = pytest.mark.filterwarnings("ignore")
LOGITS, TARGET = overconfident(1000, 5, 2.0, seed=0)
NEW, _ = overconfident(500, 5, 2.0, seed=1)


def test_temperature_of_scikit_learn() -> None:
    calibration = pytest.importorskip("sklearn.calibration")
    if not hasattr(calibration, "_TemperatureScaling"):
        pytest.skip("needs a scikit-learn with temperature scaling")
    theirs = calibration._TemperatureScaling().fit(LOGITS.numpy(), TARGET.numpy())
    assert TemperatureScaling().fit(LOGITS, TARGET).temperature_ == pytest.approx(1 / float(theirs.beta_), rel=1e-5)


class Given:
    """A classifier in scikit-learn's form whose features are its logits."""

    def __init__(self) -> None:
        self.classes_ = np.arange(5)
        self.n_features_in_ = 5
        self.is_fitted_ = True

    def fit(self, *_: Any) -> "Given":
        return self

    def predict_proba(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return torch.from_numpy(np.asarray(logits)).softmax(1).numpy()

    def predict(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        return np.asarray(np.asarray(logits).argmax(1))


def sets_of_mapie(score: str, alpha: float) -> npt.NDArray[np.bool_]:
    pytest.importorskip("mapie")
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    estimator = type("Estimator", (Given, ClassifierMixin, BaseEstimator), {})()
    theirs = SplitConformalClassifier(estimator, 1 - alpha, score, random_state=0)
    theirs.conformalize(LOGITS.numpy(), TARGET.numpy())
    _, sets = theirs.predict_set(NEW.numpy(), conformity_score_params={"include_last_label": "randomized"})
    return np.asarray(sets[:, :, 0])


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.3])
def test_sets_of_mapie(alpha: float) -> None:
    theirs = sets_of_mapie("lac", alpha)
    assert (ConformalClassifier("lac", alpha).fit(LOGITS, TARGET).predict_set(NEW).numpy() == theirs).all()


@pytest.mark.parametrize("alpha", [0.1, 0.3])
def test_randomised_sets_of_mapie_are_as_large(alpha: float) -> None:
    theirs = sets_of_mapie("aps", alpha)
    ours = ConformalClassifier("aps", alpha).fit(LOGITS, TARGET).predict_set(NEW).numpy()
    assert ours.sum(1).mean() == pytest.approx(theirs.sum(1).mean(), rel=0.05)
    assert (ours == theirs).mean() > 0.8  # other draws move the classes at the edge only
