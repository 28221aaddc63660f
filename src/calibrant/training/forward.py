"""Forward passes of any model, its logits as samples, and losses and scores of batches with ignored labels."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.checks import Classification
from calibrant.numerics import accumulation_dtype, readable
from calibrant.torch_private import BatchNorm, Dropout

Loss = Callable[[Tensor, Tensor], Tensor]
BINS = 20  # of the ECE, closed on the right, as in the ESD paper


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run forward passes in evaluation mode, then restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def has_dropout(model: nn.Module) -> bool:
    """Whether a model has dropout that is active in training mode."""
    return any(isinstance(module, Dropout) and module.p > 0 for module in model.modules())


@contextmanager
def freeze_batchnorm_statistics(model: nn.Module) -> Iterator[None]:
    """Run forward passes that leave BatchNorm's running statistics as they are; batches use their own as ever."""
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm) and layer.track_running_stats]
    try:
        for layer in layers:
            # A layer in evaluation mode uses its running statistics and does not change them.
            layer.track_running_stats = not layer.training
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True


def logits_of(model: Callable[..., Any], batch: Any) -> Tensor:
    """Run a model on a tensor or a mapping of keyword arguments, and return its logits."""
    if isinstance(batch, np.ndarray):
        raise TypeError("the inputs are a NumPy array: pass torch.as_tensor(x)")
    return logits_in(model(**batch) if isinstance(batch, Mapping) else model(batch))


def logits_in(output: Any) -> Tensor:
    """Logits of a model's output."""
    logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", output)
    if not isinstance(logits, Tensor):
        found = f"only {', '.join(output)}" if isinstance(output, Mapping) else type(output).__name__
        raise TypeError(
            f"the model must return logits, or an object or mapping with logits, got {found}: use a model with a "
            "classification head, or wrap it in a module that returns the logits alone"
        )
    return logits


def with_logits(output: Any, logits: Tensor) -> Any:
    """A model's output with other logits."""
    if isinstance(output, Tensor):
        return logits
    if isinstance(output, tuple) and hasattr(output, "_replace"):
        return output._replace(logits=logits)
    changed = copy.copy(output)
    if isinstance(output, MutableMapping):
        changed["logits"] = logits  # also sets the attribute of a ModelOutput of transformers
    else:
        changed.logits = logits
    return changed


