"""`calibrant recalibrate` and `calibrant apply`: fit a post-hoc method on a file of predictions; apply it to others."""

import os
import shlex
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from rich.console import Console

from calibrant import posthoc
from calibrant.commands import Recalibration
from calibrant.commands.terminal import plain, print_json, print_scores, progress_bar, say, say_path, show_notices
from calibrant.files import FileError, Source, naming, read_source
from calibrant.files.formats import Array, suffix_of
from calibrant.files.layout import Columns
from calibrant.files.write import WRITTEN, check_output, output_beside, write_calibrated
from calibrant.inputs import few
from calibrant.metrics import InputWarning, predictions
from calibrant.metrics.evaluate import Scores
from calibrant.posthoc import AutoCalibration, Calibrator, FitWarning, PriorShift, TemperatureScaling
from calibrant.posthoc.map import Affine, Logits
from calibrant.posthoc.prior import Estimate
from calibrant.posthoc.registry import METHODS
from calibrant.posthoc.saved import read_header
from calibrant.report.repair import fitted_numbers
from calibrant.report.statistics import scores_of

# Rows that scores need: the number that ``evaluate`` does.
SCORED_ROWS = 3
# Elements of the logits up to which a fit is compared with doing nothing in cross-validation.
CROSS_CHECKED_LOGITS = 2**18
# Classes that are printed; the rest is counted.
MOST_SHOWN = 5
# Methods other than auto that never change a prediction.
KEEPING = ("temperature", "ensemble-temperature")


def _estimate(how: Recalibration) -> Estimate | None:
    """How to estimate the frequencies of the classes, if they are not given."""
    return cast(Estimate, how.prior) if how.prior in ("em", "confusion") else None


def _unfitted(how: Recalibration) -> Calibrator:
    if how.prior is not None:
        if how.accuracy == "keep":
            raise ValueError("--prior may change predictions: leave out --accuracy keep")
        try:
            prior = None if _estimate(how) else [float(part) for part in how.prior.split(",")]
        except ValueError:
            raise ValueError(
                f"--prior {how.prior!r}: expected em, confusion, or a frequency for each class such as 0.9,0.1"
            ) from None
        return PriorShift(prior, how.method)
    if how.method == "auto":
        return AutoCalibration(accuracy=how.accuracy)
    if how.accuracy == "keep" and how.method not in KEEPING:
        raise ValueError(f"--accuracy keep is for --method {', '.join(('auto', *KEEPING))}, not {how.method}")
    return METHODS[how.method]()


class Calibrated(NamedTuple):
    """Calibrated predictions of a file, and where they go; scores before and after, if there are enough labels."""

    source: Source
    out: Path
    probabilities: Array
    notices: list[str]
    scores: dict[str, Scores]


def recalibrate_file(fit: Path, apply: Path | None, how: Recalibration, names: Columns, *, as_json: bool) -> None:
    """Fit, apply, write, and print before and after."""
    out = _check_files(fit, apply, how)
    with progress_bar() as begin:
        training = read_source(fit, names)
        new = None if apply is None else read_source(apply, names)
        if training.labels is None:
            raise FileError(fit, f"has no {names.of(training.kind)[1]!r}: a method needs labels to be fitted")
        begin(f"fitting {how.method}")
        calibrator, notices = _fitted(how, training)
        done = None
        if new is not None and out is not None:
            begin("applying")
            done = _calibrated(calibrator, new, out, training.kind, _estimate(how))
            notices += done.notices
            if os.path.realpath(fit) == os.path.realpath(new.path):
                notices.append(
                    "it is fitted on the file that it is applied to, so the scores after are too good: fit on held-out "
                    "data"
                )
        begin("writing")
        if how.save is not None:
            posthoc.save(calibrator, how.save, inputs=training.kind)
        if done is not None:
            write_calibrated(done.out, done.source, done.probabilities)
    found = f" {calibrator.temperature_:.4g}" if isinstance(calibrator, TemperatureScaling) else ""
    said = [f"[bold]{how.method}{found}[/], fitted on {plain(str(fit))}."]
    inner = calibrator.calibrator if isinstance(calibrator, PriorShift) else calibrator
    if isinstance(inner, AutoCalibration):
        said.append(_mixture(inner))
    if isinstance(calibrator, PriorShift):
        said.append(plain(_moved(calibrator, how)))
    fitted = {"method": how.method, **fitted_numbers(calibrator)}
    if how.save is not None:
        fitted["calibrator"] = str(how.save)
    _show(said, fitted, list(dict.fromkeys(notices)), done, as_json=as_json)
    if how.save is not None and not as_json:
        say_path(Console(), "Saved", how.save)


def apply_file(saved: Path, path: Path, out: Path | None, names: Columns, *, as_json: bool) -> None:
    """Load, apply, write, and print before and after."""
    out = _output_of(path, out, (saved, path))
    with progress_bar() as begin:
        calibrator = _loaded(saved)
        source = read_source(path, names)
        known, positive = calibrator.labels_, names.positive
        if positive is not None and source.names is None and known is not None and str(known[-1]) != positive:
            raise FileError(
                path, f"--positive is {positive!r}, but the calibrator was fitted on the values of "
                f"{known[-1]!r}: leave it out, or give 1 minus the probabilities"
            )  # fmt: skip
        begin("applying")
        done = _calibrated(calibrator, source, out, read_header(saved).get("inputs"))
        begin("writing")
        write_calibrated(done.out, done.source, done.probabilities)
    method = type(calibrator).__name__
    said = [f"[bold]{method}[/] from {plain(str(saved))}."]
    _show(said, {"method": method, "calibrator": str(saved)}, done.notices, done, as_json=as_json)


