"""How much of a sample's own label is in its gradient, for each objective.

    python -m benchmarks.own_labels [--repetitions 8000]          # writes results/own_labels.md

Confidences are drawn at random and labels so that they are calibrated. One sample has confidence 0.6. Its gradient is
computed twice, with a wrong and with a right prediction; all else is equal. Positive: descent lowers the confidence of
wrong samples and raises that of right ones, so the network learns these labels.
"""

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.measure import machine
from benchmarks.tables import finish, markdown, show
from calibrant import functional

SIZES = (64, 128, 512)
PLACE = 0.6
CHUNK = 500


# Confidences of a network with many unsure samples, and of one that is sure of most, as trained networks are.
NETWORKS: dict[str, Callable[[Tensor], Tensor]] = {
    "uniform on [0.5, 1], mean 0.75": lambda uniform: 0.5 + 0.5 * uniform,
    "Beta(20, 1), mean 0.95": lambda uniform: uniform ** (1 / 20),
}


class Row(NamedTuple):
    """An objective of (confidence, correct), and by how much confidences exceed accuracy."""

    name: str
    objective: Callable[[Tensor, Tensor], Tensor]
    excess: float = 0.0


class Flip(NamedTuple):
    """Mean gradient if wrong minus if right, in units of the mean |gradient|, and its standard error."""

    value: float
    error: float


ROWS = (
    Row("√max(ESD, 0)", lambda confidence, correct: functional.esd(confidence, correct).relu().sqrt()),
    Row("ESD", functional.esd),
    Row("MMCE (V), rooted", lambda confidence, correct: functional.mmce(confidence, correct).sqrt()),
    Row(
        "MMCE² (U), 2 % over-confident",
        lambda confidence, correct: functional.mmce(confidence, correct, unbiased=True),
        0.02,
    ),
    Row("ECE, 15 bins", lambda z, c: functional.ece(z, c, 15)),
    Row("SB-ECE, T = 0.01", functional.soft_binned_ece),
)


def flip(row: Row, network: Callable[[Tensor], Tensor], size: int, repetitions: int, seed: int = 0) -> Flip:
    """Measure what flipping the label of one sample does to its own gradient."""
    draw = torch.Generator().manual_seed(seed)
    differences, units = [], []
    for _ in range(math.ceil(repetitions / CHUNK)):
        confidence = network(torch.rand(CHUNK, size, generator=draw, dtype=torch.float64))
        confidence[:, 0] = PLACE
        correct = torch.rand(CHUNK, size, generator=draw, dtype=torch.float64) < confidence - row.excess
        wrong, right = (_gradient(row, confidence, correct, own) for own in (False, True))
        differences.append(wrong[:, 0] - right[:, 0])
        units.append((wrong.abs().mean(1) + right.abs().mean(1)) / 2)
    difference, unit = torch.cat(differences), torch.cat(units)
    ratio = difference.mean() / unit.mean()
    # Standard error of a ratio of means, by its linear expansion.
    error = (difference - ratio * unit).std() / (unit.mean() * math.sqrt(len(unit)))
    return Flip(float(ratio), float(error))


def _gradient(row: Row, confidence: Tensor, correct: Tensor, own: bool) -> Tensor:
    confidence, correct = confidence.clone().requires_grad_(), correct.clone()
    correct[:, 0] = own
    row.objective(confidence, correct).sum().backward()
    if confidence.grad is None:
        raise RuntimeError(f"{row.name} gave no gradient")
    return confidence.grad


def main() -> None:
    """Measure, print, and write results/own_labels.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=8000)
    repetitions = parser.parse_args().repetitions
    heading = ["objective", *(f"N = {size}" for size in SIZES)]
    title = "A sample's own label in its gradient"
    tables = []
    for name, network in NETWORKS.items():
        cells = [[row.name, *(_cell(flip(row, network, size, repetitions)) for size in SIZES)] for row in ROWS]
        show(name, heading, cells)
        tables.append(f"Confidences {name}:\n\n{markdown(heading, cells)}\n")
    text = (
        f"# {title}\n\n"
        f"Measured by `python -m benchmarks.own_labels` on {machine()}: {repetitions:,} batches of N samples, with "
        "labels drawn from the confidences, so that the network is calibrated, except where the row says otherwise. "
        f"The label of one sample with confidence {PLACE} is flipped and all else is left as it is. Mean of its "
        "gradient if wrong minus if right, in units of the mean |gradient| of the batch, ± one standard error. "
        "Positive: descent lowers the confidence of wrong samples and raises that of right ones, so the network "
        "learns these labels.\n\n" + "\n".join(tables)
    )
    finish("own_labels", text, [])


def _cell(found: Flip) -> str:
    return f"{round(found.value, 2) + 0.0:+.2f} ± {found.error:.2f}"


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
