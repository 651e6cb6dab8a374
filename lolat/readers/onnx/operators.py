"""ONNX operators as calls (see `lolat.readers.ops`).

The ONNX operator documentation describes the operands. An operator that has the name of its operation in
`lolat.readers.ops` is not in the tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from lolat.errors import NetworkError, arg
from lolat.graph import Graph, GraphBuilder
from lolat.graph.dtypes import FLOAT_BYTES
from lolat.graph.kinds import FLOAT32, by_name
from lolat.graph.quantized import INT8
from lolat.graph.weights import completed
from lolat.readers.onnx.patterns import Patterns, clip_limits, node_name, number
from lolat.readers.onnx.quantized import IN_FILE
from lolat.readers.ops import Call, Writer, keeps_channels, kernel_sizes, sizes_of
from lolat.readers.remarks import ALWAYS_DROPS

Rule = Callable[["OnnxReader", Any], list[int]]


class OnnxReader:
    """Writes an onnx_ir network into a Graph, operator by operator.

    `inputs`: name -> True if the input has a batch axis; `parameters`: names of inputs that are parameters;
    `grown`: names of constants that the network repeats for each sample of the batch.
    """

    def __init__(
        self, name: str, network: Any, inputs: dict[str, bool], parameters: set[str], grown: set[str]
    ) -> None:  # fmt: skip
        self.builder = GraphBuilder(name, "onnx")
        self.writer = Writer(self.builder)
        self.graph, self.parameters, self.grown = network.graph, parameters, grown
        self.index: dict[Any, int] = {}  # onnx_ir's value -> tensor of the graph
        for value in self.graph.inputs:
            if value.name in inputs:
                shape, batched = value.shape.numpy(), inputs[value.name]
                self.index[value] = self.builder.input(shape, _dtype(value), batched)
        live = set(self.index)
        for node in self.graph:
            if any(value in live for value in node.inputs):
                live.update(out for out in node.outputs if out.name)
        self.live, self.patterns = live, Patterns(self.graph, live)
        self.places = {
            node: _place(node) for node in self.patterns.nodes if node not in self.patterns.parts
        }
        self.named = Counter(self.places.values())

    def read(self, number: int) -> Graph:
        """Read the whole network, which has `number` parameters."""
        for node in self.places:
            start = len(self.builder.operations)
            self.index |= zip(self.outputs(node), self._write(node), strict=False)
            self.writer.tie(start, self.weights(node), self.bits(node, start))
            if scheme := node.metadata_props.get(INT8):
                self.writer.mark(start, INT8, scheme)
        outputs = [self.tensor(value) for value in self.graph.outputs]
        made = {t: self.writer.elements(t) for t in self.writer.constants}
        return completed(self.builder, outputs, number, made)

    def bits(self, node: Any, start: int) -> float:
        """Bits per parameter of a node, whose operations begin at `start`; 0 if the node is not quantized.

        A bias that the file adds by a separate operator counts as float32.
        """
        if not (stored := node.metadata_props.get(IN_FILE)):
            return 0.0
        elements, size = map(float, stored.split())
        number = self.writer.parameters(start) or elements
        share = min(elements / number, 1.0)
        return share * 8 * size / elements + (1.0 - share) * 8 * FLOAT_BYTES

    def _write(self, node: Any) -> list[int]:
        patterns = self.patterns
        if node in patterns.fused:
            kind, source = patterns.fused[node]
            return self.call(node, [source], kind)
        known = not node.domain
        op = node.op_type if known else f"{node.domain}.{node.op_type}"
        if _hides_products(node) or not (known or self.weights(node) is None):
            raise self.unknown(node)
        if known and node.op_type in UNCHANGED and len(patterns.operands(node)) == 1:
            (source,) = patterns.operands(node)
            out = node.outputs[0]
            if (source.shape, source.dtype) == (out.shape, out.dtype):
                return [self.tensor(source)]
        if op in RULES:
            return RULES[op](self, node)
        return self.call(node, op=OPERATORS.get(op, op))

    def unknown(self, node: Any) -> NetworkError:
        """The error for an operation whose multiply-accumulates cannot be counted."""
        return NetworkError(
            f"operation {node_name(node)!r} ({node.op_type}) has weights or products inside that LoLat "
            "does not know, and cannot count; export the network without it, as before a runtime optimizes "
            "it, quantized in the QDQ format"
        )

    def call(
        self, node: Any, inputs: Sequence[Any] | None = None, op: str = "", **parameters: Any
    ) -> list[int]:
        """Write a node as one call; `inputs`: None for all operands except constant scalars."""
        if inputs is None:
            inputs = [v for v in node.inputs if v is not None and not self.is_number(v)]
        shapes = [self.shape(out) for out in self.outputs(node)]
        return self.write(node, op or node.op_type, map(self.tensor, inputs), shapes, **parameters)

    def write(
        self, node: Any, op: str, inputs: Iterable[int], shapes: Sequence[tuple[int, ...]],
        suffix: str = "", **parameters: Any,
    ) -> list[int]:  # fmt: skip
        """Write a node, or the part of it that `suffix` names, as a call."""
        path, name = self.name(node)
        name = f"{name or op}_{suffix}" if suffix else name
        dtype = _dtype(self.outputs(node)[0])
        return self.writer.write(Call(op, list(inputs), shapes, name, path, parameters, dtype))

    def weights(self, node: Any) -> Any:
        """The largest constant matrix or kernel of a node, before any transpose or cast; None without one.

        Vectors are ignored, because exporters store equal vectors of several layers only once.
        """
        found = [v for v in node.inputs if v and v not in self.live and len(v.shape or ()) > 1]
        if not found:
            return None
        value = max(found, key=lambda v: prod(self.shape(v)))
        while (producer := value.producer()) and producer.op_type in ("Transpose", "Cast"):
            value = producer.inputs[0]
        return value

    def outputs(self, node: Any) -> list[Any]:
        """The outputs of a node that another node reads; the first output if none is read."""
        node = self.patterns.biases.get(node, node)
        read = [out for out in node.outputs if out.uses() or out.is_graph_output()]
        return read or list(node.outputs[:1])

    def tensor(self, value: Any) -> int:
        """The graph's tensor of a value; a value that no operation writes is a constant."""
        if value not in self.index:
            shape, dtype = self.shape(value), _dtype(value)
            tensor = self.writer.constant(shape, dtype)
            if value.producer() is None:  # it is in the file
                self.builder.storages.append(((tensor,), -1))
            if value.name in self.grown and len(shape) > 1 and shape[0] == 1:
                tensor = self.writer.repeated(tensor)
            self.index[value] = tensor
        return self.index[value]

    def shape(self, value: Any) -> tuple[int, ...]:
        """The shape of a value at batch size 1."""
        return tuple(value.shape.numpy())

    def is_number(self, value: Any) -> bool:
        """True for a constant of one element."""
        return value not in self.live and prod(self.shape(value)) == 1

    def name(self, node: Any) -> tuple[str, str]:
        """(path, name) of an operation; the name is "" if the exporter gave it no name of its own."""
        path, name = self.places[node]
        name = "" if self.named[path, name] > 1 or node in self.patterns.fused else name
        name = name.removeprefix("node_").strip("_")
        return path, name.lower() if name[:1].isupper() else name

    def numbers(self, node: Any, attribute: str, position: int) -> list[int] | None:
        """The numbers of an attribute, or of the input that replaces it in later opsets, or None."""
        if attribute in node.attributes:
            return [int(n) for n in np.ravel(node.attributes[attribute].value)]
        value = _input(node, position)
        if value is None or value.const_value is None:
            return None
        return [int(n) for n in np.ravel(value.const_value.numpy())]


