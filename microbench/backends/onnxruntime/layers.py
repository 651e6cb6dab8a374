"""Operations of a Graph as ONNX nodes: those that PyTorch's exporters write for them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from lolat.errors import MeasuringError
from lolat.graph import Graph, Tensor
from microbench.backends import tape as shared
from microbench.backends.shapes import Index, Shape, transposed_padding, window
from microbench.backends.tape import Call, Maker, Tape, at_batch, build

OPSET = 20
IR_VERSION = 9
"""The oldest with that operator set, so that older releases of ONNX Runtime read it too."""

_BINARY = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow",
    "maximum": "Max", "minimum": "Min",
}  # fmt: skip


class OnnxTape(Tape):
    """Collects nodes and initializers; a node is the name of the tensor that it makes."""

    def __init__(self, onnx: Any, batch_size: int) -> None:
        self.onnx, self.batch_size = onnx, batch_size
        self.nodes: list[Any] = []
        self.inputs: list[tuple[str, Tensor, Shape]] = []
        self.small: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.known: dict[Any, str] = {}
        self.random = np.random.default_rng(1)
        self._count = 0
        self.input, self.index, self.dense = self._input, self._index, self._dense
        self.constant = lambda tensor: self.array(np.ones(tensor.shape, np.dtype(tensor.dtype)))
        self.shape = lambda node: None  # before the model is whole
        self.grown = lambda node, shape: self.tile(node, (batch_size, *[1] * (len(shape) - 1)))
        self.permute = lambda node, order: self.add("Transpose", node, perm=list(order))
        self.copied = lambda node: node
        self.reshape = lambda node, target: self.add("Reshape", node, self.integers(*target))
        self.tile = lambda node, times: self.add("Tile", node, self.integers(*times))
        self.concatenate = lambda nodes, axis: self.add("Concat", *nodes, axis=axis)
        self.pad = lambda node, pairs: self.add(  # ONNX has what is in front of all axes first
            "Pad", node, self.integers(*(p[0] for p in pairs), *(p[1] for p in pairs))
        )
        self.matmul = lambda left, right: self.add("MatMul", left, right)
        self.binary = lambda kind, left, right: self.add(
            _BINARY[kind], left, right if isinstance(right, str) else self.number(right)
        )

    def _input(self, tensor: Tensor, shape: Shape) -> str:
        self.inputs.append((f"x{len(self.inputs)}", tensor, shape))
        return self.inputs[-1][0]

    def _index(self, node: str, index: Index) -> str:
        """Slices; the axes of single elements go."""
        gone = [axis for axis, at in enumerate(index) if isinstance(at, int)]
        for axis, at in enumerate(index):
            if at != slice(None):
                part = slice(at, at + 1, 1) if isinstance(at, int) else at
                steps = (part.step,) if part.step != 1 else ()
                bounds = (part.start, part.stop, axis, *steps)
                node = self.add("Slice", node, *(self.integers(n) for n in bounds))
        return self.add("Squeeze", node, self.integers(*gone)) if gone else node

    def _dense(self, node: str, rank: int, inside: int, made: int, bias: bool) -> str:
        """Gemm of a matrix, else a product and a sum, as exporters write Linear."""
        if rank == 2:
            operands = [self.weight(made, inside)] + ([self.weight(made)] if bias else [])
            return self.add("Gemm", node, *operands, transB=1)
        node = self.add("MatMul", node, self.weight(inside, made))
        return self.add("Add", self.weight(made), node) if bias else node

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        name = self._name(kind.lower())
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [name], name, **attributes))
        return name

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
        """An initializer with these values."""
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
        for weight, values in self.weights.items():
            tensor = onnx.TensorProto(
                name=weight, data_type=onnx.TensorProto.FLOAT, dims=values.shape
            )
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="in_memory")
            declared.append(tensor)
        inputs = [
            helper.make_tensor_value_info(
                n,
                helper.np_dtype_to_tensor_dtype(np.dtype(t.dtype)),
                at_batch(t, s, self.batch_size),
            )
            for n, t, s in self.inputs
        ]
        results = [helper.make_empty_tensor_value_info(o) for o in dict.fromkeys(outputs)]
        graph = helper.make_graph(self.nodes, name, inputs, results, [*self.small, *declared])
        opset = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)


def block_model(
    onnx: Any, graph: Graph, batch_size: int
) -> tuple[Any, dict[str, np.ndarray], list[tuple[str, Tensor, Shape]]]:
    """(ModelProto of `graph` at `batch_size`, contents of its large weights, name and shape of its inputs).

    The inputs' shapes are at batch size 1. MeasuringError names an operation that cannot be built.
    """
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


def _node(kind: str, **attributes: Any) -> Maker:
    """A node of the operands."""
    return lambda c: c.tape.add(kind, *c.inputs, **attributes)


# ---- convolutions, pools, normalizations ---------------------------------------------------------


def _kernel(c: Call, *channels: int) -> list[str]:
    """The operands of a convolution whose kernel has these channels: the bias too, where there is one."""
    a, tape = c.attributes, c.tape
    bias = [tape.weight(a["out_channels"])] if a["bias"] else []
    return [c.x, tape.weight(*channels, *map(int, a["kernel"])), *bias]


def _convolution(c: Call) -> Any:
    a, w = c.attributes, window(c.attributes, c.shape[2:], c.out[2:])
    groups = a.get("groups", 1)
    return c.tape.add(
        "Conv", *_kernel(c, a["out_channels"], a["in_channels"] // groups), kernel_shape=w.kernel,
        strides=w.strides, dilations=w.dilation, group=groups, pads=(*w.before, *w.after),
    )  # fmt: skip


def _transposed(c: Call) -> Any:
    a, kernel = c.attributes, tuple(c.attributes["kernel"])
    strides, padding, extra = transposed_padding(a, c.shape[2:], c.out[2:])
    groups = a.get("groups", 1)
    return c.tape.add(
        "ConvTranspose", *_kernel(c, a["in_channels"], a["out_channels"] // groups), strides=strides,
        kernel_shape=kernel, group=groups, dilations=a.get("dilation") or (1,) * len(kernel),
        pads=(*padding, *padding), output_padding=extra,
    )  # fmt: skip


def _pool(c: Call) -> Any:
    w = window(c.attributes, c.shape[2:], c.out[2:])
    kind = "MaxPool" if c.operation.kind == "max_pool" else "AveragePool"
    pads = (*w.before, *w.after)
    return c.tape.add(kind, c.x, kernel_shape=w.kernel, strides=w.strides, pads=pads)


def _global_pool(c: Call) -> Any:
    x = c.tape.add("GlobalAveragePool", c.x)
    return x if len(c.out) == len(c.shape) else c.tape.add("Flatten", x, axis=1)


def _normalization(kind: str, vectors: int, channels: int, **attributes: Any) -> Maker:
    """A node with so many vectors of the length of an axis."""
    return lambda c: c.tape.add(
        kind, c.x, *(c.tape.weight(c.shape[channels]) for _ in range(vectors)), **attributes
    )


def _flatten(c: Call) -> Any:
    if len(c.out) == 2 and c.out[0] == c.shape[0]:
        return c.tape.add("Flatten", c.x, axis=1)
    return shared.reshape(c)


def _embedding(c: Call) -> Any:
    table = c.tape.weight(c.attributes["rows"], c.attributes["out_features"])
    return c.tape.add("Gather", table, c.x, axis=0)


_PLAIN = {"relu": "Relu", "sigmoid": "Sigmoid", "hard_silu": "HardSwish", "gelu": "Gelu"}

MAKERS: dict[str, Maker] = {
    **shared.MAKERS,
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    "global_average_pool": _global_pool,
    "batch_norm": _normalization("BatchNormalization", 4, 1),
    "layer_norm": _normalization("LayerNormalization", 2, -1, axis=-1),
    **{kind: _node(name) for kind, name in _PLAIN.items()},
    "silu": lambda c: c.tape.add("Mul", c.x, c.tape.add("Sigmoid", c.x)),
    "relu6": lambda c: c.tape.add("Clip", c.x, c.tape.number(0.0), c.tape.number(6.0)),
    "hard_sigmoid": _node("HardSigmoid", alpha=1 / 6, beta=0.5),
    "softmax": lambda c: c.tape.add("Softmax", c.x, axis=c.axis_or_last),
    "embedding": _embedding,
    "dropout": lambda c: c.x,
    "flatten": _flatten,
}
"""Kind of operation -> how it is built."""
