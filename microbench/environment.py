"""What machine and what load a run was measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from microbench import processor
from microbench.processor import SYSTEM, text


def cpu_model(system: Path = SYSTEM) -> str:
    """The processor's name."""
    info = text(system / "proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(\S.*)$", info, re.MULTILINE)
    if found:
        return found.group(1).strip()
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine() or "unknown processor"


def cpu_count() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text(system / "proc/meminfo"), re.MULTILINE)
    free = int(found.group(1)) * 1024 if found else _physical_bytes()
    group = system / "sys/fs/cgroup"
    limit, used = (text(group / f"memory.{name}").strip() for name in ("max", "current"))
    if not limit.isdigit() or not used.isdigit():
        return free
    cached = re.search(r"^inactive_file (\d+)$", text(group / "memory.stat"), re.MULTILINE)
    left = max(0, int(limit) - int(used) + (int(cached.group(1)) if cached else 0))
    return left if free is None else min(free, left)


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def processor_facts() -> dict[str, Any]:
    """Which processor this is (`processor.facts`), its name, and how many threads it gives this process."""
    return {"name": cpu_model(), **processor.facts(), "threads": cpu_count()}


def device_label(device: str, name: str | None = None, threads: int | None = None) -> str:
    """A name for the device that is measured: the processor, its kind and its threads for a CPU.

    `name`: what the backend calls another device, if it says (`device_name` of its environment);
    `threads`: None for all that this process may use.
    """
    if device == "cpu":
        return with_threads(processor.label(cpu_model(), processor_facts()), threads)
    return name or device


def with_threads(named: str, threads: int | None = None) -> str:
    """A processor's name and its threads; None for all that this process may use."""
    count = threads or cpu_count()
    return f"{named}, {count} thread{'s' if count != 1 else ''}"


def label_of(device: str, where: Mapping[str, Any]) -> str:
    """`device_label` by what an environment says of the device's name and threads."""
    return device_label(device, where.get("device_name"), where.get("threads_asked"))


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
