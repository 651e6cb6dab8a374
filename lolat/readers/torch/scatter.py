"""Operations of PyTorch that write values into an existing tensor or a part of it."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from msgspec import structs

from lolat.arrays import np
from lolat.readers.torch.aten import AtenOperation

BY_INDEX = (
    "index_copy index_add index_reduce index_fill scatter scatter_add scatter_reduce index_put "
    "_index_put_impl put"
)


def copied(o: AtenOperation) -> list[int]:
    """A copy of values into an existing tensor or a part of it."""
    source = o.operand("src")
    return o.write("fill") if source is None else o.write("scatter", [source])


def scattered(o: AtenOperation) -> list[int]:
    """A write of values by index: in place only the values move, else the whole tensor is copied too."""
    shape = _written(o) if o.is_view else None
    if shape is None:
        return o.write(f"aten.{o.op}")
    whole, *others = o.operands
    source = next((i for n in ("source", "src", "values") if (i := o.operand(n)) is not None), None)
    is_fill = source is None or not o.writer.shape(source)  # of one value
    part = replace(o, shapes=[shape])
    (made,) = part.write("fill" if is_fill else "scatter", o.operands if is_fill else others)
    tensors = o.writer.builder.tensors
    grows = tensors[made].batched or tensors[whole].batched
    tensors[made] = structs.replace(tensors[made], batched=grows)
    return o.writer.write(o.call("identity", [whole, made], o.shapes))


def _written(o: AtenOperation) -> tuple[int, ...] | None:
    """The shape of the written elements; None if it depends on the values of a mask."""
    whole, index = tuple(o.get("self").shape), o.get("index")
    if not whole:
        return None
    if "indices" in o.arguments:
        indices = {axis: i for axis, i in enumerate(o.get("indices")) if i is not None}
        if any(str(i.dtype) in ("torch.bool", "torch.uint8") for i in indices.values()):
            return None
        rest = tuple(n for axis, n in enumerate(whole) if axis not in indices)
        return (*np.broadcast_shapes(*(i.shape for i in indices.values())), *rest)
    if not o.op.startswith("index"):
        return tuple(index.shape)
    axis = o.get("dim") % len(whole)
    return (*whole[:axis], prod(index.shape), *whole[axis + 1 :])
