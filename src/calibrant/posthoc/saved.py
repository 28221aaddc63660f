"""Files of fitted calibrators: safetensors with a header in JSON, read without the code and packages of a fit."""

import inspect
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.posthoc.fitted import Fitted, saved_settings

FORMAT = "calibrant-calibrator"
VERSION = 1
# Key of the header in the metadata of safetensors, whose values are strings.
KEY = "calibrant"
EXTRA = "_extra_state"
# The longest header of a safetensors file that its own library reads.
LONGEST_HEADER = 100_000_000


def save(calibrator: Fitted, path: str | os.PathLike[str], *, inputs: str | None = None) -> None:
    """Write a fitted calibrator to a file, whole or not at all.

    The file is safetensors: the buffers are its tensors, and everything else is in a JSON header, see
    :doc:`/shipping`. It holds no code and no pickle.

    Args:
        calibrator: Any fitted calibrator of ``calibrant.posthoc``, or a ``ConformalClassifier``.
        path: File to write; its folder is made if needed.
        inputs: ``"logits"`` or ``"probabilities"``, what it was fitted on; ``calibrant apply`` then has a notice where
            the other would change the result.

    Raises:
        TypeError: If the calibrator is not one of this package, or an option or label is not a number or text.
        RuntimeError: If it is not fitted.

    Example:
        >>> import tempfile, torch
        >>> from calibrant import posthoc
        >>> logits = 3 * torch.eye(3).repeat(100, 1)
        >>> scaling = posthoc.TemperatureScaling().fit(logits, torch.tensor([0, 1, 2, 0, 1, 1]).repeat(50))
        >>> path = tempfile.mkdtemp() + "/calibrator.safetensors"
        >>> posthoc.save(scaling, path)
        >>> posthoc.load(path).temperature_ == scaling.temperature_
        True
    """
    from safetensors.torch import save as serialised

    if not isinstance(calibrator, Fitted) or type(calibrator) is not kinds().get(type(calibrator).__name__):
        raise TypeError(
            f"save takes a calibrator of calibrant.posthoc, got {type(calibrator).__name__}: "
            "for a class of your own, save its state_dict() with safetensors"
        )
    calibrator.require_fitted()
    try:
        state = calibrator.state_dict()
        extra = {name: value for name, value in state.items() if name.endswith(EXTRA)}
        header = {
            "format": FORMAT,
            "version": VERSION,
            "calibrant": _own_version(),
            "method": type(calibrator).__name__,
            "options": _options(calibrator),
            "classes": calibrator.class_count_,
            "labels": calibrator.labels_,
            "rows": calibrator.samples_,
            "inputs": inputs,
            "settings": {name.removesuffix(EXTRA).removesuffix("."): saved_settings(extra[name]) for name in extra},
        }
        text = json.dumps(header)
    except TypeError as error:
        raise TypeError(f"a file holds only numbers and text as options and labels: {error}") from None
    # Copies, since safetensors refuses tensors that share memory.
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if name not in extra
    }
    replace_whole(path, serialised(tensors, {KEY: text}))


def load(path: str | os.PathLike[str], *, kind: type[Any] = Fitted, device: str | torch.device = "cpu") -> Any:
    """Read a calibrator that :func:`save` wrote.

    Neither scipy nor scikit-learn is needed, and nothing in the file is run.

    Args:
        path: File to read.
        kind: Class that the calibrator must have, such as :class:`Calibrator` for anything with ``predict_proba`` of
            classes; by default any.
        device: Device of its tensors.

    Returns:
        The calibrator: an object of the same class, with the same options and the same results.

    Raises:
        ValueError: If this is not such a file, it is damaged, a newer version of Calibrant wrote it, or it holds
            another kind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as tensors_in

    header = read_header(path)
    try:
        tensors = tensors_in(Path(path).read_bytes())
    except SafetensorError as error:
        raise _error(path, f"is truncated or damaged, copy it again ({error})") from None
    method = kinds().get(header["method"])
    if method is None:
        raise _error(
            path,
            f"holds the method {header['method']!r} of calibrant {header['calibrant']}, which calibrant "
            f"{_own_version()} does not have: install that version",
        )
    if not issubclass(method, kind):
        raise _error(path, f"holds a {method.__name__}, expected a {kind.__name__}: pass a file that holds one")
    try:
        calibrator = method(**{name: _tuples(value) for name, value in header["options"].items()})
        calibrator.load_state_dict(tensors | _extra_states(header["settings"]))
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        said = " ".join(str(error).split())
        raise _error(path, f"holds {header['method']}, which cannot be restored: {said}") from None
    calibrator.samples_ = header.get("rows")
    return calibrator.to(device)


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the header of a calibrator's file, see :doc:`/shipping`; raises ``ValueError`` for any other file."""
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if size > 8 and length < LONGEST_HEADER else b""
    if not text.startswith(b"{"):
        raise _error(path, "is not a safetensors file: pass a file that calibrant.posthoc.save wrote")
    if len(text) < length:
        raise _error(path, "is truncated or damaged, copy it again")
    try:
        known = json.loads(text).get("__metadata__", {}).get(KEY)
        header = None if known is None else json.loads(known)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise _error(path, "is not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _error(
            path, "is a safetensors file, but not of a calibrator: pass a file that calibrant.posthoc.save wrote"
        )
    version = header.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise _error(
            path,
            f"has version {version} of the file format, written by calibrant {header.get('calibrant')}; calibrant "
            f"{_own_version()} reads up to version {VERSION}: install a newer calibrant",
        )
    if missing := {"method", "options", "settings", "calibrant"} - set(header):
        raise _error(path, f"is damaged: its header has no {', '.join(sorted(missing))}")
    return header


def kinds() -> dict[str, type[Fitted]]:
    """Classes of this package that can be saved, by name."""
    found: dict[str, type[Fitted]] = {}
    waiting: list[Any] = [Fitted]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not inspect.isabstract(kind) and kind.__module__.startswith(f"{__package__}."):
            found[kind.__name__] = kind
    return found


def replace_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file beside the path, and rename it to the path when it is complete."""
    real = Path(os.path.realpath(path))
    if real.exists() and not real.is_file():
        raise _error(path, "is a folder" if real.is_dir() else "is not a regular file")
    temporary = real.with_name(f".{real.name[:50]}-{os.getpid()}")
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(real)
    except OSError as error:
        raise _error(path, f"cannot be written: {error.strerror or error}") from error
    finally:
        if real.parent.is_dir():
            temporary.unlink(missing_ok=True)


def _options(calibrator: Fitted) -> dict[str, Any]:
    """Arguments that make the same object, unfitted: each is an attribute of the same name."""
    names = inspect.signature(type(calibrator).__init__).parameters
    return {name: getattr(calibrator, name) for name in names if name != "self"}


def _extra_states(settings: dict[str, Any]) -> dict[str, Tensor]:
    """States that are not buffers, as the bytes that modules keep them in."""
    return {
        f"{name}.{EXTRA}" if name else EXTRA: torch.tensor(list(json.dumps(each).encode()), dtype=torch.uint8)
        for name, each in settings.items()
    }


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def _own_version() -> str:
    try:
        return metadata.version("calibrant")
    except metadata.PackageNotFoundError:
        return "unknown"


def _error(path: str | os.PathLike[str], problem: str) -> ValueError:
    return ValueError(f"{os.fspath(path)}: {problem}")
