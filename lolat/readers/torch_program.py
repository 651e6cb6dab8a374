"""A network that torch.export took apart: its nodes, what is constant, shapes at any batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.torch_errors import source_line

Sizes = Callable[[Any, Any, bool], tuple[tuple[int, ...], bool]]
"""(a node, one of its tensors or its only one, whether an input grows with the batch) -> (shape at batch
size 1, whether the tensor grows with the batch)."""


@dataclass
class Program:
    """A graph of ATen operations. `inputs`: the names of the placeholders that a caller fills."""

    graph_module: Any
    inputs: frozenset[str]
    outputs: (
        int  # how many of the last outputs are the caller's (before: what is written to buffers)
    )
    sizes: Sizes
    warnings: list[str] = field(default_factory=list)
    prefix: str = ""  # of module paths, left out


def is_tensor(value: Any) -> bool:
    """Whether what a node yields is a tensor (not a size, not several tensors)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def tensors_of(value: Any) -> list[Any]:
    """The tensors that a node yields, None in place of what is none."""
    if isinstance(value, (tuple, list)):
        return [v if is_tensor(v) else None for v in value]
    return [value if is_tensor(value) else None]


def constants_and_inputs(signature: Any) -> tuple[frozenset[str], int]:
    """(names of the placeholders that a caller fills, number of outputs that a caller gets)."""
    kinds = [spec.kind.name for spec in signature.output_specs]
    inputs = {s.arg.name for s in signature.input_specs if s.kind.name == "USER_INPUT"}
    return frozenset(inputs), kinds.count("USER_OUTPUT")


def numbers(value: Any, node: Any) -> tuple[int, ...]:
    """The shape of a tensor; NetworkError where a size depends on the values of another tensor."""
    if all(isinstance(n, int) for n in value.shape):
        return tuple(value.shape)
    line = source_line(node.meta.get("stack_trace"))
    raise NetworkError(
        f"the size of what {node.name!r} makes{line} depends on the values of a tensor (as that of "
        "x[x > 0] does), so the network has no one latency; give a module whose shapes depend on shapes "
        "alone"
    )


def at_two_batches(first: Any, second: Any | None) -> tuple[Sizes, list[str]]:
    """Sizes by comparing exports at batch sizes 1 and 2, and remarks where they do not go together.

    `second` None: the network works at batch size 1 alone.
    """
    pairs: dict[int, tuple[Any, Any]] = {}
    same = second is not None and _paired(first, second, pairs)
    growth: dict[tuple[int, int], int] = {}  # (id of a node, which of its tensors) -> times as many
    odd: list[str] = []
    for one, two in pairs.values() if same else ():
        values = (tensors_of(node.meta.get("val")) for node in (one, two))
        for at, (a, b) in enumerate(zip(*values, strict=False)):
            if a is None or b is None:
                continue
            ours, theirs = prod(numbers(a, one)), prod(numbers(b, two))
            growth[id(one), at] = 1 if ours == theirs else 2
            if theirs not in (ours, 2 * ours):
                odd.append(one.name)

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        mine = tensors_of(node.meta.get("val"))
        at = next((i for i, v in enumerate(mine) if v is value), 0)
        found = growth.get((id(node), at)) if same else None
        return numbers(value, node), grows if found is None else found > 1

    warnings = []
    if second is not None and not same:
        warnings.append(
            "the network does other operations at batch size 2 than at 1 (its code asks for the batch "
            "size); counted as at batch size 1, times the batch size"
        )
    elif odd:
        warnings.append(
            f"{len(odd)} tensors do not grow evenly with the batch size (first {odd[0]!r}); counted as at "
            "batch size 1, times the batch size"
        )
    return sizes, warnings


def _paired(first: Any, second: Any, pairs: dict[int, tuple[Any, Any]]) -> bool:
    """Fill `pairs` (id of a node -> both nodes); False when the graphs are not of the same operations."""
    ours, theirs = list(first.graph.nodes), list(second.graph.nodes)
    if len(ours) != len(theirs):
        return False
    for a, b in zip(ours, theirs, strict=True):
        inner = submodule(first, a)
        if a.op != b.op or (inner is None and str(a.target) != str(b.target)):
            return False
        if inner is not None and not _paired(inner, submodule(second, b), pairs):
            return False
        pairs[id(a)] = (a, b)
    return True


def submodule(graph_module: Any, node: Any) -> Any | None:
    """The graph inside a graph that a node names (for a call under no_grad, autocast), else None."""
    if node.op != "get_attr":
        return None
    found: Any = graph_module
    for part in str(node.target).split("."):
        found = getattr(found, part, None)
    return found if hasattr(found, "graph") else None


def with_symbols(assigned: Mapping[Any, int], batch: Any) -> Sizes:
    """Sizes of a program with open dimensions: symbols -> numbers; `batch` is 1, then 2, in them."""

    def number(n: Any, at: int) -> int:
        expression = getattr(getattr(n, "node", None), "expr", None)
        if expression is None or not hasattr(expression, "subs"):
            return int(n)
        return int(expression.subs({**assigned, batch: at}))

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        one = tuple(number(n, 1) for n in value.shape)
        return one, one != tuple(number(n, 2) for n in value.shape)

    return sizes


def at_fixed_batch(batch: int) -> Sizes:
    """Sizes of a program exported for `batch` samples alone: what depends on inputs is divided."""

    def sizes(node: Any, value: Any, grows: bool) -> tuple[tuple[int, ...], bool]:
        shape = [int(n) for n in value.shape]
        if not grows or batch == 1:
            return tuple(shape), grows
        axes = [i for i, n in enumerate(shape) if n % batch == 0]
        if not axes:
            return tuple(shape), False
        exact = [i for i in axes if shape[i] == batch]
        axis = 0 if axes[0] == 0 else (exact or axes)[0]
        shape[axis] //= batch
        return tuple(shape), True

    return sizes
