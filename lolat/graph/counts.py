"""What an operation costs, counted: one small formula per kind of operation, in a table.

The terms are those of the documentation (docs/counting.md): ACTS, INP, FLOPs (1 MAC = 1 FLOP), traffic,
weights, ops. A formula gets the elements that the operation reads and writes, at some batch size. An
operation whose kind has no row is reported by name and counted as memory traffic, never as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lolat.errors import InputError
from lolat.graph import Graph, Operation, kind_label
from lolat.graph.kinds import (
    ELEMENTWISE,
    EXPONENTIALS,
    FREE,
    NORMALISATIONS,
    PASSES,
    POOLINGS,
    by_kind,
)
from lolat.graph.kinds import GROUPS as GROUPS
from lolat.graph.kinds import KINDS as KINDS

# ---- What only a whole graph tells of its operations: the longest path, and what goes in and
# comes out.


def border(graph: Graph, batch_size: int) -> np.ndarray:
    """(operations,) elements of the graph's inputs, where they are first read, and of its outputs."""
    found = np.zeros(len(graph.operations), np.int64)
    ends = set(graph.inputs) | set(graph.outputs)
    for position, operation in enumerate(graph.operations):
        for tensor in (*operation.inputs, *operation.outputs):
            if tensor in ends:
                ends.remove(tensor)
                found[position] += graph.tensors[tensor].elements(batch_size)
    return found


def longest_path(graph: Graph, ops: np.ndarray) -> list[int]:
    """Positions of the operations on the path that starts most operations, in running order.

    `ops`: (operations,) how many each one starts.
    """
    reached: dict[
        int, tuple[int, int]
    ] = {}  # tensor -> (operations so far, position of its writer)
    best: list[tuple[int, int]] = []  # per operation: (operations so far, position before it)
    for position, operation in enumerate(graph.operations):
        before, previous = max(
            (reached[t] for t in operation.inputs if t in reached), default=(0, -1)
        )
        best.append((before + int(ops[position]), previous))
        reached.update((t, (best[-1][0], position)) for t in operation.outputs)
    if not best:
        return []
    position = max(range(len(best)), key=lambda i: best[i][0])
    path = []
    while position >= 0:
        path.append(position)
        position = best[position][1]
    return path[::-1]


# ---- counts ----------------------------------------

FEATURES = ("acts", "inp", "flops", "traffic", "weights", "ops")
SHAPES = (
    "patches", "narrow", "groups", "passes", "serial", "ragged", "repacked", "threaded", "streamed",
    "maxima", "means", "exps", "border",
)  # fmt: skip
EXTRAS = (
    *SHAPES,
    *(name for names in KINDS.values() for name in names),
    "unfolded",
    "gelus",
    "maps",
)
COLUMNS = FEATURES + EXTRAS
PLAIN = FEATURES + SHAPES
OPS = FEATURES.index("ops")


class Count(NamedTuple):
    """Counts of one operation or a sum of several, at some batch size; all integers.

    The first six are those of every model file; the others tell apart what costs more on some devices:

    - `patches`: elements that grouped convolutions unfold (output positions x kernel x input channels),
      because CPUs run them through a slow path where that is what costs;
    - `narrow`: the patches of groups of fewer than VECTOR channels, too narrow for vector instructions,
      and the traffic of a normalisation of so few, as of an image;
    - `groups`: the groups of grouped convolutions, which are run one after the other;
    - `passes`: traffic of the further passes of operations that go over their data more than once;
    - `serial`: the operations on the longest path: branches side by side may run side by side;
    - `ragged`: convolutions whose channels (of a group) do not fill vectors of PANEL elements;
    - `repacked`: kernels of 1x1 convolutions at a batch size above 1, which a CPU's library puts into
      another order before each call (those applied at a single position cost REPACKED_FLAT times that);
    - `threaded`: operations on more than THREADED_FROM elements, for which further threads are woken;
    - `streamed`: elements of operations on more than STREAMED_FROM, which no cache holds;
    - `maxima`, `means`: elements in the windows of max and average pools (outputs x kernel), which some
      frameworks go through one by one;
    - `exps`: elements of results that take an exponential or the like for each (silu, softmax, gelu ...);
    - `border`: elements of the graph's own inputs and outputs, which a runtime that keeps tensors in
      another order inside puts into that order and back;
    - `..._macs`, `..._weights`, `..._reads`, `..._writes`, `..._elements`, `..._ops`: the six, told apart
      by kinds of operations (`lolat.graph.kinds`);
    - `unfolded`: elements of the windows that convolutions larger than 1x1 go over (im2col);
    - `gelus`: elements of results of gelu and erf, dearer than an exponential;
    - `maps`: groups x batch size of grouped and depthwise convolutions: a backend that has no kernel of
      its own for these convolves the groups of every sample one after the other.

    `narrow`, `ragged`, `repacked`, `threaded` and `streamed` know constants of one processor: formulas of
    latencies no longer have them. They are for model files of before, and for training.
    """

    acts: int = 0
    inp: int = 0
    flops: int = 0
    traffic: int = 0
    weights: int = 0
    ops: int = 0
    patches: int = 0
    narrow: int = 0
    groups: int = 0
    passes: int = 0
    serial: int = 0
    ragged: int = 0
    repacked: int = 0
    threaded: int = 0
    streamed: int = 0
    maxima: int = 0
    means: int = 0
    exps: int = 0
    border: int = 0
    pointwise_macs: int = 0
    spatial_macs: int = 0
    depthwise_macs: int = 0
    grouped_macs: int = 0
    dense_macs: int = 0
    flat_macs: int = 0
    product_macs: int = 0
    pointwise_weights: int = 0
    spatial_weights: int = 0
    grouped_weights: int = 0
    dense_weights: int = 0
    conv_reads: int = 0
    conv_writes: int = 0
    depthwise_reads: int = 0
    depthwise_writes: int = 0
    dense_elements: int = 0
    pool_elements: int = 0
    norm_elements: int = 0
    layer_norm_elements: int = 0
    curve_elements: int = 0
    clip_elements: int = 0
    pair_elements: int = 0
    joined_elements: int = 0
    moved_elements: int = 0
    conv_ops: int = 0
    depthwise_ops: int = 0
    dense_ops: int = 0
    pool_ops: int = 0
    norm_ops: int = 0
    curve_ops: int = 0
    pair_ops: int = 0
    move_ops: int = 0
    unfolded: int = 0
    gelus: int = 0
    maps: int = 0


