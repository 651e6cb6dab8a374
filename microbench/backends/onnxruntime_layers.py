"""Operations of a Graph as ONNX nodes: those that PyTorch's exporters write for them."""

from __future__ import annotations

from math import prod
from typing import Any

from microbench.backends import shapes
from microbench.backends.channels_first import Call, Maker
from microbench.backends.onnxruntime_moves import MAKERS as MOVES
from microbench.backends.onnxruntime_moves import reshaped
from microbench.backends.windows import transposed_padding, window


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
    **MOVES,
}
"""Kind of operation -> how it is built."""
