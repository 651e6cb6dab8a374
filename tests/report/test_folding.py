"""Module paths out of names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lolat.graph import Graph, GraphBuilder
from lolat.graph.blocks import cut
from lolat.report.rows import levels, module_paths
from tests import synthetic


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("conv2_block1", ("conv2", "conv2_block1")),
        ("layer1.0.conv", ("layer1", "layer1.0", "layer1.0.conv")),
        ("encoder/layer_3", ("encoder", "encoder/layer_3")),
        ("block_3", ("block_3",)),
        ("block2a", ("block2", "block2a")),
        ("block2d", ("block2", "block2d")),
        ("block2a_expand", ("block2", "block2a", "block2a_expand")),
        ("conv2d", ("conv2d",)),
        ("conv2d_transpose_1", ("conv2d_transpose_1",)),
        ("max_pooling2d", ("max_pooling2d",)),
        ("multi_head_attention_2", ("multi_head_attention_2",)),
        ("dense_4-5", ("dense_4-5",)),
        ("head", ("head",)),
        ("block (2)", ("block (2)",)),
        ("/a//b", ("/a", "/a/", "/a//b")),
        ("", ("",)),
        ("._/", ("._/",)),
    ],
)
def test_where_a_name_is_cut(name: str, found: tuple[str, ...]) -> None:
    assert levels(name) == found


@dataclass(frozen=True)
class Part:
    label: str
    operations: tuple[int, ...]


def paths(*named: tuple[str, list[str]]) -> list[tuple[str, ...]]:
    """Of blocks with a label and the paths of their operations."""
    builder = GraphBuilder("net")
    x = builder.input((1, 8))
    parts = []
    at = 0
    for label, own in named:
        for path in own:
            x = builder.add("relu", [x], (1, 8), "relu", path)
        parts.append(Part(label, tuple(range(at, at + len(own)))))
        at += len(own)
    return module_paths(builder.build([x]), parts)


def test_a_path_in_front_of_a_label() -> None:
    found = paths(
        ("first", ["tower/left", "tower/left"]), ("second", ["tower", "tower/b"]), ("head", [""])
    )
    assert found == [
        ("tower", "tower/left", "tower/left/first"),
        ("tower", "tower/second"),
        ("head",),
    ]  # fmt: skip


def test_a_path_that_says_the_same_as_the_label() -> None:
    found = paths(
        ("layer1.0", ["layer1/0/a", "layer1/0/b"]), ("layer1.1", ["net/layer1/1"]), ("fc", [""])
    )
    assert found == [
        ("layer1", "layer1.0"),
        ("net", "net/layer1", "net/layer1.1"),
        ("fc",),
    ]


def test_what_all_are_in_says_nothing() -> None:
    assert paths(("a", ["model/m"]), ("b", ["model/n"])) == [
        ("model/m", "model/m/a"),
        ("model/n", "model/n/b"),
    ]
    assert paths(("a", ["model"])) == [("model/a",)]
    assert paths() == []


def test_a_network() -> None:
    network = synthetic.network()
    found = module_paths(network, cut(network))
    assert found[1] == ("conv1", "conv1_block1")
    assert len(found) == len(cut(network))


def test_a_network_of_nothing() -> None:
    assert module_paths(Graph("nothing", (), (), (), ()), ()) == []
