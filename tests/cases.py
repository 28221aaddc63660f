"""One table of everything the suite runs over: name, function, its transcription, and the modules."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

import calibrant as cal
from calibrant import numerics
from calibrant.losses import base, checks
from calibrant.losses.base import PairObjective
from tests import reference

Function = Callable[[Tensor, Tensor], Tensor]


class Case(NamedTuple):
    """A function and its independent transcription, of (confidence, correct) or of (logits, target)."""

    function: Function
    reference: Function


PAIR_CASES: dict[str, Case] = {
    "esd": Case(cal.functional.esd, reference.esd),
    "mmce": Case(cal.functional.mmce, reference.mmce),
    "mmce bandwidth 1e-4": Case(lambda z, c: cal.functional.mmce(z, c, 1e-4), lambda z, c: reference.mmce(z, c, 1e-4)),
    "mmce unbiased": Case(
        lambda z, c: cal.functional.mmce(z, c, 0.2, unbiased=True), lambda z, c: reference.mmce(z, c, 0.2, True)
    ),
    "mmce weighted": Case(cal.functional.mmce_weighted, reference.mmce_weighted),
    "soft-binned ece": Case(cal.functional.soft_binned_ece, reference.soft_binned_ece),
    "soft-binned ece, binned": Case(
        lambda z, c: cal.functional.soft_binned_ece(z, c, form="binned"),
        lambda z, c: reference.soft_binned_ece(z, c, form="binned"),
    ),
    "soft-binned ece, cold": Case(
        lambda z, c: cal.functional.soft_binned_ece(z, c, temperature=1e-4),
        lambda z, c: reference.soft_binned_ece(z, c, temperature=1e-4),
    ),
    "soft-binned ece, norm 3": Case(
        lambda z, c: cal.functional.soft_binned_ece(z, c, bins=7, norm=3),
        lambda z, c: reference.soft_binned_ece(z, c, bins=7, norm=3),
    ),
    "ece": Case(cal.functional.ece, reference.ece),
    "dca": Case(cal.functional.dca, reference.dca),
}


def _avuc_logits(threshold: float) -> Case:
    def theirs(logits: Tensor, y: Tensor) -> Tensor:
        p = reference.softmax(logits)
        predicted = logits.argmax(1)
        confidence = p.gather(1, predicted[:, None])[:, 0]
        return reference.avuc(p, (predicted == y).to(p.dtype), threshold, confidence)

    return Case(cal.AvUCLoss(threshold), theirs)


def _soft_avuc_logits(threshold: float, temperature: float) -> Case:
    def theirs(logits: Tensor, y: Tensor) -> Tensor:
        p = reference.softmax(logits)
        return reference.soft_avuc(p, (logits.argmax(1) == y).to(p.dtype), threshold, temperature)

    return Case(cal.SoftAvUCLoss(threshold, temperature), theirs)


def _top_label(module: nn.Module, single: Function) -> Case:
    def theirs(logits: Tensor, y: Tensor) -> Tensor:
        predicted = logits.argmax(1)
        confidence = reference.softmax(logits).gather(1, predicted[:, None])[:, 0]
        return single(confidence, (predicted == y).to(logits.dtype))

    return Case(module, theirs)


def _class_wise(module: nn.Module, single: Function) -> Case:
    def theirs(logits: Tensor, y: Tensor) -> Tensor:
        p = reference.softmax(logits)
        values = [single(p[:, k], (y == k).to(p.dtype)) for k in range(p.shape[1])]
        return sum(values, p.new_zeros(())) / p.shape[1]

    return Case(module, theirs)


# Strengths of either sign, and edges to which no probability is equal.
STRENGTHS, EDGES = [-1.5, -0.2, 0.5, 1.0, 4.0], [0.21, 0.47, 0.73, 0.94]


def _of_classes(classes: int) -> tuple[list[float], list[float]]:
    """A multiplier and a rho for each class."""
    return [0.05 * (k + 1) for k in range(classes)], [1.0 + 0.5 * k for k in range(classes)]


def _cals(x: Tensor, y: Tensor) -> Tensor:
    loss = cal.CALSLoss(margin=2.0)
    loss.multiplier, loss.rho = (torch.tensor(values, dtype=torch.float64) for values in _of_classes(x.shape[1]))
    value: Tensor = loss(x, y)
    return value


def _adafocal(x: Tensor, y: Tensor) -> Tensor:
    loss = cal.AdaFocalLoss(bins=len(STRENGTHS))
    loss.strength, loss.edges = (torch.tensor(values, dtype=torch.float64) for values in (STRENGTHS, EDGES))
    value: Tensor = loss(x, y)
    return value


def updated_adafocal() -> cal.AdaFocalLoss:
    """AdaFocal after an update that gave its bins strengths of either sign."""
    loss = cal.AdaFocalLoss(bins=5, rate=8.0)
    return loss.update(*random_logits(60, 5, seed=11))


LOGIT_CASES: dict[str, Case] = {
    "focal": Case(cal.FocalLoss(), lambda x, y: reference.focal(x, y, 3.0)),
    "focal gamma 0 is the NLL": Case(cal.FocalLoss(0.0), nn.CrossEntropyLoss()),
    "flsd-53": Case(cal.FocalLoss("flsd-53"), reference.flsd_53),
    "dual focal": Case(cal.DualFocalLoss(), lambda x, y: reference.dual_focal(x, y, 5.0)),
    "label smoothing": Case(cal.LabelSmoothingLoss(), lambda x, y: reference.label_smoothing(x, y, 0.05, "all")),
    "label smoothing equals torch's": Case(cal.LabelSmoothingLoss(0.1), nn.CrossEntropyLoss(label_smoothing=0.1)),
    "label smoothing over others": Case(
        cal.LabelSmoothingLoss(0.1, "others"), lambda x, y: reference.label_smoothing(x, y, 0.1, "others")
    ),
    "margin label smoothing": Case(
        cal.MarginLabelSmoothingLoss(1.0, 0.3), lambda x, y: reference.margin_label_smoothing(x, y, 1.0, 0.3)
    ),
    "mdca": Case(cal.MDCALoss(), reference.mdca),
    "brier": Case(cal.BrierLoss(), reference.brier),
    "bsce-gra": Case(cal.BSCEGRALoss(), reference.bsce_gra),
    "bsce-gra, norm 1": Case(cal.BSCEGRALoss(3.0, 1.0), lambda x, y: reference.bsce_gra(x, y, 3.0, 1.0)),
    "bsce-gra gamma 0 is the NLL": Case(cal.BSCEGRALoss(0.0), nn.CrossEntropyLoss()),
    "logit norm": Case(cal.LogitNormLoss(), reference.logit_norm),
    "adafocal": Case(_adafocal, lambda x, y: reference.adafocal(x, y, STRENGTHS, EDGES)),
    "adafocal before an update is the focal loss": Case(cal.AdaFocalLoss(), lambda x, y: reference.focal(x, y, 1.0)),
    "cals": Case(_cals, lambda x, y: reference.cals(x, y, *_of_classes(x.shape[1]), 2.0)),
    "ece-kde": Case(cal.ECEKDELoss(0.1), lambda x, y: reference.ece_kde(x, y, 0.1)),
    "ece-kde, narrow": Case(cal.ECEKDELoss(0.01), lambda x, y: reference.ece_kde(x, y, 0.01)),
    "ece-kde, norm 2": Case(cal.ECEKDELoss(0.5, 2.0), lambda x, y: reference.ece_kde(x, y, 0.5, 2.0)),
    "ece-kde top-label": _top_label(
        cal.ECEKDELoss(0.1, view="top-label"), lambda z, c: reference.ece_kde_top_label(z, c, 0.1)
    ),
    "avuc": _avuc_logits(0.8),
    "soft avuc": _soft_avuc_logits(0.5, 0.1),
    "esd top-label": _top_label(cal.ESDLoss(root=False), reference.esd),
    "mmce top-label": _top_label(cal.MMCELoss(root=False), reference.mmce),
    "esd class-wise": _class_wise(cal.ESDLoss(root=False, view="class-wise"), reference.esd),
    "mmce class-wise": _class_wise(cal.MMCELoss(root=False, view="class-wise"), reference.mmce),
    "ece class-wise": _class_wise(cal.ECELoss(view="class-wise"), reference.ece),
}

MODULES: dict[str, Callable[[], nn.Module]] = {
    "ESDLoss": cal.ESDLoss,
    "ESDLoss raw": lambda: cal.ESDLoss(root=False),
    "ESDLoss class-wise": lambda: cal.ESDLoss(view="class-wise"),
    "MMCELoss": cal.MMCELoss,
    "MMCELoss unbiased": lambda: cal.MMCELoss(unbiased=True),
    "MMCELoss narrow": lambda: cal.MMCELoss(bandwidth=1e-4),
    "MMCELoss class-wise": lambda: cal.MMCELoss(view="class-wise"),
    "WeightedMMCELoss": cal.WeightedMMCELoss,
    "SoftBinnedECELoss": cal.SoftBinnedECELoss,
    "SoftBinnedECELoss binned": lambda: cal.SoftBinnedECELoss(form="binned", temperature=1e-4),
    "SoftBinnedECELoss norm 1": lambda: cal.SoftBinnedECELoss(norm=1),
    "SoftAvUCLoss": cal.SoftAvUCLoss,
    "AvUCLoss": cal.AvUCLoss,
    "ECELoss": cal.ECELoss,
    "ECELoss class-wise": lambda: cal.ECELoss(view="class-wise"),
    "FocalLoss": cal.FocalLoss,
    "FocalLoss gamma 0.5": lambda: cal.FocalLoss(0.5),
    "FocalLoss flsd-53": lambda: cal.FocalLoss("flsd-53"),
    "DualFocalLoss": cal.DualFocalLoss,
    "LabelSmoothingLoss": cal.LabelSmoothingLoss,
    "MarginLabelSmoothingLoss": cal.MarginLabelSmoothingLoss,
    "MDCALoss": cal.MDCALoss,
    "DCALoss": cal.DCALoss,
    "BrierLoss": cal.BrierLoss,
    "BSCEGRALoss": cal.BSCEGRALoss,
    "BSCEGRALoss norm 1": lambda: cal.BSCEGRALoss(gamma=0.5, norm=1),
    "LogitNormLoss": cal.LogitNormLoss,
    "AdaFocalLoss": cal.AdaFocalLoss,
    "AdaFocalLoss updated": updated_adafocal,
    "CALSLoss": cal.CALSLoss,
    "CALSLoss margin 1": lambda: cal.CALSLoss(margin=1),
    "ECEKDELoss narrow": cal.ECEKDELoss,
    "ECEKDELoss norm 2": lambda: cal.ECEKDELoss(0.1, norm=2),
    "ECEKDELoss top-label": lambda: cal.ECEKDELoss(0.05, view="top-label"),
}


WEIGHTED: dict[str, PairObjective] = {
    "esd": cal.ESDLoss(root=False),
    "esd rooted": cal.ESDLoss(),
    "esd class-wise": cal.ESDLoss(root=False, view="class-wise"),
    "esd multi-label": cal.ESDLoss(root=False, view="multi-label"),
    "mmce": cal.MMCELoss(),
    "mmce unbiased": cal.MMCELoss(unbiased=True, root=False),
    "mmce class-wise": cal.MMCELoss(view="class-wise"),
    "mmce multi-label": cal.MMCELoss(view="multi-label"),
    "mmce weighted": cal.WeightedMMCELoss(),
    "ece": cal.ECELoss(),
    "ece class-wise": cal.ECELoss(view="class-wise"),
    "ece multi-label": cal.ECELoss(view="multi-label"),
    "soft-binned ece": cal.SoftBinnedECELoss(),
    "dca": cal.DCALoss(),
}


@contextmanager
def values_unread() -> Iterator[None]:
    """As on an accelerator, where no value is read."""
    blind = mock.Mock(return_value=False)
    with ExitStack() as patches:
        for module in (base, checks, numerics):
            patches.enter_context(mock.patch.object(module, "readable", blind))
        yield


def value_and_gradient(function: Function, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = function(x, y)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def random_logits(n: int, classes: int, seed: int, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    """Logits whose prediction is right more often than not, in float64."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64) * scale
    logits[torch.arange(n), target] += scale
    return logits, target
