"""What the guard over calibrated training measures, in sound trainings and in failures.

    python -m benchmarks.guard          # writes results/guard.md, about five minutes of one core

Trainings on scikit-learn's digits: 700 images to train on, 300 held out, 797 to test.
"""

import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import calibrant as cal
from benchmarks.measure import machine
from benchmarks.tables import finish, markdown, show, status
from calibrant.posthoc import TemperatureScaling
from calibrant.training import CalibratedLoss, CalibrationWarning
from calibrant.training.guard import FEWEST_PULLS, OUTWEIGHS, Guard

Batch = tuple[Tensor, Tensor]
SEEDS = range(3)


class Setting(NamedTuple):
    """Size of batches, learning rate and number of epochs."""

    size: int
    rate: float
    epochs: int

    def __str__(self) -> str:
        return f"batch {self.size}, rate {self.rate:g}, {self.epochs} epochs"


class Objective(NamedTuple):
    """An objective of published training and its weight."""

    name: str
    objective: nn.Module
    weight: float


FAILING = Setting(16, 1e-3, 12)
SETTINGS = (
    Setting(32, 1e-3, 30), Setting(32, 1e-2, 30), Setting(128, 1e-3, 30), Setting(128, 1e-2, 30), Setting(64, 1e-2, 200)
)  # fmt: skip
NLL = Objective("NLL alone", cal.ESDLoss(), 0.0)
STRONG = (
    Objective("√ESD, weight 10", cal.ESDLoss(), 10.0),
    Objective("ESD without root, weight 100", cal.ESDLoss(root=False), 100.0),
)
FAILURES = (*STRONG, Objective("√ESD, weight 1000", cal.ESDLoss(), 1000.0))
OBJECTIVES = (
    Objective("√ESD, weight 1", cal.ESDLoss(), 1.0),
    Objective("√ESD, weight 4", cal.ESDLoss(), 4.0),
    Objective("ESD without root, weight 10", cal.ESDLoss(root=False), 10.0),
    Objective("MMCE, weight 1", cal.MMCELoss(), 1.0),
    Objective("SB-ECE, weight 1", cal.SoftBinnedECELoss(), 1.0),
    *STRONG,
)


class Watched(Guard):
    """Keeps the largest pull of the objective: relative to the strongest of the training loss, and to that now."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.largest_now = 0.0

    def close_window(self) -> dict[str, float]:
        """Judge a window, and keep its pull."""
        pulls = [torch.stack(kept) for kept in self._pulls.values() if len(kept) >= FEWEST_PULLS]
        values = super().close_window()
        if "pull" in values and len(pulls) == 2:
            self.largest = max(self.largest, values["pull"])
            self.largest_now = max(self.largest_now, float(pulls[1].mean() / pulls[0].mean()))
        return values


class Run(NamedTuple):
    """What came of a training."""

    accuracy: float
    largest: float
    largest_now: float
    warned: set[str]


@cache
def digits(seed: int) -> tuple[Batch, Batch, Batch]:
    """700 training, 300 held-out and 797 test images of digits."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    train, held_out, test = ((x[rows], y[rows]) for rows in order.split([700, 300, 797]))
    return train, held_out, test


