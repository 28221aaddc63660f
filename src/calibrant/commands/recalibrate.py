"""`calibrant recalibrate`: fit a post-hoc method on one file of predictions; apply it to another, or save it."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from rich.console import Console

from calibrant.commands.apply import FEWEST, Calibrated, calibrated, few, logits_of, order_of, other_inputs, output_of
from calibrant.commands.terminal import Advance, plain, print_json, progress_bar, show_notices
from calibrant.files import FileError, Source, naming, read_source, refuse_overwriting
from calibrant.metrics.columns import Columns
from calibrant.posthoc import METHODS, AutoCalibration, Calibrator, FitWarning, PriorShift, TemperatureScaling
from calibrant.posthoc import save as save_calibrator
from calibrant.posthoc.prior import Estimate

# Elements of the logits up to which a fit is compared with doing nothing in cross-validation.
CROSS_CHECKED = 2**18
# Classes whose frequencies are printed; the rest is counted.
MOST_SHOWN = 5


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
    prior: str | None = None

    @property
    def estimated(self) -> Estimate | None:
        """How to estimate the frequencies of the classes, if they are not given."""
        return cast(Estimate, self.prior) if self.prior in ("em", "confusion") else None

    def calibrator(self) -> Calibrator:
        """Make the unfitted calibrator."""
        if self.prior is not None:
            if self.accuracy == "keep":
                raise ValueError("--prior may change predictions: leave out --accuracy keep")
            return PriorShift(None if self.estimated else _frequencies(self.prior), self.method)
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
    if apply is None and how.estimated:
        raise ValueError(
            f"--prior {how.prior} estimates frequencies from the predictions of --apply: give --apply FILE"
        )
    inputs = [fit] if apply is None else [fit, apply]
    written = None if apply is None else output_of(apply, out, inputs)
    if save is not None:
        _check_saved(save, inputs)
    with progress_bar("reading") as begin:
        calibrator, kind, notices, done = _recalibrate(fit, apply, how, names, begin)
        begin("writing")
        if save is not None:
            save_calibrator(calibrator, save, inputs=kind)
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
    inner = calibrator.calibrator if isinstance(calibrator, PriorShift) else calibrator
    if isinstance(inner, AutoCalibration):
        console.print(_explained(inner), highlight=False)
    if isinstance(calibrator, PriorShift):
        console.print(_moved(calibrator, how), highlight=False)
    show_notices(console, notices)
    if done is not None and written is not None:
        done.show(console, written)
    if save is not None:
        console.print(f"Saved: {plain(str(save))}", soft_wrap=True, highlight=False)


def _check_saved(save: Path, inputs: list[Path]) -> None:
    refuse_overwriting(save, "--save", inputs)
    if save.suffix.lower() != ".safetensors":
        raise FileError(save, "expected a name that ends in .safetensors")


def _known(calibrator: Calibrator) -> dict[str, Any]:
    """What was fitted, for JSON."""
    if isinstance(calibrator, TemperatureScaling):
        return {"temperature": calibrator.temperature_}
    if isinstance(calibrator, AutoCalibration):
        return {"weights": calibrator.weights_, "gain": calibrator.gain_, "why": calibrator.why_}
    if isinstance(calibrator, PriorShift):
        old, new = calibrator.source_.tolist(), list(calibrator.prior or ())
        return {**_known(calibrator.calibrator), "prior_of_fit": old, "prior": new}
    return {}


def _frequencies(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--prior {text!r}: expected em, confusion, or a frequency for each class such as 0.9,0.1"
        ) from None


def _moved(shift: PriorShift, how: Fit) -> str:
    """The old and the new frequencies of the classes, in a sentence."""
    pairs = zip(shift.classes_.tolist(), shift.source_.tolist(), shift.prior or (), strict=True)
    shown = [f"class {name} {100 * old:.3g} % to {100 * new:.3g} %" for name, old, new in pairs]
    more = f", and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    origin = f"estimated by {how.estimated} from the predictions of --apply" if how.estimated else "given"
    return f"Frequencies moved: {', '.join(shown[:MOST_SHOWN])}{more} ({origin})."


def _explained(auto: AutoCalibration) -> str:
    """The mixture and its expected gain, in two sentences."""
    largest_first = sorted(auto.weights_.items(), key=lambda member: -member[1])
    mixture = ", ".join(f"{name} {weight:.0%}" for name, weight in largest_first)
    mean, low, high = auto.gain_
    return (
        f"Mixture: {mixture} ({auto.why_}). Log loss in cross-validation: {-mean:+.4f} against the predictions as they "
        f"are, 95 % interval {-high:+.4f} to {-low:+.4f}."
    )


def _fitted(how: Fit, logits: Any, source: Source) -> tuple[Calibrator, list[str]]:
    """Fit, and collect the notices; the calibrator has the names of the classes, if the file does."""
    assert source.labels is not None  # noqa: S101 (checked before)
    names, target = source.names, source.labels.astype(np.int64)
    if names is not None:
        target = np.array([names[k] if k >= 0 else k for k in target.tolist()], dtype=object)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        calibrator = how.calibrator().fit(logits, target, sample_weight=source.weight, classes=names)
    notices = [str(each.message).partition(": ")[2] for each in caught if issubclass(each.category, FitWarning)]
    if how.method != "auto" and how.prior is None and logits.size <= CROSS_CHECKED:
        worse = calibrator.worse_than_nothing(logits, target, sample_weight=source.weight)
        notices += [worse] if worse and worse not in notices else []
    return calibrator, notices


def _recalibrate(
    fit: Path, apply: Path | None, how: Fit, names: Columns, begin: Callable[[str], Advance]
) -> tuple[Calibrator, str, list[str], Calibrated | None]:
    begin("reading")
    training = read_source(fit, names)
    new = None if apply is None else read_source(apply, names)
    if training.labels is None:
        called = names.of(training.kind)[1]
        raise FileError(fit, f"has no {called!r}: a method needs labels to be fitted")
    notices = [f"{fit.name}: {notice}" for notice in training.notices]
    # Checked first, so that errors of a file come before errors of a fit.
    with naming(fit):
        logits = logits_of(training, FEWEST)
    if apply is None or new is None:
        begin(f"fitting {how.method}")
        with naming(fit):
            calibrator, found = _fitted(how, logits, training)
        return calibrator, training.kind, notices + found, None
    if os.path.realpath(fit) == os.path.realpath(apply):
        notices.append(
            "it is fitted on the file that it is applied to, so the scores after are too good: fit on held-out data"
        )
    else:
        notices += [f"{apply.name}: {notice}" for notice in new.notices]
    if training.names is not None and new.names is not None and sorted(training.names) != sorted(new.names):
        raise FileError(apply, f"its classes are {few(new.names)}, but those of {fit} are {few(training.names)}")
    with naming(apply):
        new_logits = logits_of(new)
    begin(f"fitting {how.method}")
    with naming(fit):
        calibrator, found = _fitted(how, logits, training)
    found += other_inputs(training.kind, calibrator, new)
    if isinstance(calibrator, PriorShift) and how.estimated:
        order = order_of(calibrator, new)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            calibrator.adapt(new_logits if order is None else new_logits[:, order], method=how.estimated)
        found += [str(each.message).partition(": ")[2] for each in caught if issubclass(each.category, FitWarning)]
    return calibrator, training.kind, notices + found, calibrated(calibrator, new, new_logits, begin)
