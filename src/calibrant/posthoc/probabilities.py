"""Probabilities as logits, for models that return nothing else."""

import math
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from calibrant import frames, inputs
from calibrant.losses import checks
from calibrant.numerics import at_least_float32
from calibrant.posthoc import containers
from calibrant.posthoc.containers import Array, as_tensor

# Float32's smallest normal number, and its logarithm: no log-probability is below it.
TINY = torch.finfo(torch.float32).tiny
FLOOR = math.log(TINY)


@overload
def logits_from_probabilities(probabilities: Tensor) -> Tensor: ...
@overload
def logits_from_probabilities(probabilities: Array) -> Array: ...
def logits_from_probabilities(probabilities: Any) -> Any:
    """Logits whose softmax gives the probabilities, for models that only return probabilities.

    Probabilities are floored at float32's smallest normal number, 1.2e-38, in every dtype: a 0, as forests return,
    becomes a finite logit of -87, which does not dominate a fit.

    Args:
        probabilities: ``(N, C)`` with rows that sum to one; or ``(N,)`` or ``(N, 1)``, the probability of class 1.
            Torch, NumPy or a data frame; what comes out is what went in.

    Returns:
        ``(N, C)`` log-probabilities, or the ``(N,)`` or ``(N, 1)`` logit of class 1; at least float32.

    Example:
        >>> import torch
        >>> from calibrant.posthoc import logits_from_probabilities
        >>> logits_from_probabilities(torch.tensor([[0.2, 0.8], [0.5, 0.5]])).softmax(1)
        tensor([[0.2000, 0.8000],
                [0.5000, 0.5000]])
        >>> logits_from_probabilities(torch.tensor([0.5, 1.0])).sigmoid()
        tensor([0.5000, 1.0000])
    """
    if _plain(probabilities):
        checks.check_rows_of_probabilities(probabilities)
        return torch.from_numpy(np.maximum(probabilities, TINY, order="C")).log_().numpy()
    values = as_tensor(probabilities, "probabilities")
    checks.check_float("probabilities", values)
    values = at_least_float32(values)
    if values.dim() == 1 or (values.dim() == 2 and values.shape[1] == 1):
        checks.check_unit_interval("probabilities", values)
        if text := inputs.doubt("probabilities", values.detach().cpu().flatten().numpy()):
            inputs.warn(text)
        logits = values.clamp_min(TINY).log() - (1 - values).clamp_min_(TINY).log()
    elif values.dim() > 2:
        raise ValueError(
            f"probabilities must have shape (N, C), or (N,) or (N, 1) if binary, got {tuple(values.shape)}"
        )
    else:
        checks.check_probabilities(values, None)
        logits = values.clamp_min(TINY).log_()  # in this order, since logarithms of 0 take 40 times as long
    return containers.like(probabilities, logits, frames.columns(probabilities) or None)


def _plain(values: Any) -> bool:
    """Whether this is an array in which nothing is to convert: most are, and of few rows that is half of the time."""
    usual = type(values) is np.ndarray and values.dtype in (np.float32, np.float64)
    return usual and values.ndim == 2 and values.shape[1] > 1
