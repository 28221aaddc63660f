"""JSON files that are written whole or not at all."""

import json
import math
from pathlib import Path
from typing import Any

from calibrant.files import FileError, whole_or_not_at_all


def write_json(path: Path, content: Any) -> None:
    """Write plain values; NaN and infinity become null."""
    text = json.dumps(_finite(content), indent=2, allow_nan=False)
    with whole_or_not_at_all(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


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
