"""`calibrant evaluate`: how well are the predictions in these files calibrated?"""

import datetime
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from calibrant.commands import Engine
from calibrant.commands.beyond import Beyond
from calibrant.commands.monitor import NOTHING, Watch, append_history, check_columns, check_history, failures, watched
from calibrant.commands.shown import as_data, print_audit, print_watched
from calibrant.commands.terminal import (
    Advance,
    plain,
    print_json,
    print_scores,
    printable,
    progress_bar,
    show_notices,
)
from calibrant.files import FileError, digest, fits_in_memory, naming, notices_of_start, read_source, refuse_overwriting
from calibrant.metrics import Comparison, Score, Scores, compare
from calibrant.metrics.binned import CONVENTIONS, ConventionName
from calibrant.metrics.columns import Columns
from calibrant.metrics.table import metrics_table
from calibrant.metrics.views import MOST
from calibrant.report import Audit, Made, audit, verdict
from calibrant.report.audit import OF_TOP_LABEL, score_of_risk
from calibrant.tables import SUFFIXES as TABLES
from calibrant.tables import is_table, missing

# Fewest samples that two models must share to be compared.
FEWEST_COMPARED = 4
# Largest number of models for which every pair is compared.
MOST_PAIRED = 6


@dataclass(frozen=True)
class Options:
    """Options of an evaluation, from the command line."""

    names: Columns
    bins: int | None
    convention: ConventionName
    draws: int
    seed: int
    margin: float
    engine: Engine
    memory_limit: str
    watch: Watch = NOTHING


class Compared(NamedTuple):
    """Comparisons of pairs of models, and the pairs that could not be compared, with the reason."""

    pairs: list[tuple[str, str, Comparison]]
    left_out: dict[tuple[str, str], str]


def evaluate_files(paths: Sequence[Path], options: Options, *, report: Path | None, as_json: bool) -> list[str]:
    """Evaluate each file, compare them, print, and write the report if requested; return the conditions that hold."""
    _check_files(paths, report, options.watch)
    names = model_names(paths)
    engines = _engines(paths, options.engine)
    if any(engine != "memory" for engine in engines):
        _evaluate_beyond_memory(paths, names, engines, options, report=report, as_json=as_json)
        return []
    if report is not None:
        from calibrant.report import require_report_packages

        require_report_packages()
    with progress_bar("reading") as begin:
        audits = [_audit(path, name, options, begin) for path, name in zip(paths, names, strict=True)]
        begin("comparing")
        compared = _compare(audits, options)
    failed = failures(audits, options.watch.conditions)
    written = _written(audits, compared, paths, report, options.watch.history)
    if as_json:
        print_json({
            "models": [as_data(one) | {"notices": list(one.notices)} for one in audits],
            "comparisons": [{"names": [a, b], **asdict(found)} for a, b, found in compared.pairs],
            "not_compared": [{"names": names, "reason": reason} for names, reason in compared.left_out.items()],
            "failed": failed,
        })  # fmt: skip
    else:
        _show(audits, compared, Console())
        for one in audits:
            show_notices(Console(), one.notices, f"{one.name}: " if len(audits) > 1 else "")
        if report is not None:
            Console().print(f"Report: {plain(str(report))}", soft_wrap=True, highlight=False)
    if written is not None:
        raise written
    return failed


def _written(
    audits: list[Audit], compared: Compared, paths: Sequence[Path], report: Path | None, history: Path | None
) -> Exception | None:
    """Write the report and the history before anything is printed, which a closed pipe may end.

    Returns:
        The error if that failed, to be raised when the results are printed: a full disk does not lose them.
    """
    try:
        if report is not None:
            from calibrant.report import write_report

            write_report(report, audits, compared.pairs, made=_made(paths))
        if history is not None:
            append_history(history, audits, paths)
    except (OSError, ValueError) as error:
        return error
    return None


def _check_files(paths: Sequence[Path], report: Path | None, watch: Watch) -> None:
    """Raise an error about files to read and to write, before the audit takes its time."""
    if len({os.path.realpath(path) for path in paths}) < len(paths):
        raise ValueError("the same file is given twice")
    if report is not None:
        refuse_overwriting(report, "--report", (*paths, watch.baseline))
        if report.suffix.lower() not in (".html", ".htm"):
            raise FileError(report, "the report is an HTML page: choose a name that ends in .html")
        _check_place(report)
    if watch.history is not None:
        refuse_overwriting(watch.history, "--history", (*paths, watch.baseline, report))
        check_history(watch.history)
        _check_place(watch.history)


