"""Several devices: buckets, gradients in order, an iteration, a whole training, its command and page."""

from __future__ import annotations

import doctest
import json
import math
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.replicas.curves import strong_scaling, weak_scaling
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import parameters
from lolat.training.exchange import Link, exposed_ms, fill_buckets, interconnect_of
from lolat.training.replicas import (
    MIRRORED_MS,
    STRATEGIES,
    ParallelIteration,
    ParallelPrediction,
    gradient_parts,
    parallel_iteration,
    predict_parallel,
)
from tests import synthetic
from tests.cli.commands import Command
from tests.training.known_training import KnownTraining

LINK = Link(0.008, 2.0)  # 1,000 bytes per ms
small = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=8)


def ticked(sizes: list[int], backward: list[int], limit: int, first: int) -> int:
    """What is exposed, by a clock that ticks in ms; an exchange takes 1 ms per byte."""
    computing = deque((part, i) for i, part in reversed(list(enumerate(backward))))
    waiting: deque[int] = deque()
    bucket: list[int] = []
    gone = on_wire = clock = ended = 0
    left = computing[0][0] if computing else 0
    while computing or waiting or on_wire:
        while computing and left == 0:  # gradients that are ready now
            bucket.append(sizes[computing.popleft()[1]])
            if sum(bucket) >= (limit if gone else first) or not computing:
                waiting.append(sum(bucket))
                bucket, gone = [], gone + 1
            left = computing[0][0] if computing else 0
            ended = clock
        while on_wire == 0 and waiting:
            on_wire = waiting.popleft()
        if not (computing or on_wire):
            break
        clock += 1
        left, on_wire = max(left - 1, 0), max(on_wire - 1, 0)
    return clock - ended


@given(small, st.integers(1, 20), st.integers(1, 20))
def test_buckets_are_what_a_ticking_clock_says(
    layers: list[tuple[int, int]], limit: int, first: int
) -> None:
    sizes, backward = [s for s, _ in layers], [b for _, b in layers]
    expected = ticked(sizes, backward, limit, first)
    assert exposed_ms(sizes, backward, float, limit, first) == expected


def test_buckets_leave_from_the_last_layer_on() -> None:
    assert fill_buckets([4, 4, 4, 4, 4], 8, 3) == [[4], [3, 2], [1, 0]]
    assert fill_buckets([4, 4, 4, 4], 8, 3) == [[3], [2, 1], [0]]
    assert fill_buckets([], 8, 3) == []


def test_hidden_by_hand() -> None:
    # The last layer's 10 bytes leave at 5 ms and arrive at 15; the first's leave at 20: 10 ms after it.
    assert exposed_ms([10, 10], [15, 5], float, 10, 10) == 10
    # Here the wire is still busy until 15 when the pass ends at 10.
    assert exposed_ms([10, 10], [5, 5], float, 10, 10) == 15


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e3)), min_size=1, max_size=12),
    st.integers(2, 64),
    st.sampled_from(["ring", "tree", "one-to-all"]),
)
def test_the_backward_pass_hides_but_never_adds(
    layers: list[tuple[float, float]], devices: int, strategy: str
) -> None:
    sizes, backward = [s for s, _ in layers], [b for _, b in layers]
    found = parallel_iteration(1e4, sizes, devices, LINK, strategy, backward_ms=backward)
    assert found.exchange_ms >= 0
    assert -1e-6 <= found.hidden_ms <= sum(backward) * (1 + 1e-9) + 1e-6


def test_an_iteration_adds_up() -> None:
    found = parallel_iteration([10, 14], [4000, 2000], 2, LINK, "ring", fixed_ms=3)
    # Ring of two: two steps of 3,000 bytes, 5 ms each.
    assert (found.replica_ms, found.synchronization_ms, found.exchange_ms) == (12, 2 + 3, 10)
    assert found.iteration_ms == 27
    assert found.efficiency == pytest.approx(12 / 27)


def test_mirrored_is_a_ring_after_the_backward_pass() -> None:
    sizes, backward = [3e7, 3e7], [100.0, 100.0]
    mirrored = parallel_iteration(300, sizes, 4, LINK, "mirrored", backward_ms=backward)
    ring = parallel_iteration(300, sizes, 4, LINK, "ring")
    assert mirrored.exchange_ms == ring.exchange_ms
    assert mirrored.synchronization_ms == MIRRORED_MS
    assert parallel_iteration(9, sizes, 4, LINK, "mirrored", fixed_ms=2).synchronization_ms == 2
    assert parallel_iteration(300, sizes, 4, LINK, "ring", backward_ms=backward).hidden_ms > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_device_is_as_fast_as_one_device(strategy: str) -> None:
    found = parallel_iteration(7, [1e9], 1, LINK, strategy, backward_ms=[5], fixed_ms=3)
    assert found.iteration_ms == 7
    assert found.efficiency == 1


