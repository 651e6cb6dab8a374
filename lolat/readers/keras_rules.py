"""What the rules for Keras' layers and operations have in common.

A rule gets the reader, the layer, the indices of its inputs, the shapes of its outputs (at batch size
1), the module path and the call; it returns the indices of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
