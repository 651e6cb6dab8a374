"""An evaluation read again: its networks counted, what is wrong with it named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lolat.comparison import NetworkTime, count_networks, read_evaluation
from lolat.errors import InputError, NetworkError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS
from lolat.model import Model
from microbench.evaluate import compare
from tests import synthetic

ROW = {"network": "keras:A", "batch_size": 2, "measured_ms": 3.5}


def written(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "e.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_what_evaluate_prints_is_read(tmp_path: Path) -> None:
    model = Model(synthetic.document())
    graph = synthetic.network()
    measured = [
        synthetic.Measured("keras:A", graph, 1, 3.5),
        synthetic.Measured("m:b", graph, 4, 9.0),
    ]
    found, device = read_evaluation(written(tmp_path, compare(model, measured, {})))
    assert found == [NetworkTime("keras:A", 1, 3.5), NetworkTime("m:b", 4, 9.0)]
    assert device == "a desk, 2 threads"


def test_sizes_and_blocks_are_kept(tmp_path: Path) -> None:
    rows = [{**ROW, "input_size": [96, 96, 3], "block": 0}, {**ROW, "input_size": None}]
    found, device = read_evaluation(written(tmp_path, {"networks": rows}))
    assert found[0] == NetworkTime("keras:A", 2, 3.5, (96, 96, 3), 0)
    assert found[0].label == "keras:A 96x96x3 block 0"
    assert found[1].label == "keras:A"
    assert device is None


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("hello", "not JSON"),
        ("[1]", "`it` is a list of 1; expected an object"),
        ({"schema": "lolat-model"}, "the field `networks` is missing; expected a list"),
        ({"networks": []}, "`networks` is a list of 0; expected a list of length"),
        ({"networks": [3]}, r"`networks\[0\]` is 3; expected an object"),
        ({"networks": [ROW, {**ROW, "network": 3}]}, r"`networks\[1\].network` is 3; expected text"),
        ({"networks": [{**ROW, "batch_size": 0}]}, "batch_size` is 0; expected a whole number of 1"),
        ({"networks": [{**ROW, "batch_size": True}]}, "batch_size` is true; expected a whole number"),
        ({"networks": [{**ROW, "measured_ms": 0}]}, "measured_ms` is 0; expected .* above 0"),
        ({"networks": [{**ROW, "measured_ms": float("nan")}]}, "NaN"),
        ({"networks": [{"network": "a"}]}, "batch_size` is missing; expected a whole number"),
        ({"networks": [{**ROW, "input_size": [0]}]}, r"input_size\[0\]` is 0; expected a whole number"),
        ({"networks": [{**ROW, "input_size": "96"}]}, "input_size` is '96'; expected a list"),
        ({"networks": [{**ROW, "block": "stem"}]}, "block` is 'stem'; expected a whole number"),
    ],
)  # fmt: skip
def test_what_is_no_evaluation_is_named(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as error:
        read_evaluation(written(tmp_path, document))
    assert "expected what `lolat evaluate MODEL --json` wrote" in str(error.value)


GRAPH = synthetic.network()


def test_networks_are_read_once_and_counted_at_each_batch_size() -> None:
    asked: list[tuple[str, Sequence[int]]] = []

    def reader(spec: str, size: Sequence[int]) -> Graph:
        asked.append((spec, size))
        return GRAPH

    wanted = [
        NetworkTime("a", 1, 1.0),
        NetworkTime("a", 4, 1.0),
        NetworkTime("a", 1, 1.0, (96,)),
        NetworkTime("a", 2, 1.0, (), 0),
    ]
    called: list[int] = []
    kept, counts, skipped = count_networks(wanted, reader, lambda: called.append(1))
    assert asked == [("a", ()), ("a", (96,))]
    assert kept == wanted
    assert skipped == {}
    assert len(called) == 4
    for row, batch_size in zip(counts[:3], (1, 4, 1), strict=True):
        expected = synthetic.totals(GRAPH, batch_size)
        assert row.tolist() == [expected[c] for c in COLUMNS]
    # The stem: a 3x3 convolution of 3 channels to 32 at 56x56, twice.
    assert counts[3, COLUMNS.index("acts")] == 2 * 56 * 56 * 32
    assert counts[3, COLUMNS.index("flops")] >= 2 * 56 * 56 * 32 * 27


def test_what_cannot_be_read_is_skipped_with_its_reason() -> None:
    def reader(spec: str, size: Sequence[int]) -> Graph:
        if spec == "gone":
            raise NetworkError("no network 'gone'")
        return GRAPH

    wanted = [
        NetworkTime("gone", 1, 1.0),
        NetworkTime("gone", 2, 1.0),
        NetworkTime("here", 1, 1.0, (), 99),
        NetworkTime("here", 1, 1.0),
    ]
    kept, counts, skipped = count_networks(wanted, reader)
    assert kept == wanted[3:]
    assert len(counts) == 1
    assert skipped["gone"] == "no network 'gone'"
    assert skipped["here block 99"].startswith("'hand made' has no block 99: expected 0 to ")
    assert len(skipped) == 2
