"""The rows of a report: folded by module paths, sorted, in columns."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.report.rows import HEADS, View, levels, module_paths, rows
from tests import synthetic

NETWORK = synthetic.network(stages=2)
PREDICTION = Model(synthetic.document()).predict(NETWORK, 2)
PATHS = [("stem",), ("conv1", "conv1_block1"), ("conv1", "conv1_block2"), ("head",)]


def shown(paths: object = PATHS, **chosen: object) -> list[tuple[str, str]]:
    return [(r.label, r.summary) for r in rows(PREDICTION, paths, View(**chosen))]  # type: ignore[arg-type]


def test_blocks_as_they_are() -> None:
    found = rows(PREDICTION, (), View())
    assert [r.latency_ms for r in found] == [b.latency_ms for b in PREDICTION.blocks]
    assert [r.bound_by for r in found] == [b.bound_by for b in PREDICTION.blocks]
    assert found[0].label == "stem"
    assert found[-1].label == "call"


def test_modules_have_the_sums_of_their_blocks() -> None:
    assert [label for label, _ in shown(depth=1)] == ["stem", "conv1", "head", "call"]
    assert shown(depth=1)[1] == ("conv1", "2 blocks")
    assert shown(depth=2) == shown()
    assert shown(depth=9) == shown()
    (whole, call) = rows(PREDICTION, PATHS, View(depth=0))
    assert (whole.label, whole.summary) == ("hand made", "4 blocks")
    assert whole.latency_ms + call.latency_ms == pytest.approx(PREDICTION.latency_ms)
    assert whole.share + call.share == pytest.approx(1)
    assert whole.counts == synthetic.totals(NETWORK, 2)
    module = rows(PREDICTION, PATHS, View(depth=1))[1]
    inside = PREDICTION.blocks[1:3]
    assert module.latency_ms == sum(b.latency_ms for b in inside)
    for term in PREDICTION.features:
        assert module.terms_ms[term] == sum(b.terms_ms[term] for b in inside)


def test_a_module_stands_where_its_first_block_does() -> None:
    apart = [("a", "a/1"), ("b",), ("a", "a/2"), ("c",)]
    assert [label for label, _ in shown(apart, depth=1)][:2] == ["a", "conv1_block1"]


def test_orders() -> None:
    by_time = rows(PREDICTION, (), View(sort="time"))
    assert [r.latency_ms for r in by_time] == sorted(
        (b.latency_ms for b in PREDICTION.blocks), reverse=True
    )
    by_macs = rows(PREDICTION, (), View(sort="macs"))
    flops = [b.counts["flops"] for b in PREDICTION.blocks]
    assert [r.counts["flops"] for r in by_macs] == sorted(flops, reverse=True)
    names = [r.label for r in rows(PREDICTION, (), View(sort="name"))]
    assert names == [*sorted(names[:-1]), "call"]


def test_cells() -> None:
    stem = rows(PREDICTION, (), View())[0]
    assert set(HEADS) == {"ms", "share", "most", "macs", *COLUMNS} - {"flops"}
    assert stem.cell("macs") == f"{2 * 56 * 56 * 32 * 27 / 1e6:.2f} M"
    assert stem.cell("weights") == "864"
    assert stem.cell("patches") == "-"
    assert stem.cell("share") == f"{100 * PREDICTION.blocks[0].share:.1f} %"


def test_names_of_a_network_are_shown_as_escapes() -> None:
    paths = [("x\x1b[2J",), ("x\x1b[2J",), ("a",), ("b",)]
    assert shown(paths, depth=1)[0] == (r"x\x1b[2J", "2 blocks")


def test_real_paths() -> None:
    found = rows(PREDICTION, module_paths(NETWORK, cut(NETWORK)), View(depth=1))
    assert [r.label for r in found] == ["stem", "conv1_block1", "conv2_block1", "head", "call"]


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"depth": -1}, r"--depth -1: expected a whole number from 0"),
        ({"columns": ("ms", "time")}, r"no column 'time'; expected some of ms, share, most, macs"),
        ({"columns": ("flops",)}, r"no column 'flops'; expected some of ms, share, most, macs"),
        ({"sort": "size"}, r"--sort size: expected one of order, time, macs, name"),
    ],
)
def test_what_there_is_not(chosen: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        View(**chosen)  # type: ignore[arg-type]


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


def test_paths_of_a_network() -> None:
    network = synthetic.network()
    found = module_paths(network, cut(network))
    assert found[1] == ("conv1", "conv1_block1")
    assert len(found) == len(cut(network))


def test_paths_of_nothing() -> None:
    assert module_paths(Graph("nothing", (), (), (), ()), ()) == []
