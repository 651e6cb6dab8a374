"""Cutting a graph into blocks that a person recognizes.

A graph is cut where a single tensor is alive. A piece that is still too large (a U-Net with its skip
connections; a cell of NASNet, which reads the last two cells) is cut where few tensors are alive, and at
the end of a module that a person named. The pieces are then grouped by the names of their layers; without
names, each computing operation is a block.

A name that a framework numbered ("conv2d_17", "add_2") does not show where a block begins. Only names that
a person chose ("block2_add") group pieces.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from lolat.graph import Graph, Operation, cached_on_graph
from lolat.graph.kinds import COMPUTE, KINDS, POOLINGS, VIEWS
from lolat.graph.network import is_flat
from lolat.units import plural

Node = TypeVar("Node")

CROWDED = 12
"""Most computing operations in a piece that stays whole although more than one tensor is alive inside."""


def depth_first(ends: Sequence[Node], sources: Callable[[Node], Sequence[Node]]) -> list[Node]:
    """The nodes that `ends` depend on, depth first; each node follows its `sources`."""
    order: list[Node] = []
    seen = set[Node]()
    stack = [(node, False) for node in reversed(ends)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack += [(source, False) for source in reversed(sources(node)) if source not in seen]
    return order


def branch_by_branch(graph: Graph) -> list[int]:
    """Positions of the operations, depth first from the outputs; unused operations come last."""
    operations = graph.operations
    writer = graph.writers()
    ends = [*(writer[t] for t in graph.outputs if t in writer), *range(len(operations))]
    sources = [[writer[t] for t in o.inputs if t in writer] for o in operations]
    return depth_first(ends, sources.__getitem__)


class Flow:
    """The tensors that flow from inputs to outputs, and the computing operations.

    `reads`, `writes`: for each operation, the roots of its tensors. The root of a view is the root of its
    input.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        operations = graph.operations
        self.size = len(operations)
        self.writer = graph.writers()
        root = {t: t for t in graph.inputs if graph.tensors[t].batched}
        for operation in operations:
            sources = [root[t] for t in operation.inputs if t in root]
            if sources:
                is_view = operation.kind in VIEWS and len(sources) == 1
                root.update((t, sources[0] if is_view else t) for t in operation.outputs)
        self.reads: list[tuple[int, ...]] = [()] * self.size
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
        """Number of tensors alive at each boundary between operations start..end-1.

        Item i is the boundary after operation start + i. Only tensors that one of these operations reads or
        writes count.
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
    """Positions of the operations of each piece between two cuts."""
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


class BlockName(NamedTuple):
    """The name of a block or module.

    `label`: unique in the network, such as "conv3_block2"; `summary`: its operations, such as "3 convs,
    add"; "" for a module.
    """

    label: str
    summary: str = ""

    def __str__(self) -> str:
        return " · ".join(filter(None, self))


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a network; `operations`: increasing positions in `graph.operations`."""

    name: BlockName
    operations: tuple[int, ...]

    @property
    def label(self) -> str:
        """The label of the block's name."""
        return self.name.label


@cached_on_graph
def cut(graph: Graph) -> tuple[Block, ...]:
    """The blocks of a graph in network order; every operation is in exactly one."""
    order = branch_by_branch(graph)
    ordered = replace(graph, operations=tuple(graph.operations[p] for p in order))
    flow = Flow(ordered)
    grouping = Grouping(flow, Names(ordered, flow.units))
    groups = grouping.groups()
    for group in groups:
        group.label = group.label and grouping.names.spanning(group.label, group.positions)
    blocks, seen, shared = [], Counter[str](), Counter(group.label for group in groups)
    for group in groups:
        positions = sorted(group.positions)
        operations = [ordered.operations[p] for p in positions]
        label = group.label or layer_label(operations)
        if shared[group.label] > 1:
            label = item_label(label, operations)
        seen[label] += 1
        if seen[label] > 1:
            label += f" ({seen[label]})"
        own = sorted(order[p] for p in positions)
        blocks.append(Block(BlockName(label, summarize(operations)), tuple(own)))
    return tuple(blocks)


