"""Columns of tables: a metric, as trained or after post-hoc scaling, and how it is displayed."""

from typing import NamedTuple

from calibrant.metrics.table import described
from calibrant_lab.scores import ALIASES, check_column

AFTER = {"temperature": "after TS", "vector": "after VS"}


class Column(NamedTuple):
    """A column."""

    key: str  # its name in a sweep
    heading: str  # one or two lines
    factor: float  # 100 for percentages
    digits: int
    better: int  # 1 if higher is better, -1 if lower is better

    @property
    def label(self) -> str:
        """The heading for use in a sentence."""
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
    known = described(ALIASES.get(metric, metric))
    is_percent = known.unit == "%"
    heading = known.label.strip().rpartition(":")[2] + (" %" if is_percent else "")
    heading += f"\n{AFTER[repair]}" if repair else ""
    return Column(key, heading, 100 if is_percent else 1, 2 if is_percent else 4, 1 if known.more_is_better else -1)