def _attribute(node: Any, name: str, default: Any = None) -> Any:
    return node.attributes[name].value if name in node.attributes else default


def _input(node: Any, position: int) -> Any:
    """The input of a node at a position; None if the node omits this input."""
    return node.inputs[position] if position < len(node.inputs) else None


def _dtype(value: Any) -> str:
    return str(value.dtype.numpy()) if value.dtype else "float32"


_PRODUCTS = re.compile("Conv(?!ert)|MatMul|Gemm|Einsum|LSTM|GRU|RNN|Attention|MoE")
"""Names of operators of ONNX and its runtimes that multiply matrices: float, integer or fused."""


def _hides_products(node: Any) -> bool:
    """True for a matrix product of another domain or in QOperator format, or a loop or branch with one."""
    bodies = [a.value for a in node.attributes.values() if a.type.name == "GRAPH"]
    inside = [n.op_type for body in bodies for n in body.all_nodes()]
    if node.domain or node.op_type.startswith("QLinear"):
        inside.append(node.op_type)
    return any(map(_PRODUCTS.search, inside))


# ---- Names of operators.


def _place(node: Any) -> tuple[str, str]:
    """(path, name) of an operation, from the module name that the exporter stored with the node.

    PyTorch's first exporter names nodes "/layer1/layer1.0/conv1/Conv"; its second exporter writes modules
    into the metadata of nodes; tf2onnx writes "model/block/conv/Conv2D".
    """
    scopes = node.metadata_props.get("pkg.torch.onnx.name_scopes", "")
    modules = [text.strip(" '\"") for text in scopes.strip("[]").split(",") if text.strip(" '\"")]
    if len(modules) > 1:
        return re.sub(r"\.(?!\d)", "/", modules[-2]), modules[-1]
    # onnx_ir calls a node without a name "node_7".
    name = re.sub(r"^node(_\d+)?$", "", node.name or "")
    parts = [part for part in name.split(";")[0].split("/") if part]
    return ("/".join(parts[:-1]), parts[-1]) if parts else ("", "")


