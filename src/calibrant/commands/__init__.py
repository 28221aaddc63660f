"""What the commands of the command line do, apart from reading their options."""

from typing import Literal

Engine = Literal["auto", "memory", "duckdb", "spark"]
