"""Repair: calibrators that are fitted on held-out logits, after training."""

from calibrant.posthoc.base import Calibrator, logits_from_probabilities
from calibrant.posthoc.temperature import TemperatureScaling

METHODS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
}

__all__ = [
    "METHODS",
    "Calibrator",
    "TemperatureScaling",
    "logits_from_probabilities",
]
