"""Calibrant: check, recalibrate and train the confidence of classifiers."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant import functional, metrics, posthoc, report, sklearn, training
    from calibrant.losses.adafocal import AdaFocalLoss
    from calibrant.losses.avuc import AvUCLoss, SoftAvUCLoss
    from calibrant.losses.brier import BrierLoss
    from calibrant.losses.bsce_gra import BSCEGRALoss
    from calibrant.losses.cals import CALSLoss
    from calibrant.losses.dca import DCALoss
    from calibrant.losses.ece import ECELoss
    from calibrant.losses.ece_kde import ECEKDELoss
    from calibrant.losses.esd import ESDLoss
    from calibrant.losses.focal import DualFocalLoss, FocalLoss
    from calibrant.losses.label_smoothing import LabelSmoothingLoss, MarginLabelSmoothingLoss
    from calibrant.losses.logit_norm import LogitNormLoss
    from calibrant.losses.mdca import MDCALoss
    from calibrant.losses.mmce import MMCELoss, WeightedMMCELoss
    from calibrant.losses.soft_binned_ece import SoftBinnedECELoss

__version__ = "0.2.0"

# Everything is imported when it is first used: an audit needs no torch, and a training no metrics.
PARTS = ("functional", "metrics", "posthoc", "report", "sklearn", "training")
LOSSES = {
    "AdaFocalLoss": "adafocal",
    "AvUCLoss": "avuc",
    "BSCEGRALoss": "bsce_gra",
    "BrierLoss": "brier",
    "CALSLoss": "cals",
    "DCALoss": "dca",
    "DualFocalLoss": "focal",
    "ECEKDELoss": "ece_kde",
    "ECELoss": "ece",
    "ESDLoss": "esd",
    "FocalLoss": "focal",
    "LabelSmoothingLoss": "label_smoothing",
    "LogitNormLoss": "logit_norm",
    "MDCALoss": "mdca",
    "MMCELoss": "mmce",
    "MarginLabelSmoothingLoss": "label_smoothing",
    "SoftAvUCLoss": "avuc",
    "SoftBinnedECELoss": "soft_binned_ece",
    "WeightedMMCELoss": "mmce",
}

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
    if name in PARTS:
        return importlib.import_module(f"calibrant.{name}")
    if name in LOSSES:
        try:
            module = importlib.import_module(f"calibrant.losses.{LOSSES[name]}")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(f"{name} needs torch: install it") from None
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
