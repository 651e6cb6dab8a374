"""Cuts a graph into blocks that a person recognizes.

A graph is cut where a single tensor is alive. A piece that is still too large (a U-Net, which its skip
connections span; cells of NASNet, which read the last two) is cut where few tensors are alive. The pieces
are then grouped by the names of their layers; unnamed ones become a block for each computing operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from msgspec.structs import replace

from lolat.graph import Graph, once
from lolat.graph.kinds import COMPUTE, VIEWS
from lolat.graph.naming import Names, is_flat, is_gate, is_generic, layer_label, summarize, unique

CROWDED = 12
"""The most computing operations of a block that cannot be cut at a single tensor."""


def branch_by_branch(graph: Graph) -> list[int]:
    """Positions of the operations in an order that keeps each branch together, whoever wrote the graph.

    Depth first from the outputs; operations that no output needs come last.
    """
    writer = {t: p for p, o in enumerate(graph.operations) for t in o.outputs}
    order: list[int] = []
    done = [False] * len(graph.operations)
    last_first = [*range(len(done) - 1, -1, -1), *(writer.get(t, -1) for t in graph.outputs[::-1])]
    stack = [(p, False) for p in last_first if p >= 0]
    while stack:
        p, ready = stack.pop()
        if ready:
            order.append(p)
        elif not done[p]:
            done[p] = True
            stack.append((p, True))
            sources = [writer.get(t, -1) for t in graph.operations[p].inputs[::-1]]
            stack += [(at, False) for at in sources if at >= 0 and not done[at]]
    return order


class Flow:
    """The tensors that flow from the inputs to the outputs of a graph, and its computing operations.

    A tensor is known by its root: a view is the same data.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        operations = graph.operations
        self.size = len(operations)
        self.writer = {t: p for p, o in enumerate(operations) for t in o.outputs}
        root = {t: t for t in graph.inputs if graph.tensors[t].batched}
        for operation in operations:
            sources = [root[t] for t in operation.inputs if t in root]
            if sources:
                is_view = operation.kind in VIEWS and len(sources) == 1
                root.update((t, sources[0] if is_view else t) for t in operation.outputs)
        self.reads: list[tuple[int, ...]] = [()] * self.size  # roots
        self.writes: list[tuple[int, ...]] = [()] * self.size
        needed = set(graph.outputs)
        for p in range(self.size - 1, -1, -1):
            operation = operations[p]
            if needed.isdisjoint(operation.outputs):
                continue
            needed.update(operation.inputs)
            self.reads[p] = tuple(root[t] for t in operation.inputs if t in root)
            if self.reads[p]:
                self.writes[p] = tuple(root[t] for t in operation.outputs)
        self.computing = [o.kind in COMPUTE for o in operations]
        # A separable convolution counts once.
        self.units = [o.kind in COMPUTE - {"depthwise_conv"} for o in operations]

    def crossing(self, start: int, end: int) -> list[int]:
        """Number of tensors that cross each boundary within operations start..end-1.

        Tensors that are written before and read after these operations do not count. Item i is the
        boundary behind operation start + i.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i in range(start, end):
            for root in (*self.reads[i], *self.writes[i]):
                first.setdefault(root, i)
                last[root] = i
        change = [0] * (end - start)
        for root, i in first.items():
            change[i - start] += 1
            change[last[root] - start] -= 1
        return list(accumulate(change))[:-1]


def segments(flow: Flow) -> list[list[int]]:
    """Positions of the operations between two cuts."""
    done: list[list[int]] = []
    todo = [(0, flow.size, True)] if flow.size else []
    while todo:
        start, end, simple = todo.pop()
        crossing = flow.crossing(start, end)
        if not (simple and min(crossing, default=2) < 2):
            simple = False
            if sum(flow.units[start:end]) <= CROWDED:
                crossing = []
        if crossing:
            least = max(1, min(crossing))
            at = [start, *(start + 1 + i for i, n in enumerate(crossing) if n <= least), end]
            todo += reversed([(a, b, simple) for a, b in pairwise(at)])
        else:
            done.append(list(range(start, end)))
    return done


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a network: `operations` are positions in `graph.operations`, increasing."""

    name: str  # unique in the network: "conv3_block2 · 3 convs, add"
    label: str  # "conv3_block2", unique too
    summary: str  # "3 convs, add"
    operations: tuple[int, ...]


