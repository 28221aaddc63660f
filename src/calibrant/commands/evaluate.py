"""`calibrant evaluate`: how honest are the predictions in these files?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from calibrant.commands.terminal import Advance, plain, print_json, progress_bar, score_table
from calibrant.files import FileError, fits_in_memory, read_predictions
from calibrant.metrics import Comparison, Score, Scores, compare
from calibrant.metrics.binned import CONVENTIONS, ConventionName
from calibrant.metrics.columns import Columns
from calibrant.report import Audit, audit, verdict

Engine = Literal["auto", "memory", "duckdb", "spark"]
# Names of two models, and what their comparison gave.
Pair = tuple[str, str, Comparison]
TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class Options:
    """How to evaluate: what the command line was told."""

    names: Columns
    bins: int | None
    convention: ConventionName
    draws: int
    seed: int
    engine: Engine
    memory_limit: str


def evaluate_files(paths: Sequence[Path], options: Options, *, report: Path | None, as_json: bool) -> None:
    """Evaluate each file, compare them, print, and write the report if one is asked for."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise ValueError("the same file is given twice")
    if report is not None and report.resolve() in {path.resolve() for path in paths}:
        raise FileError(report, "the report would overwrite a file of predictions")
    names = model_names(paths)
    engines = [_engine_for(path, options.engine) for path in paths]
    if any(engine != "memory" for engine in engines):
        _evaluate_beyond_memory(paths, names, engines, options, report=report, as_json=as_json)
        return
    if report is not None:
        _check_report_can_be_made()
    with progress_bar("reading") as begin:
        audits = [_audit(path, name, options, begin) for path, name in zip(paths, names, strict=True)]
        comparisons = list(_comparisons(audits, options))
        if report is not None:
            begin("writing the report")
            from calibrant.report import write_report

            write_report(report, audits, comparisons)
    if as_json:
        print_json(
            {"models": [_plain(one) for one in audits], "comparisons": [_plain_pair(*pair) for pair in comparisons]}
        )
        return
    _show(audits, comparisons, Console())
    if report is not None:
        Console().print(f"Report: {plain(str(report))}", soft_wrap=True, highlight=False)


