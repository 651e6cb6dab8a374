"""What an iteration is made of: the terms of a pass, variables as Keras counts them, memory."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

import lolat
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import count
from lolat.graph.edits import as_trained
from lolat.graph.modes import AMP, FLOAT16, Mode
from lolat.graph.weights import parameters
from lolat.graph.work import work_of
from lolat.optimizers import OPTIMIZERS
from lolat.training.memory import memory_at_peak
from lolat.training.pass_counts import PASS_TERMS, PLAIN, flops, pass_rows, started, variables
from lolat.training.recipe import recipe_of
from tests import synthetic
from tests.training.known import memory_bytes, saved_bytes

OWN = PASS_TERMS[len(PLAIN) :]


def terms(graph: Graph, batch_size: int = 1) -> dict[str, float]:
    """Those of a graph of one operation, without zeros."""
    (row,) = pass_rows(graph, batch_size)
    return {t: v for t, v in zip(PASS_TERMS, row.tolist(), strict=True) if v}


def own(graph: Graph, batch_size: int = 1) -> dict[str, float]:
    return {t: v for t, v in terms(graph, batch_size).items() if t in OWN}


def conv(kind: str, size: int, channels: int, out: int, kernel: int, groups: int = 1,
         bias: bool = False) -> Graph:  # fmt: skip
    return synthetic.one(
        kind, [(1, size, size, channels)], [(1, size, size, out)], kernel=(kernel, kernel),
        strides=(1, 1), in_channels=channels, out_channels=out, groups=groups, bias=bias,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["batch_norm", "layer_norm"])
def test_a_norm_reads_and_writes_for_its_statistics_and_is_flat_without_positions(
    kind: str,
) -> None:
    flat, image, words = (1, 40), (1, 6, 6, 16), (1, 7, 40)
    assert own(synthetic.one(kind, [image], [image]), 3) == {"norm_traffic": 3 * 2 * 6 * 6 * 16}
    assert own(synthetic.one(kind, [words], [words])) == {"norm_traffic": 2 * 7 * 40}
    assert own(synthetic.one(kind, [flat], [flat]), 5) == {"norm_traffic": 400, "flat_norms": 1}


@pytest.mark.parametrize("launch", ["eager", "compiled"])
def test_a_norm_with_stored_statistics_moves_in_training_as_at_inference(launch: Any) -> None:
    image = (1, 6, 6, 16)
    stored, measuring = (
        synthetic.one("batch_norm", [image], [image], **a) for a in ({"stored": True}, {})
    )
    assert own(stored) == {}
    modes = Mode(launch=launch), Mode(launch=launch, training=True)
    inference, training, more = (
        work.bytes[(work.operation == 0) & ~work.backward][0]
        for work in (
            work_of(stored, 3, modes[0]),
            *(work_of(g, 3, modes[1]) for g in (stored, measuring)),
        )
    )
    assert inference == training == more * 2 / 3


def test_a_dropout_reads_and_writes_its_result_and_its_mask() -> None:
    graph = synthetic.one("dropout", [(1, 40)], [(1, 40)])
    always = synthetic.one("dropout", [(1, 40)], [(1, 40)], always=True)
    assert count(graph).total(5).ops == 0
    assert count(always).total(5)[3:6] == (2 * 5 * 40, 0, 1)
    found = terms(graph, 5)
    assert found.items() <= terms(always, 5).items()
    assert (found["ops"], found["serial"], found["traffic"]) == (1, 1, 3 * 5 * 40)
    assert terms(synthetic.one("flatten", [(1, 4, 4)], [(1, 16)])).get("ops") is None


def test_groups_of_several_channels_are_multiplied_with_all_groups() -> None:
    """4 groups of 8 channels, 3x3 over 5x5: each of 25 positions unfolds 9 x 32 elements."""
    found = terms(conv("grouped_conv", 5, 32, 64, 3, groups=4), 2)
    patches = 2 * 25 * 9 * 32
    assert (found["patches"], found["groups"]) == (patches, 4)
    assert found["unrolled"] == 4 * patches
    assert found["kernels"] == 9 * 8 * 64
    assert not {"own_patches", "own_groups", "pointwise"} & found.keys()
    found = terms(conv("grouped_conv", 5, 32, 64, 3, groups=32), 2)  # of one channel that makes two
    assert (found["own_patches"], found["own_groups"]) == (patches, 32)
    assert not {"patches", "groups", "unrolled"} & found.keys()


@pytest.mark.parametrize(
    ("kind", "kernel", "groups", "term", "weights"),
    [
        ("conv", 1, 1, "pointwise", 16 * 24 + 24),
        ("conv", 3, 1, "kernels", 9 * 16 * 24 + 24),
        ("grouped_conv", 1, 4, "kernels", 4 * 24 + 24),
        ("transposed_conv", 1, 1, "kernels", 16 * 24 + 24),
    ],
)
def test_gradients_of_kernels(kind: str, kernel: int, groups: int, term: str, weights: int) -> None:
    found = own(conv(kind, 4, 16, 24, kernel, groups, bias=True), 7)
    assert found[term] == weights, "whatever the batch"
    assert {"pointwise", "kernels"} & found.keys() == {term}


def test_large_kernels_of_depthwise_convolutions() -> None:
    """2 samples, 5 x 5 positions of 16 channels, each a sum over the kernel's positions."""
    for kernel, wide in ((3, 0), (5, 2 * 25 * 25 * 16), (7, 2 * 25 * 49 * 16)):
        found = terms(conv("depthwise_conv", 5, 16, 16, kernel, groups=16), 2)
        assert found.get("wide_depthwise", 0) == wide


