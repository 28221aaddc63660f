"""`calibrant recalibrate`: fit a post-hoc method on one file of predictions; apply it to another, or save it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console

from calibrant.commands.apply import Calibrated, calibrated, logits_of, output_of
from calibrant.commands.terminal import Advance, plain, print_json, progress_bar
from calibrant.files import FileError, naming, read_source
from calibrant.metrics.columns import Columns
from calibrant.posthoc import METHODS, Calibrator, TemperatureScaling
from calibrant.posthoc import save as save_calibrator


def recalibrate_file(
    fit: Path, apply: Path | None, out: Path | None, save: Path | None, method: str, names: Columns, *, as_json: bool
) -> None:
    """Fit, apply, write, and print before and after."""
    if apply is None and save is None:
        raise ValueError("nothing to do with the fitted method: give --apply FILE, --save FILE, or both")
    if apply is None and out is not None:
        raise ValueError("--out is for the predictions of --apply: give --apply FILE, or leave --out away")
    inputs = [fit] if apply is None else [fit, apply]
    written = None if apply is None else output_of(apply, out, inputs)
    if save is not None:
        _check_saved(save, inputs)
    with progress_bar("reading") as begin:
        calibrator, done = _recalibrate(fit, apply, method, names, begin)
        begin("writing")
        if save is not None:
            save_calibrator(calibrator, save)
        if done is not None and written is not None:
            done.write(written)
    temperature = calibrator.temperature_ if isinstance(calibrator, TemperatureScaling) else None
    if as_json:
        known = {} if temperature is None else {"temperature": temperature}
        kept = {} if save is None else {"calibrator": str(save)}
        scores = {"before": None, "after": None} if done is None else done.scores()
        print_json({"method": method, **known, **kept, "out": None if written is None else str(written), **scores})
        return
    console = Console()
    found = "" if temperature is None else f" {temperature:.4g}"
    console.print(f"[bold]{method}{found}[/], fitted on {plain(str(fit))}.", highlight=False)
    if done is not None and written is not None:
        done.show(console, written)
    if save is not None:
        console.print(f"Saved: {plain(str(save))}", soft_wrap=True, highlight=False)


def _check_saved(save: Path, inputs: list[Path]) -> None:
    if os.path.realpath(save) in {os.path.realpath(each) for each in inputs}:
        raise FileError(save, "would be overwritten: choose another --save")
    if save.suffix.lower() != ".safetensors":
        raise FileError(save, "expected a name that ends in .safetensors")


def _recalibrate(
    fit: Path, apply: Path | None, method: str, names: Columns, begin: Callable[[str], Advance]
) -> tuple[Calibrator, Calibrated | None]:
    begin("reading")
    training = read_source(fit, names)
    new = None if apply is None else read_source(apply, names)
    if training.labels is None:
        called = names.of(training.kind)[1]
        raise FileError(fit, f"has no {called!r}: a method needs labels to be fitted")
    # Checked first, so that errors of a file come before errors of a fit.
    with naming(fit):
        logits, target = logits_of(training), training.labels.astype(np.int64)
    if apply is None or new is None:
        begin(f"fitting {method}")
        with naming(fit):
            return METHODS[method]().fit(logits, target), None
    with naming(apply):
        new_logits = logits_of(new)
    begin(f"fitting {method}")
    with naming(fit):
        calibrator = METHODS[method]().fit(logits, target)
    return calibrator, calibrated(calibrator, apply, new, new_logits, begin)
