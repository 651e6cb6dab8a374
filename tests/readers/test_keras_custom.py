"""Subclassed models, custom layers, and data types."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph.counts import count
from tests.readers.counting import refused
from tests.readers.keras_networks import graph_of, keras, kinds, layers, ops, six, total

CONV = 7 * 9 * 4 * 18  # MACs of a 3x3 convolution from 2 to 4 channels on 7 x 9


def conv() -> Any:
    return layers.Conv2D(4, 3, padding="same", name="conv")


class Small(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="small")
        self.conv, self.norm, self.head = conv(), layers.BatchNormalization(), layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = ops.relu(self.norm(self.conv(inputs), training=training))
        return self.head(ops.mean(x, axis=(1, 2)) * 2.0)


def test_a_subclassed_model() -> None:
    graph = lolat.read(Small(), (7, 9, 2))
    assert kinds(graph) == ["conv", "batch_norm", "relu", "reduce", "multiply", "dense"]
    assert total(graph).flops == CONV + 12
    built = Small()
    built(np.zeros((4, 7, 9, 2), "float32"))
    assert total(lolat.read(built)) == total(graph)
    refused(Small(), "input shape of 'small' is not known", "--input-size")


def test_a_subclassed_model_with_several_inputs() -> None:
    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            parts = [inputs[k] for k in sorted(inputs)] if isinstance(inputs, dict) else inputs
            return self.dense(ops.concatenate(list(parts), axis=-1))

    arrays = [np.zeros((1, 5)), np.zeros((1, 4))]
    for inputs in (arrays, dict(zip("ab", arrays, strict=True))):
        model = Two()
        model(inputs)
        graph = lolat.read(model)
        assert graph.shapes(graph.inputs) == [(1, 5), (1, 4)]
        assert total(graph).flops == 27


def test_a_custom_layer_with_weights() -> None:
    class Scaled(layers.Layer):
        """Uses its weights through keras.ops."""

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 5))
            self.bias = self.add_weight(shape=(5,))
            self.filters = self.add_weight(shape=(3, 5, 6))

        def call(self, x: Any) -> Any:
            x = ops.matmul(x, self.kernel) + self.bias
            return ops.conv(x, self.filters, padding="same")

    graph = graph_of(Scaled(name="mine"), (11, 7))
    assert kinds(graph) == ["dense", "add", "conv"]
    assert {o.path for o in graph.operations} == {"mine"}
    expected = (66, 55, 11 * 35 + 66 * 15, 11 * 12 + 55 + 5 + 55, 35 + 90, 3)
    assert six(graph) == expected


def test_a_weight_on_the_left_of_an_operator() -> None:
    class Gain(layers.Layer):
        def build(self, shape: Any) -> None:
            self.gain = self.add_weight(shape=(shape[-1],))

        def call(self, x: Any) -> Any:
            return 2.0 - self.gain * x

    before = vars(keras.Variable).copy()
    graph = graph_of(Gain(), (5, 7))
    assert kinds(graph) == ["multiply", "subtract"]
    assert total(graph, 2).traffic == 2 * 4 * 35 + 7
    assert vars(keras.Variable) == before
    assert (2 * keras.Variable([1.0, 2.0]) * np.ones(2)).numpy().tolist() == [2.0, 4.0]


class Token(layers.Layer):
    """Repeats a learned token for each sample, as vision transformers do."""

    def build(self, shape: Any) -> None:
        self.token = self.add_weight(shape=(1, 1, shape[-1]))

    def call(self, x: Any) -> Any:
        token = ops.broadcast_to(self.token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([token, x], axis=1)


def test_a_call_that_asks_for_the_batch_size() -> None:
    graph = graph_of(lambda x: layers.Dense(3)(Token()(x)), (5, 7))
    assert kinds(graph) == ["concatenate", "dense"]
    assert total(graph, 4).flops == 4 * 6 * 7 * 3

    class WithToken(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.head = Token(), layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.head(ops.reshape(self.token.call(x), (ops.shape(x)[0], 6, 7)))

    model = WithToken()
    model.token.build((None, 5, 7))
    assert total(lolat.read(model, (5, 7)), 4).flops == 4 * 6 * 7 * 3


class TensorFlowInside(layers.Layer):
    def call(self, x: Any) -> Any:
        import tensorflow as tf

        return tf.nn.relu(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_a_layer_of_framework_functions_is_named_and_counted() -> None:
    graph = graph_of(lambda x: layers.Dense(3)(TensorFlowInside(name="odd")(x)), (7,))
    counts = count(graph)
    assert kinds(graph) == ["TensorFlowInside", "dense"]
    assert counts.total().traffic == 14 + 10
    (warning,) = counts.warnings
    assert "no formula for operation TensorFlowInside (1 x, first 'odd')" in warning

    class Odd(keras.Model):
        def call(self, x: Any) -> Any:
            return TensorFlowInside().call(x)

    refused(Odd(), "cannot be called on a symbolic input", "keras.ops", size=(7,))


def test_lambda_layers() -> None:
    graph = graph_of(lambda x: layers.Lambda(lambda t: ops.sin(t) * 2, name="wave")(x), (7,))
    inside = [(o.path, o.kind) for o in graph.operations]
    assert inside == [("wave", "trigonometric"), ("wave", "multiply")]

    def closed(x: Any) -> Any:
        doubled = layers.Dense(7)(x)
        return layers.Lambda(lambda t: t + doubled)(layers.ReLU()(x))

    graph = graph_of(closed, (7,))
    assert Counter(kinds(graph)) == {"dense": 1, "relu": 1, "add": 1}


def test_a_class_that_only_sets_up_a_layer_is_that_layer() -> None:
    class Same3(layers.Conv2D):
        def __init__(self, filters: int) -> None:
            super().__init__(filters, 3, padding="same")

    class Doubled(layers.Dense):
        def call(self, x: Any) -> Any:
            return super().call(x) + super().call(x)

    assert kinds(graph_of(Same3(4), (7, 9, 2))) == ["conv"]
    assert total(graph_of(Same3(4), (7, 9, 2))).flops == CONV
    assert total(graph_of(Doubled(3), (7,))).flops == 2 * 21
    # Nor is a user's class of the same name that layer.
    dense = type("Dense", (layers.Layer,), {"call": lambda self, x: x * 2})
    assert kinds(graph_of(dense(), (7,))) == ["multiply"]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16"])
def test_the_precision_is_kept(policy: str) -> None:
    graph = graph_of(lambda x: layers.Conv2D(4, 3, activation="relu", dtype=policy)(x), (7, 9, 2))
    computed = policy.removeprefix("mixed_")
    written = {graph.tensors[t].dtype for o in graph.operations for t in o.outputs}
    assert computed in written
    assert total(graph).flops == 5 * 7 * 4 * 18


def test_a_quantized_model_counts_the_same() -> None:
    model = keras.Sequential([keras.Input((5, 8)), layers.Dense(4), layers.EinsumDense(
        "abc,cd->abd", output_shape=(None, 3))])  # fmt: skip
    before = total(lolat.read(model))
    model.quantize("int8")
    assert total(lolat.read(model)) == before
