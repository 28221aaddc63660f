"""The demo: the shape of the paper's table, the files it leaves, and that it repeats itself."""

import io
from multiprocessing import active_children
from pathlib import Path

import pytest
from rich.console import Console

from calibrant import metrics
from calibrant.experiments import demo
from calibrant.experiments.outcome import Outcome
from calibrant.files import read_predictions

Ran = tuple[dict[str, list[Outcome]], str, Path]


def run(folder: Path, *, seeds: int = 1, epochs: int = 1, noise: float = 0.3, workers: int = 1) -> Ran:
    screen = io.StringIO()
    outcomes = demo.run_demo(
        seeds=seeds, epochs=epochs, weight=1.0, noise=noise, out=folder, console=Console(file=screen, width=100),
        workers=workers,
    )  # fmt: skip
    return outcomes, screen.getvalue(), folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("demo"), seeds=2)


def test_the_demo_is_the_papers_table_in_miniature_and_says_what_it_is(ran: Ran) -> None:
    outcomes, screen, _ = ran
    assert {name: len(runs) for name, runs in outcomes.items()} == {
        "NLL": 2, "NLL + MMCE": 2, "NLL + SB-ECE": 2, "NLL + ESD": 2,
    }  # fmt: skip
    assert all(words in screen for words in ("after TS", "after VS", "toy-sized default", "2 seeds"))
    assert "\x1b" not in screen


def test_the_demo_keeps_the_first_seeds_predictions_and_a_report(ran: Ran) -> None:
    outcomes, screen, folder = ran
    assert f"calibrant evaluate {folder}/nll.npz {folder}/esd.npz" in screen
    stems = ("nll", "mmce", "sb-ece", "esd")
    assert {path.name for path in folder.iterdir()} == {
        "report.html", *(f"{stem}{ending}.npz" for stem in stems for ending in ("", "-validation")),
    }  # fmt: skip
    assert metrics.evaluate(read_predictions(folder / "esd.npz")).ece == pytest.approx(outcomes["NLL + ESD"][0].ece)
    assert all(name in (folder / "report.html").read_text() for name in outcomes)


def test_the_demo_repeats_itself_exactly(ran: Ran, tmp_path: Path) -> None:
    first = {name: runs[:1] for name, runs in ran[0].items()}
    assert repr(run(tmp_path)[0]) == repr(first)


def test_several_processes_give_the_same(ran: Ran, tmp_path: Path) -> None:
    outcomes, _, _ = run(tmp_path, seeds=2, workers=2)
    for name, runs in ran[0].items():  # but for the rounding of one thread against several
        assert [one.ece for one in outcomes[name]] == pytest.approx([one.ece for one in runs], abs=0.02)


def test_a_failing_network_stops_the_others(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="noise must be"):
        run(tmp_path, noise=-1.0, workers=2)
    assert not active_children()


def test_training_every_way_learns_something(tmp_path: Path) -> None:
    outcomes, _, _ = run(tmp_path, epochs=10, noise=0.0)
    assert all(outcome.accuracy > 0.6 for (outcome,) in outcomes.values())
