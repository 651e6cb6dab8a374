"""PyTorch network -> Graph, from one call of the module at batch size 1 on tensors without values.

Nothing is computed, so neither weights nor activations need memory. Shapes are PyTorch's own, channels
first. A tensor that depends on parameters alone (gathered position biases, a mask) is a constant operand,
as in a Keras network, and costs nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any

from msgspec.structs import replace

from lolat.errors import LolatError, MissingPackageError, NetworkError, arg
from lolat.graph import Graph
from lolat.parameters import LENGTH
from lolat.readers.batch import with_remarks
from lolat.readers.ops import AS_COMPILED
from lolat.readers.size import InputForm, Shape, filled, numbers_of
from lolat.readers.torch.causes import known_cause, layer_of, package_line
from lolat.units import one_line, plural, shapes_text, shortened, user_line

_SPATIAL = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3,
            "ConvTranspose1d": 1, "ConvTranspose2d": 2, "ConvTranspose3d": 3}  # fmt: skip
_RECURRENT = ("RNNBase", "RNNCellBase")
_OF_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""Errors of PyTorch where the code needs the values of a tensor."""

_QUANTIZED = re.compile(
    r"torch\.ao\.nn\.(intrinsic\.)?quantized\.(?!dynamic\.modules\.linear\.|.*(PackedParams|FloatFunctional)$)"
    r"|torchao\.|bitsandbytes\."
)
"""Classes of layers and parameters that are not read; a dynamic Linear is."""

MOST_ELEMENTS = 2**60 - 1
"""Elements of the largest tensor that PyTorch has: of eight bytes each."""


def import_torch() -> Any:
    """PyTorch; MissingPackageError when it is missing."""
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            f"PyTorch is needed for this and cannot be imported ({error})", "torch"
        ) from error
    return torch


def is_network(model: Any) -> bool:
    """True for a PyTorch module."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return "torch.nn.modules.module.Module" in names


def read_model(model: Any, name: str = "", size: Any = (), example: Any = None) -> Graph:
    """Read an `nn.Module` into a Graph.

    `size`: () for what the module says; (H,) for H x H (or H steps) with the module's own channels; a
    whole shape without the batch; several shapes. `example`: inputs to call it with (a tensor, a tuple or
    a dict of them; the first axis is the batch, or the second where the module's layers have their steps in
    front), of the size if one is given. The module is read as in evaluation mode, with the parameters that
    it trains after `train()`, and stays as it is. Raises NetworkError.
    """
    import_torch()
    _refuse(model)
    how = tuple(_run_as(model))
    model = getattr(model, "_orig_mod", model)  # inside torch.compile
    from lolat.readers.torch.detectors import Detector, is_detector
    from lolat.readers.torch.watched import trained_as_by_its_code

    name = name or type(model).__name__
    with trained_as_by_its_code(model, _PUBLISHED) as untrained:
        if is_detector(model):
            parts = Detector(model)
            graph = parts.noted(_read(parts, name, size, parts.images(example)))
        else:
            graph = _read(model, name, size, example)
    more = {
        "warnings": (*graph.warnings, *how),
        "training_only": (*graph.training_only, *untrained),
    }
    return replace(graph, **more)


def _refuse(model: Any) -> None:
    """Raise NetworkError for a module whose operations or sizes are not there to be read."""
    import torch

    if type(model).__name__ in ("RecursiveScriptModule", "TopLevelTracedModule"):
        raise NetworkError("TorchScript is not read; expected the module that it was made from")
    for path, weights in itertools.chain(model.named_parameters(), model.named_buffers()):
        if torch.nn.parameter.is_lazy(weights):
            raise NetworkError(
                f"{path} has no size before the first call; call the network once before"
            )
        if "sparse" in f"{weights.layout} {type(weights).__name__}".lower():
            raise NetworkError(f"{path} is sparse, which is not predicted; expected dense weights")
    parts = itertools.chain(model.named_modules(), model.named_parameters())
    for path, kind in ((path, type(part)) for path, part in parts):
        if _QUANTIZED.match(f"{kind.__module__}.{kind.__name__}"):
            raise NetworkError(
                f"{path or 'it'} is quantized (a {kind.__name__} of {kind.__module__.partition('.')[0]}), "
                "which is not read; expected the network in float that it was made from, or a quantized "
                "ONNX file", code="quantized",
            )  # fmt: skip


def _run_as(model: Any) -> Iterator[str]:
    """Remarks on how a module runs that a graph does not say: compiled, in training, in another layout."""
    import torch

    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        yield f"it is compiled (torch.compile): {AS_COMPILED}"
    acting = [type(m).__name__ for m in model.modules() if m.training and _acts_in_training(m)]
    if acting and not model.training:
        yield (
            f"{plural(len(acting), 'module')} in training mode inside one in evaluation mode, such as "
            f"{acting[0]}: read as in evaluation mode, without what it drops or measures"
        )
    weights = (p for p in model.parameters() if p.dim() == 4 and not p.is_contiguous())
    if any(p.is_contiguous(memory_format=torch.channels_last) for p in weights):
        yield "its weights are in channels_last: the layout is the device's, or --channels-last"


def _acts_in_training(module: Any) -> bool:
    """True if a module may compute something else in training; of PyTorch's own those whose code asks."""
    code = getattr(type(module).forward, "__code__", None)
    asks = not type(module).__module__.startswith("torch.") or "training" in getattr(
        code, "co_names", ()
    )
    rates = (getattr(module, name, True) for name in ("p", "dropout"))
    return asks and not any(
        rate is None or (isinstance(rate, int | float) and not rate) for rate in rates
    )


