"""FBNet on CIFAR (32x32), with strides and head as in HW-NAS-Bench (Li et al., ICLR 2021): its pieces.

A piece is a block in a layer; its counts are those of the space's own tables, but for what runtimes do
otherwise: a shuffle is two reshapes and a transposition, twice, which are started and move nothing, and a
1x1 convolution with a stride reads only the positions that it keeps.
"""

from __future__ import annotations

import math

import numpy as np

from lolat.nas.fewshot.pieces import MACS, OPS, TRAFFIC, Pieces, groups, relative, work
from lolat.nas.space import Space
from lolat.nas.spaces.fbnet import BLOCKS, CHOICES, LAYERS, STAGES, layers_of, space

SIZE, CLASSES, TOP = 32, 100, 1504
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
    return space(CLASSES, SIZE, CIFAR_STAGES, TOP, stem_stride=1)


def blocks() -> np.ndarray:
    """(LAYERS, CHOICES, TERMS) counts of each block in each layer."""
    counts = np.stack([work(table) for table in cifar().tables if table.positions])
    for layer, (_, side, inside, _, stride) in zip(
        counts, layers_of(SIZE, CIFAR_STAGES), strict=True
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
    stage = np.concatenate([[-1], np.repeat([la.stage for la in layers_of(SIZE)], len(CHOICES))])
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
