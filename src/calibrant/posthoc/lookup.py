"""Tables with one row per map: steps and straight lines between knots."""

from functools import cached_property

import torch
from torch import Tensor

from calibrant.numerics import exclusive_cumsum
from calibrant.torch_private import is_exporting


def insertion_points(ascending: Tensor, position: Tensor, *, right: bool = False) -> Tensor:
    """``torch.searchsorted``, and in an exported program, since ONNX does not have it, the same in other operations.

    Args:
        ascending: ``(rows, m)``, each row in ascending order.
        position: ``(rows, N)``.
        right: Whether equal values are to the left of the position.

    Example:
        >>> insertion_points(torch.tensor([[0.0, 1.0]]), torch.tensor([[-1.0, 0.0, 0.5, 2.0]]))
        tensor([[0, 0, 1, 2]])
    """
    if is_exporting():
        return halving_search(ascending, position, right=right)
    return torch.searchsorted(ascending, position.contiguous(), right=right)


def halving_search(ascending: Tensor, position: Tensor, *, right: bool) -> Tensor:
    """Equal to ``torch.searchsorted``, by ``log2(m)`` gathers; see :func:`insertion_points`."""
    length = ascending.shape[1]
    place = torch.zeros_like(position, dtype=torch.long)
    for power in reversed(range(length.bit_length())):
        further = place + 2**power
        there = ascending.gather(1, further.clamp_max(length) - 1)
        beyond = there > position if right else there >= position  # false for NaN, which is sorted to the end
        place = torch.where((further > length) | beyond, place, further)
    return place


