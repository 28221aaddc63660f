"""The command line: commands for files of predictions, and commands that other packages add."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from calibrant import __version__
from calibrant.commands import Engine
from calibrant.files.layout import Columns
from calibrant.metrics.binned import ConventionName

app = App(
    name="calibrant",
    help="Check whether a classifier's confidence can be trusted, recalibrate it, and train calibrated networks.",
    version=__version__,
)
# Commands of other packages, such as the laboratory's, are imported when they are called.
SUMMARIES = {
    "demo": "Train small networks on synthetic data, and compare methods with the known truth.",
    "recipes": "List recipes and methods, or the settings of one recipe.",
    "report": "Write an HTML page about a folder of trials.",
    "reproduce": "Run a sweep, your own or one of the ESD paper's, and show its tables and figures.",
    "runs": "Inspect and clean up a folder of trials.",
    "train": "Train one network with a recipe and a method, and store it as a trial.",
}
LISTED = sys.argv[1:2] in ([], ["--help"], ["-h"])
for command in entry_points(group="calibrant.commands"):
    # A summary replaces the whole description of the command, so it is given only for the list of commands.
    app.command(command.value, name=command.name, help=SUMMARIES.get(command.name) if LISTED else None)

Positive = Annotated[int, Parameter(validator=Number(gte=1))]
NotNegativeInteger = Annotated[int, Parameter(validator=Number(gte=0))]
Method = Literal[
    "auto", "temperature", "sms", "svs", "smooth", "vector", "matrix", "dirichlet", "ensemble-temperature",
    "platt", "beta", "spline", "histogram", "isotonic", "centred-isotonic", "venn-abers", "bbq",
]  # fmt: skip
Draws = Annotated[int, Parameter(validator=Number(gte=19))]  # with fewer, no p-value is ever below 5 %
Margin = Annotated[float, Parameter(validator=Number(gt=0, lte=100))]
Listed = Annotated[tuple[str, ...], Parameter(negative="")]
Conditions = Annotated[tuple[str, ...], Parameter(name="--fail-if", negative="", consume_multiple=False)]
Names = Annotated[Columns, Parameter(name="*", group="Names in the files")]


@app.command
def evaluate(
    *files: Path,
    report: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    bins: Positive | None = None,
    convention: ConventionName = "paper",
    draws: Draws = 1000,
    seed: NotNegativeInteger = 0,
    margin: Margin = 2.0,
    engine: Engine = "auto",
    memory_limit: str = "1GB",
    group: Listed = (),
    time: str | None = None,
    baseline: Path | None = None,
    fail_if: Conditions = (),
    history: Path | None = None,
    names: Names = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Measure how well the predictions in a file are calibrated; several files are compared side by side.

    A file is .npz, .npy, .csv, .tsv, .jsonl or .parquet, or a folder or pattern of tables. It holds logits or
    probabilities with target, or confidence with correct, or confidence with prediction and target. In a table, the
    values of the classes are columns logits_0, logits_1, ..., or named by the classes, or one column of lists.

    Args:
        files: Predictions, one file for each model.
        report: File to write an HTML page with figures to.
        json: Print JSON instead of a table.
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
        names: Names of arrays and columns.
    """
    from calibrant.commands.evaluate import AuditOptions, evaluate_files
    from calibrant.commands.monitor import Watch, parse_condition

    if not files:
        raise ValueError("give at least one file of predictions")
    groups = tuple(column for given in group for column in given.split(",") if column)
    watch = Watch(groups, time, baseline, tuple(map(parse_condition, fail_if)), history)
    options = AuditOptions(names, bins, convention, draws, seed, margin / 100, engine, memory_limit, watch)
    failed = evaluate_files(files, options, report=report, as_json=json)
    if failed:
        from calibrant.report.formats import clean

        sys.stderr.write("".join(f"calibrant: {clean(sentence)}\n" for sentence in failed))
        sys.exit(1)


@app.command
def recalibrate(
    *,
    fit: Path,
    apply: Path | None = None,
    method: Method = "auto",
    accuracy: Literal["free", "keep"] = "free",
    out: Path | None = None,
    save: Path | None = None,
    prior: str | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    names: Names = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Fit a post-hoc method on one file of predictions, apply it to another, and save it.

    Writes the calibrated probabilities, and shows the scores before and after if the target is known. At least one of
    --apply and --save is needed.

    Args:
        fit: Predictions on held-out data, with target.
        apply: Predictions to calibrate.
        method: Post-hoc method to fit; auto mixes several methods, weighted by their log loss in cross-validation.
        accuracy: keep never changes a predicted class; for auto and temperatures.
        out: File to write; by default beside --apply, with a name that ends in -calibrated.
        save: File to write the fitted method to, .safetensors, for calibrant apply and calibrant.posthoc.load.
        prior: Frequency of each class where the method is used, such as 0.9,0.1, if it differs from the file it is
            fitted on; em or confusion estimates it from the predictions of --apply.
        json: Print JSON instead of a table.
        names: Names of arrays and columns.
    """
    from calibrant.commands.recalibrate import Fit, recalibrate_file

    recalibrate_file(fit, apply, Fit(method, accuracy, out, save, prior), names, as_json=json)


@app.command
def apply(
    file: Path,
    *,
    calibrator: Path,
    out: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    names: Names = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Calibrate a file of predictions with a saved calibrator.

    Writes the calibrated probabilities, and shows the scores before and after if the target is known.

    Args:
        file: Predictions to calibrate.
        calibrator: File that calibrant recalibrate --save or calibrant.posthoc.save wrote.
        out: File to write; by default beside the file, with a name that ends in -calibrated.
        json: Print JSON instead of a table.
        names: Names of arrays and columns.
    """
    from calibrant.commands.recalibrate import apply_file

    apply_file(calibrator, file, out, names, as_json=json)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, or the given arguments.

    Invalid input is reported in one line; Ctrl-C ends it without a traceback.
    """
    try:
        app(arguments, exit_on_error=False, print_error=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except (BrokenPipeError, SystemExit) as error:
        # rich ends the program with 1 if the reader has gone, which would mean that a condition of --fail-if holds.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output, such as head, has gone; without this, Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except (ValueError, ImportError, OSError, MemoryError, CycloptsError) as error:
        from calibrant.report.formats import clean

        sys.stderr.write(f"calibrant: {clean(str(error))}\n")
        sys.exit(2)
