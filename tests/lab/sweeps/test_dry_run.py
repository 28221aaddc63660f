"""What `--dry-run` lists, and how it tells what the trials will take."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from calibrant.files import FileError
from calibrant_lab.sweeps.dry_run import Estimate, estimate, list_trials
from calibrant_lab.sweeps.protocol import plan, rehearse
from calibrant_lab.sweeps.run import validated
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import Configuration
from calibrant_lab.trials.run import run_trial
from calibrant_lab.trials.store import Store
from tests.lab.stores import finished, of

SWEEP = Sweep(
    recipe="digits", methods=("mmce",), seeds=2, settings={"epochs": 12},
    grids={"weight": (0.5, 1.0), "bandwidth": (0.4, 0.8)},
)  # fmt: skip
TRIALS = 8  # two of NLL, two on the reduced split, two weights, another bandwidth, and the other seed


class Asked:
    """An estimate that was made up, and the trials it was asked for."""

    def __init__(self, *, on_gpu: bool = False) -> None:
        self.on_gpu = on_gpu
        self.trials: list[Configuration] = []

    def __call__(self, trial: Configuration) -> Estimate:
        self.trials.append(trial)
        return Estimate(1800.0 if trial.method == "nll" else 3600.0, 10**6, 3 * 10**6, self.on_gpu)


def listed(store: Store, asked: Asked, gpus: float = 1.0, sweep: Sweep = SWEEP) -> list[str]:
    console = Console(record=True, width=200, file=io.StringIO())
    results = validated(store, sweep)
    known = {one: found for one in results if (found := store.result(one)) is not None}
    list_trials(rehearse(sweep), plan(sweep, results), known, console, estimate=asked, gpus=gpus)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_every_trial_is_listed_and_those_that_wait_say_for_what(store: Store) -> None:
    lines = listed(store, Asked())
    assert "5 + MMCE search λ λ 0.5, φ 0.4 0 to do" in lines
    assert "7 + MMCE search φ λ chosen, φ 0.8 0 waits" in lines
    assert "8 + MMCE seeds λ chosen, φ chosen 1 waits" in lines
    assert any(line.startswith(f"{TRIALS} trials, 0 done, {TRIALS} to do.") for line in lines)
    assert "Waiting trials depend on the values that the search chooses; their number does not." in lines


def test_time_gpu_hours_and_disk_are_those_of_the_trials_that_are_to_do(store: Store) -> None:
    asked = Asked(on_gpu=True)
    text = " ".join(listed(store, asked, gpus=0.5))
    # Four of NLL of half an hour, four of MMCE of an hour, half a GPU each.
    assert "6 h 0 min if run one after another, including evaluation; 3.0 GPU-hours; 8.0 MB of disk, and 3.0 MB" in text
    assert [one.method for one in asked.trials] == ["nll", "mmce"]  # one of each
    finished(store, of("nll"))
    assert "1 done, 7 to do. Estimated from a few steps of each method: 5 h 30 min" in " ".join(listed(store, Asked()))
    assert "0.0 GPU-hours" in " ".join(listed(store, Asked()))


def test_without_data_the_trials_are_listed_without_their_cost(store: Store) -> None:
    class Fails(Asked):
        def __call__(self, trial: Configuration) -> Estimate:
            raise FileError(Path("data"), "is not a folder")

    lines = listed(store, Fails())
    assert "5 + MMCE search λ λ 0.5, φ 0.4 0 to do" in lines
    assert any(line.endswith("data: is not a folder") for line in lines)


def test_an_estimate_counts_steps_evaluation_and_files() -> None:
    short, long = (of("esd", batch_size=512, epochs=epochs) for epochs in (1, 100))
    one, many = estimate(short, None, "cpu"), estimate(long, None, "cpu")
    assert 0 < one.seconds < many.seconds
    assert many.disk - one.disk == 99 * 1000  # curves
    limited = estimate(long.replaced({"max_steps": 3}), None, "cpu")
    assert limited.disk == one.disk
    assert not one.on_gpu


@pytest.mark.slow
def test_the_disk_that_is_estimated_is_what_a_trial_leaves(store: Store) -> None:
    trial = of("esd", batch_size=512, epochs=2)
    assert run_trial(store, trial, None, "cpu") == "done"
    assert estimate(trial, None, "cpu").disk == pytest.approx(store.trial(trial).size(), rel=0.1)
