"""In which data types a device keeps a network's tensors, and which operations it runs as one step.

Autocast's rules are those of PyTorch's documentation (torch.amp, operations that autocast to float16 and to
float32): products in half, sums and exponentials in float32, all else in the widest of its inputs. What
torch.compile runs as one follows its Inductor: element-wise operations, and sums over the same elements,
one after the other, read what comes from outside once and write what is needed outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.graph import Graph, Operation, is_convolution
from lolat.kinds import FREE, POOLINGS
from lolat.modes import AMP, FLOAT32, Mode

GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
SLICES = frozenset(["slice", "split", "crop"])
GATHERS = frozenset(["embedding", "gather"])
IN_FLOAT32 = frozenset(
    ["layer_norm", "rms_norm", "unit_norm", "softmax", "log_softmax", "cumulative", "power", "rsqrt",
     "exponential", "log", "softplus", "reciprocal"]
)  # fmt: skip
"""What autocast computes in float32. Not group norms: timm's run in half, and those are what is known."""
ONE_STEP_RANK = 4  # of what PyTorch's fused attention takes; of others it is several steps
Pairs = list[tuple[int, float]]  # (tensor, bytes of an element)


def multiplies(kind: str) -> bool:
    """Whether operations of a kind multiply matrices, in one way or another."""
    return kind in ("dense", "matmul") or kind in GATES or is_convolution(kind)


@dataclass(frozen=True)
class Plan:
    """How a graph runs in a mode.

    `sizes`: (tensors,) bytes of an element; `attention`: operation -> those of its fused attention;
    `groups`: operations that run as one, where the device compiles; `channels_last`: (tensors,) whether
    the channels of an image lie last in memory.
    """

    graph: Graph
    mode: Mode
    sizes: list[float]
    attention: dict[int, tuple[int, ...]]
    groups: list[list[int]]
    channels_last: list[bool]
    origin: list[int]
    readers: dict[int, list[int]]
    written: dict[int, int]

    @classmethod
    def of(cls, graph: Graph, mode: Mode) -> Plan:
        """The plan of a graph."""
        origin = list(range(len(graph.tensors)))
        readers: dict[int, list[int]] = {}
        written = {}
        for i, o in enumerate(graph.operations):
            written.update(dict.fromkeys(o.outputs, i))
            if o.kind in FREE and o.inputs:
                for t in o.outputs:
                    origin[t] = origin[o.inputs[0]]
                continue
            for t in o.inputs:
                readers.setdefault(origin[t], []).append(i)
        attention = _attention(graph)
        plan = cls(
            graph, mode, _sizes(graph, mode, written, attention), attention, [],
            _channels_last(graph), origin, readers, written,
        )  # fmt: skip
        if mode.compiled:
            plan.groups.extend(plan._grouped())
        return plan

    def bytes_of(self, pairs: Iterable[tuple[int, float]]) -> tuple[float, float]:
        """(bytes whatever the batch, bytes of each sample) of tensors."""
        fixed = sample = 0.0
        for tensor, size in pairs:
            found = self.graph.tensors[tensor]
            if found.batched:
                sample += found.elements() * size
            else:
                fixed += found.elements() * size
        return fixed, sample

    def conversions(self, operation: Operation) -> list[tuple[int, float, float]]:
        """(tensor, its bytes, the bytes wanted) of what autocast converts for an operation."""
        if self.mode.dtype != AMP:
            return []
        half = multiplies(operation.kind)
        if not half and operation.kind not in IN_FLOAT32:
            return []
        want = 2.0 if half else 4.0
        computed = (t for t in operation.inputs if self._computed(t))
        return [(t, self.sizes[t], want) for t in computed if self.sizes[t] == 6.0 - want]

    def _computed(self, tensor: int) -> bool:
        """Whether a tensor is no parameter, which is converted once."""
        return self.origin[tensor] in self.written or self.graph.tensors[tensor].batched

    def eager(self, operation: Operation) -> tuple[Pairs, Pairs]:
        """What an operation that only moves reads and writes."""
        writes = [(t, self.sizes[t]) for t in operation.outputs]
        if operation.kind in SLICES or operation.kind in GATHERS:
            return writes, writes
        if operation.kind == "fill":
            return [], writes
        if operation.kind == "transpose" and self._only_seen(operation):
            return [], []
        wide = self.mode.dtype == AMP and operation.kind in IN_FLOAT32
        return [(t, 4.0 if wide else self.sizes[t]) for t in operation.inputs], writes

    def _only_seen(self, operation: Operation) -> bool:
        """Whether a transposition needs no copy: what reads it takes any order."""
        after = [
            self.graph.operations[i].kind
            for t in operation.outputs
            for i in self.readers.get(self.origin[t], ())
        ]
        return bool(after) and all(kind in SLICES or kind == "matmul" for kind in after)

    def together(self, group: Sequence[int]) -> tuple[Pairs, Pairs]:
        """What operations that run as one read from outside and write for outside."""
        inside, reads = set(group), dict[int, tuple[int, float]]()
        writes: Pairs = []
        if [self.graph.operations[i].kind in SLICES for i in group] == [True]:
            return [], []  # a view
        for i in group:
            o = self.graph.operations[i]
            for t in o.inputs:
                source = self.origin[t]
                if self.written.get(source) not in inside:
                    part = o.outputs[0] if o.kind in SLICES or o.kind in GATHERS else source
                    reads[source] = (part, self._stored(source))
            for t in o.outputs:
                if self._leaves(t, inside):
                    writes.append((t, self._stored(t)))
        return list(reads.values()), writes

    def _leaves(self, tensor: int, inside: set[int]) -> bool:
        """Whether something outside needs a tensor."""
        final = any(self.origin[t] == tensor for t in self.graph.outputs)
        return final or any(i not in inside for i in self.readers.get(tensor, ()))

    def _stored(self, tensor: int) -> float:
        """Bytes of an element in memory: what only products read is written as they read it."""
        users = self.readers.get(tensor, ())
        kinds = [self.graph.operations[i].kind for i in users]
        if self.mode.dtype == AMP and users and all(map(multiplies, kinds)):
            return 2.0
        return self.sizes[tensor]

    def _grouped(self) -> list[list[int]]:
        """The operations that only move, those that run as one together."""
        of: dict[int, int] = {}
        found: list[list[int]] = []
        elements: list[int] = []
        tensors = self.graph.tensors
        for i, o in enumerate(self.graph.operations):
            if o.kind in FREE or i in self.attention or multiplies(o.kind):
                continue
            seen = o.outputs if o.kind in SLICES or o.kind in GATHERS else (*o.inputs, *o.outputs)
            size = max((tensors[t].elements() for t in seen), default=0)
            before = [
                of[p]
                for t in o.inputs
                if (p := self.written.get(self.origin[t])) in of and tensors[t].batched
            ]
            able = [g for g in before if elements[g] == size]
            if able and o.kind not in POOLINGS:
                of[i] = max(able)
                found[of[i]].append(i)
                continue
            of[i] = len(found)
            found.append([i])
            elements.append(-1 if o.kind in POOLINGS else size)
        return found


