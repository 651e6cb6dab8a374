"""What a designer would try on a block or a network to make it faster: changed graphs, with words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lolat.graph import Graph, Operation, edits, is_convolution
from lolat.graph.edits import channels, halved, inner, widened
from lolat.graph.naming import is_flat

NARROWER = (0.75, 0.5)


@dataclass(frozen=True)
class Change:
    """A changed network; `kind` is for programs, `change` says it to people, `details` in numbers."""

    kind: str
    change: str
    graph: Graph
    details: Mapping[str, Any] = field(default_factory=dict)


def on_block(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """What can be tried on the block of these operations; each has the counts of a real network.

    One exception: at half the resolution the block alone is counted on smaller images, its neighbours
    as they are. Raises InputError where it is not clear how channels pass through the network, when all
    else has been tried.
    """
    changed = edits.bypassed(graph, positions)
    if changed is not None:
        yield Change(
            "drop", "without this block: its input and output have the same shape", changed
        )
    yield from _everywhere(graph, positions)
    smaller = halved(graph, positions)
    before, after = (None if g is None else _largest(g, positions) for g in (graph, smaller))
    if smaller is not None and before is not None and after is not None:
        words = f"images half as high and wide ({_size(before)} -> {_size(after)})"
        yield Change("resolution", words, smaller, {"from": list(before), "to": list(after)})
    yield from _narrower_inside(graph, positions)


def on_network(graph: Graph) -> Iterator[Change]:
    """What can be tried on a whole network but its resolution, which its reader knows; as `on_block`."""
    yield from _everywhere(graph, range(len(graph.operations)))
    for factor in NARROWER:
        words = f"width x{factor:g}: every channel count, in multiples of 8"
        yield Change("width", words, widened(graph, factor), {"factor": factor})


def _everywhere(graph: Graph, positions: Collection[int]) -> Iterator[Change]:
    """Changes of operations of certain kinds."""
    inside = [graph.operations[p] for p in positions]
    changed = edits.with_small_kernels(graph, positions)
    if changed is not None:
        yield Change("kernel", _kernels(inside), changed)
    changed = edits.without_gates(graph, positions)
    if changed is not None:
        yield Change("squeeze_excite", "without squeeze-excite", changed)
    changed = edits.with_relu(graph, positions)
    if changed is not None:
        kinds = sorted({o.kind for o in inside if o.kind in edits.COSTLY_ACTIVATIONS})
        yield Change("activation", f"relu instead of {' and '.join(kinds)}", changed)
    changed = edits.as_depthwise(graph, positions)
    if changed is not None:
        words = "depthwise kernels for convolutions that are depthwise but for their name"
        yield Change("depthwise", words, changed)
    changed = edits.ungrouped(graph, positions)
    if changed is not None:
        groups = {o.attributes["groups"] for o in inside if o.kind == "grouped_conv"} - {1}
        words = f"plain convolutions instead of {_several(groups)} groups"
        yield Change("groups", words, changed)
    changed = edits.separated(graph, positions)
    if changed is not None:
        full = {_size(o.attributes["kernel"]) for o in inside if edits.is_separable(o)}
        words = f"depthwise-separable instead of full {_several(full)} convolutions"
        yield Change("separable", words, changed)


def _narrower_inside(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """Fewer channels inside a block, with what comes in and goes out as it is."""
    own = inner(graph, positions)
    sizes = channels(graph).sizes
    for factor in NARROWER:
        new = {u: sizes.scaled(u, factor) for u in own}
        pairs = sorted({(own[u], new[u]) for u in own if new[u] < own[u]}, reverse=True)
        if not pairs:
            continue
        told = ", ".join(f"{before} -> {after}" for before, after in pairs[:3])
        told += ", ..." if len(pairs) > 3 else ""
        fewer = pairs[0][0] - pairs[0][1]
        words = f"{fewer} fewer channels" if len(pairs) == 1 else f"width x{factor:g}"
        yield Change(
            "inner_width",
            f"{words} inside ({told})",
            channels(graph).resized(new),
            {"factor": factor, "channels": [list(pair) for pair in pairs]},
        )


def _kernels(operations: Sequence[Operation]) -> str:
    """3x3 kernels instead of 5x5 and 7x7."""
    large = {o.attributes["kernel"] for o in operations if edits.has_large_kernel(o)}
    small = {tuple(min(k, edits.KERNEL) for k in kernel) for kernel in large}
    return f"{_several(map(_size, small))} kernels instead of {_several(map(_size, large))}"


def _several(items: Any) -> str:
    """A and b, or a, b and c; sorted."""
    *most, last = map(str, sorted(items))
    return f"{', '.join(most)} and {last}" if most else last


def _size(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _largest(graph: Graph, positions: Sequence[int]) -> tuple[int, int] | None:
    """Height and width of the largest image that the operations read; None where they read none."""
    sizes: list[tuple[int, int]] = []
    for p in positions:
        operation = graph.operations[p]
        for t in operation.inputs:
            shape = graph.tensors[t].shape
            if len(shape) == 4 and not is_flat(shape):
                first = is_convolution(operation.kind) and (
                    shape[-1] != operation.attributes["in_channels"]
                )
                height, width = shape[2:] if first else shape[1:3]
                sizes.append((height, width))
    return max(sizes, default=None)
