"""Stores whose trials were never trained: every file is written by the store's own functions, with made-up scores."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files import write_json, write_predictions
from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.sweeps.protocol import Plan, plan
from calibrant_lab.sweeps.run import record, validated
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import Cost, Result, Store, write_result

ENVIRONMENT = {"calibrant": "0", "torch": "2", "python": "3", "system": "none", "device": "cpu: made up", "threads": 1}
# What an objective does to accuracy and ECE, to have curves with a shape; and the seconds a run takes.
EFFECT = {"nll": (0.0, 0.060, 20.0), "mmce": (-0.004, 0.034, 26.0), "sb-ece": (-0.003, 0.037, 27.0)}
ESD = (-0.005, 0.025, 25.0)


def write_trial(store: Store, configuration: Configuration, samples: int = 60) -> Result:
    """Put a finished trial into a store; equal configurations get equal scores."""
    chance = np.random.default_rng(int(configuration.identity, 16))
    gain, ece, seconds = EFFECT.get(configuration.method, ESD)
    weight = configuration.option("weight") or 1.0
    accuracy = 0.93 + (gain * weight**0.8 if gain else 0) + chance.normal(0, 0.002)
    ece = ece * (1 + 0.25 * math.log10(weight) ** 2) + abs(chance.normal(0, 0.003))
    ece *= 1 + 0.8 * abs(math.log10((configuration.option("softness") or 1e-2) / 1e-2) / 2)
    ece *= 1 + 1.5 * abs((configuration.option("bandwidth") or 0.4) - 0.4)
    test = {
        "accuracy": accuracy, "ece": ece, "nll": 0.2, "ece+temperature": ece / 3, "accuracy+vector": accuracy,
        "ece+vector": ece / 2,
    }  # fmt: skip
    validation = {"accuracy": accuracy + 0.01, "ece": ece * 0.9, "nll": 0.2, "temperature": 1.3}
    cost = Cost(1.2 * seconds, seconds * chance.uniform(0.95, 1.05), 1000, 10**8)
    result = Result(configuration, validation, test, cost, dict(ENVIRONMENT))
    folder = store.trial(configuration).folder
    folder.mkdir(parents=True)
    write_json(folder / kept.CONFIGURATION, configuration.to_dict())
    write_json(folder / kept.HISTORY, list(_history(configuration.settings.epochs, test, chance)))
    for part in ("validation", "test"):
        drawn = np.random.default_rng(0) if part == "test" else chance  # all networks have one test set
        target = drawn.integers(0, 3, samples)
        logits = chance.normal(0, 2, (samples, 3)) + 4 * np.eye(3)[target]
        write_predictions(folder / f"{part}.npz", logits, target, kind="logits")
    write_result(folder, result)
    return result


def write_failure(store: Store, configuration: Configuration, traceback: str) -> None:
    """Put a failed trial into a store."""
    folder = store.trial(configuration).folder
    folder.mkdir(parents=True)
    write_json(folder / kept.CONFIGURATION, configuration.to_dict())
    write_json(folder / kept.FAILURE, {"traceback": traceback})


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
            write_trial(store, trial)
    return store


def _history(epochs: int, test: dict[str, float], chance: np.random.Generator) -> Iterable[dict[str, float]]:
    for epoch in range(epochs):
        done = 1 - math.exp(-8 * (epoch + 1) / epochs)
        noise = chance.normal(0, 0.003, 4)
        yield {
            "epoch": epoch,
            "train_accuracy": 0.4 + 0.6 * done - abs(noise[0]),
            "train_ece": 0.2 * (1 - done) + abs(noise[1]),
            "test_accuracy": 0.4 + (test["accuracy"] - 0.4) * done + noise[2],
            "test_ece": 0.1 * (1 - done) + test["ece"] * done + noise[3],
        }
