"""What machine it is, read from a /proc and /sys of our own, and from this machine's by other ways."""

from __future__ import annotations

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
SAPPHIRE = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz
stepping\t: 8
flags\t\t: sse4_1 avx avx2 fma avx512f avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8
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
XEN = {"sys/hypervisor/type": "xen\n"}
CACHE = "sys/devices/system/cpu/cpu0/cache"


def system(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def cache(index: int, level: int, kind: str, size: str, shared: str) -> dict[str, str]:
    said = {"level": f"{level}\n", "type": f"{kind}\n", "size": f"{size}\n",
            "shared_cpu_list": f"{shared}\n"}  # fmt: skip
    return {f"{CACHE}/index{index}/{name}": text for name, text in said.items()}


def test_a_virtual_machine_of_x86(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": MILAN,
        "proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 1 kB\n",
        **cache(0, 1, "Data", "32K", "0,8"),
        **cache(1, 1, "Instruction", "64K", "0"),
        **cache(2, 2, "Unified", "512K", "0,8"),
        **cache(3, 3, "Unified", "32M", "0-3,8-11"),
        "sys/class/dmi/id/sys_vendor": "Google\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
    }
    found = environment.facts(system(tmp_path, files))
    assert found == {
        "vendor": "AuthenticAMD", "family": 25, "model": 1, "stepping": 0,
        "instruction_sets": ["avx", "avx2", "f16c", "fma", "sse4_1", "sse4_2"],
        "l1d_bytes": 32 * 1024, "l1d_shared_by": 2,
        "l2_bytes": 512 * 1024, "l2_shared_by": 2,
        "l3_bytes": 32 * 1024 * 1024, "l3_shared_by": 8,
        "memory_bytes": 16_384_000 * 1024,
        "hypervisor": True, "system_vendor": "Google", "governor": "performance",
    }  # fmt: skip
    assert environment.kind(found) == {
        k: found[k]
        for k in ("vendor", "family", "model", "stepping", "instruction_sets", "l1d_bytes",
                  "l2_bytes", "l3_bytes")
    }  # fmt: skip


def test_a_machine_without_a_hypervisor(tmp_path: Path) -> None:
    found = environment.facts(system(tmp_path, {"proc/cpuinfo": SAPPHIRE}))
    xen = environment.facts(system(tmp_path / "xen", {"proc/cpuinfo": SAPPHIRE, **XEN}))
    assert xen == found | {"hypervisor": True, "hypervisor_type": "xen"}
    assert found == {
        "vendor": "GenuineIntel", "family": 6, "model": 143, "stepping": 8, "hypervisor": False,
        "instruction_sets": ["amx_bf16", "amx_int8", "amx_tile", "avx", "avx2", "avx512_bf16",
                             "avx512_vnni", "avx512f", "fma", "sse4_1"],
    }  # fmt: skip
    name = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"
    assert environment.processor_label(name, found) == f"{name} (family 6 model 143)"


def test_an_arm_has_other_names_for_it(tmp_path: Path) -> None:
    found = environment.facts(system(tmp_path, {"proc/cpuinfo": GRAVITON2}))
    assert found == {
        "vendor": "0x41", "family": 8, "model": 0xD0C, "stepping": 0x31,
        "instruction_sets": ["asimd", "asimddp", "asimdhp"],
    }  # fmt: skip
    assert environment.processor_label("aarch64", found) == "aarch64 (family 8 model 3340)"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, {}),
        ({"proc/cpuinfo": "processor\t: 0\nmodel\t\t: many\nstepping\t: unknown\nvendor_id\t: \n"}, {}),
        ({"proc/cpuinfo": "flags\t: fpu\n"}, {"instruction_sets": [], "hypervisor": False}),
        ({"proc/cpuinfo": "cpu family\t: 6\nmodel name\t: X\n"}, {"family": 6}),
        (cache(0, 1, "Data", "big", "0"), {}),
        (cache(0, 2, "Unified", "1G", "zero"), {"l2_bytes": 2**30}),
        ({f"{CACHE}/index0/level": "1\n"}, {}),
    ],
)  # fmt: skip
def test_what_the_system_does_not_say_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], found: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert environment.facts(system(tmp_path, files)) == found
    if "model" not in found:
        assert environment.processor_label("a chip", found) == "a chip"


INTEL_MAC = """machdep.cpu.vendor: GenuineIntel
machdep.cpu.family: 6
machdep.cpu.model: 158
machdep.cpu.stepping: 10
hw.l1dcachesize: 32768
hw.l2cachesize: 262144
hw.l3cachesize: 12582912
hw.memsize: 17179869184
machdep.cpu.features: FPU VME SSE4.1 SSE4.2 AVX1.0 F16C FMA
machdep.cpu.leaf7_features: RDWRFSGS AVX2 SMAP
"""


