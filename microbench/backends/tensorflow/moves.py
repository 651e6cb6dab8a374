"""Operations that move, drop, repeat or fold elements.

A Graph has their shapes alone; what is built goes from those to those, see `tensorflow_layers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import isqrt, prod
from typing import Any

from lolat.graph import Operation, Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One operation on symbolic Keras tensors: `ins` and `outs` say their shapes at batch size 1."""

    keras: Any
    operation: Operation
    inputs: list[Any]
    ins: list[Shape]
    outs: list[Tensor]

    @property
    def x(self) -> Any:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """Shape of the first input at batch size 1."""
        return self.ins[0]

    @property
    def out(self) -> Shape:
        """Shape of the first output at batch size 1."""
        return self.outs[0].shape

    def layer(self, pattern: str, *arguments: Any, **options: Any) -> Any:
        """A Keras layer by name; "{}" in it becomes the number of spatial dimensions, "2D"."""
        return getattr(self.keras.layers, pattern.format(f"{len(self.shape) - 2}D"))(
            *arguments, **options
        )

    def reshape(self, x: Any, shape: Shape) -> Any:
        """`x` in the shape that is `shape` at batch size 1."""
        return self.keras.ops.reshape(x, (-1, *shape[1:]) if self.outs[0].batched else shape)


Maker = Callable[[Call], Any]


def named(c: Call, *names: str) -> str:
    """The one of `names` that the operation is called after ("max_3": "max"), else the first."""
    own = re.sub(r"(_\d+)?(:\d+)?$", "", c.operation.name).lower()
    return next((name for name in names if name == own), names[0])


