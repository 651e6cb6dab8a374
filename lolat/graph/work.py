"""What a network asks of a device that runs its operations one after the other: products and bytes.

A product is `number` times (rows x depth) by (depth x columns): a dense layer, a batched product of
attention, a convolution as the product that it is (im2col). Everything else moves bytes. How many, and in
how many steps, depends on how the device runs networks (`lolat.graph.modes`): in half precision, compiled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

import numpy as np

from lolat.graph import Graph, Operation, is_convolution
from lolat.graph import kernel_terms as c
from lolat.graph.kinds import EXPONENTIALS, FREE, NORMALIZATIONS, POOLINGS
from lolat.graph.modes import AMP, FLOAT32, Mode

# ---- In which data types a device keeps a network's tensors, and which operations it runs as
# one step.
#
# Autocast's rules are those of PyTorch's documentation (torch.amp, operations that autocast to float16
# and to
# float32): products in half, sums and exponentials in float32, all else in the widest of its inputs. What
# torch.compile runs as one follows its Inductor: element-wise operations, and sums over the same elements,
# one after the other, read what comes from outside once and write what is needed outside.

GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
SLICES = frozenset(["slice", "split", "crop"])
GATHERS = frozenset(["embedding", "gather"])
IN_FLOAT32 = frozenset(
    ["layer_norm", "rms_norm", "unit_norm", "softmax", "log_softmax", "cumulative", "power", "rsqrt",
     "exponential", "log", "softplus", "reciprocal"]
)  # fmt: skip
"""What autocast computes in float32. Not group norms: timm's run in half, and those are what is known."""
ONE_STEP_RANK = 4  # of what PyTorch's fused attention takes; of others it is several steps
Pairs = list[tuple[int, float]]  # (tensor, bytes of an element)


def multiplies(kind: str) -> bool:
    """Whether operations of a kind multiply matrices, in one way or another."""
    return kind in ("dense", "matmul") or kind in GATES or is_convolution(kind)


