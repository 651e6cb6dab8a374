"""What a device can do at most: from its data sheet, or from the fastest of what was timed on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lolat.devices.times import Times
from lolat.errors import InputError, arg
from lolat.fitting.gpus import OF_PEAK, OF_TF32, find_gpu, sustained
from lolat.fitting.predictors.kernels import TILE
from lolat.graph.modes import FLOAT32
from lolat.io.tables import ABOVE_ZERO, read_table
from lolat.units import shortened

OFF_OF_SHEET, OFF_OF_FASTEST, OFF_OF_NOTHING = 0.1, 0.5, 3.0
"""How far off a device's rate is, as a logarithm: of a data sheet, a table's fastest, of nothing."""
NEEDED_FACTS = ("multiprocessors", "fp32_matrix_gflops", "bandwidth_gb_s")
PLAUSIBLE = {
    "multiprocessors": (1, 2000), "fp32_matrix_gflops": (20, 2e6), "bandwidth_gb_s": (2, 5e4)
}  # fmt: skip
UNITS = {"multiprocessors": "number", "fp32_matrix_gflops": "GFLOPS", "bandwidth_gb_s": "GB/s"}
POWER_FACTS = ("power_w", "l2_mb", "fp32_vector_gflops")
"""Columns of a data sheet."""
TF32_FACT = "tf32_gflops"
"""The same of GPUs that have TF32 (NVIDIA's from Ampere on), without sparsity."""
REACHED, REACHED_WHOLE = 0.9, 0.5
"""Of a data sheet's rates, by the fastest operation of a table; by the fastest network."""


KEPT = {
    "memory_gib": ("memory_gib", 1.0), "memory_gb": ("memory_gib", 1.0),
    "bandwidth_gb_s": ("bandwidth_gb_s", 1.0), "multiprocessors": ("multiprocessors", 1.0),
    "fp32_vector_gflops": ("vector_tflops", 1e3), "fp32_matrix_gflops": ("fp32_tflops", 1e3),
    TF32_FACT: ("tf32_tflops", 1e3), "half_tflops": ("half_tflops", 1.0),
    "l2_mb": ("l2_mib", 1.0), "power_w": ("power_w", 1.0),
}  # fmt: skip
"""A column of a table of data sheets -> the field of `Gpu`, and how many make one of its units. A GPU's
GB of memory are GiB, whatever its maker calls them."""


@dataclass(frozen=True)
class Facts:
    """Of a device: multiprocessors, macs per ms and bytes per ms.

    `width`: how far off the rate may be, as a logarithm; `bound`: whether its power keeps down what runs
    for long; `tf32`: how many times the rate convolutions are computed at in TF32, 1 of a device without;
    `tile`: outputs, high and wide, that products are cut into, 1 for none.
    """

    multiprocessors: float
    rate: float
    bandwidth: float
    width: float = OFF_OF_SHEET
    bound: bool = False
    tf32: float = 1.0
    tile: float = TILE


def read_facts(path: str | Path, device: str) -> Facts:
    """The facts of `device` from a table with the columns device and NEEDED_FACTS, and where known
    POWER_FACTS and TF32_FACT; InputError.
    """
    table = read_table(path, ("device", *NEEDED_FACTS), rows="device")
    rows = {row["device"]: row for row in table}
    if device not in rows:
        known = shortened(", ".join(rows))
        raise InputError(f"{path} has no device {device!r}; it has {known}", code="name")
    row, above_zero = rows[device], f"a number above 0 for {device}"
    multiprocessors, gflops, gigabytes = (
        row.number(name, ABOVE_ZERO, expected=above_zero) for name in NEEDED_FACTS
    )
    power = [row.number(name, ABOVE_ZERO, expected=above_zero, default=1.0) for name in POWER_FACTS]
    for name, value in zip(NEEDED_FACTS, (multiprocessors, gflops, gigabytes), strict=True):
        low, high = PLAUSIBLE[name]
        if not low <= value <= high:
            raise row.wrong(name, f"{low:,g} to {high:,g}, as of any device, in {UNITS[name]}")
    part = sustained(gflops, *power) if all(map(row.get, POWER_FACTS)) else 1.0
    tf32_gflops = row.number(TF32_FACT, ABOVE_ZERO, expected=above_zero, default=1.0)
    tf32 = max(OF_TF32 * tf32_gflops / (OF_PEAK * part * gflops), 1.0)
    rate, bandwidth = part * gflops * 1e6 / 2, gigabytes * 1e6
    return Facts(multiprocessors, rate, bandwidth, bound=part < OF_PEAK, tf32=tf32)


def listed_facts(device: str) -> Facts:
    """The facts of a GPU by its name, from the data sheets that come along; InputError."""
    gpu = find_gpu(device)
    rate, peak = (None, None) if gpu is None else (gpu.rate(FLOAT32), gpu.peak(FLOAT32))
    if gpu is None or None in (rate, peak, gpu.multiprocessors, gpu.bandwidth_gb_s):
        raise InputError(
            f"{arg('name')} {shortened(device)!r}: no data sheet of it comes along; expected tables of its "
            f"times, or its sheet as {arg('facts')}",
            code="name",
        )
    assert rate is not None
    assert peak is not None
    multiprocessors, bandwidth = gpu.multiprocessors or 1.0, (gpu.bandwidth_gb_s or 1.0) * 1e6
    is_bound = rate < OF_PEAK * peak
    return Facts(multiprocessors, rate * 1e9 / 2, bandwidth, bound=is_bound, tf32=gpu.tf32)


def given_sheet(path: str | Path, device: str) -> dict[str, float]:
    """What a table of data sheets says of `device` that a model file keeps (`lolat.fitting.gpus.Gpu`)."""
    row = next(
        row for row in read_table(path, ("device",), rows="device") if row["device"] == device
    )
    return {
        name: row.number(column, ABOVE_ZERO) / unit
        for column, (name, unit) in KEPT.items()
        if row.get(column)
    }


PASSED_OVER = 20  # one row of so many may be faster, as one in seconds
TOO_FAST, TOO_SLOW = 3.0, 30.0
"""Times that a table may be faster than its data sheet, at its fastest (caches, boost clocks, units for
matrices), and slower: more is another unit."""


def check_sheet(facts: Facts, times: Times) -> None:
    """InputError where a data sheet cannot be that of the device of a table, as of other units."""
    reached = times.latency_ms
    for what, unit, sheet, work in (
        ("computes", "multiply-accumulates a ms", facts.rate * facts.tf32, times.work.macs),
        ("moves", "bytes a ms", facts.bandwidth, times.work.bytes),
    ):
        fastest = float(np.sort(times.total(work) / reached)[-1 - len(reached) // PASSED_OVER])
        units = "fp32_matrix_gflops is in GFLOPS, bandwidth_gb_s in GB/s, times in ms"
        if fastest > TOO_FAST * sheet or (what == "computes" and 0 < fastest < sheet / TOO_SLOW):
            raise InputError(
                f"{arg('facts')}: the fastest row of the table {what} {fastest:.3g} {unit}, "
                f"{fastest / sheet:.2g} times what the data sheet says; expected the sheet of the device "
                f"that was timed: {units}",
                code="sheet-and-times",
            )


def seen_facts(times: Times) -> Facts:
    """What the fastest of a table reached, where there is no data sheet; without multiprocessors."""
    reached = np.where(times.whole, REACHED_WHOLE, REACHED) * times.latency_ms
    macs = float((times.total(times.work.macs) / reached).max())
    moved = float((times.total(times.work.bytes) / reached).max())
    return Facts(1.0, macs or moved, moved, OFF_OF_NOTHING if times.whole.any() else OFF_OF_FASTEST)
