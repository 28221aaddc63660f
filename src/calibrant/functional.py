"""The objectives as pure functions.

Those of ``(confidence, correct)`` are the numerical core, as in the papers; those of
``(logits, target)`` take the output of a network.
"""

from calibrant.losses.adafocal import adafocal
from calibrant.losses.avuc import avuc, entropy_threshold, soft_avuc
from calibrant.losses.brier import brier
from calibrant.losses.bsce_gra import bsce_gra
from calibrant.losses.cals import cals
from calibrant.losses.dca import dca
from calibrant.losses.ece import ece
from calibrant.losses.ece_kde import ece_kde, kde_bandwidth
from calibrant.losses.esd import esd
from calibrant.losses.focal import dual_focal, focal
from calibrant.losses.label_smoothing import label_smoothing, margin_label_smoothing
from calibrant.losses.logit_norm import logit_norm
from calibrant.losses.mdca import mdca
from calibrant.losses.mmce import mmce, mmce_weighted
from calibrant.losses.soft_binned_ece import soft_binned_ece

__all__ = [
    "adafocal",
    "avuc",
    "brier",
    "bsce_gra",
    "cals",
    "dca",
    "dual_focal",
    "ece",
    "ece_kde",
    "entropy_threshold",
    "esd",
    "focal",
    "kde_bandwidth",
    "label_smoothing",
    "logit_norm",
    "margin_label_smoothing",
    "mdca",
    "mmce",
    "mmce_weighted",
    "soft_avuc",
    "soft_binned_ece",
]
