"""`make bench`: what Lightning and the scores it logs cost beside the same loop in plain PyTorch."""

import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor

import calibrant as cal
from benchmarks.measure import machine
from benchmarks.tables import finish, markdown, show, status
from calibrant.training import InterleavedModule, interleave
from calibrant.training.interleave import InterleavedBatch, InterleavedLoader
from calibrant_lab.models.lenet import LeNet5

STEPS = 200
WARM_UP = 20
# The most a step may take, as a multiple of one in plain PyTorch.
PROMISED = 1.03
SIZES = [(512, 512), (512, 128)]


def loader(batch: int, calibration_batch: int) -> InterleavedLoader:
    """Batches ready in memory, so that nothing but the loop is measured."""
    generator = torch.Generator().manual_seed(0)

    def ready(samples: int) -> list[tuple[Tensor, Tensor]]:
        return [
            (torch.randn(samples, 1, 32, 32, generator=generator), torch.randint(10, (samples,), generator=generator))
            for _ in range(4)
        ]

    return interleave(ready(batch) * ((WARM_UP + STEPS) // 4), ready(calibration_batch))


def plain_steps(batches: InterleavedLoader) -> Iterator[None]:
    """The loop of the guide, one step at a time."""
    torch.manual_seed(0)
    model, objective = LeNet5(), cal.ESDLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    for (x, y), (x_cal, y_cal) in batches:
        loss = F.cross_entropy(model(x), y) + objective(model(x_cal), y_cal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield


class TakeTurns(lightning.Callback):
    """After every step of Lightning's, take one of the plain loop's, and time both.

    Lightning's turn lasts from the end of this hook to its next beginning: loading, moving, all hooks, scores. Both
    are timed on the processor, in one thread, where neighbours do not count.
    """

    def __init__(self, plain: Iterator[None]) -> None:
        self.plain = plain
        self.turns: list[tuple[float, float]] = []
        self.begun = 0.0

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: InterleavedBatch, batch_idx: int
    ) -> None:
        """Time Lightning's step, then take and time a plain one."""
        del trainer, pl_module, outputs, batch
        ended = time.process_time()
        next(self.plain)
        after = time.process_time()
        if batch_idx >= WARM_UP:
            self.turns.append((after - ended, ended - self.begun))
        self.begun = time.process_time()


def measured(batch: int, calibration_batch: int) -> list[tuple[float, float]]:
    """Seconds of plain steps and of Lightning's, in pairs."""
    turns = TakeTurns(plain_steps(loader(batch, calibration_batch)))
    torch.manual_seed(0)
    classifier = InterleavedModule(LeNet5(), cal.ESDLoss())
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, default_root_dir=folder, callbacks=[turns],
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(classifier, loader(batch, calibration_batch))
    return turns.turns


def main() -> None:
    """Measure, print, write results/training.md, and fail if the promise is not kept."""
    torch.set_num_threads(1)  # threads that wait for one another would measure the neighbours
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    rows, broken = [], []
    for batch, calibration_batch in SIZES:
        size = f"{batch} + {calibration_batch}"
        status(f"LeNet5, {size}")
        turns = measured(batch, calibration_batch)
        plain, ours = (statistics.median(side) * 1e3 for side in zip(*turns, strict=True))
        ratio = statistics.median(ours / plain for plain, ours in turns)
        extra = statistics.median(ours - plain for plain, ours in turns) * 1e3
        rows.append([size, f"{plain:.1f} ms", f"{ours:.1f} ms", f"{extra:+.2f} ms", f"{100 * (ratio - 1):+.1f} %"])
        if (batch, calibration_batch) == SIZES[0] and ratio > PROMISED:
            broken.append(f"a step of {size} takes {ratio:.3f} times a plain one, promised at most {PROMISED}")
    status("")
    title = "Overhead of training under Lightning"
    heading = ["batch", "plain PyTorch", "InterleavedModule", "more", "overhead"]
    show(title, heading, rows)
    text = (
        f"# {title}\n\nMeasured by `make bench` on {machine()}, lightning {lightning.__version__}. LeNet5 in torch's "
        "own layers on 32 x 32 images, NLL plus ESD, AdamW, batches ready in memory: one step in plain PyTorch and "
        "one of `InterleavedModule` under `lightning.Trainer` (no logger, no checkpoints, no progress bar) in "
        f"turns. Processor time; medians of {STEPS} steps, and of the difference and the ratio within each pair. "
        "Running loss, accuracy and ECE are included; "
        "what happens once an epoch is not.\n\n"
        f"{markdown(heading, rows)}\n"
    )
    finish("training", text, broken)


if __name__ == "__main__":
    main()
