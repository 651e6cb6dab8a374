"""torch.export of a PyTorch module, called with shapes that were given, or those that it says."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import itertools
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from lolat.errors import NetworkError, arg, worded
from lolat.readers.torch.program import (
    Program,
    constants_and_inputs,
    reason,
    user_line,
)

_SPATIAL = {"Conv1d": 1, "Conv2d": 2, "Conv3d": 3,
            "ConvTranspose1d": 1, "ConvTranspose2d": 2, "ConvTranspose3d": 3}  # fmt: skip
_GIVE = f"give {arg('input_size')}, for example 224 or 3,224,224"


Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def calls(model: Any, name: str, size: Any, example: Any) -> Iterator[Inputs]:
    """(args, kwargs) at batch size 1 to call the module with, likely ones first.

    There are several where the types of the inputs are not known.
    """
    if example is not None:
        yield _of_one(example)
        return
    keys: list[str] | None = None
    if isinstance(size, Mapping):
        shapes, keys = [tuple(s) for s in size.values()], [str(k) for k in size]
    elif size and not isinstance(size[0], int):
        shapes = [tuple(s) for s in size]
    else:
        shape, is_index = _shape(model, name, tuple(size))
        shapes = [shape]
        _check_arguments(model, name)
        if is_index:
            yield _call(model, shapes, None, (True,))
            return
    several = len(shapes) <= 4 and any(len(s) < 3 for s in shapes)
    choices = itertools.product([False, True], repeat=len(shapes))
    for indices in choices if several else [(False,) * len(shapes)]:
        yield _call(model, shapes, keys, indices)


def _call(
    model: Any, shapes: list[tuple[int, ...]], keys: list[str] | None, indices: tuple[bool, ...]
) -> Inputs:
    """The call with tensors of these shapes; `indices`: which of them are whole numbers."""
    import torch

    tensors = [*model.parameters(), *model.buffers()]
    dtype = next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())
    device = tensors[0].device if tensors else torch.device("cpu")
    inputs = [
        torch.empty((1, *shape), dtype=torch.int64 if index else dtype, device=device)
        for shape, index in zip(shapes, indices, strict=True)
    ]
    return (tuple(inputs), {}) if keys is None else ((), dict(zip(keys, inputs, strict=True)))


def _of_one(example: Any) -> Inputs:
    """The example at batch size 1: that of the first axis, where it is as long as the first tensor's."""
    import torch
    from torch.utils import _pytree as pytree

    several = example if isinstance(example, (tuple, list)) else (example,)
    call = ((), dict(example)) if isinstance(example, Mapping) else (tuple(several), {})
    leaves = [t for t in pytree.tree_leaves(call) if isinstance(t, torch.Tensor) and t.dim()]
    count = leaves[0].shape[0] if leaves else 0

    def of_one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim() or value.shape[0] != count:
            return value
        return torch.empty((1, *value.shape[1:]), dtype=value.dtype, device=value.device)

    return pytree.tree_map(of_one, call)


def _check_arguments(model: Any, name: str) -> None:
    """NetworkError when `forward` needs more than the one input of which the size is known."""
    try:
        parameters = inspect.signature(model.forward).parameters.values()
    except (TypeError, ValueError):
        return
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind in positional]
    if len(needed) > 1:
        sizes = ", ".join(f"{n!r}: (...)" for n in needed)
        raise NetworkError(
            f"network {name!r} has {len(needed)} inputs ({', '.join(needed)}); give their sizes without "
            f"the batch in Python, lolat.read(module, input_size={{{sizes}}}), or let module:callable "
            "return the module and example inputs: return net, (image, text)"
        )


