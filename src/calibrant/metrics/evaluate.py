"""All scores of one model's predictions at once: `evaluate` and the `Scores` it returns."""

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from calibrant import frames
from calibrant.inputs import counted
from calibrant.metrics.binned import ConventionName
from calibrant.metrics.predictions import Confidence, Correct, Keywords, Task, predictions
from calibrant.metrics.proper import IsotonicPools, RiskCoverage
from calibrant.metrics.registry import described, for_task, metrics_table
from calibrant.metrics.ties import collect
from calibrant.metrics.unbinned import BANDWIDTH, CumulativeSums, ResidualGrid, laplace

if TYPE_CHECKING:
    from rich.table import Table


def html_table(caption: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML; between its first and its last column are values, aligned right."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = ""
    for row in rows:
        body += "<tr>"
        for place, cell in enumerate(row):
            side = "right" if 0 < place < len(row) - 1 else "left"
            body += f"<td style='text-align:{side}'>{html.escape(cell)}</td>"
        body += "</tr>"
    return f"<table><caption>{html.escape(caption)}</caption><tr>{head}</tr>{body}</table>"


@dataclass(frozen=True)
class Score:
    """One number, and how it was computed.

    Attributes:
        key: Name of the metric's function.
        convention: How exactly it was computed: bins, edges, estimator.
        label: Display name; indented if it is a part of the score above.
    """

    key: str
    value: float
    convention: str
    label: str

    def __str__(self) -> str:
        metric = described(self.key)
        return metric.format(self.value, signed=metric.kind == "signed")


@dataclass(frozen=True, eq=False, repr=False)
class Scores:
    """The scores of one model: ``scores["ece"]`` or ``scores.ece``, printed as a table.

    Attributes:
        classes: Number of classes or labels, or None if only confidences were given.
        entries: Every :class:`Score`, in the order shown.
        task: ``"confidence"``, ``"binary"``, ``"multi-class"`` or ``"multi-label"``.
    """

    samples: int
    classes: int | None
    entries: tuple[Score, ...]
    task: Task = "multi-class"

    def __getitem__(self, key: str) -> float:
        for entry in self.entries:
            if entry.key == key:
                return entry.value
        raise KeyError(f"no score {key!r}; there are {', '.join(self.keys())}")

    def keys(self) -> tuple[str, ...]:
        """The scores' keys, so that ``dict(scores)`` is a plain dictionary of them."""
        return tuple(entry.key for entry in self.entries)

    def __getattr__(self, key: str) -> float:
        if "entries" in self.__dict__ and key in self.keys():  # a copy has no entries at first
            return self[key]
        raise AttributeError(f"no score or attribute {key!r}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.keys()]

    def __iter__(self) -> Iterator[Score]:
        return iter(self.entries)

    def __contains__(self, key: str) -> bool:
        return key in self.keys()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: counts, and each score with its convention."""
        scores = {e.key: {"value": e.value, "convention": e.convention} for e in self.entries}
        return {"samples": self.samples, "classes": self.classes, "scores": scores}

    def to_frame(self, backend: str | None = None) -> Any:
        """Return the scores as a data frame of pandas, polars or pyarrow, by default the first that is installed."""
        columns = frames.columns_of(self.entries)
        columns["label"] = [entry.label.strip() for entry in self.entries]
        return frames.made({name: columns[name] for name in ("key", "label", "value", "convention")}, backend)

    @property
    def title(self) -> str:
        """Numbers of samples and classes."""
        samples = counted(self.samples, "sample")
        if self.classes is None:
            return samples
        classes = counted(self.classes, "label") if self.task == "multi-label" else f"{self.classes:,} classes"
        return f"{samples}, {classes}"

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
        rows = [(entry.label, str(entry), entry.convention) for entry in self.entries]
        return html_table(self.title, ("score", "value", "convention"), rows)


def evaluate(
    confidence: Confidence = None,
    correct: Correct = None,
    *,
    bins: int | None = None,
    convention: ConventionName = "paper",
    **keywords: Unpack[Keywords],
) -> Scores:
    """Compute every score of one model's predictions, of 3 samples or more; one sort serves all scores of the pairs.

    Logits or probabilities add log loss, class-wise ECE and the Brier score of all classes.

    Args:
        bins: Number of bins of the binned scores; by default the convention's, or 15 of equal mass.
        convention: Convention of ECE, as in :func:`calibrant.metrics.ece`.
    """
    data = predictions(confidence, correct, minimum=3, name="evaluate", **keywords)
    collect(data, {CumulativeSums, ResidualGrid, laplace(BANDWIDTH), IsotonicPools, RiskCoverage})
    entries = []
    with np.errstate(under="ignore"):  # the square of a tiny probability is 0, whatever NumPy's error settings
        for metric in metrics_table(bins, convention).values():
            if metric.evaluated and not (metric.of_classes and data.probabilities is None):
                shown = for_task(metric, data.task)
                remark = metric.remark(data) if metric.remark else ""
                entries.append(Score(metric.key, metric.value(data), shown.convention + remark, shown.label))
    return Scores(data.samples, data.classes, tuple(entries), data.task)
