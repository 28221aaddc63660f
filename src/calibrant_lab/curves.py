"""Accuracy and ECE by epoch, on the training and on the validation data: the paper's Figure 1."""

import math
from collections.abc import Sequence
from pathlib import Path

from calibrant.files import whole_or_not_at_all

PANELS = (("accuracy", "accuracy %"), ("ece", "ECE %, 20 bins"))


def write_curves(path: Path, history: Sequence[dict[str, float]], *, title: str) -> None:
    """Plot the curves of one run, given ``CalibratedClassifier.history``, to a PNG file."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from calibrant.report.figures import ACCENT, GAP, STYLE

    epochs = [entry["epoch"] + 1 for entry in history]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.4), layout="constrained", facecolor="white")
        for axes, (key, label) in zip(figure.subplots(1, 2), PANELS, strict=True):
            for part, colour, line in (("train", GAP, (0, (4, 2))), ("validation", ACCENT, "solid")):
                values = [100 * entry.get(f"{part}_{key}", math.nan) for entry in history]
                single = {"marker": "o", "markersize": 4} if len(epochs) == 1 else {}
                axes.plot(epochs, values, color=colour, linestyle=line, linewidth=1.6, label=part, **single)
            axes.set(xlabel="epoch", title=label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(bottom=0 if key == "ece" else None)
        figure.axes[0].legend(loc="lower right")
        figure.suptitle(title, x=0.01, horizontalalignment="left", fontsize=11)
        with whole_or_not_at_all(path) as temporary:
            figure.savefig(temporary, format="png", dpi=160)
