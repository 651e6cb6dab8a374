"""Networks as people write them: functional, sequential, nested, used twice."""

from __future__ import annotations

from typing import Any

import numpy as np

import lolat
from lolat.graph.counts import count
from lolat.readers.keras import read_model
from lolat.readers.keras.calls import without_weights
from tests.readers.keras_networks import functional, graph_of, keras, kinds, layers, total

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
    nodes = len(model.layers[1]._inbound_nodes)
    lolat.read(model)
    assert len(model.layers[1]._inbound_nodes) == nodes
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


def test_a_nested_model_used_twice_and_at_another_size() -> None:
    inner = functional(conv(), (None, None, 2))
    graph = graph_of(lambda a, b: [inner(a), inner(b)], (7, 9, 2), (14, 9, 2))
    assert graph.shapes(graph.outputs) == [(1, 7, 9, 4), (1, 14, 9, 4)]
    assert total(graph).flops == 3 * CONV
    assert_sound(graph)


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