def _check_place(path: Path) -> None:
    """Raise an error if a file cannot be written there."""
    if path.is_dir():
        raise FileError(path, f"is a folder: choose the name of a file in it, such as {path.name}/audit{path.suffix}")
    folder = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise FileError(path, "cannot be written there: choose another folder")


def _made(paths: Sequence[Path]) -> Made:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    command = shlex.join(["calibrant", *sys.argv[1:]])
    return Made(now, command, [(str(path), digest(path)) for path in paths])


def model_names(paths: Sequence[Path]) -> list[str]:
    """Short unique names of the files: their stems, or as much of their paths as needed."""
    for named in (lambda path: path.stem, lambda path: path.name, str):
        names = [printable(named(path)) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{k}: {printable(str(path))}" for k, path in enumerate(paths, 1)]


def _audit(path: Path, name: str, options: Options, begin: Callable[[str], Advance]) -> Audit:
    begin(f"{name}: reading")
    source = read_source(path, options.names, labelled=True)
    with naming(path):
        given = source.predictions()
    check_columns(source, options.watch)
    found = audit(
        name, given, bins=options.bins, convention=options.convention, draws=options.draws, seed=options.seed,
        margin=options.margin, progress=begin(f"{name}: testing"),
    )  # fmt: skip
    begin(f"{name}: groups and changes")
    return replace(watched(found, source, options.watch, options.names), notices=source.notices)


def _compare(audits: list[Audit], options: Options) -> Compared:
    """Compare every pair; of many models, each with the first."""
    found = Compared([], {})
    pairs = list(combinations(audits, 2))
    if len(audits) > MOST_PAIRED:
        pairs = [(audits[0], other) for other in audits[1:]]
    for one, other in pairs:
        a, b = one.predictions, other.predictions
        weights = [np.ones(len(each)) if each.weight is None else each.weight for each in (a, b)]
        known = a.target is not None and b.target is not None
        if len(a) != len(b) or (known and not np.array_equal(np.asarray(a.target), np.asarray(b.target))):
            found.left_out[one.name, other.name] = "they do not have the same samples"
        elif len(a) < FEWEST_COMPARED:
            found.left_out[one.name, other.name] = f"they have fewer than {FEWEST_COMPARED} samples"
        elif "multi-label" in (a.task, b.task):
            found.left_out[one.name, other.name] = "they have several labels for each sample"
        elif not np.array_equal(weights[0], weights[1]):
            found.left_out[one.name, other.name] = "they have different weights"
        else:
            result = compare(a, b, metric="esd", draws=options.draws, seed=options.seed)
            found.pairs.append((one.name, other.name, result))
    return found


def _show(audits: list[Audit], compared: Compared, console: Console) -> None:
    for one in audits:
        console.print(f"[bold]{plain(one.name)}[/]: {plain(verdict(one))}", highlight=False)
    if len(audits) > 1:
        print_scores(console, {one.name: one.scores for one in audits})
        for a, b, comparison in compared.pairs:
            console.print(f"{plain(a)} (a) and {plain(b)} (b): {plain(str(comparison))}.", highlight=False)
        for (a, b), reason in compared.left_out.items():
            console.print(f"{plain(a)} and {plain(b)} are not compared: {plain(reason)}.", highlight=False)
        if len(audits) > MOST_PAIRED:
            console.print(f"Of {len(audits)} models, each is compared with the first.", highlight=False)
        if compared.pairs and any(one.predictions.target is None for one in audits):
            console.print("Without a target, rows are assumed to be the same samples.", highlight=False)
        for one in audits:
            print_watched(console, one, about=f"{one.name}: ")
        return
    print_audit(console, audits[0])
    print_watched(console, audits[0])


def _engines(paths: Sequence[Path], wished: Engine) -> list[Engine]:
    """How to read each file: all in memory, or all with SQL."""
    if wished == "memory":
        return ["memory" for _ in paths]
    tables = [is_table(path) for path in paths]
    if wished == "auto":
        beyond = [
            table and not missing(path) and not fits_in_memory(path) for path, table in zip(paths, tables, strict=True)
        ]
        if not any(beyond):
            return ["memory" for _ in paths]
        wished = "duckdb"
    for path, table in zip(paths, tables, strict=True):
        if not table:
            raise FileError(path, f"{wished} reads only tables ({', '.join(TABLES)}): evaluate it separately")
    return [wished for _ in paths]


def _evaluate_beyond_memory(
    paths: Sequence[Path],
    names: list[str],
    engines: list[Engine],
    options: Options,
    *,
    report: Path | None,
    as_json: bool,
) -> None:
    """Exact scores from SQL, and tests from cells; the report needs the samples."""
    if report is not None:
        raise ValueError(
            f"--report needs the samples in memory, not in {engines[0]}: leave it out, or choose --engine memory"
        )
    if options.watch != NOTHING or options.names.weight is not None:
        raise ValueError(
            "--group, --time, --baseline, --fail-if, --history and --weight need the samples in memory, not in "
            f"{engines[0]}: leave them out, or choose --engine memory"
        )
    with progress_bar("reading") as begin:
        found = {
            name: _beyond_memory(path, engine, options, begin(f"{name}: {engine}"))
            for path, name, engine in zip(paths, names, engines, strict=True)
        }
    if as_json:
        models = [
            {"name": name, "engine": engine, **one.as_data()}
            for (name, one), engine in zip(found.items(), engines, strict=True)
        ]
        print_json({"models": models, "comparisons": []})
        return
    console = Console()
    for name, one in found.items():
        console.print(f"[bold]{plain(name)}[/]: {plain(one.verdict())}", highlight=False)
    scores = {name: one.scores for name, one in found.items()}
    title = ", ".join(f"{plain(name)}: {each.title}" for name, each in scores.items())
    print_scores(console, {"value": next(iter(scores.values()))} if len(scores) == 1 else scores, title=title)
    for one in found.values():
        one.print_classes(console)
    cells = "cells of confidence"
    if any(one.classes for one in found.values()):
        cells = "cells of confidence, and of 4,096 of the probability of each class"
    console.print(
        f"Scores and intervals of gaps are exact; p-values are those of 65,536 {cells}. "
        "Recalibration, groups and figures need the samples in memory.",
        highlight=False,
    )
    for name, one in found.items():
        show_notices(console, one.notices, f"{name}: " if len(found) > 1 else "")


def _beyond_memory(path: Path, engine: Engine, options: Options, progress: Advance) -> Beyond:
    from calibrant.metrics import scale, scale_inference

    rule = CONVENTIONS[options.convention]
    if (rule.closed, rule.last) != ("right", "closed"):
        raise ValueError(
            f"{engine} supports only right-closed bins: choose --convention paper or guo, or --engine memory"
        )
    bins = options.bins or rule.bins
    columns = options.names
    with naming(path):
        if engine == "spark":
            found = scale.statistics_spark(path, columns=columns, bins=bins, risk=True, most_classes=MOST)
        else:
            limit = options.memory_limit
            found = scale.statistics_duckdb(
                path, columns=columns, bins=bins, risk=True, most_classes=MOST, memory_limit=limit, progress=progress
            )
        test = scale_inference.calibration_test(found, draws=options.draws, seed=options.seed)
        gap = scale_inference.gap_interval(found)
        classes = scale_inference.judge_classes(found, draws=options.draws, seed=options.seed)
        # Spark reads places that this machine may not.
        doubtful = notices_of_start(path, columns) if engine == "duckdb" else ()
    table = metrics_table(bins, options.convention).items()
    entries = [Score(key, getattr(found, key), metric.convention) for key, metric in table if hasattr(found, key)]
    if found.risk:
        # Accuracy and mean confidence are scores of the top label, here and in memory.
        stated = f"P({found.names[1]})" if found.names else "P(y = 1)"
        entries = [score_of_risk(one, stated) for one in entries if one.key not in OF_TOP_LABEL]
    scores = Scores(found.samples, found.classes, tuple(entries))
    return Beyond(scores, found, test, gap, classes, found.notices + doubtful)
