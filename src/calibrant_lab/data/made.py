"""Made data whose true probabilities are known: the labels are drawn from a fixed teacher."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

FEATURES = 20
CLASSES = 5
HIDDEN = 32
# Standard deviation of the teacher's logits, about: the best classifier is right on 75 % of the rows.
SHARPNESS = 4.0
TEACHER_SEED = 2023


class Rows(NamedTuple):
    """Rows of a made data set."""

    x: Tensor  # features, (N, 20), standard normal
    target: Tensor  # drawn from the true probabilities, (N,)
    truth: Tensor  # the true probabilities, (N, 5)


def draw_rows(count: int, seed: int) -> Rows:
    """Draw rows and labels; the teacher is the same for every seed.

    Example:
        >>> rows = draw_rows(1000, seed=0)
        >>> tuple(rows.x.shape), tuple(rows.truth.shape)
        ((1000, 20), (1000, 5))
    """
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
