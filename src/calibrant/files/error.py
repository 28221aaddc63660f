"""Errors of files, in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FileError(ValueError):
    """Error of a file that a user gave: one line that names the file and the remedy."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {' '.join(problem.split())}")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Prefix errors about the contents of a file with its name."""
    try:
        yield
    except FileError:
        raise
    except MemoryError as error:
        said = str(error).removeprefix(f"{path}: ")
        missing = "does not fit into memory: write it as .parquet or .csv for --engine duckdb"
        raise FileError(path, said if "memory limit" in said else missing) from error
    except PermissionError as error:
        raise FileError(path, "permission denied: change its mode, or run as its owner") from error
    except (ValueError, TypeError) as error:
        raise FileError(path, str(error).removeprefix(f"{path}: ")) from error
