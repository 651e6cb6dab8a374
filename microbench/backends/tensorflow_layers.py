"""Operations of a Graph as Keras layers: the ones that a Keras network with that operation runs.

A Graph knows what an operation costs, not all that it does: not which axis a concatenation goes along,
not where a slice begins. What is missing is found from the shapes; where several answers fit them
(which of two transpositions, where a slice starts), one is taken that moves as many elements in as
many steps. `tensorflow_moves` has those that only move or fold elements.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from lolat.errors import MeasuringError
from lolat.graph import Graph
from microbench.backends import tensorflow_elementwise as elementwise
from microbench.backends import tensorflow_moves as moves
from microbench.backends import tensorflow_products as products
from microbench.backends.tensorflow_call import Call, Maker, Shape


def apply(call: Call) -> list[Any]:
    """The outputs of an operation. Raises ValueError, saying why, where it cannot be built."""
    made = MAKERS.get(call.operation.kind)
    if made is None:
        raise ValueError("there is no layer for this kind")
    found = made(call)
    outputs = list(found) if isinstance(found, (list, tuple)) else [found]
    for output, tensor in zip(outputs, call.outs, strict=True):
        built, grows = tuple(output.shape), int(tensor.batched)
        if len(built) != len(tensor.shape) or any(
            n is not None and n != wanted
            for n, wanted in zip(built[grows:], tensor.shape[grows:], strict=True)
        ):
            raise ValueError(f"from {call.ins} to {tensor.shape}: it came out as {built}")
    return outputs


# ---- convolutions and pools ----------------------------------------------------------------------


def _data_format(shape: Shape, channels: int) -> str:
    last = shape[-1] == channels or shape[1] != channels
    return "channels_last" if last else "channels_first"


def _padded(c: Call, data_format: str) -> Any:
    """The input behind the padding that was folded into the convolution."""
    if "pad_before" not in c.operation.attributes:
        return c.x, c.shape
    return moves.pad_spatial(
        c.keras, c.x, c.shape, c.operation.attributes["pad_before"], data_format
    )


def _fitting(
    c: Call, kind: str, shape: Shape, make: Callable[..., Any], strides: Any, padding: Any
) -> Any:
    """The layer of given strides and padding; where the Graph does not say, the first that fits."""
    spatial = len(shape) - 2
    choices = [(s,) * spatial for s in range(1, 33)] if strides is None else [tuple(strides)]
    for stride, how in product(choices, ("same", "valid") if padding is None else (padding,)):
        layer = make(stride, how)
        try:
            made = tuple(layer.compute_output_shape((None, *shape[1:])))
        except ValueError:
            continue
        if made[1:] == c.out[1:]:
            return layer
    raise ValueError(f"no {kind} of this kernel goes from {shape} to {c.out}")


def _convolution(c: Call) -> Any:
    a, layers, kind = c.operation.attributes, c.keras.layers, c.operation.kind
    kernel, dimensions = tuple(a["kernel"]), f"{len(a['kernel'])}D"
    data_format = _data_format(c.shape, a["in_channels"])
    x, shape = _padded(c, data_format)
    dilation = a.get("dilation") or (1,) * len(kernel)
    common = {"use_bias": a["bias"], "data_format": data_format, "dilation_rate": dilation}
    depthwise = kind == "depthwise_conv" and hasattr(layers, f"DepthwiseConv{dimensions}")

    def make(strides: Shape, padding: str) -> Any:
        if depthwise:
            cls = getattr(layers, f"DepthwiseConv{dimensions}")
            multiplier = a["out_channels"] // a["in_channels"]
            if padding == "causal":  # no such padding here; as much is computed
                padding = "same"
            return cls(kernel, strides, padding, depth_multiplier=multiplier, **common)
        cls = getattr(layers, f"Conv{dimensions}")
        return cls(a["out_channels"], kernel, strides, padding, groups=a["groups"], **common)

    return _fitting(c, kind, shape, make, a.get("strides"), a.get("padding"))(x)


def _transposed(c: Call) -> Any:
    """Where the Graph's size needs an output padding, the first that gives it."""
    a = c.operation.attributes
    kernel = tuple(a["kernel"])
    data_format = _data_format(c.shape, a["in_channels"])
    x, shape = _padded(c, data_format)
    cls = getattr(c.keras.layers, f"Conv{len(kernel)}DTranspose")
    failed: ValueError | None = None
    for extra in (None, *range(max(a.get("strides") or (4,)))):

        def make(strides: Shape, padding: str, extra: int | None = extra) -> Any:
            return cls(
                a["out_channels"], kernel, strides, padding, use_bias=a["bias"],
                output_padding=extra, data_format=data_format,
            )  # fmt: skip

        try:
            return _fitting(c, c.operation.kind, shape, make, a.get("strides"), a.get("padding"))(x)
        except ValueError as error:
            failed = error
    raise failed or ValueError("it has no strides")