@dataclass
class Group:
    """Segments that form a block; `label`: None if no name that a person chose covers them."""

    positions: list[int]
    label: str | None
    units: int = 0  # computing operations
    branching: bool = False  # True if one segment has several of them


@dataclass
class Grouping:
    """Groups segments into blocks."""

    flow: Flow
    names: Names

    def groups(self) -> list[Group]:
        """The blocks of all segments, in network order."""
        elements = []
        for piece in (run for segment in segments(self.flow) for run in self._by_name(segment)):
            units, one = sum(self.flow.computing[p] for p in piece), len(piece) == 1
            name = self.names.labels[piece[0]] if one else self.names.of_segment(piece)
            elements.append(Group(piece, name, units, units > 1 and not one))
        at = len(elements)  # the first position from which all tensors are flat
        while at and all(
            is_flat(self.flow.graph.tensors[t].shape)
            for p in elements[at - 1].positions
            for t in self.flow.graph.operations[p].outputs
        ):
            at -= 1
        body, tail = self._with_stem(self._joined(elements[:at])), elements[at:]
        if body and sum(e.units for e in tail) == 1:
            return [*body, Group([p for e in tail for p in e.positions], "head", 1)]
        return body + self._joined(tail)

    def _by_name(self, segment: list[int]) -> list[list[int]]:
        """Split a segment into runs of one name each, if it holds several modules or a chain of names.

        A module stays whole, and so does a cell whose branches have names but no modules. An unnamed
        operation joins the run before it if it computes, else it begins a new run.
        """
        names = [self.names.labels[p] for p in segment]
        if len({*names} - {None}) < 2 or self.names.of_segment(segment) is not None:
            return [segment]
        runs, last = [segment[:1]], names[0]
        for p, name in zip(segment[1:], names[1:], strict=True):
            if name == last or (name is None and self.flow.computing[p]):
                runs[-1].append(p)
            else:
                runs.append([p])
                last = name
        operations = self.flow.graph.operations
        if any(operations[p].path for p in segment):
            named = [p for p, name in zip(segment, names, strict=True) if name]
            is_cut = not self._is_module(named)
        else:
            is_cut = all(
                {*self.flow.reads[b[0]]} & {*self.flow.writes[a[-1]]} for a, b in pairwise(runs)
            )
        return runs if is_cut else [segment]

    def _is_module(self, positions: Sequence[int]) -> bool:
        """True if these operations are all the computing operations of a module."""
        every = [{*self.names.beginnings[p]} for p in positions]
        whole = max(set.intersection(*every), key=len, default="")
        computing = sum(self.flow.computing[p] for p in positions)
        return bool(whole) and self.names.below[whole] == computing

    def _joined(self, elements: list[Group]) -> list[Group]:
        """Join neighboring elements into groups; an element that does not compute joins one that does."""
        groups: list[Group] = []
        waiting: list[Group] = []  # elements that do not compute, whose group is not known yet
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
        """True if an element that does not compute belongs to the next group, `computing`, not to `group`.

        It does if it has the label of `computing`, or reads nothing from `group`.
        """
        if computing is not None and light.label is not None and light.label == computing.label:
            return True
        inputs = self.flow.graph.operations[light.positions[0]].inputs
        sources = [self.flow.writer.get(t, -1) for t in inputs]
        return max(sources, default=group.positions[0]) < group.positions[0]

    def _joins(self, group: Group, element: Group) -> bool:
        """True if a computing element continues the block before it."""
        operations = self.flow.graph.operations
        if element.label is not None and element.label == group.label:
            return True
        # A squeeze-excite is a module inside the module before it.
        nested = is_inside(str(element.label), str(group.label))
        if nested and any(is_gate(self.flow.graph, operations[p]) for p in element.positions):
            return True
        # A pointwise convolution is the second half of a separable one.
        computing = [operations[p].kind for p in group.positions if self.flow.computing[p]]
        kernel = operations[element.positions[0]].attributes.get("kernel", ())
        return computing == ["depthwise_conv"] and {*kernel} == {1}

    def _with_stem(self, groups: list[Group]) -> list[Group]:
        """The groups, in which a few small ones before the first named group are joined as the stem."""
        generic = [
            not g.branching and (g.label is None or _kinds(_GENERIC).fullmatch(g.label) is not None)
            for g in groups
        ]
        first = next((i for i, plain in enumerate(generic) if not plain), 0)
        leading = [p for g in groups[:first] for p in g.positions]
        units = sum(g.units for g in groups[:first])
        if not leading or units > 2 or len(generic) - sum(generic) < 2:
            return groups
        return [Group(leading, "stem", units), *groups[first:]]


