"""Find and check the official files of data sets."""

import gzip
import hashlib
import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from calibrant.files import FileError


class Source(NamedTuple):
    """Where a data set can be downloaded."""

    name: str
    files: str  # files that belong in the data folder
    site: str
    hub: str  # its id on the Hugging Face hub

    def lacking(self, folder: Path, problem: str) -> FileError:
        """The error for a folder without the files."""
        where = "there"
        if not folder.exists():
            problem = "no such folder"
        elif not folder.is_dir():
            problem, where = "is a file, not a folder (if it is an archive, unpack it)", "in a folder"
        return FileError(
            folder,
            f"{problem}: download {self.files} from {self.site} and put them {where}, or leave out --data-dir to use "
            f"{self.hub} from the Hugging Face hub (pip install 'calibrant[hf]')",
        )


def find_files(
    folder: Path, below: str, names: Sequence[str], source: Source, suffixes: Sequence[str] = ("", ".gz")
) -> list[Path]:
    """The files of these names, in the folder or its subfolder."""
    places = (folder, folder / below)
    found: dict[str, Path] = {}
    for name, place, suffix in product(names, places, suffixes):
        path = place / f"{name}{suffix}"
        if name not in found and path.is_file():
            found[name] = path
    if missing := [name for name in names if name not in found]:
        or_packed = " (or .gz)" if len(suffixes) > 1 else ""
        raise source.lacking(folder, f"has no {', '.join(missing)}{or_packed}, looked in {', '.join(map(str, places))}")
    return list(found.values())


def unpacked(path: Path, content: bytes, source: Source) -> bytes:
    """The content of a file, decompressed if its name ends in ``.gz``."""
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(path, f"is damaged or truncated ({error}): download it again from {source.site}") from error


def md5(content: bytes) -> str:
    """The published kind of checksum: it detects damage, not tampering."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def wrong_checksum(path: Path, expected: str, found: str, source: Source) -> FileError:
    """The error for a file that is not the published one."""
    return FileError(
        path,
        f"has md5 {found}, but the published file has {expected}: it is damaged or not the original; delete it and "
        f"download it again from {source.site}",
    )
