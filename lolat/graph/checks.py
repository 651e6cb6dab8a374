"""What a network's file may say of operations: the shape of every attribute, and sizes that hold something.

Readers write nothing else; a file of `lolat read` may have been changed by anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from lolat.errors import InputError
from lolat.graph.kinds import CONVOLUTIONS, FREE, GATES, NORMALIZATIONS
from lolat.io.documents import converted, fault_of

LARGEST = 2**40
"""Of a size or a count in an attribute, with room above all that there is."""
_Size = Annotated[int, msgspec.Meta(ge=1, le=LARGEST)]
_Whole = Annotated[int, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
_Sizes = tuple[_Size, ...] | UnsetType
_Wholes = tuple[_Whole, ...]


class Attributes(msgspec.Struct):
    """The attributes that anything looks at; others may be there."""

    kernel: _Sizes = UNSET
    strides: _Sizes = UNSET
    dilation: _Sizes = UNSET
    in_channels: _Size | UnsetType = UNSET
    out_channels: _Size | UnsetType = UNSET
    groups: _Size | UnsetType = UNSET
    in_features: _Size | UnsetType = UNSET
    out_features: _Size | UnsetType = UNSET
    units: _Size | UnsetType = UNSET
    contracted: _Size | UnsetType = UNSET
    timesteps: _Size | UnsetType = UNSET
    rows: _Size | UnsetType = UNSET
    channels: _Size | UnsetType = UNSET
    bias_vectors: Annotated[int, msgspec.Meta(ge=0, le=2)] | UnsetType = UNSET
    bias: bool | UnsetType = UNSET
    fused: bool | UnsetType = UNSET
    sequences: bool | UnsetType = UNSET
    rate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] | UnsetType = UNSET
    axis: _Whole | _Wholes | UnsetType = UNSET
    permutation: _Wholes | UnsetType = UNSET
    padding: str | tuple[_Wholes, ...] | UnsetType = UNSET
    pad_before: str | tuple[_Wholes, ...] | UnsetType | None = UNSET


def fault_of_attributes(documents: Iterable[tuple[str, Mapping[str, Any]]]) -> str | None:
    """What is wrong with the attributes of operations, given by name; None for nothing."""
    named = list(documents)
    try:
        converted([attributes for _, attributes in named], list[Attributes])
    except msgspec.ValidationError:
        for name, attributes in named:
            if fault := fault_of(attributes, Attributes):
                return f"operation {name!r}: {fault}"
    return None


def check_sizes(name: str, shapes: Iterable[tuple[str, str, Mapping[str, Any], Any, Any]]) -> None:
    """InputError where an operation reads or writes what it cannot.

    `shapes`: of each operation its name, kind, attributes, and the shapes that it reads and writes.
    """
    for operation, kind, attributes, ins, outs in shapes:
        if fault := _fault(kind, attributes, ins, outs):
            raise InputError(f"network {name!r}: operation {operation!r} ({kind}) {fault}")


def _fault(kind: str, a: Mapping[str, Any], ins: Any, outs: Any) -> str | None:
    """What is wrong with the shapes of an operation."""
    empty = next((s for s in outs if not all(n > 0 for n in s)), None)
    if kind not in FREE and empty is not None:
        return f"writes a tensor of {_shown(empty)}; expected sizes of at least 1"
    kernel = a.get("kernel")
    if kernel is not None and (not ins or {len(ins[0]), len(outs[0])} != {len(kernel) + 2}):
        first = _shown(ins[0]) if ins else "nothing"
        return (
            f"has a kernel of {len(kernel)} sizes, reads {first} and writes {_shown(outs[0])}; expected "
            f"tensors of {len(kernel) + 2} sizes"
        )
    for along in ("strides", "dilation"):
        if kernel is not None and len(a.get(along, kernel)) != len(kernel):
            return f"has a kernel of {len(kernel)} sizes and {along} of {len(a[along])}"
    if kind in CONVOLUTIONS and "groups" in a:
        channels = (a.get("in_channels", 0), a.get("out_channels", 0))
        if any(n % a["groups"] for n in channels):
            return f"has {a['groups']} groups of {channels[0]} and {channels[1]} channels"
    vectors = NORMALIZATIONS | {*GATES, "dense", "matmul"}
    if kind in vectors and (not ins or not all(ins[: 1 + (kind == "matmul")])):
        return "reads no tensor with a size; expected one"
    if kind == "matmul" and len(ins) < 2:
        return f"reads {len(ins)} tensor; expected two"
    rank = len(ins[0]) if ins else 0
    axis = a.get("axis", ())
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    most = max(rank, len(outs[0]))
    if any(not -most <= n < max(most, 1) for n in axes):
        return f"works along axis {axis} of tensors of {most} sizes"
    order = a.get("permutation")
    if order is not None and sorted(order) != list(range(rank)):
        return f"puts the axes of {_shown(ins[0]) if ins else 'nothing'} in the order {order}"
    return None


def _shown(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape)) or "one number"
