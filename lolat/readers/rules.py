"""What the rules of the three readers have in common: one signature, tables, axes, attention, products.

A rule says how one call of a framework's layer or operator is written: `rule(reader, call)` appends
operations to the reader's graph and returns the tensors that the call yields, in order. What a tensor is,
is the reader's affair: its index in the graph, in ONNX its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from lolat.graph import GraphBuilder

Rule = Callable[[Any, Any], list[Any]]


class Reader(Protocol):
    """What rules that serve every framework ask of a reader; the shapes are of tensors that are indices."""

    builder: GraphBuilder

    def write(self, call: Any, kind: str, inputs: Sequence[Any], **attributes: Any) -> list[Any]:
        """Append the operation that yields what the call does."""

    def activations(self, call: Any) -> Sequence[Any]:
        """The tensors that a call works on, its parameters apart."""

    def operands(self, call: Any) -> Sequence[Any]:
        """Every operand that has a shape, constants too."""

    def axes(self, call: Any, kind: str) -> dict[str, Any]:
        """The attributes of an operation of `kind` that shapes do not tell."""

    def is_constant(self, tensor: Any) -> bool:
        """Whether a tensor is the same whatever goes into the network."""

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The shape of a tensor at batch size 1."""
        return self.builder.tensors[tensor].shape

    def elements(self, tensor: Any) -> int:
        """Elements of a tensor at batch size 1."""
        return prod(self.shape(tensor))


def plain(kind: str) -> Rule:
    """One operation on the activations."""

    def rule(reader: Reader, call: Any) -> list[Any]:
        return reader.write(call, kind, reader.activations(call), **reader.axes(call, kind))

    return rule


def on_operands(kind: str) -> Rule:
    """One operation on all operands."""

    def rule(reader: Reader, call: Any) -> list[Any]:
        return reader.write(call, kind, reader.operands(call), **reader.axes(call, kind))

    return rule


def by_name(kinds: Mapping[str, str], rule: Callable[[str], Rule]) -> dict[str, Rule]:
    """Rules from a table of kind -> names with blanks between."""
    return {name: rule(kind) for kind, names in kinds.items() for name in names.split()}


def product(
    reader: Reader, call: Any, left: Any, right: Any, contracted: int, bias: bool = False
) -> list[Any]:
    """A dense layer where the right operand is a constant, else a product of two activations."""
    if reader.is_constant(right) and not reader.is_constant(left):
        features = reader.elements(right) // max(contracted, 1)
        return reader.write(
            call, "dense", [left], in_features=contracted, out_features=features, bias=bias
        )
    return reader.write(call, "matmul", [left, right], contracted=contracted)


def attention(
    b: GraphBuilder, query: int, key: int, value: int, heads: tuple[int, int], name: str, path: str,
    scaled: bool = True,
) -> tuple[int, int]:  # fmt: skip
    """softmax(q k' * scale) v on (batch, ..., steps, heads x size) tensors; `heads`: of q and of k, v.

    Returns the result and the weights of the softmax.
    """
    q, k, v = (b.tensors[i].shape for i in (query, key, value))
    head_size, value_size = q[-1] // heads[0], v[-1] // heads[1]
    shapes = [(*q[:-1], value_size * heads[0]), (*q[:-2], heads[0], q[-2], k[-2])]
    mixed, weights = b.add_several(
        "attention", [query, key, value], shapes, name, path, heads=heads[0], key_heads=heads[1],
        queries=q[-2], keys=k[-2], head_size=head_size, value_size=value_size, scaled=scaled,
    )  # fmt: skip
    return mixed, weights


def einsum_terms(equation: str) -> tuple[list[str], str]:
    """(labels of each operand, labels of the result) of "abc,cde->abde", without "..."."""
    left, arrow, result = equation.replace(" ", "").replace("...", "").partition("->")
    if not arrow:  # the labels that occur once, in alphabetical order
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return left.split(","), result


def einsum_features(labels: str, result: str, shape: Sequence[int]) -> tuple[int, int]:
    """(summed, kept) sizes of an operand of an einsum; "..." stands for its first axes."""
    sizes = list(zip(labels, shape[len(shape) - len(labels) :], strict=True))
    summed = prod(n for label, n in sizes if label not in result)
    return summed, prod(n for label, n in sizes if label in result)


# ---- Attributes that shapes do not tell, in the axes of the graph's own tensors.

WITH_AXIS = frozenset(
    ["concatenate", "stack", "softmax", "log_softmax", "gather", "cumulative", "reduce"]
)
"""Kinds of operation that work along an axis."""


def axis_of(axis: Any, rank: int, everything: bool = False) -> dict[str, Any]:
    """{"axis": one from 0, or several}; of None nothing, or with `everything` all axes."""
    if axis is None or (isinstance(axis, Iterable) and not list(axis)):
        axis = range(rank) if everything else ()
    axes = sorted({int(a) % max(rank, 1) for a in (axis if isinstance(axis, Iterable) else [axis])})
    if not axes:
        return {}
    return {"axis": axes[0] if len(axes) == 1 else tuple(axes)}


def part_of(
    shape: Sequence[int], starts: Mapping[int, int], steps: Mapping[int, int] | None = None,
    gone: Sequence[int] = (),
) -> dict[str, Any]:  # fmt: skip
    """Where a slice of `shape` begins on each axis and its steps; `gone`: axes that the result lacks.

    A start may count from the end, and lie beyond it, as in Python.
    """
    steps = steps or {}
    first = [
        min(max(s + n if s < 0 else s, 0), max(n - 1, 0))
        for s, n in ((starts.get(axis, 0), n) for axis, n in enumerate(shape))
    ]
    every = tuple(steps.get(axis, 1) for axis in range(len(shape)))
    return {"starts": tuple(first), "steps": every, **axis_of(gone, len(shape))}


def swapped(rank: int, first: int, second: int) -> tuple[int, ...]:
    """The permutation that exchanges two axes."""
    order = list(range(rank))
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def moved(rank: int, source: Any, target: Any) -> tuple[int, ...]:
    """The permutation that moves axes (one or several) to other places, the rest in order."""
    sources, targets = ([n] if isinstance(n, int) else list(n) for n in (source, target))
    places = {t % rank: s % rank for s, t in zip(sources, targets, strict=True)}
    rest = iter(a for a in range(rank) if a not in places.values())
    return tuple(places[a] if a in places else next(rest) for a in range(rank))
