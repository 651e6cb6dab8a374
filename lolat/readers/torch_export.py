"""torch.export of a module at batch sizes 1 and 2, without computing and without changing the module."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.torch_errors import reason, user_line
from lolat.readers.torch_inputs import calls
from lolat.readers.torch_program import Program, at_two_batches, constants_and_inputs

PREFIX = "net"


def unwrapped(model: Any) -> Any:
    """The module inside torch.compile and DataParallel; NetworkError for a TorchScript one."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if inner is None:
            break
        model = inner
    if any(c.__module__.startswith("torch.jit") for c in type(model).__mro__):
        raise NetworkError(
            "a TorchScript module cannot be read, it has no Python code to follow; give the nn.Module "
            "that it was made from, or a .pt2 file of torch.export.save"
        )
    return model


def export(model: Any, name: str, size: Any, example: Any) -> Program:
    """The module as a Program. Raises NetworkError with the line of the user's code that is in the way."""
    with evaluated(model), _quietly():
        first, call = _first_that_works(model, name, size, example)
        second = None
        remarks = []
        said = io.StringIO()  # the same again
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                second = _exported(model, *call(2))
        except Exception as error:
            remarks.append(
                f"the network works at batch size 1 alone ({reason(error)}{user_line(error)}); other "
                "batch sizes are its counts at 1, multiplied"
            )
    sizes, odd = at_two_batches(
        first.graph_module, second.graph_module if second is not None else None
    )
    inputs, outputs = constants_and_inputs(first.graph_signature)
    return Program(first.graph_module, inputs, outputs, sizes, remarks + odd, PREFIX)


def _first_that_works(model: Any, name: str, size: Any, example: Any) -> tuple[Any, Any]:
    """(exported program, the call) for the first of the likely calls that the module takes."""
    failed: list[Exception] = []
    for call in calls(model, name, size, example):
        said = (
            io.StringIO()
        )  # PyTorch prints its graph when it fails; what the user's code prints is kept
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                found = _exported(model, *call(1))
            sys.stderr.write(said.getvalue())
            return found, call
        except Exception as error:
            failed.append(error)
    # The first call is of numbers; where indices are needed, what is wrong with those says more.
    worst = failed[-1 if "indices" in str(failed[0]) else 0]
    given = f" at --input-size {_said(size)}" if size else ""
    raise NetworkError(
        f"network {name!r} cannot be read{given}: {reason(worst)}{user_line(worst)}; give an input size "
        "that fits, and a forward whose operations do not depend on the values of tensors"
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
            return list(_tensors(self.net(*args, **kwargs)))

    return Whole()


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in what a network returns: nested tuples, lists, dicts, dataclasses."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


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