def shared(batch_size: int, devices: int) -> ParallelIteration:
    return parallel_iteration(2.0 + batch_size, [8000], devices, LINK)


def test_weak_scaling_by_hand() -> None:
    one, two = weak_scaling(shared, 10, [1, 2])
    # 12 ms alone; two: a ring of two steps of 4,000 bytes, 6 ms each, on top.
    assert (one.batch_size, one.speedup, one.efficiency) == (10, 1, 1)
    assert (two.batch_size, two.speedup) == (20, pytest.approx(2 * 12 / 24))


def test_strong_scaling_by_hand() -> None:
    two, three = strong_scaling(shared, 10, [2, 3])
    assert two.speedup == pytest.approx(12 / (7 + 12))
    # Ten samples on three: the slowest has four. Ring of three: 4 steps of 8,000 / 3 bytes.
    assert three.speedup == pytest.approx(12 / (6 + 4 * (2 + 8 / 3)))
    assert three.batch_size == 10


def test_wrong_calls() -> None:
    for call, words in [
        (lambda: parallel_iteration(1, [1], 0, LINK), "0 devices cannot train"),
        (lambda: parallel_iteration(1, [1], 2, LINK, "star"), "'star' is no strategy; .* mirrored"),
        (lambda: parallel_iteration([1, 2], [1], 3, LINK), "2 replicas' times for 3 devices"),
        (lambda: parallel_iteration(-1, [1], 2, LINK), "replica of -1 ms cannot be"),
        (lambda: parallel_iteration(1, [1], 2, LINK, fixed_ms=-1), "fixed cost of -1 ms"),
        (lambda: exposed_ms([1], [1, 2], float), "1 gradients, but 2 times"),
        (lambda: exposed_ms([1], [-1], float), "negative or infinite time"),
        (lambda: fill_buckets([-1]), "negative or infinite bytes"),
        (lambda: fill_buckets([math.nan]), "negative or infinite bytes"),
        (lambda: fill_buckets([1], 0), "bucket of 0 bytes"),
        (lambda: weak_scaling(shared, 0, [1]), "batch of 0 on each device"),
        (lambda: weak_scaling(shared, 1, [0]), "0 devices cannot train"),
        (lambda: strong_scaling(shared, 4, [8]), "batch of 4 cannot be shared among 8 devices"),
    ]:
        with pytest.raises(InputError, match=words):
            call()


MIB = 2**20


def three_dense(width: int = 512) -> Graph:
    """scale, dense, relu, dense, relu, dense; kernels of 1 MiB each at 512."""
    b = GraphBuilder("three")
    x = b.input((1, width))
    x = b.add("rescale", [x], (1, width), "scale")
    for number in range(3):
        x = b.add("dense", [x], (1, width), f"d{number}", in_features=width, out_features=width,
                  bias=False)  # fmt: skip
        if number < 2:
            x = b.add("relu", [x], (1, width), f"r{number}")
    return b.build([x])


def test_a_part_is_an_operation_and_what_lies_behind_it() -> None:
    # scale, d0, r0, d1, r1, d2: nobody needs the gradient of what is in front of d0.
    sizes, backward = gradient_parts(three_dense(), 8, 70.0, [50, 1, 2, 3, 4, 25])
    assert sizes == [MIB] * 3
    assert backward == pytest.approx([2 * 3, 2 * 7, 2 * 25])


def test_without_times_it_goes_by_what_is_multiplied_and_moved() -> None:
    width, batch = 512, 8
    _, backward = gradient_parts(three_dense(width), batch, 100.0)
    dense = batch * width * width / 10 + 2 * batch * width + width * width
    relu = 2 * batch * width
    whole = 3 * dense + 2 * relu
    expected = [100 * part / whole for part in (dense + relu, dense + relu, dense)]
    assert backward == pytest.approx(expected, rel=1e-6)


def test_vectors_of_a_normalisation_and_tables_travel_too() -> None:
    b = GraphBuilder("words")
    x = b.input((1, 5), dtype="int32")
    x = b.add("embedding", [x], (1, 5, 16), "words", rows=1000, out_features=16)
    x = b.add("layer_norm", [x], (1, 5, 16), "norm")
    sizes, _ = gradient_parts(b.build([x]), 2, 1.0)
    assert sizes == [4 * 1000 * 16, 4 * 2 * 16]
    idle = synthetic.one("relu", [(1, 5)], [(1, 5)])
    assert gradient_parts(idle, 2, 9.0) == ([], [])


