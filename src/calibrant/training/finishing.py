"""The last temperature: solved on the final network, and made part of it."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibrant import distributed
from calibrant.losses.checks import Classification
from calibrant.posthoc.temperature import standard_error
from calibrant.training.forward import (
    PROBABILITIES,
    device_of,
    evaluating,
    logits_of,
    looks_like_sigmoid,
    pair_of,
    spread,
)
from calibrant.training.guard import BEYOND_CHANCE, FEWEST_SEEN, GO_BACK, Guard
from calibrant.training.last_layer import find_layer
from calibrant.training.running_scores import Scores, Sums, joined
from calibrant.training.temperature_loop import FEWEST, TemperatureLoop, gathered, shrunk, solution

# A standard error of log T above this is a temperature that is right to a quarter of itself, at best.
UNSURE = 0.25
# Where this share of samples is right, a best temperature below this one, by more than chance, is that of samples the
# network was trained on, unless it was trained briefly or with a loss that makes it unsure.
SAME_SHARE, SAME_TEMPERATURE = 0.95, 0.7
# Logits of this size, in a network that is no better than chance, are those of a training that has diverged.
HUGE = 1e4


class Finished(NamedTuple):
    """What :meth:`CalibratedLoss.finish` did.

    Attributes:
        temperature: What the logits of the model are divided by now, relative to the network as trained.
        error: Standard error of its logarithm.
        held_out: Samples, accuracy, log loss and gap on the held-out data, with that temperature.
        new: The same on the new data, if they were given.
    """

    temperature: float
    error: float
    held_out: Scores
    new: Scores | None


@torch.no_grad()
def predicted(
    model: nn.Module, batches: Iterable[Any], flatten: Callable[[Tensor, Tensor], tuple[Classification, int]],
    layer: nn.Module | None, guard: Guard,
) -> tuple[Tensor, Tensor, Tensor | None, nn.Module | None]:  # fmt: skip
    """Logits, target and weights of batches ``(x, y)`` or ``(x, y, weight)``, of all ranks, and the last layer.

    ``flatten`` brings a batch to ``(N, C)`` and ``(N,)`` without samples whose logits are infinite or NaN, and counts
    these. The layer that makes the logits is found when it is not given.
    """
    if isinstance(batches, Dataset):
        raise TypeError("finish() takes batches, got a data set: pass a DataLoader of it")
    parts: list[Classification] = []
    weights: list[Tensor] = []
    left_out = 0
    device = device_of(model)
    with evaluating(model):
        for batch in batches:
            has_weight = isinstance(batch, list | tuple) and len(batch) == 3
            x, y = moved(batch[:2] if has_weight else batch, device)
            if layer is None and not parts:
                layer = find_layer(model, lambda x=x: logits_of(model, x))  # type: ignore[misc]
            data, count = flatten(logits_of(model, x), y)
            parts.append(data)
            left_out += count
            if has_weight:
                weights.append(cast(Tensor, spread(batch[2].to(data.logits.device), len(data.target))))
    if not parts:
        raise ValueError("the loader gave no batch: pass batches (x, y)")
    if weights and len(weights) < len(parts):
        raise ValueError(f"{len(weights)} of {len(parts)} batches have weights: give all of them or none")
    logits, target, weight = gathered(joined(parts), torch.cat(weights) if weights else None)
    if distributed.is_distributed():
        left_out = int(distributed.sum_across_ranks(torch.tensor(left_out, device=parts[0].logits.device)))
    if left_out:
        _report(left_out, len(target), guard)
    if weight is not None and not weight.any():
        raise ValueError("every weight is 0, so there is nothing to calibrate on: give some sample a weight")
    return logits, target, weight, layer


def _report(left_out: int, counted: int, guard: Guard) -> None:
    if not counted:
        raise ValueError(
            f"the final network's logits are infinite or NaN on all {left_out} samples, so there is nothing to "
            f"calibrate: {GO_BACK}"
        )
    guard.warn(
        "not finite",
        f"the final network's logits are infinite or NaN on {left_out} of {left_out + counted} samples, which are "
        f"left out: run finish() in float32 or bfloat16 if they overflow in float16, check the inputs of these "
        f"samples, or, if training has diverged, {GO_BACK}",
    )


def final_temperature(
    logits: Tensor, target: Tensor, loop: TemperatureLoop, guard: Guard, weight: Tensor | None
) -> tuple[float, float]:
    """Log of the temperature for held-out logits of the final network, and its standard error.

    It is shrunk by that error toward the temperature that the network was trained at, which is 1 if it was never seen
    to overfit: what held-out data do not determine stays as it is.
    """
    before = loop.trained_at(logits)
    best = solution(logits, target, before, loop.criterion, weight)
    if best is None:
        reason, remedy = _why_unsolved(logits, target, guard)
        guard.warn(
            "unsolved",
            f"{len(target)} held-out samples do not determine a temperature ({reason}), and that of the training "
            f"loop, {math.exp(before):.3g}, stays: {remedy}",
        )
        return before, math.inf
    if looks_like_sigmoid(logits):
        guard.warn("softmax", PROBABILITIES)
    error = standard_error(logits, target, best, weight=weight)
    if error > UNSURE:
        guard.warn(
            "unsure",
            f"the temperature from {len(target)} held-out samples has a standard error of {error:.0%}: hold out more "
            "data",
        )
    return shrunk(best, before, error), error


def looks_trained_on(log_temperature: float, error: float, accuracy: float) -> bool:
    """Whether samples ask a network that is right on nearly all of them for far more confidence."""
    is_lower = log_temperature < min(math.log(SAME_TEMPERATURE), -BEYOND_CHANCE * error)
    return is_lower and accuracy >= SAME_SHARE


def warn_of_few(samples: int, guard: Guard) -> None:
    """Warn if a method without a temperature has too few held-out samples."""
    if samples < FEWEST:
        guard.warn("few", f"{samples} held-out samples are too few to measure calibration: hold out more data")


def _why_unsolved(logits: Tensor, target: Tensor, guard: Guard) -> tuple[str, str]:
    """Why samples do not determine a temperature, and what to do."""
    right = float((logits.argmax(1) == target).double().mean())
    is_huge = right < 1 and len(logits) > 0 and float(logits.abs().max()) > HUGE
    if is_huge or guard.warnings_.keys() & {"diverged", "not finite", "collapse", "fell"}:
        return "training has diverged", GO_BACK
    if len(target) < FEWEST:
        return f"{FEWEST} are the fewest", "hold out more data"
    if looks_like_sigmoid(logits):
        return "predictions are no better than chance", PROBABILITIES
    if right < 1:
        return "predictions are no better than chance", "hold out more data, or check that the network learns at all"
    seen = "check that the network was not trained on them too; if not, hold out more or harder data"
    return "every prediction is right", "hold out more data" if len(target) < FEWEST_SEEN else seen


def scores_of(logits: Tensor, target: Tensor) -> Scores:
    """Accuracy, log loss and gap of logits."""
    sums = Sums()
    sums.add(Classification(logits, target))
    return sums.scores() or Scores(0, 0, 0, 0)


def moved(batch: Any, device: torch.device) -> tuple[Any, Tensor]:
    """Inputs and target of a batch, on a device."""
    x, y = pair_of(batch)
    if not isinstance(y, Tensor) or isinstance(x, np.ndarray):
        raise TypeError(
            f"a batch must hold tensors, got {type(x).__name__} and {type(y).__name__}: pass a DataLoader, which makes "
            "batches of tensors"
        )
    if isinstance(x, Mapping):
        x = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in x.items()}
    return x.to(device) if isinstance(x, Tensor) else x, y.to(device)