def padding_of(given: Any, before: Shape, after: Shape | None) -> list[tuple[int, int]]:
    """(before, after) for each axis but the batch; where they are not `given`, half of it each side.

    `after`: the padded shape, or None. Raises ValueError where the two do not tell.
    """
    if given:
        pairs = [tuple(map(int, p)) for p in given]
        first = [(0, 0), *pairs] if len(pairs) == len(before) - 2 else pairs
        last = [*pairs, (0, 0)] if len(pairs) == len(before) - 2 else pairs
        for full in (last, first):
            sizes = [n + sum(p) for n, p in zip(before[1:], full, strict=False)]
            if len(full) == len(before) - 1 and (after is None or sizes == list(after[1:])):
                return [(p[0], p[1]) for p in full]
    if after is None or len(after) != len(before):
        raise ValueError(f"how {before} is padded is not known")
    more = [a - b for a, b in zip(after[1:], before[1:], strict=True)]
    if min(more) < 0:
        raise ValueError(f"a padding does not go from {before} to {after}")
    return [(n // 2, n - n // 2) for n in more]


def pad_spatial(
    keras: Any, x: Any, shape: Shape, given: Any, data_format: str
) -> tuple[Any, Shape]:
    """`x` (of `shape` at batch size 1) behind a padding of its spatial axes, and its new shape."""
    pairs = padding_of(given, shape, None)
    if data_format == "channels_first" and len(given) == len(shape) - 2:
        pairs = [(0, 0), *pairs[:-1]]
    padded = tuple(n + sum(p) for n, p in zip(shape[1:], pairs, strict=True))
    return _pad_layer(keras, x, pairs), (shape[0], *padded)


def _pad_layer(keras: Any, x: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    spatial = len(pairs) - 1
    if pairs[-1] == (0, 0) and spatial in (1, 2, 3):
        layer = getattr(keras.layers, f"ZeroPadding{spatial}D")
        return layer(tuple(pairs[:-1]) if spatial > 1 else pairs[0])(x)
    return keras.ops.pad(x, [(0, 0), *pairs])


def _pad(c: Call) -> Any:
    pairs = padding_of(c.operation.attributes.get("padding"), c.shape, c.out)
    return _pad_layer(c.keras, c.x, pairs)


# ---- parts of a tensor ---------------------------------------------------------------------------


def _matches(inside: Shape, wanted: Shape) -> list[int] | None:
    """Axes of `inside` that are kept, so that each is at least as long as wanted; those as long first."""
    fits = [
        kept
        for kept in combinations(range(len(inside)), len(wanted))
        if all(inside[axis] >= n for axis, n in zip(kept, wanted, strict=True))
    ]
    if not fits:
        return None
    same = [sum(inside[a] == n for a, n in zip(kept, wanted, strict=True)) for kept in fits]
    return list(fits[same.index(max(same))])


def part(c: Call, wanted: Shape, offset: int = 0) -> Any:
    """A slice of the first input: contiguous, but for every other row and column of an image.

    `offset`: of the first axis that is shortened. Where the shapes do not fit axis by axis, so many
    elements of the flattened sample.
    """
    kept = _matches(c.shape[1:], wanted[1:]) if c.shape[0] == wanted[0] else None
    if kept is None:
        rows = c.shape[0] if prod(c.shape[1:]) >= prod(wanted[1:]) else 1
        flat = c.reshape(c.x, (rows, prod(c.shape) // rows))
        if prod(wanted) % rows or prod(wanted) > prod(c.shape):
            raise ValueError(f"{wanted} is no part of {c.shape}")
        return c.reshape(flat[:, : prod(wanted) // rows], wanted)
    sizes = dict(zip(kept, wanted[1:], strict=True))
    halved = [a for a, n in sizes.items() if a < len(c.shape) - 2 and c.shape[1 + a] >= 2 * n > 2]
    index: list[Any] = [slice(None)]
    for axis, n in enumerate(c.shape[1:]):
        size = sizes.get(axis)
        if size is None:
            index.append(0)
        elif size == n:
            index.append(slice(None))
        elif len(halved) > 1 and axis in halved:
            index.append(slice(0, (n // size) * size, n // size))
        else:
            start, offset = min(offset, n - size), 0
            index.append(slice(start, start + size))
    return c.x[tuple(index)]


def _slices(c: Call) -> list[Any]:
    """One part per output, side by side as of a split."""
    found, start = [], 0
    for tensor in c.outs:
        found.append(part(c, tensor.shape, start))
        shorter = [n for n, was in zip(tensor.shape, c.shape, strict=False) if n != was]
        start += shorter[0] if shorter else 0
    return found


def _crop(c: Call) -> Any:
    """As much from each side; Keras' layer where the channels stay."""
    if len(c.out) != len(c.shape):
        return part(c, c.out)
    less = [was - n for was, n in zip(c.shape[1:], c.out[1:], strict=True)]
    pairs = tuple((n // 2, n - n // 2) for n in less)
    if min(less) >= 0 and less[-1] == 0 and len(less) in (3, 4):
        return c.layer("Cropping{}", pairs[:-1])(c.x)
    return part(c, c.out)


def _gather(c: Call) -> Any:
    """Taken by the indices that are an operand; else a part."""
    if len(c.inputs) > 1 and "int" in str(c.inputs[1].dtype):
        indices = c.ins[1]
        for axis in range(len(c.shape)):
            taken = (*c.shape[:axis], *indices, *c.shape[axis + 1 :])
            if taken == c.out:
                return c.keras.ops.take(c.x, c.inputs[1], axis=axis)
        if len(indices) == len(c.out) and indices == c.out:
            return c.keras.ops.take_along_axis(c.x, c.inputs[1], axis=-1)
    return part(c, c.out)


# ---- order, size, number -------------------------------------------------------------------------


def _concatenate(c: Call) -> Any:
    for axis in reversed(range(len(c.out))):
        rests = {(*s[:axis], *s[axis + 1 :]) for s in (*c.ins, c.out)}
        if len(rests) == 1 and sum(s[axis] for s in c.ins) == c.out[axis]:
            if all(isinstance(x, c.keras.KerasTensor) for x in c.inputs):
                return c.keras.layers.Concatenate(axis=axis)(c.inputs)
            return c.keras.ops.concatenate(c.inputs, axis=axis)
    raise ValueError(f"no axis puts {c.ins} together to {c.out}")


def _stack(c: Call) -> Any:
    axes = (i for i in range(1, len(c.out)) if (*c.out[:i], *c.out[i + 1 :]) == c.shape)
    axis = next((i for i in axes if c.out[i] == len(c.inputs)), None)
    if axis is None:
        raise ValueError(f"no axis stacks {c.ins} to {c.out}")
    return c.keras.ops.stack(c.inputs, axis=axis)


def _transpose(c: Call) -> Any:
    """The first order of the axes that gives the shape; a flip where it stays."""
    ops, rank = c.keras.ops, len(c.shape)
    if c.shape == c.out and named(c, "flip", "transpose", "swapaxes", "permute") == "flip":
        return ops.flip(c.x, axis=1 if rank > 2 else -1)
    if sorted(c.shape) == sorted(c.out) and c.shape[0] == c.out[0]:
        for order in permutations(range(1, rank)):
            if list(order) != sorted(order) and all(
                c.shape[axis] == n for axis, n in zip(order, c.out[1:], strict=True)
            ):
                return ops.transpose(c.x, (0, *order))
    rows = prod(c.shape[:-1])
    swapped = ops.transpose(c.reshape(c.x, (1, rows, c.shape[-1])), (0, 2, 1))
    return c.reshape(swapped, c.out)


def _resize(c: Call) -> Any:
    """Keras' UpSampling (nearest) where the sizes are multiples, unless the name says Resizing."""
    factors = [divmod(n, was) for n, was in zip(c.out[1:-1], c.shape[1:-1], strict=True)]
    whole = all(times > 0 and rest == 0 for times, rest in factors)
    if whole and "resiz" not in c.operation.name and len(factors) in (1, 2, 3):
        size = tuple(times for times, _ in factors)
        return c.layer("UpSampling{}", size if len(size) > 1 else size[0])(c.x)
    return c.layer("Resizing", c.out[1], c.out[2])(c.x)


def _reduced_axes(before: Shape, after: Shape) -> Iterator[tuple[int, ...]]:
    """Axes that a reduction folds, those without the batch first."""
    axes = [*range(1, len(before)), 0]
    for count in range(1, len(before) + 1):
        for chosen in combinations(axes, count):
            kept = tuple(n for i, n in enumerate(before) if i not in chosen)
            ones = tuple(1 if i in chosen else n for i, n in enumerate(before))
            if after in (kept, ones):
                yield tuple(sorted(chosen))


def _reduce(c: Call) -> Any:
    """The reduction that the operation is named after, else the mean."""
    name = named(c, "mean", "sum", "max", "min", "amax", "amin", "var", "std", "prod", "argmax", "argmin",
                 "logsumexp", "any", "all")  # fmt: skip
    keep = len(c.out) == len(c.shape)
    for axes in _reduced_axes(c.shape, c.out):
        of = axes[0] if name.startswith("arg") else axes
        return getattr(c.keras.ops, name)(c.x, axis=of, keepdims=keep)
    raise ValueError(f"no axes reduce {c.shape} to {c.out}")


def _repeat(c: Call) -> Any:
    """Keras' RepeatVector, or each axis tiled as often as it grows."""
    if len(c.shape) == 2 and c.out == (c.shape[0], c.out[1], c.shape[1]):
        return c.keras.layers.RepeatVector(c.out[1])(c.x)
    times = [divmod(n, was) for n, was in zip(c.out, c.shape, strict=False)]
    if len(c.out) != len(c.shape) or any(rest for _, rest in times):
        raise ValueError(f"{c.shape} does not repeat to {c.out}")
    return c.keras.ops.tile(c.x, [n for n, _ in times])


def _sort(c: Call) -> Any:
    """The largest where there are two outputs or a shorter one, else everything sorted."""
    if len(c.outs) > 1 or c.out[-1] != c.shape[-1]:
        found = c.keras.ops.top_k(c.x, c.out[-1])
        return [found[0], found[1]][: len(c.outs)]
    return c.keras.ops.sort(c.x, axis=-1)


def _scatter(c: Call) -> Any:
    """The smallest other operand of as many axes written over the start of the first."""
    own = [x for x, s in zip(c.inputs[1:], c.ins[1:], strict=True) if len(s) == len(c.shape)]
    if c.shape != c.out or not own:
        raise ValueError(f"how {c.ins} scatter into {c.out} is not known")
    return c.keras.ops.slice_update(c.x, [0] * len(c.shape), own[0])


def _unfold(c: Call) -> Any:
    """Patches of an image."""
    side = isqrt(c.out[-1] // c.shape[-1])
    step = -(-c.shape[1] // c.out[1])
    for padding in ("valid", "same"):
        patches = c.keras.ops.image.extract_patches(c.x, (side, side), step, padding=padding)
        if tuple(patches.shape[1:]) == c.out[1:]:
            return patches
    raise ValueError(f"no patches of {c.shape} are {c.out}")


MAKERS: dict[str, Maker] = {
    "pad": _pad,
    **dict.fromkeys(("slice", "split"), _slices),
    "crop": _crop,
    "gather": _gather,
    "concatenate": _concatenate,
    "stack": _stack,
    "transpose": _transpose,
    "resize": _resize,
    "reduce": _reduce,
    "repeat": _repeat,
    "cumulative": lambda c: c.keras.ops.cumsum(c.x, axis=-1),
    "roll": lambda c: c.keras.ops.roll(c.x, 1, axis=-1 if len(c.shape) < 3 else 1),
    "sort": _sort,
    "scatter": _scatter,
    "unfold": _unfold,
}
"""Kind of operation -> how it is built."""
