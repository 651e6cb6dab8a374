"""What a Graph does not say of an operation and its shapes tell: axes, orders, sizes of a product.

A Graph knows what an operation costs, not all that it does. Where several answers fit the shapes (which
of two transpositions, where a slice begins), one is taken that moves as many elements. All functions raise
ValueError, saying why, where none fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from math import prod
from typing import Any, Protocol

from lolat.errors import MeasuringError
from lolat.graph import CONVOLUTIONS, Graph, Operation, Tensor
from lolat.graph.kinds import ELEMENTWISE, POOLINGS

Shape = tuple[int, ...]


def concatenation_axis(ins: Sequence[Shape], out: Shape) -> int:
    """The axis along which operands are put together, the last that fits."""
    for axis in reversed(range(len(out))):
        rests = {(*s[:axis], *s[axis + 1 :]) for s in (*ins, out)}
        if len(rests) == 1 and sum(s[axis] for s in ins) == out[axis]:
            return axis
    raise ValueError(f"no axis puts {list(ins)} together to {out}")


def stacking_axis(ins: Sequence[Shape], out: Shape) -> int:
    """The new axis of a stack."""
    for axis in range(len(out)):
        if out[axis] == len(ins) and (*out[:axis], *out[axis + 1 :]) == ins[0]:
            return axis
    raise ValueError(f"no axis stacks {list(ins)} to {out}")


def channel_order(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """The order of the axes where only the channels go to the other end; None where it is not that."""
    rank = len(before)
    if rank < 3 or len(after) != rank or before == after:
        return None
    for order in ((0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))):
        if tuple(before[i] for i in order) == after:
            return order
    return None


def transposition(before: Shape, after: Shape) -> tuple[int, ...] | None:
    """The first order of the axes, not theirs, that gives the shape; the batch stays where it can."""
    if sorted(before) != sorted(after):
        return None
    start = 1 if before[0] == after[0] else 0
    for order in permutations(range(start, len(before))):
        full = (*range(start), *order)
        if full != tuple(range(len(before))) and tuple(before[i] for i in full) == after:
            return full
    return None


def reduced_axes(before: Shape, after: Shape) -> tuple[int, ...]:
    """Axes that a reduction folds, the batch last of all."""
    for axes in _folds(before, after):
        return axes
    raise ValueError(f"no axes reduce {before} to {after}")


def _folds(before: Shape, after: Shape) -> Iterator[tuple[int, ...]]:
    axes = [*range(1, len(before)), 0]
    for count in range(1, len(before) + 1):
        for chosen in combinations(axes, count):
            kept = tuple(n for i, n in enumerate(before) if i not in chosen)
            if after in (kept, tuple(1 if i in chosen else n for i, n in enumerate(before))):
                yield tuple(sorted(chosen))


def repetitions(before: Shape, after: Shape) -> tuple[int, ...]:
    """How often each axis is repeated."""
    pairs = list(zip(after, before, strict=False))
    if len(before) != len(after) or any(n % was for n, was in pairs):
        raise ValueError(f"{before} does not repeat to {after}")
    return tuple(n // was for n, was in pairs)


def padding(before: Shape, after: Shape) -> list[tuple[int, int]]:
    """(before, after) of each axis, half of what is added each side."""
    more = [n - was for n, was in zip(after, before, strict=True)]
    if min(more) < 0:
        raise ValueError(f"a padding does not go from {before} to {after}")
    return [(n // 2, n - n // 2) for n in more]


def product_sizes(left: Shape, right: Shape, out: Shape, summed: int) -> tuple[int, int, int]:
    """(products side by side, rows, columns) with these elements and this many multiplications."""
    sizes = prod(left), prod(right), prod(out)
    batch, rest = divmod(sizes[0] * sizes[1], sizes[2] * summed**2)
    if rest or not batch or sizes[0] % (batch * summed) or sizes[1] % (batch * summed):
        raise ValueError(f"no product over {summed} of {left} and {right} makes {out}")
    return batch, sizes[0] // (batch * summed), sizes[1] // (batch * summed)


def cuts(
    before: Shape, after: Shape, starts: dict[int, int]
) -> tuple[list[tuple[int, int, int]], int | None] | None:
    """((axis, start, size) of each axis that is cut, the axis that goes or None); None if not so.

    `starts`: where the next part of an axis begins; moved on.
    """
    if len(after) == len(before) and all(n <= was for n, was in zip(after, before, strict=True)):
        found = []
        for axis, (n, was) in enumerate(zip(after, before, strict=True)):
            if n < was:
                start = min(starts.get(axis, 0), was - n)
                starts[axis] = start + n
                found.append((axis, start, n))
        return found, None
    for axis in (*range(1, len(before)), 0):
        if (*before[:axis], *before[axis + 1 :]) == after:
            start = min(starts.get(axis, 0), before[axis] - 1)
            starts[axis] = start + 1
            return [(axis, start, 1)], axis
    return None


def flat_rows(before: Shape, after: Shape) -> int:
    """Rows of the flattened operand, of each of which the first elements are taken."""
    rows = before[0] if after[0] == before[0] else 1
    if prod(after) > prod(before) or prod(after) % rows or prod(before) % rows:
        raise ValueError(f"{after} is no part of {before}")
    return rows


# ---- A Graph for frameworks whose images are channels first: which operand lies how, and
# paddings.
#
# The predefined blocks and Keras' networks are written channels last, PyTorch's and ONNX' networks channels
# first; both are built. Of a Graph that is channels last, images flow channels first between convolutions,
# pools and batch norms, and are turned round where an operation works along the channels (a dense layer, a
# layer norm), as PyTorch's own ConvNeXt does. A Graph that is channels first is built as it is written.


SPATIAL = CONVOLUTIONS | POOLINGS | {"batch_norm", "group_norm", "instance_norm", "prelu", "resize"}
"""Kinds that have the channels on the second axis."""
ANY = (ELEMENTWISE - {"softmax", "log_softmax", "glu", "one_hot", "prelu"}) | {
    "concatenate", "identity", "dropout",
}  # fmt: skip
"""Kinds to which it is all the same where the channels are."""
RAW = frozenset({"flatten", "reshape"})
"""Kinds that take the elements as they lie."""


class Tape(Protocol):
    """Where a framework's builder writes down what it builds; a node is whatever it gives back."""

    def input(self, tensor: Tensor, shape: Shape) -> Any:
        """An input of `shape` at batch size 1."""

    def constant(self, tensor: Tensor) -> Any:
        """An operand that nothing writes."""

    def grown(self, node: Any, shape: Shape) -> Any:
        """`node`, of `shape`, once for each sample of the batch, along the first axis."""

    def permute(self, node: Any, order: Sequence[int]) -> Any:
        """`node` with its axes in another order."""

    def shape(self, node: Any) -> Shape | None:
        """Shape of `node` at batch size 1; None where it is not known yet."""


