"""Maps elsewhere: as a module of torch, folded into a layer, or as an ONNX graph."""

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.atomic import write_whole
from calibrant.inputs import FitWarning, counted, warn
from calibrant.posthoc.conformal_sets import Sets
from calibrant.posthoc.map import Affine, Curves, Logits, Map, Mixed, NumpyOps, evaluated, halving_search

if TYPE_CHECKING:
    from torch import Tensor, nn

    from calibrant.posthoc.fit import Fitted

# Versions of ONNX's operators and of its format: old enough for most runtimes.
OPSET, IR_VERSION = 18, 9


def as_module(calibrator: "Fitted") -> "nn.Module":
    """The map of a fitted calibrator as a module; see :meth:`Fitted.module`."""
    return module_class()(calibrator)  # type: ignore[no-any-return]


@cache
def module_class() -> Any:
    """The class of the modules, made when torch is there."""
    import torch

    class CalibratorModule(torch.nn.Module):
        """A fitted calibrator whose arrays are buffers, which move with the model it is a part of."""

        def __init__(self, calibrator: "Fitted") -> None:
            super().__init__()
            self.calibrator = calibrator
            self.names: dict[str, str] = {}
            for name, array in calibrator.map_.arrays().items():
                self.names[name] = name.replace(".", "_")
                self.register_buffer(self.names[name], torch.from_numpy(np.array(array)))

        def _bound(self) -> Any:
            """The calibrator with the buffers as the arrays of its map."""
            bound = copy.copy(self.calibrator)
            bound.in_numpy = False
            bound.map_ = bound.map_.rebuilt(lambda name, _: getattr(self, self.names[name]))
            return bound

        def forward(self, logits: "Tensor", places: "Tensor | None" = None) -> "Tensor":
            """What calling the calibrator returns; the sets of groups take their positions in ``groups_``."""
            bound = self._bound()
            if isinstance(bound.map_, Sets):
                if bound.map_.grouped == (places is None):
                    needed = "need" if places is None else "do not use"
                    raise ValueError(f"{bound.coverage} sets {needed} positions in groups_, the second argument")
                return evaluated(bound.map_.sets, bound.rows(logits), *(() if places is None else (places,)))  # type: ignore[no-any-return]
            return bound(logits)  # type: ignore[no-any-return]

        def predict_proba(self, logits: "Tensor") -> "Tensor":
            """Calibrated probabilities."""
            return self._bound().predict_proba(logits)  # type: ignore[no-any-return]

        def _apply(self, fn: Callable[["Tensor"], "Tensor"], recurse: bool = True) -> Any:
            """Move buffers to other devices, but never lose precision."""

            def careful(buffer: "Tensor") -> "Tensor":
                there = fn(buffer.new_empty(0, dtype=torch.float32))
                if there.device.type == "mps" and buffer.dtype == torch.float64:
                    buffer = buffer.float()
                return buffer.to(there.device)

            return super()._apply(careful, recurse)  # type: ignore[no-untyped-call]

        def extra_repr(self) -> str:
            """Show the calibrator."""
            return repr(self.calibrator)

    CalibratorModule.__qualname__ = "CalibratorModule"
    return CalibratorModule


def __getattr__(name: str) -> Any:
    """The class of the modules, by which pickle finds it."""
    if name == "CalibratorModule":
        return module_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def folded(calibrator: "Fitted", linear: "nn.Linear") -> "nn.Module":
    """A new layer with the affine part of the map that comes first, and the rest as a module; see ``fold_into``."""
    import torch

    name, classes = type(calibrator).__name__, calibrator.class_count_
    if not isinstance(linear, torch.nn.Linear):
        raise TypeError(
            f"{name} folds into a torch.nn.Linear, got {type(linear).__name__}: pass the model's last layer"
        )
    outputs = linear.out_features
    if outputs != classes and not (outputs == 1 and classes == 2):
        raise ValueError(
            f"{name} was fitted on {classes} classes, got a layer with {counted(outputs, 'output')}: pass the layer "
            "that makes the logits"
        )
    affine, rest = _split(calibrator.map_)
    if affine is None:
        raise TypeError(
            f"{name} cannot be folded into {type(linear).__name__}: use TemperatureScaling(strict=True), or put "
            "calibrator.module() behind the model"
        )
    matrix, shift = affine.matrix * np.eye(classes) if affine.matrix.ndim < 2 else affine.matrix, affine.shift
    shift = shift + np.zeros(classes)
    if outputs == 1:  # the logit of class 0 is 0 before, and its logit is subtracted after
        matrix, shift = matrix[1:, 1:] - matrix[:1, 1:], shift[1:] - shift[:1]
    old = linear.weight.detach()
    weight = torch.from_numpy(matrix) @ old.double().cpu()
    bias = None if linear.bias is None and not shift.any() else torch.from_numpy(shift)
    if bias is not None and linear.bias is not None:
        bias = bias + torch.from_numpy(matrix) @ linear.bias.detach().double().cpu()
    layer = _layer_like(linear, weight, bias)
    if isinstance(rest, Logits) or (isinstance(rest, Mixed) and isinstance(rest.of, Logits)):
        return layer
    after = copy.copy(calibrator)
    after.map_ = rest
    return torch.nn.Sequential(layer, as_module(after))


