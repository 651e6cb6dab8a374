"""Operations of a Graph as ONNX nodes: those that PyTorch's exporters write for them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from microbench.backends import shapes
from microbench.backends.shapes import Call, Maker, Shape, transposed_padding, window

# ---- Operations that move, drop or fold elements, as ONNX nodes; what shapes leave open,
# `shapes` decides.


def reshaped(
    c: Call, x: str, target: Shape, left_rank: int | None = None, right: Shape = ()
) -> Any:
    """A reshape, left out where a product of these ranks has the output's already."""
    if left_rank is not None and max(left_rank, len(right)) == len(c.out):
        return x
    return c.tape.add("Reshape", x, c.tape.integers(*target))


def _reshape(c: Call) -> Any:
    order = shapes.channel_order(c.shape, c.out)
    if order is not None:
        return c.tape.permute(c.x, order)
    return reshaped(c, c.x, c.target(c.out))


def _flatten(c: Call) -> Any:
    if len(c.out) == 2 and c.out[0] == c.shape[0]:
        return c.tape.add("Flatten", c.x, axis=1)
    return _reshape(c)


def _transpose(c: Call) -> Any:
    order = shapes.transposition(c.shape, c.out)
    if order is not None:
        return c.tape.permute(c.x, order)
    rows = c.target((1, 0))[0]
    flat = reshaped(c, c.x, (rows, prod(c.shape[1:-1]), c.shape[-1]))
    return reshaped(c, c.tape.permute(flat, (0, 2, 1)), c.target(c.out))


def _concatenate(c: Call) -> Any:
    return c.tape.add("Concat", *c.inputs, axis=shapes.concatenation_axis(c.ins, c.out))


def _stack(c: Call) -> Any:
    axis = shapes.stacking_axis(c.ins, c.out)
    raised = [c.tape.add("Unsqueeze", x, c.tape.integers(axis)) for x in c.inputs]
    return c.tape.add("Concat", *raised, axis=axis)


