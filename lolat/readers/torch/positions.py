"""Checks that positions computed by PyTorch code are within the tables in which it looks them up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from lolat.errors import arg
from lolat.parameters import LENGTH

_SAME = {"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "repeat", "t", "transpose",
         "permute", "clone", "_to_copy", "to", "detach", "alias"}  # fmt: skip
"""Operations whose result has the same largest value as their first operand."""


class PositionError(IndexError):
    """A table of positions is `rows` rows too short for a look-up; `remedy`: the advice to the user."""

    remedy = f"expected {arg(LENGTH)} or a table for as many positions"

    def __init__(self, words: str, rows: int) -> None:
        super().__init__(words)
        self.rows = rows


class Positions:
    """Follows the largest value of integer tensors from the code that computes positions.

    Known are results of torch.arange, and the positions that RoBERTa and similar networks count from tokens
    that are not padding. Inputs of the network have no known values.
    """

    def __init__(self) -> None:
        self.largest: Any = WeakTensorKeyDictionary()

    def follow(self, op: str, named: Mapping[str, Any], result: Any) -> None:
        """Record the largest value of an operation's result; PositionError for a row beyond a table."""
        for rows, positions in _looked_up(op, named):
            if (
                isinstance(positions, torch.Tensor)
                and positions.dtype != torch.bool  # a mask
                and (most := self.largest.get(positions, 0)) >= rows
            ):
                words = f"position {most:,} of a table of {rows} rows"
                raise PositionError(words, most + 1 - rows)
        source, other, found = named.get("self"), named.get("other"), None
        if isinstance(source, torch.Tensor) and op.endswith("_"):  # it is overwritten
            self.largest.pop(source, None)
        elif op == "arange" and not result.is_floating_point():
            start, step = named.get("start", 0), named.get("step", 1)
            found = start + max(result.numel() - 1, 0) * step if step > 0 else None
        elif op == "ne" and isinstance(other, int):
            found = 1
        elif isinstance(source, torch.Tensor):
            found = self.largest.get(source)
            if op == "add" and found is not None and isinstance(other, int):
                found += other * named.get("alpha", 1)
            elif op == "cumsum" and found is not None:
                found *= source.shape[named["dim"]]
            elif op == "mul" and found is not None and isinstance(other, torch.Tensor):
                factor = self.largest.get(other)
                found = None if factor is None else found * factor
            elif op not in _SAME:
                found = None
        if found is not None and not result.is_floating_point():
            self.largest[result] = found


def _looked_up(op: str, named: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """Yield (number of rows of a table, tensor with the positions that an operation looks up in it)."""
    if op == "embedding":
        yield len(named["weight"]), named["indices"]
    elif op == "index_select":
        yield named["self"].shape[named["dim"]], named["index"]
    elif op == "index":
        yield from zip(named["self"].shape, named["indices"], strict=False)
