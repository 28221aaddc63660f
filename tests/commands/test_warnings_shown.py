"""Warnings on the terminal, each once, and above a progress bar."""

import io
import sys
import warnings

import pytest
from rich.console import Console

from calibrant.commands.terminal import timed_bar, warnings_shown


def test_a_warning_is_printed_once_and_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    console = Console(stderr=True, force_terminal=True, width=100)
    with warnings_shown(), timed_bar(console) as progress:
        warnings.simplefilter("always")
        progress.add_task("training", total=None)
        progress.refresh()
        for _ in range(2):
            warnings.warn("the fit is a:b:c [doubtful]", UserWarning, stacklevel=1)
    [before] = screen.getvalue().split("warning: the fit is a:b:c [doubtful]")[:-1]
    assert before.endswith("\r\x1b[2K")  # the line of the bar is cleared first
