"""The operations that run in a backward pass, and the operations that it recomputes.

A network's inputs and its untrained constants get no gradient. Attributes of operations (TRAINED and its
neighbors in `lolat.graph.kinds`) mark other untrained parts; a fully trained network has none. A
checkpointed part is recomputed up to its last saved tensor, completely if it is REENTRANT, and without its
products if it is SELECTIVE.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lolat.arrays import np
from lolat.graph import Graph, Operation, cached_on_graph, kinds
from lolat.graph.kinds import kind_of

_AFTER = kinds.NORMALIZATIONS | frozenset(kinds.GATES)
"""Kinds that save values which they compute, such as statistics; a checkpointed part recomputes them."""


@dataclass(frozen=True, eq=False)
class Backward:
    """A backward pass: four boolean arrays of shape (operations,), and two tuples with an item per tensor.

    `runs`: the operation has a backward pass; `first`: it computes the gradient of its first operand;
    `second`: it computes the gradient of its kernel or second operand; `recomputed`: its forward pass runs
    again. `needs`: the gradient of the tensor is computed; `gradients`: number of operations whose
    gradients for the tensor are added up.
    """

    runs: np.ndarray
    first: np.ndarray
    second: np.ndarray
    recomputed: np.ndarray
    needs: tuple[bool, ...]
    gradients: tuple[int, ...]

    def share(self, graph: Graph, position: int) -> float:
        """The fraction of an operation's full backward pass that runs.

        The gradient of a network's input counts, because measured blocks computed it too.
        """
        o, runs = graph.operations[position], bool(self.runs[position])
        if not runs or o.kind not in kinds.MULTIPLYING or o.kind == "attention":
            return float(runs)
        reads_input = o.kind in kinds.KERNELS and o.inputs[0] in graph.inputs
        return 0.5 * (bool(self.first[position] or reads_input) + bool(self.second[position]))

    def saved(self, graph: Graph, position: int) -> set[int]:
        """The tensors that an operation saves for its backward pass, by the rules of PyTorch's autograd."""
        o = graph.operations[position]
        if not self.runs[position]:
            return set()
        if o.kind == "dense":
            return {*o.inputs[: int(self.second[position])]}
        if o.kind in ("matmul", "multiply", "divide") and len(o.inputs) == 2:
            left, right = o.inputs  # the gradient of each needs the other
            kept = {left: self.needs[right], right: o.kind == "divide" or self.needs[left]}
            return {t for t, keeps in kept.items() if keeps}
        by_number = o.kind in ("multiply", "divide") and len(o.inputs) < 2
        # The backward pass of TensorFlow's average pool needs only the shape.
        by_shape = o.kind == "average_pool" and graph.framework == "keras"
        saves = "" if by_number or by_shape or is_view(graph, o) else _saves(o)
        # The slope of a prelu, its second input, is a parameter.
        read = o.inputs[:1] if o.kind == "prelu" else o.inputs
        if saves == kinds.INTEGERS:
            return {t for t in read if graph.tensors[t].dtype.startswith(("int", "uint", "bool"))}
        read = read[1:] if saves == kinds.OTHERS else read * (kinds.INPUT in saves)
        return {*read, *o.outputs * (kinds.OUTPUT in saves)}


def _saves(operation: Operation) -> str:
    is_result = kinds.IN_PLACE in operation.attributes and operation.kind in kinds.INVERTIBLE
    saves: str = operation.attributes.get("saved", kind_of(operation.kind).saves)
    return kinds.OUTPUT if is_result else saves


def saves_positions(graph: Graph, operation: Operation) -> bool:
    """True if PyTorch saves the positions of the elements that an operation selects, such as maxima."""
    by_kind = operation.kind in kinds.INDEXED or kinds.POSITIONS in _saves(operation)
    return by_kind and graph.framework == "torch"


def drops(graph: Graph, operation: Operation) -> bool:
    """True if an operation is a dropout that drops elements; in PyTorch, one without a rate drops none."""
    return operation.kind == "dropout" and (
        graph.framework != "torch" or "rate" in operation.attributes
    )


def is_view(graph: Graph, operation: Operation) -> bool:
    """True if an operation's result is a view of its input in training, so that the input stays alive."""
    views = kinds.VIEWS | kinds.SLICES if graph.framework == "torch" else kinds.VIEWS
    return operation.kind in views and bool(operation.inputs) and not drops(graph, operation)


def free_parameters(graph: Graph) -> list[tuple[list[int], int]]:
    """(positions of the operations that compute its gradient, elements) of each trained constant."""
    part, readers = (
        backward_of(graph),
        dict[int, Any](graph.consumers()) if graph.loose_parameters else {},
    )
    if (
        graph.loose_parameters
    ):  # a result stands for the constants that its operation's kernel is computed from
        readers |= {t: [i] for i, o in enumerate(graph.operations) for t in o.outputs}
    found = []
    for elements, constants in graph.loose_parameters:
        needed = (t for t in constants if part.needs[t])
        reading = sorted(i for t in needed for i in readers.get(t, ()) if part.runs[i])
        found += [(reading, elements)] if reading else []
    return found


