"""Exact calibration statistics of predictions that do not fit in memory, by DuckDB or Spark, and tests from their sums.

The tests see sums in cells of confidence as predictions with weights, each cell once right and once wrong. The data
are tested by the same cells: a test keeps its level, and only misses an error that changes sign within a cell.
"""

import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant import inputs
from calibrant.files.cells import fits_other, only_class, renormalised
from calibrant.files.formats import SETTINGS, Column, explained, open_table, text
from calibrant.files.layout import Columns
from calibrant.frames import Array, IndexArray
from calibrant.metrics import scale_sql as sql
from calibrant.metrics import tests
from calibrant.metrics.binned import BinTable, convention_of, table_of
from calibrant.metrics.predictions import Predictions, View
from calibrant.metrics.scale_pairs import Query, SqlSource, find_pairs
from calibrant.metrics.scale_sql import PairQuery, RangeSums
from calibrant.metrics.ties import Ties

__all__ = ["statistics_duckdb", "statistics_spark"]

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import DataFrame, SparkSession

# Memory that DuckDB needs for each thread that aggregates or sorts; more threads would compete for the limit.
MEGABYTES_PER_THREAD = 128
# A merged cell ends when it holds this share of the samples, or has this width.
SHARE = 1 / 4096
WIDTH = 1 / 1024
# Spark's log from its first line on; a log level can only be set once a session has started.
LOG_OF_ERRORS = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
"""


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Statistics:
    """Calibration of a set of predictions: scores that the functions of ``calibrant.metrics`` give, and what they need.

    Attributes:
        bins: The sums of each bin of ECE and MCE, for a reliability diagram.
        views: What can be tested, as pairs with weights from cells: the confidence, the top label, or the risk of class
            1 of two; and single classes of several, if they were asked for.
        notices: What was assumed, in sentences.
    """

    samples: int
    accuracy: float
    mean_confidence: float
    gap: float
    ece: float
    mce: float
    ks_error: float
    esd: float
    brier_top: float
    bins: BinTable
    views: tuple[View, ...]
    classes: int | None = None
    names: tuple[str, ...] | None = None
    notices: tuple[str, ...] = ()

    @property
    def pairs(self) -> Predictions:
        """Pairs of the first view: any metric, test or interval of pairs takes them."""
        return self.views[0].pairs

    def judge(self, *, draws: int = 1000, seed: int = 0) -> tuple[tests.Judgement, ...]:
        """Test each view, as :func:`calibrant.metrics.judge`, from cells; the value of the first test is exact."""
        first, *classes = tests.judge_views(self.views, draws=draws, seed=seed)
        return replace(first, test=replace(first.test, statistic=self.esd)), *classes


def statistics_duckdb(
    source: str | Path,
    *,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    bins: int = 20,
    risk: bool = False,
    most_classes: int = 0,
    memory_limit: str = "1GB",
    threads: int | None = None,
    temp_dir: Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> Statistics:
    """Exact statistics of a file of predictions of any size, in bounded memory: :doc:`/larger_than_memory`.

    The file is read twice. Single classes take a third scan, and a fourth to choose them if there are too many.

    Args:
        source: A ``.parquet``, ``.csv``, ``.tsv`` or ``.jsonl`` file, also gzipped, a folder of them, or a pattern such
            as ``"part-*.parquet"``.
        columns: Names of its columns.
        bins: Number of equal-width, right-closed bins of ECE and MCE.
        risk: Judge the probability of class 1 of two, rather than the confidence in the top label.
        most_classes: Most single classes to sum, of three or more; if there are more, those that the model expects most
            often.
        memory_limit: Memory that DuckDB may use, such as ``"500MB"``, in addition to that of the process itself.
        threads: Number of threads; by default all cores, if the memory limit suffices.
        temp_dir: Parent of the temporary directory; by default that of the system.
        progress: Called with the fraction done, from 0 to 1, several times a second.

    """
    import duckdb

    inputs.check_count("bins", bins)
    if not re.fullmatch(r"\d+(\.\d+)?\s*([KMGT]i?B|%)", memory_limit.strip(), re.IGNORECASE):
        raise ValueError(f"the memory limit must be a size such as 500MB or 1GB, got {memory_limit!r}")
    where = str(source)
    report = progress or (lambda _: None)
    with tempfile.TemporaryDirectory(prefix="calibrant-", dir=temp_dir) as spill:
        try:
            with explained(Path(where)), duckdb.connect(config=SETTINGS) as connection:
                _limit(connection, memory_limit, threads, spill)
                report(0.0)
                named, notices = open_table(connection, where)
                table = SqlSource(sql.DUCKDB, _watched(connection, report), "source")
                found = _statistics(where, table, named, columns, bins, risk=risk, most_classes=most_classes)
                return replace(found, notices=notices + found.notices)
        except MemoryError as error:
            raise MemoryError(
                f"{where}: DuckDB ran out of space with a memory limit of {memory_limit}: raise it, lower threads, or "
                "choose a temp_dir with more space"
            ) from error


def statistics_spark(
    source: "str | Path | DataFrame",
    *,
    session: "SparkSession | None" = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    bins: int = 20,
    risk: bool = False,
    most_classes: int = 0,
    partitions: int | None = None,
) -> Statistics:
    """The statistics of `statistics_duckdb`, by the same SQL on Spark.

    Args:
        source: A ``.parquet`` or ``.csv`` path as Spark understands it, or a DataFrame. It is read twice, so
            cache a DataFrame that is costly to compute.
        session: The session to use; by default the active one, else a local one that is stopped at the end.
        columns: As for `statistics_duckdb`, and so are ``bins``, ``risk`` and ``most_classes``.
        partitions: Number of ranges of the confidence, from 2 to 256; by default one for each million rows.
    """
    try:
        import pyspark  # noqa: F401 (only to see whether it is there)
    except ImportError as error:
        raise ImportError('this needs Spark: pip install "calibrant[spark]"') from error
    inputs.check_count("bins", bins)
    if partitions is not None:
        inputs.check_count("partitions", partitions)
        inputs.check_range("partitions", partitions, low=2, high=sql.MOST_RANGES)
    with _spark(source, session) as spark:
        if isinstance(source, str | Path):
            where = str(source)
            frame = _read_by_spark(spark, where)
        else:
            where, frame = "the DataFrame", source
        view = f"calibrant_{uuid.uuid4().hex}"
        frame.createOrReplaceTempView(view)
        try:
            found = [Column(field.name, field.dataType.simpleString()) for field in frame.schema.fields]
            table = SqlSource(sql.SPARK, lambda text, _=0.0: spark.sql(text).collect(), view)
            return _statistics(
                where, table, found, columns, bins, risk=risk, most_classes=most_classes, ranges=partitions
            )
        finally:
            spark.catalog.dropTempView(view)


def as_pairs(cells: Ties) -> Predictions:
    """Cells as predictions with weights, each once right and once wrong."""
    z, samples, right = cells
    so_far = samples.cumsum()
    # Neighbours of one slice of the samples and one slice of [0, 1] are merged.
    slices = np.floor((so_far - samples / 2) / (SHARE * so_far[-1])), np.floor(z / WIDTH)
    changes = np.logical_or.reduce([np.diff(each, prepend=-1) != 0 for each in slices])
    # A confidence of 1 is never wrong, and stays apart.
    first = np.flatnonzero(changes | (z == 1))
    sums, samples, right = np.add.reduceat([samples * z, samples, right], first, axis=1)
    correct = np.repeat([True, False], len(first))
    return Predictions(
        np.tile(np.clip(sums / samples, 0, 1), 2), correct, weight=np.concatenate((right, samples - right))
    )


def _statistics(
    where: str,
    source: SqlSource,
    found: Sequence[Column],
    columns: Columns,
    bins: int,
    *,
    risk: bool,
    most_classes: int,
    ranges: int | None = None,
) -> Statistics:
    """Run the statements on an engine and combine the few rows that they return; errors name where they are from."""
    try:
        pairs = find_pairs(source, found, columns, risk=risk)
        samples, quantiles, off, low, high, *failures = source.query(sql.check_statement(source.dialect, pairs))[0]
        if samples < 3:
            raise ValueError(f"{samples or 'no'} rows, ESD needs at least 3: give more predictions")
        for check, count in zip(pairs.checks, failures, strict=True):
            if count:
                raise ValueError(f"{count:,} of {samples:,} rows {check.complaint}")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    # Spark warns about a window that is not partitioned, so there are at least two.
    wanted = ranges or min(max(2, -(-samples // sql.ROWS_PER_RANGE)), sql.MOST_RANGES)
    statement = sql.sums_statement(pairs, bins, sql.cuts(quantiles, wanted))
    rows = source.query(statement, 0.6 if most_classes else 1.0)
    # Sorted, so that the order in which threads finish does not change the rounding.
    sums = RangeSums(*np.array(sorted(tuple(row) for row in rows), np.float64).T)
    classes = {}
    if most_classes > 0 and pairs.classes is not None and pairs.classes > 2:
        classes = _cells_of_classes(source, pairs, most_classes)
    table = _bin_table(sums, bins, np.dtype(np.float32 if pairs.type == "FLOAT" else np.float64))
    cells = _cells(sums)
    total, confidence, right = (float(column.sum()) for column in (cells.samples, sums.nz, cells.right))
    ks_error, esd = sql.combine(sums)
    notices = list(pairs.notices)
    if off:
        notices.append(renormalised(off, samples, low, high))
    only = [k for k, each in classes.items() if each.right.sum() == samples]
    view = View(pairs.judged, "", as_pairs(cells))
    if pairs.judged == "risk":
        view = View("risk", pairs.name(1), as_pairs(cells))
        if right in (0, total):
            only.append(int(right > 0))
        if pairs.assumed:
            notices += fits_other(pairs.assumed, pairs.name(0), *cells)
    notices += [only_class(k, pairs.names, pairs.label) for k in only]
    return Statistics(
        samples=samples,
        accuracy=right / total,
        mean_confidence=confidence / total,
        gap=(confidence - right) / total,
        ece=table.error(),
        mce=float(np.abs(table.gaps).max()),
        ks_error=ks_error,
        esd=esd,
        brier_top=float(sums.q.sum() / total),
        bins=table,
        views=(view, *(View("class", pairs.name(k), as_pairs(each)) for k, each in classes.items())),
        classes=pairs.classes,
        names=pairs.names,
        notices=tuple(notices),
    )


def _bin_table(sums: RangeSums, bins: int, dtype: np.dtype[Any]) -> BinTable:
    # SQL counts bins from 1, and gives 0 for a confidence of 0, which belongs to the first bin.
    place = np.maximum(sums.bin.astype(np.int64) - 1, 0)
    edges = convention_of("paper", bins).edges_like(np.zeros(0, dtype))
    return table_of(edges, np.stack(_added(sums, place, bins)))


def _cells(sums: RangeSums) -> Ties:
    """Samples in cells of confidence, each as one group at its mean; a cell may meet several ranges and bins."""
    n, z, k = _added(sums, np.unique(sums.cell, return_inverse=True)[1])
    return Ties(np.clip(z / n, 0, 1), n, k)


def _added(sums: RangeSums, place: IndexArray, least: int = 0) -> list[Array]:
    """Samples, confidence and right ones by place."""
    return [np.bincount(place, each, least).astype(np.float64) for each in (sums.n, sums.nz, sums.k)]


def _cells_of_classes(source: SqlSource, pairs: PairQuery, most: int) -> dict[int, Ties]:
    """Samples in cells of the probability of single classes; of many, of those that the model expects most often."""
    dialect, query, _ = source
    chosen = list(range(pairs.classes or 0))
    if len(chosen) > most:
        expected = {int(k): float(total) for k, total in query(sql.expected_statement(dialect, pairs), 0.8)}
        chosen = sorted(sorted(expected, key=lambda k: (-expected[k], k))[:most])
    rows = query(sql.classes_statement(dialect, pairs, chosen), 1.0)
    table = np.array([tuple(row) for row in rows], np.float64)
    found = {}
    for k in chosen:
        _, n, right, z = table[table[:, 0] == k].T
        mean = np.clip(z / n, 0, 1)
        order = np.argsort(mean)
        found[k] = Ties(mean[order], n[order], right[order])
    return found


def _watched(connection: "DuckDBPyConnection", report: Callable[[float], None]) -> Query:
    """A function that runs a statement, and meanwhile reports the share of the whole that is done."""
    connection.execute("SET enable_progress_bar = true")
    connection.execute("SET enable_progress_bar_print = false")
    done = 0.0

    def query(text: str, end: float = 0.15) -> Sequence[Sequence[Any]]:
        nonlocal done
        begin = done
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(lambda: connection.execute(text).fetchall())
            try:
                while not wait([running], timeout=0.2).done:
                    share = max(connection.query_progress(), 0.0) / 100
                    done = max(done, begin + (end - begin) * share)
                    report(done)
            except BaseException:
                connection.interrupt()
                raise
            found = running.result()
        done = max(done, end)
        report(done)
        return found

    return query


def _limit(connection: "DuckDBPyConnection", memory_limit: str, threads: int | None, spill: str) -> None:
    connection.execute(f"SET memory_limit = {text(memory_limit)}")
    connection.execute(f"SET temp_directory = {text(spill)}")
    # The order of rows does not matter here, and keeping it costs memory.
    connection.execute("SET preserve_insertion_order = false")
    # Parquet's statistics leave NaN out, and DuckDB 2.0 would conclude from them that there is none (its issue 25521).
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    if threads is None:
        [(limit,)] = connection.execute("SELECT current_setting('memory_limit')").fetchall()
        number, unit = limit.split()
        megabytes = float(number) * {"KiB": 2**-10, "MiB": 1, "GiB": 2**10, "TiB": 2**20}.get(unit, 0)
        threads = max(1, min(os.cpu_count() or 1, int(megabytes / MEGABYTES_PER_THREAD)))
    inputs.check_count("threads", threads)
    connection.execute(f"SET threads = {threads}")


@contextmanager
def _spark(source: object, session: "SparkSession | None") -> "Iterator[SparkSession]":
    """The session to use, stopped afterwards if it was started here."""
    from pyspark.sql import SparkSession

    given = session or getattr(source, "sparkSession", None) or SparkSession.getActiveSession()
    if given is not None:
        yield given
        return
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="calibrant-") as folder:
        errors_only = Path(folder, "log4j2.properties")
        errors_only.write_text(LOG_OF_ERRORS)
        settings: dict[str, str | bool | int | float | None] = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={errors_only.as_uri()}",
            "spark.sql.shuffle.partitions": str(4 * cores),
        }
        started = SparkSession.builder.master(f"local[{cores}]").appName("calibrant").config(map=settings).getOrCreate()
    started.sparkContext.setLogLevel("ERROR")
    try:
        yield started
    finally:
        started.stop()


def _read_by_spark(spark: "SparkSession", where: str) -> "DataFrame":
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    suffix = Path(where).suffix.lower()
    if suffix not in (".parquet", ".csv") and not Path(where).is_dir():
        raise ValueError(f"{where}: expected .parquet or .csv: convert it, or rename it")
    # Hadoop reads patterns; a file of exactly this name comes first.
    pattern = re.sub(r"([*?\[\]{}\\])", r"\\\1", where) if Path(where).exists() else where
    try:
        if suffix == ".csv":
            return spark.read.csv(pattern, header=True, inferSchema=True)
        return spark.read.parquet(pattern)
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PySparkException) and error.getCondition() == "PATH_NOT_FOUND":
            raise FileNotFoundError(f"{where}: no such file: check the path") from error
        causes = [str(error).strip().splitlines()[0], *re.findall(r"Caused by: [\w.]+: (.*)", str(error))]
        raise ValueError(f"{where}: cannot be read: {causes[-1]}") from error
