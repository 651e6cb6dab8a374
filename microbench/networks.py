"""Whole networks, from the input to the classes, as Graphs: the points of real size among the blocks.

A block alone does not say how much slower everything is inside a network. These do: one of each family,
with the depths and widths that published networks have, small enough for some ten calls a second.
"""

from __future__ import annotations

from collections.abc import Sequence

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
                mid = width if groups == 1 else 2 * width
                x = f.add_bottleneck(n, x, 4 * width, mid, stride, groups)
            else:
                x = f.add_basic(n, x, width, stride)
    return f.classified(n, x)


def inverted(
    size: int, rows: Sequence[tuple[int, ...]], act: str, se: bool, stem: int, last: int
) -> Graph:
    """Inverted residuals; `rows`: expansion, channels, count, stride, kernel (Sandler et al. 2018)."""
    n = Layers.on("inverted residual network", size, size, 3)
    x = n.conv_norm_act(n.input, stem, 3, 2, act=act)
    for expand, out, count, stride, kernel in rows:
        for i in range(count):
            x = f.add_inverted(n, x, out, expand, kernel, stride if i == 0 else 1, act, se)
    return f.classified(n, n.conv_norm_act(x, last, 1, act=act))


def dense_net(size: int, depths: Sequence[int]) -> Graph:
    """Dense blocks of growth 32 with transitions between them (Huang et al. 2017)."""
    n = Layers.on("dense network", size, size, 3)
    x = n.pool(n.conv_norm_act(n.input, 64, 7, 2), 3, 2)
    for stage, depth in enumerate(depths):
        if stage:
            x = f.add_transition(n, x)
        for _ in range(depth):
            x = f.add_dense(n, x)
    return f.classified(n, n.norm_act(x))


def vgg(size: int, depths: Sequence[int]) -> Graph:
    """Plain 3x3 convolutions with bias and max pools (Simonyan and Zisserman 2014), a small head."""
    n = Layers.on("plain network", size, size, 3)
    x = n.input
    for stage, depth in enumerate(depths):
        for _ in range(depth):
            x = f.add_plain(n, x, min(512, 64 * 2**stage))
        x = n.pool(x, 2, 2)
    return n.done(n.dense(n.dense(n.flatten(x), 1024, "relu"), 1000, "softmax"))


def separable(size: int, width: int, middle: int) -> Graph:
    """Separable convolutions in threes with shortcuts (Chollet 2017)."""
    n = Layers.on("separable network", size, size, 3)
    x = n.conv_norm_act(n.conv_norm_act(n.input, 32, 3, 2), 64, 3)

    for out in (128, 256, width):
        y = n.pool(f.add_separable(n, x, out, count=2), 3, 2)
        x = n.same("add", n.conv_norm_act(x, out, 1, 2, act=None), y)
    for _ in range(middle):
        x = n.same("add", x, f.add_separable(n, x, width, count=3))
    x = f.add_separable(n, f.add_separable(n, x, 1536), 2048)
    return f.classified(n, n.same("relu", x))


def inception(size: int, rows: Sequence[tuple[int, int, int | None]]) -> Graph:
    """Branches side by side, concatenated; `rows`: count, width, kernel (Szegedy et al. 2016)."""
    n = Layers.on("network of branches", size, size, 3)
    x = n.conv_norm_act(n.conv_norm_act(n.conv_norm_act(n.input, 32, 3, 2), 32, 3), 64, 3)
    x = n.conv_norm_act(n.pool(x, 3, 2), 192, 3)
    for count, width, kernel in rows:
        x = n.pool(x, 3, 2)
        for _ in range(count):
            x = f.add_inception(n, x, width, kernel)
    return f.classified(n, x)


def convnext(size: int, depths: Sequence[int], width: int = 96) -> Graph:
    """Depthwise 7x7, layer norm, a perceptron on every position (Liu et al. 2022)."""
    n = Layers.on("convnext", size, size, 3)
    x = n.same("layer_norm", n.conv(n.input, width, 4, 4, bias=True))
    for stage, depth in enumerate(depths):
        if stage:
            x = n.conv(n.same("layer_norm", x), width * 2**stage, 2, 2, bias=True)
        for _ in range(depth):
            x = f.add_convnext(n, x, grouped=False)
    return f.classified(n, x)


def transformer(size: int, patch: int, features: int, heads: int, depth: int) -> Graph:
    """A vision transformer (Dosovitskiy et al. 2021) without a class token."""
    n = Layers.on("transformer", size, size, 3)
    x = n.conv(n.input, features, patch, patch, bias=True)
    x = n.view(x, (size // patch) ** 2, features)
    for _ in range(depth):
        x = f.add_encoder(n, x, heads)
    x = n.add("global_average_pool", [n.same("layer_norm", x)], (1, features))
    return n.done(n.dense(x, 1000, "softmax"))


def u_net(size: int, widths: Sequence[int]) -> Graph:
    """Down with max pools, up with transposed convolutions and skips (Ronneberger et al. 2015)."""
    n = Layers.on("u-net", size, size, 3)

    def double(x: int, width: int) -> int:
        return n.conv_norm_act(n.conv_norm_act(x, width, 3), width, 3)

    x, skips = n.input, []
    for width in widths[:-1]:
        skips.append(double(x, width))
        x = n.pool(skips[-1], 2, 2)
    x = double(x, widths[-1])
    for width, skip in zip(widths[-2::-1], skips[::-1], strict=True):
        x = double(n.concat(n.up(x, width), skip), width)
    return n.done(n.conv(x, 2, 1, bias=True))
