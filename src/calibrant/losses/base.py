"""Base classes of the objectives: options, validation, ignored samples, and ranks."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from calibrant import distributed
from calibrant.losses import checks
from calibrant.losses.checks import Classification, Pairs
from calibrant.numerics import accumulation_dtype, log_softmax, safe_divide

Initialise = TypeVar("Initialise", bound=Callable[..., None])


def _refusing_data(initialise: Initialise) -> Initialise:
    """Make an ``__init__`` say how to call an objective when it is given a batch in place of settings."""

    @functools.wraps(initialise)
    def checked(self: Any, *args: Any, **settings: Any) -> None:
        first: Any = args[0] if args else None
        if getattr(first, "ndim", 0) or hasattr(first, "logits"):
            name, given = type(self).__name__, type(first).__name__
            raise TypeError(f"{name} takes settings, got a {given}: write {name}()(logits, target)")
        initialise(self, *args, **settings)

    return checked  # type: ignore[return-value]


class Objective(nn.Module, ABC):
    """Base class of the modules: takes ``(logits, target, mask=None)``, returns a scalar.

    Args:
        ignore_index: Label of samples to ignore, as in ``torch.nn.CrossEntropyLoss``; None to ignore none.
    """

    name = "the objective"
    sync = False
    _has_warned = False
    _has_looked = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Check the arguments of every objective; ``__new__`` would do too, but would hide them from ``help()``."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _refusing_data(cls.__init__)  # type: ignore[method-assign]

    @_refusing_data
    def __init__(self, *, ignore_index: int | None = -100) -> None:
        super().__init__()
        self.ignore_index = checks.check_ignore_index(ignore_index)

    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss of a batch as a scalar; 0, with zero gradient, if all of its samples are ignored.

        Args:
            logits: ``(N, C)``, dense ``(N, C, d1, ...)``, or binary ``(N,)`` or ``(N, 1)``: the logit of class 1.
            target: Integer class indices, ``(N, ...)``.
            mask: Boolean, same shape as ``target``: True where a sample counts.
        """
        data = self.classification(logits, target, mask)
        return self.value_or_zero(data).to(data.logits.dtype)

    def classification(
        self, logits: Tensor, target: Tensor, mask: Tensor | None, sample_weight: Tensor | None = None
    ) -> Classification:
        """Validate and flatten a batch; with several ranks, an error on one is raised on all."""
        with self.failing_together():
            data = checks.classification(logits, target, mask, self.ignore_index, sample_weight)
        # One batch that is large enough is checked: a softmax at the end of a model shows in every batch.
        if not self._has_looked and logits.dim() > 1 and logits.shape[1] > 1:
            self._has_looked = checks.warn_of_probabilities(data.logits, data.mask)
        return data

    def failing_together(self) -> AbstractContextManager[None]:
        """Return a context in which bad input on one rank is an error on all of them."""
        return distributed.failing_together() if self.gathers() else nullcontext()

    def value_or_zero(self, data: Classification) -> Tensor:
        """Return the loss of validated data, or 0 connected to the logits if too many samples are ignored."""
        counts = Pairs(data.target, data.target, data.mask)
        if data.mask is not None and not self.gathers() and self.lacks_samples(counts):
            return (data.logits * 0).sum()
        return self.value(data)

    def lacks_samples(self, pairs: Pairs) -> bool:
        """Return whether too many samples are known to be ignored; warn the first time.

        Where values cannot be read, on an accelerator or in compiled code, the kernels themselves return 0.
        """
        enough = checks.require_samples(pairs, self.minimum_samples(), self.name)
        if enough is None or enough.any():
            return False
        if not self._has_warned:
            self._has_warned = True
            checks.warn_of_ignored(pairs, self.minimum_samples(), self.name)
        return True

    def minimum_samples(self) -> int:
        """Return the fewest samples the objective is defined for."""
        return 1

    def gathers(self) -> bool:
        """Whether there are other ranks whose samples belong to the batch."""
        return self.sync and distributed.is_distributed()

    @abstractmethod
    def value(self, data: Classification) -> Tensor:
        """Return the loss of validated data, in the accumulation dtype."""

    def extra_repr(self) -> str:
        """Show the options, as torch's modules do."""
        options = {key: value for key, value in vars(self).items() if not key.startswith("_") and key != "training"}
        return ", ".join(f"{key}={value!r}" for key, value in sorted(options.items()))


class SyncedObjective(Objective):
    """Base class of objectives that are not means over samples and need the samples of all ranks.

    Args:
        ignore_index: Label of samples to ignore.
        sync: Under an initialised ``torch.distributed`` group, compute the objective on the global batch.
    """

    def __init__(self, *, ignore_index: int | None = -100, sync: bool = True) -> None:
        super().__init__(ignore_index=ignore_index)
        self.sync = sync


class HeldOutObjective(SyncedObjective):
    """Base class of losses whose state is updated from held-out data; ``sync`` uses the samples of all ranks."""

    def gathers(self) -> bool:
        """False: the loss is a mean over samples, which data-parallel training averages over ranks."""
        return False

    def updates_together(self) -> bool:
        """Whether there are other ranks whose samples belong to the update."""
        return super().gathers()

    def held_out(self, logits: Tensor, target: Tensor | None, mask: Tensor | None) -> Classification:
        """Validate and flatten held-out data; with several ranks, an error on one is raised on all."""
        with distributed.failing_together() if self.updates_together() else nullcontext():
            if target is None:
                return unlabelled(logits, mask)
            return checks.classification(logits, target, mask, self.ignore_index)


def unlabelled(logits: Tensor, mask: Tensor | None) -> Classification:
    """Validate and flatten logits whose labels do not matter: every target is class 0."""
    checks.check_float("logits", logits)
    shape = logits.shape[:1] + logits.shape[2:]
    return checks.classification(logits, torch.zeros(shape, dtype=torch.long, device=logits.device), mask, None)


def log_likelihood(data: Classification) -> Tensor:
    """Logarithm of the probability of the right class, ``(N,)``."""
    return of_target(log_softmax(data.logits), data)


def of_target(values: Tensor, data: Classification) -> Tensor:
    """The entries of ``(N, C)`` values for the right class, ``(N,)``."""
    return values.gather(1, data.target.unsqueeze(1)).squeeze(1)


def mean_over_samples(loss: Tensor, data: Classification, name: str) -> Tensor:
    """Mean of a per-sample loss over the samples that count, accumulated in float64; 0 if there are none."""
    checks.require_or_warn(Pairs(loss, loss, data.mask), 1, name)
    loss = loss.to(accumulation_dtype(loss))
    if data.mask is None:
        return loss.mean()
    weight = data.mask.to(loss.dtype)
    return safe_divide((loss * weight).sum(), weight.sum())
