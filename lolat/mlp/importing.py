"""The raw files behind Justus et al. 2018 as tables: GPU/run/benchmark_{convolution,dense}_*.pkl -> CSV.

github.com/CDECatapult/ml-performance-prediction, raw_data. What its numbers stand for (which optimiser is
2, say) is in the order of the words in `table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.mlp.devices import DEVICES, find
from lolat.mlp.pickles import read_frame
from lolat.mlp.table import ACTIVATIONS, COLUMNS, LAYERS, OPTIMIZERS, PADDINGS, SPREADS, TIME
from lolat.units import plain

EXPECTED = "expected a folder with GPU/run/benchmark_convolution_*.pkl or benchmark_dense_*.pkl"
_FLAGS = ("0", "1")
# Our column -> the raw one.
_RAW = {
    "batch_size": "batchsize",
    "input_size": "matsize",
    "kernel_size": "kernelsize",
    "in_channels": "channels_in",
    "out_channels": "channels_out",
    "stride": "strides",
    "padding": "padding",
    "use_bias": "use_bias",
    "in_features": "dim_input",
    "out_features": "dim_output",
    "activation": "activation_fct",
    "optimizer": "optimizer",
    TIME: "timeUsed_median",
    "time_ms_min": "timeUsed_min",
    "time_ms_max": "timeUsed_max",
    "time_ms_std": "timeUsed_std",
}
_WORDS: Mapping[str, Sequence[str]] = {
    "padding": PADDINGS,
    "use_bias": _FLAGS,
    "activation": ACTIVATIONS,
    "optimizer": OPTIMIZERS,
}
TIMES = (TIME, *SPREADS)


@dataclass(frozen=True)
class Imported:
    """What the files of one kind of layer gave.

    `columns`: names; `rows`: text cells, those that are possible, each layer of a GPU and run once;
    `files`: how many; `read`: rows in them; `dropped`: rows left out, by reason.
    """

    layer: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    files: int
    read: int
    dropped: Mapping[str, int]

    def to_csv(self) -> str:
        """The table as CSV text; no cell has a comma."""
        lines = [",".join(cells) for cells in (self.columns, *self.rows)]
        return "\n".join(lines) + "\n"


def import_raw(folder: str | Path, done: Callable[[], None] = lambda: None) -> list[Imported]:
    """The tables of all raw files below `folder`, one per kind of layer that there is.

    Files in the order of GPU, run and name, rows in theirs. `done` is called after each file. Raises
    InputError: no such files, or a file that is not what is expected (`pickles.read_frame`).
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{plain(str(folder))} is not a folder; {EXPECTED}")
    found = []
    for layer in LAYERS:
        files = sorted(root.glob(f"*/*/benchmark_{layer}_*.pkl"))
        if files:
            found.append(_layer(layer, files, done))
    if not found:
        raise InputError(f"{plain(str(folder))} has no raw files; {EXPECTED}")
    return found


def raw_files(folder: str | Path) -> int:
    """How many raw files there are below `folder`."""
    return sum(len(list(Path(folder).glob(f"*/*/benchmark_{layer}_*.pkl"))) for layer in LAYERS)


def _layer(layer: str, files: Sequence[Path], done: Callable[[], None]) -> Imported:
    described = COLUMNS[layer][1:]
    rows: list[list[str]] = []
    seen: set[tuple[str, ...]] = set()
    dropped: dict[str, int] = {}
    read = 0
    for path in files:
        frame = read_frame(path)
        gpu, run = _gpu(path.parent.parent.name), path.parent.name
        for cells, reason in _rows(frame, layer, path):
            read += 1
            layer_of = (gpu, run, *cells[: len(described)])
            if reason is None and layer_of in seen:
                reason = "the same layer once more in a run"
            if reason is None:
                seen.add(layer_of)
                rows.append([gpu, run, *cells])
            else:
                dropped[reason] = dropped.get(reason, 0) + 1
        done()
    return Imported(layer, ("gpu", "run", *described, *TIMES), rows, len(files), read, dropped)


def _gpu(folder: str) -> str:
    """The name of a GPU as the built-in table has it; the folder's where it does not."""
    device = find(folder, DEVICES)
    if "," in folder or '"' in folder or not folder.isprintable():
        raise InputError(f"{plain(folder)!r} is no name of a GPU; {EXPECTED}")
    return folder if device is None else device.name


def _rows(
    frame: Mapping[str, np.ndarray], layer: str, path: Path
) -> list[tuple[list[str], str | None]]:
    """Each row's cells in our columns, and why it is impossible (None: it is possible)."""
    names = (*COLUMNS[layer][1:], *TIMES)
    lacking = [_RAW[name] for name in names if _RAW[name] not in frame]
    if lacking:
        raise InputError(
            f"{plain(str(path))} lacks the column{'s' * (len(lacking) > 1)} {', '.join(lacking)}; expected "
            f"a raw file of {layer} layers, with {', '.join(_RAW[name] for name in names)}"
        )
    raw = {name: frame[_RAW[name]].tolist() for name in names}
    precisions = frame["precision"].tolist() if "precision" in frame else [32] * len(raw[TIME])
    found = []
    for values, precision in zip(zip(*raw.values(), strict=True), precisions, strict=True):
        row = dict(zip(names, values, strict=True))
        reason = _impossible(row) if precision == 32 else "not of 32 bits"
        found.append(([_cell(name, row[name]) for name in names] if reason is None else [], reason))
    return found


def _impossible(row: Mapping[str, Any]) -> str | None:
    """Why no measurement can be like this; None: it can."""
    times = [row[name] for name in TIMES]
    if not all(isinstance(t, float | int) and np.isfinite(t) for t in times):
        return "a time that is no number"
    low, high, median, spread = (row[n] for n in ("time_ms_min", "time_ms_max", TIME, TIMES[-1]))
    if low <= 0 or median <= 0 or spread < 0:
        return "a time of 0 or below"
    if not low <= median <= high:
        return "a median that is not between least and greatest time"
    for name, value in row.items():
        if name in TIMES:
            continue
        if not isinstance(value, float | int) or value != int(value):
            return f"{name} that is no whole number"
        if name in _WORDS and not 0 <= value < len(_WORDS[name]):
            return f"{name} of an unknown kind"
        if name not in _WORDS and value < 1:
            return f"{name} below 1"
    if row.get("padding") == 0 and row["kernel_size"] > row["input_size"]:
        return "a kernel larger than its input without padding"
    return None


def _cell(name: str, value: float) -> str:
    if name in TIMES:
        return f"{value:.6g}"
    return _WORDS[name][int(value)] if name in _WORDS else str(int(value))
