"""The name of a trial: a hash of its configuration."""

import hashlib
import json
from dataclasses import asdict, fields
from functools import cache
from typing import Any, get_args, get_type_hints

from calibrant_lab.configuration import Configuration

# All that there were when trials were first stored.
FIRST_SETTINGS = {
    "recipe", "model", "objective", "weight", "seed", "epochs", "batch_size", "calibration_fraction",
    "calibration_batch_size", "calibration_every", "reduced_split", "batchnorm", "learning_rate", "weight_decay",
    "root", "bandwidth", "softness", "gamma", "smoothing", "validation_fraction", "image_size", "crop_padding", "flip",
    "mean", "std", "noise", "max_length", "initial_weights", "class_list", "workers",
}  # fmt: skip


@cache
def identity(configuration: Configuration) -> str:
    """Sixteen hexadecimal digits, the same for equal configurations everywhere.

    A setting that came later counts only where it differs from its default: trials from before it keep their identity.

    Example:
        >>> identity(Configuration("mnist", "lenet5"))
        '376cd65c3816fe7a'
    """
    types = get_type_hints(type(configuration))
    defaults = {field.name: field.default for field in fields(configuration)}
    counted = {
        name: _canonical(value, types[name])
        for name, value in asdict(configuration).items()
        if name in FIRST_SETTINGS or value != defaults[name]
    }
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()[:16]


def _canonical(value: Any, kind: Any) -> Any:
    """Numbers that are equal are written alike: 1 as 1.0, and -0.0 as 0.0."""
    if value is None or float not in (kind, *get_args(kind)):
        return value
    return [float(one) + 0.0 for one in value] if isinstance(value, tuple) else float(value) + 0.0
