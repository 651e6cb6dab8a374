"""The inputs to call a PyTorch module with, at batch size 1."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lolat.errors import NetworkError, arg
from lolat.readers.size import OWN_SIZE, SIDE, InputForm, Shape, Size, filled, sides_of
from lolat.units import shapes_text, value_words

_SPATIAL = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3,
            "ConvTranspose1d": 1, "ConvTranspose2d": 2, "ConvTranspose3d": 3}  # fmt: skip
_RECURRENT = ("RNNBase", "RNNCellBase")
_MOST_ELEMENTS = 2**60 - 1
"""Limit on a tensor's elements in PyTorch, for elements of eight bytes."""


@dataclass(frozen=True)
class ExampleCall:
    """The arguments of a module's call at batch size 1; `without_batch`: ids of tensors without a batch."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    without_batch: Set[int] = frozenset()


def tensors_in(example: Any) -> list[Any]:
    """The tensors of an example, also those inside containers."""
    import torch
    from torch.utils import _pytree as pytree

    return [t for t in pytree.tree_leaves(example) if isinstance(t, torch.Tensor)]


def calls(
    model: Any, name: str, size: Size, example: Any, axis: int, remarks: list[str]
) -> Iterator[ExampleCall]:
    """Yield calls of a module with batch size 1 on `axis`; append remarks on sizes to `remarks`.

    If the data types of the inputs are unknown, several calls are yielded: floats first, then indices.
    """
    import torch

    if example is not None:
        yield _example_of_one_sample(model, example, name, size, axis, remarks)
        return
    guess = "" if len(size.numbers) > 1 else channels_from(model)
    title = f"the input, with the channels of {guess}" if guess else "the input"
    forms, given = {title: _form(model, size.numbers)}, size
    if size.shapes:
        forms, given = _whole_shapes(size.shapes), OWN_SIZE
    _check_number(model, size, len(forms), name)
    shapes = [*filled(forms, given, name, remarks=remarks).values()]
    if any(math.prod(s) > _MOST_ELEMENTS for s in shapes):
        raise NetworkError(
            f"an input of network {name!r} has more elements than counts hold; give a smaller "
            f"{arg('input_size')}",
            code="input-size",
        )
    if not given and len(shapes[0]) == 4:
        remarks.append(f"read on {shapes[0][1]} frames, as is usual for its weights")
    tensors = [*model.parameters(), *model.buffers()]
    number = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
    device = tensors[0].device if tensors else None

    def call(shapes: Sequence[tuple[int, ...]], types: Sequence[Any]) -> ExampleCall:
        args = (  # without memory: nothing looks at the values
            torch.empty((), dtype=dtype, device=device).expand(*shape[:axis], 1, *shape[axis:])
            for shape, dtype in zip(shapes, types, strict=True)
        )
        return ExampleCall(tuple(args))

    if image := _flattened(model, size.numbers):
        remarks.append(
            f"read as an image of {shapes_text([image])}, which its first layer gets flat"
        )
        yield call([image], [number])
        remarks.pop()  # the code does not take an image without channels
    able = (
        ([number] if f.is_index is not True else [])
        + ([torch.int64] if f.is_index is not False else [])
        for f in forms.values()
    )
    for types in itertools.product(*able):
        yield call(shapes, types)
    if guess and given:
        remarks.append(f"read with 3 channels, as its code does not take those of {guess}")
        yield call([(3, *shapes[0][1:])], [number])
    if len(numbers := size.numbers) == 2 and shapes != [numbers]:
        remarks.append(f"read with inputs of {shapes_text([numbers])}: its code takes no channels")
        yield call([numbers], [number])


def _flattened(model: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image with a given side and as many elements as the first dense layer takes.

    () if there is no such image.
    """
    kind, layer = first_layer(model)
    if kind != "Linear" or len(size) != 1:
        return ()
    channels, rest = divmod(int(layer.in_features), size[0] ** 2)
    return (channels, *size * 2) if channels in (1, 3) and not rest else ()


_NON_TOKEN_NAMES = re.compile("im(age|g)|pixel|video|frame|audio|wave|feat|num|dense")
"""Words in the names of inputs that are not tokens, in a module with a table of embeddings."""