def _pool(name: str) -> Maker:
    def make(c: Call) -> Any:
        a = c.operation.attributes
        cls = getattr(c.keras.layers, f"{name}Pooling{len(a['kernel'])}D")
        data_format = _data_format(c.shape, c.out[-1])
        return _fitting(
            c, c.operation.kind, c.shape,
            lambda strides, padding: cls(tuple(a["kernel"]), strides, padding, data_format=data_format),
            a.get("strides"), a.get("padding"),
        )(c.x)  # fmt: skip

    return make


def _global_pool(name: str) -> Maker:
    def make(c: Call) -> Any:
        keep = len(c.out) == len(c.shape)
        first = c.out[1] == c.shape[1] and prod(c.out[1:]) != c.shape[-1]
        data_format = "channels_first" if first else "channels_last"
        return c.layer(f"Global{name}Pooling{{}}", keepdims=keep, data_format=data_format)(c.x)

    return make


def _adaptive_pool(c: Call) -> Any:
    """Average or maximum: the name says, else average."""
    name = "Max" if "max" in c.operation.name.lower() else "Average"
    return c.layer(f"Adaptive{name}Pooling{{}}", c.out[1:-1])(c.x)


MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("conv", "grouped_conv", "depthwise_conv"), _convolution),
    "transposed_conv": _transposed,
    "max_pool": _pool("Max"),
    "average_pool": _pool("Average"),
    "global_max_pool": _global_pool("Max"),
    "global_average_pool": _global_pool("Average"),
    "adaptive_pool": _adaptive_pool,
    **products.MAKERS,
    **elementwise.MAKERS,
    **moves.MAKERS,
}
"""Kind of operation -> how it is built."""


def build_graph(keras: Any, graph: Graph, name: str = "block") -> Any:
    """A Keras model of `graph`; MeasuringError names an operation that cannot be built, and says why.

    A tensor that nothing writes and that is no input is a variable, as a layer's own is.
    """
    tensors = graph.tensors
    values: dict[int, Any] = {}
    for i in graph.inputs:
        shape = (None, *tensors[i].shape[1:]) if tensors[i].batched else tensors[i].shape
        values[i] = keras.Input(batch_shape=shape, dtype=tensors[i].dtype)
    for operation in graph.operations:
        for i in operation.inputs:
            if i not in values:
                values[i] = keras.Variable(
                    "ones", shape=tensors[i].shape, dtype=tensors[i].dtype, trainable=False
                )
        call = Call(
            keras,
            operation,
            [values[i] for i in operation.inputs],
            graph.shapes(operation.inputs),
            [tensors[i] for i in operation.outputs],
        )
        try:
            values.update(zip(operation.outputs, apply(call), strict=True))
        except Exception as error:  # whatever Keras raises for what does not fit
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
            raise MeasuringError(
                f"the tensorflow backend cannot build operation {operation.kind!r} "
                f"({operation.full_name!r}): {reason}"
            ) from error
    return keras.Model(
        [values[i] for i in graph.inputs], [values[i] for i in graph.outputs], name=name
    )
