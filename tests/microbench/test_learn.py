"""From visits to points and remarks, with a fake worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import InputError, MeasuringError
from lolat.graph.counts import count
from microbench import environment, learn
from microbench.blocks import NETWORKS as known_networks
from microbench.blocks import Predefined
from microbench.jobs import Settings, job_key
from microbench.runner import Runner
from microbench.state import Level, Levels
from tests.microbench.fakes import START_S, FakeDevice, Watcher, tiny

BLOCKS = (Predefined("a", tiny(4), (1, 8)), Predefined("b", tiny(5), (2,)))
NETWORKS = (Predefined("net", tiny(6), (1,), True),)
ALL = (*BLOCKS, *NETWORKS)
SETTINGS = Settings(rounds=4)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    found = FakeDevice()
    monkeypatch.setattr(learn, "Runner", lambda b, d, p: Runner(b, d, p, found.start, found.clock))
    monkeypatch.setattr(environment, "load", lambda: 0.0)
    return found


def measure(path: Path, **options: Any) -> Any:
    result = learn.measure_blocks(
        "fake",
        options.pop("device", "cpu"),
        path,
        options.pop("now", 1e9),
        settings=options.pop("settings", SETTINGS),
        blocks=options.pop("blocks", ALL),
        **options,
    )
    result[-1].close()
    return result


def test_points_hold_counts_and_raw_times(device: FakeDevice, tmp_path: Path) -> None:
    device.ms = {"a x8": 3.0, "net x1": 40.0}
    points, where, noise, warnings, journal = measure(tmp_path / "j")
    assert [(p.name, p.batch_size) for p in points] == [("a", 1), ("a", 8), ("b", 2), ("net", 1)]
    point = points[1]
    assert point.counts["flops"] == 8 * 8 * 8 * 9 * 3 * 4
    assert point.counts == count(BLOCKS[0].make()).total(8)._asdict()
    assert point.samples_ms == (3.0,) * 4
    assert point.reference_ms == (40.0,) * 4, "of the network that ran before"
    assert (point.latency_ms, point.spread) == (3.0, 0.0)
    assert "conv" in point.kinds
    assert where["framework"] == "fake"
    assert where["device"] == "cpu"
    assert noise == {"floor": 0.0, "quiet": 1.0, "busy": 1.0, "others": 0.0}
    assert journal.path.exists(), "kept until the model is written"
    assert warnings == []


def test_whole_networks_are_points_of_their_own_kind(device: FakeDevice, tmp_path: Path) -> None:
    points, *_ = measure(tmp_path / "j")
    assert {p.name: p.whole for p in points} == {"a": False, "b": False, "net": True}
    net = points[-1]
    assert net.samples_ms == (2.0,) * 12, "three in a loop, four rounds"
    assert net.reference_ms == ()
    assert net.to_dict()["whole"] is True
    assert "whole" not in points[0].to_dict()


def test_the_state_of_the_machine_is_no_part_of_a_latency(
    device: FakeDevice, tmp_path: Path
) -> None:
    """Slow for the last third of the run, in which one of the blocks is measured for the first time."""
    blocks = (*(Predefined(f"b{i}", tiny(4 + i), (1,)) for i in range(12)), *NETWORKS)
    device.ms = {f"b{i} x1": 1.0 + i for i in range(12)} | {"net x1": 40.0}
    # Twelve blocks and a network of three calls: 15 moments, a tenth of a second each, in a round.
    device.slowness = lambda at: 1.0 if at - START_S < 0.1 * 15 * 6 else 2.5
    points, _, noise, warnings, _ = measure(
        tmp_path / "j", blocks=blocks, settings=Settings(rounds=9)
    )
    assert {p.name: p.latency_ms for p in points} == pytest.approx(
        {k.removesuffix(" x1"): ms for k, ms in device.ms.items()}, rel=0.02
    )
    assert noise["busy"] / noise["quiet"] == pytest.approx(2.5, rel=0.02)
    assert any("2.5 times as long in its busiest tenth" in w for w in warnings)


def test_blocks_alone_are_measured_after_the_networks_of_this_version(
    device: FakeDevice, tmp_path: Path
) -> None:
    points, *_ = measure(tmp_path / "j", blocks=BLOCKS)
    assert [p.name for p in points] == ["a", "a", "b"], "these networks are no points"
    before = {r["before"] for r in device.requests if r["do"] == "sample" and r["key"] == "a x1"}
    assert before <= {job_key(name, 1) for name in learn.REFERENCES}
    assert len(before) > 1


def test_the_references_are_networks_of_this_version() -> None:
    found = learn.references()
    assert sorted(b.name for b in found) == sorted(learn.REFERENCES)
    assert all(b.whole and b.batch_sizes == (1,) for b in found)
    assert {b.name for b in known_networks} > {b.name for b in found}


def test_blocks_and_networks_are_looked_up_when_asked(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn, "BLOCKS", BLOCKS[1:])
    monkeypatch.setattr(learn, "NETWORKS", NETWORKS)
    points, *_ = learn.measure_blocks("fake", "cpu", tmp_path / "j", 1e9, settings=SETTINGS)
    assert [p.name for p in points] == ["b", "net"]


def test_a_run_of_its_own_accord_takes_the_usual_settings(
    device: FakeDevice, tmp_path: Path
) -> None:
    points, *_, journal = learn.measure_blocks("fake", "cpu", tmp_path / "j", 1e9, blocks=ALL)
    journal.close()
    assert {len(p.samples_ms) for p in points if not p.whole} == {learn.USUAL.most_rounds}
    assert json.loads(journal.path.read_text().splitlines()[0])["key"]["settings"]["rounds"] == 8


def test_what_failed_is_said(device: FakeDevice, tmp_path: Path) -> None:
    device.refuses["prepare", "a x8"] = 1
    points, _, _, warnings, _ = measure(tmp_path / "j")
    assert [(p.name, p.batch_size) for p in points] == [("a", 1), ("b", 2), ("net", 1)]
    assert "1 point could not be measured (first: a x8: ResourceExhausted: no)" in warnings[-1]


def test_other_networks_are_another_run(device: FakeDevice, tmp_path: Path) -> None:
    measure(tmp_path / "j")
    notes = Watcher()
    measure(
        tmp_path / "j", progress=notes, blocks=(*BLOCKS, Predefined("net", tiny(7), (1,), True))
    )
    assert "measured with other blocks, reference; it is kept as" in notes.notes[0]
    assert (tmp_path / "j.old").exists()


def test_another_number_of_threads_is_another_run(device: FakeDevice, tmp_path: Path) -> None:
    plain = dict(device.environment)
    _, where, *_ = measure(tmp_path / "j")
    assert where["threads"] == environment.cpu_count()
    device.environment = plain | {"threads": 1, "threads_asked": 1}
    notes = Watcher()
    _, where, *_ = measure(tmp_path / "j", progress=notes)
    assert (where["threads"], where["threads_asked"]) == (1, 1)
    assert "threads_asked" in notes.notes[0]
    assert (tmp_path / "j.old").exists()


def test_another_processor_of_the_same_name_is_another_run(
    device: FakeDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: dict[str, Any] = {"stepping": 1, "memory_bytes": 1, "threads": 2}
    monkeypatch.setattr(environment, "processor_facts", lambda: dict(facts))
    measure(tmp_path / "j")
    notes = Watcher()
    facts["memory_bytes"] = 2
    measure(tmp_path / "j", progress=notes, now=1e9 + 60)
    assert notes.notes[0].startswith("going on from")
    facts["stepping"] = 2
    measure(tmp_path / "j", progress=notes, now=1e9 + 60)
    assert "measured with other processor; it is kept" in notes.notes[1]


def test_the_load_is_that_of_the_machine_not_of_the_threads_asked_for() -> None:
    noise = {"calm_share": 1.0, "floor": 0.0, "slow_factor": 1.0}
    where = {"load_at_start": 1.0, "threads": 1, "processor": {"threads": 8}}
    assert learn.warnings(where, noise, {}) == []
    assert "(load 1.0 on 1 threads)" in learn.warnings(where | {"processor": {}}, noise, {})[0]


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


def test_noise_by_hand() -> None:
    # of 11 times eight are calm; their middle is between the fourth and the fifth
    reference = [10, 10, 10, 10, 11, 11, 12, 12, 20, 30, 40]
    noise = learn.noise_beside(reference, 13, [0.01, 0.05, None, 0.02], 3)
    assert noise == {
        "floor": 0.02, "reference_ms": 10.5, "calm_ms": 13, "calm_share": 0.7273,
        "slow_factor": round(30 / 10.5, 4), "points_without_calm": 3,
    }  # fmt: skip
    assert learn.noise_beside(reference, 13, [None], 1)["floor"] == 0.0


def test_points_that_saw_no_calm_moment_are_said() -> None:
    noise = {"calm_share": 1.0, "floor": 0.0, "slow_factor": 1.0}
    said = learn.warnings({"threads": 2}, noise, {}, ["b x2"])
    assert said == [
        "1 point saw no quiet moment (first: b x2): its time is the fastest of disturbed ones; run "
        "again when the machine is quieter"
    ]
    said = learn.warnings({"threads": 2}, noise, {}, ["a", "b"])
    assert said[-1].startswith("2 points saw no quiet moment (first: a): their times are the")


def test_the_gpus_name_tells_runs_apart(device: FakeDevice, tmp_path: Path) -> None:
    device.environment = {"framework": "fake", "device_name": "NVIDIA T4"}
    _, where, *_, journal = measure(tmp_path / "j", device="gpu")
    assert where["device_name"] == "NVIDIA T4"
    header = json.loads(journal.path.read_text().splitlines()[0])
    assert header["key"]["device"] == "NVIDIA T4"
    notes = Watcher()
    device.environment = {"framework": "fake", "device_name": "NVIDIA L4"}
    measure(tmp_path / "j", device="gpu", progress=notes)
    assert "measured with other device, device_name; it is kept as" in notes.notes[0]


@pytest.mark.parametrize(
    ("load", "calm_share", "floor", "said"),
    [
        (1.3, 1.0, 0.0, ["busy before the run (load 1.3 on 2 threads)"]),
        (1.2, 0.5, 0.08, []),
        (None, 0.49, 0.0, ["quiet for 49 % of the run"]),
        (0.0, 1.0, 0.09, ["repeated measurements were 9 % apart"]),
        (9.0, 0.1, 0.5, ["busy before", "unsteady machine"]),
    ],
)
def test_a_noisy_run_says_so_and_what_to_do(
    load: float | None, calm_share: float, floor: float, said: list[str]
) -> None:
    noise = {"calm_share": calm_share, "floor": floor, "slow_factor": 2.0}
    found = learn.warnings({"load_at_start": load, "threads": 2}, noise, {})
    assert len(found) == len(said)
    for remark, part in zip(found, said, strict=True):
        assert part in remark
        assert "run again" in remark
        assert "--restart" not in remark, "the journal of a finished run is gone"


def test_noise_of_levels_by_hand() -> None:
    spreads = (0.01, 0.05, None, 0.02)
    found = Levels({str(i): Level(1.0, s) for i, s in enumerate(spreads)}, 0.8, 1.23456, 0.41111)
    assert learn.noise_of(found) == {"floor": 0.02, "quiet": 0.8, "busy": 1.2346, "others": 0.411}
    unknown = Levels({"a": Level(1.0, None)}, 1.0, 1.0)
    nothing = {"floor": 0.0, "quiet": 1.0, "busy": 1.0, "others": 0.0}
    assert learn.noise_of(unknown) == nothing


@pytest.mark.parametrize(
    ("load", "quiet", "busy", "floor", "said"),
    [
        (1.3, 1.0, 1.0, 0.0, ["busy before the run (load 1.3 on 2 threads)"]),
        (1.2, 0.8, 1.2, 0.08, []),
        (
            None,
            0.8,
            1.28,
            0.01,
            ["all took 1.6 times as long in its busiest tenth as in its calmest"],
        ),
        (0.0, 1.0, 1.0, 0.09, ["repeated measurements were 9 % apart"]),
        (9.0, 1.0, 4.0, 0.5, ["busy before", "unsteady machine"]),
    ],
)
def test_what_is_remarked_on(
    load: float | None, quiet: float, busy: float, floor: float, said: list[str]
) -> None:
    noise = {"quiet": quiet, "busy": busy, "floor": floor}
    found = learn.warnings({"load_at_start": load, "threads": 2}, noise, {})
    assert len(found) == len(said)
    for remark, part in zip(found, said, strict=True):
        assert part in remark
        assert "run again" in remark
    failures = {"a x1": "no memory", "b x1": "no"}
    assert learn.warnings({"threads": 2}, {"quiet": 1.0, "busy": 1.0, "floor": 0.0}, failures) == [
        "2 points could not be measured (first: a x1: no memory); the model is fitted on the others"
    ]


def test_the_environment_can_be_refused_before_anything_is_measured(
    device: FakeDevice, tmp_path: Path
) -> None:
    def refuse(where: Any) -> None:
        assert where["framework"] == "fake"
        assert where["device"] == "cpu"
        raise InputError("not here")

    with pytest.raises(InputError, match="not here"):
        measure(tmp_path / "j", check=refuse)
    assert device.keys("prepare") == []
    assert not (tmp_path / "j").exists()
    assert device.workers[-1].closed


@pytest.mark.parametrize(("kind", "free", "skipped"), [
    ("gpu", 2**20, True), ("gpu", 2**40, False), ("gpu", None, False), ("cpu", 2**20, False),
])  # fmt: skip
def test_a_gpus_own_memory_says_what_fits(
    device: FakeDevice, tmp_path: Path, kind: str, free: int | None, skipped: bool
) -> None:
    """2^20 bytes are less than any block needs; the host's memory is enough for these."""
    device.free_bytes = free
    notes = Watcher()
    if skipped:
        with pytest.raises(
            MeasuringError, match=r"a x1: skipped: needs about 0\.0 GiB of memory, 0\.0"
        ):
            measure(tmp_path / "j", device=kind, progress=notes)
    else:
        assert len(measure(tmp_path / "j", device=kind, progress=notes)[0]) == 4
    assert ("memory" in {verb for _, verb, _ in device.asked}) == (kind == "gpu")


def test_a_worker_that_cannot_say_what_is_free(device: FakeDevice, tmp_path: Path) -> None:
    device.refuses["memory", ""] = 1
    assert len(measure(tmp_path / "j", device="gpu")[0]) == 4
    device.dies["memory", ""] = 1
    with pytest.raises(
        MeasuringError, match="does not say what is free: the measuring process was"
    ):
        measure(tmp_path / "k", device="gpu")


def test_options_of_the_backend_tell_runs_apart(device: FakeDevice, tmp_path: Path) -> None:
    device.environment = {"framework": "torch", "half": False}
    measure(tmp_path / "j")
    notes = Watcher()
    device.environment = {"framework": "torch", "half": True}
    measure(tmp_path / "j", progress=notes)
    assert "measured with other half; it is kept as" in notes.notes[0]
