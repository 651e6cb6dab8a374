"""Puts a Graph on a tape: what a framework's backend writes down of it, operation by operation.

The predefined blocks and Keras' networks are written channels last, PyTorch's and ONNX' networks channels
first; all backends build both. Where a framework's images are channels first and the Graph's last, images
flow channels first between convolutions, pools and batch norms, and are turned round where an operation
works along the channels (a dense layer, a layer norm), as PyTorch's own ConvNeXt does.

Operations that move, drop or merge elements every backend builds of the same steps, which are methods of
its tape; what an operation does to its axes, `shapes` says. There is a maker for each kind of operation
that the predefined blocks have, and for the few more of the networks in `benchmarks/zoo`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

from lolat.errors import MeasuringError
from lolat.graph import CONVOLUTIONS, Graph, Operation, Tensor
from lolat.graph.kinds import ELEMENTWISE, POOLINGS
from microbench.backends import shapes
from microbench.backends.shapes import Index, Shape

SPATIAL = CONVOLUTIONS | POOLINGS | {"batch_norm"}
"""Kinds that have the channels on the second axis."""
ANY = (ELEMENTWISE - {"softmax", "log_softmax", "glu", "one_hot", "prelu"}) | {
    "concatenate", "identity", "dropout",
}  # fmt: skip
"""Kinds to which it is all the same where the channels are."""
RAW = frozenset({"flatten", "reshape"})
"""Kinds that take the elements as they lie."""
SHARING = RAW | {"identity", "dropout", "slice", "split", "crop"}
"""Kinds whose result may share its memory with their operand."""


class Tape:
    """Where a framework writes down what is built; a node is whatever it gives back.

    Shapes are at batch size 1; a target of -1 is as many as there are. These are a framework's own steps:
    """

    channels_first: ClassVar[bool] = True
    input: Callable[[Tensor, Shape], Any]  # an input of a shape
    constant: Callable[[Tensor], Any]  # an operand that nothing writes: ones
    grown: Callable[
        [Any, Shape], Any
    ]  # a node of a shape once for each sample, along the first axis
    shape: Callable[[Any], tuple[int | None, ...] | None]  # None, all or an axis: not known yet
    permute: Callable[
        [Any, Sequence[int]], Any
    ]  # its axes in another order, a view where there are views
    copied: Callable[[Any], Any]  # a view with the copy that it costs sooner or later
    reshape: Callable[[Any, Shape], Any]
    index: Callable[[Any, Index], Any]  # a part of it: an integer or slice for each axis
    concatenate: Callable[[Sequence[Any], int], Any]  # nodes put together along an axis
    pad: Callable[
        [Any, Sequence[tuple[int, int]]], Any
    ]  # so many zeros before and after, of each axis
    tile: Callable[[Any, Shape], Any]  # each axis so many times
    matmul: Callable[[Any, Any], Any]
    dense: Callable[[Any, int, int, bool], Any]
    """A dense layer along the last axis: node, features in and out, whether there is a bias."""
    binary: Callable[[str, Any, Any], Any]
    """Two operands element by element, by the kind of operation; the right one may be a number."""

    def merge(self, kind: str, nodes: Sequence[Any]) -> Any:
        """Several operands element by element, one after the other."""
        result = nodes[0]
        for node in nodes[1:]:
            result = self.binary("add" if kind == "average" else kind, result, node)
        return self.binary("multiply", result, 1 / len(nodes)) if kind == "average" else result


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
    batched: bool = True
    dtype: str = "float32"
    reusable: bool = False
    """Whether nothing else reads the first operand, so that its memory may be overwritten."""
    turned: bool = False
    """Whether the operands lie channels first, although the Graph has them last."""

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

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What the Graph says of the operation."""
        return self.operation.attributes

    @property
    def axis(self) -> Any:
        """The attribute of that name, as the operands lie; None where the Graph does not say."""
        axis, rank = self.attributes.get("axis"), len(self.out)
        if isinstance(axis, int) and self.turned and rank > 2:
            return first(range(rank)).index(axis % rank)
        return axis

    @property
    def axis_or_last(self) -> int:
        """The axis, or the last one."""
        return self.axis if isinstance(self.axis, int) else -1

    def target(self, shape: Shape) -> Shape:
        """What a reshape to `shape` is to be told, so that it works at every batch size."""
        return (-1, *shape[1:]) if self.batched else shape

    def reshape(self, node: Any, shape: Shape, before: Shape | None = None) -> Any:
        """`node` in the shape that is `shape` at batch size 1; as it is where it has that, `before`."""
        return node if before == shape else self.tape.reshape(node, self.target(shape))


Maker = Callable[[Call], Any]


def first(shape: Sequence[int]) -> Shape:
    """A channels-last shape, channels first."""
    return (shape[0], shape[-1], *shape[1:-1])


def last(shape: Sequence[int]) -> Shape:
    """A channels-first shape, channels last."""
    return (shape[0], *shape[2:], shape[1])


