"""Which machine it is, from a /proc and /sys of the test and from this machine's; what makes it another."""

from __future__ import annotations

import copy
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from microbench import environment
from microbench.environment import FIELDS, Difference, differences, differences_of_device

MEMINFO = "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:       60 kB\n"
MILAN = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7B13
stepping\t: 0
cache size\t: 512 KB
flags\t\t: fpu sse4_1 sse4_2 fma avx f16c hypervisor avx2 smap

processor\t: 1
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
stepping\t: 8
"""
GRAVITON2 = """processor\t: 0
BogoMIPS\t: 243.75
Features\t: fp asimd evtstrm aes asimdhp asimddp crc32
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
CACHE = "sys/devices/system/cpu/cpu0/cache"


def system(folder: Path, files: dict[str, str]) -> Path:
    """A folder with the files of a system."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def cache(index: int, level: int, kind: str, size: str) -> dict[str, str]:
    fields = {"level": f"{level}\n", "type": f"{kind}\n", "size": f"{size}\n"}
    return {f"{CACHE}/index{index}/{name}": text for name, text in fields.items()}


# ---- The processor


def test_an_x86(tmp_path: Path) -> None:
    """The first processor's."""
    files = {
        "proc/cpuinfo": MILAN,
        **cache(0, 1, "Data", "32K"),
        **cache(1, 1, "Instruction", "64K"),
        **cache(2, 2, "Unified", "512K"),
        **cache(3, 3, "Unified", "32M"),
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    }
    assert environment.facts(system(tmp_path, files)) == {
        "vendor": "AuthenticAMD", "family": 25, "model": 1, "stepping": 0,
        "instruction_sets": ["avx", "avx2", "f16c", "fma", "sse4_1", "sse4_2"],
        "l1d_bytes": 32 * 1024, "l2_bytes": 512 * 1024, "l3_bytes": 32 * 1024 * 1024,
        "governor": "performance",
    }  # fmt: skip


def test_an_arm_has_other_names_for_it(tmp_path: Path) -> None:
    assert environment.facts(system(tmp_path, {"proc/cpuinfo": GRAVITON2})) == {
        "vendor": "0x41", "family": 8, "model": 0xD0C, "stepping": 1,
        "instruction_sets": ["asimd", "asimddp", "asimdhp"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("files", "known"),
    [
        ({}, {}),
        ({"proc/cpuinfo": "processor\t: 0\nmodel\t\t: many\nvendor_id\t: \n"}, {}),
        ({"proc/cpuinfo": "cpu family\t: 6\nmodel name\t: X\n"}, {"family": 6}),
        (cache(0, 1, "Data", "big"), {}),
        (cache(0, 2, "Unified", "1G"), {"l2_bytes": 2**30}),
        ({f"{CACHE}/index0/level": "1\n"}, {}),
    ],
)
def test_what_the_system_does_not_say_is_left_out(
    tmp_path: Path, files: dict[str, str], known: dict[str, Any]
) -> None:
    assert environment.facts(system(tmp_path, files)) == known


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="not Linux")
def test_the_caches_of_this_machine_are_those_of_the_c_library() -> None:
    """getconf asks the processor itself (cpuid); 0 or nothing where that does not say."""
    known = environment.facts()
    for ours, theirs in (("l1d_bytes", "LEVEL1_DCACHE_SIZE"), ("l2_bytes", "LEVEL2_CACHE_SIZE")):
        answer = subprocess.run(["getconf", theirs], capture_output=True, text=True, check=False)
        if re.fullmatch(r"[1-9]\d*\n", answer.stdout) and ours in known:
            assert known[ours] == int(answer.stdout)


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "name"),
    [
        (MILAN, "aarch64", "AMD EPYC 7B13"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", "aarch64", "aarch64"),
        ("", "", "unknown processor"),
    ],
)
def test_the_processors_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str, machine: str, name: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert environment.cpu_model(system(tmp_path, {"proc/cpuinfo": cpuinfo})) == name


def test_a_mac_says_its_name_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 0, "Apple M4 Pro\n")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert environment.cpu_model(tmp_path) == "Apple M4 Pro"


