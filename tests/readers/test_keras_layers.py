"""Keras' layers of several operations, counted by hand; single ones are in tests/data/operations.toml."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from lolat.graph.weights import parameters
from lolat.readers.keras import read_model
from lolat.training.memory import trained_parameters
from tests.readers.counting import refused
from tests.readers.keras_networks import (
    check,
    counted,
    functional,
    graph_of,
    keras,
    kinds,
    layers,
    ops,
    six,
    total,
)

# ---- Convolutions, dense layers and what belongs to them.


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


# ---- The others: most read their inputs and write their outputs.

IMAGE = (6, 8, 3)  # 144 elements


def test_an_activation_of_the_users_has_its_own_name() -> None:
    def bent(x: Any) -> Any:
        return x * keras.ops.sigmoid(x)

    graph = graph_of(layers.Dense(4, activation=bent), (7,))
    assert kinds(graph) == ["dense", "bent"]


@pytest.mark.parametrize(
    ("make", "given", "dtype"),
    [(lambda: layers.CategoryEncoding(10, "multi_hot"), (4,), "int32"),
     (lambda: layers.CenterCrop(4, 4), IMAGE, "float32"),
     (lambda: layers.Hashing(5), (4,), "int32"),
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


class Queried(layers.Layer):  # type: ignore[misc]
    """Attention of one learned query."""

    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.attend, self.query = attend, self.add_weight(shape=(1, 1, 8))

    def call(self, x: Any) -> Any:
        dot = isinstance(self.attend, layers.Attention)
        return self.attend([self.query, x]) if dot else self.attend(self.query, x)


def test_a_learned_query() -> None:
    """An attention of one query for all samples; the layer with projections takes one sample alone."""
    graph = graph_of(lambda x: Queried(layers.MultiHeadAttention(2, 4))(x), (9, 8))
    (remark,) = graph.warnings
    assert remark.startswith("it does not take a batch of 16"), "as TensorFlow does not"
    macs, moved = multi_head(1, 9, 8, 2, 4, 4)
    assert " ".join(kinds(graph)) == ATTENTION
    assert six(replace(graph, warnings=()), 1)[2:] == (macs, moved, 4 * 72, 8)
    graph = graph_of(lambda x: Queried(layers.Attention())(x), (9, 8))
    assert kinds(graph) == ["attention"]
    # Keras says that the result is as large for any batch, which TensorFlow does not do.
    assert total(replace(graph, warnings=()), 3).flops == 3 * 2 * 9 * 8


@pytest.mark.parametrize("mask", [False, True])
def test_additive_attention_is_followed(mask: bool) -> None:
    for layer in (layers.AdditiveAttention(), layers.Attention(score_mode="concat")):

        def attended(q: Any, v: Any, layer: Any = layer) -> Any:
            masks = [x[..., 0] > 0 for x in (q, v)] if mask else None
            return layer([q, v], mask=masks)

        graph = graph_of(attended, (5, 7), (11, 7))
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


@pytest.mark.parametrize("masked", [False, True])
def test_cells_of_a_recurrent_layer(masked: bool) -> None:
    """Several cells are as many layers; a cell of the user's, and ConvLSTM, are refused."""

    def words(x: Any, layer: Any) -> Any:
        return layer(layers.Embedding(50, 8, mask_zero=masked)(x))

    both = layers.RNN([layers.LSTMCell(4), layers.GRUCell(5)], return_state=True)
    graph = graph_of(lambda x: list(words(x, both)), (9,), dtype="int32")
    cells = [o for o in graph.operations if o.kind in ("lstm", "gru")]
    assert [o.kind for o in cells] == ["lstm", "gru"]
    assert graph.shapes(graph.outputs) == [(1, 5), (1, 4), (1, 4), (1, 5)]
    assert total(graph, 2).flops == 2 * 9 * (16 * (8 + 4) + 15 * (4 + 5))
    assert total(graph).weights == 9 * 8 + both.count_params()

    class Own(layers.LSTMCell):  # type: ignore[misc]
        def call(self, x: Any, states: Any) -> Any:
            return super().call(2 * x, states)

    for layer, shape in ((layers.RNN(Own(4)), (9, 3)), (layers.ConvLSTM2D(4, 3), (5, 8, 8, 3))):
        refused(
            functional(layer, shape), f"{layer.name} ({type(layer).__name__}) runs", "is not read"
        )


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


