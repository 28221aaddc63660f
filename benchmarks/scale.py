"""`make bench`: calibration beyond memory: 20 and 50 million rows by DuckDB under a limit, and 5 million by Spark."""

import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.measure import machine
from benchmarks.tables import duration, finish, markdown, memory, show, status
from calibrant.metrics import confidence_interval
from calibrant.metrics.scale import Statistics, statistics_duckdb, statistics_spark

PROMISED_ERROR = 1e-9
CORES = 2


class Case(NamedTuple):
    """An engine, how many rows it is given, the SQL type of their confidence, the memory, and the classes if any.

    The process needs more than DuckDB's limit: the interpreter, torch and DuckDB itself.
    """

    engine: str
    rows: int
    type: str
    limit: str = ""
    threads: int = CORES
    megabytes: float = math.inf
    classes: int = 0


CASES = [
    Case("DuckDB", 20_000_000, "FLOAT", "150MB", 1, 500),
    Case("DuckDB", 20_000_000, "DOUBLE", "150MB", 1, 500),
    Case("DuckDB", 50_000_000, "FLOAT", "1GB", CORES, 1500),
    Case("DuckDB", 50_000_000, "DOUBLE", "1GB", CORES, 1500),
    Case("DuckDB", 5_000_000, "FLOAT", "150MB", 1, 500, classes=10),
    Case("Spark", 5_000_000, "FLOAT"),
]


class Run(NamedTuple):
    """What a fresh process measured."""

    statistics: Statistics
    seconds: float
    cpu_seconds: float
    megabytes: float
    scan_seconds: float
    reports: int


def write_predictions(path: Path, case: Case) -> None:
    """An over-confident classifier's predictions, mostly distinct and crowded towards 1."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET preserve_insertion_order = false")
        connection.execute("SET threads = 1")  # one thread draws the same numbers every time
        connection.execute("SELECT setseed(0.5)").fetchall()
        if case.classes:
            noise = ", ".join(f"CAST(6 * random() AS {case.type})" for _ in range(case.classes))
            connection.sql(
                f"SELECT [{noise}] AS logits, CAST(floor({case.classes} * random()) AS TINYINT) AS target "  # noqa: S608
                f"FROM range({case.rows})"
            ).write_parquet(str(path))
            return
        connection.sql(
            f"SELECT CAST(z AS {case.type}) AS confidence, CAST(random() < z - 0.05 AS TINYINT) AS correct "  # noqa: S608
            f"FROM (SELECT 0.1 + 0.9 * pow(random(), 0.2) AS z FROM range({case.rows}))"
        ).write_parquet(str(path))


def in_memory(path: Path, case: Case) -> dict[str, float]:
    """The same statistics by NumPy, from one sort of all rows."""
    import duckdb

    columns = _pairs(path, case) if case.classes else duckdb.read_parquet(str(path)).fetchnumpy()
    order = np.argsort(columns["confidence"])
    z, c = columns["confidence"][order], columns["correct"][order].astype(np.float64)
    exact: npt.NDArray[np.float64] = z.astype(np.float64)
    n, d = len(z), c - exact
    last = np.append(np.flatnonzero(z[1:] != z[:-1]), n - 1)
    size = np.diff(last, prepend=-1)
    # A_i is the sum over the others at or below i; sum_i B_i counts d_j^2 once for every other at or above j.
    sums = d.cumsum()
    others = np.repeat(sums[last], size) - d
    above = n - 1 - np.repeat(last - size + 1, size)
    edges = (np.arange(21) / 20).astype(z.dtype)
    gaps = np.bincount(np.searchsorted(edges, z), d, 21)[1:]
    return {
        "accuracy": c.mean(),
        "mean_confidence": exact.mean(),
        "brier_top": (d * d).mean(),
        "ece": np.abs(gaps).sum() / n,
        "ks_error": np.abs(sums[last]).max() / n,
        "esd": ((others * others).sum() - (d * d * above).sum()) / (n * (n - 1.0) * (n - 2.0)),
    }


def _pairs(path: Path, case: Case) -> dict[str, Any]:
    """Confidence in the top label and whether it is right, of logits."""
    import duckdb

    table = duckdb.read_parquet(str(path))
    flat, target = (
        table.project("unnest(logits) AS l").fetchnumpy()["l"],
        table.project("target").fetchnumpy()["target"],
    )
    logits = np.ma.getdata(flat).reshape(-1, case.classes)
    top = logits.max(1, keepdims=True)
    confidence = (1 / np.exp(logits.astype(np.float64) - top).sum(1)).astype(logits.dtype)
    return {"confidence": confidence, "correct": logits.argmax(1) == np.ma.getdata(target)}


def by_duckdb(path: Path, case: Case) -> Run:
    """Scores, test and interval under the memory limit; in a fresh process, whose peak memory it reports."""
    import duckdb

    start, cpu_start = time.perf_counter(), time.process_time()
    shares: list[float] = []
    found = statistics_duckdb(
        path, memory_limit=case.limit, threads=case.threads, progress=shares.append, most_classes=case.classes
    )
    found.judge()
    confidence_interval(found.pairs, metric="gap")
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    with duckdb.connect() as connection:
        connection.execute(f"SET threads = {case.threads}")
        scan = time.process_time()
        sums = "sum(list_sum(logits)), sum(target)" if case.classes else "sum(confidence), sum(correct)"
        connection.execute(f"SELECT {sums} FROM read_parquet($1)", [str(path)]).fetchall()  # noqa: S608
        scan_seconds = time.process_time() - scan
    return Run(found, seconds, cpu_seconds, peak, scan_seconds, len(set(shares)))


def by_spark(path: Path, _: Case) -> Run:
    """Run Spark on this machine, the start of its session not counted; its memory is the JVM's affair."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{CORES}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        start = time.perf_counter()
        found = statistics_spark(path, session=session)
        return Run(found, time.perf_counter() - start, math.nan, math.nan, math.nan, 0)
    finally:
        session.stop()


