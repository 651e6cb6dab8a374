"""Names of blocks: a label from the names of layers, and a summary of the operations.

Names that a framework numbered ("conv2d_17", "add_2") say nothing about where a block begins; they are told
apart from those that a person chose ("block2_add").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise

from lolat.graph import Graph, Operation
from lolat.graph.kinds import COMPUTE, KINDS, POOLINGS, VIEWS

SPAN = " to "
LARGEST = 24
"""The most computing operations of a block; a name that more of them share is a stage's."""

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
_DIMENSIONS = re.compile(
    r"(?:[a-z]*(?:conv|pool|pooling|padding|cropping|sampling|dropout|norm))?[123]d", re.IGNORECASE
)
_PART = re.compile(r"_(?:depthwise|pointwise)$")  # how readers call the two halves of a separable


@cache
def _kinds(pattern: str) -> re.Pattern[str]:
    """The pattern with the kinds in it, compiled when it is first needed: that takes long."""
    return re.compile(pattern.replace("KIND", _KIND), re.IGNORECASE)


class Names:
    """The labels that the names of a graph suggest; `units` are the computing operations that count."""

    def __init__(self, graph: Graph, units: Sequence[bool]) -> None:
        self.operations = graph.operations
        self.texts = [informative(o) for o in graph.operations]
        split = [[(t[: m.end()], m.group()) for m in _TOKEN.finditer(t)] for t in self.texts]
        self.beginnings = [[beginning for beginning, _ in tokens] for tokens in split]
        self.below = Counter(  # computing operations below each beginning of a name
            b
            for p, o in enumerate(graph.operations)
            if o.kind in COMPUTE
            for b in self.beginnings[p]
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
        """The label of one operation of a chain: the longest that other computing ones share."""
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
        weights = {p: 3 if self.operations[p].kind in COMPUTE else 1 for p in positions}
        weights[positions[-1]] += 1  # a branch is often named where it ends
        weights = {p: weight for p, weight in weights.items() if self.texts[p]}
        total = sum(weights.values())
        votes = Counter(b for p, n in weights.items() for b in n * self.numbered[p])
        if agreed := [b for b, n in votes.items() if n >= 0.55 * total]:
            return max(_chosen(agreed) or agreed, key=len)
        votes = Counter(b for p, n in weights.items() for b in n * [self.of_operation(p)] if b)
        return next((b for b, n in votes.most_common(1) if n >= 0.6 * total), None)

    def of_span(self, positions: Sequence[int]) -> str | None:
        """The labels of the first and the last computing operation of a segment; None if generic."""
        computing = [p for p in positions if self.operations[p].kind in COMPUTE]
        ends = [self.of_operation(p) for p in (computing[:1] + computing[-1:])]
        first, last = ends if len(ends) == 2 else (None, None)
        if first is None or last is None or is_generic(first) or is_generic(last):
            return None
        return first if first == last else f"{first}{SPAN}{last}"


def _chosen(names: Iterable[str]) -> list[str]:
    """The names that do not end in the kind of a layer."""
    return [name for name in names if not _kinds(_ENDS_IN_KIND).search(name)]


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
    """True if a label is just the kind of a layer ("conv1")."""
    return label is None or bool(_kinds(_GENERIC).fullmatch(label))


def layer_label(operations: Sequence[Operation]) -> str:
    """A label for a block that nobody named: its first computing layer as the framework numbered it."""
    computing = next((o for o in operations if o.kind in COMPUTE), operations[0])
    layer = computing.path.rpartition("/")[2]
    if _kinds(_AUTOMATIC).fullmatch(layer):
        return layer  # it consists of several operations, such as attention
    return _PART.sub("", computing.name) or computing.kind


def unique(labels: Sequence[str]) -> list[str]:
    """The labels with repeated ones numbered: "block", "block (2)" ..."""
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(f"{label} ({seen[label]})" if seen[label] > 1 else label)
    return result


# ---- Summaries

_NOUNS = {
    "depthwise_conv": "depthwise", "simple_rnn": "rnn", "batch_norm": "bn", "concatenate": "concat",
    "global_average_pool": "average pool", "global_max_pool": "max pool",
    "adaptive_pool": "average pool", "resize": "upsample",
}  # fmt: skip
_SHOWN = COMPUTE | POOLINGS | {"add", "concatenate", "resize"}
LONGEST = 48  # characters, which fit into a table


def summarize(operations: Sequence[Operation]) -> str:
    """The kinds of operations in a block: "3 convs, add", "average pool, dense 1000, softmax".

    Among several computing ones, others come last, and only if they pool, resize or join tensors.
    """
    shown = [o for o in operations if o.kind not in VIEWS | {"pad"}]
    if sum(o.kind in COMPUTE for o in operations) > 1:
        computing = [o for o in shown if o.kind in COMPUTE]
        shown = computing + [o for o in shown if o.kind in _SHOWN - COMPUTE]
    of_noun: dict[str, list[Operation]] = {}
    for o in shown:
        of_noun.setdefault(_NOUNS.get(o.kind, o.kind.replace("_", " ")), []).append(o)
    line = ", ".join(_counted(noun, same) for noun, same in of_noun.items()) or "reshape"
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 3]}..."


def _counted(noun: str, operations: Sequence[Operation]) -> str:
    """Number, kind and common size of operations: "conv 7x7/2", "3 convs 1x1"."""
    number, sizes = len(operations), set[str]()
    for o in operations:
        a = o.attributes
        if o.kind in COMPUTE and "kernel" in a:
            stride = max(a.get("strides", (1,)))
            sizes.add("x".join(map(str, a["kernel"])) + (f"/{stride}" if stride > 1 else ""))
        else:
            sizes.add(str(a.get("units") or a.get("out_features") or ""))
    if number > 1:
        noun = f"{number} {noun}" + "s" * (noun not in ("dense", "depthwise", "bn"))
    return f"{noun} {sizes.pop()}".strip() if len(sizes) == 1 else noun


# ---- Shapes


def is_flat(shape: Sequence[int]) -> bool:
    """True if a tensor has no extent besides its channels."""
    return sum(n > 1 for n in shape[1:]) < 2


def is_gate(graph: Graph, operation: Operation) -> bool:
    """True if an operation scales the channels of an image, as the end of a squeeze-excite does."""
    flat = [is_flat(s) for s in graph.shapes(operation.inputs)]
    return operation.kind == "multiply" and any(flat) and not all(flat)
