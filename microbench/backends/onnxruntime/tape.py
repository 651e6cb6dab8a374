"""Writes down nodes as an ONNX model in memory, as PyTorch's exporters write them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lolat.errors import MeasuringError
from lolat.graph import Graph, Tensor
from microbench.backends.shapes import Shape, build

OPSET = 20
IR_VERSION = 9
"""The oldest with that operator set, so that older releases of ONNX Runtime read it too."""


class OnnxTape:
    """Collects nodes and initialisers; a node is the name of the tensor that it makes."""

    def __init__(self, onnx: Any, batch_size: int) -> None:
        self.onnx, self.batch_size = onnx, batch_size
        self.nodes: list[Any] = []
        self.inputs: list[tuple[str, Tensor, Shape]] = []
        self.small: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.known: dict[Any, str] = {}
        self.random = np.random.default_rng(1)
        self._count = 0

    def input(self, tensor: Tensor, shape: Shape) -> str:
        """An input of the model."""
        self.inputs.append((f"x{len(self.inputs)}", tensor, shape))
        return self.inputs[-1][0]

    def constant(self, tensor: Tensor) -> str:
        """An operand that nothing writes: ones."""
        return self.array(np.ones(tensor.shape, np.dtype(tensor.dtype)))

    def grown(self, node: str, shape: Shape) -> str:
        """A copy for each sample."""
        return self.add("Tile", node, self.integers(self.batch_size, *[1] * (len(shape) - 1)))

    def permute(self, node: str, order: Sequence[int]) -> str:
        """The axes in another order."""
        return self.add("Transpose", node, perm=list(order))

    def shape(self, node: str) -> Shape | None:
        """Not known before the model is whole."""
        return None

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """A node; None among its attributes are left out."""
        names = [self._name(kind.lower()) for _ in range(outputs)]
        given = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, names, names[0], **given))
        return names

    def weight(self, *shape: int) -> str:
        """A kernel with random values; a vector of ones."""
        if len(shape) < 2:
            return self.array(np.ones(shape, np.float32))
        name = self._name("weight")
        values = self.random.random(shape, np.float32)
        values -= np.float32(0.5)
        values *= np.float32(3.5 * prod(shape[1:]) ** -0.5)  # a variance of 1 / what is summed
        self.weights[name] = values
        return name

    def array(self, values: np.ndarray) -> str:
        """An initialiser with these values."""
        name = self._name("constant")
        self.small.append(self.onnx.numpy_helper.from_array(values, name))
        return name

    def number(self, value: float) -> str:
        """A scalar of float32, once for each value."""
        if value not in self.known:
            self.known[value] = self.array(np.array(value, np.float32))
        return self.known[value]

    def integers(self, *values: int) -> str:
        """A vector of int64, once for each."""
        if values not in self.known:
            self.known[values] = self.array(np.array(values, np.int64))
        return self.known[values]

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def finished(self, outputs: Sequence[str], name: str) -> Any:
        """The ModelProto; the contents of large weights are to be given to the session."""
        onnx, helper = self.onnx, self.onnx.helper
        declared = []
        for name_, values in self.weights.items():
            tensor = onnx.TensorProto(
                name=name_, data_type=onnx.TensorProto.FLOAT, dims=values.shape
            )
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="in_memory")
            declared.append(tensor)
        inputs = [
            helper.make_tensor_value_info(n, _type(onnx, t.dtype), at_batch(t, s, self.batch_size))
            for n, t, s in self.inputs
        ]
        results = [helper.make_empty_tensor_value_info(o) for o in dict.fromkeys(outputs)]
        graph = helper.make_graph(self.nodes, name, inputs, results, [*self.small, *declared])
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)


def at_batch(tensor: Tensor, shape: Shape, batch_size: int) -> Shape:
    """`shape` (at batch size 1) at another batch size; some other axis than the first never grows."""
    if not tensor.batched or not shape:
        return shape
    return (shape[0] * batch_size, *shape[1:])


def _type(onnx: Any, dtype: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def block_model(
    onnx: Any, graph: Graph, batch_size: int
) -> tuple[Any, dict[str, np.ndarray], list[tuple[str, Tensor, Shape]]]:
    """(ModelProto of `graph` at `batch_size`, contents of its large weights, name and shape of its inputs).

    The inputs' shapes are at batch size 1. MeasuringError names an operation that cannot be built.
    """
    from microbench.backends.onnxruntime.layers import MAKERS

    tape = OnnxTape(onnx, batch_size)
    outputs, _ = build(graph, tape, MAKERS, "onnxruntime")
    model = tape.finished(outputs, graph.name)
    try:
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except Exception as error:  # the package's own exceptions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1][:400]
        raise MeasuringError(
            f"the onnxruntime backend built {graph.name!r} wrongly: {reason}; report that, please"
        ) from error
    made = {o.name: o for o in inferred.graph.output}
    for index, name in zip(graph.outputs, outputs, strict=True):
        elements = graph.tensors[index].elements(batch_size)
        sizes = [d.dim_value for d in made[name].type.tensor_type.shape.dim]
        if sizes and prod(sizes) not in (0, elements):
            raise MeasuringError(
                f"the onnxruntime backend built {graph.name!r} wrongly: {sizes} where "
                f"{graph.tensors[index].shape} is expected at batch size 1; report that, please"
            )
    return inferred, tape.weights, tape.inputs
