"""The objectives as pure functions.

Those of ``(confidence, correct)`` are the numerical core, as in the papers; those of
``(logits, target)`` take the output of a network.
"""

from calibrant.objectives.adafocal import adafocal
from calibrant.objectives.avuc import avuc, entropy_threshold, soft_avuc
from calibrant.objectives.brier import brier
from calibrant.objectives.bsce_gra import bsce_gra
from calibrant.objectives.cals import cals
from calibrant.objectives.dca import dca
from calibrant.objectives.ece import ece
from calibrant.objectives.ece_kde import ece_kde, kde_bandwidth
from calibrant.objectives.esd import esd
from calibrant.objectives.focal import dual_focal, focal
from calibrant.objectives.label_smoothing import label_smoothing, margin_label_smoothing
from calibrant.objectives.logit_norm import logit_norm
from calibrant.objectives.mdca import mdca
from calibrant.objectives.mmce import mmce, mmce_weighted
from calibrant.objectives.soft_binned_ece import soft_binned_ece

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
