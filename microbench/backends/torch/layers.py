"""Operations of a Graph as PyTorch layers: those that a PyTorch network with that operation runs.

Layers that torchvision's networks have in place are in place here, where nothing else reads the operand.
`torch_functions` has what is no layer.
"""

from __future__ import annotations

from math import prod
from typing import Any

from microbench.backends import shapes
from microbench.backends.shapes import Call, Maker, Shape, transposed_padding, window

# ---- Operations of a Graph as functions of PyTorch: arithmetic, and what moves, drops or folds
# elements.
#
# What shapes leave open, `microbench.backends.shapes` decides.


def _function(name: str, *constants: Any, **options: Any) -> Maker:
    """torch's function of the operands; `constants` follow them."""
    return lambda c: c.tape.call(getattr(c.tape.torch, name), *c.inputs, *constants, **options)


def _merge(name: str, constant: float) -> Maker:
    """A function of two operands over all of them; of one operand and a constant."""

    def make(c: Call) -> Any:
        function = getattr(c.tape.torch, name)
        if len(c.inputs) == 1:
            scalar = name not in ("maximum", "minimum")
            if not scalar:
                side = {"min": constant} if name == "maximum" else {"max": constant}
                return c.tape.call(c.tape.torch.clamp, c.x, **side)
            return c.tape.call(function, c.x, constant)
        result = c.x
        for operand in c.inputs[1:]:
            result = c.tape.call(function, result, operand)
        return result

    return make


def _average(c: Call) -> Any:
    return c.tape.call(c.tape.torch.mul, _merge("add", 1.5)(c), 1 / max(1, len(c.inputs)))


def _rescale(c: Call) -> Any:
    """As Keras' Rescaling: a product and a sum."""
    return c.tape.call(c.tape.torch.sub, c.tape.call(c.tape.torch.mul, c.x, 1 / 127.5), 1.0)


def _matmul(c: Call) -> Any:
    """A product over the last axis of the left and the last but one of the right operand, or its last."""
    torch, summed = c.tape.torch, c.operation.attributes["contracted"]
    left, right = c.ins[:2]
    a, b = c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == summed:
        if right[-2] == summed and right[-1] == c.out[-1]:
            return _shaped(c, c.tape.call(torch.matmul, a, b))
        if right[-1] == summed and right[-2] == c.out[-1]:
            turned = c.tape.call(torch.transpose, b, -1, -2)
            return _shaped(c, c.tape.call(torch.matmul, a, turned))
    batch, rows, columns = shapes.product_sizes(left, right, c.out, summed)
    count = -1 if c.batched else batch
    flat = c.tape.call(torch.reshape, a, (count, rows, summed))
    other = c.tape.call(torch.reshape, b, (count, summed, columns))
    return _shaped(c, c.tape.call(torch.matmul, flat, other))


def _shaped(c: Call, node: Any) -> Any:
    if c.tape.shape(node) == c.out:
        return node
    return c.tape.call(c.tape.torch.reshape, node, c.target(c.out))


# ---- shapes --------------------------------------------------------------------------------------


def _reshape(c: Call) -> Any:
    """A view; where the channels only change their place, that."""
    order = shapes.channel_order(c.shape, c.out)
    if order is not None:
        return c.tape.permute(c.x, order)
    return c.tape.call(c.tape.torch.reshape, c.x, c.target(c.out))


def _flatten(c: Call) -> Any:
    if len(c.out) == 2 and c.out[0] == c.shape[0]:
        return c.tape.call(c.tape.torch.flatten, c.x, 1)
    return _reshape(c)


def _transpose(c: Call) -> Any:
    """The first order of the axes that gives the shape, and the copy that it costs sooner or later."""
    torch = c.tape.torch
    if c.shape == c.out and "flip" in c.operation.name:
        return c.tape.call(torch.flip, c.x, (len(c.shape) - 1,))
    order = shapes.transposition(c.shape, c.out)
    if order is not None:
        return _copied(c, c.tape.permute(c.x, order))
    flat = c.tape.call(torch.reshape, c.x, (c.target((1, 0))[0], prod(c.shape[1:-1]), c.shape[-1]))
    turned = _copied(c, c.tape.permute(flat, (0, 2, 1)))
    return c.tape.call(torch.reshape, turned, c.target(c.out))