@dataclass(frozen=True)
class Value:
    """A tensor on the tape; `turned`: channels first, although the Graph has them last."""

    node: Any
    shape: Shape
    turned: bool = False


@dataclass(frozen=True)
class Call:
    """One operation: operands on the tape with their shapes, and the shapes that are to come out.

    All shapes are at batch size 1, as the operands lie on the tape.
    """

    tape: Any
    operation: Operation
    inputs: list[Any]
    ins: list[Shape]
    outs: list[Shape]
    batched: bool
    dtype: str
    reusable: bool
    """Whether nothing else reads the first operand, so that its memory may be overwritten."""

    @property
    def x(self) -> Any:
        """The first operand."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """Shape of the first operand."""
        return self.ins[0]

    @property
    def out(self) -> Shape:
        """Shape of the first output."""
        return self.outs[0]

    def target(self, shape: Shape) -> Shape:
        """What a reshape to `shape` is to be told, so that it works at every batch size."""
        return (-1, *shape[1:]) if self.batched else shape


Maker = Callable[[Call], Any]


def first(shape: Sequence[int]) -> Shape:
    """A channels-last shape, channels first."""
    return (shape[0], shape[-1], *shape[1:-1])


def last(shape: Sequence[int]) -> Shape:
    """A channels-first shape, channels last."""
    return (shape[0], *shape[2:], shape[1])


def is_channels_last(graph: Graph) -> bool:
    """Whether a Graph's images are channels last: by its convolutions, else by square images."""
    votes = 0
    for operation in graph.operations:
        if operation.kind in CONVOLUTIONS and operation.inputs:
            shape = graph.tensors[operation.inputs[0]].shape
            channels = operation.attributes["in_channels"]
            votes += (shape[-1] == channels) - (shape[1] == channels)
    if not votes:
        images = (t.shape for t in graph.tensors if len(t.shape) == 4)
        votes = sum(
            (s[1] == s[2] != s[3]) - (s[2] == s[3] != s[1]) for s in images if prod(s[1:3]) > 1
        )
    return votes >= 0


