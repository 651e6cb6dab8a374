"""The operations of a GPU, fitted to a few hundred that were timed.

Robust least squares on logarithms, drawn to centers where rows are few; of the variants of a form the
one of the least cost. What the terms leave over is followed by a sparse Gaussian process of CENTERS bells,
which is nothing far from what was timed (greedy choice of centers: Smola and Bartlett 2001).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from lolat.errors import InputError
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.llm.calibration import SPREADS
from lolat.llm.decoder import CACHE_BYTES, WEIGHT_BYTES
from lolat.llm.forms import FORMS, Facts, Rows
from lolat.llm.frameworks import FRAMEWORKS
from lolat.llm.gpu import (
    IN_GENERAL,
    MOST_CHANGE,
    Operation,
    Section,
    Sheet,
    bells,
    facts_of,
    lacks,
    operation_ms,
    short,
)
from lolat.units import as_number

OFF = {"gemm": 0.05, "all_reduce": 0.04}
OFF_OTHERS = 0.1
"""An error, as a logarithm, from which on a row's pull grows no more with it."""
CENTERS = 24
AMPLITUDE, NOISE = 0.1, 0.07
"""Of the correction, and of what it does not follow, as logarithms."""
FOLDS = 5


def fit_operation(name: str, dtype: str, rows: Rows, ms: np.ndarray, facts: Facts) -> Operation:
    """From (rows,) ms of timed rows."""
    variants = FORMS[name].variants(dtype)
    fits = [_fit_terms(name, dtype, variant, rows, ms, facts) for variant in variants]
    _, operation = min(fits, key=lambda fit: fit[0])
    left, fold = np.empty(len(ms)), np.arange(len(ms)) % FOLDS
    for out in (fold == number for number in range(FOLDS if len(ms) > 2 * FOLDS else 0)):
        _, some = _fit_terms(
            name, dtype, operation.variant, take(rows, ~out), ms[~out], facts, operation.terms
        )
        some = _corrected(name, dtype, some, take(rows, ~out), ms[~out], facts)
        left[out] = np.log(ms[out] / operation_ms(name, some, take(rows, out), facts, dtype, True))
    spread = float(np.quantile(np.abs(left), 0.9) / 1.645) if len(ms) > 2 * FOLDS else 0.3
    operation = _corrected(name, dtype, operation, rows, ms, facts)
    return msgspec.structs.replace(operation, spread=short(spread), rows=len(ms))


def take(rows: Rows, which: np.ndarray) -> Rows:
    """Some of the rows."""
    return {column: values[which] for column, values in rows.items()}


def _fit_terms(
    name: str, dtype: str, variant: str, rows: Rows, ms: np.ndarray, facts: Facts,
    start: Mapping[str, float] | None = None,
) -> tuple[float, Operation]:  # fmt: skip
    """The cost, and the operation without a correction."""
    form = FORMS[name]
    centers = form.terms(dtype, variant)
    middle, width = np.array([*centers.values()]).T
    middle, logs, off = np.log(middle), np.log(ms), OFF.get(name, OFF_OTHERS)

    def errors(unknowns: np.ndarray) -> np.ndarray:
        terms = dict(zip(centers, np.exp(unknowns), strict=True))
        with np.errstate(all="ignore"):
            found = np.log(form.ms(terms, rows, facts, dtype, variant, True)) - logs
        return np.concatenate(
            [np.nan_to_num(found, nan=10.0, posinf=10.0) / off, (unknowns - middle) / width]
        )

    begin = middle if start is None else np.log([*start.values()])
    from scipy.optimize import least_squares

    found = least_squares(errors, begin, loss="soft_l1", diff_step=1e-3, max_nfev=60)
    terms = {n: short(v) for n, v in zip(centers, np.exp(found.x), strict=True)}
    return float(found.cost), Operation(terms=terms, variant=variant)


# ---- The correction.


