"""`calibrant recalibrate`: fit a post-hoc method on one file of predictions; apply it to another, or save it."""

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from rich.console import Console

from calibrant.commands.apply import FEWEST, Calibrated, calibrated, few, logits_of, order_of, other_inputs, output_of
from calibrant.commands.terminal import Advance, plain, print_json, progress_bar, say, say_path, show_notices
from calibrant.files import Array, FileError, Source, naming, read_source, refuse_overwriting, write_calibrated
from calibrant.files.layout import Columns
from calibrant.posthoc import METHODS, AutoCalibration, Calibrator, FitWarning, PriorShift, TemperatureScaling
from calibrant.posthoc import save as save_calibrator
from calibrant.posthoc.prior import Estimate

# Elements of the logits up to which a fit is compared with doing nothing in cross-validation.
CROSS_CHECKED = 2**18
# Classes whose frequencies are printed; the rest is counted.
MOST_SHOWN = 5
# Methods other than auto that never change a prediction.
KEEPING = ("temperature", "ensemble-temperature")


@dataclass(frozen=True)
class Fit:
    """The method to fit, and what to do with it."""

    method: str
    accuracy: Literal["free", "keep"]
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


def _frequencies(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--prior {text!r}: expected em, confusion, or a frequency for each class such as 0.9,0.1"
        ) from None


def recalibrate_file(fit: Path, apply: Path | None, how: Fit, names: Columns, *, as_json: bool) -> None:
    """Fit, apply, write, and print before and after."""
    written = _check_files(fit, apply, how)
    with progress_bar("reading") as begin:
        calibrator, kind, notices, done = _recalibrate(fit, apply, how, names, begin)
        begin("writing")
        if how.save is not None:
            save_calibrator(calibrator, how.save, inputs=kind)
        if done is not None and written is not None:
            write_calibrated(written, done.source, done.probabilities)
    if as_json:
        kept = {} if how.save is None else {"calibrator": str(how.save)}
        scores = {"before": None, "after": None} if done is None else done.to_dict()
        fitted = {"method": how.method, **_fitted_numbers(calibrator), "notices": notices, **kept}
        print_json({**fitted, "out": None if written is None else str(written), **scores})
        return
    console = Console()
    found = f" {calibrator.temperature_:.4g}" if isinstance(calibrator, TemperatureScaling) else ""
    say(console, f"[bold]{how.method}{found}[/], fitted on {plain(str(fit))}.", markup=True)
    inner = calibrator.calibrator if isinstance(calibrator, PriorShift) else calibrator
    if isinstance(inner, AutoCalibration):
        say(console, _mixture(inner))
    if isinstance(calibrator, PriorShift):
        say(console, _moved(calibrator, how))
    show_notices(console, notices)
    if done is not None and written is not None:
        done.show(console, written)
    if how.save is not None:
        say_path(console, "Saved", how.save)


def _check_files(fit: Path, apply: Path | None, how: Fit) -> Path | None:
    """The file of calibrated predictions to write; an error about files before the fit takes its time."""
    inputs = [fit] if apply is None else [fit, apply]
    if apply is None and how.save is None:
        raise ValueError("nothing to do with the fitted method: give --apply FILE, --save FILE, or both")
    if apply is None and how.out is not None:
        raise ValueError("--out is for the predictions of --apply: give --apply FILE, or leave --out away")
    if apply is None and how.estimated:
        raise ValueError(
            f"--prior {how.prior} estimates frequencies from the predictions of --apply: give --apply FILE"
        )
    written = None if apply is None else output_of(apply, how.out, inputs)
    if how.save is not None:
        refuse_overwriting(how.save, "--save", inputs)
        if how.save.suffix.lower() != ".safetensors":
            raise FileError(how.save, "expected a name that ends in .safetensors")
    return written


