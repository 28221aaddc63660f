"""The page: audits of one or several models as one self-contained HTML file."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from calibrant.files import write_whole
from calibrant.metrics.binned import CONVENTIONS, ece
from calibrant.metrics.closed_form import p_value
from calibrant.metrics.proper import came_true, mean_confidence
from calibrant.metrics.registry import METRICS
from calibrant.metrics.registry import label as measure
from calibrant.metrics.registry import number as measured
from calibrant.report.audit import Audit, Compared
from calibrant.report.figures import (
    MOST_ROWS,
    classwise_plot,
    cumulative_plot,
    groups_plot,
    reliability_diagram,
    time_plot,
)
from calibrant.report.formats import as_sentence, bare_p, clean, counted, ends, in_unit, percent, points, score_rows
from calibrant.report.style import inline_svg, same_axes

# Scores of the table before and after recalibration.
REPAIRED = ("gap", "ece", "equal_mass_ece", "smooth_ece", "ks_error", "esd", "classwise_ece", "log_loss", "brier")
# Groups in a table; the rest are counted.
MOST_GROUPS = 40
MINUS = re.compile(r"(?<![\w.)-])-(?=\d)")
UNBROKEN = re.compile(r"(?<=\bp) (?=[<=])|(?<=[<=]) (?=\d)|(?<=temperature) (?=\d)|(?<=\d) (?=%|points|samples)")
POWER = re.compile(r"([\d.]+)e([+-])0*(\d+)")


class Provenance(NamedTuple):
    """Date, command line, and names of files with their SHA-256 or an empty text, for the foot of a page."""

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
    """
    write_whole(Path(path), render(audits, comparisons, opening, made))


def render(
    audits: Sequence[Audit],
    comparisons: Sequence[Compared] = (),
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
    filters = (typeset, isolated, percent, points, ends, in_unit, as_sentence, bare_p, counted)
    environment.filters |= {each.__name__: each for each in filters}
    page = environment.from_string(files.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    scores = [score for audit in audits for score in audit.scores]
    return page.render(
        css=Markup(files.joinpath("page.css").read_text(encoding="utf-8")),  # noqa: S704 (our own file)
        opening=[clean(sentence) for sentence in opening],
        models=[_model(audit, figures) for audit, figures in zip(audits, _figures(audits), strict=True)],
        comparisons=[each for each in comparisons if not isinstance(each[2], str)],
        not_compared=[each for each in comparisons if isinstance(each[2], str)],
        scores=score_rows([audit.scores for audit in audits]),
        meanings={score.key: replace(METRICS[score.key], label=score.label) for score in scores}.values(),
        made=made,
        version=metadata.version("calibrant"),
        measure=measure,
        measured=measured,
        most_groups=MOST_GROUPS,
    )


def _model(audit: Audit, figures: dict[str, Markup]) -> dict[str, Any]:
    event = _event(audit)
    means = ("mean confidence", "accuracy") if event is None else ("mean probability", f"share of {event}")
    return {
        "audit": audit,
        "name": audit.name,
        "event": event,
        "verdict": audit.verdict,
        "figures": figures,
        "facts": list(_facts(audit, *means)),
        "tests": [] if audit.task == "multi-label" else list(_tests(audit)),
        "maps": "; ".join(f"{measure(key)}: {part.recalibration}" for key, part in audit.parts.items()),
        "means": means,
        "repaired": list(_before_and_after(audit)),
        "classes": _classes(audit),
    }


def _event(audit: Audit) -> str | None:
    """What is stated to happen, if it is not that the prediction is right."""
    return {"binary": f"class {audit.findings[0].view.name}", "multi-label": "labels"}.get(audit.task)


def _figures(audits: Sequence[Audit]) -> list[dict[str, Markup]]:
    """Figures of each model as SVG; those that stand side by side have the same limits."""
    drawn = [_drawn(audit) for audit in audits]
    for name in dict.fromkeys(name for figures in drawn for name in figures):
        same_axes([figures[name][0] for figures in drawn if name in figures], y=name not in ("classes", "groups"))
    return [
        {name: inline_svg(figure, f"m{place}{name}", label) for name, (figure, label) in figures.items()}
        for place, figures in enumerate(drawn, 1)
    ]


def _drawn(audit: Audit) -> dict[str, tuple[Figure, str]]:
    """The figures that an audit has, with their descriptions for screen readers."""
    name, judged, event, repair = audit.name, audit.judged, _event(audit), audit.repair
    diagram = partial(reliability_diagram, bins=audit.bins, convention=audit.convention, event=event)
    stated, came = ("confidence", "accuracy") if event is None else ("probability", f"share of {event}")
    means = f"mean {stated} {percent(mean_confidence(judged))}, {came} {percent(came_true(judged))}"
    apart = f"they differ by at most {100 * audit.scores.ks_error:.2f} points, the KS error"
    drawn = {
        "reliability": (
            diagram(judged), f"Reliability diagram of {name}: {means}, ECE {percent(audit.scores.ece)}"
        ),
        "cumulative": (cumulative_plot(judged, event=event), f"Cumulative {came} and {stated} of {name}: {apart}"),
    }  # fmt: skip
    if repair is not None:
        pairs = repair.predictions if audit.task == "multi-label" else repair.judgements[0].view.pairs
        drawn["repair"] = diagram(pairs), f"Reliability diagram of {name} after recalibration"
    if audit.task in ("multi-class", "multi-label"):
        drawn["classes"] = classwise_plot(audit.predictions), f"Gaps of classes of {name}, the largest on top"
    if audit.groups is not None:
        drawn["groups"] = groups_plot(audit.groups), f"Gaps of groups of {name}, the worst on top"
    if audit.over_time is not None:
        drawn["over_time"] = time_plot(audit.over_time), f"Gap of {name} over time"
    return drawn


def _facts(audit: Audit, stated: str, came: str) -> Iterator[dict[str, str]]:
    for label, share in {came: came_true(audit.judged), stated: mean_confidence(audit.judged)}.items():
        yield {"label": label, "value": percent(share), "note": "", "interval": ""}
    notes = {
        "gap": "",
        "ece": f"{audit.bins or CONVENTIONS[audit.convention].bins:,} bins ({audit.convention})",
        "esd": "" if audit.task == "multi-label" else p_value(audit.test.p_value),  # its test is that of single labels
        "log_loss": "",
    }
    for score in audit.scores:
        if score.key in notes:
            between = audit.intervals.get(score.key)
            interval = "" if between is None else in_unit(between)
            yield {"label": score.label, "value": str(score), "note": notes[score.key], "interval": interval}


def _tests(audit: Audit) -> Iterator[tuple[str, str]]:
    first = audit.findings[0]
    yield "ESD, resampled", f"{measured('esd', first.test.statistic)}, {p_value(first.p_value)}"
    for test in first.analytic:
        yield test.name, f"{test.statistic:z.2f}, {p_value(test.p_value)}"
    yield "Calibration line", "there is none that is finite" if first.line is None else str(first.line)
    yield "Integrated calibration index", percent(first.ici)
    yield "Equivalence", str(first.equivalence)


def _classes(audit: Audit) -> dict[str, Any] | None:
    """The judged classes or labels with the largest gaps; None if single ones are not judged."""
    judged = audit.classes
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
    for row in score_rows([audit.scores, audit.repair.scores]):
        if row.key in REPAIRED:
            yield {"label": row.label, "before": row.values[0], "after": row.values[1]}
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
    """A name whose writing direction does not affect the text around it."""
    return Markup("<bdi>{}</bdi>").format(name)
