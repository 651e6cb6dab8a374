"""The specs of a device that a fit begins with, from a user's table or a bundled data sheet.

The bundled data sheets are the rows of gpus.csv (`lolat.hardware.gpus`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, arg
from lolat.graph.modes import FLOAT32, TF32
from lolat.hardware.card_names import find_gpu
from lolat.hardware.gpus import MACS_MS_OF_TFLOPS, OF_PEAK, SHEET_FIELDS, Gpu
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.units import shortened

LOG_ERROR_OF_SHEET, LOG_ERROR_OF_FASTEST, LOG_ERROR_OF_UNKNOWN = 0.1, 0.5, 3.0
"""Assumed log errors of a rate: from a data sheet; from a sheet in half precision or from a table's fastest
operation; from a table's fastest network, or unknown."""
PLAUSIBLE = {
    "multiprocessors": (1, 2000, 0.0, ""),
    "fp32_matrix_gflops": (20, 2e6, 2.0, " GFLOPS"),
    "bandwidth_gb_s": (2, 5e4, 0.1, " GB/s"),
}
"""Needed column -> the least and the most of any device, the least of a multiprocessor or core, the unit.

GPUs have 200 GFLOPS and 5 GB/s or more for each; in TFLOPS and TB/s less than 1 and 0.06."""
MOST_FLOPS_A_BYTE = 5e3
"""Most FLOPs of any data type for a byte of bandwidth: GPUs have 40 to 420 in BF16, 1,130 in FP4."""
MOST_SECONDS_OF_MEMORY = 16.0
"""Most seconds to read all memory once: GPUs take 0.02 to 1, and 18 or more where MiB stand for GiB."""
MOST_L2_MB, MOST_POWER_W = 2e3, 2e4
"""Most MB of cache and watts of a device: the largest have 256 and 1,400; KB and milliwatts are above."""
KEPT = {
    "memory_gib": ("memory_gib", 1.0), "bandwidth_gb_s": ("bandwidth_gb_s", 1.0),
    "multiprocessors": ("multiprocessors", 1.0),
    "fp32_vector_gflops": ("vector_tflops", 1e3), "fp32_matrix_gflops": ("fp32_tflops", 1e3),
    "tf32_gflops": ("tf32_tflops", 1e3), "half_tflops": ("half_tflops", 1.0),
    "bf16_tflops": ("bf16_tflops", 1.0), "fp8_tflops": ("fp8_tflops", 1.0),
    "fp4_tflops": ("fp4_tflops", 1.0),
    "l2_mb": ("l2_mib", 1.0), "power_w": ("power_w", 1.0),
    "link_gb_s": ("link_gb_s", 1.0), "gpus_per_node": ("gpus_per_node", 1.0),
}  # fmt: skip
"""Column of a table of data sheets -> (field of `Gpu`, of a link or machine its own name; number of the
column's units in one of the field's). Rates exclude sparsity."""


@dataclass(frozen=True)
class Specs:
    """A device's multiprocessors, its rate in MACs per ms and its bandwidth in bytes per ms.

    `width`: log error of the rate; `power_bound`: true if power limits long runs; `tile`: height and width
    of a product's tiles, None for the usual, 1 without tiles; `gpu`: the data sheet, None without one.
    """

    multiprocessors: float
    rate: float
    bandwidth: float
    width: float = LOG_ERROR_OF_SHEET
    power_bound: bool = False
    tile: float | None = None
    gpu: Gpu | None = None

    @property
    def tf32(self) -> float:
        """The speedup of convolutions in TF32 over float32; 1 without TF32."""
        return 1.0 if self.gpu is None else self.gpu.tf32

    def of_dtype(self, dtype: str) -> Specs:
        """The specs in half precision: with the sheet's rate in it, or an unknown one."""
        rate = self.gpu and self.gpu.rate(dtype)
        if not rate:
            return replace(self, width=LOG_ERROR_OF_UNKNOWN)
        return replace(
            self, rate=rate * MACS_MS_OF_TFLOPS, width=LOG_ERROR_OF_FASTEST, power_bound=False
        )

    def most(self, dtype: str) -> tuple[float, float]:
        """Peak MACs and bytes per ms of the data sheet in a data type of a mode, infinite if unknown.

        For TF32 the MACs are those of float32, to which `tf32` is relative.
        """
        peak = self.gpu and self.gpu.peak(FLOAT32 if dtype == TF32 else dtype)
        moved = self.gpu and self.gpu.bandwidth_gb_s
        return peak * MACS_MS_OF_TFLOPS if peak else np.inf, moved * 1e6 if moved else np.inf


