"""Whole networks, from the input to the classes, as Graphs: the points of real size among the blocks.

A block alone does not say how much slower everything is inside a network. These do: one of each family,
with the depths and widths that published networks have, small enough for some ten calls a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from lolat.graph import Graph
from lolat.graph.layers import Layers
from microbench import families as f


def residual(size: int, depths: Sequence[int], bottleneck: bool = True, groups: int = 1) -> Graph:
    """A residual network (He et al. 2015): stem, four stages of bottlenecks or basic blocks, classes."""
    n = Layers.on("residual network", size, size, 3)
    x = n.pool(n.conv_norm_act(n.input, 64, 7, 2), 3, 2)
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for i in range(depth):
            stride = 2 if stage and i == 0 else 1
            if bottleneck:
                x = f.bottleneck(n, x, 4 * width, width * (1 if groups == 1 else 2), stride, groups)
            else:
                x = f.basic(n, x, width, stride)
    return n.done(f.classes(n, x))


def inverted(
    size: int,
    rows: Sequence[tuple[int, int, int, int, int]],
    act: str,
    se: bool,
    stem: int,
    last: int,
) -> Graph:
    """Inverted residuals; `rows`: expansion, channels, count, stride, kernel (Sandler et al. 2018)."""
    n = Layers.on("inverted residual network", size, size, 3)
    x = n.conv_norm_act(n.input, stem, 3, 2, act=act)
    for expand, out, count, stride, kernel in rows:
        for i in range(count):
            x = f.inverted(n, x, out, expand, kernel, stride if i == 0 else 1, act, se)
    return n.done(f.classes(n, n.conv_norm_act(x, last, 1, act=act)))


def dense_net(size: int, depths: Sequence[int]) -> Graph:
    """Dense blocks of growth 32 with transitions between them (Huang et al. 2017)."""
    n = Layers.on("dense network", size, size, 3)
    x = n.pool(n.conv_norm_act(n.input, 64, 7, 2), 3, 2)
    for stage, depth in enumerate(depths):
        if stage:
            x = f.transition(n, x)
        for _ in range(depth):
            x = f.dense_net(n, x)
    return n.done(f.classes(n, n.norm_act(x)))


def vgg(size: int, depths: Sequence[int]) -> Graph:
    """Plain 3x3 convolutions with bias and max pools (Simonyan and Zisserman 2014), a small head."""
    n = Layers.on("plain network", size, size, 3)
    x = n.input
    for stage, depth in enumerate(depths):
        x = f.vgg(n, x, min(512, 64 * 2**stage), depth)
    return n.done(f.flat_classes(n, x, 1024))


def separable(size: int, width: int, middle: int) -> Graph:
    """Separable convolutions in threes with shortcuts (Chollet 2017)."""
    n = Layers.on("separable network", size, size, 3)
    x = n.conv_norm_act(n.conv_norm_act(n.input, 32, 3, 2), 64, 3)

    pair = partial(f.pair, n)
    for out in (128, 256, width):
        y = n.pool(pair(pair(x, out), out), 3, 2)
        x = n.same("add", n.conv_norm_act(x, out, 1, 2, act=None), y)
    for _ in range(middle):
        x = f.separable(n, x, width, 3)
    return n.done(f.classes(n, n.same("relu", pair(pair(x, 1536), 2048))))


def inception(size: int, rows: Sequence[tuple[int, int, int | None]]) -> Graph:
    """Branches side by side, concatenated; `rows`: count, width, kernel (Szegedy et al. 2016)."""
    n = Layers.on("network of branches", size, size, 3)
    x = n.conv_norm_act(n.conv_norm_act(n.conv_norm_act(n.input, 32, 3, 2), 32, 3), 64, 3)
    x = n.conv_norm_act(n.pool(x, 3, 2), 192, 3)
    for count, width, kernel in rows:
        x = n.pool(x, 3, 2)
        for _ in range(count):
            x = f.inception(n, x, width, kernel)
    return n.done(f.classes(n, x))


def convnext(size: int, depths: Sequence[int], width: int = 96) -> Graph:
    """Depthwise 7x7, layer norm, a perceptron on every position (Liu et al. 2022)."""
    n = Layers.on("convnext", size, size, 3)
    x = f.patchify(n, n.input, width)
    for stage, depth in enumerate(depths):
        if stage:
            x = n.conv(n.same("layer_norm", x), width * 2**stage, 2, 2, bias=True)
        for _ in range(depth):
            x = f.convnext(n, x, grouped=False)
    return n.done(f.classes(n, x))


def transformer(size: int, patch: int, features: int, heads: int, depth: int) -> Graph:
    """A vision transformer (Dosovitskiy et al. 2021) without a class token."""
    n = Layers.on("transformer", size, size, 3)
    x = n.conv(n.input, features, patch, patch, bias=True)
    tokens = (size // patch) ** 2
    builder = n.builder
    x = builder.add("reshape", [x], (1, tokens, features))
    for _ in range(depth):
        x = f.encode(builder, x, heads)
    x = builder.add("layer_norm", [x], (1, tokens, features))
    x = builder.add("global_average_pool", [x], (1, features))
    return n.done(n.dense(x, 1000, "softmax"))


def u_net(size: int, widths: Sequence[int]) -> Graph:
    """Down with max pools, up with transposed convolutions and skips (Ronneberger et al. 2015)."""
    n = Layers.on("u-net", size, size, 3)
    x, skips = n.input, []
    for width in widths[:-1]:
        x = n.conv_norm_act(n.conv_norm_act(x, width, 3), width, 3)
        skips.append(x)
        x = n.pool(x, 2, 2)
    x = n.conv_norm_act(n.conv_norm_act(x, widths[-1], 3), widths[-1], 3)
    for width, skip in zip(widths[-2::-1], skips[::-1], strict=True):
        x = n.conv_norm_act(n.conv_norm_act(n.concat(n.up(x, width), skip), width, 3), width, 3)
    return n.done(n.conv(x, 2, 1, bias=True))
