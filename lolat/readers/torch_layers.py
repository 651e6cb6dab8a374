"""Rules for what multiplies: convolutions, linear layers, matrix products, recurrent layers, embeddings."""

from __future__ import annotations

from math import prod
from typing import Any


def sizes_of(value: Any, count: int) -> tuple[int, ...]:
    """One number for each axis, from one for all."""
    found = [int(n) for n in value] if isinstance(value, (tuple, list)) else [int(value)]
    return tuple(found * count if len(found) == 1 else found)


def _weight(call: Any, name: str = "weight") -> tuple[int, ...]:
    """The shape of a kernel."""
    return tuple(int(n) for n in call.get(name).meta["val"].shape)


def _convolution(walker: Any, call: Any) -> list[int]:
    """A convolution, or a transposed one, in one, two or three dimensions."""
    source = walker.index(call.get("input"))
    kernel = _weight(call)
    spatial = len(kernel) - 2
    groups = int(call.get("groups", 1))
    strides = sizes_of(call.get("stride", 1), spatial)
    dilation = sizes_of(call.get("dilation", 1), spatial)
    padding = call.get("padding", 0)
    attributes = {"kernel": kernel[2:], "strides": strides, "dilation": dilation,
                  "bias": call.get("bias") is not None, "groups": groups}  # fmt: skip
    if call.op.startswith("conv_transpose") or call.get("transposed"):
        return [walker.add(
            call, "transposed_conv", walker.read(call, source), in_channels=kernel[0],
            out_channels=kernel[1] * groups, padding="valid" if not any(sizes_of(padding, spatial))
            else "same", **attributes,
        )]  # fmt: skip
    inside = kernel[1] * groups
    # One group for each channel is a depthwise convolution, for which PyTorch has a kernel of its own.
    kind = "conv" if groups == 1 else "depthwise_conv" if groups == inside else "grouped_conv"
    return [walker.add(
        call, kind, walker.read(call, source), in_channels=inside, out_channels=kernel[0],
        **_padding(padding, kernel[2:], strides, dilation), **attributes,
    )]  # fmt: skip


def _padding(
    given: Any, kernel: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...]
) -> dict[str, Any]:
    """Padding as Keras has it: "same", "valid", or a valid convolution of what was padded before."""
    if isinstance(given, str):
        return {"padding": given}
    amounts = sizes_of(given, len(kernel))
    if not any(amounts):
        return {"padding": "valid"}
    keeps = all(2 * p == d * (k - 1) for p, k, d in zip(amounts, kernel, dilation, strict=True))
    if keeps and set(strides) == {1}:
        return {"padding": "same"}
    return {"padding": "valid", "pad_before": tuple((p, p) for p in amounts)}


def product(
    walker: Any, call: Any, left: int, right: int, contracted: int, shape: Any = None
) -> int:
    """A dense layer where the right operand is a constant, else a product of two activations."""
    if right in walker.constants and left not in walker.constants:
        features = prod(walker.shape(right)) // contracted
        return int(walker.add(
            call, "dense", [left], shape, in_features=contracted, out_features=features,
            bias=call.op == "addmm" and walker.index(call.get("self")) in walker.constants,
        ))  # fmt: skip
    return int(walker.add(call, "matmul", [left, right], shape, contracted=contracted))


def _linear(walker: Any, call: Any) -> list[int]:
    source, weight = walker.index(call.get("input")), walker.index(call.get("weight"))
    shape = walker.shape(weight)
    if weight not in walker.constants:
        return [product(walker, call, source, weight, shape[-1])]
    return [walker.add(
        call, "dense", walker.read(call, source), in_features=shape[-1], out_features=prod(shape[:-1]),
        bias=call.get("bias") is not None,
    )]  # fmt: skip


def _matmul(walker: Any, call: Any) -> list[int]:
    """A product of two tensors, and where it is given a third to which it is added."""
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "mv": ("self", "vec"),
             "dot": ("self", "tensor"), "outer": ("self", "vec2")}  # fmt: skip
    first, second = names.get(call.op, ("self", "mat2" if "mat2" in call.arguments else "other"))
    left, right = walker.index(call.get(first)), walker.index(call.get(second))
    contracted = 1 if call.op == "outer" else walker.shape(left)[-1]
    out = product(walker, call, left, right, contracted)
    added = walker.index(call.get("self")) if call.op in ("addmm", "baddbmm") else None
    is_bias = added in walker.constants and right in walker.constants
    if added is None or is_bias or call.get("beta", 1) == 0:
        return [out]
    return [walker.add(call, "add", [added, out], suffix="add")]


def _einsum(walker: Any, call: Any) -> list[int]:
    """A product over the labels that the second operand has and the result has not."""
    operands = [walker.index(n) for n in call.get("tensors")]
    equation = str(call.get("equation")).replace(" ", "")
    left, _, result = equation.partition("->")
    labels = [part.replace("...", "") for part in left.split(",")]
    if "->" not in equation:  # the labels that occur once, in alphabetical order
        result = "".join(sorted(c for c in set("".join(labels)) if left.count(c) == 1))
    if len(operands) == 1:
        kind = "transpose" if len(set(labels[0])) == len(result.replace("...", "")) else "reduce"
        return [walker.add(call, kind, operands)]
    if len(operands) != 2:
        inputs = [i for i in operands if i is not None]
        return list(walker.builder.add_several(
            "aten.einsum", inputs, call.shapes, call.label("einsum"), call.path))  # fmt: skip
    shape = walker.shape(operands[1])
    sizes = zip(labels[1], shape[len(shape) - len(labels[1]) :], strict=True)
    contracted = prod(n for label, n in sizes if label not in result)
    return [product(walker, call, operands[0], operands[1], contracted)]


