"""Which processor it is, read from a /proc and /sys of our own, and from this machine's by other ways."""

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

from microbench import environment as processor

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
    found = processor.facts(system(tmp_path, files))
    assert found == {
        "vendor": "AuthenticAMD", "family": 25, "model": 1, "stepping": 0,
        "instruction_sets": ["avx", "avx2", "f16c", "fma", "sse4_1", "sse4_2"],
        "l1d_bytes": 32 * 1024, "l1d_shared_by": 2,
        "l2_bytes": 512 * 1024, "l2_shared_by": 2,
        "l3_bytes": 32 * 1024 * 1024, "l3_shared_by": 8,
        "memory_bytes": 16_384_000 * 1024,
        "hypervisor": True, "system_vendor": "Google", "governor": "performance",
    }  # fmt: skip
    assert processor.kind(found) == {
        k: found[k]
        for k in ("vendor", "family", "model", "stepping", "instruction_sets", "l1d_bytes",
                  "l2_bytes", "l3_bytes")
    }  # fmt: skip


def test_a_machine_without_a_hypervisor(tmp_path: Path) -> None:
    found = processor.facts(system(tmp_path, {"proc/cpuinfo": SAPPHIRE}))
    assert found == {
        "vendor": "GenuineIntel", "family": 6, "model": 143, "stepping": 8, "hypervisor": False,
        "instruction_sets": ["amx_bf16", "amx_int8", "amx_tile", "avx", "avx2", "avx512_bf16",
                             "avx512_vnni", "avx512f", "fma", "sse4_1"],
    }  # fmt: skip
    name = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"
    assert processor.processor_label(name, found) == f"{name} (family 6 model 143)"


def test_xen_says_what_it_is(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": SAPPHIRE, "sys/hypervisor/type": "xen\n"}
    found = processor.facts(system(tmp_path, files))
    assert (found["hypervisor"], found["hypervisor_type"]) == (True, "xen")


def test_an_arm_has_other_names_for_it(tmp_path: Path) -> None:
    found = processor.facts(system(tmp_path, {"proc/cpuinfo": GRAVITON2}))
    assert found == {
        "vendor": "0x41", "family": 8, "model": 0xD0C, "stepping": 0x31,
        "instruction_sets": ["asimd", "asimddp", "asimdhp"],
    }  # fmt: skip
    assert processor.processor_label("aarch64", found) == "aarch64 (family 8 model 3340)"


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
    assert processor.facts(system(tmp_path, files)) == found
    if "model" not in found:
        assert processor.processor_label("a chip", found) == "a chip"


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
    assert processor.facts(tmp_path) == {
        "vendor": "GenuineIntel", "family": 6, "model": 158, "stepping": 10,
        "instruction_sets": ["avx", "avx2", "f16c", "fma", "sse4_1", "sse4_2"],
        "l1d_bytes": 2**15, "l2_bytes": 2**18, "l3_bytes": 12 * 2**20, "memory_bytes": 2**34,
    }  # fmt: skip
    assert asked[0][0] == "sysctl"
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    said = "hw.l1dcachesize: 65536\nhw.memsize: 8589934592\n"
    assert processor.facts(tmp_path) == {
        "l1d_bytes": 2**16, "memory_bytes": 2**33, "instruction_sets": ["asimd"],
    }  # fmt: skip

    def none(*_: Any, **__: Any) -> Any:
        raise FileNotFoundError("sysctl")

    monkeypatch.setattr(subprocess, "run", none)
    assert processor.facts(tmp_path) == {"instruction_sets": ["asimd"]}


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="not Linux")
def test_this_machine_as_the_c_library_and_python_see_it() -> None:
    found = processor.facts()
    assert json.loads(json.dumps(found)) == found
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["memory_bytes"] == pages
    # getconf asks the processor itself (cpuid), where it says so; 0 or nothing where it does not.
    for ours, theirs in (("l1d_bytes", "LEVEL1_DCACHE_SIZE"), ("l2_bytes", "LEVEL2_CACHE_SIZE")):
        asked = subprocess.run(["getconf", theirs], capture_output=True, text=True, check=False)
        if re.fullmatch(r"[1-9]\d*\n", asked.stdout) and ours in found:
            assert found[ours] == int(asked.stdout)
