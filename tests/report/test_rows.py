"""What a report says of a prediction: rows folded by modules, bottlenecks and why."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from msgspec.structs import replace

from lolat.api.model import Model
from lolat.device.bottlenecks import bottlenecks
from lolat.device.prediction import Prediction
from lolat.graph import Graph
from lolat.graph.blocks import BlockName
from lolat.graph.counts import COLUMNS, FEATURES
from lolat.report.rows import TERMS, block_rows, bottleneck_sentence, modules, prefixes
from tests import synthetic

NETWORK = synthetic.network(stages=2)
PREDICTION = Model(synthetic.document()).predict(NETWORK, 2)


def folded() -> Graph:
    """A network of four blocks, of which two are in a module `tower`."""
    named = {"stem": "stem", "conv1_block1": "tower.a", "conv2_block1": "tower.b"}
    operations = tuple(
        replace(o, name=o.name.replace(key, new), path="/".join(new.split(".")[:-1]))
        for o in NETWORK.operations
        for key, new in [next((i for i in named.items() if i[0] in o.name), ("", ""))]
    )
    return replace(NETWORK, name="folded", operations=operations)


FOLDED = Model(synthetic.document()).predict(folded(), 2)


def test_modules_have_the_sums_of_their_blocks() -> None:
    assert [r.label for r in block_rows(FOLDED, 1)] == ["stem", "tower", "head", "call"]
    assert block_rows(FOLDED, 1)[1].summary == "2 blocks"
    assert [r.label for r in block_rows(FOLDED, 9)] == [r.label for r in block_rows(FOLDED)]
    whole, call = block_rows(FOLDED, 0)
    assert (whole.label, whole.summary) == ("folded", "4 blocks")
    assert whole.latency_ms + call.latency_ms == pytest.approx(FOLDED.latency_ms)
    assert whole.share + call.share == pytest.approx(1)
    module, inside = block_rows(FOLDED, 1)[1], FOLDED.blocks[1:3]
    assert module.latency_ms == sum(b.latency_ms for b in inside)
    for term in FOLDED.features:
        assert module.terms_ms[term] == sum(b.terms_ms[term] for b in inside)


NAMES = {
    "conv2_block1": ("conv2", "conv2_block1"),
    "layer1.0.conv": ("layer1", "layer1.0", "layer1.0.conv"),
    "encoder/layer_3": ("encoder", "encoder/layer_3"),
    "net_1.00_96/Conv_1": ("net_1.00_96", "net_1.00_96/Conv_1"),
    "block_3": ("block_3",),
    "block2d": ("block2", "block2d"),
    "block2a_expand": ("block2", "block2a", "block2a_expand"),
    "conv2d_transpose_1": ("conv2d_transpose_1",),
    "max_pooling2d": ("max_pooling2d",),
    "multi_head_attention_2": ("multi_head_attention_2",),
    "dense_4-5": ("dense_4-5",),
    "tower (2)": ("tower", "tower (2)"),
    "": ("",),
}


def test_where_a_name_is_cut() -> None:
    assert {name: prefixes(name) for name in NAMES} == NAMES


def test_a_nested_network_of_keras_is_one_module() -> None:
    """All but its head, 1,280 x 5 multiply-accumulates, is in the backbone, by Keras' layers."""
    import keras

    backbone = keras.applications.MobileNetV2(
        include_top=False, weights=None, pooling="avg", input_shape=(32, 32, 3)
    )
    image = keras.Input((32, 32, 3))
    network = keras.Model(image, keras.layers.Dense(5)(backbone(image)))
    found = Model(synthetic.document()).predict(network)
    module, head, _ = block_rows(found, 1)
    assert module.label == backbone.name == "mobilenetv2_1.00_32"
    assert [sum(found.blocks[i].counts["flops"] for i in row.blocks) for row in (module, head)] == [
        found.counts["flops"] - 1280 * 5, 1280 * 5,
    ]  # fmt: skip


