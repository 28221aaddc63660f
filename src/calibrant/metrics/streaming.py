"""Metrics that are updated batch by batch and synchronised across ranks, based on torchmetrics.

The binned ones keep a few sums per bin, whatever the number of samples. Those that need every sample keep 4 bytes
for each: confidence, rounded to float32, and correctness packed into one integer.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.binned import (
    BinTable,
    ConventionName,
    bin_sums,
    classwise_sums,
    convention_of,
    mean_of_classes,
    table_of,
)
from calibrant.metrics.predictions import Predictions, predictions
from calibrant.metrics.ties import key_blocks, pack
from calibrant.metrics.unbinned import CumulativeSums

try:
    import torch
    from torch import Tensor
    from torchmetrics import Metric
except ImportError as error:
    raise ImportError("streaming metrics need torchmetrics: pip install 'calibrant[streaming]'") from error

__all__ = ["StreamingClasswiseECE", "StreamingECE", "StreamingESD", "StreamingGap", "StreamingKS"]
Takes = Literal["logits", "probabilities", "confidence"]


def __dir__() -> list[str]:
    return __all__


class StreamingMetric(Metric):
    """Base class of the streaming metrics."""

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    def __init__(self, takes: Takes = "logits", **options: Any) -> None:
        super().__init__(**options)
        inputs.check_choice("takes", takes, ("logits", "probabilities", "confidence"))
        self.takes = takes

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> Self:
        """Move to another device, never to another type: sums in float64 and keys in int32 would be wrong in others."""

        def moved(tensor: Tensor) -> Tensor:
            try:
                return tensor.to(fn(tensor).device)
            except TypeError:  # MPS has no float64: keep the few sums on the CPU
                return tensor

        return super()._apply(moved, exclude_state)  # type: ignore[return-value]

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add a batch."""
        if self.takes == "confidence":
            self.add(predictions(first, second))
        elif self.takes == "logits":
            self.add(predictions(logits=first, target=second))
        else:
            self.add(predictions(probabilities=first, target=second))

    def compute(self) -> Tensor:
        """The metric of all batches; NaN if there are too few samples."""
        return torch.tensor(self.value(), dtype=torch.float64, device=self.device)

    @abstractmethod
    def add(self, data: Predictions) -> None:
        """Add the predictions of a batch."""

    @abstractmethod
    def value(self) -> float:
        """The metric of all batches."""


class _Binned(StreamingMetric):
    """A metric of the sums of each bin: samples, confidences and right ones."""

    sums: Tensor

    def __init__(
        self, classes: tuple[int, ...], bins: int | None, convention: ConventionName, takes: Takes, options: Any
    ) -> None:
        super().__init__(takes, **options)
        self.rule = convention_of(convention, bins)
        sums = torch.zeros(*classes, 3, self.rule.slots, dtype=torch.float64)
        self.add_state("sums", sums, dist_reduce_fx="sum")

    def add_sums(self, sums: Array) -> None:
        """Add the sums of a batch."""
        self.sums += torch.from_numpy(sums).to(self.sums)


class StreamingECE(_Binned):
    """ECE in constant memory.

    Args:
        bins: As in :func:`calibrant.metrics.ece`, and so is ``convention``.
        takes: First argument of ``update`` of any streaming metric: ``"logits"`` or ``"probabilities"`` (the second is
            the target), or ``"confidence"`` (the second is correctness). It is never guessed from the values.
        norm: As in :func:`calibrant.metrics.ece`; infinity for MCE.
        **options: Options of ``torchmetrics.Metric``, such as ``dist_sync_on_step``.

    Example:
        >>> import torch
        >>> from calibrant.metrics.streaming import StreamingECE
        >>> ece = StreamingECE(takes="confidence")
        >>> ece.update(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]))
        >>> ece.update(torch.tensor([0.6, 0.9]), torch.tensor([1, 0]))
        >>> round(ece.compute().item(), 4)
        0.5
    """

    def __init__(
        self,
        bins: int | None = None,
        convention: ConventionName = "paper",
        takes: Takes = "logits",
        *,
        norm: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__((), bins, convention, takes, options)
        self.norm = inputs.check_range("norm", norm, low=1, high=math.inf)

    def add(self, data: Predictions) -> None:
        """Add the sums of a batch."""
        self.add_sums(bin_sums(data.confidence, data.correct, self.rule))

    def table(self) -> BinTable:
        """The bins so far."""
        return table_of(self.rule.edges_like(np.zeros(0)), self.sums.cpu().numpy())

    def value(self) -> float:
        """ECE of the bins; NaN before the first batch."""
        return self.table().error(self.norm) if self.sums[0].any() else math.nan


class StreamingGap(StreamingECE):
    """Signed gap, mean confidence minus accuracy, in constant memory; see :func:`calibrant.metrics.gap`."""

    def __init__(self, takes: Takes = "logits", **options: Any) -> None:
        super().__init__(1, "netcal", takes, **options)

    def value(self) -> float:
        """The gap of the one bin."""
        samples, confidence, right = self.sums[:, 0].tolist()
        return (confidence - right) / samples if samples else math.nan


class StreamingClasswiseECE(_Binned):
    """Class-wise ECE in constant memory: the bins of each of so many classes."""

    def __init__(
        self,
        classes: int,
        bins: int | None = None,
        convention: ConventionName = "paper",
        takes: Literal["logits", "probabilities"] = "logits",
        **options: Any,
    ) -> None:
        inputs.check_choice("takes", takes, ("logits", "probabilities"))
        inputs.check_count("classes", classes)
        super().__init__((classes,), bins, convention, takes, options)

    def add(self, data: Predictions) -> None:
        """Add the sums of a batch."""
        if data.classes != len(self.sums):
            raise ValueError(f"expected {len(self.sums)} classes, got {data.classes}")
        self.add_sums(classwise_sums(data, self.rule))

    def value(self) -> float:
        """Mean over classes of the ECE."""
        return mean_of_classes(self.sums.cpu().numpy()) if self.sums.any() else math.nan


class _Sorted(StreamingMetric):
    """A metric of all samples in order of confidence: 4 bytes each."""

    keys: list[Tensor]

    def __init__(self, takes: Takes = "logits", **options: Any) -> None:
        super().__init__(takes, **options)
        self.add_state("keys", [], dist_reduce_fx="cat")

    def add(self, data: Predictions) -> None:
        packed = pack(data.confidence.astype(np.float32), data.correct).view(np.int32)
        added = torch.from_numpy(packed).to(self.device)
        # Like the digits of a binary counter: a logarithmic number of tensors, however small the batches.
        while self.keys and len(self.keys[-1]) <= len(added):
            added = torch.cat((self.keys.pop(), added))
        self.keys.append(added)

    def cumulative(self) -> CumulativeSums:
        state: Any = self.keys  # after synchronisation torchmetrics leaves one tensor
        parts = [state] if isinstance(state, Tensor) else list(state)
        keys = torch.cat(parts).cpu().numpy().view(np.uint32) if parts else np.zeros(0, dtype=np.uint32)
        sums = CumulativeSums()
        for ties in key_blocks(np.sort(keys)):
            sums.add(ties)
        return sums


class StreamingESD(_Sorted):
    """ESD of all samples, exact, with 4 bytes per sample; see :func:`calibrant.metrics.esd`."""

    def value(self) -> float:
        """ESD of all samples."""
        return self.cumulative().esd


class StreamingKS(_Sorted):
    """KS error of all samples, exact, with 4 bytes per sample; see :func:`calibrant.metrics.ks_error`."""

    def value(self) -> float:
        """KS error of all samples."""
        return self.cumulative().ks
