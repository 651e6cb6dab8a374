"""A widened graph against the network that is really narrower, as Keras builds it: within 2 %."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("keras")

import lolat
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.width import scaled, widened, widths
from lolat.readers import read
from tests.readers.keras_networks import graph_of, keras, layers, ops

Width = Callable[[int], int]


def conv(x: Any, filters: int, kernel: Any = 1, act: str | None = "relu", **options: Any) -> Any:
    x = layers.Conv2D(filters, kernel, padding="same", use_bias=False, **options)(x)
    x = layers.BatchNormalization()(x)
    return x if act is None else layers.Activation(act)(x)


def head(x: Any) -> Any:
    return layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x))


def mobilenet(w: Width, x: Any) -> Any:
    x = conv(x, w(32), 3, strides=2)
    for out, mid, again in ((16, 96, False), (16, 96, True), (24, 144, False)):
        y = conv(x, w(mid), 1, "silu")
        y = layers.DepthwiseConv2D(5, padding="same", use_bias=False)(y)
        y = layers.Activation("silu")(layers.BatchNormalization()(y))
        s = layers.GlobalAveragePooling2D()(y)
        s = layers.Reshape((1, 1, s.shape[-1]))(s)
        s = layers.Conv2D(w(mid), 1, activation="sigmoid")(layers.Conv2D(w(24), 1)(s))
        y = conv(layers.Multiply()([y, s]), w(out), 1, None)
        x = layers.Add()([x, y]) if again else y
    return head(x)


def densenet(w: Width, x: Any) -> Any:
    x = conv(x, w(32), 3)
    for _ in range(3):
        y = conv(conv(x, w(64)), w(16), 3)
        x = layers.Concatenate()([x, y])
    x = layers.AveragePooling2D(2)(conv(x, w(40)))
    return head(layers.Concatenate(axis=-1)([x, conv(x, w(16), 3)]))


def grouped(w: Width, x: Any) -> Any:
    x = conv(x, w(64), 3)
    x = layers.Add()([x, conv(conv(conv(x, w(64)), w(64), 3, groups=8), w(64))])
    x = layers.Conv2D(x.shape[-1], 7, padding="same", groups=x.shape[-1])(x)  # as in ConvNeXt
    x = layers.SeparableConv2D(w(32), 3, depth_multiplier=2)(layers.LayerNormalization()(x))
    return head(x)


def unet(w: Width, x: Any) -> Any:
    skip = conv(x, w(16), 3)
    x = conv(layers.MaxPooling2D()(skip), w(32), 3)
    up = layers.Conv2DTranspose(w(16), 2, strides=2)(x)
    x = conv(layers.Concatenate()([up, skip, layers.UpSampling2D()(x)]), w(16), 3)
    return layers.Conv2D(2, 1)(x)


def vit(w: Width, x: Any) -> Any:
    x = layers.Reshape((64, w(48)))(layers.Conv2D(w(48), 4, strides=4)(x))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, w(24), value_dim=w(16))(y, y)])
        y = layers.Dense(w(96), activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(w(48))(y)])
    return layers.Dense(7)(ops.mean(x, axis=1) + x[:, 0])


def recurrent(w: Width, x: Any) -> Any:
    x = layers.Embedding(100, w(32))(x)
    x = layers.Bidirectional(layers.LSTM(w(24), return_sequences=True))(x)
    x, state = layers.GRU(w(16), return_sequences=True, return_state=True)(x)
    return layers.Dense(3)(layers.GRU(w(16))(x, initial_state=state))


def shared(w: Width, x: Any) -> Any:
    layer = layers.Conv2D(w(32), 3, padding="same")
    x = conv(x, w(32), 3)
    x = layer(layer(x))
    parts = ops.split(conv(x, 2 * w(32)), 2, axis=-1)
    gate = layers.Dense(w(32), activation="sigmoid")(layers.GlobalAveragePooling2D()(x))
    return head(layers.Multiply()([x, layers.Reshape((1, 1, -1))(gate)]) + parts[0] * parts[1])


class Positions(layers.Layer):
    """Adds a constant operand, which follows the channels it is added to."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(1, *shape[1:]))

    def call(self, x: Any) -> Any:
        return x + self.table


def with_a_constant(w: Width, x: Any) -> Any:
    return layers.Dense(3)(Positions()(layers.Dense(w(32))(x)))


