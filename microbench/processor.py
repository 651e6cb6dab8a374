"""Which processor this is: what the system says of its kind, instruction sets, caches and machine.

Two of one name may be far apart: a cloud calls all of a maker's server processors the same.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

SYSTEM = Path("/")
"""Where /proc and /sys are; another folder in tests."""

_X86 = """sse4_1 sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_bf16 avx512_fp16
avx512_vnni amx_tile amx_int8 amx_bf16"""
_ARM = "asimd asimdhp asimddp bf16 i8mm sve sve2 sme"
INSTRUCTION_SETS = frozenset(f"{_X86} {_ARM}".split())
"""Those that the kernels of frameworks are chosen by, as Linux calls them."""
IDENTITY = ("vendor", "family", "model", "stepping")
"""What a kind of processor is told by. Of an ARM: implementer, architecture, part, revision."""
CACHES = ("l1d_bytes", "l2_bytes", "l3_bytes")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SYSCTL = {
    "machdep.cpu.vendor": "vendor", "machdep.cpu.family": "family", "machdep.cpu.model": "model",
    "machdep.cpu.stepping": "stepping", "hw.l1dcachesize": "l1d_bytes", "hw.l2cachesize": "l2_bytes",
    "hw.l3cachesize": "l3_bytes", "hw.memsize": "memory_bytes",
}  # fmt: skip
_SYSCTL_SETS = ("machdep.cpu.features", "machdep.cpu.leaf7_features")
_MACOS = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "avx1.0": "avx"}
"""What macOS calls otherwise."""


def facts(system: Path = SYSTEM) -> dict[str, Any]:
    """What is known of the first processor and its machine, as JSON holds it.

    `vendor`, `family`, `model`, `stepping`; `instruction_sets` (of INSTRUCTION_SETS, sorted); `l1d_bytes`,
    `l2_bytes`, `l3_bytes`, and under `..._shared_by` how many logical processors share each;
    `memory_bytes` of the machine; `hypervisor` (whether there is one), `hypervisor_type`,
    `system_vendor`; `governor` of its clock. What the system does not say is left out.
    """
    info = text(system / "proc/cpuinfo")
    if not info and sys.platform == "darwin":
        found = _of_macos(_sysctl())
    else:
        found = {**_identity(info), **_instruction_sets(info), **dict(_caches(system)),
                 **_machine(system, info)}  # fmt: skip
    return {k: v for k, v in found.items() if v not in (None, "")}


def label(name: str, known: Mapping[str, Any]) -> str:
    """A processor's `name` with its kind, such as "AMD EPYC (family 25 model 17)"; `known`: its facts."""
    if "family" not in known or "model" not in known:
        return name
    return f"{name} (family {known['family']} model {known['model']})"


def kind(known: Mapping[str, Any]) -> dict[str, Any]:
    """Of `facts`, what makes it this processor and no other: see IDENTITY, INSTRUCTION_SETS, CACHES."""
    return {k: known[k] for k in (*IDENTITY, "instruction_sets", *CACHES) if k in known}


def text(path: Path) -> str:
    """What a file of the system says; "" where it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(info: str, name: str) -> str | None:
    """The first value of a field of /proc/cpuinfo."""
    found = re.search(rf"^{name}[ \t]*:[ \t]*(\S.*)$", info, re.MULTILINE)
    return found.group(1).strip() if found else None


def _number(said: str | None) -> int | None:
    try:
        return int(said or "", 0)  # 25, or 0xd0c
    except ValueError:
        return None


def _identity(info: str) -> dict[str, Any]:
    vendor, part = _field(info, "vendor_id"), _number(_field(info, "CPU part"))
    if part is None:
        numbers = {"family": "cpu family", "model": "model", "stepping": "stepping"}
        return {"vendor": vendor, **{k: _number(_field(info, v)) for k, v in numbers.items()}}
    variant, revision = (_number(_field(info, f"CPU {w}")) or 0 for w in ("variant", "revision"))
    return {
        "vendor": _field(info, "CPU implementer"),
        "family": _number(_field(info, "CPU architecture")),
        "model": part,
        "stepping": 16 * variant + revision,  # r3p1 is 49, as its own register has it
    }


def _instruction_sets(info: str) -> dict[str, Any]:
    said = _field(info, "flags") or _field(info, "Features")
    return {"instruction_sets": sorted(INSTRUCTION_SETS & set(said.split())) if said else None}


def _caches(system: Path) -> Iterator[tuple[str, Any]]:
    """Sizes of the caches of data, by level, and how many logical processors share each."""
    for folder in sorted((system / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        said = {n: text(folder / n).strip() for n in ("level", "type", "size", "shared_cpu_list")}
        size = re.fullmatch(r"(\d+)([KMG]?)", said["size"])
        if said["type"] in ("Data", "Unified") and size and said["level"].isdigit():
            name = f"l{said['level']}{'d' if said['level'] == '1' else ''}"
            yield f"{name}_bytes", int(size.group(1)) * _UNITS[size.group(2)]
            yield f"{name}_shared_by", _listed(said["shared_cpu_list"])


def _listed(processors: str) -> int | None:
    """How many are in a list such as 0-3,8."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", processors):
        return None
    ends = [[int(n) for n in part.split("-")] for part in processors.split(",")]
    return sum(e[-1] - e[0] + 1 for e in ends)


def _machine(system: Path, info: str) -> dict[str, Any]:
    kilobytes = re.search(r"^MemTotal:\s+(\d+) kB$", text(system / "proc/meminfo"), re.MULTILINE)
    kind_of = text(system / "sys/hypervisor/type").strip()
    flags = _field(info, "flags")  # of x86 alone; elsewhere nothing says that there is none
    guest = "hypervisor" in flags.split() if flags else None
    clock = system / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    return {
        "memory_bytes": int(kilobytes.group(1)) * 1024 if kilobytes else None,
        "hypervisor": True if kind_of else guest,
        "hypervisor_type": kind_of,
        "system_vendor": text(system / "sys/class/dmi/id/sys_vendor").strip(),
        "governor": text(clock).strip(),
    }


def _sysctl() -> str:
    """Lines "name: value"; names that this Mac has not are left out."""
    try:
        asked = subprocess.run(
            ["sysctl", *_SYSCTL, *_SYSCTL_SETS], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return asked.stdout


def _of_macos(lines: str) -> dict[str, Any]:
    said = dict(line.split(": ", 1) for line in lines.splitlines() if ": " in line)
    found: dict[str, Any] = {ours: said.get(theirs) for theirs, ours in _SYSCTL.items()}
    found |= {k: _number(v) for k, v in found.items() if k != "vendor"}
    words = " ".join(said.get(name, "") for name in _SYSCTL_SETS).lower().split()
    sets = INSTRUCTION_SETS & {_MACOS.get(w, w) for w in words}
    if platform.machine() == "arm64":
        sets |= {"asimd"}  # every one of them
    return found | {"instruction_sets": sorted(sets) or None}
