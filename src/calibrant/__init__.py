"""Calibrant: check, recalibrate and train the confidence of classifiers."""
# ruff: noqa: F405 (the names are those of calibrant.losses)

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant import functional, metrics, posthoc, report, sklearn, training
    from calibrant.losses import *  # noqa: F403

__version__ = "0.2.0"

__all__ = [
    "AdaFocalLoss",
    "AvUCLoss",
    "BSCEGRALoss",
    "BrierLoss",
    "CALSLoss",
    "DCALoss",
    "DualFocalLoss",
    "ECEKDELoss",
    "ECELoss",
    "ESDLoss",
    "FocalLoss",
    "LabelSmoothingLoss",
    "LogitNormLoss",
    "MDCALoss",
    "MMCELoss",
    "MarginLabelSmoothingLoss",
    "SoftAvUCLoss",
    "SoftBinnedECELoss",
    "WeightedMMCELoss",
    "functional",
    "metrics",
    "posthoc",
    "report",
    "sklearn",
    "training",
]


def __getattr__(name: str) -> Any:
    """Import a part, or the losses, when it is first used: an audit needs no torch, and training no metrics."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.endswith("Loss"):
        return getattr(importlib.import_module("calibrant.losses"), name)
    return importlib.import_module(f"calibrant.{name}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
