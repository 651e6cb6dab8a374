"""Turns `--input-size` and `--sequence-length` into shapes of a network's inputs.

One number sets the height and width of images, or the steps of a network without images. A sequence length
sets only tokens and steps. If some inputs have open axes, the others keep their shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from lolat.errors import InputError, NetworkError, arg
from lolat.graph import Graph
from lolat.parameters import LENGTH, SIZE, InputSize
from lolat.units import value_words

RGB = 3
"""Channels of a color image."""
Shape = tuple[int | None, ...]
SIDE = 224
"""Height and width of images if neither the network nor the user says them."""


def as_numbers(size: object, name: str = SIZE) -> tuple[int, ...]:
    """An input size as a tuple, () for None. InputError unless all numbers are positive integers."""
    if size is None:
        return ()
    shape = getattr(size, "shape", ())
    if isinstance(shape, tuple) and len(shape) > 1:  # of the input itself
        other = f", or {tuple(shape)} if it has no batch axis" if len(shape) == 3 else ""
        raise InputError(
            f"{name.replace('_', ' ')} {value_words(size)}: expected its shape without the batch: "
            f"{tuple(shape[1:])}{other}"
        )
    sizes = tuple(size) if isinstance(size, Iterable) and not isinstance(size, str) else (size,)
    if any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in sizes):
        raise InputError(
            f"{name.replace('_', ' ')} {value_words(size)}: expected a positive whole number (224) or "
            "several (3,224,224)"
        )
    return tuple(int(n) for n in sizes)


@dataclass(frozen=True)
class Size:
    """The size of a network's inputs; without any number the network's own size.

    `images`: the numbers of `--input-size`: a side, the sides, or a whole shape; `length`: tokens or steps,
    from `--sequence-length`; `shapes`: a shape for each of several inputs, instead of the other two.
    """

    images: tuple[int, ...] = ()
    length: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.images or self.length or self.shapes)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that apply to a network with one input; () if there are several shapes."""
        return self.images or (() if self.length is None else (self.length,))

    @property
    def given(self) -> InputSize:
        """The size in the form of the argument `input_size`, as JSON data."""
        if self.length is not None:
            return {SIZE: self.images, LENGTH: self.length}
        return self.images or self.shapes

    @property
    def options(self) -> str:
        """The command-line options for this size, each with a space in front; "" for several shapes."""
        given = {SIZE: self.images, LENGTH: () if self.length is None else (self.length,)}
        return "".join(
            f" --{name.replace('_', '-')} {','.join(map(str, numbers))}"
            for name, numbers in given.items() if numbers
        )  # fmt: skip