def is_gate(graph: Graph, operation: Operation) -> bool:
    """True if an operation scales an image's channels, like the last one of a squeeze-excite."""
    flat = [is_flat(s) for s in graph.shapes(operation.inputs)]
    return operation.kind == "multiply" and any(flat) and not all(flat)


# ---- Names: a label from the names of layers, and a summary of the operations.

MOST_OPERATIONS = 24
"""Most computing operations in a block; a name that more operations share belongs to a stage."""

_KIND = "|".join(
    [
        r"(?:separable_?|depthwise_?|grouped_?|transposed_?)?conv(?:olution)?(?:[123]d)?(?:_?transpose)?",
        r"sepconv|depthwise|pointwise|(?:einsum_?)?dense|linear|gemm|(?:simple_?)?rnn|bidirectional",
        r"time_?distributed|(?:multi_?head_?|group(?:ed)?_?query_?)?attention|input_?layer",
        r"(?:(?:batch|layer|group|instance|rms|unit)_?)?norm(?:ali[sz]ation)?|bn|ln|gn",
        r"activation|act|(?:leaky_?|p_?)?re_?lu|(?:hard_?)?swish|permute|lambda|get_?item",
        r"(?:global_?|adaptive_?)*(?:max_?|average_?|avg_?)?pool(?:ing)?(?:[123]d)?",
        r"(?:zero_?)?pad(?:ding)?(?:[123]d)?|crop(?:ping)?(?:[123]d)?|up_?sampl(?:e|ing)(?:[123]d)?",
        r"resizing|rescaling|concat|mul|div|sub|mean|(?:spatial_?|alpha_?|gaussian_?)?dropout(?:[123]d)?",
        *(kind.replace("_", "_?") for kind in KINDS),
    ]
)
_AUTOMATIC = r"(?:(?:KIND)(?:_\d+)?(?:_(?!$)|$))++"
_GENERIC = r"(?:KIND)_?\d*"
_ENDS_IN_KIND = r"(?:^|[/_.])(?:KIND)(?:_?\d+)?$"
_CONTAINER = re.compile(r"(?:(?:functional|sequential|model)(?:_\d+)?)?")
_TOKEN = re.compile(r"[^/_.]+")
_NUMBERED = re.compile(  # has a number other than the one of its dimensions, as in "conv2d"
    r"(?!(?:[a-z]*(?:conv|pool|pooling|padding|cropping|sampling|dropout|norm))?[123]d\Z).*\d",
    re.IGNORECASE,
)
_PART = re.compile(r"_(?:depthwise|pointwise)$")  # names that readers give a separable's two halves


@cache
def _kinds(pattern: str) -> re.Pattern[str]:
    """The pattern with KIND replaced by the kinds of layers; compiled on first use, which takes long."""
    return re.compile(pattern.replace("KIND", _KIND), re.IGNORECASE)


