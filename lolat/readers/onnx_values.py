"""Small constants followed through the operators that exporters compute shapes with.

`evaluate` gives the contents of a node's output from those of its inputs, None where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

LARGEST = 4096
"""Elements of a constant that is still followed."""

Values = Sequence[Any]
Rule = Callable[[Values, Mapping[str, Any]], Any]


def _axes(values: Values, a: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = values[1] if len(values) > 1 and values[1] is not None else a.get("axes")
    return None if given is None else tuple(int(n) for n in np.ravel(given))


def _unsqueeze(v: Values, a: Mapping[str, Any]) -> Any:
    axes = _axes(v, a) or ()
    rank = np.ndim(v[0]) + len(axes)
    found = v[0]
    for axis in sorted(n % rank for n in axes):
        found = np.expand_dims(found, axis)
    return found


def _slice(v: Values, a: Mapping[str, Any]) -> Any:
    starts, ends = (v[1], v[2]) if len(v) > 2 else (a["starts"], a["ends"])
    axes = v[3] if len(v) > 3 and v[3] is not None else a.get("axes", range(len(starts)))
    steps = v[4] if len(v) > 4 and v[4] is not None else [1] * len(starts)
    at = [slice(None)] * np.ndim(v[0])
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        last = None if step < 0 and end < -np.shape(v[0])[int(axis)] else int(end)
        at[int(axis)] = slice(int(start), last, int(step))
    return v[0][tuple(at)]


def _reshape(v: Values, a: Mapping[str, Any]) -> Any:
    keep = not a.get("allowzero")
    return v[0].reshape(
        [np.shape(v[0])[i] if n == 0 and keep else int(n) for i, n in enumerate(v[1])]
    )


def _div(v: Values, a: Mapping[str, Any]) -> Any:
    if np.asarray(v[0]).dtype.kind in "iu":  # towards zero, as in C
        return (np.sign(v[0]) * np.sign(v[1]) * (abs(v[0]) // abs(v[1]))).astype(v[0].dtype)
    return v[0] / v[1]


def _mod(v: Values, a: Mapping[str, Any]) -> Any:
    return np.fmod(v[0], v[1]) if a.get("fmod") else np.mod(v[0], v[1])


def _cast(v: Values, a: Mapping[str, Any]) -> Any:
    from lolat.readers.onnx_file import import_onnx

    return v[0].astype(import_onnx().helper.tensor_dtype_to_np_dtype(a["to"]))


def _constant(v: Values, a: Mapping[str, Any]) -> Any:
    for key, kind in (("value_int", np.int64), ("value_ints", np.int64),
                      ("value_float", np.float32), ("value_floats", np.float32)):  # fmt: skip
        if key in a:
            return np.asarray(a[key], kind)
    return a.get("value")


def _filled(v: Values, a: Mapping[str, Any]) -> Any:
    value = a.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    return np.broadcast_to(value.reshape(-1)[0], [int(n) for n in v[0]])  # takes no memory


def _range(v: Values, a: Mapping[str, Any]) -> Any:
    start, limit, step = (n.reshape(()).item() for n in v)
    if (limit - start) / step > LARGEST:
        return None
    return np.arange(start, limit, step).astype(v[0].dtype)


def _tile(v: Values, a: Mapping[str, Any]) -> Any:
    repeats = [int(n) for n in v[1]]
    return None if np.prod(repeats) * np.size(v[0]) > LARGEST else np.tile(v[0], repeats)


def _reduce(function: Callable[..., Any]) -> Rule:
    def rule(v: Values, a: Mapping[str, Any]) -> Any:
        return function(v[0], axis=_axes(v, a), keepdims=bool(a.get("keepdims", 1)))

    return rule


def _on(function: Callable[..., Any]) -> Rule:
    """A function of all inputs."""
    return lambda v, a: function(*v)


def _expand(v: Values, a: Mapping[str, Any]) -> Any:
    shape = np.broadcast_shapes(np.shape(v[0]), tuple(int(n) for n in v[1]))
    return np.broadcast_to(v[0], shape)


def _fold(function: Callable[..., Any]) -> Rule:
    def rule(v: Values, a: Mapping[str, Any]) -> Any:
        found = v[0]
        for other in v[1:]:
            found = function(found, other)
        return found

    return rule


RULES: dict[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Gather": lambda v, a: np.take(v[0], v[1], axis=a.get("axis", 0)),
    "Concat": lambda v, a: np.concatenate(v, axis=a["axis"]),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda v, a: np.squeeze(v[0], _axes(v, a)),
    "Slice": _slice,
    "Reshape": _reshape,
    "Flatten": lambda v, a: v[0].reshape(int(np.prod(np.shape(v[0])[: a.get("axis", 1)])), -1),
    "Transpose": lambda v, a: np.transpose(v[0], a.get("perm")),
    "Cast": _cast,
    "Identity": lambda v, a: v[0],
    "Add": _on(np.add), "Sub": _on(np.subtract), "Mul": _on(np.multiply), "Div": _div, "Mod": _mod,
    "Pow": lambda v, a: np.power(v[0], v[1]).astype(v[0].dtype),
    "Neg": _on(np.negative), "Abs": _on(np.abs), "Sqrt": _on(np.sqrt), "Floor": _on(np.floor),
    "Ceil": _on(np.ceil), "Round": _on(np.round), "Sign": _on(np.sign), "Exp": _on(np.exp),
    "Log": _on(np.log), "Reciprocal": _on(np.reciprocal), "Sin": _on(np.sin), "Cos": _on(np.cos),
    "Min": _fold(np.minimum), "Max": _fold(np.maximum), "Where": _on(np.where),
    "Equal": _on(np.equal), "Less": _on(np.less), "Greater": _on(np.greater),
    "LessOrEqual": _on(np.less_equal), "GreaterOrEqual": _on(np.greater_equal),
    "And": _on(np.logical_and), "Or": _on(np.logical_or), "Not": _on(np.logical_not),
    "Range": _range,
    "ReduceProd": _reduce(np.prod), "ReduceSum": _reduce(np.sum), "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min), "ReduceMean": _reduce(np.mean),
    "Expand": _expand,
    "Tile": _tile,
    "NonZero": lambda v, a: np.array(np.nonzero(v[0]), np.int64),
}  # fmt: skip


def evaluate(op: str, values: Values, attributes: Mapping[str, Any]) -> np.ndarray | None:
    """What the operator gives for these inputs (None for one left out); None where that is not known."""
    rule = RULES.get(op)
    if rule is None:
        return None
    with np.errstate(all="ignore"):
        try:
            found = rule(values, attributes)
        except Exception:  # an input of a form that shape computations do not have
            return None
    if found is None or np.size(found) > LARGEST:
        return None
    return np.asarray(found)
