"""The rows of a report: folded, sorted, in columns."""

from __future__ import annotations

import pytest

from lolat.errors import InputError
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.report.rows import HEADS, View, module_paths, rows
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
