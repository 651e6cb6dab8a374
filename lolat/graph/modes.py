"""Execution modes of a device, and a graph lowered to a mode.

A mode is a data type, a launch and a layout of images. The bytes of an element, and the operations that a
compiler fuses, depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lolat.errors import InputError
from lolat.graph import Graph, Operation, kinds, once
from lolat.graph.counts import wide_share
from lolat.graph.kinds import by_name, kind_of
from lolat.units import percent

FLOAT32, TF32, AMP, FLOAT16, BFLOAT16 = "float32", "tf32", "amp", "float16", "bfloat16"
DTYPES = {
    FLOAT32: FLOAT32, "fp32": FLOAT32, "float": FLOAT32, TF32: TF32,
    AMP: AMP, "amp_bf16": AMP, "amp_bfloat16": AMP, "amp_fp16": AMP, "amp_float16": AMP,
    FLOAT16: FLOAT16, "fp16": FLOAT16, "half": FLOAT16,
    BFLOAT16: BFLOAT16, "bf16": BFLOAT16,
}  # fmt: skip
"""Name of a data type -> its name in LoLat. `amp`: PyTorch's autocast, with weights in float32; `tf32`:
float32 with all products in TF32 (PyTorch's default: only convolutions)."""
Launch = Literal["eager", "compiled", "graph"]
EAGER: Launch = "eager"
COMPILED: Launch = "compiled"
GRAPH: Launch = "graph"
LAUNCHES = (EAGER, COMPILED, GRAPH)
"""Launches of operations. EAGER: one by one, as in eager PyTorch; COMPILED: fused by torch.compile, then
one by one; GRAPH: fused, then all at once from a CUDA graph (torch.compile's mode `reduce-overhead`)."""
HANDING_ON = frozenset(["add", "subtract"])
"""Kinds that hand the gradient of their result on to their inputs unchanged."""
MODE_COLUMNS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "dtype": ("dtype", DTYPES),
    "precision": ("dtype", DTYPES),
    "launch": ("launch", {launch: launch for launch in LAUNCHES}),
    "compiled": ("launch", {"yes": COMPILED, "no": EAGER, "true": COMPILED, "false": EAGER}),
    "channels_last": ("channels_last", {"yes": True, "no": False, "true": True, "false": False}),
    "pass": ("training", {"inference": False, "training": True}),
}
"""Column of a table -> (the field of Mode that it sets, word -> value of the field)."""


@dataclass(frozen=True)
class Mode:
    """An execution mode.

    `dtype`: a value of DTYPES; `launch`: one of LAUNCHES; `channels_last`: True if images lie so in memory;
    `training`: True for forward and backward pass, False for the forward pass alone.
    """

    dtype: str = FLOAT32
    launch: Launch = EAGER
    channels_last: bool = False
    training: bool = False

    @property
    def inference(self) -> Mode:
        """This mode without training."""
        return replace(self, training=False)

    @property
    def fused(self) -> bool:
        """True if a compiler fuses operations."""
        return self.launch != EAGER

    @property
    def images_last(self) -> bool:
        """True if convolutions run channels last, as asked for or because a compiler does so."""
        return self.channels_last or self.fused

    @property
    def half(self) -> bool:
        """True if products run in half precision, on matrix units."""
        return self.dtype not in (FLOAT32, TF32)

    @classmethod
    def of_file(cls, name: str, otherwise: Mode | None = None) -> Mode:
        """The mode in the name of a table such as timm's: infer-amp-nhwc-pt240-...-dynamo.csv.

        `otherwise`: the mode if the name has none; None: Mode().
        """
        words = re.split(r"[-.]", name.lower())
        dtypes = [DTYPES[w] for w in words if w in DTYPES]
        compiled = not {"dynamo", "compile", "compiled", "inductor"}.isdisjoint(words)
        last = not {"nhwc", "channels_last"}.isdisjoint(words)
        if not (dtypes or compiled or last or "nchw" in words):
            return otherwise or cls()
        launch = COMPILED if compiled else EAGER
        return cls(dtypes[0] if dtypes else FLOAT32, launch, last, "train" in words)

    def of_row(self, row: Mapping[str, str], where: str) -> Mode:
        """This mode with the values of a table's row; InputError for an unknown word."""
        changes: dict[str, Any] = {}
        for column, (name, choices) in MODE_COLUMNS.items():
            if text := (row.get(column) or "").strip().lower():
                if text not in choices:
                    why = f"{column} is {text[:40]!r}; expected one of {', '.join(choices)}"
                    raise InputError(f"{where}: {why}", why=why)
                changes[name] = choices[text]
        if "training" not in changes and row.get("optimizer", "none") not in ("", "none"):
            changes["training"] = True  # the optimizer's update is part of a training step
        return replace(self, **changes)

    def __str__(self) -> str:
        words = {"channels last": self.channels_last, "compiled": self.fused,
                 "from a CUDA graph": self.launch == GRAPH, "training": self.training}  # fmt: skip
        return ", ".join([self.dtype, *(word for word, applies in words.items() if applies)])