def build(
    graph: Graph, tape: Tape, makers: Mapping[str, Maker], backend: str
) -> tuple[list[Any], list[Shape]]:
    """Put `graph` on `tape`: (nodes of its outputs, shapes of its inputs at batch size 1).

    MeasuringError names an operation that cannot be built, and says why.
    """
    turning = is_channels_last(graph)
    values: dict[int, Value] = {}
    readers = graph.consumers()
    keep = {*graph.inputs, *graph.outputs}
    for i in graph.inputs:
        shape = graph.tensors[i].shape
        users = {graph.operations[at].kind for at in readers.get(i, ())}
        turned = turning and len(shape) > 3 and bool(users & (SPATIAL | ANY | RAW))
        shape = first(shape) if turned else shape
        values[i] = Value(tape.input(graph.tensors[i], shape), shape, turned)
    for operation in graph.operations:
        for i in operation.inputs:
            if i not in values:
                values[i] = _constant(tape, graph.tensors[i])
        written = [graph.tensors[i] for i in operation.outputs]
        operands, turned = _laid(tape, operation, [values[i] for i in operation.inputs], turning)
        if (
            operation.kind == "repeat" and written[0].batched
        ):  # along the batch: nothing else grows it
            own = [graph.tensors[i].batched for i in operation.inputs]
            operands = [
                v if b else replace(v, node=tape.grown(v.node, v.shape))
                for v, b in zip(operands, own, strict=True)
            ]
        if operation.kind in RAW and turning:  # one position per channel: an image already
            shape = written[0].shape
            turned = len(shape) > 3 and prod(shape[1:-1]) == 1 and operation.kind == "reshape"
        call = Call(
            tape,
            operation,
            [v.node for v in operands],
            [v.shape for v in operands],
            [first(t.shape) if turned and len(t.shape) > 2 else t.shape for t in written],
            written[0].batched,
            written[0].dtype,
            _is_reusable(graph, operation, readers, keep),
        )
        try:
            nodes = _made(makers, call)
        except Exception as error:  # whatever a framework raises for what does not fit
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
            raise MeasuringError(
                f"the {backend} backend cannot build operation {operation.kind!r} "
                f"({operation.full_name!r}): {reason}"
            ) from error
        for i, node, shape in zip(operation.outputs, nodes, call.outs, strict=True):
            values[i] = Value(node, shape, turned and len(shape) > 2)
    return [values[i].node for i in graph.outputs], [values[i].shape for i in graph.inputs]


def _constant(tape: Tape, tensor: Tensor) -> Value:
    node = tape.constant(tensor)
    return Value(tape.grown(node, tensor.shape) if tensor.batched else node, tensor.shape)


def _made(makers: Mapping[str, Maker], call: Call) -> list[Any]:
    """The outputs of an operation. ValueError, saying why, where it cannot be built."""
    maker = makers.get(call.operation.kind)
    if maker is None:
        raise ValueError("there is nothing to build this kind with")
    made = maker(call)
    nodes = list(made) if isinstance(made, (list, tuple)) else [made]
    for node, wanted in zip(nodes, call.outs, strict=True):
        shape = call.tape.shape(node)
        if shape is not None and shape != wanted:
            raise ValueError(f"from {call.ins} to {wanted}: it came out as {shape}")
    return nodes


