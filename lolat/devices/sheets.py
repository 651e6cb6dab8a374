"""What a device can do at most: from its data sheet, or from the fastest of what was timed on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lolat.devices.times import Times
from lolat.errors import InputError
from lolat.io.tables import ABOVE_ZERO, read_table
from lolat.units import shortened

OF_PEAK = 0.85  # of a data sheet's rate, that large products reach
OFF_OF_SHEET, OFF_OF_FASTEST, OFF_OF_NOTHING = 0.1, 0.5, 3.0
"""How far off a device's rate is, as a logarithm: of a data sheet, a table's fastest, of nothing."""
NEEDED_FACTS = ("multiprocessors", "fp32_matrix_gflops", "bandwidth_gb_s")
POWER_FACTS = ("power_w", "l2_mb", "fp32_vector_gflops")
"""Columns of a data sheet."""
TF32_FACT = "tf32_gflops"
"""The same of GPUs that have TF32 (NVIDIA's from Ampere on), without sparsity."""
OF_TF32 = 0.5
"""What convolutions reach of a data sheet's rate in TF32, where large products of float32 reach OF_PEAK."""
GFLOPS_PER_WATT, CACHE_EXPONENT, POWER_EXPONENT = 44.0, 0.35, 0.65
REACHED, REACHED_WHOLE = 0.9, 0.5
"""Of a data sheet's rates, by the fastest operation of a table; by the fastest network."""


@dataclass(frozen=True)
class Facts:
    """Of a device: multiprocessors, macs per ms and bytes per ms.

    `width`: how far off the rate may be, as a logarithm; `bound`: whether its power keeps down what runs
    for long; `tf32`: how many times the rate convolutions are computed at in TF32, 1 of a device without.
    """

    multiprocessors: float
    rate: float
    bandwidth: float
    width: float = OFF_OF_SHEET
    bound: bool = False
    tf32: float = 1.0


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
    part = sustained(gflops, *power) if all(map(row.get, POWER_FACTS)) else 1.0
    tf32_gflops = row.number(TF32_FACT, ABOVE_ZERO, expected=above_zero, default=1.0)
    tf32 = max(OF_TF32 * tf32_gflops / (OF_PEAK * part * gflops), 1.0)
    rate, bandwidth = part * gflops * 1e6 / 2, gigabytes * 1e6
    return Facts(multiprocessors, rate, bandwidth, bound=part < OF_PEAK, tf32=tf32)


def sustained(gflops: float, watts: float, cache_mib: float, vector_gflops: float) -> float:
    """The part of its rate that a device sustains on its power.

    What a watt computes grows with the generation, of which the size of the L2 cache is the only trace in
    a data sheet's usual columns: GFLOPS_PER_WATT at 3 MiB (of devices that power does not bind: some 38
    GFLOPS a watt of a P100 with 4 MiB, 56 of a V100 with 6, 78 of an A100 with 40, 96 of an H100 with 50);
    units for matrices compute as much more as their rate is higher. Where the rate would need more, clock
    and voltage go down, and the rate less than the power.
    """
    efficient = (
        GFLOPS_PER_WATT * (cache_mib / 3.0) ** CACHE_EXPONENT * max(1.0, gflops / vector_gflops)
    )
    return float(min(1.0, (efficient * watts / gflops) ** POWER_EXPONENT))


def seen_facts(times: Times) -> Facts:
    """What the fastest of a table reached, where there is no data sheet; without multiprocessors."""
    reached = np.where(times.whole, REACHED_WHOLE, REACHED) * times.latency_ms
    macs = float((times.total(times.work.macs) / reached).max())
    moved = float((times.total(times.work.bytes) / reached).max())
    return Facts(1.0, macs or moved, moved, OFF_OF_NOTHING if times.whole.any() else OFF_OF_FASTEST)
