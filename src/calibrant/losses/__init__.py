"""Trainable calibration objectives, modules of ``(logits, target)``: one family per file."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise ImportError("the losses need torch: pip install 'calibrant[torch]'") from None

from calibrant.losses.avuc import AvUCLoss as AvUCLoss
from calibrant.losses.avuc import SoftAvUCLoss as SoftAvUCLoss
from calibrant.losses.ece import DCALoss as DCALoss
from calibrant.losses.ece import ECELoss as ECELoss
from calibrant.losses.ece import MDCALoss as MDCALoss
from calibrant.losses.ece import SoftBinnedECELoss as SoftBinnedECELoss
from calibrant.losses.ece_kde import ECEKDELoss as ECEKDELoss
from calibrant.losses.esd import ESDLoss as ESDLoss
from calibrant.losses.focal import AdaFocalLoss as AdaFocalLoss
from calibrant.losses.focal import BrierLoss as BrierLoss
from calibrant.losses.focal import BSCEGRALoss as BSCEGRALoss
from calibrant.losses.focal import DualFocalLoss as DualFocalLoss
from calibrant.losses.focal import FocalLoss as FocalLoss
from calibrant.losses.mmce import MMCELoss as MMCELoss
from calibrant.losses.mmce import WeightedMMCELoss as WeightedMMCELoss
from calibrant.losses.smoothing import CALSLoss as CALSLoss
from calibrant.losses.smoothing import LabelSmoothingLoss as LabelSmoothingLoss
from calibrant.losses.smoothing import LogitNormLoss as LogitNormLoss
from calibrant.losses.smoothing import MarginLabelSmoothingLoss as MarginLabelSmoothingLoss
