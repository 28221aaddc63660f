"""Everything about one model's predictions at once: `evaluate` and the `Scores` it returns."""

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from calibrant.metrics import binned, classwise, kernel, proper, smooth
from calibrant.metrics.cumulative import cumulative
from calibrant.metrics.predictions import Given, Predictions, Values, predictions

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Score:
    """One number and what it means.

    Attributes:
        key: Name in :meth:`Scores.to_dict`.
        label: Name for people.
        value: The number.
        convention: How exactly it was computed: bins, edges, estimator.
        percent: Whether people read it in percent.
        signed: Whether its sign is what people look for.
    """

    key: str
    label: str
    value: float
    convention: str
    percent: bool = False
    signed: bool = False

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return str(self.value)
        if self.percent:
            return f"{100 * self.value:+z.2f} %" if self.signed else f"{100 * self.value:z.2f} %"
        return f"{self.value:.4f}" if abs(self.value) >= 0.01 or self.value == 0 else f"{self.value:.2e}"


class Scores:
    """The scores of one model: ``scores["ece"]`` or ``scores.ece``, and a table where it is printed.

    Attributes:
        samples: Number of samples.
        classes: Number of classes, or None if only confidences were given.
        entries: Every :class:`Score`, in the order shown.
    """

    def __init__(self, samples: int, classes: int | None, entries: tuple[Score, ...]) -> None:
        self.samples = samples
        self.classes = classes
        self.entries = entries
        self._values = {entry.key: entry.value for entry in entries}

    def __getitem__(self, key: str) -> float:
        if key not in self._values:
            raise KeyError(f"no score {key!r}; there are {', '.join(self._values)}")
        return self._values[key]

    def keys(self) -> tuple[str, ...]:
        """The scores' keys, so that ``dict(scores)`` is a plain dictionary of them."""
        return tuple(self._values)

    def __getattr__(self, key: str) -> float:
        values = self.__dict__.get("_values", {})
        if key in values:
            return float(values[key])
        raise AttributeError(f"no score {key!r}; there are {', '.join(values)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.entries)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: counts, and each score with its convention."""
        scores = {e.key: {"value": e.value, "convention": e.convention} for e in self.entries}
        return {"samples": self.samples, "classes": self.classes, "scores": scores}

    @property
    def title(self) -> str:
        """What was scored, in a few words."""
        return f"{self.samples:,} samples" + (f", {self.classes:,} classes" if self.classes else "")

    def __rich__(self) -> "Table":
        from rich import box
        from rich.table import Table

        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("score", no_wrap=True)
        table.add_column("value", justify="right", no_wrap=True)
        table.add_column("convention", style="dim")
        for entry in self.entries:
            table.add_row(entry.label, str(entry), entry.convention)
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(self)
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        cell = "<td style='text-align:{}'>{}</td>"
        rows = "".join(
            "<tr>"
            + cell.format("left", html.escape(entry.label))
            + cell.format("right", str(entry))
            + cell.format("left", html.escape(entry.convention))
            + "</tr>"
            for entry in self.entries
        )
        return f"<table><caption>{self.title}</caption><tr><th>score<th>value<th>convention</tr>{rows}</table>"


def evaluate(
    confidence: Values | Predictions | None = None,
    correct: Values | None = None,
    *,
    bins: int | None = None,
    convention: binned.ConventionName = "paper",
    **given: Unpack[Given],
) -> Scores:
    """Compute every score of one model's predictions; all those of the pairs come from one sort.

    Args:
        confidence: Confidence in the prediction, in [0, 1], shape ``(N,)`` with N at least 3.
        correct: 1 or True where the prediction is right, same shape.
        bins: Bins of ECE; by default the convention's.
        convention: Of ECE: ``"paper"``, ``"guo"``, ``"torchmetrics"`` or ``"netcal"``; see
            :func:`calibrant.metrics.ece`.
        **given: ``logits=`` or ``probabilities=`` with ``target=`` in place of the pairs: adds NLL, class-wise ECE
            and the Brier score of all classes.

    Example:
        >>> import torch
        >>> from calibrant import metrics
        >>> logits = 3 * torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
        >>> scores = metrics.evaluate(logits=logits, target=torch.arange(1000) % 5)
        >>> round(scores.accuracy, 3), round(scores.ece, 3), scores.classes
        (0.194, 0.559, 5)
        >>> print(str(scores).splitlines()[0])
        1,000 samples, 5 classes
    """
    data = predictions(confidence, correct, minimum=3, name="evaluate", **given)
    with np.errstate(under="ignore"):  # the square of a tiny probability is 0, whatever NumPy was told to say to that
        return Scores(len(data), data.classes, tuple(_scores(data, bins, convention)))


def _scores(data: Predictions, bins: int | None, convention: binned.ConventionName) -> Iterator[Score]:
    accuracy, confidence = float(data.correct.mean()), float(data.confidence.mean(dtype=np.float64))
    yield Score("accuracy", "accuracy", accuracy, "top label", percent=True)
    yield Score("confidence", "mean confidence", confidence, "top label", percent=True)
    yield Score("gap", "signed gap", confidence - accuracy, "confidence - accuracy", percent=True, signed=True)
    yield from _binned_scores(data, bins, convention)
    steps = cumulative(data.keys)
    yield Score("ks", "KS error", steps.ks, "cumulative, ties grouped", percent=True)
    yield Score("esd", "ESD", steps.esd, "unbiased, may be below 0")
    yield Score("mmce", "MMCE²", kernel.mmce(data), "unbiased, Laplace kernel 0.4")
    yield from _proper_scores(data)


def _binned_scores(data: Predictions, bins: int | None, convention: binned.ConventionName) -> Iterator[Score]:
    table = binned.equal_width_bins(data, bins=bins, convention=convention)
    rule = binned.CONVENTIONS[convention]
    words = rule.describe(rule.bins if bins is None else bins)
    yield Score("ece", f"ECE, {convention}", binned.ece_of(table, len(data)), f"{convention}: {words}", percent=True)
    if convention != "guo" or bins is not None:
        guo = binned.CONVENTIONS["guo"]
        value = binned.ece(data, convention="guo")
        yield Score("ece_guo", "ECE, guo", value, f"guo: {guo.describe(guo.bins)}", percent=True)
    value = binned.equal_mass_ece(data)
    yield Score("ece_equal_mass", "ECE, equal mass", value, "15 bins, ties together", percent=True)
    sweep = binned.ece_sweep(data)
    yield Score(
        "ece_sweep",
        "ECE-sweep",
        sweep.value,
        f"equal mass, {sweep.bins} bin{'s'[: sweep.bins != 1]} chosen",
        percent=True,
    )
    value = smooth.smooth_ece_of(data).value
    yield Score("smooth_ece", "smooth ECE", value, "kernel as wide as the value", percent=True)
    value = binned.debiased_l2(data)
    yield Score("debiased_l2", "debiased L2", value, "15 equal-mass bins, rooted", percent=True)
    worst = int(np.abs(table.gaps).argmax())
    count = int(table.samples[worst])
    note = f"as ECE; its bin holds {count:,} sample{'s'[: count != 1]}"
    yield Score("mce", "MCE", float(np.abs(table.gaps).max()), note, percent=True)
    if data.probabilities is not None:
        errors = classwise.classwise_errors(data, bins=bins, convention=convention)
        yield Score(
            "classwise_ece", "class-wise ECE", float(errors.mean()), "mean of classes, bins as ECE", percent=True
        )


def _proper_scores(data: Predictions) -> Iterator[Score]:
    if data.probabilities is not None:
        floor = "" if data.logits is not None else f"; p = 0 counts as {np.finfo(data.probabilities.dtype).tiny:.1g}"
        yield Score("nll", "NLL", proper.nll_of(data), "nats" + floor)
        yield Score("brier", "Brier", proper.brier_of(data), "sum over classes")
    parts = proper.corp_decomposition(data)
    yield Score("brier_top", "Brier, top label", parts.brier, "= MCB - DSC + UNC")
    yield Score("brier_miscalibration", "  MCB", parts.miscalibration, "miscalibration, isotonic")
    yield Score("brier_discrimination", "  DSC", parts.discrimination, "discrimination")
    yield Score("brier_uncertainty", "  UNC", parts.uncertainty, "accuracy (1 - accuracy)")
    yield Score("aurc", "AURC", proper.aurc(data), "risk-coverage, ties averaged")
