"""Implementation of the commands, without parsing of options."""

from typing import Literal

Engine = Literal["auto", "memory", "duckdb", "spark"]


def printable(text: str) -> str:
    """Replace characters that are not printable, which names of files may contain."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
