"""Which machine it is, from a /proc and /sys of the test; what makes it another."""

from __future__ import annotations

import copy
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from lolat.io.process import scheduled_count
from lolat.microbench import environment
from lolat.microbench.environment import FIELDS, Difference, differences, differences_of_device

MILAN = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7B13
stepping\t: 0

processor\t: 1
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
stepping\t: 8
"""
GRAVITON2 = """processor\t: 0
BogoMIPS\t: 243.75
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""


def system(folder: Path, files: dict[str, str]) -> Path:
    """A folder with the files of a system."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("cpuinfo", "facts"),
    [
        (MILAN, {"name": "AMD EPYC 7B13", "vendor": "AuthenticAMD", "family": 25, "model": 1,
                 "stepping": 0}),
        (GRAVITON2, {"name": "aarch64", "vendor": "0x41", "family": 8, "model": 0xD0C, "stepping": 1}),
        ("cpu family\t: 6\nmodel\t\t: many\nvendor_id\t: \n", {"name": "aarch64", "family": 6}),
    ],
)  # fmt: skip
def test_the_facts_of_the_first_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, facts: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    place = system(tmp_path, {"proc/cpuinfo": cpuinfo})
    assert environment.processor_facts(place) == facts | {"threads": 2}


# ---- The state of the machine


@pytest.mark.parametrize(
    ("files", "answer"),
    [
        ({}, 60 * 1024),
        ({"max": "50000\n", "current": "20000\n"}, 30_000),
        ({"max": "50000\n", "current": "20000\n", "stat": "anon 5\ninactive_file 7000\n"}, 37_000),
        ({"max": "max\n", "current": "20000\n"}, 60 * 1024),
    ],
)
def test_a_container_may_have_less(tmp_path: Path, files: dict[str, str], answer: int) -> None:
    group = {f"sys/fs/cgroup/memory.{name}": text for name, text in files.items()}
    meminfo = "MemFree:  10 kB\nMemAvailable:       60 kB\n"
    place = system(tmp_path, {"proc/meminfo": meminfo, **group})
    assert environment.available_bytes(place) == answer
    assert environment.available_bytes(tmp_path / "nothing") is None


# ---- The machine as a profile has it


def test_two_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    one = "processor : {}\nphysical id : 0\ncore id : {}\n"
    info = "\n".join(one.format(i, i // 2) for i in range(4))
    assert environment.core_count(system(tmp_path, {"proc/cpuinfo": info})) == 2
    assert environment.core_count(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, 8),
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),  # more than it is scheduled on
        ({"a/cpu.max": "250000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),  # of a group above
        ({"a/b/cpu.max": "100000 50000\n", "other/cpu.max": "1000 100000\n"}, 2),
    ],
)
def test_a_container_may_have_the_time_of_fewer_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], processors: int
) -> None:
    """The kernel's cgroup-v2.rst: microseconds of every so many, for a group and those below."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    system(tmp_path, {"proc/self/cgroup": "4:memory:/else\n0::/a/b\n", **groups})
    assert environment.cpu_count(tmp_path) == processors
    assert scheduled_count() == 8


STAT = """cpu  9 9 9 9 9 9 9 9 9 9
cpu0 100 10 50 7000 30 3 2 40 5 5
cpu1 200 20 60 8000 30 1 4 40 5 5
cpu2 900 900 900 0 0 0 0 0 0 0
intr 5
"""


def test_what_others_use_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User, nice, system and both interrupts of the own processors, less the own processes' times."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    own = {7: (40, 5), 8: (20, 1)}
    lines = {
        pid: f"{pid} (a (name) x) S 1 2 3 4 5 6 7 8 9 10 {u} {k} 0 0\n"
        for pid, (u, k) in own.items()
    }
    files = {f"proc/{pid}/stat": line for pid, line in lines.items()}
    system(tmp_path, {**files, "proc/stat": STAT})
    busy = 100 + 10 + 50 + 3 + 2 + 200 + 20 + 60 + 1 + 4
    assert environment.other_programs_s((7, 8), tmp_path) == pytest.approx((busy - 66) / 100)
    assert environment.other_programs_s((7, 9), tmp_path) is None, "9 is not there"
    monkeypatch.delattr(os, "sched_getaffinity")
    assert environment.other_programs_s((7, 8), tmp_path) is None


def test_the_name_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_model", lambda: "Xeon")
    monkeypatch.setattr(environment, "processor_facts", lambda: {"family": 6, "model": 143})
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    assert environment.label_of("cpu", {}) == "Xeon (family 6 model 143), 2 threads"
    assert environment.label_of("cpu", {"threads": 1}) == "Xeon (family 6 model 143), 1 thread"
    assert environment.label_of("gpu", {}) == "gpu"
    assert environment.label_of("gpu", {"device_name": "NVIDIA T4"}) == "NVIDIA T4"


