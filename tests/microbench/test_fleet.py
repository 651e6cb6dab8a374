"""`lolat learn --fleet`: a cluster of two nodes on this machine, and one that dies while it measures."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.cli import cluster as command
from lolat.errors import InputError, MeasuringError
from lolat.model import load
from microbench import fleet
from microbench.fleet import Failed, Measured, Node
from microbench.learn import MeasuredBlocks
from tests import ray_cluster, synthetic
from tests.cli.commands import Command
from tests.cli.conftest import lolat as lolat_fixture
from tests.processes import wait_until

lolat = lolat_fixture
CLUSTER = (1, 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster.nodes(*CLUSTER) as found:
        yield found


def measured(omp: str | None = None) -> Measured:
    """What a node with made-up times would have measured."""
    where = {"framework": "tensorflow", "framework_version": "2", "device": "cpu", "omp": omp}
    noise = {"floor": 0.03, "reference_ms": 1.0}
    return Measured(synthetic.measured(), where, noise, ["a remark"], "a desk, 2 threads")


def quick(*asked: Any) -> Measured:
    """A node that measures at once, and notes when it did so."""
    folder = Path(os.environ["LOLAT_TEST_FLEET"])
    began = time.monotonic()
    time.sleep(0.05)
    (folder / f"{os.urandom(4).hex()}.json").write_text(json.dumps([began, time.monotonic()]))
    return measured(os.environ.get("OMP_NUM_THREADS"))


def with_journal(*asked: Any) -> Measured:
    """A node that keeps what it measured."""
    journal = Path(os.environ["LOLAT_TEST_FLEET"]) / f"{os.urandom(4).hex()}.jsonl"
    journal.touch()
    return replace(measured(), journal=journal)


def hangs(*asked: Any) -> Measured:
    """A node that never ends."""
    (Path(os.environ["LOLAT_TEST_FLEET"]) / "hangs").touch()
    time.sleep(600)
    raise AssertionError


def refuses(*asked: Any) -> Measured:
    raise MeasuringError("the machine is on fire")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("notes")
    os.environ["LOLAT_TEST_FLEET"] = str(folder)  # before the cluster's workers start
    yield folder
    del os.environ["LOLAT_TEST_FLEET"]


@pytest.fixture
def notes(folder: Path) -> Path:
    """Where the nodes of this test leave notes."""
    for note in folder.iterdir():
        note.unlink()
    return folder


def learn(output: Path, measure: Any = quick, restart: bool = False) -> None:
    command.learn_fleet("here", "cpu", output, None, (), restart, measure)


def test_every_node_is_measured_once_and_alone(
    notes: Path, cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(tmp_path / "fleet")
    files = list((tmp_path / "fleet").iterdir())
    stem = fleet.survey("cpu")[0][0].name
    assert {f.name for f in files} == {f"{stem}{end}.json" for end in ("", "-2")}
    for file in files:
        assert load(file).device == "a desk, 2 threads"
        assert json.loads(file.read_text())["environment"].get("omp") is None
    times = sorted(json.loads(p.read_text()) for p in notes.glob("*.json"))
    (_, end), (began, _) = times
    assert end <= began, "both nodes are on this machine: one after the other"
    said = capsys.readouterr()
    assert said.err.count(f"{stem}: warning: a remark") == 2
    assert said.out.splitlines() == ["2 nodes: 2 measured now", f"models: {tmp_path / 'fleet'}"]

    (tmp_path / "fleet" / f"{stem}-2.json").unlink()
    learn(tmp_path / "fleet")
    assert len(list(notes.glob("*.json"))) == 3  # the one that was missing
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "2 nodes: 1 measured now, 1 measured before"
    assert f"{stem}: measured already" in said.err
    learn(tmp_path / "fleet", restart=True)
    assert capsys.readouterr().out.splitlines()[0] == "2 nodes: 2 measured now"


def test_a_journal_stays_until_its_model_is_there(
    cluster: Any, notes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that dies, or finds the disk full, has lost nothing: the next one goes on with it."""

    def full(path: Path, document: Any) -> None:
        assert len(list(notes.glob("*.jsonl"))) >= 1
        raise MeasuringError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("lolat.model.file.write", full)
        with pytest.raises(MeasuringError, match="the disk is full"):
            learn(tmp_path, with_journal)
    assert len(list(notes.glob("*.jsonl"))) == len(CLUSTER)
    learn(tmp_path, with_journal)
    assert len(list(tmp_path.iterdir())) == len(CLUSTER)
    assert len(list(notes.glob("*.jsonl"))) == len(CLUSTER)  # of the nodes of the first run


def test_nodes_that_cannot_be_measured_are_reported(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        MeasuringError, match=r"2 nodes not measured .*the machine is on fire"
    ) as caught:
        learn(tmp_path, refuses)
    assert caught.value.exit_code == 1
    assert "the same command measures those only" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("not measured: the machine is on fire") == 2