def _part(c: Call, wanted: Shape, starts: dict[int, int]) -> Any:
    found = shapes.cuts(c.shape, wanted, starts)
    if found is None:
        rows = shapes.flat_rows(c.shape, wanted)
        flat = reshaped(c, c.x, c.target((rows, prod(c.shape) // rows)))
        some = _sliced(c, flat, 1, 0, prod(wanted) // rows)
        return reshaped(c, some, c.target(wanted))
    node = c.x
    for axis, start, size in found[0]:
        node = _sliced(c, node, axis, start, size)
    return node if found[1] is None else c.tape.add("Squeeze", node, c.tape.integers(found[1]))


def _sliced(c: Call, x: str, axis: int, start: int, size: int) -> Any:
    bounds = (start, start + size, axis)
    return c.tape.add("Slice", x, *(c.tape.integers(n) for n in bounds))


def _slices(c: Call) -> list[Any]:
    starts: dict[int, int] = {}
    return [_part(c, shape, starts) for shape in c.outs]


def _pad(c: Call) -> Any:
    pairs = shapes.padding(c.shape, c.out)
    amounts = (*(p[0] for p in pairs), *(p[1] for p in pairs))
    return c.tape.add("Pad", c.x, c.tape.integers(*amounts))


def _resize(c: Call) -> Any:
    """Nearest, as exporters write PyTorch's interpolate."""
    scales = np.array([1, 1, *(n / was for n, was in zip(c.out[2:], c.shape[2:], strict=True))])
    return c.tape.add(
        "Resize", c.x, "", c.tape.array(scales.astype(np.float32)), mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def _reduce(c: Call) -> Any:
    axes, keep = shapes.reduced_axes(c.shape, c.out), len(c.out) == len(c.shape)
    kinds = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
    kind = next((k for n, k in kinds.items() if n in c.operation.name.lower()), "ReduceMean")
    return c.tape.add(kind, c.x, c.tape.integers(*axes), keepdims=int(keep))


def _repeat(c: Call) -> Any:
    return c.tape.add("Tile", c.x, c.tape.integers(*shapes.repetitions(c.shape, c.out)))


_MOVES: dict[str, Maker] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "flatten": _flatten,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    **dict.fromkeys(("slice", "split", "crop"), _slices),
    "pad": _pad,
    "resize": _resize,
    "reduce": _reduce,
    "repeat": _repeat,
}
"""Kind of operation -> how it is built."""

# ---- onnxruntime layers ----------------------------------------


def _node(kind: str, **attributes: Any) -> Maker:
    """A node of the operands."""
    return lambda c: c.tape.add(kind, *c.inputs, **attributes)


# ---- convolutions, pools, normalisations ---------------------------------------------------------


def _convolution(c: Call) -> Any:
    a, w = c.operation.attributes, window(c)
    groups = a.get("groups", 1)
    inputs = [c.x, c.tape.weight(a["out_channels"], a["in_channels"] // groups, *w.kernel)]
    if a["bias"]:
        inputs.append(c.tape.weight(a["out_channels"]))
    return c.tape.add(
        "Conv", *inputs, kernel_shape=w.kernel, strides=w.strides, dilations=w.dilation, group=groups,
        pads=(*w.before, *w.after),
    )  # fmt: skip


def _transposed(c: Call) -> Any:
    a = c.operation.attributes
    strides, padding, extra = transposed_padding(c)
    groups, kernel = a.get("groups", 1), tuple(a["kernel"])
    inputs = [c.x, c.tape.weight(a["in_channels"], a["out_channels"] // groups, *kernel)]
    if a["bias"]:
        inputs.append(c.tape.weight(a["out_channels"]))
    return c.tape.add(
        "ConvTranspose", *inputs, kernel_shape=kernel, strides=strides, group=groups,
        dilations=a.get("dilation") or (1,) * len(kernel), pads=(*padding, *padding),
        output_padding=extra,
    )  # fmt: skip


def _pool(kind: str) -> Maker:
    def make(c: Call) -> Any:
        w = window(c)
        return c.tape.add(
            kind, c.x, kernel_shape=w.kernel, strides=w.strides, pads=(*w.before, *w.after)
        )

    return make


def _global_pool(kind: str) -> Maker:
    def make(c: Call) -> Any:
        x = c.tape.add(kind, c.x)
        return x if len(c.out) == len(c.shape) else c.tape.add("Flatten", x, axis=1)

    return make


def _batch_norm(c: Call) -> Any:
    return c.tape.add("BatchNormalization", c.x, *(c.tape.weight(c.shape[1]) for _ in range(4)))


def _layer_norm(c: Call) -> Any:
    scale, bias = c.tape.weight(c.shape[-1]), c.tape.weight(c.shape[-1])
    return c.tape.add("LayerNormalization", c.x, scale, bias, axis=-1)


def _instance_norm(c: Call) -> Any:
    scale, bias = c.tape.weight(c.shape[1]), c.tape.weight(c.shape[1])
    return c.tape.add("InstanceNormalization", c.x, scale, bias)


# ---- activations and arithmetic ------------------------------------------------------------------


def _silu(c: Call) -> Any:
    return c.tape.add("Mul", c.x, c.tape.add("Sigmoid", c.x))


def _limited(low: float, high: float) -> Maker:
    return lambda c: c.tape.add("Clip", c.x, c.tape.number(low), c.tape.number(high))


def _rescale(c: Call) -> Any:
    """As Keras' Rescaling: a product and a sum."""
    return c.tape.add("Sub", c.tape.add("Mul", c.x, c.tape.number(1 / 127.5)), c.tape.number(1.0))


def _merge(kind: str, constant: float) -> Maker:
    """A node of two operands over all of them; of one operand and a constant."""

    def make(c: Call) -> Any:
        result = c.x
        for operand in c.inputs[1:] or [c.tape.number(constant)]:
            result = c.tape.add(kind, result, operand)
        return result

    return make


def _with_number(kind: str, value: float) -> Maker:
    return lambda c: c.tape.add(kind, c.x, c.tape.number(value))


# ---- products ------------------------------------------------------------------------------------


def _dense(c: Call) -> Any:
    """Gemm of a matrix, else a product and a sum, as exporters write Linear."""
    a = c.operation.attributes
    inside, made = a["in_features"], a["out_features"]
    if c.shape[-1] == inside and c.out == (*c.shape[:-1], made):
        return _linear(c, c.x, len(c.shape), inside, made)
    rows, rest = divmod(prod(c.shape), inside)
    if rest or rows * made != prod(c.out):
        raise ValueError(f"no product of {inside} features goes from {c.shape} to {c.out}")
    flat = reshaped(c, c.x, (-1, inside))
    return reshaped(c, _linear(c, flat, 2, inside, made), c.target(c.out))


def _linear(c: Call, x: str, rank: int, inside: int, made: int) -> Any:
    bias = c.operation.attributes["bias"]
    if rank == 2:
        operands = [c.tape.weight(made, inside)] + ([c.tape.weight(made)] if bias else [])
        return c.tape.add("Gemm", x, *operands, transB=1)
    x = c.tape.add("MatMul", x, c.tape.weight(inside, made))
    return c.tape.add("Add", c.tape.weight(made), x) if bias else x


def _matmul(c: Call) -> Any:
    summed = c.operation.attributes["contracted"]
    left, right = c.ins[:2]
    a, b = c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == summed:
        if right[-2] == summed and right[-1] == c.out[-1]:
            return reshaped(c, c.tape.add("MatMul", a, b), c.target(c.out), len(left), right)
        if right[-1] == summed and right[-2] == c.out[-1]:
            order = (*range(len(right) - 2), len(right) - 1, len(right) - 2)
            turned = c.tape.permute(b, order)
            return reshaped(c, c.tape.add("MatMul", a, turned), c.target(c.out), len(left), right)
    batch, rows, columns = shapes.product_sizes(left, right, c.out, summed)
    count = -1 if c.batched else batch
    flat = reshaped(c, a, (count, rows, summed))
    other = reshaped(c, b, (count, summed, columns))
    return reshaped(c, c.tape.add("MatMul", flat, other), c.target(c.out))


def _embedding(c: Call) -> Any:
    a = c.operation.attributes
    return c.tape.add("Gather", c.tape.weight(a["rows"], a["out_features"]), c.x, axis=0)


_PLAIN = {
    "relu": "Relu", "leaky_relu": "LeakyRelu", "elu": "Elu", "selu": "Selu", "celu": "Celu",
    "sigmoid": "Sigmoid", "hard_silu": "HardSwish", "gelu": "Gelu", "tanh": "Tanh", "mish": "Mish",
    "softplus": "Softplus", "softsign": "Softsign", "erf": "Erf", "sqrt": "Sqrt", "log": "Log",
    "exp": "Exp", "exponential": "Exp", "reciprocal": "Reciprocal", "round": "Round", "sign": "Sign",
    "absolute": "Abs", "negative": "Neg", "trigonometric": "Sin",
}  # fmt: skip

MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    "max_pool": _pool("MaxPool"),
    "average_pool": _pool("AveragePool"),
    "global_max_pool": _global_pool("GlobalMaxPool"),
    "global_average_pool": _global_pool("GlobalAveragePool"),
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "instance_norm": _instance_norm,
    **{kind: _node(name) for kind, name in _PLAIN.items()},
    "silu": _silu,
    "relu6": _limited(0.0, 6.0),
    "clip": _limited(0.0, 6.0),
    "hard_sigmoid": _node("HardSigmoid", alpha=1 / 6, beta=0.5),
    "softmax": _node("Softmax", axis=-1),
    "log_softmax": _node("LogSoftmax", axis=-1),
    "square": lambda c: c.tape.add("Mul", c.x, c.x),
    "rsqrt": lambda c: c.tape.add("Reciprocal", c.tape.add("Sqrt", c.x)),
    "scale": _with_number("Mul", 0.125),
    "rescale": _rescale,
    "add": _merge("Add", 1.5),
    "subtract": _merge("Sub", 1.5),
    "multiply": _merge("Mul", 1.5),
    "divide": _merge("Div", 1.5),
    "power": _merge("Pow", 3.0),
    "maximum": _merge("Max", 0.5),
    "minimum": _merge("Min", 0.5),
    "dense": _dense,
    "matmul": _matmul,
    "embedding": _embedding,
    **dict.fromkeys(("identity", "dropout"), lambda c: c.x),
    **_MOVES,
}
"""Kind of operation -> how it is built."""
