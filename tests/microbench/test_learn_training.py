"""The measurements of training, and the section of a profile from visits; a fake worker."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.device.file import write
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.microbench import learn, learn_training
from lolat.microbench.blocks import Predefined
from lolat.microbench.learn import REFERENCES
from lolat.microbench.learn_training import MEASURED, TRAINING_BLOCKS, batch_sizes
from lolat.microbench.runner import Settings
from lolat.training.pass_counts import PASS_TERMS, pass_rows, started, variables
from tests import synthetic
from tests.microbench.fakes import FakeDevice, Watcher

SETTINGS = Settings(rounds=4)
UPDATES, LOOPS = 4 * len(MEASURED), 3


def tiny(channels: int) -> Graph:
    n = Layers.on(f"tiny {channels}", 8, 8, 3 if channels % 2 else 6)
    return n.done(n.conv_norm_act(n.conv_norm_act(n.input, channels, 3), 2 * channels))


BLOCKS = tuple(
    Predefined(name, functools.partial(tiny, c), (1, 3))
    for c, name in enumerate([*learn_training.STARTED, *(f"block {i}" for i in range(18))], 2)
)
PASSES = 2 * 2 * len(BLOCKS)


def start_ms(document: dict[str, Any]) -> float:
    """The first step of a network: 100 ms, 5 for every operation, by its optimizer more."""
    graph, states = Graph.from_dict(document["graph"]), MEASURED[document["optimizer"]].states
    return 100.0 + 5.0 * started(graph) + 3.0 * states * variables(graph)


@pytest.fixture
def device(device: FakeDevice) -> FakeDevice:
    device.environment = {"framework": "tensorflow", "framework_version": "2.21.0"}

    def note(document: dict[str, Any]) -> None:
        if document["do"] == "start":
            device.ms[f"{document['graph']['name']} {document['optimizer']}"] = start_ms(document)

    device.at_request = note
    return device


def measure(
    path: Path, blocks: tuple[Predefined, ...] = BLOCKS, backend: str = "tensorflow", **options: Any
) -> dict[str, Any]:
    run = learn.Run(backend, "cpu", path, **{"now": 1e9, "settings": SETTINGS, **options})
    section, journal = learn_training.measure_training(run, blocks)
    assert journal.path.exists(), "kept until the model is written"
    journal.close()
    return section


def first(optimizer: str) -> str:
    """The key of a start of the first network in these tests."""
    return f"{BLOCKS[0].make().name} {optimizer}"


def test_what_is_measured(device: FakeDevice, tmp_path: Path) -> None:
    section = measure(tmp_path / "j")
    assert len(device.keys("prepare")) == PASSES + UPDATES + LOOPS + len(REFERENCES)
    timed = [r for r in device.requests if r["do"] == "sample"]
    assert len(timed) == SETTINGS.rounds * (PASSES + UPDATES + LOOPS)
    assert {r["before"].rpartition(" x")[0] for r in timed} == set(REFERENCES)
    assert len(section["points"]) == PASSES
    point = next(p for p in section["points"] if (p["name"], p["batch_size"]) == ("block 4", 3))
    row = dict(zip(PASS_TERMS, pass_rows(tiny(8), 3).sum(axis=0).tolist(), strict=True))
    assert point["terms"] == {t: v for t, v in row.items() if v}
    assert (point["latency_ms"], point["spread"]) == (2.0, 0.0)
    assert point["samples_ms"] == [2.0] * SETTINGS.rounds
    assert {p["backward"] for p in section["points"]} == {True, False}
    assert list(section["update_ms"]) == list(MEASURED)
    assert len(section["update_points"]) == UPDATES
    adam = [p for p in section["update_points"] if p["optimizer"] == "adam"]
    assert [(p["variables"], p["parameters"]) for p in adam] == [
        (1, 1024), (64, 65536), (16, 2**22), (4, 2**24),
    ]  # fmt: skip
    loops = [(p["steps"], p["elements"]) for p in section["epoch_points"]]
    assert loops == [(1, 8 * 192), (33, 8 * 192), (9, 8 * 224 * 224 * 3)]
    assert section["environment"]["framework"] == "tensorflow"
    assert section["environment"]["device"] == "cpu"
    assert list(section["noise"].values()) == [0.0, 1.0, 1.0, 0.0, 1.0]
    assert len(section["residuals"]) == PASSES // 2


def test_the_start_is_of_every_optimizer(device: FakeDevice, tmp_path: Path) -> None:
    """Both networks here are of as many operations; one block more tells them apart."""
    longer = Predefined(learn_training.STARTED[1], lambda: deep(3), (1, 3))
    section = measure(tmp_path / "j", blocks=(BLOCKS[0], longer, *BLOCKS[2:]))
    assert [p["optimizer"] for p in section["start_points"]][:2] == ["sgd", "sgd"]
    found = section["start_ms"]
    assert (found["constant"], found["operation"]) == pytest.approx((100.0, 5.0))
    expected = {name: 3.0 * o.states for name, o in MEASURED.items()}
    assert found["variable"] == pytest.approx(expected, abs=1e-6)


def deep(blocks: int) -> Graph:
    """A small network with its classifier."""
    n = Layers.on("deep", 8, 8, 3)
    x = n.input
    for _ in range(blocks):
        x = n.conv_norm_act(x, 8, 3)
    return n.done(n.dense(n.global_pool(x, flat=True), 10, "softmax"))


@pytest.mark.parametrize("how", ["refuses", "dies"])
def test_a_start_that_fails_is_left_out(device: FakeDevice, tmp_path: Path, how: str) -> None:
    getattr(device, how)["start", first("adam")] = 1
    section = measure(tmp_path / "j")
    assert {p["optimizer"] for p in section["start_points"]} == MEASURED.keys() - {"adam"}
    assert f"(first: start of {BLOCKS[0].name} with adam: " in section["warnings"][-1]


def test_without_the_simplest_start_there_is_none(device: FakeDevice, tmp_path: Path) -> None:
    device.refuses["start", first("sgd")] = 1
    section = measure(tmp_path / "j")
    assert section["start_ms"] is None
    assert "with sgd" in section["warnings"][-1]
    path = tmp_path / "m.json"
    write(path, synthetic.document(training=section))
    found = lolat.load(path).cost(synthetic.network(), 8, 80).options[0]
    assert found.startup_s is None
    assert found.total_s == found.epoch_s


def test_the_journal_is_that_of_training(device: FakeDevice, tmp_path: Path) -> None:
    wanted = SETTINGS.rounds * (PASSES + UPDATES + LOOPS)
    before = measure(tmp_path / "j")
    starts = len(before["start_points"])
    notes = Watcher()
    section = measure(tmp_path / "j", now=1e9 + 60, progress=notes)
    assert f"{wanted + starts} measurements are there already" in notes.notes[0]
    assert len(device.keys("sample")) == wanted, "nothing twice"
    assert len(device.keys("start")) == starts == len(MEASURED) + 1
    assert section["start_points"] == before["start_points"]
    assert len(section["points"]) == PASSES
    notes = Watcher()
    measure(tmp_path / "j", now=1e9 + 60, progress=notes, blocks=BLOCKS[:-1])
    assert "measured with other jobs" in notes.notes[0]


def test_the_networks_that_are_started_are_among_the_blocks() -> None:
    blocks = {b.name: b.make() for b in learn_training.TRAINING_BLOCKS}
    one, other = (blocks[name] for name in learn_training.STARTED)
    assert started(one) != started(other), "else a constant could not be told"
    assert all(len(g.inputs) == 1 for g in (one, other))


# ---- The blocks: counts by hand, and the limits of batch sizes


BY_NAME = {b.name: b for b in TRAINING_BLOCKS}


def test_counts_of_a_small_vgg() -> None:
    found = count(BY_NAME["small vgg 3x32x32"].make()).total(1)
    kernels = 9 * (3 * 32 + 32 * 32), 9 * (32 * 64 + 64 * 64)
    dense = 8 * 8 * 64 * 128 + 128 * 10
    assert found.flops == 32 * 32 * kernels[0] + 16 * 16 * kernels[1] + dense
    assert found.weights == sum(kernels) + 2 * 32 + 2 * 64 + dense + 128 + 10
    assert found.acts == 2 * 32 * 32 * 32 + 2 * 16 * 16 * 64
    assert found.inp == 32 * 32 * (3 + 32) + 16 * 16 * (32 + 64)
    assert BY_NAME["small vgg 3x32x32"].batch_sizes == (1, 64), "64 times 25 M multiply-accumulates"
    assert BY_NAME["vgg 64x224x224"].batch_sizes == (1,), "3.7 G already at 1"
    found = count(BY_NAME["3 dense, dropout, norm 784"].make()).total(1)
    assert found.flops == 784 * 512 + 512 * 512 + 512 * 512 + 512 * 10
    assert found.weights == found.flops + 3 * 512 + 10


def convolution(groups: int) -> Graph:
    n = Layers.on("groups", 8, 8, 6)
    return n.done(n.conv(n.input, 6, 3, groups=groups))


def test_groups_of_several_channels_are_measured_at_one() -> None:
    assert batch_sizes(convolution(1)) == (1, 64)
    assert batch_sizes(convolution(3)) == (1,)
    assert batch_sizes(convolution(6)) == (1, 64), "a depthwise convolution is one kernel"
