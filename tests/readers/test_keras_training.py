"""Keras' networks in training: layers, optimizers and steps that are not counted are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.readers.keras import read_model
from lolat.training.memory import numbers_of
from tests.readers.counting import refused
from tests.readers.keras_networks import graph_of, keras, kinds, layers


@pytest.mark.parametrize(
    ("trainable", "how"), [(True, {}), (False, {}), (True, {"training": False})]
)
def test_batch_norms_that_keras_runs_at_inference_in_training_are_marked(
    trainable: bool, how: dict[str, Any]
) -> None:
    """Its own step changes the means of the others; fit overrides the argument training=False."""
    base = keras.Sequential(
        [keras.Input((7, 9, 2)), layers.Conv2D(5, 3), layers.BatchNormalization()]
    )
    base.trainable, inputs = trainable, keras.Input((7, 9, 2))
    network = keras.Model(inputs, layers.BatchNormalization()(base(inputs, **how)))
    norms = base.layers[-1], network.layers[-1]
    graph = read_model(network)
    network(keras.random.normal((4, 7, 9, 2)), training=True)
    own = [bool(keras.ops.all(norm.moving_mean == 0.0)) for norm in norms]
    assert ["stored" in o.attributes for o in graph.operations if o.kind == "batch_norm"] == own


class Branching(keras.layers.Layer):
    """Has a layer that runs in training alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.more = keras.layers.Dense(8), keras.layers.Dense(64)

    def call(self, x: Any, training: bool = False) -> Any:
        y = self.body(x)
        if training:
            y = y + keras.ops.mean(self.more(x), -1, keepdims=True)
        return y


def test_parameters_of_a_layer_that_runs_in_training_alone_are_told() -> None:
    x = keras.Input((16,))
    layer = Branching()
    layer(x, training=True)
    graph = read_model(keras.Model(x, layer(x)))
    unread, every = 64 * 17, 64 * 17 + 8 * 17
    assert any(f"{unread:,} of its {every:,} parameters" in remark for remark in graph.warnings)
    assert graph.training_only == ("what Branching.call does if it is training",)


class Positions(keras.layers.Layer):
    """Adds learned positions, as the guides of Keras do."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.rows, self.how = keras.layers.Embedding(40, 512), how
        self.rows.build((8,))

    def call(self, x: Any) -> Any:
        steps, table = keras.ops.arange(8), self.rows.embeddings
        return (
            x
            + {
                "rows": lambda: self.rows(steps),
                "axis": lambda: self.rows(keras.ops.expand_dims(steps, 0)),
                "slice": lambda: keras.ops.slice(table, (0, 0), (8, 512)),
                "index": lambda: table[:8],
                "take": lambda: keras.ops.take(table, steps, 0),
            }[self.how]()
        )


@pytest.mark.parametrize("how", ["rows", "axis", "slice", "index", "take"])
def test_positions_that_depend_on_no_input_are_trained(how: str) -> None:
    """All of their table, of which these inputs need eight rows."""
    x = keras.Input((8, 512))
    model = keras.Model(x, Positions(how)(x))
    graph = read_model(model)
    assert not any("no operation" in remark for remark in graph.warnings)
    assert numbers_of(graph).trained == model.count_params() == 40 * 512


def test_a_training_step_of_the_users_is_no_usual_one() -> None:
    class Own(keras.Model):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    x = keras.Input((16,))
    graph = read_model(Own(x, keras.layers.Dense(4)(x)))
    assert graph.training_obstacles == ("it has a train_step of its own, which is not read",)


class Monte(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm, self.dense = (
            layers.Dropout(0.5), layers.BatchNormalization(), layers.Dense(4)
        )  # fmt: skip

    def call(self, x: Any) -> Any:
        return self.dense(self.norm(self.drop(x, training=True), training=True))


@pytest.mark.parametrize("own", [True, False])
def test_layers_that_act_as_in_training_are_told(own: bool) -> None:
    x, net = keras.Input((16,)), Monte()
    graph = read_model(net if own else keras.Model(x, net.call(x)), "", (16,))
    assert sum("2 layers called with training=True" in remark for remark in graph.warnings) == 1
    assert kinds(graph) == ["batch_norm", "dense"]


@pytest.mark.parametrize("how", ["jit_compile", "run_eagerly"])
def test_how_it_is_compiled_is_told(how: str) -> None:
    net = keras.Sequential([keras.Input((16,)), layers.Dense(4)])
    net.compile()
    assert not read_model(net).warnings
    net.compile(**{how: True})
    assert [f"({how}=True)" in remark for remark in read_model(net).warnings] == [True]


def test_adapters_are_refused() -> None:
    net = keras.Sequential([keras.Input((16,)), layers.Dense(8)])
    net.layers[0].enable_lora(3)
    refused(net, "enable_lora")


def test_a_pair_of_a_network_and_its_inputs_is_refused() -> None:
    net = keras.Sequential([keras.Input((16,)), layers.Dense(4)])
    refused((net, [[0.0] * 16]), "a tuple is a network of PyTorch and its inputs")


def test_what_acts_in_training_only_is_told() -> None:
    tokens = keras.Input((6, 8))
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(tokens, tokens)
    x = layers.LSTM(4, return_sequences=True, recurrent_dropout=0.2)(x)
    x = layers.BatchNormalization(synchronized=True)(layers.Dropout(0.1)(x))
    assert read_model(keras.Model(tokens, x)).training_only == (
        "drops of 1 MultiHeadAttention", "drops of 1 LSTMCell",
        "exchanges between devices of 1 BatchNormalization",
    )  # fmt: skip


@pytest.mark.parametrize("is_file", [False, True])
def test_settings_of_the_optimizer_are_told(tmp_path: Path, is_file: bool) -> None:
    net = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
    adam = keras.optimizers.Adam(gradient_accumulation_steps=8, use_ema=True, global_clipnorm=1.5)
    net.compile(keras.optimizers.LossScaleOptimizer(adam))
    of, file = "of the compiled optimizer", tmp_path / "net.keras"
    net.save(file)
    graph = lolat.read(file) if is_file else read_model(net)
    assert graph.training_only == (
        "scaling of the loss by LossScaleOptimizer", f"the kind {of} (Adam): that of the question counts",
        f"gradient_accumulation_steps=8 {of}", f"use_ema=1 {of}", f"global_clipnorm=1.5 {of}",
    )  # fmt: skip


def test_what_a_step_does_with_kernels_besides_products_is_told() -> None:
    plain = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
    plain.compile("sgd")
    assert not read_model(plain).training_only
    limited = layers.Dense(8, kernel_regularizer="l2", bias_constraint="non_neg")
    spectral = layers.SpectralNormalization(layers.Dense(8))
    assert read_model(keras.Sequential([keras.Input((8,)), limited, spectral])).training_only == (
        "regularizers of 1 Dense", "constraints of 1 Dense",
        "power iterations of 1 SpectralNormalization",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (layers.LSTM(4, recurrent_dropout=0.2), "multiplies gate by gate"),
        (layers.TimeDistributed(layers.Dense(4)), "runs its layer on one time step"),
    ],
)
def test_a_layer_that_runs_otherwise_than_it_is_counted_is_told(layer: Any, told: str) -> None:
    (warning,) = graph_of(layer, (6, 8)).warnings
    assert told in warning
    assert not graph_of(layers.LSTM(4), (6, 8)).warnings