def test_no_gpu_in_the_cluster(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the cluster has no node with a gpu to measure"):
        command.learn_fleet("here", "gpu", tmp_path, None, (), False, quick)


def test_it_goes_on_when_a_node_dies(
    notes: Path, cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = cluster.add_node(num_cpus=3, **ray_cluster.NODE)
    cluster.wait_for_nodes()
    nodes, _ = fleet.survey("cpu")
    doomed = next(n for n in nodes if n.cpus == 3)
    there: list[Any] = []

    def kill() -> None:
        wait_until(lambda: (notes / "hangs").exists(), 60, "the node to measure")
        cluster.remove_node(victim, allow_graceful=False)
        there.append(True)

    killer = threading.Thread(target=kill)
    killer.start()
    found = list(fleet.measure_nodes([doomed], "cpu", None, (), False, hangs))
    killer.join()
    assert there == [True]
    assert [(node, type(came)) for node, came in found] == [(doomed, Failed)]
    assert "died" in found[0][1].reason  # type: ignore[union-attr]
    # A node that is dead before its turn, and those that live.
    came = dict(fleet.measure_nodes(nodes, "cpu", None, (), False, quick))
    assert isinstance(came.pop(doomed), Failed)
    assert [type(alive) for alive in came.values()] == [Measured] * len(CLUSTER)
    capsys.readouterr()
    learn(tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == "2 nodes: 2 measured now"


def test_a_node_of_which_nothing_can_be_fitted(tmp_path: Path) -> None:
    few = Measured([], {"device": "cpu"}, {}, [], "desk")
    bad = command.keep(tmp_path / "desk.json", few)
    assert isinstance(bad, Failed)
    assert bad.name == "desk"
    assert list(tmp_path.iterdir()) == []
    assert command.keep(tmp_path / "desk.json", Failed("x", "y")) == Failed("x", "y")


def test_names_of_files() -> None:
    def node(number: int, host: str) -> Node:
        return Node(str(number), "1.2.3.4", host, "AMD EPYC, 2 threads", 2.0, 0.0)

    nodes = [node(1, "a.b"), node(2, "a.b"), node(3, "c")]
    found = command.files(Path("f"), nodes, "torch-channels_last")
    assert [p.name for p in found.values()] == [
        "a-b-amd-epyc-2-threads-torch-channels-last.json",
        "a-b-amd-epyc-2-threads-torch-channels-last-2.json",
        "c-amd-epyc-2-threads-torch-channels-last.json",
    ]


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("NodeDiedError", "pages", "the node died"),
        ("WorkerCrashedError", "pages", "the measuring process or its node died"),
        ("RayTaskError", "x\nModuleNotFoundError: No module named 'microbench'", "it has no microbench: "
         "install the same LoLat there"),
        ("RayTaskError", "first  line\nsecond", "RayTaskError: first line"),
    ],
)  # fmt: skip
def test_why_there_is_no_answer(kind: str, text: str, said: str) -> None:
    assert fleet.reason(type(kind, (Exception,), {})(text)) == said


def test_what_is_measured_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    journal = SimpleNamespace(close=lambda: asked.append("closed"), path=tmp_path / "j")

    def blocks(backend: str, device: str, path: Path, now: float, restart: bool) -> Any:
        asked.append(
            (backend, device, path.parent.parent, path.name.endswith("-cpu-torch.journal.jsonl"))
        )
        return MeasuredBlocks(["points"], {"device_name": "x"}, {}, ["w"], journal)

    monkeypatch.setattr("microbench.learn.measure_blocks", blocks)
    monkeypatch.setattr("microbench.backends.joined", lambda name, options: name)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = fleet.measure_here("cpu", "torch", (), True)
    assert asked == [("torch", "cpu", tmp_path, True), "closed"]
    assert found.journal == tmp_path / "j"
    assert found.points == ["points"]
    assert "seconds" in found.environment
    monkeypatch.setattr("microbench.worker.pick", lambda device, options: ("torch", "why"))
    fleet.measure_here("cpu", None, (), True)
    assert asked[2] == asked[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fleet", "tpu"], "'tpu' is no address: expected host:port"),
        (["--fleet", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1"),
        (["--fleet", "--backend", "jax"], "'jax' is not one of"),
        (["--fleet", "--output", "README.md"], "README.md is a file; with --fleet expected a folder"),
        (["--fleet", "--for", "n"], "--for goes with --extend MODEL only"),
        (["--fleet", "--extend", "m", "--for", "n"], "--fleet does not go with --extend MODEL"),
    ],
)  # fmt: skip
def test_a_wrong_call(
    lolat: Command, arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    monkeypatch.chdir(ray_cluster.ROOT)
    assert said in lolat.refused("learn", *arguments)


def test_no_ray_installed(lolat: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    said = lolat.refused("learn", "--fleet", "--output", tmp_path / "f")
    assert "[ray]'" in said