def _show(
    said: Sequence[str], fitted: dict[str, Any], notices: Sequence[str], done: Calibrated | None, *, as_json: bool
) -> None:
    """Print what was fitted, the scores before and after, and where the probabilities are."""
    scores = {} if done is None else done.scores
    if as_json:
        plain_scores = {name: scores[name].to_dict() if name in scores else None for name in ("before", "after")}
        print_json({**fitted, "notices": notices, "out": None if done is None else str(done.out), **plain_scores})
        return
    console = Console()
    for sentence in said:
        say(console, sentence, markup=True)
    show_notices(console, notices)
    if done is None:
        return
    path = str(done.source.path)
    if scores:
        print_scores(console, scores, title=f"{plain(path)}: {scores['before'].title}")
    else:
        lacks = "has no target" if done.source.labels is None else f"has fewer than {SCORED_ROWS} rows"
        say(console, f"{path} {lacks}, so there are no scores to show.")
    say_path(console, "Written", done.out)


def _check_files(fit: Path, apply: Path | None, how: Recalibration) -> Path | None:
    """The file of calibrated predictions to write; an error about files before the fit takes its time."""
    inputs = [fit] if apply is None else [fit, apply]
    if apply is None and how.save is None:
        raise ValueError("nothing to do with the fitted method: give --apply FILE, --save FILE, or both")
    if apply is None and how.out is not None:
        raise ValueError("--out is for the predictions of --apply: give --apply FILE, or leave --out away")
    if apply is None and _estimate(how):
        raise ValueError(
            f"--prior {how.prior} estimates frequencies from the predictions of --apply: give --apply FILE"
        )
    written = None if apply is None else _output_of(apply, how.out, inputs)
    if how.save is not None:
        check_output(how.save, "--save", inputs)
        if how.save.suffix.lower() != ".safetensors":
            raise FileError(how.save, "expected a name that ends in .safetensors")
    return written


def _fitted(how: Recalibration, source: Source) -> tuple[Calibrator, list[str]]:
    """Fit, and collect the notices; the calibrator has the names of the classes, if the file does."""
    names, target = source.names, np.asarray(source.labels).astype(np.int64)
    with naming(source.path), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # its notices say it
        logits = _logits_of(source, SCORED_ROWS)
        if names is not None:
            target = np.array([names[k] if k >= 0 else k for k in target.tolist()], dtype=object)
        calibrator = _unfitted(how).fit(logits, target, sample_weight=source.weight, classes=names)
        notices = [*(f"{source.path.name}: {notice}" for notice in source.notices), *calibrator.notices_]
        if how.method != "auto" and how.prior is None and logits.size <= CROSS_CHECKED_LOGITS:
            worse = calibrator.worse_than_nothing(logits, target, sample_weight=source.weight)
            notices += [] if worse is None else [worse]
    return calibrator, notices


def _moved(shift: PriorShift, how: Recalibration) -> str:
    """The old and the new frequencies of the classes, in a sentence."""
    pairs = zip(shift.classes_.tolist(), shift.source_.tolist(), shift.prior or (), strict=True)
    shown = [f"class {name} {100 * old:.3g} % to {100 * new:.3g} %" for name, old, new in pairs]
    more = f", and {len(shown) - MOST_SHOWN} more" if len(shown) > MOST_SHOWN else ""
    origin = f"estimated by {_estimate(how)} from the predictions of --apply" if _estimate(how) else "given"
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


def _loaded(path: Path) -> Calibrator:
    try:
        with naming(path):
            found = posthoc.load(path)
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from error
    if not isinstance(found, Calibrator):
        raise FileError(
            path,
            f"holds a {type(found).__name__}, which does not give probabilities of classes: use "
            "calibrant.posthoc.load in Python",
        )
    return found


def _output_of(path: Path, out: Path | None, inputs: Sequence[Path]) -> Path:
    """File to write for a file of predictions, checked: not one of the inputs, and of a known format."""
    out = out or output_beside(path)
    check_output(out, "--out", inputs)
    if suffix_of(out) not in WRITTEN:
        raise FileError(out, f"expected one of {', '.join(WRITTEN)}")
    return out


def _calibrated(
    calibrator: Calibrator, source: Source, out: Path, fitted_on: str | None, estimate: Estimate | None = None
) -> Calibrated:
    """Apply a calibrator to a file, and evaluate the result if the target is known."""
    notices = [f"{source.path.name}: {notice}" for notice in source.notices]
    notices += _other_inputs(fitted_on, calibrator, source)
    with naming(source.path), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the notices of the source say it
        logits, order = _logits_of(source), _order_of(calibrator, source)
        if order is not None:
            logits = logits[:, order]
        if estimate is not None and isinstance(calibrator, PriorShift):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", FitWarning)
                calibrator.adapt(logits, method=estimate)
            notices += [str(each.message) for each in caught]
        probabilities = np.asarray(calibrator.predict_proba(logits))
        if order is not None:
            probabilities = probabilities[:, np.argsort(order)]
        if source.names is None and calibrator.labels_ is not None:  # columns without names are in the same order
            source = replace(source, names=tuple(map(str, calibrator.labels_)))
        scores = {}
        if source.labels is not None and len(source.labels) >= SCORED_ROWS:
            after = replace(source, kind="probabilities", values=probabilities)
            scores = {"before": scores_of(source.predictions()), "after": scores_of(after.predictions())}
    return Calibrated(source, out, probabilities, notices, scores)


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
            source.path, f"its classes are {few(source.names)}, but those of the calibrator {few(known)}{remedy}"
        )
    return [source.names.index(name) for name in known]


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
    """Checked logits of all classes in float32, as they are served: knots of a fit must differ there."""
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
    logits = np.asarray(posthoc.logits_from_probabilities(checked.of_classes("a calibrator")[0]))
    return logits.astype(np.float32, copy=False)
