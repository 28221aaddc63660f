"""Files of predictions: read with errors that name the file and the fix, written atomically."""

from calibrant.files.arrays import Array
from calibrant.files.error import FileError, naming
from calibrant.files.json_files import json_text, read_json, write_json
from calibrant.files.reading import digest, doubts_of_start, fits_in_memory, read_predictions, read_source
from calibrant.files.results import WRITTEN, output_beside, write_calibrated, write_predictions
from calibrant.files.source import SUFFIXES, Source
from calibrant.files.writing import refuse_overwriting, whole_or_not_at_all, write_whole

__all__ = [
    "SUFFIXES",
    "WRITTEN",
    "Array",
    "FileError",
    "Source",
    "digest",
    "doubts_of_start",
    "fits_in_memory",
    "json_text",
    "naming",
    "output_beside",
    "read_json",
    "read_predictions",
    "read_source",
    "refuse_overwriting",
    "whole_or_not_at_all",
    "write_calibrated",
    "write_json",
    "write_predictions",
    "write_whole",
]
