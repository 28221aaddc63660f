"""Cost of the paper's Table 1: operations per step of each recipe, seconds of real steps, expected GPU-hours.

    python -m benchmarks.paper_recipes                                        operations and GPU-hours, in seconds
    python -m benchmarks.paper_recipes --recipe cifar10 --data-dir FOLDER     and steps of a recipe, in minutes
    python -m benchmarks.paper_recipes --recipe cifar100                      the same on noise, without data

Operations are counted by torch on tensors without data. Of GPU-hours only the arithmetic is ours: they follow from
the operations, the peak of the paper's GPUs and a share of that peak, which is an assumption.
"""

import argparse
import json
import math
import time
from collections.abc import Iterable
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import calibrant as cal
from benchmarks.measure import machine
from benchmarks.tables import RESULTS, finish, markdown, show, status
from calibrant.files import write_json
from calibrant.training import InterleavedModule
from calibrant.training.interleave import InterleavedBatch
from calibrant_lab.models import build_image_model
from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.sweeps.protocol import rehearse
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.fit import prepare

# The paper's training sets, validation set aside, and their classes.
SAMPLES = {
    "mnist": 54_000,
    "cifar10": 45_000,
    "cifar100": 45_000,
    "imagenet100": 117_000,
    "snli": 550_152,
    "anli": 162_865,
}
PAPER, TEXT = tuple(SAMPLES), ("snli", "anli")
CLASSES = {"mnist": 10, "cifar10": 10, "cifar100": 100, "imagenet100": 100, "snli": 3, "anli": 3}
# NVIDIA's figure for float32 of the RTX A6000, one of the paper's two; and the share of it that training reaches.
PEAK = 38.7e12
SHARES = (0.25, 0.5)
MEASURED = RESULTS / "paper_recipes.json"


class Cost(NamedTuple):
    """Of one recipe."""

    operations: float  # of a sample, forward and backward
    plain: int  # trials that train on the NLL alone
    interleaved: int
    total: float  # operations of all trials


def network(configuration: Configuration) -> tuple[nn.Module, Tensor]:
    """A recipe's network and a batch of one sample, neither with data; text at its full length."""
    classes, settings = CLASSES[configuration.recipe], configuration.settings.to_dict()
    with torch.device("meta"):
        if configuration.recipe in TEXT:
            import transformers

            # The defaults of transformers are the base models; RoBERTa's vocabulary and positions are larger.
            made: Any = transformers
            config = (
                made.BertConfig(num_labels=classes)
                if configuration.recipe == "snli"
                else made.RobertaConfig(num_labels=classes, vocab_size=50_265, max_position_embeddings=514)
            )
            tokens = torch.zeros(1, settings["max_length"], dtype=torch.long)
            return made.AutoModelForSequenceClassification.from_config(config), tokens
        channels = 1 if configuration.recipe == "mnist" else 3
        size = settings.get("image_size", 32)
        model = build_image_model(settings["model"], classes=classes, channels=channels)
        return model, torch.zeros(1, channels, size, size)


def operations(configuration: Configuration) -> float:
    """Additions and multiplications of one sample, forward and backward."""
    model, batch = network(configuration)
    model.train()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()  # a single sample has no statistics
    with FlopCounterMode(display=False) as counter:
        output = model(batch)
        logits = getattr(output, "logits", output)
        F.cross_entropy(logits, torch.zeros(1, dtype=torch.long, device="meta")).backward()
    return float(counter.get_total_flops())


def cost(configuration: Configuration) -> Cost:
    """Of all trials of Table 1 as published."""
    needed = rehearse(paper_sweep("table1", configuration.recipe, "paper")).needed
    plain = sum(trial.method == "nll" for trial in needed)
    each, samples = operations(configuration), SAMPLES[configuration.recipe]
    total = 0.0
    for trial in needed:
        left = samples if trial.method == "nll" and not trial.settings.reduced_split else 0.9 * samples
        seen = left if trial.method == "nll" else 2 * left  # a calibration batch beside every batch
        total += each * seen * trial.settings.epochs
    return Cost(each, plain, len(needed) - plain, total)


def stepping(configuration: Configuration, data: Path | None) -> tuple[InterleavedModule, Iterable[InterleavedBatch]]:
    """What trains, and its batches: of the data, or of noise in the shape of the recipe's pictures."""
    if data is not None:
        prepared = prepare(configuration, data)
        return prepared.classifier, prepared.batches
    if configuration.recipe in TEXT:
        raise ValueError("text has no noise to stand in for it: give --data-dir")
    settings = configuration.settings.to_dict()
    channels, size = 1 if configuration.recipe == "mnist" else 3, settings.get("image_size", 32)
    model = build_image_model(settings["model"], classes=CLASSES[configuration.recipe], channels=channels)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def noise() -> tuple[Tensor, Tensor]:
        target = torch.randint(CLASSES[configuration.recipe], (settings["batch_size"],))
        return torch.randn(settings["batch_size"], channels, size, size), target

    return InterleavedModule(model, cal.ESDLoss()), (InterleavedBatch(noise(), noise()) for _ in count())


