"""The trust table: calibrated training left alone, beside what else there is, in settings from mild to severe.

    python -m benchmarks.trust run --data-dir FOLDER --runs runs/trust [--settings ...] [--methods ...] [--seeds 5]
    python -m benchmarks.trust cost --data-dir FOLDER --runs runs/trust     # processor time, by turns in one process
    python -m benchmarks.trust table --runs runs/trust                      # writes results/trust/
    python -m benchmarks.trust restore --runs runs/trust                    # the runs in results/trust/trust.json

Every run is kept in a file of its own and is not repeated; an interrupted command goes on where it was. A tenth of the
pool validates (for the searches over λ alone), a tenth of the rest is held out, and no setting is chosen on the test
set. Processor time is that of one thread, training only. FOLDER is by default the one that CALIBRANT_DATA names ("Data
sets" in CONTRIBUTING.md).
"""

import argparse
import copy
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant as cal
from benchmarks.corrected_esd import CorrectedESDLoss
from benchmarks.trust_settings import SETTINGS, Pool, Setting
from calibrant import metrics
from calibrant.posthoc.scaling import best_temperature
from calibrant.training import CalibratedLoss, interleave
from calibrant.training.interleave import InterleavedLoader

Loss = Callable[[Any, Any, Any, Any], Tensor]
WEIGHTS = (0.2, 1.0, 4.0)
SEARCHED: dict[str, Callable[[], nn.Module]] = {
    "esd": cal.ESDLoss,
    "mmce": cal.MMCELoss,
    "sb-ece": cal.SoftBinnedECELoss,
}
REPLACING: dict[str, Callable[[], nn.Module]] = {
    "bsce-gra": cal.BSCEGRALoss,
    "dual-focal": cal.DualFocalLoss,
    "label-smoothing": cal.LabelSmoothingLoss,
}
# Ways to set CalibratedLoss: the defaults, another method, and one change at a time.
CALIBRATED: dict[str, dict[str, Any]] = {
    "loop": {},
    "head": {"method": "head"},
    "loop-every1": {"every": 1},
    "loop-every8": {"every": 8},
    "loop-every8-buffer500": {"every": 8},
    "loop-every2": {"every": 2},
    "loop-every16": {"every": 16},
    "loop-buffer500": {},
    "loop-buffer8000": {},
    "loop-damping0.3": {},
    "loop-damping1": {},
    "loop-patience0": {},
    "loop-smoothing": {"loss": cal.LabelSmoothingLoss()},
}
# Settings of the loop that are no options. T by ESD (loop-esd) and dropout for held-out batches (loop-dropout) are in
# the table too, from runs of an earlier version that had these options.
LOOPS: dict[str, dict[str, float]] = {
    "loop-every8-buffer500": {"samples": 500},
    "loop-buffer500": {"samples": 500},
    "loop-buffer8000": {"samples": 8000},
    "loop-damping0.3": {"damping": 0.3},
    "loop-damping1": {"damping": 1.0},
    "loop-patience0": {"patience": 0.0},
}
MAIN = ["nll", "loop", "nll-all", "nll-stopped", "esd-1", *REPLACING, "loop-smoothing", "head", *SEARCHED]
ABLATIONS = [name for name in CALIBRATED if name.startswith("loop-") and name not in MAIN] + [
    "fixed-t",
    "esd-corrected",
]


