"""The command `calibrant`, called in this process."""

import pytest

from calibrant.cli import main


def run(*arguments: object) -> int:
    """Run a command line; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    code = ended.value.code
    return code if isinstance(code, int) else 0