def _read(model: Any, name: str, size: Any, example: Any) -> Graph:
    """`read_model`, of the module itself."""
    misread, graph = _with_steps_first(model, example), None
    if not misread:
        graph, misread = _traced(model, name, size, example, 0)
        if not misread:
            return replace(graph, warnings=(*graph.warnings, *_first_axis(example)))
    with contextlib.suppress(LolatError):
        turned, again = _traced(model, name, size, example, 1)
        if not again:
            why = f"the batch is the second axis of its inputs: {misread} has its steps first (batch_first)"
            return replace(turned, warnings=(*turned.warnings, why))
    if graph is None:
        graph, _ = _traced(model, name, size, example, 0)
    why = (
        f"the batch is the first axis, which {misread} takes as its steps; expected (batch, steps, "
        "features) and batch_first=True"
    )
    return replace(graph, warnings=(*graph.warnings, why))


def _tensors(example: Any) -> list[Any]:
    """The tensors of an example, in whatever holds them."""
    import torch
    from torch.utils import _pytree as pytree

    return [t for t in pytree.tree_leaves(example) if isinstance(t, torch.Tensor)]


def _with_steps_first(model: Any, example: Any) -> str:
    """The first layer with batch_first=False, if an example has one sample on its second axis; else ""."""
    shapes = [t.shape for t in _tensors(example)]
    if not shapes or any(len(s) not in (2, 3) or s[0] < 2 or s[1] != 1 for s in shapes):
        return ""
    layers = (m for m in model.modules() if type(m).__module__.startswith("torch.nn.modules."))
    first = next((m for m in layers if getattr(m, "batch_first", None) is False), None)
    return "" if first is None else type(first).__name__


def _first_axis(example: Any) -> Iterator[str]:
    """A remark if the first axis of an example, which is the batch, has more than one element."""
    shapes = [tuple(t.shape) for t in _tensors(example) if t.dim()]
    if any(s[0] > 1 for s in shapes):
        yield (
            f"the first axis of the example, of {shapes[0][0]:,}, is the batch, whose size is not used: "
            "--batch-size sets it; inputs without that batch stay as they are"
        )


def _as_image(model: Any, size: Any, graph: Graph) -> list[str]:
    """A remark if one number was taken for the side of an image, which no layer tells."""
    numbers = numbers_of(size)
    if len(numbers) != 1 or _first_layer(model)[0] or len(graph.input_sizes[0]) != 3:
        return []
    return [
        f"read as an image of {shapes_text(graph.input_sizes[:1])}, as no layer of it tells the shape of "
        f"its input; {numbers[0]:,} features are input_size=[({numbers[0]},)] in Python"
    ]