def read_parameters(graph: Graph) -> dict[int, int]:
    """Constant -> the last operation that reads it, for each constant that is a whole trained parameter."""
    runs, readers = backward_of(graph).runs, graph.consumers()
    memory = {t for tensors, freed in graph.storages if freed == -1 for t in tensors}
    whole = (
        t
        for elements, constants in graph.loose_parameters
        for t in memory.intersection(constants)
        if graph.tensors[t].elements() == elements
    )
    return {t: max((i for i in readers.get(t, ()) if runs[i]), default=-1) for t in whole}


def has_trained_parameters(operation: Operation) -> bool:
    """True if an operation has parameters that are trained."""
    kind = operation.kind
    has_any = kind in kinds.KERNELS or kind == "embedding" or operation.vectors > 0
    return has_any and (
        operation.attributes.get(kinds.TRAINED, 1) > 0 or kinds.COMPUTED in operation.attributes
    )


def _trains_kernel(operation: Operation) -> bool:
    """True if an operation trains its kernel, not only its bias."""
    a = operation.attributes
    biases: Any = a.get("out_features", a.get("out_channels", 0))
    return has_trained_parameters(operation) and (
        kinds.COMPUTED in a or a.get(kinds.TRAINED, biases + 1) > biases
    )


@cached_on_graph
def backward_of(graph: Graph) -> Backward:
    """The backward pass of a graph."""
    tensors, operations = graph.tensors, graph.operations
    is_float = ["float" in t.dtype or "complex" in t.dtype for t in tensors]
    given = {t for o in operations for t in o.outputs}.union(graph.inputs, graph.untrained)
    needs = [real and t not in given for t, real in enumerate(is_float)]
    for o in operations:
        if kinds.STOPPED in o.attributes or o.kind == "fill":
            continue
        if has_trained_parameters(o) or any(needs[t] for t in o.inputs):
            for t in o.outputs:
                needs[t] = is_float[t]
        if kinds.ASKED in o.attributes:
            needs[o.outputs[0]] = True
    asked = {t for t in set(graph.outputs).difference(graph.kept) if needs[t]}
    runs, first, second, recomputed = np.zeros((4, len(operations)), bool)
    gradients = [0] * len(tensors)
    joined: set[int] = set()  # tensors whose parts are joined in the backward pass
    for i in reversed(range(len(operations))):
        o = operations[i]
        runs[i] = not asked.isdisjoint(o.outputs)
        if runs[i]:
            wanted = [t for t in o.inputs if needs[t]]
            asked.update(wanted)
            for t in wanted:
                if not (o.kind == "split" and t in joined):  # the parts give one gradient together
                    gradients[t] += 1
            joined.update(wanted if o.kind == "split" else ())
            first[i] = bool(o.inputs) and needs[o.inputs[0]]
            has_kernel = o.kind in kinds.KERNELS or o.kind == "embedding"
            second[i] = _trains_kernel(o) if has_kernel else any(needs[t] for t in o.inputs[1:])
    found = Backward(runs, first, second, recomputed, tuple(needs), tuple(gradients))
    for part in checkpoints(graph).values():
        recomputed[list(_recomputed(graph, found, part))] = True
    return found


def open_outputs(graph: Graph) -> list[int]:
    """The outputs that a loss outside of the network reads.

    If a network returns its own loss, a scalar, the logits that the loss is computed from are left out too.
    """
    needs = backward_of(graph).needs
    closed = {t for t in graph.outputs if needs[t] and not graph.tensors[t].shape}
    for o in reversed(graph.operations):
        if not closed.isdisjoint(o.outputs):
            closed.update(t for t in o.inputs if needs[t])
    closed.update(graph.kept)
    return [t for t in graph.outputs if t not in closed and "float" in graph.tensors[t].dtype]


# ---- Checkpointed parts


def checkpoints(graph: Graph) -> dict[int, list[int]]:
    """Number of a checkpointed part -> positions of its operations."""
    parts: dict[int, list[int]] = {}
    for i, o in enumerate(graph.operations):
        if kinds.CHECKPOINT in o.attributes:
            parts.setdefault(o.attributes[kinds.CHECKPOINT], []).append(i)
    return parts


def _recomputed(graph: Graph, found: Backward, part: list[int]) -> Iterator[int]:
    """Yield the positions of the operations of a checkpointed part that are recomputed.

    Recomputation ends with the operation that writes the last saved tensor.
    """
    operations, end = graph.operations, 0
    for i in part:
        o = operations[i]
        if found.saved(graph, i) or (found.runs[i] and found.first[i] and o.kind in kinds.KERNELS):
            end = i + (kinds.OUTPUT in _saves(o) or o.kind in _AFTER)
    for i in part:
        o = operations[i]
        runs = end > 0 and (i < end or kinds.REENTRANT in o.attributes)
        if runs and not (kinds.SELECTIVE in o.attributes and o.kind in kinds.MULTIPLYING):
            yield i
