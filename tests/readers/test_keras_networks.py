"""Networks as people write them in Keras: functional, sequential, nested, subclassed; their input sizes."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph.counts import count
from lolat.graph.weights import parameters
from lolat.readers.keras import read_model, without_weights
from lolat.training.memory import numbers_of
from lolat.training.tuning import tuned
from tests.readers.counting import refused
from tests.readers.keras_networks import functional, graph_of, keras, kinds, layers, ops, six, total

CONV = 7 * 9 * 4 * 18  # MACs of a 3x3 convolution from 2 to 4 channels on 7 x 9


def conv() -> Any:
    return layers.Conv2D(4, 3, padding="same", name="conv")


def assert_sound(graph: Any) -> None:
    names = [o.full_name for o in graph.operations]
    assert len(set(names)) == len(names)
    assert type(graph).from_dict(graph.to_dict()) == graph


def test_sequential_built_and_not_built() -> None:
    def stack() -> list[Any]:
        return [layers.Conv2D(4, 3), layers.ReLU(), layers.Flatten(), layers.Dense(5)]

    built = lolat.read(keras.Sequential([keras.Input((7, 9, 2)), *stack()]))
    sized = lolat.read(keras.Sequential(stack()), (7, 9, 2))
    assert count(built).total(3) == count(sized).total(3)
    assert kinds(built) == ["conv", "relu", "dense"]
    assert count(built).total().flops == 5 * 7 * 4 * 18 + 140 * 5
    squared = lolat.read(keras.Sequential(stack()), 8)  # H x H x 3
    assert squared.tensors[squared.inputs[0]].shape == (1, 8, 8, 3)

    text = keras.Sequential([layers.Embedding(50, 8), layers.LSTM(4), layers.Dense(2)])
    assert total(lolat.read(text, 9)).flops == 9 * 16 * 12 + 8  # takes a length


def test_reading_builds_an_unbuilt_model_for_real_and_leaves_a_built_one_as_it_was() -> None:
    model = keras.Sequential([layers.Dense(3)])
    lolat.read(model, (5,))
    first, second = (model(np.ones((1, 5), "float32")).numpy() for _ in range(2))
    assert (first == second).all()
    assert model.count_params() == 18
    stack = [layers.BatchNormalization(), layers.Conv2D(4, 3)]
    model = keras.Sequential([keras.Input((8, 8, 3)), *stack])
    before = [w.numpy().copy() for w in model.weights]
    shape = model.layers[1].output.shape
    for size in (12, None):
        lolat.read(model, size)
    assert all((a == w.numpy()).all() for a, w in zip(before, model.weights, strict=True))
    assert model.layers[1].output.shape == shape
    assert model(np.ones((2, 8, 8, 3))).shape == (2, 6, 6, 4)


def test_a_layer_used_twice_counts_twice() -> None:
    layer = layers.Dense(7, name="shared")
    graph = graph_of(lambda x: layer(layer(x)), (7,))
    assert [o.name for o in graph.operations] == ["shared", "shared:2"]
    assert total(graph).flops == 2 * 49
    assert total(graph).weights == 2 * 56
    assert_sound(graph)


def test_several_inputs_and_outputs_also_in_a_dict() -> None:
    def both(a: Any, b: Any) -> list[Any]:
        joined = layers.Concatenate()([layers.Dense(3)(a), b])
        return [layers.Dense(2)(joined), joined, a]

    graph = graph_of(both, (5,), (4,))
    assert graph.shapes(graph.inputs) == [(1, 5), (1, 4)]
    assert graph.shapes(graph.outputs) == [(1, 2), (1, 7), (1, 5)]
    assert total(graph).flops == 15 + 14
    with without_weights():
        given = {n: keras.Input((7, 9, c), name=n) for n, c in (("right", 2), ("left", 3))}
        made = layers.Concatenate()([layers.Conv2D(4, 1)(given["left"]), given["right"]])
        model = keras.Model(given, {"out": layers.Conv2D(2, 1)(made)})
    graph = read_model(model)
    assert sorted(graph.shapes(graph.inputs)) == [(1, 7, 9, 2), (1, 7, 9, 3)]
    assert total(graph).flops == 63 * (12 + 12)
    assert total(read_model(model, "", (5,))).flops == 25 * (12 + 12)


def test_nested_models_are_followed() -> None:
    inner = functional(lambda x: layers.ReLU()(conv()(x)), (7, 9, 2))
    graph = graph_of(lambda x: layers.GlobalAveragePooling2D()(inner(x)), (7, 9, 2))
    assert kinds(graph) == ["conv", "relu", "global_average_pool"]
    assert [o.path for o in graph.operations] == [inner.name, inner.name, ""]
    assert total(graph).flops == CONV
    block = keras.Sequential([conv(), layers.BatchNormalization(), layers.ReLU()], name="block")
    outer = keras.Sequential([keras.Input((7, 9, 2)), block, layers.Flatten()], name="outer")
    graph = graph_of(lambda x: layers.Dense(3)(outer(x)), (7, 9, 2))
    assert kinds(graph) == ["conv", "batch_norm", "relu", "dense"]
    assert graph.operations[0].full_name == "outer/block/conv"


def test_a_model_used_as_itself_and_as_a_layer() -> None:
    """A siamese network: the second use must not be taken for the first."""
    with without_weights():
        left = keras.Input((7, 9, 2))
        base = keras.Model(left, layers.GlobalAveragePooling2D()(conv()(left)))
        right = keras.Input((7, 9, 2))
        distance = layers.Subtract()([base.output, base(right)])
        graph = read_model(keras.Model([left, right], distance))
    subtract = graph.operations[-1]
    assert len(set(subtract.inputs)) == 2
    assert total(graph).flops == 2 * CONV
    assert_sound(graph)


# ---- Subclassed models, custom layers, and data types.


class Small(keras.Model):
    def __init__(self) -> None:
        super().__init__(name="small")
        self.conv, self.norm, self.head = conv(), layers.BatchNormalization(), layers.Dense(3)

    def call(self, inputs: Any, training: bool = False) -> Any:
        x = ops.relu(self.norm(self.conv(inputs), training=training))
        return self.head(ops.mean(x, axis=(1, 2)) * 2.0)


def test_a_subclassed_model() -> None:
    graph = lolat.read(Small(), (7, 9, 2))
    assert kinds(graph) == [
        "conv",
        "batch_norm",
        "relu",
        "global_average_pool",
        "multiply",
        "dense",
    ]
    assert total(graph).flops == CONV + 12
    built = Small()
    built(np.zeros((4, 7, 9, 2), "float32"))
    assert total(lolat.read(built)) == total(graph)
    refused(Small(), "input shape of 'small' is not known", "give input_size")


def test_a_subclassed_model_of_several_inputs() -> None:
    """Their shapes are given; a model that takes a dictionary is called once before."""

    class Two(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = layers.Dense(4), layers.Dense(5)

        def call(self, inputs: Any) -> Any:
            first, second = inputs.values() if isinstance(inputs, dict) else inputs
            return ops.concatenate([self.one(first), self.two(second)], -1)

    graph = lolat.read(Two(), [(7,), (9,)])
    assert graph.input_sizes == [(7,), (9,)]
    assert total(graph).flops == 7 * 4 + 9 * 5
    refused(Two(), "was not built", "call it once before")
    called = Two()
    called({"a": np.zeros((2, 7), "float32"), "b": np.zeros((2, 9), "float32")})
    assert total(lolat.read(called)) == total(graph)


def test_a_custom_layer_with_weights() -> None:
    class Scaled(layers.Layer):
        """Uses its weights through keras.ops."""

        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight(shape=(shape[-1], 5))
            self.bias = self.add_weight(shape=(5,))

        def call(self, x: Any) -> Any:
            return ops.matmul(x, self.kernel) + self.bias

    graph = graph_of(Scaled(name="mine"), (11, 7))
    assert kinds(graph) == ["dense", "add"]
    assert {o.path for o in graph.operations} == {"mine"}
    assert six(graph) == (0, 0, 11 * 35, 11 * 12 + 55 + 5 + 55, 35, 2)


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
    assert "without its products" in warning  # it may have some

    class Odd(keras.Model):
        def call(self, x: Any) -> Any:
            return TensorFlowInside().call(x)

    refused(Odd(), "cannot be called on a symbolic input", "keras.ops", size=(7,))


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


@pytest.mark.parametrize(("policy", "mixed"), [("mixed_bfloat16", True), ("bfloat16", False)])
def test_a_mixed_policy_has_variables_in_float32(policy: str, mixed: bool) -> None:
    network = keras.Sequential([keras.Input((8,)), layers.Dense(16, dtype=policy)])
    graph = lolat.read(network)
    assert graph.autocast is mixed
    device = lolat.load("rtx-4090-amp")
    assert device.predict(network).precision == ("amp" if mixed else "bf16")
    of_parameter = 4 + 2 if mixed else 2  # with the copy in half that products read
    assert device.predict(network).memory.weights_bytes == of_parameter * network.count_params()


# ---- Input sizes: open ones, other ones, fixed batches, and those that do not fit.


def image_network(*shape: int | None, **options: Any) -> Any:
    return functional(
        lambda x: layers.GlobalAveragePooling2D(**options)(layers.Conv2D(4, 1, **options)(x)), shape
    )


OPEN, CLOSED, FIRST = image_network(None, None, 3), image_network(8, 8, 3), "channels_first"


@pytest.mark.parametrize(
    ("model", "size", "shape"),
    [
        (OPEN, 32, (32, 32, 3)), (CLOSED, None, (8, 8, 3)), (CLOSED, 16, (16, 16, 3)),
        (image_network(3, 8, 8, data_format=FIRST), 16, (3, 16, 16)),
        (image_network(3, None, None, data_format=FIRST), 16, (3, 16, 16)),
        (functional(lambda x: layers.LSTM(4)(x), (None, 3)), 5, (5, 3)),
    ],
)  # fmt: skip
def test_sizes(model: Any, size: Any, shape: tuple[int, ...]) -> None:
    graph = lolat.read(model, size)
    assert graph.shapes(graph.inputs) == [(1, *shape)]
    macs = 12 * prod(shape) // 3 if len(shape) == 3 else 112 * shape[0]
    assert total(graph).flops == macs


def test_a_dense_head_that_was_made_for_another_size() -> None:
    model = functional(
        lambda x: layers.Dense(5)(layers.Flatten()(layers.Conv2D(4, 3)(x))), (8, 8, 3)
    )
    refused(model, "16x16x3", "expected axis -1 of input shape to have value 144", size=16)
    assert total(lolat.read(model)).flops == 36 * 4 * 27 + 144 * 5


def test_a_video_keeps_its_frames_and_an_image_is_no_text() -> None:
    """A convolution of 1x1x1 to 4 channels: 12 MACs for each of 3 x 6 x 6 positions."""
    video = functional(lambda x: layers.Conv3D(4, 1)(x), (3, 8, 8, 3))
    graph = lolat.read(video, 6)
    assert graph.shapes(graph.inputs) == [(1, 3, 6, 6, 3)]
    assert count(graph).total().flops == 12 * 3 * 6 * 6
    assert any("its frames" in told for told in graph.warnings)
    with without_weights():
        tokens, image = keras.Input((None,), dtype="int32"), keras.Input((8, 8, 3))
        text = layers.GlobalAveragePooling1D()(layers.Embedding(9, 4)(tokens))
        pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 1)(image))
        both = keras.Model([tokens, image], layers.Add()([text, pooled]))
    for size in (7, {"sequence_length": 7}):
        graph = lolat.read(both, size)
        assert graph.shapes(graph.inputs) == [(1, 7), (1, 8, 8, 3)]
    refused(CLOSED, CLOSED.name, size={"sequence_length": 16})


def test_a_fixed_batch_counts_per_sample() -> None:
    def network(**batch: int) -> Any:
        with without_weights():
            x = keras.Input((8, 8, 3), **batch)
            return keras.Model(x, layers.Dense(5)(layers.Flatten()(layers.Conv2D(4, 3)(x))))

    fixed, free = lolat.read(network(batch_size=4)), lolat.read(network())
    assert fixed.tensors[fixed.inputs[0]].shape == (1, 8, 8, 3)
    assert count(fixed).total(1) == count(free).total(1)
    assert count(fixed).total(4) == count(free).total(4)
    with without_weights():
        x = keras.Input((8, 8, 3), batch_size=4)
        model = keras.Model(x, layers.Dense(5)(ops.reshape(x, (4, 64, 3))))
    # Else all that follows would count four times.
    refused(model, model.name)


def test_an_einsum_that_was_not_told_its_steps() -> None:
    """Keras' own example leaves the steps open although the input has them."""

    def network(x: Any) -> Any:
        x = layers.EinsumDense("abc,cde->abde", output_shape=(None, 3, 5))(x)
        return layers.Dense(2)(layers.LayerNormalization()(x))

    graph = lolat.read(functional(network, (4, 6)))
    assert graph.shapes(graph.outputs) == [(1, 4, 3, 2)]
    assert total(graph).flops == 4 * 15 * 6 + 12 * 5 * 2