def _recalibrate(
    fit: Path, apply: Path | None, how: Fit, names: Columns, begin: Callable[[str], Advance]
) -> tuple[Calibrator, str, list[str], Calibrated | None]:
    begin("reading")
    training = read_source(fit, names)
    new = None if apply is None else read_source(apply, names)
    if training.labels is None:
        raise FileError(fit, f"has no {names.of(training.kind)[1]!r}: a method needs labels to be fitted")
    notices = [f"{fit.name}: {notice}" for notice in training.notices]
    # Checked first, so that errors of a file come before errors of a fit.
    with naming(fit):
        logits = logits_of(training, FEWEST)
    new_logits = None
    if new is not None:
        if os.path.realpath(fit) == os.path.realpath(new.path):
            notices.append(
                "it is fitted on the file that it is applied to, so the scores after are too good: fit on held-out data"
            )
        else:
            notices += [f"{new.path.name}: {notice}" for notice in new.notices]
        if training.names is not None and new.names is not None and sorted(training.names) != sorted(new.names):
            raise FileError(new.path, f"its classes are {few(new.names)}, but those of {fit} are {few(training.names)}")
        with naming(new.path):
            new_logits = logits_of(new)
    begin(f"fitting {how.method}")
    with naming(fit):
        calibrator, found = _fitted(how, logits, training)
    notices += found
    if new is None or new_logits is None:
        return calibrator, training.kind, notices, None
    notices += other_inputs(training.kind, calibrator, new)
    if isinstance(calibrator, PriorShift) and how.estimated:
        order = order_of(calibrator, new)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            calibrator.adapt(new_logits if order is None else new_logits[:, order], method=how.estimated)
        notices += _notices_of(caught)
    return calibrator, training.kind, notices, calibrated(calibrator, new, new_logits, begin)


def _fitted(how: Fit, logits: Array, source: Source) -> tuple[Calibrator, list[str]]:
    """Fit, and collect the notices; the calibrator has the names of the classes, if the file does."""
    names, target = source.names, np.asarray(source.labels).astype(np.int64)
    if names is not None:
        target = np.array([names[k] if k >= 0 else k for k in target.tolist()], dtype=object)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FitWarning)
        calibrator = how.calibrator().fit(logits, target, sample_weight=source.weight, classes=names)
    notices = _notices_of(caught)
    if how.method != "auto" and how.prior is None and logits.size <= CROSS_CHECKED:
        worse = calibrator.worse_than_nothing(logits, target, sample_weight=source.weight)
        notices += [worse] if worse and worse not in notices else []
    return calibrator, notices


def _notices_of(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Notices about a fit, without the name of the method, which begins them."""
    return [str(each.message).partition(": ")[2] for each in caught if issubclass(each.category, FitWarning)]


def _fitted_numbers(calibrator: Calibrator) -> dict[str, Any]:
    """What was fitted, for JSON."""
    if isinstance(calibrator, TemperatureScaling):
        return {"temperature": calibrator.temperature_}
    if isinstance(calibrator, AutoCalibration):
        return {"weights": calibrator.weights_, "gain": calibrator.gain_, "why": calibrator.why_}
    if isinstance(calibrator, PriorShift):
        old, new = calibrator.source_.tolist(), list(calibrator.prior or ())
        return {**_fitted_numbers(calibrator.calibrator), "prior_of_fit": old, "prior": new}
    return {}


def _moved(shift: PriorShift, how: Fit) -> str:
    """The old and the new frequencies of the classes, in a sentence."""
    pairs = zip(shift.classes_.tolist(), shift.source_.tolist(), shift.prior or (), strict=True)
    shown = [f"class {name} {100 * old:.3g} % to {100 * new:.3g} %" for name, old, new in pairs]
    more = f", and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    origin = f"estimated by {how.estimated} from the predictions of --apply" if how.estimated else "given"
    return f"Frequencies moved: {', '.join(shown[:MOST_SHOWN])}{more} ({origin})."


def _mixture(auto: AutoCalibration) -> str:
    """The mixture and its expected gain, in two sentences."""
    largest_first = sorted(auto.weights_.items(), key=lambda member: -member[1])
    mixture = ", ".join(f"{name} {weight:.0%}" for name, weight in largest_first)
    mean, low, high = auto.gain_
    return (
        f"Mixture: {mixture} ({auto.why_}). Log loss in cross-validation: {-mean:+.4f} against the predictions as they "
        f"are, 95 % interval {-high:+.4f} to {-low:+.4f}."
    )
