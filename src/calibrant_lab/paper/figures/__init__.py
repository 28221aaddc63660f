"""The paper's figures, drawn from stored results only."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from calibrant.files import FileError, whole_or_not_at_all
from calibrant.report.style import house_style
from calibrant_lab.paper.figures.cost import figure3
from calibrant_lab.paper.figures.cumulative import figure4
from calibrant_lab.paper.figures.parts import NotRunError
from calibrant_lab.paper.figures.search import figure2, figure5
from calibrant_lab.paper.figures.shift import figure6
from calibrant_lab.paper.figures.training import figure1
from calibrant_lab.scores import column
from calibrant_lab.shift.evaluation import kept_shifts
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.store import Store

_CAPTIONS = {
    "figure1": ("Training curves",
        "Accuracy and ECE by epoch, on the training and test sets. Training scores are computed during training, over "
        "the batches of an epoch; test scores at the end of the epoch, for this figure only."),
    "figure2": ("Sensitivity to inner settings",
        "Test ECE of MMCE by its bandwidth φ and of SB-ECE by its temperature T, at the λ chosen for each. A point "
        "is the mean over the seeds of the search; the ring is the value chosen on the validation set, with the mean "
        "over all seeds. ESD has no such setting: its line is the mean over seeds."),
    "figure3": ("Cost",
        "Processor time of one run (mean over all runs of a method), and of one tuned network (all trials of its "
        "search, each counted once). NLL needs no search, and ESD only searches λ."),
    "figure4": ("Cumulative accuracy and confidence",
        "The first NLL network on the test set, as trained and after temperature scaling on the validation set. ESD "
        "estimates the mean squared difference between the curves; it is unbiased, so it can be negative."),
    "figure5": ("Accuracy against λ",
        "Validation accuracy in the search over λ, mean over its seeds. The threshold is {points:g} points below the "
        "NLL. We choose the λ with the lowest validation {select} above the threshold; if none is above, the most "
        "accurate one."),
    "figure6": ("Distribution shift",
        "Accuracy, ECE, and ECE after temperature scaling on clean validation data, by the severity of corruptions of "
        "the test images. A marker is the mean over corruptions and seeds, the thin line the standard deviation over "
        "seeds, the bar the middle half of the corruptions."),
}  # fmt: skip
FORMATS = {".svg": {"Date": None}, ".png": {"Software": None}, ".pdf": {"CreationDate": None}}


def caption(name: str, sweep: Sweep) -> tuple[str, str]:
    """Title and caption of a figure of a sweep."""
    heading, text = _CAPTIONS[name]
    return heading, text.format(points=100 * sweep.tolerance, select=column(sweep.select).label)


def _kept6(plan: Plan, store: Store) -> Figure:
    """Figure 6 from the stored results of `reproduce figure6`; nothing is evaluated."""
    kept = kept_shifts(plan, store)
    if not any(kept.values()):
        raise NotRunError("Figure 6 needs networks evaluated on corrupted images: run calibrant reproduce figure6")
    return figure6(kept, plan.sweep.subject)


DRAWN: dict[str, Callable[[Plan, Store], Figure]] = {
    "figure1": figure1, "figure2": figure2, "figure3": lambda plan, store: figure3([plan], store), "figure4": figure4,
    "figure5": figure5, "figure6": _kept6,
}  # fmt: skip


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure, whole or not at all, in the format of its extension; the same figure gives the same bytes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_figure(Path(folder, "empty.svg"), Figure(figsize=(1, 1)))
        ...     print(Path(folder, "empty.svg").read_text()[:5])
        <?xml
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise FileError(path, f"must end in {', '.join(FORMATS)}, which sets the format of the figure")
    with house_style(), mpl.rc_context({"svg.hashsalt": "calibrant"}), whole_or_not_at_all(path) as temporary:
        figure.savefig(temporary, format=kind[1:], dpi=200, metadata=FORMATS[kind])
