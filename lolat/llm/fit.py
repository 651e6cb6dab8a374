"""A GPU and a framework, fitted: operations to a few hundred that were timed, ways to served rows.

Robust least squares on logarithms, drawn to centers where rows are few; of the variants of a form the
one of the least cost. What the terms leave over is followed by a sparse Gaussian process of CENTERS bells,
which is nothing far from what was timed (greedy choice of centers: Smola and Bartlett 2001).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError
from lolat.io.tables import ABOVE_ZERO, Row, read_table
from lolat.llm.decoder import CACHE_BYTES, WEIGHT_BYTES, Decoder
from lolat.llm.forms import FORMS, Facts, Rows
from lolat.llm.gpu import (
    GPU,
    IN_GENERAL,
    MOST_CHANGE,
    UNSEEN,
    Operation,
    Section,
    Sheet,
    Ways,
    bells,
    facts_of,
    lacks,
    operation_ms,
)
from lolat.llm.served import SERVED, ServedRow
from lolat.llm.serving import Load, Steps, layout_of, serve, steps_of, users_that_fit
from lolat.units import as_number, percent, plural

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
    return msgspec.structs.replace(operation, spread=_short(spread), rows=len(ms))


def take(rows: Rows, which: np.ndarray) -> Rows:
    """Some of the rows."""
    return {column: values[which] for column, values in rows.items()}


def _short(value: float) -> float:
    """Four digits are enough."""
    return float(f"{value:.4g}")


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
    terms = {n: _short(v) for n, v in zip(centers, np.exp(found.x), strict=True)}
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
        weights=tuple(_short(weight) for weight in weights),
    )


# ---- Tables of operations.

OPERATION_COLUMNS = "op, dtype, latency_ms, and the sizes of the operation"
MOST_SIZE, MOST_SKEW = 1e12, 4.0


def read_sheet(path: str | Path, device: str) -> Sheet:
    """The data sheet of `device` in a table with the columns of `Sheet`; InputError.

    Multiprocessors that are not there are as many as give the rate of the GPU most like it in the table.
    """
    columns = ("device", "bandwidth_gb_s", "memory_gib", "bf16_tflops")
    rows = {row["device"]: row for row in read_table(path, columns, rows="device")}
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


# ---- Served rows.

USUAL = {
    "vllm": Ways(
        kernel_ms=2.7e-3, fp8_ms=2.2e-3, block_ms=0.0226, fp4_ms=6.5e-3, experts_ms=0.0223,
        exchange_ms=5.5e-3, step_ms=0.0, parallel_ms=0.0, small=2.85, together=0.12, front_ms=27.0,
        mixed=0.17,
    ),
    "trtllm": Ways(
        kernel_ms=1.6e-3, fp8_ms=3e-3, block_ms=0.0104, fp4_ms=0.0, experts_ms=8e-3, exchange_ms=3.2e-3,
        step_ms=0.31, parallel_ms=0.21, small=2.66, together=0.14, front_ms=30.0, mixed=0.7,
    ),
    "sglang": Ways(
        kernel_ms=2.5e-3, fp8_ms=1e-3, block_ms=1e-3, fp4_ms=2e-3, experts_ms=5e-3, exchange_ms=3.1e-3,
        step_ms=0.2, parallel_ms=0.2, small=2.77, together=0.97, front_ms=30.0, mixed=0.41,
    ),
}  # fmt: skip
"""The ways of frameworks on any GPU: fitted to all served rows of each (docs/results), vLLM's to seven
models and data types on two GPUs. Those of a GPU are drawn to them."""
WIDTHS = Ways(
    kernel_ms=1e-3, fp8_ms=1e-3, block_ms=1e-3, fp4_ms=1.5e-3, experts_ms=5e-3, exchange_ms=3e-3,
    step_ms=0.3, parallel_ms=0.3, small=0.5, together=0.3, front_ms=20.0, mixed=0.4,
)  # fmt: skip
"""How far a way may be from where it was, at the price of a row that is off by OFF_TPOT."""
MOST_OF_A_WAY = Ways(
    kernel_ms=0.05, fp8_ms=0.05, block_ms=0.05, fp4_ms=0.05, experts_ms=0.1, exchange_ms=0.05,
    step_ms=5.0, parallel_ms=5.0, small=6.0, together=1.0, front_ms=40.0, mixed=1.0,
)  # fmt: skip
"""A front end of more than 40 ms is a server that was not warm: some served rows have hundreds."""
OFF_TPOT, OFF_TTFT = 0.05, 0.1
A_GROUP = 40
"""Rows of one model and data type beyond which more of them count no more."""
WAITING = 0.5
"""Requests that wait more than this share of their time wait for memory, and tell nothing of the ways."""


@dataclass(frozen=True)
class Timed:
    """Served rows with their steps: (rows,) arrays; `group`: the model and data type of each."""

    steps: Steps
    load: Load
    tpot_ms: np.ndarray
    ttft_ms: np.ndarray
    group: np.ndarray

    def take(self, which: np.ndarray) -> Timed:
        """Some of the rows."""
        steps = Steps(*(column[which] for column in self.steps))
        load = Load(*(column[which] for column in self.load))
        return Timed(steps, load, self.tpot_ms[which], self.ttft_ms[which], self.group[which])


def by_layout(rows: Sequence[ServedRow]) -> list[list[ServedRow]]:
    """Served rows that have a layout in common, together."""
    kinds: dict[Any, list[ServedRow]] = {}
    for row in rows:
        key = (row.model, row.dtype, row.kv_dtype, row.tensor_parallel, row.expert_parallel)
        kinds.setdefault(key, []).append(row)
    return [*kinds.values()]


def timed_of(
    section: Section, rows: Sequence[ServedRow], decoder_of: Callable[[str], Decoder]
) -> Timed:
    """Served rows of one layout with their steps; `decoder_of`: the decoder of a model's name."""
    r = rows[0]
    layout = layout_of(
        section, decoder_of(r.model), r.tensor_parallel, r.expert_parallel, r.dtype, r.kv_dtype
    )
    columns = [(r.input_tokens, r.output_tokens, r.concurrency, r.tpot_ms, r.ttft_ms) for r in rows]
    inputs, outputs, concurrency, tpot, ttft = np.array(columns, float).T
    users = users_that_fit(section, layout, inputs + outputs / 2.0)
    load = Load(inputs, outputs, concurrency, users)
    group = np.full(len(rows), f"{r.model} {r.dtype}".strip())
    return Timed(steps_of(GPU(section), layout, load), load, tpot, ttft, group)


