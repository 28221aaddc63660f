"""A user-defined recipe, objective and metric: scikit-learn's wine with a small network."""

from typing import Any

import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn

from calibrant.metrics import Predictions
from calibrant_lab import Data, Recipe


def load() -> Data:
    """Two thirds to train, a third to test; validation and held-out rows come from the first."""
    found = load_wine()
    x, y = torch.tensor(found.data, dtype=torch.float32), torch.tensor(found.target)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:118], order[118:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    return Data(train=(x[train], y[train]), test=(x[test], y[test]))


def build(data: Data, settings: Any) -> nn.Module:
    """An MLP; its width is the setting `hidden` of this recipe."""
    hidden = settings.hidden
    return nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, data.classes))


wine = Recipe(
    load, build, epochs=30, batch_size=32, hidden=64,
    validation_fraction=0.3, calibration_fraction=0.3,
)  # fmt: skip


class SquaredGap(nn.Module):
    """A user-defined objective: squared mean confidence minus accuracy of a held-out batch."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the objective."""
        confidence, predicted = logits.softmax(1).max(1)
        return (confidence.mean() - (predicted == target).float().mean()) ** 2


def surest_error(predictions: Predictions) -> float:
    """A user-defined metric: the highest confidence of a wrong prediction."""
    return float((predictions.confidence * (1 - predictions.correct)).max())