# ---- Operators that are more than their name.


def _padding(r: OnnxReader, node: Any) -> Any:
    """ "valid", "same" (only the stride changes the size), or (before, after) of each axis."""
    before, after = r.shape(node.inputs[0])[2:], r.shape(node.outputs[0])[2:]
    auto = _attribute(node, "auto_pad", "NOTSET")
    pads = _attribute(node, "pads") or [0] * (2 * len(after))
    strides = _attribute(node, "strides") or [1] * len(after)
    sizes = list(zip(before, strides, after, strict=True))
    if node.op_type == "ConvTranspose":  # "same" if it enlarges by its stride
        same, valid = all(n * s == m for n, s, m in sizes), not any(pads)
    else:
        valid = auto == "VALID" or (not any(pads) and auto == "NOTSET")
        same = not valid and all(-(-n // s) == m for n, s, m in sizes)
    if auto.startswith("SAME") or same:
        return "same"
    return "valid" if valid else tuple(zip(pads[: len(after)], pads[len(after) :], strict=True))


def _convolution(r: OnnxReader, node: Any) -> list[int]:
    source, weights, vector = node.inputs[0], node.inputs[1], _input(node, 2)
    transposed = node.op_type == "ConvTranspose"
    sizes = kernel_sizes(r.shape(weights), _attribute(node, "group", 1), transposed)
    read, given, window = sizes["in_channels"], r.shape(source)[1], len(sizes["kernel"])
    if read != given:
        raise NetworkError(
            f"operation {node_name(node)!r} reads {given} channels, and "
            f"its kernel has {read}; expected {arg('input_size')} with those of the network, such as "
            f"{read},224,224 of its first convolution",
            code="input-size",
        )
    values = None if vector is None or vector.name in r.parameters else vector.const_value
    # PyTorch's exporter gives zeros to a convolution without biases.
    is_zero = values is not None and not np.any(values.numpy())
    has_bias = vector is not None and not is_zero
    return r.call(
        node, [source, weights] if weights in r.live else [source], "convolution",
        strides=sizes_of(_attribute(node, "strides", 1), window), padding=_padding(r, node),
        dilation=sizes_of(_attribute(node, "dilations", 1), window),
        bias=has_bias or node in r.patterns.biases, transposed=transposed, **sizes,
    )  # fmt: skip


def _pool(r: OnnxReader, node: Any) -> list[int]:
    kernel = tuple(_attribute(node, "kernel_shape"))
    strides = sizes_of(_attribute(node, "strides", 1), len(kernel))
    window = {"kernel": kernel, "strides": strides, "padding": _padding(r, node)}
    return r.call(node, node.inputs[:1], **window)


def _product(r: OnnxReader, node: Any) -> list[int]:
    """A matrix product; a constant third operand of a Gemm is a bias."""
    left, right = node.inputs[:2]
    third = _input(node, 2) if node.op_type == "Gemm" else None
    contracted = (r.shape(left) or (1,))[-2 if _attribute(node, "transA", 0) else -1]
    bias = node in r.patterns.biases or (third is not None and third not in r.live)
    made = r.call(node, [left, right], "matmul", contracted=contracted, bias=bias)
    if third not in r.live:
        return made
    return r.write(node, "add", [*made, r.tensor(third)], [r.shape(node.outputs[0])], "add")


def _einsum(r: OnnxReader, node: Any) -> list[int]:
    bias = node in r.patterns.biases
    return r.call(node, node.inputs, equation=_attribute(node, "equation"), bias=bias)


def _recurrent(r: OnnxReader, node: Any) -> list[int]:
    """One operation per direction; the results of two directions are concatenated."""
    batch_first, outputs = bool(_attribute(node, "layout")), r.outputs(node)
    shape, shapes = r.shape(node.inputs[0]), [r.shape(out) for out in outputs]
    inputs = [r.tensor(v) for v in (node.inputs[0], *node.inputs[4:]) if v in r.live]
    kind = {"LSTM": "lstm", "GRU": "gru", "RNN": "simple_rnn"}[node.op_type]
    parameters: dict[str, Any] = {
        "units": int(_attribute(node, "hidden_size") or r.shape(node.inputs[2])[-1]),
        "in_features": shape[-1], "timesteps": shape[1 if batch_first else 0],
        "bias": _input(node, 3) is not None,
        "bias_vectors": 2,  # for the input and for the state, as in PyTorch; Keras' LSTM has one
    }  # fmt: skip
    if _attribute(node, "direction") != "bidirectional":
        return r.write(node, kind, inputs, shapes, **parameters)
    axes = [1 + batch_first if out is node.outputs[0] else int(batch_first) for out in outputs]
    halves = [(*s[:axis], 1, *s[axis + 1 :]) for s, axis in zip(shapes, axes, strict=True)]
    directions = [
        r.write(node, kind, inputs, halves, w, **parameters) for w in ("forward", "backward")
    ]
    each = zip(shapes, *directions, strict=True)
    return [r.write(node, "concatenate", both, [whole], "merge")[0] for whole, *both in each]


def _attention(r: OnnxReader, node: Any) -> list[int]:
    """Attention of opset 23; NetworkError if it reads or writes the keys of earlier tokens."""
    values, mask = list(node.inputs[:3]), _input(node, 3)
    ranks = {len(r.shape(v)) for v in values}
    if len(ranks) > 1 or _input(node, 4) is not None or r.outputs(node) != [node.outputs[0]]:
        raise r.unknown(node)
    several = _attribute(node, "q_num_heads")
    heads = {"heads": (several, _attribute(node, "kv_num_heads"))} if ranks == {3} else {}
    return r.call(node, values if mask is None else [*values, mask], "attention", **heads)


def _clip(r: OnnxReader, node: Any) -> list[int]:
    kinds: dict[Any, str] = {(0, 6): "relu6", (0, None): "relu", (-1, 1): "hard_tanh"}
    return r.call(node, node.inputs[:1], kinds.get(clip_limits(node), "clip"))


def _pad(r: OnnxReader, node: Any) -> list[int]:
    before, after = (r.shape(v) for v in (node.inputs[0], node.outputs[0]))
    pads, half = r.numbers(node, "pads", 1), len(before)
    pairs = [(0, n - m) for m, n in zip(before, after, strict=True)]  # used if `pads` is unknown
    if pads is not None and len(pads) == 2 * half:
        pairs = list(zip(pads[:half], pads[half:], strict=True))
    spatial = pairs[1:] if len(pairs) > 1 and any(pairs[1]) else pairs[2:]
    return r.call(node, node.inputs[:1], padding=tuple(pairs if any(pairs[0]) else spatial))


def _gather(r: OnnxReader, node: Any) -> list[int]:
    """An embedding if the table is a parameter, a slice if the index is constant, else a gather."""
    data, indices = node.inputs[:2]
    shape, axis = r.shape(data), _attribute(node, "axis", 0)
    if data not in r.live and len(shape) == 2 and "float" in _dtype(data) and axis == 0:
        return r.call(node, [indices], "embedding", rows=shape[0], out_features=shape[1])
    return r.call(node, [data], "slice") if r.is_number(indices) else r.call(node, node.inputs)


def _dropout(r: OnnxReader, node: Any) -> list[int]:
    """A dropout. It is a view unless its third input (training_mode) turns it on."""
    rate = 0.5 if _input(node, 1) is None else number(node, 1)
    if not (rate and number(node, 2)):
        return r.call(node, node.inputs[:1])
    r.builder.warnings.append(ALWAYS_DROPS)
    return r.call(node, node.inputs[:1], rate=rate, always=True)


def _batch_norm(r: OnnxReader, node: Any) -> list[int]:
    """A batch norm; if it uses the statistics of the batch, it counts as an instance norm."""
    of_batch = _attribute(node, "training_mode", 0)
    return r.call(node, op="instance_norm", of_batch=True) if of_batch else r.call(node)


def _reduce(r: OnnxReader, node: Any) -> list[int]:
    """A reduction; the mean or maximum of each channel of an image is a global pooling."""
    source, axes = node.inputs[0], r.numbers(node, "axes", 1)
    kinds = {"ReduceMean": "global_average_pool", "ReduceMax": "global_max_pool"}
    rank = len(r.shape(source))
    whole = keeps_channels(rank, axes or range(rank))
    if node.op_type in ("ReduceMean", "ReduceMax", "ReduceMin"):
        return r.call(node, [source], kinds.get(node.op_type, "reduce") if whole else "reduce")
    return r.call(node, [source], "reduce", autocast=FLOAT32)


def _reshape(r: OnnxReader, node: Any) -> list[int]:
    before, after = (r.shape(v) for v in (node.inputs[0], node.outputs[0]))
    if prod(before) != prod(after):
        raise NetworkError(
            f"operation {node_name(node)!r} makes {after} of {before}: a size is fixed in it, of the batch "
            f"or of its inputs; export it with open sizes, or give the {arg('input_size')} that it was "
            "exported with"
        )
    return r.call(node, node.inputs[:1])


UNCHANGED = frozenset(["Expand", "Identity", "Pad", "Resize", "Tile", "Slice", "Upsample", "Cast"])
"""Operators that cost nothing if output and input have the same shape and type."""
OPERATORS = by_name({
    "add": "Sum", "average": "Mean", "maximum": "Max", "minimum": "Min", "cast": "CastLike",
    "fill": "RandomNormalLike RandomUniformLike Bernoulli EyeLike",
})  # fmt: skip
"""Operator -> its name in `lolat.readers.ops`, if the operator's own name means another operation there."""
_REDUCTIONS = "Mean Max Min Sum Prod L1 L2 LogSum LogSumExp SumSquare"
RULES = by_name({
    _reduce: " ".join(f"Reduce{name}" for name in _REDUCTIONS.split()), _convolution: "Conv ConvTranspose",
    _product: "MatMul Gemm", _pool: "MaxPool AveragePool LpPool", _recurrent: "LSTM GRU RNN",
    _attention: "Attention",
    _batch_norm: "BatchNormalization", _clip: "Clip", _dropout: "Dropout", _einsum: "Einsum",
    _gather: "Gather", _pad: "Pad", _reshape: "Reshape",
})  # fmt: skip
