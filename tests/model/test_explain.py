"""Receipts add up to the prediction; counterfactuals are predictions of networks built otherwise."""

from __future__ import annotations

from typing import Any

import pytest

import lolat
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS
from lolat.graph.layers import Layers
from lolat.graph.width import NOTE
from lolat.model import Model, attribution
from lolat.model.attribution import (
    Attribution,
    Explanation,
    explain_block,
    explain_network,
    find_block,
)
from tests import synthetic

DOCUMENT = synthetic.document()
# All terms cost something here; the made-up points say nothing of the last counts.
DOCUMENT["predictors"]["extended"]["coefficients"].update(patches=7e-7, border=2e-7, serial=0.02)
MODEL = Model(DOCUMENT)
NETWORK = synthetic.network()
close = pytest.approx


def at_size(side: int) -> Graph:
    return synthetic.network(size=side)


def mobile(mid: int = 96) -> Graph:
    """A stem, an inverted residual with squeeze-excite, and a head."""
    net = Layers.on("mobile", 32, 32, 3)
    x, block = net.conv(net.input, 24, 3), Layers(net.builder, "block1")
    y = block.depthwise(block.same("silu", block.conv(x, mid)), 5)
    y = block.squeeze_excite(y, mid)
    x = block.same("add", x, block.conv(y, 24))
    return net.done(net.classifier(net.global_pool(x, flat=True), 10))


MOBILE = mobile()


def of(found: Explanation, kind: str) -> Any:
    """The counterfactuals of a kind, or the only one."""
    these = [c for c in found.counterfactuals if c.kind == kind]
    return these[0] if len(these) == 1 else these


def whole(attributions: tuple[Attribution, ...]) -> float:
    return sum(t.latency_ms for r in attributions for t in r.terms)


@pytest.mark.parametrize("predictor", ["extended", "two-regime"])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_the_receipts_add_up(predictor: str, batch_size: int) -> None:
    prediction = MODEL.predict(NETWORK, batch_size, predictor)
    found = explain_network(MODEL, NETWORK, batch_size, predictor)
    latency, call = prediction.latency_ms, prediction.call_ms
    assert whole(found.blocks) + call == close(latency, rel=1e-12)
    assert whole((found.total,)) + call == close(latency, rel=1e-12)
    assert sum(b.latency_ms for b in found.blocks) + call == close(latency, rel=1e-12)
    shares = sum(b.share for b in found.blocks) + call / latency
    assert shares == close(1.0, rel=1e-12)
    for each in (found.total, *found.blocks):
        for term in each.terms:
            assert term.count * term.rate_ms == close(term.latency_ms, rel=1e-12)
    for i, block in enumerate(cut(NETWORK)):
        parts = explain_block(MODEL, NETWORK, block.label, batch_size, predictor)
        assert parts.blocks == (found.blocks[i],)
        assert whole(parts.operations) == close(whole(parts.blocks), rel=1e-12)
        assert len(parts.operations) == len(block.operations)


def test_a_line_is_a_count_times_its_coefficient() -> None:
    found = explain_network(MODEL, NETWORK, 2)
    coefficients = DOCUMENT["predictors"]["extended"]["coefficients"]
    counts = synthetic.totals(NETWORK, 2)
    for term in found.total.terms:
        assert term.count == counts[term.name]
        assert term.latency_ms == close(counts[term.name] * coefficients[term.name], rel=1e-12)
    assert [t.name for t in found.total.terms] == [c for c in COLUMNS if c in coefficients]
    operation = explain_block(MODEL, NETWORK, "conv1_block1", 2).operations[0]
    assert (operation.name, operation.kind) == ("conv1_block1_1_conv", "conv")
    flops = next(t for t in operation.terms if t.name == "spatial_macs")
    assert flops.count == 2 * 56 * 56 * 32 * 9 * 32


def saving(graph: Graph, instead: Graph, batch_size: int = 1) -> float:
    return (
        MODEL.predict(graph, batch_size).latency_ms - MODEL.predict(instead, batch_size).latency_ms
    )


@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_change_of_a_block_saves_what_the_changed_network_saves(batch_size: int) -> None:
    """Each against the network written by hand with that change."""
    found = explain_block(MODEL, MOBILE, "block1", batch_size)
    block = found.blocks[0]
    half, narrow = of(found, "inner_width"), mobile(mid=48)
    assert half.change == "48 fewer channels inside (96 -> 48)"
    assert half.details == {"factor": 0.5, "channels": [[96, 48]]}
    assert half.saves_ms == close(saving(MOBILE, narrow, batch_size), rel=1e-9)
    assert half.latency_ms == close(MODEL.predict(narrow, batch_size).latency_ms, rel=1e-9)
    assert half.of_block == close(half.saves_ms / block.latency_ms)
    assert half.of_network == close(half.saves_ms / found.prediction.latency_ms)
    assert half.in_domain == MODEL.predict(narrow, batch_size).in_domain
    assert of(found, "drop").saves_ms == close(block.latency_ms, rel=1e-9)
    assert found.notes == (NOTE,)


