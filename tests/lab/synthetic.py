"""Stores made by hand: trials with the results one gives them, and nothing trained."""

from collections.abc import Callable
from pathlib import Path

import torch

from calibrant.files import write_predictions
from calibrant_lab.configuration import Configuration, RecipeName
from calibrant_lab.json_files import write_json
from calibrant_lab.names import ProfileName, TableName
from calibrant_lab.outcome import Outcome, Predicted
from calibrant_lab.recipes import RECIPES
from calibrant_lab.trials.protocol import PROFILES, Plan, Protocol, rehearse, with_profile
from calibrant_lab.trials.store import CONFIGURATION, FAILURE, Cost, Result, Store, Validated, write_result


def finished_plan(name: TableName, recipe: RecipeName, profile: ProfileName = "cpu", **changes: object) -> Plan:
    """A plan whose searches have ended."""
    base = with_profile(RECIPES[recipe], PROFILES[profile]).replaced(changes)
    return rehearse(lambda results: Protocol(base, PROFILES[profile], results).table(name))


def finish(store: Store, trial: Configuration, outcome: Outcome) -> Path:
    """A finished trial without predictions."""
    folder = store.trial(trial).folder
    folder.mkdir(parents=True)
    write_json(folder / CONFIGURATION, trial.to_dict())
    write_result(folder, Result(trial, Validated(0.9, 0.01), outcome, Cost(1.0, 1.0, 10, 10), {}))
    return folder


def finish_all(store: Store, plan: Plan, outcome: Callable[[int, int], Outcome]) -> Store:
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
