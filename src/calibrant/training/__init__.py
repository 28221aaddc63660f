"""Interleaved training: the NLL on one part of the training data, a calibration objective on another, jointly."""

from typing import TYPE_CHECKING, Any

from calibrant.training.calibrated_loss import CalibratedLoss
from calibrant.training.finetune import Calibrated, calibrate
from calibrant.training.finishing import Finished
from calibrant.training.forward import freeze_batchnorm_statistics
from calibrant.training.interleave import InterleavedBatch, InterleavedLoader, interleave
from calibrant.training.last_layer import scale_output
from calibrant.training.randomness import random_state, set_random_state
from calibrant.training.search import SearchResult, search
from calibrant.training.split import interleaved_split
from calibrant.training.warning import CalibrationWarning

if TYPE_CHECKING:
    from calibrant.training.callback import TemperatureInTheLoop
    from calibrant.training.huggingface import CalibratedTrainer
    from calibrant.training.lightning import CalibratedClassifier, InterleavedDataModule
    from calibrant.training.stopping import StopAfterTemperature
    from calibrant.training.stopping_huggingface import StopTrainerAfterTemperature

__all__ = [
    "Calibrated",
    "CalibratedClassifier",
    "CalibratedLoss",
    "CalibratedTrainer",
    "CalibrationWarning",
    "Finished",
    "InterleavedBatch",
    "InterleavedDataModule",
    "InterleavedLoader",
    "SearchResult",
    "StopAfterTemperature",
    "StopTrainerAfterTemperature",
    "TemperatureInTheLoop",
    "calibrate",
    "freeze_batchnorm_statistics",
    "interleave",
    "interleaved_split",
    "random_state",
    "scale_output",
    "search",
    "set_random_state",
]

_HOMES = {
    "CalibratedClassifier": ("lightning", "lightning"),
    "InterleavedDataModule": ("lightning", "lightning"),
    "StopAfterTemperature": ("stopping", "lightning"),
    "TemperatureInTheLoop": ("callback", "lightning"),
    "CalibratedTrainer": ("huggingface", "hf"),
    "StopTrainerAfterTemperature": ("stopping_huggingface", "hf"),
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
    return sorted({*globals(), *__all__})
