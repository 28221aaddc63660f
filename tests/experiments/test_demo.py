import io
from pathlib import Path

import pytest
import torch
from rich.console import Console

from calibrant import metrics
from calibrant.experiments import demo
from calibrant.experiments.demo import Outcome
from calibrant.experiments.models.lenet import LeNet5
from calibrant.files import read_predictions


def run(folder: Path, **changes: float) -> tuple[dict[str, list[Outcome]], str]:
    screen = io.StringIO()
    settings = {"seeds": 2, "epochs": 1, "weight": 1.0, "noise": 0.3} | changes
    outcomes = demo.run_demo(
        seeds=int(settings["seeds"]), epochs=int(settings["epochs"]), weight=settings["weight"],
        noise=settings["noise"], out=folder, console=Console(file=screen, width=100),
    )  # fmt: skip
    return outcomes, screen.getvalue()


def test_the_demo_compares_both_ways_and_says_what_it_is(tmp_path: Path) -> None:
    outcomes, screen = run(tmp_path)
    assert [len(runs) for runs in outcomes.values()] == [2, 2]
    assert "NLL + ESD (weight 1)" in screen
    assert "ECE % (20 bins)" in screen
    assert "toy-sized default" in screen
    assert screen.count("±") == 6


def test_the_demo_keeps_the_first_seeds_predictions(tmp_path: Path) -> None:
    outcomes, screen = run(tmp_path / "kept")
    assert f"calibrant evaluate {tmp_path}/kept/nll.npz {tmp_path}/kept/esd.npz" in screen
    names = {path.name for path in (tmp_path / "kept").iterdir()}
    assert names == {"nll.npz", "nll-validation.npz", "esd.npz", "esd-validation.npz"}
    scores = metrics.evaluate(read_predictions(tmp_path / "kept/esd.npz"))
    assert 100 * scores.ece == pytest.approx(outcomes["NLL + ESD"][0].ece)
    assert len(read_predictions(tmp_path / "kept/esd-validation.npz")) == demo.VALIDATION_IMAGES


def test_the_demo_repeats_itself_exactly(tmp_path: Path) -> None:
    assert run(tmp_path, seeds=1)[0] == run(tmp_path, seeds=1)[0]


def test_quiet_when_not_a_terminal(tmp_path: Path) -> None:
    _, screen = run(tmp_path, seeds=1)
    assert "\x1b" not in screen
    assert "epochs  " not in screen


def test_training_both_ways_learns_something(tmp_path: Path) -> None:
    outcomes, _ = run(tmp_path, seeds=1, epochs=8, noise=0.0)
    for (outcome,) in outcomes.values():
        assert outcome.accuracy > 60
        assert 0 <= outcome.ece <= 100


def test_digits_are_what_lenet_takes() -> None:
    images, labels = demo.digits(noise=0.0)
    assert images.shape == (1797, 1, 32, 32)
    assert labels.shape == (1797,)
    assert 0 <= images.min() < images.max() <= 1
    assert LeNet5()(images[:2]).shape == (2, 10)


def test_a_single_seed_shows_no_deviation() -> None:
    assert demo.mean_and_spread((1.0,)) == "1.00"
    assert demo.mean_and_spread((1.0, 3.0)) == "2.00 ± 1.41"


def test_lenet_has_the_parameters_of_the_classic() -> None:
    assert sum(parameter.numel() for parameter in LeNet5().parameters()) == 61_706
    with pytest.raises(RuntimeError):
        LeNet5()(torch.zeros(1, 1, 28, 28))
