"""Ranks all candidates of a space, or the networks of a table, by latency, and writes a CSV table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device import Device, load
from lolat.errors import InputError, arg
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.io.results import Result, dict_of
from lolat.io.tables import read_table, to_csv
from lolat.io.writing import check_file, write_bytes
from lolat.nas.estimators import DECODED, LatencyEstimator
from lolat.nas.fewshot import FewShotModel, answers, estimator
from lolat.nas.search import none_within
from lolat.nas.space import Space
from lolat.nas.user_code import call_with, find_function, find_space, parameters, user_code
from lolat.parameters import COVERAGE

BEST = 10  # of the result, unless another number is asked for
MOST_ROWS = 10_000_000  # of the table
Value = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BestCandidate:
    """One of the best candidates; `value`: what the user's function returns for it, if one ranks them."""

    arch: str
    choices: dict[str, Any]
    latency_ms: float
    value: float | UnsetType


@dataclass(frozen=True, repr=False)
class Ranking(Result):
    """The best candidates of a space, and how many have a latency and keep `max_ms`.

    `scored`: candidates with a latency; `within`: those within `max_ms`. `source` tells where the latencies
    are from. `interval_ms`, `coverage`, `in_domain`, `warnings`: those that `predict` gives for the best
    one.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    max_ms: float | None
    scored: int
    within: int
    output: str
    best: tuple[BestCandidate, ...]
    interval_ms: tuple[float, float] | None = None
    coverage: float | None = None
    in_domain: bool | None = None
    warnings: tuple[str, ...] = ()

    def words(self) -> str:
        """Return the number of candidates, and of those within the time, in words."""
        budget = "" if self.max_ms is None else f", {self.within:,} within {self.max_ms:g} ms"
        return f"{self.space}: {self.scored:,} candidates{budget}"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each of the best: arch, latency_ms, value, and its choice at each position."""
        rows = [dict_of(candidate) for candidate in self.best]
        return [row | row.pop("choices") | row for row in rows]


class Candidates(NamedTuple):
    """Candidates as (n,) arrays: `indices`, `times` in ms, and `values`, of which the largest is best."""

    indices: np.ndarray
    times: np.ndarray
    values: np.ndarray

    @classmethod
    def none(cls) -> Candidates:
        """Return no candidate."""
        return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """Join the candidates of all parts."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def best_of(best: Candidates, part: Candidates, k: int) -> Candidates:
    """Return the `k` best of `best` and `part`: of equal ones the smaller index, and never a NaN."""
    least = best.values[-1] if len(best.values) == k else -math.inf
    able = part.values >= least  # false for a NaN
    both = Candidates.joined([best, Candidates(*(column[able] for column in part))])
    order = np.lexsort((both.indices, -both.values))[:k]
    return Candidates(*(column[order] for column in both))


def rank(
    space: str | Space,
    model: AnyPath | Device,
    output: AnyPath,
    *,
    among: AnyPath | None = None,
    max_ms: float | None = None,
    best: int | None = None,
    value: str | Value | None = None,
    batch_size: int = 1,
    predictor: str | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Write the latencies of all candidates of a space, or of those in a table, and find the best.

    `space`, `model`: as for `search`. `output`: a CSV table with the columns arch and latency_ms, low_ms
    and high_ms if samples answer, and value. `among`: a CSV table with the column arch; None: all
    candidates. `max_ms`: the longest latency to keep. `best`: how many to keep: the fastest, or those with
    the largest `value`. `value`: a function like `objective` of `search`, or one that turns (n, positions)
    integers into (n,) numbers, or its name, "package.module:callable".

    Raises AnswerIsNo if no candidate is within the time; InputError for a wrong argument, and for more
    than ten million rows.
    """
    shown = progress or Progress()
    loaded = model if isinstance(model, Device) else load(model)
    of_space = find_space(space, shown)
    function = None if value is None else find_function(value, "value")
    check_file(output, "output", make_folder=True)
    rows = None if among is None else _read(of_space, among, batch_size, shown)
    count = of_space.grid.countable() if rows is None else len(rows)
    decode: Callable[[Any], np.ndarray] = of_space.decode if rows is None else rows.__getitem__
    latencies = estimator(of_space, loaded, batch_size, predictor, shown)
    top, written = Candidates.none(), [Candidates.none()]
    within, fastest, limit = 0, math.inf, math.inf if max_ms is None else max_ms
    for shortest, part in _parts(of_space, latencies, rows, limit, function, shown):
        fastest, within = min(fastest, shortest), within + len(part.times)
        if best is not None:
            top = best_of(top, part, best)
            continue
        written.append(part)
        _require_few(within)
    result = Ranking(
        of_space.name, of_space.size, batch_size, latencies.predictor, latencies.source, max_ms, count,
        within, str(output), (),
    )  # fmt: skip
    if not within and max_ms is not None:
        raise none_within(result, fastest, among)
    chosen = top if best is not None else Candidates.joined(written)
    top = best_of(Candidates.none(), chosen, best or BEST)
    _write(output, of_space, latencies, decode(chosen.indices), chosen, function is not None)
    best_rows = decode(top.indices)
    result = replace(result, best=_named(of_space, best_rows, top, function is not None))
    for first in answers(latencies, of_space, loaded, best_rows[:1]):
        result = replace(
            result, interval_ms=first.interval_ms, coverage=first.coverage, in_domain=first.in_domain,
            warnings=first.warnings,
        )  # fmt: skip
    return result


