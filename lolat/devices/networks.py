"""A table of whole networks that somebody has timed, compared with a model; measures nothing."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from lolat.errors import InputError, LolatError
from lolat.graph import Graph
from lolat.model import Model
from lolat.points import open_text
from lolat.readers import read

NAMED = ("network", "model")
SIZES = ("sequence_length", "input_size", "pixels")
TIMES = ("latency_ms", "step_ms")
PREDICTED = ("predicted_ms", "low_ms", "high_ms")
EXPECTED = (
    "expected the columns network (or model), batch_size and latency_ms (or step_ms), and where known "
    "sequence_length or input_size (or pixels)"
)


@dataclass(frozen=True)
class Compared:
    """One row that could be predicted: as it stands in the table, its time and the model's, ms."""

    row: Mapping[str, str]
    latency_ms: float
    predicted_ms: float
    interval_ms: tuple[float, float] | None


def compare_table(
    model: Model,
    path: str | Path,
    device: str | None = None,
    opened: Callable[[str, Any], Graph] = read,
) -> tuple[list[Compared], dict[str, int], list[str]]:
    """(rows that were predicted, why others were not and how many, the table's columns).

    `device`: rows of it alone, where the table has that column. Inference of whole networks on one
    device, not compiled, is what a model answers; other rows are left out with their reason. A network
    is a NETWORK as everywhere, or a configuration of transformers of that name in the folder
    `networks` beside the table. InputError where the table cannot be read or nothing is left of it.
    """
    reader = csv.DictReader(open_text(path))
    columns = list(reader.fieldnames or [])
    name, time = (next((c for c in of if c in columns), None) for of in (NAMED, TIMES))
    if name is None or time is None:
        raise InputError(f"{path} is no table of networks; {EXPECTED}")
    graphs: dict[tuple[str, Any], Graph] = {}
    found, skipped = [], dict[str, int]()
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        reason = _not_answered(row, device)
        if reason is None:
            measured = _number(row[time], time, where)
            batch_size = int(_number(row.get("batch_size") or "1", "batch_size", where))
            size = next((int(_number(row[c], c, where)) for c in SIZES if row.get(c)), None)
            key = _spec(row[name], path, name == "model"), size
            try:
                if key not in graphs:
                    graphs[key] = opened(*key)
                answer = model.predict(graphs[key], batch_size)
                found.append(Compared(row, measured, answer.latency_ms, answer.interval_ms))
                continue
            except LolatError as error:
                reason = f"{row[name]}: {error}"
        skipped[reason] = skipped.get(reason, 0) + 1
    if not found:
        why = "; ".join(f"{n} x {r}" for r, n in skipped.items()) or "it has no rows"
        raise InputError(f"{path}: no row could be compared ({why}); {EXPECTED}")
    return found, skipped, columns


def summary(rows: list[Compared]) -> dict[str, Any]:
    """The errors of rows, relative: mean, median, bias, and how many are within 10 % and the interval."""
    off = [r.predicted_ms / r.latency_ms - 1.0 for r in rows]
    intervals = [(r.latency_ms, r.interval_ms) for r in rows if r.interval_ms is not None]
    return {
        "networks": len(rows),
        "mean": sum(map(abs, off)) / len(off),
        "median": median(map(abs, off)),
        "bias": median(off),
        "within_10": sum(abs(o) <= 0.1 for o in off) / len(off),
        "inside": sum(low <= ms <= high for ms, (low, high) in intervals),
        "intervals": len(intervals),
    }


def predictions(rows: list[Compared], columns: list[str]) -> str:
    """A CSV table of the rows with PREDICTED as further columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, *PREDICTED], lineterminator="\n")
    writer.writeheader()
    for r in rows:
        low, high = r.interval_ms or ("", "")
        writer.writerow({**r.row, **dict(zip(PREDICTED, (r.predicted_ms, low, high), strict=True))})
    return text.getvalue()


def _not_answered(row: Mapping[str, str], device: str | None) -> str | None:
    """Why a model of inference does not answer a row; None where it does."""
    if device is not None and row.get("device") not in (None, device):
        return "of another device"
    if row.get("pass") not in (None, "", "inference"):
        return "no inference"
    if row.get("compiled") in ("yes", "true", "1"):
        return "compiled"
    return "on several devices" if row.get("parallel") else None


def _spec(name: str, path: str | Path, of_timm: bool) -> str:
    config = Path(path).parent / "networks" / f"{name}.json"
    if config.is_file():
        return f"transformers:{config}"
    return f"timm:{name}" if of_timm and ":" not in name else name


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < math.inf:
        raise InputError(f"{where}: {column} is {text!r}; expected a number above 0")
    return value
