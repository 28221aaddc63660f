"""Files of fitted calibrators: safetensors with a header in JSON, and ONNX models."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from calibrant import __version__
from calibrant.atomic import FileError, write_whole
from calibrant.inputs import FitWarning, warn
from calibrant.posthoc.fit import Fitted
from calibrant.posthoc.map import Curves, from_description

FORMAT = "calibrant-calibrator"
VERSION = 2
KEY = "calibrant"  # of the header in the metadata of safetensors


def save(calibrator: Fitted, path: str | os.PathLike[str], *, inputs: str | None = None) -> None:
    """Write a fitted calibrator of this package to a file, whole or not at all: :doc:`/shipping` has the format.

    Args:
        calibrator: Any fitted calibrator, or a ``ConformalClassifier``; options and labels are numbers or text.
        path: File to write; its folder is made if needed.
        inputs: ``"logits"`` or ``"probabilities"``, what it was fitted on; ``calibrant apply`` then has a notice where
            the other would change the result.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from calibrant import posthoc
        >>> logits = np.tile(3 * np.eye(3), (100, 1))
        >>> scaling = posthoc.TemperatureScaling().fit(logits, np.array([0, 1, 2, 0, 1, 1] * 50))
        >>> path = tempfile.mkdtemp() + "/calibrator.safetensors"
        >>> posthoc.save(scaling, path)
        >>> posthoc.load(path).temperature_ == scaling.temperature_
        True
    """
    from safetensors.numpy import save as serialised

    if not isinstance(calibrator, Fitted) or Fitted.kinds.get(type(calibrator).__name__) is not type(calibrator):
        raise TypeError(
            f"save takes a calibrator of calibrant.posthoc, got {type(calibrator).__name__}: "
            "for a class of your own, pickle it"
        )
    calibrator.require_fitted()
    found = {name: getattr(calibrator, name) for name in calibrator.found}
    description, arrays = calibrator.map_.split()
    arrays |= {f"found.{name}": value for name, value in found.items() if isinstance(value, np.ndarray)}
    header = {
        "format": FORMAT,
        "version": VERSION,
        "calibrant": __version__,
        "method": type(calibrator).__name__,
        "options": calibrator.options(),
        "classes": calibrator.class_count_,
        "labels": calibrator.labels_,
        "rows": calibrator.samples_,
        "inputs": inputs,
        "map": description,
        "found": {name: value for name, value in found.items() if f"found.{name}" not in arrays},
    }
    try:
        text = json.dumps(header)
    except TypeError as error:
        raise TypeError(f"a file holds only numbers and text as options and labels: {error}") from None
    contiguous = {name: np.array(value, order="C") for name, value in arrays.items()}
    write_whole(Path(path), serialised(contiguous, {KEY: text}))


def load(path: str | os.PathLike[str], *, kind: type[Any] = Fitted) -> Any:
    """Read a calibrator that :func:`save` wrote; nothing in the file is run. Raises ``ValueError`` for any other file.

    Args:
        path: File to read.
        kind: Class that the calibrator must have, such as :class:`Calibrator` for anything with ``predict_proba`` of
            classes; by default any.
    """
    from safetensors.numpy import load as arrays_in

    header = read_header(path)
    arrays = {name: np.array(value) for name, value in arrays_in(Path(path).read_bytes()).items()}
    method = Fitted.kinds.get(header.get("method", ""))
    if method is None:
        raise FileError(
            path,
            f"holds {header.get('method')!r} of calibrant {header.get('calibrant')}, which this version does not have: "
            "install that calibrant",
        )
    if not issubclass(method, kind):
        raise FileError(path, f"holds a {method.__name__}, expected a {kind.__name__}: pass a file that holds one")
    try:
        calibrator: Any = method(**{name: _tuples(value) for name, value in header["options"].items()})
        calibrator.map_ = from_description(header["map"], arrays)
        for name in method.found:
            array = arrays.get(f"found.{name}")
            setattr(calibrator, name, _tuples(header["found"][name]) if array is None else array)
        calibrator.class_count_, calibrator.labels_ = header["classes"], header["labels"]
        calibrator.samples_ = header["rows"]
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FileError(path, f"holds {method.__name__}, which cannot be restored: {error}") from None
    return calibrator


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the header of a calibrator's file, see :doc:`/shipping`; raises ``ValueError`` for any other file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get(KEY, "null"))
    except (SafetensorError, ValueError) as error:
        raise FileError(path, f"is not a safetensors file, or is damaged ({error})") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileError(
            path, "is a safetensors file, but not of a calibrator: pass one that calibrant.posthoc.save wrote"
        )
    version = header.get("version")
    if version != VERSION:
        remedy = "fit again and save, or use the calibrant that wrote it"
        if isinstance(version, int) and version > VERSION:
            remedy = "install a newer calibrant"
        raise FileError(
            path,
            f"has version {version} of the file format, written by calibrant {header.get('calibrant')}, and this "
            f"calibrant reads version {VERSION}: {remedy}",
        )
    return header


def to_onnx(calibrator: Fitted, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator as an ONNX model: ``logits`` in, ``probabilities`` out, both float32 ``(N, C)``.

    A binary calibrator takes ``(N, 2)`` too: a column of zeros and the logit. Group-conditional sets have a second
    input ``groups``, int64 ``(N,)``: positions in ``groups_``, or -1 for an unknown group. :doc:`/shipping` has more.

    Args:
        calibrator: Any fitted calibrator, or a ``ConformalClassifier`` without randomisation, whose output ``sets`` is
            boolean.
        path: File to write, whole or not at all.
    """
    try:
        from calibrant.posthoc.onnx_graph import model_of
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("ONNX export needs onnx: pip install 'calibrant[onnx]'", name="onnx") from error
    calibrator.require_fitted()
    if any(isinstance(part, Curves) and not part.single for part in calibrator.map_.parts()):
        warn(
            f"this {type(calibrator).__name__} has tables that were fitted in float64, and ONNX computes in float32, "
            "which may not tell their knots apart: fit on float32 logits",
            FitWarning,
        )
    write_whole(Path(path), model_of(calibrator))


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
