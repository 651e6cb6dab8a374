"""Rules for operations that move or choose data: slices, splits, pads, pools, gathers, copies."""

from __future__ import annotations

from math import prod
from typing import Any

from lolat.readers.torch_layers import sizes_of


def _slice(walker: Any, call: Any) -> list[Any]:
    """A part of a tensor; the whole of it, or one of an axis of one, is a view."""
    source = walker.sources(call.node)[0]
    if call.op == "select" and source in walker.parts and call.get("dim") == 0:
        return [walker.parts[source][call.get("index")]]
    if prod(call.shapes[0]) == prod(walker.shape(source)):
        return [walker.add(call, "reshape", [source])]
    return [walker.add(call, "slice", [source])]


def _split(walker: Any, call: Any) -> list[Any]:
    """One slice for each part."""
    source = walker.sources(call.node)[0]
    if source in walker.parts and call.op == "unbind":
        return list(walker.parts[source])
    return [walker.add(call, "slice", [source], shape) for shape in call.shapes]


def _expand(walker: Any, call: Any) -> list[Any]:
    """The same values again; nothing where no axis grows, at any batch size."""
    source = walker.sources(call.node)[0]
    grows = walker.program.sizes(
        call.node, call.node.meta["val"], walker.builder.tensors[source].batched
    )[1]
    if prod(call.shapes[0]) == prod(walker.shape(source)) and (
        grows == walker.builder.tensors[source].batched
    ):
        return [walker.add(call, "reshape", [source])]
    return [walker.add(call, "repeat", [source])]


def _pad(walker: Any, call: Any) -> list[Any]:
    """Elements added at the ends of axes, or taken away there."""
    source = walker.sources(call.node)[0]
    amounts = [int(n) for n in call.get("pad", call.get("padding"))]
    if not any(amounts):
        return [walker.add(call, "identity", [source])]
    if max(amounts) <= 0:
        return [walker.add(call, "crop", [source], suffix="crop")]
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]  # PyTorch: last axis first
    return [walker.add(call, "pad", [source], suffix="pad", padding=tuple(pairs))]


def _gather(walker: Any, call: Any) -> list[Any]:
    """Elements at indices that are tensors."""
    inputs = walker.operands(call)
    return [walker.add(call, "gather", inputs or walker.sources(call.node))]


def _pool(walker: Any, call: Any) -> list[Any]:
    """A pooling with a window."""
    spatial = int(call.op.partition("pool")[2][0])
    kernel = sizes_of(call.get("kernel_size"), spatial)
    strides = sizes_of(call.get("stride") or kernel, spatial)
    padding = sizes_of(call.get("padding", 0), spatial)
    same = all(2 * p >= k - 1 > 0 for p, k in zip(padding, kernel, strict=True))
    return [walker.add(
        call, "max_pool" if "max" in call.op else "average_pool", walker.sources(call.node)[:1],
        kernel=kernel, strides=strides, padding="same" if same else "valid",
    )]  # fmt: skip


def _adaptive(walker: Any, call: Any) -> list[Any]:
    """A pooling to a given size; to one position it is a global one."""
    spatial = int(call.op.partition("pool")[2][0])
    whole = prod(call.shapes[0][-spatial:]) == 1
    kind = "global_max_pool" if "max" in call.op else "global_average_pool"
    source = walker.sources(call.node)[:1]
    return [walker.add(call, kind if whole else "adaptive_pool", source)]


def _copy(walker: Any, call: Any) -> list[Any]:
    """Values written into a tensor, or a part of it, that is there already."""
    source = walker.index(call.get("src"))
    if source is None:
        return [walker.add(call, "fill", walker.sources(call.node)[:1])]
    return [walker.add(call, "scatter", [source])]


_DIMENSIONS = ("1d", "2d", "3d")

RULES = {
    **dict.fromkeys(("slice", "select", "narrow", "diagonal"), _slice),
    **dict.fromkeys(("chunk", "split", "split_with_sizes", "unsafe_chunk", "unsafe_split", "unbind",
                     "tensor_split", "hsplit", "vsplit", "dsplit", "split_copy",
                     "split_with_sizes_copy"), _split),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), _expand),
    **dict.fromkeys(("pad", "constant_pad_nd", *(f"{how}_pad{d}" for d in _DIMENSIONS
                     for how in ("reflection", "replication"))), _pad),
    **dict.fromkeys(("index", "gather", "index_select", "take", "take_along_dim",
                     "_unsafe_index"), _gather),
    **dict.fromkeys([f"{how}_pool{d}{tail}" for d in _DIMENSIONS for how in ("max", "avg")
                     for tail in ("", "_with_indices")], _pool),
    **dict.fromkeys([f"{space}adaptive_{how}_pool{d}" for d in _DIMENSIONS
                     for how in ("max", "avg") for space in ("", "_")], _adaptive),
    "copy": _copy,
}  # fmt: skip
