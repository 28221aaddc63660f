"""What is wrong with a file, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileError(ValueError):
    """Something is wrong with a file a user gave: one line that names it and says what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {' '.join(problem.split())}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of what is wrong with its contents."""
    try:
        yield
    except FileError:
        raise
    except MemoryError as error:
        raise FileError(path, "does not fit into memory: write it as .parquet or .csv for --engine duckdb") from error
    except PermissionError as error:
        raise FileError(path, "permission denied: change its mode, or run as its owner") from error
    except (ValueError, TypeError) as error:
        raise FileError(path, str(error).removeprefix(f"{path}: ")) from error
