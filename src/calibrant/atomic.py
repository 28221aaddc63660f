"""Files written whole or not at all, and the error of a file that a user named."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileError(ValueError):
    """Error of a file that a user gave: one line that names the file and the remedy."""

    def __init__(self, path: str | os.PathLike[str], problem: str) -> None:
        super().__init__(f"{path}: {' '.join(problem.split())}")


def checked_place(path: Path) -> Path:
    """Where a file is written, at the end of links; an error if it cannot be, as in place of a folder or a device."""
    real = Path(os.path.realpath(path))
    if os.access(real, os.F_OK) and not real.is_file():
        raise FileError(path, "is a folder: give the name of a file" if real.is_dir() else "is not a regular file")
    folder = next(parent for parent in real.parents if os.access(parent, os.F_OK))
    if not folder.is_dir():
        raise FileError(path, f"cannot be written: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(path, f"cannot be written: permission denied in {folder}")
    return real


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, and rename it to ``path`` only if the block succeeds.

    A link is followed: its target is replaced, not the link.
    """
    real = checked_place(path)
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{real.stem[:50]}-", suffix=real.suffix, dir=real.parent)
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