def in_fresh_process(job: Callable[..., Any], *given: object) -> Any:
    """The result of a job in a process of its own, so that nobody else's memory is measured with it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(job, given)


def compare() -> tuple[list[list[str]], list[str]]:
    """Rows of the table, and every promise that was not kept."""
    rows, broken = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            status(f"{case.engine}, {case.rows:,} rows of {case.type}")
            path = Path(folder, "predictions.parquet")
            write_predictions(path, case)
            run: Run = in_fresh_process(by_duckdb if case.engine == "DuckDB" else by_spark, path, case)
            expected: dict[str, float] = in_fresh_process(in_memory, path, case)
            error = max(abs(getattr(run.statistics, name) / value - 1) for name, value in expected.items())
            if not error <= PROMISED_ERROR:
                broken.append(f"{case}: relative error {error:.1e}, promised {PROMISED_ERROR:g}")
            if run.megabytes > case.megabytes:
                broken.append(f"{case}: {run.megabytes:.0f} MB, promised {case.megabytes} MB")
            inside = not math.isnan(run.megabytes)
            rows.append([
                case.engine, f"{case.rows:,}{f' x {case.classes}' * (case.classes > 0)}", case.type,
                f"{path.stat().st_size / 1e6:,.0f} MB", case.limit,
                duration(run.seconds), duration(run.cpu_seconds) if inside else "",
                f"{run.cpu_seconds / run.scan_seconds:.0f}x" if inside else "",
                memory(run.megabytes) if inside else "", f"{case.megabytes:,.0f} MB" if inside else "",
                f"{error:.0e}", str(run.reports) if inside else "",
            ])  # fmt: skip
    status("")
    return rows, broken


def main() -> None:
    """Measure, print, write results/scale.md, and fail if a promise is not kept."""
    title = "Predictions larger than memory"
    heading = [
        "engine", "rows", "type", "file", "limit", "time", "CPU time", "over a scan", "memory", "promised", "error",
        "steps of the bar",
    ]  # fmt: skip
    rows, broken = compare()
    show(title, heading, rows)
    text = (
        f"# {title}\n\n"
        f"Measured by `make bench` on {machine()}, {os.cpu_count()} cores. Accuracy, mean confidence, Brier score, "
        "ECE, KS error and ESD of a Parquet file of mostly distinct confidences; with DuckDB also the test of "
        "calibration, 1,000 draws, and the interval of the gap; of logits of 10 classes, a test of each class too. "
        "From the file to the result. CPU time is that of all threads; over a scan: divided by that of DuckDB's own "
        "sum of the columns. The limit is `memory_limit`; "
        f"memory is the peak of the whole fresh process. Spark runs on {CORES} local cores, "
        "the start of its session not counted. The error is the largest relative one of the six figures against NumPy, "
        f"which sorts all rows in memory; {PROMISED_ERROR:g} is promised.\n\n{markdown(heading, rows)}\n"
    )
    finish("scale", text, broken)


if __name__ == "__main__":
    main()