def at_batch(tensor: Tensor, shape: Shape, batch_size: int) -> Shape:
    """`shape` (at batch size 1) at another batch size; some other axis than the first never grows."""
    return (shape[0] * batch_size, *shape[1:]) if tensor.batched and shape else shape


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
    turning = tape.channels_first and is_channels_last(graph)
    readers = graph.consumers()
    values: dict[int, Value] = {}
    for i in graph.inputs:
        shape = graph.tensors[i].shape
        users = {graph.operations[at].kind for at in readers.get(i, ())}
        turned = turning and len(shape) > 3 and bool(users & (SPATIAL | ANY | RAW))
        shape = first(shape) if turned else shape
        values[i] = Value(tape.input(graph.tensors[i], shape), shape, turned)
    own = {i for o in graph.operations if o.kind not in SHARING for i in o.outputs} - {
        *graph.outputs
    }
    reusable = {
        i for i in own if len(readers.get(i, ())) == 1
    }  # in memory of their own, and read once
    for operation in graph.operations:
        for i in operation.inputs:
            if i not in values:
                tensor = graph.tensors[i]
                node = tape.constant(tensor)
                node = tape.grown(node, tensor.shape) if tensor.batched else node
                values[i] = Value(node, tensor.shape)
        call = _call(graph, tape, operation, values, turning)
        if reusable.intersection(operation.inputs[:1]):
            call = replace(call, reusable=True)
        try:
            nodes = _made(makers, call)
        except Exception as error:  # whatever a framework raises for what does not fit
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:400]
            raise MeasuringError(
                f"the {backend} backend cannot build operation {operation.kind!r} "
                f"({operation.full_name!r}): {reason}"
            ) from error
        for i, node, shape in zip(operation.outputs, nodes, call.outs, strict=True):
            values[i] = Value(node, shape, call.turned and len(shape) > 2)
    return [values[i].node for i in graph.outputs], [values[i].shape for i in graph.inputs]


def _call(
    graph: Graph, tape: Tape, operation: Operation, values: Mapping[int, Value], turning: bool
) -> Call:
    """An operation with its operands as it wants them."""
    written = [graph.tensors[i] for i in operation.outputs]
    operands, turned = _laid(tape, operation, [values[i] for i in operation.inputs], turning)
    if operation.kind == "repeat" and written[0].batched:  # along the batch: nothing else grows it
        operands = [
            v if graph.tensors[i].batched else replace(v, node=tape.grown(v.node, v.shape))
            for v, i in zip(operands, operation.inputs, strict=True)
        ]
    if turning and operation.kind == "reshape" and not _reorders(operation):
        # One position per channel: an image already.
        turned = len(written[0].shape) > 3 and prod(written[0].shape[1:-1]) == 1
    return Call(
        tape, operation, [v.node for v in operands], [v.shape for v in operands],
        [first(t.shape) if turned and len(t.shape) > 2 else t.shape for t in written],
        written[0].batched, written[0].dtype, turned=turned,
    )  # fmt: skip


def _made(makers: Mapping[str, Maker], call: Call) -> list[Any]:
    """The outputs of an operation. ValueError, saying why, where it cannot be built."""
    maker = makers.get(call.operation.kind)
    if maker is None:
        raise ValueError("there is nothing to build this kind with")
    made = maker(call)
    nodes = list(made) if isinstance(made, (list, tuple)) else [made]
    for node, wanted in zip(nodes, call.outs, strict=True):
        shape = call.tape.shape(node)
        if shape is not None and (
            len(shape) != len(wanted)
            or any(n not in (None, m) for n, m in zip(shape, wanted, strict=True))
        ):
            raise ValueError(f"from {call.ins} to {wanted}: it came out as {shape}")
    return nodes


def _laid(
    tape: Tape, operation: Operation, values: list[Value], turning: bool
) -> tuple[list[Value], bool]:
    """Operands as the operation wants them, and whether what it writes is turned."""
    if not turning or not values or (operation.kind in RAW and not _reorders(operation)):
        return values, False
    turned = operation.kind in SPATIAL or (
        operation.kind in ANY
        and len({len(v.shape) for v in values}) == 1
        and any(v.turned for v in values)
    )
    return [_turn(tape, v, turned) for v in values], turned


def _reorders(operation: Operation) -> bool:
    """Whether a reshape is a view of another order of the axes."""
    return "permutation" in operation.attributes


def _turn(tape: Tape, value: Value, turned: bool) -> Value:
    """A value channels first, or as the Graph has it."""
    rank = len(value.shape)
    if value.turned is turned or (turned and rank < 3):
        return value
    change = first if turned else last
    return Value(tape.permute(value.node, change(range(rank))), change(value.shape), turned)


# ---- Operations that every backend builds of the same steps

CONSTANTS = {"maximum": 0.5, "minimum": 0.5, "power": 3.0}
"""The other operand of an operation that has one alone: a constant of the network; else 1.5."""


