"""How a network is trained: the loss, the objective on held-out data, and which of their options are searched."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, create_model
from torch import nn

import calibrant as cal
from calibrant_lab import plugins
from calibrant_lab.settings import Checked

SYMBOLS = {"weight": "λ", "bandwidth": "φ", "softness": "T"}


@dataclass(frozen=True)
class Method:
    """A way to train a network.

    Args:
        label: Name of the method in tables.
        objective: Class or function that builds the objective from options. The objective is added to the NLL, on
            held-out data.
        loss: Class or function that builds the loss that replaces the NLL.
        training: ``"temperature"`` for the temperature in the loop, ``"head"`` for the held-out loss through the last
            layer, see :class:`calibrant.training.CalibratedLoss`; an objective is added as published.
        options: Names of the options and their defaults. An option is passed to ``objective`` or ``loss`` under the
            same name, or the one in ``keywords``. If None, their own default is used.
        keywords: Mapping from option to argument name, where they differ.
        searched: Options that a sweep searches after the weight, with their initial values.
        weight_scale: Factor applied to the weights that a sweep tries.

    Example:
        >>> from torch import nn
        >>> Method("my loss", loss=nn.CrossEntropyLoss).holds_out
        False
    """

    label: str
    objective: Callable[..., nn.Module] | None = None
    loss: Callable[..., nn.Module] | None = None
    training: Literal["temperature", "head"] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, str] = field(default_factory=dict)
    searched: Mapping[str, float] = field(default_factory=dict)
    weight_scale: float = 1.0

    @property
    def holds_out(self) -> bool:
        """Whether a share of the training data is held out."""
        return self.objective is not None or self.training is not None

    @property
    def defaults(self) -> dict[str, Any]:
        """All options, the weight of an objective included."""
        weight = {"weight": 1.0} if self.objective is not None or self.training == "head" else {}
        return weight | dict(self.options)

    @cached_property
    def _model(self) -> type[Checked]:
        built_in = any(self is one for one in METHODS.values())
        fields: dict[str, Any] = {name: (_type(name, one, built_in), one) for name, one in self.defaults.items()}
        return create_model("Options", __base__=Checked, **fields)

    def checked(self, options: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Check options by the types of their defaults, and fill those in; ``name`` is for error messages."""
        if unknown := next((option for option in options if option not in self.defaults), None):
            there = ", ".join(self.defaults) or "none"
            raise plugins.UnknownNameError(f"{unknown} is not an option of {name}, which has {there}: leave it out")
        return self._model.checked(options).model_dump()

    def build(self, options: Mapping[str, Any]) -> "Losses":
        """Build the loss and the objective from the options."""
        given = {
            self.keywords.get(name, name): value
            for name, value in options.items()
            if name not in ("weight", "loss") and value is not None
        }
        objective = None if self.objective is None else self.objective(**given)
        loss = None if self.loss is None else self.loss(**given)
        if options.get("loss") is not None:
            replacing = method(options["loss"])
            if replacing.loss is None:
                raise ValueError(f"{options['loss']} does not replace the NLL: choose another loss, such as focal")
            loss = replacing.build(replacing.defaults).loss
        return Losses(loss, objective)


class Losses(NamedTuple):
    """Loss on the training batch, None for the NLL; and objective on the held-out batch, if any."""

    loss: nn.Module | None
    objective: nn.Module | None


def _type(option: str, default: Any, built_in: bool) -> Any:
    """The type of an option, from its default; None is for any value, read as a number if possible."""
    if option == "weight":
        return Annotated[float, Field(ge=0)]
    if default is None and built_in and option != "loss":
        return Annotated[float | None, Field(ge=0)]
    if default is None:
        return Annotated[int | float | Any, Field(union_mode="left_to_right")]
    return Annotated[int | float, Field(union_mode="left_to_right")] if type(default) is int else type(default)


_KERNEL: dict[str, Any] = {"options": {"root": True, "bandwidth": None}, "searched": {"bandwidth": 0.4}}
_SOFT: dict[str, Any] = {"options": {"softness": None}, "keywords": {"softness": "temperature"}}
METHODS: dict[str, Method] = {
    "nll": Method("NLL"),
    "loop": Method("temperature in the loop", training="temperature", options={"loss": None}),
    "head": Method("held-out NLL through the head", training="head", options={"loss": None}),
    "esd": Method("ESD", cal.ESDLoss),
    "esd-raw": Method("ESD, raw", partial(cal.ESDLoss, root=False), weight_scale=100.0),
    "mmce": Method("MMCE", cal.MMCELoss, **_KERNEL),
    "weighted-mmce": Method("weighted MMCE", cal.WeightedMMCELoss, **_KERNEL),
    "sb-ece": Method("SB-ECE", cal.SoftBinnedECELoss, **_SOFT, searched={"softness": 1e-2}),
    "s-avuc": Method("S-AvUC", cal.SoftAvUCLoss, **_SOFT),
    "avuc": Method("AvUC", cal.AvUCLoss),
    "ece": Method("ECE", cal.ECELoss),
    "mdca": Method("MDCA", cal.MDCALoss),
    "dca": Method("DCA", cal.DCALoss),
    "ece-kde": Method("ECE-KDE", cal.ECEKDELoss, options={"bandwidth": None}),
    "focal": Method("focal", loss=cal.FocalLoss, options={"gamma": None}),
    "dual-focal": Method("dual focal", loss=cal.DualFocalLoss, options={"gamma": None}),
    "label-smoothing": Method("label smoothing", loss=cal.LabelSmoothingLoss, options={"smoothing": None}),
    "margin-label-smoothing": Method("margin smoothing", loss=cal.MarginLabelSmoothingLoss),
    "brier": Method("Brier", loss=cal.BrierLoss),
    "bsce-gra": Method("BSCE-GRA", loss=cal.BSCEGRALoss),
    "adafocal": Method("AdaFocal", loss=cal.AdaFocalLoss),
    "cals": Method("CALS", loss=cal.CALSLoss),
    "logit-norm": Method("LogitNorm", loss=cal.LogitNormLoss),
}  # fmt: skip


def method(reference: str) -> Method:
    """Return a method by name or import path; a module class, or a function that returns one, is an objective."""
    found = plugins.find(reference, "method", METHODS)
    if isinstance(found, Method):
        return found
    if not callable(found):
        raise ValueError(f"{reference} must be a Method, or build an objective, got {type(found).__name__}")
    return Method(reference.rpartition(":")[2], objective=found)
