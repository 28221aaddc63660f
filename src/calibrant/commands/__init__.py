"""Options of the commands as the command line takes them, and their implementation, which it imports when needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from calibrant.metrics.binned import ConventionName

Method = Literal[
    "auto", "temperature", "sms", "svs", "smooth", "vector", "matrix", "dirichlet", "ensemble-temperature",
    "platt", "beta", "spline", "histogram", "isotonic", "centred-isotonic", "venn-abers", "bbq",
]  # fmt: skip
Engine = Literal["auto", "memory", "duckdb", "spark"]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
NotNegativeInteger = Annotated[int, Parameter(validator=Number(gte=0))]
Draws = Annotated[int, Parameter(validator=Number(gte=19))]  # with fewer, no p-value is ever below 5 %
Margin = Annotated[float, Parameter(validator=Number(gt=0, lte=100))]
Listed = Annotated[tuple[str, ...], Parameter(negative="")]
Conditions = Annotated[tuple[str, ...], Parameter(negative="", consume_multiple=False)]


@dataclass(frozen=True)
class Evaluation:
    """How files are evaluated.

    Attributes:
        bins: Number of bins of ECE; by default that of the convention.
        convention: ECE as in: paper (20 bins, right-closed), guo (15), torchmetrics (15, left-closed) or netcal (10).
        draws: Number of data sets drawn to test calibration.
        seed: Seed of these draws.
        margin: Largest acceptable error in points; the output says whether the data show that errors are smaller.
        engine: auto reads the file into memory, and uses duckdb for a table that does not fit.
        memory_limit: Memory limit of duckdb.
        group: Columns of groups, separated by commas; every value and every combination is judged by itself.
        time: Column of times: calibration in windows of time, and a test of change.
        baseline: Predictions of the same model on other samples, such as last month's: has calibration changed?
        fail_if: Exit with status 1 if this holds: rejected, changed, worse-than-baseline, or a score with a limit such
            as "ece > 0.05". May be repeated.
        history: Table to append a row about each file to, .parquet or .csv.
    """

    bins: Positive | None = None
    convention: ConventionName = "paper"
    draws: Draws = 1000
    seed: NotNegativeInteger = 0
    margin: Margin = 2.0
    engine: Engine = "auto"
    memory_limit: str = "1GB"
    group: Listed = ()
    time: str | None = None
    baseline: Path | None = None
    fail_if: Conditions = ()
    history: Path | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """Columns of groups."""
        return tuple(column for given in self.group for column in given.split(",") if column)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of groups and times."""
        return self.groups if self.time is None else (*self.groups, self.time)


@dataclass(frozen=True)
class Recalibration:
    """How a method is fitted, and what is done with it.

    Attributes:
        method: Post-hoc method to fit; auto mixes several methods, weighted by their log loss in cross-validation.
        accuracy: keep never changes a predicted class; for auto and temperatures.
        out: File to write; by default beside --apply, with a name that ends in -calibrated.
        save: File to write the fitted method to, .safetensors, for calibrant apply and calibrant.posthoc.load.
        prior: Frequency of each class where the method is used, such as 0.9,0.1, if it differs from the file it is
            fitted on; em or confusion estimates it from the predictions of --apply.
    """

    method: Method = "auto"
    accuracy: Literal["free", "keep"] = "free"
    out: Path | None = None
    save: Path | None = None
    prior: str | None = None
