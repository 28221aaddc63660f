"""ONNX: fitted calibrators as graphs that run without Python."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor, nn

from calibrant.posthoc.base import Fitted
from calibrant.posthoc.saved import replace_whole


class _Predictions(nn.Module):
    """Probabilities, or sets, as the output of a module."""

    def __init__(self, calibrator: Fitted) -> None:
        super().__init__()
        self.calibrator = calibrator
        self.predict = "predict_set" if hasattr(calibrator, "predict_set") else "predict_proba"

    def forward(self, logits: Tensor) -> Tensor:
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

    The batch has any size N. Probabilities equal those of ``predict_proba`` to 1e-6. The metadata of the model has
    ``calibrant.method`` and ``calibrant.labels``, a JSON list with the label of each column.

    Args:
        calibrator: Any fitted calibrator, or a ``ConformalClassifier`` without randomisation, whose output is boolean.
        path: File to write, whole or not at all.
        logits_name: Name of the input.
        output_name: Name of the output; by default ``"probabilities"``, or ``"sets"`` of a ``ConformalClassifier``.
        opset: Version of ONNX's operators; by default that of the installed torch.

    Raises:
        ModuleNotFoundError: If ``onnx`` or ``onnxscript`` is missing: ``pip install 'calibrant[onnx]'``.
        RuntimeError: If the calibrator is not fitted.
    """
    for package in ("onnx", "onnxscript"):
        try:
            import_module(package)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"ONNX export needs {package}: pip install 'calibrant[onnx]'", name=package
            ) from error
    calibrator.require_fitted()
    model = _Predictions(calibrator).eval()
    device = next((buffer.device for buffer in calibrator.buffers()), None)
    named = output_name or ("sets" if model.predict == "predict_set" else "probabilities")
    with _quiet():
        program = torch.onnx.export(
            model,
            (torch.zeros(2, calibrator.classes_.size, device=device),),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            input_names=[logits_name],
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
    for key, value in known.items():
        proto.metadata_props.add(key=key, value=value)
    replace_whole(path, proto.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out the exporter's remarks about packages that are not needed here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
