"""Objectives by the names the command line knows them by."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

import calibrant as cal
from calibrant_lab.configuration import Configuration


class Losses(NamedTuple):
    """What is minimised on the training batch, None for the NLL; and what on the calibration batch, if anything."""

    loss: nn.Module | None
    objective: nn.Module | None


class _Method(NamedTuple):
    build: Callable[..., nn.Module]
    options: dict[str, str]  # setting -> keyword


ADDED: dict[str, _Method] = {
    "esd": _Method(cal.ESDLoss, {"root": "root"}),
    "mmce": _Method(cal.MMCELoss, {"root": "root", "bandwidth": "bandwidth"}),
    "weighted-mmce": _Method(cal.WeightedMMCELoss, {"root": "root", "bandwidth": "bandwidth"}),
    "sb-ece": _Method(cal.SoftBinnedECELoss, {"softness": "temperature"}),
    "s-avuc": _Method(cal.SoftAvUCLoss, {"softness": "temperature"}),
    "avuc": _Method(cal.AvUCLoss, {}),
    "ece": _Method(cal.ECELoss, {}),
    "mdca": _Method(cal.MDCALoss, {}),
    "dca": _Method(cal.DCALoss, {}),
    "ece-kde": _Method(cal.ECEKDELoss, {"bandwidth": "bandwidth"}),
}
REPLACING: dict[str, _Method] = {
    "focal": _Method(cal.FocalLoss, {"gamma": "gamma"}),
    "dual-focal": _Method(cal.DualFocalLoss, {"gamma": "gamma"}),
    "label-smoothing": _Method(cal.LabelSmoothingLoss, {"smoothing": "smoothing"}),
    "margin-label-smoothing": _Method(cal.MarginLabelSmoothingLoss, {}),
    "brier": _Method(cal.BrierLoss, {}),
    "bsce-gra": _Method(cal.BSCEGRALoss, {}),
    "adafocal": _Method(cal.AdaFocalLoss, {}),
    "cals": _Method(cal.CALSLoss, {}),
    "logit-norm": _Method(cal.LogitNormLoss, {}),
}
ABBREVIATIONS = ("nll", "esd", "mmce", "sb-ece", "ece", "mdca", "dca", "ece-kde", "bsce-gra", "cals")
# A setting that is not given, and so need not be one of the objective's.
_NOT_GIVEN = {"root": True, "bandwidth": None, "softness": None, "gamma": None, "smoothing": None}


def losses(configuration: Configuration) -> Losses:
    """The modules a configuration names."""
    name = configuration.objective
    given = {
        option: value for option, nothing in _NOT_GIVEN.items() if (value := getattr(configuration, option)) != nothing
    }
    if configuration.method in ("temperature", "head") and name in ADDED:
        raise ValueError(f"method {configuration.method} has no objective beside the loss, got {name}: choose nll")
    if configuration.method == "temperature" and configuration.weight != 1:
        raise ValueError(f"method temperature has no weight, got {configuration.weight:g}: leave it out")
    if configuration.method == "published" and name not in ADDED:
        raise ValueError(f"method published needs an objective beside the NLL, got {name}: choose one such as esd")
    method = ADDED.get(name) or REPLACING.get(name)
    takes = method.options if method else {}
    for option in given.keys() - takes.keys():
        owners = [other for other, one in {**ADDED, **REPLACING}.items() if option in one.options]
        raise ValueError(f"{option} is a setting of {' and '.join(owners)}, not of {name}: leave it out")
    if method is None:
        return Losses(None, None)
    options: dict[str, Any] = {takes[option]: value for option, value in given.items()}
    module = method.build(**options)
    return Losses(None, module) if name in ADDED else Losses(module, None)


def holds_out(configuration: Configuration) -> bool:
    """Whether a run holds out a part of its training data."""
    return configuration.method is not None or configuration.objective in ADDED


def display_name(configuration: Configuration) -> str:
    """What a reader calls a run."""
    objective = configuration.objective
    name = objective.upper() if objective in ABBREVIATIONS else objective
    if configuration.method in ("temperature", "head"):
        way = "temperature in the loop" if configuration.method == "temperature" else "held-out loss through the head"
        return way if objective == "nll" else f"{name}, {way}"
    if objective not in ADDED:
        return name
    return f"NLL + {name}" + ("" if configuration.weight == 1 else f" (weight {configuration.weight:g})")
