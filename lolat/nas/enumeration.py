"""Ranks all candidates of a space, or the networks of a table, by latency, and writes a CSV table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lolat.device import Device
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
from lolat.nas.user_code import find_space
from lolat.parameters import COVERAGE

DEFAULT_TOP = 10  # of the result, unless another number is asked for
MOST_ROWS = 10_000_000  # of the table


@dataclass(frozen=True)
class BestCandidate:
    """One of the fastest candidates."""

    arch: str
    choices: dict[str, Any]
    latency_ms: float


@dataclass(frozen=True, repr=False)
class Ranking(Result):
    """The fastest candidates of a space, and how many have a latency and keep `max_ms`.

    `scored`: candidates with a latency; `within`: those within `max_ms`. `source` tells where the latencies
    are from. `interval_ms`, `coverage`, `in_domain`, `warnings`: those of the fastest one.
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
        """Return a row for each of the fastest: arch, latency_ms, and its choice at each position."""
        rows = [dict_of(candidate) for candidate in self.best]
        return [row | row.pop("choices") | row for row in rows]


class Candidates(NamedTuple):
    """Candidates as (n,) arrays: `indices`, and `times` in ms."""

    indices: np.ndarray
    times: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Candidates]) -> Candidates:
        """Join the candidates of all parts; no parts are no candidates."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def best_of(best: Candidates, part: Candidates, k: int) -> Candidates:
    """Return the `k` fastest of `best` and `part`, of equal ones the smaller index."""
    longest = best.times[-1] if len(best.times) == k else math.inf
    able = part.times <= longest
    both = Candidates.joined([best, Candidates(*(column[able] for column in part))])
    order = np.lexsort((both.indices, both.times))[:k]
    return Candidates(*(column[order] for column in both))


def rank(
    space: str | Space,
    model: AnyPath | Device,
    output: AnyPath,
    *,
    among: AnyPath | None = None,
    max_ms: float | None = None,
    best: int | None = None,
    batch_size: int = 1,
    predictor: str | None = None,
    progress: Progress | None = None,
) -> Ranking:
    """Write the latencies of all candidates of a space, or of those in a table, and find the fastest.

    `space`, `model`: as for `search`. `output`: a CSV table with the columns arch and latency_ms, low_ms
    and high_ms if samples answer. The other arguments are the options of `lolat nas score`.

    AnswerIsNo if no candidate is within the time; InputError for more than ten million rows.
    """
    shown = progress or Progress()
    loaded = model if isinstance(model, Device) else Device.load(model)
    of_space = find_space(space)
    check_file(output, "output", make_folder=True)
    rows = None if among is None else _read(of_space, among, batch_size, shown)
    count = of_space.grid.countable() if rows is None else len(rows)
    latencies = estimator(of_space, loaded, batch_size, predictor, shown)
    parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]] = latencies.chunks()
    if rows is not None:
        parts = [(np.arange(count), rows, latencies.latency(rows))]
    elif count > DECODED:
        shown.start("estimating latencies", -(-count // DECODED))
    kept: list[Candidates] = []
    within, fastest = 0, math.inf
    for indices, _, times in parts:
        if count > DECODED:
            shown.step()
        fastest = min(fastest, float(times.min(initial=math.inf)))
        able = times <= (math.inf if max_ms is None else max_ms)
        part = Candidates(indices[able], times[able])
        within += len(part.times)
        if best is not None:
            kept = [best_of(Candidates.joined(kept), part, best)]
            continue
        kept.append(part)
        if within > MOST_ROWS:
            expected = f"give {arg('best')} or a smaller {arg('max_ms')}"
            raise InputError(f"more than {MOST_ROWS:,} candidates are to be written; {expected}")
    result = Ranking(
        of_space.name, of_space.size, batch_size, latencies.predictor, latencies.source, max_ms, count,
        within, str(output), (),
    )  # fmt: skip
    if not within and max_ms is not None:
        raise none_within(result, fastest, among)
    decode = of_space.decode if rows is None else rows.__getitem__
    chosen = Candidates.joined(kept)
    _write(output, of_space, latencies, decode(chosen.indices), chosen.times)
    top = best_of(Candidates.joined([]), chosen, best or DEFAULT_TOP)
    return _with_best(result, latencies, of_space, loaded, decode(top.indices), top.times)


def _with_best(
    result: Ranking, latencies: LatencyEstimator, space: Space, model: Device, rows: np.ndarray,
    times: np.ndarray,
) -> Ranking:  # fmt: skip
    """Return the result with its best candidates, and with the answer for the first of them."""
    named = map(BestCandidate, map(space.arch, rows), map(space.named, rows), times.tolist())
    result = replace(result, best=tuple(named))
    for first in answers(latencies, space, model, rows[:1]):
        return replace(
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


def _write(
    output: AnyPath, space: Space, latencies: LatencyEstimator, rows: np.ndarray, times: np.ndarray
) -> None:
    """Write candidates as a CSV table."""
    columns = {"latency_ms": times}
    if isinstance(latencies, FewShotModel):
        columns["low_ms"], columns["high_ms"] = latencies.interval(rows, COVERAGE)
    cells = (map("{:.7g}".format, column) for column in columns.values())
    lines = zip(map(space.arch, rows), *cells, strict=True)
    write_bytes(output, to_csv(["arch", *columns], lines).encode())