def network(seed: int) -> nn.Sequential:
    """A small network that digits suffice to train."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batches(data: Batch, size: int) -> Iterator[Batch]:
    """Shuffled batches of a pass."""
    for rows in torch.randperm(len(data[1])).split(size):
        yield data[0][rows], data[1][rows]


def train(calibrated: CalibratedLoss, model: nn.Module, seed: int, setting: Setting) -> set[str]:
    """Train, and return the kinds of warnings given."""
    data, held_out, test = digits(seed)
    optimizer = torch.optim.AdamW(model.parameters(), setting.rate)
    rest: Iterator[Batch] = iter(())
    for _ in range(setting.epochs):
        for x, y in batches(data, setting.size):
            other = next(rest, None)
            if other is None:
                rest = batches(held_out, setting.size)
                other = next(rest)
            loss = calibrated(x, y, *other)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    calibrated.finish([held_out], [test])
    return set(calibrated.guard.warnings_)


@cache
def published(objective: Objective, seed: int, setting: Setting) -> Run:
    """A published training."""
    status(f"{objective.name}, {setting}, seed {seed}")
    model = network(seed)
    calibrated = CalibratedLoss(model, "published", objective=objective.objective, weight=objective.weight)
    guard = calibrated.guard = Watched()
    warned = train(calibrated, model, seed, setting)
    x, y = digits(seed)[2]
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).double().mean())
    return Run(accuracy, guard.largest, guard.largest_now, warned)


def fine_tuned(method: Any, seed: int) -> tuple[float, float, set[str]]:
    """Train on all images, then fine-tune with some of them held out: best test temperature before, after, warnings."""
    parts, model = digits(seed)[:2], network(seed)
    both = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(25):
        for x, y in batches(both, 64):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    before = _temperature(model, seed)
    warned = train(CalibratedLoss(model, method), model, seed, Setting(64, 1e-3, 25))
    return before, _temperature(model, seed), warned


def _temperature(model: nn.Module, seed: int) -> float:
    x, y = digits(seed)[2]
    with torch.no_grad():
        return TemperatureScaling(strict=True).fit(model(x), y).temperature_


def _kinds(warned: list[set[str]]) -> str:
    """Warnings, and on how many seeds."""
    kinds = sorted({kind for each in warned for kind in each})
    return ", ".join(f"{kind} ({sum(kind in each for each in warned)} of {len(warned)})" for kind in kinds) or "none"


def _failures() -> list[list[str]]:
    rows = []
    for objective in FAILURES:
        runs = [(published(NLL, seed, FAILING), published(objective, seed, FAILING)) for seed in SEEDS]
        change = ", ".join(f"{100 * plain.accuracy:.1f} → {100 * run.accuracy:.1f} %" for plain, run in runs)
        pulls = [run.largest for _, run in runs]
        rows.append([objective.name, change, _range(pulls), _kinds([run.warned for _, run in runs])])
    for method in ("published", "temperature"):
        status(f"fine-tuning, {method}")
        found = [fine_tuned(method, seed) for seed in SEEDS]
        change = ", ".join(f"T {before:.2f} → {after:.2f}" for before, after, _ in found)
        name = "√ESD, weight 1" if method == "published" else "temperature in the loop"
        rows.append([f"fine-tuning on seen samples, {name}", change, "", _kinds([warned for *_, warned in found])])
    return rows


def _pulls() -> list[list[str]]:
    rows = []
    for objective in OBJECTIVES:
        cells, of_now, warned = [], [], []
        for setting in SETTINGS:
            runs = [published(objective, seed, setting) for seed in SEEDS]
            plain = [published(NLL, seed, setting) for seed in SEEDS]
            change = (
                100 * sum(run.accuracy - other.accuracy for run, other in zip(runs, plain, strict=True)) / len(runs)
            )
            cells.append(f"{_range([run.largest for run in runs])} ({change:+.1f})")
            of_now += [run.largest_now for run in runs]
            warned += [run.warned for run in runs]
        rows.append([objective.name, *cells, _range(of_now), _kinds(warned)])
    return rows


def _range(values: list[float]) -> str:
    low, high = (f"{value:.0f}" if value >= 10 else f"{value:.2f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def main() -> None:
    """Measure, print, and write results/guard.md."""
    failures, pulls = _failures(), _pulls()
    of_failures = ["training", f"test accuracy against {NLL.name}, or best temperature", "largest pull", "warnings"]
    of_pulls = ["objective", *map(str, SETTINGS), "relative to the pull now", "warnings"]
    show("Failures", of_failures, failures)
    show("Pulls", of_pulls, pulls)
    text = (
        "# Thresholds of the guard\n\n"
        f"Measured by `python -m benchmarks.guard` on {machine()}: a network with 64 hidden units on scikit-learn's "
        f"digits, 700 images to train on, 300 held out, 797 to test, {len(SEEDS)} seeds, AdamW.\n\n"
        f"Trainings that fail ({FAILING}; fine-tuning: batch 64, rate 0.001, 25 epochs on a network trained on all "
        "1,000 images), one value per seed. The temperature is the best for test images, before and after; "
        f"a calibrated network has 1.\n\n{markdown(of_failures, failures)}\n\n"
        "The pull of the objective on the logits is the sum of |gradients|, relative to the pull of the training loss "
        "at its strongest. A cell has the largest value of a run, from the lowest to the highest seed, and the mean "
        f"change of test accuracy against {NLL.name} in points. The guard warns from {OUTWEIGHS:g} on. The second to "
        "last column has the largest ratio to the pull of the training loss in the same window.\n\n"
        f"{markdown(of_pulls, pulls)}\n"
    )
    finish("guard", text, [])


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CalibrationWarning)  # they are counted
    main()
