"""Recipes, methods and metrics from outside: found by name, by import path and by file, in every process."""

import csv
import io
import sys
from pathlib import Path

import pytest

from calibrant_lab import Recipe, plugins
from calibrant_lab.methods import METHODS, method
from calibrant_lab.recipes import RECIPES, recipe
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.local_executor import Ended, Executor, LocalExecutor
from calibrant_lab.trials.ray_executor import RayExecutor
from calibrant_lab.trials.store import Store
from tests.lab.interrupted_sweep import carried_out
from tests.shell import run

EXAMPLE = Path(__file__).parents[2] / "examples/own_recipe"
# A recipe whose network stands in a file beside it, which is imported only when the network is built.
SOURCE = """
import torch
from torch import nn
from calibrant_lab import Data, Recipe

x, y = torch.randn(90, 4, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3

def build(data):
    from {beside} import network
    return network(data.classes)

rows = Recipe(lambda: Data((x[:60], y[:60]), (x[60:], y[60:])), build, epochs=1, batch_size=20)
number = 3

class Gap(nn.Module):
    def forward(self, logits, target):
        return (logits.softmax(1).max(1).values.mean() - 0.5) ** 2
"""
Screen = pytest.CaptureFixture[str]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a file in the working directory, of its own for every test: modules stay imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"plugin_{abs(hash(str(tmp_path)))}"
    Path(f"{name}_network.py").write_text("from torch import nn\n\ndef network(n):\n    return nn.Linear(4, n)\n")
    Path(f"{name}.py").write_text(SOURCE.format(beside=f"{name}_network"))
    return name


def test_a_name_an_import_path_and_a_file_are_found(plugin: str) -> None:
    assert recipe("digits") is RECIPES["digits"]
    assert method("esd") is METHODS["esd"]
    by_path, by_file = recipe(f"{plugin}:rows"), recipe(f"./{plugin}.py:rows")
    assert isinstance(by_path, Recipe)
    assert by_file.settings().batch_size == by_path.settings().batch_size == 20
    assert recipe(f"{Path.cwd()}/{plugin}.py:rows") is by_file  # loaded once, whatever it is called
    gap = method(f"{plugin}.py:Gap")
    assert (gap.label, gap.holds_out, gap.defaults) == ("Gap", True, {"weight": 1.0})


def test_a_reference_outlives_a_change_of_the_working_directory(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = configure(f"./{plugin}.py:rows", f"./{plugin}.py:Gap")
    folder = Path.cwd()
    monkeypatch.chdir("/")
    assert configuration.of_recipe is recipe(f"{folder}/{plugin}.py:rows")
    assert plugins.absolute("./a.py:x", Path("/some/folder")) == "/some/folder/a.py:x"
    assert (plugins.absolute("esd"), plugins.absolute("package.module:name")) == ("esd", "package.module:name")
    assert (plugins.short("/some/folder/wine.py:wine"), plugins.short("mnist")) == ("wine.py:wine", "mnist")


@pytest.mark.parametrize(
    ("reference", "token"),
    [
        ("./none.py:rows", "none.py"),
        ("no_package.module:rows", "no_package"),
        (":rows", "':rows'"),
        ("{plugin}.py:row", "rows"),
        ("{plugin}.py:number", "Recipe, got int"),
        ("{plugin}.py:Recipe", "Recipe, got type"),
        ("broken.py:rows", "ZeroDivisionError: division by zero, line 2"),
        ("unfinished.py:rows", "SyntaxError: "),
    ],
)
def test_an_error_of_a_recipe_is_one_line(reference: str, token: str, plugin: str, capsys: Screen) -> None:
    Path("broken.py").write_text("x = 0\ny = 1 / x\n")
    Path("unfinished.py").write_text("def f(:\n")
    assert run("train", "--recipe", reference.format(plugin=plugin), "--runs", "runs") == 2
    screen = capsys.readouterr()
    assert token in screen.err
    assert (screen.err.count("\n"), screen.out) == (1, "")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("kind", "reference", "token"),
    [
        ("methods", "{plugin}.py:number", "Method.*got int"),
        ("columns", "{plugin}.py:none", "'none'"),
        ("columns", "{plugin}.py:Gapp", "Gap:"),
        ("columns", "ece+platt", "'platt'"),
        ("columns", "{plugin}.py:number", "Predictions, got int"),
        ("select", "ece+temperature", "ece.temperature"),
    ],
)
def test_errors_of_methods_and_metrics(kind: str, reference: str, token: str, plugin: str) -> None:
    value = reference.format(plugin=plugin)
    with pytest.raises(ValueError, match=token):
        Sweep.checked({"recipe": "digits", kind: value if kind == "select" else [value]})


def run_two(executor: Executor, store: Store, plugin: str) -> None:
    """One trial of the import path, one of the file, both with an objective from outside."""
    trials = [configure(f"{plugin}:rows", f"{plugin}:Gap"), configure(f"./{plugin}.py:rows", f"./{plugin}.py:Gap")]
    try:
        endings = {one.configuration: one.ending for one in carried_out(executor, *trials)}
    finally:
        executor.stop()
    assert endings == dict.fromkeys(trials, "done"), [store.trial(trial).failure() for trial in trials]
    for trial in trials:
        sources = store.trial(trial).result().environment["sources"]
        assert len(sources) == 2
        assert set(sources.values()) == {plugins.source_digest(f"{plugin}.py:rows")}


@pytest.mark.slow
def test_worker_processes_load_them_by_themselves(plugin: str) -> None:
    store, trial = Store("runs"), configure(f"./{plugin}.py:rows", seed=1)
    run_two(LocalExecutor(store.folder, None, workers=2, accelerator="cpu"), store, plugin)
    # A file that changed since fails its trial and not the worker.
    Path(f"{plugin}.py").write_text("rows = 1 / 0\n")
    executor = LocalExecutor(store.folder, None, workers=1, accelerator="cpu")
    assert carried_out(executor, trial) == [Ended(trial, "failed")]
    executor.stop()
    assert "ZeroDivisionError" in (store.trial(trial).failure() or "")


@pytest.mark.slow
def test_ray_tasks_load_them_by_themselves(plugin: str) -> None:
    pytest.importorskip("ray", reason='Ray is not installed: pip install "calibrant[ray]"')
    store = Store(Path("runs").resolve())
    run_two(RayExecutor(store.folder, None, accelerator="cpu"), store, plugin)


@pytest.mark.slow
def test_the_example_runs_by_one_command_with_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Screen
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--seeds", "1", "--epochs", "2", "--parallel", "2", "--accelerator", "cpu", "--format", "csv"]
    assert run("reproduce", EXAMPLE / "sweep.toml", "--runs", "runs", *options) == 0
    results = Store("runs").results()
    methods = [configuration.method.rpartition(":")[2] for configuration in results]
    assert {name: methods.count(name) for name in methods} == {"nll": 2, "esd": 3, "loop": 1, "SquaredGap": 3}
    assert all(configuration.settings.epochs == 2 for configuration in results)
    (recorded,) = (tmp_path / "runs/sweeps").glob("*.toml")
    assert Sweep.read(recorded).select == "log_loss"
    columns = csv.DictReader(io.StringIO(capsys.readouterr().out)).fieldnames or []
    assert {"smooth_ece_percent_mean", "wine.py:surest_error_mean"} <= set(columns)
