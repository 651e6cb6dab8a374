"""A network lowered to steps that a device runs one after the other: products, and steps that move bytes.

A product is `number` times (rows x depth) by (depth x columns): a dense layer, a batched product of
attention, a convolution by im2col. All other steps move bytes. The bytes and the number of steps depend on
the execution mode (`lolat.graph.modes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import NamedTuple

from lolat.arrays import np
from lolat.graph import Graph, Operation, cached_on_graph, kinds
from lolat.graph.backward import Backward, backward_of, has_trained_parameters, open_outputs
from lolat.graph.kinds import GATES, VIEWS, kind_of
from lolat.graph.lowering import Lowering, Pairs
from lolat.graph.modes import DEFAULT_MODE, Mode

# ---- The classes of operations for which `predictors.roofline` has terms.

DENSE, BATCHED, POINTWISE, CONVOLUTION = "dense", "batched", "pointwise", "convolution"
GROUPED, DEPTHWISE, ATTENTION = "grouped", "depthwise", "attention"
ELEMENTS, NORM, BATCH_NORM, GROUP_NORM = "elements", "norm", "batch_norm", "group_norm"
POOLS, SUMS, MOVES, PARTS = "pools", "sums", "moves", "parts"
JOINED, RESIZED = "joined", "resized"
PRODUCTS = {
    DENSE: "dense layers", BATCHED: "products of two tensors", POINTWISE: "1x1 convolutions",
    CONVOLUTION: "convolutions", GROUPED: "grouped convolutions", DEPTHWISE: "depthwise convolutions",
    ATTENTION: "attention",
}  # fmt: skip
"""Class with products -> its name in a sentence. Recurrent layers are DENSE. ATTENTION is fused attention:
its products and its softmax are one step."""
MOVING = {
    ELEMENTS: "element-wise operations", NORM: "layer norms", BATCH_NORM: "batch norms",
    GROUP_NORM: "group norms", POOLS: POOLS, SUMS: SUMS, MOVES: "copies", PARTS: "slices",
    JOINED: "concatenations", RESIZED: "resized images",
}  # fmt: skip
"""Class without products -> its name in a sentence. ELEMENTS also has conversions and gathered rows; NORM
also has softmax; MOVES: copies in another order."""
CALLED = PRODUCTS | MOVING
CLASSES = (*CALLED,)
SHAPE = ("number", "rows", "columns", "depth")
"""Names of a product's sizes: `number` times (rows x depth) by (depth x columns)."""

# ---- The steps of a network

ATTENTION_TILE = 64  # positions of a tile of a fused attention; the last tile is padded


class Step(NamedTuple):
    """A step of a network: a row of the table that `step_table` returns."""

    operation: int  # position in the graph
    kind: int  # index into CLASSES
    number: float  # sizes of the product, see SHAPE; all 0 if there is none
    rows: float
    columns: float
    depth: float
    growing: int  # the size that grows with the batch: GROW_ROWS to IN_TURN, or 0 for none
    fixed: float  # bytes that do not depend on the batch size
    sample: float  # bytes of each sample
    backward: bool = False


STEP_COLUMNS = Step._fields
GROW_ROWS, GROW_NUMBER, GROW_DEPTH = 1, 2, 3
IN_TURN = 4  # the rows grow, and each product waits for the one before, as in a recurrent layer
Product = tuple[float, float, float, float]  # number, rows, columns, depth
NO_PRODUCT = (0.0, 0.0, 0.0, 0.0)
ATTENTION_BACKWARD = 2.5  # MACs of its backward / forward pass; the scores are computed once more
LOSS_BACK = 1.5  # bytes of a softmax's backward / forward pass: moves two gradients and the result
DROPPED = 2.25  # elements that a dropout moves per input element: input, output, a byte of mask


