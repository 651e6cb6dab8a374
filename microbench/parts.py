"""Predefined blocks that are no convolutional family: pooling, normalisation, classifiers, the way up."""

from __future__ import annotations

from lolat.graph import Graph
from microbench.layers import Layers


def pool(size: int, channels: int, kernel: int, stride: int, kind: str) -> Graph:
    """A pooling alone."""
    n = Layers(f"{kind} {channels}", size, channels)
    return n.done(n.pool(n.input, kernel, stride, kind))


def norm_act(size: int, channels: int, act: str = "relu", norm: str = "batch_norm") -> Graph:
    """Normalisation and activation alone."""
    n = Layers(f"{norm} {channels}", size, channels)
    return n.done(n.same(act, n.same(norm, n.input)))


def head(size: int, channels: int) -> Graph:
    """A classifier: global average pool, dense layer, softmax."""
    n = Layers(f"head {channels}", size, channels)
    return n.done(n.dense(n.global_pool(n.input), 1000, "softmax"))


def flat_head(size: int, channels: int, hidden: int) -> Graph:
    """VGG's classifier: flatten, two dense layers."""
    n = Layers(f"flat head {channels}", size, channels)
    return n.done(n.dense(n.dense(n.flatten(n.input), hidden, "relu"), 1000, "softmax"))


def mlp(features: int, hidden: int, count: int) -> Graph:
    """Dense layers with relu."""
    n = Layers(f"mlp {features}", 1, features)
    x = n.flatten(n.input)
    for _ in range(count):
        x = n.dense(x, hidden, "relu")
    return n.done(x)


def regularized(features: int, hidden: int, count: int) -> Graph:
    """Dense layers with relu, each followed by dropout and normalisation."""
    n = Layers(f"dense, dropout, norm {features}", 1, features)
    x = n.flatten(n.input)
    for _ in range(count):
        x = n.same("batch_norm", n.same("dropout", n.dense(x, hidden, "relu")))
    return n.done(n.dense(x, 10, "softmax"))


def small_vgg(size: int, filters: int) -> Graph:
    """A small image's network: twice two convolutions with bias, relu and a max pool; a classifier."""
    n = Layers(f"small vgg {filters}", size, 3)
    x = n.input
    for width in (filters, 2 * filters):
        for _ in range(2):
            x = n.same("relu", n.conv(x, width, 3, bias=True))
        x = n.pool(x, 2, 2)
    return n.done(n.dense(n.dense(n.flatten(x), 128, "relu"), 10, "softmax"))


def up(size: int, channels: int) -> Graph:
    """A U-Net's way up: transposed convolution, concatenation with the skip, convolution."""
    n = Layers(f"up {channels}", size, channels)
    shape = (1, 2 * size, 2 * size, channels // 2)
    skip = n.builder.input(shape)
    x = n.builder.add(
        "transposed_conv", [n.input], shape,
        kernel=(2, 2), strides=(2, 2), dilation=(1, 1), padding="same", bias=True,
        in_channels=channels, out_channels=channels // 2, groups=1,
    )  # fmt: skip
    return n.done(n.cba(n.concat(x, skip), channels // 2, 3))
