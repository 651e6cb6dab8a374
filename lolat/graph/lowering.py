"""A graph lowered to an execution mode: the bytes that each operation reads and writes.

The rules of autocast are those of PyTorch's documentation (torch.amp): products run in half precision, sums
and exponentials in float32, other operations in the widest type of their inputs. torch.compile's Inductor
fuses chains of element-wise operations and sums over the same elements. A fused group reads each tensor
once and writes only the tensors that operations outside the group read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from lolat.graph import Graph, Operation, cached_on_graph, kinds
from lolat.graph.dtypes import SIZES
from lolat.graph.kinds import kind_of
from lolat.graph.modes import AMP, Mode, is_in_half

HANDING_ON = frozenset(["add", "subtract"])
"""Kinds that pass the gradient of their result on to their inputs unchanged."""
Pairs = list[tuple[int, float]]  # (tensor, bytes of an element)
CONTIGUOUS = kinds.CONVOLUTIONS | kinds.POOLINGS | kinds.NORMALIZATIONS
"""Kinds whose PyTorch kernels need contiguous tensors."""


class Lowering:
    """A graph lowered to a mode.

    `floats`: (tensors,) True for floating point; `sizes`: (tensors,) bytes of an element; `origin`:
    (tensors,) for a view the tensor that holds its memory, else the tensor itself; `readers`: tensor ->
    positions of the operations that read it; `written`: tensor -> position of the operation that writes it;
    `final`: the tensors that hold the outputs' memory; `strided`: positions of transpositions that PyTorch
    never copies; `copied`: positions of views that it copies; `uncopied`: constants whose copies autocast
    does not cache; `groups`: positions of the operations in each fused group.
    """

    def __init__(self, graph: Graph, mode: Mode) -> None:
        self.graph, self.mode = graph, mode
        self.readers: dict[int, list[int]] = {}
        self.written: dict[int, int] = {}
        self.origin = list(range(len(graph.tensors)))
        for i, o in enumerate(graph.operations):
            self.written.update(dict.fromkeys(o.outputs, i))
            if o.kind in kinds.VIEWS and o.inputs:
                for t in o.outputs:
                    self.origin[t] = self.origin[o.inputs[0]]
                continue
            for t in o.inputs:
                self.readers.setdefault(self.origin[t], []).append(i)
        self.final = {self.origin[t] for t in graph.outputs}
        self.uncopied = {*graph.untrained} if graph.framework == "torch" else set()
        self.strided, self.copied = transpositions(graph, mode.half)
        self.floats = ["float" in t.dtype for t in graph.tensors]
        self.sizes = self._element_bytes()
        self.groups = self._grouped() if mode.fused else []

    def bytes_of(self, pairs: Iterable[tuple[int, float]]) -> tuple[float, float]:
        """(bytes independent of the batch size, bytes per sample) of pairs (tensor, bytes per element)."""
        total = [0.0, 0.0]
        for t, size in pairs:
            tensor = self.graph.tensors[t]
            total[tensor.batched] += tensor.elements() * size
        return total[0], total[1]

    def conversions(self, operation: Operation) -> list[tuple[int, float, float]]:
        """(tensor, element bytes before, after) of each tensor that autocast converts for an operation.

        Trained parameters are left out: autocast converts them once per context. Compiled code converts a
        result where it is written.
        """
        want = {kinds.HALF: 2.0, kinds.FLOAT32: 4.0}.get(self._precision(operation))
        if self.mode.dtype != AMP or want is None or operation.kind in kinds.WIDENING:
            return []
        other = [t for t in operation.inputs if self.floats[t] and self.sizes[t] == 6.0 - want]
        return [(t, 6.0 - want, want) for t in other if self._is_converted(t, operation)]

    def _is_converted(self, tensor: int, operation: Operation) -> bool:
        """True if converting a tensor for an operation is a step of its own in each pass."""
        origin, is_batched = self.origin[tensor], self.graph.tensors[tensor].batched
        if origin in self.uncopied:
            return True
        if self.mode.fused:
            return is_batched and origin not in self.written
        return origin in self.written or is_batched

    def recasts(self, operation: Operation) -> bool:
        """True if autocast converts an operation's kernel in every pass, which no fitted network did."""
        eagerly = not (self.mode.fused or self.mode.training)
        return self.mode.dtype == AMP and eagerly and kinds.RECAST in operation.attributes

    def eager(self, operation: Operation) -> tuple[Pairs, Pairs]:
        """(pairs read, pairs written) by an operation without products that runs eagerly."""
        writes = [(t, self.sizes[t]) for t in operation.outputs]
        if self._is_view(operation):
            return [], []
        if operation.kind in kinds.READ_IN_PART:
            return [*self._bags(operation)] or writes, writes
        if operation.kind == "fill":
            return [], writes
        is_float32 = self.mode.dtype == AMP and self._precision(operation) == kinds.FLOAT32
        wide = is_float32 and operation.kind not in kinds.WIDENING
        reads = operation.inputs
        if self._measures(operation):
            reads = (*reads, *reads[:1])  # a second read, for the statistics
        return [(t, 4.0 if wide and self.floats[t] else self.sizes[t]) for t in reads], writes

    def _bags(self, operation: Operation) -> Iterator[tuple[int, float]]:
        """Yield the pair of the rows that an embedding bag reads; it sums several rows into one."""
        tensors, features = self.graph.tensors, operation.attributes.get("out_features", 0)
        if operation.kind == "embedding":
            source, out = operation.inputs[0], operation.outputs[0]
            if tensors[source].elements() * features > tensors[out].elements():
                yield source, features * self.sizes[out]

    def _is_view(self, operation: Operation) -> bool:
        """True for a slice or transposition that is not copied.

        Eager PyTorch copies a slice for kernels that need contiguous tensors; compiled kernels need no
        copy.
        """
        position = self.written[operation.outputs[0]]
        if operation.kind == "transpose":
            return position in self.strided
        if operation.kind == "crop":
            return self.mode.fused
        if operation.kind not in kinds.SLICES or position in self.copied:
            return False
        after = self._kinds_behind(self.origin[operation.outputs[0]])
        return self.mode.fused or CONTIGUOUS.isdisjoint(after)

    def _measures(self, operation: Operation) -> bool:
        """True for a batch norm that computes the statistics of its batch."""
        is_batch_norm = operation.kind == "batch_norm" and kinds.STORED not in operation.attributes
        return self.mode.training and is_batch_norm

    def gradients(self, position: int, needs: Sequence[bool]) -> Iterator[tuple[str, Pairs]]:
        """Yield (class of work, pairs read and written) of each backward step of an operation.

        The operation is element-wise or a slice. The steps are those of PyTorch's autograd: a sum passes
        its gradient on; a multiplication multiplies it with the other operand. The gradient of a broadcast
        operand is computed in the result's size and then summed. The gradient of a slice is copied into
        zeros; the gradients of the parts of a split are concatenated. `needs`: (tensors,) True if the
        tensor's gradient is needed.
        """
        o, size, tensors = self.graph.operations[position], self.sizes, self.graph.tensors
        if o.kind in kinds.SLICES:
            if needs[o.inputs[0]]:
                yield from self._put_back(position)
            return
        out, saves = o.outputs[0], kind_of(o.kind).saves
        whole, is_product = (out, size[out]), o.kind in ("multiply", "divide")
        kept = [*o.inputs[:1]] if kinds.INPUT in saves else []
        kept += [out] if kinds.OUTPUT in saves else []
        for at, t in enumerate(o.inputs):
            if not needs[t]:
                continue
            if is_product:
                kept = [*o.inputs[1 - at : 2 - at]] if len(o.inputs) == 2 else []
            if o.kind not in HANDING_ON:
                yield kind_of(o.kind).work, [whole, *((s, size[s]) for s in kept), whole]
            if tensors[t].elements() < tensors[out].elements():
                yield "sums", [whole, (t, size[t])]

    def _put_back(self, position: int) -> Iterator[tuple[str, Pairs]]:
        """Yield the backward steps of a slice; the first used part of a split yields those of all parts."""
        operations = self.graph.operations
        o = operations[position]
        whole, part = ((t, self.sizes[t]) for t in (o.inputs[0], o.outputs[0]))
        if o.kind != "split":
            yield "elements", [whole]
            yield "parts", [part, part]
            return
        beside = (i for i in self.readers[self.origin[whole[0]]] if operations[i].kind == "split")
        used = (i for i in beside if any(map(self._is_used, operations[i].outputs)))
        if position == next(used, position):
            yield "joined", [whole, whole]

    def _is_used(self, tensor: int) -> bool:
        """True if a tensor is read by an operation or is an output."""
        return tensor in self.readers or tensor in self.final

    def _kinds_behind(self, tensor: int) -> list[str]:
        """The kinds of the operations that read a tensor."""
        return [self.graph.operations[i].kind for i in self.readers.get(tensor, ())]

    def together(self, group: Sequence[int]) -> tuple[Pairs, Pairs]:
        """(pairs read, pairs written) by a group of fused operations."""
        inside, reads = set(group), dict[int, tuple[int, float]]()
        operations = [self.graph.operations[i] for i in group]
        if all(map(self._is_view, operations)):
            return [], []
        for o in operations:
            rows = dict(self._bags(o))
            for t, source in ((t, self.origin[t]) for t in o.inputs):
                if self.written.get(source) not in inside:
                    part = o.outputs[0] if o.kind in kinds.READ_IN_PART else source
                    reads[source] = (t, rows[t]) if t in rows else (part, self._stored(source))
        twice = [o.inputs[0] for o in operations if self._measures(o)]
        writes = [
            (t, self._stored(t))
            for o in operations
            for t in o.outputs
            if t in self.final or not inside.issuperset(self.readers.get(t, ()))
        ]
        statistics = [(t, self._stored(self.origin[t])) for t in twice]
        return [*reads.values(), *statistics], writes

    def kept(self, group: Sequence[int]) -> Pairs:
        """Pairs that the backward pass of fused operations reads beyond the pairs of their forward pass.

        A normalization reads its input and its gradient for two sums, and both again for the result; for a
        batch norm, the forward pass already counts the second read of the input. A softmax reads its
        result.
        """
        found = []
        for o in (self.graph.operations[i] for i in group):
            if o.kind in kinds.NORMALIZATIONS and kinds.STORED not in o.attributes:
                found += [o.inputs[0]] * (2 if o.kind == "batch_norm" else 3)
            elif kind_of(o.kind).work == "norm":
                found += o.outputs
        return [(t, self._stored(self.origin[t])) for t in found]

    def _stored(self, tensor: int) -> float:
        """Bytes of an element in memory; under autocast, 2 for a tensor that only products read."""
        readers = self._kinds_behind(tensor)
        only_products = self.mode.dtype == AMP and readers and kinds.MULTIPLYING.issuperset(readers)
        return 2.0 if only_products else self.sizes[tensor]

    def _grouped(self) -> list[list[int]]:
        """Groups of fused operations, as lists of positions; operations with products are in no group.

        An operation joins a group that it reads from if their tensors have equally many elements and no
        other kernel must run in between: all of them have the same depth in kernels, or the group's results
        are read nowhere else.
        """
        group_of, depth = dict[int, int](), dict[int, int]()
        groups: list[list[int]] = []
        elements: list[int] = []  # elements of each group; -1: nothing joins it
        tensors = self.graph.tensors
        for i, o in enumerate(self.graph.operations):
            before = [self.written.get(self.origin[t], -1) for t in o.inputs if tensors[t].batched]
            depth[i] = max(
                (depth[p] + (p not in group_of) for p in before if p in depth), default=0
            )
            if o.kind in kinds.VIEWS or o.kind in kinds.MULTIPLYING:
                continue
            seen = o.outputs if o.kind in kinds.READ_IN_PART else (*o.inputs, *o.outputs)
            size = max((tensors[t].elements() for t in seen), default=0)
            alone = o.kind in kinds.POOLINGS
            own = group_of[i] = len(groups)
            groups.append([i])
            elements.append(-1 if alone else size)
            for other in () if alone else {group_of[p] for p in before if p in group_of}:
                together = {*groups[other], *groups[own]}
                is_as_deep = len({depth[p] for p in together}) == 1
                if elements[other] == size and (
                    is_as_deep or self._is_read_in(groups[other], together)
                ):
                    group_of.update(dict.fromkeys(groups[other], own))
                    groups[own], groups[other], elements[other] = sorted(together), [], -1
        return [group for group in groups if group]

    def _is_read_in(self, positions: Sequence[int], group: Collection[int]) -> bool:
        """True if only operations of `group` read the results of the operations at `positions`."""
        outputs = {t for p in positions for t in self.graph.operations[p].outputs}
        readers = (r for t in outputs for r in self.readers.get(self.origin[t], ()))
        return outputs.isdisjoint(self.final) and all(r in group for r in readers)

    def _element_bytes(self) -> list[float]:
        """Bytes of an element of each tensor, (tensors,); a mode changes only floating-point tensors."""
        in_half, amp = self.mode.half, self.mode.dtype == AMP
        of_float = 2.0 if in_half and not amp else 4.0
        sizes = [SIZES.get(t.dtype, 4.0) for t in self.graph.tensors]
        if of_float == 2.0 and is_in_half(self.graph):
            return sizes  # such a network keeps its own tensors in float32
        for t, is_float in enumerate(self.floats):
            if is_float and (of_float == 2.0 or sizes[t] < 4.0):
                sizes[t] = of_float
        for o in self.graph.operations if amp else ():
            floats = [sizes[t] for t in o.inputs if self.floats[t]]
            precision = self._precision(o)
            if precision == kinds.HALF:
                floats = [2.0]
            elif precision == kinds.FLOAT32:
                floats = [4.0]
            elif precision == kinds.INPUT or o.kind in kinds.VIEWS or o.kind in kinds.SLICES:
                floats = floats[:1]
            elif o.kind == "cast":  # keeps the data type that the network asks for
                floats = []
            for t in o.outputs:
                if self.floats[t] and floats:
                    sizes[t] = max(floats)
        return sizes

    def _precision(self, operation: Operation) -> str:
        """The precision that autocast gives an operation: HALF, FLOAT32, INPUT or ""."""
        return str(operation.attributes.get("autocast", kind_of(operation.kind).autocast))


