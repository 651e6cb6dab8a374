"""FBNet's space (Wu et al., CVPR 2019, tables 1 and 2): 22 layers, each one of nine blocks.

    224x224x3    conv 3x3/2, 16        56x56x24   4 layers, 32, /2    14x14x112  4 layers, 184, /2
    112x112x16   1 layer, 16           28x28x32   4 layers, 64, /2    7x7x184    1 layer, 352
    112x112x16   4 layers, 24, /2      14x14x64   4 layers, 112       7x7x352    conv 1x1, 1984; pool; dense

A block is an inverted residual of expansion 1, 3 or 6 and kernel 3 or 5, with its 1x1 convolutions in two
groups and a channel shuffle where "g2" says so; "skip" is the input itself, and a 1x1 convolution where
the layer changes the channels or the resolution, as in the authors' code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.graph.layers import Layers
from lolat.nas.space import Position, Space
from lolat.nas.tables import ChainPart, Part

# ---- FBNet's layers (Wu et al., CVPR 2019): 22 positions with one of nine blocks each, a digit
# for each.
#
#     7818488874147327324245
#
# The order of the blocks is that of HW-NAS-Bench (Li et al., ICLR 2021) and HELP (Lee et al., NeurIPS
# 2021),
# whose measurements are written like this.

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


# ---- fbnet ----------------------------------------

STEM, TOP, CLASSES, SIZE = 16, 1984, 1000, 224
STAGES = ((16, 1, 1), (24, 4, 2), (32, 4, 2), (64, 4, 2), (112, 4, 1), (184, 4, 2), (352, 1, 1))
"""(channels, layers, stride of the first)."""
BLOCKS = {
    "k3_e1": (3, 1, 1), "k3_e1_g2": (3, 1, 2), "k3_e3": (3, 3, 1), "k3_e6": (3, 6, 1),
    "k5_e1": (5, 1, 1), "k5_e1_g2": (5, 1, 2), "k5_e3": (5, 3, 1), "k5_e6": (5, 6, 1),
}  # fmt: skip
"""(kernel, expansion, groups)."""


def space(classes: int = CLASSES, size: int = SIZE) -> Space:
    """The 9**22 networks; `size`: of the image."""
    positions = [Position(name, CHOICES) for name in POSITIONS]
    parts: list[ChainPart] = [Part("stem", (), partial(_shape, size, 3), _stem)]
    side, channels, layer = -(-size // 2), STEM, 0
    for filters, count, first in STAGES:
        for index in range(count):
            stride = first if index == 0 else 1
            shape = partial(_shape, side, channels)
            write = partial(_layer, filters, stride)
            parts.append(Part(f"layer{layer + 1}", (layer,), shape, write))
            side, channels, layer = -(-side // stride), filters, layer + 1
    parts.append(Part("head", (), partial(_shape, side, channels), partial(_head, classes)))
    return Space.of_parts(NAME, positions, parts, sys.modules[__name__])


def _shape(side: int, channels: int, *chosen: Any) -> tuple[int, ...]:
    return (1, side, side, channels)


def _stem(layers: Layers, x: int) -> int:
    return layers.norm_act(layers.conv(x, STEM, 3, 2), "relu")


def _layer(filters: int, stride: int, layers: Layers, x: int, block: str) -> int:
    """One of the 22 layers."""
    inside = layers.shape(x)[-1]
    same = stride == 1 and inside == filters
    if block == "skip":
        if same:
            return x
        return layers.norm_act(layers.conv(x, filters, 1, stride), "relu")
    kernel, expansion, groups = BLOCKS[block]
    y = layers.norm_act(layers.conv(x, expansion * inside, 1, 1, groups), "relu")
    if groups > 1:
        y = layers.shuffle(y, groups)
    y = layers.norm_act(layers.depthwise(y, kernel, stride), "relu")
    y = layers.norm(layers.conv(y, filters, 1, 1, groups))
    return layers.same("add", x, y) if same else y


def _head(classes: int, layers: Layers, x: int) -> int:
    x = layers.norm_act(layers.conv(x, TOP, 1), "relu")
    return layers.classifier(layers.global_pool(x), classes)
