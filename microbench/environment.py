"""The machine and the load that a run was measured on, and what makes the times of two runs comparable."""

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

SYSTEM = Path("/")
"""The folder of /proc and /sys; another one in tests."""

# ---- Which processor this is. The name alone does not say: a cloud calls all of a maker's server
# processors the same.

_X86 = """sse4_1 sse4_2 avx avx2 fma f16c avx_vnni avx512f avx512bw avx512vl avx512_bf16 avx512_fp16
avx512_vnni amx_tile amx_int8 amx_bf16"""
_ARM = "asimd asimdhp asimddp bf16 i8mm sve sve2 sme"
INSTRUCTION_SETS = frozenset(f"{_X86} {_ARM}".split())
"""Those that the kernels of frameworks are chosen by, as Linux calls them."""
IDENTITY = {
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
}
"""Numbers of a kind of processor -> their names in /proc/cpuinfo, of x86 and of ARM."""
CACHES = ("l1d_bytes", "l2_bytes", "l3_bytes")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def facts(system: Path = SYSTEM) -> dict[str, Any]:
    """What is known of the first processor, as JSON has it. What the system does not say is left out.

    `vendor`, `family`, `model`, `stepping`; `instruction_sets` (of INSTRUCTION_SETS, sorted); `l1d_bytes`,
    `l2_bytes`, `l3_bytes`; `governor` of the clock.
    """
    info = _text(system / "proc/cpuinfo")
    words = _field(info, "flags", "Features")
    governor = _text(system / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    known: dict[str, Any] = {
        "vendor": _field(info, "vendor_id", "CPU implementer"),
        "instruction_sets": sorted(INSTRUCTION_SETS & set(words.split())) if words else None,
        "governor": governor.strip() or None,
        **dict(_caches(system)),
    }
    for name, fields in IDENTITY.items():
        number = _field(info, *fields) or ""
        if re.fullmatch(r"\d+|0x[0-9a-f]+", number):
            known[name] = int(number, 0)
    return {name: value for name, value in known.items() if value is not None}


def cpu_model(system: Path = SYSTEM) -> str:
    """The processor's name."""
    name = _field(_text(system / "proc/cpuinfo"), "model name")
    if not name and sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return name or platform.processor() or platform.machine() or "unknown processor"


def cpu_count() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def core_count(system: Path = SYSTEM) -> int | None:
    """How many cores this process may use, of which each may have two processors; None if not known."""
    able = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    cores = set()
    for one in _text(system / "proc/cpuinfo").split("\n\n"):
        number, *core = (_field(one, n) for n in ("processor", "physical id", "core id"))
        if number and None not in core and (able is None or int(number) in able):
            cores.add(tuple(core))
    return len(cores) or None


def _text(path: Path) -> str:
    """A file of the system; "" where it is not there."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(info: str, *names: str) -> str | None:
    """The first value of a field of /proc/cpuinfo or /proc/meminfo, under the first name that is there."""
    for name in names:
        if line := re.search(rf"^{name}[ \t]*:[ \t]*(\S.*)$", info, re.MULTILINE):
            return line.group(1).strip()
    return None


def _caches(system: Path) -> Iterator[tuple[str, int]]:
    """Bytes of the caches of data, by level."""
    for folder in sorted((system / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_text(folder / n).strip() for n in ("level", "type", "size"))
        number = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind in ("Data", "Unified") and number:
            name = f"l{level}{'d' if level == '1' else ''}_bytes"
            yield name, int(number.group(1)) * _UNITS[number.group(2)]


# ---- The state of the machine


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
    for line in _text(system / "proc/stat").splitlines():
        name, *values = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in able:
            user, nice, kernel, _, _, interrupts, soft = map(int, values[:7])
            used += user + nice + kernel + interrupts + soft
    for pid in pids:
        fields = _text(system / f"proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) < 13:
            return None
        used -= int(fields[11]) + int(fields[12])
    return used / ticks


def available_bytes(system: Path = SYSTEM) -> int | None:
    """Memory that can be had without swapping, in this container if it is one; None if not known."""
    size = re.fullmatch(r"(\d+) kB", _field(_text(system / "proc/meminfo"), "MemAvailable") or "")
    free = int(size.group(1)) * 1024 if size else None
    if free is None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = system / "sys/fs/cgroup"
    limit, used = (_text(group / f"memory.{name}").strip() for name in ("max", "current"))
    if not limit.isdigit() or not used.isdigit():
        return free
    cached = re.search(r"^inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    left = max(0, int(limit) - int(used) + (int(cached.group(1)) if cached else 0))
    return left if free is None else min(free, left)


# ---- The environment as a model file has it


def processor_facts() -> dict[str, Any]:
    """`facts`, with the processor's name and how many threads it gives this process."""
    return {"name": cpu_model(), **facts(), "threads": cpu_count()}


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


def here(learned: Mapping[str, Any], device: str) -> dict[str, Any]:
    """This machine as `differences` takes it, before a backend is started.

    A CPU has as many threads as the model asked for when it was learned, if there are as many.
    """
    where = describe(device)
    if device == "cpu" and (threads := learned.get("threads_asked")):
        used = min(threads, where["threads"])
        where |= {"threads": used, "threads_asked": used}
    return where


def label_of(device: str, where: Mapping[str, Any]) -> str:
    """A name for the measured device: the backend's `device_name`; of a CPU its kind and its threads.

    `where`: an environment of this machine, of which `device_name` and `threads` count.
    """
    if device != "cpu":
        return str(where.get("device_name") or device)
    known, threads = processor_facts(), where.get("threads") or cpu_count()
    kind = ""
    if "family" in known and "model" in known:
        kind = f" (family {known['family']} model {known['model']})"
    return f"{cpu_model()}{kind}, {threads} thread{'s' if threads != 1 else ''}"


def slug(name: str) -> str:
    """`name` as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# ---- What makes times comparable: the one list for everything that measures for a model

FIELDS = (
    "framework", "framework_version", "keras_version", "execution_provider", "libraries",
    "threads", "inter_op_threads", "shared_threads", "jit", "compile", "channels_last", "half",
    "float32_products", "tf32", "cuda_version", "cudnn_version", "cudnn_benchmark", "optimisation",
    "keeps_freed_memory", "flags",
)  # fmt: skip
"""Of the framework and its backend; a backend has some of these."""
OF_DEVICE = ("device", "processor", "instruction_sets", *CACHES, "threads_given")
"""Fields of a Difference that make it another device."""


@dataclass(frozen=True)
class Difference:
    """A field of the device or its framework that is not as it was when the model was learned.

    `field`: one of FIELDS or OF_DEVICE, or "governor"; `now` is None for a device that is not there.
    """

    field: str
    learned: Any
    now: Any

    @property
    def of_device(self) -> bool:
        """Whether it makes another device."""
        return self.field in OF_DEVICE

    def __str__(self) -> str:
        """In words, as a warning and `lolat doctor` have them."""
        name, then, now = self.field.replace("_", " "), self.learned or "none", self.now or "none"
        if self.field in ("device", "processor"):
            return f"this is another {name}: learned on {then}, here {self.now or 'not there'}"
        words = f"learned with {name} {then}, here it is {now}"
        return f"this is another processor: {words}" if self.of_device else words


def differences(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """Where `now` is not as `learned`, the device first; a field that one of them lacks is left out.

    `label`: the model's device, compared for a GPU and where the environment does not say which processor
    it was. `learned`, `now`: environments, as a model file has them. `now` need not have the backend's
    part; `here` makes such a one.
    """
    device = str(now["device"])
    if device == "cpu" and "processor" in learned:
        own = [*_of_processor(learned, now)]
    else:
        name = label_of(device, now)
        own = [] if label == name else [Difference("device", label, name)]
    clocks = (where.get("processor", {}) for where in (learned, now))
    return (*own, *_fields(("governor",), *clocks), *_fields(FIELDS, learned, now))


def differences_of_device(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """The differences that make another device: a CPU's processor and threads, another device's name."""
    return tuple(d for d in differences(label, learned, now) if d.of_device)


def _of_processor(learned: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    before, after = learned["processor"], now["processor"]
    kinds = [_kind(where) for where in (learned, now)]
    both = [k for k in ("vendor", *IDENTITY) if k in before and k in after]
    if learned.get("cpu") != now.get("cpu") or any(before[k] != after[k] for k in both):
        yield Difference("processor", *kinds)
    sets = [set(f["instruction_sets"]) for f in (before, after) if "instruction_sets" in f]
    if len(sets) == 2 and sets[0] != sets[1]:
        only = [" ".join(sorted(a - b)) for a, b in ((sets[0], sets[1]), (sets[1], sets[0]))]
        yield Difference("instruction_sets", *only)
    yield from _fields(CACHES, before, after)
    # The threads that a framework may use: those asked for, or those of the machine.
    threads = [
        where.get("threads_asked", where["processor"].get("threads")) for where in (learned, now)
    ]
    if None not in threads and threads[0] != threads[1]:
        yield Difference("threads_given", *threads)


def _fields(
    names: Iterable[str], learned: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    """Fields that both have and that are not the same."""
    for name in names:
        if name in learned and name in now and learned[name] != now[name]:
            yield Difference(name, learned[name], now[name])


def _kind(where: Mapping[str, Any]) -> str:
    """A processor in words that tell two kinds of one name apart."""
    known = where["processor"]
    words = [known["vendor"]] if "vendor" in known else []
    words += [f"{k} {known[k]}" for k in IDENTITY if k in known]
    return f"{where.get('cpu')} ({' '.join(words)})" if words else str(where.get("cpu"))
