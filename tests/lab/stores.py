"""Stores whose trials were never trained: the store's own functions write every file, with made-up scores."""

import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.files import write_json, write_predictions
from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.scores import Predicted
from calibrant_lab.sweeps.protocol import Plan, plan, rehearse
from calibrant_lab.sweeps.run import record, validated
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, configure
from calibrant_lab.trials.store import Cost, Part, Progress, Result, Store, Trial, write_result

ENVIRONMENT = {"calibrant": "0.1.0", "torch": "2.13.0", "device": "cpu: Processor", "threads": 1, "cores": 2}
PARTS: tuple[Part, ...] = ("validation", "test")
Scores = Mapping[str, float]
# What a method does to accuracy and ECE, to have curves with a shape; and the seconds of a run.
EFFECT = {"nll": (0.0, 0.060, 20.0), "mmce": (-0.004, 0.034, 26.0), "sb-ece": (-0.003, 0.037, 27.0)}
OTHERS = (-0.005, 0.025, 25.0)


def of(method: str, **changes: Any) -> Configuration:
    """A configuration of the recipe digits."""
    return configure("digits", method).replaced({"epochs": 12, **changes})


def scores(*values: float) -> dict[str, float]:
    """Scores on a test set, by column."""
    names = ("accuracy", "ece", "nll", "ece+temperature", "accuracy+vector", "ece+vector")
    return dict(zip(names, values, strict=True))


def begun(store: Store, configuration: Configuration) -> Trial:
    """A trial with its configuration and the description of its data."""
    trial = store.trial(configuration)
    write_json(trial.folder / kept.CONFIGURATION, configuration.to_dict())
    write_json(trial.folder / kept.DATA, {"train": 80, "fingerprint": "0123456789abcdef"})
    return trial


def finished(
    store: Store, configuration: Configuration, accuracy: float = 0.9, ece: float = 0.05, *,
    nll: float = 0.25, temperature: float = 1.2, seconds: float = 60.0, test: Scores | None = None,
) -> Trial:  # fmt: skip
    """A finished trial. Given its test scores, it has no predictions, curves or weights."""
    trial = begun(store, configuration)
    if test is None:
        write_json(trial.folder / kept.HISTORY, [{"epoch": 0, "validation_accuracy": accuracy, "test_ece": None}])
        for part in PARTS:
            predict(trial, part, torch.eye(3), torch.arange(3))
        (trial.folder / kept.WEIGHTS).write_bytes(b"w" * 2000)
        test = scores(accuracy - 0.01, ece + 0.01, 0.3, 0.02, accuracy - 0.01, 0.03)
    validation = {"accuracy": accuracy, "ece": ece, "nll": nll, "temperature": temperature}
    cost = Cost(seconds, seconds, 12000, 300_000_000)
    write_result(trial.folder, Result(configuration, validation, dict(test), cost, dict(ENVIRONMENT)))
    return trial


def predict(trial: Trial, part: str, logits: torch.Tensor, target: torch.Tensor) -> None:
    """Store predictions of a part of the data."""
    write_predictions(trial.folder / f"{part}.npz", logits.numpy(), target.numpy(), kind="logits")