def test_what_all_blocks_are_in_is_left_out() -> None:
    found = modules(prediction({"model.a.0 · conv": {}, "model.b": {}}))
    assert found == [("model.a", "model.a.0"), ("model.b",)]


def prediction(blocks: dict[str, dict[str, float]], call_ms: float = 0.1,
               flops: dict[str, int] | None = None) -> Prediction:  # fmt: skip
    """Blocks by name, each with the milliseconds of its terms."""
    terms = np.array([[b.get(f, 0.0) for f in FEATURES] for b in blocks.values()])
    counts = np.zeros((len(blocks), len(COLUMNS)), np.int64)
    names = tuple(BlockName(*name.split(" · ")) for name in blocks)
    for i, name in enumerate(blocks):
        counts[i, COLUMNS.index("flops")] = (flops or {}).get(name, 100)
    return dataclasses.replace(
        Model(synthetic.document()).predict(synthetic.network()),
        network="net", batch_size=1, predictor="extended", interval_ms=(1.0, 2.0), coverage=0.9,
        latency_ms=float(terms.sum()) + call_ms, in_domain=True, warnings=(), names=names,
        features=FEATURES, block_counts=counts, block_terms=terms.reshape(len(blocks), len(FEATURES)),
        call_ms=call_ms,
    )  # fmt: skip


EVEN = {f"b{i}": {"flops": 1.0} for i in range(8)}


def names(found: Prediction) -> list[str]:
    return [b.name for b in bottlenecks(found)]


def test_the_longest_blocks_are_the_bottlenecks() -> None:
    assert names(prediction(EVEN | {"slow": {"acts": 5.0}})) == ["slow"]
    found = prediction(EVEN | {"c": {"flops": 4.0}, "a": {"flops": 6.0}, "b": {"flops": 5.0},
                               "d": {"flops": 3.9}})  # fmt: skip
    assert names(found) == ["a", "b", "c"]  # three at most, the longest first


def test_of_blocks_that_take_equally_long_all_are_bottlenecks() -> None:
    """Six of 1 ms, of 10 ms in 20 blocks and 0.1 of the call."""
    equal = {f"block2{letter}": {"flops": 1.0} for letter in "bcdefg"}
    found = prediction(equal | {f"b{i}": {"flops": 4.0 / 14} for i in range(14)})
    assert names(found) == [*equal]
    assert bottleneck_sentence(found).startswith(
        "Bottlenecks: block2b, block2c, block2d and 3 equally long ones take 59 % of the time"
    )


def test_where_none_stands_out_none_is_named_a_bottleneck() -> None:
    even = prediction(EVEN | {"b9": {"flops": 1.2}})
    assert names(even) == []
    sentence = bottleneck_sentence(even)
    assert sentence.startswith("No block stands out: b9, the longest of 9 blocks, takes ")
    assert sentence.endswith(" % of the time. The network's time is 99 % compute.")  # 9.2 of 9.3 ms


def test_what_is_as_long_as_its_work_or_its_neighbors_is_no_bottleneck() -> None:
    """The times of ResNet50's layer4.0 with 9 % of the MACs, and of a Llama's four layers."""
    some = {f"b{i}": {"flops": 1.0} for i in range(17)}
    work = dict.fromkeys(some, 53)  # of 1000
    assert names(prediction(some | {"l4": {"flops": 1.7}}, flops=work | {"l4": 99})) == []
    assert names(prediction(some | {"l4": {"flops": 1.7}}, flops=work | {"l4": 60})) == ["l4"]
    assert names(prediction(some | {"l4": {"flops": 2.0}}, flops=work | {"l4": 99})) == ["l4"]
    assert names(prediction(some | {"l4": {"ops": 1.7}}, flops=work | {"l4": 60})) == []
    layers = {"0": 1.23, "1": 1.23, "2": 1.23, "3": 1.38, "lm": 0.13, "embed": 0.03}
    llama = {name: {"ops": ms} for name, ms in layers.items()}
    assert names(prediction(llama, flops=dict.fromkeys("0123", 8) | {"lm": 67})) == []
    for blocks, named in (([1.0, 1.1], []), ([1.0, 2.1], ["1"]), ([3.0], [])):
        few = {str(i): {"flops": ms} for i, ms in enumerate(blocks)}
        assert names(prediction(few)) == named


