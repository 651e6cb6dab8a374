"""`lolat learn --extend`: a network outside what was measured is brought inside, with a fake worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.fitting.points import Point
from lolat.graph import Graph, GraphBuilder
from lolat.graph.blocks import cut
from lolat.graph.layers import Layers
from lolat.model import Model
from lolat.model.file import read, write
from lolat.model.learning import model_document
from microbench import environment, extend, learn
from microbench.blocks import Predefined
from microbench.doctor import Again
from microbench.environment import UNSAID
from microbench.extend import as_blocks, disagreement
from microbench.runner import Settings
from tests import synthetic
from tests.cli.commands import Command, Result
from tests.microbench import fakes
from tests.microbench.fakes import FakeDevice, FakeWorker

VERSIONS = {"framework": "tensorflow", "framework_version": "2.21.0", "intra_op_threads": 0}
NETWORK = synthetic.network(stages=2, width=64, size=56)


def tiny(channels: int) -> Graph:
    n = Layers.on(f"tiny {channels}", 8, 8, 3)
    return n.done(n.conv_norm_act(n.conv_norm_act(n.input, channels, 3), 2 * channels))


BLOCKS = (
    *(Predefined(f"tiny {c}", lambda c=c: tiny(c), (1, 3)) for c in range(2, 14)),
    *(Predefined(f"net {c}", lambda c=c: tiny(c), (1,), True) for c in range(14, 17)),
)
OWN = {f"net {c} x1" for c in range(14, 17)}


@pytest.fixture(autouse=True)
def machine(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network that every NETWORK names is NETWORK."""
    device.environment = VERSIONS
    monkeypatch.setattr(extend, "NETWORKS", BLOCKS[-3:])
    monkeypatch.setattr(environment, "cpu_model", lambda: "EPYC")
    monkeypatch.setattr("lolat.readers.read", lambda spec, size: NETWORK)


@pytest.fixture
def model(device: FakeDevice, tmp_path: Path) -> Path:
    """A model learned from the tiny blocks."""
    points, where, noise, _, journal = learn.measure_blocks(
        "tensorflow", "cpu", tmp_path / "j", 1e9, settings=Settings(rounds=2), blocks=BLOCKS
    )
    journal.remove()
    device.asked.clear()
    path = tmp_path / "mine.json"
    label = environment.device_label("cpu")
    write(path, model_document("mine", label, points, where, noise, ["an old remark"]))
    return path


class Lolat(Command):
    """`lolat learn --extend ...` in this process."""

    def __call__(self, *arguments: object) -> Result:
        return super().__call__("learn", *arguments)

    def refused(self, *arguments: object, code: int = 2) -> str:
        found, out, err = self(*arguments)
        assert (found, out) == (code, ""), err
        (line,) = [
            e for e in err.splitlines() if not e.startswith(("lolat: measuring", "lolat: building"))
        ]
        return line


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str]) -> Lolat:
    return Lolat(capsys)