def test_the_largest_saving_comes_first() -> None:
    for found in (explain_block(MODEL, MOBILE, "block1"), explain_network(MODEL, MOBILE)):
        saved = [c.saves_ms for c in found.counterfactuals]
        assert saved == sorted(saved, reverse=True)
        assert min(saved) > 0


def test_what_saves_nothing_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slower = attribution.Change("drop", "more", synthetic.network(stages=5))
    same = attribution.Change("drop", "as it is", synthetic.network())
    monkeypatch.setattr("lolat.model.attribution.on_block", lambda *_: iter([slower, same]))
    assert explain_block(MODEL, NETWORK, "stem").counterfactuals == ()


def test_a_network_narrower_and_smaller() -> None:
    found = explain_network(MODEL, NETWORK, at_size=at_size)
    half = of(found, "width")
    assert half.saves_ms == close(saving(NETWORK, synthetic.network(width=16)), rel=1e-9)
    assert half.of_block is None
    smaller = of(found, "resolution")
    assert smaller.details == {"from": 56, "to": 28}
    assert smaller.saves_ms == close(saving(NETWORK, at_size(28)), rel=1e-9)
    drop = of(found, "drop")
    assert drop.saves_ms == close(saving(NETWORK, synthetic.network(stages=2)), rel=1e-9)
    assert drop.details["block"] in [b.label for b in cut(NETWORK)]


def test_a_network_that_refuses_another_size() -> None:
    def refuse(side: int) -> Graph:
        raise NetworkError("no")

    assert of(explain_network(MODEL, NETWORK, at_size=refuse), "resolution") == []
    assert of(explain_network(MODEL, NETWORK), "resolution") == []


def test_the_effect_of_the_batch() -> None:
    found = explain_network(MODEL, NETWORK, 3).batches
    assert [b.batch_size for b in found] == [1, 2, 3, 4, 8, 16, 32]
    for effect in found:
        wanted = MODEL.predict(NETWORK, effect.batch_size).latency_ms
        assert effect.latency_ms == wanted
        assert effect.per_sample_ms == close(wanted / effect.batch_size)


def test_of_one_layer_no_width_is_tried() -> None:
    line = synthetic.one("dense", [(1, 4)], [(1, 1)], in_features=4, out_features=1, bias=True)
    found = explain_network(MODEL, line)
    assert (found.counterfactuals, found.notes) == ((), ())


def test_blocks_by_name() -> None:
    blocks = cut(NETWORK)
    for i, block in enumerate(blocks):
        assert find_block(NETWORK, block.label) == find_block(NETWORK, block.name) == i
    assert blocks[find_block(NETWORK, "st")].label == "stem"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("conv2_blok1", "no block 'conv2_blok1' in 'hand made'; did you mean conv2_block1 or"),
        ("xyz", "no block 'xyz' in 'hand made'; it has stem, conv1_block1"),
        ("", "no block '' in 'hand made'"),
        ("conv", "is the beginning of 3 blocks of 'hand made': conv1_block1, conv2_block1, conv3"),
        ("call", "no block 'call'"),
    ],
)
def test_a_block_that_is_not_there(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        explain_block(MODEL, NETWORK, name)


def test_only_some_of_many_blocks_are_listed() -> None:
    with pytest.raises(InputError, match=r"12 blocks .* and 4 more; give the whole label of one"):
        find_block(synthetic.network(stages=12), "conv")


def test_the_answer_as_json() -> None:
    found = explain_network(MODEL, NETWORK).to_dict()
    assert found["block"] is None
    assert found["operations"] == []
    inside = explain_block(MODEL, NETWORK, "stem").to_dict()
    assert inside["block"] == inside["blocks"][0]["name"]
    assert inside["operations"][0]["kind"] == "conv"
    assert inside["batches"] == []


def test_operations_that_are_timed_one_by_one_add_up() -> None:
    """A GPU model's operations take what its own formula says: together they are their block."""
    model, graph = lolat.load("rtx-4090-amp"), synthetic.network()
    for batch_size in (1, 7):
        for block in model.predict(graph, batch_size).blocks[:-1]:
            found = explain_block(model, graph, block.name, batch_size)
            assert sum(o.latency_ms for o in found.operations) == pytest.approx(block.latency_ms)