def _most_positions(model: Any) -> int:
    """The positions that a network of transformers has, by its configuration; 0 if it does not tell."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return most if isinstance(most, int) else 0


def _longer(model: Any, graph: Graph) -> Iterator[str]:
    """A remark if there are more tokens than positions, which no shape tells."""
    inputs, most = [graph.tensors[i] for i in graph.inputs], _most_positions(model)
    lengths = (t.shape[1] for t in inputs if len(t.shape) == 2 and t.dtype.startswith("int"))
    if 0 < most < max(lengths, default=0):
        yield f"longer than the {most} positions that its configuration gives it"


_PUBLISHED = {"torchvision", "timm", "transformers"}
"""Packages whose networks take any batch, and whose `train()` freezes nothing."""


def _traced(model: Any, name: str, size: Any, example: Any, axis: int) -> tuple[Graph, str]:
    """The graph with the batch on an axis of the inputs; the first layer that has it elsewhere, or ""."""
    from lolat.readers.torch.trace import read_with_several, traced

    errors, sized = list[Exception](), list[str]()
    for call in _calls(model, name, size, example, axis, sized):
        try:
            graph, misread = traced(model, name, call, axis)
            sized += _as_image(model, size, graph) if example is None else []
            sized += _longer(model, graph)
            graph = replace(graph, warnings=(*graph.warnings, *sized))
            if not misread and type(model).__module__.partition(".")[0] not in _PUBLISHED:
                several = partial(read_with_several, model, name, call, axis)
                graph = with_remarks(graph, several, asks_two=True)
            return graph, misread
        except LolatError:
            raise
        except Exception as error:  # whatever the module's code raises
            errors.append(error)
    # The first call is of floating-point numbers and guessed channels; where they are wrong, it says less.
    is_wrong = any(words in str(errors[0]) for words in ("indices", "channels, but got"))
    cause, fits = errors[-1 if is_wrong else 0], ""
    by_side = _PRODUCT.search(str(cause)) or "must match" in str(cause)
    if by_side and example is None and _first_layer(model)[0] == "Conv2d":
        fits = _size_that_fits(model, name, numbers_of(size))
    raise _unread(model, name, cause, numbers_of(size), fits)


_PRODUCT = re.compile(r"\[\d+, (\d+)\] X \[(\d+), \d+\]")
"""PyTorch's words where a product's rows and columns differ in length: "[1, 400] X [120, 10]"."""
_CHANNELS = re.compile(r"to have (\d+) channels, but got (\d+) channels")


def _size_that_fits(model: Any, name: str, numbers: Sequence[int]) -> str:
    """A usual size of images with which a module's code runs, as an option's value; "" for none."""
    from lolat.readers.torch.trace import traced

    multiples = {-(-side // 32) * 32: None for side in numbers[-2:]}  # of what strides divide
    for side in (*multiples, 32, 224, 28, 64, 96, 128, 227, 256, 299, 384):
        size = (numbers[0], side, side) if len(numbers) == 3 else (side,)
        with contextlib.suppress(Exception):  # whatever the module's code raises
            traced(model, name, next(_calls(model, name, size, None, 0, [])), 0)
            return ",".join(map(str, size))
    return ""


def _unread(
    model: Any, name: str, cause: Exception, numbers: Sequence[int], fits: str
) -> NetworkError:
    """The error of a module whose code raised an exception on an input of these `numbers`.

    `fits`: a size of which it takes an input, "" for none known.
    """
    code, why = "network", shortened(one_line(cause)).rstrip(".")
    line = user_line(cause)
    sized = _of_size(model, str(cause), numbers, fits)
    remedy = (
        sized if sized.startswith("PyTorch") else "mend its code there, or " * bool(line) + sized
    )
    if fits and line:
        remedy = f"{sized}, or mend its code there"
    if mended := _of_layer(model, cause, numbers):
        remedy = mended
    if product := _PRODUCT.search(str(cause)):
        path = layer_of(model, cause)
        what = f"the layer {path!r}" if path else "a product"
        why = f"{what} expects {product[2]} features, gets {product[1]}"
    if ".numpy() " in why:
        why, remedy = "tensors have no values here, so .numpy() fails", ""
    if isinstance(cause, AttributeError) and "'NoneType'" not in why:  # no other input mends it
        remedy = ""
    if "cuda" in str(cause).lower():
        remedy = (
            "take the device from an input (device=x.device): the network is read without a GPU"
        )
    if known := known_cause(cause):
        why, remedy = known[0] or why, known[1]
    if why.startswith("position "):
        remedy = f"expected {arg(LENGTH)} or a table for as many positions"
    most = _most_positions(model)
    if 0 < most < max(numbers, default=most + 1) and str(most) in str(cause):
        remedy = f"expected {arg(LENGTH)} at most {most} (max_position_embeddings)"
    if type(cause).__name__ in _OF_VALUES or "data-dependent" in str(cause):
        code, why = "data-dependent", "what it does depends on the values of a tensor"
        remedy = "expected a forward whose operations depend on shapes alone"
        if parts := ", ".join(n for n, _ in model.named_children()):
            remedy = (
                f"read its parts ({parts}) as networks of their own, from a function "
                "(package.module:callable) that returns a part and its inputs"
            )
    where = line or package_line(cause)
    words = f"network {name!r} cannot be read: {why}{where}" + f"; {remedy}" * bool(remedy)
    error = NetworkError(words, code=code)
    error.__cause__ = cause
    return error


def _of_layer(model: Any, cause: Exception, numbers: Sequence[int]) -> str:
    """The remedy for a layer that takes other channels than it gets; "" if the input may be the cause."""
    channels, path = _CHANNELS.search(str(cause)), layer_of(model, cause)
    if not channels or _guess(model) or (len(numbers) == 3 and numbers[0] == int(channels[2])):
        return ""
    if not path or model.get_submodule(path) is _first_layer(model)[1]:
        return ""
    return f"mend {path!r}: it gets {channels[2]} channels and takes {channels[1]}"


def _of_size(model: Any, why: str, numbers: Sequence[int], fits: str) -> str:
    """The remedy of `_unread` for an input of another size than the module takes."""
    size = arg("input_size")
    remedy = f"try {size} {fits}" if fits else f"try another {size}"
    if len(numbers) != 3 and not fits and not _PRODUCT.search(why):
        remedy += ", of several inputs a list, or a pair of the module and its inputs"
    if len(numbers) == 1 and _first_layer(model)[0] in ("Linear", ""):  # of patches, it may be
        remedy += f" (an image of 3 channels is {size} 3,{numbers[0]},{numbers[0]})"
    if channels := _CHANNELS.search(why):
        if len(numbers) == 1 and (guess := _guess(model)):
            remedy = f"its channels were taken from {guess}; give them too: {size} C,H,W"
        elif len(numbers) == 3 and numbers[0] == int(channels[2]):
            remedy = f"try {size} {channels[1]},{numbers[1]},{numbers[2]}"
    if len(numbers) == 4 and (numbers[0] == 1 or numbers[1] == 3):
        without = ",".join(map(str, numbers[1:]))
        remedy = f"leave out the batch: {size} {without}, if that is an image"
    if len(numbers) == 3 and numbers[-1] in (1, 3, 4) and min(numbers[:2]) > 4:
        *sides, last = map(str, numbers)
        remedy = f"PyTorch has the channels first: {size} {','.join([last, *sides])}"
    return remedy


# ---- The inputs of a module.


def _calls(
    model: Any, name: str, size: Any, example: Any, axis: int, remarks: list[str]
) -> Iterator[tuple[Any, Any, Set[int]]]:
    """Arguments to call a module with, as of `traced`, at batch size 1 on an `axis`; `remarks` on sizes.

    If the types of the inputs are not known, there are several: numbers first, then indices.
    """
    import torch

    if example is not None:
        yield _of_one(model, example, name, size, axis, remarks)
        return
    guess = "" if len(numbers_of(size)) > 1 else _guess(model)
    title = f"the input, with the channels of {guess}" if guess else "the input"
    inputs = {title: _form(model, numbers_of(size))}
    if size and not numbers_of(size):
        inputs, size = _whole_shapes(size), ()
    _check_number(model, len(inputs), name)
    tensors = [*model.parameters(), *model.buffers()]
    number = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
    device = tensors[0].device if tensors else None
    shapes = [*filled(inputs, size, name, remarks=remarks).values()]
    if any(math.prod(s) > MOST_ELEMENTS for s in shapes):
        raise NetworkError(
            f"an input of network {name!r} has more elements than counts hold; give a smaller "
            f"{arg('input_size')}",
            code="input-size",
        )
    if not size and len(shapes[0]) == 4:
        remarks.append(f"read on {shapes[0][1]} frames, as is usual for its weights")
    types = (
        [number] * (f.is_index is not True) + [torch.int64] * (f.is_index is not False)
        for f in inputs.values()
    )

    def call(chosen: Sequence[Any]) -> tuple[Any, Any, Set[int]]:
        args = (  # without memory: nothing looks at the values
            torch.empty((), dtype=dtype, device=device).expand(*shape[:axis], 1, *shape[axis:])
            for shape, dtype in zip(shapes, chosen, strict=True)
        )
        return tuple(args), {}, frozenset()

    yield from map(call, itertools.product(*types))
    if guess and size:
        remarks.append(f"read with 3 channels, as its code does not take those of {guess}")
        shapes = [(3, *shapes[0][1:])]
        yield call([number])


def _check_number(model: Any, given: int, name: str) -> None:
    """Raise NetworkError if a module's `forward` needs more inputs than are given."""
    parameters = inspect.signature(model.forward).parameters.values()
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD
    ]
    if len(needed) > given:
        raise NetworkError(
            f"network {name!r} takes {len(needed)} inputs: {', '.join(needed)}; expected a function that "
            f"returns it with a tensor for each, as in `return {type(model).__name__}(), "
            "(torch.zeros(1, 64), torch.zeros(1, 20, dtype=torch.long))`, or, in Python, their shapes "
            "without the batch in a list, as in input_size=[(64,), (20,)]",
            code="input-size",
        )