def test_two_processors_of_a_core_are_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cpu(number: int, core: int, package: int = 0) -> str:
        return f"processor\t: {number}\nphysical id\t: {package}\ncore id\t\t: {core}\n\n"

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    text = cpu(0, 0) + cpu(1, 0) + cpu(2, 1) + cpu(3, 0, package=1) + cpu(4, 5)
    assert environment.core_count(system(tmp_path, {"proc/cpuinfo": text})) == 3, "4 is not ours"
    assert environment.core_count(tmp_path / "nothing") is None


# ---- The state of the machine


@pytest.mark.parametrize(
    ("files", "answer"),
    [
        ({}, 60 * 1024),
        ({"max": "50000\n", "current": "20000\n"}, 30_000),
        ({"max": "50000\n", "current": "20000\n", "stat": "anon 5\ninactive_file 7000\n"}, 37_000),
        ({"max": "9999999999\n", "current": "0\n"}, 60 * 1024),
        ({"max": "max\n", "current": "20000\n"}, 60 * 1024),
        ({"max": "5\n", "current": "20\n"}, 0),
    ],
)
def test_a_container_may_have_less(tmp_path: Path, files: dict[str, str], answer: int) -> None:
    group = {f"sys/fs/cgroup/memory.{name}": text for name, text in files.items()}
    place = system(tmp_path, {"proc/meminfo": MEMINFO, **group})
    assert environment.available_bytes(place) == answer


def test_where_proc_does_not_say_what_is_free_it_is_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)
    assert environment.available_bytes(tmp_path) == 4_096_000
    monkeypatch.delattr(os, "sysconf")  # Windows
    assert environment.available_bytes(tmp_path) is None


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
    assert environment.others_s((7, 8), tmp_path) == pytest.approx((busy - 66) / 100)
    assert environment.others_s((7, 9), tmp_path) is None, "9 is not there"
    monkeypatch.delattr(os, "sched_getaffinity")
    assert environment.others_s((7, 8), tmp_path) is None


# ---- The machine as a model file has it


@pytest.mark.parametrize(
    ("facts", "kind"),
    [({}, ""), ({"family": 6}, ""), ({"family": 6, "model": 143}, " (family 6 model 143)")],
)
def test_a_device_is_named_after_processor_kind_and_threads(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, int], kind: str
) -> None:
    monkeypatch.setattr(environment, "cpu_model", lambda: "Xeon(R) @ 2.20GHz")
    monkeypatch.setattr(environment, "processor_facts", lambda: facts)
    monkeypatch.setattr(environment, "cpu_count", lambda: 2)
    for where, threads in (({}, "2 threads"), ({"threads": 1}, "1 thread")):
        assert environment.label_of("cpu", where) == f"Xeon(R) @ 2.20GHz{kind}, {threads}"
    assert environment.label_of("gpu", {}) == "gpu"
    assert environment.label_of("gpu", {"device_name": "NVIDIA T4"}) == "NVIDIA T4"
    assert environment.slug("cpu Xeon(R) @ 2.20GHz, 1 thread") == "cpu-xeon-r-2-20ghz-1-thread"


def test_the_description_holds_what_a_model_file_needs() -> None:
    where = environment.describe("cpu")
    assert json.loads(json.dumps(where)) == where, "plain JSON"
    assert where["threads"] == where["processor"]["threads"] == len(os.sched_getaffinity(0))
    assert where["processor"]["name"] == where["cpu"] == environment.cpu_model()
    assert {
        "available_bytes",
        "load_at_start",
        "operating_system",
        "python",
        "date",
    } <= where.keys()


# ---- What makes times comparable

PROCESSOR = {
    "name": "AMD EPYC", "vendor": "AuthenticAMD", "family": 25, "model": 17, "stepping": 1,
    "instruction_sets": ["avx", "avx2", "fma"], "l1d_bytes": 2**15, "l2_bytes": 2**20, "l3_bytes": 2**25,
    "governor": "performance", "threads": 2,
}  # fmt: skip
LEARNED = {
    "device": "cpu", "cpu": "AMD EPYC", "processor": PROCESSOR, "available_bytes": 2**33,
    "load_at_start": 0.1, "operating_system": "Linux-6.1", "python": "3.11.7", "date": "2026-01-01",
    **{field: f"{field} then" for field in FIELDS},
}  # fmt: skip
KIND = "AuthenticAMD family 25 model 17 stepping 1"
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


