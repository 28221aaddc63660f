"""What `calibrant runs` shows and removes."""

import io
from pathlib import Path

import pytest
from rich.console import Console

import calibrant as cal
from calibrant.files import read_json, write_json
from calibrant_lab.trials import listing
from calibrant_lab.trials import store as kept
from calibrant_lab.trials.configuration import Configuration, configure, label
from calibrant_lab.trials.store import Store, Trial
from tests.lab.stores import ENVIRONMENT, failed, files_of, finished, halfway, held_by_another_process, of

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7\nRuntimeError: [out] of memory\n'
ESD, NLL, MMCE = of("esd", weight=2.0), of("nll"), of("mmce", weight=0.6, bandwidth=0.4, batch_size=64)
FOCAL, RUNNING, LARGE = of("focal", seed=3), of("sb-ece", softness=0.01), configure("cifar10")


@pytest.fixture(autouse=True)
def same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that trials made by hand say they were run with."""
    monkeypatch.setattr(cal, "__version__", ENVIRONMENT["calibrant"])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two that are done, one that failed, one that was left, one that runs as soon as someone holds its lock."""
    store = Store(tmp_path / "runs")
    finished(store, ESD, accuracy=0.9, ece=0.05, seconds=75)
    finished(store, NLL, accuracy=0.95, ece=0.08, seconds=3600)
    failed(store, FOCAL, TRACEBACK)
    halfway(store, MMCE, 3.0, 0.5, 0.1)
    halfway(store, RUNNING, 9.0, 0.5, 0.1)
    return store


@pytest.fixture
def console() -> Console:
    return Console(record=True, width=110, file=io.StringIO())


def shown(console: Console) -> list[str]:
    return console.export_text().splitlines()


def line_of(trial: Trial, lines: list[str]) -> list[str]:
    (line,) = [line for line in lines if line.strip().startswith(trial.identity[:8])]
    return line.split()


def test_the_list_has_settings_status_scores_and_cost(store: Store, console: Console) -> None:
    with held_by_another_process(store.trial(RUNNING)):
        listing.list_runs(store, console)
    lines = shown(console)
    assert lines[0].strip() == "digits, lenet5, 12 epochs"
    first = line_of(store.trial(ESD), lines)
    assert first[1:] == ["ESD", "λ", "2", "0", "done", "89.00", "6.00", "1", "min", "15", "s"]
    assert line_of(store.trial(MMCE), lines)[1:10] == ["MMCE", "λ", "0.6", "φ", "0.4", "batch", "64", "0", "unfinished"]
    assert " ".join(line_of(store.trial(RUNNING), lines)[1:]) == "SB-ECE λ 1 T 0.01 0 running 75% 30 s left"
    assert line_of(store.trial(FOCAL), lines)[1:4] == ["focal", "3", "failed"]
    order = [line.split()[0] for line in lines if line.strip()[:8] in {trial.identity[:8] for trial in store.trials()}]
    assert order == [one.identity[:8] for one in (NLL, ESD, MMCE, RUNNING, FOCAL)]
    assert lines[-1].startswith("5 trials: 2 done, 1 running, 1 failed, 1 unfinished; ")
    assert "1 h 1 min of training" in lines[-1]
    finished(store, LARGE)
    listing.list_runs(store, console)
    titles = [line.strip() for line in shown(console) if "epochs" in line]
    assert titles == ["cifar10, resnet50-cifar, 250 epochs", "digits, lenet5, 12 epochs"]


@pytest.mark.parametrize("name", [kept.RESULT, kept.CONFIGURATION])
def test_a_damaged_trial_is_listed_as_such(name: str, store: Store, console: Console) -> None:
    path = store.trial(ESD).folder / name
    path.write_text("{")
    listing.list_runs(store, console)
    lines = shown(console)
    assert [line for line in lines if line.startswith(f"damaged {path}: ")]
    assert line_of(store.trial(NLL), lines)
    assert "5 trials: 1 done, 1 failed, 2 unfinished, 1 damaged" in lines[-1]
    listing.show_run(store, ESD.identity, console)
    assert str(path) in console.export_text()
    listing.prune(store, failed=False, unfinished=False, weights=True, apply=True, console=console)
    assert (path.parent / kept.WEIGHTS).exists()


def test_trials_of_something_unknown_are_listed_as_such_and_left_alone(store: Store, console: Console) -> None:
    paths = [store.trial(one).folder / kept.CONFIGURATION for one in (FOCAL, MMCE, NLL)]
    for path in paths:
        write_json(path, read_json(path) | {"recipe": "/somewhere/else.py:mine"})
    listing.list_runs(store, console)
    lines = shown(console)
    [line] = [line for line in lines if line.startswith("unknown ")]
    assert "/somewhere/else.py:mine" in line
    assert line.endswith("2 other trials)")
    assert "5 trials: 1 done, 1 unfinished, 3 unknown" in lines[-1]
    assert not [line for line in lines if "damaged" in line or "delete" in line]
    listing.show_run(store, paths[0].parent.name, console)
    assert console.export_text().startswith(f"unknown {paths[0]}")
    listing.prune(store, failed=True, unfinished=False, weights=False, apply=True, console=console)
    assert all(path.exists() for path in paths)