def _corrected(
    name: str, dtype: str, operation: Operation, rows: Rows, ms: np.ndarray, facts: Facts
) -> Operation:
    """The same with a correction that follows what its terms leave over."""
    form = FORMS[name]
    if form.place is None or len(ms) < CENTERS:
        return operation
    left = np.log(ms / form.ms(operation.terms, rows, facts, dtype, operation.variant, True))
    left = MOST_CHANGE * np.tanh(left / MOST_CHANGE)
    places = form.place(rows).round(2)
    near, trust, ridge = bells(places, places), np.ones(len(ms)), (NOISE / AMPLITUDE) ** 2
    smooth = left
    for _ in range(5):  # rows that are far off count less
        smooth = near @ np.linalg.solve(near + np.diag(ridge / trust), left)
        trust = 1.0 / (1.0 + ((left - smooth) / (2 * NOISE)) ** 2)
    chosen, rest, part = list[int](), smooth, near[:, :0]
    for _ in range(CENTERS):
        gain = (near @ rest) ** 2 / (near**2).sum(0)
        gain[chosen] = -1.0
        chosen.append(int(gain.argmax()))
        part = near[:, chosen]
        rest = smooth - part @ np.linalg.solve(
            part.T @ part + 1e-3 * np.eye(len(chosen)), part.T @ smooth
        )
    held = ridge * near[np.ix_(chosen, chosen)] + 1e-5 * np.eye(len(chosen))
    weights = np.linalg.solve((part.T * trust) @ part + held, (part.T * trust) @ left)
    return msgspec.structs.replace(
        operation,
        centers=tuple(tuple(map(float, place)) for place in places[chosen]),
        weights=tuple(short(weight) for weight in weights),
    )


# ---- Tables of operations.

OPERATION_COLUMNS = "op, dtype, latency_ms, and the sizes of the operation"
MOST_SIZE, MOST_SKEW = 1e12, 4.0
SHEET = ("bandwidth_gb_s", "memory_gib", "bf16_tflops")
"""Columns that a table of data sheets has at least."""


def read_sheet(path: str | Path, device: str) -> Sheet:
    """The data sheet of `device` in a table with the columns of `Sheet`; InputError.

    Multiprocessors that are not there are as many as give the rate of the GPU most like it in the table.
    """
    rows = {row["device"]: row for row in read_table(path, ("device", *SHEET), rows="device")}
    if device not in rows:
        raise InputError(f"{path} has no device {device!r}; it has {', '.join(rows)}", code="name")
    facts = _facts(rows[device])
    if "multiprocessors" not in facts:
        others = [found for row in rows.values() if "multiprocessors" in (found := _facts(row))]
        if not others:
            what = "has no multiprocessors; expected their number, from its data sheet"
            raise InputError(f"{path}: {device} {what}", code="multiprocessors")
        rates = ("bf16_tflops", "bandwidth_gb_s")
        near = min(others, key=lambda o: sum(abs(math.log(o[r] / facts[r])) for r in rates))
        units = near["multiprocessors"] * facts["bf16_tflops"] / near["bf16_tflops"]
        facts["multiprocessors"] = float(round(units))
    return Sheet(**facts)


def _facts(row: Row) -> dict[str, float]:
    expected = f"a number above 0 for {row['device']}"
    names = [fact.name for fact in msgspec.structs.fields(Sheet) if row.get(fact.name)]
    return {name: row.number(name, ABOVE_ZERO, expected=expected) for name in names}


def read_operations(path: str | Path) -> dict[str, dict[str, tuple[Rows, np.ndarray]]]:
    """By operation and data type: its sizes and (rows,) ms; InputError names the row that is wrong."""
    made: dict[str, dict[str, tuple[Rows, np.ndarray]]] = {}
    for (name, dtype), rows in rows_of(path).items():
        ms = np.array([row.milliseconds() for row in rows])
        made.setdefault(name, {})[dtype] = sizes_of(name, rows), ms
    return made


def rows_of(path: str | Path) -> dict[tuple[str, str], list[Row]]:
    """The rows of a table by operation and data type, of attention queries/cache; InputError."""
    found: dict[tuple[str, str], list[Row]] = {}
    columns, expected = ("op", "dtype", "latency_ms"), f"expected {OPERATION_COLUMNS}"
    for row in read_table(path, columns, expected):
        name, dtype = row["op"], row["dtype"]
        if name not in FORMS:
            raise row.wrong("op", f"one of {', '.join(FORMS)}")
        if dtype not in WEIGHT_BYTES:
            raise row.wrong("dtype", f"one of {', '.join(WEIGHT_BYTES)}")
        if name.endswith("_attention"):
            if row.get("kv_dtype") not in CACHE_BYTES:
                raise row.wrong("kv_dtype", f"one of {', '.join(CACHE_BYTES)}")
            dtype = f"{dtype}/{row['kv_dtype']}"
        found.setdefault((name, dtype), []).append(row)
    return found