def test_blocks_that_are_the_network_and_take_the_time_of_their_macs_are_no_bottleneck() -> None:
    """Shares of time and of MACs of stages, by hand: 94 % for 91 %; 94 for 94, one of them 30 for 15.

    Of two thirds of a network it is told.
    """
    stages = {"a": 50.0, "b": 44.0, "c": 2.0, "d": 2.0, "e": 2.0}
    found = prediction({n: {"traffic": ms} for n, ms in stages.items()}, 0.0,
                       {"a": 48, "b": 43, "c": 3, "d": 3, "e": 3})  # fmt: skip
    assert names(found) == []
    stages = {"a": 64.0, "b": 30.0, "c": 2.0, "d": 2.0, "e": 2.0}
    flops = {"a": 79, "b": 15, "c": 2, "d": 2, "e": 2}
    found = prediction({n: {"traffic": ms} for n, ms in stages.items()}, 0.0, flops)
    assert names(found) == ["b"]
    middle = prediction({"a": {"flops": 16.0}, "b": {"flops": 68.0}, "c": {"flops": 16.0}}, 0.0,
                        {"a": 12, "b": 76, "c": 12})  # fmt: skip
    assert names(middle) == ["b"]
    whole = prediction({"layers": {"traffic": 99.0}, "a": {"acts": 0.5}, "b": {"acts": 0.5}}, 0.0,
                       {"layers": 100, "a": 0, "b": 0})  # fmt: skip
    assert bottleneck_sentence(whole).startswith(
        "layers is nearly the network: it takes 99 % of the time. Most of that is memory traffic."
    )
    times = {
        "stem": {"traffic": 3.2},
        "stages": {"traffic": 95.0},
        "pool": {"acts": 1.0},
        "head": {"acts": 0.8},
    }
    slow = prediction(times, 0.0, {"stem": 1, "stages": 98, "pool": 0, "head": 1})
    assert names(slow) == []
    assert bottleneck_sentence(slow).startswith("stages is nearly the network: it takes 95 %")


def test_a_block_whose_name_is_a_number_is_quoted() -> None:
    equal = prediction({str(n): {"flops": 1.0} for n in range(1, 9)}, 0.0)
    assert bottleneck_sentence(equal).startswith(
        'No block stands out: block "1", as long as 7 others, takes 12 % of the time. '
    )


WHY = [
    ({"flops": 9.0, "acts": 1.0}, "it computes."),
    ({"flops": 4.0, "acts": 2.0, "inp": 2.0, "traffic": 2.0}, "it moves data more than it computes."),
    ({"weights": 5.0, "flops": 4.0}, "most of it is reading weights."),
    ({"ops": 5.0, "flops": 4.0}, "most of it is launch overhead."),
]  # fmt: skip


def test_a_block_whose_name_has_several_words_is_quoted() -> None:
    slow = {"u.3": {"flops": 9.0}, "d.3.c to u.1": {"flops": 8.0}}
    assert bottleneck_sentence(prediction(EVEN | slow)).startswith(
        'Bottlenecks: u.3 and "d.3.c to u.1" take '
    )


