"""Watches the sizes for which a PyTorch module's code asks, and their comparisons."""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from lolat.arrays import np

BATCHES = np.array([*range(2, 1025), *(2**power for power in range(11, 21))])
"""Batch sizes for which the outcome of a comparison is known."""
MOST = 8
"""Most of the batch sizes with another outcome that are looked at."""
Of = Callable[[Any], Any]
"""A number, or the outcome of a comparison, by the batch size."""


class _Size(int):
    """A size with two samples that is another one with more; `of`: by the batch size."""

    of: Of
    compared: list[Of]

    def noted(self, of: Of) -> Any:
        """The value of an expression of this size; a comparison goes into the list `compared`."""
        value = of(2)
        if isinstance(value, bool):
            self.compared.append(of)
        return _size(of, self.compared) if type(value) is int else value

    def __bool__(self) -> bool:
        return bool(self.noted(lambda batch: self.of(batch) != 0))

    def __neg__(self) -> Any:
        return self.noted(lambda batch: -self.of(batch))

    __hash__ = int.__hash__


def _size(of: Of, compared: list[Of]) -> _Size:
    made = _Size(of(2))
    made.of, made.compared = of, compared
    return made


def _method(function: Callable[[Any, Any], Any], is_turned: bool) -> Any:
    """The method for an operator; `is_turned`: True if its first operand is the other number."""

    def method(self: _Size, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        of_other = getattr(other, "of", lambda _: other)
        if is_turned:
            return self.noted(lambda batch: function(of_other(batch), self.of(batch)))
        return self.noted(lambda batch: function(self.of(batch), of_other(batch)))

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(_Size, f"__{_name}__", _method(getattr(operator, _name), False))
    setattr(_Size, f"__r{_name}__", _method(getattr(operator, _name), True))
for _name in ("lt", "le", "eq", "ne", "gt", "ge"):
    setattr(_Size, f"__{_name}__", _method(getattr(operator, _name), False))


class AskedSizes(TorchFunctionMode):
    """Notes the sizes for which code asks; in a call with two samples, what it compares them with too.

    `one`: the sizes of the call with one sample. A size that differs there is taken to be a straight line
    of the batch size.
    """

    def __init__(self, one: AskedSizes | None = None) -> None:
        super().__init__()
        self.seen: list[tuple[Any, tuple[int, ...]]] = []  # where, the numbers
        self.before = iter(one.seen if one else ())
        self.compared: list[Of] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the code that runs meanwhile."""
        length = len  # which makes a plain number of any other

        def length_of(value: Any) -> int:
            number = length(value)
            is_tensor = isinstance(value, torch.Tensor)
            return self.asked(sys._getframe(1), number) if is_tensor else number

        with mock.patch("builtins.len", length_of), self:
            yield

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch; one that returns sizes is one that asks for them."""
        result = func(*args, **(kwargs or {}))
        is_size = type(result) in (int, torch.Size)
        return self.asked(sys._getframe(1), result) if is_size else result

    def asked(self, frame: Any, result: Any) -> Any:
        """The sizes for which the code in a frame asks; PyTorch's own code gets them as they are."""
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "lolat"):
            return result
        numbers = tuple(result) if isinstance(result, torch.Size) else (result,)
        here = frame.f_code, frame.f_lasti, len(numbers)
        self.seen.append((here, numbers))
        where, one = next(self.before, (None, ()))
        if where != here:  # the first call, or another branch than in it
            self.before = iter(())
            return result
        lines = (
            lambda b, n=n, m=m: n + (m - n) * (b - 1) for n, m in zip(one, numbers, strict=True)
        )
        sizes = [_size(of, self.compared) if of(1) != of(2) else of(1) for of in lines]
        return torch.Size(sizes) if isinstance(result, torch.Size) else sizes[0]

    def turns(self) -> list[int]:
        """The first batch sizes above two for which comparisons come out in another way."""
        found = set[int]()
        for of in self.compared:
            with np.errstate(all="ignore"):
                outcomes = np.broadcast_to(of(BATCHES), BATCHES.shape)
            found.update(BATCHES[outcomes != outcomes[0]][:1].tolist())
        return sorted(found)[:MOST]