class Parts(NamedTuple):
    """A pool split for one seed."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


class Batches:
    """Shuffled batches of tensors in memory, again and again."""

    def __init__(self, data: tuple[Tensor, Tensor], size: int) -> None:
        self.x, self.y = data
        self.size = size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y))
        for rows in order.split(self.size):
            yield self.x[rows], self.y[rows]

    def __len__(self) -> int:
        return math.ceil(len(self.y) / self.size)


def split(pool: Pool, seed: int) -> Parts:
    """Validation first, then the held-out part from what remains."""
    order = torch.randperm(len(pool.y), generator=torch.Generator().manual_seed(seed))
    validation, rest = order[: len(order) // 10], order[len(order) // 10 :]
    held_out, train = rest[: len(rest) // 10], rest[len(rest) // 10 :]
    x, y = pool.x, pool.y
    parts = [(x[rows], y[rows]) for rows in (train, held_out, validation)]
    return Parts(parts[0], parts[1], parts[2], (pool.test_x, pool.test_y))


def run(setting_name: str, method: str, seed: int, folder: Path, cache: Path) -> dict[str, Any]:
    """Train one network and score it."""
    setting = SETTINGS[setting_name]
    pool = setting.load(seed, folder, cache)
    parts = split(pool, seed)
    torch.manual_seed(seed)
    model = setting.network(pool.x.shape[1], pool.classes)
    train, held_out = parts.train, parts.held_out
    if method == "nll-all":
        train = (torch.cat((train[0], held_out[0])), torch.cat((train[1], held_out[1])))
    last: dict[str, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        calibrated, loss = _loss(method, model, len(held_out[1]))
        seconds, stopped = _train(model, loss, setting, train, held_out, stops=method == "nll-stopped")
        if calibrated is not None:
            loop = calibrated.loop
            last = {
                "largest_logit": loop.largest_logit,
                "loop_temperature": loop.temperature,
                "over_fits": loop.over_fits,
            }
            calibrated.finish([held_out])
    warned = [str(one.message) for one in caught if issubclass(one.category, cal.training.CalibrationWarning)]
    result = {"setting": setting_name, "method": method, "seed": seed, "seconds": seconds, "epoch": stopped}
    return result | last | {"warnings": warned} | _scores(model, parts)


def _loss(method: str, model: nn.Module, held_out: int) -> tuple[CalibratedLoss | None, Loss]:
    name, _, weight = method.partition("@")
    if name == "esd-corrected":
        corrected = CalibratedLoss(model, "published", objective=CorrectedESDLoss(held_out))
        return corrected, corrected
    if name in CALIBRATED:
        calibrated = CalibratedLoss(model, **CALIBRATED[name])
        vars(calibrated.loop).update(LOOPS.get(name, {}))
        return calibrated, calibrated
    if name in SEARCHED or name == "esd-1":
        objective = SEARCHED["esd" if name == "esd-1" else name]()
        published = CalibratedLoss(model, "published", objective=objective, weight=float(weight or 1))
        return published, published
    if name in REPLACING:
        replacing = REPLACING[name]()
        return None, lambda x, y, *_: replacing(model(x), y)
    temperature = math.exp(6) if name == "fixed-t" else 1.0
    return None, lambda x, y, *_: F.cross_entropy(model(x) / temperature, y)


def _train(
    model: nn.Module, loss: Loss, setting: Setting, train: Any, held_out: Any, *, stops: bool
) -> tuple[float, int]:
    """Train to the end, or to the epoch with the lowest held-out log loss after temperature."""
    batches = _batches(loss, setting, train, held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.learning_rate, weight_decay=1e-2)
    steps = setting.epochs * len(batches)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps) if setting.cosine else None
    best, kept, stopped, seconds = math.inf, None, setting.epochs, 0.0
    for epoch in range(setting.epochs):
        model.train()
        began = time.process_time()
        for (x, y), other in batches:
            value = loss(x, y, *(other or (None, None)))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        seconds += time.process_time() - began
        if stops:
            logits = predict(model, held_out[0])
            refined = F.cross_entropy(logits / bounded_temperature(logits, held_out[1]), held_out[1]).item()
            if refined < best:
                best, kept, stopped = refined, copy.deepcopy(model.state_dict()), epoch + 1
    if kept is not None:
        model.load_state_dict(kept)
    return seconds, stopped


def _batches(loss: Loss, setting: Setting, train: Any, held_out: Any) -> InterleavedLoader:
    """Training batches, with no more held-out batches beside them than the loss uses."""
    if not isinstance(loss, CalibratedLoss):
        return interleave(Batches(train, setting.batch_size), None)
    return interleave(
        Batches(train, setting.batch_size), Batches(held_out, setting.batch_size), calibration_every=loss.every
    )


def cost(setting_name: str, folder: Path, cache: Path, *, turns: int = 31, steps: int = 40) -> dict[str, Any]:
    """Processor time of CalibratedLoss relative to the NLL: turns of some steps each, one after the other."""
    setting = SETTINGS[setting_name]
    pool = setting.load(0, folder, cache)
    parts = split(pool, 0)
    times: dict[str, list[float]] = {"nll": [], "loop": []}
    streams = {}
    for method in times:
        torch.manual_seed(0)
        model = setting.network(pool.x.shape[1], pool.classes)
        _, loss = _loss(method, model, len(parts.held_out[1]))
        streams[method] = _steps(model, loss, setting, parts)
    for _ in range(turns):
        for method, stream in streams.items():
            began = time.process_time()
            for _ in islice(stream, steps):
                pass
            times[method].append(time.process_time() - began)
    ratios = [loop / nll for nll, loop in zip(times["nll"][1:], times["loop"][1:], strict=True)]
    step = statistics.median(times["nll"]) / steps
    return {"setting": setting_name, "ratio": statistics.median(ratios), "step": step, "turns": turns, "steps": steps}


def _steps(model: nn.Module, loss: Loss, setting: Setting, parts: Parts) -> Iterator[None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.learning_rate, weight_decay=1e-2)
    batches = _batches(loss, setting, parts.train, parts.held_out)
    model.train()
    while True:
        for (x, y), other in batches:
            value = loss(x, y, *(other or (None, None)))
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            yield


def bounded_temperature(logits: Tensor, target: Tensor) -> float:
    """The best temperature; where predictions are no better than chance, one that makes them all but uniform."""
    try:
        return best_temperature(logits, target)
    except ValueError:
        return 1.0 if bool((logits.argmax(1) == target).all()) else 1e4


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    """Logits in evaluation mode, in float64."""
    model.eval()
    return torch.cat([model(part) for part in x.split(1000)]).double()


def _scores(model: nn.Module, parts: Parts) -> dict[str, Any]:
    held_out, test, validation = (predict(model, part[0]) for part in (parts.held_out, parts.test, parts.validation))
    target = parts.test[1]
    temperature = bounded_temperature(held_out, parts.held_out[1])
    scores = {"temperature": temperature, "test_samples": len(target), "held_out_samples": len(parts.held_out[1])}
    for ending, logits in (("", test), ("_after", test / temperature)):
        given = metrics.predictions(logits=logits.numpy(), target=target.numpy())
        scores |= {
            f"ece{ending}": metrics.ece(given, bins=20, convention="paper"),
            f"log_loss{ending}": metrics.log_loss(given),
            f"brier{ending}": metrics.brier(given),
        }
    for name, logits, labels in (
        ("accuracy", test, target),
        ("held_out_accuracy", held_out, parts.held_out[1]),
        ("validation_accuracy", validation, parts.validation[1]),
    ):
        scores[name] = (logits.argmax(1) == labels).double().mean().item()
    given = metrics.predictions(logits=validation.numpy(), target=parts.validation[1].numpy())
    return scores | {
        "validation_ece": metrics.ece(given, bins=20, convention="paper"),
        "validation_log_loss": metrics.log_loss(given),
    }


def wanted(settings: list[str], methods: list[str], seeds: int, runs: Path) -> list[tuple[str, str, int]]:
    """Runs still to be made; a search asks first for its candidates with seed 0, then for the chosen one."""
    missing = []
    for setting in settings:
        for method in methods:
            if method in SEARCHED:
                candidates = [(setting, "nll", 0), *((setting, f"{method}@{weight:g}", 0) for weight in WEIGHTS)]
                open_ones = [one for one in candidates if not path_of(runs, *one).exists()]
                missing += open_ones
                if not open_ones:
                    name = f"{method}@{chosen_weight(setting, method, runs):g}"
                    missing += [(setting, name, seed) for seed in range(seeds)]
            else:
                missing += [(setting, method, seed) for seed in range(seeds)]
    return [one for one in dict.fromkeys(missing) if not path_of(runs, *one).exists()]


def chosen_weight(setting: str, method: str, runs: Path) -> float:
    """The paper's rule: the lowest validation ECE among the weights that lose less than 1.5 points of accuracy."""
    baseline = read(runs, setting, "nll", 0)["validation_accuracy"]
    found = {weight: read(runs, setting, f"{method}@{weight:g}", 0) for weight in WEIGHTS}
    near = {
        weight: one for weight, one in found.items() if one["validation_accuracy"] > baseline - 0.015
    } or found  # fmt: skip
    return min(near, key=lambda weight: near[weight]["validation_ece"])


