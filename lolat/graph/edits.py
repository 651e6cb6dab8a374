"""Networks with operations left out, merged or replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import prod

from msgspec.structs import replace

from lolat.errors import NetworkError, arg
from lolat.graph import Graph, Operation
from lolat.graph.kinds import AHEAD, KERNELS, SWAP
from lolat.units import shortened


def bypassed(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph without these operations; None unless they map one tensor to another of the same shape."""
    members = set(positions)
    inside = [graph.operations[p] for p in sorted(members)]
    outside = [o for p, o in enumerate(graph.operations) if p not in members]
    written = {t for o in inside for t in o.outputs}
    reads = {t for o in inside for t in o.inputs}.difference(written)
    reads &= {t for o in outside for t in o.outputs}.union(graph.inputs)
    wanted = {t for o in outside for t in o.inputs}.union(graph.outputs) & written
    if len(reads) != 1 or len(wanted) != 1 or not outside:
        return None
    (source,), (result,) = reads, wanted
    if graph.tensors[source] != graph.tensors[result]:
        return None
    now = {result: source}
    operations = [replace(o, inputs=tuple(now.get(t, t) for t in o.inputs)) for o in outside]
    outputs = tuple(now.get(t, t) for t in graph.outputs)
    return replace(graph, operations=tuple(operations), outputs=outputs)