VECTOR = 8  # channels that one vector instruction works on
PANEL = 16  # channels that a block of a kernel put into order has
REPACKED_FLAT = 3
THREADED_FROM = 2**17  # elements
STREAMED_FROM = 2**22  # elements: 16 MiB of float32

Formula = Callable[[Mapping[str, Any], Sequence[int], Sequence[int]], Count]


def _convolution(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Each output element sums kernel x (input channels / groups) products."""
    per_output = prod(a["kernel"]) * a["in_channels"] // a["groups"]
    weights = per_output * a["out_channels"] + a["out_channels"] * bool(a["bias"])
    macs = outs[0] * per_output
    return Count(outs[0], ins[0], macs, 0, weights, 1, ragged=_is_ragged(a))


def _is_ragged(a: Mapping[str, Any]) -> bool:
    """Whether the channels of a group, in or out, do not fill vectors."""
    return any(a[side] // a["groups"] % PANEL for side in ("in_channels", "out_channels"))


def _grouped_convolution(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """A convolution in groups; its patches are unfolded before they are multiplied."""
    positions = outs[0] // a["out_channels"]
    patches = positions * prod(a["kernel"]) * a["in_channels"]
    narrow = patches if a["in_channels"] // a["groups"] < VECTOR else 0
    plain = _convolution(a, ins, outs)
    return plain._replace(patches=patches, narrow=narrow, groups=a["groups"])


def _transposed_convolution(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Each input element is multiplied into kernel x (output channels / groups) outputs."""
    per_input = prod(a["kernel"]) * a["out_channels"] // a["groups"]
    weights = per_input * a["in_channels"] + a["out_channels"] * bool(a["bias"])
    macs = ins[0] * per_input
    return Count(outs[0], ins[0], macs, 0, weights, 1, ragged=_is_ragged(a))


def _dense(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Each output element sums `in_features` products; the kernel is read once a pass."""
    weights = a["in_features"] * a["out_features"] + a["out_features"] * bool(a["bias"])
    return Count(0, 0, outs[0] * a["in_features"], ins[0] + outs[0], weights, 1)


def _matmul(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Each output element sums `contracted` products of two activations."""
    return Count(0, 0, outs[0] * a["contracted"], sum(ins) + sum(outs), 0, 1)


def _traffic(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Reads its inputs, writes its outputs, multiplies nothing that counts."""
    return Count(traffic=sum(ins) + sum(outs), ops=1)


def _in_passes(further: int, exps: bool = False) -> Formula:
    """Traffic of an operation that goes over its data once more, or several times."""

    def formula(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
        traffic = sum(ins) + sum(outs)
        return Count(traffic=traffic, ops=1, passes=further * traffic, exps=sum(outs) * exps)

    return formula


def _pool(column: str) -> Formula:
    """Goes over windows, which may overlap; the elements in them count as `column`."""
    passes = _in_passes(PASSES["max_pool"])

    def formula(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
        return passes(a, ins, outs)._replace(**{column: outs[0] * prod(a["kernel"])})

    return formula


def _batch_norm(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Multiplies, then adds: two passes. On fewer channels than a vector has, as of an image, slowly."""
    plain = _in_passes(PASSES["batch_norm"])(a, ins, outs)
    narrow = plain.traffic if a.get("channels", VECTOR) < VECTOR else 0
    return plain._replace(narrow=narrow)


def _selection(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Reads only what it writes (a slice, a crop), and the indices where they are a tensor."""
    return Count(traffic=2 * sum(outs) + sum(ins[1:]), ops=1)


def _fill(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Writes a constant; of its input it needs the shape alone."""
    return Count(traffic=sum(outs), ops=1)


def _free(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Changes how a tensor is seen, moves nothing."""
    return Count()


def _embedding(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Reads the rows that it gathers, not the table."""
    return Count(traffic=ins[0] + outs[0], weights=outs[0], ops=1)


def _recurrent(gates: int, step_traffic: int, biases: int) -> Formula:
    """A recurrent layer: the operations of one step, times the steps.

    A step is two products (of the input and of the state with `gates` matrices each) and elementwise
    operations on vectors of `units`, which together read and write `step_traffic` x units elements.
    It counts as one operation started: the loop that a framework runs starts its small operations
    without going back to the graph (TensorFlow took some 12 us for a step of an LSTM of 64 units).
    `biases` vectors of gates x units are learned, unless `bias_vectors` says how many.
    """

    def formula(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
        units, features, steps = a["units"], a["in_features"], a["timesteps"]
        sequences = ins[0] // features  # batch x steps
        kernel = gates * units * (features + units)
        traffic = sequences * (features + units + (2 * gates + step_traffic) * units)
        weights = kernel + gates * units * a.get("bias_vectors", biases) * bool(a["bias"])
        return Count(0, 0, sequences * kernel, traffic, weights, steps)

    return formula


# Steps: add the gates (12), three sigmoids (6), tanh (2), f*c (3), i*g (3), add (3), tanh (2), o*tanh (3).
_LSTM = _recurrent(gates=4, step_traffic=34, biases=1)

# Steps: add z and r (6), two sigmoids (4), r*h (3), add (3), tanh (2), 1-z (2), z*h (3), (1-z)*g (3),
# add (3).
_GRU = _recurrent(gates=3, step_traffic=29, biases=2)

_SIMPLE_RNN = _recurrent(gates=1, step_traffic=3 + 2, biases=1)

_MOVES = ("concatenate", "stack", "pad", "resize", "transpose", "reduce", "repeat", "cumulative",
          "roll", "sort", "scatter", "unfold")  # fmt: skip

FORMULAS: dict[str, Formula] = {
    "conv": _convolution,
    "grouped_conv": _grouped_convolution,
    "depthwise_conv": _convolution,
    "transposed_conv": _transposed_convolution,
    "dense": _dense,
    "matmul": _matmul,
    "embedding": _embedding,
    "lstm": _LSTM,
    "gru": _GRU,
    "simple_rnn": _SIMPLE_RNN,
    "slice": _selection,
    "crop": _selection,
    "split": _selection,
    "gather": _selection,
    "fill": _fill,
    **dict.fromkeys(FREE, _free),
    **dict.fromkeys(sorted(ELEMENTWISE | NORMALISATIONS | POOLINGS), _traffic),
    **dict.fromkeys(_MOVES, _traffic),
    **{kind: _in_passes(further, kind in EXPONENTIALS) for kind, further in PASSES.items()},
    **{kind: _in_passes(0, True) for kind in sorted(EXPONENTIALS - PASSES.keys())},
    "batch_norm": _batch_norm,
    "max_pool": _pool("maxima"),
    "average_pool": _pool("means"),
}


def count_operation(graph: Graph, operation: Operation, batch_size: int = 1) -> Count:
    """Counts of one operation at `batch_size`, but for `serial` and `border`, a matter of the graph.

    InputError when it lacks what its formula needs.
    """
    row = np.array([_formula_counts(graph, operation, batch_size)], np.int64)
    row[0, REPACKED] = _repacked(graph, operation)
    return Count(*(int(n) for n in _by_size(row, batch_size)[0]))


def _formula_counts(graph: Graph, operation: Operation, batch_size: int) -> Count:
    """What an operation's formula says at `batch_size`."""
    tensors = graph.tensors
    formula = FORMULAS.get(operation.kind, _traffic)
    outs = [tensors[i].elements(batch_size) for i in operation.outputs]
    try:
        plain = formula(
            operation.attributes, [tensors[i].elements(batch_size) for i in operation.inputs], outs
        )
        return plain._replace(**by_kind(graph, operation, plain, outs))
    except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"operation {operation.full_name!r} cannot be counted as {operation.kind}: it lacks "
            f"{error}; expected the attributes and inputs that lolat/graph/counts.py names for this kind"
        ) from error


def _repacked(graph: Graph, operation: Operation) -> int:
    """`repacked` of one operation at a batch size above 1."""
    a = operation.attributes
    if operation.kind != "conv" or prod(a["kernel"]) != 1:
        return 0
    flat = graph.tensors[operation.outputs[0]].elements() == a["out_channels"]
    return a["in_channels"] * a["out_channels"] * (REPACKED_FLAT if flat else 1)


ELEMENTS = [COLUMNS.index(c) for c in ("acts", "inp", "traffic")]
REPACKED, THREADED, STREAMED, BORDER = (
    COLUMNS.index(c) for c in ("repacked", "threaded", "streamed", "border")
)


def _by_size(rows: np.ndarray, batch_size: int) -> np.ndarray:
    """Fill in, in place, the columns that depend on how large an operation is at `batch_size`.

    `rows`: (operations, COLUMNS), `repacked` as it is above batch size 1.
    """
    elements = rows[:, ELEMENTS].sum(axis=1)
    each = elements // np.maximum(rows[:, OPS], 1)  # a recurrent layer is many operations
    rows[:, THREADED] = np.where(each > THREADED_FROM, rows[:, OPS], 0)
    rows[:, STREAMED] = np.where(each > STREAMED_FROM, elements, 0)
    if batch_size == 1:
        rows[:, REPACKED] = 0
    return rows


def behaviours(operations: Iterable[Operation]) -> set[str]:
    """What kinds of work operations are, as the measured domain knows them.

    What only reads and writes memory once is one kind, whatever it is called; what is free is none;
    convolutions and pools of one or three dimensions are apart from those of two.
    """
    found = set()
    for operation in operations:
        formula = FORMULAS.get(operation.kind)
        plain = operation.kind in POOLINGS or operation.kind == "batch_norm"
        if plain or formula is _traffic or formula is _selection:
            found.add("memory traffic")
        elif formula is not _free:
            found.add(kind_label(operation))
    return found


@dataclass(frozen=True)
class GraphCounts:
    """Counts of every operation of a graph, for any batch size.

    All formulas are affine in the batch size, so an operation's counts are `fixed + batch * scaled`,
    both (operations, columns) arrays of int64 with the columns of COLUMNS; `repacked`, `threaded` and
    `streamed`, which know thresholds, are made of those by `at`.
    """

    fixed: np.ndarray
    scaled: np.ndarray
    warnings: tuple[str, ...]

    def at(self, batch_size: int) -> np.ndarray:
        """(operations, COLUMNS) at `batch_size`."""
        return _by_size(self.fixed + batch_size * self.scaled, batch_size)

    def total(self, batch_size: int = 1) -> Count:
        """Counts of the whole graph at `batch_size`."""
        return Count(*(int(n) for n in self.at(batch_size).sum(axis=0)))


def count(graph: Graph) -> GraphCounts:
    """Count a graph; the result is kept with the graph, so a second call costs nothing."""
    found = graph.cache.get("counts")
    if found is None:
        found = graph.cache["counts"] = _count(graph)
    return found


def _count(graph: Graph) -> GraphCounts:
    shape = (len(graph.operations), len(COLUMNS))
    try:
        one = np.array([_formula_counts(graph, o, 1) for o in graph.operations], np.int64)
        two = np.array([_formula_counts(graph, o, 2) for o in graph.operations], np.int64)
    except OverflowError:
        raise InputError(
            f"network {graph.name!r} is too large to count: an operation has more than 2**63 of "
            "something; give a smaller --input-size"
        ) from None
    scaled = (two - one).reshape(shape)
    fixed = one.reshape(shape) - scaled
    path = longest_path(graph, fixed[:, OPS])
    fixed[path, COLUMNS.index("serial")] = fixed[path, OPS]
    fixed[:, BORDER] = border(graph, 0)
    scaled[:, BORDER] = border(graph, 1) - fixed[:, BORDER]
    fixed[:, REPACKED] = [_repacked(graph, o) for o in graph.operations]
    return GraphCounts(fixed, scaled, graph.warnings + _unknown(graph))


def _unknown(graph: Graph) -> tuple[str, ...]:
    """One remark per kind of operation that has no row."""
    names: dict[str, list[str]] = {}
    for operation in graph.operations:
        if operation.kind not in FORMULAS:
            names.setdefault(operation.kind, []).append(operation.full_name)
    return tuple(
        f"no formula for operation {kind} ({len(where)} x, first {where[0]!r}): counted as memory "
        "traffic of its inputs and outputs"
        for kind, where in names.items()
    )
