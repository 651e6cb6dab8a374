"""What machine and what load a run was measured on, and what makes the times of two runs comparable."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# ---- Which processor this is: what the system says of its kind, instruction sets, caches and
# machine. Two of one name may be far apart: a cloud calls all of a maker's server processors the same.

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
    `l2_bytes`, `l3_bytes`, and under `..._shared_by` how many logical processors share each; `cores` that
    this process may use, `clock_mhz`; `memory_bytes` of the machine; `hypervisor` (whether there is one),
    `hypervisor_type`, `system_vendor`; `governor` of its clock. What the system does not say is left out.
    """
    info = text(system / "proc/cpuinfo")
    if not info and sys.platform == "darwin":
        known = _of_macos(_sysctl(*_SYSCTL, *_SYSCTL_SETS))
    else:
        known = {**_identity(info), **dict(_caches(system)), **_machine(system, info)}
    return {k: v for k, v in known.items() if v not in (None, "")}


def processor_label(name: str, known: Mapping[str, Any]) -> str:
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
    """The first value of a field of /proc/cpuinfo or /proc/meminfo."""
    line = re.search(rf"^{name}[ \t]*:[ \t]*(\S.*)$", info, re.MULTILINE)
    return line.group(1).strip() if line else None


def _number(word: str | None) -> int | None:
    try:
        return int(word or "", 0)  # 25, or 0xd0c
    except ValueError:
        return None


def _kilobytes(info: str, name: str) -> int | None:
    """Bytes of a field that is in kB."""
    size = re.fullmatch(r"(\d+) kB", _field(info, name) or "")
    return int(size.group(1)) * 1024 if size else None


def _identity(info: str) -> dict[str, Any]:
    """Whose processor it is, and what it can do."""
    words = _field(info, "flags") or _field(info, "Features")
    sets = {"instruction_sets": sorted(INSTRUCTION_SETS & set(words.split())) if words else None}
    part = _number(_field(info, "CPU part"))
    if part is None:
        numbers = {"family": "cpu family", "model": "model", "stepping": "stepping"}
        return sets | {
            "vendor": _field(info, "vendor_id"),
            **{k: _number(_field(info, v)) for k, v in numbers.items()},
        }
    variant, revision = (_number(_field(info, f"CPU {w}")) or 0 for w in ("variant", "revision"))
    return sets | {
        "vendor": _field(info, "CPU implementer"),
        "family": _number(_field(info, "CPU architecture")),
        "model": part,
        "stepping": 16 * variant + revision,  # r3p1 is 49, as its own register has it
    }


