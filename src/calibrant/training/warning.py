"""Warnings about calibrated training, located at the line of the user's program that causes them."""

import math
import sys
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.inputs import sum_to_one

# A warning located in a framework would be silenced with the framework's own.
PASSED_OVER = ("calibrant", "torch", "lightning", "pytorch_lightning", "transformers", "accelerate")
# Steps of training, and log T, from which on a forgotten finish() matters although the training loss is at T = 1.
FEWEST_STEPS, NEAR_ONE = 100, 0.1
# Relative change of the output layer that is more than rounding to another precision.
NOTICED = 0.01
PROBABILITIES = (
    "the model's outputs look like probabilities or log-probabilities: remove the softmax, sigmoid or log-softmax at "
    "its end, since the loss takes logits"
)


class CalibrationWarning(UserWarning):
    """Calibrated training does not work as intended."""


class Place(NamedTuple):
    """A line of the user's program."""

    file: str
    line: int
    module: str


def place_of_call() -> Place:
    """The line where the user's program calls this package."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in PASSED_OVER:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""))


def warn(message: str, place: Place | None = None) -> None:
    """Give a :class:`CalibrationWarning`, located where the user's program calls this package."""
    file, line, module = place or place_of_call()
    # Python shows equal texts of a line once; with a new registry a second model with the same problem is reported too.
    warnings.warn_explicit(message, CalibrationWarning, file, line, module, registry={})


class Divided:
    """The weights that ``finish()`` divided, and their norm since then."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.norm = self._norm()

    def has_changed(self) -> bool:
        """Whether other weights were loaded, or these trained, since then; another precision is no change."""
        return not math.isclose(self._norm(), self.norm, rel_tol=NOTICED / 2)

    def _norm(self) -> float:
        local = getattr(self.weights, "to_local", self.weights.detach)()  # the part of this process, if it is sharded
        return float(torch.linalg.vector_norm(local.float()))


class Reminder:
    """Reminds the user of ``finish()`` when a loss is gone and logits are not divided by its temperature."""

    def __init__(self) -> None:
        self.on = True
        self.place = place_of_call()
        self.divided: Divided | None = None
        self.temperature = self.best = 1.0  # of the training loss, and for held-out data
        self.steps = 0

    def tell(self) -> None:
        """Warn if ``finish()`` is missing."""
        temperature = self.temperature
        if temperature == 1 and self.steps >= FEWEST_STEPS and abs(math.log(self.best)) > NEAR_ONE:
            temperature = self.best
        if self.on and temperature != 1:
            warn(
                f"training ended without finish(): the model's logits are not divided by the temperature of held-out "
                f"data, {temperature:.3g}, and are {'over' if temperature > 1 else 'under'}-confident. Call "
                "finish(held_out_loader) on the loss",
                self.place,
            )
        elif self.on and self.divided is not None and self.divided.has_changed():
            warn(
                "the model's weights have changed since finish(): weights saved before it are not divided by the "
                "temperature. Load weights saved after it, or call finish(held_out_loader) again",
                self.place,
            )


def looks_like_probabilities(logits: Tensor) -> bool:
    """Whether ``(N, C)`` logits, at least 8 rows, are probabilities or their logarithms."""
    if len(logits) < 8:
        return False
    rows = logits.detach().cpu().double()
    return sum_to_one(rows.numpy()) or sum_to_one(rows.exp().numpy())


def looks_like_sigmoid(logits: Tensor) -> bool:
    """Whether binary logits, which have a column of zeros, are all in [0, 1]; those of a trained network are not."""
    if logits.shape[1] != 2 or not len(logits) or bool(logits[:, 0].any()):
        return False
    return bool(((logits[:, 1] >= 0) & (logits[:, 1] <= 1)).all())
