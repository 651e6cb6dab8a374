"""Keeps a module as it was, whatever its code does to its parameters, buffers and attributes in a call."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Set
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from lolat.readers.user_modules import quietly
from lolat.units import one_line

_HOLDERS = (dict, list, set, OrderedDict, defaultdict, deque)
_WITHOUT = (torch.Tensor, type, ModuleType)
_DATA: Any = torch._C.TensorBase.data


def without_values(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on fake tensors in place of real ones, so that no real one is written.

    Without it PyTorch computes with real tensors alone, if numbers could stand for them (`mul_`, `add`). A
    real tensor of one element keeps its value where it is only read, as the code may ask for it.
    """
    writes = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
    if torch.Tag.inplace_view in func.tags:
        return func(*args, **kwargs)  # on real tensors PyTorch refuses it

    def faked(tensor: Any) -> Any:
        is_real = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        return mode.from_tensor(tensor) if is_real and (writes or tensor.numel() > 1) else tensor

    args, kwargs = pytree.tree_map_only(torch.Tensor, faked, (args, kwargs))
    return func(*args, **kwargs)


@contextlib.contextmanager
def data_copied() -> Iterator[None]:
    """Copy a tensor that code assigns to another one's `.data`: it would take the values of a real one.

    Raises RuntimeError if the shapes or data types differ.
    """

    def assign(tensor: Any, value: Any) -> None:
        if tensor.shape == value.shape and tensor.dtype == value.dtype:
            with torch.no_grad():
                tensor.copy_(value)
        elif isinstance(tensor, FakeTensor):
            _DATA.__set__(tensor, value)
        else:
            before, after = (f"{[*t.shape]}, {t.dtype}" for t in (tensor, value))
            raise RuntimeError(
                f"its forward changes the shape or data type of a parameter or buffer by .data ({before} "
                f"to {after}), which is not read"
            )

    with mock.patch.object(torch.Tensor, "data", property(_DATA.__get__, assign)):
        yield


@contextlib.contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Put all parts of a module into evaluation mode, and restore their attributes at the end.

    The flags are set, not `eval()` called: a user's class may merge weights in it. A forward may store
    tensors in its module; here they would be fake ones.
    """
    modules = [*model.modules()]
    before = [(holder, copy.copy(holder)) for holder in _holders([vars(m) for m in modules])]
    gradients = [(p, p.grad) for p in model.parameters()]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for holder, held in before:
            if _ids(holder) != _ids(held):
                holder.clear()
                holder.extend(held) if isinstance(holder, (list, deque)) else holder.update(held)
        for parameter, gradient in gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient


def _holders(values: list[Any], depth: int = 5) -> Iterator[Any]:
    """The dictionaries, lists and the like among values, and down to a depth those inside of them.

    The attributes of an object, such as a cache of keys and values, are a dictionary.
    """
    seen = set[int]()
    for _ in range(depth):
        inside = list[Any]()
        for value in values:
            if type(value) in _HOLDERS and id(value) not in seen:
                seen.add(id(value))
                yield value
                inside += value.values() if isinstance(value, dict) else value
            elif hasattr(value, "__dict__") and not isinstance(value, _WITHOUT):
                inside.append(vars(value))
        values = inside


def _ids(holder: Any) -> list[int]:
    values = holder.values() if isinstance(holder, dict) else ()
    return [*map(id, holder), *map(id, values)]


@contextlib.contextmanager
def trained_as_by_its_code(model: Any, published: Set[str]) -> Iterator[list[str]]:
    """Freeze the parameters that a module's own `train()` freezes; at the end all are as they were.

    A copy without values runs it, as it may merge weights. Yields a remark if that fails. `published`:
    packages whose `train()` freezes nothing.
    """
    before, failed = [(p, p.requires_grad) for p in model.parameters()], list[str]()
    trains = {type(m): getattr(type(m).train, "__module__", "") for m in model.modules()}
    without = {"torch", *published}
    if own := [c for c, home in trains.items() if home.partition(".")[0] not in without]:
        copies: Any = {id(b): torch.empty_like(b, device="meta") for b in model.buffers()}
        for p, learns in before:
            copies[id(p)] = torch.nn.Parameter(torch.empty_like(p, device="meta"), learns)
        try:
            with quietly():
                copy.deepcopy(model, dict(copies)).train()
            for p, _ in before:
                p.requires_grad_(copies[id(p)].requires_grad)
        except Exception as error:  # whatever the module's code raises
            names = ", ".join(f"{c.__name__}.train()" for c in own)
            failed.append(f"what {names} freezes, as a copy cannot run it ({one_line(error)})")
    try:
        yield failed
    finally:
        for p, learns in before:
            p.requires_grad_(learns)
