"""Figure of the arena: mean ranks by group, with Nemenyi's critical difference."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.arena_methods import NOTHING
from benchmarks.arena_scores import critical_difference
from benchmarks.arena_table import OURS, Standing, ordered

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#767676"


def draw(groups: Sequence[Standing], title: str, path: Path) -> None:
    """One panel a group: mean rank of every method, 95 % interval, and the critical difference from the first."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    order = ordered(groups)[::-1]
    mpl.rcParams.update({"svg.hashsalt": "arena", "font.size": 10, "svg.fonttype": "path"})
    figure, axes = plt.subplots(
        1, len(groups), sharey=True, squeeze=False, figsize=(2.6 + 2.3 * len(groups), 1.9 + 0.27 * len(order))
    )
    for axis, standing in zip(axes[0], groups, strict=True):
        _panel(axis, standing, order)
    first = axes[0][0]
    first.set_yticks(range(len(order)), order)
    first.set_ylim(-0.7, len(order) - 0.3)
    for label, method in zip(first.get_yticklabels(), order, strict=True):
        label.set_color(BLUE if method.startswith(OURS) else "black")
        label.set_fontweight("bold" if method == f"{OURS}auto" else "normal")
    handles = [
        Line2D([], [], marker="o", color=BLUE, label="Calibrant"),
        Line2D([], [], marker="s", color=ORANGE, label="peers"),
        Line2D([], [], marker="D", color=GREY, label="nothing"),
        Line2D([], [], marker="o", color="none", markersize=8, markeredgecolor="black", label="first of its group"),
        Patch(color="#E6E6E6", label="within the critical difference of the first (Nemenyi, 5 %)"),
    ]
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    figure.legend(handles=handles, loc="lower center", ncols=5, frameon=False)
    figure.supxlabel(
        "mean rank in log loss (1 is best), with its 95 % interval", y=0.42 / figure.get_figheight(), fontsize=10
    )
    figure.tight_layout(rect=(0, 0.3 / figure.get_figheight(), 1, 1))
    metadata = {"Date": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata, dpi=110)
    plt.close(figure)


def _panel(axis, standing: Standing, order: list[str]) -> None:  # type: ignore[no-untyped-def]
    intervals = standing.intervals("rank")
    best = min(three.mean for three in intervals)
    limit = critical_difference(len(standing.methods), len(standing.pairs))
    if len(standing.pairs) > 1:
        axis.axvspan(best, min(best + limit, len(standing.methods)), color="#E6E6E6", linewidth=0, zorder=0)
    for method, three in zip(standing.methods, intervals, strict=True):
        y = order.index(method)
        colour, marker = (BLUE, "o") if method.startswith(OURS) else (GREY, "D") if method == NOTHING else (ORANGE, "s")
        if np.isfinite(three.low):
            axis.plot([three.low, three.high], [y, y], color=colour, linewidth=1.4, alpha=0.75)
        leads = three.mean == best
        axis.plot(three.mean, y, marker, color=colour, markersize=8 if leads else 5,
                  markeredgecolor="black" if leads else colour)  # fmt: skip
    axis.set_xlim(0.3, len(standing.methods) + 0.7)
    axis.set_xticks([1, *range(5, len(standing.methods) + 1, 5)])
    count = len(standing.pairs)
    axis.set_title(f"{standing.group}\n{count} pair{'s' if count > 1 else ''}", fontsize=10)
    axis.grid(axis="y", color="#EEEEEE", linewidth=0.8, zorder=0)
    axis.set_axisbelow(True)
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
