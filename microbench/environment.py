"""The machine of a run, and the fields that must agree for the times of two runs to be comparable."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lolat.io.process import scheduled_count
from lolat.units import plural

SYSTEM = Path("/")
"""The folder that contains /proc and /sys; another folder in tests."""

# ---- The processor. Its name is not enough: a cloud gives all server processors of a maker the same name.

IDENTITY = {
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
}
"""Number that identifies a kind of processor -> its names in /proc/cpuinfo on x86 and on ARM."""


def processor_facts(system: Path = SYSTEM) -> dict[str, Any]:
    """The first processor as JSON: `name`, `vendor`, `family`, `model`, `stepping` and `threads`.

    `threads`: number of processors that this process can use. Facts that the system does not state are left
    out.
    """
    info = _text(system / "proc/cpuinfo")
    facts: dict[str, Any] = {"name": cpu_model(system), "threads": cpu_count()}
    if vendor := _field(info, "vendor_id", "CPU implementer"):
        facts["vendor"] = vendor
    for name, fields in IDENTITY.items():
        number = _field(info, *fields)
        if re.fullmatch(r"\d+|0x[0-9a-f]+", number):
            facts[name] = int(number, 0)
    return facts


def cpu_model(system: Path = SYSTEM) -> str:
    """The processor's name."""
    name = _field(_text(system / "proc/cpuinfo"), "model name")
    if not name and sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return name or platform.processor() or platform.machine() or "unknown processor"


def cpu_count(system: Path = SYSTEM) -> int:
    """Number of processors that this process can use; a quota of 1.5 processors counts as two, as in loky.

    The quota is the smallest one of the process' control group and the groups above it (cpu.max,
    cgroup-v2.rst).
    """
    top = system / "sys/fs/cgroup"
    own = re.search(r"^0::/(.*)$", _text(system / "proc/self/cgroup"), re.MULTILINE)
    group = top / (own[1] if own else "")
    files = [f / "cpu.max" for f in (group, *group.parents) if f.is_relative_to(top)]
    limits = [limit for f in files if (limit := _text(f).split()) and limit[0].isdigit()]
    return math.ceil(min([scheduled_count(), *(int(us) / int(period) for us, period in limits)]))


def core_count(system: Path = SYSTEM) -> int | None:
    """Number of cores of the machine, which is ONNX Runtime's number of threads; None if unknown."""
    info = _text(system / "proc/cpuinfo")
    ids = re.findall(r"^(?:physical|core) id\s*:\s*(\d+)", info, re.MULTILINE)
    return len(set(zip(ids[::2], ids[1::2], strict=False))) or None


