"""NumPy's files: arrays by name in ``.npz``, one array each in ``.npy``; nothing is unpickled."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.files.error import FileError

Array = np.ndarray[Any, Any]
# First bytes of an .npz file, which is a zip file.
BEGIN = b"PK\x03\x04"
DAMAGE = (ValueError, zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)


class Npz:
    """Arrays by name, as ``numpy.savez`` writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = path.open("rb")  # by hand, because numpy leaves it open when it is not a zip file
        try:
            loaded = np.load(self.handle, allow_pickle=False)
        except (zipfile.BadZipFile, OSError, ValueError, EOFError) as error:
            self.handle.seek(0)
            begins = self.handle.read(4) == BEGIN
            self.handle.close()
            what = "is cut short: save it again" if begins else "is not an .npz file: write it with numpy.savez"
            raise FileError(path, what) from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            self.handle.close()
            raise FileError(path, "holds a single array: write it with numpy.savez and a name for each array")
        self.file = loaded

    def close(self) -> None:
        """Close the file."""
        self.file.close()
        self.handle.close()

    def names(self) -> list[str]:
        """Names of the arrays."""
        return list(self.file.files)

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Arrays by name."""
        return {name: self._read(name) for name in names}

    def _read(self, name: str) -> Array:
        try:
            array: Any = self.file[name]
        except DAMAGE as error:
            raise _unreadable(self.path, repr(name), error) from error
        if not isinstance(array, np.ndarray):
            raise FileError(self.path, f"{name!r} is not an array: write it with numpy.savez")
        return array


class Npy:
    """One array, as ``numpy.save`` writes it, and its neighbours: each is called as its file is.

    ``test_logits.npy`` is ``logits``, and with it belongs ``test_target.npy``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        start, _, _ = path.stem.rpartition("_")
        beside = sorted(path.parent.glob("*.npy"))
        same = {each.stem.removeprefix(f"{start}_"): each for each in beside if each.stem.startswith(f"{start}_")}
        self.files = {each.stem: each for each in beside} | (same if start else {})

    def add(self, name: str) -> None:
        """Add an array by the path of its file."""
        if name not in self.files and Path(name).is_file():
            self.files[name] = Path(name)

    def check_values(self, values: str, labels: Sequence[str]) -> tuple[str, ...]:
        """Return a notice of where the labels are read from.

        Raises:
            ValueError: If the values would be read from another file than the given one.
        """
        if self.files[values] != self.path:
            stem = self.path.stem
            raise ValueError(f"its name does not say what it holds: give --logits {stem} or --probabilities {stem}")
        return tuple(f"the labels are read from {self.files[name].name}" for name in labels)

    def close(self) -> None:
        """Nothing stays open."""

    def names(self) -> list[str]:
        """Names of the arrays; that of the given file comes first."""
        own = [name for name, path in self.files.items() if path == self.path]
        return [*own, *(name for name in self.files if name not in own)]

    def read(self, names: Sequence[str]) -> dict[str, Array]:
        """Arrays by name; a name may also be the path of another file."""
        return {name: _read_npy(self.files.get(name) or Path(name)) for name in names}


def _read_npy(path: Path) -> Array:
    if not path.is_file():
        raise FileError(path, "no such file")
    try:
        array: Any = np.load(path, allow_pickle=False)
    except DAMAGE as error:
        raise _unreadable(path, "it", error) from error
    if not isinstance(array, np.ndarray):
        raise FileError(path, "is not an .npy file: write it with numpy.save")
    return array


def _unreadable(path: Path, what: str, error: Exception) -> FileError:
    if "allow_pickle" in str(error):
        return FileError(path, f"{what} holds Python objects: save an array of numbers, or of text with .astype(str)")
    return FileError(path, f"{what} cannot be read, as it is damaged or cut short: save it again")