def _caches(system: Path) -> Iterator[tuple[str, Any]]:
    """Sizes of the caches of data, by level, and how many logical processors share each."""
    for folder in sorted((system / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, what, size, shared = (
            text(folder / n).strip() for n in ("level", "type", "size", "shared_cpu_list")
        )
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if what in ("Data", "Unified") and number and level.isdigit():
            name = f"l{level}{'d' if level == '1' else ''}"
            yield f"{name}_bytes", int(number.group(1)) * _UNITS[number.group(2)]
            yield f"{name}_shared_by", _listed(shared)


def _listed(processors: str) -> int | None:
    """How many are in a list such as 0-3,8."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", processors):
        return None
    ends = [[int(n) for n in part.split("-")] for part in processors.split(",")]
    return sum(e[-1] - e[0] + 1 for e in ends)


def _machine(system: Path, info: str) -> dict[str, Any]:
    hypervisor = text(system / "sys/hypervisor/type").strip()
    flags = _field(info, "flags")  # of x86 alone; elsewhere nothing says that there is none
    guest = "hypervisor" in flags.split() if flags else None
    clock = system / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    return {
        "memory_bytes": _kilobytes(text(system / "proc/meminfo"), "MemTotal"),
        "cores": core_count(system),
        "clock_mhz": _clock_mhz(system, info),
        "hypervisor": True if hypervisor else guest,
        "hypervisor_type": hypervisor,
        "system_vendor": text(system / "sys/class/dmi/id/sys_vendor").strip(),
        "governor": text(clock).strip(),
    }


def _clock_mhz(system: Path, info: str) -> float | None:
    """The nominal clock: the fastest that the system allows, or what it says of a processor."""
    fastest = text(system / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if fastest.isdigit():
        return int(fastest) / 1e3
    told = _field(info, "cpu MHz")
    return float(told) if told and re.fullmatch(r"\d+(\.\d+)?", told) else None


def _sysctl(*names: str) -> dict[str, str]:
    """What macOS says of each name; those that this Mac has not are left out."""
    try:
        done = subprocess.run(["sysctl", *names], capture_output=True, text=True, check=False)
    except OSError:
        return {}
    return dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)


def _of_macos(values: Mapping[str, str]) -> dict[str, Any]:
    known: dict[str, Any] = {ours: values.get(theirs) for theirs, ours in _SYSCTL.items()}
    known |= {k: _number(v) for k, v in known.items() if k != "vendor"}
    words = " ".join(values.get(name, "") for name in _SYSCTL_SETS).lower().split()
    sets = INSTRUCTION_SETS & {_MACOS.get(w, w) for w in words}
    if platform.machine() == "arm64":
        sets |= {"asimd"}  # every one of them
    return known | {"instruction_sets": sorted(sets) or None}


# ---- The machine as a model file has it


def cpu_model(system: Path = SYSTEM) -> str:
    """The processor's name."""
    name = _field(text(system / "proc/cpuinfo"), "model name")
    if not name and sys.platform == "darwin":
        name = _sysctl("machdep.cpu.brand_string").get("machdep.cpu.brand_string", "").strip()
    return name or platform.processor() or platform.machine() or "unknown processor"


def cpu_count() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_count(system: Path = SYSTEM) -> int | None:
    """How many cores this process may use, of which each may have two processors; None if not known."""
    cores = set()
    for one in text(system / "proc/cpuinfo").split("\n\n"):
        ids = [_field(one, name) for name in ("processor", "physical id", "core id")]
        if None not in ids and _is_ours(int(ids[0] or 0)):
            cores.add(tuple(ids[1:]))
    return len(cores) or None


def _is_ours(processor: int) -> bool:
    return not hasattr(os, "sched_getaffinity") or processor in os.sched_getaffinity(0)


MACS_A_CYCLE = {"avx512f": 32, "fma": 16, "avx": 8, "asimd": 8}
"""Instruction set -> multiply-accumulates in float32 that a core does in a cycle, with two units."""
HALF_WIDE = ("AuthenticAMD", 25)
"""The vendor and family of the processors that do their widest vectors in two halves: as those with fma."""


def peak_macs(known: Mapping[str, Any], threads: int) -> float | None:
    """Multiply-accumulates a ms that `threads` on a processor do at its nominal clock, `known`: its facts.

    None where the system does not tell clock or instruction sets. A processor that runs above its nominal
    clock does more.
    """
    sets = known.get("instruction_sets", ())
    able = next((name for name in MACS_A_CYCLE if name in sets), None)
    clock = known.get("clock_mhz")
    if able is None or not clock:
        return None
    if (known.get("vendor"), known.get("family")) == HALF_WIDE and able == "avx512f":
        able = "fma"
    return float(MACS_A_CYCLE[able] * clock * 1e3 * min(threads, known.get("cores", threads)))


def load() -> float | None:
    """The load average of the last minute; None where the system has none."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def others_s(pids: Sequence[int], system: Path = SYSTEM) -> float | None:
    """Processor seconds that others than `pids` have used so far on the processors of this process.

    None where the system does not say. Only differences mean something; they are in steps of 10 ms.
    """
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        able = os.sched_getaffinity(0)
    except (AttributeError, OSError, ValueError):
        return None
    used = 0
    for line in text(system / "proc/stat").splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in able:
            user, nice, kernel, _, _, interrupts, soft = map(int, values[:7])
            used += user + nice + kernel + interrupts + soft
    for pid in pids:
        fields = text(system / f"proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) < 13:
            return None
        used -= int(fields[11]) + int(fields[12])
    return used / ticks


def available_bytes(system: Path = SYSTEM) -> int | None:
    """Memory that can be had without swapping, in this container if it is one; None if not known."""
    free = _kilobytes(text(system / "proc/meminfo"), "MemAvailable")
    if free is None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = system / "sys/fs/cgroup"
    limit, used = (text(group / f"memory.{name}").strip() for name in ("max", "current"))
    if not limit.isdigit() or not used.isdigit():
        return free
    cached = re.search(r"^inactive_file (\d+)$", text(group / "memory.stat"), re.MULTILINE)
    left = max(0, int(limit) - int(used) + (int(cached.group(1)) if cached else 0))
    return left if free is None else min(free, left)


def processor_facts() -> dict[str, Any]:
    """Which processor this is (`facts`), its name, and how many threads it gives this process."""
    return {"name": cpu_model(), **facts(), "threads": cpu_count()}


def device_label(device: str, name: str | None = None, threads: int | None = None) -> str:
    """A name for the device that is measured: the processor, its kind and its threads for a CPU.

    `name`: what the backend calls another device, if it says (`device_name` of its environment);
    `threads`: None for all that this process may use.
    """
    if device == "cpu":
        return with_threads(processor_label(cpu_model(), processor_facts()), threads)
    return name or device


def with_threads(named: str, threads: int | None = None) -> str:
    """A processor's name and its threads; None for all that this process may use."""
    count = threads or cpu_count()
    return f"{named}, {count} thread{'s' if count != 1 else ''}"


def label_of(device: str, where: Mapping[str, Any]) -> str:
    """`device_label` by what an environment says of the device's name and threads."""
    return device_label(device, where.get("device_name"), where.get("threads"))


def slug(name: str) -> str:
    """`name` as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def describe(device: str) -> dict[str, Any]:
    """The environment as stored in a model file, but for the backend's part."""
    return {
        "device": device,
        "cpu": cpu_model(),
        "processor": processor_facts(),
        "threads": cpu_count(),
        "available_bytes": available_bytes(),
        "load_at_start": load(),
        "operating_system": platform.platform(terse=True),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


# ---- What makes times comparable: the fields of an environment, and how two environments
# differ in them.
#
# The one list for everything that measures for a model that is there: doctor, evaluate, training.

FIELDS = (
    "framework", "framework_version", "keras_version", "execution_provider", "libraries",
    "threads", "inter_op_threads", "shared_threads", "jit", "compile", "channels_last", "half",
    "float32_products", "tf32", "cuda_version", "cudnn_version", "cudnn_benchmark", "optimisation",
    "keeps_freed_memory", "flags",
)  # fmt: skip
"""Of the framework and its backend; a backend has some of these."""
OF_PROCESSOR = ("processor", "instruction_sets", *CACHES, "threads_given")
"""Fields of a Difference that make a CPU another device."""
UNSAID = (
    "the model does not say which processor it was learned on, only its name, which others have too; "
    "learn again to know"
)


@dataclass(frozen=True)
class Difference:
    """Something of the device or its framework that is not as it was when the model was learned.

    `field`: one of FIELDS or OF_PROCESSOR, "governor", or "device" where no more is known of it;
    `now` is None for a device that is not there.
    """

    field: str
    learned: Any
    now: Any

    def __str__(self) -> str:
        """In words, as a warning has them."""
        if self.field in ("device", "processor"):
            other = "processor" if self.field == "processor" else "device"
            return f"this is another {other}: learned on {self.learned}, here {self.now}"
        name = self.field.replace("_", " ") if self.field in OF_PROCESSOR else self.field
        here = f"learned with {name} {_shown(self.learned)}, this is {_shown(self.now)}"
        return f"this is another processor: {here}" if self.field in OF_PROCESSOR else here


def differences(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """What of `now` is not as `learned`, the device first; what one of them does not say is left out.

    `label`: the model's device; `learned`, `now`: environments, as a model file has them. `now` need not
    have what only the backend says; `here` makes such a one.
    """
    of_device = differences_of_device(label, learned, now)
    clocks = _facts(learned), _facts(now)
    return (*of_device, *_fields(("governor",), *clocks), *_fields(FIELDS, learned, now))


def differences_of_device(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """The same of the device alone: a CPU's processor and threads, another device's name.

    A CPU's label is compared only where the environment does not say what is in it: see `unsaid`.
    """
    device = str(now["device"])
    own = label_of(device, now)
    if device != "cpu":
        return () if label == own else (Difference("device", label, own),)
    of_processor = tuple(_of_processor(learned, now))
    if of_processor or "processor" in learned or {"cpu", "threads"} <= learned.keys():
        return of_processor
    plain = with_threads(cpu_model(), now.get("threads"))
    return () if label in (own, plain) else (Difference("device", label, own),)


def unsaid(learned: Mapping[str, Any]) -> str:
    """UNSAID for a CPU of which the file has no more than a name; "" for others."""
    of_cpu = learned.get("device", "cpu") == "cpu"
    return UNSAID if of_cpu and "processor" not in learned else ""


def here(learned: Mapping[str, Any], device: str) -> dict[str, Any]:
    """This machine as `differences` takes it, before a backend is started.

    A CPU has as many threads as the model asked for when it was learned, if there are as many.
    """
    where = describe(device)
    threads = learned.get("threads_asked")
    if device == "cpu" and type(threads) is int and threads > 0:
        used = min(threads, where["threads"])
        where |= {"threads": used, "threads_asked": used}
    return where


def _facts(where: Mapping[str, Any]) -> Mapping[str, Any]:
    """The processor of an environment; nothing where the file does not say."""
    known = where.get("processor")
    return known if isinstance(known, Mapping) else {}


def _of_processor(learned: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    then, is_ = _facts(learned), _facts(now)
    names = [str(where.get("cpu", "unknown")) for where in (learned, now)]
    both = [k for k in IDENTITY if k in then and k in is_]
    named = "cpu" in learned and "cpu" in now and names[0] != names[1]
    if named or any(then[k] != is_[k] for k in both):
        said = [_identified(n, f) for n, f in zip(names, (then, is_), strict=True)]
        yield Difference("processor", *said)
    sets = [set(f["instruction_sets"]) for f in (then, is_) if "instruction_sets" in f]
    if len(sets) == 2 and sets[0] != sets[1]:  # what they share tells nothing
        only = [" ".join(sorted(a - b)) for a, b in ((sets[0], sets[1]), (sets[1], sets[0]))]
        yield Difference("instruction_sets", *only)
    yield from _fields(CACHES, then, is_)
    given = [_threads_given(where) for where in (learned, now)]
    if None not in given and given[0] != given[1]:
        yield Difference("threads_given", *given)


def _threads_given(where: Mapping[str, Any]) -> int | None:
    """How many threads a framework may use: what was asked for, or what the machine has."""
    own = _facts(where).get("threads", where.get("threads"))
    given: int | None = where.get("threads_asked", own)
    return given


def _fields(
    names: Iterable[str], learned: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    """Fields that both have and that are not the same."""
    for name in names:
        if name in learned and name in now and learned[name] != now[name]:
            yield Difference(name, learned[name], now[name])


def _identified(name: str, known: Mapping[str, Any]) -> str:
    """A processor so that two kinds of one name are told apart."""
    said = [f"{k} {known[k]}" for k in ("family", "model", "stepping") if k in known]
    vendor = [str(known["vendor"])] if "vendor" in known else []
    more = " ".join([*vendor, *said])
    return f"{name} ({more})" if more else name


def _shown(value: Any) -> str:
    return "none" if value in ("", None) else str(value)
