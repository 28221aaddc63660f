"""Metrics as their definitions read: loops over samples and pairs, independent of the package."""

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from calibrant.metrics import Predictions

Floats = Sequence[float]
Marks = Sequence[int]
# Data whose metrics were computed independently, to twelve digits.
_I = np.arange(1, 1001)
_U, _V = (0.6180339887498949 * _I) % 1, (0.7548776662466927 * _I) % 1
CONTINUOUS = 0.1 + 0.9 * _U**0.2
TIED = np.round(50 * CONTINUOUS) / 50
CORRECT = np.clip(CONTINUOUS + 0.12 * np.sin(3 * np.pi * CONTINUOUS) - 0.02, 0, 1) > _V


def assert_same(found: Predictions, expected: Predictions) -> None:
    """Raise unless both hold the same arrays."""
    for name in ("confidence", "correct", "probabilities", "logits", "target", "weight"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(one, other)


def esd(z: Floats, c: Marks) -> float:
    """The paper's estimator: mean over i of the squared mean of g_ij less its sample variance / (N - 1)."""
    n, total = len(z), 0.0
    for i in range(n):
        g = [(c[j] - z[j]) * (z[j] <= z[i]) for j in range(n) if j != i]
        mean = math.fsum(g) / (n - 1)
        variance = math.fsum((x - mean) ** 2 for x in g) / (n - 2)
        total += mean**2 - variance / (n - 1)
    return total / n


def ks(z: Floats, c: Marks) -> float:
    return max(abs(math.fsum(cj - zj for zj, cj in zip(z, c, strict=True) if zj <= t)) for t in z) / len(z)


def mmce(z: Floats, c: Marks, bandwidth: float, unbiased: bool) -> float:
    n = len(z)
    terms = (
        (c[i] - z[i]) * (c[j] - z[j]) * math.exp(-abs(z[i] - z[j]) / bandwidth)
        for i, j in itertools.product(range(n), repeat=2)
        if i != j or not unbiased
    )
    return math.fsum(terms) / (n * (n - 1) if unbiased else n * n)


def binned(z: Floats, c: Marks, inside: Callable[[float, int], bool], bins: int) -> list[tuple[int, float, int]]:
    """Samples, confidence and right ones of each bin."""
    rows = []
    for m in range(bins):
        members = [i for i in range(len(z)) if inside(z[i], m)]
        rows.append((len(members), math.fsum(z[i] for i in members), sum(int(c[i]) for i in members)))
    return rows


def right_closed(bins: int, kind: type) -> Callable[[float, int], bool]:
    """Bins (lo, hi], the first one with 0."""
    return lambda z, m: kind(m / bins) < z <= kind((m + 1) / bins) or (z == 0 and m == 0)


def classwise_ece(p: Sequence[Floats], y: Sequence[int], bins: int, kind: type) -> float:
    errors = [
        ece(binned([row[k] for row in p], [int(label == k) for label in y], right_closed(bins, kind), bins), len(y))
        for k in range(len(p[0]))
    ]
    return math.fsum(errors) / len(errors)


def torchmetrics_ece(z: Floats, c: Marks, bins: int) -> float:
    """Everything in float32: bins [lo, hi) between the edges of ``torch.linspace``, and 1 in a bin of its own."""
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float32).tolist()
    single = [float(np.float32(value)) for value in z]
    rows = binned(single, c, lambda value, m: edges[m] <= value and (m == bins or value < edges[m + 1]), bins + 1)
    return ece(rows, len(z))


def ece(rows: list[tuple[int, float, int]], n: int, norm: float = 1) -> float:
    powers = math.fsum(k / n * abs(right / k - total / k) ** norm for k, total, right in rows if k)
    return float(powers ** (1 / norm))


def equal_mass_rows(z: Floats, c: Marks, bins: int) -> list[tuple[int, float, int]]:
    """A tie group belongs to the chunk that its first sample falls in."""
    order = sorted(range(len(z)), key=lambda i: z[i])
    chunk_of_position = [k for k, chunk in enumerate(np.array_split(np.arange(len(z)), bins)) for _ in chunk]
    chunk_of_value: dict[float, int] = {}
    for position, i in enumerate(order):
        chunk_of_value.setdefault(z[i], chunk_of_position[position])
    return binned(z, c, lambda value, m: chunk_of_value[value] == m, bins)


def aurc(z: Floats, c: Marks) -> float:
    """Risk of the k most confident, averaged over k, and over every order of tied samples."""
    risks = []
    groups = [[c[i] for i in range(len(z)) if z[i] == value] for value in sorted(set(z), reverse=True)]
    for orders in itertools.product(*(itertools.permutations(group) for group in groups)):
        ranked = [x for group in orders for x in group]
        risks.append(np.mean([1 - np.mean(ranked[: k + 1]) for k in range(len(ranked))]))
    return float(np.mean(risks))


def skce(p: Sequence[Floats], y: Sequence[int], bandwidth: float) -> float:
    n, classes = len(p), len(p[0])
    total = 0.0
    for i, j in itertools.combinations(range(n), 2):
        inner = sum(((y[i] == k) - p[i][k]) * ((y[j] == k) - p[j][k]) for k in range(classes))
        total += inner * math.exp(-math.dist(p[i], p[j]) / bandwidth)
    return total / (n * (n - 1) / 2)


def smoothed_error(z: Floats, c: Marks, width: float, points: int = 4001) -> float:
    """The integral of |residuals smoothed by a Gaussian reflected at 0 and 1|, by the midpoint rule."""
    t = (np.arange(points) + 0.5) / points
    total = np.zeros(points)
    for zi, ci in zip(z, c, strict=True):
        for image in range(-4, 5):
            for mirror in (zi, -zi):
                total += (zi - ci) * np.exp(-0.5 * ((t - mirror - 2 * image) / width) ** 2)
    return float(np.abs(total).mean() / (len(z) * width * math.sqrt(2 * math.pi)))
