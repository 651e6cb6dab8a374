"""What the TensorFlow backend builds of networks that people have: every block runs and has its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.graph import Graph, GraphBuilder
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.graph.edits import subgraph
from lolat.readers.keras import read_model, without_weights
from microbench.backends import create, tensorflow
from microbench.backends.tensorflow.layers import build_graph as build
from tests.readers.keras_networks import functional, graph_of, keras, layers, ops

BATCH = 2


def run(graph: Graph, model: Any) -> list[np.ndarray]:
    """What a built model makes of random input at BATCH."""
    given = []
    for index in graph.inputs:
        tensor = graph.tensors[index]
        grown = tensor.shape[0] * (BATCH if tensor.batched else 1)
        value = np.random.default_rng(1).uniform(0, 2, (grown, *tensor.shape[1:]))
        given.append(value.astype(tensor.dtype))
    made = model(given, training=False)
    return [np.asarray(x) for x in (made if isinstance(made, (list, tuple)) else [made])]


def check(graph: Graph) -> list[np.ndarray]:
    """Build and run `graph`; the shapes are the graph's, and the counts of what was built too."""
    model = build(keras, graph)
    outputs = run(graph, model)
    wanted = [graph.tensors[i] for i in graph.outputs]
    assert [x.shape for x in outputs] == [
        (t.shape[0] * (BATCH if t.batched else 1), *t.shape[1:]) for t in wanted
    ]
    return outputs


