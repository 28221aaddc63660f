"""The command line: commands for files of predictions, and commands that other packages add."""

import os
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from calibrant import __version__
from calibrant.commands import Evaluation, Recalibration
from calibrant.files.layout import Columns

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

Names = Annotated[Columns, Parameter(name="*", group="Names in the files")]


@app.command
def evaluate(
    *files: Path,
    report: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    options: Annotated[Evaluation, Parameter(name="*")] = Evaluation(),  # noqa: B008 (frozen)
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
        options: How they are evaluated.
        names: Names of arrays and columns.
    """
    from calibrant.commands.evaluate import evaluate_files

    if not files:
        raise ValueError("give at least one file of predictions")
    failed = evaluate_files(files, options, names, report=report, as_json=json)
    if failed:
        from calibrant.report.formats import clean

        sys.stderr.write("".join(f"calibrant: {clean(sentence)}\n" for sentence in failed))
        sys.exit(1)


@app.command
def recalibrate(
    *,
    fit: Path,
    apply: Path | None = None,
    how: Annotated[Recalibration, Parameter(name="*")] = Recalibration(),  # noqa: B008 (frozen)
    json: Annotated[bool, Parameter(negative="")] = False,
    names: Names = Columns(),  # noqa: B008 (frozen)
) -> None:
    """Fit a post-hoc method on one file of predictions, apply it to another, and save it.

    Writes the calibrated probabilities, and shows the scores before and after if the target is known. At least one of
    --apply and --save is needed.

    Args:
        fit: Predictions on held-out data, with target.
        apply: Predictions to calibrate.
        how: How the method is fitted.
        json: Print JSON instead of a table.
        names: Names of arrays and columns.
    """
    from calibrant.commands.recalibrate import recalibrate_file

    recalibrate_file(fit, apply, how, names, as_json=json)


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
    """Run the command line, or the given arguments; invalid input is reported in one line."""
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
