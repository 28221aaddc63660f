"""JSON files that are written whole or not at all."""

import json
import math
from pathlib import Path
from typing import Any

from calibrant.files.error import FileError
from calibrant.files.writing import write_whole


def write_json(path: Path, content: Any) -> None:
    """Write plain values; NaN and infinity become null."""
    write_whole(path, json_text(content) + "\n")


def json_text(content: Any, *, ensure_ascii: bool = True) -> str:
    """Plain values as JSON; NaN and infinity, which JSON does not have, become null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False, ensure_ascii=ensure_ascii)


def read_json(path: Path) -> Any:
    """Read a file written by :func:`write_json`; errors name the file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FileError(path, f"is not valid JSON: {error}") from error


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
