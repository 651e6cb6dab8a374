"""Ranks all candidates of a space, or the networks of a table, by latency; writes a CSV table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat, starmap, zip_longest
from typing import Any, NamedTuple

import numpy as np

from lolat.device.device import Device
from lolat.device.question import as_whole, is_one, several
from lolat.errors import InputError, arg
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.io.results import Result, Several, dict_of
from lolat.io.tables import to_csv
from lolat.io.writing import check_file, check_inputs_stay, write_text
from lolat.nas.estimators import DECODED, REMARKED_ERROR, LatencyEstimator
from lolat.nas.fewshot import FewShotModel
from lolat.nas.latency import answers, estimator
from lolat.nas.limits import no_candidate
from lolat.nas.space import Space
from lolat.nas.user_code import space_and_device
from lolat.parameters import COVERAGE, check_given
from lolat.units import plain

DEFAULT_TOP = 10  # best candidates in the result by default
PREDICTED = 20  # best candidates that are predicted as whole networks
MOST_WRITTEN = 10_000_000  # limit on the rows of the output table


@dataclass(frozen=True)
class BestCandidate:
    """One of the fastest candidates; `interval_ms`: None if its latency is a sum over parts."""

    arch: str
    choices: dict[str, Any]
    latency_ms: float
    interval_ms: tuple[float, float] | None = None


@dataclass(frozen=True, repr=False)
class Ranking(Result):
    """The fastest candidates of a space, and the number of candidates that keep `max_ms`.

    `scored`: number of candidates with a latency; `within`: number within `max_ms`. `source`: the method
    behind the latencies; `device`: the name or path that was asked for; `profile`: the profile that
    answered. `interval_ms`, `coverage`, `in_domain`, `inside_share`, `host_bound`, `warnings`: of the
    fastest candidate. `memory_bytes`, `fits`: of the slowest candidate that is written. `tied`: number of
    candidates whose latency equals, in three digits, the last of `best`; None if sums over parts differ
    from whole networks. `nearest`: the slowest candidates within `max_ms`, the slowest first; empty if all
    are among `best`, or if the number of `best` was given.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    device: str
    profile: str
    max_ms: float | None
    scored: int
    within: int
    output: str | None
    best: tuple[BestCandidate, ...]
    nearest: tuple[BestCandidate, ...] = ()
    interval_ms: tuple[float, float] | None = None
    coverage: float | None = None
    in_domain: bool | None = None
    inside_share: float | None = None
    host_bound: bool | None = None
    memory_bytes: int | None = None
    fits: bool | None = None
    warnings: tuple[str, ...] = ()
    tied: int | None = None

    def words(self) -> str:
        """A text with the number of candidates, and the number within the time."""
        budget = "" if self.max_ms is None else f", {self.within:,} within {self.max_ms:g} ms"
        asked = f"{self.space} on {plain(self.device)}, batch {self.batch_size}"
        return f"{asked}: {self.scored:,} candidates{budget}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of the fastest candidates: arch, latency_ms, low_ms, high_ms, and its choices."""
        rows = [dict_of(candidate) for candidate in self.best]
        for row in rows:
            row["low_ms"], row["high_ms"] = row.pop("interval_ms") or (None, None)
        return [row | row.pop("choices") | row for row in rows]


