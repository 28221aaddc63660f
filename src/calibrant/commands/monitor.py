"""Groups, time and a baseline of an evaluation; conditions under which it fails; its history."""

import datetime
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrant.commands import Evaluation
from calibrant.files import FileError, naming, read_source, whole_or_not_at_all
from calibrant.files.formats import TABLES, Array, Table, explained, suffix_of, text
from calibrant.files.layout import Columns
from calibrant.files.read import digest
from calibrant.metrics import calibration_by_group, calibration_change, calibration_over_time
from calibrant.metrics.predictions import views
from calibrant.metrics.registry import METRICS, number
from calibrant.report.audit import Audit

OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
}  # fmt: skip
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
EVENTS = ("rejected", "worse-than-baseline", "changed")
HISTORY_SUFFIXES = (".parquet", ".csv")
HISTORY_SCORES = ("accuracy", "mean_confidence", "gap", "ece", "smooth_ece", "esd", "log_loss", "brier")
# Columns by which a history is known.
HISTORY_COLUMNS = {"time", "file", "sha256", "name", "task", "samples", "verdict"}


class Condition(NamedTuple):
    """Condition under which an evaluation fails: an event, or a score compared with a limit."""

    text: str
    key: str
    compared: str = ""
    limit: float = 0.0


def parse_conditions(options: Evaluation) -> list[Condition]:
    """The conditions of ``--fail-if``: events, or scores and limits such as ``ece > 0.05``."""
    conditions = [_condition(text) for text in options.fail_if]
    for condition in conditions:
        if condition.key in ("worse-than-baseline", "changed") and options.baseline is None:
            raise ValueError(f"--fail-if {condition.key} needs a --baseline FILE")
    return conditions


def _condition(text: str) -> Condition:
    if text.strip() in EVENTS:
        return Condition(text.strip(), text.strip())
    known = [key for key, metric in METRICS.items() if metric.evaluated]
    found = re.fullmatch(rf"\s*({'|'.join(known)})\s*(>=|<=|>|<)\s*({NUMBER})\s*", text)
    if not found:
        raise ValueError(
            f"--fail-if {text!r}: expected {', '.join(EVENTS)}, or a score and a limit such as 'ece > 0.05'; the "
            f"scores are {', '.join(known)}, as shares rather than percentages"
        )
    return Condition(text, found[1], found[2], float(found[3]))


def with_groups_and_changes(
    audit: Audit, path: Path, columns: Mapping[str, Array], options: Evaluation, names: Columns
) -> Audit:
    """Add what was asked for to an audit: groups, time and the change since the baseline."""
    if not (options.groups or options.time or options.baseline):
        return audit
    if audit.task == "multi-label":
        raise FileError(
            path,
            "has several labels per sample, and --group, --time and --baseline judge one probability per sample: name "
            "the columns of one label with --probabilities and --target",
        )
    pairs = audit.judged
    with naming(path):
        if options.groups:
            groups = {name: _filled(columns[name]) for name in options.groups}
            only = groups[options.groups[0]] if len(groups) == 1 else groups
            audit = replace(audit, groups=calibration_by_group(pairs, groups=only, seed=audit.seed))
        if options.time:
            time = columns[options.time]
            if np.ma.getmaskarray(time).any():
                raise ValueError(f"column {options.time!r} has empty cells: leave those rows out")
            audit = replace(audit, over_time=calibration_over_time(pairs, time=np.ma.getdata(time)))
    if options.baseline is not None:
        with naming(options.baseline):
            before = read_source(options.baseline, names, labelled=True).predictions()
            if before.task != audit.task or before.classes != audit.predictions.classes:
                raise ValueError("has other classes than the file it is the baseline of: compare the same model")
        audit = replace(audit, change=calibration_change(views(before, most=1)[0].pairs, pairs))
    return audit


def _filled(column: Array) -> Array:
    """Group labels, with empty cells as a group of their own."""
    values, empty = np.ma.getdata(column), np.ma.getmaskarray(column)
    if empty.any():
        values = values.astype(object)
        values[empty] = None
    return values


def failures(audits: Sequence[Audit], conditions: Sequence[Condition]) -> list[str]:
    """Sentences about the conditions that hold."""
    found = []
    for audit in audits:
        for condition in conditions:
            if condition.compared:
                if condition.key not in audit.scores:  # what cannot be checked must not pass
                    found.append(f"{audit.name}: has no {condition.key}, and --fail-if is {condition.text!r}")
                    continue
                value = audit.scores[condition.key]
                if OPERATORS[condition.compared](value, condition.limit):
                    shown = number(condition.key, value)
                    found.append(f"{audit.name}: {condition.key} is {shown}, and --fail-if is {condition.text!r}")
            elif _happened(audit, condition.key):
                found.append(f"{audit.name}: {condition.key}")
    return found


def _happened(audit: Audit, event: str) -> bool:
    change = audit.change
    if event == "rejected":
        groups = () if audit.groups is None else audit.groups.rejected
        return any(found.rejected for found in audit.findings) or bool(groups)
    return change is not None and (change.worse if event == "worse-than-baseline" else change.changed)


def check_history(path: Path) -> None:
    """Raise an error about a name that is no table's, or a file that is no history, before the audit takes its time."""
    if path.suffix.lower() not in HISTORY_SUFFIXES:
        raise FileError(path, f"a history is one of {', '.join(HISTORY_SUFFIXES)}")
    if path.is_file():
        with closing(Table(path)) as table:
            if not set(table.names()) >= HISTORY_COLUMNS:
                raise FileError(path, "holds something else than a history: choose another --history")


def append_history(path: Path, audits: Sequence[Audit], files: Sequence[Path]) -> None:
    """Append one row for each audit to a table, whole or not at all."""
    import duckdb

    rows = [_row(audit, file) for audit, file in zip(audits, files, strict=True)]
    columns = {}
    for name, first in rows[0].items():
        columns[name] = np.array([row[name] for row in rows], dtype=object if isinstance(first, str) else None)
    with explained(path), duckdb.connect() as connection, whole_or_not_at_all(path) as temporary:
        connection.register("now", columns)
        select = "FROM now"
        if path.exists():
            connection.execute(f"CREATE VIEW old AS FROM {text(str(path))}")
            select = "FROM old UNION ALL BY NAME FROM now"
        connection.execute(f"COPY ({select}) TO {text(str(temporary))} ({TABLES[suffix_of(path)]})")


def _row(audit: Audit, file: Path) -> dict[str, Any]:
    gap, change, scores = audit.intervals.get("gap"), audit.change, dict(audit.scores)
    return {
        "time": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S}+00",
        "file": str(file),
        "sha256": digest(file),
        "name": audit.name,
        "task": audit.task,
        "samples": audit.scores.samples,
        **{key: scores.get(key, math.nan) for key in HISTORY_SCORES},
        "gap_low": math.nan if gap is None else gap.low,
        "gap_high": math.nan if gap is None else gap.high,
        "p_value": min(found.p_value for found in audit.findings),
        "rejected": any(found.rejected for found in audit.findings),
        "groups_rejected": 0 if audit.groups is None else len(audit.groups.rejected),
        "baseline_p_value": math.nan if change is None else change.p_value,
        "worse_than_baseline": change is not None and change.worse,
        "verdict": audit.verdict,
    }