def test_a_network_outside_is_inside_afterwards(
    device: FakeDevice, model: Path, lolat: Lolat
) -> None:
    before = read(model)
    prediction = Model(before, str(model)).predict(NETWORK)
    assert prediction.in_domain is False
    assert prediction.measure
    assert "dense" not in before["domain"]["kinds"]

    code, out, err = lolat("--extend", model, "--for", "keras:Whatever")
    assert code == 0, err
    after = read(model)
    assert Model(after).predict(NETWORK).in_domain is True
    assert Model(after).predict(NETWORK).measure == ()
    assert "hand made at batch 1 is inside the measured domain now" in out
    assert f"written: {model}" in out

    old, new = after["points"][: len(before["points"])], after["points"][len(before["points"]) :]
    assert json.dumps(old) == json.dumps(before["points"])
    labels = [name.partition(" · ")[0] for name in prediction.measure]
    assert [p["name"] for p in new] == [f"hand made/{label}" for label in labels]
    assert {len(p["samples_ms"]) for p in new} == {learn.USUAL.most_rounds}, (
        "measured as learning does"
    )
    ran = {
        (r["key"].partition("/")[0], r["before"]) for r in device.requests if r["do"] == "sample"
    }
    assert {before for name, before in ran if name == "hand made"} == OWN
    timed = set(device.keys("sample"))
    assert timed == {f"{p['name']} x1" for p in new} | OWN, "only what is needed"
    assert set(after["domain"]["kinds"]) == {*before["domain"]["kinds"], "dense"}
    assert len(after["predictors"]["extended"]["residuals"]) == len(after["points"])
    assert before["environment"].items() <= after["environment"].items()
    (record,) = after["environment"]["extended"]
    assert record["network"] == "hand made"
    assert record["points"] == [f"{p['name']} x1" for p in new]
    assert [a["learned_ms"] for a in record["again"]] == [2.0] * 3, "three of its own again"
    assert {a["point"] for a in record["again"]} == OWN
    assert record["noise"] == {"floor": 0.0, "quiet": 1.0, "busy": 1.0, "others": 0.0}
    assert "an old remark" in after["warnings"]
    assert [p.name for p in model.parent.iterdir()] == ["mine.json"], "no journal is left"

    content, asked = model.read_bytes(), len(device.asked)
    code, out, _ = lolat("--extend", model, "--for", "keras:Whatever")
    assert code == 0
    assert f"Nothing to measure; {model} is unchanged." in out
    assert model.read_bytes() == content
    assert len(device.asked) == asked


def test_several_batch_sizes_in_one_go_into_another_file(
    model: Path, lolat: Lolat, tmp_path: Path
) -> None:
    content, output = model.read_bytes(), tmp_path / "sub" / "new.json"
    sizes = ("--batch-size", 1, "--batch-size", 16)
    code, out, _ = lolat("cpu", "--extend", model, "--for", "x", *sizes, "--output", output)
    assert (code, model.read_bytes(), read(output)["name"]) == (0, content, "new")
    for n in (1, 16):
        assert f"hand made at batch {n} is inside the measured domain now" in out
        assert Model(read(output)).predict(NETWORK, n).in_domain
    assert {p["batch_size"] for p in read(output)["points"]} >= {16}


def test_a_name_that_a_point_has_is_not_given_again() -> None:
    blocks = cut(NETWORK)[:2]
    one, two = (f"hand made/{b.label}" for b in blocks)
    parts = [(b, 4) for b in blocks]
    assert [b.name for b in as_blocks(NETWORK, parts, [])] == [one, two]
    found = as_blocks(NETWORK, parts, [two, f"{two} (2)", "tiny"])
    assert [b.name for b in found] == [one, f"{two} (3)"]
    assert [b.batch_sizes for b in found] == [(4,), (4,)]
    graph = found[0].make()
    assert graph.name == one
    assert [o.name for o in graph.operations] == [
        NETWORK.operations[p].name for p in blocks[0].operations
    ]


def test_a_model_that_is_shipped_stays_as_it_is(
    model: Path, lolat: Lolat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    local = tmp_path / "own"
    monkeypatch.setattr("lolat.io.paths.shipped_folder", lambda: tmp_path)
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: local)
    content = model.read_bytes()
    code, out, _ = lolat("--extend", model, "--for", "x")
    assert code == 0
    assert model.read_bytes() == content
    assert f"written: {local / 'mine.json'}" in out
    assert Model(read(local / "mine.json")).predict(NETWORK).in_domain

    kept = (local / "mine.json").read_bytes()
    said = lolat.refused("--extend", model, "--for", "x")
    assert f"its copy {local / 'mine.json'} is there already; extend that" in said
    assert (local / "mine.json").read_bytes() == kept
    other = tmp_path / "other.json"
    other.write_bytes(content)
    said = lolat.refused("--extend", model, "--for", "x", "--output", other)
    assert "is a shipped model, which stays as it is" in said
    assert other.read_bytes() == content