def test_the_same_is_the_same_whatever_its_load_memory_date_or_python() -> None:
    later = now(
        available_bytes=1, load_at_start=2.0, date="2027", python="3.12.1", operating_system="else"
    )
    assert differences(LABEL, LEARNED, later) == ()
    assert differences(LABEL, LEARNED, chip(memory_bytes=1)) == ()
    assert differences(LABEL, LEARNED, chip(instruction_sets=["avx", "avx2", "fma"][::-1])) == ()


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_the_framework_counts(field: str) -> None:
    (found,) = differences(LABEL, LEARNED, now(**{field: {"a": 1}}))
    assert found == Difference(field, f"{field} then", {"a": 1})
    assert not found.of_device
    name = field.replace("_", " ")
    assert str(found) == f"learned with {name} {field} then, here it is {{'a': 1}}"
    without = now()
    del without[field]
    assert differences(LABEL, LEARNED, without) == (), "a backend that does not say"
    assert differences(LABEL, without, LEARNED) == ()


THEN = f"AMD EPYC ({KIND})"


@pytest.mark.parametrize(
    ("here", "field", "then", "now_"),
    [
        (chip(vendor="Intel"), "processor", THEN, THEN.replace("AuthenticAMD", "Intel")),
        (chip(family=26), "processor", THEN, THEN.replace("family 25", "family 26")),
        (chip(model=1), "processor", THEN, THEN.replace("model 17", "model 1")),
        (chip(stepping=2), "processor", THEN, THEN.replace("stepping 1", "stepping 2")),
        (now(cpu="AMD EPYC 7B13"), "processor", THEN, f"AMD EPYC 7B13 ({KIND})"),
        *((chip(**{f: 1}), f, PROCESSOR[f], 1) for f in ("l1d_bytes", "l2_bytes", "l3_bytes")),
        (chip(instruction_sets=["avx", "avx2", "avx512f"]), "instruction_sets", "fma", "avx512f"),
        (chip(instruction_sets=["avx", "avx2", "fma", "sve"]), "instruction_sets", "", "sve"),
        (chip(threads=8), "threads_given", 2, 8),
        (now(threads_asked=1), "threads_given", 2, 1),
    ],
)
def test_what_makes_another_processor(
    here: dict[str, Any], field: str, then: Any, now_: Any
) -> None:
    (found,) = differences_of_device(LABEL, LEARNED, here)
    assert (found, found.of_device) == (Difference(field, then, now_), True)
    assert str(found).startswith("this is another processor: learned ")
    assert str(found).endswith(str(now_ or "none"))


@pytest.mark.parametrize("field", ["vendor", "instruction_sets", "l3_bytes", "governor"])
def test_what_one_side_does_not_say_is_no_difference(field: str) -> None:
    less = {k: v for k, v in PROCESSOR.items() if k != field}
    assert differences(LABEL, LEARNED, now(processor=less)) == ()
    assert differences(LABEL, now(processor=less), LEARNED) == ()


@pytest.mark.usefixtures("machine")
def test_a_model_of_a_table_has_a_label_alone() -> None:
    assert differences_of_device(LABEL, {}, LEARNED | {"threads": 2}) == ()
    (found,) = differences_of_device("a phone", {}, LEARNED | {"threads": 2})
    assert found == Difference("device", "a phone", LABEL)
    assert str(found) == f"this is another device: learned on a phone, here {LABEL}"


def test_a_gpu_is_its_name_whatever_the_processor() -> None:
    learned = {"device": "gpu", "cpu": "Xeon", "threads": 64, "device_name": "NVIDIA T4"}
    here = now(device="gpu", device_name="NVIDIA T4")
    assert differences_of_device("NVIDIA T4", learned, here) == ()
    here["device_name"] = "NVIDIA L4"
    expected = (Difference("device", "NVIDIA T4", "NVIDIA L4"),)
    assert differences_of_device("NVIDIA T4", learned, here) == expected


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("asked", "threads"), [(None, 2), (1, 1), (2, 2), (8, 2)])
def test_this_machine_with_the_threads_that_the_model_asked_for(
    asked: int | None, threads: int
) -> None:
    here = environment.here({"threads_asked": asked}, "cpu")
    assert here["threads"] == threads
    assert here["processor"] == PROCESSOR
    assert environment.here({"threads_asked": 1}, "gpu")["threads"] == 2