def _embedding(walker: Any, call: Any) -> list[int]:
    """The rows of a table at given indices."""
    rows, features = _weight(call)
    source = walker.index(call.get("indices"))
    return [
        walker.add(call, "embedding", walker.read(call, source), rows=rows, out_features=features)
    ]


_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
_RECURRENT = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "simple_rnn", "rnn_relu": "simple_rnn"}


def _recurrent(walker: Any, call: Any) -> list[Any]:
    """A layer of one direction is an operation; two directions are concatenated.

    Each has two vectors of biases in PyTorch, one more than Keras' LSTM and simple RNN.
    """
    params = call.get("params")
    biased, layers = bool(call.get("has_biases")), int(call.get("num_layers", 0))
    ways = 2 if call.get("bidirectional") else 1
    if "batch_first" not in call.arguments or len(params) != layers * ways * (4 if biased else 2):
        inputs = walker.sources(call.node)[:1]  # packed sequences, projected states
        kind = f"aten.{call.op}"
        name = call.label(call.op)
        return list(walker.builder.add_several(kind, inputs, call.shapes, name, call.path))
    x = walker.index(call.get("input"))
    states = call.get("hx")
    states = [walker.index(s) for s in (states if isinstance(states, (tuple, list)) else [states])]
    given = [s for s in states if s is not None and s not in walker.constants]
    shape = walker.shape(x)
    steps = shape[1] if call.get("batch_first") and len(shape) > 2 else shape[0]
    last: list[list[int]] = [[] for _ in call.shapes[1:]]
    weights = iter(params[:: 4 if biased else 2])
    several = layers * ways > 1
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            rows, features = _shape(next(weights))
            units = rows // _GATES[call.op]
            suffix = f"l{layer}" + "_reverse" * way if several else ""
            single = (*walker.shape(x)[:-1], units)
            state = (*call.shapes[1][1:],)
            written = walker.builder.add_several(
                _RECURRENT[call.op], [x, *given], [single] + [state] * len(last),
                call.label(_RECURRENT[call.op], suffix), call.path, units=units,
                in_features=features, timesteps=steps, bias=biased, bias_vectors=2, sequences=True,
            )  # fmt: skip
            walker.channels[written[0]] = len(single) - 1
            outputs.append(written[0])
            for found, index in zip(last, written[1:], strict=True):
                found.append(index)
        x = outputs[0]
        if ways > 1:
            merged = (*walker.shape(x)[:-1], sum(walker.shape(i)[-1] for i in outputs))
            x = walker.add(call, "concatenate", outputs, merged, suffix=f"l{layer}_merge")
    return [x, *(_stacked(walker, call, found) for found in last)]


def _stacked(walker: Any, call: Any, states: list[int]) -> int:
    """The last states of all layers as one tensor; where one of them is taken, it is that one."""
    shape = call.shapes[1]
    kind = "reshape" if len(states) == 1 else "stack"
    out = int(walker.add(call, kind, states, shape, suffix="states"))
    walker.parts[out] = states
    return out


def _shape(node: Any) -> tuple[int, int]:
    rows, columns = node.meta["val"].shape
    return int(rows), int(columns)


def _cell(walker: Any, call: Any) -> list[Any]:
    """One step of a recurrent layer."""
    op = call.op.removesuffix("_cell")
    rows, features = _shape(call.get("w_ih"))
    units = rows // _GATES[op]
    states = call.get("hx")
    nodes = states if isinstance(states, (tuple, list)) else [states]
    given = [i for n in nodes if (i := walker.index(n)) is not None and i not in walker.constants]
    return list(walker.builder.add_several(
        _RECURRENT[op], [walker.index(call.get("input")), *given], call.shapes,
        call.label(_RECURRENT[op]), call.path, units=units, in_features=features, timesteps=1,
        bias=call.get("b_ih") is not None, bias_vectors=2, sequences=False,
    ))  # fmt: skip


_PRODUCTS = ("matmul", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "outer", "addmv", "addbmm")
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d",
                 "conv_transpose2d", "conv_transpose3d")  # fmt: skip

RULES = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **dict.fromkeys(_PRODUCTS[:-2], _matmul),
    **dict.fromkeys(_GATES, _recurrent),
    **dict.fromkeys([f"{name}_cell" for name in _GATES], _cell),
    "linear": _linear,
    "einsum": _einsum,
    "embedding": _embedding,
}

KINDS = {
    **dict.fromkeys(_CONVOLUTIONS, "conv"),
    **dict.fromkeys((*_PRODUCTS, "linear", "einsum"), "dense"),
    **dict.fromkeys(_GATES, "lstm"),
}
"""What is never folded into a constant, however constant its operands are."""
