"""Keras' other layers, against counts done by hand: most read their inputs and write their outputs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.readers.keras_networks import check, counted, graph_of, keras, kinds, layers, six, total

IMAGE = (6, 8, 3)  # 144 elements

# Each: the kind, the layer, the input shape, elements read and written.
MOVING = [
    ("batch_norm", layers.BatchNormalization, IMAGE, 144 + 144),
    ("layer_norm", layers.LayerNormalization, IMAGE, 288),
    ("group_norm", lambda: layers.GroupNormalization(3), IMAGE, 288),
    ("rms_norm", layers.RMSNormalization, IMAGE, 288),
    ("unit_norm", layers.UnitNormalization, IMAGE, 288),
    ("batch_norm", layers.Normalization, IMAGE, 288),
    ("rescale", lambda: layers.Rescaling(1 / 255), IMAGE, 288),
    ("relu", layers.ReLU, IMAGE, 288),
    ("relu6", lambda: layers.ReLU(6.0), IMAGE, 288),
    ("leaky_relu", lambda: layers.ReLU(negative_slope=0.1), IMAGE, 288),
    ("leaky_relu", layers.LeakyReLU, IMAGE, 288),
    ("prelu", lambda: layers.PReLU(shared_axes=(1, 2)), IMAGE, 288),
    ("elu", layers.ELU, IMAGE, 288),
    ("softmax", layers.Softmax, IMAGE, 288),
    ("max_pool", lambda: layers.MaxPooling2D(2), IMAGE, 144 + 36),
    ("max_pool", lambda: layers.MaxPooling2D(3, strides=1, padding="same"), IMAGE, 288),
    ("average_pool", lambda: layers.AveragePooling2D((2, 4)), IMAGE, 144 + 18),
    ("max_pool", lambda: layers.MaxPooling1D(2), (9, 3), 27 + 12),
    ("average_pool", lambda: layers.AveragePooling1D(2, padding="same"), (9, 3), 27 + 15),
    ("max_pool", lambda: layers.MaxPooling3D(2), (4, 6, 8, 3), 576 + 72),
    ("average_pool", lambda: layers.AveragePooling3D(2), (4, 6, 8, 3), 576 + 72),
    ("global_average_pool", layers.GlobalAveragePooling2D, IMAGE, 144 + 3),
    ("global_max_pool", layers.GlobalMaxPooling2D, IMAGE, 144 + 3),
    ("global_average_pool", layers.GlobalAveragePooling1D, (9, 3), 27 + 3),
    ("global_max_pool", layers.GlobalMaxPooling3D, (4, 6, 8, 3), 576 + 3),
    ("adaptive_pool", lambda: layers.AdaptiveAveragePooling2D((2, 2)), IMAGE, 144 + 12),
    ("adaptive_pool", lambda: layers.AdaptiveMaxPooling1D(4), (8, 3), 24 + 12),
    ("resize", lambda: layers.UpSampling2D(2), IMAGE, 144 + 576),
    ("resize", lambda: layers.UpSampling1D(3), (9, 3), 27 + 81),
    ("resize", lambda: layers.Resizing(3, 5), IMAGE, 144 + 45),
    ("pad", lambda: layers.ZeroPadding2D(((1, 0), (2, 3))), IMAGE, 144 + 7 * 13 * 3),
    ("pad", lambda: layers.ZeroPadding1D(2), (9, 3), 27 + 39),
    ("crop", lambda: layers.Cropping2D(1), IMAGE, 2 * 4 * 6 * 3),
    ("crop", lambda: layers.Cropping1D((1, 3)), (9, 3), 2 * 15),
    ("transpose", lambda: layers.Permute((3, 1, 2)), IMAGE, 288),
    ("repeat", lambda: layers.RepeatVector(5), (7,), 7 + 35),
]

ACTIVATIONS = ["relu", "relu6", "leaky_relu", "elu", "selu", "celu", "silu", "sigmoid", "hard_sigmoid",
               "hard_silu", "gelu", "tanh", "softmax", "log_softmax", "softplus", "softsign", "mish",
               "exponential", "squareplus", "hard_tanh", "log_sigmoid", "hard_shrink", "soft_shrink",
               "tanh_shrink", "sparse_plus", "sparsemax", "threshold", "sparse_sigmoid"]  # fmt: skip


@pytest.mark.parametrize(("kind", "make", "given", "moved"), MOVING)
def test_layers_that_move_data(kind: str, make: Any, given: Any, moved: int) -> None:
    check(graph_of(lambda x: make()(x), given), kind, (0, 0, 0, moved, 0, 1))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    if name == "threshold":  # it has arguments, so it cannot be given by name
        graph = graph_of(lambda x: keras.activations.threshold(x, 0.1, 0.0), IMAGE)
    else:
        graph = graph_of(layers.Activation(name), IMAGE)
    check(graph, name, (0, 0, 0, 288, 0, 1))


def test_swish_has_two_names_and_an_activation_of_the_users_its_own() -> None:
    assert kinds(graph_of(layers.Activation("swish"), IMAGE)) == ["silu"]
    assert kinds(graph_of(layers.Activation("hard_swish"), IMAGE)) == ["hard_silu"]

    def bent(x: Any) -> Any:
        return x * keras.ops.sigmoid(x)

    graph = graph_of(layers.Dense(4, activation=bent), (7,))
    assert kinds(graph) == ["dense", "bent"]


@pytest.mark.parametrize(
    "make",
    [lambda: layers.Dropout(0.5), lambda: layers.SpatialDropout2D(0.5), lambda: layers.GaussianNoise(1.0),
     lambda: layers.AlphaDropout(0.5), lambda: layers.ActivityRegularization(0.1), layers.Identity,
     layers.Flatten, lambda: layers.Reshape((8, 18)), lambda: layers.Reshape((-1,)),
     lambda: layers.Activation("linear")],
)  # fmt: skip
def test_what_is_free(make: Any) -> None:
    assert six(counted(lambda x: make()(x), IMAGE, batch_size=9)) == (0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "make", "others", "moved"),
    [*((name.lower(), getattr(layers, name), [IMAGE], 3 * 144)
       for name in ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")),
     ("add", layers.Add, [IMAGE, IMAGE], 4 * 144), ("multiply", layers.Multiply, [(1, 1, 3)], 291),
     ("concatenate", layers.Concatenate, [(6, 8, 5)], 144 + 240 + 384)],
)  # fmt: skip
def test_merging(kind: str, make: Any, others: Any, moved: int) -> None:
    graph = graph_of(lambda *all_of: make()(list(all_of)), IMAGE, *others)
    check(graph, kind, (0, 0, 0, moved, 0, 1))


def test_dot_product_of_two_activations() -> None:
    graph = graph_of(lambda a, b: layers.Dot(axes=2)([a, b]), (5, 7), (3, 7))
    check(graph, "matmul", (0, 0, 5 * 3 * 7, 35 + 21 + 15, 0, 1))
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
    from lolat.graph.counts import count

    graph = graph_of(lambda x: make()(x), given, dtype=dtype)
    assert count(graph).total().traffic >= graph.tensors[graph.outputs[0]].elements()
