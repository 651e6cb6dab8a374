"""What the report says of a prediction, on predictions made up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.graph.counts import COLUMNS, FEATURES
from lolat.model.prediction import Prediction
from lolat.report.rows import TERMS, bottleneck_sentence, bottlenecks, enumeration


def prediction(blocks: dict[str, dict[str, float]], call_ms: float = 0.1,
               flops: dict[str, int] | None = None) -> Prediction:  # fmt: skip
    """Blocks by name, each with the milliseconds of its terms."""
    terms = np.array([[b.get(f, 0.0) for f in FEATURES] for b in blocks.values()])
    counts = np.zeros((len(blocks), len(COLUMNS)), np.int64)
    for i, name in enumerate(blocks):
        counts[i, COLUMNS.index("flops")] = (flops or {}).get(name, 100)
    return Prediction(
        network="net", batch_size=1, predictor="extended", interval_ms=(1.0, 2.0), coverage=0.9,
        latency_ms=float(terms.sum()) + call_ms, in_domain=True, warnings=(), names=tuple(blocks),
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


def test_where_none_stands_out_none_is_named_a_bottleneck() -> None:
    even = prediction(EVEN | {"b9": {"flops": 1.2}})
    assert names(even) == []
    sentence = bottleneck_sentence(even)
    assert sentence.startswith("No block stands out: the longest of ")
    assert ", b9, takes " in sentence
    assert sentence.endswith("of all of them, most is compute.")


def test_of_few_blocks_the_longest_is_named() -> None:
    assert names(prediction({"a": {"flops": 1.0}, "b": {"flops": 1.1}})) == ["b"]


@pytest.mark.parametrize(
    ("slow", "words"),
    [
        ({"flops": 9.0, "acts": 1.0}, "it computes."),
        ({"flops": 4.0, "acts": 2.0, "inp": 2.0, "traffic": 2.0}, "it moves data more than it computes."),
        ({"traffic": 9.0}, "it moves data more than it computes."),
        ({"weights": 5.0, "flops": 4.0}, "most of it is reading weights."),
        ({"ops": 5.0, "flops": 4.0}, "most of it is starting operations."),
    ],
)  # fmt: skip
def test_it_says_why(slow: dict[str, float], words: str) -> None:
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


@pytest.mark.parametrize(
    ("blocks", "call_ms", "words"),
    [
        ({"a": {"traffic": 6.0}, "b": {"traffic": 1.0}}, 0.1, "for 0 % of the MACs: it moves data"),
        ({"a": {"flops": 0.1}, "b": {}}, 0.9, "The fixed cost of a call takes 90 % of the time"),
        ({"a": {}}, 0.1, "fixed cost"),
        ({}, 0.1, "There is nothing to compute."),
        ({"\x1b[31m[red]x[/]": {"flops": 9.0}}, 0.1, r"\x1b[31m[red]x[/] takes"),
    ],
)
def test_what_is_unusual(blocks: dict[str, dict[str, float]], call_ms: float, words: str) -> None:
    found = prediction(blocks, call_ms, dict.fromkeys(blocks, 0))
    assert words in bottleneck_sentence(found)
    assert bottlenecks(prediction({})) == []


def test_a_block_without_a_cost_is_bound_by_nothing() -> None:
    free, call = prediction({"free": {}}).blocks
    assert TERMS[free.bound_by] == "nothing"
    assert TERMS[call.bound_by] == "fixed cost"


def test_every_count_has_words() -> None:
    assert set(COLUMNS) <= set(TERMS)
    words = ["a", "a and b", "a, b and c"]
    assert [enumeration(list("abc")[:n]) for n in (1, 2, 3)] == words