@cached_on_graph
def lowered_eagerly(graph: Graph, dtype: str) -> Lowering:
    """The lowering of a graph to a data type in eager mode."""
    return Lowering(graph, Mode(dtype))


@cached_on_graph
def transpositions(graph: Graph, in_half: bool) -> tuple[set[int], set[int]]:
    """(positions of transpositions that PyTorch never copies, positions of views that it copies).

    A transposition is never copied if an attention reads it or it restores the order of an attention's
    result, if it transposes the matrices of a batched product, or if only slices and transpositions read
    it. A batched product joins the axes in front of its matrices: it copies slices of other transpositions,
    and slices of the axis behind the batch. A dense layer copies a transposed image. `in_half`: True if
    fused attention runs in half precision; its kernels then write the result in the queries' memory order.
    """
    strided, copied, permuted, of_attention = set[int](), set[int](), set[int](), set[int]()
    readers, joinable = graph.consumers(), set[int]()
    for i, o in enumerate(graph.operations):
        behind = {graph.operations[r].kind for r in readers.get(o.outputs[0], ())}
        is_swap = o.attributes.get("permutation") == kinds.SWAP
        keeps = o.kind in _KEEPS_ORDER and "permutation" not in o.attributes
        is_cut_in_front = False  # at the axis behind the batch, which is not one of the matrices
        if o.kind in kinds.SLICES:
            whole, part = graph.tensors[o.inputs[0]].shape, graph.tensors[o.outputs[0]].shape
            is_cut_in_front = len(part) > 3 and part[2 - len(whole) :] == whole[2:]
            keeps = not is_cut_in_front
        if o.kind in _WRITES_IN_ORDER or (keeps and joinable.issuperset(o.inputs)):
            joinable.update(o.outputs)
        if o.kind == "attention" and not (in_half and "contiguous" in o.attributes):
            of_attention.update(o.outputs)
        elif o.kind == "transpose":
            permuted.update(o.outputs)
            is_batch = len(graph.tensors[o.outputs[0]].shape) == 3
            is_batch |= is_swap and joinable.issuperset(o.inputs)
            is_taken = behind == {"attention"} or (behind == {"matmul"} and is_batch)
            is_shown = bool(behind) and kinds.SLICES.union(["transpose"]).issuperset(behind)
            is_restored = not (is_swap or of_attention.isdisjoint(o.inputs))
            if is_taken or is_shown or is_restored:
                strided.add(i)
        elif o.kind in kinds.SLICES:
            behind = _kinds_behind_squeezed(graph, o.outputs[0], readers)
            if behind == {"matmul"} and (is_cut_in_front or not permuted.isdisjoint(o.inputs)):
                copied.add(i)
        elif "permutation" in o.attributes and "dense" in behind:
            copied.add(i)
    return strided, copied


def _kinds_behind_squeezed(graph: Graph, tensor: int, readers: dict[int, list[int]]) -> set[str]:
    """The kinds of the operations that read a tensor, or read it without its axes of one element."""
    found = set()
    for o in (graph.operations[r] for r in readers.get(tensor, ())):
        before, after = (
            [n for n in graph.tensors[t].shape if n != 1] for t in (tensor, o.outputs[0])
        )
        if o.kind == "reshape" and "permutation" not in o.attributes and before == after:
            found |= _kinds_behind_squeezed(graph, o.outputs[0], readers)
        else:
            found.add(o.kind)
    return found


_WRITES_IN_ORDER = frozenset({"matmul", "softmax", "dense", "conv"})
"""Kinds whose result lies in memory in the order of its axes."""
_KEEPS_ORDER = kinds.ELEMENTWISE | kinds.VIEWS
"""Kinds whose result lies in memory as their inputs do."""
