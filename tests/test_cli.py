import subprocess
import sys

import pytest

import calibrant
from calibrant.cli import app


def calibrant_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "calibrant", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_version() -> None:
    result = calibrant_command("--version")
    assert (result.returncode, result.stdout.strip()) == (0, calibrant.__version__)


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    app("--help", result_action="return_value")
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [("--seeds", "0"), ("--epochs", "x"), ("--epochs", "-1")])
def test_bad_options_are_refused_without_a_traceback(arguments: tuple[str, str]) -> None:
    result = calibrant_command("demo", *arguments)
    assert result.returncode != 0
    assert arguments[0] in result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
