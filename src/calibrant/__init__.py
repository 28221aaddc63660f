"""Calibrant: neural networks that say how sure they are, and are right about it."""

from typing import TYPE_CHECKING, Any

from calibrant import functional
from calibrant.objectives.adafocal import AdaFocalLoss
from calibrant.objectives.avuc import AvUCLoss, SoftAvUCLoss
from calibrant.objectives.brier import BrierLoss
from calibrant.objectives.bsce_gra import BSCEGRALoss
from calibrant.objectives.cals import CALSLoss
from calibrant.objectives.dca import DCALoss
from calibrant.objectives.ece import ECELoss
from calibrant.objectives.ece_kde import ECEKDELoss
from calibrant.objectives.esd import ESDLoss
from calibrant.objectives.focal import DualFocalLoss, FocalLoss
from calibrant.objectives.label_smoothing import LabelSmoothingLoss, MarginLabelSmoothingLoss
from calibrant.objectives.logit_norm import LogitNormLoss
from calibrant.objectives.mdca import MDCALoss
from calibrant.objectives.mmce import MMCELoss, WeightedMMCELoss
from calibrant.objectives.soft_binned_ece import SoftBinnedECELoss

if TYPE_CHECKING:
    from calibrant import estimators, metrics, posthoc, report, training

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
    "estimators",
    "functional",
    "metrics",
    "posthoc",
    "report",
    "training",
]


def __getattr__(name: str) -> Any:
    # Subpackages that training does not need are imported when first used.
    if name in ("estimators", "metrics", "posthoc", "report", "training"):
        import importlib

        return importlib.import_module(f"calibrant.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