IMAGE, STEPS = (12, 12, 6), (10, 6)
ONE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "conv 1d causal": (lambda x: layers.Conv1D(5, 3, padding="causal", dilation_rate=2)(x), (STEPS,)),
    "conv 2d": (lambda x: layers.Conv2D(4, (3, 2), strides=2)(x), (IMAGE,)),
    "conv 3d": (lambda x: layers.Conv3D(4, 3, padding="same")(x), ((6, 6, 6, 2),)),
    "conv groups": (lambda x: layers.Conv2D(6, 3, groups=3, padding="same")(x), (IMAGE,)),
    "conv behind a padding": (
        lambda x: layers.Conv2D(4, 3, strides=2)(layers.ZeroPadding2D(((0, 1), (0, 1)))(x)),
        (IMAGE,),
    ),
    "depthwise behind a padding": (
        lambda x: layers.DepthwiseConv2D(5, strides=2)(layers.ZeroPadding2D(((1, 2), (2, 1)))(x)),
        (IMAGE,),
    ),
    "depthwise 1d": (lambda x: layers.DepthwiseConv1D(3, depth_multiplier=2)(x), (STEPS,)),
    "separable": (lambda x: layers.SeparableConv2D(4, 3, activation="relu")(x), (IMAGE,)),
    "transposed": (lambda x: layers.Conv2DTranspose(4, 3, strides=2, padding="same")(x), (IMAGE,)),
    "transposed with an output padding": (
        lambda x: layers.Conv2DTranspose(4, 3, strides=3, padding="same", output_padding=1)(x),
        (IMAGE,),
    ),
    "transposed 1d": (lambda x: layers.Conv1DTranspose(4, 4, strides=2)(x), (STEPS,)),
    "conv as a function": (lambda x: ops.conv(x, np.ones((3, 3, 6, 4), "float32"), strides=3), (IMAGE,)),
    "max pool": (lambda x: layers.MaxPooling2D(3, 2, padding="same")(x), (IMAGE,)),
    "max pool as a function": (lambda x: ops.max_pool(x, 3, 2, padding="same"), (IMAGE,)),
    "average pool 1d": (lambda x: layers.AveragePooling1D(2)(x), (STEPS,)),
    "global average pool 1d": (lambda x: layers.GlobalAveragePooling1D()(x), (STEPS,)),
    "pad and crop": (
        lambda x: layers.Cropping2D(((1, 2), (0, 3)))(layers.ZeroPadding2D((1, 2))(x)),
        (IMAGE,),
    ),
    "pad 1d, relu": (lambda x: ops.relu(layers.ZeroPadding1D((2, 1))(x)), (STEPS,)),
    "crop 1d": (lambda x: layers.Cropping1D((1, 2))(x), (STEPS,)),
    "slice, one step": (lambda x: x[:, 0], (STEPS,)),
    "slice, part of the channels": (lambda x: x[..., 2:5], (IMAGE,)),
    "slice, every other": (lambda x: x[:, ::2, 1::2], (IMAGE,)),
    "slice with a new axis": (lambda x: x[:, None, 3:], (STEPS,)),
    "split": (lambda x: ops.multiply(*ops.split(x, 2, axis=-1)), (IMAGE,)),
    "concatenate rows": (lambda x, y: layers.Concatenate(axis=1)([x, y]), ((3, 6, 2), (5, 6, 2))),
    "add": (lambda x, y: layers.Add()([x, y, x]), (IMAGE, IMAGE)),
    "a gate": (lambda x, y: layers.Multiply()([x, y]), (IMAGE, (1, 1, 6))),
    "ranks that differ": (lambda x, y: x * y[:, None], (STEPS, (6,))),
    "a scalar": (lambda x: (x + 1.0) * 2.0 - x / 3.0 + x**3, (IMAGE,)),
    "a constant": (lambda x: x * np.ones(6, "float32") - np.ones((12, 12, 1), "float32"), (IMAGE,)),
    "a constant in front": (lambda x: ops.matmul(np.ones((4, 10), "float32"), x), (STEPS,)),
    "constants put beside": (lambda x: ops.concatenate([x, x[:, :2] * 0], axis=1), (STEPS,)),
    "maximum, minimum, average": (
        lambda x, y: layers.Average()([layers.Maximum()([x, y]), layers.Minimum()([x, y])]),
        (IMAGE, IMAGE),
    ),
    "permute": (lambda x: layers.Permute((2, 1, 3))(x), ((4, 5, 6),)),
    "transpose of equal axes": (lambda x: ops.transpose(x, (0, 3, 1, 2)), (IMAGE,)),
    "depth to space": (
        lambda x: ops.depth_to_space(x, 2) if hasattr(ops, "depth_to_space") else x,
        ((4, 4, 8),),
    ),
    "flip": (lambda x: ops.flip(x, axis=1), (STEPS,)),
    "repeat": (lambda x: layers.RepeatVector(4)(x), ((6,),)),
    "tile": (lambda x: ops.tile(x, (1, 2, 3)), (STEPS,)),
    "dense on steps": (lambda x: layers.Dense(7, activation="gelu")(x), (STEPS,)),
    "einsum into heads": (lambda x: layers.EinsumDense("abc,cde->abde", (10, 2, 3))(x), (STEPS,)),
    "einsum out of heads": (lambda x: layers.EinsumDense("abcd,cde->abe", (5, 7))(x), ((5, 2, 3),)),
    "product": (lambda x, y: ops.matmul(x, y), ((4, 5), (5, 3))),
    "product with a transposed one": (lambda x, y: ops.einsum("abc,adc->abd", x, y), ((4, 5), (3, 5))),
    "each step": (lambda x: layers.TimeDistributed(layers.Conv2D(2, 3))(x), ((3, 6, 6, 4),)),
    "dropout, identity, reshape": (
        lambda x: layers.Reshape((3, 20))(layers.Identity()(layers.Dropout(0.5)(x))),
        (STEPS,),
    ),
    "into the batch": (
        lambda x: ops.reshape(layers.Dense(4)(ops.reshape(x, (-1, 6))), (-1, 10, 4)),
        (STEPS,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_a_layer_is_built_from_its_operations(name: str) -> None:
    call, shapes = ONE[name]
    original = functional(call, *shapes)
    graph = read_model(original)
    outputs = check(graph)
    assert [x.shape[1:] for x in outputs] == [tuple(t.shape[1:]) for t in original.outputs]
    with without_weights():
        built = count(read_model(build(keras, graph))).total(BATCH)
    if name not in OTHERWISE:
        assert built == count(graph).total(BATCH)


OTHERWISE = {"grouped queries", "split", "product with a transposed one"}
"""Built of other operations than the graph's, at about the same cost."""


ACTIVATIONS = "relu relu6 silu sigmoid hard_sigmoid hard_silu gelu softmax"


@pytest.mark.parametrize("name", ACTIVATIONS.split())
def test_every_activation_is_the_frameworks_own(name: str) -> None:
    graph = graph_of(lambda x: layers.Activation(name)(x), (5,))
    (made,) = check(graph)
    x = np.random.default_rng(1).uniform(0, 2, (BATCH, 5)).astype("float32")
    np.testing.assert_allclose(made, getattr(keras.activations, name)(x), rtol=1e-5)


def test_indices_stay_whole_numbers() -> None:
    graph = graph_of(lambda x: layers.Embedding(9, 4)(x), (7,), dtype="int32")
    assert [t.dtype for t in build(keras, graph).inputs] == ["int32"]
    check(graph)


def test_channels_first_is_built_so() -> None:
    def call(x: Any) -> Any:
        x = layers.Conv2D(4, 3, data_format="channels_first")(x)
        return layers.GlobalAveragePooling2D(data_format="channels_first")(x)

    graph = graph_of(call, (6, 12, 12))
    model = build(keras, graph)  # which TensorFlow does not run on a CPU, nor the original
    assert [tuple(t.shape) for t in model.outputs] == [(None, 4)]


def test_a_part_that_reads_what_does_not_grow() -> None:
    """A position embedding that the rest of the network made: an input of a fixed size."""
    b = GraphBuilder("n")
    x = b.input((1, 10, 4))
    table = b.add("relu", [b.tensor((1, 10, 4), batched=False)], (1, 10, 4))
    whole = b.build([b.add("add", [x, table], (1, 10, 4))])
    part = subgraph(whole, [1], "part")
    assert [tuple(t.shape) for t in build(keras, part).inputs] == [(None, 10, 4), (1, 10, 4)]
    check(part)
    check(whole)


def test_inputs_of_all_sorts_lie_ready_at_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indices, steps that are part of the batch, and what does not grow with it."""
    b = GraphBuilder("n")
    indices, steps = b.input((1, 5), "int32"), b.input((3, 4))
    table = b.input((1, 4), batched=False)
    rows = b.add("embedding", [indices], (1, 5, 4), rows=9, out_features=4, dtype="float32")
    graph = b.build([rows, b.add("add", [steps, table], (3, 4))])
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        tensorflow, "np", SimpleNamespace(asarray=lambda x: seen.append(tuple(x.shape)))
    )
    call = create("tensorflow", "cpu").prepare_graph(graph, 7)
    assert seen == [(7, 5), (21, 4), (1, 4)], "its inputs, where they lie on the host"
    seen.clear()
    call()
    assert seen == [(7, 5, 4), (21, 4)], "its results"


def new_blocks(networks: Iterable[Graph]) -> Iterator[Graph]:
    """Of all networks' blocks those with an operation, with its window and groups, that none before has."""
    seen: set[str] = set()
    facts = ("kernel", "strides", "padding", "pad_before")
    for graph in networks:
        for block in cut(graph):
            part = subgraph(graph, block.operations, f"{graph.name} {block.name}")
            found = {
                f"{o.kind} {[o.attributes.get(f) for f in facts]} {o.attributes.get('groups', 1) > 1}"
                for o in part.operations
            }
            if not found <= seen:
                yield part
            seen |= found


APPLICATIONS = (
    "MobileNetV3Small", "ConvNeXtTiny", "ResNet50", "EfficientNetB0", "EfficientNetV2B0", "DenseNet121",
    "NASNetMobile", "VGG16", "ResNet50V2", "InceptionV3", "Xception",
)  # fmt: skip


def test_what_the_blocks_of_applications_have_is_built_and_runs() -> None:
    sizes = {"InceptionV3": 96, "Xception": 96}
    blocks = list(new_blocks(lolat.read(f"keras:{n}", sizes.get(n, 64)) for n in APPLICATIONS))
    assert len(blocks) >= 20
    for block in blocks:
        check(block)