def sizes_of(name: str, rows: Sequence[Row]) -> Rows:
    """(rows,) arrays of the columns of an operation; InputError names the row that is wrong."""
    return {c: np.array([_size(row, c) for row in rows]) for c in FORMS[name].columns}


def _size(row: Row, column: str) -> float:
    """A size of an operation; how evenly tokens fall on experts is told by `distribution`."""
    if column == "skew":
        text = row.get("distribution") or "balanced"
        kind, _, exponent = text.rpartition("_")
        value = as_number(exponent) if kind == "power_law" else 0.0 if text == "balanced" else -1.0
        if not 0.0 <= value <= MOST_SKEW:
            raise row.wrong("distribution", "balanced, or power_law_ and its exponent")
        # Of whole exponents the integrals of `Loads` are logarithms.
        return value + 1e-3 if value in (1.0, 2.0, 3.0) else value
    least, default = (0.0, 0.0) if column == "window" else (1.0, None)
    return float(row.number(column, least, MOST_SIZE, f"a number from {least:g}", default))


def fit_operations(
    timed: Mapping[str, Mapping[str, tuple[Rows, np.ndarray]]], sheet: Sheet
) -> dict[str, dict[str, Operation]]:
    """Every operation and data type of the tables, fitted."""
    facts = facts_of(sheet)
    return {
        name: {dtype: fit_operation(name, dtype, *one, facts) for dtype, one in dtypes.items()}
        for name, dtypes in timed.items()
    }


# ---- A section.

LIKE = 0.5
"""GPUs whose data sheets differ by less than this (a sum of logarithms, see `_unlike`) are alike."""


def complete(section: Section, others: Mapping[str, Section]) -> Section:
    """The same with every operation that `others` have: those of a GPU that is alike, else the usual terms.

    `others`: GPUs by name. Data types that the GPU lacks are left out. Without served rows the ways are
    those of a GPU that is alike.
    """
    known = {name: dict(dtypes) for name, dtypes in section.operations.items()}
    order = sorted(others.items(), key=lambda item: _unlike(section, item[1]))
    for other, one in order:
        is_alike = _unlike(section, one) < LIKE
        for name, dtypes in one.operations.items():
            for dtype, operation in dtypes.items():
                types = dtype.split("/")
                if dtype in known.get(name, {}) or any(lacks(section.sheet, t) for t in types):
                    continue
                if not is_alike:
                    centers = FORMS[name].terms(dtype, operation.variant)
                    terms = {term: center for term, (center, _) in centers.items()}
                    operation = Operation(terms=terms, variant=operation.variant)
                like = other if is_alike else IN_GENERAL
                operation = msgspec.structs.replace(operation, rows=0, like=like)
                known.setdefault(name, {})[dtype] = operation
    near = order[0][1] if order else section
    if not section.served and near.served and _unlike(section, near) < LIKE:
        section = msgspec.structs.replace(section, ways=near.ways)
    return msgspec.structs.replace(section, operations=known)


def _unlike(a: Section, b: Section) -> float:
    """How far two GPUs differ: what a multiprocessor computes and moves, data types, the framework."""

    def place(section: Section) -> np.ndarray:
        sheet = section.sheet
        units = sheet.multiprocessors
        each = np.log([sheet.bf16_tflops / units, sheet.bandwidth_gb_s / units])
        return np.array([*each, sheet.fp8_tflops is not None, sheet.fp4_tflops is not None], float)

    return float(np.abs(place(a) - place(b)).sum() + 0.25 * (a.framework != b.framework))


def section_from(
    sheet: Sheet, framework: str, tables: Sequence[str | Path], others: Mapping[str, Section]
) -> Section:
    """A GPU from its data sheet and tables of operations; what was not timed is as of `others`."""
    timed: dict[str, dict[str, tuple[Rows, np.ndarray]]] = {}
    for path in tables:
        for name, dtypes in read_operations(path).items():
            timed.setdefault(name, {}).update(dtypes)
    spread = SPREADS["timed" if timed else "sheet"]
    section = Section(
        sheet=sheet, operations=fit_operations(timed, sheet), ways=FRAMEWORKS[framework].ways,
        framework=framework, spread=spread,
    )  # fmt: skip
    return complete(section, others)
