"""The specs of a device that a fit starts from, taken from a user's table or a bundled data sheet.

The bundled data sheets are the rows of gpus.csv (`lolat.hardware.gpus`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, arg
from lolat.graph.modes import FLOAT32, TF32, Mode
from lolat.hardware.card_names import find_gpu
from lolat.hardware.gpus import MACS_MS_OF_TFLOPS, OF_PEAK, SHEET_FIELDS, Gpu
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.units import shortened

LOG_ERROR_OF_SHEET, LOG_ERROR_OF_FASTEST, LOG_ERROR_OF_UNKNOWN = 0.1, 0.5, 3.0
"""Assumed log errors of a rate. OF_SHEET: from a data sheet. OF_FASTEST: from a sheet's half precision, or
from a table's fastest operation. OF_UNKNOWN: from a table's fastest network, or an unknown rate."""
USUAL_VECTOR_SHARE = 0.5
"""The vector units' float32 rate / the matrix units' half-precision rate, of RTX 3090 and 4090."""
PLAUSIBLE = {
    "multiprocessors": (1, 2000, 0.0, ""),
    "fp32_matrix_gflops": (20, 2e6, 2.0, " GFLOPS"),
    "bandwidth_gb_s": (2, 5e4, 0.1, " GB/s"),
}
"""Required column -> (least value of any device, largest value, least value per multiprocessor or core,
unit).

Each multiprocessor of a GPU has at least 200 GFLOPS and 5 GB/s; values in TFLOPS and TB/s would be below 1
and 0.06.
"""
MOST_FLOPS_A_BYTE = 5e3
"""Most FLOPs, in any data type, per byte of bandwidth: GPUs have 40 to 420 in BF16, 1,130 in FP4."""
MOST_SECONDS_OF_MEMORY = 16.0
"""Most seconds to read the whole memory once: GPUs take 0.02 to 1, and 18 or more if MiB were given as
GiB."""
MOST_L2_MB, MOST_POWER_W = 2e3, 2e4
"""Most MB of cache and most watts of a device: the largest devices have 256 and 1,400. Values in KB and
milliwatts are above these limits."""
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
"""Column of a table of data sheets -> (field of `Gpu`, or the column's own name for links and machines,
number of the column's units in one unit of the field). Rates exclude sparsity."""


@dataclass(frozen=True)
class Specs:
    """A device's number of multiprocessors, rate in MACs per ms, and bandwidth in bytes per ms.

    `width`: log error of the rate; `power_bound`: True if power limits long runs; `tile`: height and width
    of a product's tiles, None for the usual size, 1 without tiles; `gpu`: the data sheet or None.
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
        """Speed of convolutions in TF32 / in float32; 1 without TF32."""
        return 1.0 if self.gpu is None else self.gpu.tf32

    def of_dtype(self, dtype: str) -> Specs:
        """The specs for half precision: the sheet's rate in `dtype`, or without one an unknown rate."""
        rate = self.gpu and self.gpu.rate(dtype)
        if not rate:
            return replace(self, width=LOG_ERROR_OF_UNKNOWN)
        return replace(
            self, rate=rate * MACS_MS_OF_TFLOPS, width=LOG_ERROR_OF_FASTEST, power_bound=False
        )

    def vector_share(self, mode: Mode) -> float:
        """The float32 rate of the vector units / `rate`, in a mode.

        USUAL_VECTOR_SHARE in half precision without a data sheet, and with channels last, for which cuDNN
        has kernels of its own: an H100's times contradict its vector units' rate there.
        """
        if not mode.half:
            return 1.0
        vectors = None if mode.runs_channels_last else self.gpu and self.gpu.vector_tflops
        return vectors * MACS_MS_OF_TFLOPS / self.rate if vectors else USUAL_VECTOR_SHARE

    def most(self, dtype: str) -> tuple[float, float]:
        """(peak MACs per ms, bytes per ms) of the data sheet in a data type of a mode; infinite if unknown.

        For TF32 the MACs are those of float32, because `tf32` is relative to float32.
        """
        peak = self.gpu and self.gpu.peak(FLOAT32 if dtype == TF32 else dtype)
        moved = self.gpu and self.gpu.bandwidth_gb_s
        return peak * MACS_MS_OF_TFLOPS if peak else np.inf, moved * 1e6 if moved else np.inf


def read_specs(path: str | Path, device: str) -> Specs:
    """Read the specs of `device` from a table with the columns device, PLAUSIBLE, and any of KEPT.

    The bundled sheet of the device fills missing columns. InputError for a missing row or an implausible
    value.
    """
    row = sheet_row(path, device, (*PLAUSIBLE,))
    for name, (low, high, _, unit) in PLAUSIBLE.items():
        if not low <= row.number(name) <= high:
            raise row.wrong(name, f"{low:,g} to {high:,g}{unit}, as of any device")
    return _specs_of(filled_sheet(device, given_sheet(row)))


def listed_specs(device: str) -> Specs:
    """The specs of a GPU from the bundled data sheets, by name; InputError if there are none."""
    gpu = find_gpu(device)
    if gpu is None or None in (gpu.fp32_tflops, gpu.multiprocessors, gpu.bandwidth_gb_s):
        raise InputError(
            f"{arg('name')} {shortened(device)!r}: no data sheet of it is bundled; expected tables of its "
            f"times, or its sheet as {arg('facts')}",
            code="name",
        )
    return _specs_of(gpu)


def _specs_of(gpu: Gpu) -> Specs:
    """The specs from a sheet with the PLAUSIBLE columns."""
    rate, peak = gpu.rate(FLOAT32) or 0.0, gpu.peak(FLOAT32) or 0.0
    return Specs(
        gpu.multiprocessors or 1.0, rate * MACS_MS_OF_TFLOPS, (gpu.bandwidth_gb_s or 0.0) * 1e6,
        power_bound=rate < OF_PEAK * peak, gpu=gpu,
    )  # fmt: skip


def filled_sheet(device: str, given: Mapping[str, Any]) -> Gpu:
    """The sheet of `device`: the `given` fields, and the others from its bundled sheet."""
    sheet = {name: value for name, value in given.items() if name in SHEET_FIELDS}
    return replace(find_gpu(device) or Gpu(device), **sheet)


def given_sheet(row: Row) -> dict[str, Any]:
    """The fields of KEPT in a row of a table of data sheets, as a device's profile stores them."""
    row.whole("gpus_per_node", default=1)
    given = ((name, unit, column) for column, (name, unit) in KEPT.items() if row.get(column))
    return {name: above_zero(row, column) / unit for name, unit, column in given}


def sheet_row(path: str | Path, device: str, needed: Sequence[str] = ()) -> Row:
    """The row of a device in a table of data sheets.

    InputError if there is no such row, or if its values are in TB/s or TFLOPS in place of GB/s or GFLOPS.
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
    """Raise InputError for values that contradict each other, as in wrong units."""
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
