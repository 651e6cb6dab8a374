"""FBNet's space (Wu et al., CVPR 2019, tables 1 and 2): 22 layers, each one of nine blocks.

    224x224x3    conv 3x3/2, 16        56x56x24   4 layers, 32, /2    14x14x112  4 layers, 184, /2
    112x112x16   1 layer, 16           28x28x32   4 layers, 64, /2    7x7x184    1 layer, 352
    112x112x16   4 layers, 24, /2      14x14x64   4 layers, 112       7x7x352    conv 1x1, 1984; pool; dense

A block is an inverted residual of expansion 1, 3 or 6 and kernel 3 or 5; "g2" has its 1x1 convolutions in
two groups and a channel shuffle; "skip" is the input itself, or a 1x1 convolution if the layer changes the
channels or the resolution, as in the authors' code. A network's text is a digit for each layer, such as
7818488874147327324245. Digits are indices of CHOICES, in the order of HW-NAS-Bench (Li et al., ICLR 2021)
and HELP (Lee et al., NeurIPS 2021). Both measured other networks, for CIFAR's 32x32 pixels: the space
`fbnet-cifar`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from lolat.errors import InputError
from lolat.graph.layers import Layers
from lolat.nas.cost_prior import Pieces, occurrences, relative, work
from lolat.nas.count_tables import Part
from lolat.nas.space import AnyCandidate, Codec, Position, Space
from lolat.units import shortened

BLOCKS = {
    "k3_e1": (3, 1, 1), "k3_e1_g2": (3, 1, 2), "k3_e3": (3, 3, 1), "k3_e6": (3, 6, 1),
    "k5_e1": (5, 1, 1), "k5_e1_g2": (5, 1, 2), "k5_e3": (5, 3, 1), "k5_e6": (5, 6, 1),
}  # fmt: skip
"""Block -> (kernel, expansion, groups) of its inverted residual."""
CHOICES = (*BLOCKS, "skip")
STAGES = ((16, 1, 1), (24, 4, 2), (32, 4, 2), (64, 4, 2), (112, 4, 1), (184, 4, 2), (352, 1, 1))
"""(channels, number of layers, stride of the first layer) of each stage."""
LAYERS = sum(count for _, count, _ in STAGES)
POSITIONS = tuple(f"layer {index + 1}" for index in range(LAYERS))
STEM = 16


def parse(arch: str) -> list[int]:
    """The 22 blocks of a network as indices of CHOICES; InputError for other text."""
    text = arch.strip()
    last = len(CHOICES) - 1
    if not re.fullmatch(f"[0-{last}]{{{LAYERS}}}", text):
        raise InputError(
            f"{shortened(text)!r} is no network of FBNet's space; expected {LAYERS} digits from 0 to "
            f"{last} ({', '.join(CHOICES)}), one block a layer"
        )
    return [int(digit) for digit in text]


def write(row: AnyCandidate) -> str:
    """The text of a network from its 22 integers."""
    return "".join(str(int(block)) for block in row)


class SearchedLayer(NamedTuple):
    """A searched layer: its stage, side of its input in pixels, channels in and out, stride."""

    stage: int
    side: int
    inside: int
    filters: int
    stride: int


@dataclass(frozen=True)
class Variant:
    """A variant of the space. `top`: channels of the last convolution; `stages`: as in STAGES."""

    name: str
    size: int
    classes: int
    top: int
    stem_stride: int
    stages: tuple[tuple[int, int, int], ...]

    def layers(self) -> list[SearchedLayer]:
        """The searched layers, which follow the stem."""
        layers, side, inside = [], -(-self.size // self.stem_stride), STEM
        for stage, (filters, count, first) in enumerate(self.stages):
            for index in range(count):
                layers.append(SearchedLayer(stage, side, inside, filters, 1 if index else first))
                side, inside = -(-side // layers[-1].stride), filters
        return layers

    def space(self) -> Space:
        """Make the space of the 9**22 networks."""
        parts = [Part("stem", (), (1, self.size, self.size, 3), partial(_stem, self.stem_stride))]
        for index, layer in enumerate(self.layers()):
            shape = (1, layer.side, layer.side, layer.inside)
            parts.append(Part(f"layer{index + 1}", (index,), shape, partial(_block, layer)))
        side = -(-layer.side // layer.stride)
        head = partial(_head, self.top, self.classes)
        parts.append(Part("head", (), (1, side, side, layer.filters), head))
        positions = [Position(name, CHOICES) for name in POSITIONS]
        prior = partial(assumptions, self)
        return Space.of_parts(self.name, positions, parts, Codec(parse, write), prior)


IMAGENET = Variant("fbnet", 224, 1000, 1984, 2, STAGES)
CIFAR = Variant(
    "fbnet-cifar", 32, 100, 1504, 1, tuple((c, n, 1 if i == 1 else s) for i, (c, n, s) in enumerate(STAGES))
)  # fmt: skip
"""The variant that HW-NAS-Bench and HELP measured."""


def space() -> Space:
    """Make the paper's space."""
    return IMAGENET.space()