def path_of(runs: Path, setting: str, method: str, seed: int) -> Path:
    """Where a run is kept."""
    return runs / setting / f"{method}-{seed}.json"


def read(runs: Path, setting: str, method: str, seed: int) -> dict[str, Any]:
    """A finished run."""
    return json.loads(path_of(runs, setting, method, seed).read_text())  # type: ignore[no-any-return]


def _one(task: tuple[str, str, int], folder: Path, runs: Path, cache: Path) -> tuple[str, str, int]:
    torch.set_num_threads(1)
    path = path_of(runs, *task)
    result = run(*task, folder, cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(result, indent=1))
    partial.replace(path)
    return task


def main() -> None:
    """Run what is missing, or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "cost", "table", "restore"))
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("CALIBRANT_DATA"))
    parser.add_argument("--runs", type=Path, default=Path("runs/trust"))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", default=MAIN)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.command in ("table", "restore"):
        from benchmarks import trust_table

        {"table": trust_table.write, "restore": trust_table.restore}[arguments.command](arguments.runs)
        return
    cache = arguments.cache or arguments.runs / "data"
    if arguments.command == "cost":
        torch.set_num_threads(1)
        for name in arguments.settings:
            result = cost(name, arguments.data_dir, cache)
            (arguments.runs / f"cost-{name}.json").write_text(json.dumps(result))
            print(f"{name}: {result['ratio']:.3f} x, a step of {1000 * result['step']:.1f} ms", flush=True)
        return
    while tasks := wanted(arguments.settings, arguments.methods, arguments.seeds, arguments.runs):
        with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
            futures = [pool.submit(_one, task, arguments.data_dir, arguments.runs, cache) for task in tasks]
            for done, future in enumerate(as_completed(futures), 1):
                print(f"{done}/{len(futures)}", *future.result(), flush=True)


if __name__ == "__main__":
    main()
