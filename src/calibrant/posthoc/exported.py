"""ONNX: fitted calibrators as graphs that run without Python."""

import json
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor, nn

from calibrant.posthoc.fitted import Fitted
from calibrant.posthoc.notices import FitWarning
from calibrant.posthoc.saved import replace_whole
from calibrant.posthoc.scores import ScoreCalibrator
from calibrant.torch_private import exporting_to_onnx


class _Predictions(nn.Module):
    """Probabilities, or sets, as the output of a module."""

    def __init__(self, calibrator: Fitted) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.predict = "predict_set" if hasattr(calibrator, "predict_set") else "predict_proba"

    def forward(self, logits: Tensor, places: Tensor | None = None) -> Tensor:
        if places is not None:
            of_groups: Tensor = self.calibrator(logits, places)
            return of_groups
        found: Tensor = getattr(self.calibrator, self.predict)(logits)
        return found


def to_onnx(
    calibrator: Fitted,
    path: str | os.PathLike[str],
    *,
    logits_name: str = "logits",
    output_name: str | None = None,
    opset: int | None = None,
) -> None:
    """Write a fitted calibrator as an ONNX model: float32 logits ``(N, C)`` in, probabilities ``(N, C)`` out.

    The batch has any size N. A binary calibrator takes ``(N, 2)`` too: a column of zeros and the logit. Dense logits
    have to be flattened to ``(N, C)`` first. Scores of sets are computed in float32. Probabilities equal those that
    ``predict_proba`` gives for the same float32 logits to 1e-6, or a few 1e-6 for logits of 100 and more. The metadata
    of the model has ``calibrant.method`` and ``calibrant.labels``, a JSON list with the label of each column.

    Group-conditional sets have a second input ``groups``, int64 ``(N,)``: the position of each sample's group in
    ``groups_``, which ``calibrant.groups`` of the metadata has as a JSON list. Any other number, such as -1, stands for
    an unknown group, whose sets hold all classes.

    Args:
        calibrator: Any fitted calibrator, or a ``ConformalClassifier`` without randomisation, whose output is boolean.
        path: File to write, whole or not at all.
        logits_name: Name of the input.
        output_name: Name of the output; by default ``"probabilities"``, or ``"sets"`` of a ``ConformalClassifier``.
        opset: Version of ONNX's operators; by default that of the installed torch.

    Raises:
        ModuleNotFoundError: If ``onnx`` or ``onnxscript`` is missing: ``pip install 'calibrant[onnx]'``.
        RuntimeError: If the calibrator is not fitted.
        ValueError: If sets are randomised, or the first input is named ``groups`` too.
    """
    for package in ("onnx", "onnxscript"):
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"ONNX export needs {package}: pip install 'calibrant[onnx]'", name=package
            ) from error
    calibrator.require_fitted()
    if getattr(calibrator, "randomized", False) and getattr(calibrator, "score", None) in ("aps", "raps"):
        raise ValueError("ONNX cannot hash the bits of logits for randomised sets: fit with randomized=False to export")
    groups = getattr(calibrator, "groups_", ())
    if groups and logits_name == "groups":
        raise ValueError("'groups' is the name of the second input: choose another logits_name")
    if any(isinstance(part, ScoreCalibrator) and _is_double(part) for part in calibrator.modules()):
        warnings.warn(
            f"this {type(calibrator).__name__} has tables that were fitted in float64, and ONNX computes in float32, "
            "which may not tell their knots apart: fit on float32 logits",
            FitWarning, stacklevel=2,
        )  # fmt: skip
    model = _Predictions(calibrator).eval()
    device = next((buffer.device for buffer in calibrator.buffers()), None)
    named = output_name or ("sets" if model.predict == "predict_set" else "probabilities")
    example = [torch.zeros(2, calibrator.classes_.size, device=device)]
    if groups:
        example.append(torch.zeros(2, dtype=torch.long, device=device))
    batch = torch.export.Dim("batch")
    with exporting_to_onnx(), _quiet():
        program = torch.onnx.export(
            model,
            tuple(example),
            dynamo=True,
            dynamic_shapes=tuple({0: batch} for _ in example),
            input_names=[logits_name, "groups"][: len(example)],
            output_names=[named],
            opset_version=opset,
            verbose=False,
        )
    assert program is not None  # noqa: S101 (no file was given)
    proto = program.model_proto
    known = {
        "calibrant.method": type(calibrator).__name__,
        "calibrant.labels": json.dumps(calibrator.classes_.tolist()),
    }
    if groups:
        known["calibrant.groups"] = json.dumps(groups)
    for key, value in known.items():
        proto.metadata_props.add(key=key, value=value)
    replace_whole(path, proto.SerializeToString())


def _is_double(module: nn.Module) -> bool:
    return any(buffer.dtype == torch.float64 for buffer in module.buffers(recurse=False))


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the exporter's remarks about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*LeafSpec", FutureWarning)
            warnings.filterwarnings("ignore", r".*The axis name: batch will not be used", UserWarning)
            yield
    finally:
        logger.setLevel(level)
