"""Content of the page: the audits in words, formatted numbers and figures."""

import math
import re
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from markupsafe import Markup

from calibrant.metrics import CONVENTIONS, METRICS, Score
from calibrant.metrics.comparison import Comparison
from calibrant.metrics.verdicts import label as measure
from calibrant.metrics.verdicts import number as measured
from calibrant.metrics.verdicts import p_value
from calibrant.report.audit import Audit
from calibrant.report.chance import chance_gap
from calibrant.report.classes import MOST_ROWS, class_rows
from calibrant.report.figures import classwise_plot, cumulative_plot, reliability_diagram
from calibrant.report.svg import inline_svg
from calibrant.report.verdict import caveat, verdict

SIGNED_ZERO = re.compile(r"[+-]0\.0+( %)?")
POWER = re.compile(r"(-?[\d.]+)e([+-]\d+)")
# Where a line must not break: inside "p < 0.001", "temperature 1.74" and "3.1 points".
UNBROKEN = re.compile(r"(?<=\bp) (?=[<=])|(?<=[<=]) (?=\d)|(?<=temperature) (?=\d)|(?<=\d) (?=points|samples)")
# Scores of the table before and after recalibration.
REPAIRED = ("gap", "ece", "equal_mass_ece", "smooth_ece", "ks_error", "esd", "classwise_ece", "nll", "brier")


def number(text: str) -> Markup:
    """Format a number: with a true minus, powers of ten, and no sign if it rounds to 0.

    Example:
        >>> print(number("-2.34e-03"), number("0.1274"), number("-0.00"))
        −2.34 × 10<sup>−3</sup> 0.1274 0.00
    """
    if SIGNED_ZERO.fullmatch(text):
        text = text[1:]
    parts = POWER.fullmatch(text)
    if parts is not None:
        return Markup("{} × 10<sup>{}</sup>").format(_minus(parts[1]), _minus(str(int(parts[2]))))  # noqa: RUF001
    return Markup("{}").format(_minus(text).replace(" %", "\N{NO-BREAK SPACE}%"))


def percent(share: float) -> str:
    r"""A share in percent, or a dash if there is none.

    Example:
        >>> print(ascii(percent(0.1234)), percent(float("nan")))
        '12.34\xa0%' –
    """
    return "\N{EN DASH}" if math.isnan(share) else f"{100 * share:.2f}\N{NO-BREAK SPACE}%"


def _minus(text: str) -> str:
    return f"\N{MINUS SIGN}{text[1:]}" if text.startswith("-") else text


def isolated(name: str) -> Markup:
    """A name whose writing direction does not affect the text around it.

    Example:
        >>> print(isolated("a & b"))
        <bdi>a &amp; b</bdi>
    """
    return Markup("<bdi>{}</bdi>").format(name)


def _entries(audit: Audit) -> dict[str, Score]:
    return {entry.key: entry for entry in audit.scores}


def _count(several: int, word: str) -> str:
    return f"{several:,} {word}{'s' if several != 1 else ''}"


def title(audits: Sequence[Audit], *, compared: bool) -> tuple[str, Markup]:
    """Title of the page, as text and as a heading."""
    if len(audits) > 1:
        words = f"{len(audits)} models compared" if compared else f"Calibration of {len(audits)} models"
        return words, Markup("{}").format(words)
    start, name = "Calibration of ", audits[0].name
    return start + name, Markup("{}{}").format(start, isolated(name))


def lead(audits: Sequence[Audit]) -> Markup:
    """Names and sizes of the audited models, shown under the title."""
    sizes = {audit.scores.title for audit in audits}
    if len(audits) == 1:
        return Markup("{}").format(audits[0].scores.title)
    *others, last = (isolated(audit.name) for audit in audits)
    names = Markup("{} and {}").format(Markup(", ").join(others), last)
    return Markup("{}; {} each").format(names, sizes.pop()) if len(sizes) == 1 else names


def footer(audits: Sequence[Audit]) -> str:
    """How the page was made."""
    sizes = sorted({len(audit.predictions) for audit in audits})
    samples = _count(sizes[0], "sample") if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} samples"
    test = audits[0].test
    return (
        f"Made by Calibrant {metadata.version('calibrant')} from {samples}. "
        f"p\N{NON-BREAKING HYPHEN}values of calibration: "
        f"ESD of {_count(test.draws, 'data set')} drawn from a calibrated model, seed {audits[0].seed}."
    )


def model(audit: Audit, name: str) -> dict[str, Any]:
    """Everything about one model; ``name`` makes the ids of its figures unique."""
    sentence = verdict(audit)
    return {
        "name": audit.name,
        "verdict": UNBROKEN.sub("\N{NO-BREAK SPACE}", sentence),
        "facts": _facts(audit),
        "reliability": _reliability(audit, f"{name}r"),
        "cumulative": _cumulative(audit, f"{name}c"),
        "classes": _classes(audit, f"{name}k"),
        "repair": _repair(audit, f"{name}t"),
        "problem": audit.problem,
    }


def _facts(audit: Audit) -> list[dict[str, str]]:
    scores, shown = audit.scores, _entries(audit)
    if abs(scores.gap) <= chance_gap(audit.judged):
        lean = "within chance"
    elif audit.task == "binary":
        lean = "overstated" if scores.gap > 0 else "understated"
    else:
        lean = f"{'over' if scores.gap > 0 else 'under'}-confident"
    bins = audit.bins or CONVENTIONS[audit.convention].bins
    notes = {
        "accuracy": "of top labels",
        "mean_confidence": "in top labels",
        "gap": f"points, {lean}",
        "ece": f"{bins:,} bins ({audit.convention})",
        "esd": p_value(audit.test.p_value),
    }
    facts = [{"label": shown[key].label, "value": str(shown[key]), "note": note} for key, note in notes.items()]
    facts[2]["value"] = facts[2]["value"].removesuffix(" %")
    return facts


