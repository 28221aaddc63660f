"""`calibrant recalibrate`: fit a post-hoc method on one file of predictions, apply it to another."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from calibrant.commands.terminal import Advance, plain, print_json, print_scores, progress_bar
from calibrant.files import SUFFIXES, Column, FileError, Source, naming, read_source, write_predictions
from calibrant.metrics import Scores, evaluate, predictions
from calibrant.metrics.columns import Columns
from calibrant.posthoc import METHODS, Calibrator, TemperatureScaling, logits_from_probabilities


@dataclass(frozen=True)
class Outcome:
    """A fitted method, the calibrated predictions, and their scores if their target is known."""

    calibrator: Calibrator
    probabilities: Column
    target: Column | None
    before: Scores | None
    after: Scores | None


def recalibrate_file(fit: Path, apply: Path, out: Path | None, method: str, names: Columns, *, as_json: bool) -> None:
    """Fit, apply, write, and print before and after."""
    out = out or apply.with_name(f"{apply.stem}-calibrated{apply.suffix}")
    if os.path.realpath(out) in {os.path.realpath(fit), os.path.realpath(apply)}:
        raise FileError(out, "would be overwritten: choose another --out")
    if out.suffix.lower() not in SUFFIXES:
        raise FileError(out, f"expected one of {', '.join(SUFFIXES)}")
    with progress_bar("reading") as begin:
        outcome = _recalibrate(fit, apply, method, names, begin)
        begin("writing")
        write_predictions(out, outcome.probabilities, outcome.target)
    temperature = outcome.calibrator.temperature_ if isinstance(outcome.calibrator, TemperatureScaling) else None
    if as_json:
        before, after = (None if scores is None else scores.to_dict() for scores in (outcome.before, outcome.after))
        known = {} if temperature is None else {"temperature": temperature}
        print_json({"method": method, **known, "out": str(out), "before": before, "after": after})
        return
    console = Console()
    found = "" if temperature is None else f" {temperature:.4g}"
    console.print(f"[bold]{method}{found}[/], fitted on {plain(str(fit))}.", highlight=False)
    if outcome.before is not None and outcome.after is not None:
        title = f"{plain(str(apply))}: {outcome.before.title}"
        print_scores(console, {"before": outcome.before, "after": outcome.after}, title=title)
    else:
        console.print(f"{plain(str(apply))} has no target, so there are no scores to show.", highlight=False)
    console.print(f"Written: {plain(str(out))}", soft_wrap=True, highlight=False)


def _recalibrate(fit: Path, apply: Path, method: str, names: Columns, begin: Callable[[str], Advance]) -> Outcome:
    begin("reading")
    training, new = read_source(fit, names), read_source(apply, names)
    if training.labels is None:
        called = names.of(training.kind)[1]
        raise FileError(fit, f"has no {called!r}: a method needs labels to be fitted")
    # Checked first, so that errors of a file come before errors of a fit.
    with naming(fit):
        logits, target = _logits(training), training.labels.astype(np.int64)
    with naming(apply):
        new_logits = _logits(new)
    begin(f"fitting {method}")
    with naming(fit):
        calibrator = METHODS[method]().fit(logits, target)
    begin(f"applying {method}")
    with naming(apply):
        probabilities = np.asarray(calibrator.predict_proba(new_logits))
        if new.labels is None:
            return Outcome(calibrator, probabilities, None, None, None)
        new_target = new.labels.astype(np.int64)
        after = evaluate(probabilities=probabilities, target=new_target)
        return Outcome(calibrator, probabilities, new_target, evaluate(new.predictions()), after)


def _logits(source: Source) -> Column:
    """Checked logits of all classes."""
    if source.kind == "confidence":
        raise ValueError("holds confidences only: recalibration needs the logits or probabilities of all classes")
    if source.labels is None:  # any target is good enough to check the values
        given: dict[str, Any] = {source.kind: source.values, "target": np.zeros(len(source.values), dtype=np.int64)}
        checked = predictions(**given)
    else:
        checked = source.predictions()
    if source.kind == "logits":
        return source.values.astype(np.result_type(source.values.dtype, np.float32), copy=False)
    assert checked.probabilities is not None  # noqa: S101 (probabilities were given)
    return np.asarray(logits_from_probabilities(checked.probabilities))
