"""PyTorch network -> Graph, from one call of the module at batch size 1 on tensors without values.

Nothing is computed, so neither weights nor activations need memory. Shapes are PyTorch's own, channels
first. A tensor that depends on parameters alone (gathered position biases, a mask) is a constant operand,
as in a Keras network, and costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from lolat.errors import LolatError, MissingPackageError, NetworkError, arg
from lolat.graph import Graph
from lolat.readers.batch import batch_remarks
from lolat.readers.ops import AS_COMPILED
from lolat.readers.size import Form, Shape, filled, numbers_of
from lolat.units import one_line, plural, shortened, user_line

_SPATIAL = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3,
            "ConvTranspose1d": 1, "ConvTranspose2d": 2, "ConvTranspose3d": 3}  # fmt: skip
_OF_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
"""Errors of PyTorch where the code needs the values of a tensor."""

MOST_BYTES = 2**63 - 1
"""Bytes of the largest tensor that PyTorch has; an element has at most eight."""


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
    front), of the size if one is given. The module is read as in evaluation mode and stays as it is. Raises
    NetworkError.
    """
    import_torch()
    how = tuple(_run_as(model, example))
    model = getattr(model, "_orig_mod", model)  # inside torch.compile
    from lolat.readers.torch.detectors import Detector, is_detector

    name = name or type(model).__name__
    if is_detector(model):
        parts = Detector(model)
        graph = parts.noted(_read(parts, name, size, parts.images(example)))
    else:
        graph = _read(model, name, size, example)
    return replace(graph, warnings=(*graph.warnings, *how))


def _run_as(model: Any, example: Any) -> Iterator[str]:
    """Remarks on how a module runs that a graph does not say: compiled, in part as in training, in another
    layout. Raises NetworkError if weights are sparse.
    """
    import torch

    for path, weights in itertools.chain(model.named_parameters(), model.named_buffers()):
        if "sparse" in f"{weights.layout} {type(weights).__name__}".lower():
            raise NetworkError(
                f"{path} is sparse ({str(weights.layout).removeprefix('torch.')}), and sparse products are "
                "not predicted; expected dense weights (to_dense())",
                code="sparse",
            )
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        yield f"it is compiled (torch.compile): {AS_COMPILED}"
    acting = [type(module).__name__ for module in model.modules() if module.training]
    if acting and not model.training:
        yield (
            f"{plural(len(acting), 'module')} in training mode inside one in evaluation mode, such as "
            f"{acting[0]}: read as in evaluation mode, without what it drops or measures"
        )
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    for what, tensors in {"weights": model.parameters(), "inputs": _tensors(example)}.items():
        for one in tensors:
            layout = layouts.get(one.dim())
            if layout and not one.is_contiguous() and one.is_contiguous(memory_format=layout):
                yield f"its {what} are in channels_last: the layout is that of the device's measurements"
                return


def tf32_remarks() -> Iterator[str]:
    """A remark if the user's code has changed PyTorch's default: TF32 in convolutions alone."""
    import torch

    try:
        is_usual = torch.get_float32_matmul_precision() == "highest"
        is_usual &= torch.backends.cudnn.allow_tf32
    except RuntimeError:  # changed by the newer of two interfaces
        is_usual = False
    if not is_usual:
        yield (
            "the code changes where PyTorch computes in TF32: the precision is the device's, or the one "
            "asked for (--precision)"
        )


def _read(model: Any, name: str, size: Any, example: Any) -> Graph:
    """`read_model`, of the module itself."""
    misread = _with_steps_first(model, example)
    if not misread:
        graph, misread = _traced(model, name, size, example, 0)
        if not misread:
            return replace(graph, warnings=(*graph.warnings, *_first_axis(example)))
    with contextlib.suppress(LolatError):
        turned, again = _traced(model, name, size, example, 1)
        if not again:
            why = f"the batch is the second axis of its inputs: {misread} has its steps first (batch_first)"
            return replace(turned, warnings=(*turned.warnings, why))
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

    lengths = {t.shape[0] for t in _tensors(example) if t.dim()}
    if any(n > 1 for n in lengths):
        yield (
            f"the first axis of the example, of {max(lengths)}, is the batch: the network is that of a "
            "batch of 1, and as many times as large for another batch size"
        )