DEFAULT_MODE = Mode()

# ---- A graph in a mode
#
# The rules of autocast are in PyTorch's documentation (torch.amp, operations that autocast to float16 and
# to float32): products in half, sums and exponentials in float32, others in the widest type of their
# inputs. torch.compile's Inductor fuses element-wise operations in a row, and sums over the same elements.
# Together they read each tensor once and write only the tensors that operations outside read.

_OF_SIZE = {
    16.0: "complex128", 8.0: "float64 int64 uint64 complex64", 2.0: "float16 bfloat16 int16 uint16",
    1.0: "float8_e4m3fn float8_e5m2 int8 uint8 bool",
}  # fmt: skip
SIZES = by_name(_OF_SIZE)
"""Data type -> bytes of an element; other types have 4."""
Pairs = list[tuple[int, float]]  # (tensor, bytes of an element)
_CONTIGUOUS = kinds.CONVOLUTIONS | kinds.POOLINGS | kinds.NORMALIZATIONS
"""Kinds whose kernels PyTorch gives contiguous tensors alone."""


class Lowering:
    """A graph lowered to a mode.

    `floats`: (tensors,) True for floating point; `sizes`: (tensors,) bytes of an element; `origin`:
    (tensors,) the tensor that a view shows; `readers`: tensor -> positions of the operations that read it;
    `written`: tensor -> position of the operation that writes it; `final`: the tensors that outputs show;
    `uncopied`: constants of which autocast keeps no copy; `groups`: positions of operations that are fused.
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
        self.uncopied = {*graph.still} if graph.framework == "torch" else set()
        self.floats = ["float" in t.dtype for t in graph.tensors]
        self.sizes = self._element_bytes()
        self.groups = self._grouped() if mode.fused else []

    def bytes_of(self, pairs: Iterable[tuple[int, float]]) -> tuple[float, float]:
        """(bytes that do not depend on the batch size, bytes of each sample) of (tensor, element bytes)."""
        total = [0.0, 0.0]
        for t, size in pairs:
            tensor = self.graph.tensors[t]
            total[tensor.batched] += tensor.elements() * size
        return total[0], total[1]

    def conversions(self, operation: Operation) -> list[tuple[int, float, float]]:
        """(tensor, element bytes before, after) of each tensor that autocast converts for an operation.

        Trained parameters are left out: inside one context they are converted once. A compiler converts
        results where they are written.
        """
        want = 2.0 if operation.kind in kinds.MULTIPLYING else 4.0
        if self.mode.dtype != AMP or (want == 4.0 and not _in_float32(operation)):
            return []
        other = [t for t in operation.inputs if self.floats[t] and self.sizes[t] == 6.0 - want]
        return [(t, 6.0 - want, want) for t in other if self._is_converted(t)]

    def _is_converted(self, tensor: int) -> bool:
        """True if autocast converts a tensor in each pass, in a step of its own."""
        origin = self.origin[tensor]
        is_result = origin in self.written or self.graph.tensors[tensor].batched
        return origin in self.uncopied or (is_result and not self.mode.fused)

    def recasts(self, operation: Operation) -> bool:
        """True if autocast converts the kernel of an operation in each pass, which no fit had."""
        eagerly = not (self.mode.fused or self.mode.training)
        return self.mode.dtype == AMP and eagerly and kinds.RECAST in operation.attributes

    def eager(self, operation: Operation) -> tuple[Pairs, Pairs]:
        """(pairs read, pairs written) of an operation without products."""
        writes = [(t, self.sizes[t]) for t in operation.outputs]
        if operation.kind in ("slice", "split") and self._is_view(operation):
            return [], []
        if operation.kind in kinds.READ_IN_PART:
            return [*self._bags(operation)] or writes, writes
        if operation.kind == "fill":
            return [], writes
        if operation.kind == "transpose":
            after = self._kinds_behind(self.origin[operation.outputs[0]])
            if after and kinds.SLICES.union(["matmul", "attention"]).issuperset(after):
                return [], []  # its readers take any order of axes
        wide = self.mode.dtype == AMP and _in_float32(operation)
        reads = operation.inputs
        if self._measures(operation):
            reads = (*reads, *reads[:1])  # for its statistics
        return [(t, 4.0 if wide and self.floats[t] else self.sizes[t]) for t in reads], writes

    def _bags(self, operation: Operation) -> Iterator[tuple[int, float]]:
        """Yield the pair of the rows that an embedding reads, if it writes fewer: those of bags."""
        tensors, features = self.graph.tensors, operation.attributes.get("out_features", 0)
        if operation.kind == "embedding":
            source, out = operation.inputs[0], operation.outputs[0]
            if tensors[source].elements() * features > tensors[out].elements():
                yield source, features * self.sizes[out]

    def _is_view(self, operation: Operation) -> bool:
        """True for a slice that PyTorch does not copy. Kernels for contiguous tensors alone copy it."""
        after = self._kinds_behind(self.origin[operation.outputs[0]])
        return _CONTIGUOUS.isdisjoint(after)

    def _measures(self, operation: Operation) -> bool:
        """True for a batch norm that computes the statistics of its batch."""
        is_batch_norm = operation.kind == "batch_norm" and kinds.STORED not in operation.attributes
        return self.mode.training and is_batch_norm

    def gradients(self, position: int, needs: Sequence[bool]) -> Iterator[tuple[str, Pairs]]:
        """Yield (class of work, pairs read and written) of each backward step of an operation.

        The operation is element-wise or a slice. The steps are those of PyTorch's autograd: a sum hands its
        gradient on, a product multiplies it with the other operand. The gradient of a broadcast operand has
        the result's size first and is then summed. The gradient of a slice is copied into zeros; those of
        the parts of a split are joined. `needs`: (tensors,) True if the gradient is wanted.
        """
        o, size, tensors = self.graph.operations[position], self.sizes, self.graph.tensors
        if o.kind in kinds.SLICES:
            if needs[o.inputs[0]]:
                yield from self._put_back(position)
            return
        out, saves = o.outputs[0], kind_of(o.kind).saves
        whole, is_product = (out, size[out]), o.kind in ("multiply", "divide")
        kept = [*o.inputs[:1]] * ("input" in saves) + [out] * ("output" in saves)
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
        """Yield the backward steps of a slice; the first used part of a split has those of all."""
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
        """True if an operation reads a tensor, or it is an output."""
        return tensor in self.readers or tensor in self.final

    def _kinds_behind(self, tensor: int) -> list[str]:
        """The kinds of the operations that read a tensor."""
        return [self.graph.operations[i].kind for i in self.readers.get(tensor, ())]

    def together(self, group: Sequence[int]) -> tuple[Pairs, Pairs]:
        """(pairs read, pairs written) of fused operations together."""
        inside, reads = set(group), dict[int, tuple[int, float]]()
        operations = [self.graph.operations[i] for i in group]
        if len(operations) == 1 and operations[0].kind in kinds.SLICES:
            return [], []  # a view
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
        """Pairs that the backward pass of fused operations reads besides those of their forward pass.

        A normalization reads its input and its gradient for two sums, and both again for the result; for a
        batch norm, the second reading of its input is counted already. A softmax reads its result.
        """
        found = []
        for o in (self.graph.operations[i] for i in group):
            if o.kind in kinds.NORMALIZATIONS and kinds.STORED not in o.attributes:
                found += [o.inputs[0]] * (2 if o.kind == "batch_norm" else 3)
            elif kind_of(o.kind).work == "norm":
                found += o.outputs
        return [(t, self._stored(self.origin[t])) for t in found]

    def _stored(self, tensor: int) -> float:
        """Bytes of an element in memory; under autocast 2 for a tensor that only products read."""
        readers = self._kinds_behind(tensor)
        only_products = self.mode.dtype == AMP and readers and kinds.MULTIPLYING.issuperset(readers)
        return 2.0 if only_products else self.sizes[tensor]

    def _grouped(self) -> list[list[int]]:
        """Groups of positions of the operations without products; the operations of a group are fused."""
        group_of: dict[int, int] = {}
        groups: list[list[int]] = []
        elements: list[int] = []  # elements of each group; -1: nothing joins it
        tensors = self.graph.tensors
        for i, o in enumerate(self.graph.operations):
            if o.kind in kinds.VIEWS or o.kind in kinds.MULTIPLYING:
                continue
            seen = o.outputs if o.kind in kinds.READ_IN_PART else (*o.inputs, *o.outputs)
            size = max((tensors[t].elements() for t in seen), default=0)
            before = [self.written.get(self.origin[t], -1) for t in o.inputs if tensors[t].batched]
            able = [group_of[p] for p in before if p in group_of and elements[group_of[p]] == size]
            alone = o.kind in kinds.POOLINGS
            if alone or not able:
                able = [len(groups)]
                groups.append([])
                elements.append(-1 if alone else size)
            group_of[i] = max(able)
            groups[group_of[i]].append(i)
        return groups

    def _element_bytes(self) -> list[float]:
        """Bytes of an element of each tensor, (tensors,); a mode changes floating-point tensors alone."""
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
            if o.kind in kinds.MULTIPLYING:
                floats = [2.0]
            elif _in_float32(o):
                floats = [4.0]
            elif o.kind in kinds.VIEWS or o.kind in kinds.SLICES:
                floats = floats[:1]
            elif o.kind == "cast":  # keeps the data type that the network asks for
                floats = []
            for t in o.outputs:
                if self.floats[t] and floats:
                    sizes[t] = max(floats)
        return sizes


def _in_float32(operation: Operation) -> bool:
    return kind_of(operation.kind).autocast == kinds.FLOAT32


# ---- Bytes of elements and parameters

FLOAT_BYTES, HALF_BYTES = 4, 2
LEAST_WIDE = 0.01  # least share of multiply-accumulates in float32 that is told
WIDE = {dtype: size for dtype, size in SIZES.items() if size > FLOAT_BYTES}


@once
def lowered_eagerly(graph: Graph, dtype: str) -> Lowering:
    """The lowering of a graph to a data type, without a compiler."""
    return Lowering(graph, Mode(dtype))


def element_bytes(graph: Graph, mode: Mode = DEFAULT_MODE) -> list[float]:
    """Bytes of an element of each tensor, (tensors,): the network's, or the mode's if in half precision."""
    if mode.half:
        return lowered_eagerly(graph, mode.dtype).sizes
    return [SIZES.get(t.dtype, 4.0) for t in graph.tensors]


def own_dtype(graph: Graph) -> str | None:
    """The data type of all products' results; AMP for `Graph.autocast`; None if they differ, or lack."""
    written = product_dtypes(graph)
    if graph.autocast and not written.isdisjoint((FLOAT16, BFLOAT16)):
        return AMP
    return written.pop() if len(written) == 1 else None