def sides_of(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """(height, width) for one number; several numbers unchanged."""
    return numbers * 2 if len(numbers) == 1 else numbers


OWN_SIZE = Size()
AnySize = InputSize | Size
"""An input size: as a user gives it, or a checked `Size`."""


def as_size(size: AnySize) -> Size:
    """Check an input size and return it as a `Size`; InputError if it is not a size."""
    if isinstance(size, Size):
        return size
    several: Sequence[Any] = () if isinstance(size, str) or not isinstance(size, Sequence) else size
    if isinstance(size, Mapping):
        named = {str(name): as_numbers(one, str(name)) for name, one in size.items()}
        images, length = named.get(SIZE, ()), named.get(LENGTH, ())
        if not named.keys() <= {SIZE, LENGTH} or len(length) > 1:
            raise InputError(
                f"input size {value_words(size)}: expected {SIZE} and {LENGTH}, the latter one number, "
                f"such as {{'{SIZE}': 224, '{LENGTH}': 77}}"
            )
        return Size(images, length[0] if length else None)
    if any(isinstance(one, Sequence) for one in several):
        return Size(shapes=tuple(map(as_numbers, several)))
    return Size(as_numbers(size))


@dataclass(frozen=True)
class InputForm:
    """An input of a network: its shape without the batch, with None for an open axis.

    `channels`: the axis of the channels or features (0 or -1); `is_index`: True if the input holds whole
    numbers, such as tokens, None if unknown; `steps`: the axes that are known to be steps.
    """

    shape: Shape
    channels: int = 0
    is_index: bool | None = False
    steps: frozenset[int] = field(default_factory=frozenset)

    @property
    def open(self) -> list[int]:
        """The axes that are open."""
        return [axis for axis, n in enumerate(self.shape) if n is None]

    @property
    def inner(self) -> list[int]:
        """All axes except the axis of the channels."""
        axes = list(range(len(self.shape)))
        if len(axes) > 1:
            axes.pop(self.channels)
        return axes

    @property
    def is_image(self) -> bool:
        """True for the shape of an image or a video."""
        return len(self.shape) > 2 and not self.steps

    @property
    def long(self) -> list[int]:
        """The open axes that a sequence length sets, without axes of images and of unknown features."""
        if len(self.open) < 2:
            return self.open
        return [
            a for a in self.open
            if a in self.steps or (not self.is_image and (self.is_index or a in self.inner))
        ]  # fmt: skip

    @property
    def sides(self) -> list[int]:
        """The axes that a single number sets: the open axes, or without any an image's height and width."""
        wide = self.inner[-2:]
        is_open = [a for a in self.open if a in wide] if self.is_image else self.long
        return is_open or (
            self.open if len(self.open) == 1 else wide if self.is_image else self.inner
        )

    def with_sizes(self, axes: Sequence[int], numbers: Sequence[int]) -> InputForm:
        """The input with `numbers` on `axes`; a single number is used for all axes."""
        given = dict(zip(axes, [*numbers] * (len(axes) if len(numbers) == 1 else 1), strict=True))
        return replace(self, shape=tuple(given.get(a, n) for a, n in enumerate(self.shape)))

    def sized(self, numbers: tuple[int, ...]) -> InputForm | None:
        """The input at a size; None if the size does not fit.

        `numbers`: a whole shape, one number, or a number for each axis of `open`, `inner` or `sides`.
        """
        if len(numbers) == len(self.shape) > 1:
            return replace(self, shape=numbers)
        channels = {self.shape[0], self.shape[-1]} & {RGB} if self.is_image else ()
        if len(numbers) == 2 and numbers[0] in channels:  # not an image of 3 x 224 pixels
            return None
        for axes in (self.open, self.inner, self.sides):
            if len(numbers) == len(axes) > 1:
                return self.with_sizes(axes, numbers)
        return self.with_sizes(self.sides, numbers) if len(numbers) == 1 and self.shape else None

    def taking(self, numbers: tuple[int, ...], is_length: bool, fixed: bool) -> InputForm | None:
        """The input at a size or a length; None if it does not fit, or would change a `fixed` input."""
        made = (
            self.with_sizes(self.long or self.inner, numbers) if is_length else self.sized(numbers)
        )
        pairs = zip(self.shape, made.shape if made else (), strict=False)
        return None if fixed and any(n not in (None, m) for n, m in pairs) else made


def filled(
    inputs: Mapping[str, InputForm], size: Size, network: str, fixed: bool = False,
    remarks: list[str] | None = None,
) -> dict[str, tuple[int, ...]]:  # fmt: skip
    """The shape of each input without the batch, with all axes known.

    `fixed`: True if only open axes can be set. `remarks`: a list to which remarks on unexpected effects are
    added. NetworkError if a size does not fit, or an axis stays open.
    """
    made, fits = dict(inputs), True
    for numbers, names, is_length in _parts(inputs, size, network):
        fitting = {n: f for n in names if (f := inputs[n].taking(numbers, is_length, fixed))}
        made |= fitting
        fits = fits and bool(fitting)
    if not fits or any(form.open for form in made.values()):
        raise _refused(inputs, size, network, fixed)
    if remarks is not None and size.numbers:
        remarks += _remarks(inputs, made, size)
    return {name: tuple(n for n in form.shape if n is not None) for name, form in made.items()}


def _parts(
    inputs: Mapping[str, InputForm], size: Size, network: str
) -> list[tuple[tuple[int, ...], list[str], bool]]:
    """A list of (numbers of a size, names of the inputs that they set, True for a sequence length)."""
    if not size:
        return []
    if shapes := size.shapes:
        pairs = zip(shapes, inputs, strict=False) if len(shapes) == len(inputs) else [((), "")]
        return [(one, [name] if name else [], False) for one, name in pairs]
    candidates = {n: f for n, f in inputs.items() if f.open} or inputs
    images = [n for n, f in candidates.items() if f.is_image]
    if not images and size.length is None:
        wide = [n for n, f in inputs.items() if len(f.shape) > 1]
        images = wide if wide and candidates is inputs else list(candidates)
    parts = [(numbers, images, False)] if (numbers := size.images) else []
    return [*parts, ((size.length,), _of_steps(inputs), True)] if size.length is not None else parts


def _of_steps(inputs: Mapping[str, InputForm]) -> list[str]:
    """The inputs that a sequence length sets.

    These are the inputs with open steps; without any, the inputs of tokens and inputs of the same shape;
    without tokens, the inputs of steps.
    """
    if any(f.open for f in inputs.values()):
        return [n for n, f in inputs.items() if f.long]
    tokens = {f.shape for f in inputs.values() if f.is_index and len(f.shape) == 1}
    rank = max((len(f.shape) for f in inputs.values() if len(f.shape) < 3), default=0)
    return [n for n, f in inputs.items() if (f.shape in tokens if tokens else len(f.shape) == rank)]


def _refused(
    inputs: Mapping[str, InputForm], size: Size, network: str, fixed: bool
) -> NetworkError:
    """The error for inputs with open axes, or for a size that does not fit."""
    shapes = {name: _text(form.shape) for name, form in inputs.items()}
    text = "inputs are " + "; ".join(f"{name}: {shape}" for name, shape in shapes.items())
    if len(shapes) == 1:
        name, shape = next(iter(shapes.items()))
        _, comma, where = name.partition(", ")  # where its channels are from
        text = f"input, {where}, is {shape}" if comma else f"input is {shape}"
    is_open = [form for form in inputs.values() if form.open]
    if is_open and not size:
        needs, examples = _examples(is_open)
        return NetworkError(
            f"{network!r} needs {needs}: its {text}; for example {examples}", code="input-size"
        )
    remedy = (
        f"give a number {'where it says ?' if is_open else 'of pixels or tokens'}, or the whole shape "
        f"without the batch, with {arg(SIZE)}, for example 224 or 3,224,224"
    )
    if size.length is not None and not _of_steps(inputs):
        remedy = f"{arg(LENGTH)} is of tokens and steps, of which it has none: leave it out"
    elif fixed and not is_open:
        given = SIZE if size.images or size.length is None else LENGTH
        remedy = f"leave {arg(given)} out, or export with open sizes"
        return NetworkError(f"{network!r} fixes its sizes: its {text}; {remedy}", code="input-size")
    elif size.length is not None or len({form.is_image for form in is_open}) > 1:
        remedy += f", for images, and {arg(LENGTH)} for tokens and steps alone"
    needs = (
        f"{network!r} needs {arg(SIZE)}: its {text}" if is_open else f"of {network!r} the {text}"
    )
    return NetworkError(f"{needs}; {remedy}", code="input-size")


def _examples(forms: Sequence[InputForm]) -> tuple[str, str]:
    """(arguments that inputs with open axes need, the same arguments with example values), as text."""
    images = [form for form in forms if form.is_image]
    examples = {}
    if images:
        shape = images[0].with_sizes(images[0].sides, [SIDE]).shape
        whole = ",".join(str(16 if n is None else n) for n in shape)  # of frames, or of depth
        examples[arg(SIZE)] = whole if None in shape else f"224 or {whole}"
    if len(images) < len(forms):
        examples[arg(LENGTH)] = "128"
    return " and ".join(examples), ", ".join(f"{name} {n}" for name, n in examples.items())


def _remarks(
    inputs: Mapping[str, InputForm], made: Mapping[str, InputForm], size: Size
) -> Iterable[str]:
    """Yield a remark for each input, and each number of frames, that a given size does not change."""
    for name, form in made.items():
        same = len(made) > 1 and form.shape == inputs[name].shape and all(form.shape)
        if len(size.images) == 1 and form.is_image and len(form.inner) > 2:
            yield f"{name} is read as {_text(form.shape)}: its frames, or its depth, stay"
        elif same and (form.is_index or len(form.shape) > 1) and form.shape:
            yield f"{name} stays {_text(form.shape)}"


def _text(shape: Shape) -> str:
    return "x".join(str("?" if n is None else n) for n in shape)


def is_of_size(graph: Graph, size: Size) -> bool:
    """True if a network was read at an input size; for an image the side is enough."""
    if not size:
        return True
    shapes = {str(t): shape for t, shape in zip(graph.inputs, graph.input_sizes, strict=True)}
    for axis in (0, -1):
        forms = {
            name: InputForm(shape, axis, "int" in graph.tensors[int(name)].dtype)
            for name, shape in shapes.items()
        }
        with contextlib.suppress(NetworkError):
            if filled(forms, size, graph.name) == shapes:
                return True
    return False
