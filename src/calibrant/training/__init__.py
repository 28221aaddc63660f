"""Interleaved training: the NLL on one part of the training data, a calibration objective on another, jointly."""

from typing import TYPE_CHECKING, Any

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise ImportError("calibrant.training needs torch: pip install 'calibrant[torch]'") from None

from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.finetune import finetune
from calibrant.training.guard import CalibrationWarning
from calibrant.training.held_out import interleaved_split
from calibrant.training.interleave import interleave

if TYPE_CHECKING:
    from calibrant.training.huggingface import InterleavedTrainer
    from calibrant.training.lightning import InterleavedModule
    from calibrant.training.lightning_callbacks import StopAfterTemperature, TemperatureInTheLoop
    from calibrant.training.lightning_data import InterleavedDataModule

__all__ = [
    "CalibratedLoss",
    "CalibrationWarning",
    "InterleavedDataModule",
    "InterleavedModule",
    "InterleavedTrainer",
    "StopAfterTemperature",
    "TemperatureInTheLoop",
    "finetune",
    "interleave",
    "interleaved_split",
]

_HOMES = {
    "InterleavedDataModule": ("lightning_data", "lightning"),
    "InterleavedModule": ("lightning", "lightning"),
    "StopAfterTemperature": ("lightning_callbacks", "lightning"),
    "TemperatureInTheLoop": ("lightning_callbacks", "lightning"),
    "InterleavedTrainer": ("huggingface", "hf"),
}


def __getattr__(name: str) -> Any:
    # Lightning and transformers take seconds to import: import them only when used.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, extra = _HOMES[name]
    try:
        return getattr(importlib.import_module(f"calibrant.training.{module}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{name} needs the package {error.name}: pip install 'calibrant[{extra}]'") from error


def __dir__() -> list[str]:
    return __all__
