"""Keras' layers and operations, against counts done by hand and Keras' own count of parameters."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from math import prod as size
from typing import Any

import numpy as np
import pytest

from lolat.graph.counts import count
from lolat.readers.keras.layers import OPERATION_RULES
from lolat.readers.keras.layers import OPERATIONS as NAMES
from tests.readers.keras_networks import (
    check,
    counted,
    functional,
    graph_of,
    keras,
    kinds,
    layers,
    ops,
    since,
    six,
    total,
)

# ---- Convolutions, dense layers and what belongs to them.

# Each: the layer, the input shape, the output shape, MACs per output element, weights.
PLAIN = [
    (lambda: layers.Conv1D(4, 3, padding="causal"), (11, 2), (11, 4), 3 * 2, 3 * 2 * 4 + 4),
    (lambda: layers.Conv2D(4, (3, 5)), (7, 9, 2), (5, 5, 4), 15 * 2, 15 * 2 * 4 + 4),
    (lambda: layers.Conv2D(4, 3, groups=4), (7, 9, 4), (5, 7, 4), 9, 9 * 4 + 4),
    (lambda: layers.DepthwiseConv1D(3), (11, 5), (9, 5), 3, 3 * 5 + 5),
    (lambda: layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2, padding="same"),
     (7, 9, 5), (4, 5, 10), 9, 9 * 10 + 10),
]  # fmt: skip


@pytest.mark.parametrize(("make", "given", "made", "per_output", "weights"), PLAIN)
def test_convolutions(make: Any, given: Any, made: Any, per_output: int, weights: int) -> None:
    layer = make()
    kind = "grouped_conv" if getattr(layer, "groups", 1) > 1 else "conv"
    kind = "depthwise_conv" if "Depthwise" in type(layer).__name__ else kind
    check(
        graph_of(layer, given),
        kind,
        (size(made), size(given), size(made) * per_output, 0, weights, 1),
    )
    assert layer.count_params() == weights


def test_patches_of_groups() -> None:
    """Output positions x kernel x input channels; none of a depthwise layer."""
    image = (7, 9, 4)
    assert counted(layers.Conv2D(8, 3, groups=2), image, batch_size=2).patches == 2 * 5 * 7 * 9 * 4
    assert counted(layers.DepthwiseConv2D(3), image).patches == 0


@pytest.mark.parametrize(
    ("make", "given", "made"),
    [(layers.Conv1DTranspose, (5, 2), (10, 4)), (layers.Conv2DTranspose, (5, 3, 2), (10, 6, 4)),
     (layers.Conv3DTranspose, (5, 3, 2, 2), (10, 6, 4, 4))],
)  # fmt: skip
def test_transposed_convolutions_work_from_their_input(make: Any, given: Any, made: Any) -> None:
    layer = make(4, 3, strides=2, padding="same")
    kernel = 3 ** (len(given) - 1)
    macs, weights = size(given) * kernel * 4, kernel * 2 * 4 + 4
    check(graph_of(layer, given), "transposed_conv", (size(made), size(given), macs, 0, weights, 1))
    assert layer.count_params() == weights


def test_a_separable_convolution_without_biases() -> None:
    line = graph_of(layers.SeparableConv1D(4, 3, strides=2, use_bias=False), (11, 3))
    check(line, "depthwise_conv conv", (15 + 20, 33 + 15, 15 * 3 + 20 * 3, 0, 9 + 12, 2))


def test_channels_first_counts_the_same() -> None:
    for make in (
        lambda **f: layers.Conv2D(4, 3, strides=2, groups=2, **f),
        lambda **f: layers.DepthwiseConv2D(3, depth_multiplier=2, **f),
        lambda **f: layers.SeparableConv2D(6, (3, 1), **f),
        lambda **f: layers.Conv2DTranspose(6, 3, **f),
        lambda **f: layers.MaxPooling2D(2, **f),
        lambda **f: layers.GlobalAveragePooling2D(**f),
        lambda **f: layers.UpSampling2D(2, **f),
    ):
        last = counted(make(data_format="channels_last"), (7, 9, 4), batch_size=2)
        first = counted(make(data_format="channels_first"), (4, 7, 9), batch_size=2)
        assert first == last


@pytest.mark.parametrize(
    ("layer", "given", "names"),
    [(layers.Dense(4, activation="softmax"), (7,), "dense softmax"),
     (layers.Conv2D(4, 3, activation=layers.ReLU(6)), (7, 7, 3), "conv relu6"),
     (layers.Conv2D(4, 3, activation=layers.LeakyReLU()), (7, 7, 3), "conv leaky_relu"),
     (layers.Dense(4, activation="linear"), (7,), "dense")],
)  # fmt: skip
def test_an_activation_inside_a_layer_is_an_operation(layer: Any, given: Any, names: str) -> None:
    assert " ".join(kinds(graph_of(layer, given))) == names


def test_einsum_dense() -> None:
    make = layers.EinsumDense("abc,cde->abde", output_shape=(None, 3, 5), bias_axes="de")
    check(graph_of(make, (4, 7)), "dense", (0, 0, 4 * 15 * 7, 4 * (7 + 15), 7 * 15 + 15, 1))
    assert make.count_params() == 7 * 15 + 15
    joined = layers.EinsumDense("abcd,cde->abe", output_shape=(None, 9))
    check(graph_of(joined, (4, 3, 5)), "dense", (0, 0, 4 * 9 * 15, 4 * (15 + 9), 15 * 9, 1))


def test_padding_belongs_to_the_convolution_behind_it_and_is_traffic_before_a_pool() -> None:
    graph = graph_of(lambda x: layers.Conv2D(4, 3)(layers.ZeroPadding2D(1)(x)), (5, 7, 2))
    check(graph, "conv", (5 * 7 * 4, 5 * 7 * 2, 5 * 7 * 4 * 18, 0, 18 * 4 + 4, 1))
    graph = graph_of(lambda x: layers.MaxPooling2D(3)(layers.ZeroPadding2D(1)(x)), (5, 7, 2))
    pad, pool = (5 * 7 + 7 * 9) * 2, (7 * 9 + 2 * 3) * 2
    check(graph, "pad max_pool", (0, 0, 0, pad + pool, 0, 2))


# ---- The others: most read their inputs and write their outputs.

IMAGE = (6, 8, 3)  # 144 elements

# Each: the kind, the layer, the input shape, elements read and written. Others: tests/data/operations.toml.
MOVING = [
    ("batch_norm", layers.Normalization, IMAGE, 288),
    ("unit_norm", layers.UnitNormalization, IMAGE, 288),
    ("leaky_relu", lambda: layers.ReLU(negative_slope=0.1), IMAGE, 288),
    ("max_pool", lambda: layers.MaxPooling2D(3, strides=1, padding="same"), IMAGE, 288),
    ("average_pool", lambda: layers.AveragePooling2D((2, 4)), IMAGE, 144 + 18),
    ("global_average_pool", layers.GlobalAveragePooling1D, (9, 3), 27 + 3),
    ("global_max_pool", layers.GlobalMaxPooling3D, (4, 6, 8, 3), 576 + 3),
    ("adaptive_pool", lambda: layers.AdaptiveMaxPooling1D(4), (8, 3), 24 + 12),
    ("resize", lambda: layers.UpSampling1D(3), (9, 3), 27 + 81),
    ("resize", lambda: layers.Resizing(3, 5), IMAGE, 144 + 45),
    ("pad", lambda: layers.ZeroPadding2D(((1, 0), (2, 3))), IMAGE, 144 + 7 * 13 * 3),
    ("pad", lambda: layers.ZeroPadding1D(2), (9, 3), 27 + 39),
    ("crop", lambda: layers.Cropping1D((1, 3)), (9, 3), 2 * 15),
    ("repeat", lambda: layers.RepeatVector(5), (7,), 7 + 35),
]


@pytest.mark.parametrize(("kind", "make", "given", "moved"), MOVING)
def test_layers_that_move_data(kind: str, make: Any, given: Any, moved: int) -> None:
    check(graph_of(lambda x: make()(x), given), kind, (0, 0, 0, moved, 0, 1))


def test_an_activation_of_the_users_keeps_its_name() -> None:
    def bent(x: Any) -> Any:
        return x * keras.ops.sigmoid(x)

    graph = graph_of(layers.Dense(4, activation=bent), (7,))
    assert kinds(graph) == ["dense", "bent"]


@pytest.mark.parametrize(
    "make",
    [lambda: layers.SpatialDropout2D(0.5), lambda: layers.GaussianNoise(1.0),
     lambda: layers.AlphaDropout(0.5), lambda: layers.ActivityRegularization(0.1),
     lambda: layers.Reshape((8, 18)), lambda: layers.Activation("linear")],
)  # fmt: skip
def test_a_layer_that_is_free(make: Any) -> None:
    assert six(counted(lambda x: make()(x), IMAGE, batch_size=9)) == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "make", "others", "moved"),
    [("subtract", layers.Subtract, [IMAGE], 3 * 144), ("add", layers.Add, [IMAGE, IMAGE], 4 * 144),
     ("concatenate", layers.Concatenate, [(6, 8, 5)], 144 + 240 + 384)],
)  # fmt: skip
def test_merging(kind: str, make: Any, others: Any, moved: int) -> None:
    graph = graph_of(lambda *all_of: make()(list(all_of)), IMAGE, *others)
    check(graph, kind, (0, 0, 0, moved, 0, 1))


def test_dot_product_of_two_activations() -> None:
    graph = graph_of(lambda a, b: layers.Dot(axes=(1, 2), normalize=True)([a, b]), (7, 5), (3, 7))
    assert kinds(graph) == ["unit_norm", "unit_norm", "matmul"]
    assert total(graph).flops == 5 * 3 * 7


def test_embedding() -> None:
    counts = counted(lambda x: layers.Embedding(1000, 16)(x), (9,), dtype="int32", batch_size=2)
    assert six(counts) == (0, 0, 0, 2 * 9 * 17, 2 * 9 * 16, 1)


def test_augmentation_does_nothing_at_inference() -> None:
    for make in (lambda: layers.RandomFlip(), lambda: layers.RandomRotation(0.1),
                 lambda: layers.RandomContrast(0.1), lambda: layers.RandomZoom(0.1),
                 lambda: layers.RandomTranslation(0.1, 0.1), lambda: layers.RandomBrightness(0.1),
                 lambda: layers.RandomErasing(), lambda: layers.RandAugment()):  # fmt: skip
        graph = graph_of(lambda x, make=make: layers.Conv2D(4, 3)(make()(x)), (32, 32, 3))
        assert kinds(graph) == ["conv"], make()


@pytest.mark.parametrize(
    ("make", "given", "dtype"),
    [(lambda: layers.CategoryEncoding(10, "multi_hot"), (4,), "int32"),
     (lambda: layers.CategoryEncoding(10, "one_hot"), (1,), "int32"),
     (lambda: layers.Discretization([0.0, 1.0]), (4,), "float32"),
     (lambda: layers.CenterCrop(4, 4), IMAGE, "float32"),
     (lambda: layers.Masking(), (9, 3), "float32"),
     (lambda: layers.Hashing(5), (4,), "int32"),
     (lambda: layers.IntegerLookup(vocabulary=[1, 2, 3]), (4,), "int64"),
     (lambda: layers.Lambda(lambda x: x * 2 + 1), IMAGE, "float32"),
     (lambda: layers.ConvLSTM2D(4, 3), (5, 8, 8, 3), "float32"),
     (lambda: layers.MelSpectrogram(), (16000,), "float32")],
)  # fmt: skip
def test_rarer_layers_are_never_nothing(make: Any, given: Any, dtype: str) -> None:

    graph = graph_of(lambda x: make()(x), given, dtype=dtype)
    assert count(graph).total().traffic >= graph.tensors[graph.outputs[0]].elements()


# ---- Attention, recurrent layers and their wrappers: the operations that they consist of.

ATTENTION = "dense dense dense attention dense"


def multi_head(q: int, s: int, inside: int, heads: int, key: int, value: int) -> tuple[int, int]:
    """MACs and traffic of attention of q queries over s keys, all of `inside` features."""
    projections = [(q, inside, heads * key), (s, inside, heads * key), (s, inside, heads * value),
                   (q, heads * value, inside)]  # fmt: skip
    macs = sum(rows * a * b for rows, a, b in projections)
    moved = sum(rows * (a + b) for rows, a, b in projections)
    macs += heads * q * s * key + heads * q * value * s
    moved += heads * (q * key + s * key + q * s) + heads * (q * s + s * value + q * value)
    moved += 2 * 2 * heads * q * s  # scaling, softmax
    return macs, moved


def test_self_attention_in_which_a_mask_is_not_a_key() -> None:
    layer = layers.MultiHeadAttention(num_heads=3, key_dim=4)
    macs, moved = multi_head(5, 5, 7, 3, 4, 4)
    for graph in (
        graph_of(lambda x: layer(x, x), (5, 7)),
        graph_of(lambda x, m: layer(x, x, attention_mask=m), (5, 7), (5, 5)),
    ):
        check(graph, ATTENTION, (0, 0, macs, moved, layer.count_params(), 8))
    scored = layers.MultiHeadAttention(num_heads=3, key_dim=4)
    graph = graph_of(lambda x: scored(x, x, return_attention_scores=True), (5, 7))
    assert graph.shapes(graph.outputs) == [(1, 5, 7), (1, 3, 5, 5)]
    assert " ".join(kinds(graph)) == ATTENTION


def test_cross_attention_with_values_of_another_size() -> None:
    layer = layers.MultiHeadAttention(num_heads=3, key_dim=4, value_dim=6, use_bias=False)
    macs, moved = multi_head(5, 11, 7, 3, 4, 6)
    for call in (lambda q, v: layer(q, v), lambda q, v: layer(query=q, value=v),
                 lambda q, v: layer(q, key=v, value=v)):  # fmt: skip
        graph = graph_of(call, (5, 7), (11, 7))
        check(graph, ATTENTION, (0, 0, macs, moved, layer.count_params(), 8))


def test_attention_over_one_axis_of_two() -> None:
    """Three images of 5 steps: attention within each; and over both."""
    layer = layers.MultiHeadAttention(num_heads=2, key_dim=4, attention_axes=(2,))
    macs, moved = multi_head(5, 5, 7, 2, 4, 4)
    graph = graph_of(lambda x: layer(x, x), (3, 5, 7))
    check(graph, ATTENTION, (0, 0, 3 * macs, 3 * moved, layer.count_params(), 8))
    both = layers.MultiHeadAttention(num_heads=2, key_dim=4)
    graph = graph_of(lambda x: both(x, x), (3, 5, 7))
    assert six(graph)[2:4] == multi_head(15, 15, 7, 2, 4, 4)


def test_grouped_query_attention() -> None:
    layer = layers.GroupQueryAttention(head_dim=4, num_query_heads=6, num_key_value_heads=2)
    graph = graph_of(lambda x: layer(x, x), (5, 7))
    macs = 5 * 7 * 24 + 2 * (5 * 7 * 8) + 6 * 25 * 4 * 2 + 5 * 24 * 7
    assert " ".join(kinds(graph)) == ATTENTION
    assert (total(graph).flops, total(graph).weights) == (macs, layer.count_params())


def test_dot_product_attention_has_no_projections() -> None:
    graph = graph_of(lambda q, v: layers.Attention()([q, v]), (5, 7), (11, 7))
    moved = (35 + 77 + 55) + 2 * 55 + (55 + 77 + 35)
    check(graph, "attention", (0, 0, 2 * 5 * 11 * 7, moved, 0, 3))
    scaled = graph_of(lambda q, v: layers.Attention(use_scale=True)([q, v]), (5, 7), (11, 7))
    assert total(scaled).ops == 4
    keyed = graph_of(lambda q, v, k: layers.Attention()([q, v, k]), (5, 7), (11, 9), (11, 7))
    assert total(keyed).flops == 5 * 11 * 7 + 5 * 11 * 9
    assert keyed.shapes(keyed.outputs) == [(1, 5, 9)]


def test_additive_attention_is_followed() -> None:
    for layer in (layers.AdditiveAttention(), layers.Attention(score_mode="concat")):
        graph = graph_of(lambda q, v, layer=layer: layer([q, v]), (5, 7), (11, 7))
        assert {"add", "tanh", "softmax", "matmul"} <= set(kinds(graph))
        assert total(graph).flops == 5 * 11 * 7  # the weights times the values


# Each: the layer, gates, MACs per step of 3 features into 4 units.
RECURRENT = [(layers.LSTM, "lstm", 4), (layers.GRU, "gru", 3), (layers.SimpleRNN, "simple_rnn", 1)]


@pytest.mark.parametrize(("make", "kind", "gates"), RECURRENT)
def test_recurrent_layers(make: Any, kind: str, gates: int) -> None:
    for options in ({}, {"return_sequences": True}, {"use_bias": False}):
        layer = make(4, **options)
        graph = graph_of(lambda x, layer=layer: layer(x), (5, 3))
        assert kinds(graph) == [kind]
        assert total(graph, 2).flops == 2 * 5 * gates * 4 * (3 + 4)
        assert total(graph).weights == layer.count_params()
    cell = getattr(layers, f"{make.__name__}Cell")  # as the cell of an RNN it is the same
    ours = counted(lambda x: layers.RNN(cell(4))(x), (5, 3))
    assert ours == counted(lambda x: make(4)(x), (5, 3))


def test_the_step_of_an_lstm() -> None:
    """Two products of 16 outputs, then nine kinds of vector operations of 4 units; see counting.md."""
    moved = (3 + 16) + (4 + 16) + 3 * 16 + 4 * 8 + 3 * 12 + 8 + 12
    assert six(counted(lambda x: layers.LSTM(4)(x), (5, 3))) == (
        0, 0, 5 * 112, 5 * moved, 16 * 7 + 16, 5)  # fmt: skip
    one_bias = layers.GRU(4, reset_after=False)
    assert counted(lambda x: one_bias(x), (5, 3)).weights == one_bias.count_params()


def test_states_are_outputs_and_inputs() -> None:
    def encode_and_decode(x: Any, y: Any) -> Any:
        _, *states = layers.LSTM(4, return_state=True)(x)
        return [layers.LSTM(4, return_sequences=True)(y, initial_state=states), *states]

    graph = graph_of(encode_and_decode, (5, 3), (6, 3))
    first, second = graph.operations
    assert graph.shapes(graph.outputs) == [(1, 6, 4), (1, 4), (1, 4)]
    assert second.inputs[1:] == first.outputs[1:]
    assert total(graph).flops == (5 + 6) * 112


MODES = {"concat": ("concatenate", 8), "sum": ("add", 4), "mul": ("multiply", 4)}


@pytest.mark.parametrize("mode", MODES)
def test_bidirectional(mode: str) -> None:
    """The results of the way back are turned round, as Keras does."""
    layer = layers.Bidirectional(layers.LSTM(4, return_sequences=True), merge_mode=mode)
    graph = graph_of(lambda x: layer(x), (5, 3))
    one_way = counted(lambda x: layers.LSTM(4)(x), (5, 3))
    kind, out = MODES[mode]
    assert sorted(kinds(graph)) == sorted(["lstm", "lstm", "transpose", kind])
    counts = total(graph)
    assert counts.flops == 2 * one_way.flops
    assert counts.traffic == 2 * one_way.traffic + 5 * (4 + 4 + out) + 2 * 5 * 4
    assert counts.weights == layer.count_params()


def test_bidirectional_with_all_its_outputs() -> None:
    both = layers.Bidirectional(layers.LSTM(4, return_state=True), merge_mode=None)
    graph = graph_of(lambda x: list(both(x)), (5, 3))
    assert kinds(graph) == ["lstm", "lstm"]
    assert graph.shapes(graph.outputs) == [(1, 4)] * 6
    merged = layers.Bidirectional(layers.GRU(4, return_state=True))
    graph = graph_of(lambda x: list(merged(x)), (5, 3))
    assert graph.shapes(graph.outputs) == [(1, 8), (1, 4), (1, 4)]


def test_time_distributed_runs_on_every_step() -> None:
    wrapped = layers.TimeDistributed(layers.Conv2D(4, 3, activation="relu"))
    graph, out = graph_of(lambda x: wrapped(x), (6, 7, 9, 2)), 6 * 5 * 7 * 4
    check(graph, "conv relu", (out, 6 * 7 * 9 * 2, out * 18, 2 * out, 76, 2))
    inner = functional(lambda x: layers.Flatten()(layers.Conv2D(4, 3)(x)), (7, 9, 2))
    graph = graph_of(lambda x: layers.Dense(3)(layers.TimeDistributed(inner)(x)), (6, 7, 9, 2))
    assert graph.shapes(graph.outputs) == [(1, 6, 3)]
    assert total(graph).flops == out * 18 + 6 * 140 * 3


def test_masks_do_not_count_as_operands() -> None:
    def masked(x: Any) -> Any:
        x = layers.Embedding(50, 8, mask_zero=True)(x)
        x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
        x = layers.MultiHeadAttention(2, 4)(x, x)
        x = layers.TimeDistributed(layers.Dense(3))(x)
        return layers.Dense(2)(layers.GlobalAveragePooling1D()(x))

    graph = graph_of(masked, (9,), dtype="int32")
    dense = [o for o in graph.operations if o.kind == "dense"]
    assert [graph.shapes(o.inputs) for o in dense[-1:]] == [[(1, 3)]]
    pool = next(o for o in graph.operations if o.kind == "global_average_pool")
    assert graph.shapes(pool.inputs) == [(1, 9, 3)]
    assert total(graph).flops == (
        2 * 9 * 16 * (8 + 4) + multi_head(9, 9, 8, 2, 4, 4)[0] + 9 * 8 * 3 + 3 * 2
    )


# ---- keras.ops. Others: tests/data/operations.toml.


def constant(*shape: int) -> Any:
    return np.ones(shape, "float32")


# Each: the kind, the call, elements of 6 x 8 x 3 read and written.
OPERATIONS = [
    ("divide", lambda x: x // 2, 288), ("compare", ops.logical_not, 288),
    ("transpose", lambda x: ops.transpose(x, (0, 3, 1, 2)), 288),
    ("sort", lambda x: ops.argsort(x, axis=1), 288),
    ("add", lambda x: x + constant(3), 144 + 3 + 144), ("where", lambda x: ops.where(x, x, 0.0), 3 * 144),
    ("reduce", lambda x: ops.logsumexp(x, axis=(-1,)), 144 + 48),
    ("reduce", lambda x: ops.norm(x, axis=-1), 144 + 48),
    ("reduce", lambda x: ops.sum(x, axis=1, keepdims=True), 144 + 24),
    ("slice", lambda x: x[..., 0], 2 * 48), ("repeat", lambda x: ops.tile(x, (1, 1, 1, 2)), 3 * 144),
    ("resize", lambda x: ops.image.resize(x, (3, 4)), 144 + 36),
    ("max_pool", lambda x: ops.max_pool(x, 2), 144 + 36),
    ("average_pool", lambda x: ops.average_pool(x, (2, 4)), 144 + 18),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "call", "moved"), OPERATIONS)
def test_operations_that_move_data(kind: str, call: Any, moved: int) -> None:
    graph = graph_of(call, IMAGE)
    assert kinds(graph) == [kind]
    assert six(graph) == (0, 0, 0, moved, 0, 1)


def test_a_constant_does_not_grow_with_the_batch() -> None:
    assert counted(lambda x: x + constant(6, 8, 3), IMAGE, batch_size=5).traffic == 5 * 288 + 144


@pytest.mark.parametrize(
    "call",
    [ops.stop_gradient, ops.copy, ops.convert_to_tensor],
)
def test_views_are_free(call: Any) -> None:
    assert six(counted(call, IMAGE)) == (0, 0, 0, 0, 0, 0)


def test_several_outputs() -> None:
    graph = graph_of(lambda x: list(ops.moments(x, axes=(1, 2))), IMAGE)
    assert [o.kind for o in graph.operations] == ["reduce"]
    assert graph.shapes(graph.outputs) == [(1, 3), (1, 3)]
    assert total(graph).traffic == 144 + 3 + 3
    graph = graph_of(lambda x: list(ops.top_k(x, 2)), (9,))
    assert six(graph) == (0, 0, 0, 9 + 2 + 2, 0, 1)
    graph = graph_of(lambda x: ops.split(x, 3, axis=-1), IMAGE)
    assert six(graph) == (0, 0, 0, 3 * 2 * 48, 0, 3)


def test_products() -> None:
    weights = constant(7, 4)
    for call in (lambda x: ops.matmul(x, weights), lambda x: x @ weights, lambda x: ops.dot(x, weights),
                 lambda x: ops.tensordot(x, weights, axes=1),
                 lambda x: ops.einsum("bsi,io->bso", x, weights),
                 lambda x: ops.tensordot(x, weights, axes=[[2], [0]])):  # fmt: skip
        check(graph_of(call, (5, 7)), "dense", (0, 0, 5 * 7 * 4, 5 * (7 + 4), 28, 1))
    graph = graph_of(lambda a, b: ops.matmul(a, ops.transpose(b, (0, 2, 1))), (5, 7), (3, 7))
    assert kinds(graph) == ["transpose", "matmul"]
    assert total(graph).flops == 5 * 7 * 3
    graph = graph_of(lambda a, b: ops.einsum("bqhd,bkhd->bhqk", a, b), (5, 2, 7), (3, 2, 7))
    check(graph, "matmul", (0, 0, 2 * 5 * 3 * 7, 70 + 42 + 30, 0, 1))


KERNEL = constant(3, 3, 4, 2)


@pytest.mark.parametrize(
    ("call", "layer"),
    [
        (lambda x: ops.conv(x, constant(3, 3, 4, 6)), layers.Conv2D(6, 3, use_bias=False)),
        (lambda x: ops.depthwise_conv(x, KERNEL),
         layers.DepthwiseConv2D(3, depth_multiplier=2, use_bias=False)),
        (lambda x: ops.separable_conv(x, KERNEL, constant(1, 1, 8, 5)),
         layers.SeparableConv2D(5, 3, depth_multiplier=2, use_bias=False)),
        (lambda x: ops.conv_transpose(x, constant(3, 3, 6, 4), 2),
         layers.Conv2DTranspose(6, 3, 2, use_bias=False)),
    ],
)  # fmt: skip
def test_convolutions_count_as_the_layers(call: Any, layer: Any) -> None:
    image = (7, 9, 4)
    assert six(counted(call, image)) == six(counted(lambda x: layer(x), image))


def test_dot_product_attention_of_operations() -> None:
    graph = graph_of(
        lambda q, k, v: ops.dot_product_attention(q, k, v), (5, 2, 7), (11, 2, 7), (11, 2, 7)
    )
    assert kinds(graph) == ["attention"]
    assert total(graph).flops == 2 * (2 * 5 * 11 * 7)
    assert graph.shapes(graph.outputs) == [(1, 5, 2, 7)]


def test_windows_move_into_the_batch_and_back() -> None:
    """Swin's window partition: 8 x 8 positions as 4 windows of 16."""

    def windows(x: Any) -> Any:
        x = ops.reshape(x, (-1, 2, 4, 2, 4, 3))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        x = ops.reshape(x, (-1, 16, 3))
        x = layers.Dense(5)(x)
        x = layers.MultiHeadAttention(1, 5)(x, x)
        x = ops.reshape(x, (-1, 2, 2, 4, 4, 5))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return ops.reshape(x, (-1, 8, 8, 5))

    graph = graph_of(windows, (8, 8, 3))
    inside = next(o for o in graph.operations if o.kind == "dense")
    assert graph.shapes(inside.outputs) == [(4, 16, 5)]
    assert graph.shapes(graph.outputs) == [(1, 8, 8, 5)]
    attention = 4 * 16 * 25 * 4 + 4 * 2 * 16 * 16 * 5
    assert total(graph, 3).flops == 3 * (64 * 3 * 5 + attention)


@since(3, 14)
def test_every_rule_is_of_an_operation_that_keras_has() -> None:
    for name in (*OPERATION_RULES, *NAMES):
        assert _operation(name) is not None, f"keras.ops has no operation {name}"


def _operation(name: str) -> Any:
    for module in pkgutil.iter_modules(keras.src.ops.__path__, "keras.src.ops."):
        if not module.name.endswith("_test") and hasattr(import_module(module.name), name):
            return getattr(import_module(module.name), name)
    return None


def test_an_operation_without_a_rule_is_named_and_counted() -> None:
    graph = graph_of(lambda x: ops.linalg.cholesky(x), (5, 5))
    counts = count(graph)
    assert counts.total().traffic == 50
    assert "no formula for operation Cholesky" in counts.warnings[0]
    graph = graph_of(lambda x: list(ops.linalg.qr(x)), (5, 3))
    assert count(graph).total().traffic == 15 + 15 + 9  # each output is written
