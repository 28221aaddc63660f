"""The networks of the demo: one training run for each method and seed.

Apart from the rest of the demo, so that processes that only train import little.
"""

import math
import signal
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant as cal
from calibrant_lab.made_data import CLASSES, FEATURES, Rows, draw_rows

Training = Literal["nll", "esd", "calibrated"]
TRAININGS: tuple[Training, ...] = ("nll", "esd", "calibrated")

# These settings, and those of the data, were chosen so that NLL over-fits, looking only at NLL's accuracy on its
# training rows (100 %) and on the held-out rows (56 to 64 %). One run of all methods over one epoch had been seen
# before.
ROWS, TEST_ROWS = 2000, 20_000
HELD_OUT = 0.1
TEST_SEED = 1_000_000  # far from the seeds of training rows
WIDTH = 256
LEARNING_RATE = 2e-3
BATCH = 100


@dataclass(frozen=True)
class Job:
    """One network to train."""

    training: Training
    seed: int
    epochs: int
    rows: int
    test_rows: int


class Result(NamedTuple):
    """Logits of a network on the held-out rows, their labels, and logits on the test rows."""

    job: Job
    held_out: Tensor
    held_out_target: Tensor
    test: Tensor


def begin_worker() -> None:
    """Prepare a process of the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)


def train(job: Job) -> Result:
    """Train one network; the same seed gives every method the same rows, split, initial weights and batches."""
    data = draw_rows(job.rows, seed=job.seed)
    used, held_out = cal.training.interleaved_split(job.rows, HELD_OUT, seed=job.seed)
    rest = data.x[held_out], data.target[held_out]  # one batch: ESD wants a large one
    torch.manual_seed(job.seed)
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.epochs * math.ceil(len(used) / BATCH))
    calibrated = cal.training.CalibratedLoss(model)
    published = cal.training.CalibratedLoss(model, "published", guard=False)  # NLL + ESD, weight 1
    for _ in range(job.epochs):
        for rows in used[torch.randperm(len(used))].split(BATCH):
            x, y = data.x[rows], data.target[rows]
            if job.training == "nll":
                loss = F.cross_entropy(model(x), y)
            else:
                loss = (calibrated if job.training == "calibrated" else published)(x, y, *rest)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    if job.training == "calibrated":
        calibrated.finish([rest])
    with torch.no_grad():
        return Result(job, model(rest[0]), rest[1], model(rows_for_test(job).x))


def rows_for_test(job: Job) -> Rows:
    """The test rows of a seed, the same for every method."""
    return draw_rows(job.test_rows, seed=TEST_SEED + job.seed)