def _split(part: Map) -> tuple[Affine | None, Map]:
    """The affine map of the logits that comes first, and the map of its result."""
    if isinstance(part, Affine) and isinstance(part.of, Logits):
        return (None, part) if part.of_log_probabilities else (part, Logits())
    if isinstance(part, Logits):
        return Affine(np.array(1.0), np.array(0.0)), part
    if not hasattr(part, "of") or isinstance(part, Curves):
        return None, part
    affine, inner = _split(part.of)
    return affine, replace(part, of=inner)  # type: ignore[call-arg]


def _layer_like(linear: "nn.Linear", weight: "Tensor", bias: "Tensor | None") -> "nn.Linear":
    """A new layer with these weights, and with the dtype, device and frozen state of the old one."""
    import torch

    old = linear.weight
    # Without the usual initialisation, which would draw from the user's random numbers.
    layer: nn.Linear = torch.nn.utils.skip_init(
        torch.nn.Linear, linear.in_features, linear.out_features, bias is not None, device=old.device, dtype=old.dtype
    )
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
            layer.bias.requires_grad_((old if linear.bias is None else linear.bias).requires_grad)
    layer.weight.requires_grad_(old.requires_grad)
    return layer.train(linear.training)


def _operator(name: str, *, swapped: bool = False, dtype: Any = None) -> Any:
    """A binary operator of nodes, numbers and arrays."""

    def method(self: "Node", other: Any) -> "Node":
        pair = self, other if isinstance(other, Node) else self.graph.const(other, self)
        return self.graph.made(name, pair[::-1] if swapped else pair, dtype=dtype)

    return method


class Node:
    """A value in an ONNX graph, with the operators of an array; ``shape`` has None for the number of samples."""

    __array_ufunc__ = None  # NumPy arrays leave their operators to this class

    def __init__(self, graph: "OnnxOps", name: str, dtype: Any, shape: tuple[int | None, ...]) -> None:
        self.graph, self.name, self.dtype, self.shape = graph, name, np.dtype(dtype), shape

    __add__ = __radd__ = _operator("Add")
    __mul__ = __rmul__ = _operator("Mul")
    __sub__ = _operator("Sub")
    __rsub__ = _operator("Sub", swapped=True)
    __truediv__ = _operator("Div")
    __rtruediv__ = _operator("Div", swapped=True)
    __gt__ = _operator("Greater", dtype=bool)
    __ge__ = _operator("GreaterOrEqual", dtype=bool)
    __lt__ = _operator("Less", dtype=bool)
    __le__ = _operator("LessOrEqual", dtype=bool)
    __eq__ = _operator("Equal", dtype=bool)
    __and__ = _operator("And")
    __or__ = _operator("Or")

    def __matmul__(self, other: "Node") -> "Node":
        return self.graph.made("MatMul", (self, other), shape=(self.shape[0], other.shape[1]))

    def __neg__(self) -> "Node":
        return self.graph.made("Neg", (self,))

    @property
    def T(self) -> "Node":
        """The transpose."""
        return self.graph.made("Transpose", (self,), shape=self.shape[::-1])

    def __getitem__(self, key: Any) -> "Node":
        """Columns ``[:, a:b]``, a new last axis ``[:, None]``, or the entries of a vector at a node of indices."""
        graph = self.graph
        if isinstance(key, Node):
            return graph.made("Gather", (self, key), shape=key.shape)
        if key[1] is None:
            return graph.made("Unsqueeze", (self, graph.integers(1)), shape=(*self.shape, 1))
        start, stop, _ = key[1].indices(int(self.shape[1] or 0))
        ends = (graph.integers(start), graph.integers(stop), graph.integers(1))
        return graph.made("Slice", (self, *ends), shape=(self.shape[0], stop - start))


