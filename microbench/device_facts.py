"""Facts of the device that layers were measured on, as the companion knows those of GPUs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lolat.mlp.devices import DEVICES, Device, find, known, merged
from microbench.environment import cpu_count
from microbench.processor import SYSTEM, text
from microbench.timer import Clock

COPY_BYTES = 256 * 2**20  # more than caches hold
COPIES = 5
USUAL_CLOCK_MHZ = 2500.0  # where the system does not say

# What /proc/cpuinfo calls the vector units -> float32 multiply-accumulates per processor and clock: two
# units of 16, 8 or 4 numbers.
_LANES = (("avx512f", 32), ("fma", 16), ("asimd", 8))
_FEWEST_LANES = 4


def device_facts(
    device: str,
    name: str,
    given: Mapping[str, Device],
    measure: Callable[[str], Device] | None = None,
) -> Device:
    """The facts of the device called `name`: those `given`, or built in, or, of a CPU, found here.

    `measure`: how they are found, `cpu_facts` if None. InputError for a GPU that is not known.
    """
    devices = merged(DEVICES, given)
    found = find(name, devices)
    if found is not None:
        return found
    if device == "cpu":
        return (measure or cpu_facts)(name)
    return known([name], devices)[name]


def cpu_facts(name: str, system: Path = SYSTEM, clock: Clock = time.perf_counter) -> Device:
    """What this computer's processors can do, in the terms of a GPU.

    Bandwidth: a copy of COPY_BYTES by all processors, counted as read and written, the fastest of
    COPIES. Cores: what multiplies and accumulates one float32 number per clock, so 16 or 32 per processor
    with wide vector units. Clock: the highest that the system says, USUAL_CLOCK_MHZ if it says none.
    """
    return Device(
        name,
        bandwidth_gbs=round(copy_bandwidth(cpu_count(), clock), 1),
        cores=cpu_count() * _lanes(system),
        clock_mhz=_clock_mhz(system),
    )


def copy_bandwidth(threads: int, clock: Clock, size_bytes: int = COPY_BYTES) -> float:
    """GB/s (1e9 bytes) that `threads` threads read and write while copying `size_bytes`; best of COPIES."""
    source = np.ones(size_bytes, np.uint8)
    target = np.empty_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(COPIES + 1):  # the first one gets the memory from the system
            start = clock()
            list(pool.map(lambda part: np.copyto(*part), parts))
            best = min(best, clock() - start)
    return 2 * size_bytes / best / 1e9


def _lanes(system: Path) -> int:
    info = text(system / "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", info, re.MULTILINE)
    words = set(flags.group(1).split()) if flags else set()
    if not words and sys.platform == "darwin":
        words = {"asimd"}
    return next((lanes for word, lanes in _LANES if word in words), _FEWEST_LANES)


def _clock_mhz(system: Path) -> float:
    said = text(system / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    if said.isdigit() and int(said) > 0:
        return int(said) / 1e3
    now = re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", text(system / "proc/cpuinfo"), re.MULTILINE)
    return max(map(float, now), default=USUAL_CLOCK_MHZ)
