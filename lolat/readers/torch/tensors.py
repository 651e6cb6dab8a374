"""Maps PyTorch's tensors to the graph's tensors, and follows views."""

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

    `known`: tensor -> the graph's tensor; `views`: tensor -> the tensor that it is a view of; `constants`:
    tensors that no operation wrote, kept alive so that their ids are not reused. Results of operations are
    not kept alive, because `lifetimes` must see when PyTorch frees them.
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
        """The chain of views: a tensor, the tensor that it is a view of, up to the root."""
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
    """The data type of a tensor without "torch.": float32, int64 ..."""
    return str(tensor.dtype).removeprefix("torch.")
