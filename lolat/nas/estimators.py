"""Estimates latencies of candidates by look-ups in tables of the parts' milliseconds.

An estimator holds only numpy arrays and the formula's constants, so it can be sent to other processes.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lolat.device.device import Device
from lolat.device.execution_modes import as_written
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.roofline import Roofline
from lolat.device.question import as_whole
from lolat.device.summary import mode_words
from lolat.graph.counts import COLUMNS
from lolat.io.paths import AnyPath
from lolat.nas.count_tables import DEVICE, HOST, LATENCY, MORE, along, times_ms
from lolat.nas.grid import Grid
from lolat.nas.space import CHUNK, Space
from lolat.nas.user_code import space_and_device

DECODED = 16 * CHUNK  # candidates decoded at a time
MERGED = 8192  # limit on the entries of a merged table: 64 KiB
SMALL_INDEX = 2**16 - 1  # entries that a uint16 can index and count
WHOLE_CANDIDATES = 32  # predicted as whole networks, to correct for effects between parts
REMARKED_ERROR = 0.01  # from this relative error of sums for whole networks on, a warning names it
LEAST_SPREAD = 0.02  # below this spread of times no line is fitted

Times = tuple[tuple[int, ...], np.ndarray]
"""(positions, milliseconds by their choices)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class LatencyEstimator(ABC):
    """Estimates the latencies of a space's candidates on a device; `source` names the method.

    It only gives latencies. `model.predict(space.network(candidate), batch_size)` and the front of `search`
    also give a candidate's interval, `in_domain` and memory.

    `exact`: True if the latencies equal the device's predictions for whole networks.
    """

    grid: Grid
    batch_size: int
    predictor: str
    source: str
    exact: bool = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.source}, batch {self.batch_size}>"

    @abstractmethod
    def latency(self, candidates: Any) -> np.ndarray:
        """(n,) ms for (n, positions) integers; InputError names a row that is not a candidate."""

    def chunks(
        self, start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield (indices, rows, latencies) of the candidates from `start` to before `stop`, in chunks."""
        end = self.grid.countable() if stop is None else stop
        for first in range(start, end, DECODED):
            indices = np.arange(first, min(first + DECODED, end), dtype=np.int64)
            rows = self.grid.between(first, first + len(indices))
            yield indices, rows, self.latency(rows)


class LookUp(NamedTuple):
    """A flat table of milliseconds by the choices at some positions."""

    positions: tuple[int, ...]
    sizes: tuple[int, ...]
    table: np.ndarray

    def entry(self, columns: np.ndarray) -> np.ndarray:
        """(n,) indices into the table, by Horner's rule, from (positions of the space, n) choices."""
        integer = np.uint16 if len(self.table) <= SMALL_INDEX else np.int64
        index = columns[self.positions[0]].astype(integer)
        for position, size in zip(self.positions[1:], self.sizes[1:], strict=True):
            index *= size
            index += columns[position]
        return index


@dataclass(frozen=True, kw_only=True, repr=False)
class TableEstimator(LatencyEstimator):
    """The sum of look-ups and a constant, which the formula may turn into a latency by `Formula.bend`."""

    look_ups: tuple[LookUp, ...]
    formula: Formula
    constant: float

    def latency(self, candidates: Any) -> np.ndarray:
        """See `LatencyEstimator`."""
        rows = np.asarray(candidates)
        self.grid.require_shape(rows)
        sizes, unsigned = np.asarray(self.grid.sizes), rows.dtype.str.replace("i", "u")
        integer = np.uint16 if max(self.grid.sizes) <= SMALL_INDEX else np.int64
        times = np.full(len(rows), self.constant)
        for start in range(0, len(rows), CHUNK):
            # Unsigned, a negative number is a large one.
            columns = np.ascontiguousarray(rows[start : start + CHUNK].T).view(unsigned)
            if (columns.max(axis=1) >= sizes).any():
                self.grid.checked(rows)
            columns = columns.astype(integer, copy=False)
            for look_up in self.look_ups:
                found = look_up.table.take(look_up.entry(columns), mode="clip")
                times[start : start + CHUNK] += found
        self.formula.bend(times)
        return times


@dataclass(frozen=True, kw_only=True, repr=False)
class HostEstimator(LatencyEstimator):
    """The longer of the time on the `device` and the `host`'s launch time, plus `more`."""

    device: TableEstimator
    host: TableEstimator
    more: TableEstimator

    def latency(self, candidates: Any) -> np.ndarray:
        """See `LatencyEstimator`."""
        longer = np.maximum(self.device.latency(candidates), self.host.latency(candidates))
        return longer + np.maximum(self.more.latency(candidates), 0.0)


def table_estimator(
    grid: Grid, times: Sequence[Times], formula: Formula, batch_size: int
) -> TableEstimator:
    """Make an estimator from tables of milliseconds; small neighboring tables are merged."""
    merged: list[Times] = []
    for item in sorted((t for t in times if t[0]), key=lambda t: t[0]):
        before = merged[-1][0] if merged else ()
        union = tuple(dict.fromkeys([*before, *item[0]]))
        if union == before or (before and math.prod(grid.sizes[p] for p in union) <= MERGED):
            merged[-1] = union, along(union, *merged[-1]) + along(union, *item)
        else:
            merged.append(item)
    look_ups = tuple(LookUp(key, t.shape, np.ascontiguousarray(t.reshape(-1))) for key, t in merged)
    constant = formula.constant + sum(float(table) for positions, table in times if not positions)
    return TableEstimator(
        grid=grid, batch_size=batch_size, look_ups=look_ups, formula=formula, constant=constant,
        predictor=formula.name, source=f"the {formula.name} formula, of inference",
    )  # fmt: skip


def fastest(grid: Grid, needed: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """(positions,) choices of a fast candidate, by coordinate descent over the positions.

    `needed`: (n, positions) choices -> (n,) ms, or another measure of time.
    """
    row = np.zeros(len(grid.sizes), grid.dtype)
    before = math.inf
    while (now := float(needed(row[None])[0])) < before:
        before = now
        for position, size in enumerate(grid.sizes):
            tried = np.repeat(row[None], size, axis=0)
            tried[:, position] = np.arange(size)
            row = tried[int(np.argmin(needed(tried)))]
    return row


# ---- A space's latencies by a model's formula of inference.


def by_formula(
    space: Space, device: Device, batch_size: int = 1, predictor: str | None = None
) -> LatencyEstimator:
    """The estimator by a device's formula for inference, even if the device has samples of the space."""
    first = space.network(np.zeros(len(space.positions), int))
    device = as_written(device, first)
    formula, size, off = device.predictor(predictor), as_whole(batch_size), ""
    if isinstance(formula, Roofline):
        found, off = _best_estimator(space, formula, size)
    else:
        found = table_estimator(
            space.grid, latency_tables(space, device, size, predictor)[1], formula, size
        )
    how = mode_words(device.file, first, device.asked.channels_last)
    return replace(found, source=f"{found.source} in {how}{off}", exact=not off)


def _best_estimator(space: Space, formula: Roofline, size: int) -> tuple[LatencyEstimator, str]:
    """(estimator that fits whole networks best, its error for them as text)."""
    estimators, errors, _ = _checked(space, formula, size)
    best = min(range(len(estimators)), key=lambda n: float((errors[n] ** 2).mean()))
    off = float(errors[best].max())
    by_parts = f"; summed over parts, {_error_words(errors[best])}"
    return estimators[best], by_parts * (off >= 1e-9)


class Checked(NamedTuple):
    """Estimators, the relative errors of each for the same whole networks, and the tables of the first."""

    estimators: list[LatencyEstimator]
    errors: list[np.ndarray]
    tables: list[Times]


def _checked(space: Space, formula: Roofline, size: int) -> Checked:
    """The estimators of a space with their errors; the first estimator is the plain sum of latencies.

    They are compared on random networks and on the fastest one, which may be host-bound.
    """
    rows, whole_ms, all_times = _by_operation(space, formula, size)
    alone, *of_host = (table_estimator(space.grid, times, formula, size) for times in all_times)
    estimators: list[LatencyEstimator] = [alone]
    if of_host:  # if a compiler joins operations across parts, the sum of latencies may be nearer
        device, host, more = of_host
        both = HostEstimator(
            grid=space.grid, batch_size=size, predictor=alone.predictor, source=alone.source,
            device=device, host=host, more=more,
        )  # fmt: skip
        estimators.append(both)
    ends = np.unique([fastest(e.grid, e.latency) for e in estimators], axis=0)
    networks = map(space.network, ends)
    ends_ms = [times_ms(formula, g, size, whole=True)[LATENCY] for g in networks]
    rows, whole_ms = np.concatenate([rows, ends]), np.concatenate([whole_ms, ends_ms])
    errors = [np.abs(e.latency(rows) / whole_ms - 1.0) for e in estimators]
    return Checked(estimators, errors, all_times[LATENCY])


def _error_words(errors: np.ndarray) -> str:
    """The largest error for whole networks, as text."""
    percent = float(f"{100 * errors.max():.2g}")
    return (
        f"within {percent:g} % of the formula's answers for {len(errors)} whole "
        "networks, the fastest among them"
    )


def latency_tables(
    space: str | Space, model: AnyPath | Device, batch_size: int = 1, predictor: str | None = None
) -> tuple[Formula, list[Times]]:
    """(formula, tables of ms that add up, with the formula's constant, to a latency).

    The formula may turn the sum into a latency by `Formula.bend`. If sums are far from the latencies of
    whole networks, as for host-bound networks, a Python warning says how far. `space`, `model`: as for
    `search`.
    """
    space, model = space_and_device(space, model)
    formula, size = model.predictor(predictor), as_whole(batch_size)
    if isinstance(formula, Roofline):
        _, errors, times = _checked(space, formula, size)
        if errors[0].max() > REMARKED_ERROR:
            told = f"the sum of the tables is {_error_words(errors[0])}"
            if errors[-1].max() < errors[0].max():
                told += "; nas.estimator, which knows the host, is nearer"
            warnings.warn(told, stacklevel=2)
        return formula, times
    columns = [COLUMNS.index(f) for f in formula.features]
    slopes = np.asarray(formula.slopes)
    return formula, [(t.positions, t.at(size)[..., columns] @ slopes) for t in space.tables]


def _by_operation(
    space: Space, formula: Roofline, batch_size: int
) -> tuple[np.ndarray, np.ndarray, list[list[Times]]]:
    """(a few candidates, (n,) ms of their whole networks, tables of each of the times of `times_ms`).

    There are only tables of LATENCY if the formula has no host. Parts affect each other: a compiler fuses
    operations of two parts, half precision converts between them. So a line is fitted to the times of whole
    candidates as a function of the sums of their parts.
    """
    rows = space.sample(WHOLE_CANDIDATES, seed=0)
    graphs = map(space.network, rows)
    whole = np.array([times_ms(formula, g, batch_size, whole=True) for g in graphs])
    kinds = [LATENCY] if formula.host is None else [LATENCY, DEVICE, HOST, MORE]
    tables = [(t.positions, t.ms(formula, batch_size)) for t in space.tables]
    found = []
    for kind in kinds:
        times: list[Times] = [(positions, table[..., kind]) for positions, table in tables]
        if kind == MORE:  # only whole networks have it, not parts
            found.append(times if space.decomposition else [])
            continue
        sums = table_estimator(space.grid, times, formula, batch_size).latency(rows)
        actual = whole[:, kind]
        if not np.allclose(sums, actual, rtol=1e-9):
            line = np.column_stack([sums, np.ones(len(sums))]) / actual[:, None]
            slope, offset = np.linalg.lstsq(line, np.ones(len(sums)), rcond=None)[0]
            if np.ptp(sums) < LEAST_SPREAD * sums.mean() or slope <= 0.0:
                slope, offset = 1.0, float(np.median(actual - sums))
            times = [(positions, slope * table) for positions, table in times]
            times.append(((), np.array(offset)))
        found.append(times)
    return rows, whole[:, LATENCY], found
