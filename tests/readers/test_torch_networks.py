"""Networks in the styles of torchvision and timm: the same counts as the same network written in Keras."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

import lolat
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from tests.readers import torch_networks as nets
from tests.readers.keras_networks import functional, layers, ops, read_model
from tests.readers.torch_networks import graph_of


def conv(x: Any, filters: int, kernel: int = 1, stride: int = 1, bias: bool = False) -> Any:
    """PyTorch's convolution: padded by half the kernel on both sides."""
    if stride > 1 and kernel > 1:
        x = layers.ZeroPadding2D(kernel // 2)(x)
    padding = "valid" if stride > 1 else "same"
    return layers.Conv2D(filters, kernel, stride, padding, use_bias=bias)(x)


def normal(x: Any, act: str | None = "relu") -> Any:
    x = layers.BatchNormalization()(x)
    return layers.Activation(act)(x) if act else x


def bottleneck(x: Any, width: int, stride: int = 1) -> Any:
    identity = x
    y = normal(conv(x, width))
    y = normal(conv(y, width, 3, stride))
    y = normal(conv(y, 4 * width), None)
    if stride > 1 or x.shape[-1] != 4 * width:
        identity = normal(conv(x, 4 * width, 1, stride), None)
    return layers.ReLU()(layers.Add()([y, identity]))


def resnet(x: Any, depths: tuple[int, ...]) -> Any:
    x = layers.MaxPooling2D(3, 2, "same")(normal(conv(x, 64, 7, 2)))
    for stage, depth in enumerate(depths):
        for i in range(depth):
            x = bottleneck(x, 64 << stage, 2 if i == 0 and stage else 1)
    return layers.Dense(1000)(layers.GlobalAveragePooling2D()(x))


def inverted(
    x: Any, outside: int, stride: int, kernel: int, act: str, reduced: int, gate: str
) -> Any:
    inside = x.shape[-1]
    y = normal(conv(x, 6 * inside), act)
    if stride > 1:
        y = layers.ZeroPadding2D(kernel // 2)(y)
    padding = "valid" if stride > 1 else "same"
    y = normal(layers.DepthwiseConv2D(kernel, stride, padding, use_bias=False)(y), act)
    if reduced:
        s = layers.Reshape((1, 1, 6 * inside))(layers.GlobalAveragePooling2D()(y))
        s = layers.Activation("relu" if act == "hard_silu" else act)(conv(s, reduced, bias=True))
        s = layers.Activation(gate)(conv(s, 6 * inside, bias=True))
        y = layers.Multiply()([s, y])
    y = normal(conv(y, outside), None)
    return layers.Add()([x, y]) if stride == 1 and inside == outside else y


def mobilenet(act: str, reduced: int = 0, gate: str = "sigmoid") -> Callable[[Any], Any]:
    def network(x: Any) -> Any:
        x = normal(conv(x, 16, 3, 2), act)
        for outside, stride, kernel in ((24, 2, 3), (24, 1, 3), (32, 2, 5)):
            x = inverted(x, outside, stride, kernel, act, reduced, gate)
        x = normal(conv(x, 64), act)
        return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))

    return network


def densenet(x: Any) -> Any:
    def block(x: Any, depth: int) -> Any:
        features = [x]
        for _ in range(depth):
            y = ops.concatenate(features, -1)  # torchvision's concatenates the first one alone too
            y = conv(layers.ReLU()(layers.BatchNormalization()(y)), 32)
            features.append(conv(layers.ReLU()(layers.BatchNormalization()(y)), 8, 3))
        return layers.Concatenate()(features)

    x = normal(block(conv(x, 16, 3), 3))
    x = normal(block(layers.AveragePooling2D(2)(conv(x, 20)), 2))
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def shufflenet(x: Any) -> Any:
    x = normal(conv(x, 16, 3, 2))
    for _ in range(2):
        x1, x2 = ops.split(x, 2, axis=-1)
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(normal(conv(x2, 8)))
        y = normal(conv(layers.BatchNormalization()(y), 8))
        x = layers.Concatenate()([x1, y])
        x = layers.Reshape((16, 16, 2, 8))(x)
        x = layers.Reshape((16, 16, 16))(layers.Permute((1, 2, 4, 3))(x))
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def unet(x: Any) -> Any:
    def double(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.ReLU()(conv(x, filters, 3, bias=True))
        return x

    a = double(x, 8)
    b = double(layers.MaxPooling2D()(a), 16)
    c = double(layers.MaxPooling2D()(b), 32)
    y = double(layers.Concatenate()([layers.Conv2DTranspose(16, 2, 2)(c), b]), 16)
    y = double(layers.Concatenate()([layers.Conv2DTranspose(8, 2, 2)(y), a]), 8)
    return conv(y, 2, bias=True)


class Scale(layers.Layer):  # type: ignore[misc, name-defined]
    """A learned factor for each channel."""

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=(shape[-1],))

    def call(self, x: Any) -> Any:
        return self.gamma * x


def convnext(x: Any) -> Any:
    x = layers.LayerNormalization()(layers.Conv2D(16, 4, 4)(x))
    for _ in range(2):
        y = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(x))
        y = layers.Dense(16)(layers.Activation("gelu")(layers.Dense(64)(y)))
        x = layers.Add()([x, Scale()(y)])
    return layers.Dense(10)(layers.LayerNormalization()(layers.GlobalAveragePooling2D()(x)))


