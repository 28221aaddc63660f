"""Synthetic data with known true probabilities, and an MLP that overfits them, for the demo."""

import math
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from calibrant.metrics import Predictions
from calibrant_lab.data.samples import Data
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.settings import Settings

FEATURES, HIDDEN, CLASSES = 20, 32, 5
# Approximate standard deviation of the teacher's logits: the best classifier has an accuracy of 75 %.
SHARPNESS = 4.0
TEACHER_SEED = 2023
WIDTH = 256
VALIDATION = 0.1  # of the number of training rows
TEST_SEED, VALIDATION_SEED = 1_000_000, 2_000_000  # distinct from seeds of training rows


class Rows(NamedTuple):
    """Rows of a synthetic data set."""

    x: Tensor  # features, (N, 20), standard normal
    target: Tensor  # drawn from the true probabilities, (N,)
    truth: Tensor  # the true probabilities, (N, 5)


def draw_rows(count: int, seed: int) -> Rows:
    """Draw features, and labels from a fixed teacher that does not depend on the seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    truth = true_probabilities(x)
    return Rows(x, torch.multinomial(truth, 1, generator=generator).squeeze(1), truth)


def true_probabilities(x: Tensor) -> Tensor:
    """Softmax of a random network with one layer of 32 hidden units (tanh), in float64."""
    generator = torch.Generator().manual_seed(TEACHER_SEED)
    first = torch.randn(FEATURES, HIDDEN, generator=generator, dtype=torch.float64) * 2 / math.sqrt(FEATURES)
    last = torch.randn(HIDDEN, CLASSES, generator=generator, dtype=torch.float64) * SHARPNESS / math.sqrt(HIDDEN)
    return (torch.tanh(x.double() @ first) @ last).softmax(1)


class MadeSettings(Settings):
    """Settings of the recipe made."""

    rows: int = Field(2000, ge=10, description="Training rows, including held-out rows.")
    test_rows: int = Field(20_000, ge=10, description="Test rows, the same for every seed.")


def _load(settings: MadeSettings, seed: int) -> Data:
    train, test = draw_rows(settings.rows, seed), draw_rows(settings.test_rows, TEST_SEED)
    validation = draw_rows(round(VALIDATION * settings.rows), VALIDATION_SEED + seed)
    return Data(train[:2], test[:2], validation=validation[:2], classes=CLASSES)


def _build() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


# Chosen so that the NLL overfits, by its accuracy on training and held-out rows only.
made = Recipe(_load, _build, settings=MadeSettings, epochs=60, batch_size=100, learning_rate=2e-3)


def true_test_probabilities(rows: int) -> Tensor:
    """The true probabilities of the test rows."""
    return draw_rows(rows, TEST_SEED).truth


def error_of_p(predictions: Predictions) -> float:
    """Mean absolute difference between predicted and true probability of the predicted class, on the test rows."""
    probabilities, _ = predictions.of_classes("error_of_p")
    truth = true_test_probabilities(len(predictions)).numpy()
    right = truth[range(len(truth)), probabilities.argmax(1)]
    return float(abs(predictions.confidence - right).mean())
