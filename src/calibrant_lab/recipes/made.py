"""Made data whose true probabilities are known, with an MLP that over-fits them: embedded, for the demo."""

import torch
from pydantic import Field
from torch import nn

from calibrant.metrics import Predictions
from calibrant_lab.data.made import CLASSES, FEATURES, draw_rows, true_probabilities
from calibrant_lab.data.samples import Data
from calibrant_lab.recipes.base import Recipe
from calibrant_lab.settings import Settings

WIDTH = 256
VALIDATION = 0.1  # of the number of training rows
TEST_SEED, VALIDATION_SEED = 1_000_000, 2_000_000  # far from the seeds of training rows


class MadeSettings(Settings):
    """Settings of the recipe made."""

    rows: int = Field(2000, ge=10, description="Training rows, those held out included.")
    test_rows: int = Field(20_000, ge=10, description="Test rows, the same for every seed.")


def load(settings: MadeSettings, seed: int) -> Data:
    """Draw training and validation rows of a seed; the test rows are always the same."""
    train, test = draw_rows(settings.rows, seed), draw_rows(settings.test_rows, TEST_SEED)
    validation = draw_rows(round(VALIDATION * settings.rows), VALIDATION_SEED + seed)
    return Data(
        (train.x, train.target), (test.x, test.target), validation=(validation.x, validation.target), classes=CLASSES
    )


def build() -> nn.Module:
    """An MLP with two hidden layers."""
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )


# Chosen so that the NLL over-fits, by its accuracy on training and held-out rows alone.
made = Recipe(load, build, settings=MadeSettings, epochs=60, batch_size=100, learning_rate=2e-3)


def true_test_probabilities(rows: int) -> torch.Tensor:
    """The true probabilities of the test rows."""
    return true_probabilities(draw_rows(rows, TEST_SEED).x)


def error_of_p(predictions: Predictions) -> float:
    """Mean absolute difference of the predicted and the true probability of the predicted class, on the test rows."""
    probabilities, _ = predictions.of_classes("error_of_p")
    truth = true_test_probabilities(len(predictions)).numpy()
    right = truth[range(len(truth)), probabilities.argmax(1)]
    return float(abs(predictions.confidence - right).mean())