def reshape(c: Call) -> Any:
    """A view; of another order of the axes where the Graph says so, or channels only change place."""
    order = None
    if c.tape.channels_first:  # elsewhere it costs nothing, as the Graph counts it
        permutation = c.attributes.get("permutation")
        order = (
            shapes.channel_order(c.shape, c.out)
            if permutation is None
            else shapes.transposition(c.shape, c.out, permutation)
        )
    return c.reshape(c.x, c.out) if order is None else c.tape.permute(c.x, order)


def transpose(c: Call) -> Any:
    """The order of the axes that gives the shape; else all of a sample as one matrix."""
    order = shapes.transposition(c.shape, c.out, c.attributes.get("permutation"))
    if order is not None:
        return c.tape.copied(c.tape.permute(c.x, order))
    rows = c.target((1, 0))[0]
    flat = c.tape.reshape(c.x, (rows, prod(c.shape[1:-1]), c.shape[-1]))
    return c.reshape(c.tape.copied(c.tape.permute(flat, (0, 2, 1))), c.out)


def parts(c: Call) -> list[Any]:
    """One part of the first operand for each output."""
    nodes = []
    for part, out in zip(shapes.parts(c.shape, c.outs, c.attributes), c.outs, strict=True):
        node, index, shape = c.x, *(part or ((), ()))
        if part is None:
            rows = shapes.flat_rows(c.shape, out)
            node = c.reshape(c.x, (rows, prod(c.shape) // rows))
            index = (slice(None), slice(0, prod(out) // rows, 1))
        nodes.append(c.reshape(c.tape.index(node, index), out, shape))
    return nodes


def _repeat(c: Call) -> Any:
    raised, times = shapes.repetitions(c.shape, c.out)
    return c.tape.tile(c.reshape(c.x, raised, c.shape), times)


def _merge(kind: str, c: Call) -> Any:
    if len(c.inputs) > 1:
        return c.tape.merge(kind, c.inputs)
    return c.tape.binary("add" if kind == "average" else kind, c.x, CONSTANTS.get(kind, 1.5))


def dense(c: Call) -> Any:
    """A dense layer along the last axis, or one between shapes of as many elements."""
    a = c.attributes
    inside, made = a["in_features"], a["out_features"]
    if c.shape[-1] == inside and c.out == (*c.shape[:-1], made):
        return c.tape.dense(c.x, inside, made, a["bias"])
    rows, rest = divmod(prod(c.shape), inside)
    if rest or rows * made != prod(c.out):
        raise ValueError(f"no product of {inside} features goes from {c.shape} to {c.out}")
    flat = c.reshape(c.x, (rows, inside))
    return c.reshape(c.tape.dense(flat, inside, made, a["bias"]), c.out)


def matmul(c: Call, turn_right: bool = True) -> Any:
    """A product over the last axis of the left and the last but one of the right operand, or its last.

    Where neither fits, or without `turn_right`, a batch of products of as many elements.
    """
    summed = c.attributes["contracted"]
    (left, right), (a, b) = c.ins[:2], c.inputs[:2]
    if len(left) > 1 and len(right) > 1 and left[-1] == summed:
        plain = right[-2] == summed and right[-1] == c.out[-1]
        if not plain and turn_right and right[-1] == summed and right[-2] == c.out[-1]:
            b = c.tape.permute(b, (*range(len(right) - 2), len(right) - 1, len(right) - 2))
            plain = True
        if plain:
            product = c.tape.matmul(a, b)
            ranks = len(left), len(right)
            return product if max(ranks) == len(c.out) else c.reshape(product, c.out)
    batch, rows, columns = shapes.product_sizes(left, right, c.out, summed)
    count = -1 if c.batched else batch
    a, b = c.tape.reshape(a, (count, rows, summed)), c.tape.reshape(b, (count, summed, columns))
    return c.reshape(c.tape.matmul(a, b), c.out, (batch, rows, columns))


MERGES = ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "average"]
MAKERS: dict[str, Maker] = {
    **dict.fromkeys(("reshape", "flatten", "squeeze", "expand_dims"), reshape),
    "transpose": transpose,
    "concatenate": lambda c: c.tape.concatenate(
        c.inputs, shapes.concatenation_axis(c.ins, c.out, c.axis)
    ),
    **dict.fromkeys(("slice", "split", "crop"), parts),
    "pad": lambda c: c.tape.pad(
        c.x, shapes.padding(c.shape, c.out, c.attributes.get("padding", ()))
    ),
    "repeat": _repeat,
    **{kind: partial(_merge, kind) for kind in MERGES},
    "scale": lambda c: c.tape.binary("multiply", c.x, 0.125),
    # As Keras' Rescaling: a product and a sum.
    "rescale": lambda c: c.tape.binary("subtract", c.tape.binary("multiply", c.x, 1 / 127.5), 1.0),
    "dense": dense,
    "matmul": matmul,
    "identity": lambda c: c.x,
}
"""Kind of operation -> how every backend builds it."""