def step_lookup(edges: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """Value of the right-closed bin of each position.

    Args:
        edges: Inner edges, ascending, ``(rows, m)``. Repeated edges enclose empty bins.
        values: ``(rows, m + 1)``.
        position: ``(rows, N)``.

    Example:
        >>> step_lookup(torch.tensor([[0.5]]), torch.tensor([[0.1, 0.9]]), torch.tensor([[0.2, 0.5, 0.6]]))
        tensor([[0.1000, 0.1000, 0.9000]])
    """
    return values.to(position.dtype).gather(1, insertion_points(edges.to(position.dtype), position))


def linear_lookup(knots: Tensor, values: Tensor, position: Tensor) -> Tensor:
    """Value on the straight lines between knots; beyond the ends, that of the nearest knot.

    Args:
        knots: Ascending, ``(rows, m)`` with m at least 2; a knot may be repeated.
        values: ``(rows, m)``.
        position: ``(rows, N)``.

    Example:
        >>> linear_lookup(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.2, 0.4]]), torch.tensor([[0.5, 2.0]]))
        tensor([[0.3000, 0.4000]])
    """
    knots, values = knots.to(position.dtype), values.to(position.dtype)
    right = insertion_points(knots, position, right=True).clamp(1, knots.shape[1] - 1)
    low, high = knots.gather(1, right - 1), knots.gather(1, right)
    width = high - low
    share = torch.where(width > 0, (position - low) / torch.where(width > 0, width, 1.0), 0.0).clamp(0, 1)
    return torch.lerp(values.gather(1, right - 1), values.gather(1, right), share)


def sort_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row in ascending order, and the order; ties come in any."""
    if values.device.type != "cpu":
        return values.contiguous().sort(1)
    order = torch.from_numpy(values.numpy().argsort(axis=1))  # several times as fast as torch's
    return values.gather(1, order), order


class SortedHits:
    """Scores in ascending order with cumulative hits, so that any binning is counted by a few look-ups.

    Args:
        position: Scores, ``(rows, N)``.
        hits: 0 or 1, ``(rows, N)``.
        weight: ``(N,)`` weights of the samples, or None.
    """

    def __init__(self, position: Tensor, hits: Tensor, weight: Tensor | None = None) -> None:
        self.ascending, order = sort_rows(position)
        self.hits = hits.gather(1, order)
        self.weight = None if weight is None else weight[order]
        self.cumulated = exclusive_cumsum(self.hits if self.weight is None else self.hits * self.weight)
        self.mass = None if self.weight is None else exclusive_cumsum(self.weight)

    def equal_mass_edges(self, bins: int) -> Tensor:
        """Inner edges of bins of equal mass, ``(rows, bins - 1)``."""
        places, which = self.places(torch.arange(1, bins, device=self.ascending.device) / bins)
        return self.edges_at(places)[0][:, which]

    @cached_property
    def copies(self) -> float:
        """Number of copies that the weight of 1 counts as: samples have at least one copy each on average."""
        return 1.0 if self.mass is None else max(1.0, self.ascending.shape[1] / float(self.mass[0, -1]))

    def places(self, cut: Tensor) -> tuple[Tensor, Tensor]:
        """Whole numbers of copies at given shares of the mass: the different ones, ascending, and which each share has.

        Many shares of a large number of bins have the same place.
        """
        total = self.ascending.shape[1] if self.mass is None else self.mass[0, -1] * self.copies
        places, which = (cut * total).round().unique(return_inverse=True)
        return places, which

    def edges_at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Edges after so many copies, half-way between the samples they separate; and samples up to them.

        Both are ``(rows, m)``. Ties are never split. For ascending places, edges ascend too.
        """
        rows, samples = self.ascending.shape
        if self.mass is None:
            above = places.long().clamp(0, samples - 1).expand(rows, -1)
            below = (above - 1).clamp_min(0)
        else:
            # By the middles of the two copies next to an edge, rounding of the sums does not move it.
            ends = self.mass[:, 1:] * self.copies
            below, above = (_count_up_to(ends, places, step).clamp(0, samples - 1) for step in (-0.5, 0.5))
        left, right = self.ascending.gather(1, below), self.ascending.gather(1, above)
        edges = left + (right - left) / 2
        # Half-way between neighbours, the lower one and its ties are the last below the edge, unless rounding lifts it.
        until = self.after.gather(1, torch.where(edges < right, below, above))
        beyond = torch.nn.functional.pad(self.ascending, (0, 1), value=torch.inf)
        while bool((more := beyond.gather(1, until) <= edges).any()):
            until = torch.where(more, self.after.gather(1, until.clamp_max(samples - 1)), until)
        return edges, until

    @cached_property
    def after(self) -> Tensor:
        """Number of samples up to each one and its ties, ``(rows, N)``."""
        rows, samples = self.ascending.shape
        ends = torch.arange(1, samples + 1, device=self.ascending.device).repeat(rows, 1)
        ends[:, :-1].masked_fill_(self.ascending[:, 1:] == self.ascending[:, :-1], samples)
        return ends.flip(1).cummin(1).values.flip(1)

    def count(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and hits in the right-closed bins between inner edges: each ``(rows, bins)``, float64."""
        rows, samples = self.ascending.shape
        until = torch.searchsorted(self.ascending, edges.contiguous(), right=True)
        ends = torch.cat((until, until.new_full((rows, 1), samples)), dim=1)
        zero = ends.new_zeros(rows, 1)
        counts = (ends.double() if self.mass is None else self.mass.gather(1, ends)).diff(dim=1, prepend=zero.double())
        hits = self.cumulated.gather(1, ends).diff(dim=1, prepend=zero.double())
        return counts, hits


def _count_up_to(ascending: Tensor, places: Tensor, step: float) -> Tensor:
    """How many values of each row are at most ``places + step``, ``(rows, m)``; places are whole numbers, ascending."""
    rows, most = len(ascending), int(places[-1])
    if most > 4 * ascending.shape[1]:
        return torch.searchsorted(ascending.contiguous(), (places + step).repeat(rows, 1), right=True)
    # A histogram over the whole numbers, which takes a tenth of the time of a search.
    first = (ascending - step).ceil_().long().clamp_(0, most + 1)
    counts = first.new_zeros(rows, most + 2).scatter_add_(1, first, torch.ones_like(first))
    return counts.cumsum(1)[:, places.long()]


def bin_middles(edges: Tensor) -> Tensor:
    """Middles of the bins of [0, 1] between inner edges, ``(rows, bins)``, float64."""
    zero = edges.new_zeros(edges.shape[0], 1, dtype=torch.float64)
    outer = torch.cat((zero, edges.double(), zero + 1), dim=1)
    return (outer[:, 1:] + outer[:, :-1]) / 2
