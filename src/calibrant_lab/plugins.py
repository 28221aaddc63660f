"""Objects found by name: a built-in one, ``package.module:name``, or ``./file.py:name``."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


class UnknownNameError(ValueError):
    """A name that this installation does not know."""


def find(reference: str, kind: str, built_in: Mapping[str, Any]) -> Any:
    """Find an object by name among the built-in ones, or import it; ``kind`` is for the error message."""
    if reference in built_in:
        return built_in[reference]
    place, colon, name = reference.rpartition(":")
    if not colon:
        raise UnknownNameError(
            f"unknown {kind} {reference!r}{meant(reference, built_in)}: choose from {', '.join(built_in)}, "
            "or give package.module:name or ./file.py:name"
        )
    module = _module(place, kind, reference)
    if not hasattr(module, name):
        # Do not offer imported modules, functions and classes; other objects have no __name__.
        homes = {key: getattr(one, "__module__", "") for key, one in vars(module).items() if hasattr(one, "__name__")}
        near = meant(name, [key for key in vars(module) if homes.get(key, module.__name__) == module.__name__])
        raise UnknownNameError(f"{place} has no {kind} {name!r}{near}: define it at the top level of that file")
    return getattr(module, name)


def meant(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, as part of an error message; empty if none is close."""
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]}" if close else ""


def absolute(reference: str, folder: Path = Path()) -> str:
    """Make a reference independent of the working directory; relative paths are relative to the folder."""
    place, _, name = reference.rpartition(":")
    return f"{(folder / place).resolve()}:{name}" if place.endswith(".py") else reference


def short(reference: str) -> str:
    """A reference without the folder of its file: its name in tables and in the identity of a trial."""
    place, _, name = reference.rpartition(":")
    return f"{Path(place).name}:{name}" if place.endswith(".py") else reference


def source_digest(reference: str) -> str | None:
    """Hash, 16 digits, of the source file of an object that is not built in; None for a built-in one."""
    place = reference.rpartition(":")[0]
    if place and not place.endswith(".py"):
        spec = importlib.util.find_spec(place)
        place = spec.origin or "" if spec is not None else ""
    return digest_of(Path(place)) if Path(place).is_file() else None


def digest_of(path: Path) -> str:
    """Hash, 16 digits, of the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _module(place: str, kind: str, reference: str) -> ModuleType:
    path = Path(place).resolve()
    # As in a script, neighbouring files can be imported, later too. The folder is last, so it shadows nothing.
    folder = str(path.parent if place.endswith(".py") else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return _from_file(path) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # user code may raise anything
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise UnknownNameError(
            f"{kind} {reference!r} cannot be loaded ({type(error).__name__}: {error}{where}): check "
            "the path and the file"
        ) from error


@cache
def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    # A unique name, since two folders may each have a file of this name.
    name = f"calibrant_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # noqa: PT018, S101 (the name ends in .py)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
