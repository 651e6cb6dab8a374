"""Operations changed, left out and replaced: counted by hand, and against what Keras would build."""

from __future__ import annotations

from typing import Any

import pytest

from lolat.graph import Graph, GraphBuilder, edits
from lolat.graph.counts import Count, count, count_operation
from tests.synthetic import network


def everything(graph: Graph) -> range:
    return range(len(graph.operations))


def only(graph: Graph, name: str) -> Count:
    """The counts of the operation of this name."""
    (found,) = [o for o in graph.operations if o.name == name]
    return count_operation(graph, found)


def convolution(kernel: tuple[int, int], inside: int = 16, outside: int = 32, groups: int = 1,
                kind: str = "conv", padding: str = "same", strides: tuple[int, int] = (1, 1),
                size: int = 14, **more: Any) -> Graph:  # fmt: skip
    b = GraphBuilder("one")
    x = b.input((1, size, size, inside))
    out = (1, size // strides[0], size // strides[1], outside)
    x = b.add(kind, [x], out, "conv", kernel=kernel, in_channels=inside, out_channels=outside,
              groups=groups, bias=True, padding=padding, strides=strides, dilation=(1, 1),
              **more)  # fmt: skip
    x = b.add("silu", [x], out, "act")
    return b.build([b.add("tanh", [x], out, "last")])


def positions(graph: Graph, start: str) -> list[int]:
    return [p for p, o in enumerate(graph.operations) if o.name.startswith(start)]


def test_a_block_is_left_out() -> None:
    three, two = network(stages=3), network(stages=2)
    found = edits.bypassed(three, positions(three, "conv3_block1"))
    assert found is not None
    assert count(found).total(4) == count(two).total(4)
    names = [o.name for o in two.operations]
    assert [o.name for o in found.operations] == names


def test_the_last_block_is_left_out() -> None:
    b = GraphBuilder("chain")
    x = b.input((1, 8))
    for i in range(3):
        x = b.add("relu", [x], (1, 8), f"r{i}")
    graph = b.build([x])
    found = edits.bypassed(graph, [2])
    assert found is not None
    assert found.outputs == graph.operations[1].outputs


def test_what_changes_the_shape_cannot_be_left_out() -> None:
    graph = network()
    assert edits.bypassed(graph, positions(graph, "stem")) is None
    assert edits.bypassed(graph, everything(graph)) is None
    # Half a block: the addition reads two tensors of it.
    half = positions(graph, "conv1_block1_2") + positions(graph, "conv1_block1_add")
    assert edits.bypassed(graph, half) is None


def gated() -> Graph:
    """A squeeze-excite behind a convolution, and a scale of constants behind that."""
    b = GraphBuilder("gated")
    x = b.input((1, 8, 8, 16))
    s = b.add("global_average_pool", [x], (1, 16), "squeeze")
    s = b.add("dense", [s], (1, 4), "reduce", in_features=16, out_features=4, bias=True)
    s = b.add("dense", [s], (1, 16), "expand", in_features=4, out_features=16, bias=True)
    s = b.add("reshape", [b.add("sigmoid", [s], (1, 16), "gate")], (1, 1, 1, 16), "view")
    y = b.add("multiply", [x, s], (1, 8, 8, 16), "excite")
    y = b.add("multiply", [b.tensor((16,), batched=False), y], (1, 8, 8, 16), "layer_scale")
    return b.build([b.add("relu", [y], (1, 8, 8, 16), "act")])


def test_without_squeeze_excite() -> None:
    graph = gated()
    found = edits.without_gates(graph, everything(graph))
    assert found is not None
    assert [o.name for o in found.operations] == ["layer_scale", "act"]
    assert found.operations[0].inputs[1] == graph.inputs[0]
    assert edits.without_gates(graph, positions(graph, "layer_scale")) is None
    assert edits.without_gates(network(), everything(network())) is None


def test_what_nobody_needed_before_stays() -> None:
    graph = gated()
    excited = graph.operations[5].outputs
    aside = Graph(graph.name, graph.tensors, graph.operations, graph.inputs, excited)
    found = edits.without_gates(aside, everything(aside))
    assert found is not None
    assert [o.name for o in found.operations] == ["layer_scale", "act"]


def test_relu_saves_the_further_passes() -> None:
    graph = convolution((3, 3))
    found = edits.with_relu(graph, [1])
    assert found is not None
    elements = 2 * 14 * 14 * 32
    assert only(graph, "act").passes == elements
    assert only(graph, "act").exps == elements // 2  # of its results alone
    assert only(found, "act") == only(graph, "act")._replace(
        passes=0, exps=0, curve_elements=0, clip_elements=elements
    )
    assert edits.with_relu(graph, [0]) is None
    assert edits.with_relu(graph, [2]) is None  # what the network answers with is not changed


@pytest.mark.parametrize(
    ("kernel", "wanted"), [((5, 5), 9), ((7, 7), 9), ((1, 7), 3), ((5, 3), 9), ((11, 1), 3)]
)
def test_small_kernels(kernel: tuple[int, int], wanted: int) -> None:
    graph = convolution(kernel)
    found = edits.with_small_kernels(graph, everything(graph))
    assert found is not None
    assert only(found, "conv").flops == 14 * 14 * 32 * 16 * wanted
    assert found.tensors == graph.tensors


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": (3, 3)},
        {"kernel": (1, 1)},
        {"kernel": (5, 5), "padding": "valid"},  # its output would grow
        {"kernel": (4, 4), "strides": (4, 4), "size": 16},  # pixels would be passed over
    ],
)
def test_kernels_that_stay(options: dict[str, Any]) -> None:
    graph = convolution(**options)
    assert edits.with_small_kernels(graph, everything(graph)) is None


