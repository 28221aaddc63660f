"""`calibrant recalibrate`: fit a post-hoc method on one file of predictions; apply it to another, or save it."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from calibrant.commands.apply import FEWEST, Calibrated, calibrated, logits_of, output_of
from calibrant.commands.terminal import Advance, plain, print_json, progress_bar, show_notices
from calibrant.files import FileError, naming, read_source
from calibrant.metrics.columns import Columns
from calibrant.posthoc import METHODS, AutoCalibration, Calibrator, FitWarning, TemperatureScaling
from calibrant.posthoc import save as save_calibrator

# Elements of the logits up to which a fit is compared with doing nothing in cross-validation.
CROSS_CHECKED = 2**18


# Methods other than auto that never change a prediction.
KEEPING = ("temperature", "ensemble-temperature")
Accuracy = Literal["free", "keep"]


@dataclass(frozen=True)
class Fit:
    """The method to fit, and what to do with it."""

    method: str
    accuracy: Accuracy
    out: Path | None
    save: Path | None

    def calibrator(self) -> Calibrator:
        """Make the unfitted calibrator."""
        if self.method == "auto":
            return AutoCalibration(accuracy=self.accuracy)
        if self.accuracy == "keep" and self.method not in KEEPING:
            raise ValueError(f"--accuracy keep is for --method {', '.join(('auto', *KEEPING))}, not {self.method}")
        return METHODS[self.method]()


def recalibrate_file(fit: Path, apply: Path | None, how: Fit, names: Columns, *, as_json: bool) -> None:
    """Fit, apply, write, and print before and after."""
    out, save = how.out, how.save
    if apply is None and save is None:
        raise ValueError("nothing to do with the fitted method: give --apply FILE, --save FILE, or both")
    if apply is None and out is not None:
        raise ValueError("--out is for the predictions of --apply: give --apply FILE, or leave --out away")
    inputs = [fit] if apply is None else [fit, apply]
    written = None if apply is None else output_of(apply, out, inputs)
    if save is not None:
        _check_saved(save, inputs)
    with progress_bar("reading") as begin:
        calibrator, notices, done = _recalibrate(fit, apply, how, names, begin)
        begin("writing")
        if save is not None:
            save_calibrator(calibrator, save)
        if done is not None and written is not None:
            done.write(written)
    if as_json:
        kept = {} if save is None else {"calibrator": str(save)}
        scores = {"before": None, "after": None} if done is None else done.scores()
        fitted = {"method": how.method, **_known(calibrator), "notices": notices, **kept}
        print_json({**fitted, "out": None if written is None else str(written), **scores})
        return
    console = Console()
    found = f" {calibrator.temperature_:.4g}" if isinstance(calibrator, TemperatureScaling) else ""
    console.print(f"[bold]{how.method}{found}[/], fitted on {plain(str(fit))}.", highlight=False)
    if isinstance(calibrator, AutoCalibration):
        console.print(_explained(calibrator), highlight=False)
    show_notices(console, notices)
    if done is not None and written is not None:
        done.show(console, written)
    if save is not None:
        console.print(f"Saved: {plain(str(save))}", soft_wrap=True, highlight=False)


def _check_saved(save: Path, inputs: list[Path]) -> None:
    if os.path.realpath(save) in {os.path.realpath(each) for each in inputs}:
        raise FileError(save, "would be overwritten: choose another --save")
    if save.suffix.lower() != ".safetensors":
        raise FileError(save, "expected a name that ends in .safetensors")


def _known(calibrator: Calibrator) -> dict[str, Any]:
    """What was fitted, for JSON."""
    if isinstance(calibrator, TemperatureScaling):
        return {"temperature": calibrator.temperature_}
    if isinstance(calibrator, AutoCalibration):
        return {"weights": calibrator.weights_, "gain": calibrator.gain_, "why": calibrator.why_}
    return {}


def _explained(auto: AutoCalibration) -> str:
    """The mixture and its expected gain, in two sentences."""
    largest_first = sorted(auto.weights_.items(), key=lambda member: -member[1])
    mixture = ", ".join(f"{name} {weight:.0%}" for name, weight in largest_first)
    mean, low, high = auto.gain_
    return (
        f"Mixture: {mixture} ({auto.why_}). Log loss in cross-validation: {-mean:+.4f} against the predictions as they "
        f"are, 95 % interval {-high:+.4f} to {-low:+.4f}."
    )


def _fitted(how: Fit, logits: Any, target: Any, weight: Any) -> tuple[Calibrator, list[str]]:
    """Fit, and collect the notices."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        calibrator = how.calibrator().fit(logits, target, sample_weight=weight)
    notices = [str(each.message).partition(": ")[2] for each in caught if issubclass(each.category, FitWarning)]
    if how.method != "auto" and logits.size <= CROSS_CHECKED:
        worse = calibrator.worse_than_nothing(logits, target)
        notices += [worse] if worse and worse not in notices else []
    return calibrator, notices


def _recalibrate(
    fit: Path, apply: Path | None, how: Fit, names: Columns, begin: Callable[[str], Advance]
) -> tuple[Calibrator, list[str], Calibrated | None]:
    begin("reading")
    training = read_source(fit, names)
    new = None if apply is None else read_source(apply, names)
    if training.labels is None:
        called = names.of(training.kind)[1]
        raise FileError(fit, f"has no {called!r}: a method needs labels to be fitted")
    notices = [f"{fit.name}: {notice}" for notice in training.notices]
    # Checked first, so that errors of a file come before errors of a fit.
    with naming(fit):
        logits, target = logits_of(training, FEWEST), training.labels.astype(np.int64)
    if apply is None or new is None:
        begin(f"fitting {how.method}")
        with naming(fit):
            calibrator, found = _fitted(how, logits, target, training.weight)
        return calibrator, notices + found, None
    if os.path.realpath(fit) == os.path.realpath(apply):
        notices.append(
            "it is fitted on the file that it is applied to, so the scores after are too good: fit on held-out data"
        )
    else:
        notices += [f"{apply.name}: {notice}" for notice in new.notices]
    if training.names is not None and new.names is not None and training.names != new.names:
        raise FileError(apply, f"its classes are {_few(new.names)}, but those of {fit} are {_few(training.names)}")
    with naming(apply):
        new_logits = logits_of(new)
    begin(f"fitting {how.method}")
    with naming(fit):
        calibrator, found = _fitted(how, logits, target, training.weight)
    return calibrator, notices + found, calibrated(calibrator, new, new_logits, begin)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)