@given(st.integers(1, 4), st.integers(1, 64), st.floats(0, 1e4), st.booleans(), st.data())
def test_parts_add_up(
    stages: int, batch: int, backward_ms: float, known: bool, data: st.DataObject
) -> None:
    graph = synthetic.network(stages)
    each = st.lists(st.floats(0, 1e3), min_size=len(graph.operations),
                    max_size=len(graph.operations))  # fmt: skip
    weights = data.draw(each) if known else None
    sizes, backward = gradient_parts(graph, batch, backward_ms, weights)
    assert sum(sizes) == 4 * parameters(graph)
    assert sum(backward) == pytest.approx(backward_ms)
    assert len(sizes) == len(backward) == 1 + 2 * stages * 2 + 1  # conv and norm, stem and head


PARTS = {"forward": 30.0, "backward": 60.0, "update": 10.0}
ALIKE = KnownTraining(times=PARTS, each=[0, 1, 0, 1, 0, 1])
LAST = KnownTraining(times=PARTS, each=[0, 0, 0, 0, 0, 90])
MIB_A_MS = Link(8 * MIB / 1e9 * 1e3, 0.0)  # 1 MiB a ms


def asked(model: KnownTraining, strategy: str = "tree", overlap: bool = True) -> ParallelPrediction:
    # A tree of two: up and down, 2 ms for each MiB. Each kernel is of 9 MiB: 18 ms.
    graph = three_dense(1536)
    return predict_parallel(model, graph, 8, 80, 1, "sgd", 0.9, 2, MIB_A_MS, strategy, overlap)


def test_buckets_travel_during_the_backward_pass() -> None:
    found = asked(ALIKE)
    # The last kernel leaves when it is ready, after 20 of 60 ms (nearly), alone as it is over 1 MiB; it
    # arrives at 38. The other two, below 25 MiB, leave together at 60: 36 ms are waited for.
    assert found.training.parts_ms["exchange"] == pytest.approx(36, abs=0.1)
    assert found.iteration.hidden_ms == pytest.approx(18, abs=0.1)
    assert found.training.iteration_ms == pytest.approx(136, abs=0.1)
    assert found.training.epoch_s == pytest.approx(5 * 0.136, abs=1e-3)
    parts = [ms or 0.0 for ms in found.training.parts_ms.values()]
    assert sum(parts) == pytest.approx(found.training.iteration_ms)


def test_where_the_time_goes_is_the_models_to_tell() -> None:
    # The last layer takes all 60 ms; then everything is ready at once, in two buckets, one by one.
    found = asked(LAST)
    assert found.training.parts_ms["exchange"] == pytest.approx(54)
    assert found.iteration.hidden_ms == pytest.approx(0)


@pytest.mark.parametrize(("strategy", "overlap"), [("tree", False), ("mirrored", True)])
def test_what_hides_nothing(strategy: str, overlap: bool) -> None:
    found = asked(ALIKE, strategy, overlap)
    assert found.iteration.hidden_ms == 0
    # A ring of two sends all bytes once, a tree twice; MirroredStrategy has a cost of its own.
    expected = 54 if strategy == "tree" else 27 + 1.4
    assert found.training.parts_ms["exchange"] == pytest.approx(expected)


# ---- A prediction of one device carried over to several, by hand and through `lolat training predict`.


def known(**more: Any) -> KnownTraining:
    """100 ms an iteration, 2 s an epoch's start, 40 MB of gradients."""
    return KnownTraining(epoch_ms=2000.0, gradients=40_000_000, **more)


def shared_out(
    model: KnownTraining, samples: int | None, devices: int, strategy: str = "ring", epochs: int = 3
) -> ParallelPrediction:
    link = Link(1.6, 5.0)  # 200,000 bytes per ms
    network = synthetic.network()
    return predict_parallel(
        model, network, 10, samples, epochs, "adam", 0.9, devices, link, strategy
    )


