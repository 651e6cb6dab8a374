"""Cuts a graph into blocks that a person recognises: graph -> blocks.

First between points where one tensor alone is alive; where that leaves something too large (a U-Net
under its skips, cells that read the last two), at points with few live tensors. The pieces are then
grouped by the names of the layers, and where there are none, one block for each heavy operation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from lolat.graph import Graph
from lolat.naming import (
    LARGEST,
    Names,
    is_generic,
    layer_label,
    unique,
)
from lolat.segments import Flow, branch_by_branch, segments
from lolat.summaries import is_flat, is_gate, summarize


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a network: `operations` are positions in `graph.operations`, increasing."""

    name: str  # unique in the network: "conv3_block2 · 3 convs, add"
    label: str  # "conv3_block2", unique too
    summary: str  # "3 convs, add"
    operations: tuple[int, ...]


def cut(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph in network order; every operation is in exactly one.

    The result is kept with the graph, so a second call costs nothing.
    """
    found: tuple[Block, ...] | None = graph.cache.get("blocks")
    if found is None:
        found = graph.cache["blocks"] = _cut(graph)
    return found


def _cut(graph: Graph) -> tuple[Block, ...]:
    order = branch_by_branch(graph)
    ordered = replace(graph, operations=tuple(graph.operations[p] for p in order), cache={})
    flow = Flow(ordered)
    found, skips = segments(flow)
    groups = Grouping(ordered, flow, skips).groups(found)
    insides = [[ordered.operations[p] for p in sorted(g.positions)] for g in groups]
    labels = unique([g.label or layer_label(o) for g, o in zip(groups, insides, strict=True)])
    blocks = []
    for group, inside, label in zip(groups, insides, labels, strict=True):
        summary = summarize(graph, inside)
        positions = tuple(sorted(order[p] for p in group.positions))
        blocks.append(Block(f"{label} · {summary}", label, summary, positions))
    return tuple(blocks)


@dataclass
class Group:
    """Segments that make a block; `label` None: nobody named it."""

    positions: list[int]
    label: str | None
    units: int = 0  # heavy operations
    branching: int = 0  # segments with branches that have some


class Grouping:
    """Puts segments together into blocks."""

    def __init__(self, graph: Graph, flow: Flow, skips: bool) -> None:
        self.graph = graph
        self.flow = flow
        self.names = Names(graph, flow.units)
        self.branches: Counter[str | None] = Counter()
        self.levels = self._levels() if skips else []

    def groups(self, found: Sequence[list[int]]) -> list[Group]:
        """The blocks of all segments, in order."""
        elements = [self._element(s) for s in found]
        for element, following in zip(elements[-2::-1], elements[:0:-1], strict=True):
            if following.label and self.names.ends_like(element.positions[-1], following.label):
                element.label = following.label
        self.branches.update(e.label for e in elements if e.branching)
        at = self._head(elements)
        body, tail = self._joined(elements[:at]), elements[at:]
        if body and sum(e.units for e in tail) == 1:
            head = [Group([p for e in tail for p in e.positions], "head", 1)]
        else:
            head = self._joined(tail)
        self._name_levels(body)
        return self._with_ends(body, bool(head)) + head

    def _element(self, positions: list[int]) -> Group:
        units = sum(self.flow.units[p] for p in positions)
        if len(positions) == 1:
            return Group(positions, self.names.of_operation(positions[0]), units)
        return Group(positions, self.names.of_segment(positions), units, int(units > 1))

    def _head(self, elements: list[Group]) -> int:
        """Where what comes behind the last pooling or flattening of all positions begins."""

        def flat(element: Group) -> bool:
            outputs = [t for p in element.positions for t in self.graph.operations[p].outputs]
            return all(map(is_flat, self.graph.shapes(outputs)))

        at = len(elements)
        while at and flat(elements[at - 1]):
            at -= 1
        if at == len(elements) or any(self.flow.heavy[p] for p in elements[at].positions):
            return len(elements)
        return at

    def _joined(self, elements: list[Group]) -> list[Group]:
        """Groups of neighbours; what is not heavy goes along with what is."""
        groups: list[Group] = []
        waiting: list[Group] = []  # light ones of which it is not known yet whose they are
        heavy = [any(self.flow.heavy[p] for p in e.positions) for e in elements]
        for i, element in enumerate(elements):
            if not heavy[i]:
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
            if groups and self._joins(groups[-1], element, not any(heavy[i + 1 :])):
                groups[-1].positions += early + element.positions
                groups[-1].units += element.units
                groups[-1].branching += element.branching
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

    def _begins(self, light: Group, group: Group, heavy: Group | None = None) -> bool:
        """Whether a light element goes with the `heavy` one behind it, not with the `group` before.

        What enlarges or puts together begins something; so does what reads nothing of the group.
        """
        operation = self.graph.operations[light.positions[0]]
        if heavy is not None and light.label is not None and light.label == heavy.label:
            return True
        if len(light.positions) == 1 and operation.kind in ("concatenate", "resize"):
            return operation.kind == "concatenate" or self.flow.grows(light.positions[0])
        sources = [self.flow.writer.get(t, -1) for t in operation.inputs]
        return max(sources, default=group.positions[0]) < group.positions[0]

    def _joins(self, group: Group, element: Group, last: bool) -> bool:
        """Whether a heavy element goes on with the block before it; `last`: it is the last one."""
        position = element.positions[0]
        if element.label is not None and (
            element.label == group.label or self._is_gate_of(group, element)
        ):
            stage = self.branches[group.label] > 3 and group.branching and element.branching
            return not stage and group.units + element.units <= LARGEST
        if len(element.positions) == 1 and self.flow.depthwise[position] in group.positions:
            return group.units == 1 or not (group.label and element.label)
        if group.label or element.label:
            return False
        level = self._level(group)
        if not self.levels or level is None or level != self._level(element):
            return self._is_inverted(group, element)
        if group.units > 5 or (last and self._kernel(position) == 1):
            return False
        enlarged = group.units == 1 and any(map(self.flow.grows, group.positions))
        return enlarged or not (group.branching or element.branching)

    def _is_gate_of(self, group: Group, element: Group) -> bool:
        """Whether an element is the squeeze-excite, a module of its own, in the module before it."""
        nested = str(element.label).startswith((f"{group.label}.", f"{group.label}/"))
        return nested and any(
            is_gate(self.graph, self.graph.operations[p]) for p in element.positions
        )

    def _is_inverted(self, group: Group, element: Group) -> bool:
        """Whether an inverted residual goes on: its depthwise convolution, its squeeze-excite."""
        operations = self.graph.operations
        heavy = [operations[p] for p in element.positions if self.flow.heavy[p]]
        before = [operations[p] for p in group.positions if self.flow.heavy[p]]
        if any(is_gate(self.graph, operations[p]) for p in element.positions):
            return before[-1].kind == "depthwise_conv" and all(
                is_flat(self.graph.tensors[o.outputs[0]].shape) for o in heavy
            )
        a = before[0].attributes
        return (
            len(element.positions) == len(before) == 1
            and heavy[0].kind == "depthwise_conv"
            and before[0].kind == "conv"
            and prod(a["kernel"]) == 1
            and a["out_channels"] > a["in_channels"]
        )

    def _kernel(self, position: int) -> int:
        return prod(self.graph.operations[position].attributes.get("kernel", (0,)))

    def _levels(self) -> list[int]:
        """The resolutions of a network that goes down and up again, largest first; else none."""
        sizes = [s for p in range(self.flow.size) if (s := self._resolution(p)) is not None]
        if not any(map(self.flow.grows, range(self.flow.size))) or len(sizes) < 3:
            return []
        up_again = sizes[0] // 16 <= sizes[-1] > min(sizes) < sizes[0]
        return sorted(set(sizes), reverse=True) if up_again else []

    def _resolution(self, position: int) -> int | None:
        operation = self.graph.operations[position]
        if not self._kernel(position) or "out_channels" not in operation.attributes:
            return None
        shape = self.graph.tensors[operation.outputs[0]].shape
        return prod(shape) // operation.attributes["out_channels"]

    def _level(self, group: Group) -> int | None:
        return next((r for p in group.positions if (r := self._resolution(p)) is not None), None)

    def _name_levels(self, groups: list[Group]) -> None:
        """Names for what nobody named in a network that goes down and up again."""
        levels = [self._level(g) for g in groups]
        if not self.levels or self.levels[-1] not in levels:
            return
        bridge = levels.index(self.levels[-1])
        for i, (group, level) in enumerate(zip(groups, levels, strict=True)):
            if group.label is None and level is not None:
                side = "encoder" if i < bridge else "decoder"
                at = self.levels.index(level) + 1
                group.label = "bridge" if at == len(self.levels) else f"{side}_{at}"
        last = groups[-1]
        if last.units == 1 and any(self._kernel(p) == 1 for p in last.positions):
            last.label = "head"

    def _with_ends(self, groups: list[Group], head: bool) -> list[Group]:
        """What comes before the first block is the stem, when it is small and has no better name.

        One convolution between the last block and the head is the top.
        """
        generic = [is_generic(g.label) and not g.branching for g in groups]
        first = next((i for i, plain in enumerate(generic) if not plain), 0)
        leading = [p for g in groups[:first] for p in g.positions]
        units = sum(g.units for g in groups[:first])
        if not leading or units > 2 or len(generic) - sum(generic) < 2:
            return groups
        if head and generic[-1] and groups[-1].units == 1 and len(groups) - 1 > first:
            groups[-1].label = "top"
        return [Group(leading, "stem", units), *groups[first:]]
