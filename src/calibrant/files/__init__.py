"""Files of predictions: read with errors that name the file and the fix, written atomically."""

from calibrant.atomic import FileError, whole_or_not_at_all, write_whole
from calibrant.files.formats import naming
from calibrant.files.read import Source, read_predictions, read_source
from calibrant.files.write import read_json, write_json, write_predictions

__all__ = [
    "FileError",
    "Source",
    "naming",
    "read_json",
    "read_predictions",
    "read_source",
    "whole_or_not_at_all",
    "write_json",
    "write_predictions",
    "write_whole",
]
