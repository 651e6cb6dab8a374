"""How candidates are written as text: by default as integers with "-" between them, 0-3-1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from lolat.errors import InputError
from lolat.nas.grid import Grid
from lolat.units import shortened

Row = Sequence[int] | np.ndarray  # the integers of one candidate


class Codec(NamedTuple):
    """`parse`: the integers of a candidate's text, InputError for another text; `write`: the inverse."""

    parse: Callable[[str], Row]
    write: Callable[[Row], str]


def dashes(grid: Grid) -> Codec:
    """Candidates as integers with "-" between them."""

    def parse(arch: str) -> list[int]:
        numbers, count = arch.strip().split("-"), len(grid.sizes)
        if len(numbers) != count or not all(re.fullmatch("[0-9]{1,9}", n) for n in numbers):
            raise InputError(
                f"{shortened(arch)!r} is no candidate; expected {count} whole numbers with '-' between "
                f"them, such as {write([0] * count)}"
            )
        return [int(n) for n in numbers]

    def write(row: Row) -> str:
        return "-".join(str(int(n)) for n in row)

    return Codec(parse, write)


def parse_all(
    codec: Codec, grid: Grid, archs: Sequence[str], place: Callable[[int], str]
) -> np.ndarray:
    """(n, positions) integers of n texts; InputError names the first wrong one by `place(index)`."""
    rows = np.empty((len(archs), len(grid.sizes)), np.int64)
    for index, arch in enumerate(archs):
        try:
            rows[index] = codec.parse(arch)
        except InputError as error:
            raise InputError(f"{place(index)}: {error.message}") from None
    return grid.checked(rows, place).astype(grid.dtype)
