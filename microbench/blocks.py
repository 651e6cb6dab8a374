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
from microbench import parts as p


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
    # the published nine
    _row("basic 256x14x14", (1,), f.basic, 14, 256),
    _row("conv 3x3 3x224x224", (1,), f.plain, 224, 3, 64, 3),
    _row("bottleneck 256x56x56", (1, 4), f.bottleneck, 56, 256),
    _row("bottleneck 1024x14x14", (1,), f.bottleneck, 14, 1024),
    _row("bottleneck 64x56x56", (1,), f.bottleneck, 56, 64),
    _row("bottleneck 224x28x28", (1, 8), f.bottleneck, 28, 224),
    _row("inverted 24x56x56", (1,), f.inverted, 56, 24),
    _row("inverted 16x112x112", (1,), f.inverted, 112, 16),
    _row("mbconv 40x28x28", (1,), f.inverted, 28, 40, kernel=5, act="silu", se=True),
    # entrances: three channels in
    _row("stem 7x7/2 3x224x224", (1, 8), f.stem, 224, 64, 7, 2, pool=True),
    _row("stem 3x3/2 3x224x224", (1, 8), f.stem, 224, 32, 3, 2),
    _row("patchify 4x4/4 3x224x224", (1,), f.patchify, 224, 96),
    # convolutions alone
    _row("conv 1x1 64x56x56", (1,), f.conv_bn, 56, 64, 256, 1),
    _row("conv 1x1 320x7x7", (1, 16), f.conv_bn, 7, 320, 1280, 1),
    _row("conv 3x3 32x112x112", (1,), f.conv_bn, 112, 32, 64, 3),
    _row("conv 3x3 512x7x7", (16,), f.conv_bn, 7, 512, 512, 3),
    _row("conv 5x5 48x35x35", (4,), f.plain, 35, 48, 64, 5),
    # VGG
    _row("vgg 64x224x224", (1,), f.vgg, 224, 64, 64, 2),
    _row("vgg 256x56x56", (1,), f.vgg, 56, 256, 256, 2),
    _row("vgg 512x14x14", (1, 4), f.vgg, 14, 512, 512, 3),
    # residual chains
    _row("4 basic 64x56x56", (1,), f.basic, 56, 64, count=4),
    _row("3 bottlenecks 64x56x56", (1, 4), f.bottleneck, 56, 64, 256, count=3),
    _row("4 bottlenecks/2 256x56x56", (1,), f.bottleneck, 56, 256, 512, stride=2, count=4),
    _row("3 bottlenecks 1024x14x14", (1, 8), f.bottleneck, 14, 1024, count=3),
    _row("3 bottlenecks 2048x7x7", (1, 4), f.bottleneck, 7, 2048, count=3),
    _row("3 bottlenecks 2048x3x3", (8,), f.bottleneck, 3, 2048, count=3),
    # groups
    _row("grouped bottleneck 256x56x56", (1,), f.bottleneck, 56, 256, mid=128, groups=32),
    _row("grouped bottleneck 1024x14x14", (1,), f.bottleneck, 14, 1024, mid=512, groups=32),
    _row("grouped 3x3 64x56x56", (1,), f.grouped, 56, 64, 8),
    _row("grouped 3x3 128x28x28", (1, 4), f.grouped, 28, 128, 32),
    # mobile chains
    _row("3 mobile v1 32x112x112", (1, 4), f.mobile_v1, 112, 32, 64, count=3),
    _row("5 mobile v1 512x14x14", (1, 8), f.mobile_v1, 14, 512, 512, count=5),
    _row("4 mobile v1 1024x4x4", (4,), f.mobile_v1, 4, 1024, 1024, count=4),
    _row("3 inverted/2 16x112x112", (1, 4), f.inverted, 112, 16, 24, stride=2, count=3),
    _row("4 inverted 32x28x28", (1, 8), f.inverted, 28, 32, count=4),
    _row("4 inverted 96x14x14", (1, 8), f.inverted, 14, 96, count=4),
    _row("3 inverted 160x7x7", (1, 16), f.inverted, 7, 160, count=3),
    _row("3 mbconv/2 16x112x112", (1, 4), f.inverted, 112, 16, 24, stride=2, act="silu", se=True, count=3),
    _row("3 mbconv 40x28x28", (1, 8), f.inverted, 28, 40, kernel=5, act="silu", se=True, count=3),
    _row("4 mbconv 112x14x14", (1, 4), f.inverted, 14, 112, kernel=5, act="silu", se=True, count=4),
    _row("3 mbconv 192x7x7", (1, 8), f.inverted, 7, 192, kernel=5, act="silu", se=True, count=3),
    _row("3 mobile v3 40x28x28", (1, 8), f.inverted, 28, 40, None, 3, 5, act="hard_silu", se=True, count=3),
    _row("4 mobile v3 112x14x14", (1,), f.inverted, 14, 112, act="hard_silu", se=True, count=4),
    _row("3 fused mbconv 48x56x56", (1, 4), f.fused, 56, 48, count=3),
    # separable chains
    _row("depthwise 5x5/2 144x56x56", (4,), f.depthwise, 56, 144, 5, 2),
    _row("3 separable 728x19x19", (1, 4), f.separable, 19, 728, count=3),
    _row("3 separable 728x6x6", (4,), f.separable, 6, 728, count=3),
    _row("2 separable 128x74x74", (1,), f.separable, 74, 128, 128, count=2),
    # branches and concatenation
    _row("6 dense-net 64x56x56", (1, 2), f.dense_net, 56, 64, count=6),
    _row("8 dense-net 256x14x14", (1, 4), f.dense_net, 14, 256, count=8),
    _row("6 dense-net 640x7x7", (1, 8), f.dense_net, 7, 640, count=6),
    _row("transition 256x56x56", (1,), f.transition, 56, 256),
    _row("2 inception 192x35x35", (1, 4), f.inception, 35, 192, 64, count=2),
    _row("2 inception 768x17x17", (1, 4), f.inception, 17, 768, 192, 7, count=2),
    _row("2 cells 44x28x28", (1, 4), f.cell, 28, 44, count=2),
    _row("2 cells 88x14x14", (1,), f.cell, 14, 88, count=2),
    _row("2 cells 176x7x7", (4,), f.cell, 7, 176, count=2),
    _row("up transposed 256x14x14", (1,), p.up, 14, 256),
    # ConvNeXt
    _row("convnext 96x56x56", (1,), f.convnext, 56, 96),
    _row("3 convnext 384x14x14", (1, 4), f.convnext, 14, 384, count=3),
    _row("2 convnext depthwise 192x28x28", (1,), f.convnext, 28, 192, count=2, grouped=False),
    _row("convnext depthwise 768x7x7", (4,), f.convnext, 7, 768, grouped=False),
    # pooling, normalisation, activation alone
    _row("max pool 3x3/2 64x112x112", (1,), p.pool, 112, 64, 3, 2, "max_pool"),
    _row("average pool 3x3 192x35x35", (4,), p.pool, 35, 192, 3, 1, "average_pool"),
    _row("norm, relu 256x56x56", (1,), p.norm_act, 56, 256),
    _row("layer norm, gelu 384x14x14", (4,), p.norm_act, 14, 384, "gelu", "layer_norm"),
    # classifiers and dense layers
    _row("head 2048x7x7", (1, 32), p.head, 7, 2048),
    _row("flat head 512x7x7", (1, 8), p.flat_head, 7, 512, 4096),
    _row("mlp 3 x 1024", (1,), p.mlp, 1024, 1024, 3),
    # small networks from image to classes
    _row("small resnet 3x224x224", (1, 4), f.residual_network, 224, 64),
    _row("small mobile net 3x224x224", (1,), f.mobile_network, 224, "relu6", False),
    _row("small mobile net silu 3x192x192", (1,), f.mobile_network, 192, "silu", True),
)  # fmt: skip

REFERENCE_BLOCK = _row("reference", (8,), f.inverted, 28, 40, kernel=5, act="silu", se=True)
"""Timed beside every sample (see `microbench.timer`): it computes, moves some 30 MB and works with all
threads, so that it feels a busy machine and processors that were moved apart; 4 to 10 ms on two cores."""


def points(blocks: tuple[Predefined, ...] = BLOCKS) -> list[tuple[str, int, Graph]]:
    """(name, batch size, graph) of every point."""
    return [(b.name, n, g) for b in blocks for g in [b.make()] for n in b.batch_sizes]
