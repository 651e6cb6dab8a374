"""The rule of `--input-size`: how the sizes that a user gives become shapes of a network's inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from lolat.errors import InputError, NetworkError, arg
from lolat.graph import Graph

Shape = tuple[int | None, ...]


def as_size(size: int | Sequence[int] | None) -> tuple[int, ...]:
    """An input size as a tuple; () for none. InputError when it is not of positive integers."""
    if size is None:
        return ()
    sizes = tuple(size) if isinstance(size, Iterable) and not isinstance(size, str) else (size,)
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in sizes):
        raise InputError(
            f"input size {size!r}: expected a positive whole number (224) or several (3,224,224)"
        )
    return tuple(int(n) for n in sizes)


def as_sizes(size: Any) -> Any:
    """An input size as `as_size` gives it, or a tuple of several."""
    several = isinstance(size, Sequence) and not isinstance(size, str)
    if several and any(isinstance(one, Sequence) for one in size):
        return tuple(as_size(one) for one in size)
    return as_size(size)


def filled(
    inputs: Mapping[str, Shape], size: Any, network: str, channels: int = 0, fixed: bool = False
) -> dict[str, tuple[int, ...]]:
    """The shape of each input without the batch, in which nothing is open.

    `inputs`: name -> shape without the batch, None where the network leaves a size open; `channels`: the
    axis of the channels among those (0 or -1). `fixed`: whether a size that is not open must stay.
    `size` is as `as_sizes` returns it: () for the network's own; one number for each open size, or where
    none is open for each but the channels; as many numbers as sizes are open; a whole shape. One size for
    a network of several inputs is for the images and for what leaves something open. NetworkError where
    a size does not fit, or one stays open.
    """
    sizes = _by_name(inputs, size, network)
    shapes, fits = dict[str, Shape](inputs), not size
    for name, shape in inputs.items():
        wanted = _sized(shape, sizes.get(name, ()), channels)
        if fixed and any(n not in (None, m) for n, m in zip(shape, wanted, strict=False)):
            continue
        if wanted:
            shapes[name], fits = wanted, True
    if not fits or any(None in shape for shape in shapes.values()):
        shown = "; ".join(f"{n}: {'x'.join(str(m or '?') for m in s)}" for n, s in inputs.items())
        is_open = any(None in shape for shape in inputs.values())
        remedy = (
            f"give a number {'where it says ?' if is_open else 'of pixels or tokens'}, or the whole shape "
            f"without the batch, with {arg('input_size')}, for example 224 or 3,224,224"
        )
        if fixed and not is_open:
            remedy = (
                f"its file fixes them: leave {arg('input_size')} out, or export with open sizes"
            )
        raise NetworkError(f"the inputs of {network!r} are {shown}; {remedy}", code="input-size")
    return {name: tuple(n for n in shape if n is not None) for name, shape in shapes.items()}


def _by_name(inputs: Mapping[str, Shape], size: Any, network: str) -> dict[str, tuple[int, ...]]:
    """The size of each input that gets one."""
    if size and not isinstance(size[0], int):
        if len(size) != len(inputs):
            raise NetworkError(
                f"{network!r} has the inputs {', '.join(inputs)}; expected an {arg('input_size')} for each",
                code="input-size",
            )
        return dict(zip(inputs, size, strict=True))
    flexible = [name for name, shape in inputs.items() if None in shape or len(shape) > 1]
    return dict.fromkeys(flexible or inputs, size) if size else {}


def _sized(shape: Shape, size: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """`shape` with a size put into it; () if the size does not fit, or leaves the shape open."""
    axes = [axis for axis, n in enumerate(shape) if n is None]
    if not axes and len(shape) > 1:
        axes = list(range(len(shape)))
        axes.pop(channels)
    if len(size) == len(shape) > 1:
        return size
    if not size or len(size) not in (1, len(axes or shape)):
        return ()
    numbers = iter(size if len(size) > 1 else size * len(shape))
    return tuple(next(numbers) if a in (axes or (0,)) else n or 0 for a, n in enumerate(shape))


def is_of_size(graph: Graph, size: Any) -> bool:
    """True if a network has the input size, as `as_sizes` gives it; for an image the side is enough."""
    shapes = {str(t): shape for t, shape in zip(graph.inputs, graph.input_sizes, strict=True)}
    with contextlib.suppress(NetworkError):
        return any(filled(shapes, size, graph.name, axis) == shapes for axis in (0, -1))
    return False