def test_a_batch_that_a_model_is_fixed_at_is_told() -> None:
    """Keras runs the model at no other."""
    rows = [keras.Input((5, 3), batch_size=n) for n in (8, 1, None)]
    models = [keras.Model(x, layers.LSTM(4, stateful=x.shape[0] == 8)(x)) for x in rows]
    said = ["its batch is fixed at 8: taken as the batch size and read at 1"]
    assert [[w for w in lolat.read(m).warnings if "fixed" in w] for m in models] == [said, [], []]
    with pytest.raises(ValueError, match="batch size"):
        models[0](np.ones((2, 5, 3)))


class Tied(layers.Layer):  # type: ignore[misc]
    """A table whose rows are the weights of the logits, and a layer that is run back."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.turned, self.table, self.up = turned, layers.Embedding(50, 8), layers.Dense(32)

    def build(self, shape: Any) -> None:
        self.table.build(shape)
        self.up.build((*shape, 8))

    def call(self, x: Any) -> Any:
        x = self.up(self.table(x))
        x = ops.matmul(x, ops.transpose(ops.convert_to_tensor(self.up.kernel)))
        if self.turned:
            return ops.matmul(x, ops.swapaxes(self.table.embeddings, 0, 1))
        return ops.einsum("btd,vd->btv", x, self.table.embeddings)


@pytest.mark.parametrize("turned", [False, True])
def test_a_weight_that_is_used_again_as_it_is_or_turned_is_kept_once(turned: bool) -> None:
    x = keras.Input((6,), dtype="int32")
    model = keras.Model(x, Tied(turned)(x))
    graph = read_model(model)
    assert parameters(graph) == model.count_params() == 50 * 8 + 8 * 32 + 32
    assert total(graph).flops == 6 * (2 * 8 * 32 + 50 * 8)


def test_a_shared_attention_is_trained_where_a_part_of_it_is() -> None:
    """Keras' own numbers; a table of the size of one that is frozen is another one."""
    x, other = keras.Input((6,), dtype="int32"), keras.Input((6,), dtype="int32")
    shared = layers.MultiHeadAttention(2, 4), layers.LayerNormalization()
    table, behind, head = layers.Embedding(50, 8), layers.Embedding(50, 8), layers.Dense(3)
    y = table(x)
    for _ in range(3):
        y = shared[1](y + shared[0](y, y))
    graph = read_model(keras.Model([x, other], head(y + behind(other))))
    trained = sum(layer.count_params() for layer in (*shared, behind, head))
    assert numbers_of(tuned(graph, "frozen:1", None)) == (trained, 50 * 8)
    assert numbers_of(tuned(graph, "frozen", None)).trained == head.count_params()