def channels_first(w: Width, x: Any) -> Any:
    x = layers.Conv2D(w(32), 3, data_format="channels_first")(x)
    x = layers.MaxPooling2D(data_format="channels_first")(layers.ReLU()(x))
    x = layers.Concatenate(axis=1)([x, x])
    x = layers.Conv2D(w(32), 1, groups=2, data_format="channels_first")(x)
    return layers.Dense(3)(layers.GlobalAveragePooling2D(data_format="channels_first")(x))


IMAGE = (32, 32, 3)
NETWORKS: list[tuple[Callable[[Width, Any], Any], tuple[int, ...], str]] = [
    *((n, IMAGE, "float32") for n in (mobilenet, densenet, grouped, unet, vit, shared)),
    (recurrent, (12,), "int32"),
    (with_a_constant, (10, 8), "float32"),
    (channels_first, (3, 20, 20), "float32"),
]
CLOSE = 0.02
MODELS = ("epyc-2t", "rtx-4090-amp")
"""One that counts, and one that looks at the shapes of operations."""


def check(found: Graph, really: Graph) -> None:
    """MACs, weights, activations and times are those of the network that is really so wide."""
    ours, theirs = count(found).total(3), count(really).total(3)
    for name in ("flops", "weights", "acts"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=CLOSE)
    for name in MODELS:
        model = lolat.load(name)
        wanted = model.predict(really, 3).latency_ms
        assert model.predict(found, 3).latency_ms == pytest.approx(wanted, rel=CLOSE)


@pytest.mark.parametrize(("network", "shape", "dtype"), NETWORKS)
@pytest.mark.parametrize("factor", [0.5, 0.75, 2.0])
def test_a_widened_graph_costs_what_the_other_network_does(
    network: Callable[[Width, Any], Any], shape: tuple[int, ...], dtype: str, factor: float
) -> None:
    graph = graph_of(lambda x: network(lambda n: n, x), shape, dtype=dtype)
    # The groups of `grouped` are 8, so that multiples of 8 are all that is needed.
    really = graph_of(lambda x: network(lambda n: scaled(n, factor), x), shape, dtype=dtype)
    check(widened(graph, factor), really)
    assert count(really).total() != count(graph).total()
    assert widened(graph, 1.0) == graph


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75])
def test_mobilenet_of_keras_applications(alpha: float) -> None:
    """Its own rounding: int(filters * alpha), which are multiples of 8 for these."""
    make = keras.applications.MobileNet
    whole, narrow = (read(make(alpha=a, weights=None)) for a in (1.0, alpha))
    check(widened(whole, alpha), narrow)


def test_the_packed_projection_of_pytorch_is_three_times_its_input() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = torch.nn.Linear(8, width)
            self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
            self.last = torch.nn.Linear(width, 3)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            return self.last(x + self.attention(x, x, x, need_weights=False)[0])

    narrow, wide = (
        read(Net(n), input_size=[(10, 8)]) for n in (224, 256)
    )  # 4 heads of 56 and of 64
    found = widened(wide, 0.85)
    assert [t.shape for t in found.tensors] == [t.shape for t in narrow.tensors]
    assert [o.attributes for o in found.operations] == [o.attributes for o in narrow.operations]


@pytest.mark.parametrize("factor", [0.58, 0.7, 0.9])
def test_heads_divide_a_narrower_embedding(factor: float) -> None:
    """Attention as vision transformers write it: one layer of queries, keys and values of 12 heads."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, width: int) -> None:
            super().__init__()
            assert width % 12 == 0
            self.first = torch.nn.Linear(8, width)
            self.packed = torch.nn.Linear(width, 3 * width)
            self.proj = torch.nn.Linear(width, width)
            self.last = torch.nn.Linear(width, 3)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            b, n, c = x.shape
            q, k, v = self.packed(x).reshape(b, n, 3, 12, c // 12).permute(2, 0, 3, 1, 4).unbind(0)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.last(x + self.proj(y.transpose(1, 2).reshape(b, n, c)))

    graph = read(Net(768), input_size=[(10, 8)])
    width = dict(widths(graph).pairs(factor))[768]
    narrow, found = read(Net(width), input_size=[(10, 8)]), widened(graph, factor)
    assert [t.shape for t in found.tensors] == [t.shape for t in narrow.tensors]
    assert [o.attributes for o in found.operations] == [o.attributes for o in narrow.operations]