def test_the_description_holds_what_a_model_file_needs() -> None:
    where = environment.describe("cpu")
    assert json.loads(json.dumps(where)) == where, "plain JSON"
    assert where["threads"] == where["processor"]["threads"] == len(os.sched_getaffinity(0))
    assert where["processor"]["name"] == where["cpu"] == environment.cpu_model()
    assert {"available_bytes", "operating_system", "python", "date"} <= where.keys()


# ---- What makes times comparable

PROCESSOR = {
    "name": "AMD EPYC", "vendor": "AuthenticAMD", "family": 25, "model": 17, "stepping": 1, "threads": 2,
}  # fmt: skip
LEARNED = {
    "device": "cpu", "cpu": "AMD EPYC", "processor": PROCESSOR, "available_bytes": 2**33,
    "operating_system": "Linux-6.1", "python": "3.11.7", "date": "2026-01-01",
    **{field: f"{field} then" for field in FIELDS},
}  # fmt: skip
LABEL = "AMD EPYC (family 25 model 17), 2 threads"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is the one of LEARNED."""
    monkeypatch.setattr(environment, "cpu_model", lambda: "AMD EPYC")
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment, "processor_facts", lambda: copy.deepcopy(PROCESSOR))


def now(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(LEARNED), **changes}


def chip(**changes: Any) -> dict[str, Any]:
    return now(processor=PROCESSOR | changes)


def test_the_same_is_the_same_whatever_its_memory_date_or_python() -> None:
    later = now(available_bytes=1, date="2027", python="3.12.1", operating_system="else")
    assert differences(LABEL, LEARNED, later) == ()
    assert differences(LABEL, LEARNED, chip(memory_bytes=1)) == ()


def test_every_field_of_the_framework_counts() -> None:
    for field in FIELDS:
        (found,) = differences(LABEL, LEARNED, now(**{field: {"a": 1}}))
        assert found == Difference(field, f"{field} then", {"a": 1})
        assert not found.of_device
        without = now()
        del without[field]
        assert differences(LABEL, LEARNED, without) == (), "a backend that does not say"
        assert differences(LABEL, without, LEARNED) == ()


THEN = "AMD EPYC (vendor AuthenticAMD family 25 model 17 stepping 1)"


@pytest.mark.parametrize(
    ("here", "field", "then", "now_"),
    [
        (chip(vendor="Intel"), "processor", THEN, THEN.replace("AuthenticAMD", "Intel")),
        (chip(stepping=2), "processor", THEN, THEN.replace("stepping 1", "stepping 2")),
        (now(cpu="EPYC 7B13"), "processor", THEN, THEN.replace("AMD EPYC", "EPYC 7B13")),
        (chip(threads=8), "threads_given", 2, 8),
        (now(threads_asked=1), "threads_given", 2, 1),
    ],
)
def test_another_processor(here: dict[str, Any], field: str, then: Any, now_: Any) -> None:
    (found,) = differences_of_device(LABEL, LEARNED, here)
    assert (found, found.of_device) == (Difference(field, then, now_), True)
    assert str(found).startswith("this is another processor: learned ")


@pytest.mark.usefixtures("machine")
def test_a_model_of_a_table_has_a_label_alone() -> None:
    assert differences_of_device(LABEL, {}, LEARNED | {"threads": 2}) == ()
    (found,) = differences_of_device("a phone", {}, LEARNED | {"threads": 2})
    assert found == Difference("device", "a phone", LABEL)


def test_a_gpu_is_its_name_whatever_the_processor() -> None:
    learned = {"device": "gpu", "cpu": "Xeon", "threads": 64, "device_name": "NVIDIA T4"}
    here = now(device="gpu", device_name="NVIDIA T4")
    assert differences_of_device("NVIDIA T4", learned, here) == ()
    here["device_name"] = "NVIDIA L4"
    expected = (Difference("device", "NVIDIA T4", "NVIDIA L4"),)
    assert differences_of_device("NVIDIA T4", learned, here) == expected


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("asked", "threads"), [(None, 2), (1, 1), (8, 2)])
def test_this_machine_with_the_threads_that_were_asked_for(asked: int | None, threads: int) -> None:
    assert environment.here({"threads_asked": asked}, "cpu")["threads"] == threads
    assert environment.here({"threads_asked": 1}, "gpu")["threads"] == 2
