"""Normalisations, activations and other operations that keep their operand's shape, as Keras layers."""

from __future__ import annotations

from typing import Any

from microbench.backends.tensorflow_call import Call, Maker


def _activation(name: str) -> Maker:
    return lambda c: c.layer("Activation", name)(c.x)


def _normalisation(name: str, **options: Any) -> Maker:
    return lambda c: c.layer(name, **options)(c.x)


def _batch_norm(c: Call) -> Any:
    """Keras' Normalization, which divides, is one to the Graph; its name tells."""
    if c.operation.name.startswith("normalization"):
        channels = (1.0,) * c.shape[-1]
        return c.layer("Normalization", mean=channels, variance=channels)(c.x)
    return c.layer("BatchNormalization")(c.x)


def _group_norm(c: Call) -> Any:
    groups = next(n for n in (32, 16, 8, 4, 2, 1) if c.shape[-1] % n == 0)
    return c.layer("GroupNormalization", groups=groups)(c.x)


def _function(name: str, *constants: Any) -> Maker:
    """keras.ops' function on the operands; `constants` follow them (a scalar leaves no operand)."""
    return lambda c: getattr(c.keras.ops, name)(*c.inputs, *constants)


def _merge(layer: str, function: str, constant: float) -> Maker:
    """An operation of several operands: Keras' layer, or its function where one is a constant."""

    def make(c: Call) -> Any:
        call = getattr(c.keras.ops, function)
        if len(c.inputs) == 1:
            return call(c.x, constant)
        alike = len({(len(x.shape), *x.shape[:1]) for x in c.inputs}) == 1
        if layer and alike and all(isinstance(x, c.keras.KerasTensor) for x in c.inputs):
            return getattr(c.keras.layers, layer)()(c.inputs)
        result = c.x
        for operand in c.inputs[1:]:
            result = call(result, operand)
        return result

    return make


def _compare(c: Call) -> Any:
    ops = c.keras.ops
    if "bool" in str(c.x.dtype):
        return ops.logical_and(*c.inputs[:2]) if len(c.inputs) > 1 else ops.logical_not(c.x)
    return ops.greater(c.x, c.inputs[1] if len(c.inputs) > 1 else 0)


def _where(c: Call) -> Any:
    """A choice by the first operand, where the Graph has further ones; else a mask."""
    ops = c.keras.ops
    if len(c.inputs) == 1:
        return ops.tril(c.x) if len(c.shape) > 1 else ops.nan_to_num(c.x)
    condition, *rest = c.inputs
    return ops.where(ops.cast(condition, "bool"), rest[0], rest[1] if len(rest) > 1 else 0.0)


_ACTIVATIONS = """
relu relu6 leaky_relu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax log_softmax
softplus softsign mish exponential squareplus hard_tanh log_sigmoid hard_shrink soft_shrink
tanh_shrink sparse_plus sparse_sigmoid sparsemax
"""
_FUNCTIONS = """
erf sqrt rsqrt square absolute negative log exp reciprocal round sign
"""

MAKERS: dict[str, Maker] = {
    "batch_norm": _batch_norm,
    "layer_norm": _normalisation("LayerNormalization", epsilon=1e-6),
    "group_norm": _group_norm,
    "instance_norm": _normalisation("GroupNormalization", groups=-1),
    "rms_norm": _normalisation("RMSNormalization"),
    "unit_norm": _normalisation("UnitNormalization"),
    "prelu": _normalisation("PReLU"),
    "rescale": _normalisation("Rescaling", scale=1 / 127.5, offset=-1),
    **{name: _activation(name) for name in _ACTIVATIONS.split()},
    "glu": _function("glu"),
    "threshold": _function("threshold", 0.5, 0.0),
    **{name: _function(name) for name in _FUNCTIONS.split()},
    "trigonometric": _function("sin"),
    "bitwise": _function("bitwise_not"),
    "clip": _function("clip", 0.0, 6.0),
    "scale": _function("multiply", 0.125),
    "add": _merge("Add", "add", 1.5),
    "subtract": _merge("Subtract", "subtract", 1.5),
    "multiply": _merge("Multiply", "multiply", 1.5),
    "divide": _merge("", "divide", 1.5),
    "power": _merge("", "power", 3.0),
    "maximum": _merge("Maximum", "maximum", 0.5),
    "minimum": _merge("Minimum", "minimum", 0.5),
    "average": _merge("Average", "add", 1.5),
    "compare": _compare,
    "where": _where,
    "cast": lambda c: c.keras.ops.cast(c.x, c.outs[0].dtype),
    "one_hot": lambda c: c.keras.ops.one_hot(c.x, c.out[-1]),
    "fill": lambda c: c.keras.ops.ones_like(c.x),
    "identity": lambda c: c.layer("Identity")(c.x),
    "dropout": lambda c: c.layer("Dropout", 0.5)(c.x),
    **dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims"), lambda c: c.reshape(c.x, c.out)),
}  # fmt: skip
"""Kind of operation -> how it is built."""