def read_specs(path: str | Path, device: str) -> Specs:
    """Read the specs of `device` from a table with the columns device, PLAUSIBLE and any of KEPT.

    The bundled sheet of the device fills missing columns. InputError for no row or an implausible value.
    """
    row = sheet_row(path, device, (*PLAUSIBLE,))
    for name, (low, high, _, unit) in PLAUSIBLE.items():
        if not low <= row.number(name) <= high:
            raise row.wrong(name, f"{low:,g} to {high:,g}{unit}, as of any device")
    return _specs_of(filled_sheet(device, given_sheet(row)))


def listed_specs(device: str) -> Specs:
    """The specs of a GPU by its name, from the bundled data sheets. InputError if there is none."""
    gpu = find_gpu(device)
    if gpu is None or None in (gpu.fp32_tflops, gpu.multiprocessors, gpu.bandwidth_gb_s):
        raise InputError(
            f"{arg('name')} {shortened(device)!r}: no data sheet of it is bundled; expected tables of its "
            f"times, or its sheet as {arg('facts')}",
            code="name",
        )
    return _specs_of(gpu)


def _specs_of(gpu: Gpu) -> Specs:
    """The specs of a sheet that has the PLAUSIBLE columns."""
    rate, peak = gpu.rate(FLOAT32) or 0.0, gpu.peak(FLOAT32) or 0.0
    return Specs(
        gpu.multiprocessors or 1.0, rate * MACS_MS_OF_TFLOPS, (gpu.bandwidth_gb_s or 0.0) * 1e6,
        power_bound=rate < OF_PEAK * peak, gpu=gpu,
    )  # fmt: skip


def filled_sheet(device: str, given: Mapping[str, Any]) -> Gpu:
    """The sheet of `device` with the `given` fields; its bundled sheet fills the others."""
    sheet = {name: value for name, value in given.items() if name in SHEET_FIELDS}
    return replace(find_gpu(device) or Gpu(device), **sheet)


def given_sheet(row: Row) -> dict[str, Any]:
    """The sheet in a device's profile, from the row of a table of data sheets: fields of KEPT."""
    row.whole("gpus_per_node", default=1)
    given = ((name, unit, column) for column, (name, unit) in KEPT.items() if row.get(column))
    return {name: above_zero(row, column) / unit for name, unit, column in given}


def sheet_row(path: str | Path, device: str, needed: Sequence[str] = ()) -> Row:
    """The row of a device in a table of data sheets.

    InputError if there is none, or if it has columns in TB/s or TFLOPS for GB/s or GFLOPS.
    """
    rows = read_table(path, ("device", *needed), rows="device").by("device")
    if device not in rows:
        known = shortened(", ".join(rows))
        raise InputError(f"{path} has no device {device!r}; it has {known}", code="name")
    _check_units(rows[device])
    return rows[device]


def above_zero(row: Row, column: str) -> float:
    """The number in a cell of a data sheet; InputError unless it is above 0."""
    return row.number(column, ABOVE_ZERO, expected=f"a number above 0 for {row['device']}")


def _check_units(row: Row) -> None:
    """InputError for columns that contradict each other."""
    rates = [name for name in KEPT if name.endswith(("tflops", "gflops"))]
    columns = [
        name for name in (*PLAUSIBLE, *rates, "memory_gib", "l2_mb", "power_w") if row.get(name)
    ]
    given = {name: above_zero(row, name) for name in columns}
    units = given.get("multiprocessors", 0.0)
    for name, (_, _, each, unit) in PLAUSIBLE.items():
        if given.get(name, np.inf) < each * units:
            least = f"{each * units:,g}{unit} or more"
            raise row.wrong(name, f"{least}, by {units:g} multiprocessors")
    bandwidth = given.get("bandwidth_gb_s", np.inf)
    flops, seconds = MOST_FLOPS_A_BYTE * bandwidth, MOST_SECONDS_OF_MEMORY * bandwidth
    most = {
        name: (flops, "GFLOPS") if "gflops" in name else (flops / 1e3, "TFLOPS") for name in rates
    }
    for name, (high, unit) in (most | {"memory_gib": (seconds, "GiB")}).items():
        if given.get(name, 0.0) > high:
            raise row.wrong(name, f"at most {high:,g} {unit}, by {bandwidth:g} GB/s")
    for name, high in (("l2_mb", MOST_L2_MB), ("power_w", MOST_POWER_W)):
        if given.get(name, 0.0) > high:
            raise row.wrong(name, f"at most {high:,g}, as of any device")
