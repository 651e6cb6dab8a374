"""FBNet's space (Wu et al., CVPR 2019, tables 1 and 2): 22 layers, each one of nine blocks.

    224x224x3    conv 3x3/2, 16        56x56x24   4 layers, 32, /2    14x14x112  4 layers, 184, /2
    112x112x16   1 layer, 16           28x28x32   4 layers, 64, /2    7x7x184    1 layer, 352
    112x112x16   4 layers, 24, /2      14x14x64   4 layers, 112       7x7x352    conv 1x1, 1984; pool; dense

A block is an inverted residual of expansion 1, 3 or 6 and kernel 3 or 5, with its 1x1 convolutions in two
groups and a channel shuffle where "g2" says so; "skip" is the input itself, and a 1x1 convolution where
the layer changes the channels or the resolution, as in the authors' code. A network is written as a digit
for each layer, 7818488874147327324245, in the order of CHOICES: that of HW-NAS-Bench (Li et al., ICLR 2021)
and HELP (Lee et al., NeurIPS 2021), whose measurements are written like this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lolat.errors import InputError
from lolat.graph.layers import Layers
from lolat.nas.pieces import MACS, OPS, TRAFFIC, Pieces, groups, relative, work
from lolat.nas.space import Position, Space, parse_each
from lolat.nas.tables import Part
from lolat.units import shortened

NAME = "fbnet"
BLOCKS = {
    "k3_e1": (3, 1, 1), "k3_e1_g2": (3, 1, 2), "k3_e3": (3, 3, 1), "k3_e6": (3, 6, 1),
    "k5_e1": (5, 1, 1), "k5_e1_g2": (5, 1, 2), "k5_e3": (5, 3, 1), "k5_e6": (5, 6, 1),
}  # fmt: skip
"""(kernel, expansion, groups) of the inverted residual."""
CHOICES = (*BLOCKS, "skip")
STAGES = ((16, 1, 1), (24, 4, 2), (32, 4, 2), (64, 4, 2), (112, 4, 1), (184, 4, 2), (352, 1, 1))
"""(channels, layers, stride of the first)."""
LAYERS = sum(count for _, count, _ in STAGES)
POSITIONS = tuple(f"layer {index + 1}" for index in range(LAYERS))
STEM, TOP, CLASSES, SIZE = 16, 1984, 1000, 224
_LAST = len(CHOICES) - 1


def parse(arch: str) -> np.ndarray:
    """The 22 blocks of one network, (22,) int8, as indices of CHOICES. InputError says what is wrong."""
    text = arch.strip()
    if len(text) != LAYERS:
        raise InputError(
            f"{shortened(text)!r} has {len(text)} characters; expected {LAYERS} digits from 0 to {_LAST}, "
            "one block a layer"
        )
    for layer, digit in enumerate(text, 1):
        if not "0" <= digit <= str(_LAST):
            raise InputError(
                f"unknown operation {digit!r} at layer {layer} of {text!r}; expected a digit from 0 to "
                f"{_LAST} ({', '.join(CHOICES)})"
            )
    return _digits(text)


def parse_many(
    archs: Sequence[str], place: Callable[[int], str] = lambda index: f"network {index + 1}"
) -> np.ndarray:
    """The blocks of many networks, (networks, 22) int8.

    InputError names the first text that is wrong, as `place(index)`.
    """
    joined = "".join(archs)
    if joined.isascii() and set(map(len, archs)) <= {LAYERS}:
        rows = _digits(joined)
        if rows.size == 0 or (rows.min() >= 0 and rows.max() <= _LAST):
            return rows.reshape(len(archs), LAYERS)
    return parse_each(parse, archs, place, LAYERS)


def _digits(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii"), dtype=np.int8) - np.int8(ord("0"))


def write(row: Sequence[int] | np.ndarray) -> str:
    """The text of one network from its 22 integers."""
    return "".join(str(int(block)) for block in row)


class Layer(NamedTuple):
    """One of the 22: its stage, pixels along an edge of its input, channels in and out, stride."""

    stage: int
    side: int
    inside: int
    filters: int
    stride: int


def layers_of(side: int, stages: Sequence[tuple[int, int, int]] = STAGES) -> list[Layer]:
    """The layers behind a stem whose output has `side` pixels along an edge."""
    layers, inside = [], STEM
    for stage, (filters, count, first) in enumerate(stages):
        for index in range(count):
            layers.append(Layer(stage, side, inside, filters, 1 if index else first))
            side, inside = -(-side // layers[-1].stride), filters
    return layers


def space(
    classes: int = CLASSES,
    size: int = SIZE,
    stages: Sequence[tuple[int, int, int]] = STAGES,
    top: int = TOP,
    stem_stride: int = 2,
) -> Space:
    """The 9**22 networks; `size`: of the image; `top`: channels of the last 1x1 convolution."""
    layers = layers_of(-(-size // stem_stride), stages)
    parts = [Part("stem", (), partial(_shape, size, 3), partial(_stem, stem_stride))]
    for index, layer in enumerate(layers):
        shape, write = partial(_shape, layer.side, layer.inside), partial(_block, layer)
        parts.append(Part(f"layer{index + 1}", (index,), shape, write))
    side, channels = -(-layers[-1].side // layers[-1].stride), layers[-1].filters
    parts.append(Part("head", (), partial(_shape, side, channels), partial(_head, top, classes)))
    positions = [Position(name, CHOICES) for name in POSITIONS]
    return Space.of_parts(NAME, positions, parts, sys.modules[__name__])


def _shape(side: int, channels: int, *chosen: Any) -> tuple[int, ...]:
    return (1, side, side, channels)


def _stem(stride: int, layers: Layers, x: int) -> int:
    return layers.norm_act(layers.conv(x, STEM, 3, stride), "relu")


def _block(layer: Layer, layers: Layers, x: int, block: str) -> int:
    _, _, inside, filters, stride = layer
    same = stride == 1 and inside == filters
    if block == "skip":
        return x if same else layers.norm_act(layers.conv(x, filters, 1, stride), "relu")
    kernel, expansion, groups = BLOCKS[block]
    y = layers.norm_act(layers.conv(x, expansion * inside, 1, 1, groups), "relu")
    if groups > 1:
        y = layers.shuffle(y, groups)
    y = layers.norm_act(layers.depthwise(y, kernel, stride), "relu")
    y = layers.norm(layers.conv(y, filters, 1, 1, groups))
    return layers.same("add", x, y) if same else y


def _head(top: int, classes: int, layers: Layers, x: int) -> int:
    x = layers.norm_act(layers.conv(x, top, 1), "relu")
    return layers.classifier(layers.global_pool(x), classes)


# ---- What is known of its latencies before any is measured: FBNet on CIFAR (32x32), with strides and
# head as in HW-NAS-Bench.
#
# A piece is a block in a layer; its counts are those of the space's own tables, but for what runtimes do
# otherwise: a shuffle is two reshapes and a transposition, twice, which are started and move nothing, and a
# 1x1 convolution with a stride reads only the positions that it keeps.

CIFAR_SIZE, CIFAR_CLASSES, CIFAR_TOP = 32, 100, 1504
CIFAR_STAGES = tuple((c, n, 1 if i == 1 else s) for i, (c, n, s) in enumerate(STAGES))
SHUFFLE_OPS = 6.0
_SKIP = CHOICES.index("skip")
_SHUFFLED = [i for i, (*_, divided) in enumerate(BLOCKS.values()) if divided > 1]
REST = np.array([9_063_296.0, 0.0, 242_688.0, 680_240.0, 8.0])
"""Stem and head: counts by term, without bias, with six accesses an element that a convolution writes."""

# How far costs may be from the formula (logarithm): all blocks of a kind, of a stage, of a kind in a
# stage, and what is not a layer.
_KIND, _STAGE, _KIND_IN_STAGE, _OTHER = 0.12, 0.10, 0.06, 0.7
_RANDOM = 1000  # candidates of each sort


def cifar() -> Space:
    """The space whose counts these are."""
    return space(CIFAR_CLASSES, CIFAR_SIZE, CIFAR_STAGES, CIFAR_TOP, stem_stride=1)


def blocks() -> np.ndarray:
    """(LAYERS, CHOICES, TERMS) counts of each block in each layer."""
    counts = np.stack([work(table) for table in cifar().tables if table.positions])
    for layer, (_, side, inside, _, stride) in zip(
        counts, layers_of(CIFAR_SIZE, CIFAR_STAGES), strict=True
    ):
        elements = side**2 * inside
        layer[_SHUFFLED, OPS] += SHUFFLE_OPS - 1.0  # the graph counts the transposition
        layer[_SHUFFLED, TRAFFIC] -= 2.0 * elements
        if layer[_SKIP, MACS]:
            layer[_SKIP, TRAFFIC] -= elements - elements / stride**2
    return counts


def _counts(rows: np.ndarray) -> np.ndarray:
    """(networks, 1 + 22*9): 1, and which block each layer has."""
    occurs = np.zeros((len(rows), 1 + LAYERS * len(CHOICES)))
    occurs[:, 0] = 1.0
    columns = 1 + np.arange(LAYERS) * len(CHOICES) + rows
    np.put_along_axis(occurs, columns, 1.0, axis=1)
    return occurs


def candidates(generator: np.random.Generator) -> np.ndarray:
    """(networks, 22): random ones, ones with one block a stage, and with the same everywhere."""
    kinds = len(CHOICES)
    free = generator.integers(kinds, size=(_RANDOM, LAYERS))
    depths = [depth for _, depth, _ in STAGES]
    by_stage = np.repeat(generator.integers(kinds, size=(_RANDOM, len(STAGES))), depths, axis=1)
    alike = np.repeat(np.arange(kinds)[:, None], LAYERS, axis=1)
    return np.concatenate([free, by_stage, alike]).astype(np.int8)


def assumptions() -> list[Pieces]:
    """Whether a device's starting of operations is hidden behind the work of those before."""
    each = blocks().reshape(-1, len(REST))
    terms = relative(np.vstack([REST, each]), each.mean(axis=0) * LAYERS + REST)
    kinds, stages = range(len(CHOICES)), range(len(STAGES))
    kind = np.concatenate([[-1], np.tile(kinds, LAYERS)])
    stage = np.concatenate(
        [[-1], np.repeat([la.stage for la in layers_of(CIFAR_SIZE)], len(CHOICES))]
    )
    factors, spread = groups(
        [
            (kind == -1, _OTHER),
            *((kind == k, _KIND) for k in kinds),
            *((stage == s, _STAGE) for s in stages),
            *(((kind == k) & (stage == s), _KIND_IN_STAGE) for s in stages for k in kinds),
        ]
    )
    each_in_turn = "an operation starts when the one before has ended"
    side_by_side = "operations are started while those before still run"
    shared = (_counts, terms, factors, spread, math.log(0.5))
    return [
        Pieces("sum", each_in_turn, *shared),
        Pieces("overlap", side_by_side, *shared, overlap=True),
    ]