def real_steps(recipe: str, data: Path | None, steps: int) -> dict[str, Any]:
    """Seconds a step of NLL and ESD, by the code that trains."""
    configuration = configure(recipe, "esd")
    settings = configuration.settings.to_dict()
    torch.manual_seed(0)
    classifier, batches = stepping(configuration, data)
    optimizer = torch.optim.AdamW(
        classifier.parameters(), lr=settings["learning_rate"], weight_decay=settings["weight_decay"]
    )
    objective, seconds, losses = cal.ESDLoss(), [], []
    for number, batch in enumerate(islice(batches, steps + 1)):
        status(f"{recipe}: step {number} of {steps}")
        start = time.process_time()
        optimizer.zero_grad()
        # The gradient of the sum, one part after the other: both at once do not fit into 24 GB with ResNet50.
        loss = classifier.training_step(InterleavedBatch(batch.train, None), number)
        loss.backward()
        inputs, target = batch.calibration
        added = objective(classifier(inputs), target)
        added.backward()
        optimizer.step()
        seconds.append(time.process_time() - start)
        losses.append(loss.item() + added.item())
    if not all(map(math.isfinite, losses)):
        raise ValueError(f"{recipe}: the loss is not finite: {losses}")
    # The first step allocates memory and chooses algorithms.
    return {
        "recipe": recipe, "model": settings["model"], "batch": settings["batch_size"], "steps": steps,
        "processor_seconds_a_step": sum(seconds[1:]) / steps, "losses": [round(loss, 4) for loss in losses],
        "machine": machine(), "threads": torch.get_num_threads(), "data": "noise" if data is None else "real",
    }  # fmt: skip


def main() -> None:
    """Count, measure what is asked for, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=PAPER)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    measured: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    if arguments.recipe:
        steps = real_steps(arguments.recipe, arguments.data_dir, arguments.steps)
        measured[arguments.recipe] = steps
        write_json(MEASURED, measured)
    heading = ["recipe", "GFLOP", "trials", "EFLOP", "GPU-hours", "CPU s", "CPU days"]
    rows, hours = [], [0.0, 0.0]
    for recipe in PAPER:
        status(f"counting {recipe}")
        configuration = configure(recipe)
        found, settings = cost(configuration), configuration.settings.to_dict()
        span = [found.total / PEAK / share / 3600 for share in reversed(SHARES)]
        hours = [sum(pair) for pair in zip(hours, span, strict=True)]
        number = math.ceil(0.9 * SAMPLES[recipe] / settings["batch_size"]) * settings["epochs"]
        step = measured.get(recipe, {}).get("processor_seconds_a_step")
        rows.append(
            [
                f"{recipe}, {settings['model'].removesuffix('-uncased')}", f"{found.operations / 1e9:,.3g}",
                f"{found.plain} + {found.interleaved}", f"{found.total / 1e18:,.3g}",
                f"{span[0]:,.0f} to {span[1]:,.0f}",
                "not run" if step is None else f"{step:.3g}",
                "not run" if step is None else f"{step * number / 86400:,.2g}",
            ]
        )  # fmt: skip
    show("Table 1 as published", heading, [[row[0].partition(",")[0], *row[1:]] for row in rows])
    finish("paper_recipes", _page(heading, rows, hours, measured), [])


def _page(heading: list[str], rows: list[list[str]], hours: list[float], measured: dict[str, Any]) -> str:
    where = "; ".join(
        f"{one['recipe']}: {one['steps']} steps on {one['data']} pictures, {one['machine']}, losses "
        f"{', '.join(map(str, one['losses']))}"
        for one in measured.values()
    )
    lines = [
        "# Cost of the paper's Table 1",
        "Made by `python -m benchmarks.paper_recipes`. GFLOP: operations of a sample, forward and backward, counted by "
        "torch (a multiplication and an addition are two); text is counted at its maximum length, and is shorter in "
        "practice. Trials: NLL only + interleaved, which have a calibration batch for every batch. EFLOP: of all "
        "trials, 1 EFLOP being a thousand million GFLOP. GPU-hours are an expectation, not a measurement: "
        f"operations divided by the {PEAK / 1e12:g} TFLOP/s of an RTX A6000 in float32 (NVIDIA's figure), assuming "
        f"that between {SHARES[1]:.0%} and {SHARES[0]:.0%} of it is reached.",
        markdown(heading, rows),
        f"All six: {hours[0]:,.0f} to {hours[1]:,.0f} GPU-hours.",
        "CPU s: processor seconds of a step, NLL on one batch and ESD on another, with the training code, after a "
        "first step that is not counted; CPU days: of all epochs of one such run.",
        f"Steps: {where or 'none yet'}.",
    ]
    return "\n\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
