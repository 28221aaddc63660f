"""`calibrant evaluate`: how well are the predictions in these files calibrated?"""

import datetime
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from rich.console import Console

from calibrant.commands import Engine, Evaluation
from calibrant.commands.monitor import (
    append_history,
    check_history,
    failures,
    parse_conditions,
    with_groups_and_changes,
)
from calibrant.commands.terminal import (
    Advance,
    plain,
    print_audit,
    print_json,
    print_scores,
    print_watched,
    progress_bar,
    say,
    say_path,
    show_notices,
)
from calibrant.files import FileError, naming, read_source
from calibrant.files.formats import TABLES, is_table
from calibrant.files.layout import Columns
from calibrant.files.read import digest, fits_in_memory
from calibrant.files.write import check_output
from calibrant.metrics import compare
from calibrant.metrics.intervals import Comparison
from calibrant.report import audit
from calibrant.report.audit import Audit, Compared, audit_table
from calibrant.report.formats import clean

# Largest number of models for which every pair is compared.
MOST_PAIRED = 6


def evaluate_files(
    paths: Sequence[Path], options: Evaluation, columns: Columns, *, report: Path | None, as_json: bool
) -> list[str]:
    """Evaluate each file, compare them, print, and write the report if requested; return the conditions that hold."""
    conditions = parse_conditions(options)
    _check_files(paths, report, options)
    names = model_names(paths)
    engine = _engine(paths, options, columns, report)
    if report is not None:
        from calibrant.report import write_report  # noqa: F401 (a missing package is an error now, not at the end)
    with progress_bar() as begin:
        audits = [_audit(path, name, engine, options, columns, begin) for path, name in zip(paths, names, strict=True)]
        begin("comparing")
        compared = _compare(audits, options) if engine == "memory" else []
    failed = failures(audits, conditions)
    try:
        # Before anything is printed, which a closed pipe may end; a full disk does not lose what is printed.
        _write(audits, compared, paths, report, options.history)
    finally:
        if as_json:
            print_json(_plain(audits, compared, engine) | {"failed": failed})
        else:
            _show(audits, compared, Console())
    if report is not None and not as_json:
        say_path(Console(), "Report", report)
    return failed


def _write(
    audits: list[Audit], compared: Sequence[Compared], paths: Sequence[Path], report: Path | None, history: Path | None
) -> None:
    if report is not None:
        from calibrant.report.page import Provenance, write_report

        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        command = shlex.join(["calibrant", *sys.argv[1:]])
        made = Provenance(now, command, [(str(path), digest(path)) for path in paths])
        write_report(report, audits, compared, made=made)
    if history is not None:
        append_history(history, audits, paths)


def _plain(audits: list[Audit], compared: Sequence[Compared], engine: Engine) -> dict[str, Any]:
    """Everything as plain values, ready for JSON."""
    comparisons = [{"names": [a, b], **asdict(found)} for a, b, found in compared if not isinstance(found, str)]
    return {
        "models": [one.to_dict() | {"engine": engine} for one in audits],
        "comparisons": comparisons,
        "not_compared": [{"names": [a, b], "reason": found} for a, b, found in compared if isinstance(found, str)],
    }


def _check_files(paths: Sequence[Path], report: Path | None, options: Evaluation) -> None:
    """Raise an error about files to read and to write, before the audit takes its time."""
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ValueError("the same file is given twice")
    if report is not None:
        check_output(report, "--report", (*paths, options.baseline))
        if report.suffix.lower() not in (".html", ".htm"):
            raise FileError(report, "the report is an HTML page: choose a name that ends in .html")
    if options.history is not None:
        check_output(options.history, "--history", (*paths, options.baseline, report))
        check_history(options.history)


def model_names(paths: Sequence[Path]) -> list[str]:
    """Short unique names of the files: their stems, or as much of their paths as needed."""
    for named in (lambda path: path.stem, lambda path: path.name, str):
        names = [clean(named(path)) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{k}: {clean(str(path))}" for k, path in enumerate(paths, 1)]


def _audit(
    path: Path, name: str, engine: Engine, options: Evaluation, columns: Columns, begin: Callable[[str], Advance]
) -> Audit:
    asked: dict[str, Any] = {
        "bins": options.bins,
        "convention": options.convention,
        "draws": options.draws,
        "seed": options.seed,
        "margin": options.margin / 100,
    }
    if engine == "duckdb" or engine == "spark":
        advance = begin(f"{name}: {engine}")
        limit = options.memory_limit
        return audit_table(name, path, columns, engine=engine, memory_limit=limit, progress=advance, **asked)
    begin(f"{name}: reading")
    source = read_source(path, columns, labelled=True)
    with naming(path):
        given = source.predictions()
    others = source.columns(options.columns)  # a missing one is an error before the audit takes its time
    found = audit(name, given, progress=begin(f"{name}: testing"), **asked)
    begin(f"{name}: groups and changes")
    found = with_groups_and_changes(found, path, others, options, columns)
    return replace(found, notices=(*source.notices, *found.notices))


def _compare(audits: list[Audit], options: Evaluation) -> list[Compared]:
    """Compare every pair; of many models, each with the first."""
    pairs = list(combinations(audits, 2))
    if len(audits) > MOST_PAIRED:
        pairs = [(audits[0], other) for other in audits[1:]]
    compared: list[Compared] = []
    for one, other in pairs:
        found: Comparison | str
        try:
            found = compare(one.predictions, other.predictions, metric="esd", draws=options.draws, seed=options.seed)
        except ValueError as error:
            found = str(error)
        compared.append((one.name, other.name, found))
    return compared


def _show(audits: list[Audit], compared: Sequence[Compared], console: Console) -> None:
    for one in audits:
        say(console, f"[bold]{plain(one.name)}[/]: {plain(one.verdict)}", markup=True)
    if len(audits) == 1:
        print_audit(console, audits[0])
    else:
        print_scores(console, {one.name: one.scores for one in audits})
        for a, b, found in compared:
            reason = f"{a} and {b} are not compared: {found}."
            say(console, reason if isinstance(found, str) else f"{a} (a) and {b} (b): {found}.")
        if len(audits) > MOST_PAIRED and compared:
            say(console, f"Of {len(audits)} models, each is compared with the first.")
        if compared and any(one.predictions.target is None for one in audits):
            say(console, "Without a target, rows are assumed to be the same samples.")
    abouts = [f"{one.name}: " if len(audits) > 1 else "" for one in audits]
    for one, about in zip(audits, abouts, strict=True):
        print_watched(console, one, about)
    for one, about in zip(audits, abouts, strict=True):
        show_notices(console, one.notices, about)


def _engine(paths: Sequence[Path], options: Evaluation, columns: Columns, report: Path | None) -> Engine:
    """How to read the files: all in memory, or all with SQL; an error about options that need the samples."""
    engine = options.engine
    if engine == "auto":
        large = [path for path in paths if is_table(path) and not fits_in_memory(path)]
        engine = "duckdb" if large else "memory"
    if engine == "memory":
        return engine
    for path in paths:
        if not is_table(path):
            raise FileError(path, f"{engine} reads only tables ({', '.join(TABLES)}): evaluate it separately")
    beyond = f"in memory, not in {engine}: leave"
    if report is not None:
        raise ValueError(f"--report needs the samples {beyond} it out, or choose --engine memory")
    if options.columns or options.baseline or options.history or columns.weight is not None:
        raise ValueError(
            f"--group, --time, --baseline, --history and --weight need the samples {beyond} them out, or choose "
            "--engine memory"
        )
    return engine
