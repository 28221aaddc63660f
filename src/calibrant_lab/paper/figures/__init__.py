"""The paper's figures, drawn from what a store holds and from nothing else."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from calibrant.files import FileError, whole_or_not_at_all
from calibrant.report.figures import house_style
from calibrant_lab.columns import column
from calibrant_lab.paper.figures.cost import figure3
from calibrant_lab.paper.figures.cumulative import figure4
from calibrant_lab.paper.figures.parts import NotRunError
from calibrant_lab.paper.figures.search import figure2, figure5
from calibrant_lab.paper.figures.shift import figure6
from calibrant_lab.paper.figures.training import figure1
from calibrant_lab.shift.evaluation import kept_shifts
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.sweeps.sweep import Sweep
from calibrant_lab.trials.store import Store

_CAPTIONS = {
    "figure1": ("Training curves",
        "Accuracy and ECE by epoch, on the training and on the test set. Training scores are taken while the network "
        "learns, over the batches of an epoch; test scores at its end, for this figure only."),
    "figure2": ("Sensitivity to inner settings",
        "Test ECE of MMCE by its bandwidth φ and of SB-ECE by its temperature T, at the λ chosen for each. A point "
        "is the mean over the seeds of the search; the ring that over all seeds of what was chosen on the "
        "validation set. ESD has no such setting: its line is the mean over seeds."),
    "figure3": ("Cost",
        "Processor time of one run, the mean of all runs of a method, and of one tuned network: every trial of its "
        "search, each counted once. NLL needs no search, and ESD none beyond λ."),
    "figure4": ("Cumulative accuracy and confidence",
        "The first NLL network on the test set, as trained and after a temperature fitted on the validation set. ESD "
        "estimates the mean square of the difference between the curves; it is unbiased, so it may fall below 0."),
    "figure5": ("Accuracy against λ",
        "Validation accuracy in the search over λ, the mean over its seeds. Of those above the threshold, {points:g} "
        "points below the NLL, the one with the lowest validation {select} is chosen; if none is above, the most "
        "accurate."),
    "figure6": ("Distribution shift",
        "Accuracy, ECE, and ECE after a temperature fitted on clean validation data, by the severity of corruptions of "
        "the test images. A marker is the mean over corruptions and seeds, its thin line the standard deviation over "
        "seeds, its bar the middle half of the corruptions."),
}  # fmt: skip
FORMATS = {".svg": {"Date": None}, ".png": {"Software": None}, ".pdf": {"CreationDate": None}}


def caption(name: str, sweep: Sweep) -> tuple[str, str]:
    """What a figure of a sweep is called, and what it shows."""
    heading, text = _CAPTIONS[name]
    return heading, text.format(points=100 * sweep.tolerance, select=column(sweep.select).label)


def _kept6(plan: Plan, store: Store) -> Figure:
    """From what `reproduce figure6` has kept: nothing is evaluated."""
    kept = kept_shifts(plan, store)
    if not any(kept.values()):
        raise NotRunError("Figure 6 needs networks that were tried on worse images: reproduce figure6")
    return figure6(kept, plan.sweep.subject)


DRAWN: dict[str, Callable[[Plan, Store], Figure]] = {
    "figure1": figure1, "figure2": figure2, "figure3": lambda plan, store: figure3([plan], store), "figure4": figure4,
    "figure5": figure5, "figure6": _kept6,
}  # fmt: skip


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure, whole or not at all, in the format its name ends in; the same figure gives the same bytes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_figure(Path(folder, "empty.svg"), Figure(figsize=(1, 1)))
        ...     print(Path(folder, "empty.svg").read_text()[:5])
        <?xml
    """
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise FileError(path, f"must end in {', '.join(FORMATS)} to say what kind of figure it is to be")
    with house_style(), mpl.rc_context({"svg.hashsalt": "calibrant"}), whole_or_not_at_all(path) as temporary:
        figure.savefig(temporary, format=kind[1:], dpi=200, metadata=FORMATS[kind])
