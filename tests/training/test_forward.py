"""Training estimated from latencies of inference: by hand, and against devices that were left out."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.io.documents import read_json
from lolat.io.paths import find_model
from lolat.model import Model
from lolat.training import load_training
from lolat.training.estimate import KNOWN, ForwardTraining, Ratios, typical
from lolat.training.memory import memory_bytes, optimizer_named
from tests import synthetic
from tests.training.epoch_tables import by_hand

GRAPH = synthetic.network(2, 16, 28, "s2w16x28")
ZOO = Path(__file__).resolve().parents[2] / "benchmarks" / "zoo" / "graphs.json.xz"


def model(ratios: Ratios | None = None, **changes: Any) -> ForwardTraining:
    return ForwardTraining(synthetic.document(**changes), "m.json", "`measure it`", ratios)


def norm_share(graph: Graph, batch_size: int) -> float:
    """What batch normalizations read and write of all that is moved, tensor by tensor."""
    total = count(graph).total(batch_size)
    norms = sum(
        graph.tensors[t].elements(batch_size)
        for o in graph.operations
        if o.kind == "batch_norm"
        for t in (*o.inputs, *o.outputs)
    )
    return norms / (total.acts + total.inp + total.traffic)


@pytest.mark.parametrize("batch_size", [1, 16])
def test_parts_by_hand(batch_size: int) -> None:
    trained = model(Ratios(1.0, 2.0, 3.0, 4.0))
    latency = trained.latency.predict(GRAPH, batch_size).latency_ms
    share = norm_share(GRAPH, batch_size)
    assert 0.1 < share < 0.9
    parts = trained.parts(GRAPH, batch_size, optimizer_named("adam"))
    assert parts["forward"] == pytest.approx(latency * (1 + 2 * share))
    assert parts["backward"] == pytest.approx(latency * (3 + 4 * share))
    element_ms = trained.document["predictors"]["extended"]["coefficients"]["pair_elements"]
    assert element_ms > 0
    # gradient read; weight and both slots read and written
    assert parts["update"] == pytest.approx(by_hand("s2w16x28") * 7 * element_ms)
    assert trained.evaluated_ms(GRAPH, batch_size) == latency


@pytest.mark.parametrize("batch_size", [1, 16])
def test_operations_add_up_to_the_iteration(batch_size: int) -> None:
    trained, adam = model(), optimizer_named("adam")
    each, update, rest = trained.operation_times(GRAPH, batch_size, adam)
    parts = trained.parts(GRAPH, batch_size, adam)
    assert each.shape == (len(GRAPH.operations),)
    assert (each >= 0).all()
    assert each.sum() + rest == pytest.approx(parts["forward"] + parts["backward"])
    assert update == parts["update"]


def test_an_answer_says_that_it_is_an_estimate() -> None:
    found = model().predict(GRAPH, 8, 800, 2, validation=80)
    assert "never measured" in found.warnings[0]
    assert "`measure it` measures it" in found.warnings[0]
    assert found.interval_s is not None
    assert found.total_s is not None
    low, high = found.interval_s
    latency = Model(synthetic.document()).predict(GRAPH, 8)
    assert latency.interval_ms is not None
    # surer of a forward pass than of what comes from it
    assert high / low > latency.interval_ms[1] / latency.interval_ms[0]
    assert found.memory_bytes == memory_bytes(GRAPH, 8, optimizer_named("sgd"))
    assert found.evaluation_s == pytest.approx(10 * latency.latency_ms / 1e3)


def test_few_points_give_no_interval() -> None:
    few = synthetic.document(synthetic.measured(6, (1,)))
    found = ForwardTraining(few, "m.json", "").predict(GRAPH, 8, 80)
    assert found.interval_s is None
    assert any(w.startswith("no interval") for w in found.warnings)


def test_a_formula_of_three_counts_answers_too() -> None:
    found = model(default="two-regime").predict(GRAPH, 8)
    assert 2.5 < found.iteration_ms / Model(synthetic.document()).predict(
        GRAPH, 8, "two-regime"
    ).latency_ms < 12.0  # fmt: skip


def test_what_is_typical_is_between_the_devices() -> None:
    found = typical([Ratios(1, 2, 3, 4), Ratios(2, 3, 4, 5), Ratios(9, 9, 9, 9)])
    assert found == Ratios(2, 3, 4, 5)
    middle = typical(list(KNOWN.values()))
    # one forward pass, and twice as much to multiply backward
    assert 0.9 < middle.forward < 1.2
    assert 1.8 < middle.backward < 2.2


def zoo() -> dict[str, Graph]:
    kept = msgspec.json.decode(lzma.decompress(ZOO.read_bytes()))
    return {name: Graph.from_dict(kept[name]) for name in sorted(kept)[::3]}


@pytest.mark.slow
@pytest.mark.parametrize("device", sorted(KNOWN))
def test_devices_that_are_left_out_lie_in_the_interval(device: str) -> None:
    """Their own training, as it was measured, against the estimate by the other devices."""
    path = str(find_model(device))
    document = read_json(path, "")
    document.pop("training", None)
    others = typical([ratios for name, ratios in KNOWN.items() if name != device])
    estimate, own = ForwardTraining(document, path, "", others), load_training(device)
    inside, errors = [], []
    for graph in zoo().values():
        iteration_ms = own.predict(graph, 32).iteration_ms
        found = estimate.predict(graph, 32, 32)
        assert found.interval_s is not None
        inside.append(found.interval_s[0] <= iteration_ms / 1e3 <= found.interval_s[1])
        errors.append(np.log(iteration_ms / found.iteration_ms))
    assert np.mean(inside) >= 0.85
    assert abs(np.median(errors)) < 0.25
