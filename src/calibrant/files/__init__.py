"""Files of predictions: read with errors that name the file and the fix, written atomically."""

from calibrant.atomic import FileError, whole_or_not_at_all, write_whole
from calibrant.files.formats import Array, naming
from calibrant.files.read import Source, digest, fits_in_memory, notices_of_start, read_predictions, read_source
from calibrant.files.write import (
    WRITTEN,
    check_output,
    json_text,
    output_beside,
    read_json,
    write_calibrated,
    write_json,
    write_predictions,
)

__all__ = [
    "WRITTEN",
    "Array",
    "FileError",
    "Source",
    "check_output",
    "digest",
    "fits_in_memory",
    "json_text",
    "naming",
    "notices_of_start",
    "output_beside",
    "read_json",
    "read_predictions",
    "read_source",
    "whole_or_not_at_all",
    "write_calibrated",
    "write_json",
    "write_predictions",
    "write_whole",
]