def timed_steps(
    section: Section, rows: Sequence[ServedRow], decoder_of: Callable[[str], Decoder]
) -> Timed:
    """The steps of served rows that tell of the ways: those that did not wait for memory.

    `decoder_of`: the decoder of a model's name. InputError where none is left.
    """
    found = []
    for some in by_layout(rows):
        one = timed_of(section, some, decoder_of)
        load = one.load
        is_waiting = one.ttft_ms >= WAITING * one.tpot_ms * load.output_tokens
        found.append(one.take(~is_waiting & (load.concurrency <= load.users)))
    if not sum(len(one.group) for one in found):
        raise InputError(
            f"no served row is of use: in all the first token takes most of the time; {SERVED}",
            code="served",
        )
    steps = Steps(*map(np.concatenate, zip(*(one.steps for one in found), strict=True)))
    load = Load(*map(np.concatenate, zip(*(one.load for one in found), strict=True)))
    columns = ([getattr(one, name) for one in found] for name in ("tpot_ms", "ttft_ms", "group"))
    return Timed(steps, load, *map(np.concatenate, columns))


def fit_ways(timed: Timed, start: Ways) -> Ways:
    """The ways by served rows, drawn to `start`."""
    names, numbers = np.unique(timed.group, return_inverse=True)
    weight = np.sqrt(np.minimum(1.0, A_GROUP / np.bincount(numbers, minlength=len(names))))[numbers]
    begin, width, most = (
        np.array(msgspec.structs.astuple(w)) for w in (start, WIDTHS, MOST_OF_A_WAY)
    )
    tpot, known = np.log(timed.tpot_ms), timed.ttft_ms > 0
    ttft = np.log(np.where(known, timed.ttft_ms, 1.0))

    def errors(unknowns: np.ndarray) -> np.ndarray:
        found = serve(Ways(*unknowns), timed.steps, timed.load)
        first = np.where(known, np.log(found.ttft_ms) - ttft, 0.0)
        off = [(np.log(found.tpot_ms) - tpot) * weight / OFF_TPOT, first * weight / OFF_TTFT]
        return np.concatenate([*off, (unknowns - begin) / width])

    inside = np.clip(begin, 1e-9, most * (1.0 - 1e-9))
    from scipy.optimize import least_squares

    found = least_squares(errors, inside, loss="soft_l1", bounds=(np.zeros(len(begin)), most))
    return Ways(*(_short(way) if way > 1e-6 else 0.0 for way in found.x))