class OnnxOps(NumpyOps):
    """The operations of maps, which add nodes to an ONNX graph; equal nodes are made once."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._known: dict[Any, Node] = {}

    def made(
        self, operator: str, inputs: tuple[Node, ...], *, dtype: Any = None, shape: Any = None, **how: Any
    ) -> Node:
        """Add a node, whose dtype and shape are by default those of its first input and of all inputs broadcast."""
        from onnx import helper

        key = operator, tuple(each.name for each in inputs), tuple(how.items())
        if key not in self._known:
            shape = _broadcast([each.shape for each in inputs]) if shape is None else shape
            name = f"v{len(self._known)}"
            self._known[key] = Node(self, name, inputs[0].dtype if dtype is None else dtype, shape)
            self.nodes.append(helper.make_node(operator, [each.name for each in inputs], [name], **how))
        return self._known[key]

    def _constant(self, values: Any) -> Node:
        from onnx import numpy_helper

        array = np.ascontiguousarray(values).reshape(np.shape(values))
        key = array.dtype, array.shape, array.tobytes()
        if key not in self._known:
            self._known[key] = Node(self, f"v{len(self._known)}", array.dtype, array.shape)
            self.constants.append(numpy_helper.from_array(array, self._known[key].name))
        return self._known[key]

    def integers(self, *values: int) -> Node:
        return self._constant(np.array(values, np.int64))

    def const(self, values: Any, like: Node) -> Node:
        return self._constant(np.asarray(values, like.dtype))

    def _pair(self, one: Any, other: Any) -> tuple[Node, Node]:
        like = one if isinstance(one, Node) else other
        return tuple(each if isinstance(each, Node) else self.const(each, like) for each in (one, other))  # type: ignore[return-value]

    def _cast(self, rows: Node, dtype: Any) -> Node:
        from onnx import helper

        if rows.dtype == dtype:
            return rows
        return self.made("Cast", (rows,), dtype=dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def wide(self, rows: Node) -> Node:
        return self._cast(rows, np.float64)

    def single(self, rows: Node) -> Node:
        return self._cast(rows, np.float32)

    def like(self, rows: Node, other: Node) -> Node:
        return self._cast(rows, other.dtype)

    def exp(self, rows: Node) -> Node:
        return self.made("Exp", (rows,))

    def log(self, rows: Node) -> Node:
        return self.made("Log", (rows,))

    def log1p(self, rows: Node) -> Node:
        return self.log(1 + rows)

    def minimum(self, one: Any, other: Any) -> Node:
        return self.made("Min", self._pair(one, other))

    def maximum(self, one: Any, other: Any) -> Node:
        return self.made("Max", self._pair(one, other))

    def logaddexp(self, one: Node, other: Node) -> Node:
        most = self.maximum(one, other)
        return most + self.log(self.exp(one - most) + self.exp(other - most))  # type: ignore[no-any-return]

    def where(self, condition: Node, one: Any, other: Any) -> Node:
        pair = self._pair(one, other)
        return self.made("Where", (condition, *pair), dtype=pair[0].dtype)

    def concat(self, parts: Any, axis: int) -> Node:
        width = sum(part.shape[1] for part in parts)
        return self.made("Concat", tuple(parts), shape=(parts[0].shape[0], width), axis=axis)

    def largest(self, rows: Node) -> Node:
        return self.made("ReduceMax", (rows, self.integers(1)), shape=(rows.shape[0], 1), keepdims=1)

    def total(self, rows: Node) -> Node:
        return self.made("ReduceSum", (rows, self.integers(1)), shape=(rows.shape[0], 1), keepdims=1)

    def argmax(self, rows: Node) -> Node:
        return self.made("ArgMax", (rows,), dtype=np.int64, shape=(rows.shape[0], 1), axis=1, keepdims=1)

    def take(self, rows: Node, places: Node) -> Node:
        return self.made("GatherElements", (rows, places), shape=places.shape, axis=1)

    def log_softmax(self, rows: Node) -> Node:
        return self.made("LogSoftmax", (rows,), axis=1)

    def softmax(self, rows: Node) -> Node:
        return self.made("Softmax", (rows,), axis=1)

    def sigmoid(self, odds: Node) -> Node:
        return self.made("Sigmoid", (odds,))

    def descending(self, rows: Node) -> Node:
        return self._sorted(rows, 1)

    def inverse(self, order: Node) -> Node:
        return self._sorted(order, 0)

    def _sorted(self, rows: Node, largest: int) -> Node:
        """Indices of the sorted rows; equal entries stay in order."""
        from onnx import helper

        name = f"v{len(self._known)}"
        self._known["sorted", rows.name, largest] = found = Node(self, name, np.int64, rows.shape)
        count = self.integers(int(rows.shape[1] or 0))
        self.nodes.append(
            helper.make_node("TopK", [rows.name, count.name], [f"{name}_values", name], axis=1, largest=largest)
        )
        return found

    def cumsum(self, rows: Node) -> Node:
        return self.made("CumSum", (rows, self.integers(1)), shape=rows.shape)

    def has_bits(self) -> bool:
        return False

    def search(self, edges: Node, positions: Node, right: bool) -> Node:
        place = self._cast(positions * 0, np.int64)
        return halving_search(self, edges, positions, right, place)  # type: ignore[no-any-return]


def _broadcast(shapes: list[tuple[int | None, ...]]) -> tuple[int | None, ...]:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True))


def to_onnx(
    calibrator: "Fitted",
    path: str | os.PathLike[str],
    *,
    logits_name: str = "logits",
    output_name: str | None = None,
) -> None:
    """Write a fitted calibrator as an ONNX model: float32 logits ``(N, C)`` in, probabilities ``(N, C)`` out.

    The batch has any size N. A binary calibrator takes ``(N, 2)`` too: a column of zeros and the logit. Dense logits
    have to be flattened to ``(N, C)`` first. Probabilities equal those of ``predict_proba`` for the same float32 logits
    to 1e-6, or a few 1e-6 for logits of 100 and more. The metadata of the model has ``calibrant.method`` and
    ``calibrant.labels``, a JSON list with the label of each column.

    Group-conditional sets have a second input ``groups``, int64 ``(N,)``: the position of each sample's group in
    ``groups_``, which ``calibrant.groups`` of the metadata has as a JSON list. Any other number, such as -1, stands for
    an unknown group, whose sets hold all classes.

    Args:
        calibrator: Any fitted calibrator, or a ``ConformalClassifier`` without randomisation, whose output is boolean.
        path: File to write, whole or not at all.
        logits_name: Name of the input.
        output_name: Name of the output; by default ``"probabilities"``, or ``"sets"`` of a ``ConformalClassifier``.

    Raises:
        ModuleNotFoundError: If ``onnx`` is missing: ``pip install 'calibrant[onnx]'``.
        RuntimeError: If the calibrator is not fitted.
        ValueError: If sets are randomised, or the first input is named ``groups`` too.
    """
    try:
        from onnx import TensorProto, helper
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("ONNX export needs onnx: pip install 'calibrant[onnx]'", name="onnx") from error
    calibrator.require_fitted()
    sets = calibrator.map_ if isinstance(calibrator.map_, Sets) else None
    if sets is not None and sets.grouped and logits_name == "groups":
        raise ValueError("'groups' is the name of the second input: choose another logits_name")
    if any(isinstance(part, Curves) and not part.single for _, part in calibrator.map_.parts()):
        warn(
            f"this {type(calibrator).__name__} has tables that were fitted in float64, and ONNX computes in float32, "
            "which may not tell their knots apart: fit on float32 logits",
            FitWarning,
        )
    xp, labels = OnnxOps(), calibrator.classes_.tolist()
    rows = Node(xp, logits_name, np.float32, (None, len(labels)))
    inputs = [helper.make_tensor_value_info(logits_name, TensorProto.FLOAT, ["batch", len(labels)])]
    known = {"calibrant.method": type(calibrator).__name__, "calibrant.labels": json.dumps(labels)}
    if sets is None:
        found, kind = calibrator.map_.probabilities(xp, rows), TensorProto.FLOAT
    else:
        places = Node(xp, "groups", np.int64, (None,)) if sets.grouped else None
        found, kind = sets.sets(xp, rows, places), TensorProto.BOOL
    if sets is not None and sets.grouped:
        inputs.append(helper.make_tensor_value_info("groups", TensorProto.INT64, ["batch"]))
        known["calibrant.groups"] = json.dumps(getattr(calibrator, "groups_", ()))
    named = output_name or ("probabilities" if sets is None else "sets")
    xp.nodes.append(helper.make_node("Identity", [found.name], [named]))
    output = helper.make_tensor_value_info(named, kind, ["batch", len(labels)])
    graph = helper.make_graph(xp.nodes, "calibrator", inputs, [output], xp.constants)
    model = helper.make_model(
        graph, producer_name="calibrant", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    for key, value in known.items():
        model.metadata_props.add(key=key, value=value)
    write_whole(Path(path), model.SerializeToString())
