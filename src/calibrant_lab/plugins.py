"""Objects found by name: a built-in one, ``package.module:name``, or ``./file.py:name``."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


class UnknownNameError(ValueError):
    """A name that this installation does not know."""


def find(reference: str, kind: str, built_in: Mapping[str, Any]) -> Any:
    """Find an object.

    Args:
        reference: Name of a built-in object, ``package.module:name`` or ``path/to/file.py:name``.
        kind: What it is, for the error message.
        built_in: The built-in objects by name.

    Raises:
        UnknownNameError: There is no such object.
    """
    if reference in built_in:
        return built_in[reference]
    place, colon, name = reference.rpartition(":")
    if not colon:
        close = get_close_matches(reference, built_in, n=1)
        meant = f", did you mean {close[0]}" if close else ""
        raise UnknownNameError(
            f"there is no {kind} {reference!r}{meant}: there are {', '.join(built_in)}, and package.module:name or "
            "./file.py:name for your own"
        )
    module = _module(place, kind, reference)
    if not hasattr(module, name):
        raise UnknownNameError(f"{place} has no {kind} {name!r}: define it at the top level of that file")
    return getattr(module, name)


def absolute(reference: str) -> str:
    """A reference that means the same in any working directory.

    Example:
        >>> absolute("esd"), absolute("package.module:name")
        ('esd', 'package.module:name')
    """
    place, _, name = reference.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else reference


def short(reference: str) -> str:
    """A reference without the folder of its file: what a table calls it, and what identifies a trial.

    Example:
        >>> short("/home/someone/wine.py:wine"), short("mnist")
        ('wine.py:wine', 'mnist')
    """
    place, _, name = reference.rpartition(":")
    return f"{Path(place).name}:{name}" if place.endswith(".py") else reference


def source_digest(reference: str) -> str | None:
    """Sixteen digits that change with the source file of an object from outside; None for a built-in one."""
    place, colon, _ = reference.rpartition(":")
    if not colon:
        return None
    if place.endswith(".py"):
        path = Path(place)
    else:
        spec = importlib.util.find_spec(place)
        path = Path(spec.origin) if spec is not None and spec.origin else Path()
    return digest_of(path) if path.is_file() else None


def digest_of(path: Path) -> str:
    """Sixteen digits that change with the content of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _module(place: str, kind: str, reference: str) -> ModuleType:
    try:
        return _from_file(Path(place).resolve()) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # whatever the code of others raises
        reason = (
            str(error) if isinstance(error, ImportError | FileNotFoundError) else f"{type(error).__name__}: {error}"
        )
        raise UnknownNameError(f"{kind} {reference!r} cannot be loaded ({reason}): check the path") from error


@cache
def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    # A name of its own, since two folders may each have a file of this name.
    name = f"calibrant_plugin_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # noqa: S101 (the name ends in .py)
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))  # its neighbours can be imported, as from a script
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module
