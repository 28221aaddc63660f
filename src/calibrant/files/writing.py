"""Atomic writing of files."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant.files.error import FileError
from calibrant.files.formats import SUFFIXES, Column


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


def write_predictions(
    path: Path, values: Column, target: Column | None, *, kind: Literal["logits", "probabilities"] = "probabilities"
) -> None:
    """Write ``(N, C)`` logits or probabilities, and the target if known, in the format of the file's name."""
    labels = {} if target is None else {"target": target}
    columns = {f"{kind}_{k}": values[:, k] for k in range(values.shape[1])} | labels
    with whole_or_not_at_all(path) as temporary, temporary.open("wb") as file:
        match path.suffix.lower():
            case ".npz":
                arrays: dict[str, Any] = {kind: values, **labels}
                np.savez(file, **arrays)
            case ".csv":
                digits = "%.9g" if values.dtype == np.float32 else "%.17g"
                formats = [digits] * values.shape[1] + ["%d"] * len(labels)
                table = np.column_stack(list(columns.values()))
                np.savetxt(file, table, delimiter=",", header=",".join(columns), comments="", fmt=formats)
            case ".parquet":
                import pyarrow
                import pyarrow.parquet

                pyarrow.parquet.write_table(pyarrow.table(columns), file)
            case _:
                raise FileError(path, f"expected one of {', '.join(SUFFIXES)}")