def test_a_padding_that_became_part_of_the_convolution_counts() -> None:
    graph = convolution((7, 7), padding="valid", pad_before=((3, 3), (3, 3)))
    assert edits.with_small_kernels(graph, [0]) is not None


def test_groups() -> None:
    grouped = convolution((3, 3), 32, 32, 8, "grouped_conv")
    plain = edits.ungrouped(grouped, [0])
    assert plain is not None
    assert only(plain, "conv") == only(convolution((3, 3), 32, 32), "conv")
    assert edits.as_depthwise(grouped, [0]) is None
    own = convolution((7, 7), 32, 32, 32, "grouped_conv")
    depthwise = edits.as_depthwise(own, [0])
    assert depthwise is not None
    assert only(own, "conv").narrow > 0
    was = only(own, "conv")
    assert only(depthwise, "conv") == was._replace(
        patches=0, narrow=0, groups=0, grouped_macs=0, depthwise_macs=was.flops,
        conv_reads=0, depthwise_reads=was.inp, conv_writes=0, depthwise_writes=was.acts,
        conv_ops=0, depthwise_ops=1,
    )  # fmt: skip
    assert edits.ungrouped(own, [0]) is None


@pytest.mark.parametrize(("strides", "groups"), [(1, 1), (2, 1), (1, 4)])
def test_separated(strides: int, groups: int) -> None:
    """MACs of a depthwise and a pointwise convolution: positions x inputs x (kernel + outputs)."""
    kind = "conv" if groups == 1 else "grouped_conv"
    graph = convolution((3, 3), 16, 32, groups, kind, strides=(strides, strides))
    found = edits.separated(graph, everything(graph))
    assert found is not None
    out = (14 // strides) ** 2
    a, b = only(found, "conv_depthwise"), only(found, "conv_pointwise")
    assert (a.flops, b.flops) == (out * 16 * 9, out * 16 * 32)
    assert (a.inp, a.acts, b.inp, b.acts) == (14 * 14 * 16, out * 16, out * 16, out * 32)
    assert (a.weights, b.weights) == (9 * 16, 16 * 32 + 32)
    assert found.operations[2] == graph.operations[1]


def test_separated_with_channels_first() -> None:
    b = GraphBuilder("first")
    x = b.input((1, 16, 14, 14))
    x = b.add("conv", [x], (1, 32, 14, 14), "conv", kernel=(3, 3), in_channels=16,
              out_channels=32, groups=1, bias=False)  # fmt: skip
    found = edits.separated(b.build([x]), [0])
    assert found is not None
    assert found.tensors[found.operations[0].outputs[0]].shape == (1, 16, 14, 14)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": (1, 1)},
        {"kernel": (3, 3), "inside": 3},
        {"kernel": (2, 2), "strides": (2, 2)},
        {"kernel": (3, 3), "inside": 32, "groups": 32, "kind": "grouped_conv"},
    ],
)
def test_what_is_not_worth_separating(options: dict[str, Any]) -> None:
    graph = convolution(**options)
    assert edits.separated(graph, everything(graph)) is None


def test_separated_against_keras() -> None:
    pytest.importorskip("keras")
    from tests.readers.keras_networks import graph_of, layers

    def full(x: Any) -> Any:
        return layers.Conv2D(24, 3, strides=2, padding="same")(x)

    def separable(x: Any) -> Any:
        return layers.SeparableConv2D(24, 3, strides=2, padding="same")(x)

    found = edits.separated(graph_of(full, (32, 32, 16)), [0])
    assert found is not None
    assert count(found).total(2) == count(graph_of(separable, (32, 32, 16))).total(2)