_PUBLISHED = {"torchvision", "timm", "transformers"}
"""Packages whose networks take any batch."""


def _traced(model: Any, name: str, size: Any, example: Any, axis: int) -> tuple[Graph, str]:
    """The graph with the batch on an axis of the inputs; the first layer that has it elsewhere, or ""."""
    from lolat.readers.torch.trace import read_with_two, traced

    errors, sized = list[Exception](), list[str]()
    for args, kwargs in _calls(model, name, size, example, axis, sized):
        try:
            graph, misread = traced(model, name, args, kwargs, axis)
            graph = replace(graph, warnings=(*graph.warnings, *sized))
            if not misread and type(model).__module__.partition(".")[0] not in _PUBLISHED:
                two = partial(read_with_two, model, name, args, kwargs, axis)
                remarks = batch_remarks(graph, two)
                graph = replace(graph, warnings=(*graph.warnings, *remarks))
            return graph, misread
        except LolatError:
            raise
        except Exception as error:  # whatever the module's code raises
            errors.append(error)
    # The first call is of floating-point numbers; where indices are needed, that error says less.
    cause = errors[-1 if "indices" in str(errors[0]) else 0]
    if type(cause).__name__ in _OF_VALUES or "data-dependent" in str(cause):
        where = user_line(cause) or _package_line(cause)
        raise NetworkError(
            f"network {name!r} cannot be read: what it does depends on the values of a tensor{where}; read "
            f"its parts ({', '.join(n for n, _ in model.named_children()) or 'none'}) as networks of their "
            "own, from a function (package.module:callable) that returns a part and its inputs",
            code="data-dependent",
        ) from cause
    remedy = (
        f"give {arg('input_size')} that fits (of several inputs a list, or a pair of the module and its "
        "inputs), and a forward whose operations depend on shapes alone"
    )
    if any(_first_axis(example)):
        remedy += (
            "; inputs without a batch, such as nodes of a graph, need a leading axis of 1 (x[None])"
        )
    raise NetworkError(
        f"network {name!r} cannot be read: {shortened(one_line(cause))}{user_line(cause)}; {remedy}",
        code="network",
    ) from cause