class Workload(NamedTuple):
    """The steps of a network; each field has the shape (steps,).

    `kind`: index into CLASSES; `number`, `rows`, `columns`, `depth`: sizes of the product, 0 without one;
    `bytes`: bytes read and written; `operation`: position in the graph; `backward`: True in the backward
    pass; `sequential`: number of products that must each wait for the one before, 0 outside of recurrent
    layers.
    """

    kind: np.ndarray
    number: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    depth: np.ndarray
    bytes: np.ndarray
    operation: np.ndarray
    backward: np.ndarray
    sequential: np.ndarray

    @property
    def macs(self) -> np.ndarray:
        """Multiply-accumulates of the products, (steps,)."""
        return self.number * self.rows * self.columns * self.depth

    def is_of(self, *classes: str) -> np.ndarray:
        """(steps,) True for the steps that belong to one of these classes."""
        named = np.array([name in classes for name in CLASSES])
        return named[self.kind]

    def take(self, which: np.ndarray) -> Workload:
        """The selected steps; `which`: a mask or indices."""
        return Workload(*(array[which] for array in self))

    @classmethod
    def joined(cls, parts: Sequence[Workload]) -> Workload:
        """The steps of several workloads, one after the other."""
        parts = parts or [workload_at(np.zeros((0, len(STEP_COLUMNS))), 1)]
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def workload_at(table: np.ndarray, batch_size: int) -> Workload:
    """The steps of a `step_table` at a batch size."""
    column = dict(zip(STEP_COLUMNS, table.T, strict=True))

    def grown(name: str, *how: int) -> np.ndarray:
        return column[name] * np.where(np.isin(column["growing"], how), batch_size, 1)

    return Workload(
        kind=column["kind"].astype(int),
        number=grown("number", GROW_NUMBER),
        rows=grown("rows", GROW_ROWS, IN_TURN),
        columns=column["columns"],
        depth=grown("depth", GROW_DEPTH),
        bytes=column["fixed"] + batch_size * column["sample"],
        operation=column["operation"].astype(int),
        backward=column["backward"] > 0,
        sequential=column["number"] * (column["growing"] == IN_TURN),
    )


def work_of(graph: Graph, batch_size: int = 1, mode: Mode = DEFAULT_MODE) -> Workload:
    """The workload of a graph at `batch_size`; its table is cached with the graph."""
    graph.check_batch(batch_size)
    return workload_at(step_table(graph, mode), batch_size)


@cached_on_graph
def step_table(graph: Graph, mode: Mode) -> np.ndarray:
    """The steps of a graph as an array (steps, STEP_COLUMNS), for any batch size; see `workload_at`.

    `lolat.tables` caches it on disk.
    """
    lowering = Lowering(graph, mode)
    steps = _Steps(lowering)
    for position, operation in enumerate(graph.operations):
        steps.operation = position
        for tensor, have, want in lowering.conversions(operation):  # each conversion is a step
            steps.moves(ELEMENTS, [(tensor, have)], [(tensor, want)])
        if operation.kind == "attention":
            steps.attention(operation)
            continue
        if operation.kind in VIEWS:
            a = operation.attributes
            if a.get("rate") and (mode.training or a.get("always")):
                steps.dropout(operation)
            elif not mode.fused and operation.kind not in ("dropout", "identity"):
                steps.view()
            continue
        if operation.kind in kinds.MULTIPLYING:
            steps.product(operation)
        elif not mode.fused:
            kind = kind_of(operation.kind)
            back = None if operation.kind in _BY_OPERAND else kind.backward
            back = 1.0 if kinds.STORED in operation.attributes else back
            reads, writes = lowering.eager(operation)
            if operation.kind in AS_SLOW_IN_HALF:
                reads, writes = (
                    [(t, max(size, 4.0)) for t, size in pairs] for pairs in (reads, writes)
                )
            # Large images are resized as fast as they are pooled; the rate of small ones is lower.
            name = POOLS if is_large_resize(graph, operation) else kind.work
            steps.moves(name, reads, writes, back)
    for group in lowering.groups:
        steps.operation = group[-1]
        working = (o for i in group if kinds.STORED not in (o := graph.operations[i]).attributes)
        names = {kind_of(o.kind).work for o in working}
        slowest = next((x for x in SLOWEST[not mode.training :] if x in names), ELEMENTS)
        reads, writes = lowering.together(group)
        mirrored, more = (sum(lowering.bytes_of(x)) for x in (reads + writes, lowering.kept(group)))
        steps.moves(slowest, reads, writes, 1.0 + more / max(mirrored, 1.0))
    if mode.training:
        for tensor in open_outputs(graph):  # the loss: a cross-entropy, softmax and its gradient
            steps.moves(NORM, [(tensor, 4.0)], [(tensor, 4.0)], LOSS_BACK)
        steps.backward_steps()
    for position, operation in enumerate(() if mode.fused else graph.operations):
        steps.operation = position
        steps.extra_forward_steps(operation)
    return np.array(steps.rows, float).reshape(-1, len(STEP_COLUMNS))


