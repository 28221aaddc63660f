"""Cost and effect of the size and frequency of the calibration batch, on MNIST with LeNet5.

    python -m benchmarks.calibration_batches --data-dir FOLDER

trains every row of the table (some 45 minutes on two idle cores), keeps each trial when it is done, and so goes on
where it stopped when it is started again. Then it times one step of each kind against a plain one, in turns.
"""

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import cyclopts
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant as cal
from benchmarks import measure, tables
from calibrant.files import whole_or_not_at_all
from calibrant.training import interleave, interleaved_split
from calibrant_lab.data.images import ImageBatches
from calibrant_lab.data.mnist import load_mnist
from calibrant_lab.models.lenet import LeNet5

BATCH = 512
VALIDATION = 6000


@dataclass(frozen=True)
class Trial:
    """One row of the table."""

    calibration_batch: int = BATCH
    every: int = 1
    root: bool = True
    weight: float = 1.0
    seed: int = 0

    @property
    def name(self) -> str:
        """Of its file."""
        root = "rooted" if self.root else "raw"
        return f"batch{self.calibration_batch}-every{self.every}-{root}-weight{self.weight:g}-seed{self.seed}"

    @property
    def method(self) -> str:
        """As the table calls it."""
        return f"{'sqrt(ESD)' if self.root else 'ESD'}, weight {self.weight:g}"


# The raw value is small, so weight 1 hardly moves it: at ESD near 2.5e-5, 100 x ESD has the gradient of its root.
TRIALS = [
    *(Trial(calibration_batch=size) for size in (512, 256, 128, 64)),
    *(Trial(calibration_batch=size, root=False, weight=100) for size in (512, 256, 128, 64)),
    *(Trial(every=every) for every in (2, 4)),
]
SHOWN_EPOCHS = (30, 50, 70)


def train(trial: Trial, folder: Path, epochs: int) -> list[dict[str, float]]:
    """Train one network in plain PyTorch; what it is worth every tenth epoch."""
    torch.set_num_threads(1)
    data = load_mnist(folder)
    torch.manual_seed(trial.seed)
    order = torch.randperm(len(data.train.labels))
    validation, training = order[:VALIDATION], order[VALIDATION:]
    for_nll, held_out = (training[part] for part in interleaved_split(len(training), 0.1, trial.seed))
    steps = interleave(
        ImageBatches(data.train, BATCH, indices=for_nll, shuffle=True),
        ImageBatches(data.train, trial.calibration_batch, indices=held_out, shuffle=True),
        calibration_every=trial.every,
    )
    model = LeNet5()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    objective = cal.ESDLoss(root=trial.root)
    history = []
    silent, seen = 0, 0
    for epoch in range(1, epochs + 1):
        for batch in steps:
            loss, value = step(model, objective, trial.weight, batch.train, batch.calibration)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if value is not None:
                seen += 1
                silent += int(value.item() <= 0)
        if epoch % 10 == 0:
            parts = (
                ImageBatches(data.train, 2000, indices=validation),
                ImageBatches(data.test, 2000),
            )
            history.append({"epoch": epoch, "silent": silent / max(seen, 1), **judge(model, *parts)})
            silent, seen = 0, 0
    return history


