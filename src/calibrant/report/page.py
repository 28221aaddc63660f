"""The page: audits of one or several models as one self-contained HTML file."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from calibrant.files import write_whole
from calibrant.metrics.binned import CONVENTIONS, ece
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.intervals import Comparison
from calibrant.metrics.proper import came_true, mean_confidence
from calibrant.metrics.registry import METRICS, for_task
from calibrant.metrics.registry import label as measure
from calibrant.metrics.registry import number as measured
from calibrant.report.audit import Audit
from calibrant.report.figures import (
    MOST_ROWS,
    classwise_plot,
    cumulative_plot,
    groups_plot,
    reliability_diagram,
    time_plot,
)
from calibrant.report.formats import as_sentence, bare_p, clean, counted, ends, in_unit, percent, points
from calibrant.report.style import inline_svg, same_axes

# Two names, and their comparison, or the reason why they are not compared.
Compared = tuple[str, str, Comparison | str]
# Scores of the table before and after recalibration.
REPAIRED = ("gap", "ece", "equal_mass_ece", "smooth_ece", "ks_error", "esd", "classwise_ece", "log_loss", "brier")
# Groups in a table; the rest are counted.
MOST_GROUPS = 40
MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")
UNBROKEN = re.compile(r"(?<=\bp) (?=[<=])|(?<=[<=]) (?=\d)|(?<=temperature) (?=\d)|(?<=\d) (?=%|points|samples)")
POWER = re.compile(r"([\d.]+)e([+-])0*(\d+)")


class Provenance(NamedTuple):
    """When, from what and how a page was made, for its foot.

    Attributes:
        date: Date and time.
        command: The command line, or other words.
        files: Names of the files and their SHA-256, or an empty text if there is none.
    """

    date: str
    command: str
    files: Sequence[tuple[str, str]] = ()


def write_report(
    path: str | os.PathLike[str],
    audits: Sequence[Audit],
    comparisons: Sequence[Compared] = (),
    *,
    opening: Sequence[str] = (),
    made: Provenance | None = None,
) -> None:
    """Write audits as one self-contained HTML page: no script, nothing to load, the same bytes for the same audits.

    Args:
        path: Path of the page, which is written whole or not at all.
        audits: One audit for each model; several are shown side by side.
        comparisons: ``(first name, second name, metrics.compare(first, second))`` for pairs of models, with a reason in
            words in place of the comparison if there is none.
        opening: Sentences at the beginning of the page, one per paragraph.
        made: Date, command and files for the foot of the page.

    Example:
        >>> import tempfile
        >>> from calibrant import metrics, report
        >>> given = metrics.predictions([0.9] * 1000, [1, 1, 1, 1, 0] * 200)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report.write_report(f"{folder}/out.html", [report.audit("a & b", given)])
        ...     page = Path(f"{folder}/out.html").read_text()
        >>> "<h1>Calibration of <bdi>a &amp; b</bdi></h1>" in page, "Over-confident by 10.00" in page
        (True, True)
    """
    write_whole(Path(path), render(audits, comparisons, opening=opening, made=made))


def render(
    audits: Sequence[Audit],
    comparisons: Sequence[Compared] = (),
    *,
    opening: Sequence[str] = (),
    made: Provenance | None = None,
) -> str:
    """Return the page of :func:`write_report`."""
    if not audits:
        raise ValueError("a report needs at least one audit, got none: pass report.audit(name, predictions)")
    audits = [replace(audit, name=clean(audit.name)) for audit in audits]
    comparisons = [(clean(first), clean(second), found) for first, second, found in comparisons]
    files = resources.files("calibrant.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    filters = (typeset, isolated, percent, points, ends, as_sentence, bare_p, counted)
    environment.filters |= {each.__name__: each for each in filters}
    page = environment.from_string(files.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    scores = [score for audit in audits for score in audit.scores]
    return page.render(
        css=Markup(files.joinpath("page.css").read_text(encoding="utf-8")),  # noqa: S704 (our own file)
        opening=[clean(sentence) for sentence in opening],
        lead=_lead(audits),
        models=[_model(audit, figures) for audit, figures in zip(audits, _figures(audits), strict=True)],
        comparisons=[_comparison(a, b, found) for a, b, found in comparisons if not isinstance(found, str)],
        not_compared=[(a, b, found) for a, b, found in comparisons if isinstance(found, str)],
        scores=_score_rows(audits),
        meanings={score.key: for_task(METRICS[score.key], score.task) for score in scores}.values(),
        footer=_footer(audits[0]),
        made=made,
        measure=measure,
        most_groups=MOST_GROUPS,
    )


def _lead(audits: Sequence[Audit]) -> Markup:
    """Sizes of the audited models, with their names if there are several; shown under the title."""
    if len(audits) == 1:
        return escape(audits[0].scores.title)
    return Markup("; ").join(Markup("{}: {}").format(isolated(audit.name), audit.scores.title) for audit in audits)


def _footer(first: Audit) -> str:
    """How the numbers were made."""
    return (
        f"Made by Calibrant {metadata.version('calibrant')}. p\N{NON-BREAKING HYPHEN}values of calibration: "
        f"ESD of {counted(first.test.draws, 'data set')} drawn from a calibrated model, seed {first.seed}; for "
        "classes and labels as many as are needed, or Kuiper's test where that is below 1e\N{MINUS SIGN}9."
    )


def _comparison(first: str, second: str, compared: Comparison) -> dict[str, str]:
    """One row of the table of comparisons."""
    values = ("a", "b", "difference", "low", "high")
    return {key: measured(compared.metric, getattr(compared, key)) for key in values} | {
        "measure": measure(compared.metric),
        "first": first,
        "second": second,
        "interval": f"{100 * compared.level:g} %, {compared.method}",
        "p": bare_p(compared.p_value),
        "better": {"a": isolated(first), "b": isolated(second), None: "the data cannot tell"}[compared.better],
    }


def _score_rows(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """The table of all scores: a row for each, a cell for each model."""
    found = [{entry.key: entry for entry in audit.scores} for audit in audits]
    rows = []
    for key, entry in {key: entry for entries in found for key, entry in entries.items()}.items():
        notes = [entries[key].convention if key in entries else "" for entries in found]
        same = len({note for note in notes if note}) == 1
        rows.append({
            "label": entry.label.strip(), "part": entry.label.startswith(" "),
            "cells": [
                {"value": str(entries[key]) if key in entries else "\N{EN DASH}", "note": "" if same else note}
                for entries, note in zip(found, notes, strict=True)
            ],
            "convention": entry.convention if same else "differs, see the values",
        })  # fmt: skip
    return rows


def _model(audit: Audit, figures: dict[str, Markup]) -> dict[str, Any]:
    """One model: the audit, its figures, and what is computed for the page."""
    view = audit.findings[0].view
    stated = {"stated": "mean confidence", "came": "accuracy"}
    if view.of_event:
        stated = {"stated": f"mean P({view.name})", "came": "share"}
    return {
        "audit": audit,
        "name": audit.name,
        "event": _event(audit),
        "verdict": audit.verdict,
        "figures": figures,
        "facts": list(_facts(audit)),
        "tests": [] if audit.task == "multi-label" else list(_tests(audit)),
        "maps": "; ".join(f"{measure(key)}: {part.recalibration}" for key, part in audit.parts.items()),
        "columns": stated,
        "repaired": list(_before_and_after(audit)),
        "classes": _classes(audit),
    }


def _event(audit: Audit) -> str | None:
    """What is stated to happen, if it is not that the prediction is right."""
    return {"binary": f"class {audit.findings[0].view.name}", "multi-label": "labels"}.get(audit.task)


def _repaired_diagram(audit: Audit) -> Figure | None:
    repair = audit.repair
    if repair is None:
        return None
    pairs = repair.predictions if audit.task == "multi-label" else repair.judgements[0].view.pairs
    return reliability_diagram(pairs, bins=audit.bins, convention=audit.convention, event=_event(audit))


# Figure -> how it is drawn, if the audit has it.
FIGURES: dict[str, Callable[[Audit], Figure | None]] = {
    "reliability": lambda audit: reliability_diagram(
        audit.judged, bins=audit.bins, convention=audit.convention, event=_event(audit)
    ),
    "repair": _repaired_diagram,
    "cumulative": lambda audit: cumulative_plot(audit.judged, event=_event(audit)),
    "classes": lambda audit: (
        classwise_plot(audit.predictions) if audit.task in ("multi-class", "multi-label") else None
    ),
    "groups": lambda audit: None if audit.groups is None else groups_plot(audit.groups),
    "over_time": lambda audit: None if audit.over_time is None else time_plot(audit.over_time),
}
# Figures that stand side by side have the same limits, of one axis or of both.
SAME_AXES = (
    (("reliability", "repair"), True, True),
    (("cumulative",), True, True),
    (("classes",), True, False),
    (("groups",), True, False),
    (("over_time",), False, True),
)


def _figures(audits: Sequence[Audit]) -> list[dict[str, Markup]]:
    """Figures of each model as SVG; those that it does not have are empty."""
    drawn = [{name: draw(audit) for name, draw in FIGURES.items()} for audit in audits]
    for names, x, y in SAME_AXES:
        same_axes([figure for each in drawn for name in names if (figure := each[name]) is not None], x=x, y=y)
    return [
        {
            name: Markup() if figure is None else inline_svg(figure, f"m{place}{name}", _described(name, audit))
            for name, figure in figures.items()
        }
        for place, (audit, figures) in enumerate(zip(audits, drawn, strict=True), 1)
    ]


def _described(figure: str, audit: Audit) -> str:
    """Description of a figure for screen readers."""
    name, event = audit.name, _event(audit)
    stated, came = ("confidence", "accuracy") if event is None else ("probability", f"share of {event}")
    match figure:
        case "reliability":
            means = f"mean {stated} {percent(mean_confidence(audit.judged))}, {came} {percent(came_true(audit.judged))}"
            return f"Reliability diagram of {name}: {means}, ECE {percent(audit.scores.ece)}"
        case "repair":
            return f"Reliability diagram of {name} after recalibration"
        case "cumulative":
            largest = f"they differ by at most {100 * audit.scores.ks_error:.2f} points, the KS error"
            return f"Cumulative {came} and {stated} of {name}: {largest}"
        case "over_time":
            return f"Gap of {name} over time"
        case _:
            return f"Gaps of {figure} of {name}, the worst on top"


def _facts(audit: Audit) -> Iterator[dict[str, str]]:
    """The first numbers that a reader needs, with their intervals."""
    event, shown = _event(audit), {entry.key: entry for entry in audit.scores}
    notes = {
        "gap": "",
        "ece": f"{audit.bins or CONVENTIONS[audit.convention].bins:,} bins ({audit.convention})",
        "log_loss": "",
        "esd": "" if audit.task == "multi-label" else p_value(audit.test.p_value),  # its test is that of single labels
    }
    if event is None:
        top = audit.task != "confidence"
        notes = {"accuracy": "of top labels" * top, "mean_confidence": "in top labels" * top} | notes
    else:
        shares = {f"share of {event}": came_true(audit.judged), "mean probability": mean_confidence(audit.judged)}
        for label, share in shares.items():
            yield {"label": label, "value": percent(share), "note": "", "interval": ""}
    for key, note in notes.items():
        if key in shown:
            between = audit.intervals.get(key)
            interval = "" if between is None else in_unit(between)
            yield {"label": shown[key].label, "value": str(shown[key]), "note": note, "interval": interval}


def _tests(audit: Audit) -> Iterator[tuple[str, str]]:
    """The tests of the first view."""
    first = audit.findings[0]
    yield "ESD, resampled", f"{measured('esd', first.test.statistic)}, {p_value(first.p_value)}"
    for test in first.analytic:
        yield test.name, f"{test.statistic:z.2f}, {p_value(test.p_value)}"
    yield "Calibration line", "there is none that is finite" if first.line is None else str(first.line)
    yield "Integrated calibration index", percent(first.ici)
    yield "Equivalence", str(first.equivalence)


def _classes(audit: Audit) -> dict[str, Any] | None:
    """The judged classes or labels with the largest gaps; None if single ones are not judged."""
    judged = [found for found in audit.findings if found.view.kind in ("class", "label")]
    if not judged:
        return None
    worst = sorted(judged, key=lambda found: -abs(found.gap.value))[:MOST_ROWS]
    rows = []
    for found in worst:
        pairs = found.view.pairs
        error = ece(pairs, bins=audit.bins, convention=audit.convention)
        stated, share = mean_confidence(pairs), came_true(pairs)
        rows.append({"found": found, "stated": stated, "share": share, "error": error, "samples": pairs.correct.sum()})
    kind, count = judged[0].view.kind, audit.predictions.classes or 0
    words = "labels" if kind == "label" else "classes"
    note = f"The {MOST_ROWS} {words} with the largest gaps." if len(judged) > MOST_ROWS else ""
    if len(judged) < count:
        note = f"{note} Judged are the {len(judged):,} of {count:,} that the model expects most often."
    return {"rows": rows, "note": note.strip(), "kind": kind}


def _before_and_after(audit: Audit) -> Iterator[dict[str, str]]:
    if audit.repair is None:
        return
    after = {entry.key: entry for entry in audit.repair.scores}
    for entry in audit.scores:
        if entry.key in REPAIRED and entry.key in after:
            yield {"label": entry.label, "before": str(entry), "after": str(after[entry.key])}
    smallest: dict[str, tuple[float, float]] = {}
    for one, other in zip(audit.findings, audit.repair.judgements, strict=True):
        before, now = smallest.get(one.view.kind, (1.0, 1.0))
        smallest[one.view.kind] = min(before, one.p_value), min(now, other.p_value)
    for kind, (before, now) in smallest.items():
        of = f"smallest p of a {kind}" if kind in ("class", "label") else f"p, {kind}"
        yield {"label": of, "before": bare_p(before), "after": bare_p(now)}


def typeset(text: object) -> Markup:
    """Text as the terminal shows it, with true minus signs, powers of ten, and no break inside "p < 0.001".

    Example:
        >>> print(typeset("a gap of -0.5, ESD -2.34e-03"))
        a gap of −0.5, ESD −2.34 × 10<sup>−3</sup>
    """
    unbroken = UNBROKEN.sub("\N{NO-BREAK SPACE}", MINUS.sub("\N{MINUS SIGN}", str(text)))
    return Markup(POWER.sub(_power, escape(unbroken)))  # noqa: S704 (escaped)


def _power(number: re.Match[str]) -> str:
    digits, sign, exponent = number.groups()
    sign = "\N{MINUS SIGN}" if sign == "-" else ""
    return f"{digits} × 10<sup>{sign}{exponent}</sup>"  # noqa: RUF001


def isolated(name: str) -> Markup:
    """A name whose writing direction does not affect the text around it.

    Example:
        >>> print(isolated("a & b"))
        <bdi>a &amp; b</bdi>
    """
    return Markup("<bdi>{}</bdi>").format(name)
