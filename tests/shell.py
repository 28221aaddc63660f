"""The command `calibrant`, called in this process."""

import json
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