@pytest.mark.parametrize(("macs", "told"), [(450, ""), (400, ""), (240, " for 35 % of the MACs")])
def test_a_share_of_the_macs_like_that_of_the_time_is_not_told(macs: int, told: str) -> None:
    """Half of the time for 50, 47 and 35 % of the MACs, by hand; from a quarter more time on it is."""
    blocks = {"slow": {"flops": 5.0}, **{f"e{i}": {"flops": 0.5} for i in range(10)}}
    flops = {"slow": macs, **{f"e{i}": 45 for i in range(10)}}
    text = bottleneck_sentence(prediction(blocks, 0.0, flops))
    assert text == f"Bottleneck: slow takes 50 % of the time{told}: it computes."


def test_a_call_that_costs_nothing_is_no_row() -> None:
    with_call, free = prediction(EVEN, 1.0), prediction(EVEN, 0.0)
    assert [r.label for r in block_rows(with_call)] == [
        *(r.label for r in block_rows(free)),
        "call",
    ]
    assert len(free.blocks) == len(with_call.blocks)


def test_it_says_why() -> None:
    for slow, words in WHY:
        text = bottleneck_sentence(prediction(EVEN | {"slow · 3 convs, add": slow}))
        assert text.startswith("Bottleneck: slow takes ")
        assert text.endswith(words)


def test_the_figures_are_right() -> None:
    blocks = {
        "a": {"flops": 6.0},
        "b": {"flops": 3.0},
        **{f"c{i}": {"flops": 0.2} for i in range(5)},
    }
    flops = {"a": 300, "b": 200, **{f"c{i}": 100 for i in range(5)}}
    text = bottleneck_sentence(prediction(blocks, call_ms=2.0, flops=flops))
    # 9 of 12 ms, 500 of 1000 MACs.
    assert text == "Bottlenecks: a and b take 75 % of the time for 50 % of the MACs: they compute."


def test_each_bottleneck_has_its_own_cause() -> None:
    """Of a, b and c most moves data in sum; b alone computes, as its row in the table says."""
    blocks = {"a": {"traffic": 6.0}, "b": {"flops": 5.0}, "c": {"traffic": 4.0}}
    text = bottleneck_sentence(prediction(blocks | {f"e{i}": {"flops": 0.2} for i in range(5)}))
    assert text.endswith(": a and c move data more than they compute, b computes.")
    blocks["b"] = {"ops": 5.0}
    text = bottleneck_sentence(prediction(blocks | {f"e{i}": {"flops": 0.2} for i in range(5)}))
    assert text.endswith(", most of b is launch overhead.")


UNUSUAL: list[tuple[dict[str, dict[str, float]], float, str]] = [
    ({"a": {"traffic": 6.0}, "b": {"traffic": 1.0}}, 0.1, "for 0 % of the MACs: it moves data"),
    ({"a": {"flops": 0.1}, "b": {}}, 0.9, "The fixed cost of a call takes 90 % of the time"),
    ({}, 0.1, "There is nothing to compute."),
    ({"\x1b[31m[red]x[/]": {"flops": 9.0}}, 0.1, r"\x1b[31m[red]x[/], the longest"),
]


def test_networks_of_nothing_or_of_a_call_alone() -> None:
    for blocks, call_ms, words in UNUSUAL:
        assert words in bottleneck_sentence(prediction(blocks, call_ms, dict.fromkeys(blocks, 0)))
    assert set(COLUMNS) <= set(TERMS)


def test_a_block_from_one_module_to_another_is_in_neither() -> None:
    """What was "enc.2" and more is no part of the encoder's row, which says what it has."""
    labels = ("enc.0", "enc.1", "enc.2 to dec.0", "dec.1", "mid.a.0 to mid.b")
    named = prediction({f"{label} · conv": {} for label in labels})
    assert [path[0] for path in modules(named)] == ["enc", "enc", "enc.2 to dec.0", "dec", "mid"]
    rows = [(row.label, row.blocks) for row in block_rows(named, 1) if row.blocks != (5,)]
    assert rows == [
        ("enc.0 to enc.1", (0, 1)), ("enc.2 to dec.0", (2,)), ("dec.1", (3,)), ("mid.a.0 to mid.b", (4,))
    ]  # fmt: skip
