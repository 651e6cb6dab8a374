"""Follows the tensors that a module's code moves to the CPU or a second GPU, and adds up the bytes."""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from lolat.units import byte_size

HOME, CPU = "", "cpu"
"""Places: the device of the prediction and its host CPU; a second GPU is "cuda:1"."""


class Transfers:
    """The copies between devices in one call of a module's code; the call is read on one device.

    `places`: tensor -> (its place, True if the code moved it there or False if it was computed from a moved
    tensor); other tensors are at HOME. `copied`: (from, to) -> bytes at batch size 1.
    """

    def __init__(self) -> None:
        self.places: Any = WeakIdKeyDictionary()
        self.copied: Counter[tuple[str, str]] = Counter()

    def follow(
        self, func: Any, args: Sequence[Any], named: dict[str, Any], result: Any, asking: FrameType
    ) -> None:
        """Record what a call of a function copies. `asking`: the frame of the code that calls it."""
        to = self._target(func, args, named, asking)
        if to is None:
            self._hand_on([*args, *named.values()], result)
            return
        tensor = args[0]
        place, is_put = self.places.pop(tensor, (HOME, True))
        # A copy on the CPU is the same object here, so results computed from it may really be at HOME.
        start = HOME if place == to == CPU and not is_put else place
        if start != to and not isinstance(tensor, torch.nn.Parameter):
            self.copied[start, to] += tensor.numel() * tensor.element_size()
        if to != HOME:
            self.places[result] = to, True

    def _target(
        self, func: Any, args: Sequence[Any], named: dict[str, Any], asking: FrameType
    ) -> str | None:
        """The place to which a function moves a tensor; None if it moves nothing.

        "cpu" counts only if the call contains it as a literal: on a GPU, `x.device` would be another
        device.
        """
        if func is torch.Tensor.cpu:
            return CPU
        value = named.get("device", next(iter(args[1:]), None))
        if func is torch.Tensor.cuda:
            value = "cuda" if value is None else value
        elif func is not torch.Tensor.to:
            return None
        if isinstance(value, torch.Tensor):
            return str(self.places.get(value, (HOME,))[0])
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"cuda:{value}"
        if not isinstance(value, str | torch.device):
            return None
        kind, _, index = str(value).partition(":")
        if kind == CPU:
            return CPU if isinstance(value, str) and _says(asking, value) else HOME
        return f"cuda:{index}" if kind == "cuda" and index not in ("", "0") else HOME

    def _hand_on(self, values: Any, result: Any) -> None:
        """Give the results of a function the place of its first operand."""
        if not self.places:
            return
        tensors = (v for v in tree_leaves(values) if isinstance(v, torch.Tensor))
        first = next((t for t in tensors if not isinstance(t, torch.nn.Parameter)), None)
        if first in self.places:
            for made in tree_leaves(result):
                if isinstance(made, torch.Tensor) and made not in self.places:
                    self.places[made] = self.places[first][0], False

    def remarks(self) -> Iterator[str]:
        """Yield remarks on copies to the CPU and between GPUs."""
        to_cpu = sum(size for (_, to), size in self.copied.items() if to == CPU)
        back = sum(size for (start, _), size in self.copied.items() if start == CPU)
        if to_cpu:
            remark = f"on a GPU its code copies {byte_size(to_cpu)} a sample to the CPU"
            if back:
                remark += f" and {byte_size(back)} back: not counted"
                yield f"{remark}; what it computes on the CPU is counted as on the GPU"
            else:
                yield f"{remark}: not counted"
        others = [p for pair in self.copied for p in pair if p not in (HOME, CPU)]
        if others:
            between = sum(size for pair, size in self.copied.items() if CPU not in pair)
            yield (
                f"its code uses another GPU ({', '.join(dict.fromkeys(others))}): read as on one; copies "
                f"between GPUs, of {byte_size(between)} a sample, are not counted"
            )


def _says(asking: FrameType, literal: str) -> bool:
    """True if the call of `Tensor.to` that runs in frame `asking` has `literal` among its arguments."""
    found = False
    for one in dis.get_instructions(asking.f_code):
        if one.offset > asking.f_lasti:
            break
        if one.opname in ("LOAD_METHOD", "LOAD_ATTR") and one.argval == "to":
            found = False
        found |= one.opname == "LOAD_CONST" and one.argval == literal
    return found
