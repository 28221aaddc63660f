"""Fine-tune a pretrained CIFAR-10 network with the NLL, and with NLL + ESD; then evaluate it on corrupted images.

    python examples/cifar10_finetune.py --data-dir FOLDER --weights resnet20.th

The weights have seen all training images, so neither held-out training images nor a validation set measure calibration
on new images: temperatures are fitted on the second half of the test set, and everything is scored on the first.
Trials are kept in --runs; run the same command again to continue.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

import calibrant as cal
from calibrant.files import whole_or_not_at_all
from calibrant_lab.paper.figures import write_figure
from calibrant_lab.paper.figures.numbers import shift_csv
from calibrant_lab.paper.figures.shift import figure6
from calibrant_lab.scores import BINS, Predicted
from calibrant_lab.shift.evaluation import evaluate_shifts
from calibrant_lab.shift.sources import shifted_images
from calibrant_lab.sweeps.live import LiveView
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.sweeps.run import run
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.fit import predict, prepare
from calibrant_lab.trials.local_executor import LocalExecutor
from calibrant_lab.trials.store import Store

HALF = 5000  # of the test set
# The normalisation these weights were trained with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
    """Run, and write a table and a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--weights", required=True, help="weights of a ResNet20 for CIFAR-10")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--shift-images", type=int, default=2000)
    arguments = parser.parse_args()
    if not 1 <= arguments.shift_images <= HALF:
        parser.error(f"--shift-images must be 1 to {HALF}: temperatures are fitted on the second half of the test set")
    sweep = Sweep(
        name="finetune", recipe="cifar10", methods=("esd",), grids={"weight": (1.0,)}, seeds=arguments.seeds,
        reduced_split=False,
        settings={
            "model": "resnet20", "initial_weights": arguments.weights, "epochs": arguments.epochs,
            "learning_rate": 1e-4, "flip": True, "mean": MEAN, "std": STD,
        },
    )  # fmt: skip
    base, store = sweep.base, Store(arguments.runs)
    with LiveView(store, Console(stderr=True), total=2 * arguments.seeds) as view:
        plan = run(sweep, store, LocalExecutor(arguments.runs, arguments.data_dir), view.show)
    if missing := plan.missing(store.results().keys()):
        sys.exit(f"{len(missing)} of {len(plan.needed)} trials have no result: run the same command again")
    networks = {"as downloaded": [_as_downloaded(base, arguments.data_dir)]}
    networks |= {row.name: [store.trial(trial).predicted("test") for trial in row.trials] for row in plan.rows}
    text = _page(networks, arguments.epochs) + _seen(plan, store)
    Console().out(text, highlight=False)
    with whole_or_not_at_all(arguments.out / "cifar10_finetune.md") as temporary:
        temporary.write_text(text, encoding="utf-8")

    source = shifted_images(base, arguments.data_dir, None)
    results = evaluate_shifts(
        [store.trial(trial) for row in plan.rows for trial in row.trials], source,
        limit=arguments.shift_images, console=Console(stderr=True),
        temperatures=[_temperature(test) for row in plan.rows for test in networks[row.name]],
    )  # fmt: skip
    each = iter(results)
    shifted = {row.name: [next(each) for _ in row.trials] for row in plan.rows}
    for ending in ("svg", "png"):
        write_figure(arguments.out / f"cifar10_finetune-figure6.{ending}", figure6(shifted, sweep.subject))
    with whole_or_not_at_all(arguments.out / "cifar10_finetune-figure6.csv") as temporary:
        temporary.write_text(shift_csv(sweep, shifted), encoding="utf-8")


def _as_downloaded(base: Configuration, data: Path) -> Predicted:
    prepared = prepare(base, data)
    return predict(prepared.classifier.model, prepared.loaders.test)


def _halves(test: Predicted) -> tuple[Predicted, Predicted]:
    half = len(test.target) // 2
    return Predicted(test.logits[:half], test.target[:half]), Predicted(test.logits[half:], test.target[half:])


def _temperature(test: Predicted) -> float:
    return float(cal.posthoc.TemperatureScaling(strict=True).fit(*_halves(test)[1]).temperature_)


def _page(networks: Mapping[str, Sequence[Predicted]], epochs: int) -> str:
    lines = ["| | n | accuracy % | ECE % | ECE % after TS | T |", "|---|--:|--:|--:|--:|--:|"]
    for name, predicted in networks.items():
        columns = zip(*(_scores(test) for test in predicted), strict=True)
        lines.append(f"| {name} | {len(predicted)} | " + " | ".join(map(_mean_and_spread, columns)) + " |")
    return (
        f"# ResNet20 on CIFAR-10, fine-tuned for {epochs} epochs\n\nScored on the first half of the test set, "
        f"temperatures fitted on the second. ECE in {BINS} bins, as in the paper.\n\n" + "\n".join(lines) + "\n"
    )


def _seen(plan: Plan, store: Store) -> str:
    """Scores on the images that fine-tuning held out, but the weights had seen."""
    results = {row.name: [store.trial(trial).result().validation for trial in row.trials] for row in plan.rows}
    told = (
        f"{name} {100 * statistics.fmean(one['accuracy'] for one in found):.2f} and "
        f"{100 * statistics.fmean(one['ece'] for one in found):.2f}"
        for name, found in results.items()
    )
    return (
        "\nAccuracy and ECE in % on training images that fine-tuning set aside, but the downloaded weights had seen: "
        f"{'; '.join(told)}.\n"
    )


def _scores(test: Predicted) -> tuple[float, float, float, float]:
    (logits, target), temperature = _halves(test)[0], _temperature(test)

    def ece(values: Tensor) -> float:
        return 100 * cal.metrics.ece(logits=values, target=target, bins=BINS)

    accuracy = 100 * float((logits.argmax(1) == target).float().mean())
    return accuracy, ece(logits), ece(logits / temperature), temperature


def _mean_and_spread(values: Sequence[float]) -> str:
    mean = f"{statistics.fmean(values):.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    torch.set_num_threads(os.cpu_count() or 1)
    main()
