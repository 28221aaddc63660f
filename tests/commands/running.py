"""A command, run in this process."""

import json
from typing import Any, NamedTuple

import pytest

from calibrant.cli import main


class Ended(NamedTuple):
    """Status, output on one line, output as JSON if it is, and errors of a command."""

    status: int
    shown: str
    json: Any
    error: str


def run(*arguments: object) -> int:
    """Status of a command."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def ended(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ended:
    """All that a command gives."""
    status = run(*arguments)
    screen = capsys.readouterr()
    found = json.loads(screen.out) if "--json" in arguments and screen.out else None
    return Ended(status, " ".join(screen.out.split()), found, screen.err)


def refused(capsys: pytest.CaptureFixture[str], message: str, *arguments: object) -> None:
    """Assert that a command ends with status 2 and one line that has this message."""
    found = ended(capsys, *arguments)
    assert (found.status, found.shown, found.error.count("\n")) == (2, "", 1), found
    assert message in found.error
