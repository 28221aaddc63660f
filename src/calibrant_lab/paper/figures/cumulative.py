"""Cumulative accuracy and confidence of an uncalibrated and a calibrated network: the figure of Appendix A."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from calibrant.metrics import Predictions, esd, predictions
from calibrant.posthoc import TemperatureScaling
from calibrant.report.figures import cumulated, short_confidence
from calibrant.report.style import ACCENT, GAP, INK, MUTED, legend_above, percent_ticks
from calibrant_lab.paper.figures import parts
from calibrant_lab.sweeps.protocol import Plan
from calibrant_lab.trials.store import Store

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def figure4(plan: Plan, store: Store) -> Figure:
    """Cumulative accuracy and confidence of the first NLL network, as trained (left) and temperature-scaled (right).

    Samples are sorted by confidence. The lower panels magnify the difference of the two curves; ESD is an unbiased
    estimate of its mean square.
    """
    given = as_trained_and_scaled(plan, store)
    with parts.wide_figure(4.8) as figure:
        top, bottom = figure.subplots(
            2, 2, sharex="col", sharey="row", height_ratios=(5, 2.6), gridspec_kw={"wspace": 0.1}
        )
        for curves, difference, (name, predicted) in zip(top, bottom, given.items(), strict=True):
            _draw(curves, difference, predicted)
            curves.set_title(f"{name}: ESD {_power(esd(predicted))}")
        top[0].set(ylabel="cumulative share", ylim=(0, None))
        top[0].yaxis.set_major_formatter(percent_ticks())
        bottom[0].set_ylabel("difference, points")
        bottom[0].yaxis.set_major_locator(MaxNLocator(4))
        figure.supxlabel("samples, the least confident first (their confidence)", fontsize=9.5, color=MUTED)
        legend_above(
            figure, plan.sweep.subject, Line2D([], [], color=ACCENT, linewidth=1.8, label="accuracy"),
            Line2D([], [], color=INK, linewidth=1.3, linestyle=(0, (3, 1.5)), label="confidence"),
            Line2D([], [], color=GAP, linewidth=1.8, label="difference"),
            Patch(color=MUTED, alpha=0.2, linewidth=0, label="chance (95 %)"),
        )  # fmt: skip
    return figure


def as_trained_and_scaled(plan: Plan, store: Store) -> dict[str, Predictions]:
    """Test predictions of the first NLL network, as trained and with a temperature fitted on its validation set."""
    baseline = parts.row_of(plan, "nll")
    found = parts.finished(baseline.trials[:1], store) if baseline else []
    if not found:
        raise parts.not_run("Figure 4", "the first trial of the NLL", plan)
    trial = store.trial(found[0].configuration)
    validation, test = trial.predicted("validation"), trial.predicted("test")
    try:
        scaling = TemperatureScaling(strict=True).fit(*validation)
    except ValueError as error:
        raise ValueError(f"Figure 4 needs a temperature fitted on the validation set: {error}") from error
    scaled = predictions(logits=scaling(test.logits).detach(), target=test.target)
    trained = predictions(logits=test.logits, target=test.target)
    return {"as trained": trained, f"temperature {float(scaling.temperature_):.2f}": scaled}


def _draw(curves: Axes, difference: Axes, predicted: Predictions) -> None:
    share, threshold, accuracy, confidence, chance = cumulated(predicted)
    curves.plot(share, accuracy, color=ACCENT, linewidth=1.8)
    curves.plot(share, confidence, color=INK, linewidth=1.3, linestyle=(0, (4, 2)))
    curves.fill_between(share, accuracy, confidence, color=GAP, alpha=0.35, linewidth=0)
    difference.fill_between(share, -100 * chance, 100 * chance, color=MUTED, alpha=0.2, linewidth=0)
    difference.axhline(0, color=MUTED, linewidth=1)
    difference.plot(share, 100 * (confidence - accuracy), color=GAP, linewidth=1.8)
    ticks = np.array([0, 0.25, 0.5, 0.75, 1])
    at = threshold[np.minimum(np.searchsorted(share, ticks), len(share) - 1)]
    difference.set_xlim(0, 1)
    labels = [f"{100 * tick:.0f} %\n({short_confidence(z)})" for tick, z in zip(ticks, at, strict=True)]
    difference.set_xticks(ticks, labels)


def _power(value: float) -> str:
    """A small number in scientific notation.

    Example:
        >>> _power(-0.000123)
        '−1.23 × 10⁻⁴'
    """
    number, exponent = f"{value:.2e}".split("e")
    number = number.replace("-", "\N{MINUS SIGN}")
    return f"{number} × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}"  # noqa: RUF001
