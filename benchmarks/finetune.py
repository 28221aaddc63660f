"""Effect of finetune() on a trained network, with little and with much fresh data.

    python -m benchmarks.finetune --data-dir FOLDER --weights resnet20-12fca82f.th

A ResNet20 trained on CIFAR-10 by others. A part of the test images is the fresh data, the rest is the test set. The
images run through the network once; since finetune() changes the output layer only, the rest is done on its inputs.
Writes results/finetune.md.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant as cal
from benchmarks.tables import finish, markdown, show
from calibrant_lab.data.cifar import load_cifar10
from calibrant_lab.data.images import ImageBatches, Images
from calibrant_lab.models import build_image_model
from calibrant_lab.models.weights import load_weights
from calibrant_lab.paper.tables.significance import paired_test
from calibrant_lab.shift.corruptions import corrupt

# What the weights were trained with.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = (500, 1000, 5000)
METHODS = ("nothing", "temperature", "vector", "head", "auto")
SETTINGS = {"CIFAR-10": None, "CIFAR-10 with Gaussian noise, severity 2": ("gaussian_noise", 2)}
HEADING = ["fresh images", "", "accuracy %", "ECE %", "log loss", "change of log loss", "seconds", "chosen"]
Scores = tuple[float, float, float]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder above cifar-10-batches-py")
    parser.add_argument("--weights", type=Path, help="weights of a ResNet20 (resnet20-12fca82f.th)")
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    folder, weights = arguments.data_dir, arguments.weights
    if folder is None or weights is None or not folder.is_dir() or not weights.is_file():
        print("Skipped: benchmarks.finetune needs --data-dir with CIFAR-10 and --weights of a ResNet20.")
        return
    parts = [_text(arguments.seeds)]
    with ProcessPoolExecutor(len(SETTINGS), mp_context=get_context("spawn")) as pool:
        running = {title: pool.submit(_measure, title, folder, weights, arguments.seeds) for title in SETTINGS}
        for title, future in running.items():
            rows = future.result()
            show(title, HEADING, rows)
            parts += [f"## {title}", markdown(HEADING, rows)]
    finish("finetune", "\n\n".join(parts) + "\n", [])


def _measure(title: str, folder: Path, weights: Path, seeds: int) -> list[list[str]]:
    """Rows of one setting."""
    torch.set_num_threads(1)
    network = build_image_model("resnet20", classes=10, channels=3)
    load_weights(network, weights)
    images = load_cifar10(folder).test
    corruption = SETTINGS[title]
    pixels = images.pixels if corruption is None else corrupt(images.pixels, *corruption)
    features = _features(network, Images(pixels, images.labels))
    rows = []
    for row in _rows(network.linear, features, images.labels, seeds):  # type: ignore[arg-type]
        print(title, *row, sep=" | ", file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _text(seeds: int) -> str:
    return (
        "# Fine-tuning a trained network with finetune()\n\n"
        "A ResNet20 trained on CIFAR-10 (akamaster/pytorch_resnet_cifar10). Fresh data: this many of the 10,000 test "
        f"images, drawn for each of {seeds} seeds; scores on the rest, mean ± standard deviation over seeds, ECE "
        "in 20 bins. Change of log loss: against the network as given, on the same images, with the p-value of a "
        "paired t-test over seeds (the test images of the seeds overlap, so p is too small). Seconds: processor "
        "time of finetune() without the forward pass, one thread. Written by `python -m benchmarks.finetune`."
    )


@torch.no_grad()
def _features(network: nn.Module, images: Images) -> Tensor:
    """Inputs of the last layer."""
    network.eval()
    seen: list[Tensor] = []
    hook = network.linear.register_forward_pre_hook(lambda _, given: seen.append(given[0]))  # type: ignore[union-attr]
    for batch, _ in ImageBatches(images, 500, mean=MEAN, std=STD):
        network(batch)
    hook.remove()
    return torch.cat(seen)


def _rows(head: nn.Linear, features: Tensor, labels: Tensor, seeds: int) -> Iterator[list[str]]:
    for size in SIZES:
        scores: dict[str, list[Scores]] = {method: [] for method in METHODS}
        seconds: dict[str, list[float]] = {method: [] for method in METHODS}
        chosen: list[str] = []
        for seed in range(seeds):
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
            fresh, test = order[:size], order[size:]
            for method in METHODS:
                layer, start = _copy(head), time.process_time()
                if method != "nothing":
                    picked = _calibrate(layer, [(features[fresh], labels[fresh])], method)
                    chosen += [picked] if method == "auto" else []
                seconds[method].append(time.process_time() - start)
                scores[method].append(_scores(layer, features[test], labels[test]))
        for method in METHODS:
            count = ", ".join(f"{name} {chosen.count(name)}" for name in METHODS if name in chosen)
            yield [f"{size:,}", method, *_cells(scores[method], scores["nothing"]),
                   "" if method == "nothing" else f"{statistics.fmean(seconds[method]):.1f}",
                   count if method == "auto" else ""]  # fmt: skip


def _copy(head: nn.Linear) -> nn.Linear:
    layer = nn.Linear(head.in_features, head.out_features)
    layer.load_state_dict(head.state_dict())
    return layer


def _calibrate(layer: nn.Linear, loader: list[tuple[Tensor, Tensor]], method: Any) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cal.training.CalibrationWarning)  # the table says what was chosen
        chosen: str = cal.training.finetune(layer, loader, method=method).method
        return chosen


@torch.no_grad()
def _scores(layer: nn.Linear, features: Tensor, labels: Tensor) -> Scores:
    logits = layer(features)
    ece = cal.metrics.evaluate(logits=logits, target=labels, bins=20).ece
    return 100 * float((logits.argmax(1) == labels).double().mean()), 100 * ece, float(F.cross_entropy(logits, labels))


def _cells(scores: Sequence[Scores], given: Sequence[Scores]) -> Iterator[str]:
    for column, digits in zip(zip(*scores, strict=True), (2, 2, 4), strict=True):
        spread = f" ± {statistics.stdev(column):.{digits}f}" if len(column) > 1 else ""
        yield f"{statistics.fmean(column):.{digits}f}{spread}"
    changes = [one[2] - other[2] for one, other in zip(scores, given, strict=True)]
    if not any(changes) or len(changes) < 2:
        yield ""
        return
    test = paired_test(changes)
    yield f"{test.difference:+.4f} (p {'< 0.001' if test.p_t < 0.001 else f'= {test.p_t:.3f}'})"


if __name__ == "__main__":
    main()