def cifar() -> Space:
    """Make the space of the networks that HW-NAS-Bench and HELP measured."""
    return CIFAR.space()


def _stem(stride: int, layers: Layers, x: int) -> int:
    return layers.norm_act(layers.conv(x, STEM, 3, stride), "relu")


def _block(layer: SearchedLayer, layers: Layers, x: int, block: str) -> int:
    _, _, inside, filters, stride = layer
    same = stride == 1 and inside == filters
    if block == "skip":
        return x if same else layers.norm_act(layers.conv(x, filters, 1, stride), "relu")
    kernel, expansion, groups = BLOCKS[block]
    y = layers.norm_act(layers.conv(x, expansion * inside, 1, 1, groups), "relu")
    if groups > 1:
        y = layers.shuffle(y, groups)
    y = layers.norm_act(layers.depthwise(y, kernel, stride), "relu")
    y = layers.same("batch_norm", layers.conv(y, filters, 1, 1, groups))
    return layers.same("add", x, y) if same else y


def _head(top: int, classes: int, layers: Layers, x: int) -> int:
    x = layers.norm_act(layers.conv(x, top, 1), "relu")
    return layers.dense(layers.flatten(layers.global_pool(x)), classes)


# ---- The prior knowledge of a fit to a few measured networks.
#
# A piece is a block in a layer, or stem and head. Its counts are those of the space's own tables.

# Deviation of a cost's logarithm from the formula: all blocks of a kind, of a stage, and the stem and head.
_KIND, _STAGE, _OTHER = 0.12, 0.10, 0.7


def assumptions(variant: Variant, space: Space) -> list[Pieces]:
    """Two assumptions: launching operations overlaps with running other operations, or does not."""
    same = np.sum([work(table) for table in space.tables if not table.positions], axis=0)
    each = np.concatenate([work(table) for table in space.tables if table.positions])
    terms = relative(np.vstack([same, each]), each.mean(axis=0) * LAYERS + same)
    kinds, stages = range(len(CHOICES)), range(len(STAGES))
    kind = np.concatenate([[-1], np.tile(kinds, LAYERS)])
    of_layers = [layer.stage for layer in variant.layers()]
    stage = np.concatenate([[-1], np.repeat(of_layers, len(CHOICES))])
    members = [
        (kind == -1, _OTHER),
        *((kind == k, _KIND) for k in kinds),
        *((stage == s, _STAGE) for s in stages),
    ]
    counts = partial(occurrences, [((index,), (len(CHOICES),)) for index in range(LAYERS)])
    shared = (counts, terms, members, math.log(0.5))
    return [Pieces("sum", *shared), Pieces("overlap", *shared, overlap=True)]
