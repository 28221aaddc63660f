"""One audit on the terminal and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from calibrant.commands.terminal import plain, print_scores
from calibrant.metrics import GroupCalibration, Interval, Judgement
from calibrant.metrics.verdicts import number, p_value
from calibrant.report import Audit, verdict
from calibrant.report.audit import Finding
from calibrant.report.losses import floor_note

# Rows of the table of views; the rest is in JSON and in the report.
MOST_VIEWS = 12
# Width at which no table is broken.
WIDEST = 10_000
LOSSES = {"log_loss": "Log loss", "brier": "Brier score"}


def print_audit(console: Console, audit: Audit) -> None:
    """Scores before and after recalibration, intervals, tests, and parts of the losses."""
    columns = {"value": audit.scores}
    if audit.repair is not None:
        columns["recalibrated"] = audit.repair.scores
    print_scores(console, columns, title=audit.scores.title)
    _print(console, "95 % intervals: " + "; ".join(map(_interval, audit.intervals.values())) + ".")
    for score, parts in audit.parts.items():
        _print(
            console,
            f"{LOSSES[score]} {parts.loss:.4f} = {parts.calibration:.4f} calibration + {parts.refinement:.4f} "
            f"refinement (recalibration: {parts.recalibration}{_floored(audit, score)}).",
        )
    if len(audit.findings) == 1:
        _print_finding(console, audit.findings[0])
    else:
        _print_findings(console, audit)
    if audit.repair is not None:
        how = audit.repair.how
        tried = ", ".join(f"{name} {loss:.4f}" for name, loss in how.tried.items())
        _print(
            console,
            f"Recalibration by {how.description}, fitted on all samples. In the column recalibrated, each half of the "
            f"samples is recalibrated by a fit on the other half. Log loss there: {tried}.",
        )


def _floored(audit: Audit, score: str) -> str:
    note = floor_note(audit.predictions) if score == "log_loss" else ""
    return note and f"; {note}"


def _print(console: Console, text: str) -> None:
    console.print(plain(text), highlight=False)


def _interval(found: Interval) -> str:
    name = {"nll": "log loss", "brier": "Brier", "gap": "gap", "ece": "ECE"}[found.metric]
    return f"{name} {number(found.metric, found.low)} to {number(found.metric, found.high)}"


def _print_finding(console: Console, found: Finding) -> None:
    esd = f"ESD {number('esd', found.test.statistic)}, {p_value(found.p_value)} ({found.test.draws:,} draws)"
    _print(console, f"Tests of the {found.view}: {esd}; {'; '.join(map(str, found.analytic))}.")
    line = "none that is finite" if found.line is None else str(found.line)
    _print(console, f"Calibration line: {line}. ICI {100 * found.ici:.2f} %.")
    _print(console, f"Equivalence: {found.equivalence}.")


def _print_findings(console: Console, audit: Audit) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("judged", overflow="fold")
    for heading in ("gap", "95 % interval", "p", "within"):
        table.add_column(heading, justify="right", no_wrap=True)
    alone = [found for found in audit.findings if found.view.kind not in ("class", "label")]
    family = sorted((found for found in audit.findings if found not in alone), key=lambda found: found.p_value)
    shown = [*alone, *family][:MOST_VIEWS]
    for found in shown:
        gap, margin = found.lean.gap, found.equivalence.margin
        table.add_row(
            plain("top label" if found.view.kind == "top label" else f"{found.view.kind} {found.view.name}"),
            f"{100 * gap.value:+z.2f}",
            f"{100 * gap.low:z.2f} to {100 * gap.high:z.2f}",
            p_value(found.p_value).removeprefix("p ").removeprefix("= "),
            f"± {100 * margin:g}" if found.equivalence.on_average else "not shown",
        )
    console.print(table)
    rest = len(audit.findings) - len(shown)
    draws = max(found.test.draws for found in audit.findings)
    _print(
        console,
        f"p: ESD of up to {draws:,} data sets drawn from calibrated probabilities, Kuiper's test where that is beyond "
        "doubt (below 1e-9), and Holm's correction for classes or labels. Gaps in points."
        f"{f' {rest:,} more are in --json.' if rest else ''}",
    )


def print_watched(console: Console, audit: Audit, about: str = "") -> None:
    """Calibration of groups and over time, and the change since the baseline, if they were asked for."""
    stated, came = ("P", "events") if audit.findings[0].view.of_event else ("confidence", "right")
    if audit.groups is not None:
        found = audit.groups
        rejected = f"{len(found.rejected)} of {len(found.groups)} groups are not calibrated, after Holm's correction"
        _print(console, f"{about}{rejected}. Multicalibration error {100 * found.multicalibration_error:.2f} %.")
        rows = [
            (each.name, each.samples, each.mean_confidence, each.accuracy, each.gap, p_value(each.p_value))
            for each in found.groups[:MOST_VIEWS]
        ]
        _print_rows(console, ("group", "samples", stated, came), rows)
        if len(found.groups) > MOST_VIEWS:
            _print(console, f"{len(found.groups) - MOST_VIEWS:,} more groups are in --json.")
        if found.too_small:
            count = f"{len(found.too_small):,} group{'s'[: len(found.too_small) > 1]}"
            _print(console, f"Not judged, as they have fewer than {found.least} samples: {count}.")
    if audit.over_time is not None:
        _print(console, f"{about}Over time: {audit.over_time}.")
        windows = [
            (f"{each.start} to {each.end}", each.samples, each.mean_confidence, each.accuracy, each.gap, "")
            for each in audit.over_time.windows
        ]
        _print_rows(console, ("time", "samples", stated, came), windows)
    if audit.change is not None:
        _print(console, f"{about}Against the baseline: {audit.change}.")


def _print_rows(console: Console, headings: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> None:
    """A table that breaks no name: if it is too wide, it has no means, then a line for each part of a name."""
    for shares, separator in ((True, ", "), (False, ", "), (False, ",\n")):
        table = _rows(headings, rows, shares=shares, separator=separator)
        if console.measure(table, options=console.options.update_width(WIDEST)).maximum <= console.width:
            break
    console.print(table)


def _rows(headings: Sequence[str], rows: Sequence[tuple[Any, ...]], *, shares: bool, separator: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(headings[0], overflow="fold")
    tested = any(row[-1] for row in rows)
    shown = headings[1:] if shares else headings[1:2]
    for heading in (*shown, "gap", "95 % interval", *(["p"] if tested else [])):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, samples, mean, share, gap, p in rows:
        found = [p.removeprefix("p ").removeprefix("= ")] if tested else []
        means = [f"{100 * mean:.1f} %", f"{100 * share:.1f} %"] if shares else []
        table.add_row(
            separator.join(map(plain, name.split(", "))), f"{samples:,}", *means, f"{100 * gap.value:+z.2f}",
            f"{100 * gap.low:z.2f} to {100 * gap.high:z.2f}", *found,
        )  # fmt: skip
    return table


def _groups(found: GroupCalibration) -> dict[str, Any]:
    return asdict(found) | {"rejected": [group.name for group in found.rejected]}


def as_data(audit: Audit) -> dict[str, Any]:
    """Everything in an audit, ready for JSON."""
    test = asdict(audit.test) | {"rejected_at_5_percent": audit.test.rejected()}
    return {
        "name": audit.name,
        "verdict": verdict(audit),
        "task": audit.task,
        **audit.scores.to_dict(),
        "intervals": {key: asdict(found) for key, found in audit.intervals.items()},
        "test": test,
        "views": [_finding(found) for found in audit.findings],
        "parts": {score: parts._asdict() for score, parts in audit.parts.items()},
        "repair": None if audit.repair is None else _repair(audit),
        "no_repair": audit.problem,
        "groups": None if audit.groups is None else _groups(audit.groups),
        "over_time": None
        if audit.over_time is None
        else asdict(audit.over_time) | {"changed": audit.over_time.changed},
        "baseline": None
        if audit.change is None
        else asdict(audit.change) | {"changed": audit.change.changed, "worse": audit.change.worse},
    }


def _finding(found: Finding) -> dict[str, Any]:
    return _judgement(found) | {
        "test": asdict(found.test),
        "gap": asdict(found.lean.gap),
        "factor": None if found.lean.factor is None else found.lean.factor._asdict(),
        "equivalence": asdict(found.equivalence)
        | {"on_average": found.equivalence.on_average, "everywhere": found.equivalence.everywhere},
        "analytic": [asdict(test) for test in found.analytic],
        "calibration_line": None if found.line is None else found.line._asdict(),
        "integrated_calibration_index": found.ici,
    }


def _repair(audit: Audit) -> dict[str, Any]:
    assert audit.repair is not None  # noqa: S101 (checked by the caller; mypy cannot see it)
    how = audit.repair.how
    calibrator = how.calibrator
    return {
        "method": how.method,
        "description": how.description,
        "temperature": getattr(calibrator, "temperature_", None) if how.method == "temperature" else None,
        "weights": getattr(calibrator, "weights_", None) if how.method == "auto" else None,
        "notices": list(calibrator.notices_),
        "cross_fitted_log_loss": how.tried,
        **audit.repair.scores.to_dict(),
        "views": [_judgement(found) for found in audit.repair.judgements],
    }


def _judgement(found: Finding | Judgement) -> dict[str, Any]:
    return {
        "kind": found.view.kind,
        "name": found.view.name,
        "rejected_at_5_percent": found.rejected,
        "p_value": found.p_value,
    }
