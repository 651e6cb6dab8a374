"""Blocks: where a graph is cut, against brute force; and what the blocks are called."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from lolat.graph import Graph, GraphBuilder, Operation
from lolat.graph.blocks import Flow, branch_by_branch, cut, layer_label, segments
from lolat.graph.kinds import VIEWS
from tests import synthetic
from tests.strategies import chains, graphs


def conv(b: GraphBuilder, x: int, filters: int, kernel: int = 3, name: str = "", path: str = "",
         stride: int = 1) -> int:  # fmt: skip
    """A convolution on an image, channels last."""
    _, height, width, channels = b.tensors[x].shape
    return b.add(
        "conv", [x], (1, height // stride, width // stride, filters), name, path,
        kernel=(kernel, kernel), strides=(stride, stride), in_channels=channels,
        out_channels=filters, groups=1, bias=False,
    )  # fmt: skip


def same(b: GraphBuilder, kind: str, x: int, *others: int, name: str = "", path: str = "") -> int:
    """An operation that keeps the shape of its first input."""
    return b.add(kind, [x, *others], b.tensors[x].shape, name, path)


def labels(graph: Graph) -> list[str]:
    return [block.label for block in cut(graph)]


def names_inside(graph: Graph) -> set[frozenset[str]]:
    """The blocks as sets of operation names, to compare graphs that are ordered differently."""
    return {frozenset(graph.operations[p].full_name for p in b.operations) for b in cut(graph)}


def assert_partition(graph: Graph) -> None:
    blocks = cut(graph)
    positions = [p for block in blocks for p in block.operations]
    assert sorted(positions) == list(range(len(graph.operations)))
    for block in blocks:
        assert block.operations == tuple(sorted(block.operations))
        assert block.operations
        assert str(block.name) == f"{block.label} · {block.name.summary}"
        assert "..." not in block.name.summary
        assert block.name.summary
    assert len({block.name for block in blocks}) == len(blocks)
    assert len({block.label for block in blocks}) == len(blocks)


# ---- any graph -----------------------------------------------------------------------------------


@pytest.mark.slow
@given(graphs(most=24))
@settings(max_examples=100)
def test_every_operation_is_in_exactly_one_block(graph: Graph) -> None:
    assert_partition(graph)
    assert sorted(branch_by_branch(graph)) == list(range(len(graph.operations)))
    assert cut(Graph.from_dict(graph.to_dict())) == cut(graph)


# ---- cuts, against brute force -------------------------------------------------------------------


def separators(graph: Graph) -> list[set[int]]:
    """The operations on the near side of each tensor without which no input reaches an output.

    Brute force: take the tensor and its views away, and walk from the inputs.
    """
    same_data: dict[int, int] = {}
    for operation in graph.operations:
        sources = [t for t in operation.inputs if t in reached(graph, None) | set(graph.inputs)]
        if operation.kind in VIEWS and len(sources) == 1:
            same_data[operation.outputs[0]] = sources[0]

    def data(t: int) -> int:
        while t in same_data:
            t = same_data[t]
        return t

    found = []
    everything = reached(graph, None) | set(graph.inputs)
    for tensor in {data(t) for t in everything}:
        views = {t for t in everything if data(t) == tensor}
        near = reached(graph, views) | (set(graph.inputs) - views)
        if not near & set(graph.outputs):
            found.append(
                {p for p, o in enumerate(graph.operations) if set(o.outputs) & (near | views)}
            )
    return found


def reached(graph: Graph, without: set[int] | None) -> set[int]:
    """Tensors that come from the inputs when the tensors `without` do not exist."""
    have = set(graph.inputs) - (without or set())
    for operation in graph.operations:
        if have & set(operation.inputs):
            have |= set(operation.outputs) - (without or set())
    return have - set(graph.inputs)


def serving(graph: Graph) -> set[int]:
    """Operations on a way from an input to an output."""
    forward = reached(graph, None)
    backward = set(graph.outputs)
    for operation in reversed(graph.operations):
        if backward & set(operation.outputs):
            backward |= set(operation.inputs)
    return {p for p, o in enumerate(graph.operations) if set(o.outputs) & forward & backward}


@given(chains())
@settings(max_examples=100)
def test_boundaries_are_where_one_tensor_holds_the_network_together(graph: Graph) -> None:
    graph = replace(graph, operations=tuple(graph.operations[p] for p in branch_by_branch(graph)))
    alive = serving(graph)
    found = segments(Flow(graph))
    cuts = {segment[-1] for segment in found[:-1]}
    sides = [near & alive for near in separators(graph)]
    views = {p for p in alive if graph.operations[p].kind in VIEWS}
    for p in range(len(graph.operations) - 1):
        before = {q for q in alive if q <= p}
        # views of the tensor may stand on either side of it
        expected = (
            any(before - views <= near and near - views <= before for near in [set(), *sides])
            if alive
            else True
        )
        if not views:
            assert (p in cuts) == expected, (p, found)
        elif p in cuts:
            assert expected


def resnet(name: Callable[[int, int, str], tuple[str, str]]) -> Graph:
    """A small residual network; `name` says (path, name) for stage, block and layer."""
    b = GraphBuilder("resnet")

    def layer(kind: str, at: tuple[int, int, str], *inputs: int, filters: int = 0, kernel: int = 3,
              stride: int = 1) -> int:  # fmt: skip
        path, own = name(*at)
        if kind == "conv":
            return conv(b, inputs[0], filters, kernel, own, path, stride)
        return same(b, kind, *inputs, name=own, path=path)

    x = layer("conv", (0, 0, "conv1"), b.input((1, 32, 32, 3)), filters=16, kernel=7, stride=2)
    x = layer("relu", (0, 0, "relu"), layer("batch_norm", (0, 0, "bn1"), x))
    for stage, block in product((1, 2, 3), (0, 1)):
        at, filters, stride = (stage, block), 8 << stage, 1 if block else 2
        y = layer("conv", (*at, "conv1"), x, filters=filters, stride=stride)
        y = layer("relu", (*at, "relu"), layer("batch_norm", (*at, "bn1"), y))
        y = layer("conv", (*at, "conv2"), y, filters=filters)
        y = layer("batch_norm", (*at, "bn2"), y)
        if not block:
            x = layer("conv", (*at, "downsample"), x, filters=filters, kernel=1, stride=2)
        x = layer("relu", (*at, "out"), layer("add", (*at, "add"), y, x))
    x = b.add("global_average_pool", [x], (1, 64), *reversed(name(4, 0, "avgpool")))
    x = b.add("dense", [x], (1, 10), *reversed(name(4, 0, "fc")), in_features=64, out_features=10,
              bias=True)  # fmt: skip
    return b.build([x])


def numbered() -> Callable[[int, int, str], tuple[str, str]]:
    """Names as a framework gives them when nobody does: by kind, numbered."""
    kinds = {"bn": "batch_normalization", "re": "activation", "ou": "activation", "ad": "add",
             "fc": "dense", "av": "global_average_pooling2d"}  # fmt: skip
    seen: dict[str, int] = {}

    def name(stage: int, block: int, layer: str) -> tuple[str, str]:
        kind = kinds.get(layer[:2], "conv2d")
        seen[kind] = seen.get(kind, -1) + 1
        return "", f"{kind}_{seen[kind]}" if seen[kind] else kind

    return name


STYLES: dict[str, tuple[Callable[[int, int, str], tuple[str, str]], str]] = {
    "pytorch": (lambda s, b, n: (f"layer{s}/{b}" if 0 < s < 4 else "", n), "layer{}/{}"),
    "onnx": (
        lambda s, b, n: (f"/layer{s}/layer{s}.{b}/{n}" if 0 < s < 4 else f"/{n}", "Conv"),
        "layer{0}.{1}",
    ),
    "flat": (lambda s, b, n: ("", f"res{s}_block{b}_{n}" if 0 < s < 4 else n), "res{}_block{}"),
}  # fmt: skip


@pytest.mark.parametrize("style", STYLES)
def test_the_same_network_under_the_names_of_several_frameworks(style: str) -> None:
    name, label = STYLES[style]
    graph = resnet(name)
    assert_partition(graph)
    blocks = [label.format(s, b) for s in (1, 2, 3) for b in (0, 1)]
    assert labels(graph) == ["stem", *blocks, "head"]
    assert cut(graph)[2].name.summary == "2 convs 3x3, add"


def test_a_network_without_names_is_cut_at_the_same_points() -> None:
    graph = resnet(numbered())
    first = [f"conv2d_{i}" for i in (1, 4, 6, 9, 11, 14)]
    assert labels(graph) == ["stem", *first, "head"]
    named = resnet(STYLES["flat"][0])
    assert [b.operations for b in cut(graph)] == [b.operations for b in cut(named)]


def shuffled(graph: Graph, seed: int) -> Graph:
    """The graph with its operations in another order in which they can run."""
    chance = random.Random(seed)
    ready = set(range(len(graph.tensors))) - {t for o in graph.operations for t in o.outputs}
    left, order = list(graph.operations), []
    while left:
        operation = chance.choice([o for o in left if ready.issuperset(o.inputs)])
        left.remove(operation)
        order.append(operation)
        ready.update(operation.outputs)
    return replace(graph, operations=tuple(order))


@pytest.mark.parametrize("seed", range(5))
def test_blocks_do_not_depend_on_the_order_of_operations(seed: int) -> None:
    for graph in (resnet(STYLES["pytorch"][0]), unet(), cells(4)):
        other = shuffled(graph, seed)
        assert names_inside(other) == names_inside(graph)
        assert labels(other) == labels(graph)


# ---- where one tensor alone is rarely alive ------------------------------------------------------


def unet(names: bool = False) -> Graph:
    """Four levels, each of two convolutions on the way down and on the way up."""
    b = GraphBuilder("unet")
    x = b.input((1, 64, 64, 3))

    def double(x: int, filters: int, at: str) -> int:
        for i in range(2):
            x = conv(b, x, filters, name=f"{at}_conv{i}" if names else "")
            x = same(b, "relu", x, name=f"{at}_relu{i}" if names else "")
        return x

    skips = []
    for level in range(4):
        x = double(x, 8 << level, f"down{level}")
        skips.append(x)
        _, height, width, channels = b.tensors[x].shape
        x = b.add("max_pool", [x], (1, height // 2, width // 2, channels))
    x = double(x, 8 << 4, "middle")
    for level in reversed(range(4)):
        _, height, width, channels = b.tensors[x].shape
        x = b.add(
            "transposed_conv", [x], (1, 2 * height, 2 * width, channels), f"up{level}_up" if names else "",
            kernel=(2, 2), strides=(2, 2), in_channels=channels, out_channels=channels, groups=1,
            bias=True,
        )  # fmt: skip
        x = b.add("concatenate", [skips[level], x], (1, 2 * height, 2 * width, 2 * channels))
        x = double(x, 8 << level, f"up{level}")
    return b.build([conv(b, x, 1, 1)])


def test_a_u_net_with_names_gives_its_names() -> None:
    """The innermost levels too, which are small and which two skip connections span."""
    up = ["up3", "up2", "up1", "up0", "conv"]
    assert labels(unet(names=True)) == ["down0", "down1", "down2", "down3", "middle", *up]


def encoder_decoder(wrapped: str = "") -> Graph:
    """A U-Net of modules as PyTorch names them: enc.0 .. enc.4, up.0 .. up.3 and dec.0 .. dec.3, head."""
    b = GraphBuilder("unet")

    def double(x: int, filters: int, at: str) -> int:
        for i in (1, 2):
            x = same(
                b, "relu", conv(b, x, filters, 3, f"c{i}", f"{wrapped}{at}"), path=f"{wrapped}{at}"
            )
        return x

    x, skips = b.input((1, 64, 64, 3)), []
    for level in range(5):
        if level:
            _, height, width, channels = b.tensors[x].shape
            x = b.add(
                "max_pool", [x], (1, height // 2, width // 2, channels), path=wrapped.rstrip("/")
            )
        x = double(x, 8 << level, f"enc.{level}")
        skips.append(x)
    for level in reversed(range(4)):
        _, height, width, channels = b.tensors[x].shape
        x = b.add(
            "transposed_conv", [x], (1, 2 * height, 2 * width, 8 << level), f"transposed_conv_{level}",
            f"{wrapped}up", kernel=(2, 2), strides=(2, 2), in_channels=channels,
            out_channels=8 << level, groups=1, bias=True,
        )  # fmt: skip
        x = b.add("concatenate", [x, skips[level]], (1, 2 * height, 2 * width, 16 << level),
                  path=wrapped.rstrip("/"))  # fmt: skip
        x = double(x, 8 << level, f"dec.{level}")
    return b.build([conv(b, x, 2, 1, "head", wrapped.rstrip("/"))])


@pytest.mark.parametrize("wrapped", ["", "net/"])
def test_each_module_of_an_encoder_decoder_is_a_block(wrapped: str) -> None:
    """The modules and the convolutions in each, by hand."""
    down = {f"enc.{i}": 2 for i in range(5)}
    up = {name: n for i in (3, 2, 1, 0) for name, n in ((f"up.{i}", 1), (f"dec.{i}", 2))}
    graph = encoder_decoder(wrapped)
    found = {
        b.label: sum("conv" in graph.operations[p].kind for p in b.operations) for b in cut(graph)
    }
    assert found == {f"{wrapped}{name}": n for name, n in {**down, **up, "head": 1}.items()}
    assert_partition(graph)


def cells(count: int) -> Graph:
    """Cells of five branches that read the two cells before them, as NASNet's do."""
    b = GraphBuilder("cells")
    x = conv(b, b.input((1, 16, 16, 3)), 32)
    before, x = x, same(b, "relu", x)
    for _ in range(count):
        p = conv(b, same(b, "relu", before), 16, 1)
        h = conv(b, same(b, "relu", x), 16, 1)
        parts = []
        for left, right in ((h, p), (p, p), (h, h), (p, h), (h, p)):
            ends = [conv(b, same(b, "relu", source), 16) for source in (left, right)]
            parts.append(same(b, "add", *ends))
        before, x = x, b.add("concatenate", [p, *parts], (1, 16, 16, 96))
    return b.build([x])