def test_what_is_started() -> None:
    """Reshapes start nothing; a dropout is traced in training."""
    b = GraphBuilder("five")
    x = b.input((1, 4, 4))
    for kind, shape in (("relu", (1, 4, 4)), ("flatten", (1, 16)), ("identity", (1, 16)),
                        ("dropout", (1, 16)), ("relu", (1, 16))):  # fmt: skip
        x = b.add(kind, [x], shape)
    assert started(b.build([x])) == 3


def test_pytorch_has_two_vectors_of_biases_in_a_recurrent_layer() -> None:
    lstm = {"units": 6, "in_features": 8, "timesteps": 5, "bias": True, "bias_vectors": 2}
    assert variables(synthetic.one("lstm", [(1, 5, 8)], [(1, 6)], **lstm)) == 4


def test_variables_are_those_of_keras() -> None:
    """Layers of every sort that trains something."""
    from lolat.readers.keras import import_keras, read_model

    keras = import_keras()
    layers = keras.layers
    image = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, activation="relu")(image)
    x = layers.BatchNormalization()(x)
    x = layers.SeparableConv2D(12, 3)(x)
    x = layers.Conv2D(24, 3, groups=4, use_bias=False)(x)
    x = layers.Conv2DTranspose(8, 2, strides=2)(x)
    x = layers.DepthwiseConv2D(3, use_bias=False)(x)
    x = layers.GroupNormalization(4)(x)
    x = layers.GlobalAveragePooling2D()(x)
    words = keras.Input((12,), dtype="int32")
    y = layers.Embedding(50, 16)(words)
    y = layers.LayerNormalization()(y)
    y = layers.LSTM(8, return_sequences=True)(y)
    y = layers.GRU(8, return_sequences=True)(y)
    y = layers.GRU(8, return_sequences=True, reset_after=False)(y)
    y = layers.Bidirectional(layers.LSTM(4, return_sequences=True, use_bias=False))(y)
    y = layers.MultiHeadAttention(2, 4)(y, y)
    y = layers.SimpleRNN(8)(y)
    z = layers.Dropout(0.5)(layers.Concatenate()([x, y]))
    model = keras.Model([image, words], layers.Dense(10, activation="softmax")(z))
    graph = read_model(model)
    assert variables(graph) == len(model.trainable_variables)
    assert parameters(graph) == sum(prod(w.shape) for w in model.trainable_variables)