def model_names(paths: Sequence[Path]) -> list[str]:
    """Short names that tell the files apart: their stems, or as much of their paths as it takes."""
    for named in (lambda path: path.stem, lambda path: path.name, str):
        names = [named(path) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _check_report_can_be_made() -> None:
    try:
        import jinja2
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(f'a report needs {error.name}: pip install "calibrant[report]"') from error
    del jinja2


def _audit(path: Path, name: str, options: Options, begin: Callable[[str], Advance]) -> Audit:
    begin(f"{name}: reading")
    given = read_predictions(path, options.names)
    return audit(
        name, given, bins=options.bins, convention=options.convention, draws=options.draws, seed=options.seed,
        progress=begin(f"{name}: testing"),
    )  # fmt: skip


def _comparisons(audits: list[Audit], options: Options) -> Iterator[Pair]:
    """Every later model against the first, where they predict the same samples."""
    for other in audits[1:]:
        a, b = audits[0].predictions, other.predictions
        same_target = a.target is None or b.target is None or np.array_equal(a.target, b.target)
        if len(a) == len(b) and same_target:
            found = compare(a, b, metric="esd", draws=options.draws, seed=options.seed)
            yield audits[0].name, other.name, found


def _show(audits: list[Audit], comparisons: list[Pair], console: Console) -> None:
    for one in audits:
        console.print(f"[bold]{plain(one.name)}[/]: {plain(verdict(one))}.", highlight=False)
    first = audits[0]
    if len(audits) > 1:
        console.print(score_table({one.name: one.scores for one in audits}))
        for a, b, comparison in comparisons:
            console.print(f"{plain(a)} (a) and {plain(b)} (b): {plain(str(comparison))}.", highlight=False)
        if not comparisons:
            console.print("Not compared: the files hold different samples.")
        return
    columns = {"value": first.scores}
    if first.repair is not None:
        columns["after temperature"] = first.repair.scores
    console.print(score_table(columns, title=first.scores.title))
    console.print(f"Test of calibration: {plain(str(first.test))}.", highlight=False)
    if first.repair is not None:
        console.print(
            f"Temperature {first.repair.temperature:.4g}, fitted on all samples; the column after it comes from halves "
            "that each other's temperature was fitted on.",
            highlight=False,
        )


def _plain(one: Audit) -> dict[str, Any]:
    repair = None
    if one.repair is not None:
        repair = {"temperature": one.repair.temperature, **one.repair.scores.to_dict()}
    test = asdict(one.test) | {"rejected_at_5_percent": one.test.rejected()}
    return {"name": one.name, "verdict": verdict(one), **one.scores.to_dict(), "test": test, "repair": repair}


def _plain_pair(a: str, b: str, comparison: Comparison) -> dict[str, Any]:
    return {"names": [a, b], **asdict(comparison)}


def _engine_for(path: Path, engine: Engine) -> Engine:
    if engine in ("duckdb", "spark") and path.suffix.lower() not in TABLES:
        raise FileError(path, f"--engine {engine} reads {' and '.join(TABLES)} files only")
    if engine != "auto":
        return engine
    beyond = path.suffix.lower() in TABLES and path.is_file() and path.stat().st_size and not fits_in_memory(path)
    return "duckdb" if beyond else "memory"


def _evaluate_beyond_memory(
    paths: Sequence[Path],
    names: list[str],
    engines: list[Engine],
    options: Options,
    *,
    report: Path | None,
    as_json: bool,
) -> None:
    """Exact scores from SQL; neither the test of calibration nor the report, which need the samples."""
    if report is not None:
        raise ValueError("--report needs the samples in memory: leave it out, or choose --engine memory")
    with progress_bar("reading") as begin:
        found = {
            name: _scores_beyond_memory(path, engine, options, begin(f"{name}: {engine}"))
            for path, name, engine in zip(paths, names, engines, strict=True)
        }
    if as_json:
        models = [
            {"name": name, "engine": engine, **scores.to_dict()}
            for (name, scores), engine in zip(found.items(), engines, strict=True)
        ]
        print_json({"models": models, "comparisons": []})
        return
    title = ", ".join(f"{plain(name)}: {scores.title}" for name, scores in found.items())
    columns = {"value": next(iter(found.values()))} if len(found) == 1 else found
    Console().print(score_table(columns, title=title))


def _scores_beyond_memory(path: Path, engine: Engine, options: Options, progress: Advance) -> Scores:
    from calibrant.metrics import scale

    rule = CONVENTIONS[options.convention]
    if (rule.closed, rule.last) != ("right", "closed"):
        raise ValueError(f"--engine {engine} knows right-closed bins only: choose --convention paper or guo")
    bins = options.bins or rule.bins
    columns = options.names
    if engine == "memory":
        engine = "duckdb"  # one of several files is beyond memory: then all are read the same way
    if engine == "spark":
        found = scale.statistics_spark(path, columns=columns, bins=bins)
    else:
        limit = options.memory_limit
        found = scale.statistics_duckdb(path, columns=columns, bins=bins, memory_limit=limit, progress=progress)
    words = f"{options.convention}: {rule.describe(bins)}"
    gap = found.mean_confidence - found.accuracy
    return Scores(found.samples, None, (
        Score("accuracy", "accuracy", found.accuracy, "top label", percent=True),
        Score("confidence", "mean confidence", found.mean_confidence, "top label", percent=True),
        Score("gap", "signed gap", gap, "confidence - accuracy", percent=True, signed=True),
        Score("ece", "ECE", found.ece, words, percent=True),
        Score("mce", "MCE", found.mce, "as ECE", percent=True),
        Score("ks", "KS error", found.ks, "cumulative, ties grouped", percent=True),
        Score("esd", "ESD", found.esd, "unbiased, may be below 0"),
        Score("brier_top", "Brier, top label", found.brier, "mean squared residual"),
    ))  # fmt: skip
