"""From visits to points and remarks, with a fake worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.graph.counts import count
from lolat.graph.quantized import INT8
from lolat.microbench import environment, learn
from lolat.microbench.blocks import Predefined, for_device
from lolat.microbench.runner import Settings, graph_job
from tests.microbench.fakes import FakeDevice, Watcher, tiny

BLOCKS = (Predefined("a", tiny(4), (1, 8)), Predefined("b", tiny(5), (2,)))
NETWORKS = (Predefined("net", tiny(6), (1,), True),)
ALL = (*BLOCKS, *NETWORKS)
SETTINGS = Settings(rounds=4)
STEADY = {"floor": 0.0, "quiet": 1.0, "busy": 1.0, "others": 0.0, "trend": 1.0}
HERE = {"threads": 2}


def run(path: Path, kind: str = "cpu", **options: Any) -> learn.Run:
    return learn.Run("fake", kind, path, **{"now": 1e9, "settings": SETTINGS, **options})


def measure(path: Path, blocks: tuple[Predefined, ...] = ALL, **options: Any) -> Any:
    result = learn.measure_blocks(run(path, **options), blocks)
    result[-1].close()
    return result


def test_points_hold_counts_and_raw_times(device: FakeDevice, tmp_path: Path) -> None:
    device.ms = {"a x8": 3.0, "net x1": 40.0}
    points, where, noise, failures, journal = measure(tmp_path / "j")
    assert [(p.name, p.batch_size, p.whole) for p in points] == [
        ("a", 1, False), ("a", 8, False), ("b", 2, False), ("net", 1, True),
    ]  # fmt: skip
    point, net = points[1], points[-1]
    assert point.counts["flops"] == 8 * 8 * 8 * 9 * 3 * 4
    assert point.counts == count(BLOCKS[0].make()).total(8)._asdict()
    assert (point.samples_ms, point.latency_ms, point.spread) == ((3.0,) * 4, 3.0, 0.0)
    assert point.reference_ms == (40.0,) * 4, "of the network that ran before"
    assert (net.samples_ms, net.reference_ms) == ((40.0,) * 12, ()), "three in a loop, four rounds"
    assert (net.whole, point.whole) == (True, False)
    assert "conv" in point.kinds
    assert (where["framework"], where["device"]) == ("fake", "cpu")
    assert {n: v for n, v in noise.items() if n != "probe"} == STEADY
    assert journal.path.exists(), "kept until the model is written"
    assert failures == {}


def test_the_machine_is_probed_from_the_start_to_the_end(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "cpu_count", lambda: 64)
    device.environment = {"framework": "fake", "threads": 2}
    _, _, noise, *_ = measure(tmp_path / "j", settings=Settings(rounds=7))
    assert device.probes == 4, "in the first, the fourth and the seventh round, and after it"
    assert noise["probe"] == {"forks": [2.5, 20.0]}, "the medians of 1, 2, 3, 4 and of 20"
    assert learn.probe_threads({"threads": 64}) <= 8, "a thread takes some time to start"
    measure(tmp_path / "gpu", kind="gpu")
    device.environment = {"framework": "fake", "threads": 1}
    _, _, noise, *_ = measure(tmp_path / "one")
    assert (device.probes, "probe" in noise) == (4, False), (
        "a GPU, and one thread, wait for no other"
    )


def test_quantized_points_say_so(device: FakeDevice, tmp_path: Path) -> None:
    """The worker is given the marked block, at the same batch size; no block is timed after it."""
    whole = Predefined("net int8", tiny(6), (1,), True, "static")
    points, *_ = measure(tmp_path / "j", (*ALL, whole))
    assert [(p.name, p.scheme) for p in points[-2:]] == [("net", ""), ("net int8", "static")]
    asked = [r for r in device.requests if r["do"] == "sample"]
    assert {r["before"] for r in asked} == {"", "net x1"}


@pytest.mark.parametrize(("backend", "number"), [("onnxruntime+threads=1", 3), ("torch", 0)])
def test_a_backend_that_quantizes_measures_each_scheme(backend: str, number: int) -> None:
    chosen = for_device("cpu", backend)
    marked = {b.name: b for b in chosen if b.scheme}
    assert len({b.scheme for b in marked.values()}) == number
    assert not any(b.scheme for b in for_device("gpu", backend))
    for block in marked.values():
        schemes = {o.attributes.get(INT8) for o in block.make().operations} - {None}
        assert schemes == {block.scheme}


def test_the_environment_can_be_refused(device: FakeDevice, tmp_path: Path) -> None:
    def refuse(where: Any) -> None:
        assert (where["framework"], where["device"]) == ("fake", "cpu")
        raise InputError("not here")

    jobs = [graph_job(NETWORKS[0].make(), "net", 1, True)]
    asked = learn.run_jobs(run(tmp_path / "j", check=refuse), jobs, jobs)
    with pytest.raises(InputError, match="not here"), asked:
        pass
    assert device.keys("prepare") == []
    assert not (tmp_path / "j").exists()
    assert device.workers[-1].closed


@pytest.mark.parametrize(
    ("kind", "threads", "told"), [("cpu", 2, True), ("cpu", 1, False), ("gpu", 2, False)]
)
def test_fewer_threads_are_advised_where_there_are_fewer(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kind: str, threads: int, told: bool,
) -> None:  # fmt: skip
    device.environment = {"framework": "fake", "threads": threads}
    monkeypatch.setattr(environment, "other_programs", lambda: 1.5)
    notes = Watcher()
    measure(tmp_path / "j", kind=kind, progress=notes)
    (busy,) = notes.notes
    assert ("--threads 1" in busy) == told


def test_a_busy_machine_is_told_of_a_backend_that_runs(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(request: dict[str, Any]) -> None:  # the user has read it, and ends the run
        if request["do"] != "environment":
            raise KeyboardInterrupt

    monkeypatch.setattr(environment, "other_programs", lambda: 1.5)
    device.at_request, device.error, notes = end, InputError("no such backend"), Watcher()
    with pytest.raises(InputError):
        measure(tmp_path / "j", progress=notes)
    assert not notes.notes
    device.error = None
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path / "j", progress=notes)
    (said,) = notes.notes
    assert "other programs use 1.5" in said


# ---- Which journal a run goes on from


def test_going_on_is_said(device: FakeDevice, tmp_path: Path) -> None:
    measure(tmp_path / "j")
    notes = Watcher()
    asked = len(device.keys("sample"))
    points, *_ = measure(tmp_path / "j", progress=notes, now=1e9 + 60)
    assert "16 measurements are there already (--restart" in notes.notes[0]
    assert len(device.keys("sample")) == asked == 16
    assert len(points) == 4
    measure(tmp_path / "j", restart=True)
    assert len(device.keys("sample")) == 2 * asked


@pytest.mark.parametrize(
    ("kind", "first", "second", "differs"),
    [
        ("cpu", {}, {"threads": 1, "threads_asked": 1}, "device, threads, threads_asked"),
        ("gpu", {"device_name": "T4"}, {"device_name": "L4"}, "device, device_name"),
    ],
)
def test_another_environment_is_another_run(
    device: FakeDevice, tmp_path: Path, kind: str,
    first: dict[str, Any], second: dict[str, Any], differs: str,
) -> None:  # fmt: skip
    device.environment = {"framework": "fake", **first}
    measure(tmp_path / "j", kind=kind)
    device.environment = {"framework": "fake", **second}
    notes = Watcher()
    _, where, *_ = measure(tmp_path / "j", kind=kind, progress=notes)
    assert second.items() <= where.items()
    assert notes.notes[0].endswith(f"measured with other {differs}")
    assert len(device.keys("sample")) == 32


def test_another_job_or_processor(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(tmp_path / "j")
    notes = Watcher()
    others = (*BLOCKS, Predefined("net", tiny(7), (1,), True))
    measure(tmp_path / "j", progress=notes, blocks=others)
    monkeypatch.setattr(environment, "processor_facts", lambda *_: {"stepping": 99})
    measure(tmp_path / "j", progress=notes, blocks=others)
    assert [note.rpartition("other ")[2] for note in notes.notes] == ["jobs", "device, processor"]


# ---- Noise, and the remarks on a run


@pytest.mark.parametrize(
    ("where", "noise", "failures", "words"),
    [
        (HERE | {"others_at_start": 0.1}, {}, {}, []),
        (HERE | {"threads": 8, "framework": "torch", "processor": {"threads": 2}}, {}, {},
         ["torch started 8 threads, and this process may use 2 "]),
        # The processors are the machine's, whatever threads the framework was given.
        (HERE | {"processor": {"threads": 8}}, {"others": 1.3}, {}, ["1.3 of 8 processors"]),
        (HERE | {"others_at_start": None}, {"quiet": 0.8, "busy": 1.2, "floor": 0.08}, {}, []),
        (HERE, {"quiet": 0.8, "busy": 1.28}, {}, ["took 1.6 times as long"]),
        (HERE, {"floor": 0.09}, {}, ["were 9.0 % apart"]),
        (HERE, {"others": 0.2, "trend": 1.09}, {}, []),
        (HERE, {"others": 1.02}, {}, ["used 1.0 of 2 processors"]),
        (HERE, {"trend": 1.3}, {}, ["became 30 % slower from the first quarter"]),
        (HERE, {"trend": 0.8}, {}, ["became 20 % faster from the first quarter"]),
        (HERE, {}, {"a x1": "no memory", "b x1": "no"}, ["2 measurements failed (first: a x1: "]),
        (HERE, {"repeatability": 0.25}, {}, ["times repeat within 25 %"]),
        # A busy machine shows in many figures, and one line has them all.
        (HERE | {"others_at_start": 9.0},
         {"others": 1.1, "busy": 4.0, "floor": 0.09, "trend": 1.3, "repeatability": 0.3}, {"a": "no"},
         ["busy or unsteady while learning (other programs used 1.1 of 2 processors; everything",
          "1 measurement "]),
    ],
)  # fmt: skip
def test_a_run_warns_of_noise_and_failures(
    where: dict[str, Any], noise: dict[str, float], failures: dict[str, str], words: list[str]
) -> None:
    remarks = learn.warnings(where, STEADY | noise, failures)
    assert len(remarks) == len(words)
    assert all(part in remark for remark, part in zip(remarks, words, strict=True))


@pytest.mark.parametrize(
    ("used", "slept_s", "said"),
    [
        ([0.0, 0.1, 0.0], 4.0, ["a calm moment"]),
        ([1.5, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0], 12.0, ["waiting for a calm", "a calm moment"]),
        ([1.5] * 9, 16.0, ["waiting for a calm", "no calm moment"]),
        ([None], 0.0, ["cannot be told here"]),
    ],
)
def test_waiting_for_a_calm_moment(
    monkeypatch: pytest.MonkeyPatch, used: list[Any], slept_s: float, said: list[str]
) -> None:
    """Calm for three looks on end, or over after 16 seconds."""
    watcher, slept, looks = Watcher(), list[float](), iter(used)
    monkeypatch.setattr(environment, "other_programs", lambda: next(looks))
    learn.wait_until_calm(watcher, 16.0, slept.append)
    assert sum(slept) == slept_s
    assert len(watcher.notes) == len(said)
    assert all(known in note for known, note in zip(said, watcher.notes, strict=True))
