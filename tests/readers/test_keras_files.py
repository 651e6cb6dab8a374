"""`.keras` files: read without weights and in safe mode; damaged and foreign ones are one line."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from lolat.readers import open_network
from tests.readers.counting import refused as refused_to_read
from tests.readers.keras_networks import keras, kinds, layers


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, compiled and saved."""
    stack = [layers.Conv2D(4, 3), layers.ReLU(), layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((9, 7, 2)), *stack])
    model.compile("adam", "mse")
    path = tmp_path_factory.mktemp("saved") / "small.keras"
    model.save(path)
    return path


def refused(path: Path | str, *parts: str) -> None:
    """Check that a file is refused with weights and without."""
    refused_to_read(path, *parts)
    for weights in (False, True):
        with pytest.raises(NetworkError) as caught:
            open_network(str(path), weights=weights)
        assert str(caught.value).isprintable()
        assert all(part in str(caught.value) for part in parts)


def test_a_file_counts_as_the_network_that_was_saved(saved: Path) -> None:
    graph = lolat.read(saved)
    assert graph.name == "small"
    assert kinds(graph) == ["conv", "relu", "dense"]
    assert count(graph).total().flops == 35 * 4 * 18 + 140 * 3
    assert lolat.read(str(saved)) == graph
    upper = saved.with_name("SMALL.KERAS")
    upper.write_bytes(saved.read_bytes())
    assert len(lolat.read(upper).operations) == 4
    # With its weights it runs.
    model = open_network(str(saved), weights=True).model
    x = np.ones((2, 9, 7, 2), "float32")
    assert (model(x).numpy() == keras.saving.load_model(saved)(x).numpy()).all()


def test_a_quantized_file_is_refused(tmp_path: Path) -> None:
    x = keras.Input((8, 32))
    network = keras.Model(x, layers.Dense(4, name="last")(layers.MultiHeadAttention(2, 16)(x, x)))
    network.quantize("int8")
    network.save(tmp_path / "int8.keras")
    refused_to_read(tmp_path / "int8.keras", "last of", "before quantize()")


def test_code_in_a_file_is_refused(tmp_path: Path) -> None:
    x = keras.Input((3,))
    keras.Model(x, layers.Lambda(lambda t: t * 2)(x)).save(tmp_path / "code.keras")
    refused(tmp_path / "code.keras", "code.keras")


def test_files_that_are_something_else(tmp_path: Path, saved: Path) -> None:
    path = tmp_path / "cut.keras"
    for content in (b"something", saved.read_bytes()[:-30]):
        path.write_bytes(content)
        refused(path, "cut.keras")


def test_a_frozen_network_is_predicted_as_the_whole(tmp_path: Path, saved: Path) -> None:
    """Kernel and bias of a convolution; a file keeps that they are not trained, and so does the cache."""
    model = keras.saving.load_model(saved)
    model.layers[0].trainable = False
    model.save(tmp_path / "frozen.keras")
    device, whole = lolat.load("v100-fp32"), lolat.read(saved)
    x = keras.Input((5,))
    stopped = keras.Model(x, layers.Dense(3)(keras.ops.stop_gradient(layers.Dense(5)(x))))
    trained = sum(prod(v.shape) for v in model.trainable_variables)
    for network, number in ((tmp_path / "frozen.keras", trained),) * 2 + ((stopped, 5 * 3 + 3),):
        cost = device.cost(network, 4)
        assert cost.trained_parameters == number < cost.parameters
    assert device.cost(whole, 4).trained_parameters > trained
    frozen = device.predict(tmp_path / "frozen.keras", 4)
    assert frozen.latency_ms == device.predict(whole, 4).latency_ms


def test_recomputed_and_partly_frozen_layers_of_keras_are_not_counted() -> None:
    x = keras.Input((4, 8))
    with keras.RematScope(mode="full"):
        again = keras.Sequential([keras.Input((5,)), layers.Dense(3)])
    attention = layers.MultiHeadAttention(2, 4)
    partly = keras.Model(x, attention(x, x))
    attention._query_dense.trainable = False
    saying = {"RematScope": again, "a part of multi_head": partly}
    for said, network in saying.items():
        with pytest.raises(NetworkError, match=said):
            lolat.load("v100-fp32").cost(network, 4)


class Product(layers.Layer):
    """A product with a kernel, of which `of` makes what is multiplied, and a table that is added."""

    def __init__(self, of: Any, trainable_kernel: bool) -> None:
        super().__init__()
        self.of, self.trains = of, trainable_kernel

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], 4), trainable=self.trains)
        self.table = self.add_weight(shape=(1, shape[-1]), trainable=False)

    def call(self, x: Any) -> Any:
        return self.of(x + self.table, self.kernel)


class Random(layers.Dense):
    """A Dense layer of a random projection."""

    def build(self, shape: Any) -> None:
        self._kernel = self.add_weight(shape=(shape[-1], self.units), trainable=False)
        self.bias, self.built = None, True


class Constant(layers.Layer):
    """A product with a matrix that is no variable."""

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, keras.ops.ones((6, 4)))


@pytest.mark.parametrize(
    "of",
    [
        keras.ops.matmul,
        lambda x, kernel: x @ keras.ops.transpose(2 * keras.ops.transpose(kernel)),
        lambda x, kernel: keras.ops.einsum("ab,bc->ac", x, kernel),
        lambda x, kernel: keras.ops.conv(x[..., None], kernel[:, None], padding="same"),
    ],
)
def test_a_kernel_that_is_not_trainable_is_not_trained(of: Any) -> None:
    """Keras' list of trainable weights has one less; normalizations and tables do not matter."""

    def network(layer: Any) -> Any:
        x = keras.Input((6,))
        return keras.Model(x, layer(layers.BatchNormalization()(layers.Dense(6)(x))))

    x = keras.Input((4, 6), batch_size=2)
    states = keras.Model(x, layers.LSTM(3, stateful=True)(x))
    trained = network(Product(of, trainable_kernel=True))
    assert lolat.read(states).training_obstacles == ()
    assert lolat.read(trained).training_obstacles == ()
    device = lolat.load("v100-fp32")
    of_layers = ((Product(of, trainable_kernel=False), 5), (Random(4), 5), (Constant(), 5))
    for layer, number in of_layers:
        model = network(layer)
        assert len(model.trainable_weights) == number - 1
        trained = sum(prod(v.shape) for v in model.trainable_weights)
        assert device.cost(model, 4).trained_parameters == trained


def test_augmentation_is_told_for_training() -> None:
    network = keras.Sequential([layers.Input((8, 8, 3)), layers.RandomFlip(), layers.Conv2D(4, 3)])
    device = lolat.load("epyc-2t")
    assert [w for w in device.cost(network, 4).warnings if "random_flip" in w]
    assert not [w for w in device.predict(network, 4).warnings if "random_flip" in w]


def test_a_stateful_layer_is_read_from_a_file(tmp_path: Path) -> None:
    """By hand: 20 steps of four gates of 8 x (16 + 8), and a dense layer of 8 x 1."""
    inputs = keras.Input(batch_shape=(4, 20, 16))
    x = keras.layers.LSTM(8, stateful=True)(inputs)
    path = tmp_path / "stateful.keras"
    keras.Model(inputs, keras.layers.Dense(1)(x)).save(path)
    graph = lolat.read(path)
    assert count(graph).total(1).flops == 20 * 4 * 8 * (16 + 8) + 8
    assert any("batch is fixed at 4" in remark for remark in graph.warnings)