def step(
    model: nn.Module,
    objective: nn.Module,
    weight: float,
    batch: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor | None]:
    """The loss of one step, and the objective within it."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    if held_out is None:
        return loss, None
    value = objective(model(held_out[0]), held_out[1])
    return loss + weight * value, value


def judge(model: nn.Module, validation: ImageBatches, test: ImageBatches) -> dict[str, float]:
    """Accuracy and ECE on the test images, the temperature that fits the validation images, and ECE with it."""
    logits, target = predict(model, test)
    scaling = cal.posthoc.TemperatureScaling(strict=True).fit(*predict(model, validation))
    scores = cal.metrics.evaluate(logits=logits, target=target, bins=20)
    return {
        "accuracy": scores.accuracy,
        "ece": scores.ece,
        "temperature": float(scaling.temperature_),
        "ece_scaled": cal.metrics.evaluate(logits=scaling(logits), target=target, bins=20).ece,
    }


@torch.inference_mode()
def predict(model: nn.Module, batches: ImageBatches) -> tuple[Tensor, Tensor]:
    """Logits and targets of all batches."""
    outputs = [(model(images), labels) for images, labels in batches]
    logits, target = (torch.cat(column) for column in zip(*outputs, strict=True))
    return logits, target


def keep(trial: Trial, folder: Path, epochs: int, out: Path) -> None:
    """Train a trial and write what it is worth, whole or not at all."""
    history = train(trial, folder, epochs)
    with whole_or_not_at_all(out / f"{trial.name}.json") as temporary:
        temporary.write_text(json.dumps({"trial": asdict(trial), "epochs": epochs, "history": history}))


def run_missing(folder: Path, epochs: int, jobs: int, out: Path) -> None:
    """Train the trials that are not there yet, several at once, one thread each."""
    out.mkdir(parents=True, exist_ok=True)
    missing = [trial for trial in TRIALS if not _is_done(out / f"{trial.name}.json", epochs)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(keep, trial, folder, epochs, out) for trial in missing]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            tables.status(f"{done} of {len(missing)} trials")


def _is_done(path: Path, epochs: int) -> bool:
    return path.exists() and json.loads(path.read_text())["epochs"] == epochs


def step_costs(seconds: float) -> dict[tuple[int, int], tuple[float, float]]:
    """Seconds of a step by (calibration batch, every), and as a multiple of a plain step."""
    kinds = sorted({(trial.calibration_batch, trial.every) for trial in TRIALS})
    timing = measure.take_turns([stepper(0, 1), *(stepper(*kind) for kind in kinds)], seconds=seconds, turn=0)
    return dict(zip(kinds, zip(timing.seconds[1:], timing.ratios, strict=True), strict=True))


def stepper(calibration_batch: int, every: int) -> measure.Job:
    """Training steps on random images; as many as it takes to include one with calibration, told as one."""
    model = LeNet5()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    batch = (torch.rand(BATCH, 1, 32, 32), torch.randint(10, (BATCH,)))
    held_out = (torch.rand(calibration_batch, 1, 32, 32), torch.randint(10, (calibration_batch,)))
    counts = iter(_forever())

    def one_step() -> None:
        due = calibration_batch > 0 and next(counts) % every == 0
        loss, _ = step(model, cal.ESDLoss(), 1.0, batch, held_out if due else None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def job() -> None:
        for _ in range(4):  # the longest `every`
            one_step()

    return job


def _forever() -> Iterator[int]:
    count = 0
    while True:
        yield count
        count += 1


def rows(out: Path, costs: dict[tuple[int, int], tuple[float, float]]) -> list[list[str]]:
    """The table, from the trials on file."""
    table = []
    for trial in TRIALS:
        stored: dict[str, Any] = json.loads((out / f"{trial.name}.json").read_text())
        by_epoch = {entry["epoch"]: entry for entry in stored["history"]}
        at = [by_epoch[epoch] for epoch in SHOWN_EPOCHS if epoch in by_epoch]
        seconds, ratio = costs[trial.calibration_batch, trial.every]
        table.append(
            [
                trial.method,
                f"{trial.calibration_batch}",
                f"{trial.every}",
                f"{100 * at[-1]['accuracy']:.2f}",
                " / ".join(f"{100 * entry['ece']:.2f}" for entry in at),
                f"{100 * at[-1]['ece_scaled']:.2f}",
                " / ".join(f"{entry['temperature']:.2f}" for entry in at),
                " / ".join(f"{100 * entry['silent']:.0f}" for entry in at),
                f"{seconds / 4 * 1e3:.0f} ms",
                f"{ratio:.2f}x",
            ]
        )
    return table


HEADING = [
    "objective", "calibration batch", "every", "accuracy %", "ECE %, epochs {epochs}", "ECE % after TS, last",
    "temperature, epochs {epochs}", "silent batches %", "step", "against plain",
]  # fmt: skip


def main(
    *,
    data_dir: Path,
    epochs: Annotated[int, cyclopts.Parameter(validator=cyclopts.validators.Number(gte=SHOWN_EPOCHS[0]))] = 70,
    jobs: int = os.cpu_count() or 1,
    out: Path = Path("runs/calibration_batches"),
    seconds: float = 60,
) -> None:
    """Train what is missing, time the steps, write results/calibration_batches.md."""
    run_missing(data_dir, epochs, jobs, out)
    torch.set_num_threads(os.cpu_count() or 1)
    epochs_shown = "/".join(str(epoch) for epoch in SHOWN_EPOCHS if epoch <= epochs)
    heading = [name.format(epochs=epochs_shown) for name in HEADING]
    body = rows(out, step_costs(seconds))
    text = (
        "# Cost and effect of the calibration batch\n\n"
        "MNIST (48,600 images for the NLL, 5,400 for the objective, 6,000 to fit the temperature, 10,000 to test), "
        f"LeNet5 in torch's own layers, AdamW 1e-3, weight decay 1e-2, NLL batch {BATCH}, {epochs} epochs, seed 0. ECE "
        "with 20 equal-width bins. A silent batch has ESD at or below 0: under the root it gives no gradient at all. "
        "Trained with one thread; steps are timed in turns with the number of threads given below.\n\n"
        + tables.markdown(heading, body)
        + f"\n\n{measure.machine()}. Made by `python -m benchmarks.calibration_batches --data-dir FOLDER`.\n"
    )
    print(text)
    tables.finish("calibration_batches", text, [])


if __name__ == "__main__":
    cyclopts.run(main)
    sys.exit()
