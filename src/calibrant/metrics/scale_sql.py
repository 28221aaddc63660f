"""The SQL behind `calibrant.metrics.scale`, for DuckDB and Spark, and its sums: :doc:`/larger_than_memory`.

A range returns sums of powers of its own running sum; the one at its lower end, a constant, is added afterwards.
Rows are also apart by cells of confidence, from which the test of calibration draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

# ruff: noqa: S608 (names are quoted by Dialect.name, the rest is our own)

Floats = npt.NDArray[np.float64]
# Confidence that was given, probability of class 1 of two, or confidence in the predicted class.
Judged = Literal["confidence", "risk", "top label"]

# Number of quantiles in the first scan, and so of ranges at most: Spark compiles the search tree over them to
# one Java method, whose size is limited.
MOST_RANGES = 256
ROWS_PER_RANGE = 1_000_000
# Cells of [0, 1] that are summed apart; a confidence of 1 has its own.
CELLS = 1 << 16
# The same for the square root of the probability of a class.
CLASS_CELLS = 1 << 12


@dataclass(frozen=True)
class Dialect:
    """Expressions that differ between DuckDB and Spark."""

    mark: str  # around an identifier; doubled inside one
    list_type: str
    make_list: str
    length: str
    not_null: str
    largest: str
    smallest: str
    total: str
    mapped: str  # of x, an element
    quantiles: str
    exploded: str  # of lists x with columns whole and t: one row for each number p and its place k from 0

    def name(self, identifier: str) -> str:
        """Quote an identifier, whatever it contains."""
        return self.mark + identifier.replace(self.mark, 2 * self.mark) + self.mark


DUCKDB = Dialect(
    mark='"',
    list_type="{}[]",
    make_list="[{}]",
    length="len({})",
    not_null="list_count({})",
    largest="list_max({})",
    smallest="list_min({})",
    total="list_sum({})",
    mapped="list_transform({}, lambda x: {})",
    quantiles="reservoir_quantile({}, [{}], 32768)",
    exploded="SELECT unnest(x) AS p, unnest(range(len(x))) AS k, whole, t FROM {}",
)

SPARK = Dialect(
    mark="`",
    list_type="ARRAY<{}>",
    make_list="array({})",
    length="size({})",
    not_null="size(array_compact({}))",
    largest="array_max({})",
    smallest="array_min({})",
    total="aggregate({}, CAST(0 AS DOUBLE), (a, x) -> a + x)",
    mapped="transform({}, x -> {})",
    quantiles="approx_percentile({}, array({}), 2000)",
    exploded="SELECT p, k, whole, t FROM {} LATERAL VIEW posexplode(x) exploded AS k, p",
)


class Check(NamedTuple):
    """A condition that no row may meet, and the error message if some do."""

    condition: str
    complaint: str


@dataclass(frozen=True)
class PairQuery:
    """Common table expressions that end in ``pairs``, and what is known about them.

    The columns of pairs are z (confidence), c (0 or 1), and whole, what rounded probabilities are divided by, else 1.
    """

    text: str
    type: str  # of the confidence
    checks: tuple[Check, ...]
    judged: Judged  # what z is
    shares: str  # expression ``shares`` of lists x, what they are to be divided by, whole, and the target t
    label: str  # column of the labels
    classes: int | None = None
    names: tuple[str, ...] | None = None
    assumed: str = ""  # what the values are called, if nothing but the labels names their classes
    notices: tuple[str, ...] = ()

    def name(self, k: int) -> str:
        """Name of a class; its index if it has none."""
        return str(k) if self.names is None else self.names[k]


def check_statement(dialect: Dialect, pairs: PairQuery) -> str:
    """First scan: number of rows, quantiles of the confidence, rounded rows and their sums; failures of each check."""
    failed = [f"sum(CASE WHEN {check.condition} THEN 1 ELSE 0 END)" for check in pairs.checks]
    fractions = ", ".join(f"{i / MOST_RANGES}" for i in range(1, MOST_RANGES))
    quantiles = f"{dialect.quantiles.format('z', fractions)} FILTER (WHERE z BETWEEN 0 AND 1)"
    off = "FILTER (WHERE whole <> 1)"
    return (
        f"WITH {pairs.text} SELECT count(*), {quantiles}, count(*) {off}, min(whole) {off}, max(whole) {off}, "
        f"{', '.join(failed)} FROM pairs"
    )


def expected_statement(dialect: Dialect, pairs: PairQuery) -> str:
    """How often the model expects each class: rows of its place and the sum of its probabilities."""
    return (
        f"WITH {pairs.text}, {pairs.shares}, each AS ({dialect.exploded.format('shares')}) "
        "SELECT k, sum(CAST(p AS DOUBLE) / whole) FROM each GROUP BY k"
    )


def classes_statement(dialect: Dialect, pairs: PairQuery, chosen: Sequence[int]) -> str:
    """Rows of a class, samples, how many have the class, and the sum of its probabilities, in cells finer towards 0."""
    return f"""