def _laid(
    tape: Tape, operation: Operation, values: list[Value], turning: bool
) -> tuple[list[Value], bool]:
    """Operands as the operation wants them, and whether what it writes is turned."""
    if not turning or operation.kind in RAW or not values:
        return values, False
    ranks = {len(v.shape) for v in values}
    if operation.kind in SPATIAL:
        return [_turned(tape, v) for v in values], True
    if operation.kind in ANY and len(ranks) == 1 and any(v.turned for v in values):
        return [_turned(tape, v) for v in values], True
    return [_as_written(tape, v) for v in values], False


def _turned(tape: Tape, value: Value) -> Value:
    rank = len(value.shape)
    if value.turned or rank < 3:
        return value
    return Value(tape.permute(value.node, first(range(rank))), first(value.shape), True)


def _as_written(tape: Tape, value: Value) -> Value:
    if not value.turned:
        return value
    return Value(tape.permute(value.node, last(range(len(value.shape)))), last(value.shape))


def _is_reusable(
    graph: Graph, operation: Operation, readers: Mapping[int, list[int]], keep: set[int]
) -> bool:
    """Whether nobody else needs the first operand; what may share its memory with others does not count."""
    if not operation.inputs or operation.inputs[0] in keep:
        return False
    source = operation.inputs[0]
    writer = next((o for o in graph.operations if source in o.outputs), None)
    shares = writer is None or writer.kind in RAW | {
        "identity",
        "dropout",
        "slice",
        "split",
        "crop",
    }
    return not shares and len(readers.get(source, ())) == 1


# ---- The windows of convolutions and pools, channels first: which padding gives the size that
# a Graph has.


@dataclass(frozen=True)
class Window:
    """A convolution's or pool's window on the spatial axes, and the padding that gives the output."""

    kernel: Shape
    strides: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def symmetric(self) -> bool:
        """Whether as much is padded behind as in front."""
        return self.before == self.after


def window(call: Call) -> Window:
    """The window of a convolution or pool, from its attributes and the sizes before and after.

    Padding is as much on both sides where that gives the size, as PyTorch's networks have it; else
    what Keras' "same" has: the odd element behind. A stride that is not known is what the sizes say.
    """
    a = call.operation.attributes
    kernel = tuple(int(n) for n in a["kernel"])
    inside, outside = call.shape[2:], call.out[2:]
    strides = a.get("strides") or [-(-n // m) for n, m in zip(inside, outside, strict=True)]
    dilation = a.get("dilation") or (1,) * len(kernel)
    pairs = [
        _padding(*sizes) for sizes in zip(inside, outside, kernel, strides, dilation, strict=True)
    ]
    return Window(
        kernel,
        tuple(int(n) for n in strides),
        tuple(int(n) for n in dilation),
        tuple(p[0] for p in pairs),
        tuple(p[1] for p in pairs),
    )


def _padding(size: int, wanted: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """(before, after) of one axis."""
    reach = (kernel - 1) * dilation + 1
    total = max(0, (wanted - 1) * stride + reach - size)
    half = -(-total // 2)
    if (size + 2 * half - reach) // stride + 1 == wanted:
        return half, half
    return total // 2, total - total // 2


def transposed_padding(call: Call) -> tuple[Shape, Shape, Shape]:
    """(strides, padding on both sides, output padding) of a transposed convolution."""
    a = call.operation.attributes
    inside, outside = call.shape[2:], call.out[2:]
    kernel = [int(n) for n in a["kernel"]]
    strides = a.get("strides") or [max(1, m // n) for n, m in zip(inside, outside, strict=True)]
    dilation = a.get("dilation") or (1,) * len(kernel)
    padding, extra = [], []
    for n, m, k, s, d in zip(inside, outside, kernel, strides, dilation, strict=True):
        more = (n - 1) * s + (k - 1) * d + 1 - m
        padding.append(max(0, -(-more // 2)))
        extra.append(2 * padding[-1] - more)
    return tuple(int(s) for s in strides), tuple(padding), tuple(extra)