def folded(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph with the batch norms at `positions` folded into the layers before; None if none can be."""
    operations: list[Operation | None] = list(graph.operations)
    writers = graph.writers()
    read = [t for o in graph.operations for t in o.inputs] + [*graph.outputs]
    for position in positions:
        o = graph.operations[position]
        before = writers.get(o.inputs[0]) if o.kind == "batch_norm" else None
        if before is None or read.count(o.inputs[0]) > 1:
            continue
        layer = operations[before]
        if layer is not None and layer.kind in KERNELS and len(layer.outputs) == 1:
            operations[before] = replace(layer.changed(bias=True), outputs=o.outputs)
            operations[position] = None
    kept = tuple(filter(None, operations))
    return None if len(kept) == len(operations) else replace(graph, operations=kept)


SMALL = 3  # side of a kernel


def has_large_kernel(operation: Operation) -> bool:
    """True for a convolution with a kernel side above SMALL whose output would be as large with SMALL."""
    a = operation.attributes
    return (
        operation.kind in ("conv", "grouped_conv", "depthwise_conv")
        and max(a["kernel"]) > SMALL
        and max(a.get("strides", (1,))) <= SMALL
        and (a.get("padding", "valid") != "valid" or bool(a.get("pad_before")))
    )


def with_small_kernels(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph with kernels cut down to SMALL on a side; None if no kernel at `positions` is larger."""

    def smaller(o: Operation) -> Operation:
        return o.changed(kernel=tuple(min(k, SMALL) for k in o.attributes["kernel"]))

    return _each(graph, positions, has_large_kernel, smaller)


def has_heads(operation: Operation) -> bool:
    """True for an attention that can run with half as many heads, each twice as wide."""
    a = operation.attributes
    even = operation.kind == "attention" and not (a["heads"] % 2 or a["key_heads"] % 2)
    return even and len(operation.inputs) == 3 and len(operation.outputs) == 1


def with_fewer_heads(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph with half as many attention heads, each twice as wide; None if no attention allows it."""

    def fewer(o: Operation) -> Operation:
        halves = {name: o.attributes[name] // 2 for name in ("heads", "key_heads")}
        doubles = {name: o.attributes[name] * 2 for name in ("head_size", "value_size")}
        return o.changed(**halves, **doubles)

    return _each(graph, positions, has_heads, fewer)


def _each(
    graph: Graph, positions: Collection[int], able: Callable[[Operation], bool],
    other: Callable[[Operation], Operation],
) -> Graph | None:  # fmt: skip
    """The graph with `other` applied to each operation that `able` accepts; None if it accepts none."""
    found = {p for p in positions if able(graph.operations[p])}
    operations = (other(o) if p in found else o for p, o in enumerate(graph.operations))
    return replace(graph, operations=tuple(operations)) if found else None


# ---- Attention of single operations as a fused one


def with_fused_attention(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph with PyTorch's fused attention for attention in single operations; None without any.

    The pattern is softmax(q k' [x a number] [+ a mask]) v, or v times the transposed softmax, on tensors
    (batch, heads, steps, size) or (batch, heads, size, steps); no other operation may read the scores. A
    number that multiplies q becomes part of the fused attention's scale.
    """
    made = graph
    for position in sorted(positions):
        if graph.framework == "torch" and graph.operations[position].kind == "softmax":
            made = _Attention(made, graph.operations[position], graph, positions).fused()
    return None if made is graph else made


class _Attention:
    """The operations around a softmax of `graph`; `positions`: in `whole`, the graph before the edit."""

    def __init__(
        self, graph: Graph, softmax: Operation, whole: Graph, positions: Collection[int]
    ) -> None:
        self.graph, self.softmax = graph, softmax
        self.allowed = {id(whole.operations[p]) for p in positions}
        self.writers = {t: o for o in graph.operations for t in o.outputs}
        self.reads = [t for o in graph.operations for t in o.inputs] + [*graph.outputs]
        self.shapes = [t.shape for t in graph.tensors]

    def before(self, tensor: int, *kinds: str) -> Operation | None:
        """The operation of one of `kinds` that writes a tensor, if the tensor has one reader; else None."""
        o = self.writers.get(tensor)
        is_one = o is not None and o.kind in kinds and id(o) in self.allowed
        return o if is_one and self.reads.count(tensor) == 1 else None

    def fused(self) -> Graph:
        """The graph with the attention fused; unchanged if the operations do not match the pattern."""
        matched, masks, tensor = [self.softmax], list[int](), self.softmax.inputs[0]
        if (o := self.before(tensor, "add", "where")) and len(o.inputs) == 2:
            # A boolean mask is not an operand of fused attention.
            scored = next((t for t in o.inputs if self.before(t, "matmul", *_BY_NUMBER)), None)
            masks = [t for t in o.inputs if t != scored and o.kind == "add"]
            matched, tensor = [o, *matched], -1 if scored is None else scored
        while (o := self.before(tensor, *_BY_NUMBER)) and len(o.inputs) == 1:
            matched, tensor = [o, *matched], o.inputs[0]
        first, out = self.before(tensor, "matmul"), self.softmax.outputs[0]
        while (after := self._reader(out)) is not None and after.kind == "dropout":
            matched, out = [*matched, after], after.outputs[0]
        is_left = True  # the weights, in softmax(...) v
        if after is not None and after.attributes.get("permutation") == SWAP:
            matched, out, is_left = [*matched, after], after.outputs[0], False
            after = self._reader(out)
        if first is None or after is None or after.kind != "matmul":
            return self.graph
        if after.inputs[1 - is_left] != out:
            return self.graph
        return self._with([first, *matched], after, after.inputs[is_left], masks)

    def _reader(self, tensor: int) -> Operation | None:
        """The only reader of a tensor; None if there are several, or the reader is not at `positions`."""
        readers = [o for o in self.graph.operations if tensor in o.inputs]
        is_one = self.reads.count(tensor) == 1 and readers and id(readers[0]) in self.allowed
        return readers[0] if is_one else None

    def _with(
        self, matched: list[Operation], last: Operation, value: int, masks: list[int]
    ) -> Graph:
        """The graph with one fused attention in place of the operations in `matched` and `last`.

        Operands and a result of (batch, heads, size, steps) get a transpose, which a fused attention takes
        as a view.
        """
        (query, key), scores = matched[0].inputs, self.shapes[self.softmax.inputs[0]]
        size, is_left = matched[0].attributes["contracted"], value == last.inputs[1]
        if (o := self.before(query, *_BY_NUMBER)) and len(o.inputs) == 1:
            matched, query = [o, *matched], o.inputs[0]
        transposed, graph = self.writers.get(key), self.graph
        if transposed is not None and transposed.attributes.get("permutation") == SWAP:
            matched = [transposed, *matched] if self.before(key, "transpose") else matched
            key = transposed.inputs[0]
        elif size == scores[-1]:  # the shape does not show whether the key is transposed
            return graph
        (*heads, queries, keys), result = scores, self.shapes[last.outputs[0]]
        width = result[-1 if is_left else -2]
        made, tensors = list[Operation](), list(graph.tensors)

        def in_rows(tensor: int, rows: int, columns: int) -> int | None:
            if self.shapes[tensor] == (*heads, rows, columns):
                return tensor
            if self.shapes[tensor] != (*heads, columns, rows):
                return None
            tensors.append(replace(tensors[tensor], shape=(*heads, rows, columns)))
            made.append(_swap(last, f"{last.name}_operand_{len(made)}", tensor, len(tensors) - 1))
            return len(tensors) - 1

        sides = (query, queries, size), (key, keys, size), (value, keys, width)
        operands = [t for t in (in_rows(*side) for side in sides) if t is not None]
        if len(heads) != 2 or len(operands) < 3 or {*result[-2:]} != {queries, width}:
            return graph
        sizes = {"heads": heads[1], "key_heads": heads[1], "queries": queries, "keys": keys,
                 "head_size": size, "value_size": width}  # fmt: skip
        gone = {id(o) for o in matched}
        ahead = [o.attributes[AHEAD] for o in (*matched, last) if AHEAD in o.attributes]
        computed_ahead = {AHEAD: tuple(map(sum, zip(*ahead, strict=True)))} if ahead else {}
        fused = replace(last, kind="attention", inputs=(*operands, *masks),
                        attributes={**sizes, **computed_ahead})  # fmt: skip
        made.append(fused)
        if not is_left:
            made[-1] = replace(fused, outputs=(len(tensors),))
            tensors.append(replace(tensors[last.outputs[0]], shape=(*heads, queries, width)))
            made.append(_swap(last, f"{last.name}_result", len(tensors) - 1, last.outputs[0]))
        kept = [o for o in graph.operations if id(o) not in gone]
        at = next(i for i, o in enumerate(kept) if o is last)
        kept[at : at + 1] = made
        return replace(graph, tensors=tuple(tensors), operations=tuple(kept))


def _swap(beside: Operation, name: str, source: int, result: int) -> Operation:
    """A transpose of matrices, in the module of another operation."""
    what = {"kind": "transpose", "inputs": (source,), "outputs": (result,)}
    return replace(beside, name=name, attributes={"permutation": SWAP}, **what)


_BY_NUMBER = ("multiply", "divide")  # with one input they multiply or divide by a number


# ---- A convolution as a depthwise and a pointwise one

LEAST_CHANNELS = 8  # input channels of a convolution that is worth splitting; an image has fewer


def is_separable(operation: Operation) -> bool:
    """True for a convolution that a depthwise and a pointwise convolution can replace."""
    a = operation.attributes
    return (
        operation.kind in ("conv", "grouped_conv")
        and not a["groups"] == a["in_channels"] == a["out_channels"]
        and prod(a["kernel"]) > 1
        and a["in_channels"] >= LEAST_CHANNELS
        and max(a.get("strides", (1,))) < max(a["kernel"])
    )


def separated(graph: Graph, positions: Collection[int]) -> Graph | None:
    """The graph with a depthwise and a pointwise convolution for each separable one; None without any."""
    tensors, operations = list(graph.tensors), list[Operation]()
    for position, operation in enumerate(graph.operations):
        if position not in positions or not is_separable(operation):
            operations.append(operation)
            continue
        a, between = operation.attributes, len(tensors)
        channels, ones = a["in_channels"], (1,) * len(a["kernel"])
        result, axis = tensors[operation.outputs[0]], graph.channel_axis(operation.outputs[0])
        shape = (*result.shape[:axis], channels, *result.shape[axis + 1 :])
        tensors.append(replace(result, shape=shape))
        depthwise = {**a, "out_channels": channels, "groups": channels, "bias": False}
        pointwise = {
            "kernel": ones, "strides": ones, "dilation": ones, "padding": "valid", "groups": 1,
            "in_channels": channels, "out_channels": a["out_channels"], "bias": a["bias"],
        }  # fmt: skip
        name, inputs = operation.name, (between, *operation.inputs[1:])
        operations += [
            replace(operation, name=f"{name}_depthwise", kind="depthwise_conv", outputs=(between,),
                    attributes=depthwise),
            replace(operation, name=f"{name}_pointwise", kind="conv", inputs=inputs, attributes=pointwise),
        ]  # fmt: skip
    if len(tensors) == len(graph.tensors):
        return None
    return replace(graph, tensors=tuple(tensors), operations=tuple(operations))


# ---- A network as it is trained


def as_trained(graph: Graph) -> Graph:
    """The graph in training mode; NetworkError if its training cannot be counted.

    A norm that uses the statistics of the batch even at inference, where it counts as an instance norm,
    becomes a batch norm.
    """
    if quantized := sum("bits" in o.attributes for o in graph.operations):
        raise NetworkError(
            f"{shortened(graph.name)}: {quantized} of its operations are quantized, which nobody trains; "
            "expected the network in float that it was made from",
            code="quantized",
        )
    if graph.training_obstacles:
        obstacles = "; ".join(graph.training_obstacles)
        raise NetworkError(
            f"{shortened(graph.name)}: {obstacles}, which is not counted; expected a "
            f"network without that ({arg('tune')} freezes parts, {arg('checkpointing')} recomputes)",
            code="partly-trained",
        )
    if not any("of_batch" in o.attributes for o in graph.operations):
        return graph
    as_all = (
        replace(o, kind="batch_norm") if "of_batch" in o.attributes else o for o in graph.operations
    )
    return replace(graph, operations=tuple(as_all))