def test_changes_since_a_trial_are_listed(store: Store, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cal, "__version__", "9.9.9")
    listing.list_runs(store, console)
    assert f"changed 2 trials: run with Calibrant {ENVIRONMENT['calibrant']}, this is 9.9.9" in shown(console)
    listing.show_run(store, ESD.identity, console)
    assert f"changed run with Calibrant {ENVIRONMENT['calibrant']}, this is 9.9.9" in shown(console)


def test_an_empty_store_is_no_error(tmp_path: Path, console: Console) -> None:
    listing.list_runs(Store(tmp_path), console)
    assert shown(console) == ["0 trials; 0 B."]


def test_one_trial_is_shown_with_all_that_is_known(store: Store, console: Console) -> None:
    listing.show_run(store, ESD.identity[:6], console)
    text = console.export_text()
    assert text.startswith("ESD λ 2 on digits, seed 0: done")
    for part in (
        "weight 2.0", "epochs 12", "max-steps None, batch-size 128,", "accuracy % 90.00, ECE % 5.00", "1 min 15 s",
        "12,000", "300 MB", "cpu: Processor", "0123456789abcdef", "temperature 1.2", str(store.trial(ESD).folder),
    ):  # fmt: skip
        assert part in text
    assert {"89.00", "6.00", "2.00", "3.00", "0.3000"} <= set(text.split())
    assert "changed" not in text
    data = {"train": 80, "sources": {"a.py:a": "0123", "b.py:b": "4567"}, "folder": None}
    write_json(store.trial(ESD).folder / kept.DATA, data)
    listing.show_run(store, ESD.identity, console)
    assert "data: train 80, sources a.py:a: 0123, b.py:b: 4567\n" in console.export_text()


def test_a_failed_trial_is_shown_with_its_traceback(store: Store, console: Console) -> None:
    listing.show_run(store, store.trial(FOCAL).folder.name, console)
    text = console.export_text()
    assert text.startswith("focal on digits, seed 3: failed")
    assert TRACEBACK in text


def test_a_trial_is_found_by_enough_digits(store: Store) -> None:
    for digits in ("xyz", ""):
        with pytest.raises(ValueError, match=f"'{digits}'"):
            listing.find(store, digits)
    firsts = [trial.identity[0] for trial in store.trials()]
    for seed in range(1, 20):  # until two begin alike
        trial = finished(store, of("nll", seed=seed))
        if trial.identity[0] in firsts:
            break
        firsts.append(trial.identity[0])
    with pytest.raises(ValueError, match=rf"2 trials .*{trial.identity}"):
        listing.find(store, trial.identity[0])
    assert listing.find(store, trial.identity.upper()[:8]) == trial


CHOICES = {"failed": {FOCAL}, "unfinished": {MMCE}, "weights": set[Configuration]()}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("apply", [False, True])
def test_only_what_was_asked_for_is_removed(choice: str, apply: bool, store: Store, console: Console) -> None:
    before = {trial.configuration: files_of(trial) for trial in store.trials()}
    size = sum(trial.size() for trial in store.trials())
    options = {name: name == choice for name in CHOICES}
    with held_by_another_process(store.trial(RUNNING)):
        freed = listing.prune(store, **options, apply=apply, console=console)
    expected = {one: files for one, files in before.items() if one not in CHOICES[choice]}
    if choice == "weights":
        assert freed == 4000
        expected |= {one: before[one] - {kept.WEIGHTS} for one in (ESD, NLL)}
    after = Store(store.folder).trials()
    assert {trial.configuration: files_of(trial) for trial in after} == (expected if apply else before)
    assert size - sum(trial.size() for trial in after) == (freed if apply else 0)
    text = console.export_text()
    assert text.splitlines()[-1].endswith("freed." if apply else "add --apply to remove them.")
    assert all(label(one) in text for one in CHOICES[choice])
    assert label(RUNNING) not in text


def test_a_trial_that_another_process_takes_up_meanwhile_is_kept(
    store: Store, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [listing.look(trial) for trial in store.trials()]
    found = {run.trial: run for run in seen}
    monkeypatch.setattr(listing, "look", found.__getitem__)
    finished(store, FOCAL)  # between the look and the removal
    with held_by_another_process(store.trial(MMCE)):
        listing.prune(store, failed=True, unfinished=True, weights=False, apply=True, console=console)
    assert store.trial(FOCAL).status == "done"
    assert store.trial(MMCE).folder.exists()
    assert not store.trial(RUNNING).folder.exists()


def test_what_a_trial_could_be_prolonged_from_goes_with_its_weights(store: Store, console: Console) -> None:
    (store.trial(ESD).folder / kept.FINAL).write_bytes(b"c" * 300)
    assert listing.prune(store, failed=False, unfinished=False, weights=True, apply=True, console=console) == 4300
    assert "removed model.pt and final.ckpt" in console.export_text()


def test_to_remove_nothing_is_a_mistake(store: Store, console: Console) -> None:
    with pytest.raises(ValueError, match="--failed"):
        listing.prune(store, failed=False, unfinished=False, weights=False, apply=True, console=console)
