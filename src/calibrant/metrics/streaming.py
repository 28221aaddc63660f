"""Metrics that are updated batch by batch and synchronised across ranks, based on torchmetrics.

The binned ones keep a few sums per bin, whatever the number of samples. Those that need every sample keep 4 bytes
for each: confidence, rounded to float32, and correctness packed into one integer.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

import numpy as np

from calibrant import inputs
from calibrant.frames import Array
from calibrant.metrics.binned import BinTable, ConventionName, bin_sums, classwise_gaps, convention_of, table_of
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

    def batch(self, first: Tensor, second: Tensor) -> Predictions:
        """Check a batch."""
        if self.takes == "confidence":
            return predictions(first, second)
        if self.takes == "logits":
            return predictions(logits=first, target=second)
        return predictions(probabilities=first, target=second)


class _Binned(StreamingMetric):
    """A metric of sums in each bin."""

    sums: Tensor
    samples: Tensor

    def __init__(self, rows: int, bins: int | None, convention: ConventionName, takes: Takes, options: Any) -> None:
        super().__init__(takes, **options)
        self.rule = convention_of(convention, bins)
        self.add_state("sums", torch.zeros(rows, self.rule.slots, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("samples", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def add_sums(self, sums: Array, samples: int) -> None:
        """Add the sums of a batch."""
        self.sums += torch.from_numpy(sums).to(self.sums)
        self.samples += samples


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
        super().__init__(3, bins, convention, takes, options)  # rows: samples, sum of confidence, right ones
        self.norm = inputs.check_range("norm", norm, low=1, high=math.inf)

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add a batch."""
        data = self.batch(first, second)
        self.add_sums(bin_sums(data.confidence, data.correct, self.rule), len(data))

    def table(self) -> BinTable:
        """The bins so far."""
        return table_of(self.rule.edges_like(np.zeros(0)), self.sums.cpu().numpy())

    def compute(self) -> Tensor:
        """ECE of all batches; NaN before the first."""
        value = self.table().error(self.norm) if self.samples else math.nan
        return torch.tensor(value, dtype=torch.float64, device=self.device)


class StreamingGap(StreamingECE):
    """Signed gap, mean confidence minus accuracy, in constant memory; see :func:`calibrant.metrics.gap`."""

    def __init__(self, takes: Takes = "logits", **options: Any) -> None:
        super().__init__(1, "netcal", takes, **options)

    def compute(self) -> Tensor:
        """The gap of all batches."""
        gap: Tensor = (self.sums[1] - self.sums[2]).sum() / self.samples
        return gap


class StreamingClasswiseECE(_Binned):
    """Class-wise ECE in constant memory: a table of bins for each of so many classes."""

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
        # Confidence minus right ones of each class and bin: all that class-wise ECE needs.
        super().__init__(classes, bins, convention, takes, options)

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add a batch."""
        data = self.batch(first, second)
        if data.classes != len(self.sums):
            raise ValueError(f"expected {len(self.sums)} classes, got {data.classes}")
        gaps, _ = classwise_gaps(data, self.rule)
        self.add_sums(gaps, len(data))

    def compute(self) -> Tensor:
        """Mean over classes of the ECE of all batches."""
        return self.sums.abs().sum(1).mean() / self.samples


class _Sorted(StreamingMetric):
    """A metric of all samples in order of confidence: 4 bytes each."""

    keys: list[Tensor]

    def __init__(self, takes: Takes = "logits", **options: Any) -> None:
        super().__init__(takes, **options)
        self.add_state("keys", [], dist_reduce_fx="cat")

    def update(self, first: Tensor, second: Tensor) -> None:
        """Add a batch."""
        data = self.batch(first, second)
        packed = pack(data.confidence.astype(np.float32), data.correct).view(np.int32)
        added = torch.from_numpy(packed).to(self.device)
        # Like the digits of a binary counter: a logarithmic number of tensors, however small the batches.
        while self.keys and len(self.keys[-1]) <= len(added):
            added = torch.cat((self.keys.pop(), added))
        self.keys.append(added)

    def cumulative(self) -> CumulativeSums:
        """ESD and KS of all batches; NaN if there are too few samples, as in a short batch."""
        state: Any = self.keys  # after synchronisation torchmetrics leaves one tensor
        parts = [state] if isinstance(state, Tensor) else list(state)
        keys = torch.cat(parts).cpu().numpy().view(np.uint32) if parts else np.zeros(0, dtype=np.uint32)
        sums = CumulativeSums()
        for ties in key_blocks(np.sort(keys)):
            sums.add(ties)
        return sums


class StreamingESD(_Sorted):
    """ESD of all samples, exact, with 4 bytes per sample; see :func:`calibrant.metrics.esd`."""

    def compute(self) -> Tensor:
        """ESD of all batches."""
        return torch.tensor(self.cumulative().esd, dtype=torch.float64, device=self.device)


class StreamingKS(_Sorted):
    """KS error of all samples, exact, with 4 bytes per sample; see :func:`calibrant.metrics.ks_error`."""

    def compute(self) -> Tensor:
        """KS error of all batches."""
        return torch.tensor(self.cumulative().ks, dtype=torch.float64, device=self.device)
