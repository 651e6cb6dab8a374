"""Rules for Keras layers that are several operations: attention, recurrent layers and their wrappers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

# ---- What the rules for Keras' layers and operations have in common.
#
# A rule gets the reader, the layer, the indices of its inputs, the shapes of its outputs (at batch size
# 1), the module path and the call; it returns the indices of its outputs.

Rule = Callable[[Any, Any, list[int], list[tuple[int, ...]], str, Any], list[int]]

_ACTIVATIONS = """
relu relu6 leaky_relu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax log_softmax
softplus softsign mish exponential glu squareplus hard_tanh log_sigmoid threshold hard_shrink soft_shrink
tanh_shrink sparse_plus sparse_sigmoid sparsemax
"""
_KINDS = {
    **{kind.replace("_", ""): kind for kind in _ACTIVATIONS.split()},
    "swish": "silu", "hardswish": "hard_silu", "linear": "identity", "identity": "identity",
    "prelu": "prelu",
}  # fmt: skip


def activation_kind(function: Any) -> str:
    """The kind of operation of an activation: a function, a layer or None.

    A function that is not Keras' own keeps its name, so that it is reported.
    """
    if function is None:
        return "identity"
    called = getattr(function, "__name__", None) or type(function).__name__
    if not str(getattr(function, "__module__", "keras")).startswith("keras"):
        return str(called)
    kind = _KINDS.get(called.replace("_", "").lower(), called)
    if kind == "relu" and getattr(function, "max_value", None) == 6:
        return "relu6"
    return "leaky_relu" if kind == "relu" and getattr(function, "negative_slope", 0) else kind


def activation(reader: Any, function: Any, source: int, name: str, path: str) -> int:
    """Append the activation `function` (a function, a layer or None) to `source`."""
    kind = activation_kind(function)
    if kind == "identity":
        return source
    shape = reader.builder.tensors[source].shape
    if kind == "glu":
        shape = (*shape[:-1], shape[-1] // 2)
    return int(reader.builder.add(kind, [source], shape, f"{name}_{kind}", path))


def channels(layer: Any, shape: tuple[int, ...]) -> int:
    """Number of channels of an input of `shape`."""
    first = getattr(layer, "data_format", "channels_last") == "channels_first"
    return shape[1 if first else -1]


def with_channels(layer: Any, shape: tuple[int, ...], count: int) -> tuple[int, ...]:
    """`shape` with another number of channels."""
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        return (shape[0], count, *shape[2:])
    return (*shape[:-1], count)


def einsum_features(equation: str, kernel: tuple[int, ...]) -> tuple[int, int]:
    """(summed, kept) sizes of the second operand of an einsum such as "abc,cde->abde"."""
    left, result = equation.replace(" ", "").split("->")
    labels = left.split(",")[1].replace("...", "")
    kernel = kernel[len(kernel) - len(labels) :]
    summed = kept = 1
    for label, n in zip(labels, kernel, strict=True):
        if label in result:
            kept *= n
        else:
            summed *= n
    return summed, kept


def einsum_shape(
    equation: str, first: tuple[int, ...], result: tuple[int | None, ...]
) -> tuple[int | None, ...]:
    """The shape of an einsum's result, what it leaves open taken from its first operand."""
    left, labels = equation.replace(" ", "").split("->")
    if "..." in equation:  # stands for the leading axes, the same on both sides
        sizes: list[int | None] = list(first[: len(result)])
    else:
        known = dict(zip(left.split(",")[0], first, strict=False))
        sizes = [known.get(label) for label in labels]
    filled = [size if n is None else n for n, size in zip(result, sizes, strict=False)]
    return (None, *filled[1:])


