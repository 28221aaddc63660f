"""`calibrant recalibrate`: fit a post-hoc method on one file of predictions, apply it to another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from calibrant.commands.terminal import plain, print_json, progress_bar, score_table
from calibrant.files import Column, FileError, Source, read_source, write_predictions
from calibrant.metrics import Scores, evaluate
from calibrant.metrics.columns import Columns
from calibrant.posthoc import METHODS, Calibrator, TemperatureScaling, logits_from_probabilities


@dataclass(frozen=True)
class Outcome:
    """Scores of the file that was recalibrated, if its target is known."""

    calibrator: Calibrator
    samples: int
    before: Scores | None
    after: Scores | None


def recalibrate_file(fit: Path, apply: Path, out: Path | None, method: str, names: Columns, *, as_json: bool) -> None:
    """Fit, apply, write, and print before and after."""
    out = out or apply.with_name(f"{apply.stem}-calibrated{apply.suffix}")
    if out.resolve() in {fit.resolve(), apply.resolve()}:
        raise FileError(out, "would be overwritten: choose another --out")
    with progress_bar("reading") as begin:
        begin("reading")
        outcome, probabilities, target = _recalibrate(fit, apply, method, names, begin)
        begin("writing")
        write_predictions(out, probabilities, target)
    settings = _settings(outcome.calibrator)
    if as_json:
        before, after = (None if scores is None else scores.to_dict() for scores in (outcome.before, outcome.after))
        print_json({"method": method, **settings, "out": str(out), "before": before, "after": after})
        return
    console = Console()
    found = f" {settings['temperature']:.4g}" if settings else ""
    console.print(f"[bold]{method}{found}[/], fitted on {plain(str(fit))}.", highlight=False)
    if outcome.before is not None and outcome.after is not None:
        title = f"{plain(str(apply))}: {outcome.before.title}"
        console.print(score_table({"before": outcome.before, "after": outcome.after}, title=title))
    else:
        console.print(f"{plain(str(apply))} has no target, so there is no before and after to show.", highlight=False)
    console.print(f"Written: {plain(str(out))}", soft_wrap=True, highlight=False)


def _recalibrate(
    fit: Path, apply: Path, method: str, names: Columns, begin: Any
) -> tuple[Outcome, Column, Column | None]:
    training, new = read_source(fit, names), read_source(apply, names)
    if training.labels is None:
        raise FileError(fit, f"has no {names.target!r}: a method is fitted to the right answers")
    begin(f"fitting {method}")
    # Checked first, so that what is wrong with a file is said before what is wrong with a fit.
    for path, source in ((fit, training), (apply, new)):
        _check(path, source)
    try:
        calibrator = METHODS[method]().fit(_logits(fit, training), training.labels.astype(np.int64))
    except ValueError as error:
        raise FileError(fit, " ".join(str(error).split())) from error
    begin(f"applying {method}")
    try:
        probabilities = calibrator.predict_proba(_logits(apply, new))
    except ValueError as error:
        raise FileError(apply, " ".join(str(error).split())) from error
    if new.labels is None:
        return Outcome(calibrator, len(probabilities), None, None), probabilities, None
    target = new.labels.astype(np.int64)
    before = evaluate(new.predictions())
    after = evaluate(probabilities=probabilities, target=target)
    return Outcome(calibrator, len(target), before, after), probabilities, target


def _check(path: Path, source: Source) -> None:
    if source.kind == "confidence":
        raise FileError(path, "holds confidences only: recalibration needs the logits or probabilities of all classes")
    if source.labels is not None:
        try:
            source.predictions()
        except (ValueError, TypeError) as error:
            raise FileError(path, " ".join(str(error).split())) from error


def _logits(path: Path, source: Source) -> Column:
    if source.kind == "logits":
        return source.values if source.values.dtype.kind == "f" else source.values.astype(np.float64)
    try:
        logits: Column = np.asarray(logits_from_probabilities(source.values))
    except (ValueError, TypeError) as error:
        raise FileError(path, " ".join(str(error).split())) from error
    return logits


def _settings(calibrator: Calibrator) -> dict[str, float]:
    return {"temperature": calibrator.temperature_} if isinstance(calibrator, TemperatureScaling) else {}
