"""The parameters of a network: their number, their bytes, and the copies that autocast makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lolat.graph import Graph, GraphBuilder, Operation, cached_on_graph
from lolat.graph.counts import COLUMNS, count
from lolat.graph.dtypes import ABOVE_FLOAT32, HALF_BYTES, SIZES
from lolat.graph.kinds import BUFFER, KERNELS, MULTIPLYING, RECAST, kind_of
from lolat.graph.modes import AMP, DEFAULT_MODE, Mode, own_dtype


def parameters(graph: Graph) -> int:
    """Number of parameters; a shared parameter counts once, and weights in buffers do not count."""
    each = zip(graph.operations, operations_parameters(graph), strict=True)
    return weight_elements(graph) - sum(min(n, o.attributes.get(BUFFER, 0)) for o, n in each)


def weight_elements(graph: Graph) -> int:
    """Number of elements of the parameters and of weights in buffers."""
    return sum(operations_parameters(graph)) + free_elements(graph)


def free_elements(graph: Graph) -> int:
    """Number of parameters that are no operation's weights, such as a table of positions."""
    return sum(number for number, _ in graph.loose_parameters)


@cached_on_graph
def operations_parameters(graph: Graph) -> tuple[int, ...]:
    """Number of parameters and weights in buffers of each operation, (operations,).

    An operation with tied weights counts at most its own biases.
    """
    weights, found = count(graph).at(1)[:, COLUMNS.index("weights")].tolist(), list[int]()
    for o, number in zip(graph.operations, weights, strict=True):
        a = o.attributes
        if o.kind == "embedding" and "rows" in a and "out_features" in a:
            number = int(a["rows"] * a["out_features"])
        elif kind_of(o.kind).vectors and o.inputs:
            number = o.vectors * _channels(graph, o)
        number = min(number, a.get("owns", number))
        own = a.get("tied") == "kernel" and "bias" in a
        outputs: Any = a.get("out_features", a.get("out_channels", 0))
        tied = round(a["bias"] * outputs) if own else 0
        found.append(tied if a.get("tied") else number)
    return tuple(found)


def parameter_key(operation: Operation) -> tuple[object, ...]:
    """A key that is equal for operations of a graph that share a parameter."""
    shared = operation.attributes.get("parameter")
    return ("own", operation.outputs) if shared is None else ("shared", shared)


def _channels(graph: Graph, norm: Operation) -> int:
    """Number of channels that a normalization has."""
    is_last = norm.kind in ("layer_norm", "rms_norm")
    axis = -1 if is_last else graph.channel_axis(norm.inputs[0])
    return graph.tensors[norm.inputs[0]].shape[axis]


NO_OPERANDS: Mapping[int, int] = MappingProxyType({})
READ_SHARE, FEW_PARAMETERS = 0.98, 1000
"""A graph gets a remark if it holds less than READ_SHARE of the network's parameters and lacks more than
FEW_PARAMETERS. timm's networks with learned positions have 0.988 or more."""


def completed(
    builder: GraphBuilder,
    outputs: Sequence[int],
    number: int,
    made: Mapping[int, int] = NO_OPERANDS,
) -> Graph:
    """The finished graph of a network with `number` elements of parameters and weights in buffers.

    Parameters that are no operation's weights become `Graph.loose_parameters`. `made`: a constant that is
    such a parameter, or computed from one -> the parameter's elements. If many parameters are neither
    weights nor operands, the graph gets a remark and they count as not trained.
    """
    graph = builder.build(outputs)
    rest = number - weight_elements(graph)
    operands = {i for o in graph.operations for i in o.inputs}.intersection(made)
    unread = rest - sum(made[i] for i in operands)
    if unread > FEW_PARAMETERS and unread > (1.0 - READ_SHARE) * number:
        builder.loose_parameters.append((unread, ()))
        rest -= unread
        builder.warnings.append(
            f"{unread:,} of its {number:,} parameters are the weights of no operation: they take memory, "
            "and are taken not to be trained"
        )
    if rest > 0:
        builder.loose_parameters.append((rest, tuple(made)))
    return builder.build(outputs)


def weights_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> int:
    """Bytes of the parameters, and of the running means and variances of batch norms.

    A parameter has 2 bytes in half precision, and 4 or more under autocast, whose copies are not included.
    The graph's `extra_bytes` are included.
    """
    size = SIZES.get(own_dtype(graph) or "", 4.0)
    if mode.half:
        size = max(size, 4.0) if mode.dtype == AMP else 2.0
    total = size * free_elements(graph) + graph.extra_bytes[mode.half and mode.dtype != AMP]
    for o, number in zip(graph.operations, operations_parameters(graph), strict=True):
        a = o.attributes
        if o.kind == "batch_norm" and o.inputs and "tied" not in a:
            number += 2 * _channels(graph, o)  # a mean and a variance
        wide = (
            ABOVE_FLOAT32.get(graph.tensors[o.outputs[0]].dtype) if o.kind in MULTIPLYING else None
        )
        total += number * (a["bits"] / 8 if "bits" in a else wide or size)
    return round(total)


@cached_on_graph
def copied_at(graph: Graph) -> dict[int, int]:
    """Position of an operation with parameters -> position of the operation at which autocast copies them.

    Autocast copies kernels to half precision. It copies an embedding's table only if a dense layer shares
    it.
    """
    heads = {parameter_key(o): i for i, o in enumerate(graph.operations) if o.kind == "dense"}
    found = dict[int, int]()
    for i, o in enumerate(graph.operations):
        wide = o.kind in MULTIPLYING and graph.tensors[o.outputs[0]].dtype in ABOVE_FLOAT32
        if o.kind in KERNELS and "bits" not in o.attributes and not wide:
            found[i] = i
        elif o.kind == "embedding" and parameter_key(o) in heads:
            found[i] = heads[parameter_key(o)]
    return found


def copies(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """(bytes of copies kept until autocast's context ends, bytes of copies kept while the operation runs).

    Both arrays are (operations,); the copies are those of parameters that autocast makes for each
    operation.
    """
    each, weights = operations_parameters(graph), COLUMNS.index("weights")
    again = np.array([RECAST in o.attributes for o in graph.operations], bool)
    kept = np.zeros(len(graph.operations), np.int64)
    for i, at in copied_at(graph).items():
        kept[at] += HALF_BYTES * each[i] * (not again[at])
    return kept, HALF_BYTES * again * count(graph).at(1)[:, weights]


def copied_bytes(graph: Graph) -> np.ndarray:
    """Bytes of the parameter copies that autocast holds while each operation runs, (operations,)."""
    kept, again = copies(graph)
    total: np.ndarray = kept.cumsum() + again
    return total
