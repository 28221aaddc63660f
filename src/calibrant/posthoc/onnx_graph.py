"""Maps as ONNX models: their operations add nodes to a graph."""

import json
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from calibrant.posthoc.conformal import Sets
from calibrant.posthoc.fit import Fitted
from calibrant.posthoc.map import NO_BITS, NumpyOps, halving_search

Shape = tuple[int | None, ...]
# Versions of ONNX's operators and of its format: old enough for most runtimes.
OPSET, IR_VERSION = 18, 9


def _operator(name: str, *, swapped: bool = False, dtype: Any = None) -> Any:
    """A binary operator of nodes, numbers and arrays."""

    def method(self: "Node", other: Any) -> "Node":
        pair = self, self.graph.like(other, self)
        return self.graph.made(name, *(pair[::-1] if swapped else pair), dtype=dtype)

    return method


class Node:
    """A value in an ONNX graph, with the operators of an array; ``shape`` has None for the number of samples."""

    __array_ufunc__ = None  # NumPy arrays leave their operators to this class

    def __init__(self, graph: "OnnxOps", name: str, dtype: Any, shape: Shape) -> None:
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
        return self.graph.made("MatMul", self, other, shape=(self.shape[0], other.shape[1]))

    def __neg__(self) -> "Node":
        return self.graph.made("Neg", self)

    @property
    def T(self) -> "Node":
        return self.graph.made("Transpose", self, shape=self.shape[::-1])

    def __getitem__(self, key: Any) -> "Node":
        """Columns ``[:, a:b]``, a new last axis ``[:, None]``, or the entries of a vector at a node of indices."""
        graph = self.graph
        if isinstance(key, Node):
            return graph.made("Gather", self, key, shape=key.shape)
        if key[1] is None:
            return graph.made("Unsqueeze", self, graph.integers(1), shape=(*self.shape, 1))
        start, stop, _ = key[1].indices(int(self.shape[1] or 0))
        ends = (graph.integers(start), graph.integers(stop), graph.integers(1))
        return graph.made("Slice", self, *ends, shape=(self.shape[0], stop - start))


class OnnxOps(NumpyOps):
    """The operations of maps, which add nodes to an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def made(
        self, operator: str, *inputs: Node, dtype: Any = None, shape: Shape | None = None, output: int = 0, **how: Any
    ) -> Node:
        """Add a node; its dtype is by default that of its first input, and its shape that of all inputs broadcast."""
        names = [f"v{len(self.nodes)}_{number}" for number in range(output + 1)]
        self.nodes.append(helper.make_node(operator, [each.name for each in inputs], names, **how))
        shape = _broadcast([each.shape for each in inputs]) if shape is None else shape
        return Node(self, names[-1], inputs[0].dtype if dtype is None else dtype, shape)

    def constant(self, values: Any, dtype: Any) -> Node:
        array = np.asarray(values, dtype)
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return Node(self, name, dtype, array.shape)

    def integers(self, *values: int) -> Node:
        return self.constant(values, np.int64)

    def cast(self, rows: Node, dtype: Any) -> Node:
        if rows.dtype == dtype:
            return rows
        return self.made("Cast", rows, dtype=dtype, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def like(self, values: Any, other: Node) -> Node:
        return self.cast(values, other.dtype) if isinstance(values, Node) else self.constant(values, other.dtype)

    def wide(self, rows: Node) -> Node:
        return self.cast(rows, np.float64)

    def single(self, rows: Node) -> Node:
        return self.cast(rows, np.float32)

    def exp(self, rows: Node) -> Node:
        return self.made("Exp", rows)

    def log(self, rows: Node) -> Node:
        return self.made("Log", rows)

    def log1p(self, rows: Node) -> Node:
        return self.log(1 + rows)

    def clip(self, rows: Node, low: Any, high: Any) -> Node:
        above = rows if low is None else self.made("Max", rows, self.like(low, rows))
        return above if high is None else self.made("Min", above, self.like(high, rows))

    def where(self, condition: Node, one: Any, other: Any) -> Node:
        known = one if isinstance(one, Node) else other
        return self.made("Where", condition, self.like(one, known), self.like(other, known), dtype=known.dtype)

    def concat(self, parts: Any, axis: int) -> Node:
        width = sum(part.shape[1] for part in parts)
        return self.made("Concat", *parts, shape=(parts[0].shape[0], width), axis=axis)

    def reduced(self, operator: str, rows: Node) -> Node:
        return self.made(operator, rows, self.integers(1), shape=(rows.shape[0], 1), keepdims=1)

    def largest(self, rows: Node) -> Node:
        return self.reduced("ReduceMax", rows)

    def total(self, rows: Node) -> Node:
        return self.reduced("ReduceSum", rows)

    def argmax(self, rows: Node) -> Node:
        return self.made("ArgMax", rows, dtype=np.int64, shape=(rows.shape[0], 1), axis=1, keepdims=1)

    def take(self, rows: Node, places: Node) -> Node:
        return self.made("GatherElements", rows, places, shape=places.shape, axis=1)

    def descending(self, rows: Node) -> Node:
        count = self.integers(int(rows.shape[1] or 0))
        return self.made("TopK", rows, count, dtype=np.int64, shape=rows.shape, output=1, axis=1)

    def cumsum(self, rows: Node) -> Node:
        return self.made("CumSum", rows, self.integers(1), shape=rows.shape)

    def bits(self, rows: Node) -> Node:  # noqa: ARG002
        raise ValueError(NO_BITS)

    def search(self, edges: Node, positions: Node, right: bool) -> Node:
        return halving_search(self, edges, positions, right, self.cast(positions * 0, np.int64))  # type: ignore[no-any-return]


def _broadcast(shapes: list[Shape]) -> Shape:
    rank = max(map(len, shapes))
    aligned = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*aligned, strict=True))


def model_of(calibrator: Fitted) -> bytes:
    """The fitted map as a model, with the inputs, outputs and metadata that ``to_onnx`` describes."""
    xp, labels, map_ = OnnxOps(), calibrator.classes_.tolist(), calibrator.map_
    rows = Node(xp, "logits", np.float32, (None, len(labels)))
    inputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", len(labels)])]
    known = {"calibrant.method": type(calibrator).__name__, "calibrant.labels": json.dumps(labels)}
    if isinstance(map_, Sets):
        places = None
        if map_.grouped:
            places = Node(xp, "groups", np.int64, (None,))
            inputs.append(helper.make_tensor_value_info("groups", TensorProto.INT64, ["batch"]))
            known["calibrant.groups"] = json.dumps(getattr(calibrator, "groups_", ()))
        name, kind, found = "sets", TensorProto.BOOL, map_.sets(xp, rows, places)
    else:
        name, kind, found = "probabilities", TensorProto.FLOAT, map_.probabilities(xp, rows)
    xp.nodes.append(helper.make_node("Identity", [found.name], [name]))
    output = helper.make_tensor_value_info(name, kind, ["batch", len(labels)])
    graph = helper.make_graph(xp.nodes, "calibrator", inputs, [output], xp.constants)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, producer_name="calibrant", opset_imports=[opset], ir_version=IR_VERSION)
    helper.set_model_props(model, known)
    return model.SerializeToString()  # type: ignore[no-any-return]