# ---- networks as Keras builds them


def several(pattern: str, *counts: int, first: int = 1) -> list[str]:
    """Labels with a number (and a second one, from `first` to each count)."""
    if len(counts) == 1:
        return [pattern.format(i) for i in range(first, first + counts[0])]
    return [pattern.format(i, j) for i, n in enumerate(counts) for j in range(first, first + n)]


APPLICATIONS: dict[str, tuple[list[str], dict[int, str]]] = {
    "ResNet50": (["stem", *several("conv{}_block{}", 0, 0, 3, 4, 6, 3), "head"],
                 {0: "conv 7x7/2, bn, relu, max pool", 1: "4 convs, add", 2: "3 convs, add",
                  -1: "average pool, dense 1000, softmax"}),
    "MobileNet": (["stem", *several("conv_dw_{}", 13), "head"], {}),
    "Xception": ([*several("block{}", 14), "head"], {4: "3 depthwise 3x3, 3 convs 1x1, add"}),
    "InceptionV3": (["conv2d", *several("conv2d_{}", 4), *several("mixed{}", 11, first=0), "head"],
                    {5: "7 convs, average pool, concat"}),
}  # fmt: skip


def read(make: Callable[[], Any] | str) -> Graph:
    """A model, or one of keras.applications, without its weights."""
    keras = pytest.importorskip("keras")
    from lolat.readers.keras import read_model, without_weights

    keras.backend.clear_session()  # which numbers layers from one again
    with without_weights():
        if callable(make):
            return read_model(make())
        model = getattr(keras.applications, make)(weights=None)
        return read_model(model, input_size=(224,) if None in model.input_shape[1:] else None)


