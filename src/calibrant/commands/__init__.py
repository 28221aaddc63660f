"""Implementation of the commands, without parsing of options."""

from typing import Literal

Engine = Literal["auto", "memory", "duckdb", "spark"]
