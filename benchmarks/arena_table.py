"""Tables and figure of the arena: standings by group with intervals, in Markdown, as JSON and as an SVG file."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.arena_data import GROUPS, Case
from benchmarks.arena_methods import NOTHING
from benchmarks.arena_runs import TIE, Interval, Result, bootstrap, by_pair, critical_difference, filled, ranks, wins
from benchmarks.tables import markdown

Array = NDArray[np.float64]
OURS = "calibrant: "
# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#767676"


class Standing(NamedTuple):
    """One group: arrays have a row for each pair (means of its splits) and a column for each method."""

    group: str
    methods: list[str]
    pairs: list[str]
    blocks: list[str]
    cases: int
    values: dict[str, Array]
    left_out: dict[str, str]

    def mean(self, name: str) -> Array:
        """Mean over pairs of each method."""
        return np.asarray(self.values[name].mean(axis=0))

    def intervals(self, name: str) -> list[Interval]:
        """Mean over pairs of each method, with its interval."""
        return bootstrap(self.values[name], self.blocks)

    def milliseconds(self, name: str) -> list[float]:
        """Median over the pairs that did not fail."""
        columns = self.values[name].T
        return [1e3 * float(np.nanmedian(c)) if not np.isnan(c).all() else math.nan for c in columns]


def standings(cases: Sequence[Case], results: Sequence[Result]) -> list[Standing]:
    """Standings of every group that has cases."""
    table = filled(results)
    order = list(dict.fromkeys(result["method"] for result in results))
    found = []
    for group in GROUPS:
        mine = [case for case in cases if case.group == group]
        if mine:
            found.append(_standing(group, mine, order, table))
    return found


def _standing(group: str, cases: list[Case], order: list[str], table: dict[tuple[str, str], Result]) -> Standing:
    left_out, methods = {}, []
    for method in order:
        rows = [table.get((case.key, method)) for case in cases]
        known = [row for row in rows if row is not None]
        if len(known) < len(rows):
            if known:
                left_out[method] = f"{len(known)} of {len(rows)} fits"
        elif all(row["failed"] is not None for row in known):
            left_out[method] = f"every fit failed: {known[0]['failed']}"
        else:
            methods.append(method)
    names = ("log_loss", "brier", "ece", "infinite", "fit", "predict")
    raw = {name: np.array([[table[case.key, method][name] for method in methods] for case in cases]) for name in names}
    raw["failed"] = np.array(
        [[float(table[case.key, method]["failed"] is not None) for method in methods] for case in cases]
    )
    raw["win"] = wins(raw["log_loss"])
    raw["rank"] = ranks(raw["log_loss"])
    raw["worse"] = (raw["log_loss"] > raw["log_loss"][:, [methods.index(NOTHING)]] + TIE).astype(float)
    pairs = [case.pair for case in cases]
    values = {name: by_pair(array, pairs)[0] for name, array in raw.items()}
    values["failures"] = raw["failed"]
    unique = list(dict.fromkeys(pairs))
    blocks = {case.pair: case.block for case in cases}
    return Standing(group, methods, unique, [blocks[pair] for pair in unique], len(cases), values, left_out)


def _number(value: float, digits: int = 3) -> str:
    text = f"{value:.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def _ms(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _interval(three: Interval, digits: int) -> str:
    mean = _number(three.mean, digits)
    if math.isnan(three.low):
        return mean
    return f"{mean} ({_number(three.low, digits)} to {_number(three.high, digits)})"


def ordered(groups: Sequence[Standing]) -> list[str]:
    """Methods by their win rate, as a mean over the groups that they take part in."""
    rates: dict[str, list[float]] = {}
    for standing in groups:
        for method, rate in zip(standing.methods, standing.mean("win"), strict=True):
            rates.setdefault(method, []).append(float(rate))
    return sorted(rates, key=lambda method: -float(np.mean(rates[method])))


def summary(groups: Sequence[Standing]) -> str:
    """One row for each method: win rate / mean log loss / share worse than nothing, in every group."""
    rows = []
    for method in ordered(groups):
        cells, times = [], []
        for standing in groups:
            if method not in standing.methods:
                cells.append("-")
                continue
            k = standing.methods.index(method)
            win, loss, worse = (standing.mean(name) for name in ("win", "log_loss", "worse"))
            parts = [_number(win[k], 2), _number(loss[k])]
            best = [win[k] >= win.max() - 1e-12, loss[k] <= loss.min() + 1e-12]
            parts = [f"**{part}**" if first else part for part, first in zip(parts, best, strict=True)]
            cells.append(" / ".join([*parts, "" if method == NOTHING else _number(worse[k], 2)]).rstrip(" /"))
            times.append(standing.milliseconds("fit")[k])
        fit = float(np.nanmedian(times)) if not np.isnan(times).all() else math.nan
        rows.append([method, *cells, _ms(fit)])
    heading = ["win rate / log loss / share worse than nothing", *(s.group for s in groups), "fit, ms"]
    return markdown(heading, rows)


def detail(standing: Standing) -> str:
    """Every number of one group, methods in the order of their win rates."""
    win, loss = standing.intervals("win"), standing.intervals("log_loss")
    fit, predict = standing.milliseconds("fit"), standing.milliseconds("predict")
    means = {name: standing.mean(name) for name in ("rank", "brier", "ece", "worse", "infinite")}
    failures = standing.values["failures"].sum(axis=0)
    rows = [
        [
            standing.methods[k], _interval(win[k], 2), f"{means['rank'][k]:.1f}", _interval(loss[k], 3),
            _number(means["brier"][k]), f"{100 * means['ece'][k]:.2f}", f"{100 * means['worse'][k]:.0f}",
            f"{100 * means['infinite'][k]:.0f}", f"{failures[k]:.0f}", _ms(fit[k]), _ms(predict[k]),
        ]
        for k in np.argsort([-three.mean for three in win], kind="stable")
    ]  # fmt: skip
    heading = [
        "method", "win rate", "mean rank", "log loss", "Brier", "ECE %", "worse than nothing %", "infinite %",
        "failed fits", "fit, ms", "predict, ms",
    ]  # fmt: skip
    blocks = len(set(standing.blocks))
    what = "networks or sources" if standing.group.startswith("networks") else "data sets"
    text = f"Pairs: {len(standing.pairs)}. Fits of each method: {standing.cases}. Different {what}: {blocks}"
    text += ", so there is no interval." if blocks == 1 else "."
    if standing.left_out:
        text += " Left out: " + "; ".join(f"{name} ({why})" for name, why in standing.left_out.items()) + "."
    return f"{text}\n\n{markdown(heading, rows)}"


def best_against_peers(groups: Sequence[Standing]) -> str:
    """Our best method (``auto`` where there is one) against the best peer of each group, with an interval."""
    rows = []
    for standing in groups:
        loss, win, worse = (standing.mean(name) for name in ("log_loss", "win", "worse"))
        ours = [k for k, name in enumerate(standing.methods) if name.startswith(OURS)]
        peers = [k for k, name in enumerate(standing.methods) if not name.startswith(OURS) and name != NOTHING]
        if not ours or not peers:
            continue
        auto = [k for k in ours if standing.methods[k] == f"{OURS}auto"]
        mine = auto[0] if auto else min(ours, key=lambda k: float(loss[k]))
        peer = min(peers, key=lambda k: float(loss[k]))
        leader = max(peers, key=lambda k: float(win[k]))
        difference = standing.values["log_loss"][:, [mine]] - standing.values["log_loss"][:, [peer]]
        three = bootstrap(difference, standing.blocks)[0]
        span = "one network" if math.isnan(three.low) else f"{three.low:+.4f} to {three.high:+.4f}"
        rows.append([
            standing.group, standing.methods[mine], f"{_number(loss[mine], 4)}",
            f"{standing.methods[peer]}, {_number(loss[peer], 4)}", f"{three.mean:+.4f}", span,
            _number(win[mine], 2), f"{standing.methods[leader]}, {_number(win[leader], 2)}",
            f"{100 * worse[mine]:.0f}",
        ])  # fmt: skip
    heading = [
        "group", "ours", "log loss", "best peer", "difference", "95 %", "win rate", "best peer",
        "worse than nothing %",
    ]  # fmt: skip
    return markdown(heading, rows)


# The same method twice: ours, and the peer's.
TWINS = {
    f"{OURS}sms": "probmetrics: SMS",
    f"{OURS}svs": "probmetrics: SVS",
    f"{OURS}quadratic": "probmetrics: quadratic",
    f"{OURS}temperature": "scikit-learn: temperature",
    f"{OURS}venn-abers": "venn-abers",
}


def twins(groups: Sequence[Standing]) -> str:
    """The same method by us and by a peer: by how much log losses differ, and times of a fit with its prediction."""
    rows = []
    for ours, peer in TWINS.items():
        for standing in groups:
            if ours not in standing.methods or peer not in standing.methods:
                continue
            k, j = standing.methods.index(ours), standing.methods.index(peer)
            difference = standing.values["log_loss"][:, k] - standing.values["log_loss"][:, j]
            times = [
                fit + predict for fit, predict in zip(*map(standing.milliseconds, ("fit", "predict")), strict=True)
            ]
            rows.append([
                ours, peer, standing.group, f"{difference.mean():+.1e}", f"{np.abs(difference).max():.1e}",
                _ms(times[k]), _ms(times[j]),
            ])  # fmt: skip
    heading = ["ours", "peer", "group", "mean difference", "largest difference", "our ms", "their ms"]
    return markdown(heading, rows)


def write_json(path: Path, cases: Sequence[Case], results: Sequence[Result]) -> None:
    """Every number, in columns: one list for each method, in the order of the cases; null where it was not run."""
    table = {(result["case"], result["method"]): result for result in results}
    methods = {result["method"]: result["version"] for result in results}
    names = ("log_loss", "brier", "ece", "infinite", "fit", "predict")

    def column(method: str, name: str) -> list[float | None]:
        values = [table.get((case.key, method), {}).get(name) for case in cases]
        return [
            None if value is None else float(f"{value:.{3 if name in ('fit', 'predict') else 6}g}") for value in values
        ]

    document = {
        "cases": [[case.key, case.group, case.block, case.part] for case in cases],
        "methods": methods,
        "results": {method: {name: column(method, name) for name in names} for method in methods},
        "failed": {
            method: failed
            for method in methods
            if (
                failed := {
                    case.key: table[case.key, method]["failed"]
                    for case in cases
                    if (case.key, method) in table and table[case.key, method]["failed"] is not None
                }
            )
        },
    }  # fmt: skip
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


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
