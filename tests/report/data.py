"""Predictions of models whose honesty is known, because they are made up."""

from typing import Any

import numpy as np

from calibrant import metrics
from calibrant.metrics.predictions import Predictions


def classifier(
    samples: int = 4000, classes: int = 4, sharpness: float = 1.0, seed: int = 0, shift: float = 0.0
) -> Predictions:
    """Logits that are calibrated if ``sharpness`` is 1, and over-confident by that temperature if it is more."""
    rng = np.random.default_rng(seed)
    honest = 1.5 * rng.normal(size=(samples, classes))
    honest[:, 0] += shift
    powers = np.exp(honest)
    limits = (powers / powers.sum(1, keepdims=True)).cumsum(1)
    target = (rng.random((samples, 1)) > limits[:, :-1]).sum(1)
    return metrics.predictions(logits=sharpness * honest, target=target)


def confidences(*groups: tuple[float, float, int]) -> Predictions:
    """Groups of ``(confidence, accuracy, samples)``, without their classes."""
    confidence = np.concatenate([np.full(count, sure) for sure, _, count in groups])
    correct = np.concatenate([np.arange(count) < round(share * count) for _, share, count in groups])
    return metrics.predictions(confidence, correct)


def two_classes(*groups: tuple[float, float, int]) -> Predictions:
    """The same, with the probabilities of two classes, of which the first is always predicted."""
    pairs = confidences(*groups)
    probabilities = np.stack((pairs.confidence, 1 - pairs.confidence), 1)
    return metrics.predictions(probabilities=probabilities, target=(~pairs.correct).astype(int))


EDGE_CASES: dict[str, Any] = {
    "three samples": metrics.predictions([0.9, 0.8, 0.6], [1, 0, 1]),
    "all confidences equal": confidences((0.7, 0.6, 50)),
    "certain and right": confidences((1.0, 1.0, 20)),
    "certain and wrong": confidences((1.0, 0.0, 20)),
    "confidence 0": confidences((0.0, 0.0, 20)),
    "one sample in each bin": metrics.predictions((np.arange(20) + 0.5) / 20, np.arange(20) % 2),
    "two classes, one never predicted": two_classes((0.8, 0.6, 50)),
    "a class without samples": metrics.predictions(probabilities=np.full((9, 3), 1 / 3), target=np.arange(9) % 2),
    "a thousand classes": metrics.predictions(
        probabilities=np.random.default_rng(0).dirichlet(np.full(1000, 0.01), 60), target=np.arange(60)
    ),
    "float32": metrics.predictions(np.array([0.9, 0.8, 0.6, 1.0], dtype=np.float32), [1, 0, 1, 1]),
}