@pytest.mark.parametrize("network", APPLICATIONS)
def test_networks_of_keras_applications(network: str) -> None:
    graph = read(network)
    assert_partition(graph)
    names, summaries = APPLICATIONS[network]
    assert labels(graph) == names
    assert {i: cut(graph)[i].name.summary for i in summaries} == summaries


def transformer() -> Any:
    import keras
    from keras import layers

    tokens = keras.Input((80,), dtype="int32")
    x = layers.Embedding(20000, 48)(tokens)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, 12)(y, y)])
        y = layers.Dense(96, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(48)(y)])
    return keras.Model(tokens, layers.Dense(1, activation="sigmoid")(layers.LSTM(64)(x)))


def test_a_network_whose_layers_nobody_named() -> None:
    assert [str(block.name) for block in cut(read(transformer))] == [
        "stem · embedding 48", "multi_head_attention · 4 dense 48, attention, add",
        "dense · 2 dense, add", "multi_head_attention_1 · 4 dense 48, attention, add",
        "dense_2 · 2 dense, add", "lstm · lstm 64", "dense_4 · dense 1, sigmoid",
    ]  # fmt: skip


def test_a_block_of_several_modules_has_the_first_and_the_last() -> None:
    kinds = [("conv_0", "conv", "enc2"), ("relu", "relu", ""), ("up1", "transposed_conv", "")]
    own = [Operation(name, kind, (0,), (1,), {}, path) for name, kind, path in kinds]
    assert layer_label(own) == "enc2 to up1"
    assert layer_label(own[:2]) == "enc2/conv_0"
    assert layer_label([replace(o, path="") for o in own]) == "conv_0"


def test_a_block_is_named_by_all_modules_that_it_spans() -> None:
    """The last module of each chain has most of the layers, and a skip connection spans several."""
    assert labels(synthetic.chains(whole=True)) == ["stem", "b1", "b3", "head"]
    skipped = ["stem", "b1", "b3.0", "b3.1 to b3.3", "head"]
    assert labels(synthetic.chains(whole=False)) == skipped
