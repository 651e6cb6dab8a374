"""Predefined blocks that are no convolutional family: pooling, normalisation, classifiers, the way up."""

from __future__ import annotations

from lolat.graph import Graph, GraphBuilder
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
    x = n.up(n.input, channels // 2)
    return n.done(n.cba(n.concat(x, skip), channels // 2, 3))


def encoder(tokens: int, features: int, heads: int, count: int = 1) -> Graph:
    """Transformer blocks: attention and a perceptron, each behind a layer norm, with shortcuts."""
    builder = GraphBuilder(f"encoder {tokens}x{features}")
    x = builder.input((1, tokens, features))
    for _ in range(count):
        x = encode(builder, x, heads)
    return builder.build([x])


def encode(builder: GraphBuilder, x: int, heads: int) -> int:
    """One transformer block on a tensor of (1, tokens, features)."""
    _, tokens, features = builder.tensors[x].shape
    each = features // heads
    shape, split, turned = (1, tokens, features), (1, tokens, heads, each), (1, heads, tokens, each)

    def dense(x: int, units: int) -> int:
        inside = builder.tensors[x].shape[-1]
        return builder.add(
            "dense", [x], (1, tokens, units), in_features=inside, out_features=units, bias=True
        )

    y = builder.add("layer_norm", [x], shape)
    query, key, value = (
        builder.add("transpose", [builder.add("reshape", [dense(y, features)], split)], turned)
        for _ in range(3)
    )
    scores = builder.add("matmul", [query, key], (1, heads, tokens, tokens), contracted=each)
    scores = builder.add("softmax", [builder.add("scale", [scores], (1, heads, tokens, tokens))],
                         (1, heads, tokens, tokens))  # fmt: skip
    y = builder.add("matmul", [scores, value], turned, contracted=tokens)
    y = builder.add("reshape", [builder.add("transpose", [y], split)], shape)
    x = builder.add("add", [x, dense(y, features)], shape)
    y = dense(builder.add("layer_norm", [x], shape), 4 * features)
    y = builder.add("gelu", [y], (1, tokens, 4 * features))
    return builder.add("add", [x, dense(y, features)], shape)


def token_mlp(tokens: int, features: int, hidden: int, act: str = "gelu") -> Graph:
    """A perceptron of two dense layers on every token."""
    n = Layers(f"token mlp {tokens}x{features}", 1, features)
    builder = GraphBuilder(f"token mlp {tokens}x{features}")
    n.builder, n.input = builder, builder.input((1, tokens, features))
    return n.done(n.dense(n.dense(n.input, hidden, act), features))
