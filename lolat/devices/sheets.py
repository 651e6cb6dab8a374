"""What a device can do at most: from its data sheet, or from the fastest of what was timed on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lolat.devices.times import Times
from lolat.errors import InputError, arg
from lolat.fitting.gpus import OF_PEAK, Gpu, find_gpu
from lolat.fitting.predictors.kernels import TILE
from lolat.graph.modes import FLOAT32, TF32
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.units import shortened

OFF_OF_SHEET, OFF_OF_FASTEST, OFF_OF_NOTHING = 0.1, 0.5, 3.0
"""How far off a device's rate is, as a logarithm: of a data sheet, a table's fastest, of nothing."""
NEEDED_FACTS = ("multiprocessors", "fp32_matrix_gflops", "bandwidth_gb_s")
PLAUSIBLE = {
    "multiprocessors": (1, 2000), "fp32_matrix_gflops": (20, 2e6), "bandwidth_gb_s": (2, 5e4)
}  # fmt: skip
UNITS = {"multiprocessors": "number", "fp32_matrix_gflops": "GFLOPS", "bandwidth_gb_s": "GB/s"}
REACHED, REACHED_WHOLE = 0.9, 0.5
"""Of a data sheet's rates, by the fastest operation of a table; by the fastest network."""


KEPT = {
    "memory_gib": ("memory_gib", 1.0), "memory_gb": ("memory_gib", 1.0),
    "bandwidth_gb_s": ("bandwidth_gb_s", 1.0), "multiprocessors": ("multiprocessors", 1.0),
    "fp32_vector_gflops": ("vector_tflops", 1e3), "fp32_matrix_gflops": ("fp32_tflops", 1e3),
    "tf32_gflops": ("tf32_tflops", 1e3), "half_tflops": ("half_tflops", 1.0),
    "l2_mb": ("l2_mib", 1.0), "power_w": ("power_w", 1.0),
}  # fmt: skip
"""A column of a table of data sheets, rates without sparsity -> the field of `Gpu`, and how many make one
of its units. A GPU's GB of memory are GiB, whatever its maker calls them."""


@dataclass(frozen=True)
class Facts:
    """Of a device: multiprocessors, macs per ms and bytes per ms.

    `width`: how far off the rate may be, as a logarithm; `bound`: whether its power keeps down what runs
    for long; `tile`: outputs, high and wide, that products are cut into, 1 for none; `gpu`: its data sheet,
    None where there is none.
    """

    multiprocessors: float
    rate: float
    bandwidth: float
    width: float = OFF_OF_SHEET
    bound: bool = False
    tile: float = TILE
    gpu: Gpu | None = None

    @property
    def tf32(self) -> float:
        """How many times the rate convolutions of float32 are computed at in TF32; 1 without it."""
        return 1.0 if self.gpu is None else self.gpu.tf32

    def most(self, dtype: str) -> tuple[float, float]:
        """Macs and bytes per ms that the data sheet has in a data type of a mode, infinite where nobody
        said them; of TF32 the macs of float32, to which `tf32` is relative.
        """
        peak = self.gpu and self.gpu.peak(FLOAT32 if dtype == TF32 else dtype)
        moved = self.gpu and self.gpu.bandwidth_gb_s
        return peak * 1e9 / 2 if peak else np.inf, moved * 1e6 if moved else np.inf


def read_facts(path: str | Path, device: str) -> Facts:
    """The facts of `device` from a table with the columns device and NEEDED_FACTS, and where known more of
    KEPT; what it lacks is that of the sheet that comes along. InputError.
    """
    row, sheet = _row(path, device, NEEDED_FACTS), given_sheet(path, device)
    for name in NEEDED_FACTS:
        low, high = PLAUSIBLE[name]
        if not low <= row.number(name) <= high:
            raise row.wrong(name, f"{low:,g} to {high:,g}, as of any device, in {UNITS[name]}")
    return _facts_of(replace(find_gpu(device) or Gpu(device), **sheet))


def listed_facts(device: str) -> Facts:
    """The facts of a GPU by its name, from the data sheets that come along; InputError."""
    gpu = find_gpu(device)
    if gpu is None or None in (gpu.fp32_tflops, gpu.multiprocessors, gpu.bandwidth_gb_s):
        raise InputError(
            f"{arg('name')} {shortened(device)!r}: no data sheet of it comes along; expected tables of its "
            f"times, or its sheet as {arg('facts')}",
            code="name",
        )
    return _facts_of(gpu)


def _facts_of(gpu: Gpu) -> Facts:
    """The facts of a sheet that has NEEDED_FACTS."""
    rate, peak = gpu.rate(FLOAT32) or 0.0, gpu.peak(FLOAT32) or 0.0
    return Facts(
        gpu.multiprocessors or 1.0, rate * 1e9 / 2, (gpu.bandwidth_gb_s or 0.0) * 1e6,
        bound=rate < OF_PEAK * peak, gpu=gpu,
    )  # fmt: skip


def given_sheet(path: str | Path, device: str) -> dict[str, Any]:
    """What a table of data sheets says of `device` that a model file keeps (`lolat.fitting.gpus.Gpu`)."""
    row, above_zero = _row(path, device), f"a number above 0 for {device}"
    return {
        name: row.number(column, ABOVE_ZERO, expected=above_zero) / unit
        for column, (name, unit) in KEPT.items()
        if row.get(column)
    }


def _row(path: str | Path, device: str, needed: Sequence[str] = ()) -> Row:
    """The row of `device` in a table of data sheets; InputError."""
    rows = {row["device"]: row for row in read_table(path, ("device", *needed), rows="device")}
    if device not in rows:
        known = shortened(", ".join(rows))
        raise InputError(f"{path} has no device {device!r}; it has {known}", code="name")
    return rows[device]


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


def seen_facts(times: Times, gpu: Gpu | None = None) -> Facts:
    """What the fastest of a table reached, where no facts were given; without multiprocessors. `gpu`: the
    sheet that comes along of the device.
    """
    reached = np.where(times.whole, REACHED_WHOLE, REACHED) * times.latency_ms
    macs = float((times.total(times.work.macs) / reached).max())
    moved = float((times.total(times.work.bytes) / reached).max())
    width = OFF_OF_NOTHING if times.whole.any() else OFF_OF_FASTEST
    return Facts(1.0, macs or moved, moved, width, gpu=gpu)