class Names:
    """Labels that a graph's names suggest.

    `units`: (operations,) True for the operations that MOST_OPERATIONS counts.
    """

    def __init__(self, graph: Graph, units: Sequence[bool]) -> None:
        self.operations = graph.operations
        self.texts = [informative(o) for o in graph.operations]
        split = [[(t[: m.end()], m.group()) for m in _TOKEN.finditer(t)] for t in self.texts]
        self.beginnings = [[beginning for beginning, _ in tokens] for tokens in split]
        # Number of computing operations whose name starts with each beginning.
        self.is_computing = [o.kind in COMPUTE for o in graph.operations]
        computing = (p for p, computes in enumerate(self.is_computing) if computes)
        self.below = Counter(b for p in computing for b in self.beginnings[p])
        self.numbered = [  # beginnings that end in a number, or the first of "block", "block_1" ...
            [b for (b, token), (_, after) in pairwise([*tokens, ("", "")])
             if _NUMBERED.match(token) or (f"{b}_1" in self.below and not _NUMBERED.match(after))]
            for tokens in split
        ]  # fmt: skip
        self.support = Counter(b for p, unit in enumerate(units) if unit for b in self.numbered[p])
        self.labels = [self._of_operation(p) for p in range(len(graph.operations))]

    def _of_operation(self, position: int) -> str | None:
        """The label of an operation in a chain: its longest name prefix that other computing ones share."""
        numbered = [b for b in self.numbered[position] if self.support[b] <= MOST_OPERATIONS]
        shared = [b for b in numbered if self.support[b] > 1]
        if best := shared or _chosen(numbered):
            return best[-1]
        few = [b for b in self.beginnings[position] if self.below[b] <= 4]
        words = _chosen(few)
        if numbered:
            return words[0] if words and len(words[0]) < len(numbered[0]) else numbered[0]
        shared = [b for b in few if self.below[b] > 1]
        return (shared[-1] if shared else words[0]) if words else None

    def of_segment(self, positions: Sequence[int]) -> str | None:
        """The label that most names in a branching segment share; None if there is no such label."""
        weights = {p: 3 if self.operations[p].kind in COMPUTE else 1 for p in positions}
        weights[positions[-1]] += 1  # a branch is often named where it ends
        weights = {p: weight for p, weight in weights.items() if self.texts[p]}
        total = sum(weights.values())
        votes = Counter(b for p, n in weights.items() for b in n * self.numbered[p])
        if agreed := [b for b, n in votes.items() if n >= 0.55 * total]:
            return max(_chosen(agreed) or agreed, key=len)
        votes = Counter(b for p, n in weights.items() for b in n * [self.labels[p]] if b)
        return next((b for b, n in votes.most_common(1) if n >= 0.6 * total), None)

    def spanning(self, label: str, positions: Sequence[int]) -> str:
        """A label that covers exactly the block: its label, a module inside that is all of the block, the
        module around the block, or its first and last module, "b3.0 to b3.2".
        """
        own = [n for p in sorted(positions) if self.is_computing[p] and (n := self.beginnings[p])]
        shared = {*own[0]}.intersection(*own) if own else set[str]()
        if label in shared:
            inner = min((b for b in shared if is_inside(b, label)), key=len, default=label)
            return inner if self.below[label] > len(own) == self.below[inner] else label
        around = max((b for b in shared if is_inside(label, b)), key=len, default="")
        ends = [[b for b in names if len(b) > len(around)] for names in own[:1] + own[-1:]]
        if not around or self.below[around] == len(own) or not all(ends):
            return around or label
        return " to ".join(label if label in names else names[0] for names in ends)


def is_inside(name: str, module: str) -> bool:
    """True for the full name of an operation or a module inside `module`."""
    return name.startswith((f"{module}.", f"{module}/"))


def _chosen(names: Iterable[str]) -> list[str]:
    """The names that do not end in a kind of layer."""
    return [name for name in names if not _kinds(_ENDS_IN_KIND).search(name)]


