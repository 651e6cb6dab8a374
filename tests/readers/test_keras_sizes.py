"""Input sizes: open ones, other ones, fixed batches, and those that do not fit."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.errors import InputError
from lolat.graph.counts import count
from lolat.readers import as_size
from lolat.readers.keras.calls import without_weights
from tests.readers.counting import refused
from tests.readers.keras_networks import functional, keras, layers, ops, total


def image_network(*shape: int | None, **options: Any) -> Any:
    return functional(
        lambda x: layers.GlobalAveragePooling2D(**options)(layers.Conv2D(4, 1, **options)(x)), shape
    )


OPEN, CLOSED, FIRST = image_network(None, None, 3), image_network(8, 8, 3), "channels_first"


@pytest.mark.parametrize(
    ("model", "size", "shape"),
    [
        (OPEN, 32, (32, 32, 3)), (OPEN, (32, 40), (32, 40, 3)), (OPEN, (32, 40, 3), (32, 40, 3)),
        (CLOSED, None, (8, 8, 3)), (CLOSED, 16, (16, 16, 3)),
        (image_network(3, 8, 8, data_format=FIRST), 16, (3, 16, 16)),
        (image_network(3, None, None, data_format=FIRST), 16, (3, 16, 16)),
        (functional(lambda x: layers.LSTM(4)(x), (None, 3)), 5, (5, 3)),
        (functional(lambda x: layers.LSTM(4)(x), (None, 3)), (6, 3), (6, 3)),
    ],
)  # fmt: skip
def test_sizes(model: Any, size: Any, shape: tuple[int, ...]) -> None:
    graph = lolat.read(model, size)
    assert graph.shapes(graph.inputs) == [(1, *shape)]
    macs = 12 * prod(shape) // 3 if len(shape) == 3 else 112 * shape[0]
    assert total(graph).flops == macs


@pytest.mark.parametrize(
    ("model", "size", "parts"),
    [
        (OPEN, None, ["the input ?x?x3", "--input-size 224,224,3"]),
        (functional(lambda x: layers.LSTM(4)(x), (None, 3)), None, ["the input ?x3"]),
        (CLOSED, (3, 4, 5, 6), ["does not fit the input 8x8x3", "3,4,5,6"]),
        (CLOSED, (1, 2, 3, 4, 5), ["does not fit the input 8x8x3", "1,2,3,4,5"]),
        (CLOSED, (8, 8, 5), ["a symbolic input of shape 8x8x5"]),
    ],
)
def test_sizes_that_do_not_fit(model: Any, size: Any, parts: list[str]) -> None:
    refused(model, *parts, size=size)


def test_a_dense_head_that_was_made_for_another_size() -> None:
    model = functional(
        lambda x: layers.Dense(5)(layers.Flatten()(layers.Conv2D(4, 3)(x))), (8, 8, 3)
    )
    refused(model, "16x16x3", "expected axis -1 of input shape to have value 144", size=16)
    assert total(lolat.read(model)).flops == 36 * 4 * 27 + 144 * 5


def test_a_size_is_for_images_not_for_the_vector_beside_them() -> None:
    def both(image: Any, facts: Any) -> Any:
        pooled = layers.GlobalAveragePooling2D()(image)
        return layers.Dense(2)(layers.Concatenate()([pooled, layers.Dense(3)(facts)]))

    graph = lolat.read(functional(both, (None, None, 3), (7,)), 16)
    assert graph.shapes(graph.inputs) == [(1, 16, 16, 3), (1, 7)]


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
    refused(model, "write -1 in place of the batch size")

    class Plain(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(ops.reshape(x, (-1, 10)))

    model = Plain()
    model(np.zeros((6, 2, 5), "float32"))
    assert total(lolat.read(model)).flops == 30


def test_an_einsum_that_was_not_told_its_steps() -> None:
    """Keras' own example leaves the steps open although the input has them."""

    def network(x: Any) -> Any:
        x = layers.EinsumDense("abc,cde->abde", output_shape=(None, 3, 5))(x)
        return layers.Dense(2)(layers.LayerNormalization()(x))

    graph = lolat.read(functional(network, (4, 6)))
    assert graph.shapes(graph.outputs) == [(1, 4, 3, 2)]
    assert total(graph).flops == 4 * 15 * 6 + 12 * 5 * 2


@pytest.mark.parametrize(
    "size", [0, -1, True, 2.5, "224", (224, 0), (True,), (2.5, 3), "2,3", ("2", "3")]
)
def test_sizes_are_positive_whole_numbers(size: Any) -> None:
    with pytest.raises(InputError, match="expected a positive whole number") as caught:
        as_size(size)
    assert "\n" not in str(caught.value)


def test_sizes_as_tuples() -> None:
    assert [as_size(s) for s in (None, 224, [3, 4], np.int64(8))] == [(), (224,), (3, 4), (8,)]