@once
def cut(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph in network order; every operation is in exactly one."""
    order = branch_by_branch(graph)
    ordered = replace(graph, operations=tuple(graph.operations[p] for p in order))
    flow = Flow(ordered)
    grouping = Grouping(ordered, flow, Names(ordered, flow.units))
    groups = grouping.groups(segments(flow))
    members = [[ordered.operations[p] for p in sorted(g.positions)] for g in groups]
    labels = unique(
        [
            g.label or grouping.names.of_span(sorted(g.positions)) or layer_label(o)
            for g, o in zip(groups, members, strict=True)
        ]
    )
    blocks = []
    for group, operations, label in zip(groups, members, labels, strict=True):
        summary = summarize(operations)
        positions = tuple(sorted(order[p] for p in group.positions))
        blocks.append(Block(f"{label} · {summary}", label, summary, positions))
    return tuple(blocks)


@dataclass
class Group:
    """Segments that make a block; `label`: None if nobody named it."""

    positions: list[int]
    label: str | None
    units: int = 0  # computing operations
    branching: bool = False  # whether several of them are in one segment


@dataclass
class Grouping:
    """Puts segments together into blocks."""

    graph: Graph
    flow: Flow
    names: Names

    def groups(self, pieces: Sequence[list[int]]) -> list[Group]:
        """The blocks of all segments, in order."""
        elements = []
        for piece in pieces:
            units, one = sum(self.flow.computing[p] for p in piece), len(piece) == 1
            name = self.names.of_operation(piece[0]) if one else self.names.of_segment(piece)
            elements.append(Group(piece, name, units, units > 1 and not one))
        at = self._head(elements)
        body, tail = self._with_stem(self._joined(elements[:at])), elements[at:]
        if body and sum(e.units for e in tail) == 1:
            return [*body, Group([p for e in tail for p in e.positions], "head", 1)]
        return body + self._joined(tail)

    def _head(self, elements: list[Group]) -> int:
        """Index of the first element behind the last one with an extent besides its channels."""
        at = len(elements)
        while at and all(
            is_flat(self.graph.tensors[t].shape)
            for p in elements[at - 1].positions
            for t in self.graph.operations[p].outputs
        ):
            at -= 1
        return at

    def _joined(self, elements: list[Group]) -> list[Group]:
        """Groups of neighbors; an element that does not compute joins one that does."""
        groups: list[Group] = []
        waiting: list[Group] = []  # light ones of which it is not known yet whose they are
        for element in elements:
            if not element.units:
                stays = groups and not waiting and element.label in (None, groups[-1].label)
                if stays and not self._begins(element, groups[-1]):
                    groups[-1].positions += element.positions
                else:
                    waiting.append(element)
                continue
            while waiting and groups and not self._begins(waiting[0], groups[-1], element):
                groups[-1].positions += waiting.pop(0).positions
            early = [p for w in waiting for p in w.positions]
            waiting.clear()
            if groups and self._joins(groups[-1], element):
                groups[-1].positions += early + element.positions
                groups[-1].units += element.units
                groups[-1].branching |= element.branching
                if groups[-1].label != element.label:
                    groups[-1].label = self.names.of_segment(groups[-1].positions)
            else:
                element.positions[:0] = early
                groups.append(element)
        rest = [p for w in waiting for p in w.positions]
        if groups:
            groups[-1].positions += rest
        elif rest:
            groups.append(Group(rest, waiting[0].label))
        return groups

    def _begins(self, light: Group, group: Group, computing: Group | None = None) -> bool:
        """True if a light element goes with the `computing` one behind it, not with the `group` before.

        An element that reads nothing of the group does, too.
        """
        if computing is not None and light.label is not None and light.label == computing.label:
            return True
        inputs = self.graph.operations[light.positions[0]].inputs
        sources = [self.flow.writer.get(t, -1) for t in inputs]
        return max(sources, default=group.positions[0]) < group.positions[0]

    def _joins(self, group: Group, element: Group) -> bool:
        """True if a computing element continues the block before it."""
        operations = self.graph.operations
        if element.label is not None and element.label == group.label:
            return True
        # A squeeze-excite, as a module inside the module before it.
        nested = str(element.label).startswith((f"{group.label}.", f"{group.label}/"))
        if nested and any(is_gate(self.graph, operations[p]) for p in element.positions):
            return True
        # The pointwise half of a separable convolution.
        computing = [operations[p].kind for p in group.positions if self.flow.computing[p]]
        kernel = operations[element.positions[0]].attributes.get("kernel", ())
        return computing == ["depthwise_conv"] and {*kernel} == {1}

    def _with_stem(self, groups: list[Group]) -> list[Group]:
        """The groups; small ones before the first block, without a better name, are the stem."""
        generic = [is_generic(g.label) and not g.branching for g in groups]
        first = next((i for i, plain in enumerate(generic) if not plain), 0)
        leading = [p for g in groups[:first] for p in g.positions]
        units = sum(g.units for g in groups[:first])
        if not leading or units > 2 or len(generic) - sum(generic) < 2:
            return groups
        return [Group(leading, "stem", units), *groups[first:]]