def _reliability(audit: Audit, name: str) -> Markup:
    scores = audit.scores
    label = (
        f"Reliability diagram of {audit.name}: mean confidence {percent(scores.mean_confidence)}, "
        f"accuracy {percent(scores.accuracy)}, ECE {percent(scores.ece)}"
    )
    figure = reliability_diagram(audit.judged, bins=audit.bins, convention=audit.convention, event=_event(audit))
    return inline_svg(figure, name, label)


def _event(audit: Audit) -> str | None:
    view = audit.findings[0].view
    return f"class {view.name}" if audit.task == "binary" else None


def _cumulative(audit: Audit, name: str) -> Markup:
    label = (
        f"Cumulative accuracy and confidence of {audit.name}: "
        f"they differ by at most {100 * audit.scores.ks_error:.2f} points, the KS error"
    )
    return inline_svg(cumulative_plot(audit.judged, event=_event(audit)), name, label)


def _classes(audit: Audit, name: str) -> dict[str, Any] | None:
    given, count = audit.predictions, audit.predictions.classes
    if count is None or audit.task == "multi-label":
        return None
    rows = class_rows(given, bins=audit.bins, convention=audit.convention)
    figure = classwise_plot(given, bins=audit.bins, convention=audit.convention)
    label = (
        f"Accuracy and mean confidence of {audit.name} by predicted class; "
        f"class {rows[0].label} has the largest class-wise ECE, {percent(rows[0].error)}"
    )
    note = f"The {MOST_ROWS} classes of {count:,} with the largest class-wise ECE" if count > MOST_ROWS else ""
    return {"figure": inline_svg(figure, name, label), "rows": rows, "note": note}


def _repair(audit: Audit, name: str) -> dict[str, Any] | None:
    repair = audit.repair
    if repair is None:
        return None
    before, after = _entries(audit), {entry.key: entry for entry in repair.scores}
    rows = [
        {"label": before[key].label, "before": str(before[key]), "after": str(after[key])}
        for key in REPAIRED
        if key in before and key in after
    ]
    tests = (audit.test, repair.judgements[0].test)
    p_values = (p_value(test.p_value).removeprefix("p ").removeprefix("= ") for test in tests)
    rows.append({"label": "p of calibration", **dict(zip(("before", "after"), p_values, strict=True))})
    after_it = repair.predictions if audit.task == "multi-label" else repair.judgements[0].view.pairs
    figure = reliability_diagram(after_it, bins=audit.bins, convention=audit.convention, event=_event(audit))
    label = f"Reliability diagram of {audit.name} after recalibration: ECE {percent(repair.scores.ece)}"
    note = caveat(audit)
    return {
        "how": repair.how.description,
        "rows": rows,
        "figure": inline_svg(figure, name, label),
        "note": note and f"{note[0].upper()}{note[1:]}. Audit the logits to be sure.",
    }


def comparison(first: str, second: str, compared: Comparison) -> dict[str, str]:
    """One row of the table of comparisons."""
    better = {"a": isolated(first), "b": isolated(second), None: "the data cannot tell"}[compared.better]
    values = ("a", "b", "difference", "low", "high")
    shown = {key: measured(compared.metric, getattr(compared, key)) for key in values}
    return shown | {
        "measure": measure(compared.metric),
        "first": first,
        "second": second,
        "interval": f"{100 * compared.level:g} %, {compared.method}",
        "p": p_value(compared.p_value).removeprefix("p ").removeprefix("= "),
        "better": better,
    }


def not_compared(audits: Sequence[Audit], pairs: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Models that are not compared with the first, and why; those with the same samples only if there are any pairs."""
    first = audits[0]
    found = []
    for other in audits[1:]:
        reason = "it has other samples" if _other_samples(first, other) else ""
        if (reason or pairs) and not {(first.name, other.name), (other.name, first.name)} & set(pairs):
            found.append({"name": other.name, "first": first.name, "reason": reason})
    return found


def _other_samples(a: Audit, b: Audit) -> bool:
    one, other = a.predictions, b.predictions
    if len(one) != len(other):
        return True
    return one.target is not None and other.target is not None and not np.array_equal(one.target, other.target)


def meanings(audits: Sequence[Audit]) -> list[dict[str, str]]:
    """Label and meaning of every score on the page, once."""
    keys = dict.fromkeys(score.key for audit in audits for score in audit.scores)
    return [{"label": METRICS[key].label.strip(), "meaning": METRICS[key].meaning} for key in keys]


def score_rows(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """The table of all scores: a row for each, a cell for each model."""
    found = [_entries(audit) for audit in audits]
    shown = {entry.key: entry for entries in found for entry in entries.values()}
    rows = []
    for key, entry in shown.items():
        notes = [entries[key].convention if key in entries else "" for entries in found]
        same = len({note for note in notes if note}) == 1
        cells = [
            {"value": str(entries[key]) if key in entries else "\N{EN DASH}", "note": "" if same else note}
            for entries, note in zip(found, notes, strict=True)
        ]
        label = entry.label.strip()
        rows.append({
            "label": label, "part": label != entry.label, "cells": cells,
            "convention": entry.convention if same else "differs, see the values",
        })  # fmt: skip
    return rows
