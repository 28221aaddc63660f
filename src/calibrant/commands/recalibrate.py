"""`calibrant recalibrate` and `calibrant apply`: fit a post-hoc method on a file of predictions; apply it to others."""

import os
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from rich.console import Console

from calibrant.commands.terminal import (
    Advance,
    plain,
    print_json,
    print_scores,
    progress_bar,
    say,
    say_path,
    show_notices,
)
from calibrant.files import (
    WRITTEN,
    Array,
    FileError,
    Source,
    naming,
    output_beside,
    read_source,
    refuse_overwriting,
    write_calibrated,
)
from calibrant.files.formats import suffix_of
from calibrant.files.layout import Columns
from calibrant.metrics import InputWarning, predictions
from calibrant.metrics.evaluate import Scores
from calibrant.posthoc import (
    AutoCalibration,
    Calibrator,
    ConformalClassifier,
    FitWarning,
    PriorShift,
    TemperatureScaling,
    load,
    logits_from_probabilities,
)
from calibrant.posthoc import save as save_calibrator
from calibrant.posthoc.map import Affine, Logits
from calibrant.posthoc.prior import Estimate
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.saved import read_header
from calibrant.report.statistics import scores_of

# Rows that scores need: the number that ``evaluate`` does.
SCORED_ROWS = 3
# Elements of the logits up to which a fit is compared with doing nothing in cross-validation.
CROSS_CHECKED_LOGITS = 2**18
# Classes that are printed; the rest is counted.
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


@dataclass(frozen=True)
class Calibrated:
    """Calibrated predictions of a file, and the scores before and after if the target is known and not too short."""

    source: Source
    probabilities: Array
    before: Scores | None = None
    after: Scores | None = None

    def to_dict(self) -> dict[str, Any]:
        """Scores as plain values; None if there are none."""
        return {
            "before": None if self.before is None else self.before.to_dict(),
            "after": None if self.after is None else self.after.to_dict(),
        }

    def show(self, console: Console, out: Path) -> None:
        """Print the scores, and where the probabilities are."""
        path = str(self.source.path)
        if self.before is not None and self.after is not None:
            title = f"{plain(path)}: {self.before.title}"
            print_scores(console, {"before": self.before, "after": self.after}, title=title)
        else:
            lacks = "has no target" if self.source.labels is None else f"has fewer than {SCORED_ROWS} rows"
            say(console, f"{path} {lacks}, so there are no scores to show.")
        say_path(console, "Written", out)


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
    written = None if apply is None else _output_of(apply, how.out, inputs)
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
        logits = _logits_of(training, SCORED_ROWS)
    new_logits = None
    if new is not None:
        if os.path.realpath(fit) == os.path.realpath(new.path):
            notices.append(
                "it is fitted on the file that it is applied to, so the scores after are too good: fit on held-out data"
            )
        else:
            notices += [f"{new.path.name}: {notice}" for notice in new.notices]
        if training.names is not None and new.names is not None and sorted(training.names) != sorted(new.names):
            raise FileError(
                new.path, f"its classes are {_few(new.names)}, but those of {fit} are {_few(training.names)}"
            )
        with naming(new.path):
            new_logits = _logits_of(new)
    begin(f"fitting {how.method}")
    with naming(fit):
        calibrator, found = _fitted(how, logits, training)
    notices += found
    if new is None or new_logits is None:
        return calibrator, training.kind, notices, None
    notices += _other_inputs(training.kind, calibrator, new)
    if isinstance(calibrator, PriorShift) and how.estimated:
        order = _order_of(calibrator, new)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FitWarning)
            calibrator.adapt(new_logits if order is None else new_logits[:, order], method=how.estimated)
        notices += [str(each.message) for each in caught if issubclass(each.category, FitWarning)]
    return calibrator, training.kind, notices, _calibrated(calibrator, new, new_logits, begin)


