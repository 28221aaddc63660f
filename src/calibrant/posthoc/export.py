"""Maps as ONNX models."""

import json
import os
from pathlib import Path

import numpy as np

from calibrant.atomic import write_whole
from calibrant.inputs import FitWarning, warn
from calibrant.posthoc.conformal import Sets
from calibrant.posthoc.fit import Fitted
from calibrant.posthoc.map import Curves

# Versions of ONNX's operators and of its format: old enough for most runtimes.
OPSET, IR_VERSION = 18, 9


def to_onnx(calibrator: Fitted, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator as an ONNX model: ``logits`` in, ``probabilities`` out, both float32 ``(N, C)``.

    The batch has any size N. A binary calibrator takes ``(N, 2)`` too: a column of zeros and the logit. Dense logits
    have to be flattened to ``(N, C)`` first. Probabilities equal those of ``predict_proba`` for the same float32 logits
    to 1e-6, or a few 1e-6 for logits of 100 and more. The metadata of the model has ``calibrant.method`` and
    ``calibrant.labels``, a JSON list with the label of each column.

    Group-conditional sets have a second input ``groups``, int64 ``(N,)``: the position of each sample's group in
    ``groups_``, which ``calibrant.groups`` of the metadata has as a JSON list. Any other number, such as -1, stands for
    an unknown group, whose sets hold all classes.

    Args:
        calibrator: Any fitted calibrator, or a ``ConformalClassifier`` without randomisation, whose output ``sets`` is
            boolean.
        path: File to write, whole or not at all.

    Raises:
        ModuleNotFoundError: If ``onnx`` is missing: ``pip install 'calibrant[onnx]'``.
        RuntimeError: If the calibrator is not fitted.
        ValueError: If sets are randomised.
    """
    try:
        from onnx import TensorProto, helper

        from calibrant.posthoc.onnx_graph import Node, OnnxOps
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("ONNX export needs onnx: pip install 'calibrant[onnx]'", name="onnx") from error
    calibrator.require_fitted()
    sets = calibrator.map_ if isinstance(calibrator.map_, Sets) else None
    if any(isinstance(part, Curves) and not part.single for part in calibrator.map_.parts()):
        warn(
            f"this {type(calibrator).__name__} has tables that were fitted in float64, and ONNX computes in float32, "
            "which may not tell their knots apart: fit on float32 logits",
            FitWarning,
        )
    xp, labels = OnnxOps(), calibrator.classes_.tolist()
    rows = Node(xp, "logits", np.float32, (None, len(labels)))
    inputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(labels)])]
    known = {"calibrant.method": type(calibrator).__name__, "calibrant.labels": json.dumps(labels)}
    if sets is None:
        found, kind = calibrator.map_.probabilities(xp, rows), TensorProto.FLOAT
    else:
        places = Node(xp, "groups", np.int64, (None,)) if sets.grouped else None
        found, kind = sets.sets(xp, rows, places), TensorProto.BOOL
    if sets is not None and sets.grouped:
        inputs.append(helper.make_tensor_value_info("groups", TensorProto.INT64, ["batch"]))
        known["calibrant.groups"] = json.dumps(getattr(calibrator, "groups_", ()))
    named = "probabilities" if sets is None else "sets"
    xp.nodes.append(helper.make_node("Identity", [found.name], [named]))
    output = helper.make_tensor_value_info(named, kind, ["batch", len(labels)])
    graph = helper.make_graph(xp.nodes, "calibrator", inputs, [output], xp.constants)
    model = helper.make_model(
        graph, producer_name="calibrant", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    for key, value in known.items():
        model.metadata_props.add(key=key, value=value)
    write_whole(Path(path), model.SerializeToString())