@dataclass(frozen=True)
class Plan:
    """How a graph runs in a mode.

    `sizes`: (tensors,) bytes of an element; `attention`: operation -> those of its fused attention;
    `groups`: operations that run as one, where the device compiles; `channels_last`: (tensors,) whether
    the channels of an image lie last in memory.
    """

    graph: Graph
    mode: Mode
    sizes: list[float]
    attention: dict[int, tuple[int, ...]]
    groups: list[list[int]]
    channels_last: list[bool]
    origin: list[int]
    readers: dict[int, list[int]]
    written: dict[int, int]

    @classmethod
    def of(cls, graph: Graph, mode: Mode) -> Plan:
        """The plan of a graph."""
        origin = list(range(len(graph.tensors)))
        readers: dict[int, list[int]] = {}
        written = {}
        for i, o in enumerate(graph.operations):
            written.update(dict.fromkeys(o.outputs, i))
            if o.kind in FREE and o.inputs:
                for t in o.outputs:
                    origin[t] = origin[o.inputs[0]]
                continue
            for t in o.inputs:
                readers.setdefault(origin[t], []).append(i)
        attention = _attention(graph)
        plan = cls(
            graph, mode, _sizes(graph, mode, written, attention), attention, [],
            _channels_last(graph), origin, readers, written,
        )  # fmt: skip
        if mode.compiled:
            plan.groups.extend(plan._grouped())
        return plan

    def bytes_of(self, pairs: Iterable[tuple[int, float]]) -> tuple[float, float]:
        """(bytes whatever the batch, bytes of each sample) of tensors."""
        fixed = sample = 0.0
        for tensor, size in pairs:
            found = self.graph.tensors[tensor]
            if found.batched:
                sample += found.elements() * size
            else:
                fixed += found.elements() * size
        return fixed, sample

    def conversions(self, operation: Operation) -> list[tuple[int, float, float]]:
        """(tensor, its bytes, the bytes wanted) of what autocast converts for an operation."""
        if self.mode.dtype != AMP:
            return []
        half = multiplies(operation.kind)
        if not half and operation.kind not in IN_FLOAT32:
            return []
        want = 2.0 if half else 4.0
        computed = (t for t in operation.inputs if self._computed(t))
        return [(t, self.sizes[t], want) for t in computed if self.sizes[t] == 6.0 - want]

    def _computed(self, tensor: int) -> bool:
        """Whether a tensor is no parameter, which is converted once."""
        return self.origin[tensor] in self.written or self.graph.tensors[tensor].batched

    def eager(self, operation: Operation) -> tuple[Pairs, Pairs]:
        """What an operation that only moves reads and writes."""
        writes = [(t, self.sizes[t]) for t in operation.outputs]
        if operation.kind in SLICES or operation.kind in GATHERS:
            return writes, writes
        if operation.kind == "fill":
            return [], writes
        if operation.kind == "transpose" and self._only_seen(operation):
            return [], []
        wide = self.mode.dtype == AMP and operation.kind in IN_FLOAT32
        return [(t, 4.0 if wide else self.sizes[t]) for t in operation.inputs], writes

    def _only_seen(self, operation: Operation) -> bool:
        """Whether a transposition needs no copy: what reads it takes any order."""
        after = [
            self.graph.operations[i].kind
            for t in operation.outputs
            for i in self.readers.get(self.origin[t], ())
        ]
        return bool(after) and all(kind in SLICES or kind == "matmul" for kind in after)

    def together(self, group: Sequence[int]) -> tuple[Pairs, Pairs]:
        """What operations that run as one read from outside and write for outside."""
        inside, reads = set(group), dict[int, tuple[int, float]]()
        writes: Pairs = []
        if [self.graph.operations[i].kind in SLICES for i in group] == [True]:
            return [], []  # a view
        for i in group:
            o = self.graph.operations[i]
            for t in o.inputs:
                source = self.origin[t]
                if self.written.get(source) not in inside:
                    part = o.outputs[0] if o.kind in SLICES or o.kind in GATHERS else source
                    reads[source] = (part, self._stored(source))
            for t in o.outputs:
                if self._leaves(t, inside):
                    writes.append((t, self._stored(t)))
        return list(reads.values()), writes

    def _leaves(self, tensor: int, inside: set[int]) -> bool:
        """Whether something outside needs a tensor."""
        final = any(self.origin[t] == tensor for t in self.graph.outputs)
        return final or any(i not in inside for i in self.readers.get(tensor, ()))

    def _stored(self, tensor: int) -> float:
        """Bytes of an element in memory: what only products read is written as they read it."""
        users = self.readers.get(tensor, ())
        kinds = [self.graph.operations[i].kind for i in users]
        if self.mode.dtype == AMP and users and all(map(multiplies, kinds)):
            return 2.0
        return self.sizes[tensor]

    def _grouped(self) -> list[list[int]]:
        """The operations that only move, those that run as one together."""
        of: dict[int, int] = {}
        found: list[list[int]] = []
        elements: list[int] = []
        tensors = self.graph.tensors
        for i, o in enumerate(self.graph.operations):
            if o.kind in FREE or i in self.attention or multiplies(o.kind):
                continue
            seen = o.outputs if o.kind in SLICES or o.kind in GATHERS else (*o.inputs, *o.outputs)
            size = max((tensors[t].elements() for t in seen), default=0)
            before = [
                of[p]
                for t in o.inputs
                if (p := self.written.get(self.origin[t])) in of and tensors[t].batched
            ]
            able = [g for g in before if elements[g] == size]
            if able and o.kind not in POOLINGS:
                of[i] = max(able)
                found[of[i]].append(i)
                continue
            of[i] = len(found)
            found.append([i])
            elements.append(-1 if o.kind in POOLINGS else size)
        return found


