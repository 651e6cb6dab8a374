"""What is in a block, in a few words: heavy things first, as a person writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lolat.graph import Graph, Operation
from lolat.kinds import ELEMENTWISE, FREE, POOLINGS
from lolat.naming import HEAVY

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
        told = [(_detailed(*i) if i is heavy[0] else _noun(i[0]), _rank(i[0])) for i in items]
        return _fitted(list(dict.fromkeys(told)))
    kinds = sorted({k for k, _ in heavy}, key=_MAIN.index)
    parts = [(_several(kind, [o for k, o in heavy if k == kind]), 0) for kind in kinds]
    rest = [k for k, _ in items if k in _JOINS or (not heavy and k not in _MAIN)]
    if heavy and items[-1][0] in ("softmax", "sigmoid"):
        rest.append(items[-1][0])
    parts += [(_counted(noun, n), 1) for noun, n in Counter(map(_noun, rest)).items()]
    branches = max((len(o.inputs) for k, o in items if k == "concatenate"), default=0)
    if branches > 2 and heavy:
        parts[0] = (f"{branches} branches: {parts[0][0]}", 0)
    return _fitted(parts) or "reshape"


def _collapsed(graph: Graph, operations: Sequence[Operation]) -> list[tuple[str, Operation]]:
    """What is worth telling; attention, squeeze-excite and separable convolutions are one each."""
    gates = {id(o) for o in operations if is_gate(graph, o)}
    squeezed = [o for o in operations if gates and is_flat(graph.tensors[o.outputs[0]].shape)]
    if not any(o.kind in HEAVY for o in squeezed):
        gates, squeezed = set(), []
    products = [o for o in operations if o.kind == "matmul"]
    attentions = products[::2] if len(products) > 1 else []
    paths = {o.path for o in attentions} - {""}
    inside = {id(o) for o in operations if o.path in paths}  # the layer's other operations
    skipped = inside.union(map(id, squeezed), map(id, products if attentions else ()))
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


def _detailed(kind: str, operation: Operation) -> str:
    """One heavy operation with its size: "conv 7x7/2", "dense 1000", "lstm 64"."""
    a = operation.attributes
    size = a.get("units") or a.get("out_features") or ""
    if "kernel" in a:
        stride = max(a.get("strides", (1,)))
        size = "x".join(map(str, a["kernel"])) + (f"/{stride}" if stride > 1 else "")
    return f"{_noun(kind)} {size}".strip()


def _several(kind: str, operations: Sequence[Operation]) -> str:
    """Heavy operations of one kind: "3 convs", with the kernel where it is the same for all."""
    details = [_detailed(kind, o) for o in operations]
    if len(set(details)) == len(details) < 3 and kind != "dense":
        return ", ".join(details)
    kernels = {"x".join(map(str, o.attributes.get("kernel", ()))) for o in operations}
    same = kernels.pop() if len(kernels) == 1 else ""
    return f"{_counted(_noun(kind), len(operations))} {same}".strip()


def _rank(kind: str) -> int:
    """How readily a part is left out of a summary that is too long; 0: last of all."""
    if kind in _MAIN:
        return 0
    return 1 if kind in _JOINS or kind == "softmax" else 3 if kind in ELEMENTWISE else 2


def _fitted(parts: list[tuple[str, int]]) -> str:
    """The parts in a line of at most 48 characters, which fits into a table."""
    while len(line := ", ".join(text for text, _ in parts)) > 48:
        weakest = max(range(len(parts)), key=lambda i: (parts[i][1], i))
        if parts[weakest][1] == 0:
            return f"{line[:45]}..."
        del parts[weakest]
    return line
