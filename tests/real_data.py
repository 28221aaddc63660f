"""Published data sets, in the folder that the environment variable CALIBRANT_DATA names."""

import os
from pathlib import Path

import pytest


def real(name: str) -> Path:
    """A file or a folder of published data; the test is skipped without it."""
    folder = os.environ.get("CALIBRANT_DATA")
    path = Path(folder or "", name).resolve()
    if not folder or not path.exists():
        where = f"is not in {folder}" if folder else "is looked for in the folder that CALIBRANT_DATA names"
        pytest.skip(f'{name} {where}: "Data sets" in CONTRIBUTING.md says where to get it')
    return path