def _fitted(how: Fit, logits: Array, source: Source) -> tuple[Calibrator, list[str]]:
    """Fit, and collect the notices; the calibrator has the names of the classes, if the file does."""
    names, target = source.names, np.asarray(source.labels).astype(np.int64)
    if names is not None:
        target = np.array([names[k] if k >= 0 else k for k in target.tolist()], dtype=object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # its notices say it
        calibrator = how.calibrator().fit(logits, target, sample_weight=source.weight, classes=names)
    notices = list(calibrator.notices_)
    if how.method != "auto" and how.prior is None and logits.size <= CROSS_CHECKED_LOGITS:
        worse = calibrator.worse_than_nothing(logits, target, sample_weight=source.weight)
        notices += [worse] if worse else []
    return calibrator, notices


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


def apply_file(saved: Path, path: Path, out: Path | None, names: Columns, *, as_json: bool) -> None:
    """Load, apply, write, and print before and after."""
    out = _output_of(path, out, (saved, path))
    with progress_bar("reading") as begin:
        calibrator = _loaded(saved)
        source = read_source(path, names)
        known, positive = calibrator.labels_, names.positive
        if positive is not None and source.names is None and known is not None and str(known[-1]) != positive:
            raise FileError(
                path, f"--positive is {positive!r}, but the calibrator was fitted on the values of "
                f"{known[-1]!r}: leave it out, or give 1 minus the probabilities"
            )  # fmt: skip
        source = source.noting(*_other_inputs(read_header(saved).get("inputs"), calibrator, source))
        with naming(path):
            logits = _logits_of(source)
        done = _calibrated(calibrator, source, logits, begin)
        begin("writing")
        write_calibrated(out, done.source, done.probabilities)
    method, notices = type(calibrator).__name__, list(source.notices)
    if as_json:
        print_json({"method": method, "notices": notices, "calibrator": str(saved), "out": str(out), **done.to_dict()})
        return
    console = Console()
    say(console, f"[bold]{method}[/] from {plain(str(saved))}.", markup=True)
    show_notices(console, notices)
    done.show(console, out)


def _loaded(path: Path) -> Calibrator:
    if not path.exists():
        raise FileError(path, "no such file")
    try:
        with naming(path):
            found = load(path)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error
    if not isinstance(found, Calibrator):
        what = "sets of classes" if isinstance(found, ConformalClassifier) else "probabilities of several labels"
        raise FileError(
            path, f"holds a {type(found).__name__}, which gives {what}: use calibrant.posthoc.load in Python"
        )
    return found


def _output_of(path: Path, out: Path | None, inputs: Sequence[Path]) -> Path:
    """File to write for a file of predictions, checked: not one of the inputs, and of a known format."""
    out = out or output_beside(path)
    refuse_overwriting(out, "--out", inputs)
    if suffix_of(out) not in WRITTEN:
        raise FileError(out, f"expected one of {', '.join(WRITTEN)}")
    return out


def _calibrated(calibrator: Calibrator, source: Source, logits: Array, begin: Callable[[str], Advance]) -> Calibrated:
    """Apply a calibrator to checked logits of a file, and evaluate the result if the target is known."""
    begin("applying")
    order = _order_of(calibrator, source)
    with naming(source.path), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the notices of the source say it
        probabilities = np.asarray(calibrator.predict_proba(logits if order is None else logits[:, order]))
        if order is not None:
            probabilities = probabilities[:, np.argsort(order)]
        if source.names is None and calibrator.labels_ is not None:  # columns without names are in the same order
            source = replace(source, names=tuple(map(str, calibrator.labels_)))
        if source.labels is None or len(source.labels) < SCORED_ROWS:
            return Calibrated(source, probabilities)
        after = replace(source, kind="probabilities", values=probabilities)
        return Calibrated(source, probabilities, scores_of(source.predictions()), scores_of(after.predictions()))


def _order_of(calibrator: Calibrator, source: Source) -> list[int] | None:
    """Columns of a file in the order of the calibrator's classes; None if they are in it, or have no names."""
    if source.names is None or calibrator.labels_ is None:
        return None
    known = tuple(map(str, calibrator.labels_))
    if source.names == known:
        return None
    if sorted(source.names) != sorted(known) or source.values.ndim == 1:
        remedy = f": give --positive {shlex.quote(known[1])}" if sorted(source.names) == sorted(known) else ""
        raise FileError(
            source.path, f"its classes are {_few(source.names)}, but those of the calibrator {_few(known)}{remedy}"
        )
    return [source.names.index(name) for name in known]


def _few(names: tuple[str, ...]) -> str:
    """The first names."""
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


def _other_inputs(inputs: str | None, calibrator: Calibrator, source: Source) -> list[str]:
    """A notice if a method that sees more than the softmax gets logits of another kind than in the fit."""
    affine = [part for part in calibrator.map_.parts() if isinstance(part, Affine) and isinstance(part.of, Logits)]
    # One scale for all classes, and log-probabilities, have no such constant.
    seen = any(part.matrix.ndim > 0 and not part.of_log_probabilities for part in affine)
    if inputs in (None, source.kind) or not seen:
        return []
    return [
        f"{type(calibrator).__name__} was fitted on {inputs} and is applied to {source.kind}: logits and logarithms of "
        "probabilities differ by a constant of each row, which changes its result; use the same kind"
    ]


def _logits_of(source: Source, fewest: int = 1) -> Array:
    """Checked logits of all classes, of at least ``fewest`` samples.

    In float32, as they are served: tables that are fitted in float64 have knots that float32 cannot tell apart.
    """
    if source.labels is not None and source.labels.ndim > 1:
        raise ValueError(
            "holds several labels per sample: use calibrant.posthoc.MultiLabelCalibration in Python, or name the "
            "columns of one label with --probabilities and --target"
        )
    if source.kind == "confidence":
        raise ValueError(
            "holds confidences only: recalibration needs the logits or probabilities of all classes, or, for the "
            "probability of being right, --probabilities confidence --target correct"
        )
    # Without labels, any target is good enough to check the values.
    target = np.zeros(len(source.values), dtype=np.int64) if source.labels is None else source.labels
    given: dict[str, Any] = {source.kind: source.values, "target": target}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # the notices of the source say it
        checked = predictions(minimum=fewest, name="a calibrator", **given)
    if source.kind == "logits":
        largest = np.finfo(np.float32).max
        return np.clip(source.values, -largest, largest).astype(np.float32, copy=False)
    return np.asarray(logits_from_probabilities(checked.of_classes("a calibrator")[0])).astype(np.float32, copy=False)