WITH {pairs.text}, {pairs.shares},
each AS ({dialect.exploded.format("shares")}),
marked AS (
    SELECT k, CAST(p AS DOUBLE) / whole AS p, CASE WHEN t = k THEN 1e0 ELSE 0e0 END AS y
    FROM each WHERE k IN ({", ".join(map(str, chosen))})
)
SELECT k, CAST(count(*) AS DOUBLE), sum(y), sum(p)
FROM marked GROUP BY k, CAST(floor(sqrt(p) * {CLASS_CELLS}) AS INT)
"""


def cuts(quantiles: Sequence[float], ranges: int) -> list[float]:
    """At most ``ranges - 1`` of the quantiles, evenly chosen and distinct: where one range ends."""
    chosen = [quantiles[len(quantiles) * i // ranges] for i in range(1, ranges)]
    return sorted(set(chosen))


def sums_statement(pairs: PairQuery, bins: int, ends: Sequence[float]) -> str:
    """Second scan: the sums of `RangeSums`, one row for each range, and each bin and cell that it meets."""
    kind = pairs.type
    guess = f"ceil(CAST(z AS DOUBLE) * {bins})"

    def edge(slot: str) -> str:
        return f"CAST(CAST({slot} AS DOUBLE) / {bins} AS {kind})"

    def range_between(first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        below, above = range_between(first, middle), range_between(middle + 1, last)
        return f"CASE WHEN z <= CAST('{ends[middle]!r}' AS {kind}) THEN {below} ELSE {above} END"

    # A product can round across an edge that is itself rounded to the type of the confidence: check again.
    correction = f"CASE WHEN z > {edge(guess)} THEN 1 WHEN z <= {edge(f'{guess} - 1')} THEN -1 ELSE 0 END"
    return f"""
WITH {pairs.text},
ties AS (SELECT z, CAST(count(*) AS DOUBLE) AS n, sum(c) AS k FROM pairs GROUP BY z),
placed AS (
    SELECT {range_between(0, len(ends))} AS part, CAST({guess} + {correction} AS INT) AS bin,
        CAST(floor(CAST(z AS DOUBLE) * {CELLS}) AS INT) AS cell,
        CAST(z AS DOUBLE) AS conf, n, k,
        k - n * CAST(z AS DOUBLE) AS d,
        k * (1 - CAST(z AS DOUBLE)) * (1 - CAST(z AS DOUBLE)) + (n - k) * CAST(z AS DOUBLE) * CAST(z AS DOUBLE) AS q
    FROM ties
),
running AS (
    SELECT part, bin, cell, conf, n, k, d, q, (sum(d) OVER below) AS p, (sum(n) OVER below) - n AS s
    FROM placed
    WINDOW below AS (PARTITION BY part ORDER BY conf ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT part, bin, cell, sum(n), sum(k), sum(n * conf), sum(d), sum(q), sum(n * p), sum(n * p * p), sum(p * d),
    sum(q * s), min(p), max(p)
FROM running GROUP BY part, bin, cell
"""


class RangeSums(NamedTuple):
    """Columns of `sums_statement`: each is a sum over the tie groups of a range that fall in one bin and one cell.

    For a group at confidence z with n samples, k of them right: d = k - nz is the sum of residuals, q that of
    their squares, p the sum of d in this range up to and with the group, s the number of samples below it there.
    """

    part: Floats
    bin: Floats
    cell: Floats
    n: Floats
    k: Floats
    nz: Floats
    d: Floats
    q: Floats
    n_p: Floats
    n_pp: Floats
    p_d: Floats
    q_s: Floats
    lowest_p: Floats
    highest_p: Floats


def combine(sums: RangeSums) -> tuple[float, float]:
    """KS error and ESD of all ranges, from the sums of each."""
    # With P = o + p, where o is the sum of residuals in the ranges below, and s likewise counted from below,
    # ESD = sum of [n P^2 - 2 P d + q - q (N - 1 - s)] / (N (N - 1) (N - 2)): multiply out.
    part, samples = sums.part.astype(np.intp), math.fsum(sums.n)
    residual_of, samples_of = np.bincount(part, sums.d), np.bincount(part, sums.n)
    drift = (residual_of.cumsum() - residual_of)[part]
    below = (samples_of.cumsum() - samples_of)[part]
    terms = [
        drift**2 * sums.n,
        2 * drift * (sums.n_p - sums.d),
        sums.n_pp - 2 * sums.p_d,
        sums.q_s - sums.q * (samples - 2 - below),
    ]
    esd = math.fsum(np.concatenate(terms)) / (samples * (samples - 1) * (samples - 2))
    largest = max(float((drift + sums.highest_p).max()), -float((drift + sums.lowest_p).min()))
    return largest / samples, esd