def _package_line(error: BaseException) -> str:
    """ " at torchvision/ops/boxes.py:12": the last line of a package other than PyTorch; or ""."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        _, packages, path = frame.filename.rpartition(f"-packages{os.sep}")
        if packages and path.partition(os.sep)[0] not in ("torch", "lolat"):
            return f" at {path}:{frame.lineno}"
    return ""


# ---- The inputs of a module.


def _calls(
    model: Any, name: str, size: Any, example: Any, axis: int, remarks: list[str]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments to call a module with, positional and named, at batch size 1 on an `axis`.

    If the types of the inputs are not known, there are several: numbers first, then indices. `remarks` gets
    those on their sizes.
    """
    import torch

    if example is not None:
        yield _of_one(model, example, name, size, axis, remarks)
        return
    is_index = None
    if size and not numbers_of(size):
        shapes = list(size)
    else:
        shape, is_index = _input(model, numbers_of(size))
        form = Form(shape, _channels(model, len(shape)), is_index)
        shapes = [*filled({"the input": form}, size, name, remarks=remarks).values()]
        if not size and len(shape) == 4:
            remarks.append(f"read on {shape[1]} frames, as is usual for its weights")
    if any(math.prod(s) > MOST_BYTES // 8 for s in shapes):
        raise NetworkError(
            f"an input of network {name!r} has more elements than counts hold; give a smaller "
            f"{arg('input_size')}",
            code="input-size",
        )
    tensors = [*model.parameters(), *model.buffers()]
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
    device = tensors[0].device if tensors else None
    types = [[dtype, torch.int64] if len(s) < 3 and len(shapes) < 5 else [dtype] for s in shapes]
    for chosen in [(torch.int64,)] if is_index else itertools.product(*types):
        inputs = [  # without memory: nothing looks at the values
            torch.empty((), dtype=dtype, device=device).expand(*shape[:axis], 1, *shape[axis:])
            for shape, dtype in zip(shapes, chosen, strict=True)
        ]
        yield tuple(inputs), {}


def _of_one(
    model: Any, example: Any, name: str, size: Any, axis: int, remarks: list[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example at batch size 1, on an axis, for the tensors that are as long there as the first one.

    These tensors get the size that is given.
    """
    from torch.utils import _pytree as pytree

    several = example if isinstance(example, (tuple, list)) else (example,)
    call = ((), dict(example)) if isinstance(example, Mapping) else (tuple(several), {})
    tensors = _tensors(call)
    leaves = [t for t in tensors if t.dim() > axis]
    batched = {
        id(t): (*t.shape[:axis], *t.shape[axis + 1 :])
        for t in leaves if t.shape[axis] == leaves[0].shape[axis]
    }  # fmt: skip
    index = {id(t): not t.is_floating_point() for t in leaves}
    names = {
        f"input {i}": Form(shape, _channels(model, len(shape)), index[of])
        for i, (of, shape) in enumerate(batched.items(), start=1)
    }
    sized = filled(names, size, name, remarks=remarks)
    shapes = dict(zip(batched, sized.values(), strict=True))

    def of_one(value: Any) -> Any:
        shape = shapes.get(id(value))
        if shape is None or shape == batched[id(value)]:
            return value if shape is None else value.narrow(axis, 0, 1)
        return value.new_empty((*shape[:axis], 1, *shape[axis:]))

    return pytree.tree_map(of_one, call)


def _input(model: Any, size: tuple[int, ...]) -> tuple[Shape, bool]:
    """Shape of the one input without the batch, None for an open size; True if it holds indices."""
    layer, kind = _first_layer(model)
    config = getattr(model, "default_cfg", None)  # of timm's networks
    default = tuple(config.get("input_size", ())) if isinstance(config, Mapping) else ()
    spatial = _SPATIAL.get(kind, 0)
    channels = int(layer.in_channels) if spatial else default[0] if default else 3
    if len(default) > 2:
        return (channels if size else default[0], *default[1:]), False
    if len(size) > 1 and len(size) != spatial:
        return size, kind == "Embedding"
    if kind == "Embedding":
        return (None,), True
    if kind == "Linear":
        features = int(layer.in_features)
        return ((features,) if size in ((), (features,)) else (None, features)), False
    return (channels, *[None] * (spatial or 2)), False


def _channels(model: Any, rank: int) -> int:
    """The axis of the channels of an input without the batch: in front, but behind the steps of a sequence
    that no convolution reads first.
    """
    return -1 if rank == 2 and _first_layer(model)[1] != "Conv1d" else 0


def _first_layer(model: Any) -> tuple[Any, str]:
    """The first registered layer whose class tells the shape that it reads, and its class."""
    known = {*_SPATIAL, "Embedding", "Linear"}
    layers = [
        (module, cls.__name__)
        for module in model.modules()
        for cls in type(module).__mro__
        if cls.__name__ in known and cls.__module__.startswith("torch.nn.")
    ]
    # A table of positions or a projection may be registered before the convolution that reads the image.
    images = [(layer, kind) for layer, kind in layers if kind in _SPATIAL]
    indexed = layers and layers[0][1] == "Embedding"
    return layers[0] if indexed else (images or layers or [(None, "")])[0]
