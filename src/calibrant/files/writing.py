"""Atomic writing of files, and never over a file that is read."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.files.error import FileError
from calibrant.tables import files_of, is_table


def refuse_overwriting(path: Path, option: str, used: Iterable[Path | None]) -> None:
    """Refuse to write to a file that is read, or is another output; links and files of a folder are the same file.

    Args:
        path: File to write.
        option: Option that names it.
        used: Files, folders and patterns that are not to be overwritten; None is passed over.

    Raises:
        FileError: If it is one of them.
    """
    if any(_is_same(path, file) for each in used if each is not None for file in _files(each)):
        raise FileError(path, f"would be overwritten: choose another {option}")


def _files(path: Path) -> list[Path]:
    try:
        return [path, *map(Path, files_of(str(path)))] if is_table(path) else [path]
    except (OSError, ValueError):  # reading it says what is wrong
        return [path]


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one is yet to be written
        return os.path.realpath(one) == os.path.realpath(other)


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, and rename it to ``path`` only if the block succeeds.

    A link is followed: its target is replaced, not the link. A device or a pipe is an error.
    """
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise FileError(path, "is a folder" if real.is_dir() else "is not a regular file")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{real.stem[:50]}-", suffix=real.suffix, dir=real.parent)
    except FileExistsError as error:
        raise FileError(path, "cannot be written: its folder is a file") from error
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # temporary files are private; results are like any other file
        temporary.replace(real)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write text or bytes to a file, whole or not at all."""
    with whole_or_not_at_all(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