def _shape(model: Any, name: str, size: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """(shape of the one input without the batch, whether it is of indices)."""
    layer, kind = _first_layer(model)
    spatial = _SPATIAL.get(kind, 0)
    if len(size) > 1:
        return size, kind == "Embedding"
    own = _own_size(model)
    if not size:
        if own:
            return own, False
        if kind == "Linear":
            return (int(layer.in_features),), False
        raise NetworkError(f"the input size of {name!r} is not known; {_GIVE}")
    side = size[0]
    if kind == "Embedding":
        return size, True
    if kind == "Linear":
        return (size if side == layer.in_features else (side, int(layer.in_features))), False
    if kind in ("LSTM", "GRU", "RNN"):
        return (side, int(layer.input_size)), False
    channels = int(layer.in_channels) if spatial else own[0] if len(own) == 3 else 3
    return (channels, *[side] * (spatial or 2)), False


def _first_layer(model: Any) -> tuple[Any, str]:
    """The first layer with weights whose class says what it reads, in the order of registration."""
    known = {*_SPATIAL, "Embedding", "Linear", "LSTM", "GRU", "RNN"}
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


def _own_size(model: Any) -> tuple[int, ...]:
    """The input size that a module says it has (timm's `default_cfg`, Lightning's example); or ()."""
    for holder in ("pretrained_cfg", "default_cfg"):
        config = getattr(model, holder, None)
        size = config.get("input_size") if isinstance(config, Mapping) else None
        if isinstance(size, (tuple, list)) and all(isinstance(n, int) for n in size):
            return tuple(size)
    example = getattr(model, "example_input_array", None)
    return tuple(getattr(example, "shape", ())[1:])


# ---- The operations of a module at batch size 1, without computing and without changing the module.

PREFIX = "net"  # of the paths of modules


def unwrapped(model: Any) -> Any:
    """The module inside torch.compile and DataParallel; NetworkError for a TorchScript one."""
    wrappers = ("DataParallel", "DistributedDataParallel")
    while hasattr(model, "_orig_mod") or type(model).__name__ in wrappers:
        model = getattr(model, "_orig_mod", None) or model.module
    if any(c.__module__.startswith("torch.jit") for c in type(model).__mro__):
        raise NetworkError(
            "a TorchScript module cannot be read, it has no Python code to follow; give the nn.Module "
            "that it was made from"
        )
    return model


def export(model: Any, name: str, size: Any, example: Any) -> Program:
    """The module as a Program. Raises NetworkError with the line of the user's code that is in the way."""
    with evaluated(model), _quietly():
        with contextlib.suppress(Exception):  # torch.export says what is in the way, if anything is
            return _quickly(model, name, size, example)
        exported = _first_that_works(model, name, size, example)
    inputs, outputs = constants_and_inputs(exported.graph_signature)
    return Program(exported.graph_module, inputs, outputs)


def _quickly(model: Any, name: str, size: Any, example: Any) -> Program:
    """The module as a Program without torch.export, or any Exception where that cannot be."""
    from lolat.readers.torch.shapes import traced

    call = next(iter(calls(model, name, size, example)))
    with _unheard() as said:
        module, inputs, outputs = traced(model, PREFIX, call, _exported_tensors)
    sys.stderr.write(said.getvalue())  # what the user's code prints
    return Program(module, inputs, outputs)


@contextlib.contextmanager
def _unheard() -> Iterator[io.StringIO]:
    """While it lasts, what is printed is only kept: PyTorch prints its graph when it fails."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


def _first_that_works(model: Any, name: str, size: Any, example: Any) -> Any:
    """The exported program for the first of the likely calls that the module takes."""
    failed: list[Exception] = []
    for call in calls(model, name, size, example):
        try:
            with _unheard() as said:
                program = _exported(model, *call)
        except Exception as error:
            failed.append(error)
        else:
            sys.stderr.write(said.getvalue())  # what the user's code prints
            return program
    # The first call is of numbers; where indices are needed, what is wrong with those says more.
    worst = failed[-1 if "indices" in str(failed[0]) else 0]
    at = f" at {arg('input_size')} {_said(size)}" if size else ""
    why = f"network {name!r} cannot be read{at}: {reason(worst)}{user_line(worst)}"
    raise NetworkError(
        f"{why}; give an input size that fits, and a forward whose operations do not depend on the values "
        "of tensors",
        why=worded(why),
    ) from worst


def _exported(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The exported program; through an FX trace where the code itself cannot be exported."""
    import torch

    wrapped = _wrapper(model)
    try:
        return torch.export.export(wrapped, (args, kwargs), strict=False)
    except Exception as error:
        try:
            traced = torch.fx.symbolic_trace(model)
            return torch.export.export(_wrapper(traced), (args, kwargs), strict=False)
        except Exception:
            raise error from None


def _wrapper(model: Any) -> Any:
    """A module that calls `model` with a tuple and a dict, and returns the tensors that it returns."""
    import torch

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model
            self.training = False

        def forward(self, args: Any, kwargs: Any) -> Any:
            return list(_exported_tensors(self.net(*args, **kwargs)))

    return Whole()


def _exported_tensors(value: Any) -> Iterator[Any]:
    """The tensors in what a network returns: nested tuples, lists, dicts, dataclasses."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (tuple, list)):
        parts = value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    for part in parts:
        yield from _exported_tensors(part)


def _said(size: Any) -> str:
    if isinstance(size, Mapping):
        return "; ".join(f"{k}: {_said(v)}" for k, v in size.items())
    if size and not isinstance(size[0], int):
        return "; ".join(map(_said, size))
    return ",".join(map(str, size))


@contextlib.contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """While it lasts, all parts of the module are in evaluation mode.

    The flags are set, not `eval()` called: a user's class may merge weights in it.
    """
    before = [(part, part.training) for part in model.modules()]
    for part, _ in before:
        part.training = False
    try:
        yield
    finally:
        for part, was in before:
            part.training = was


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without PyTorch's remarks and its one fused call for attention, which hides what it does."""
    import torch

    silent, mha = logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled()
    logging.disable(logging.CRITICAL)  # its loggers have levels of their own
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silent)
        torch.backends.mha.set_fastpath_enabled(mha)