def test_macos_says_it_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(command: list[str], **_: Any) -> Any:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, said, "sysctl: unknown oid")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    said = INTEL_MAC
    assert environment.facts(tmp_path) == {
        "vendor": "GenuineIntel", "family": 6, "model": 158, "stepping": 10,
        "instruction_sets": ["avx", "avx2", "f16c", "fma", "sse4_1", "sse4_2"],
        "l1d_bytes": 2**15, "l2_bytes": 2**18, "l3_bytes": 12 * 2**20, "memory_bytes": 2**34,
    }  # fmt: skip
    assert asked[0][0] == "sysctl"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    said = "hw.l1dcachesize: 65536\nhw.memsize: 8589934592\n"
    assert environment.facts(tmp_path) == {
        "l1d_bytes": 2**16, "memory_bytes": 2**33, "instruction_sets": ["asimd"],
    }  # fmt: skip

    def none(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("sysctl")

    monkeypatch.setattr(subprocess, "run", none)
    assert environment.facts(tmp_path) == {"instruction_sets": ["asimd"]}


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="not Linux")
def test_this_machine_as_the_c_library_and_python_see_it() -> None:
    found = environment.facts()
    assert json.loads(json.dumps(found)) == found
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["memory_bytes"] == pages
    # getconf asks the processor itself (cpuid), where it says so; 0 or nothing where it does not.
    for ours, theirs in (("l1d_bytes", "LEVEL1_DCACHE_SIZE"), ("l2_bytes", "LEVEL2_CACHE_SIZE")):
        asked = subprocess.run(["getconf", theirs], capture_output=True, text=True, check=False)
        if re.fullmatch(r"[1-9]\d*\n", asked.stdout) and ours in found:
            assert found[ours] == int(asked.stdout)


# ---- The machine as a model file has it


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "name"),
    [
        (MILAN, "aarch64", "AMD EPYC 7B13"),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", "aarch64", "aarch64"),
        ("model name\t: \n", "aarch64", "aarch64"),
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


def test_where_proc_does_not_say_what_is_free_it_is_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__, raising=False)
    assert environment.available_bytes(tmp_path) == 4_096_000  # macOS
    old = system(tmp_path, {"proc/meminfo": "MemTotal: 1 kB\n"})
    assert environment.available_bytes(old) == 4_096_000
    monkeypatch.delattr(os, "sysconf")  # Windows
    assert environment.available_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "answer"),
    [
        ({}, 60 * 1024),
        ({"max": "50000\n", "current": "20000\n"}, 30_000),
        ({"max": "50000\n", "current": "20000\n", "stat": "anon 5\ninactive_file 7000\n"}, 37_000),
        ({"max": "9999999999\n", "current": "0\n"}, 60 * 1024),
        ({"max": "max\n", "current": "20000\n"}, 60 * 1024),
        ({"max": "50000\n"}, 60 * 1024),
        ({"max": "5\n", "current": "20\n"}, 0),
    ],
)
def test_a_container_may_have_less(tmp_path: Path, files: dict[str, str], answer: int) -> None:
    group = {f"sys/fs/cgroup/memory.{name}": text for name, text in files.items()}
    given = system(tmp_path, {"proc/meminfo": MEMINFO, **group})
    assert environment.available_bytes(given) == answer


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
    monkeypatch.setattr(environment, "cpu_model", lambda: "Xeon(R) @ 2.20GHz")
    monkeypatch.setattr(environment, "processor_facts", lambda: facts)
    for count, threads in ((2, "2 threads"), (1, "1 thread")):
        monkeypatch.setattr(environment, "cpu_count", lambda n=count: n)
        label = environment.device_label("cpu")
        assert label == f"Xeon(R) @ 2.20GHz{kind}, {threads}"
        assert environment.device_label("cpu", threads=9) == label.partition(",")[0] + ", 9 threads"
        assert environment.label_of("cpu", {}) == label
        assert environment.label_of("cpu", {"threads": 9}).endswith(", 9 threads"), "it uses"
    assert environment.device_label("gpu") == "gpu"
    assert environment.device_label("gpu", "NVIDIA T4") == "NVIDIA T4"
    assert environment.slug("cpu Xeon(R) @ 2.20GHz, 1 thread") == "cpu-xeon-r-2-20ghz-1-thread"


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


# ---- cores, clock, peak --------------------------------------------------------------------------


def cpu(number: int, core: int, package: int = 0) -> str:
    return f"processor\t: {number}\nphysical id\t: {package}\ncore id\t\t: {core}\ncpu MHz\t\t: 2600.5\n\n"


def test_two_processors_of_a_core_are_one_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    text = cpu(0, 0) + cpu(1, 0) + cpu(2, 1) + cpu(3, 0, package=1) + cpu(4, 5)
    found = environment.facts(system(tmp_path, {"proc/cpuinfo": text}))
    assert (found["cores"], found["clock_mhz"]) == (3, 2600.5), "the last is not of this process"
    files = {"sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3700000\n"}
    assert environment.facts(system(tmp_path, files))["clock_mhz"] == 3700.0


@pytest.mark.parametrize(
    ("known", "threads", "peak"),
    [
        ({"instruction_sets": ["avx", "avx2", "avx512f", "fma"]}, 2, 2 * 32 * 2e6),
        ({"instruction_sets": ["avx", "avx2", "fma"]}, 1, 16 * 2e6),
        ({"instruction_sets": ["avx512f", "fma"], "vendor": "AuthenticAMD", "family": 25}, 2,
         2 * 16 * 2e6),
        ({"instruction_sets": ["asimd"]}, 64, 4 * 8 * 2e6),
        ({"instruction_sets": []}, 1, None),
        ({}, 1, None),
    ],
)  # fmt: skip
def test_the_peak_of_a_processor(known: dict[str, Any], threads: int, peak: float | None) -> None:
    """From the makers' manuals: two units of 512, 256 or 128 bits; Zen 4 does 512 bits in two halves."""
    facts = {"clock_mhz": 2000.0, "cores": 4, **known}
    assert environment.peak_macs(facts, threads) == peak
    assert environment.peak_macs({**facts, "clock_mhz": None}, threads) is None