def test_memory_by_hand() -> None:
    """4x4x2 -> conv 3 channels -> relu -> flatten -> dropout -> dense 5 -> softmax."""
    b = GraphBuilder("small", "keras")
    x = b.input((1, 4, 4, 2))
    x = b.add("conv", [x], (1, 4, 4, 3), kernel=(3, 3), in_channels=2, out_channels=3, groups=1,
              bias=True, strides=(1, 1))  # fmt: skip
    x = b.add("relu", [x], (1, 4, 4, 3))
    x = b.add("flatten", [x], (1, 48))
    x = b.add("dropout", [x], (1, 48))
    x = b.add("dense", [x], (1, 5), in_features=48, out_features=5, bias=True)
    graph = b.build([b.add("softmax", [x], (1, 5))])
    learned = 3 * 3 * 2 * 3 + 3 + 48 * 5 + 5
    assert parameters(graph) == learned
    # input of the convolution, relu's result, dropout's, which the dense layer reads, softmax's; and a
    # byte of the dropout's mask each
    kept, mask = 32 + 48 + 48 + 5, 48
    assert saved_bytes(graph, 1) == 4 * kept + mask
    assert saved_bytes(graph, 7) == 7 * (4 * kept + mask)
    # At the dense layer: 48 + 5 of the pass, its gradients, and what all before it keeps.
    kept, last = kept - 5 + 48 + 5, 48 * 5 + 5
    for name, slots in (("sgd", 0), ("momentum", 1), ("adam", 2)):
        expected = 7 * (4 * kept + mask) + 4 * (learned * (1 + slots) + last)
        assert memory_bytes(graph, 7, OPTIMIZERS[name]) == expected
    # In half precision all but the mask is half; with autocast the weights are there in both.
    half = 7 * (2 * kept + mask) + 2 * (learned + last)
    assert memory_bytes(graph, 7, OPTIMIZERS["sgd"], Mode(FLOAT16)) == half
    # Several devices keep a copy of the gradients in buckets.
    for mode, size in ((Mode(), 4), (Mode(AMP), 4), (Mode(FLOAT16), 2)):
        ours = [memory_bytes(graph, 7, OPTIMIZERS["adam"], mode, several) for several in (0, 1)]
        assert ours[1] - ours[0] == size * learned
    amp = memory_bytes(graph, 7, OPTIMIZERS["sgd"], Mode(AMP))
    # The input in float32, and its copy in half.
    activations = (4 + 2) * 32 + 2 * 48 + 2 * 48 + 2 * (48 + 5) + mask
    assert amp == 7 * activations + (4 + 2) * learned + 4 * last
    # Gradients are there from the start where several micro-batches add theirs.
    recipe = recipe_of("fp32", OPTIMIZERS["sgd"])
    moment, parts = memory_at_peak(graph, 7, recipe, accumulate=2)
    assert (moment, parts["gradients"]) == ("the backward pass of dense", 4 * learned)


def test_flops_are_those_that_pytorch_counts() -> None:
    """Two for each multiply-accumulate; nothing waits for the gradient of the input."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    nn = torch.nn
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(),
                          nn.Linear(4 * 36, 5))  # fmt: skip
    for net, shape in (
        (image, (3, 10, 10)),
        (nn.Sequential(nn.Linear(6, 16), layer, nn.Linear(16, 3)), (7, 6)),
    ):
        with (
            nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
            FlopCounterMode(display=False) as counted,
        ):
            net(torch.ones(2, *shape)).sum().backward()
        assert 2 * flops(as_trained(lolat.read(net, shape))).sum() == counted.get_total_flops()
