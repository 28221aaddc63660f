"""The command `calibrant`, called in this process."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from calibrant.cli import main


class Ended(NamedTuple):
    """Status, output, output on one line, output as JSON if it is, and errors of a command."""

    status: int
    out: str
    shown: str
    json: Any
    error: str


def run(*arguments: object) -> int:
    """Run a command line; return its exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as exited:
        return int(exited.code or 0)
    return 0


def ended(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """Run a command line; return all that it gives."""
    status = run(*arguments)
    out, error = capsys.readouterr()
    found = json.loads(out) if "--json" in arguments and out else None
    return Ended(status, out, " ".join(out.split()), found, error)


def refused(capsys: pytest.CaptureFixture[str], message: str, *arguments: object) -> None:
    """Assert that a command ends with status 2 and one line that has this message."""
    found = ended(capsys, *arguments)
    assert (found.status, found.shown, found.error.count("\n")) == (2, "", 1), found
    assert message in found.error


WITHOUT = """
import json, sys
from importlib.machinery import PathFinder
packages, commands, code = map(json.loads, sys.argv[1:])
find = PathFinder.find_spec  # scipy takes None in sys.modules for torch
PathFinder.find_spec = lambda name, *more: None if name in packages else find(name, *more)
from calibrant.cli import main
for command in commands:
    try:
        main(command.split())
    except SystemExit as ended:
        print(f"[{ended.code or 0}]", file=sys.stderr)
exec(code)
"""


def run_without(
    packages: Iterable[str], commands: Iterable[str], folder: Path, code: str = ""
) -> list[tuple[str, int]]:
    """Errors and status of commands, then of code, in a process where packages are not installed."""
    given = [json.dumps(each) for each in (list(packages), list(commands), code)]
    command = [sys.executable, "-c", WITHOUT, *given]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(text, int(status)) for text, status in re.findall(r"(.*?)\[(\d+)\]\n", done.stderr, re.DOTALL)]