def pair_of(batch: Any, what: str = "a batch") -> tuple[Any, Any]:
    """Inputs and target of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, list | tuple) else ""
        raise TypeError(
            f"{what} must be (inputs, target), got {type(batch).__name__}{size}: give the loader a collate_fn that "
            "makes such pairs"
        )
    return batch[0], batch[1]


def batches_for(model: nn.Module, loader: Any, function: str) -> Iterator[tuple[Any, Tensor, Any]]:
    """Inputs, target, and weight or None, on the device of a model; ``function`` was given the loader."""
    if isinstance(loader, Dataset):
        raise TypeError(f"{function}() takes batches, got a data set: pass a DataLoader of it")
    device = next((weights.device for weights in model.parameters()), torch.device("cpu"))
    batch = None
    for batch in loader:
        has_weight = isinstance(batch, list | tuple) and len(batch) == 3
        x, y = pair_of(batch[:2] if has_weight else batch)
        if not isinstance(y, Tensor) or isinstance(x, np.ndarray):
            raise TypeError(
                f"a batch must hold tensors, got {type(x).__name__} and {type(y).__name__}: pass a DataLoader, which "
                "makes batches of tensors"
            )
        if isinstance(x, Mapping):
            x = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in x.items()}
        if isinstance(x, Tensor):
            x = x.to(device)
        weight = batch[2].to(device) if has_weight else None
        yield x, y.to(device), weight
    if batch is None:
        raise ValueError("the loader gave no batch: pass batches (x, y)")


def flattened(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, *, multi_label: bool = False, ignore_index: int = -100
) -> Classification:
    """Check a batch and bring it to ``(N, C)`` logits; every label of a multi-label batch is a binary sample."""
    if weight is not None:
        weight = spread(weight, target.shape)
    if multi_label:
        if target.shape != logits.shape:
            raise ValueError(
                f"a multi-label target must have the shape of the logits, {tuple(logits.shape)}, "
                f"got {tuple(target.shape)}"
            )
        logits, target = logits.reshape(-1), target.reshape(-1).long()
        weight = None if weight is None else weight.reshape(-1)
    elif target.is_floating_point() and target.numel() == logits.numel() == len(logits):
        # as torch.nn.BCEWithLogitsLoss takes them
        if readable(target) and not bool(((target == 0) | (target == 1)).all()):
            raise ValueError("a floating-point target of binary logits must be 0 or 1: round it, or pass class indices")
        target = target.long()
    return checks.classification(logits, target, None, ignore_index, weight)


def finite(logits: Tensor, target: Tensor, ignore_index: int, multi_label: bool = False) -> tuple[Tensor, Tensor, int]:
    """Ignore samples with infinite or NaN logits, and return how many there are among those that count."""
    if logits.numel() == 0 or math.isfinite(float(logits.detach().abs().max())):
        return logits, target, 0
    bad = ~logits.isfinite()
    if not multi_label and target.shape != logits.shape:
        bad = (bad if logits.dim() == 1 else bad.any(1)).reshape(target.shape)
    count = int((bad & (target != ignore_index)).sum())
    return logits.nan_to_num(0.0, 0.0, 0.0), target.masked_fill(bad, ignore_index), count


def spread(weight: Tensor, shape: torch.Size) -> Tensor:
    """Weights of predictions of a shape, from weights per prediction or per sample."""
    count = shape.numel()
    if weight.numel() == count:
        return weight.reshape(shape)
    if weight.dim() != 1 or not len(weight) or count % len(weight):
        raise ValueError(f"expected one weight per sample, got {tuple(weight.shape)} for {count} predictions")
    return weight.repeat_interleave(count // len(weight)).reshape(shape)


def loss_or_zero(loss: Loss, logits: Tensor, target: Tensor, *, minimum: int = 1) -> Tensor:
    """The loss of a batch, or a zero that is connected to the logits if ignored labels leave fewer than ``minimum``."""
    ignore_index = getattr(loss, "ignore_index", -100)
    if ignore_index is None or target.numel() < minimum:
        return loss(logits, target)
    enough = (target != ignore_index).sum() >= minimum
    if readable(enough):
        if enough:
            return loss(logits, target)
        return torch.where(torch.zeros_like(logits, dtype=torch.bool), logits, 0.0).sum()  # they may hold anything
    # Do not wait for the accelerator: if there are too few samples, this is the loss of zeros, times zero.
    return loss(torch.where(enough, logits, 0.0), torch.where(enough, target, 0)) * enough


def objective_of(objective: Loss, logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return a calibration objective, which may need several samples, or weights of the samples."""
    if weight is not None:
        of_samples = spread(weight, logits.shape[:1] + logits.shape[2:])
        return objective(logits, target, sample_weight=of_samples)  # type: ignore[call-arg]
    if distributed.is_distributed():  # the objective is that of the global batch: one rank's labels do not decide
        return objective(logits, target)
    return loss_or_zero(objective, logits, target, minimum=minimum_samples(objective))


def minimum_samples(objective: object) -> int:
    """Fewest samples an objective is defined for, from its ``minimum_samples()``; 1 if it has none, or is None."""
    minimum = getattr(objective, "minimum_samples", None)
    return int(minimum()) if callable(minimum) else 1


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int = -100) -> Tensor:
    """Mean NLL of ``(N, C, ...)`` logits as in torch; 0, with a zero gradient, where every sample is ignored."""
    total = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")
    return total / (target != ignore_index).sum().clamp_min(1)


def nll(data: Classification) -> Tensor:
    """Mean NLL of checked samples, each as often as it counts."""
    if data.weight is None or not data.weight.is_floating_point():
        return cross_entropy(data.logits, marked_target(data))
    each = F.cross_entropy(data.logits, data.target, reduction="none")
    weight = data.weight.to(each.dtype)
    return (each * weight).sum() / weight.sum().clamp_min(torch.finfo(each.dtype).tiny)


def marked_target(data: Classification) -> Tensor:
    """The target of checked samples, -100 where they do not count."""
    return data.target if data.mask is None else torch.where(data.mask, data.target, -100)