def _of_one(
    model: Any, example: Any, name: str, size: Any, axis: int, remarks: list[str]
) -> tuple[Any, Any, Set[int]]:
    """The example at batch size 1, on an axis, for the tensors that are as long there as the first one.

    These tensors get the size that is given; others have no batch. Without one the example stays as it is.
    """
    from torch.utils import _pytree as pytree

    if not _tensors(example):
        raise NetworkError(
            f"the inputs of {name!r} are {shortened(repr(example))}; expected tensors (of token ids "
            f"with dtype=torch.long), or shapes without the batch in a list as {arg('input_size')}",
            code="input-size",
        )
    several = example if isinstance(example, (tuple, list)) else (example,)
    call = ((), dict(example)) if isinstance(example, Mapping) else (tuple(several), {})
    leaves = [t for t in _tensors(call) if t.dim() > axis]
    batched = {
        id(t): (*t.shape[:axis], *t.shape[axis + 1 :])
        for t in leaves if t.shape[axis] == leaves[0].shape[axis]
    }  # fmt: skip
    index = {id(t): not t.is_floating_point() for t in leaves}
    kind, _ = _first_layer(model)
    names = {
        f"input {i}": InputForm(shape, _channels(kind, len(shape)), index[of])
        for i, (of, shape) in enumerate(batched.items(), start=1)
    }
    sized = filled(names, size, name, remarks=remarks)
    shapes = dict(zip(batched, sized.values(), strict=True))

    def of_one(value: Any) -> Any:
        shape = shapes.get(id(value))
        if shape is None or shape == batched[id(value)]:
            return value if shape is None else value.narrow(axis, 0, 1)
        return value.new_empty((*shape[:axis], 1, *shape[axis:]))

    args, kwargs = pytree.tree_map(of_one, call)
    return args, kwargs, {id(t) for t in leaves} - batched.keys()