def test_four_devices_by_hand() -> None:
    found = shared_out(known(), 1001, 4).training
    # A ring of four: six steps of 10 MB, 5 + 50 ms each. Shares of 251 samples: 26 iterations.
    assert found.parts_ms["exchange"] == pytest.approx(330)
    assert found.iteration_ms == pytest.approx(430)
    assert (found.samples, found.iterations) == (1001, 26)
    assert found.epoch_s == pytest.approx(2 + 26 * 0.43)
    assert found.total_s == pytest.approx(3 * (2 + 26 * 0.43))
    more_s = 3 * 26 * 0.33  # at both ends of what a device alone takes, 4/5 and 5/4
    alone_s = found.total_s - more_s
    assert shared_out(known(factor=None), 1001, 4).training.interval_s is None
    assert found.interval_s == pytest.approx((0.8 * alone_s + more_s, 1.25 * alone_s + more_s))


def test_a_last_batch_that_is_left_out() -> None:
    assert shared_out(known(drop_last=True), 1039, 4).training.iterations == 25


@pytest.mark.parametrize("strategy", ["ring", "tree", "one-to-all", "mirrored"])
def test_one_device_is_what_the_model_says(strategy: str) -> None:
    model, network = known(), synthetic.network()
    found = shared_out(model, 1000, 1, strategy)
    assert found.training == model.predict(network, 10, 1000, 3, "adam")


ASK = ("training", "predict", "m.json", "n", "--batch-size", 10, "--samples", 1000)


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("lolat.training.file.load_training", lambda _: known())
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    return Command(capsys)


def test_the_command_says_what_is_waited_for(lolat: Command) -> None:
    asked = (*ASK, "--replicas", 2, "--strategy", "tree", "--link-gbps", 0.32)
    answer = json.loads(lolat(*asked, "--json").out)
    # One level up, one down, each 5 microseconds and 1,000 ms.
    assert answer["parts_ms"]["exchange"] == pytest.approx(2000.01)
    assert answer["iteration_ms"] == pytest.approx(2100.01)
    assert answer["epoch_s"] == pytest.approx(2 + 50 * 2.10001)
    assert (answer["devices"], answer["strategy"], answer["link_gbps"]) == (2, "tree", 0.32)
    assert lolat(*asked).out.splitlines()[-1] == (
        "2 devices, a batch of 10 on each, gradients by tree over 0.32 Gbit/s: 2000 ms of an iteration"
    )
    assert "devices" not in lolat(*ASK).out


def test_the_command_says_what_is_hidden(lolat: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    model = known(times={"forward": 40.0, "backward": 60.0})
    monkeypatch.setattr("lolat.training.file.load_training", lambda _: model)
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network(width=256))
    options = ("--replicas", 2, "--link-gbps", 8)
    line = lolat(*ASK, *options).out.splitlines()[-1]
    assert line.endswith(" ms more are hidden by the backward pass (--no-overlap: none)")
    hiding = json.loads(lolat(*ASK, *options, "--json").out)
    hidden = json.loads(lolat(*ASK, *options, "--no-overlap", "--json").out)
    assert 0 < hiding["hidden_ms"] <= 60
    assert hidden["hidden_ms"] == 0
    assert hidden["iteration_ms"] > hiding["iteration_ms"]
    assert "hidden" not in lolat(*ASK, *options, "--no-overlap").out
    assert "hidden" not in lolat(*ASK, *options, "--strategy", "mirrored").out


@pytest.mark.parametrize("given", [(), ("--no-overlap",)])
def test_cost_passes_it_on(
    given: tuple[str, ...], lolat: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def predict(*arguments: Any, overlap: bool, **more: Any) -> ParallelPrediction:
        found.append(overlap)
        return predict_parallel(*arguments, overlap=overlap, **more)

    monkeypatch.setattr("lolat.api.training.predict_parallel", predict)
    asked = ("cost", "m", "n", "--samples", 100, "--batch-size", 10, "--replicas", 2)
    done = lolat(*asked, "--price-per-hour", 1, *given)
    assert (done.code, done.err) == (0, "")
    assert found == [not given]


def test_the_command_refuses(lolat: Command) -> None:
    words = "batch of 10 on each of 101 devices is larger than the data set"
    assert words in lolat.refused(*ASK, "--replicas", 101)
    assert "a number of Gbit/s above 0" in lolat.refused(*ASK, "--link-gbps", 0)


PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/several-devices.md"


def test_its_python_runs() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.attempted >= 4
    assert found.failed == 0


def test_its_links_are_those_that_are_assumed() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| an exchange has |\n")[2]
    lines = table.partition("\n\n")[0].splitlines()[1:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) == 8
    for devices, link, peak, rate in rows:
        for device in devices.split(", "):
            found = interconnect_of(device)
            assert found is not None, device
            said = (found.name, f"{found.peak_gb_s:g} GB/s", f"{found.gbps:g} Gbit/s")
            assert said == (link, peak, rate), device
