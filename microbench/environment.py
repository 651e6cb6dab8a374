"""What machine and what load a run was measured on."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def cpu_model() -> str:
    """The processor's name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def cpu_count() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load() -> float | None:
    """The load average of the last minute; None where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None if the system does not tell."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
        if found:
            return int(found.group(1)) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def device_label(device: str) -> str:
    """A name for the device that is measured: the processor and its threads for a CPU."""
    if device == "cpu":
        count = cpu_count()
        return f"{cpu_model()}, {count} thread{'s' if count != 1 else ''}"
    return device


def slug(text: str) -> str:
    """`text` as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def describe(device: str) -> dict[str, Any]:
    """The environment as stored in a model file, but for the backend's part."""
    return {
        "device": device,
        "cpu": cpu_model(),
        "threads": cpu_count(),
        "memory_bytes": available_bytes(),
        "load_at_start": load(),
        "operating_system": platform.platform(terse=True),
        "python": platform.python_version(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
