"""The memory of a forward pass: the weights, and the tensors that are alive at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from lolat.graph import Graph, cached_on_graph
from lolat.graph.backward import saves_positions
from lolat.graph.dtypes import HALF_BYTES, SIZES
from lolat.graph.kinds import SLICES, VIEWS
from lolat.graph.lowering import CONTIGUOUS, Lowering, lowered_eagerly
from lolat.graph.modes import AMP, DEFAULT_MODE, EAGER, Mode


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of a forward pass; `at`: the operation that runs at the peak.

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
"""Bytes of a saved position of an element, such as a maximum's."""


def element_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> list[float]:
    """Bytes of an element of each tensor, (tensors,): a half-precision mode's, else the network's."""
    if mode.half:
        return lowered_eagerly(graph, mode.dtype).sizes
    return [SIZES.get(t.dtype, 4.0) for t in graph.tensors]


def as_padded(graph: Graph, position: int, tensor: int) -> float:
    """Elements of PyTorch's padded copy of a tensor / the tensor's elements; 0 without a copy."""
    o = graph.operations[position]
    pads = o.attributes.get("pad_before", ())
    if graph.framework != "torch" or not pads or tensor != o.inputs[0]:
        return 0.0
    sides = graph.tensors[tensor].shape[-len(pads) :]
    return prod(1.0 + sum(pad) / n for pad, n in zip(pads, sides, strict=True))


@cached_on_graph
def alive_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> np.ndarray:
    """Bytes of the tensors alive while each operation runs, (2, operations): [0] fixed, [1] per sample.

    A tensor lives from its first use to its last; inputs, outputs and `kept` tensors live to the end. A
    view takes no memory; a parameter's bytes are counted as weights. For eager PyTorch, `Graph.storages`
    says which tensors share memory and how long it lives. A copy that autocast makes lives while its
    operation runs, unless a compiler fuses the two; so does a padded copy of an input.
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
    stored = dict[int, int]()
    for tensors, latest in storages:
        root = min(tensors)
        begin, stop = np.searchsorted(written, [root, latest], "right")
        if latest < 0:
            first.pop(root, None)
        elif begin < stop and (root in first or not graph.tensors[root].batched):
            first[root] = min(first.get(root, begin), begin)
            stored[root] = last[root] = max(last.get(root, begin), stop - 1)
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
            # The padding reads this tensor last, so the tensor is freed, unless a variable holds it.
            is_freed = last[root] == position and stored.get(root, -1) < position
            beside.append((read, (padded - is_freed) * of_element[read]))
        for tensor, each in ((graph.tensors[t], size) for t, size in beside):
            alive[int(tensor.batched), position] += round(each * tensor.elements(1))
    return alive


STRIDED = frozenset(["batch_norm", "rms_norm", "global_average_pool"])
"""Kinds of CONTIGUOUS that read a slice without a copy, according to PyTorch's profiler on a CPU."""


@cached_on_graph
def sliced_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> np.ndarray:
    """Bytes per sample that eager PyTorch copies from views, for each operation; (2, operations).

    Row 0 is for batch size 1, where the first part of a sliced axis is still contiguous and a dense layer
    reads a transposed image without a copy; row 1 is for larger batches.
    """
    view_bytes = np.zeros((2, len(graph.operations)), np.int64)
    if graph.framework != "torch" or mode.launch != EAGER:
        return view_bytes
    tensors, lowered = graph.tensors, lowered_eagerly(graph, mode.dtype)
    of_element = element_bytes(graph, mode)
    storage = {t: min(shared) for shared, _ in graph.storages for t in shared}
    for position, o in enumerate(graph.operations):
        if o.kind not in CONTIGUOUS - STRIDED or any(
            t in o.inputs[:1] for t, *_ in lowered.conversions(o)
        ):
            continue  # no slice, or autocast copies it anyway
        t = o.inputs[0]
        part = lowered.origin[t]
        writer = lowered.written.get(part)
        if writer is None or graph.operations[writer].kind not in SLICES or not tensors[t].batched:
            continue
        whole = storage.get(part, part)
        if storage.get(t, t) == whole and tensors[part].elements() < tensors[whole].elements():
            size = round(of_element[t] * tensors[t].elements())
            is_block = _is_block(tensors[whole].shape, tensors[part].shape)
            view_bytes[:, position] = (0 if is_block else size), size
    readers = graph.consumers()
    for position in lowered.copied:
        for t in graph.operations[position].outputs:
            dense = [r for r in readers.get(t, ()) if graph.operations[r].kind == "dense"]
            each = HALF_BYTES if mode.half else of_element[t]
            view_bytes[1, dense] += round(each * tensors[t].elements())
    return view_bytes


def _is_block(whole: Sequence[int], part: Sequence[int]) -> bool:
    """True if a slice of shape `part` is contiguous in a tensor of shape `whole`."""
    cut = [i for i, (n, m) in enumerate(zip(whole, part, strict=False)) if n != m]
    return bool(cut) and len(whole) == len(part) and all(n == 1 for n in part[: cut[-1]])


LARGEST_BATCH = 2**24


def largest_fitting(needed: Callable[[int], int], available_bytes: float) -> int:
    """The largest batch size whose `needed` bytes are available; 0 if not even one sample fits.

    Bytes never fall as the batch grows, and mostly grow linearly, so interpolation takes less than a third
    of the tries of bisection.
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