class BatchScores(NamedTuple):
    """Means over samples, and over values that came with their batches, such as those of an objective.

    Attributes:
        gap: Mean confidence minus accuracy.
        doubt: Mean of 1 minus the probability of the target.
        batches: Number of batches on this rank.
        silent: Share of the values that is 0.
    """

    samples: float
    accuracy: float
    nll: float
    gap: float
    doubt: float = 0.0
    ece: float = 0.0
    batches: int = 0
    values: float = 0.0
    value: float = 0.0
    silent: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard error of the accuracy, with one right and one wrong answer added."""
        p = (self.accuracy * self.samples + 1) / (self.samples + 2)
        return math.sqrt(p * (1 - p) / max(self.samples, 1))


class ScoreSums:
    """Running sums of the samples of batches, and of values, on their device."""

    def __init__(self) -> None:
        self.batches = 0
        self._sums = torch.zeros(8 + BINS, dtype=torch.float64)
        self._marks: dict[str, tuple[Tensor, int]] = {}  # sums and batches at the last call of since()

    # A counter would make torch.compile recompile every step.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def add(self, data: Classification) -> None:
        """Add a batch of logits as the loss sees them."""
        self._add(3, _sums_of(data))
        self.batches += 1

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def add_value(self, value: Tensor, samples: Tensor | float = 1.0) -> None:
        """Add the value of an objective, or the mean loss of some samples, which may be NaN if there are none."""
        value = value.to(accumulation_dtype(value))
        count = torch.as_tensor(samples).to(value)
        self._add(0, torch.stack((count, torch.where(count > 0, value * count, 0.0), count * (value == 0))))

    def _add(self, first: int, terms: Tensor) -> None:
        self._sums = self._sums.to(terms, copy=True)  # marks keep the sums before
        self._sums[first : first + len(terms)] += terms

    def running(self, purpose: str = "") -> BatchScores:
        """Means on this rank since the last call of :meth:`since` for the same purpose."""
        return _means(*self._change(purpose))

    def since(self, purpose: str = "") -> BatchScores:
        """Means on all ranks since the last call for the same purpose."""
        sums, batches = self._change(purpose)
        self._marks[purpose] = self._sums, self.batches
        return _means(distributed.sum_across_ranks(sums) if distributed.is_distributed() else sums, batches)

    def _change(self, purpose: str) -> tuple[Tensor, int]:
        before, batches = self._marks.get(purpose, (torch.zeros_like(self._sums), 0))
        return self._sums - before.to(self._sums), self.batches - batches


def _sums_of(data: Classification) -> Tensor:
    """Number, right ones, log loss, confidence and doubt of samples, and confidence minus correctness in each bin."""
    logits = data.logits if data.logits.dtype == torch.float64 else data.logits.float()
    log_probabilities = logits.log_softmax(1)
    top, predicted = log_probabilities.max(1)
    nll = -log_probabilities.gather(1, data.target.unsqueeze(1)).squeeze(1)
    right, confidence = (predicted == data.target).to(top.dtype), top.exp()
    rows = torch.stack((torch.ones_like(top), right, nll, confidence, 1 - (-nll).exp()))
    if data.weight is not None:
        rows = torch.where(data.weight > 0, rows, 0.0)
    rows = rows.to(accumulation_dtype(rows))
    edges = torch.arange(1, BINS + 1, dtype=rows.dtype, device=rows.device) / BINS
    excess = rows.new_zeros(BINS).scatter_add(0, torch.bucketize(confidence, edges.to(confidence)), rows[3] - rows[1])
    return torch.cat((rows.sum(1), excess))


def _means(sums: Tensor, batches: int) -> BatchScores:
    values, value, silent, samples, right, nll, confidence, doubt, *excess = sums.tolist()
    some, any_values = max(samples, 1), max(values, 1)
    return BatchScores(
        samples, right / some, nll / some, (confidence - right) / some, doubt / some, sum(map(abs, excess)) / some,
        batches, values, value / any_values, silent / any_values,
    )  # fmt: skip


def scores_of(logits: Tensor, target: Tensor) -> BatchScores:
    """Accuracy, log loss, gap and ECE of logits."""
    sums = ScoreSums()
    sums.add(Classification(logits, target))
    return sums.running()


def joined(parts: list[Classification]) -> Classification:
    """Join batches."""
    logits, target = torch.cat([part.logits for part in parts]), torch.cat([part.target for part in parts])
    if all(part.weight is None for part in parts):
        return Classification(logits, target)
    every = (torch.ones_like(part.target, dtype=torch.bool) if part.weight is None else part.weight for part in parts)
    return Classification(logits, target, torch.cat(list(every)))
