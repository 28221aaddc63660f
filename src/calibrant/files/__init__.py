"""Files of predictions: read with errors that name the file and the fix, written atomically."""

from calibrant.files.error import FileError, naming
from calibrant.files.formats import SUFFIXES, Column
from calibrant.files.json_files import json_text, read_json, write_json
from calibrant.files.reading import Source, fits_in_memory, read_predictions, read_source
from calibrant.files.writing import whole_or_not_at_all, write_predictions, write_whole

__all__ = [
    "SUFFIXES",
    "Column",
    "FileError",
    "Source",
    "fits_in_memory",
    "json_text",
    "naming",
    "read_json",
    "read_predictions",
    "read_source",
    "whole_or_not_at_all",
    "write_json",
    "write_predictions",
    "write_whole",
]
