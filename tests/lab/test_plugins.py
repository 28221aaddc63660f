"""Recipes, methods and metrics from outside: found by name, by import path and by file, in every process."""

import re
import sys
from pathlib import Path

import pytest

from calibrant.cli import main
from calibrant_lab import Recipe, plugins
from calibrant_lab.methods import METHODS, method
from calibrant_lab.recipes import RECIPES, recipe
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.configuration import configure
from calibrant_lab.trials.local_executor import Executor, LocalExecutor
from calibrant_lab.trials.ray_executor import RayExecutor
from calibrant_lab.trials.store import Store
from tests.lab.interrupted_sweep import collect

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


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder, number in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "own.py").write_text(f"value = {number}\n")
    assert [plugins.find(f"{tmp_path}/{folder}/own.py:value", "number", {}) for folder in ("a", "b")] == [1, 2]


def test_the_digest_changes_with_the_source(plugin: str) -> None:
    assert plugins.source_digest("digits") is None
    recipe(f"{plugin}:rows")
    first = plugins.source_digest(f"{plugin}.py:rows")
    assert first == plugins.source_digest(f"{plugin}:rows")
    with Path(f"{plugin}.py").open("a") as file:
        file.write("# more\n")
    assert plugins.source_digest(f"{plugin}.py:rows") != first


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("digit", "unknown recipe 'digit', did you mean digits: choose from made, digits, mnist,"),
        ("./none.py:rows", "none.py): check the path"),
        ("no_package.module:rows", "No module named 'no_package'"),
        (":rows", "recipe ':rows' cannot be loaded"),
        ("{plugin}.py:row", "{plugin}.py has no recipe 'row', did you mean rows: define it at the top level"),
        ("{plugin}.py:number", "{plugin}.py:number must be a calibrant_lab.Recipe, got int"),
        ("{plugin}.py:Recipe", "must be a calibrant_lab.Recipe, got type"),
        ("broken.py:rows", "cannot be loaded (ZeroDivisionError: division by zero, line 2): check"),
        ("unfinished.py:rows", "cannot be loaded (SyntaxError: "),
    ],
)
def test_what_cannot_be_loaded_is_one_line(
    reference: str, message: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broken.py").write_text("x = 0\ny = 1 / x\n")
    Path("unfinished.py").write_text("def f(:\n")
    with pytest.raises(SystemExit) as exit_:
        main(["train", "--recipe", reference.format(plugin=plugin), "--runs", "runs"])
    screen = capsys.readouterr()
    assert exit_.value.code == 2
    assert message.format(plugin=plugin) in screen.err
    assert (screen.err.count("\n"), screen.out) == (1, "")
    assert not Path("runs").exists()


@pytest.mark.slow
def test_another_file_of_the_same_name_is_not_shown_the_old_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = SOURCE.replace("from {beside} import network", "network = lambda classes: nn.Linear(4, classes)")
    for folder, more in (("a", ""), ("b", "x = 2 * x\n")):
        Path(folder).mkdir()
        Path(folder, "own.py").write_text(source + more)
        Path(folder, "own.toml").write_text('recipe = "./own.py:rows"\nmethods = ["./own.py:Gap"]\nseeds = 1\n')

    def said(*arguments: str, code: int) -> str:
        with pytest.raises(SystemExit) as exit_:
            main([*arguments, "--runs", "runs", "--accelerator", "cpu"])
        assert exit_.value.code == code
        return capsys.readouterr().err

    assert "changed" not in said("train", "--recipe", "a/own.py:rows", code=0)
    for command in ("train --recipe b/own.py:rows", "reproduce b/own.toml", "reproduce b/own.toml --dry-run"):
        error = said(*command.split(), code=2)
        assert "a/own.py:rows, and " in error
        assert "b/own.py:rows is different: rename it, or give another --runs" in error
        assert error.count("\n") == 1
    Path("b/own.py").write_text(source)
    assert "changed" not in said("train", "--recipe", "b/own.py:rows", code=0)


@pytest.mark.parametrize(
    ("reference", "message"),
    [("{plugin}.py:number", "must be a Method, or build an objective, got int"), ("esdd", "did you mean esd")],
)
def test_a_method_that_is_none_is_refused(reference: str, message: str, plugin: str) -> None:
    with pytest.raises(ValueError, match=message):
        method(reference.format(plugin=plugin))


def test_a_metric_that_is_none_is_refused(plugin: str) -> None:
    columns = {
        "smooth_ecee": "unknown metric 'smooth_ecee', did you mean smooth_ece: choose from .*, nll, .*, log_loss",
        f"{plugin}.py:none": "has no metric 'none'", f"{plugin}.py:torhc": "has no metric 'torhc': define",
        f"{plugin}.py:Dat": "has no metric 'Dat': define", f"{plugin}.py:Gapp": "did you mean Gap:",
        "ece+platt": "unknown post-hoc",
        f"{plugin}.py:number": "must be a function of Predictions, got int",
    }  # fmt: skip
    for column, message in columns.items():
        with pytest.raises(ValueError, match=message):
            Sweep.checked({"recipe": "digits", "columns": [column]})
    for select in ("log_los", "ece+temperature"):
        with pytest.raises(ValueError, match=re.escape(select)):
            Sweep.checked({"recipe": "digits", "select": select})


def run_two(executor: Executor, store: Store, plugin: str) -> None:
    """One trial of the import path, one of the file, both with an objective from outside."""
    trials = [configure(f"{plugin}:rows", f"{plugin}:Gap"), configure(f"./{plugin}.py:rows", f"./{plugin}.py:Gap")]
    try:
        for trial in trials:
            executor.submit(trial)
        endings = {one.configuration: one.ending for one in collect(executor, 2)}
    finally:
        executor.stop()
    assert endings == dict.fromkeys(trials, "done"), [store.trial(trial).failure() for trial in trials]
    for trial in trials:
        sources = store.trial(trial).result().environment["sources"]
        assert len(sources) == 2
        assert set(sources.values()) == {plugins.source_digest(f"{plugin}.py:rows")}


@pytest.mark.slow
def test_worker_processes_load_them_by_themselves(plugin: str) -> None:
    store = Store("runs")
    run_two(LocalExecutor(store.folder, None, workers=2, accelerator="cpu"), store, plugin)


@pytest.mark.slow
def test_ray_tasks_load_them_by_themselves(plugin: str) -> None:
    pytest.importorskip("ray", reason='Ray is not installed: pip install "calibrant[ray]"')
    store = Store(Path("runs").resolve())
    run_two(RayExecutor(store.folder, None, accelerator="cpu"), store, plugin)


@pytest.mark.slow
def test_a_file_that_changed_since_fails_its_trial_and_not_the_worker(plugin: str) -> None:
    store, trial = Store("runs"), configure(f"./{plugin}.py:rows")
    Path(f"{plugin}.py").write_text("rows = 1 / 0\n")
    executor = LocalExecutor(store.folder, None, workers=1, accelerator="cpu")
    executor.submit(trial)
    assert [one.ending for one in collect(executor)] == ["failed"]
    executor.stop()
    assert "ZeroDivisionError" in (store.trial(trial).failure() or "")