def test_time_distributed_runs_on_every_step() -> None:
    inner = functional(lambda x: layers.Flatten()(layers.Conv2D(4, 3)(x)), (7, 9, 2))
    graph = graph_of(lambda x: layers.Dense(3)(layers.TimeDistributed(inner)(x)), (6, 7, 9, 2))
    assert graph.shapes(graph.outputs) == [(1, 6, 3)]
    assert count(graph).total(1).flops == 6 * 5 * 7 * 4 * 18 + 6 * 140 * 3
    graph = graph_of(layers.TimeDistributed(layers.Conv2D(4, 3, activation="relu")), (6, 7, 9, 2))
    assert six(count(graph).total(1)) == (840, 756, 15120, 1680, 76, 2)  # on each of 6 steps


@pytest.mark.parametrize("frozen", [False, True])
def test_what_is_time_distributed_keeps_its_parameters(frozen: bool) -> None:
    """Those of a layer that is called twice count once."""
    dense = layers.Dense(5)
    inner = functional(lambda x: dense(dense(layers.Conv2D(5, 3)(x))), (7, 9, 2))
    inner.layers[1].trainable = not frozen
    steps = layers.TimeDistributed(inner)
    network = functional(lambda x: layers.Dense(4)(steps(x) + steps(-x)), (6, 7, 9, 2))
    graph = read_model(network)
    assert parameters(graph) == network.count_params()
    trained = sum(math.prod(v.shape) for v in network.trainable_weights)
    assert sum(trained_parameters(graph)) == trained


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
    assert count(graph).total(1).flops == (
        2 * 9 * 16 * (8 + 4) + multi_head(9, 9, 8, 2, 4, 4)[0] + 9 * 8 * 3 + 3 * 2
    )


def test_another_backend_of_keras_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert graph_of(layers.Dense(2), (3,)).warnings == ()
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    (remark,) = graph_of(layers.Dense(2), (3,)).warnings
    assert remark.startswith("Keras runs on torch here")


@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_a_quantized_layer_is_refused_by_name(mode: str) -> None:
    """Also one inside of another layer."""
    x = keras.Input((9, 8))
    for made, name in (
        (layers.Dense(16, name="wide")(x), "wide"),
        (layers.MultiHeadAttention(2, 8, name="mha")(x, x), "attention_output"),
    ):
        net = keras.Model(x, layers.Conv1D(4, 1)(made))
        net.quantize(mode)
        with pytest.raises(NetworkError, match=rf"^{name} of .* is quantized.*before quantize\(\)"):
            read_model(net)


# ---- keras.ops in a network.


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


def test_an_operation_without_a_rule_is_named_and_counted() -> None:
    graph = graph_of(lambda x: ops.linalg.cholesky(x), (5, 5))
    counts = count(graph)
    assert counts.total().traffic == 50
    assert "no formula for operation Cholesky" in counts.warnings[0]
    graph = graph_of(lambda x: list(ops.linalg.qr(x)), (5, 3))
    assert count(graph).total().traffic == 15 + 15 + 9  # each output is written


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: ops.vectorized_map(lambda row: ops.matmul(row, w), x),
        lambda x, w: ops.map(lambda row: ops.matmul(row, w), x),
        lambda x, w: ops.scan(lambda c, row: (ops.matmul(row, w), row), x[0], x)[0],
        lambda x, w: ops.cond(ops.sum(x) > 0, lambda: ops.matmul(x, w), lambda: x),
        lambda x, w: ops.fori_loop(0, 8, lambda i, y: ops.matmul(y, w), x),
        lambda x, w: ops.while_loop(lambda y: ops.sum(y) > 0, lambda y: ops.matmul(y, w), x),
        lambda x, w: ops.switch(ops.cast(ops.sum(x), "int32"), [lambda y: ops.matmul(y, w)], x),
    ],
)
def test_products_inside_a_function_are_outside_the_measured_range(call: Any) -> None:
    """They are not followed: an answer that leaves them out must not look like one that is measured."""

    class Own(layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(shape=(6, 6), name="w")

        def call(self, x: Any) -> Any:
            return call(x, self.w)

    answer = lolat.load("epyc-2t").predict(graph_of(lambda x: Own()(x), (5, 6)))
    assert not answer.in_domain
    assert any("without its products" in said for said in answer.warnings)