def _whole_shapes(shapes: Sequence[Shape]) -> dict[str, InputForm]:
    """Several inputs by their shapes; up to four flat ones may hold indices."""
    few = len(shapes) < 5
    return {
        f"input {i}": InputForm(shape, is_index=None if few and len(shape) < 3 else False)
        for i, shape in enumerate(shapes, start=1)
    }


def _form(model: Any, size: tuple[int, ...]) -> InputForm:
    """The input that a module's first layer reads, None where its size is open."""
    config = getattr(model, "default_cfg", None)  # of timm's networks
    default = tuple(config.get("input_size", ())) if isinstance(config, Mapping) else ()
    kind, layer = _first_layer(model)
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
    return InputForm(shape, _channels(kind, len(shape)), kind == "Embedding")


def _guess(model: Any) -> str:
    """The name of the convolution that the channels of images are taken from, unless it reads 3; or ""."""
    kind, layer = _first_layer(model)
    if kind != "Conv2d" or layer.in_channels == 3 or hasattr(model, "default_cfg"):
        return ""
    name = next(name for name, module in model.named_modules() if module is layer)
    return f"its first convolution, {name or kind} ({layer.in_channels})"


def _channels(kind: str, rank: int) -> int:
    """The axis of an input's channels: the first, of steps that no convolution reads the last."""
    return -1 if rank == 2 and kind != "Conv1d" else 0


def _first_layer(model: Any) -> tuple[str, Any]:
    """The first registered layer that tells the shape that it reads, and its class; ("", None) for none.

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