def _attention(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Operation -> the fused attention that it is part of: from its scores to its mixture."""
    found: dict[int, tuple[int, ...]] = {}
    begun: int | None = None
    for i, o in enumerate(graph.operations):
        if not o.attributes.get("fused"):
            begun = None
        elif o.kind == "matmul" and begun is None:
            begun = i
        elif o.kind == "matmul" and begun is not None:
            group = tuple(range(begun, i + 1))
            begun = None
            if len(graph.tensors[graph.operations[group[0]].inputs[0]].shape) == ONE_STEP_RANK:
                found.update(dict.fromkeys(group, group))
    return found


def _sizes(
    graph: Graph, mode: Mode, written: dict[int, int], attention: dict[int, Any]
) -> list[float]:
    """(tensors,) bytes of an element."""
    whole = {"int64": 8.0, "float64": 8.0, "bool": 1.0, "int8": 1.0, "uint8": 1.0}
    half = mode.dtype not in (FLOAT32, AMP)
    sizes = [2.0 if half and "float" in t.dtype else whole.get(t.dtype, 4.0) for t in graph.tensors]
    if mode.dtype != AMP:
        return sizes
    for i, o in enumerate(graph.operations):
        if multiplies(o.kind) or i in attention:
            size = 2.0
        elif o.kind in IN_FLOAT32:
            size = 4.0
        elif o.inputs and (o.kind in FREE or o.kind in SLICES):
            size = sizes[o.inputs[0]]
        else:
            size = max((sizes[t] for t in o.inputs), default=4.0)
        for t in o.outputs:
            sizes[t] = size
    return sizes


def _channels_last(graph: Graph) -> list[bool]:
    """(tensors,) whether an image's channels lie last, because what made it wrote them so.

    A network of PyTorch that moves the channels to the end, and back in front of a convolution, does not
    copy for the way back: the convolution finds them last.
    """
    found = [False] * len(graph.tensors)
    for o in graph.operations:
        if not o.inputs:
            continue
        before, after = (graph.tensors[i].shape for i in (o.inputs[0], o.outputs[0]))
        if len(after) != 4:
            continue
        turned = len(before) == 4 and before != after
        if o.kind in FREE and turned and (before[0], before[3], *before[1:3]) == after:
            last = True
        elif o.kind in FREE and (turned or len(before) != 4):
            last = False
        else:
            last = any(found[i] for i in o.inputs)
        for t in o.outputs:
            found[t] = last
    return found


# ---- work ----------------------------------------

ATTENTION_TILE = 64  # positions that a fused attention works on at a time, and fills up to
IMAGE = 4  # channels at most of an image
SQUARE, WINDOW = (
    4,
    9,
)  # outputs, high and wide, that Winograd's F(4x4, 3x3) computes at once; its kernel
PLACES = float((SQUARE + 2) ** 2)
COLUMNS = (
    "operation", "kind", "number", "rows", "columns", "depth", "growing", "fixed", "sample", "squares",
    "narrow", "backward", "weights",
)  # fmt: skip
"""Of `works`: the operation that a step belongs to; its class; its product; what grows with the batch
(GROW_ROWS, GROW_NUMBER, GROW_DEPTH or nothing); bytes, and bytes of each sample; the squares of SQUARE
that the outputs of a 3x3 convolution of stride 1 are cut into; a product in half precision; of the backward
pass; bytes of weights among the fixed ones."""
GROW_ROWS, GROW_NUMBER, GROW_DEPTH = 1, 2, 3
BACKWARD = {
    c.ELEMENTS: 1.0, c.CURVES: 1.5, c.BATCH_NORM: 2.0, c.NORM: 2.0, c.GROUP_NORM: 2.0, c.SOFTMAX: 1.5,
}  # fmt: skip
"""What the backward pass of an operation that only moves reads and writes, relative to the forward pass:
the gradient of what came out, what was kept, the gradient of what went in; of norms twice. Others: once."""
ATTENTION_BACKWARD = 2.5  # as many multiply-accumulates: the scores are computed once more
DROPPED = 2.25  # elements that a dropout reads and writes for each: in, out, a byte of mask


@dataclass(frozen=True)
class Work:
    """Of steps, each (steps,): `kind`, an index into CLASSES; the product's `number`, `rows`, `columns`,
    `depth`, 0 where there is none; `bytes` read and written; `squares` of SQUARE outputs of a 3x3
    convolution of stride 1, for which there are faster ways (Winograd), 0 of others; `narrow`: in half
    precision; `operation`: the one of the graph; `backward`: of the backward pass; `weights`: those of the
    bytes that are a product's weights.
    """

    kind: np.ndarray
    number: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    depth: np.ndarray
    bytes: np.ndarray
    squares: np.ndarray
    narrow: np.ndarray
    operation: np.ndarray
    backward: np.ndarray
    weights: np.ndarray

    @property
    def macs(self) -> np.ndarray:
        """(steps,) multiply-accumulates of the products."""
        return self.number * self.rows * self.columns * self.depth

    def take(self, which: np.ndarray) -> Work:
        """Some of the steps."""
        return Work(*(getattr(self, name)[which] for name in self.__dataclass_fields__))

    def winograd(self) -> Work:
        """Convolutions with `squares` as Winograd's F(4x4, 3x3) has them: a product for each of the places
        of a square in which outputs and their borders are (Lavin and Gray 2016), whose inputs, kernels and
        outputs are written and read once more.
        """
        depth = self.depth / WINDOW
        elements = self.squares * (depth + self.columns) + depth * self.columns
        moved = self.bytes + 2.0 * PLACES * elements * np.where(self.narrow, 2.0, 4.0)
        return replace(
            self, number=np.full(len(self.kind), PLACES), rows=self.squares, depth=depth, bytes=moved,
            squares=np.zeros(len(self.kind)),
        )  # fmt: skip

    @classmethod
    def none(cls) -> Work:
        """No steps."""
        return at(np.zeros((0, len(COLUMNS))), 1)

    @classmethod
    def joined(cls, parts: Sequence[Work]) -> Work:
        """The steps of several, one after the other."""
        names = cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def at(table: np.ndarray, batch_size: int) -> Work:
    """The steps of a table of `works` at a batch size."""
    operation, kind, number, rows, columns, depth, growing, fixed, sample, *flags = table.T
    squares, narrow, backward, weights = flags
    return Work(
        kind.astype(int),
        number * np.where(growing == GROW_NUMBER, batch_size, 1),
        rows * np.where(growing == GROW_ROWS, batch_size, 1),
        columns,
        depth * np.where(growing == GROW_DEPTH, batch_size, 1),
        fixed + batch_size * sample,
        squares * np.where(growing == GROW_ROWS, batch_size, 1),
        narrow > 0,
        operation.astype(int),
        backward > 0,
        weights,
    )


def work_of(graph: Graph, batch_size: int = 1, mode: Mode | None = None) -> Work:
    """The work of a graph at `batch_size`; the table behind it is kept with the graph."""
    mode = mode or Mode()
    kept: dict[Mode, np.ndarray] = graph.cache.setdefault("works", {})
    if mode not in kept:
        kept[mode] = works(graph, mode)
    return at(kept[mode], batch_size)


def works(graph: Graph, mode: Mode) -> np.ndarray:
    """(steps, COLUMNS) of a graph, for any batch size: what `at` takes, and a cache on disk keeps."""
    plan = Plan.of(graph, mode)
    steps = _Steps(graph, mode, plan)
    for position, operation in enumerate(graph.operations):
        steps.operation = position
        if position in plan.attention:
            if plan.attention[position][-1] == position:
                steps.attention(plan.attention[position])
            continue
        if operation.kind in FREE:
            if mode.training and operation.attributes.get("rate"):
                steps.dropout(operation)
            continue
        if not mode.compiled:
            steps.casts(operation)
        if multiplies(operation.kind):
            steps.product(operation)
        elif not mode.compiled:
            steps.moves(moving_class(operation.kind), *plan.eager(operation))
    for group in plan.groups:
        steps.operation = group[-1]
        named = [moving_class(graph.operations[i].kind) for i in group]
        slow = next((x for x in SLOWEST if x in named), c.ELEMENTS)
        steps.moves(slow, *plan.together(group))
    if mode.training:
        steps.loss()
        steps.back()
    return np.array(steps.rows, float).reshape(-1, len(COLUMNS))


KIND, NUMBER, GROWING, FIXED, SQUARES, BACK = (
    COLUMNS.index(n) for n in ("kind", "number", "growing", "fixed", "squares", "backward")
)
SLOWEST = (c.NORM, c.GROUP_NORM, c.SOFTMAX, c.POOLS, c.SUMS, c.RESIZED, c.JOINED, c.MOVES)
"""Of operations that run as one, the class that the whole is of: the first that is there."""


def moving_class(kind: str) -> str:
    """The class of what is no product."""
    if kind in ("group_norm", "instance_norm"):
        return c.GROUP_NORM
    if kind in _NAMED:
        return _NAMED[kind]
    if kind in NORMALIZATIONS:
        return c.NORM
    if kind in POOLINGS:
        return c.POOLS
    if kind in EXPONENTIALS:
        return c.CURVES
    return c.MOVES if kind in _COPIES else c.ELEMENTS


_NAMED = {
    "batch_norm": c.BATCH_NORM, "softmax": c.SOFTMAX, "log_softmax": c.SOFTMAX, "reduce": c.SUMS,
    "concatenate": c.JOINED, "stack": c.JOINED, "embedding": c.ROWS, "gather": c.ROWS,
    "resize": c.RESIZED, **dict.fromkeys(SLICES, c.PARTS),
}  # fmt: skip
_COPIES = frozenset(
    ["pad", "transpose", "repeat", "roll", "sort", "scatter", "unfold", "cumulative", "fill"]
)


class _Steps:
    """Collects the rows of `works`."""

    def __init__(self, graph: Graph, mode: Mode, plan: Plan) -> None:
        self.graph, self.mode, self.plan = graph, mode, plan
        self.operation = 0
        self.rows: list[list[float]] = []

    def add(
        self, name: str, product: Sequence[float], growing: int, moved: tuple[float, float],
        squares: float = 0.0, weights: float = 0.0,
    ) -> None:  # fmt: skip
        """A step; `moved`: bytes whatever the batch, `weights` among them, and bytes of a sample."""
        narrow = any(product) and self.mode.product_bytes < 4
        kind = c.CLASSES.index(name)
        flags = (squares, narrow, False, weights)
        self.rows.append([self.operation, kind, *product, growing, *moved, *flags])

    def moves(self, name: str, reads: Any, writes: Any) -> None:
        """A step that only moves: (tensor, bytes of an element) pairs."""
        moved = self.plan.bytes_of([*reads, *writes])
        if any(moved):
            self.add(name, (0, 0, 0, 0), 0, moved)

    def dropout(self, operation: Operation) -> None:
        """What is drawn at random in training; free in inference."""
        tensor = operation.inputs[0]
        fixed, sample = self.plan.bytes_of([(tensor, self.plan.sizes[tensor])])
        self.add(c.ELEMENTS, (0, 0, 0, 0), 0, (DROPPED * fixed, DROPPED * sample))

    def loss(self) -> None:
        """A cross-entropy of what the network returns: softmax and its gradient."""
        for tensor in self.graph.outputs:
            moved = self.plan.bytes_of([(tensor, 4.0), (tensor, 4.0)])
            self.add(c.SOFTMAX, (0, 0, 0, 0), 0, moved)

    def back(self) -> None:
        """The backward pass, a step for each gradient: of what a product read, and of its weights."""
        for row in self.rows[::-1]:
            name = c.CLASSES[int(row[KIND])]
            number, high, wide, deep = row[NUMBER : NUMBER + 4]
            back = [*row[:BACK], True, row[BACK + 1]]
            if name in (c.ATTENTION, c.MASKED):
                back[NUMBER] = ATTENTION_BACKWARD * number
                back[FIXED : FIXED + 2] = [2 * n for n in row[FIXED : FIXED + 2]]
                self.rows.append(back)
            elif name in c.PRODUCTS:
                if name != c.STEM:  # nobody asks for the gradient of an image
                    back[NUMBER:GROWING] = [number, high, deep, wide]
                    self.rows.append(back)
                growing = GROW_DEPTH if row[GROWING] == GROW_ROWS else row[GROWING]
                of_weights = [number, deep, wide, high, growing, *row[FIXED:BACK], True, 0.0]
                of_weights[SQUARES - NUMBER] = 0.0
                self.rows.append([*row[:NUMBER], *of_weights])
            else:
                factor = BACKWARD.get(name, 1.0)
                back[FIXED : FIXED + 2] = [factor * n for n in row[FIXED : FIXED + 2]]
                self.rows.append(back)

    def casts(self, operation: Operation) -> None:
        """What autocast converts before an operation of another type, a step each."""
        for tensor, have, want in self.plan.conversions(operation):
            self.moves(c.CASTS, [(tensor, have)], [(tensor, want)])

    def attention(self, group: Sequence[int]) -> None:
        """Scores, softmax and mixture in one: the scores are never written."""
        first, last = self.graph.operations[group[0]], self.graph.operations[group[-1]]
        tensors = self.graph.tensors
        query, key = first.inputs[:2]
        steps, size = tensors[query].shape[-2:]
        keys = tensors[key].shape[-2]
        number = tensors[query].elements() / (steps * size)
        added = [
            o.inputs[1]
            for o in map(self.graph.operations.__getitem__, group[1:-1])
            if o.kind == "add" and len(o.inputs) > 1
        ]
        moved = [query, key, last.inputs[1], *added, last.outputs[0]]
        wide = [ATTENTION_TILE * ceil(n / ATTENTION_TILE) for n in (steps, keys)]
        self.add(
            c.MASKED if added else c.ATTENTION,
            (number, wide[0], wide[1], 2 * size),  # both products
            GROW_NUMBER if tensors[query].batched else 0,
            self.plan.bytes_of([(t, self.mode.product_bytes) for t in moved]),
        )

    def product(self, operation: Operation) -> None:
        """A dense layer, a product of two tensors, a convolution, a recurrent layer."""
        tensors, a = self.graph.tensors, operation.attributes
        source, out = operation.inputs[0], operation.outputs[0]
        written = tensors[out].elements()
        size = self.mode.product_bytes
        rows_grow = GROW_ROWS if tensors[out].batched else 0
        if operation.kind == "matmul":
            high, wide = tensors[out].shape[-2:] if len(tensors[out].shape) > 1 else (1, written)
            product = (written / max(high * wide, 1), high, wide, a["contracted"])
            moved = self.plan.bytes_of([(t, size) for t in (*operation.inputs, out)])
            self.add(c.BATCHED, product, GROW_NUMBER if tensors[out].batched else 0, moved)
            return
        through = self.plan.bytes_of([(source, size), (out, size)])
        if operation.kind == "dense":
            wide, deep = a["out_features"], a["in_features"]
            self._with_weights(c.DENSE, (1, written / wide, wide, deep), rows_grow, through)
        elif operation.kind in GATES:
            wide, deep = GATES[operation.kind] * a["units"], a["in_features"] + a["units"]
            product = (a["timesteps"], tensors[source].elements() / a["in_features"] / a["timesteps"],
                       wide, deep)  # fmt: skip
            self._with_weights(c.RECURRENT, product, rows_grow, through)
        else:
            self._convolution(operation, rows_grow, through)

    def _convolution(self, operation: Operation, grow: int, through: tuple[float, float]) -> None:
        tensors, a = self.graph.tensors, operation.attributes
        source, out = operation.inputs[0], operation.outputs[0]
        groups, window = a["groups"], prod(a["kernel"])
        product: tuple[float, ...] = (
            groups, tensors[out].elements() / a["out_channels"], a["out_channels"] / groups,
            window * a["in_channels"] / groups,
        )  # fmt: skip
        if operation.kind == "transposed_conv":
            product = (groups, tensors[source].elements() / a["in_channels"],
                       window * a["out_channels"] / groups, a["in_channels"] / groups)  # fmt: skip
        if a.get("pad_before"):  # a copy of its own
            read = self.plan.bytes_of([(source, self.plan.sizes[source])])
            self.add(c.MOVES, (0, 0, 0, 0), 0, (2 * read[0], 2 * read[1]))
        name = c.CONVOLUTION
        if operation.kind == "depthwise_conv":
            last = self.mode.channels_last or self.plan.channels_last[source]
            name = c.DEPTHWISE_LAST if last else c.DEPTHWISE
        elif groups > 1:
            name = c.GROUPED
        elif a["in_channels"] <= IMAGE:
            name = c.STEM
        elif window == 1:
            name = c.POINTWISE
        squares = 0.0
        if (
            name == c.CONVOLUTION
            and tuple(a["kernel"]) == (3, 3)
            and set(a.get("strides", (1,))) == {1}
        ):
            shape = tensors[out].shape
            sides = shape[2:] if shape[1] == a["out_channels"] else shape[1:-1]
            squares = float(prod(ceil(side / SQUARE) for side in sides))
        self._with_weights(name, product, grow, through, squares)

    def _with_weights(
        self, name: str, product: Sequence[float], grow: int, moved: tuple[float, float],
        squares: float = 0.0,
    ) -> None:  # fmt: skip
        number, _, wide, deep = product
        biased = bool(self.graph.operations[self.operation].attributes.get("bias"))
        kernels = 1 if name == c.RECURRENT else number  # one for all its steps
        weights = kernels * wide * (deep + biased) * self.mode.product_bytes
        self.add(name, product, grow, (moved[0] + weights, moved[1]), squares, weights)
