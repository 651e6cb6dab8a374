"""FBNet's layers (Wu et al., CVPR 2019): 22 positions with one of nine blocks each, a digit for each.

    7818488874147327324245

The order of the blocks is that of HW-NAS-Bench (Li et al., ICLR 2021) and HELP (Lee et al., NeurIPS 2021),
whose measurements are written like this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lolat.errors import InputError

NAME = "fbnet"
CHOICES = (
    "k3_e1", "k3_e1_g2", "k3_e3", "k3_e6", "k5_e1", "k5_e1_g2", "k5_e3", "k5_e6", "skip",
)  # fmt: skip
"""Kernel, expansion and groups of the inverted residual block; `skip` is the input handed on."""
LAYERS = 22
POSITIONS = tuple(f"layer {index + 1}" for index in range(LAYERS))

_LAST = len(CHOICES) - 1


def parse(arch: str) -> np.ndarray:
    """The 22 blocks of one network, (22,) int8, as indices of CHOICES. InputError says what is wrong."""
    text = arch.strip()
    if len(text) != LAYERS:
        raise InputError(
            f"{_shown(text)} has {len(text)} characters; expected {LAYERS} digits from 0 to {_LAST}, "
            "one block a layer"
        )
    for layer, digit in enumerate(text):
        if not "0" <= digit <= str(_LAST):
            raise InputError(
                f"unknown operation {digit!r} at layer {layer + 1} of {_shown(text)}; expected a "
                f"digit from 0 to {_LAST} ({', '.join(CHOICES)})"
            )
    return np.frombuffer(text.encode("ascii"), dtype=np.int8) - np.int8(ord("0"))


def parse_many(
    archs: Sequence[str], place: Callable[[int], str] = lambda index: f"network {index + 1}"
) -> np.ndarray:
    """The blocks of many networks, (networks, 22) int8.

    InputError names the first text that is wrong, as `place(index)`.
    """
    joined = "".join(archs)
    if joined.isascii() and set(map(len, archs)) <= {LAYERS}:
        rows = np.frombuffer(joined.encode("ascii"), dtype=np.int8) - np.int8(ord("0"))
        if rows.size == 0 or (rows.min() >= 0 and rows.max() <= _LAST):
            return rows.reshape(len(archs), LAYERS)
    rows = np.empty((len(archs), LAYERS), dtype=np.int8)
    for index, arch in enumerate(archs):
        try:
            rows[index] = parse(arch)
        except InputError as error:
            raise InputError(f"{place(index)}: {error}") from None
    return rows


def write(row: Sequence[int] | np.ndarray) -> str:
    """The text of one network from its 22 integers."""
    return "".join(str(int(block)) for block in row)


def _shown(text: str) -> str:
    """The text as it stands in a message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
