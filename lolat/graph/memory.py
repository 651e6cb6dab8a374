"""The parameters of a network, and the memory of a forward pass: weights, and the tensors alive at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from lolat.graph import Graph, GraphBuilder, Operation, once
from lolat.graph.backward import saves_positions
from lolat.graph.counts import COLUMNS, count
from lolat.graph.dtypes import HALF_BYTES, SIZES, WIDE
from lolat.graph.kinds import KERNELS, MULTIPLYING, RECAST, SLICES, VIEWS, kind_of
from lolat.graph.lowering import CONTIGUOUS, Lowering, lowered_eagerly
from lolat.graph.modes import AMP, DEFAULT_MODE, EAGER, Mode, own_dtype


def parameters(graph: Graph) -> int:
    """Number of parameters; a shared parameter counts once."""
    return sum(operations_parameters(graph)) + free_elements(graph)


def free_elements(graph: Graph) -> int:
    """Number of parameters that are no operation's weight, such as a table of positions."""
    return sum(elements for elements, _ in graph.free)


@once
def operations_parameters(graph: Graph) -> tuple[int, ...]:
    """Number of parameters of each operation, (operations,); a tied one has at most its own biases."""
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
    """A key that is equal for operations of a graph with the same parameter."""
    shared = operation.attributes.get("parameter")
    return ("own", operation.outputs) if shared is None else ("shared", shared)


def _channels(graph: Graph, norm: Operation) -> int:
    """Channels of a normalization."""
    is_last = norm.kind in ("layer_norm", "rms_norm")
    axis = -1 if is_last else graph.channel_axis(norm.inputs[0])
    return graph.tensors[norm.inputs[0]].shape[axis]


READ_SHARE, FEW_PARAMETERS = 0.98, 1000
"""A remark says how many parameters are not in a graph, if the graph has less than READ_SHARE of them and
lacks more than FEW_PARAMETERS. timm's networks with learned positions have 0.988 or more."""


def completed(builder: GraphBuilder, outputs: Sequence[int], number: int, *made: int) -> Graph:
    """The finished graph, with all of its network's `number` parameters.

    Parameters that are no operation's weights become `Graph.free`: the constants `made` are, or are
    computed from, them. If many are no operand either, a remark says so, and they count as not trained.
    """
    graph = builder.build(outputs)
    rest = number - parameters(graph)
    operands = {i for o in graph.operations for i in o.inputs}.intersection(made)
    unread = rest - sum(prod(graph.tensors[i].shape) for i in operands)
    if unread > FEW_PARAMETERS and unread > (1.0 - READ_SHARE) * number:
        made = ()
        builder.warnings.append(
            f"{rest:,} of its {number:,} parameters are the weights of no operation: they take memory, and "
            "are taken not to be trained"
        )
    if rest > 0:
        builder.free.append((rest, made))
    return builder.build(outputs)


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a forward pass, which is `at` an operation.

    `weights_bytes`: weights and their copies; `activations_bytes`: the tensors that are alive.
    """

    weights_bytes: int
    activations_bytes: int
    at: str

    @property
    def total_bytes(self) -> int:
        """Weights and activations, without the framework's own memory, workspaces and fragmentation."""
        return self.weights_bytes + self.activations_bytes


INDEX_BYTES = 8
"""Bytes of the position of an element."""


def element_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> list[float]:
    """Bytes of an element of each tensor, (tensors,): the network's, or the mode's if in half precision."""
    if mode.half:
        return lowered_eagerly(graph, mode.dtype).sizes
    return [SIZES.get(t.dtype, 4.0) for t in graph.tensors]


def as_padded(graph: Graph, position: int, tensor: int) -> float:
    """Return how many elements of a padded copy PyTorch's operation reads for each element of the tensor.

    0: it reads the tensor itself.
    """
    o = graph.operations[position]
    pads = o.attributes.get("pad_before", ())
    if graph.framework != "torch" or not pads or tensor != o.inputs[0]:
        return 0.0
    sides = graph.tensors[tensor].shape[-len(pads) :]
    return prod(1.0 + sum(pad) / n for pad, n in zip(pads, sides, strict=True))


