"""What a trained network is worth, as trained and after post-hoc scaling: a row of the paper's Table 1."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

import calibrant as cal

BINS = 20


class Predicted(NamedTuple):
    """Logits of a network and the right answers."""

    logits: Tensor
    target: Tensor


@dataclass(frozen=True)
class Outcome:
    """Shares, not percent. Where no temperature could be fitted it is NaN.

    Attributes:
        accuracy: On the test set.
        ece: 20 bins of equal width, right-closed, as in the paper.
        nll: On the test set.
        temperature: Fitted on the validation set.
        ece_temperature: On the test set after temperature scaling, which changes no prediction.
        accuracy_vector: After vector scaling.
        ece_vector: After vector scaling.
    """

    accuracy: float
    ece: float
    nll: float
    temperature: float
    ece_temperature: float
    accuracy_vector: float
    ece_vector: float


def judge(validation: Predicted, test: Predicted) -> Outcome:
    """Score a network on its test set, post-hoc methods fitted on its validation set."""
    plain = cal.metrics.evaluate(logits=test.logits, target=test.target, bins=BINS)
    temperature = ece_temperature = math.nan
    # Answers that are all right, or no better than chance, have no best temperature: no reason to lose the rest.
    with suppress(ValueError):
        scaling = cal.posthoc.TemperatureScaling().fit(*validation)
        temperature = float(scaling.temperature_)
        ece_temperature = cal.metrics.evaluate(logits=scaling(test.logits), target=test.target, bins=BINS).ece
    vector = cal.posthoc.VectorScaling().fit(*validation)
    scaled = cal.metrics.evaluate(logits=vector(test.logits), target=test.target, bins=BINS)
    return Outcome(plain.accuracy, plain.ece, plain.nll, temperature, ece_temperature, scaled.accuracy, scaled.ece)