@dataclass(frozen=True, repr=False)
class Rankings(Several):
    """The rankings of a space at several batch sizes: a sequence of them."""

    answers: tuple[Ranking, ...]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all rankings, with the batch size in front."""
        return [{"batch_size": one.batch_size} | row for one in self.answers for row in one.rows()]


class Latencies(NamedTuple):
    """Latencies of candidates as (n,) arrays: `indices` of the candidates, and `times` in ms."""

    indices: np.ndarray
    times: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Latencies]) -> Latencies:
        """Concatenate the candidates of all parts."""
        if not parts:
            return cls(np.zeros(0, np.int64), np.zeros(0))
        return cls(*map(np.concatenate, zip(*parts, strict=True)))


def three_digits(ms: np.ndarray) -> np.ndarray:
    """Latencies rounded to three significant digits."""
    unit = 10.0 ** (np.floor(np.log10(np.maximum(ms, 1e-9))) - 2.0)
    return np.round(ms / unit) * unit


def best_of(best: Latencies, part: Latencies, k: int) -> Latencies:
    """The `k` fastest of `best` and `part`; ties go to the smaller index."""
    longest = best.times[-1] if len(best.times) == k else math.inf
    able = part.times <= longest
    both = Latencies.joined([best, Latencies(*(column[able] for column in part))])
    order = np.lexsort((both.indices, both.times))[:k]
    return Latencies(*(column[order] for column in both))


class Ranked(NamedTuple):
    """A ranking without its best candidates; `rows`, `times`: all candidates to write, and their ms."""

    result: Ranking
    latencies: LatencyEstimator
    rows: np.ndarray
    times: np.ndarray


def rank(
    space: str | Space,
    model: AnyPath | Device,
    output: AnyPath | None = None,
    *,
    among: AnyPath | None = None,
    max_ms: float | None = None,
    best: int | None = None,
    batch_size: int | Sequence[int] = 1,
    predictor: str | None = None,
    progress: Progress | None = None,
) -> Ranking | Rankings:
    """Find the fastest candidates of a space or of a table, and write the latencies of all.

    `space`, `model`: as for `search`. `output`: a CSV table with the columns arch and latency_ms, also
    batch_size for a list of batch sizes, and low_ms and high_ms if samples answer; None: no file is
    written. The other arguments are the options of `lolat nas score`.

    Returns a `Ranking`, or `Rankings` for a list of batch sizes. AnswerIsNo if no candidate is within the
    time; InputError for more than ten million rows at a batch size.
    """
    shown = progress or Progress()
    check_given(best=best, max_ms=max_ms)
    of_space, loaded = space_and_device(space, model)
    check_file(output, "output")
    sizes = dict.fromkeys(map(as_whole, several(batch_size)))
    if not sizes:
        raise InputError(
            f"{arg('batch_size')} is an empty list; expected one or several", code="batch-size"
        )
    check_inputs_stay({"output": output}, [loaded.source, *([] if among is None else [among])])
    remarks: list[str] = []
    by_size = dict.fromkeys(sizes) if among is None else _read(of_space, among, [*sizes], remarks)
    found = []
    for size, rows in by_size.items():
        latencies = estimator(of_space, loaded, size, predictor, shown)
        count = of_space.grid.countable() if rows is None else len(rows)
        kept, within, fastest, tied = _kept(latencies, rows, count, max_ms, best, shown)
        result = Ranking(
            of_space.label, of_space.size, size, latencies.predictor, latencies.source, loaded.label,
            loaded.profile, max_ms, count, within, None if output is None else str(output), (),
            warnings=tuple(remarks), tied=tied,
        )  # fmt: skip
        if not within and max_ms is not None:
            raise no_candidate(result, f"the fastest takes {fastest:.3g} ms", among)
        decode = of_space.decode if rows is None else rows.__getitem__
        found.append(Ranked(result, latencies, decode(kept.indices), kept.times))
    if output is not None:
        _write(output, of_space, found, with_size=not is_one(batch_size))
    every = [_with_best(one, of_space, loaded, best or DEFAULT_TOP) for one in found]
    if best is None and max_ms is not None:
        pairs = zip(every, found, strict=True)
        every = [_with_nearest(one, by, of_space, loaded) for one, by in pairs]
    return every[0] if is_one(batch_size) else Rankings(tuple(every))


def _kept(
    latencies: LatencyEstimator, rows: np.ndarray | None, count: int, max_ms: float | None,
    best: int | None, progress: Progress,
) -> tuple[Latencies, int, float, int]:  # fmt: skip
    """(candidates to write, number within the time, shortest latency, number tied with the last best).

    `rows`: (count, positions) integers of candidates; None: the whole space.
    """
    parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]] = latencies.chunks()
    if rows is not None:
        parts = [(np.arange(count), rows, latencies.latency(rows))]
    elif count > DECODED:
        progress.start("estimating latencies", -(-count // DECODED))
    kept: list[Latencies] = []
    first, as_long = Latencies.joined([]), Counter[float]()
    within, fastest = 0, math.inf
    for indices, _, times in parts:
        if count > DECODED:
            progress.step()
        fastest = min(fastest, float(times.min(initial=math.inf)))
        able = times <= (math.inf if max_ms is None else max_ms)
        part = Latencies(indices[able], times[able])
        within += len(part.times)
        first = best_of(first, part, best or DEFAULT_TOP)
        rounded, last = three_digits(part.times), three_digits(first.times[-1:])
        as_long.update(rounded[rounded <= last.max(initial=0.0)].tolist())
        if best is not None:
            continue
        kept.append(part)
        if within > MOST_WRITTEN:
            expected = f"give {arg('best')} or a smaller {arg('max_ms')}"
            raise InputError(f"more than {MOST_WRITTEN:,} candidates are to be written; {expected}")
    tied = as_long[three_digits(first.times[-1:]).max(initial=0.0).item()]
    return first if best is not None else Latencies.joined(kept), within, fastest, tied


def _with_best(found: Ranked, space: Space, device: Device, count: int) -> Ranking:
    """The ranking with its `count` best candidates, and the device's answer for the best candidate.

    The first PREDICTED candidates get the latency of their whole network, and are sorted by it.
    """
    every = Latencies(np.arange(len(found.rows)), found.times)
    indices, times = best_of(Latencies.joined([]), every, count)
    rows = found.rows[indices]
    if not len(rows):
        return found.result
    slow = found.rows[[int(np.argmax(found.times))]]
    asked = np.concatenate([rows[:PREDICTED], slow])
    *whole, slowest = answers(found.latencies, space, device, asked)
    remarks = [*_sum_remarks(times[: len(whole)], [answer.latency_ms for answer in whole])]
    summed = three_digits(times[: len(whole)])
    times[: len(whole)] = [answer.latency_ms for answer in whole]
    differ = bool((summed != three_digits(times[: len(whole)])).any())
    # Equal sums differ in their last digits.
    order = sorted(range(len(whole)), key=lambda n: float(f"{times[n]:.9g}"))
    first = whole[order[0]]
    order += range(len(whole), len(rows))
    rows, times = rows[order], times[order]
    intervals = [whole[n].interval_ms for n in order[: len(whole)]]
    result = replace(found.result, best=_candidates(space, rows, times, intervals))
    of_first = {k: v for k, v in vars(first).items() if k != "latency_ms"}
    of_slowest = {"memory_bytes": slowest.memory_bytes, "fits": slowest.fits}
    of_slowest["tied"] = None if differ else result.tied
    told = {"warnings": (*result.warnings, *remarks, *first.warnings)}
    return replace(result, **of_first | of_slowest | told)


def _sum_remarks(sums: np.ndarray, whole: Sequence[float]) -> Iterator[str]:
    """Yield a remark if sums over parts are far from the latencies of the same whole networks."""
    ratios = sums / np.maximum(whole, 1e-9)
    if np.abs(ratios - 1.0).max() > REMARKED_ERROR:
        least, most = (f"{ratio:.2f}" for ratio in (ratios.min(), ratios.max()))
        yield (
            f"the fastest are listed as whole networks; the other latencies and the file's are sums "
            f"over parts, which for these {len(whole)} are {least} to {most} times as long"
        )


def _with_nearest(result: Ranking, found: Ranked, space: Space, device: Device) -> Ranking:
    """Adds `nearest`: the candidates closest below the time limit, at most as many as `best`.

    A candidate whose sum over parts is within the time, but whose whole network is not, is left out; the
    last digits, in which they may differ, do not count.
    """
    count = min(len(result.best), len(found.rows) - len(result.best), PREDICTED)
    last = found.rows[np.argsort(-found.times, kind="stable")[:count]]
    whole = answers(found.latencies, space, device, last)
    limit = (result.max_ms or math.inf) + 1e-9
    able = [n for n in range(count) if whole[n].latency_ms <= limit]
    able.sort(key=lambda n: -float(f"{whole[n].latency_ms:.9g}"))
    times = np.array([whole[n].latency_ms for n in able])
    near = _candidates(space, last[able], times, [whole[n].interval_ms for n in able])
    return replace(result, nearest=near)


def _candidates(
    space: Space, rows: np.ndarray, times: np.ndarray,
    intervals: Sequence[tuple[float, float] | None] = (),
) -> tuple[BestCandidate, ...]:  # fmt: skip
    """The candidates of `rows`; `intervals`: intervals of the first candidates."""
    names = zip(map(space.arch, rows), map(space.named, rows), times.tolist(), strict=True)
    return tuple(starmap(BestCandidate, ((*a, b) for a, b in zip_longest(names, intervals))))


def _read(
    space: Space, among: AnyPath, sizes: Sequence[int], remarks: list[str]
) -> dict[int, np.ndarray]:
    """Batch size -> (n, positions) integers of a table's networks; a row without a size counts for all.

    InputError for a batch size in the table that was not asked for, and for one that the table lacks.
    """
    table = space.read_table(among)
    rows = space.parse_table(table)
    table.say_unread(remarks.append)
    asked = f"{' or '.join(map(str, sizes))}, the {arg('batch_size')} of the latencies"
    own = [row.whole("batch_size", expected=asked, default=0) for row in table]
    for row, size in zip(table, own, strict=True):
        if size not in (0, *sizes):
            raise row.wrong("batch_size", asked)
    found = {n: rows[[at for at, size in enumerate(own) if size in (0, n)]] for n in sizes}
    for size, of_size in found.items():
        if len(rows) and not len(of_size):
            raise InputError(
                f"{arg('batch_size')} {size}: no row of {among} has it; leave it out",
                code="batch-size",
            )
    return found


def _write(output: AnyPath, space: Space, found: Sequence[Ranked], with_size: bool) -> None:
    """Write candidates as a CSV table; a column without a value stays empty.

    Columns of choices follow if arch consists of numbers only, except choices with the name of another
    column.
    """
    sampled = any(isinstance(one.latencies, FewShotModel) for one in found)
    columns = ["arch", "batch_size"][: 1 + with_size] + ["latency_ms", "low_ms", "high_ms"][
        : 1 + 2 * sampled
    ]
    shown = [(n, p) for n, p in enumerate(space.positions) if p.column not in columns]
    shown = [] if space.codec else shown
    columns += [p.name for _, p in shown]
    lines: list[Iterable[tuple[str, ...]]] = []
    for one in found:
        times = [one.times]
        if isinstance(one.latencies, FewShotModel):
            times += one.latencies.interval(one.rows, COVERAGE)
        cells: list[Iterator[str]] = [map("{:.7g}".format, column) for column in times]
        cells += [repeat("")] * (1 + 2 * sampled - len(cells))
        size = [repeat(str(one.latencies.batch_size))] * with_size
        chosen = (map(p.texts.__getitem__, one.rows[:, n].tolist()) for n, p in shown)
        lines.append(zip(map(space.arch, one.rows), *size, *cells, *chosen, strict=False))
    write_text(output, to_csv(columns, chain.from_iterable(lines)))