@once
def alive_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> np.ndarray:
    """Bytes of tensors alive while each operation runs, (2, operations): [0] fixed, [1] of each sample.

    A tensor lives from its first use to its last. Inputs, outputs and `kept` tensors live to the end. A
    view takes no memory, nor does a parameter, whose bytes are weights. In eager PyTorch, `Graph.storages`
    says which tensors share memory, and how long it lives. Copies that autocast converts live while their
    operation runs, unless a compiler fuses them; so do padded copies of its input.
    """
    is_eager = graph.framework == "torch" and mode.launch == EAGER
    storages = [one for one in graph.storages if is_eager or one[1] < 0]
    of_view = {t: min(tensors) for tensors, _ in storages for t in tensors}
    first: dict[int, int] = dict.fromkeys(graph.inputs, 0)
    last: dict[int, int] = {}
    for position, operation in enumerate(graph.operations):
        if operation.kind in VIEWS and operation.inputs:
            root = of_view.get(operation.inputs[0], operation.inputs[0])
            for t in operation.outputs:
                of_view.setdefault(t, root)
        for t in (*operation.inputs, *operation.outputs):
            root = of_view.get(t, t)
            first.setdefault(root, position)
            last[root] = position
    # The first tensor that an operation writes, from each position on.
    written = np.minimum.accumulate([min(o.outputs) for o in graph.operations][::-1])[::-1]
    held = dict[int, int]()
    for tensors, latest in storages:
        root = min(tensors)
        begin, stop = np.searchsorted(written, [root, latest], "right")
        if latest < 0:
            first.pop(root, None)
        elif begin < stop and (root in first or not graph.tensors[root].batched):
            first[root] = min(first.get(root, begin), begin)
            held[root] = last[root] = max(last.get(root, begin), stop - 1)
    end = len(graph.operations)
    stay = (*graph.inputs, *graph.outputs, *(t for t in graph.kept if of_view.get(t, t) in first))
    last.update({of_view.get(t, t): end - 1 for t in stay})
    steps, of_element = np.zeros((2, end + 1), np.int64), element_bytes(graph, mode)
    for t, begin in first.items():
        tensor = graph.tensors[t]
        size = round(tensor.elements(1) * of_element[t])
        steps[int(tensor.batched), begin] += size
        steps[int(tensor.batched), last[t] + 1] -= size
    alive = steps.cumsum(axis=1)[:, :end]
    lowered = Lowering(graph, mode) if mode.dtype == AMP else None
    for position, o in enumerate(graph.operations if lowered or is_eager else ()):
        beside = [(t, after) for t, _, after in lowered.conversions(o)] if lowered else []
        if is_eager and len(o.outputs) == 1 and saves_positions(graph, o):
            beside.append((o.outputs[0], INDEX_BYTES))
        if is_eager and "pad_before" in o.attributes:
            read = o.inputs[0]
            root, padded = of_view.get(read, read), as_padded(graph, position, read)
            # The padding before has read it last, unless a variable holds it.
            is_freed = last[root] == position and held.get(root, -1) < position
            beside.append((read, (padded - is_freed) * of_element[read]))
        for tensor, each in ((graph.tensors[t], size) for t, size in beside):
            alive[int(tensor.batched), position] += round(each * tensor.elements(1))
    return alive


STRIDED = frozenset(["batch_norm", "rms_norm", "global_average_pool"])
"""Kinds of CONTIGUOUS for which PyTorch does not copy a slice, by its profiler on a CPU."""


@once
def sliced_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> np.ndarray:
    """Bytes of a sample's slices that eager PyTorch copies while each operation runs, (2, operations).

    [0] at batch size 1, where the first part of an axis may be contiguous as it is, [1] at larger ones.
    """
    found = np.zeros((2, len(graph.operations)), np.int64)
    if graph.framework != "torch" or mode.launch != EAGER:
        return found
    tensors, lowered = graph.tensors, lowered_eagerly(graph, mode.dtype)
    of_element = element_bytes(graph, mode)
    storage = {t: min(shared) for shared, _ in graph.storages for t in shared}
    for position, o in enumerate(graph.operations):
        if o.kind not in CONTIGUOUS - STRIDED or any(
            t in o.inputs[:1] for t, *_ in lowered.conversions(o)
        ):
            continue  # or a copy that autocast makes
        t = o.inputs[0]
        part = lowered.origin[t]
        writer = lowered.written.get(part)
        if writer is None or graph.operations[writer].kind not in SLICES or not tensors[t].batched:
            continue
        whole = storage.get(part, part)
        if storage.get(t, t) == whole and tensors[part].elements() < tensors[whole].elements():
            size = round(of_element[t] * tensors[t].elements())
            is_block = _is_block(tensors[whole].shape, tensors[part].shape)
            found[:, position] = (0 if is_block else size), size
    return found


