"""Protects a module's parameters, buffers and attributes from changes by its own code during a call."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Set
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lolat.readers.remarks import LIBRARIES
from lolat.readers.user_modules import quietly
from lolat.units import INSTALLED, PYTHON, one_line

_HOLDERS = (dict, list, set, OrderedDict, defaultdict, deque)
_WITHOUT = (torch.Tensor, type, ModuleType)
_NOT_OWN = ("builtins", "lolat", "numpy")
_MOST_STORED = 10_000
"""Limit on the entries of a global list or dictionary that is searched; longer ones are data."""
_DATA: Any = torch._C.TensorBase.data


def without_values(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation with fake tensors in place of real tensors, so that no real tensor is changed.

    Otherwise PyTorch runs operations (`mul_`, `add`) on their values if all their tensors are real. A real
    tensor of one element that is only read keeps its value, because the code may ask for it.
    """
    writes = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
    if torch.Tag.inplace_view in func.tags:
        return func(*args, **kwargs)  # on real tensors PyTorch refuses it

    def faked(tensor: Any) -> Any:
        is_real = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        return mode.from_tensor(tensor) if is_real and (writes or tensor.numel() > 1) else tensor

    args, kwargs = pytree.tree_map_only(torch.Tensor, faked, (args, kwargs))
    return func(*args, **kwargs)


class WithoutValues(TorchDispatchMode):
    """Runs each operation by `without_values`, in a mode of fake tensors that is already active."""

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation."""
        return without_values(self.fake, func, args, kwargs or {})


class DataError(RuntimeError):
    """Code assigns another shape or data type to the `.data` of a parameter or buffer.

    `remedy`: the advice to the user.
    """

    remedy = "expected parameters of their final shape and data type"


def in_this_thread(own: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for a framework's function: calls `own` in this thread, `original` in other threads."""
    thread = threading.get_ident()

    def chosen(*args: Any, **named: Any) -> Any:
        return (own if threading.get_ident() == thread else original)(*args, **named)

    return chosen


@contextlib.contextmanager
def data_copied() -> Iterator[None]:
    """Copy a tensor that code assigns to `.data` of another: a real tensor would lose its values.

    Raises DataError if the shapes or data types differ.
    """

    def assign(tensor: Any, value: Any) -> None:
        if tensor.shape == value.shape and tensor.dtype == value.dtype:
            with torch.no_grad():
                tensor.copy_(value)
        elif isinstance(tensor, FakeTensor):
            _DATA.__set__(tensor, value)
        else:
            before, after = (f"{[*t.shape]}, {t.dtype}" for t in (tensor, value))
            raise DataError(
                f"its forward changes the shape or data type of a parameter or buffer by .data ({before} "
                f"to {after}), which is not read"
            )

    assigned = in_this_thread(assign, _DATA.__set__)
    with mock.patch.object(torch.Tensor, "data", property(_DATA.__get__, assigned)):
        yield


@contextlib.contextmanager
def evaluated(model: Any) -> Iterator[list[str]]:
    """Put a module into evaluation mode; at the end restore everything that its code may store.

    Restored are the modules' attributes, and in the files of a user's classes the global values and the
    caches of functools: they may hold fake tensors. The `training` flags are set without calling `eval()`,
    in which a user's class may merge weights. Yields a list that at the end has an entry if something was
    stored.
    """
    modules, own, stored = [*model.modules()], _files_of(model), list[str]()
    values = [value for file in own for value in vars(file).values()]
    caches = [
        v for v in [*values, *_methods(values)] if isinstance(v, functools._lru_cache_wrapper)
    ]
    sizes = [cache.cache_info().currsize for cache in caches]
    small = [v for v in values if type(v) in _HOLDERS and len(v) < _MOST_STORED]
    before = [(h, copy.copy(h)) for h in _holders([*map(vars, modules), *small])]
    names = [(vars(file), dict(vars(file))) for file in own]
    gradients = [(p, p.grad) for p in model.parameters()]
    for module in modules:
        module.training = False
    try:
        yield stored
    finally:
        for holder, earlier in before:
            if _ids(holder) != _ids(earlier):
                stored.append("values")
                holder.clear()
                holder.extend(earlier) if isinstance(holder, (list, deque)) else holder.update(
                    earlier
                )
        for here, were in names:
            if changed := {k for k, v in here.items() if were.get(k, here) is not v}:
                stored.append("global values")
                for name in changed - were.keys():
                    del here[name]
                here.update((name, were[name]) for name in changed & were.keys())
        for cache, size in zip(caches, sizes, strict=True):
            if cache.cache_info().currsize != size:
                stored.append("a cache of functools")
                cache.cache_clear()
        for parameter, gradient in gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient


def _files_of(model: Any) -> list[ModuleType]:
    """The user's Python modules that define the classes of a network's parts, and their imports."""
    waiting = {c.__module__ for m in model.modules() for c in type(m).__mro__}
    found = dict[str, ModuleType]()
    while waiting:
        name = waiting.pop()
        file = sys.modules.get(name)
        path = getattr(file, "__file__", None) or ""
        if file is None or name in found or name.partition(".")[0] in (*LIBRARIES, *_NOT_OWN):
            continue
        if INSTALLED in path or path.startswith(PYTHON):
            continue
        found[name] = file
        for value in [*vars(file).values()]:
            is_file = isinstance(value, ModuleType)
            waiting.add(str(value.__name__ if is_file else getattr(value, "__module__", "")))
    return [*found.values()]


def _methods(values: list[Any]) -> Iterator[Any]:
    """The methods of the classes among `values`."""
    for value in values:
        if isinstance(value, type):
            bound = (classmethod, staticmethod)  # others may import a missing package when asked
            yield from (v.__func__ if isinstance(v, bound) else v for v in vars(value).values())


def _holders(values: list[Any], depth: int = 5) -> Iterator[Any]:
    """The containers (dictionaries, lists ...) among `values` and inside them, down to a depth.

    The attributes of an object, such as a KV cache, count as a dictionary.
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
    """Freeze the parameters that a module's own `train()` freezes; restore all parameters at the end.

    `train()` runs on a copy without values, because it may merge weights. Yields a list, with a remark if
    that fails. `published`: packages whose `train()` freezes nothing.
    """
    every = (p for p in model.parameters() if not p.is_inference())  # these are never trained
    before, failed = [(p, p.requires_grad) for p in every], list[str]()
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