class Positions(layers.Layer):  # type: ignore[misc, name-defined]
    """A learned vector added to each token."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(1, *shape[1:]))

    def call(self, x: Any) -> Any:
        return x + self.table


def vit(x: Any) -> Any:
    x = Positions()(layers.Reshape((16, 24))(layers.Conv2D(24, 8, 8)(x)))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(3, 8)(y, y)])
        y = layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(24)(y)])
    return layers.Dense(10)(ops.mean(layers.LayerNormalization()(x), 1))


class Windows(layers.Layer):  # type: ignore[misc, name-defined]
    """Swin's window attention, written with keras.ops."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.qkv, self.proj = layers.Dense(36), layers.Dense(12)

    def build(self, shape: Any) -> None:
        self.bias_table = self.add_weight(shape=(1, 3, 16, 16))

    def call(self, x: Any) -> Any:
        if self.shift:
            x = ops.roll(x, (-self.shift, -self.shift), (1, 2))
        x = ops.transpose(ops.reshape(x, (-1, 2, 4, 2, 4, 12)), (0, 1, 3, 2, 4, 5))
        qkv = ops.reshape(self.qkv(ops.reshape(x, (-1, 16, 12))), (-1, 16, 3, 3, 4))
        q, k, v = ops.unstack(ops.transpose(qkv, (2, 0, 3, 1, 4)), 3, 0)
        attn = ops.matmul(q * 0.5, ops.transpose(k, (0, 1, 3, 2)))
        attn = ops.softmax(attn + self.bias_table)
        x = ops.reshape(ops.transpose(ops.matmul(attn, v), (0, 2, 1, 3)), (-1, 16, 12))
        x = ops.reshape(self.proj(x), (-1, 2, 2, 4, 4, 12))
        x = ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, 8, 8, 12))
        return ops.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


def swin(x: Any) -> Any:
    x = layers.Conv2D(12, 4, 4)(x)
    for shift in (0, 2):
        x = layers.Add()([x, Windows(shift)(layers.LayerNormalization()(x))])
    return layers.Dense(5)(layers.GlobalAveragePooling2D()(x))


NETWORKS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], int]] = {
    "resnet": (lambda: nets.ResNet((2, 1)), lambda x: resnet(x, (2, 1)), 64),
    "mobilenet": (nets.mobilenet, mobilenet("relu6"), 32),
    "mobilenet_v3": (nets.mobilenet_v3, mobilenet("hard_silu", 16, "hard_sigmoid"), 32),
    "efficientnet": (nets.efficientnet, mobilenet("silu", 8), 32),
    "densenet": (nets.densenet, densenet, 16),
    "shufflenet": (nets.shufflenet, shufflenet, 32),
    "unet": (nets.UNet, unet, 16),
    "convnext": (nets.convnext, convnext, 32),
    "vit": (nets.vit, vit, 32),
    "swin": (nets.swin, swin, 32),
}
"""The module, the same written in Keras, and the size of its images."""


OTHERWISE = ("vit",)
"""What PyTorch runs in other operations: its attention projects all at once, and turns what comes of it."""
SAME = (
    "acts",
    "inp",
    "flops",
    "weights",
    "product_macs",
    "dense_macs",
    "conv_ops",
    "norm_ops",
    "exps",
)


@functools.cache
def in_torch(name: str) -> Graph:
    """The graph of a module of NETWORKS; its parameters change nothing of it."""
    make, _, size = NETWORKS[name]
    return graph_of(make, (3, size, size))


@functools.cache
def in_keras(name: str) -> Graph:
    """The graph of the same network in Keras."""
    _, call, size = NETWORKS[name]
    return read_model(functional(call, (size, size, 3)))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_network_in_keras_counts_the_same(name: str) -> None:
    ours, theirs = in_torch(name), in_keras(name)
    assert count(ours).warnings == ()
    for batch_size in (1, 3):
        found, expected = (count(g).total(batch_size)._asdict() for g in (ours, theirs))
        same = SAME if name in OTHERWISE else found
        assert {c: found[c] for c in same} == {c: expected[c] for c in same}
    if name in OTHERWISE:
        return
    # Cut alike, where no names guide it.
    assert [b.summary for b in cut(nameless(ours))] == [b.summary for b in cut(nameless(theirs))]


def test_resnet50_in_both_is_the_published_one() -> None:
    """fvcore's 4.09 GMACs and 11.1 M activations, 25,557,032 parameters, of which 53,120 are of norms.

    Not Keras' own, whose stride is in the first 1x1 of a block: 3.86 GMACs.
    """
    ours = lolat.read("tests.readers.torch_networks:resnet50", 224)
    theirs = read_model(functional(lambda x: resnet(x, (3, 4, 6, 3)), (224, 224, 3)))
    assert count(ours).total(8) == count(theirs).total(8)
    found = count(ours).total(8)
    assert (round(found.flops / 8e9, 2), found.acts) == (4.09, 8 * 11_113_984)
    assert found.weights == 25_557_032 - 53_120
    blocks = [[b.summary for b in cut(nameless(graph))] for graph in (ours, theirs)]
    assert blocks[0] == blocks[1]
    labels = [b.label for b in cut(ours)]
    assert labels[:3] + labels[-2:] == ["stem", "layer1.0", "layer1.1", "layer4.2", "head"]
    assert len(labels) == 18
    names = [o.full_name for o in ours.operations]
    assert (names[0], names[4]) == ("conv1", "layer1.0/conv1")


def nameless(graph: Graph) -> Graph:
    """The graph as if nobody had named anything."""
    named = (
        structs.replace(o, name=f"{o.kind}_{i}", path="") for i, o in enumerate(graph.operations)
    )
    return structs.replace(graph, operations=tuple(named))