def _copied(c: Call, node: Any) -> Any:
    return c.tape.call(c.tape.torch.clone, node, memory_format=c.tape.torch.contiguous_format)


def _concatenate(c: Call) -> Any:
    return c.tape.call(c.tape.torch.cat, list(c.inputs), shapes.concatenation_axis(c.ins, c.out))


def _stack(c: Call) -> Any:
    return c.tape.call(c.tape.torch.stack, list(c.inputs), shapes.stacking_axis(c.ins, c.out))


def _part(c: Call, wanted: Shape, starts: dict[int, int]) -> Any:
    """A slice of the first operand, further along than the last one of the same axis."""
    torch = c.tape.torch
    found = shapes.cuts(c.shape, wanted, starts)
    if found is None:
        rows = shapes.flat_rows(c.shape, wanted)
        flat = c.tape.call(torch.reshape, c.x, c.target((rows, prod(c.shape) // rows)))
        some = c.tape.call(torch.narrow, flat, 1, 0, prod(wanted) // rows)
        return c.tape.call(torch.reshape, some, c.target(wanted))
    node = c.x
    for axis, start, size in found[0]:
        if found[1] is not None:
            return c.tape.call(torch.select, node, axis, start)
        node = c.tape.call(torch.narrow, node, axis, start, size)
    return node


def _slices(c: Call) -> list[Any]:
    """One part per output: a view, whose copy is left to what reads it."""
    starts: dict[int, int] = {}
    return [_part(c, shape, starts) for shape in c.outs]


def _pad(c: Call) -> Any:
    pairs = shapes.padding(c.shape, c.out)
    amounts = tuple(n for pair in reversed(pairs) for n in pair)
    return c.tape.call(c.tape.torch.nn.functional.pad, c.x, amounts)


def _resize(c: Call) -> Any:
    """Nearest, as Keras' UpSampling and PyTorch's Upsample have it unless told otherwise."""
    return c.tape.call(c.tape.torch.nn.functional.interpolate, c.x, c.out[2:])


def _reduce(c: Call) -> Any:
    """The sum, the maximum or, unless the name says so, the mean."""
    name = next((n for n in ("sum", "amax", "amin") if n.strip("a") in c.operation.name), "mean")
    axes, keep = shapes.reduced_axes(c.shape, c.out), len(c.out) == len(c.shape)
    return c.tape.call(getattr(c.tape.torch, name), c.x, axes, keepdim=keep)


def _repeat(c: Call) -> Any:
    return c.tape.call(c.tape.torch.tile, c.x, shapes.repetitions(c.shape, c.out))


_ALIKE = "erf sqrt rsqrt square log exp reciprocal round sign"

_FUNCTIONS: dict[str, Maker] = {
    **{name: _function(name) for name in _ALIKE.split()},
    "exponential": _function("exp"),
    "absolute": _function("abs"),
    "negative": _function("neg"),
    "trigonometric": _function("sin"),
    "clip": _function("clamp", 0.0, 6.0),
    "scale": _function("mul", 0.125),
    "rescale": _rescale,
    "add": _merge("add", 1.5),
    "subtract": _merge("sub", 1.5),
    "multiply": _merge("mul", 1.5),
    "divide": _merge("div", 1.5),
    "power": _merge("pow", 3.0),
    "maximum": _merge("maximum", 0.5),
    "minimum": _merge("minimum", 0.5),
    "average": _average,
    "matmul": _matmul,
    "flatten": _flatten,
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshape),
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    **dict.fromkeys(("slice", "split", "crop"), _slices),
    "pad": _pad,
    "resize": _resize,
    "reduce": _reduce,
    "repeat": _repeat,
    "roll": _function("roll", 1, -1),
    "cumulative": _function("cumsum", -1),
}
"""Kind of operation -> how it is built."""

# ---- torch layers ----------------------------------------


def _nn(c: Call) -> Any:
    return c.tape.torch.nn


def _layer(c: Call, name: str, *arguments: Any, **options: Any) -> Any:
    """A layer of torch.nn on the first operand; "{}" in its name becomes "2d" of an image."""
    cls = getattr(_nn(c), name.format(f"{max(1, len(c.shape) - 2)}d"))
    return c.tape.module(c.operation.kind, cls(*arguments, **options), c.x)


# ---- convolutions and pools ----------------------------------------------------------------------


def _padded(c: Call, before: Shape, after: Shape, value: float = 0.0) -> Any:
    """The operand behind a padding that a layer cannot do itself."""
    amounts = [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]
    return c.tape.call(_nn(c).functional.pad, c.x, tuple(amounts), "constant", value)


def _convolution(c: Call) -> Any:
    a, w = c.operation.attributes, window(c)
    x = c.x if w.symmetric else _padded(c, w.before, w.after)
    layer = getattr(_nn(c), f"Conv{len(w.kernel)}d")(
        a["in_channels"], a["out_channels"], w.kernel, w.strides, w.before if w.symmetric else 0,
        w.dilation, a.get("groups", 1), a["bias"],
    )  # fmt: skip
    return c.tape.module("conv", layer, x)


def _transposed(c: Call) -> Any:
    a = c.operation.attributes
    strides, padding, extra = transposed_padding(c)
    layer = getattr(_nn(c), f"ConvTranspose{len(strides)}d")(
        a["in_channels"], a["out_channels"], tuple(a["kernel"]), strides, padding, extra,
        a.get("groups", 1), a["bias"], a.get("dilation") or 1,
    )  # fmt: skip
    return c.tape.module("conv", layer, c.x)


def _pool(name: str) -> Maker:
    def make(c: Call) -> Any:
        w = window(c)
        cls = getattr(_nn(c), f"{name}Pool{len(w.kernel)}d")
        # As Keras and NASNet's ports have it: the mean is of what is there.
        options = {"count_include_pad": False} if name == "Avg" else {}
        fits = w.symmetric and all(2 * p <= k for p, k in zip(w.before, w.kernel, strict=True))
        if fits:
            layer = cls(w.kernel, w.strides, w.before, **options)
            return c.tape.module("pool", layer, c.x)
        if not any(w.before) and max(w.after) < max(w.strides):  # the last window ends outside
            layer = cls(w.kernel, w.strides, ceil_mode=True, **options)
            node = c.tape.module("pool", layer, c.x)
            if c.tape.shape(node) == c.out:
                return node
        x = _padded(c, w.before, w.after, float("-inf") if name == "Max" else 0.0)
        return c.tape.module("pool", cls(w.kernel, w.strides), x)

    return make


def _global_pool(name: str) -> Maker:
    """An adaptive pool to one position, and a flatten where the axes go."""

    def make(c: Call) -> Any:
        x = _layer(c, f"Adaptive{name}Pool{{}}", 1)
        return x if len(c.out) == len(c.shape) else c.tape.call(c.tape.torch.flatten, x, 1)

    return make


def _adaptive_pool(c: Call) -> Any:
    """Average or maximum: the name says, else average."""
    name = "Max" if "max" in c.operation.name.lower() else "Avg"
    return _layer(c, f"Adaptive{name}Pool{{}}", c.out[2:])


# ---- normalisations and activations --------------------------------------------------------------


def _batch_norm(c: Call) -> Any:
    return _layer(c, "BatchNorm{}", c.shape[1])


def _group_norm(c: Call) -> Any:
    groups = next(n for n in (32, 16, 8, 4, 2, 1) if c.shape[1] % n == 0)
    return _layer(c, "GroupNorm", groups, c.shape[1])


def _activation(name: str, in_place: bool = False, **options: Any) -> Maker:
    def make(c: Call) -> Any:
        given = {"inplace": True} if in_place and c.reusable else {}
        return _layer(c, name, **given, **options)

    return make


# ---- products ------------------------------------------------------------------------------------


def _dense(c: Call) -> Any:
    """A linear layer along the last axis, or one between shapes of as many elements."""
    a, torch = c.operation.attributes, c.tape.torch
    inside, made = a["in_features"], a["out_features"]
    layer = _nn(c).Linear(inside, made, bias=a["bias"])
    if c.shape[-1] == inside and c.out == (*c.shape[:-1], made):
        return c.tape.module("dense", layer, c.x)
    rows, rest = divmod(prod(c.shape), inside)
    if rest or rows * made != prod(c.out):
        raise ValueError(f"no product of {inside} features goes from {c.shape} to {c.out}")
    flat = c.tape.call(torch.reshape, c.x, (-1, inside) if c.batched else (rows, inside))
    return c.tape.call(torch.reshape, c.tape.module("dense", layer, flat), c.target(c.out))


def _embedding(c: Call) -> Any:
    a = c.operation.attributes
    return _layer(c, "Embedding", a["rows"], a["out_features"])


def _recurrent(name: str) -> Maker:
    """Of batch-first operands; the last states where the Graph has them."""

    def make(c: Call) -> Any:
        a = c.operation.attributes
        getitem = c.tape.item
        x = c.x
        if len(c.shape) != 3:
            x = c.tape.call(c.tape.torch.reshape, x, (-1, a["timesteps"], a["in_features"]))
        layer = getattr(_nn(c), name)(
            a["in_features"], a["units"], bias=a["bias"], batch_first=True
        )
        both = c.tape.module(name.lower(), layer, x)
        steps = getitem(both, 0)
        if not a.get("sequences", len(c.out) > 2):
            steps = c.tape.call(c.tape.torch.select, steps, 1, -1)
        states = getitem(both, 1)
        found = [steps]
        for at, wanted in enumerate(c.outs[1:]):
            state = getitem(states, at) if name == "LSTM" else states
            found.append(c.tape.call(c.tape.torch.reshape, state, c.target(wanted)))
        return found

    return make


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    "max_pool": _pool("Max"),
    "average_pool": _pool("Avg"),
    "global_max_pool": _global_pool("Max"),
    "global_average_pool": _global_pool("Avg"),
    "adaptive_pool": _adaptive_pool,
    "batch_norm": _batch_norm,
    "group_norm": _group_norm,
    "instance_norm": lambda c: _layer(c, "InstanceNorm{}", c.shape[1], affine=True),
    "layer_norm": lambda c: _layer(c, "LayerNorm", c.shape[-1]),
    "rms_norm": lambda c: _layer(c, "RMSNorm", c.shape[-1]),
    "prelu": lambda c: _layer(c, "PReLU", c.shape[1] if len(c.shape) > 1 else 1),
    "relu": _activation("ReLU", in_place=True),
    "relu6": _activation("ReLU6", in_place=True),
    "leaky_relu": _activation("LeakyReLU", in_place=True),
    "elu": _activation("ELU"),
    "selu": _activation("SELU"),
    "celu": _activation("CELU"),
    "silu": _activation("SiLU", in_place=True),
    "mish": _activation("Mish"),
    "sigmoid": _activation("Sigmoid"),
    "hard_sigmoid": _activation("Hardsigmoid"),
    "hard_silu": _activation("Hardswish", in_place=True),
    "gelu": _activation("GELU"),
    "tanh": _activation("Tanh"),
    "softmax": _activation("Softmax", dim=-1),
    "log_softmax": _activation("LogSoftmax", dim=-1),
    "softplus": _activation("Softplus"),
    "softsign": _activation("Softsign"),
    "hard_tanh": _activation("Hardtanh"),
    "log_sigmoid": _activation("LogSigmoid"),
    "hard_shrink": _activation("Hardshrink"),
    "soft_shrink": _activation("Softshrink"),
    "tanh_shrink": _activation("Tanhshrink"),
    "glu": _activation("GLU"),
    "threshold": lambda c: _layer(c, "Threshold", 0.5, 0.0),
    "dense": _dense,
    "embedding": _embedding,
    "lstm": _recurrent("LSTM"),
    "gru": _recurrent("GRU"),
    "simple_rnn": _recurrent("RNN"),
    "identity": lambda c: c.x,
    "dropout": lambda c: _layer(c, "Dropout", 0.5),  # nothing but in training
    **_FUNCTIONS,
}
"""Kind of operation -> how it is built."""
