"""What PyTorch took apart: a Program, its nodes as rules see them, and why a network cannot be read."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lolat
from lolat.errors import NetworkError
from lolat.graph import CONVOLUTIONS
from lolat.graph.kinds import GATES, NORMALIZATIONS, POOLINGS
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


# ---- A network that PyTorch took apart: its nodes, what is constant, the shapes at batch size 1.


@dataclass(frozen=True)
class Program:
    """A graph of ATen operations at batch size 1."""

    graph_module: Any
    inputs: frozenset[str]
    """The names of the placeholders that a caller fills."""
    outputs: int
    """How many of the last outputs are the caller's; before those, what is written to buffers."""


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


def is_made_for_batch(node: Any) -> bool:
    """Whether an operation makes what is as large as the batch, without an input: zeros(x.size(0), 8) or
    token.expand(x.size(0), -1, -1).

    At batch size 1 that is a size of 1 in front, which nobody writes for another reason.
    """
    size, name = arguments_of(node).get("size"), base_name(node)
    of_batch = isinstance(size, (tuple, list)) and len(size) > 1 and size[0] == 1
    return of_batch and (name == "expand" or name.startswith("new_") or not node.all_input_nodes)


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


# ---- Views, and which transpositions count.
#
# In PyTorch an image is (N, C, H, W) and tokens are (N, T, C). A transposition counts as a copy, whether
# PyTorch copies there or in what reads it. Where it only turns an image into tokens or back, as around a
# layer norm, it is free.

RESHAPES = frozenset(
    ["view", "_unsafe_view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze",
     "unsqueeze", "contiguous", "ravel", "alias", "detach", "clone", "lift_fresh_copy"]
)  # fmt: skip
"""Operations that show the same data in another shape; a copy belongs to what needs it."""
TRANSPOSITIONS = frozenset(
    ["permute", "transpose", "t", "numpy_T", "mT", "movedim", "moveaxis", "swapaxes", "swapdims", "adjoint"]
)  # fmt: skip
_FIRST = CONVOLUTIONS | POOLINGS | {"batch_norm", "group_norm", "instance_norm", "resize"}
_LAST = {"dense", "layer_norm", "rms_norm", "embedding", *GATES}
_MIXED = {"transpose", "matmul", "unfold", "reduce", "gather"}


def is_view(node: Any) -> bool:
    """Whether what an operation returns may share the memory of what it reads, as its schema says."""
    returns = getattr(getattr(node.target, "_schema", None), "returns", ())
    return any(r.alias_info is not None for r in returns)


def channel_axis(
    walker: Any, kind: str, inputs: Sequence[int], shape: tuple[int, ...]
) -> int | None:
    """The axis of the channels of what an operation writes: 1 of an image, -1 of tokens; None: unknown."""
    known = [walker.channels[i] for i in inputs if i in walker.channels]
    if kind in _FIRST and not (known and kind in NORMALIZATIONS):
        return 1 if len(shape) > 2 else None
    if kind in _LAST or kind in _MIXED:
        return -1 if kind in _LAST else None
    if kind == "reshape":
        stays = known and len(shape) > 1 and walker.shape(inputs[0])[known[0]] == shape[known[0]]
        return known[0] if stays else None
    alike = [i for i in inputs if len(walker.shape(i)) == len(shape)]
    return next((walker.channels[i] for i in alike if i in walker.channels), None)


def reshaped(walker: Any, call: Call) -> list[int]:
    """The same data in another shape; free."""
    source = walker.index(call.get("self", call.get("input")))
    if walker.shape(source) == call.shapes[0]:
        return [source] if call.op != "clone" else [walker.add(call, "identity", [source])]
    return [walker.add(call, "reshape", [source])]


def transposed(walker: Any, call: Call) -> list[int]:
    """A transposition: free where it turns an image into tokens or back, or moves axes of one element."""
    source = walker.index(call.get("self", call.get("input")))
    shape, channels = walker.shape(source), walker.channels.get(source)
    order = _permutation(call.node, len(shape))
    last = len(order) - 1
    to_last, to_first = (0, *range(2, last + 1), 1), (0, last, *range(1, last))
    turned = last > 1 and (
        (channels == 1 and order == to_last)
        or (channels == -1 and order == to_first and (last > 2 or _makes_image(call.node)))
        or (last > 2 and source in walker.builder.inputs and order in (to_last, to_first))
    )
    moving = [a for a in order if shape[a] > 1]
    free = turned or moving == sorted(moving)
    out = walker.add(call, "reshape" if free else "transpose", [source], permutation=order)
    walker.channels.pop(out, None)
    axis = None if channels is None else {1: 1, last: -1}.get(order.index(channels % len(order)))
    if axis is not None:
        walker.channels[out] = axis
    return [out]


def _permutation(node: Any, rank: int) -> tuple[int, ...]:
    """Which axis of the input each axis of the output is: of a tensor whose sizes are all different."""
    import torch

    made = node.target(torch.empty([*range(rank)], device="meta"), *node.args[1:], **node.kwargs)
    return tuple(made.shape)


def _makes_image(node: Any) -> bool:
    """Whether what reads tokens makes an image of them, or a convolution reads them as a signal."""
    return any(
        len(getattr(user.meta.get("val"), "shape", ())) > 3
        or base_name(user) in ("conv1d", "convolution", "batch_norm")
        or (base_name(user) in RESHAPES | {"dropout"} and _makes_image(user))
        for user in node.users
    )
