"""What machine it is, read from a /proc and /sys of our own."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

import pytest

from microbench import environment

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model\t\t: 1
model name\t: AMD EPYC 7B13 64-Core Processor
processor\t: 1
model name\t: another
"""
MEMINFO = "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:       60 kB\n"


def system(folder: Path, **files: str) -> Path:
    places = {
        "cpuinfo": "proc/cpuinfo",
        "meminfo": "proc/meminfo",
        **{n: f"sys/fs/cgroup/memory.{n}" for n in ("max", "current", "stat")},
    }
    for name, text in files.items():
        path = folder / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_the_processors_name(tmp_path: Path) -> None:
    assert (
        environment.cpu_model(system(tmp_path, cpuinfo=CPUINFO))
        == "AMD EPYC 7B13 64-Core Processor"
    )


def test_a_processor_without_a_name_is_its_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    for text in ("processor\t: 0\nBogoMIPS\t: 50.00\n", "model name\t: \n"):
        assert environment.cpu_model(system(tmp_path, cpuinfo=text)) == "aarch64"
    assert environment.cpu_model(tmp_path / "nothing") == "aarch64"
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert environment.cpu_model(tmp_path / "nothing") == "unknown processor"


def test_free_memory(tmp_path: Path) -> None:
    assert environment.available_bytes(system(tmp_path, meminfo=MEMINFO)) == 60 * 1024


def test_where_proc_does_not_say_it_is_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)
    assert environment.available_bytes(tmp_path) == 4_096_000  # macOS
    assert environment.available_bytes(system(tmp_path, meminfo="MemTotal: 1 kB\n")) == 4_096_000
    monkeypatch.delattr(os, "sysconf")  # Windows
    assert environment.available_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "answer"),
    [
        ({"max": "50000\n", "current": "20000\n"}, 30_000),
        ({"max": "50000\n", "current": "20000\n", "stat": "anon 5\ninactive_file 7000\n"}, 37_000),
        ({"max": "9999999999\n", "current": "0\n"}, 60 * 1024),
        ({"max": "max\n", "current": "20000\n"}, 60 * 1024),
        ({"max": "50000\n"}, 60 * 1024),
        ({"max": "5\n", "current": "20\n"}, 0),
    ],
)
def test_a_container_may_have_less(tmp_path: Path, files: dict[str, str], answer: int) -> None:
    assert environment.available_bytes(system(tmp_path, meminfo=MEMINFO, **files)) == answer


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({}, ""),
        ({"family": 6, "stepping": 8}, ""),
        ({"family": 6, "model": 143}, " (family 6 model 143)"),
    ],
)
def test_a_device_is_named_after_processor_kind_and_threads(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, int], kind: str
) -> None:
    monkeypatch.setattr(environment, "cpu_model", lambda: "Intel(R) Xeon(R) @ 2.20GHz")
    monkeypatch.setattr(environment, "processor_facts", lambda: facts)
    for count, label in (
        (2, f"Intel(R) Xeon(R) @ 2.20GHz{kind}, 2 threads"),
        (1, f"Intel(R) Xeon(R) @ 2.20GHz{kind}, 1 thread"),
    ):
        monkeypatch.setattr(environment, "cpu_count", lambda n=count: n)
        assert environment.device_label("cpu") == label
        assert environment.device_label("cpu", threads=9) == label.partition(",")[0] + ", 9 threads"
    assert environment.device_label("gpu") == "gpu"
    assert environment.device_label("gpu", "NVIDIA T4") == "NVIDIA T4"
    if not kind:
        assert environment.slug("cpu " + label) == "cpu-intel-r-xeon-r-2-20ghz-1-thread"


def test_load_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2345, 0, 0), raising=False)
    assert environment.load() == 1.23
    monkeypatch.delattr(os, "getloadavg")
    assert environment.load() is None


def test_the_description_holds_what_a_model_file_needs() -> None:
    found = environment.describe("cpu")
    assert found["device"] == "cpu"
    assert found["threads"] == len(os.sched_getaffinity(0))
    assert found["processor"]["threads"] == found["threads"]
    assert found["processor"]["name"] == found["cpu"] == environment.cpu_model()
    assert json.loads(json.dumps(found)) == found, "plain JSON"
    assert {"cpu", "available_bytes", "load_at_start", "operating_system", "python", "date"} <= set(
        found
    )


# ---- what other programs use ---------------------------------------------------------------------


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
    for pid, (user, kernel) in {7: (40, 5), 8: (20, 1)}.items():
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        line = f"{pid} (a (name) x) S 1 2 3 4 5 6 7 8 9 10 {user} {kernel} 0 0\n"
        (tmp_path / f"proc/{pid}/stat").write_text(line)
    (tmp_path / "proc/stat").write_text(STAT)
    busy = 100 + 10 + 50 + 3 + 2 + 200 + 20 + 60 + 1 + 4
    assert environment.others_s((7, 8), tmp_path) == pytest.approx((busy - 66) / 100)
    assert environment.others_s((7, 9), tmp_path) is None, "9 is not there"


def test_where_a_system_does_not_say_what_others_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert environment.others_s((os.getpid(),)) is None