def _attention(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Operation -> the fused attention that it is part of: from its scores to its mixture."""
    found: dict[int, tuple[int, ...]] = {}
    begun: int | None = None
    for i, o in enumerate(graph.operations):
        if not o.attributes.get("fused"):
            begun = None
        elif o.kind == "matmul" and begun is None:
            begun = i
        elif o.kind == "matmul" and begun is not None:
            group = tuple(range(begun, i + 1))
            begun = None
            if len(graph.tensors[graph.operations[group[0]].inputs[0]].shape) == ONE_STEP_RANK:
                found.update(dict.fromkeys(group, group))
    return found


def _sizes(
    graph: Graph, mode: Mode, written: dict[int, int], attention: dict[int, Any]
) -> list[float]:
    """(tensors,) bytes of an element."""
    whole = {"int64": 8.0, "float64": 8.0, "bool": 1.0, "int8": 1.0, "uint8": 1.0}
    half = mode.dtype not in (FLOAT32, AMP)
    sizes = [2.0 if half and "float" in t.dtype else whole.get(t.dtype, 4.0) for t in graph.tensors]
    if mode.dtype != AMP:
        return sizes
    for i, o in enumerate(graph.operations):
        if multiplies(o.kind) or i in attention:
            size = 2.0
        elif o.kind in IN_FLOAT32:
            size = 4.0
        elif o.inputs and (o.kind in FREE or o.kind in SLICES):
            size = sizes[o.inputs[0]]
        else:
            size = max((sizes[t] for t in o.inputs), default=4.0)
        for t in o.outputs:
            sizes[t] = size
    return sizes


def _channels_last(graph: Graph) -> list[bool]:
    """(tensors,) whether an image's channels lie last, because what made it wrote them so.

    A network of PyTorch that moves the channels to the end, and back in front of a convolution, does not
    copy for the way back: the convolution finds them last.
    """
    found = [False] * len(graph.tensors)
    for o in graph.operations:
        if not o.inputs:
            continue
        before, after = (graph.tensors[i].shape for i in (o.inputs[0], o.outputs[0]))
        if len(after) != 4:
            continue
        turned = len(before) == 4 and before != after
        if o.kind in FREE and turned and (before[0], before[3], *before[1:3]) == after:
            last = True
        elif o.kind in FREE and (turned or len(before) != 4):
            last = False
        else:
            last = any(found[i] for i in o.inputs)
        for t in o.outputs:
            found[t] = last
    return found
