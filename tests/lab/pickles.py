"""A pickle that does harm where it is unpickled without care."""

from pathlib import Path
from typing import Any


class Intruder:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.mkdir, (self.folder,)
