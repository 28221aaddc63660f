"""Every command: its help, and one line about an option that is wrong."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import calibrant
from calibrant.cli import SUMMARIES, app
from tests.shell import ended, run_without

TABLE = "confidence,correct\n0.9,1\n0.5,0\n0.7,1\n0.6,1\n"
COMMANDS = (
    "evaluate", "recalibrate", "apply", "demo", "recipes", "train", "reproduce", "report", "runs list", "runs show",
    "runs prune", "runs export",
)  # fmt: skip


def test_the_module_runs_as_a_program() -> None:
    command = [sys.executable, "-m", "calibrant", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, calibrant.__version__)


def test_these_are_all_commands_there_are() -> None:
    joined = {command.name for command in entry_points(group="calibrant.commands")}
    assert {name.split()[0] for name in COMMANDS} == joined | {"evaluate", "recalibrate", "apply"}
    assert {name for name in app["runs"] if not name.startswith("-")} == {
        name.split()[1] for name in COMMANDS if " " in name
    }


def test_the_list_of_commands_describes_all_and_imports_no_laboratory() -> None:
    code = (
        "import sys; from calibrant.cli import app; app(['--help'], result_action='return_value')\n"
        "sys.exit('calibrant_lab' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    for name in SUMMARIES.keys() | {"evaluate", "recalibrate"}:
        (line,) = (line for line in result.stdout.splitlines() if line.startswith(f"│ {name} "))
        assert SUMMARIES.get(name, "").startswith(" ".join(line.split()[2:5])) or name not in SUMMARIES
        assert len(line.split()) > 4
    assert SUMMARIES.keys() == {command.name for command in entry_points(group="calibrant.commands")}


def test_without_extras_every_command_and_option_names_the_one_it_needs(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(TABLE)
    lab = ["demo", "recipes", "recipes digits", "train --recipe digits", "reproduce table1", "report runs"]
    lab += ["runs list", "runs show a", "runs prune", "runs export a.json"]
    needed = dict.fromkeys(lab, "pip install 'calibrant[lab]'") | {
        "evaluate p.csv --report r.html": "pip install 'calibrant[report]'",
        "evaluate p.csv --engine spark": 'pip install "calibrant[spark]"',
        "evaluat p.csv": "evaluate",
        "evaluate p.csv --draws 20": "",
        "demo --help": "",
    }
    extras = ("lightning", "tensorboard", "matplotlib", "jinja2", "pydantic", "filelock", "PIL", "pyspark",
              "torchmetrics", "transformers", "datasets", "ray", "onnx", "pyarrow", "pandas", "polars")  # fmt: skip
    for (arguments, remedy), (error, status) in zip(needed.items(), run_without(extras, needed, tmp_path), strict=True):
        assert status == (2 if remedy else 0), arguments
        assert error.startswith("calibrant: ") == bool(remedy), arguments
        assert error.count("\n") == bool(remedy), arguments
        assert remedy in error, arguments
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


@pytest.mark.slow
def test_a_summary_does_not_replace_the_description_of_a_command() -> None:
    command = [sys.executable, "-m", "calibrant", "train", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "A trial holds weights, predictions, curves" in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ended(capsys, *name.split(), "--help")
    assert (found.status, found.error) == (0, "")
    lines = [line for line in found.out.splitlines() if re.match(r"│[ *]{1,4}([A-Z]+ )?--[\w-]", line)]
    assert all(re.search(r"--[\w-]+( \S+)? +[^\s│]", line) for line in lines), lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("evaluate a.npz --bins 0", "--bins"),
        ("evaluate a.npz --convention mine", "--convention"),
        ("evaluate a.npz --draws 3", "--draws"),
        ("evaluate p.csv --report out.pdf", "out.pdf"),
        ("evaluate p.csv --engine duckdb --memory-limit lots", "'lots'"),
        ("evaluate p.csv --engine duckdb --memory-limit 1KB", "raise it"),
        ("recalibrate --fit a.npz --apply b.npz --method magic", "--method"),
        ("apply a.npz", "--calibrator"),
        ("recipes digit", "did you mean digits"),
        ("train --recipe digits --epocs 3", "did you mean epochs"),
        ("train", "--recipe"),
        ("reproduce table9", "'table9'"),
        ("reproduce none.toml", "none.toml"),
        ("reproduce table1 --recipe digits --columns ecee", "ecee"),
        ("report none", "none: is not a folder"),
        ("runs list --runs none", "none: is not a folder"),
        ("runs prune --fail", "--fail"),
        ("evaluat", "evaluat"),
    ],
)
def test_what_is_wrong_is_said_shortly(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text(TABLE)
    found = ended(capsys, *arguments.split())
    assert found.status != 0
    assert message.lower() in (found.out + found.error).lower()
    assert "Traceback" not in found.out + found.error
    if found.error.startswith("calibrant: "):  # our own words; Cyclopts puts those about options in a frame
        assert (found.error.count("\n"), found.out) == (1, "")
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]
