"""What an operation costs, counted: one small formula per kind of operation, in a table.

The terms are those of the documentation (docs/counting.md): ACTS, INP, FLOPs (1 MAC = 1 FLOP), traffic,
weights, ops. A formula gets the elements that the operation reads and writes, at some batch size. An
operation whose kind has no row is reported by name and counted as memory traffic, never as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lolat.graph import Graph, Operation

FEATURES = ("acts", "inp", "flops", "traffic", "weights", "ops")
EXTRAS = ("patches", "heavy")
COLUMNS = FEATURES + EXTRAS


class Count(NamedTuple):
    """Counts of one operation or a sum of several, at some batch size; all integers.

    The first six are those of every model file. `patches`: elements that grouped convolutions unfold
    (output positions x kernel x input channels), because CPUs run them through a slow path where that
    is what costs. `heavy`: the part of the traffic that belongs to operations of many passes or
    transcendental functions (gelu, softmax, layer normalisation).
    """

    acts: int = 0
    inp: int = 0
    flops: int = 0
    traffic: int = 0
    weights: int = 0
    ops: int = 0
    patches: int = 0
    heavy: int = 0


Formula = Callable[[Mapping[str, Any], Sequence[int], Sequence[int]], Count]


def _convolution(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Each output element sums kernel x (input channels / groups) products."""
    per_output = prod(a["kernel"]) * a["in_channels"] // a["groups"]
    weights = per_output * a["out_channels"] + a["out_channels"] * bool(a["bias"])
    return Count(outs[0], ins[0], outs[0] * per_output, 0, weights, 1)


def _grouped_convolution(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """A convolution in groups; its patches are unfolded before they are multiplied."""
    positions = outs[0] // a["out_channels"]
    patches = positions * prod(a["kernel"]) * a["in_channels"]
    return _convolution(a, ins, outs)._replace(patches=patches)


def _transposed_convolution(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Each input element is multiplied into kernel x (output channels / groups) outputs."""
    per_input = prod(a["kernel"]) * a["out_channels"] // a["groups"]
    weights = per_input * a["in_channels"] + a["out_channels"] * bool(a["bias"])
    return Count(outs[0], ins[0], ins[0] * per_input, 0, weights, 1)


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


def _heavy(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Traffic of an operation that goes over its data several times or computes an exp or erf."""
    traffic = sum(ins) + sum(outs)
    return Count(traffic=traffic, ops=1, heavy=traffic)


def _selection(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Reads only what it writes (a slice, a crop)."""
    return Count(traffic=2 * sum(outs), ops=1)


def _free(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Changes how a tensor is seen, moves nothing."""
    return Count()


def _embedding(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
    """Reads the rows that it gathers, not the table."""
    return Count(traffic=ins[0] + outs[0], weights=outs[0], ops=1)


def _recurrent(gates: int, step_traffic: int, step_ops: int, biases: int) -> Formula:
    """A recurrent layer: the operations of one step, times the steps.

    A step is two products (of the input and of the state with `gates` matrices each) and elementwise
    operations on vectors of `units`, which together read and write `step_traffic` x units elements in
    `step_ops` operations. `biases` vectors of gates x units are learned.
    """

    def formula(a: Mapping[str, Any], ins: Sequence[int], outs: Sequence[int]) -> Count:
        units, features, steps = a["units"], a["in_features"], a["timesteps"]
        sequences = ins[0] // features  # batch x steps
        kernel = gates * units * (features + units)
        traffic = sequences * (features + units + (2 * gates + step_traffic) * units)
        weights = kernel + gates * units * biases * bool(a["bias"])
        return Count(0, 0, sequences * kernel, traffic, weights, steps * (2 + step_ops))

    return formula


# Steps: add the gates (12), three sigmoids (6), tanh (2), f*c (3), i*g (3), add (3), tanh (2), o*tanh (3).
_LSTM = _recurrent(gates=4, step_traffic=34, step_ops=10, biases=1)

# Steps: add z and r (6), two sigmoids (4), r*h (3), add (3), tanh (2), 1-z (2), z*h (3), (1-z)*g (3),
# add (3).
_GRU = _recurrent(gates=3, step_traffic=29, step_ops=10, biases=2)

_SIMPLE_RNN = _recurrent(gates=1, step_traffic=3 + 2, step_ops=2, biases=1)

_ELEMENTWISE = """
relu relu6 leaky_relu prelu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax
log_softmax softplus softsign mish exponential glu squareplus hard_tanh log_sigmoid threshold erf sqrt
rsqrt square power absolute negative log exp reciprocal clip round sign cast where compare add subtract
multiply divide maximum minimum average scale rescale
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Kinds that read their operands and write their result, element by element."""

NORMALISATIONS = frozenset(
    ["batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "unit_norm"]
)
HEAVY = ("gelu", "erf", "softmax", "log_softmax", "layer_norm", "group_norm", "instance_norm")
POOLINGS = frozenset(
    ["max_pool", "average_pool", "global_average_pool", "global_max_pool", "adaptive_pool"]
)
FREE = frozenset(["reshape", "flatten", "squeeze", "expand_dims", "identity", "dropout"])

_MOVES = ("concatenate", "stack", "pad", "resize", "transpose", "reduce", "repeat", "cumulative",
          "roll", "sort", "gather", "scatter")  # fmt: skip

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
    **dict.fromkeys(FREE, _free),
    **dict.fromkeys(sorted(ELEMENTWISE | NORMALISATIONS | POOLINGS), _traffic),
    **dict.fromkeys(_MOVES, _traffic),
    **dict.fromkeys(HEAVY, _heavy),
}


def count_operation(graph: Graph, operation: Operation, batch_size: int = 1) -> Count:
    """Counts of one operation at `batch_size`."""
    tensors = graph.tensors
    formula = FORMULAS.get(operation.kind, _traffic)
    return formula(
        operation.attributes,
        [tensors[i].elements(batch_size) for i in operation.inputs],
        [tensors[i].elements(batch_size) for i in operation.outputs],
    )


@dataclass(frozen=True)
class GraphCounts:
    """Counts of every operation of a graph, for any batch size.

    All formulas are affine in the batch size, so an operation's counts are `fixed + batch * scaled`;
    both are (operations, columns) arrays of int64 with the columns of COLUMNS.
    """

    fixed: np.ndarray
    scaled: np.ndarray
    warnings: tuple[str, ...]

    def at(self, batch_size: int) -> np.ndarray:
        """(operations, COLUMNS) at `batch_size`."""
        return self.fixed + batch_size * self.scaled

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
    one = np.array([count_operation(graph, o, 1) for o in graph.operations], np.int64)
    two = np.array([count_operation(graph, o, 2) for o in graph.operations], np.int64)
    scaled = (two - one).reshape(shape)
    return GraphCounts(one.reshape(shape) - scaled, scaled, graph.warnings + _unknown(graph))


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
