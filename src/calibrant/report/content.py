"""Content of the page that is about all models: title, comparisons, the table of scores, the foot."""

from collections.abc import Sequence
from importlib import metadata
from itertools import combinations
from typing import Any

import numpy as np
from markupsafe import Markup

from calibrant.metrics import METRICS
from calibrant.metrics.comparison import Comparison
from calibrant.metrics.table import for_task
from calibrant.metrics.verdicts import label as measure
from calibrant.metrics.verdicts import number as measured
from calibrant.report.audit import Audit
from calibrant.report.formats import bare_p, counted, isolated

# Pairs of models that are named; the rest are counted.
MOST_NAMED = 10


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
    """How the numbers were made."""
    sizes = sorted({len(audit.predictions) for audit in audits})
    samples = counted(sizes[0], "sample") if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} samples"
    test = audits[0].test
    return (
        f"Made by Calibrant {metadata.version('calibrant')} from {samples}. "
        f"p\N{NON-BREAKING HYPHEN}values of calibration: "
        f"ESD of {counted(test.draws, 'data set')} drawn from a calibrated model, seed {audits[0].seed}; for classes "
        "and labels as many as are needed, or Kuiper's test where that is below 1e\N{MINUS SIGN}9."
    )


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
        "p": bare_p(compared.p_value),
        "better": better,
    }


def not_compared(audits: Sequence[Audit], pairs: Sequence[tuple[str, str]]) -> str:
    """A sentence on the pairs that are not compared; empty if nobody asked for a comparison of these."""
    left = [pair for pair in combinations(audits, 2) if not {_names(*pair), _names(*pair[::-1])} & set(pairs)]
    others = [pair for pair in left if _other_samples(*pair)]
    said = []
    if others:
        named = "; ".join(f"{a.name} and {b.name}" for a, b in others[:MOST_NAMED])
        more = f"; and {len(others) - MOST_NAMED:,} more pairs" if len(others) > MOST_NAMED else ""
        said.append(f"Not compared, as they do not have the same samples: {named}{more}.")
    if pairs and len(left) > len(others):
        said.append(f"{counted(len(left) - len(others), 'other pair')} were not compared.")
    return " ".join(said)


def _names(a: Audit, b: Audit) -> tuple[str, str]:
    return a.name, b.name


def _other_samples(a: Audit, b: Audit) -> bool:
    one, other = a.predictions, b.predictions
    if len(one) != len(other):
        return True
    return one.target is not None and other.target is not None and not np.array_equal(one.target, other.target)


def meanings(audits: Sequence[Audit]) -> list[dict[str, str]]:
    """Label and meaning of every score on the page, once."""
    found = {score.key: for_task(METRICS[score.key], score.task) for audit in audits for score in audit.scores}
    return [{"label": metric.label.strip(), "meaning": metric.meaning} for metric in found.values()]


def score_rows(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """The table of all scores: a row for each, a cell for each model."""
    found = [{entry.key: entry for entry in audit.scores} for audit in audits]
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
