"""Storages of a PyTorch module's tensors: the tensors that share a storage, and when it is freed."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lolat.graph import GraphBuilder


class Lifetimes:
    """Follows the storages of tensors while a module's code runs, and records them in a graph's `storages`.

    A storage is freed when nothing refers to it any more: no variable of the running code, no argument of a
    module that has not returned, no list.
    """

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.alive: dict[int, list[int]] = {}  # address of a storage -> its tensors in the graph
        self.is_over = False

    def own(self, tensor: Any) -> None:
        """Exclude the storage of a parameter or a buffer, which is never freed."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = []
            self.builder.storages.append((self.alive[key], -1))
            weakref.finalize(storage, self.alive.pop, key, None).atexit = False

    def note(self, tensor: Any, index: int) -> None:
        """Add the graph's tensor `index` to the storage of `tensor`; the storage may be new.

        A tensor that grows with the batch is not added to a storage that does not grow: the tensor is
        expanded, and may be a copy at other batch sizes.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            self.alive[key] = []
            weakref.finalize(storage, self._freed, key).atexit = False
        tensors, made = self.alive[key], self.builder.tensors
        if not (tensors and made[index].batched and not made[tensors[0]].batched):
            tensors.append(index)

    def _freed(self, key: int) -> None:
        if not self.is_over:
            self.builder.storages.append((self.alive.pop(key), len(self.builder.tensors) - 1))

    def end(self) -> None:
        """Record, after the module has returned, that the storages still alive live to the end."""
        self.is_over = True
        last = len(self.builder.tensors) - 1
        owned = {id(tensors) for tensors, _ in self.builder.storages}
        self.builder.storages += [(t, last) for t in self.alive.values() if id(t) not in owned]


def shares(one: Any, other: Any) -> bool:
    """True if a tensor shares its memory with another value, which may be no tensor."""
    is_tensor = isinstance(other, torch.Tensor)
    return is_tensor and one.untyped_storage()._cdata == other.untyped_storage()._cdata


def is_copied(op: str, before: Any, after: Any) -> bool:
    """True if `contiguous`, `to` or `type_as` has copied its tensor instead of returning it."""
    reordered = op == "contiguous" and before.stride() != after.stride()
    return reordered or (op in ("to", "type_as") and before.dtype != after.dtype)


def leaves_of(result: Any) -> Iterator[Any]:
    """The values that a network returns, taken out of PyTorch's known containers and dataclasses."""
    for leaf in pytree.tree_leaves(result):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            yield from leaves_of([getattr(leaf, field.name) for field in fields(leaf)])
        else:
            yield leaf


def held_by(values: Any, depth: int = 4) -> Iterator[Any]:
    """The tensors in objects that a network returns, such as a KV cache."""
    for value in values:
        parts = value
        if hasattr(value, "__dict__") and not isinstance(value, (torch.Tensor, type)):
            parts = list(vars(value).values())
            yield from (v for v in parts if isinstance(v, torch.Tensor))
        if depth and isinstance(parts, (list, tuple)):
            yield from held_by(parts, depth - 1)
