"""Cuts a graph into segments: between points where one tensor alone is alive, and where that leaves

something too large (a U-Net under its skips, cells that read the last two), at points with few live
tensors.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod

from lolat.graph import Graph, Operation
from lolat.kinds import FREE
from lolat.naming import HEAVY
from lolat.summaries import is_flat

SERIAL = 7
"""As many heavy pieces in a row are a part of a network (under a long skip), not a block."""

CROWDED = 32
"""More heavy operations than this are no block, however they hang together."""


def branch_by_branch(graph: Graph) -> list[int]:
    """Positions of the operations so that each branch is in one piece, whoever wrote the graph.

    Backwards from the outputs: an operation comes right behind what it needs first of all. What no
    output needs comes last.
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
    """What flows from the inputs to the outputs of a graph, and which operations are heavy.

    A tensor is known by its root: a view of it (the output of a free operation) is the same data.
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
                is_view = operation.kind in FREE and len(sources) == 1
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
        self.heavy = [o.kind in HEAVY for o in operations]
        self.depthwise = [self._depthwise_before(o) for o in operations]
        self.units = [h and d < 0 for h, d in zip(self.heavy, self.depthwise, strict=True)]
        self.units_before = [0, *accumulate(self.units)]

    def _depthwise_before(self, operation: Operation) -> int:
        """Where the depthwise convolution is of which this is the pointwise half; -1: nowhere."""
        if operation.kind != "dense" and (
            operation.kind != "conv" or set(operation.attributes.get("kernel", ())) != {1}
        ):
            return -1
        for _ in range(4):  # a normalisation, an activation, a squeeze-excite may stand between
            images = [t for t in operation.inputs if not is_flat(self.graph.tensors[t].shape)]
            at = self.writer.get(images[0], -1) if images else -1
            if at < 0 or self.graph.operations[at].kind == "depthwise_conv":
                return at
            operation = self.graph.operations[at]
            if operation.kind in HEAVY or len(images) > 1:
                return -1
        return -1

    def crossing(self, start: int, end: int, far: int | None = None) -> list[int]:
        """For each boundary inside operations start..end-1: how many tensors cross it.

        Counted among these operations alone: what was written before and is read after does not
        concern them, nor does a read `far` operations behind the one before. Item i is the boundary
        behind operation start + i.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i in range(start, end):
            for root in self.reads[i]:
                if far is None or i - last.setdefault(root, i) < far:
                    last[root] = i
                first.setdefault(root, i)
            for root in self.writes[i]:
                first.setdefault(root, i)
                last[root] = i
        change = [0] * (end - start)
        for root, i in first.items():
            change[i - start] += 1
            change[last[root] - start] -= 1
        return list(accumulate(change))[:-1]

    def grows(self, position: int) -> bool:
        """Whether an operation makes an image larger, as a decoder does."""
        operation = self.graph.operations[position]
        if operation.kind not in ("resize", "transposed_conv") or not operation.inputs:
            return False
        before, after = self.graph.shapes((operation.inputs[0], operation.outputs[0]))
        a = operation.attributes
        return not is_flat(before) and (
            prod(after) * a.get("in_channels", 1) > prod(before) * a.get("out_channels", 1)
        )

    def serial_pieces(self, start: int, end: int) -> int:
        """How many heavy pieces follow each other between operations that all paths lead through.

        Skips do not count as paths: an operation separates two pieces when all before it lead to it
        and all behind it depend on it.
        """
        operations = self.graph.operations
        use: dict[int, int] = {}
        source = [-1] * (end - start)
        alive = [i for i in range(start, end) if self.reads[i]]
        for i in alive:
            for t in operations[i].inputs:
                at = self.writer.get(t, -1)
                if at >= start and self.reads[at]:
                    use.setdefault(at, i)
                    source[i - start] = max(source[i - start], at)
        change = [0] * (end - start + 1)  # at i: ends before i, and starts behind i, besides i
        for i in alive:
            change[i + 1 - start] += 1
            change[min(use.get(i, end), end) - start] -= 1
            change[source[i - start] + 1 - start if source[i - start] >= 0 else 0] += 1
            change[i - start] -= 1
        pieces, seen = 0, self.units_before[start]
        others = list(accumulate(change))
        for i in alive:
            if others[i - start] == 0 and self.units_before[i + 1] > seen:
                pieces, seen = pieces + 1, self.units_before[i + 1]
        return pieces

    def is_serial(self, start: int, end: int, inside: bool) -> bool:
        """Whether these operations are blocks in a row under a long skip, not one block.

        `inside`: they are part of such a row.
        """
        units = self.units_before[end] - self.units_before[start]
        if units < 2:
            return False
        grows = any(map(self.grows, range(start, end)))
        least = 2 if grows else SERIAL - 2 * inside
        return units >= least and self.serial_pieces(start, end) >= least

    def is_crowded(self, start: int, end: int) -> bool:
        """Whether these are too many heavy operations for a block, however they hang together."""
        return self.units_before[end] - self.units_before[start] > CROWDED


def segments(flow: Flow) -> tuple[list[list[int]], bool]:
    """Positions of the operations between two cuts, and whether skips were cut for them."""
    done: list[tuple[int, int]] = []
    todo = [(0, flow.size, True, False)] if flow.size else []
    serial = crowded = False
    while todo:
        start, end, simple, inside = todo.pop()
        crossing = flow.crossing(start, end)
        if end - start > 1 and not (simple and min(crossing) < 2):
            simple = inside = flow.is_serial(start, end, inside)
            if simple:
                crossing = flow.crossing(start, end, (end - start) // 2)
            elif not flow.is_crowded(start, end):
                crossing = []
            serial, crowded = serial or simple, crowded or bool(crossing and not simple)
        if not crossing:
            done.append((start, end))
            continue
        least = max(1, min(crossing))
        at = [start, *(start + 1 + i for i, n in enumerate(crossing) if n <= least), end]
        todo += reversed([(a, b, simple, inside) for a, b in pairwise(at)])
    found = [list(range(start, end)) for start, end in done]
    return (_reunited(flow, found) if crowded else found), serial


def _reunited(flow: Flow, found: list[list[int]]) -> list[list[int]]:
    """Operations that stand among others' but only serve a later segment, moved there.

    A cell that reads the last two cells has a part that could run, and may be written, before its
    neighbour: nothing in the neighbour's segment is connected with it.
    """
    home = {p: i for i, segment in enumerate(found) for p in segment}
    readers = flow.graph.consumers()
    for i, segment in enumerate(found):
        group = {p: p for p in segment}

        def leader(p: int, group: dict[int, int] = group) -> int:
            while group[p] != p:
                group[p] = p = group[group[p]]
            return p

        for p in segment:
            for t in flow.graph.operations[p].inputs:
                at = flow.writer.get(t, -1)
                if at in group:
                    group[leader(at)] = leader(p)
        parts: dict[int, list[int]] = {}
        for p in segment:
            parts.setdefault(leader(p), []).append(p)
        if len(parts) < 2:
            continue
        main = max(parts.values(), key=len)
        for part in parts.values():
            users = [
                home[r]
                for p in part
                for t in flow.graph.operations[p].outputs
                for r in readers.get(t, ())
                if home[r] != i
            ]
            if part is not main and users and min(users) > i:
                for p in part:
                    home[p] = min(users)
                    found[i].remove(p)
                    found[min(users)].append(p)
    return [sorted(segment) for segment in found if segment]
