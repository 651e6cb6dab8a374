"""What PyTorch took apart: a Program, its nodes as rules see them, and why a network cannot be read."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import lolat
from lolat.errors import NetworkError
from lolat.graph import CONVOLUTIONS
from lolat.graph.kinds import NORMALIZATIONS, POOLINGS
from lolat.readers.rules import moved, swapped
from lolat.units import one_line, shortened

# ---- Why a PyTorch network cannot be read, in one line that names the line of the user's code.

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOISE = re.compile(r"^(?:\w+Error|Exception): |\(unhinted: .*?\)|\(Size-like symbols: .*?\)")


def source_line(trace: str | None) -> str:
    """ " at net.py:12" from the text of a traceback: its last line of the user's own code; else ""."""
    return _named(_FRAME.findall(trace or ""))


def user_line(error: BaseException) -> str:
    """The same from an exception and what caused it."""
    cause: BaseException | None = error
    while cause is not None:
        frames = [(f.filename, str(f.lineno)) for f in traceback.extract_tb(cause.__traceback__)]
        if line := _named(frames):
            return line
        cause = cause.__cause__ or cause.__context__
    return source_line(str(error))


def _named(frames: list[tuple[str, str]]) -> str:
    """The last frame of the user's own files; of an installed package that is not PyTorch, if none is."""
    frames = [f for f in frames if os.path.exists(f[0]) and not _is_ours(f[0])]
    own = [f for f in frames if "-packages/" not in f[0].replace("\\", "/")]
    file, line = (own or frames or [("", "")])[-1]
    near = os.path.relpath(file) if file else ""  # as a person in the working directory writes it
    return f" at {file if near.startswith('..') else near}:{line}" if file else ""


def reason(error: BaseException) -> str:
    """What went wrong, in a person's words where the exception is a known one."""
    text, kind = str(error), type(error).__name__
    traced = "symbolically traced variables cannot be used as inputs to control flow" in text
    if traced or kind == "GuardOnDataDependentSymNode" or "data-dependent" in text.lower():
        return "what it does depends on the values of a tensor, not on shapes alone"
    return shortened(_NOISE.sub("", one_line(error)))


def _is_ours(file: str) -> bool:
    """Whether a file belongs to PyTorch, to Python, or to LoLat."""
    file, package, python = (
        os.path.abspath(path).replace("\\", "/")
        for path in (file, os.path.dirname(lolat.__file__), os.path.dirname(os.__file__))
    )
    of_python = file.startswith(f"{python}/") and "-packages/" not in file
    return "-packages/torch/" in file or file.startswith(f"{package}/") or of_python


# ---- A network that torch.export took apart: its nodes, what is constant, shapes at any batch size.

Sizes = Callable[[Any, Any, bool], tuple[tuple[int, ...], bool]]
"""(a node, one of its tensors or its only one, whether an input grows with the batch) -> (shape at batch
size 1, whether the tensor grows with the batch)."""


@dataclass
class Program:
    """A graph of ATen operations. `inputs`: the names of the placeholders that a caller fills."""

    graph_module: Any
    inputs: frozenset[str]
    outputs: int
    """How many of the last outputs are the caller's; before those, what is written to buffers."""
    sizes: Sizes
    warnings: list[str] = field(default_factory=list)
    prefix: str = ""  # of module paths, left out


def is_tensor(value: Any) -> bool:
    """Whether what a node yields is a tensor (not a size, not several tensors)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def tensors_of(value: Any) -> list[Any]:
    """The tensors that a node yields, None in place of what is none."""
    if isinstance(value, (tuple, list)):
        return [v if is_tensor(v) else None for v in value]
    return [value if is_tensor(value) else None]


def constants_and_inputs(signature: Any) -> tuple[frozenset[str], int]:
    """(names of the placeholders that a caller fills, number of outputs that a caller gets)."""
    kinds = [spec.kind.name for spec in signature.output_specs]
    inputs = {s.arg.name for s in signature.input_specs if s.kind.name == "USER_INPUT"}
    return frozenset(inputs), kinds.count("USER_OUTPUT")


def numbers(value: Any, node: Any) -> tuple[int, ...]:
    """The shape of a tensor; NetworkError where a size depends on the values of another tensor."""
    if all(isinstance(n, int) for n in value.shape):
        return tuple(value.shape)
    line = source_line(node.meta.get("stack_trace"))
    raise NetworkError(
        f"the size of what {node.name!r} makes{line} depends on the values of a tensor (as that of "
        "x[x > 0] does), so the network has no one latency; give a module whose shapes depend on shapes "
        "alone"
    )


def at_two_batches(first: Any, second: Any | None) -> tuple[Sizes, list[str]]:
    """Sizes by comparing exports at batch sizes 1 and 2, and remarks where they do not go together.

    `second` None: the network works at batch size 1 alone.
    """
    pairs: dict[int, tuple[Any, Any]] = {}
    same = second is not None and _paired(first, second, pairs)
    growth: dict[tuple[int, int], int] = {}  # (id of a node, which of its tensors) -> times as many
    odd: list[str] = []
    for one, two in pairs.values() if same else ():
        values = (tensors_of(node.meta.get("val")) for node in (one, two))
        for at, (a, b) in enumerate(zip(*values, strict=False)):
            if a is None or b is None:
                continue
            ours, theirs = prod(numbers(a, one)), prod(numbers(b, two))
            growth[id(one), at] = 1 if ours == theirs else 2
            if theirs not in (ours, 2 * ours):
                odd.append(one.name)

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        mine = tensors_of(node.meta.get("val"))
        at = next((i for i, v in enumerate(mine) if v is value), 0)
        times = growth.get((id(node), at)) if same else None
        return numbers(value, node), grows if times is None else times > 1

    warnings = []
    if second is not None and not same:
        warnings.append(
            "the network does other operations at batch size 2 than at 1 (its code asks for the batch "
            "size); counted as at batch size 1, times the batch size"
        )
    elif odd:
        warnings.append(
            f"{len(odd)} tensors do not grow evenly with the batch size (first {odd[0]!r}); counted as at "
            "batch size 1, times the batch size"
        )
    return sizes, warnings


def _paired(first: Any, second: Any, pairs: dict[int, tuple[Any, Any]]) -> bool:
    """Fill `pairs` (id of a node -> both nodes); False when the graphs are not of the same operations."""
    ours, theirs = list(first.graph.nodes), list(second.graph.nodes)
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours, theirs, strict=True):
        inner = submodule(first, a)
        if a.op != b.op or (inner is None and str(a.target) != str(b.target)):
            return False
        if inner is not None and not _paired(inner, submodule(second, b), pairs):
            return False
        pairs[id(a)] = (a, b)
    return True


def submodule(graph_module: Any, node: Any) -> Any | None:
    """The graph inside a graph that a node names (for a call under no_grad, autocast), else None."""
    if node.op != "get_attr":
        return None
    module: Any = graph_module
    for part in str(node.target).split("."):
        module = getattr(module, part, None)
    return module if hasattr(module, "graph") else None


# ---- A node as the rules see it.


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
    known = {a.name: node.kwargs.get(a.name, a.default_value) for a in schema.arguments}
    return known | dict(zip(known, node.args, strict=False))


def flat(value: Any) -> Sequence[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


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