def test_a_run_that_is_interrupted_goes_on(
    device: FakeDevice, model: Path, lolat: Lolat, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, real, left = model.read_bytes(), FakeWorker.request, [25]

    def request(self: Any, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        left[0] -= document["do"] == "sample"
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(self, document, limit_s)

    monkeypatch.setattr(fakes.FakeWorker, "request", request)
    code, out, err = lolat("--extend", model, "--for", "x")
    journal = model.with_name("mine.json.extend.journal.jsonl")
    assert code == 130
    assert out == ""
    assert f"what was measured is in {journal}, give the same command again" in err
    assert model.read_bytes() == content
    assert journal.exists()

    left[0] = 10**9
    first = len(device.keys("sample"))
    assert first == 25
    assert lolat("--extend", model, "--for", "x")[0] == 0
    again = len(device.keys("sample")) - first
    jobs = len(set(device.keys("sample")))
    assert again == learn.USUAL.most_rounds * jobs - first, "nothing twice"
    assert not journal.exists()


def test_a_file_that_somebody_else_changed_is_left(
    model: Path, lolat: Lolat, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, changed = FakeWorker.request, read(model) | {"warnings": ["mine"]}

    def request(self: Any, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        if document["do"] == "sample":
            write(model, changed)
        return real(self, document, limit_s)

    monkeypatch.setattr(fakes.FakeWorker, "request", request)
    said = lolat.refused("--extend", model, "--for", "x", code=1)
    assert "was changed meanwhile and is left as it is; give the same command again" in said
    assert read(model) == changed


def test_another_framework_is_refused_before_measuring(
    device: FakeDevice, model: Path, lolat: Lolat
) -> None:
    content = model.read_bytes()
    device.environment = VERSIONS | {"framework_version": "2.22.0"}
    said = lolat.refused("--extend", model, "--for", "x")
    assert "(framework_version: 2.21.0, here 2.22.0)" in said
    assert "are not to be mixed; extend it where it was learned, or learn this one" in said
    assert device.keys("sample") == []
    assert model.read_bytes() == content


def test_another_machine_is_refused_before_anything_is_started(
    device: FakeDevice, model: Path, lolat: Lolat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cpu_model", lambda: "Xeon")
    workers = len(device.workers)
    assert "), here Xeon (" in lolat.refused("--extend", model, "--for", "x")
    assert len(device.workers) == workers


def test_what_is_remarked_on(model: Path, lolat: Lolat) -> None:
    """A model that does not say its processor; a machine in another state than when it was learned."""
    document = read(model)
    for point in document["points"]:
        point["latency_ms"] = 2.5
    del document["environment"]["processor"]
    write(model, document | {"device": f"EPYC, {document['environment']['threads']} threads"})
    code, _, err = lolat("--extend", model, "--for", "x")
    assert code == 0, err
    for said in (UNSAID, "the model's own points took -20 % when measured again ("):
        assert f"warning: {said}" in err
        assert any(
            w.startswith(f"when extended for hand made: {said}") for w in read(model)["warnings"]
        )


def test_what_a_busy_machine_measured_is_measured_anew(model: Path, lolat: Lolat) -> None:
    """--restart takes out what was measured for this network, and that alone."""
    first = read(model)
    lolat("--extend", model, "--for", "x", "--batch-size", 2)
    good = read(model)
    bad = read(model)
    for point in bad["points"][len(first["points"]) :]:
        point["latency_ms"] = 900.0
    bad["warnings"] += [
        "when extended for hand made: a busy machine",
        "when extended for other: no",
    ]
    other = {"network": "other", "points": ["tiny 2 x1"], "again": []}
    bad["environment"]["extended"].append(other)
    write(model, bad)

    assert lolat("--extend", model, "--for", "x", "--batch-size", 2, "--restart")[0] == 0
    after = read(model)
    assert [p["name"] for p in after["points"]] == [p["name"] for p in good["points"]]
    assert {p["latency_ms"] for p in after["points"]} == {2.0}
    assert json.dumps(after["points"][: len(first["points"])]) == json.dumps(first["points"])
    assert after["predictors"] == good["predictors"]
    assert [r["network"] for r in after["environment"]["extended"]] == ["other", "hand made"]
    assert "when extended for other: no" in after["warnings"]
    assert "when extended for hand made: a busy machine" not in after["warnings"]


def test_disagreement_begins_at_a_tenth() -> None:
    def again(name: str, then: float, now: float) -> Again:
        return Again(Point(name, 1, {}, then), now)

    close = [again("a", 1.0, 1.09), again("b", 2.0, 2.0), again("c", 3.0, 4.5)]
    assert list(disagreement(close)) == []
    (said,) = disagreement([again("a", 1.0, 1.11)])
    assert said.startswith(
        "the model's own points took +11 % when measured again (a x1 1.11 ms, was 1)"
    )
    (said,) = disagreement([])
    assert "none of the model's own points could be measured again" in said


def test_when_none_of_its_own_points_is_known_here(
    model: Path, lolat: Lolat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extend, "NETWORKS", ())
    code, _, err = lolat("--extend", model, "--for", "x")
    assert code == 0
    assert "none of the model's own points could be measured again" in err


def test_when_none_of_the_blocks_can_be_measured(
    device: FakeDevice, model: Path, lolat: Lolat
) -> None:
    content = model.read_bytes()
    for name in Model(read(model)).predict(NETWORK).measure:
        key = f"hand made/{name.partition(' · ')[0]} x1"
        device.refuses["prepare", key] = 10
    code, out, err = lolat("--extend", model, "--for", "x")
    assert (code, out) == (1, "")
    assert "none of the blocks could be measured" in err.splitlines()[-1]
    assert model.read_bytes() == content


def strange(kind: str, dtype: str = "float32") -> Graph:
    b = GraphBuilder("odd")
    said = {"kernel": (3, 3), "in_channels": 3, "out_channels": 8, "groups": 1, "bias": False}
    x = b.add("conv", [b.input((1, 8, 8, 3), dtype)], (1, 8, 8, 8), **said)
    return b.build([b.add(kind, [x], (1, 8, 8, 8))])


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (strange("teleport"), "does not help with teleport: there is no formula for what it costs"),
        (strange("relu", "float16"), "does not help with float16: a model is of one data type"),
    ],
)
def test_what_measuring_does_not_help_with_is_said(
    device: FakeDevice, model: Path, lolat: Lolat, monkeypatch: pytest.MonkeyPatch,
    graph: Graph, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("lolat.readers.read", lambda spec, size: graph)
    content = model.read_bytes()
    code, out, _ = lolat("--extend", model, "--for", "x")
    assert code == 0
    assert "odd at batch 1 is outside the measured domain: " in out
    assert said in out
    assert f"Nothing to measure; {model} is unchanged." in out
    assert model.read_bytes() == content
    assert device.keys("sample") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--for", "x", "cpu"], "--for goes with --extend MODEL only"),
        (["cpu", "--batch-size", 4], "--batch-size goes with --extend MODEL only"),
        (["cpu", "--input-size", 64], "--input-size goes with --extend MODEL only"),
        (["--extend", "MODEL"], "--extend lacks --for NETWORK"),
        (["gpu", "--extend", "MODEL", "--for", "x"], "was learned on a cpu and gpu was given"),
        (["--extend", "MODEL", "--for", "x", "--output", "."], "is a folder"),
    ],
)
def test_a_wrong_call(model: Path, lolat: Lolat, arguments: list[object], said: str) -> None:
    assert said in lolat.refused(*[model if a == "MODEL" else a for a in arguments])


def test_a_model_that_nothing_can_be_added_to(
    device: FakeDevice, model: Path, lolat: Lolat
) -> None:
    write(model, read(model) | {"domain": {}})
    assert "does not say what was measured" in lolat.refused("--extend", model, "--for", "x")
    write(model, read(model) | {"environment": {"date": "2026-01-01"}})
    said = lolat.refused("--extend", model, "--for", "x")
    assert "does not say on which device and with which framework it was measured" in said
