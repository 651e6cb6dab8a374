"""The predefined blocks: what is measured on every device, defined once and built by every backend.

A row is a block, written `family channels x height x width`, and the batch sizes it is measured at; each
batch size is a point. Families, channels (3 to 2048), kernels, strides and resolutions (1 to 224) are
spread so that the coefficients can be told apart: `benchmarks/design.py` prints the condition number.
The nine blocks that the published tool uses are marked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lolat.graph import Graph
from microbench import families as f


@dataclass(frozen=True)
class Predefined:
    """A block to measure: how it is written, and at which batch sizes."""

    name: str
    make: Callable[[], Graph]
    batch_sizes: tuple[int, ...]


def _row(
    name: str, batch_sizes: tuple[int, ...], make: Callable[..., Graph], *a: object, **k: object
) -> Predefined:
    return Predefined(name, partial(make, *a, **k), batch_sizes)


PUBLISHED = (
    "basic 256x14x14", "conv 3x3 3x224x224", "bottleneck 256x56x56", "bottleneck 1024x14x14",
    "bottleneck 64x56x56", "bottleneck 224x28x28", "inverted 24x56x56", "inverted 16x112x112",
    "mbconv 40x28x28",
)  # fmt: skip
"""The blocks of the published tool."""

BLOCKS: tuple[Predefined, ...] = (
    # entrances: three channels in
    _row("stem 7x7/2 3x224x224", (1, 8), f.stem, 224, 64, 7, 2, pool=True),
    _row("stem 3x3/2 3x224x224", (1, 8), f.stem, 224, 32, 3, 2),
    _row("conv 3x3 3x224x224", (1,), f.plain, 224, 3, 64, 3),
    _row("patchify 4x4/4 3x224x224", (1, 4), f.patchify, 224, 96),
    # plain convolutions
    _row("conv 1x1 64x56x56", (1,), f.conv_bn, 56, 64, 256, 1),
    _row("conv 1x1 1024x14x14", (8,), f.conv_bn, 14, 1024, 256, 1),
    _row("conv 1x1 320x7x7", (1, 16), f.conv_bn, 7, 320, 1280, 1),
    _row("conv 1x1 2048x7x7", (1,), f.conv_bn, 7, 2048, 512, 1),
    _row("conv 3x3 32x112x112", (1,), f.conv_bn, 112, 32, 64, 3),
    _row("conv 3x3 64x56x56", (4,), f.conv_bn, 56, 64, 64, 3),
    _row("conv 3x3 128x28x28", (1,), f.conv_bn, 28, 128, 128, 3),
    _row("conv 3x3 512x7x7", (1, 16), f.conv_bn, 7, 512, 512, 3),
    _row("conv 3x3/2 128x56x56", (1,), f.conv_bn, 56, 128, 128, 3, 2),
    _row("two conv 3x3 512x14x14", (1, 4), f.plain, 14, 512, 512, 3, count=2),
    _row("conv 3x3 64x224x224", (1,), f.plain, 224, 64, 64, 3),
    _row("conv 5x5 48x35x35", (1, 8), f.plain, 35, 48, 64, 5),
    _row("conv 1x7 192x17x17", (4,), f.plain, 17, 192, 192, (1, 7), count=2),
    _row("conv 7x7 32x56x56", (1,), f.plain, 56, 32, 32, 7),
    _row("conv 3x3 dilated 128x28x28", (1,), f.plain, 28, 128, 128, 3, dilation=2),
    # residual blocks
    _row("basic 64x56x56", (1,), f.basic, 56, 64),
    _row("basic 256x14x14", (1, 8), f.basic, 14, 256),
    _row("bottleneck 256x56x56", (1, 4), f.bottleneck, 56, 256),
    _row("bottleneck 1024x14x14", (1, 8), f.bottleneck, 14, 1024),
    _row("bottleneck 64x56x56", (1,), f.bottleneck, 56, 64),
    _row("bottleneck 224x28x28", (1, 8), f.bottleneck, 28, 224),
    _row("bottleneck/2 512x28x28", (1,), f.bottleneck, 28, 512, 1024, stride=2),
    _row("bottleneck 2048x7x7", (4,), f.bottleneck, 7, 2048),
    # groups
    _row("grouped bottleneck 256x56x56", (1,), f.bottleneck, 56, 256, mid=128, groups=32),
    _row("grouped bottleneck 1024x14x14", (1,), f.bottleneck, 14, 1024, mid=512, groups=32),
    _row("grouped 3x3 64x56x56", (1,), f.grouped, 56, 64, 8),
    _row("grouped 3x3 128x28x28", (1, 4), f.grouped, 28, 128, 32),
    _row("grouped 3x3 256x14x14", (4,), f.grouped, 14, 256, 16),
    _row("grouped 5x5 96x28x28", (1,), f.grouped, 28, 96, 96, 5),
    # mobile blocks
    _row("inverted 24x56x56", (1, 8), f.inverted, 56, 24),
    _row("inverted 16x112x112", (1,), f.inverted, 112, 16),
    _row("inverted/2 16x112x112", (4,), f.inverted, 112, 16, 24, stride=2),
    _row("inverted 64x14x14", (1, 16), f.inverted, 14, 64),
    _row("inverted 160x7x7", (1, 8), f.inverted, 7, 160),
    _row("mbconv 40x28x28", (1, 8), f.inverted, 28, 40, kernel=5, act="silu", se=True),
    _row("mbconv 24x56x56", (4,), f.inverted, 56, 24, act="silu", se=True),
    _row("mbconv 112x14x14", (1,), f.inverted, 14, 112, kernel=5, act="silu", se=True),
    _row("mbconv 192x7x7", (1, 8), f.inverted, 7, 192, kernel=5, act="silu", se=True),
    _row("mobile v3 40x28x28", (1, 8), f.inverted, 28, 40, expand=3, kernel=5, act="hard_silu", se=True),
    _row("fused mbconv 48x56x56", (1,), f.fused, 56, 48),
    _row("depthwise 3x3 32x112x112", (4,), f.depthwise, 112, 32),
    _row("depthwise 3x3 512x14x14", (1, 8), f.depthwise, 14, 512),
    _row("depthwise 5x5/2 144x56x56", (1,), f.depthwise, 56, 144, 5, 2),
    _row("separable 728x19x19", (1,), f.separable, 19, 728, count=3),
    _row("separable 128x74x74", (1,), f.separable, 74, 128, 256),
    _row("separable 5x5 44x28x28", (1, 8), f.separable, 28, 44, kernel=5, count=2),
    # concatenation and branches
    _row("dense-net 256x28x28", (1, 4), f.dense_net, 28, 256),
    _row("dense-net 6 x 64x56x56", (1,), f.dense_net, 56, 64, count=6),
    _row("dense-net 2 x 992x7x7", (1, 8), f.dense_net, 7, 992, count=2),
    _row("transition 256x56x56", (1,), f.transition, 56, 256),
    _row("inception 192x35x35", (1,), f.inception, 35, 192, 64),
    _row("inception 768x17x17", (1, 4), f.inception, 17, 768, 192, 7),
    _row("cell 44x28x28", (1,), f.cell, 28, 44),
    _row("cell 88x14x14", (4,), f.cell, 14, 88),
    _row("up 64x56x56", (1,), f.up, 56, 64, False),
    _row("up transposed 256x14x14", (2,), f.up, 14, 256, True),
    # ConvNeXt
    _row("convnext 96x56x56", (1,), f.convnext, 56, 96),
    _row("convnext 384x14x14", (1, 4), f.convnext, 14, 384),
    _row("convnext depthwise 192x28x28", (1,), f.convnext, 28, 192, grouped=False),
    _row("convnext depthwise 768x7x7", (4,), f.convnext, 7, 768, grouped=False),
    # memory: pooling, normalisation, activation
    _row("max pool 3x3/2 64x112x112", (1, 8), f.pool, 112, 64, 3, 2, "max_pool"),
    _row("average pool 3x3 192x35x35", (1,), f.pool, 35, 192, 3, 1, "average_pool"),
    _row("norm, relu 256x56x56", (1,), f.norm_act, 56, 256),
    _row("norm, silu 144x56x56", (4,), f.norm_act, 56, 144, "silu"),
    _row("layer norm, gelu 384x14x14", (1, 8), f.norm_act, 14, 384, "gelu", "layer_norm"),
    # classifiers and dense layers
    _row("head 2048x7x7", (1, 32), f.head, 7, 2048),
    _row("head 960x7x7", (1,), f.head, 7, 960, 1280),
    _row("flat head 512x7x7", (1, 8), f.flat_head, 7, 512, 4096),
    _row("mlp 3 x 1024", (1, 32), f.mlp, 1024, 1024, 3),
    # chains of blocks, up to small networks
    _row("three bottlenecks 64x56x56", (1,), f.bottleneck, 56, 64, 256, count=3),
    _row("three mbconv 80x14x14", (1, 4), f.inverted, 14, 80, act="silu", se=True, count=3),
    _row("three inverted 96x14x14", (1,), f.inverted, 14, 96, count=3),
    _row("small resnet 3x224x224", (1,), f.residual_network, 224, 64),
    _row("small mobile net 3x224x224", (1, 4), f.mobile_network, 224, "relu6", False),
    _row("small mobile net silu 3x192x192", (1,), f.mobile_network, 192, "silu", True),
)  # fmt: skip

REFERENCE_BLOCK = _row("reference", (8,), f.inverted, 28, 40, kernel=5, act="silu", se=True)
"""Timed beside every sample (see `microbench.timer`): it computes, moves some 30 MB and works with all
threads, so that it feels a busy machine and processors that were moved apart; 4 to 10 ms on two cores."""


def points(blocks: tuple[Predefined, ...] = BLOCKS) -> list[tuple[str, int, Graph]]:
    """(name, batch size, graph) of every point."""
    return [(b.name, n, g) for b in blocks for g in [b.make()] for n in b.batch_sizes]