def spread_of(timed: Timed, start: Ways) -> tuple[float, float]:
    """Within which 90 % of (tpot, ttft) lie when their model, or a fifth of the rows, is left out.

    As logarithms.
    """
    names, numbers = np.unique(timed.group, return_inverse=True)
    parts = numbers if len(names) > 2 else np.arange(len(numbers)) % FOLDS
    off = np.zeros((2, len(numbers)))
    for part in np.unique(parts):
        out = parts == part
        found = serve(
            fit_ways(timed.take(~out), start), timed.take(out).steps, timed.take(out).load
        )
        off[0, out] = np.log(found.tpot_ms / timed.tpot_ms[out])
        off[1, out] = np.log(found.ttft_ms / np.maximum(timed.ttft_ms[out], 1e-6)) * (
            timed.ttft_ms[out] > 0
        )
    tpot, ttft = np.quantile(np.abs(off), 0.9, axis=1)
    return _short(tpot), _short(max(ttft, tpot))


# ---- A section.

LIKE = 0.5
"""GPUs whose data sheets differ by less than this (a sum of logarithms, see `_unlike`) are alike."""
SPREADS = {"served": (0.16, 0.4), "timed": UNSEEN, "sheet": (0.22, 0.6)}
"""Within which 90 % are, as logarithms, by what a GPU is known from, where too few served rows say it."""
LEAST_SERVED = 10
MOST_OFF = math.log(2.5)
"""Served rows that are farther off at the median are of something else."""


def frameworks_in(text: str) -> str:
    """The framework that a file's name says; vLLM where it says none."""
    return next((name for name in USUAL if name in text.casefold()), "vllm")


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
        sheet=sheet, operations=fit_operations(timed, sheet), ways=USUAL[framework], framework=framework,
        spread=spread,
    )  # fmt: skip
    return complete(section, others)


def types_words(
    section: Section, rows: Sequence[ServedRow], decoder_of: Callable[[str], Decoder]
) -> str:
    """In which data types rows of benchmarks are taken that do not say it; "" where all do."""
    taken: dict[str, None] = {}
    for row in rows:
        if not row.row and not row.dtype:
            one = layout_of(section, decoder_of(row.model), row.tensor_parallel)
            taken[f"{row.model} in {one.dtype}, cache {one.kv_dtype}"] = None
    say = ": the keys dtype and kv_dtype in the JSON say others"
    return f"taken are {'; '.join(taken)}{say}" if taken else ""


def served_by(
    section: Section, rows: Sequence[ServedRow], decoder_of: Callable[[str], Decoder]
) -> tuple[Section, str]:
    """The same with its ways fitted to served rows, and how far off they were before and are now.

    From LEAST_SERVED rows on they say how far off it is too; the same row twice is one. InputError where
    they are nothing like this GPU.
    """
    timed = timed_steps(section, [*dict.fromkeys(rows)], decoder_of)
    number = len(timed.group)

    def of_measured(ways: Ways) -> np.ndarray:
        found = serve(ways, timed.steps, timed.load)
        return found.tpot_ms / timed.tpot_ms

    def off(ways: Ways) -> float:
        return float(np.median(np.abs(of_measured(ways) - 1.0)))

    before = float(np.median(np.abs(np.log(of_measured(section.ways)))))
    if before > MOST_OFF:
        raise InputError(
            f"the served rows are off by {math.exp(before):.1f} times at the median; expected tpot_ms in "
            "ms, of this GPU and framework, with the tensor_parallel and the dtype that were served",
            code="served-unlike",
        )
    spread = spread_of(timed, section.ways) if number >= LEAST_SERVED else SPREADS["served"]
    ways = fit_ways(timed, section.ways)
    words = (
        f"{plural(number, 'served row')}: time per output token off by {percent(off(section.ways))} at the "
        f"median before, {percent(off(ways))} now"
    )
    used = {row.model for row in rows if f"{row.model} {row.dtype}".strip() in timed.group}
    kinds = sorted({*section.kinds, *(decoder_of(model).kind for model in used)})
    made = msgspec.structs.replace(
        section, ways=ways, served=section.served + number, kinds=tuple(kinds), spread=spread
    )
    return made, words
