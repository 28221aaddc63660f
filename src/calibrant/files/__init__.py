"""Files of predictions: read with errors that name the file and the fix, written atomically."""

from calibrant.files.error import FileError, naming
from calibrant.files.formats import SUFFIXES, Column
from calibrant.files.reading import Source, fits_in_memory, read_predictions, read_source
from calibrant.files.writing import whole_or_not_at_all, write_predictions

__all__ = [
    "SUFFIXES",
    "Column",
    "FileError",
    "Source",
    "fits_in_memory",
    "naming",
    "read_predictions",
    "read_source",
    "whole_or_not_at_all",
    "write_predictions",
]
