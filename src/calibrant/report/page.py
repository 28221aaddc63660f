"""The page: audits of one or several models as one self-contained HTML file."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant.files import write_whole
from calibrant.metrics.binned import CONVENTIONS
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.evaluate import Score
from calibrant.metrics.intervals import Comparison, Interval
from calibrant.metrics.proper import came_true, mean_confidence
from calibrant.metrics.registry import METRICS
from calibrant.metrics.registry import label as measure
from calibrant.metrics.registry import number as measured
from calibrant.report.audit import Audit
from calibrant.report.figures import classwise_plot, cumulative_plot, groups_plot, reliability_diagram, time_plot
from calibrant.report.formats import NO_BREAK, as_sentence, bare_p, clean, counted, percent, sentence
from calibrant.report.statistics import LOSS_NAMES, MOST_ROWS, class_rows, floor_note
from calibrant.report.style import inline_svg, same_axes
from calibrant.report.verdict import caveat

# Two names, and their comparison, or the reason why they are not compared.
Compared = tuple[str, str, Comparison | str]
# Scores of the table before and after recalibration.
REPAIRED = ("gap", "ece", "equal_mass_ece", "smooth_ece", "ks_error", "esd", "classwise_ece", "log_loss", "brier")
# Groups in a table; the rest are counted.
MOST_GROUPS = 40
SIGNED_ZERO = re.compile(r"[+-]0\.0+( %)?")
POWER = re.compile(r"(-?[\d.]+)e([+-]\d+)")


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
    filters = (number, isolated, percent, points, ends, sentence, as_sentence, bare_p, counted)
    environment.filters |= {each.__name__: each for each in filters}
    page = environment.from_string(files.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    scores = [score for audit in audits for score in audit.scores]
    return page.render(
        title=_title(audits, compared=bool(comparisons)),
        css=Markup(files.joinpath("page.css").read_text(encoding="utf-8")),  # noqa: S704 (our own file)
        opening=[clean(sentence) for sentence in opening],
        lead=_lead(audits),
        models=[_model(audit, figures) for audit, figures in zip(audits, _figures(audits), strict=True)],
        comparisons=[_comparison(a, b, found) for a, b, found in comparisons if not isinstance(found, str)],
        not_compared=[(a, b, found) for a, b, found in comparisons if isinstance(found, str)],
        scores=_score_rows(audits),
        meanings={score.key: replace(METRICS[score.key], label=score.label) for score in scores}.values(),
        footer=_footer(audits),
        made=made,
        losses=LOSS_NAMES,
        most_groups=MOST_GROUPS,
    )


def _title(audits: Sequence[Audit], *, compared: bool) -> Markup:
    if len(audits) == 1:
        return Markup("Calibration of {}").format(isolated(audits[0].name))
    words = f"{len(audits)} models compared" if compared else f"Calibration of {len(audits)} models"
    return Markup("{}").format(words)


def _lead(audits: Sequence[Audit]) -> Markup:
    """Names and sizes of the audited models, shown under the title."""
    sizes = {audit.scores.title for audit in audits}
    if len(audits) == 1:
        return Markup("{}").format(audits[0].scores.title)
    *others, last = (isolated(audit.name) for audit in audits)
    names = Markup("{} and {}").format(Markup(", ").join(others), last)
    return Markup("{}; {} each").format(names, sizes.pop()) if len(sizes) == 1 else names


def _footer(audits: Sequence[Audit]) -> str:
    """How the numbers were made."""
    sizes = sorted({len(audit.predictions) for audit in audits})
    samples = counted(sizes[0], "sample") if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} samples"
    return (
        f"Made by Calibrant {metadata.version('calibrant')} from {samples}. "
        f"p\N{NON-BREAKING HYPHEN}values of calibration: "
        f"ESD of {counted(audits[0].test.draws, 'data set')} drawn from a calibrated model, seed {audits[0].seed}; for "
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
    found = [_by_key(audit.scores) for audit in audits]
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


def _by_key(scores: Any) -> dict[str, Score]:
    return {entry.key: entry for entry in scores}


def _model(audit: Audit, figures: dict[str, Markup]) -> dict[str, Any]:
    """One model: the audit, its figures, and what is computed for the page."""
    view, note = audit.findings[0].view, caveat(audit)
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
        "maps": "; ".join(
            [*(f"{LOSS_NAMES[key]}: {part.recalibration}" for key, part in audit.parts.items()),
             *filter(None, [floor_note(audit.predictions)])]
        ),
        "columns": stated,
        "repaired": list(_before_and_after(audit)),
        "caveat": note and f"{as_sentence(note)} Audit the logits to be sure.",
        "classes": _classes(audit) if _has_classes(audit) else None,
    }  # fmt: skip


def _event(audit: Audit) -> str | None:
    """What is stated to happen, if it is not that the prediction is right."""
    return {"binary": f"class {audit.findings[0].view.name}", "multi-label": "labels"}.get(audit.task)


def _has_classes(audit: Audit) -> bool:
    return audit.task in ("multi-class", "multi-label")


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
    "classes": lambda audit: classwise_plot(audit.predictions) if _has_classes(audit) else None,
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
    scores, name = audit.scores, audit.name
    event = _event(audit)
    stated, came = ("confidence", "accuracy") if event is None else ("probability", f"share of {event}")
    match figure:
        case "reliability":
            sure, right = percent(mean_confidence(audit.judged)), percent(came_true(audit.judged))
            ece = percent(scores.ece)
            return f"Reliability diagram of {name}: mean {stated} {sure}, {came} {right}, ECE {ece}"
        case "repair":
            ece = "" if audit.repair is None else percent(audit.repair.scores.ece)
            return f"Reliability diagram of {name} after recalibration: ECE {ece}"
        case "cumulative":
            largest = f"they differ by at most {100 * scores.ks_error:.2f} points, the KS error"
            return f"Cumulative {came} and {stated} of {name}: {largest}"
        case "over_time":
            return f"Gap of {name} over time"
        case _:
            each, first = ("class", "largest") if figure == "classes" else ("group", "worst")
            return f"Gap of each {each} of {name}, the {first} on top"


def _facts(audit: Audit) -> Iterator[dict[str, str]]:
    """The first numbers that a reader needs, with their intervals."""
    shown = _by_key(audit.scores)
    event = _event(audit)
    notes = {
        "gap": "points",
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
    for key in [key for key in notes if key in shown]:
        between = audit.intervals.get(key)
        interval = ""
        if between is not None:
            interval = ends(between) if key == "gap" else Markup("{} to {}").format(
                *(number(measured(key, end)) for end in (between.low, between.high))
            )  # fmt: skip
        value = str(shown[key]).removesuffix(" %") if key == "gap" else str(shown[key])
        yield {"label": shown[key].label, "value": value, "note": notes[key], "interval": interval}


def _tests(audit: Audit) -> Iterator[tuple[str, str]]:
    """The tests of the first view."""
    first = audit.findings[0]
    esd = number(measured("esd", first.test.statistic))
    yield "ESD, resampled", Markup("{}, {}").format(esd, p_value(first.p_value))
    for test in first.analytic:
        yield test.name, sentence(f"{test.statistic:z.2f}, {p_value(test.p_value)}")
    line = "there is none that is finite" if first.line is None else str(first.line)
    yield "Calibration line", sentence(line)
    yield "Integrated calibration index", percent(first.ici)
    yield "Equivalence", sentence(str(first.equivalence))


def _classes(audit: Audit) -> dict[str, Any]:
    """The classes or labels with the largest gaps, and the p-values of those that were tested."""
    count = audit.predictions.classes or 0
    kind, words = ("label", "labels") if audit.task == "multi-label" else ("class", "classes")
    p = {found.view.name: bare_p(found.p_value) for found in audit.findings if found.view.kind == kind}
    note = f"The {MOST_ROWS} {words} of {count:,} with the largest gaps." if count > MOST_ROWS else ""
    if len(p) < count:
        note += f" Tested are the {len(p):,} that the model expects most often."
    rows = class_rows(audit.predictions, bins=audit.bins, convention=audit.convention)
    return {"rows": rows, "p": p, "note": note.strip(), "kind": kind}


def _before_and_after(audit: Audit) -> Iterator[dict[str, str]]:
    if audit.repair is None:
        return
    before, after = _by_key(audit.scores), _by_key(audit.repair.scores)
    for key in REPAIRED:
        if key in before and key in after:
            yield {"label": before[key].label, "before": str(before[key]), "after": str(after[key])}
    for name, kinds in (("p", ("confidence", "top label", "risk")), ("smallest p", ("class", "label"))):
        found = [
            [each.p_value for each in judged if each.view.kind in kinds]
            for judged in (audit.findings, audit.repair.judgements)
        ]
        if all(found):
            views = {each.view.kind for each in audit.findings} & set(kinds)
            of = "classes" if "class" in views else f"{views.pop()}{'s' if 'label' in views else ''}"
            yield {"label": f"{name}, {of}", "before": bare_p(min(found[0])), "after": bare_p(min(found[1]))}


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
    return Markup("{}").format(_minus(text).replace(" %", f"{NO_BREAK}%"))


def points(share: float) -> str:
    """A difference of shares in points, with its sign.

    Example:
        >>> print(points(0.0123), points(-0.004), points(0.0))
        +1.23 −0.40 0.00
    """
    return str(number(f"{100 * share:+z.2f}"))


def ends(gap: Interval) -> str:
    """The interval of a gap in points.

    Example:
        >>> print(ends(Interval("gap", 0.01, -0.001, 0.021, 0.95, "jackknife")))
        −0.10 to 2.10
    """
    return f"{number(f'{100 * gap.low:z.2f}')} to {number(f'{100 * gap.high:z.2f}')}"


def isolated(name: str) -> Markup:
    """A name whose writing direction does not affect the text around it.

    Example:
        >>> print(isolated("a & b"))
        <bdi>a &amp; b</bdi>
    """
    return Markup("<bdi>{}</bdi>").format(name)


def _minus(text: str) -> str:
    return f"\N{MINUS SIGN}{text[1:]}" if text.startswith("-") else text
