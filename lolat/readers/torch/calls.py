"""A node of an exported PyTorch program as the rules see it; views, and where channels are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lolat.graph import CONVOLUTIONS
from lolat.graph.kinds import NORMALIZATIONS, POOLINGS
from lolat.readers.rules import moved, swapped


@dataclass(frozen=True)
class Call:
    """A node as a rule sees it: its arguments by name, the shapes it writes, how it is called."""

    node: Any
    op: str  # "conv2d", without the underscore of an in-place one
    arguments: dict[str, Any]
    shapes: list[tuple[int, ...]]
    name: str
    """Of the layer in its module: "conv1", or "0" in a Sequential; "" for a plain operation."""
    path: str
    dtype: str

    def label(self, kind: str, suffix: str = "") -> str:
        """What an operation of this call is called; a mere number is that of its kind: "conv_0"."""
        label = f"{kind}_{self.name}" if self.name.isdigit() else self.name or kind
        return f"{label}_{suffix}" if suffix else label

    def get(self, name: str, default: Any = None) -> Any:
        """An argument; `default` when the operation has none of that name, or None in it."""
        value = self.arguments.get(name)
        return default if value is None else value


def dtype_name(value: Any) -> str:
    """float32, int64 ... of a torch tensor."""
    return str(value.dtype).removeprefix("torch.")


def is_mutable(node: Any) -> bool:
    """Whether an operation writes into its first argument."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def base_name(node: Any) -> str:
    """conv2d for aten.conv2d.default, relu for aten.relu_.default, mylib.op for others' operations."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return f"python.{getattr(node.target, '__name__', node.target)}"
    space, _, name = schema.name.partition("::")
    if schema.is_mutable and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if space == "aten" else f"{space}.{name}"


def arguments_of(node: Any) -> dict[str, Any]:
    """The arguments of a node by the names of the operation's schema, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(i): argument for i, argument in enumerate(node.args)} | dict(node.kwargs)
    arguments = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            arguments[argument.name] = node.args[position]
        else:
            arguments[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return arguments


def flat(value: Any) -> Sequence[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def indices_of(value: Any) -> list[int]:
    """The tensors in what a walker knows of a node."""
    if isinstance(value, list):
        return [i for i in value if isinstance(i, int)]
    return [value] if isinstance(value, int) else []


# ---- Views, and where the channels of a tensor are: which transpositions move data.
#
# In PyTorch an image is (N, C, H, W) and tokens are (N, T, C); a network moves the channels to the end in
# front of a layer norm and back behind it. Written channels last, as in Keras, the same network has no such
# transpositions: they are free here. All others count, as in Keras, whether or not a copy follows.

_RESHAPES = """
view _unsafe_view reshape view_as reshape_as flatten unflatten squeeze unsqueeze contiguous ravel
alias detach clone lift_fresh_copy
"""
_TRANSPOSITIONS = "permute transpose t numpy_T mT movedim moveaxis swapaxes swapdims adjoint"
_PARTS = """
slice select narrow chunk split split_with_sizes unsafe_chunk unsafe_split unbind tensor_split expand
expand_as diagonal to
"""
RESHAPES = frozenset(_RESHAPES.split())
"""Operations that show the same data in another shape; a copy belongs to what needs it."""
TRANSPOSITIONS = frozenset(_TRANSPOSITIONS.split())
VIEWS = RESHAPES - {"clone", "lift_fresh_copy"} | TRANSPOSITIONS | frozenset(_PARTS.split())
"""What changes along with the tensor that it is a view of."""

_FIRST = CONVOLUTIONS | POOLINGS | {"batch_norm", "group_norm", "instance_norm", "resize"}
_LAST = {"dense", "layer_norm", "rms_norm", "embedding", "lstm", "gru", "simple_rnn"}
_IMAGE = ("view", "reshape", "unflatten", "conv", "batch_norm", "pool", "group_norm", "upsample")


def channel_axis(
    walker: Any, kind: str, inputs: Sequence[int], shape: tuple[int, ...]
) -> int | None:
    """The axis of the channels of what an operation writes; None where it is not known."""
    if kind in _FIRST and not (kind in NORMALIZATIONS and inputs[0] in walker.channels):
        return 1 if len(shape) > 2 else None
    if kind in _LAST:
        return len(shape) - 1
    if kind in ("reshape", "transpose", "matmul", "unfold", "reduce", "gather"):
        return None
    known = [walker.channels[i] for i in inputs if i in walker.channels
             and len(walker.shape(i)) == len(shape)]  # fmt: skip
    return known[0] if known else None


def reshaped(walker: Any, call: Call) -> list[int]:
    """The same data in another shape; free. The channels stay known where they stay an axis."""
    source = walker.index(call.get("self", call.get("input")))
    before, after = walker.shape(source), call.shapes[0]
    if before == after:
        return [source] if call.op != "clone" else [walker.add(call, "identity", [source])]
    out = walker.add(call, "reshape", [source])
    axis = walker.channels.get(source)
    if axis is not None:
        size = before[axis]
        inside, behind = prod(before[:axis]), prod(before[axis + 1 :])
        for at, n in enumerate(after):
            if n == size and prod(after[:at]) == inside and prod(after[at + 1 :]) == behind:
                walker.channels[out] = at
    return [out]


def permutation(call: Call, rank: int) -> tuple[int, ...]:
    """Which axis of the input each axis of the output is."""
    if call.op == "permute":
        return tuple(int(d) % rank for d in call.get("dims"))
    if call.op in ("movedim", "moveaxis"):
        return moved(rank, call.get("source"), call.get("destination"))
    if call.op == "numpy_T":
        return tuple(reversed(range(rank)))
    if call.op in ("t", "mT", "adjoint"):
        return swapped(rank, -2, -1) if rank > 1 else (0,)
    first, second = (call.get(f"dim{i}", call.get(f"axis{i}", 0)) for i in (0, 1))
    return swapped(rank, first, second)


def transposed(walker: Any, call: Call) -> list[int]:
    """A transposition: free where it only moves the channels to where images or tokens have them."""
    source = walker.index(call.get("self", call.get("input")))
    shape = walker.shape(source)
    order = permutation(call, len(shape))
    axis = walker.channels.get(source)
    real = [a for a in order if shape[a] > 1]
    free = real == sorted(real) or _is_layout(walker, call, source, order)
    kind = "reshape" if free else "transpose"
    out = walker.add(call, kind, [source], permutation=order)
    if axis is not None:
        walker.channels[out] = order.index(axis)
    return [out]


def _is_layout(walker: Any, call: Call, source: int, order: tuple[int, ...]) -> bool:
    """Whether the channels alone move, between the second axis and the last."""
    last = len(order) - 1
    to_last = order == (0, *range(2, last + 1), 1)
    to_first = order == (0, last, *range(1, last))
    if last < 2 or not (to_last or to_first):
        return False
    axis = walker.channels.get(source)
    if last > 2 and source in walker.builder.inputs:
        return True  # an image as files have it
    if last == 2:
        # Of tokens it is the way back to an image or a signal only when one is made of them.
        return axis == 1 or (axis == 2 and _feeds_image(call.node))
    return axis == (1 if to_last else last)


def _feeds_image(node: Any) -> bool:
    """Whether what reads a node sees it as an image or a signal."""
    for user in node.users:
        name = str(user.target)
        if any(part in name for part in ("contiguous", "clone", "dropout")):
            if _feeds_image(user):
                return True
            continue
        rank = len(getattr(user.meta.get("val"), "shape", ()))
        if any(f"aten.{part}" in name or f"_{part}" in name for part in _IMAGE):
            return rank > 3 or "conv" in name or "norm" in name or "pool" in name
    return False
