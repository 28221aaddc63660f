"""`calibrant apply`: calibrate a file of predictions with a saved calibrator."""

import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from calibrant.layout import Columns
from calibrant.metrics import InputWarning, predictions
from calibrant.metrics.evaluate import Scores
from calibrant.posthoc import Calibrator, ConformalClassifier, FitWarning, load, logits_from_probabilities
from calibrant.posthoc.map import Affine, Logits
from calibrant.posthoc.saved import read_header
from calibrant.report.statistics import scores_of
from calibrant.tables import suffix_of

# Rows that scores need: the number that ``evaluate`` does.
FEWEST = 3


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
            lacks = "has no target" if self.source.labels is None else f"has fewer than {FEWEST} rows"
            say(console, f"{path} {lacks}, so there are no scores to show.")
        say_path(console, "Written", out)


def apply_file(saved: Path, path: Path, out: Path | None, names: Columns, *, as_json: bool) -> None:
    """Load, apply, write, and print before and after."""
    out = output_of(path, out, (saved, path))
    with progress_bar("reading") as begin:
        calibrator = _loaded(saved)
        source = read_source(path, names)
        known, positive = calibrator.labels_, names.positive
        if positive is not None and source.names is None and known is not None and str(known[-1]) != positive:
            raise FileError(
                path, f"--positive is {positive!r}, but the calibrator was fitted on the values of "
                f"{known[-1]!r}: leave it out, or give 1 minus the probabilities"
            )  # fmt: skip
        source = source.noting(*other_inputs(read_header(saved).get("inputs"), calibrator, source))
        with naming(path):
            logits = logits_of(source)
        done = calibrated(calibrator, source, logits, begin)
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


def output_of(path: Path, out: Path | None, inputs: Sequence[Path]) -> Path:
    """File to write for a file of predictions, checked: not one of the inputs, and of a known format."""
    out = out or output_beside(path)
    refuse_overwriting(out, "--out", inputs)
    if suffix_of(out) not in WRITTEN:
        raise FileError(out, f"expected one of {', '.join(WRITTEN)}")
    return out


def calibrated(calibrator: Calibrator, source: Source, logits: Array, begin: Callable[[str], Advance]) -> Calibrated:
    """Apply a calibrator to checked logits of a file, and evaluate the result if the target is known."""
    begin("applying")
    order = order_of(calibrator, source)
    with naming(source.path), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the notices of the source say it
        probabilities = np.asarray(calibrator.predict_proba(logits if order is None else logits[:, order]))
        if order is not None:
            probabilities = probabilities[:, np.argsort(order)]
        if source.names is None and calibrator.labels_ is not None:  # columns without names are in the same order
            source = replace(source, names=tuple(map(str, calibrator.labels_)))
        if source.labels is None or len(source.labels) < FEWEST:
            return Calibrated(source, probabilities)
        after = replace(source, kind="probabilities", values=probabilities)
        return Calibrated(source, probabilities, scores_of(source.predictions()), scores_of(after.predictions()))


def order_of(calibrator: Calibrator, source: Source) -> list[int] | None:
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


def few(names: tuple[str, ...]) -> str:
    """The first names."""
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


def other_inputs(inputs: str | None, calibrator: Calibrator, source: Source) -> list[str]:
    """A notice if a method that sees more than the softmax gets logits of another kind than in the fit."""
    affine = [part for _, part in calibrator.map_.parts() if isinstance(part, Affine) and isinstance(part.of, Logits)]
    # One scale for all classes, and log-probabilities, have no such constant.
    seen = any(part.matrix.ndim > 0 and not part.of_log_probabilities for part in affine)
    if inputs in (None, source.kind) or not seen:
        return []
    return [
        f"{type(calibrator).__name__} was fitted on {inputs} and is applied to {source.kind}: logits and logarithms of "
        "probabilities differ by a constant of each row, which changes its result; use the same kind"
    ]


def logits_of(source: Source, fewest: int = 1) -> Array:
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