def _is_block(whole: Sequence[int], part: Sequence[int]) -> bool:
    """True if a part is contiguous in the whole, as far as shapes tell."""
    cut = [i for i, (n, m) in enumerate(zip(whole, part, strict=False)) if n != m]
    return bool(cut) and len(whole) == len(part) and all(n == 1 for n in part[: cut[-1]])


def weights_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> int:
    """Bytes of the parameters, and of the running means and variances of batch norms.

    A parameter has 2 bytes in half precision, and 4 or more under autocast, whose copies do not count. The
    graph's `extra_bytes` are added.
    """
    size = SIZES.get(own_dtype(graph) or "", 4.0)
    if mode.half:
        size = max(size, 4.0) if mode.dtype == AMP else 2.0
    total = size * free_elements(graph) + graph.extra_bytes[mode.half and mode.dtype != AMP]
    for o, number in zip(graph.operations, operations_parameters(graph), strict=True):
        a = o.attributes
        if o.kind == "batch_norm" and o.inputs and "tied" not in a:
            number += 2 * _channels(graph, o)  # a mean and a variance
        wide = WIDE.get(graph.tensors[o.outputs[0]].dtype) if o.kind in MULTIPLYING else None
        total += number * (a["bits"] / 8 if "bits" in a else wide or size)
    return round(total)


@once
def copied_at(graph: Graph) -> dict[int, int]:
    """Position of an operation with parameters -> position of the operation for which autocast copies them.

    Autocast copies kernels in half precision. It copies an embedding's table only if that is a product's
    kernel too.
    """
    heads = {parameter_key(o): i for i, o in enumerate(graph.operations) if o.kind == "dense"}
    found = dict[int, int]()
    for i, o in enumerate(graph.operations):
        wide = o.kind in MULTIPLYING and graph.tensors[o.outputs[0]].dtype in WIDE
        if o.kind in KERNELS and "bits" not in o.attributes and not wide:
            found[i] = i
        elif o.kind == "embedding" and parameter_key(o) in heads:
            found[i] = heads[parameter_key(o)]
    return found


def copies(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of the parameters' copies that autocast makes for each operation, (operations,) each.

    First the copies that it keeps until its context ends, behind the forward pass; then those that it keeps
    only while the operation runs.
    """
    each, weights = operations_parameters(graph), COLUMNS.index("weights")
    again = np.array([RECAST in o.attributes for o in graph.operations], bool)
    kept = np.zeros(len(graph.operations), np.int64)
    for i, at in copied_at(graph).items():
        kept[at] += HALF_BYTES * each[i] * (not again[at])
    return kept, HALF_BYTES * again * count(graph).at(1)[:, weights]


def copied_bytes(graph: Graph) -> np.ndarray:
    """Bytes of the parameters' copies that autocast holds while each operation runs, (operations,)."""
    kept, again = copies(graph)
    held: np.ndarray = kept.cumsum() + again
    return held


LARGEST_BATCH = 2**24


def largest_fitting(needed: Callable[[int], int], available_bytes: float) -> int:
    """The largest batch size whose `needed` bytes are available; 0 if none is.

    Bytes never fall as the batch grows, and nearly all follow lines: interpolation asks for less than a
    third of the sizes that halving would.
    """
    fits, misses = 1, LARGEST_BATCH
    low, high = needed(fits), needed(misses)
    if low > available_bytes or high <= available_bytes:
        return 0 if low > available_bytes else LARGEST_BATCH
    halves = False
    while misses - fits > 1:
        share = 0.5 if halves else (available_bytes - low) / (high - low)
        middle = min(max(fits + int(share * (misses - fits)), fits + 1), misses - 1)
        size, width = needed(middle), misses - fits
        if size <= available_bytes:
            fits, low = middle, size
        else:
            misses, high = middle, size
        halves = not halves and misses - fits > width // 2
    return fits
