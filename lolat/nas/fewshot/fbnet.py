"""FBNet on CIFAR (32x32): what each block costs in each layer by the formula.

22 layers in seven stages (Wu et al., CVPR 2019, table 1), strides and head as in HW-NAS-Bench's setting
for CIFAR (Li et al., ICLR 2021). A block is a pointwise convolution that expands, a depthwise one, and
a pointwise one back; with two groups, channels are shuffled besides. `skip` costs nothing where shapes
stay, elsewhere a pointwise convolution.
"""

from __future__ import annotations

import math

import numpy as np

from lolat.nas.fewshot.terms import Pieces, groups, relative
from lolat.nas.spaces.fbnet import CHOICES, LAYERS

_PIXELS = 32
_STEM = 16
_HEAD = 1504
_CLASSES = 100
_STAGES = ((16, 1, 1), (24, 4, 1), (32, 4, 2), (64, 4, 2), (112, 4, 1), (184, 4, 2), (352, 1, 1))
"""Channels, layers and first stride of each stage."""
# Kernel, expansion, groups.
_BLOCKS = ((3, 1, 1), (3, 1, 2), (3, 3, 1), (3, 6, 1), (5, 1, 1), (5, 1, 2), (5, 3, 1), (5, 6, 1))

# How far costs may be from the formula (logarithm): all blocks of a kind, of a stage, of a kind in a
# stage, and what is not a layer.
_RANDOM = 1000  # candidates of each sort
_KIND, _STAGE, _KIND_IN_STAGE, _REST = 0.12, 0.10, 0.06, 0.7


def layers() -> list[tuple[int, int, int, int, int]]:
    """(stage, pixels of the input, channels in, channels out, stride) of the 22 layers."""
    found, pixels, channels = [], _PIXELS, _STEM
    for stage, (wide, depth, first) in enumerate(_STAGES):
        for layer in range(depth):
            stride = first if layer == 0 else 1
            found.append((stage, pixels, channels, wide, stride))
            pixels, channels = pixels // stride, wide
    return found


def _block(pixels: int, before: int, after: int, stride: int, kind: int) -> list[float]:
    """Counts by term of one block in one layer."""
    small, same = (pixels // stride) ** 2, stride == 1 and before == after
    if kind == len(_BLOCKS):
        if same:
            return [0.0] * 5
        weights = before * after
        return [small * weights, 0.0, small * (before + 5.0 * after), weights, 3.0]
    kernel, expansion, divided = _BLOCKS[kind]
    middle, large = before * expansion, pixels**2
    first, last = before * middle / divided, middle * after / divided
    traffic = large * (before + 6.0 * middle) + small * (6.0 * middle + (3.0 + 3.0 * same) * after)
    return [
        large * first + small * last,
        float(small * middle * kernel**2),
        traffic,
        first + middle * kernel**2 + last,
        8.0 + same + 6.0 * (divided > 1),  # a shuffle is two reshapes and a transposition, twice
    ]


def _around() -> list[float]:
    """Counts of stem and head."""
    large, small, last = _PIXELS**2, (_PIXELS // 8) ** 2, _STAGES[-1][0]
    return [
        large * 27.0 * _STEM + small * last * _HEAD + _HEAD * _CLASSES,
        0.0,
        6.0 * (large * _STEM + small * _HEAD),
        27.0 * _STEM + last * _HEAD + _HEAD * _CLASSES,
        8.0,
    ]


def _counts(rows: np.ndarray) -> np.ndarray:
    """(networks, 1 + 22*9): 1, and which block each layer has."""
    found = np.zeros((len(rows), 1 + LAYERS * len(CHOICES)))
    found[:, 0] = 1.0
    columns = 1 + np.arange(LAYERS) * len(CHOICES) + rows
    np.put_along_axis(found, columns, 1.0, axis=1)
    return found


def candidates(generator: np.random.Generator) -> np.ndarray:
    """(networks, 22): random ones, ones with one block a stage, and with the same everywhere."""
    kinds = len(CHOICES)
    free = generator.integers(kinds, size=(_RANDOM, LAYERS))
    depths = [depth for _, depth, _ in _STAGES]
    by_stage = np.repeat(generator.integers(kinds, size=(_RANDOM, len(_STAGES))), depths, axis=1)
    alike = np.repeat(np.arange(kinds)[:, None], LAYERS, axis=1)
    return np.concatenate([free, by_stage, alike]).astype(np.int8)


def assumptions() -> list[Pieces]:
    """Whether a device's starting of operations is hidden behind the work of those before."""
    kinds = range(len(CHOICES))
    blocks = np.array([_block(*layer[1:], kind) for layer in layers() for kind in kinds])
    around = np.array([_around()])
    average = blocks.mean(axis=0) * LAYERS + around[0]
    terms = relative(np.concatenate([around, blocks]), average)
    kind = np.concatenate([[-1], np.tile(np.arange(len(CHOICES)), LAYERS)])
    stage = np.concatenate([[-1], np.repeat([layer[0] for layer in layers()], len(CHOICES))])
    stages = range(len(_STAGES))
    factors, spread = groups(
        [
            (kind == -1, _REST),
            *((kind == k, _KIND) for k in kinds),
            *((stage == s, _STAGE) for s in stages),
            *(((kind == k) & (stage == s), _KIND_IN_STAGE) for s in stages for k in kinds),
        ]
    )
    half = math.log(0.5)
    return [
        Pieces(
            "sum",
            "an operation starts when the one before has ended",
            _counts,
            terms,
            factors,
            spread,
            log_prior=half,
        ),
        Pieces(
            "overlap",
            "operations are started while those before still run",
            _counts,
            terms,
            factors,
            spread,
            overlap=True,
            log_prior=half,
        ),
    ]
