"""The graph's tensor of each tensor of PyTorch, and the tensors that are views of others."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.weak import WeakTensorKeyDictionary

from lolat.readers.ops import Writer
from lolat.readers.torch.lifetimes import Lifetimes


class Tensors:
    """The tensors of PyTorch that a trace has seen.

    `known`: tensor -> the graph's tensor; `views`: tensor -> the tensor of which it is a view; `constants`:
    tensors that no operation wrote, kept so that no other gets their ids. No result of an operation is kept
    alive: `lifetimes` sees when PyTorch frees it.
    """

    def __init__(self, writer: Writer) -> None:
        self.writer, self.lifetimes = writer, Lifetimes(writer.builder)
        self.known: Any = WeakTensorKeyDictionary()
        self.views: Any = WeakTensorKeyDictionary()
        self.constants: list[Any] = []

    def learn(self, tensor: Any, index: int) -> None:
        """Remember that a tensor of PyTorch is the graph's tensor `index`."""
        self.known[tensor] = index
        self.lifetimes.note(tensor, index)

    def constant(self, value: Any) -> int:
        """Add to the graph a tensor that no operation wrote; return its index."""
        made = self.writer.constant(tuple(value.shape), dtype_name(value))
        self.constants.append(value)
        self.lifetimes.own(value)
        self.learn(value, made)
        return made

    def viewed(self, tensor: Any) -> list[Any]:
        """A tensor, the one of which it is a view, and so on."""
        found = [tensor]
        while isinstance(found[-1], torch.Tensor) and found[-1] in self.views:
            found.append(self.views[found[-1]])
        return found

    def overwrite(self, changed: Any, index: int) -> None:
        """Record that an operation in place gave a tensor, and the tensors it is a view of, a new value."""
        is_own = not isinstance(changed, FakeTensor)
        if is_own and {index, self.known[changed]} <= self.writer.constants:
            return  # a parameter that is updated stays one
        self.learn(changed, index)
        while changed in self.views:
            changed = self.views[changed]
            before = self.known[changed]
            if {index, before} <= self.writer.constants:
                continue
            shape = self.writer.shape(before)
            whole = self.writer.elements(index) == prod(shape)
            sources = [index] if whole else [before, index]
            index = self.writer.builder.add("identity", sources, shape)
            self.learn(changed, index)


def dtype_name(tensor: Any) -> str:
    """float32, int64 ... of a tensor."""
    return str(tensor.dtype).removeprefix("torch.")
