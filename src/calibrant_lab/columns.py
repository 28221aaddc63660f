"""Columns of tables: a metric, as trained or after post-hoc scaling, and how people read it."""

from typing import NamedTuple

from calibrant.metrics.table import described
from calibrant_lab.scores import ALIASES, check_column

AFTER = {"temperature": "after TS", "vector": "after VS"}


class Column(NamedTuple):
    """A column.

    Attributes:
        key: Its name in a sweep.
        heading: One or two lines.
        factor: 100 where people read percent.
        digits: Decimals shown.
        better: Whether more of it (1) or less of it (-1) is better.
    """

    key: str
    heading: str
    factor: float
    digits: int
    better: int

    @property
    def label(self) -> str:
        """The heading within a sentence."""
        return self.heading.replace(" %", "").replace("\n", " ")


def column(key: str) -> Column:
    r"""A column by its name.

    Example:
        >>> column("ece+temperature").heading, column("accuracy").better, column("log_loss").digits
        ('ECE %\nafter TS', 1, 4)
        >>> column("ece+temperature").label
        'ECE after TS'
    """
    check_column(key)
    metric, _, repair = key.partition("+")
    name = ALIASES.get(metric, metric)
    known = described(name)
    is_percent = known.unit == "%"
    heading = (
        known.label.strip().rpartition(":")[2] + (" %" if is_percent else "") + (f"\n{AFTER[repair]}" if repair else "")
    )
    return Column(key, heading, 100 if is_percent else 1, 2 if is_percent else 4, 1 if known.more_is_better else -1)