def plain(kind: str) -> Rule:
    """A rule for a layer or an operation that is one operation of `kind` without attributes."""

    def rule(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
        return list(r.builder.add_several(kind, ins, shapes, layer.name, path))

    return rule


def view(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """The same data seen as another shape: free."""
    return [r.view(ins[0], shapes[0], layer.name, path)]


# ---- keras composite ----------------------------------------


def attention(
    r: Any,
    query: int,
    key: int,
    value: int,
    heads: tuple[int, int],
    name: str,
    path: str,
    scaled: bool = True,
) -> tuple[int, int]:
    """softmax(q k' * scale) v on (batch, ..., steps, heads x size) tensors; `heads`: of q and of k, v.

    Returns the result and the weights of the softmax. Four operations: the two products, the scaling
    of the scores (where it is `scaled`) and the softmax; see docs/counting.md.
    """
    b = r.builder
    q, k, v = (b.tensors[i].shape for i in (query, key, value))
    size = q[-1] // heads[0]
    scores_shape = (*q[:-2], heads[0], q[-2], k[-2])
    scores = b.add("matmul", [query, key], scores_shape, f"{name}_scores", path, contracted=size)
    if scaled:
        scores = b.add("scale", [scores], scores_shape, f"{name}_scale", path)
    weights = b.add("softmax", [scores], scores_shape, f"{name}_softmax", path)
    out_shape = (*q[:-1], v[-1] // heads[1] * heads[0])
    mixed = b.add("matmul", [weights, value], out_shape, f"{name}_mix", path, contracted=k[-2])
    return int(mixed), int(weights)


def _called_with(r: Any, node: Any) -> tuple[int, int, int]:
    """Query, value and key of a call, whether they were passed by position or by name."""
    args, kwargs = node.arguments.args, node.arguments.kwargs
    names = ("query", "value", "key")
    found = [args[i] if i < len(args) else kwargs.get(name) for i, name in enumerate(names)]
    query, value, key = (r.known.get(id(tensor)) for tensor in found)
    return query, value, value if key is None else key


def multi_head_attention(
    r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any
) -> list[int]:
    """Three projections, attention, the projection of its result."""
    query, value, key = _called_with(r, node)
    query_heads = getattr(layer, "num_query_heads", None) or layer.num_heads
    key_heads = getattr(layer, "num_key_value_heads", None) or layer.num_heads
    key_size = getattr(layer, "key_dim", None) or layer.head_dim
    value_size = getattr(layer, "value_dim", None) or key_size
    inner = f"{path}/{layer.name}" if path else layer.name
    bias = bool(getattr(layer, "use_bias", True))
    attended = getattr(layer, "_attention_axes", None) or (1,)

    def project(source: int, features: int, name: str) -> int:
        """To (batch and what is not attended over, what is, features)."""
        shape = r.builder.tensors[source].shape
        if len(shape) == 3:
            rows, steps = shape[0], shape[1]
        else:
            steps = prod(shape[axis] for axis in attended)
            rows = prod(shape[:-1]) // steps
        return int(r.builder.add(
            "dense", [source], (rows, steps, features), name, inner,
            in_features=shape[-1], out_features=features, bias=bias,
        ))  # fmt: skip

    mixed, weights = attention(
        r,
        project(query, query_heads * key_size, "query"),
        project(key, key_heads * key_size, "key"),
        project(value, key_heads * value_size, "value"),
        (query_heads, key_heads),
        "attention",
        inner,
    )
    size = r.builder.tensors[mixed].shape[-1]
    out = r.builder.add(
        "dense", [mixed], shapes[0], "output", inner,
        in_features=size, out_features=shapes[0][-1], bias=bias,
    )  # fmt: skip
    return [out, *(r.view(weights, shape, "scores", inner) for shape in shapes[1:])]


def dot_attention(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """softmax(query key') value without projections; additive scores are followed as they are written."""
    if layer.score_mode != "dot":
        return list(r.inside(layer, node, ins, shapes, path))
    query, value, *rest = (r.known[id(t)] for t in node.arguments.args[0])
    key = rest[0] if rest else value
    scaled = layer.scale is not None
    mixed, weights = attention(r, query, key, value, (1, 1), layer.name, path, scaled)
    return [mixed, *(r.view(weights, s, f"{layer.name}_weights", path) for s in shapes[1:])]


RECURRENT = {
    "LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn",
    "LSTMCell": "lstm", "GRUCell": "gru", "SimpleRNNCell": "simple_rnn",
}  # fmt: skip
"""Class of a recurrent layer or of its cell -> the kind of operation."""


def _kind(layer: Any) -> str | None:
    """The kind of a recurrent layer, also of a user's class that inherits one; None for others."""
    names = [c.__name__ for c in type(layer).__mro__ if c.__module__.startswith("keras.")]
    return next((RECURRENT[name] for name in names if name in RECURRENT), None)


def recurrent(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """One operation for all steps: the sequence and perhaps states in, the sequence and states out."""
    kind = _kind(layer) or _kind(getattr(layer, "cell", None))
    if kind is None:
        return list(r.inside(layer, node, ins, shapes, path))
    cell = layer.cell
    shape = r.builder.tensors[ins[0]].shape
    vectors = {} if getattr(cell, "reset_after", True) else {"bias_vectors": 1}
    return list(r.builder.add_several(
        kind, ins, shapes, layer.name, path,
        units=int(cell.units), in_features=shape[-1], timesteps=prod(shape[1:-1]),
        bias=bool(cell.use_bias), sequences=bool(layer.return_sequences), **vectors,
    ))  # fmt: skip


def bidirectional(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """The layer forwards and the layer backwards, and what merges them."""
    inner = f"{path}/{layer.name}" if path else layer.name
    ways = (layer.forward_layer, layer.backward_layer)
    kinds = [_kind(way) or _kind(getattr(way, "cell", None)) for way in ways]
    if None in kinds:
        return list(r.unknown("Bidirectional", layer.name, ins, shapes, path))
    merged = layer.merge_mode is not None
    states = shapes[1:] if merged else shapes[2:]
    half = len(states) // 2
    single = list(shapes[0])
    if layer.merge_mode == "concat":
        single[-1] //= 2
    written = []
    for way, own in zip(ways, (states[:half], states[half:]), strict=True):
        written.append(recurrent(r, way, ins, [tuple(single), *own], inner, node))
    (forward, *forward_states), (backward, *backward_states) = written
    if not merged:
        return [forward, backward, *forward_states, *backward_states]
    merge = {"concat": "concatenate", "sum": "add", "ave": "average", "mul": "multiply"}
    kind = merge[layer.merge_mode]
    out = r.builder.add(kind, [forward, backward], shapes[0], "merge", inner)
    return [out, *forward_states, *backward_states]


def time_distributed(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """The wrapped layer on every step: the steps become part of the batch."""
    import keras

    shape = r.builder.tensors[ins[0]].shape
    merged = r.view(ins[0], (shape[0] * shape[1], *shape[2:]), layer.name, path)
    step = keras.KerasTensor((None, *shape[2:]), dtype=node.input_tensors[0].dtype)
    outputs = keras.tree.flatten(layer.layer(step))
    r.alive += [step, *outputs]
    r.known[id(step)] = merged
    found = r.follow(outputs, f"{path}/{layer.name}" if path else layer.name)
    return [r.view(t, s, layer.name, path) for t, s in zip(found, shapes, strict=True)]


RULES: dict[str, Rule] = {
    "LSTM": recurrent,
    "GRU": recurrent,
    "SimpleRNN": recurrent,
    "RNN": recurrent,
    "Bidirectional": bidirectional,
    "TimeDistributed": time_distributed,
    "MultiHeadAttention": multi_head_attention,
    "GroupQueryAttention": multi_head_attention,
    "GroupedQueryAttention": multi_head_attention,
    "Attention": dot_attention,
}