def informative(operation: Operation) -> str:
    """The part of an operation's full name that a person chose; "" if a framework numbered all of it."""
    kept: list[str] = []
    for component in operation.full_name.partition(":")[0].split("/"):
        if _CONTAINER.fullmatch(component):
            continue
        if _kinds(_AUTOMATIC).fullmatch(component):
            break
        if kept and component.startswith(f"{kept[-1]}."):  # ONNX: layer1/layer1.0
            kept.pop()
        kept.append(component)
    return "/".join(kept) if any(map(_TOKEN.search, kept)) else ""


def layer_label(operations: Sequence[Operation]) -> str:
    """A label for a block that has no name chosen by a person.

    It is the block's first and last module if these have names, as in "enc2 to up1"; else the first
    computing layer, as the framework numbered it, behind its module.
    """
    every = [o for o in operations if o.kind in COMPUTE] or operations[:1]
    computing, (first, last) = every[0], map(informative, (every[0], every[-1]))
    if computing.path and first and last and not last.startswith(first):
        return f"{first} to {last}"
    *outer, layer = computing.path.split("/")
    # An automatic path is a layer of several operations.
    if not _kinds(_AUTOMATIC).fullmatch(layer):
        outer, layer = [*outer, layer], _PART.sub("", computing.name) or computing.kind
    named = [o for o in outer if o and not _CONTAINER.fullmatch(o)]
    if any(_kinds(_AUTOMATIC).fullmatch(o) for o in named):
        named = []
    return "/".join([*named, layer])


def item_label(label: str, operations: Sequence[Operation]) -> str:
    """The label of a block in a list of modules; a block of one computing layer gets its number in it."""
    computing = [o for o in operations if o.kind in COMPUTE]
    number = re.fullmatch(r"[a-z_]+_(\d+)", computing[0].name) if len(computing) == 1 else None
    is_item = number is not None and label == computing[0].path
    return f"{label}.{number[1]}" if number and is_item else label


# ---- Summaries

_NOUNS = {
    "depthwise_conv": "depthwise", "simple_rnn": "rnn", "batch_norm": "bn", "concatenate": "concat",
    "global_average_pool": "average pool", "global_max_pool": "max pool",
    "adaptive_pool": "average pool", "resize": "upsample",
}  # fmt: skip
_SHOWN = COMPUTE | POOLINGS | {"add", "concatenate", "resize"}


def summarize(operations: Sequence[Operation]) -> str:
    """The kinds of operations in a block: "3 convs, add", "average pool, dense 1000, softmax".

    If several operations compute, the other operations come last, and only pools, resizes, sums and
    concatenations among them are named.
    """
    shown = [o for o in operations if o.kind not in VIEWS | {"pad"}]
    if sum(o.kind in COMPUTE for o in operations) > 1:
        computing = [o for o in shown if o.kind in COMPUTE]
        shown = computing + [o for o in shown if o.kind in _SHOWN - COMPUTE]
    of_noun: dict[str, list[Operation]] = {}
    for o in shown:
        of_noun.setdefault(_NOUNS.get(o.kind, o.kind.replace("_", " ")), []).append(o)
    parts = []
    for noun, same in of_noun.items():  # number, kind, common size
        sizes = {_size(o) for o in same}
        if len(same) > 1:
            is_noun = noun not in ("dense", "depthwise", "bn")
            noun = plural(len(same), noun) if is_noun else f"{len(same)} {noun}"
        parts.append(f"{noun} {sizes.pop()}".strip() if len(sizes) == 1 else noun)
    return ", ".join(parts) or "reshape"


def _size(operation: Operation) -> str:
    a = operation.attributes
    if operation.kind not in COMPUTE or "kernel" not in a:
        return str(a.get("units") or a.get("out_features") or "")
    stride = max(a.get("strides", (1,)))
    return "x".join(map(str, a["kernel"])) + (f"/{stride}" if stride > 1 else "")