LARGE_IMAGE = 96 * 96
"""More pixels than any resized image of a timed network has: HRNet, GhostNetV2 and CoaT resize to 7 to 72
pixels on a side."""


def is_large_resize(graph: Graph, operation: Operation) -> bool:
    """True if an operation resizes images to more than LARGE_IMAGE pixels."""
    if operation.kind != "resize":
        return False
    sizes = (graph.tensors[t].shape for t in (operation.inputs[0], operation.outputs[0]))
    pairs = [*zip(*sizes, strict=False)]  # the regions of a detector are more than the images
    return pairs[0][0] == pairs[0][1] and prod(b for a, b in pairs if a != b) > LARGE_IMAGE


_BY_OPERAND = kinds.ELEMENTWISE | kinds.SLICES
"""Kinds whose backward steps come from `Lowering.gradients`."""
AS_SLOW_IN_HALF = frozenset(["softmax", "log_softmax"])
"""Kinds that take about as long in half precision as in float32: 0.94 to 1.0 of the time on an H100."""
SLOWEST = (BATCH_NORM, NORM, GROUP_NORM, POOLS, SUMS, RESIZED, JOINED, MOVES)
"""Classes from slowest on: a group of fused operations has the first class that one of its operations has,
else ELEMENTS. At inference a batch norm is element-wise."""


