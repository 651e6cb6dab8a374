"""Latencies of all candidates of a space, or of the networks of a table, as a CSV table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device import Device, load
from lolat.device.intervals import COVERAGE
from lolat.errors import InputError, arg
from lolat.io.progress import Progress
from lolat.io.results import Result, dict_of
from lolat.io.tables import read_table, to_csv
from lolat.io.writing import AnyPath, check_file, write_bytes
from lolat.nas.fewshot import read_archs
from lolat.nas.pareto import none_within
from lolat.nas.sampled import NasModel
from lolat.nas.scorer import DECODED, Scored, Scorer, best_of
from lolat.nas.space import Space
from lolat.nas.user_code import call_with, find_function, find_space, parameters, user_code

BEST = 10  # of the result, unless another number is asked for
MOST_ROWS = 10_000_000  # of the table
Value = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BestCandidate:
    """One of the best; `value`: where a function of the user's ranks them."""

    arch: str
    choices: dict[str, Any]
    latency_ms: float
    value: float | UnsetType


@dataclass(frozen=True, repr=False)
class ScoreResult(Result):
    """Candidates of a space that were scored: how many, how many are within `max_ms`, and the best.

    `source`: of the latencies, in words. `interval_ms`, `coverage`, `in_domain`, `warnings`: of the first
    of the best, as `predict` has them.
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
        """How many were scored, and how many are within the time."""
        budget = "" if self.max_ms is None else f", {self.within:,} within {self.max_ms:g} ms"
        return f"{self.space}: {self.scored:,} candidates scored{budget}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of the best: arch, latency_ms (, value), and its choice at each position."""
        rows = [dict_of(candidate) for candidate in self.best]
        return [row | row.pop("choices") | row for row in rows]


def score(
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
) -> ScoreResult:
    """Score all candidates of a space, or those of a table, on a device.

    `space`, `model`: as for `search`. `output`: a CSV table with the columns arch, latency_ms (low_ms and
    high_ms, by samples) (value). `among`: a CSV table with the column arch; without it all candidates.
    `max_ms`: only candidates that take at most this. `best`: only so many, the fastest, or those of the
    largest `value`, a function as `objective` of `search`, or from (n, positions) integers to (n,)
    numbers, or its name, "package.module:callable"; the best first.

    Raises AnswerIsNo where no candidate is within the time; InputError for a wrong argument, and for more
    than ten million rows.
    """
    shown = progress or Progress()
    loaded = model if isinstance(model, Device) else load(model)
    of_space = find_space(space, shown)
    function = None if value is None else find_function(value, "value")
    check_file(output, "output", make_folder=True)
    rows = None if among is None else read_archs(read_table(str(among), ("arch",)), of_space)[1]
    count = of_space.grid.countable() if rows is None else len(rows)
    decode: Callable[[Any], np.ndarray] = of_space.decode if rows is None else rows.__getitem__
    scorer = of_space.scorer(loaded, batch_size, predictor, shown)
    once = () if rows is None else [(np.arange(count), rows, scorer.latency(rows))]
    pieces = once or scorer.chunks()
    if count > DECODED:
        shown.start("scoring", -(-count // DECODED))
    written = [top := Scored.none()]
    within, fastest, limit = 0, math.inf, math.inf if max_ms is None else max_ms
    for indices, some, times in pieces:
        fastest = min(fastest, float(times.min(initial=math.inf)))
        scored = _within(of_space, indices, some, times, limit, function)
        top = best_of(top, scored, best or BEST)
        within += len(scored.times)
        if best is None:
            written.append(scored)
            _require_few(within)
        if count > DECODED:
            shown.step()
    result = ScoreResult(
        of_space.name, of_space.size, batch_size, scorer.predictor, scorer.source, max_ms, count,
        within, str(output), (),
    )  # fmt: skip
    if not within and max_ms is not None:
        raise none_within(result, fastest)
    chosen = top if best is not None else Scored.joined(written)
    _write(output, of_space, scorer, decode(chosen.indices), chosen, function is not None)
    first = decode(top.indices)
    result = replace(result, best=_named(of_space, first, top, function is not None))
    return _sure(result, of_space, scorer, loaded, first[:1])


def _sure(
    result: ScoreResult, space: Space, scorer: Scorer, model: Device, first: np.ndarray
) -> ScoreResult:
    """The result with how sure its first candidate is; `first`: (1, positions), or none."""
    if not len(first):
        return result
    if isinstance(scorer, NasModel):
        low, high = (float(ends[0]) for ends in scorer.interval(first, COVERAGE))
        inside = bool(scorer.inside(scorer.latency(first))[0])
        return replace(result, interval_ms=(low, high), coverage=COVERAGE, in_domain=inside)
    whole = model.predict(space.network(first[0]), result.batch_size, scorer.predictor)
    return replace(
        result, interval_ms=whole.interval_ms, coverage=whole.coverage, in_domain=whole.in_domain,
        warnings=whole.warnings,
    )  # fmt: skip


def _named(
    space: Space, rows: np.ndarray, top: Scored, has_values: bool
) -> tuple[BestCandidate, ...]:
    """The best as a result has them."""
    archs, choices = map(space.arch, rows), map(space.named, rows)
    values_of = top.values.tolist() if has_values else repeat(UNSET)
    return tuple(map(BestCandidate, archs, choices, top.times.tolist(), values_of))


def _require_few(count: int) -> None:
    if count > MOST_ROWS:
        raise InputError(
            f"more than {MOST_ROWS:,} candidates are to be written; give {arg('best')} or a smaller "
            f"{arg('max_ms')}"
        )


def _within(
    space: Space,
    indices: np.ndarray,
    rows: np.ndarray,
    times: np.ndarray,
    max_ms: float,
    function: Value | None,
) -> Scored:
    """Of a piece the candidates within the time."""
    able = times <= max_ms
    values = -times[able] if function is None else _values(function, space, rows[able])
    return Scored(indices[able], times[able], values)


def _values(function: Value, space: Space, rows: np.ndarray) -> np.ndarray:
    """The user's number for each candidate; InputError for anything else."""
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
    output: AnyPath,
    space: Space,
    scorer: Scorer,
    rows: np.ndarray,
    scored: Scored,
    with_value: bool,
) -> None:
    """Candidates as a CSV table."""
    columns = {"latency_ms": scored.times}
    if isinstance(scorer, NasModel):
        columns["low_ms"], columns["high_ms"] = scorer.interval(rows, COVERAGE)
    if with_value:
        columns["value"] = scored.values
    cells = (map("{:.7g}".format, column) for column in columns.values())
    lines = zip(map(space.arch, rows), *cells, strict=True)
    write_bytes(output, to_csv(["arch", *columns], lines).encode())
