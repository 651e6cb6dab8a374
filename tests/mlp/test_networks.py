"""Networks as rows of layers, and their time as the sum of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec import structs

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.mlp.layer_model import LayerModel
from lolat.mlp.networks import network_rows, network_time
from tests import synthetic
from tests.mlp.tables import hand_model


def conv(
    b: GraphBuilder,
    x: int,
    shape: Sequence[int],
    kernel: Sequence[int] = (3, 3),
    strides: Sequence[int] = (1, 1),
    kind: str = "conv",
    name: str = "",
    **more: Any,
) -> int:
    """A convolution of tensor `x`, channels last."""
    inside = b.tensors[x].shape[-1]
    attributes = {"kernel": tuple(kernel), "strides": tuple(strides), "in_channels": inside,
                  "out_channels": shape[-1], "groups": 1, "bias": True, "padding": "same"}  # fmt: skip
    return b.add(kind, [x], shape, name, **{**attributes, **more})


def small() -> Graph:
    """Two convolutions with and without ReLU, pooling, a depthwise convolution, two dense layers."""
    b = GraphBuilder("small")
    x = b.input((1, 16, 16, 3))
    x = conv(b, x, (1, 16, 16, 8), name="first")
    x = b.add("relu", [x], (1, 16, 16, 8), "first_relu")
    x = b.add("max_pool", [x], (1, 8, 8, 8), "pool", kernel=(2, 2), strides=(2, 2))
    x = conv(b, x, (1, 4, 4, 12), (5, 5), (1, 1), name="second", padding="valid", bias=False)
    x = conv(b, x, (1, 4, 4, 12), kind="depthwise_conv", name="depthwise", groups=12)
    x = b.add("reshape", [x], (1, 192), "flatten")
    x = b.add("dense", [x], (1, 20), "hidden", in_features=192, out_features=20, bias=True)
    x = b.add("tanh", [x], (1, 20), "hidden_tanh")
    x = b.add("dense", [x], (1, 10), "head", in_features=20, out_features=10, bias=True)
    return b.build([b.add("softmax", [x], (1, 10), "softmax")])


def models(gpus: Sequence[str] = ("V100",)) -> dict[str, LayerModel]:
    """0.25 ms per sample of a batch for a convolution, 0.5 for a dense layer."""
    return {
        "convolution": hand_model("convolution", gpus, slope=0.25),
        "dense": hand_model("dense", gpus, slope=0.5),
    }


def row(graph: Graph, name: str = "layer") -> Mapping[str, Any]:
    """The columns of the one row of that name."""
    rows, _ = network_rows(graph, "V100", 2, "none")
    (found,) = (
        r for of in rows.values() for i, r in of.items() if graph.operations[i].name == name
    )
    return found


def one_conv(before: Sequence[int], after: Sequence[int], **more: Any) -> Graph:
    """A network of one convolution."""
    b = GraphBuilder("one")
    return b.build([conv(b, b.input((1, *before)), (1, *after), name="layer", **more)])


def columns(graph: Graph, layer: str, batch_size: int = 1) -> dict[str, list[Any]]:
    """The rows of a kind of layer, by column."""
    rows, _ = network_rows(graph, "K80", batch_size, "adam")
    of_layer = [*rows[layer].values()]
    return {name: [row[name] for row in of_layer] for name in of_layer[0]}


def test_layers_become_rows_and_the_rest_is_named() -> None:
    graph = small()
    rows, others = network_rows(graph, "K80", 4, "adam")
    layers = {n: [graph.operations[i].name for i in of] for n, of in rows.items()}
    assert layers == {"convolution": ["first", "second"], "dense": ["hidden", "head"]}
    assert others == {"max_pool": 1, "depthwise_conv": 1, "softmax": 1}
    common = {"gpu": ["K80", "K80"], "batch_size": [4, 4], "optimizer": ["adam", "adam"]}
    assert columns(graph, "convolution", 4) == common | {
        "input_size": [16, 8], "kernel_size": [3, 5], "in_channels": [3, 8],
        "out_channels": [8, 12], "stride": [1, 1], "padding": ["same", "valid"],
        "use_bias": [1, 0], "activation": ["relu", "none"],
    }  # fmt: skip
    assert columns(graph, "dense", 4) == common | {
        "in_features": [192, 20], "out_features": [20, 10], "activation": ["tanh", "none"],
    }  # fmt: skip


def test_an_activation_that_is_not_the_layers_alone_stays_apart() -> None:
    b = GraphBuilder("shared")
    x = conv(b, b.input((1, 8, 8, 4)), (1, 8, 8, 4), name="read twice")
    y = b.add("relu", [x], (1, 8, 8, 4), "relu")
    z = conv(b, b.add("add", [x, y], (1, 8, 8, 4), "add"), (1, 8, 8, 4), name="given out")
    graph = b.build([z, b.add("relu", [z], (1, 8, 8, 4), "last")])
    assert columns(graph, "convolution")["activation"] == ["none", "none"]
    assert network_rows(graph, "V100", 1, "none")[1] == {"relu": 2, "add": 1}


STEM = {"kernel": (7, 7), "strides": (2, 2)}


@pytest.mark.parametrize(
    ("before", "after", "more", "size", "padding"),
    [
        ((9, 9, 3), (5, 5, 4), {"strides": (2, 2)}, 9, "same"),
        ((9, 9, 3), (4, 4, 4), {"strides": (2, 2), "padding": "valid"}, 9, "valid"),
        # As PyTorch writes them: padded by 1 before a step of 2, which is as "same"; by 3; by more.
        ((224, 224, 3), (112, 112, 8), {**STEM, "padding": "valid"}, 224, "same"),
        ((8, 8, 3), (4, 4, 4), {"strides": (2, 2), "padding": "valid"}, 8, "same"),
        ((8, 8, 3), (10, 10, 4), {"padding": "valid"}, 12, "valid"),
        # Both fit: what the network says.
        ((8, 8, 3), (8, 8, 4), {"kernel": (1, 1), "padding": "valid"}, 8, "valid"),
        ((8, 8, 3), (8, 8, 4), {"kernel": (1, 1), "padding": "same"}, 8, "same"),
    ],
)  # fmt: skip
def test_padding_is_what_gives_the_size_of_the_output(
    before: Sequence[int], after: Sequence[int], more: dict[str, Any], size: int, padding: str
) -> None:
    found = row(one_conv(before, after, **more))
    assert (found["input_size"], found["padding"]) == (size, padding)


def test_channels_may_come_first() -> None:
    graph = synthetic.one(
        "conv", [(1, 3, 20, 20)], [(1, 8, 20, 20)], kernel=(3, 3), strides=(1, 1), in_channels=3,
        out_channels=8, groups=1, bias=True, padding="same",
    )  # fmt: skip
    assert columns(graph, "convolution")["input_size"] == [20]


def test_an_input_that_is_not_square_keeps_its_area() -> None:
    assert row(one_conv((18, 8, 3), (18, 8, 4)))["input_size"] == 12


def test_a_dense_layer_at_several_positions_is_one_of_a_larger_batch() -> None:
    b = GraphBuilder("sequence")
    x = b.add("dense", [b.input((1, 7, 5))], (1, 7, 5), in_features=5, out_features=5, bias=True)
    assert columns(b.build([x]), "dense", 3)["batch_size"] == [21]


@pytest.mark.parametrize(
    ("sides", "kind", "more"),
    [
        (2, "grouped_conv", {"groups": 2}),
        (2, "transposed_conv", {}),
        (2, "conv", {"dilation": (2, 2)}),
        (2, "conv", {"kernel": (1, 7)}),
        (2, "conv", {"strides": (1, 2)}),
        (1, "conv", {}),
        (3, "conv", {}),
    ],
)
def test_convolutions_that_the_data_has_not_are_not_guessed(
    sides: int, kind: str, more: dict[str, Any]
) -> None:
    shape, of_sides = (6,) * sides + (4,), {"kernel": (3,) * sides, "strides": (1,) * sides}
    graph = one_conv(shape, shape, **{"kind": kind, **of_sides, **more})
    assert network_rows(graph, "V100", 1, "none") == ({}, {kind: 1})


def test_a_batch_is_the_sum_of_its_layers() -> None:
    found = network_time(small(), models(), "V100", 8)
    assert [layer.predicted_ms for layer in found.layers] == pytest.approx([2, 2, 4, 4])
    assert [layer.share for layer in found.layers] == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3])
    assert found.batch_ms == pytest.approx(12)
    assert [layer.name for layer in found.layers] == ["first", "second", "hidden", "head"]
    assert found.not_predicted == {"max_pool": 1, "depthwise_conv": 1, "softmax": 1}
    # The plain rows that the models say they know are of other sizes.
    assert [w.partition(":")[0] for w in found.warnings] == ["convolution layers", "dense layers"]
    with pytest.raises(InputError, match="dense layers"):
        network_time(small(), {"convolution": models()["convolution"]}, "V100", 8)


def test_vgg16_is_the_published_list_of_layers() -> None:
    pytest.importorskip("keras")
    from lolat.readers import read

    graph = read("keras:VGG16")
    found = columns(graph, "convolution")
    wanted = [(224, 3, 64), (224, 64, 64), (112, 64, 128), (112, 128, 128), (56, 128, 256),
              (56, 256, 256), (56, 256, 256), (28, 256, 512), (28, 512, 512), (28, 512, 512),
              (14, 512, 512), (14, 512, 512), (14, 512, 512)]  # fmt: skip
    sizes = (found[c] for c in ("input_size", "in_channels", "out_channels"))
    assert list(zip(*sizes, strict=True)) == wanted
    assert set(found["activation"]) == {"relu"}
    assert set(found["padding"]) == {"same"}
    dense = columns(graph, "dense", 2)
    assert dense["in_features"] == [25088, 4096, 4096]
    assert dense["activation"] == ["relu", "relu", "none"]
    assert dense["batch_size"] == [2, 2, 2]
    assert network_rows(graph, "V100", 1, "none")[1] == {"max_pool": 5, "softmax": 1}


def test_a_network_in_another_precision_or_quantized_is_told() -> None:
    """The models are of float32 alone."""
    graph = small()
    half = tuple(structs.replace(t, dtype="float16") for t in graph.tensors)
    found = network_time(structs.replace(graph, tensors=half), models(), "V100", 8)
    assert found.warnings[0] == "measured in float32, asked for float16"
    bits = [structs.replace(o, attributes={**o.attributes, "bits": 8}) for o in graph.operations]
    found = network_time(structs.replace(graph, operations=tuple(bits)), models(), "V100", 8)
    assert found.warnings[0].startswith("quantized: 100 % of its multiply-accumulates")