def own_recipe(folder: Path, more: str = "") -> str:
    """The recipe digits under the name mine, in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(f"from calibrant_lab.recipes import digits as mine\n{more}")
    return f"{folder / 'mine.py'}:mine"


def failed(store: Store, configuration: Configuration, traceback: str = "ValueError: no") -> Trial:
    trial = begun(store, configuration)
    write_json(trial.folder / kept.FAILURE, {"traceback": traceback})
    return trial


def halfway(store: Store, configuration: Configuration, epochs: float, accuracy: float, ece: float) -> Trial:
    """An unfinished trial, at ten seconds an epoch; it runs only while a process holds its lock."""
    trial = begun(store, configuration)
    (trial.folder / kept.CHECKPOINT).write_bytes(b"c" * 5000)
    progress = Progress(epochs, configuration.settings.epochs, 10 * epochs, accuracy, ece)
    write_json(trial.folder / kept.PROGRESS, asdict(progress))
    return trial


def plausible(store: Store, configuration: Configuration, samples: int = 60) -> Result:
    """A finished trial with plausible scores, curves and predictions; equal configurations get equal scores."""
    chance = np.random.default_rng(int(configuration.identity, 16))
    gain, ece, seconds = EFFECT.get(configuration.method, OTHERS)
    weight = configuration.option("weight") or 1.0
    accuracy = 0.93 + (gain * weight**0.8 if gain else 0) + chance.normal(0, 0.002)
    ece = ece * (1 + 0.25 * math.log10(weight) ** 2) + abs(chance.normal(0, 0.003))
    ece *= 1 + 0.8 * abs(math.log10((configuration.option("softness") or 1e-2) / 1e-2) / 2)
    ece *= 1 + 1.5 * abs((configuration.option("bandwidth") or 0.4) - 0.4)
    test = scores(accuracy, ece, 0.2, ece / 3, accuracy, ece / 2)
    trial = finished(store, configuration, accuracy + 0.01, ece * 0.9, test=test)
    result = trial.result()
    cost = replace(result.cost, seconds=1.2 * seconds, processor_seconds=seconds * chance.uniform(0.95, 1.05))
    result = replace(result, cost=cost)
    write_result(trial.folder, result)
    history = []
    for epoch in range(configuration.settings.epochs):
        done = 1 - math.exp(-8 * (epoch + 1) / configuration.settings.epochs)
        noise = chance.normal(0, 0.003, 4)
        history.append({
            "epoch": epoch,
            "train_accuracy": 0.4 + 0.6 * done - abs(noise[0]),
            "train_ece": 0.2 * (1 - done) + abs(noise[1]),
            "test_accuracy": 0.4 + (accuracy - 0.4) * done + noise[2],
            "test_ece": 0.1 * (1 - done) + ece * done + noise[3],
        })  # fmt: skip
    write_json(trial.folder / kept.HISTORY, history)
    for part in PARTS:
        drawn = np.random.default_rng(0) if part == "test" else chance  # all networks have one test set
        target = drawn.integers(0, 3, samples)
        logits = chance.normal(0, 2, (samples, 3)) + 4 * np.eye(3)[target]
        predict(trial, part, torch.as_tensor(logits), torch.as_tensor(target))
    return result


def plan_maker(recipe: str, profile: str, **changes: Any) -> Callable[[Store], Plan]:
    """Table 1 as the protocol sees it with the results of a store, for a profile with changes."""
    sweep = paper_sweep("table1", recipe, profile, changes)
    return lambda store: plan(sweep, validated(store, sweep))


def filled_store(folder: Path, profile: str = "quick", recipe: str = "digits", **changes: Any) -> Store:
    """A store in which a profile's Table 1 is complete."""
    store, make = Store(folder), plan_maker(recipe, profile, **changes)
    record(paper_sweep("table1", recipe, profile, changes), store)
    while missing := make(store).missing(store.results().keys()):
        for trial in missing:
            plausible(store, trial)
    return store


def finished_plan(name: str, recipe: str, profile: str = "cpu", **settings: object) -> Plan:
    """A plan whose searches have ended."""
    return rehearse(paper_sweep(name, recipe, profile, {"settings": settings}))


def finish_all(store: Store, plan: Plan, outcome: Callable[[int, int], Scores]) -> Store:
    """Every trial of a plan's rows, with the outcome for the row's place and the seed."""
    for place, row in enumerate(plan.rows):
        for trial in row.trials:
            finished(store, trial, test=outcome(place, trial.seed))
    return store


def keep_predictions(trial: Trial, seed: int, *, suffix: str = "", samples: int = 200, classes: int = 3) -> None:
    """Predictions of an over-confident network; the test set has the same targets for every seed."""
    for part, draw in zip(PARTS, (seed + 1, 0), strict=True):
        predict(trial, f"{part}{suffix}", *noisy(samples, classes, target_seed=draw, seed=seed))


def noisy(samples: int, classes: int, *, target_seed: int, seed: int) -> Predicted:
    target = torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(target_seed))
    noise = torch.randn(samples, classes, generator=torch.Generator().manual_seed(1000 + seed))
    return Predicted(3 * (torch.nn.functional.one_hot(target, classes) + 0.7 * noise), target)


def ece(probabilities: np.ndarray, target: np.ndarray) -> float:
    """The ECE of predictions in the paper's bins, by its formula."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == target
    bins = np.ceil(confidence * 20)
    gaps = [abs((right[bins == one] - confidence[bins == one]).sum()) for one in np.unique(bins)]
    return float(sum(gaps)) / len(target)


@contextmanager
def held_by_another_process(trial: Trial) -> Iterator[None]:
    """Keep a trial's lock in a process of its own for a while."""
    code = (
        "import filelock as f, sys\nwith f.FileLock(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(trial.folder / kept.LOCK)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    try:
        assert process.stdout.readline() == "held\n"
        yield
    finally:
        process.communicate("")


def files_of(trial: Trial) -> set[str]:
    """Names of all files, without the lock."""
    return {path.name for path in trial.folder.iterdir()} - {kept.LOCK}
