"""A first look at calibrated training: LeNet5 on digits, with NLL and with NLL + ESD, a few seeds each."""

import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor

import calibrant as cal
from calibrant.experiments.models.lenet import LeNet5
from calibrant.files import write_predictions

TEST_IMAGES = 350
VALIDATION_IMAGES = 150
CALIBRATION_FRACTION = 0.1
BATCH_SIZE = 128
ECE_BINS = 20
FILES = {"NLL": "nll", "NLL + ESD": "esd"}


class Outcome(NamedTuple):
    """What one trained network does on the test images, in percent."""

    accuracy: float
    ece: float
    overconfidence: float


class Predicted(NamedTuple):
    """Logits of one trained network and the right answers."""

    logits: Tensor
    target: Tensor

    def outcome(self) -> Outcome:
        """The scores the table shows."""
        scores = cal.metrics.evaluate(logits=self.logits, target=self.target, bins=ECE_BINS)
        return Outcome(100 * scores.accuracy, 100 * scores.ece, 100 * scores.gap)


def digits(noise: float) -> tuple[Tensor, Tensor]:
    """scikit-learn's 1,797 digits as ``(N, 1, 32, 32)``, pixels in [0, 1] plus Gaussian noise, and their labels.

    Without noise nearly every prediction is right, and there is nothing to be over-confident about.
    """
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1) / 16
    images += noise * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return F.interpolate(images, size=(32, 32), mode="bilinear"), torch.from_numpy(data.target).long()


def train_and_test(
    images: Tensor, labels: Tensor, *, weight: float, epochs: int, seed: int, after_epoch: Callable[[], None]
) -> dict[str, Predicted]:
    """Train one network and predict validation and test images. The seed fixes split, initialisation and order.

    With a weight, a tenth of the training images is held out: NLL is minimised on the rest, ESD on the
    held-out part, in the same step. Without, NLL has all of them.
    """
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    test, validation, train = order.tensor_split([TEST_IMAGES, TEST_IMAGES + VALIDATION_IMAGES])
    held_out = round(CALIBRATION_FRACTION * len(train)) if weight else 0
    calibration, train = train[:held_out], train[held_out:]

    model = LeNet5()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    esd = cal.ESDLoss()
    for _ in range(epochs):
        for batch in shuffled(train):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            if weight:
                loss = loss + weight * esd(model(images[calibration]), labels[calibration])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        after_epoch()

    with torch.inference_mode():
        return {
            name: Predicted(model(images[part]), labels[part])
            for name, part in (("validation", validation), ("test", test))
        }


def shuffled(indices: Tensor) -> Iterator[Tensor]:
    """Mini-batches of indices in random order."""
    yield from indices[torch.randperm(len(indices))].split(BATCH_SIZE)


def run_demo(
    *, seeds: int, epochs: int, weight: float, noise: float, out: Path, console: Console
) -> dict[str, list[Outcome]]:
    """Train both ways with every seed, print the comparison, and return it; the first seed's predictions are kept."""
    images, labels = digits(noise)
    methods = {"NLL": 0.0, "NLL + ESD": weight}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs")
    with Progress(
        *columns, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=len(methods) * seeds * epochs)
        outcomes: dict[str, list[Outcome]] = {name: [] for name in methods}
        for seed in range(seeds):
            for name, strength in methods.items():
                progress.update(task, description=f"{name}, seed {seed + 1} of {seeds}")
                predicted = train_and_test(
                    images, labels, weight=strength, epochs=epochs, seed=seed,
                    after_epoch=lambda: progress.advance(task),
                )  # fmt: skip
                outcomes[name].append(predicted["test"].outcome())
                if seed == 0:
                    keep(predicted, out, FILES[name])
    console.print(comparison(outcomes, weight))
    console.print(
        f"LeNet5, {epochs} epochs, {seeds} seed{'' if seeds == 1 else 's'}, {TEST_IMAGES} test images of "
        f"scikit-learn's digits with pixel noise {noise:g}. "
        "A toy-sized default: it shows the mechanism, not a benchmark.",
        highlight=False,
    )
    console.print(
        f"Predictions of the first seed are in {out}: "
        f"try calibrant evaluate {' '.join(str(out / f'{stem}.npz') for stem in FILES.values())}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    return outcomes


def keep(predicted: dict[str, Predicted], folder: Path, stem: str) -> None:
    """Write the predictions on the test images, and those on the validation images to fit a repair on."""
    for part, ending in (("test", ""), ("validation", "-validation")):
        logits, target = (tensor.numpy() for tensor in predicted[part])
        write_predictions(folder / f"{stem}{ending}.npz", logits, target, kind="logits")


def comparison(outcomes: dict[str, list[Outcome]], weight: float) -> Table:
    """The table a reader sees: one row a method, mean ± standard deviation over seeds."""
    table = Table(title="Trained with and without a calibration objective", title_justify="left")
    table.add_column("objective")
    for heading in ("accuracy %", f"ECE % ({ECE_BINS} bins)", "over-confidence %"):
        table.add_column(heading, justify="right")
    best = min(outcomes, key=lambda name: statistics.fmean(outcome.ece for outcome in outcomes[name]))
    for name, runs in outcomes.items():
        label = name if name == "NLL" else f"{name} (weight {weight:g})"
        cells = [mean_and_spread(values) for values in zip(*runs, strict=True)]
        table.add_row(label, *cells, style="bold" if name == best else None)
    return table


def mean_and_spread(values: tuple[float, ...]) -> str:
    """Format as mean ± standard deviation; a single value has no deviation to show."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):.2f}" + ("" if math.isnan(spread) else f" ± {spread:.2f}")