def _check_number(model: Any, size: Size, given: int, name: str) -> None:
    """Raise NetworkError if a module's `forward` needs more inputs than are given.

    The message shows inputs that may fit: images of `size` or tokens, guessed from layers and names.
    """
    named = inspect.signature(model.forward).parameters.values()
    needed = [p.name for p in named if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    if len(needed) > given:
        kinds = {type(module).__name__ for module in model.modules()}
        numbers = _image(size.numbers) if "Conv2d" in kinds else (64,)
        are_tokens = ["Embedding" in kinds and not _NON_TOKEN_NAMES.search(one) for one in needed]
        shapes = [(16,) if is_tokens else numbers for is_tokens in are_tokens]
        each = ", ".join(
            f"torch.zeros({', '.join(map(str, (1, *shape)))}{', dtype=torch.long' if is_tokens else ''})"
            for shape, is_tokens in zip(shapes, are_tokens, strict=True)
        )
        raise NetworkError(
            f"network {name!r} takes {len(needed)} inputs: {', '.join(needed)}; expected a function that "
            f"returns it with a tensor for each, as in `return {type(model).__name__}(), ({each})`, or, in "
            f"Python, their shapes without the batch in a list, as in input_size={shapes}",
            code="input-size",
        )


def _image(numbers: Sequence[int]) -> tuple[int, ...]:
    """The shape of an image of a given size; without a size it is SIDE pixels high and wide."""
    sides = tuple(numbers) or (SIDE,)
    return sides if len(sides) == 3 else (3, *sides_of(sides))


def _example_of_one_sample(
    model: Any, example: Any, name: str, size: Size, axis: int, remarks: list[str]
) -> ExampleCall:
    """The example at batch size 1, and at `size` if it is given.

    Tensors with the first tensor's length on `axis` have the batch on this axis; others have no batch.
    """
    from torch.utils import _pytree as pytree

    if isinstance(example, Mapping):  # a tokenizer returns another class of mapping
        example = dict(example)
    if not tensors_in(example):
        raise NetworkError(
            f"the inputs of {name!r} are {value_words(example)}; expected tensors (of token ids "
            f"with dtype=torch.long), or shapes without the batch in a list as {arg('input_size')}",
            code="input-size",
        )
    several = example if isinstance(example, (tuple, list)) else (example,)
    call = ((), example) if isinstance(example, dict) else (tuple(several), {})
    leaves = [t for t in tensors_in(call) if t.dim() > axis]
    batched = {
        id(t): (*t.shape[:axis], *t.shape[axis + 1 :])
        for t in leaves if t.shape[axis] == leaves[0].shape[axis]
    }  # fmt: skip
    index = {id(t): not t.is_floating_point() for t in leaves}
    kind, _ = first_layer(model)
    names = {
        f"input {i}": InputForm(shape, _channels(kind, len(shape)), index[key])
        for i, (key, shape) in enumerate(batched.items(), start=1)
    }
    sized = filled(names, size, name, remarks=remarks)
    shapes = dict(zip(batched, sized.values(), strict=True))

    def one_sample(value: Any) -> Any:
        shape = shapes.get(id(value))
        if shape is None or shape == batched[id(value)]:
            return value if shape is None else value.narrow(axis, 0, 1)
        return value.new_empty((*shape[:axis], 1, *shape[axis:]))

    args, kwargs = pytree.tree_map(one_sample, call)
    return ExampleCall(args, kwargs, {id(t) for t in leaves} - batched.keys())


def _whole_shapes(shapes: Sequence[Shape]) -> dict[str, InputForm]:
    """Several inputs from their shapes; with fewer than five inputs, flat ones may hold indices."""
    few = len(shapes) < 5
    return {
        f"input {i}": InputForm(shape, is_index=None if few and len(shape) < 3 else False)
        for i, shape in enumerate(shapes, start=1)
    }


def _form(model: Any, size: tuple[int, ...]) -> InputForm:
    """The input that a module's first layer reads, with None for open axes."""
    config = getattr(model, "default_cfg", None)  # of timm's networks
    default = tuple(config.get("input_size", ())) if isinstance(config, Mapping) else ()
    kind, layer = first_layer(model)
    spatial = _SPATIAL.get(kind, 0)
    channels = int(layer.in_channels) if spatial else default[0] if default else 3
    shape: Shape = (channels, *[None] * (spatial or 2))
    if len(default) > 2:
        shape = (channels if size else default[0], *default[1:])
    elif len(size) > 1 and len(size) != spatial:
        shape = size
    elif kind == "Embedding":
        shape = (None,)
    elif kind == "Linear":
        features = int(layer.in_features)
        shape = (features,) if size in ((), (features,)) else (None, features)
    elif kind in _RECURRENT:
        shape = (None, int(layer.input_size))
    is_index = kind == "Embedding"  # but a diffusion model's image, beside tokens, has floats
    return InputForm(
        shape, _channels(kind, len(shape)), None if is_index and len(shape) > 2 else is_index
    )


def channels_from(model: Any) -> str:
    """A text that names the first convolution, if it sets another number of channels than 3; else ""."""
    kind, layer = first_layer(model)
    if kind != "Conv2d" or layer.in_channels == 3 or hasattr(model, "default_cfg"):
        return ""
    name = next(name for name, module in model.named_modules() if module is layer)
    return f"its first convolution, {name or kind} ({layer.in_channels})"


def _channels(kind: str, rank: int) -> int:
    """The axis of an input's channels: -1 for steps that no convolution reads, else 0."""
    return -1 if rank == 2 and kind != "Conv1d" else 0


def first_layer(model: Any) -> tuple[str, Any]:
    """(class name, layer) of the first registered layer with a known input shape; ("", None) without one.

    A projection may be registered before the convolution or the table that reads the input.
    """
    known = {*_SPATIAL, *_RECURRENT, "Embedding", "Linear"}
    layers = [
        (cls.__name__, module)
        for module in model.modules()
        for cls in type(module).__mro__
        if cls.__name__ in known and cls.__module__.startswith(("torch.nn.", "torch.ao.nn."))
    ]
    if layers and layers[0][0] != "Embedding":
        layers.sort(key=lambda pair: (pair[0] not in _SPATIAL, pair[0] != "Embedding"))
    return layers[0] if layers else ("", None)