def _text(path: Path) -> str:
    """The text of a system file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _field(info: str, *names: str) -> str:
    """The value of a field in /proc/cpuinfo or /proc/meminfo, by the first of `names` that is there."""
    for name in names:
        if line := re.search(rf"^{name}[ \t]*:[ \t]*(\S.*)$", info, re.MULTILINE):
            return line.group(1).strip()
    return ""


# ---- The state of the machine


def other_programs_s(pids: Sequence[int], system: Path = SYSTEM) -> float | None:
    """Processor seconds that processes other than `pids` have used on this process' processors.

    None if unknown. The count starts at an arbitrary time, so only differences mean something; their
    resolution is 10 ms.
    """
    try:
        ticks, able = os.sysconf("SC_CLK_TCK"), os.sched_getaffinity(0)
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


def other_programs(
    seconds: float = 0.5, sleep: Callable[[float], object] = time.sleep
) -> float | None:
    """Mean number of processors that other programs use during the next `seconds`; None if unknown."""
    before, began = other_programs_s((os.getpid(),)), time.monotonic()
    sleep(seconds)
    after, passed = other_programs_s((os.getpid(),)), time.monotonic() - began
    return None if before is None or after is None else max(0.0, (after - before) / passed)


def available_bytes(system: Path = SYSTEM) -> int | None:
    """Bytes of memory that are free without swapping, within the container's limit; None if unknown."""
    size = re.fullmatch(r"(\d+) kB", _field(_text(system / "proc/meminfo"), "MemAvailable"))
    if not size:
        return None
    free = int(size.group(1)) * 1024
    group = system / "sys/fs/cgroup"
    limit, used = (_text(group / f"memory.{name}").strip() for name in ("max", "current"))
    if not limit.isdigit() or not used.isdigit():
        return free
    cached = re.search(r"^inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    left = int(limit) - int(used) + (int(cached.group(1)) if cached else 0)
    return min(free, max(0, left))


# ---- The environment as a profile has it


def describe(device: str) -> dict[str, Any]:
    """The environment that a profile stores, without the fields of the backend."""
    return {
        "device": device,
        "cpu": cpu_model(),
        "processor": processor_facts(),
        "threads": cpu_count(),
        "available_bytes": available_bytes(),
        "operating_system": platform.platform(terse=True),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def here(learned: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The environment of this machine, for `differences`, before a backend is started.

    A CPU gets the number of threads that was asked for when the profile was learned, but at most its own
    number.
    """
    where = describe(device)
    if device == "cpu" and (threads := learned.get("threads_asked")):
        used = min(threads, where["threads"])
        where |= {"threads": used, "threads_asked": used}
    return where


def label_of(device: str, where: Mapping[str, Any]) -> str:
    """A name for the measured device: a CPU's kind and threads, or the backend's `device_name`.

    `where`: an environment of this machine; only its `device_name` and `threads` are used.
    """
    if device != "cpu":
        return str(where.get("device_name") or device)
    facts, threads = processor_facts(), where.get("threads") or cpu_count()
    known = "family" in facts and "model" in facts
    kind = f" (family {facts['family']} model {facts['model']})" if known else ""
    return f"{cpu_model()}{kind}, {plural(threads, 'thread')}"


# ---- The fields that make times comparable, for everything that measures for a profile

FIELDS = (
    "framework", "framework_version", "keras_version", "threads",
    "inter_op_threads", "jit", "compile", "channels_last", "half", "cuda_version", "flags",
)  # fmt: skip
"""Fields of a framework and its backend; each backend has some of them."""
OF_BACKEND = ("framework", "jit", "compile", "channels_last", "half")
"""The FIELDS that a user sets by choosing the backend and its options."""
OF_DEVICE = ("device", "processor", "threads_given")
"""Values of `Difference.field` that mean another device."""


@dataclass(frozen=True)
class Difference:
    """A field of the device or its framework that differs from when the profile was learned.

    `field`: one of FIELDS or OF_DEVICE; `now`: None for an absent device.
    """

    field: str
    learned: Any
    now: Any

    @property
    def of_device(self) -> bool:
        """True if the change means another device."""
        return self.field in OF_DEVICE

    def __str__(self) -> str:
        """A sentence for warnings and `lolat doctor`."""
        name = self.field.replace("_", " ")
        if self.field in ("device", "processor"):
            return (
                f"this is another {name}: learned on {self.learned}, here {self.now or 'not there'}"
            )
        words = f"learned with {name} {self.learned or 'none'}, here it is {self.now or 'none'}"
        return f"this is another processor: {words}" if self.of_device else words


def differences(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """The differences between a profile's environment and the present one; those of the device come first.

    Fields that only one of them has are skipped. `label`: the profile's device, compared for a GPU and for
    an environment without a processor. `now` may lack the fields of the backend, as returned by `here`.
    """
    device = str(now["device"])
    if device == "cpu" and "processor" in learned:
        own = [*_of_processor(learned, now)]
    else:
        name = label_of(device, now)
        own = [] if label == name else [Difference("device", label, name)]
    return (*own, *_fields(FIELDS, learned, now))


def differences_of_device(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any]
) -> tuple[Difference, ...]:
    """The differences that mean another device: a CPU's processor and threads, a GPU's name."""
    return tuple(d for d in differences(label, learned, now) if d.of_device)


def _of_processor(learned: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    facts = learned["processor"], now["processor"]
    if learned.get("cpu") != now.get("cpu") or any(_fields(("vendor", *IDENTITY), *facts)):
        yield Difference("processor", _kind(learned), _kind(now))
    # The threads that a framework may use: those asked for, or those of the machine.
    then, here = (w.get("threads_asked", w["processor"].get("threads")) for w in (learned, now))
    if None not in (then, here) and then != here:
        yield Difference("threads_given", then, here)


def _fields(
    names: Iterable[str], learned: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield the differences between fields that both environments have."""
    for name in names:
        if name in learned and name in now and learned[name] != now[name]:
            yield Difference(name, learned[name], now[name])


def _kind(where: Mapping[str, Any]) -> str:
    """The processor's name with its identity numbers, because two kinds may have one name."""
    facts = where["processor"]
    words = [f"{k} {facts[k]}" for k in ("vendor", *IDENTITY) if k in facts]
    return f"{where.get('cpu')} ({' '.join(words)})" if words else str(where.get("cpu"))
