"""What to call a block: a label from the names of its layers, and a summary of what is in it.

Frameworks number the layers that nobody named ("conv2d_17", "add_2"): such names say nothing about where a
block begins; they are told apart from those that a person chose ("block2_add").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from lolat.graph import Graph, Operation
from lolat.graph.counts import FORMULAS
from lolat.graph.kinds import FREE, HEAVY, POOLINGS

LARGEST = 24
"""A name that more heavy operations share is that of a stage or a model, not of a block."""

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
        *(kind.replace("_", "_?") for kind in FORMULAS),
    ]
)
_AUTOMATIC = r"(?:(?:KIND)(?:_\d+)?(?:_(?!$)|$))++"
_GENERIC = r"(?:KIND)_?\d*"
_ENDS_IN_KIND = r"(?:^|[/_.])(?:KIND)(?:_?\d+)?$"
_CONTAINER = re.compile(r"(?:(?:functional|sequential|model)(?:_\d+)?)?")
_TOKEN = re.compile(r"[^/_.]+")
_DIMENSIONS = re.compile(
    r"(?:[a-z]*(?:conv|pool|pooling|padding|cropping|sampling|dropout|norm))?[123]d", re.IGNORECASE
)
_PART = re.compile(r"_(?:depthwise|pointwise)$")  # how readers call the two halves of a separable


@cache
def _kinds(pattern: str) -> re.Pattern[str]:
    """The pattern with the kinds in it, compiled when it is first needed: that takes long."""
    return re.compile(pattern.replace("KIND", _KIND), re.IGNORECASE)


class Names:
    """The labels that the names of a graph suggest; `units` are the heavy operations that count."""

    def __init__(self, graph: Graph, units: Sequence[bool]) -> None:
        self.operations = graph.operations
        self.texts = [informative(o) for o in graph.operations]
        split = [[(t[: m.end()], m.group()) for m in _TOKEN.finditer(t)] for t in self.texts]
        self.beginnings = [[beginning for beginning, _ in tokens] for tokens in split]
        self.below = Counter(  # heavy operations below each beginning of a name
            b for p, o in enumerate(graph.operations) if o.kind in HEAVY for b in self.beginnings[p]
        )
        self.numbered = [  # what ends in a number, or is the first of "block", "block_1" ...
            [
                b
                for (b, token), (_, after) in pairwise([*tokens, ("", "")])
                if _has_number(token) or (f"{b}_1" in self.below and not _has_number(after))
            ]
            for tokens in split
        ]
        self.support = Counter(b for p, unit in enumerate(units) if unit for b in self.numbered[p])

    def of_operation(self, position: int) -> str | None:
        """The label of one operation of a chain: the longest that other heavy ones share."""
        numbered = [b for b in self.numbered[position] if self.support[b] <= LARGEST]
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
        """The label on which most names of a branching segment agree; None when they do not."""
        weights = {p: 3 if self.operations[p].kind in HEAVY else 1 for p in positions}
        weights[positions[-1]] += 1  # a branch is often named where it ends
        weights = {p: weight for p, weight in weights.items() if self.texts[p]}
        total = sum(weights.values())
        votes = _votes((b, n) for p, n in weights.items() for b in self.numbered[p])
        if agreed := [b for b, n in votes.items() if n >= 0.55 * total]:
            return max(_chosen(agreed) or agreed, key=len)
        votes = _votes((b, n) for p, n in weights.items() if (b := self.of_operation(p)))
        return next((b for b, n in votes.most_common(1) if n >= 0.6 * total), None)


def _chosen(names: Iterable[str]) -> list[str]:
    """Those that do not end in the kind of a layer."""
    return [name for name in names if not _kinds(_ENDS_IN_KIND).search(name)]


def _votes(weighted: Iterable[tuple[str, int]]) -> Counter[str]:
    votes: Counter[str] = Counter()
    for name, weight in weighted:
        votes[name] += weight
    return votes


def _has_number(token: str) -> bool:
    return any(c.isdigit() for c in token) and not _DIMENSIONS.fullmatch(token)


def informative(operation: Operation) -> str:
    """The part of the full name that a person chose; "" when a framework numbered all of it."""
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


def is_generic(label: str | None) -> bool:
    """Whether a label says no more than the kind of a layer ("conv1")."""
    return label is None or bool(_kinds(_GENERIC).fullmatch(label))


def layer_label(operations: Sequence[Operation]) -> str:
    """A label for a block that nobody named: its first heavy layer as the framework numbered it."""
    heavy = next((o for o in operations if o.kind in HEAVY), operations[0])
    layer = heavy.path.rpartition("/")[2]
    if _kinds(_AUTOMATIC).fullmatch(layer):
        return layer  # it consists of several operations, such as attention
    return _PART.sub("", heavy.name) or heavy.kind


def unique(labels: Sequence[str]) -> list[str]:
    """The labels with repeated ones numbered: "block", "block (2)" ..."""
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(f"{label} ({seen[label]})" if seen[label] > 1 else label)
    return result


# ---- Summaries: heavy things first, as a person writes them

_NOUNS = {
    "depthwise_conv": "depthwise", "separable": "separable conv", "simple_rnn": "rnn",
    "batch_norm": "bn", "global_average_pool": "average pool", "global_max_pool": "max pool",
    "adaptive_pool": "average pool", "concatenate": "concat", "resize": "upsample",
}  # fmt: skip
_MAIN = ("separable", "depthwise_conv", "grouped_conv", "conv", "transposed_conv", "embedding",
         "lstm", "gru", "simple_rnn", "attention", "dense", "matmul")  # fmt: skip
_JOINS = (
    POOLINGS
    | {"add", "subtract", "multiply", "average", "maximum", "minimum"}
    | {"concatenate", "stack", "resize", "squeeze-excite"}
)
_UNCOUNTED = ("dense", "depthwise", "squeeze-excite", "bn", "multiply")


def summarize(graph: Graph, operations: Sequence[Operation]) -> str:
    """What is in a block, as a person would write it: "3 convs, add", "dense 1000, softmax"."""
    items = _collapsed(graph, operations)
    heavy = [item for item in items if item[0] in _MAIN]
    if len(heavy) == 1:
        texts = [(_detailed(*i) if i is heavy[0] else _noun(i[0]), _rank(i[0])) for i in items]
        return _fitted(list(dict.fromkeys(texts)))
    kinds = sorted({k for k, _ in heavy}, key=_MAIN.index)
    parts = [(_several(kind, [o for k, o in heavy if k == kind]), 0) for kind in kinds]
    rest = Counter(_noun(k) for k, _ in items if k in _JOINS or not heavy)
    parts += [(_counted(noun, n), 1) for noun, n in rest.items()]
    branches = max((len(o.inputs) for k, o in items if k == "concatenate"), default=0)
    if branches > 2 and heavy:
        parts[0] = (f"{branches} branches: {parts[0][0]}", 0)
    return _fitted(parts) or "reshape"


def _collapsed(graph: Graph, operations: Sequence[Operation]) -> list[tuple[str, Operation]]:
    """The parts of a summary: attention, squeeze-excite and separable convolutions are one each."""
    gates = {id(o) for o in operations if is_gate(graph, o)}
    squeezed = [o for o in operations if gates and is_flat(graph.tensors[o.outputs[0]].shape)]
    if not any(o.kind in HEAVY for o in squeezed):
        gates, squeezed = set(), []
    products = [o for o in operations if o.kind == "matmul"]
    by_hand = products[::2] if len(products) > 1 else []  # attention written as its two products
    attentions = [o for o in operations if o.kind == "attention"] + by_hand
    paths = {o.path for o in attentions} - {""}
    inside = {id(o) for o in operations if o.path in paths}  # the layer's other operations
    skipped = inside.union(map(id, squeezed), map(id, products if by_hand else ()))
    items: list[tuple[str, Operation]] = []
    for o in operations:
        if any(o is a for a in attentions):
            items.append(("attention", o))
        elif id(o) in gates:
            items.append(("squeeze-excite", o))
        elif o.name.endswith("_pointwise") and items and items[-1][0] == "depthwise_conv":
            items[-1] = ("separable", items[-1][1])
        elif id(o) not in skipped and o.kind not in FREE and o.kind != "pad":
            items.append((o.kind, o))
    return items


def is_flat(shape: Sequence[int]) -> bool:
    """Whether a tensor has no extent besides its channels."""
    return sum(n > 1 for n in shape[1:]) < 2


def is_gate(graph: Graph, operation: Operation) -> bool:
    """Whether an operation scales the channels of an image, as the end of a squeeze-excite does."""
    flat = [is_flat(s) for s in graph.shapes(operation.inputs)]
    return operation.kind == "multiply" and any(flat) and not all(flat)


def _noun(kind: str) -> str:
    return _NOUNS.get(kind, kind.replace("_", " "))


def _counted(noun: str, number: int) -> str:
    return noun if number == 1 else f"{number} {noun}" + "s" * (noun not in _UNCOUNTED)


def _kernel(operation: Operation) -> str:
    return "x".join(map(str, operation.attributes.get("kernel", ())))


def _detailed(kind: str, operation: Operation) -> str:
    """One heavy operation with its size: "conv 7x7/2", "dense 1000", "lstm 64"."""
    a = operation.attributes
    size = a.get("units") or a.get("out_features") or ""
    if "kernel" in a:
        stride = max(a.get("strides", (1,)))
        size = _kernel(operation) + (f"/{stride}" if stride > 1 else "")
    return f"{_noun(kind)} {size}".strip()


def _several(kind: str, operations: Sequence[Operation]) -> str:
    """Heavy operations of one kind: "3 convs", with the kernel where it is the same for all."""
    details = [_detailed(kind, o) for o in operations]
    if len(set(details)) == len(details) < 3 and kind != "dense":
        return ", ".join(details)
    kernels = {*map(_kernel, operations)}
    same = kernels.pop() if len(kernels) == 1 else ""
    return f"{_counted(_noun(kind), len(operations))} {same}".strip()


def _rank(kind: str) -> int:
    """How readily a part is left out of a summary that is too long; 0: last of all."""
    return 0 if kind in _MAIN else 1 if kind in _JOINS or kind == "softmax" else 2


def _fitted(parts: list[tuple[str, int]]) -> str:
    """The parts in a line of at most 48 characters, which fits into a table."""
    while len(line := ", ".join(text for text, _ in parts)) > 48:
        weakest = max(range(len(parts)), key=lambda i: (parts[i][1], i))
        if parts[weakest][1] == 0:
            return f"{line[:45]}..."
        del parts[weakest]
    return line
