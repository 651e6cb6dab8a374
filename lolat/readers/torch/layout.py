"""The channel axis of PyTorch's tensors, and its transpositions.

A transposition counts as a copy, no matter if PyTorch copies in it or in the operation that reads it. A
transposition that only turns an image into tokens or back, as around a layer norm, is a view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import prod
from typing import Any

from msgspec import structs

from lolat.graph import GraphBuilder, Operation, Tensor
from lolat.graph.kinds import CONVOLUTIONS, GATES, NORMALIZATIONS, POOLINGS, SLICES, VIEWS
from lolat.readers.ops import einsum_terms
from lolat.readers.torch.lifetimes import shares

_IMAGE = CONVOLUTIONS | POOLINGS | {"batch_norm", "group_norm", "instance_norm", "resize"}
_TOKENS = {"dense", "layer_norm", "rms_norm", "embedding", *GATES}
_MIXED = {"matmul", "unfold", "reduce", "gather"}


class Layout:
    """Finds the channel axis of tensors: 1 for an image, -1 for tokens."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        # A view that repeats elements -> the tensor that has them.
        self.expanded: dict[int, int] = {}
        self._axes: dict[int, int] = {}
        self._followed = 0  # number of operations that `_axes` covers

    def channels(self, tensor: int) -> int | None:
        """The channel axis of a tensor; None if it is not known."""
        for operation in self.builder.operations[self._followed :]:
            axis = self._written(operation)
            if axis is not None:
                self._axes.update(dict.fromkeys(operation.outputs, axis))
        self._followed = len(self.builder.operations)
        return self._axes.get(tensor)

    def _written(self, operation: Operation) -> int | None:
        """The channel axis of an operation's output; None if it is not known."""
        kind, tensors = operation.kind, self.builder.tensors
        shape = tensors[operation.outputs[0]].shape
        known = [i for i in operation.inputs if i in self._axes]
        first = self._axes.get(operation.inputs[0]) if operation.inputs else None
        if kind in _IMAGE and not (known and kind in NORMALIZATIONS):
            return 1 if len(shape) > 2 else None
        if kind in _TOKENS or kind in _MIXED:
            return -1 if kind in _TOKENS else None
        if "permutation" in operation.attributes:
            order, last = operation.attributes["permutation"], len(shape) - 1
            return None if first is None else {1: 1, last: -1}.get(order.index(first % len(shape)))
        if kind == "transpose":
            return None
        if kind == "reshape":
            before = tensors[operation.inputs[0]].shape
            stays = first is not None and len(shape) > 1 and before[first] == shape[first]
            return first if stays else None
        return next((self._axes[i] for i in known if len(tensors[i].shape) == len(shape)), None)

    def is_turned(self, tensor: int) -> bool:
        """True if a tensor is the result of a transpose or a slice, or a view of one."""
        for operation in reversed(self.builder.operations):
            if tensor in operation.outputs:
                if operation.kind not in VIEWS:
                    return operation.kind in SLICES | {"transpose"}
                tensor = operation.inputs[0]
        return False


def as_product(equation: str) -> tuple[list[str], list[list[list[int]]], str] | None:
    """The batched matrix product as which PyTorch runs an einsum; None if it runs the einsum otherwise.

    Returns (labels of each operand, axes of each operand joined into batch, rows and columns, labels of the
    product in order).
    """
    terms, result = einsum_terms(equation)
    summed = sorted(set("".join(terms)) - set(result))
    if len(terms) != 2 or not summed or "." in equation:
        return None
    if any(len({*t}) < len(t) or not {*summed} <= {*t} for t in terms):
        return None
    batch = [c for c in result if c in terms[0] and c in terms[1]]
    rows, columns = ([c for c in result if c in t and c not in batch] for t in terms)
    orders = [
        [[term.index(c) for c in group] for group in groups]
        for term, groups in zip(
            terms, ((batch, rows, summed), (batch, summed, columns)), strict=True
        )
    ]
    return terms, orders, "".join([*batch, *rows, *columns])


def joins(value: Any, groups: Sequence[Sequence[int]]) -> bool:
    """True if PyTorch must copy a tensor to join its axes by `groups`, at batch sizes above 1."""
    shape = [2 if n == 1 and axis == 0 else n for axis, n in enumerate(value.shape)]
    axes = [axis for group in groups for axis in group]
    turned = value.new_empty_strided(shape, value.stride()).permute(axes)
    joined = turned.reshape([prod(shape[axis] for axis in group) for group in groups])
    return not shares(joined, turned) or 1 not in joined.stride()[1:]


def free_turns(operations: Sequence[Operation], tensors: Sequence[Tensor]) -> list[Operation]:
    """The operations; a transpose to (N, C, T) becomes a view if an image or a convolution follows."""
    images: set[int] = set()  # tensors that become an image
    turned = []
    for operation in reversed(operations):
        is_image = operation.kind in CONVOLUTIONS | {"batch_norm"}
        seen_anew = operation.kind in VIEWS and "permutation" not in operation.attributes
        is_image |= seen_anew and not images.isdisjoint(operation.outputs)
        if is_image or any(len(tensors[i].shape) > 3 for i in operation.outputs):
            images.update(operation.inputs)
        if operation.attributes.get("to_image"):
            kind = "transpose" if images.isdisjoint(operation.outputs) else "reshape"
            operation = structs.replace(operation, kind=kind).changed(to_image=None)
        turned.append(operation)
    return turned[::-1]


def in_channels_last(what: str, formats: Collection[Any]) -> Iterator[str]:
    """Yield a remark if `what` is in channels last, because a graph does not store the memory format."""
    import torch

    if torch.channels_last in formats:
        yield (
            f"{what} in channels_last: the layout is the device's; in half precision --channels-last "
            "asks for that"
        )
    if torch.channels_last_3d in formats:
        yield f"{what} in channels_last_3d: the layout is the device's"


def formats_of(tensors: Iterable[Any]) -> set[Any]:
    """The memory formats of tensors, of channels_last and channels_last_3d."""
    import torch

    last = {4: torch.channels_last, 5: torch.channels_last_3d}
    dense = (t for t in tensors if t.layout == torch.strided and t.dim() in last)
    turned = (t for t in dense if not t.is_contiguous())
    return {last[t.dim()] for t in turned if t.is_contiguous(memory_format=last[t.dim()])}