def other_dtype(graph: Graph, measured: str = FLOAT32) -> list[str]:
    """A remark if the network's own data type is neither float32 nor the measured one."""
    own = own_dtype(graph)
    if own in (None, FLOAT32, measured) or {own, measured} == {FLOAT16, BFLOAT16}:
        return []
    return [f"measured in {measured}, asked for {own}"]


def lost_upcasts(graph: Graph, mode: Mode) -> list[str]:
    """Remarks if the code of a float32 network asks for float32 and the mode is in half precision."""
    remarks = list[str]()
    if mode.dtype == AMP and (share := wide_share(graph)) > LEAST_WIDE:
        first = next(o for o in graph.operations if kinds.WIDE in o.attributes)
        remarks.append(
            f"{percent(share)} of its multiply-accumulates are in torch.autocast(enabled=False), first in "
            f"{first.full_name}: in float32, which takes several times as long, and timed in half "
            "precision"
            + "; --precision fp32 is the time of the whole network in float32"
            * (not graph.autocast)
        )
    if mode.half and graph.upcasts and not is_in_half(graph):
        remarks.append(
            "its code converts to float32, or to the type of another tensor; in half precision such a "
            "softmax or norm keeps float32, and is counted in half: memory may be more; a network that is "
            "converted before it is read (.bfloat16(), torch_dtype) is counted as it is"
        )
    return remarks


def has_wide_adapters(graph: Graph) -> bool:
    """True if trained adapters are in float32 and the frozen base is in half precision, as in PEFT."""
    found = {False: set[str](), True: set[str]()}
    for o in graph.operations:
        if o.kind in kinds.KERNELS:
            found[o.attributes.get("trained") != 0].add(graph.tensors[o.outputs[0]].dtype)
    return found[True] == {FLOAT32} and bool(found[False]) and found[False] <= {FLOAT16, BFLOAT16}


def is_in_half(graph: Graph) -> bool:
    """True if a product of the network is itself in half precision."""
    return not product_dtypes(graph).isdisjoint((FLOAT16, BFLOAT16))


def product_dtypes(graph: Graph) -> set[str]:
    """The data types of the results of products."""
    products = (o for o in graph.operations if o.kind in kinds.MULTIPLYING)
    return {graph.tensors[t].dtype for o in products for t in o.outputs[:1]}