def _read(space: Space, among: AnyPath, batch_size: int, progress: Progress) -> np.ndarray:
    """Return (n, positions) integers of a table's networks; InputError for another batch size in it."""
    table = read_table(str(among), ("arch",))
    if "batch_size" in table.names:
        asked = f"{batch_size}, the {arg('batch_size')} of the latencies"
        for row in table:
            row.whole("batch_size", batch_size, batch_size, asked, default=batch_size)
    rows = space.parse_table(table)
    table.say_unread(progress.note)
    return rows


def _parts(
    space: Space, latencies: LatencyEstimator, rows: np.ndarray | None, limit: float,
    function: Value | None, progress: Progress,
) -> Iterator[tuple[float, Candidates]]:  # fmt: skip
    """Yield the shortest latency and the candidates within `limit` ms, for the rows or all candidates."""
    count = space.grid.countable() if rows is None else 0
    if count > DECODED:
        progress.start("estimating latencies", -(-count // DECODED))
    once = [] if rows is None else [(np.arange(len(rows)), rows, latencies.latency(rows))]
    for indices, some, times in once if rows is not None else latencies.chunks():
        able = times <= limit
        values = -times[able] if function is None else _values(function, space, some[able])
        yield float(times.min(initial=math.inf)), Candidates(indices[able], times[able], values)
        if count > DECODED:
            progress.step()


def _named(
    space: Space, rows: np.ndarray, top: Candidates, has_values: bool
) -> tuple[BestCandidate, ...]:
    """Return the best candidates with their texts and choices."""
    archs, choices = map(space.arch, rows), map(space.named, rows)
    values_of = top.values.tolist() if has_values else repeat(UNSET)
    return tuple(map(BestCandidate, archs, choices, top.times.tolist(), values_of))


def _require_few(count: int) -> None:
    """Raise InputError for more candidates than a table may have."""
    if count > MOST_ROWS:
        raise InputError(
            f"more than {MOST_ROWS:,} candidates are to be written; give {arg('best')} or a smaller "
            f"{arg('max_ms')}"
        )


def _values(function: Value, space: Space, rows: np.ndarray) -> np.ndarray:
    """(n,) values of candidates by the user's function; InputError if it returns something else."""
    named = parameters(function, whole_space=True)
    with user_code(arg("value"), "expected a number for each candidate"):
        each = (call_with(function, named, space, row) for row in rows)
        values = np.asarray(list(each) if named else function(rows), float)
    if values.shape != (len(rows),):
        raise InputError(
            f"{arg('value')} returned an array of shape {values.shape} for candidates of shape "
            f"{rows.shape}; expected a number for each, shape ({len(rows)},); or name its parameter arch, "
            "candidate or choices, to be asked for one at a time"
        )
    return values


def _write(
    output: AnyPath, space: Space, latencies: LatencyEstimator, rows: np.ndarray,
    chosen: Candidates, has_values: bool,
) -> None:  # fmt: skip
    """Write candidates as a CSV table."""
    columns = {"latency_ms": chosen.times}
    if isinstance(latencies, FewShotModel):
        columns["low_ms"], columns["high_ms"] = latencies.interval(rows, COVERAGE)
    if has_values:
        columns["value"] = chosen.values
    cells = (map("{:.7g}".format, column) for column in columns.values())
    lines = zip(map(space.arch, rows), *cells, strict=True)
    write_bytes(output, to_csv(["arch", *columns], lines).encode())
