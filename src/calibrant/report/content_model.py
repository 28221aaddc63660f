"""Content of the page that is about each model: verdict, numbers, figures, classes and repair."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant.metrics import CONVENTIONS, Interval, Score
from calibrant.metrics.proper import came_true, mean_confidence
from calibrant.metrics.verdicts import number as measured
from calibrant.metrics.verdicts import p_value
from calibrant.report.audit import Audit
from calibrant.report.classes import MOST_ROWS, class_rows
from calibrant.report.content_watched import change, groups, over_time
from calibrant.report.figures import cumulative_plot, reliability_diagram
from calibrant.report.formats import bare_p, ends, number, percent, points, sentence
from calibrant.report.gap_figures import classwise_plot, groups_plot, time_plot
from calibrant.report.losses import floor_note
from calibrant.report.names import as_sentence
from calibrant.report.style import same_axes
from calibrant.report.svg import inline_svg
from calibrant.report.verdict import caveat, verdict

# Scores of the table before and after recalibration.
REPAIRED = ("gap", "ece", "equal_mass_ece", "smooth_ece", "ks_error", "esd", "classwise_ece", "nll", "brier")
LOSSES = {"log_loss": "Log loss", "brier": "Brier score"}


def models(audits: Sequence[Audit]) -> list[dict[str, Any]]:
    """Everything about each model; figures of the same kind have the same axes."""
    before, after = _drawn(audits, _reliability), _drawn(audits, _reliability_after)
    same_axes([figure for figure in (*before, *after) if figure is not None])
    cumulative = _drawn(audits, lambda audit: cumulative_plot(audit.judged, event=_event(audit)))
    same_axes([figure for figure in cumulative if figure is not None])
    gaps = [
        _drawn(audits, draw, x=True)
        for draw in (
            lambda audit: classwise_plot(audit.predictions) if _has_classes(audit) else None,
            lambda audit: None if audit.groups is None else groups_plot(audit.groups),
        )
    ]
    times = _drawn(audits, lambda audit: None if audit.over_time is None else time_plot(audit.over_time), y=True)
    figures = zip(before, after, cumulative, *gaps, times, strict=True)
    return [
        _model(audit, f"m{place}", *drawn)
        for place, (audit, drawn) in enumerate(zip(audits, figures, strict=True), start=1)
    ]


def _drawn(
    audits: Sequence[Audit], draw: Callable[[Audit], Figure | None], *, x: bool = False, y: bool = False
) -> list[Figure | None]:
    figures = [draw(audit) for audit in audits]
    same_axes([figure for figure in figures if figure is not None], x=x, y=y)
    return figures


def _model(
    audit: Audit,
    name: str,
    before: Figure,
    after: Figure | None,
    cumulative: Figure,
    classes: Figure | None,
    by_group: Figure | None,
    times: Figure | None,
) -> dict[str, Any]:
    """One model; ``name`` makes the ids of its figures unique."""

    def svg(figure: Figure | None, letter: str, label: str) -> Markup:
        return Markup() if figure is None else inline_svg(figure, name + letter, label)

    scores = audit.scores
    sure, right = percent(mean_confidence(audit.judged)), percent(came_true(audit.judged))
    stated, came = ("probability", f"share of {_event(audit)}") if _event(audit) else ("confidence", "accuracy")
    return {
        "name": audit.name,
        "event": _event(audit),
        "verdict": sentence(verdict(audit)),
        "notices": [sentence(notice) for notice in audit.notices],
        "facts": _facts(audit),
        "numbers": _numbers(audit),
        "reliability": svg(
            before,
            "r",
            f"Reliability diagram of {audit.name}: mean {stated} {sure}, {came} {right}, ECE {percent(scores.ece)}",
        ),
        "cumulative": svg(
            cumulative,
            "c",
            f"Cumulative {came} and {stated} of {audit.name}: they differ by at most "
            f"{100 * scores.ks_error:.2f} points, the KS error",
        ),
        "classes": _classes(audit, svg(classes, "k", f"Gap of each class of {audit.name}, the largest on top")),
        "groups": groups(audit, svg(by_group, "g", f"Gap of each group of {audit.name}, the worst on top")),
        "over_time": over_time(audit, svg(times, "w", f"Gap of {audit.name} over time")),
        "change": change(audit),
        "repair": _repair(audit, lambda label: svg(after, "t", label)),
        "problem": audit.problem,
    }


def _event(audit: Audit) -> str | None:
    """What is stated to happen, if it is not that the prediction is right."""
    return {"binary": f"class {audit.findings[0].view.name}", "multi-label": "labels"}.get(audit.task)


def _reliability(audit: Audit) -> Figure:
    return reliability_diagram(audit.judged, bins=audit.bins, convention=audit.convention, event=_event(audit))


def _reliability_after(audit: Audit) -> Figure | None:
    repair = audit.repair
    if repair is None:
        return None
    pairs = repair.predictions if audit.task == "multi-label" else repair.judgements[0].view.pairs
    return reliability_diagram(pairs, bins=audit.bins, convention=audit.convention, event=_event(audit))


def _entries(audit: Audit) -> dict[str, Score]:
    return {entry.key: entry for entry in audit.scores}


def _facts(audit: Audit) -> list[dict[str, str]]:
    """The first numbers that a reader needs, with their intervals."""
    shown = _entries(audit)
    bins = audit.bins or CONVENTIONS[audit.convention].bins
    notes = {
        "accuracy": "of top labels",
        "mean_confidence": "in top labels",
        "gap": "points",
        "ece": f"{bins:,} bins ({audit.convention})",
        "nll": "",
        "esd": p_value(audit.test.p_value),
    }
    if audit.task == "confidence":
        notes |= {"accuracy": "", "mean_confidence": ""}
    facts: list[dict[str, str]] = []
    if audit.task == "multi-label":  # the test is that of single labels
        notes["esd"] = ""
    if audit.task in ("binary", "multi-label"):
        notes = {key: note for key, note in notes.items() if key not in ("accuracy", "mean_confidence")}
        event = _event(audit)
        shares = {f"share of {event}": came_true(audit.judged), "mean probability": mean_confidence(audit.judged)}
        facts = [
            {"label": label, "value": percent(share), "note": "", "interval": ""} for label, share in shares.items()
        ]
    for key, note in notes.items():
        if key not in shown:
            continue
        value = str(shown[key]).removesuffix(" %") if key == "gap" else str(shown[key])
        between = audit.intervals.get(key)
        facts.append({
            "label": shown[key].label, "value": value, "note": note,
            "interval": "" if between is None else _between(key, between),
        })  # fmt: skip
    return facts


def _between(key: str, between: Interval) -> str:
    if key == "gap":
        return ends(between)
    return f"{number(measured(key, between.low))} to {number(measured(key, between.high))}"


def _numbers(audit: Audit) -> dict[str, Any]:
    """What is behind the verdict: the tests of the first view, and the parts of the losses."""
    parts = [
        {"loss": LOSSES[key], "whole": part.loss, "calibration": part.calibration, "refinement": part.refinement}
        for key, part in audit.parts.items()
    ]
    maps = [f"{LOSSES[key]}: {part.recalibration}" for key, part in audit.parts.items()]
    found = {"parts": parts, "maps": "; ".join(filter(None, [*maps, floor_note(audit.predictions)]))}
    if audit.task == "multi-label":
        return found | {"judged": "", "tests": []}
    first = audit.findings[0]
    line = "there is none that is finite" if first.line is None else str(first.line)
    tests = [
        (
            "ESD, resampled",
            Markup("{}, {}").format(number(measured("esd", first.test.statistic)), p_value(first.p_value)),
        ),
        *((test.name, f"{test.statistic:z.2f}, {p_value(test.p_value)}") for test in first.analytic),
        ("Calibration line", line),
        ("Integrated calibration index", percent(first.ici)),
        ("Equivalence", str(first.equivalence)),
    ]
    return found | {
        "judged": str(first.view),
        "tests": [(name, text if isinstance(text, Markup) else sentence(text)) for name, text in tests],
    }


def _has_classes(audit: Audit) -> bool:
    return audit.task in ("multi-class", "multi-label")


def _classes(audit: Audit, figure: Markup) -> dict[str, Any] | None:
    """The classes or labels with the largest gaps, and the p-values of those that were tested."""
    if not _has_classes(audit):
        return None
    count = audit.predictions.classes or 0
    kind = "labels" if audit.task == "multi-label" else "classes"
    p = {found.view.name: found.p_value for found in audit.findings if found.view.kind in ("class", "label")}
    rows = [
        {
            "name": row.name, "gap": points(row.gap.value), "interval": ends(row.gap),
            "p": bare_p(p[row.name]) if row.name in p else "\N{EN DASH}", "samples": f"{row.samples:,}",
            "share": percent(row.share), "probability": percent(row.probability), "recall": percent(row.recall),
            "precision": percent(row.precision), "error": percent(row.error),
        }
        for row in class_rows(audit.predictions, bins=audit.bins, convention=audit.convention)
    ]  # fmt: skip
    note = f"The {MOST_ROWS} {kind} of {count:,} with the largest gaps." if count > MOST_ROWS else ""
    if len(p) < count:
        note += f" Tested are the {len(p):,} that the model expects most often."
    return {"figure": figure, "rows": rows, "note": note.strip(), "kind": "label" if kind == "labels" else "class"}


def _repair(audit: Audit, svg: Callable[[str], Markup]) -> dict[str, Any] | None:
    repair = audit.repair
    if repair is None:
        return None
    note = caveat(audit)
    return {
        "how": repair.how.description,
        "rows": list(_before_and_after(audit)),
        "figure": svg(f"Reliability diagram of {audit.name} after recalibration: ECE {percent(repair.scores.ece)}"),
        "note": note and f"{as_sentence(note)} Audit the logits to be sure.",
    }


def _before_and_after(audit: Audit) -> Iterator[dict[str, str]]:
    assert audit.repair is not None  # noqa: S101 (checked by the caller; mypy cannot see it)
    before, after = _entries(audit), {entry.key: entry for entry in audit.repair.scores}
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