class _Steps:
    """Collects the rows of `step_table`.

    `backs`: for each row, bytes of its backward pass / bytes of its forward pass; None if
    `Lowering.gradients` gives them.
    """

    def __init__(self, lowering: Lowering) -> None:
        self.lowering, self.tensors = lowering, lowering.graph.tensors
        self.size = 2 if lowering.mode.half else 4  # bytes of an element that a product reads
        self.operation = 0
        self.rows: list[Step] = []
        self.backs: list[float | None] = []

    def add(
        self, name: str, product: Product, growing: int, moved: tuple[float, float],
        back: float | None = 1.0, backward: bool = False,
    ) -> None:  # fmt: skip
        """Append a step.

        `growing`: the size of `product` that grows with the batch, 0 for none; `moved`: (bytes that do not
        depend on the batch size, bytes per sample); `back`: see `backs`.
        """
        kind = CLASSES.index(name)
        self.rows.append(Step(self.operation, kind, *product, growing, *moved, backward))
        self.backs.append(back)

    def moves(self, name: str, reads: Pairs, writes: Pairs, back: float | None = 1.0) -> None:
        """Append a step without a product; one that moves no bytes is a view, which compiled code drops."""
        moved = self.lowering.bytes_of([*reads, *writes])
        if any(moved):
            self.add(name, NO_PRODUCT, 0, moved, back)
        elif not self.lowering.mode.fused:
            self.view(back)

    def view(self, back: float | None = 1.0) -> None:
        """Append a step that the host launches and that moves no bytes."""
        self.add(MOVES, NO_PRODUCT, 0, (0.0, 0.0), back)

    def extra_forward_steps(self, operation: Operation) -> None:
        """Append the extra steps that eager PyTorch runs for an operation in the forward pass.

        These compute constants again, fill the result of a padding, or copy a tensor that is padded by 0.
        """
        a = operation.attributes
        computed, views = a.get(kinds.AHEAD, (0, 0))
        for moved in [1.0] * computed + [0.0] * views:
            self.add(ELEMENTS, NO_PRODUCT, 0, (moved, 0.0))
        padded = operation.inputs[:1] if "pad_before" in a else operation.outputs
        written = [(t, self.lowering.sizes[t]) for t in padded]
        if "filled" in a:
            self.moves(ELEMENTS, [], written)
        if "copied" in a:
            self.moves(MOVES, written, written)

    def dropout(self, operation: Operation) -> None:
        """Append a dropout that drops elements."""
        tensor = operation.inputs[0]
        self.moves(ELEMENTS, [(tensor, DROPPED * self.lowering.sizes[tensor])], [])

    def backward_steps(self) -> None:
        """Append the backward pass: a step for each gradient that is computed."""
        part = backward_of(self.lowering.graph)
        of_operation: dict[int, list[tuple[Step, float | None]]] = {}
        for step, factor in zip(self.rows, self.backs, strict=True):
            of_operation.setdefault(step.operation, []).append((step, factor))
        for position in np.flatnonzero(part.runs)[::-1].tolist():
            self.operation = position
            if not self.lowering.mode.fused:
                for t in self.lowering.graph.operations[position].outputs:
                    each = (t, self.lowering.sizes[t])
                    for _ in range(part.gradients[t] - 1):
                        self.backward_step(ELEMENTS, [each, each, each])
            self.zeros(position, part)
            for step, factor in reversed(of_operation.get(position, ())):
                self.gradient(step, factor, part)

    def zeros(self, position: int, part: Backward) -> None:
        """Append the step that writes the zeros to which PyTorch adds the gradients of gathered rows.

        The zeros fill the whole table or the gathered tensor. TensorFlow's gradient holds only the rows.
        """
        o, sizes = self.lowering.graph.operations[position], self.lowering.sizes
        if self.lowering.graph.framework == "keras":
            return
        if o.kind == "gather" and part.first[position]:
            self.backward_step(MOVES, [(o.inputs[0], sizes[o.inputs[0]])])
        elif o.kind == "embedding" and has_trained_parameters(o):
            elements = o.attributes.get("rows", 0) * o.attributes.get("out_features", 0)
            self.add(MOVES, NO_PRODUCT, 0, (elements * sizes[o.outputs[0]], 0.0), backward=True)

    def backward_step(self, name: str, pairs: Pairs) -> None:
        """Append a step of the backward pass without a product."""
        self.add(name, NO_PRODUCT, 0, self.lowering.bytes_of(pairs), backward=True)

    def gradient(self, step: Step, factor: float | None, part: Backward) -> None:
        """Append the backward pass of a step; `factor`: the step's item of `backs`."""
        name, back = CLASSES[step.kind], step._replace(backward=True)
        if factor is None:
            for name, pairs in self.lowering.gradients(step.operation, part.needs):
                self.backward_step(name, pairs)
        elif name in PRODUCTS and name != ATTENTION:
            o = self.lowering.graph.operations[step.operation]
            if o.attributes.get("bias") and has_trained_parameters(o):
                self.backward_step(SUMS, [(t, self.size) for t in o.outputs[:1]])
            if part.first[step.operation]:
                self.rows.append(back._replace(columns=step.depth, depth=step.columns))
            if part.second[step.operation]:
                growing = step.growing if step.growing in (0, GROW_NUMBER) else GROW_DEPTH
                self.rows.append(back._replace(rows=step.depth, depth=step.rows, growing=growing))
        else:
            if name == ATTENTION:
                back, factor = back._replace(number=ATTENTION_BACKWARD * step.number), 2.0
            self.rows.append(back._replace(fixed=factor * step.fixed, sample=factor * step.sample))

    def attention(self, operation: Operation) -> None:
        """Append a fused attention: one step with both products and the softmax, which writes no scores."""
        a, query = operation.attributes, self.tensors[operation.inputs[0]]
        high, wide = (ATTENTION_TILE * ceil(a[n] / ATTENTION_TILE) for n in ("queries", "keys"))
        number = query.elements() / (a["queries"] * a["head_size"])
        both = (number, high, wide, a["head_size"] + a["value_size"])  # the two products as one
        moved = self.moved(*operation.inputs, operation.outputs[0])
        self.add(ATTENTION, both, GROW_NUMBER if query.batched else 0, moved)

    def moved(self, *tensors: int) -> tuple[float, float]:
        """(bytes independent of the batch size, bytes per sample) that a product reads and writes."""
        return self.lowering.bytes_of((t, self.size) for t in tensors)

    def product(self, operation: Operation) -> None:
        """Append a dense layer, a product of two tensors, a convolution or a recurrent layer."""
        a, kind, reads = operation.attributes, operation.kind, operation.inputs[:1]
        source, out = self.tensors[reads[0]], self.tensors[operation.outputs[0]]
        written, name, growing, kernels = out.elements(), DENSE, GROW_ROWS, 1
        product: Product
        if kind == "matmul":
            high, wide = out.shape[-2:] if len(out.shape) > 1 else (1, written)
            product = (written / max(high * wide, 1), high, wide, a["contracted"])
            name, growing, kernels, reads = BATCHED, GROW_NUMBER, 0, operation.inputs
            right = self.tensors[operation.inputs[-1]]
            if not right.batched and (len(right.shape) < 3 or a.get("joins")):
                # One product for all samples, as in a layer whose weights the network computes.
                wide = right.elements() / max(a["contracted"], 1)
                product, growing = (1, written / max(wide, 1), wide, a["contracted"]), GROW_ROWS
        elif kind == "dense":
            kernels = a.get("experts", 1)
            rows = written / a["out_features"] / kernels  # as if all experts got equally many rows
            product = (kernels, rows, a["out_features"], a["in_features"])
        elif kind in GATES:
            features, units, timesteps = a["in_features"], a["units"], a["timesteps"]
            sequences, growing = source.elements() / features / timesteps, IN_TURN
            state = a.get("projection", units)
            product = (timesteps, sequences, GATES[kind] * units, features + state)
        else:
            kernels, window = a["groups"], prod(a["kernel"])
            name = POINTWISE if window == 1 else CONVOLUTION
            if kind == "depthwise_conv" or kernels > 1:
                name = DEPTHWISE if kind == "depthwise_conv" else GROUPED
            group_in, group_out = a["in_channels"] / kernels, a["out_channels"] / kernels
            product = (kernels, written / a["out_channels"], group_out, window * group_in)
            if kind == "transposed_conv":
                places = source.elements() / a["in_channels"]
                product = (kernels, places, window * group_out, group_in)
            if a.get("pad_before"):  # a device copies the tensor to pad it
                pair = (reads[0], self.lowering.sizes[reads[0]])
                self.add(MOVES, NO_PRODUCT, 0, self.lowering.bytes_of([pair, pair]))
        fixed, sample = self.moved(*reads, operation.outputs[0])
        weights = kernels * product[2] * (product[3] + bool(a.get("bias"))) * self.size
        if self.lowering.recasts(operation):  # converted from float32, which reads twice the bytes
            self.add(ELEMENTS, NO_PRODUCT, 0, (3.0 * weights, 0.0))
        self.add(name, product, growing if out.batched else 0, (fixed + weights, sample))
