"""Stores made by hand: trials with the results one gives them, and nothing trained."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from calibrant.files import write_json, write_predictions
from calibrant_lab.paper.profiles import paper_sweep
from calibrant_lab.scores import Predicted
from calibrant_lab.sweeps.protocol import Plan, rehearse
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.store import CONFIGURATION, FAILURE, Cost, Result, Store, write_result

Scores = Mapping[str, float]


def scores(
    accuracy: float, ece: float, nll: float, ece_temperature: float, accuracy_vector: float, ece_vector: float
) -> dict[str, float]:
    """Scores on a test set, by column."""
    return {
        "accuracy": accuracy, "ece": ece, "nll": nll, "ece+temperature": ece_temperature,
        "accuracy+vector": accuracy_vector, "ece+vector": ece_vector,
    }  # fmt: skip


def finished_plan(name: str, recipe: str, profile: str = "cpu", **settings: object) -> Plan:
    """A plan whose searches have ended."""
    return rehearse(paper_sweep(name, recipe, profile, {"settings": settings}))


def finish(store: Store, trial: Configuration, test: Scores) -> Path:
    """A finished trial without predictions."""
    folder = store.trial(trial).folder
    folder.mkdir(parents=True)
    write_json(folder / CONFIGURATION, trial.to_dict())
    validation = {"accuracy": 0.9, "ece": 0.01, "nll": 0.3, "temperature": 1.2}
    write_result(folder, Result(trial, validation, dict(test), Cost(1.0, 1.0, 10, 10), {}))
    return folder


def finish_all(store: Store, plan: Plan, outcome: Callable[[int, int], Scores]) -> Store:
    """Every trial of a plan's rows, with the outcome for the row's place and the seed."""
    for place, row in enumerate(plan.rows):
        for trial in row.trials:
            finish(store, trial, outcome(place, trial.seed))
    return store


def fail(store: Store, trial: Configuration) -> None:
    folder = store.trial(trial).folder
    folder.mkdir(parents=True)
    write_json(folder / CONFIGURATION, trial.to_dict())
    write_json(folder / FAILURE, {"traceback": "ValueError: no"})


def keep_predictions(folder: Path, seed: int, *, suffix: str = "", samples: int = 200, classes: int = 3) -> None:
    """Predictions of a network that is over-confident; the test set has the same answers for every seed."""
    for part, draw in (("validation", seed + 1), ("test", 0)):
        predicted = noisy(samples, classes, target_seed=draw, seed=seed)
        write_predictions(
            folder / f"{part}{suffix}.npz", predicted.logits.numpy(), predicted.target.numpy(), kind="logits"
        )


def noisy(samples: int, classes: int, *, target_seed: int, seed: int) -> Predicted:
    target = torch.randint(classes, (samples,), generator=torch.Generator().manual_seed(target_seed))
    noise = torch.randn(samples, classes, generator=torch.Generator().manual_seed(1000 + seed))
    return Predicted(3 * (torch.nn.functional.one_hot(target, classes) + 0.7 * noise), target)
