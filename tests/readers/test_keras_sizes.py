"""Input sizes: open ones, other ones, fixed batches, and those that do not fit."""

from __future__ import annotations

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


def first_shape(model: Any, size: Any = None) -> tuple[int, ...]:
    graph = lolat.read(model, size)
    return graph.tensors[graph.inputs[0]].shape


def test_an_open_size_must_be_given() -> None:
    model = image_network(None, None, 3)
    refused(model, "the input ?x?x3", "--input-size 224,224,3")
    assert first_shape(model, 32) == (1, 32, 32, 3)
    assert first_shape(model, (32, 40)) == (1, 32, 40, 3)
    assert first_shape(model, (32, 40, 3)) == (1, 32, 40, 3)


def test_one_open_axis() -> None:
    model = functional(lambda x: layers.LSTM(4)(x), (None, 3))
    refused(model, "the input ?x3")
    assert total(lolat.read(model, 5)).flops == 5 * 112
    assert total(lolat.read(model, (6, 3))).flops == 6 * 112


def test_another_size_counts_as_if_made_so() -> None:
    assert count(lolat.read(image_network(8, 8, 3), 16)).total() == (
        count(lolat.read(image_network(16, 16, 3))).total())  # fmt: skip
    graph = lolat.read(image_network(8, 8, 3), 16)
    assert total(graph).flops == 16 * 16 * 4 * 3


def test_channels_first_keeps_its_channels() -> None:
    model = image_network(3, 8, 8, data_format="channels_first")
    assert first_shape(model, 16) == (1, 3, 16, 16)
    model = image_network(3, None, None, data_format="channels_first")
    assert first_shape(model, 16) == (1, 3, 16, 16)


@pytest.mark.parametrize("size", [(3, 4, 5, 6), (1, 2, 3, 4, 5)])
def test_a_size_of_another_rank_does_not_fit(size: tuple[int, ...]) -> None:
    text = ",".join(map(str, size))
    refused(image_network(8, 8, 3), "does not fit the input 8x8x3", text, size=size)


def test_other_channels_do_not_fit() -> None:
    refused(image_network(8, 8, 3), "a symbolic input of shape 8x8x5", size=(8, 8, 5))


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


def test_a_batch_size_in_a_reshape_is_refused() -> None:
    """Else all that follows would count four times."""
    with without_weights():
        x = keras.Input((8, 8, 3), batch_size=4)
        model = keras.Model(x, layers.Dense(5)(ops.reshape(x, (4, 64, 3))))
    refused(model, "write -1 in place of the batch size")


def test_a_subclassed_model_built_with_a_batch_counts_per_sample() -> None:
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
    assert as_size(None) == ()
    assert as_size(224) == (224,)
    assert as_size([3, 4]) == (3, 4)
    assert as_size(np.int64(8)) == (8,)
