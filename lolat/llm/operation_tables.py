"""Reads tables of a GPU's timed operations, and of data sheets."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError
from lolat.hardware.links import MACHINE, PEAKS
from lolat.hardware.specs import above_zero, filled_sheet, given_sheet, sheet_row
from lolat.io.progress import Warn, nobody
from lolat.io.tables import Row, read_table, say_unread
from lolat.llm.decoder import CACHE_BYTES, WEIGHT_BYTES
from lolat.llm.gpu import Sheet, sheet_of
from lolat.llm.kernel_models import KERNEL_MODELS, WORK
from lolat.llm.kernels import RATES, Sizes
from lolat.tables.devices import rows_of_devices
from lolat.units import as_number, percent

MOST_SIZE, MOST_SKEW = 1e12, 4.0
SHEET = ("bandwidth_gb_s", "memory_gib", "bf16_tflops")
"""The columns that a table of data sheets needs."""
TimedOperations = dict[str, tuple[Sizes, np.ndarray]]
"""Data type -> (sizes, (rows,) ms) of one operation."""
TimedTables = dict[str, TimedOperations]
"""Operation -> its `TimedOperations`."""


def read_sheet(path: str | Path, device: str) -> Sheet:
    """Read the data sheet of `device` in a table with the columns SHEET and any of `Sheet`.

    The bundled data sheet of the device fills missing columns. InputError for an empty cell of SHEET, or if
    the number of multiprocessors is not known.
    """
    row = sheet_row(path, device, SHEET)
    for name in SHEET:
        above_zero(row, name)
    given = given_sheet(row)
    gpu = filled_sheet(device, given)
    sheet = sheet_of(gpu, given.get("link_gb_s", PEAKS.get(gpu.link)))
    if sheet is None:
        what = "has no multiprocessors; expected their number, from its data sheet"
        raise InputError(f"{path}: {device} {what}", code="multiprocessors")
    return msgspec.structs.replace(sheet, gpus_per_node=given.get("gpus_per_node", MACHINE))


def read_operations(
    *paths: str | Path,
    devices: Collection[str] = (),
    warn: Warn = nobody,
    sheet: Sheet | None = None,
) -> TimedTables:
    """Read sizes and (rows,) ms by operation and data type; InputError names a wrong row.

    `devices`: see `rows_of`; `warn`: called with a warning on columns that are not read; `sheet`: the GPU's
    data sheet; a row that exceeds its rates is refused.
    """
    made: TimedTables = {}
    for path in paths:
        found = rows_of(path, devices)
        for (name, dtype), rows in found.items():
            ms = np.array([row.milliseconds() for row in rows])
            sizes = sizes_of(name, rows)
            if sheet and name in WORK:
                _refuse_faster(rows, dtype, ms, sheet, *WORK[name](sizes, dtype))
            made.setdefault(name, {})[dtype] = sizes, ms
        say_unread((rows[0] for rows in found.values()), warn)
    return made


CACHED, BOOST = 256e6, 1.1
"""Bytes that may come from a cache (MI300X's is the largest); the largest ratio of a rate to the data
sheet's, which faster clocks may reach."""


def _refuse_faster(
    rows: Sequence[Row], dtype: str, ms: np.ndarray, sheet: Sheet, flops: Any, moved: Any
) -> None:
    """Raise InputError for a row that computes or moves more in its time than the data sheet allows."""
    peaks = filter(None, (getattr(sheet, RATES[one]) for one in dtype.split("/")))
    for did, found, unit, most in (
        ("computes", 1e-9 * flops / ms, "TFLOPS", max(peaks, default=math.inf)),
        ("moves", 1e-6 * (moved - CACHED) / ms, "GB/s", sheet.bandwidth_gb_s),
    ):
        worst = int(found.argmax())
        if found[worst] > BOOST * most:
            raise rows[worst].refused(
                f"{rows[worst]['op']} in {dtype} {did} {found[worst]:,.0f} {unit}, "
                f"{percent(found[worst] / most)} of the data sheet's; expected latency_ms in "
                "milliseconds, and the data sheet of the GPU that it was timed on"
            )


def rows_of(
    path: str | Path, devices: Collection[str] = (), argument: str = "name"
) -> dict[tuple[str, str], list[Row]]:
    """Group a table's rows by operation and data type (of attention: queries/cache); InputError for a wrong
    cell.

    `devices`, `argument`: choose the rows in a table of several devices, see `rows_of_devices`.
    """
    found: dict[tuple[str, str], list[Row]] = {}
    expected = "expected op, dtype, latency_ms, and the sizes of the operation"
    table = read_table(path, ("op", "dtype", "latency_ms"), expected)
    if len({*filter(None, table.cells("device"))}) > 1:
        table = rows_of_devices(table, devices, argument)
    for row in table:
        name = _operation(row)
        allowed: dict[str, Mapping[str, Any]] = {"dtype": WEIGHT_BYTES}
        if KERNEL_MODELS[name].cached:
            allowed["kv_dtype"] = CACHE_BYTES
        for column, names in allowed.items():
            if row.get(column) not in names:
                raise row.wrong(column, f"one of {', '.join(names)}")
        found.setdefault((name, "/".join(row[column] for column in allowed)), []).append(row)
    return found


def _operation(row: Row) -> str:
    """The name of a row's operation; each kernel of a gated delta network has its own name."""
    name = row["op"]
    if name == "gated_delta":
        kernel = "conv" if "conv" in row.get("kernel", "") else "rule"
        name = f"delta_{kernel}_{row.get('phase')}"
        if name not in KERNEL_MODELS:
            raise row.wrong("phase", "context or generation")
    if name not in KERNEL_MODELS:
        known = [name for name in KERNEL_MODELS if not name.startswith("delta_")]
        raise row.wrong("op", f"one of {', '.join(known)}, gated_delta")
    return name


def sizes_of(name: str, rows: Sequence[Row]) -> Sizes:
    """(rows,) sizes of an operation by column; InputError names a wrong row."""
    return {c: np.array([_size(row, c) for row in rows]) for c in KERNEL_MODELS[name].columns}


def _size(row: Row, column: str) -> float:
    """Read a size of an operation; the skew of tokens over experts is in the column `distribution`."""
    if column == "skew":
        text = row.get("distribution") or "balanced"
        kind, _, exponent = text.rpartition("_")
        value = as_number(exponent) if kind == "power_law" else 0.0 if text == "balanced" else -1.0
        if not 0.0 <= value <= MOST_SKEW:
            raise row.wrong("distribution", "balanced, or power_law_ and its exponent")
        # The integrals of `Loads` are logarithms for whole exponents.
        return value + 1e-3 if value in (1.0, 2.0, 3.0) else value
    least, default = (0.0, 0.0) if column == "window" else (1.0, None)
    return float(row.number(column, least, MOST_SIZE, f"a number from {least:g}", default))
