"""Latencies of many candidates: a whole space into a folder of Parquet files, or a table of networks.

A space is scored in ranges of candidates. A range's file is whole or absent: it is written under another
name, then renamed. So a run that was stopped goes on with the ranges that have no file. How many were kept
and which are the best is in the file's footer. Ranges are scored in this process, or as tasks of Ray.

Other names in the folder begin with "_", which readers of Parquet folders ignore: `_run.json` says what
the run is, `_best.csv` has the best of all.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.errors import InputError, LolatError, arg
from lolat.fitting.intervals import COVERAGE
from lolat.io.progress import Progress
from lolat.io.results import Result, dict_of
from lolat.io.tables import read_table, to_csv
from lolat.io.writing import AnyPath, write_bytes
from lolat.model import Model, load
from lolat.nas.fewshot import NasModel, read_archs, scorer_for
from lolat.nas.ray_tasks import connected, on_ray
from lolat.nas.scorer import Ranked, Scorer, best_of
from lolat.nas.space import Space
from lolat.nas.user_code import find_function, find_space, needed, user_code
from lolat.units import milliseconds, plain

CHUNK = 1_000_000
MOST_FILES = 10_000
BEST = 10  # listed, unless another number is asked for
Value = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class BestCandidate:
    """One of the best; `value`: where a function of the user's ranks them."""

    index: int
    latency_ms: float
    value: float | UnsetType
    arch: str


@dataclass(frozen=True, repr=False)
class ScoreResult(Result):
    """Candidates of a space that were scored: how many, how many are within `max_ms` and `kept`, the best.

    `source`: of the latencies, in words; `reused`: of the `files`, those that were there already.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    max_ms: float | None
    scored: int
    kept: int
    files: int
    reused: int
    output: str
    best: tuple[BestCandidate, ...]

    def words(self) -> str:
        """How many were scored, and how many are within the time."""
        budget = "" if self.max_ms is None else f", {self.kept:,} within {self.max_ms:g} ms"
        return f"{self.space}: {self.scored:,} candidates scored{budget}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of the best: index, latency_ms, (value,) arch."""
        return [dict_of(candidate) for candidate in self.best]


def score(
    space: str | Space,
    model: str | Model,
    output: AnyPath,
    *,
    among: AnyPath | None = None,
    max_ms: float | None = None,
    best: int | None = None,
    value: str | Value | None = None,
    batch_size: int = 1,
    predictor: str | None = None,
    chunk: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> ScoreResult:
    """Score all candidates of a space, or those of a table, on a device.

    `space`, `model`: as for `search`. `output`: a folder of Parquet files with the columns index,
    latency_ms (value) and one for each position. `among`: a CSV table with the column arch; then `output`
    is a table with arch, latency_ms (low_ms and high_ms, by samples) (value), in the same order. `max_ms`:
    only candidates that take at most this. `best`: only so many, the fastest, or those of the largest
    `value`, a function from (n, positions) integers to (n,) numbers, or its name,
    "package.module:callable". `chunk`: candidates in a file. `ray`: the address of a Ray cluster, "auto",
    or "" for RAY_ADDRESS or else this machine's CPUs; None: in this process.

    A call that was interrupted goes on when it is made again. Raises InputError for a wrong argument,
    LolatError where the disk is full.
    """
    loaded = load(model) if isinstance(model, str) else model
    of_space = find_space(space) if isinstance(space, str) else space
    scorer = scorer_for(of_space, loaded, batch_size, predictor)
    function = find_function(value, "value") if isinstance(value, str) else value
    limit = math.inf if max_ms is None else max_ms
    if min(1 if best is None else best, 1 if chunk is None else chunk) < 1:
        raise InputError(f"best {best}, chunk {chunk}: expected whole numbers from 1")
    ranking = Ranking(scorer, limit, best, function)
    if among is not None:
        return _score_table(of_space, ranking, output, among)
    size = of_space.grid.countable()
    names = tuple(p.name for p in of_space.positions)
    job = Job(ranking, names, os.path.realpath(output), chunk or max(CHUNK, size // MOST_FILES))
    _claim(job, of_space, value if isinstance(value, str) else getattr(value, "__qualname__", None))
    with connected(ray) as module:
        return _run(job, of_space, module, progress or Progress())


@dataclass(frozen=True)
class Ranking:
    """Which candidates count: those of at most `max_ms`, of these the `best` by `value` (None: all)."""

    scorer: Scorer
    max_ms: float
    best: int | None
    value: Value | None

    def within(
        self, indices: np.ndarray, rows: np.ndarray, times: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """(indices, rows, latencies, values) of the candidates within the time; the largest value is best.

        InputError unless `value` gives a number for each.
        """
        able = times <= self.max_ms
        if not able.all():
            indices, rows, times = indices[able], rows[able], times[able]
        if self.value is None:
            return indices, rows, times, -times
        with user_code(arg("value"), "expected a number for each candidate"):
            values = np.asarray(self.value(rows))
        if values.shape != (len(rows),) or values.dtype.kind not in "fiub":
            raise InputError(
                f"{arg('value')} returned an array of shape {values.shape} and type {values.dtype} for "
                f"candidates of shape {rows.shape}; expected a number for each, shape ({len(rows)},)"
            )
        return indices, rows, times, values.astype(np.float64)

    @property
    def listed(self) -> int:
        """How many of the best are listed."""
        return self.best or BEST


def _score_table(space: Space, ranking: Ranking, output: AnyPath, among: AnyPath) -> ScoreResult:
    """Score the networks of a table into another one; the index of the best is their row, from 0."""
    archs, every = read_archs(read_table(os.fspath(among), ("arch",)), space)
    times = ranking.scorer.latency(every)
    indices, rows, times, values = ranking.within(np.arange(len(every)), every, times)
    best = best_of([], values, indices, times, ranking.listed)
    kept = len(indices)
    if ranking.best is not None:
        chosen = np.isin(indices, [index for _, index, _ in best])
        indices, rows, times, values = indices[chosen], rows[chosen], times[chosen], values[chosen]
    columns = {"latency_ms": times}
    if isinstance(ranking.scorer, NasModel):
        columns["low_ms"], columns["high_ms"] = ranking.scorer.interval(rows, COVERAGE)
    if ranking.value is not None:
        columns["value"] = values
    cells = ([f"{number:.7g}" for number in column.tolist()] for column in columns.values())
    lines = zip([archs[i] for i in indices], *cells, strict=True)
    write_bytes(output, to_csv(["arch", *columns], lines).encode())
    texts = [archs[index] for _, index, _ in best]
    return _result(space, ranking, Range(len(every), kept, best), texts, 1, 0, str(output))


# ---- A range of candidates as a Parquet file.

PIECE = 2**17  # candidates in memory at a time, and rows of a Parquet row group
FIRST_COLUMNS = ("index", "latency_ms", "value")
FOOTER = b"lolat"


class Range(NamedTuple):
    """Candidates that were scored: how many, how many of them are within the time, and the best."""

    scored: int
    kept: int
    best: list[Ranked]


@dataclass(frozen=True)
class Job:
    """All candidates of a space, in ranges of `chunk`, into `folder`; sent to workers of Ray.

    `names`: of the positions.
    """

    ranking: Ranking
    names: tuple[str, ...]
    folder: str
    chunk: int

    def starts(self) -> range:
        """Where the ranges begin."""
        return range(0, self.ranking.scorer.size, self.chunk)

    def path(self, start: int) -> Path:
        """The file of the range that begins at `start`; names are in the order of the ranges."""
        size = self.ranking.scorer.size
        digits, end = len(str(size)), min(start + self.chunk, size)
        return Path(self.folder) / f"part-{start:0{digits}d}-{end:0{digits}d}.parquet"

    def table(
        self, indices: np.ndarray, rows: np.ndarray, times: np.ndarray, values: np.ndarray
    ) -> Any:
        """Some candidates as an Arrow table."""
        first = [indices, times, values][: 2 + (self.ranking.value is not None)]
        columns = [*first, *np.ascontiguousarray(rows.T)]
        return arrow()[0].table(columns, names=[*FIRST_COLUMNS[: len(first)], *self.names])


def arrow() -> tuple[Any, Any]:
    """(pyarrow, pyarrow.parquet); MissingPackageError where it is not installed."""
    use, extra = "pyarrow, which writes Parquet files,", "parquet"
    return needed("pyarrow", use, extra), needed("pyarrow.parquet", use, extra)


def score_range(job: Job, start: int) -> Range:
    """Score the range that begins at `start` into its file, which stays where it is there already.

    Errors as of the scorer, the value and `write_bytes`.
    """
    path = job.path(start)
    done = read_footer(path)
    if done is None:
        content = io.BytesIO()
        done = _write_range(job, start, content)
        write_bytes(path, content.getvalue())
    return done


def _write_range(job: Job, start: int, file: Any) -> Range:
    """Write the candidates of the range that begins at `start` as Parquet into `file`, which is open."""
    ranking, scorer = job.ranking, job.ranking.scorer
    stop = min(start + job.chunk, scorer.size)
    kept, best = 0, list[Ranked]()
    none = np.zeros(0)
    schema = job.table(none.astype(int), scorer.grid.decode(none.astype(int)), none, none).schema
    first = [name for name in schema.names if name not in job.names]
    # Indices as differences, latencies byte by byte, choices as bits: half as large as without.
    coding = {**dict.fromkeys(first, "BYTE_STREAM_SPLIT"), "index": "DELTA_BINARY_PACKED"}
    options = {"compression": "zstd", "use_dictionary": list(job.names), "column_encoding": coding}
    with arrow()[1].ParquetWriter(file, schema, **options) as writer:
        for piece in scorer.chunks(start, stop, PIECE):
            indices, rows, times, values = ranking.within(*piece)
            kept += len(indices)
            best = best_of(best, values, indices, times, ranking.listed)
            if ranking.best is None and len(indices):
                writer.write_table(job.table(indices, rows, times, values))
        if ranking.best is not None and best:
            values, numbers, times = np.array(sorted(best, key=lambda one: one[1])).T
            rows = scorer.grid.decode(numbers.astype(np.int64))
            writer.write_table(job.table(numbers.astype(np.int64), rows, times, -values))
        written = Range(stop - start, kept, best)
        writer.add_key_value_metadata({FOOTER: json.dumps(written).encode()})
    return written


def read_footer(path: Path) -> Range | None:
    """The range in a file; None where there is no whole file of ours."""
    try:
        with open(path, "rb") as file:
            scored, kept, best = json.loads(arrow()[1].read_metadata(file).metadata[FOOTER])
    except (OSError, ValueError, KeyError, TypeError):  # also pyarrow's errors
        return None
    return Range(scored, kept, [(v, i, t) for v, i, t in best])


# ---- A run: the ranges that have no file, and the best of all.

RUN, BEST_FILE = "_run.json", "_best.csv"
SCHEMA, FORMAT_VERSION = "lolat-nas-scores", 2
COMPARED = 256  # candidates whose latencies say that space, model and options are the same


def _claim(job: Job, space: Space, value: str | None) -> None:
    """Make the folder of a run, or see that it is this run's.

    InputError where it holds another run or other files, or cannot be written, and for positions that
    cannot be columns.
    """
    if double := set(job.names) & set(FIRST_COLUMNS):
        raise InputError(
            f"the space has a position {min(double)!r}, the name of another column; rename it"
        )
    arrow()
    ranking, scorer = job.ranking, job.ranking.scorer
    times = " ".join(f"{t:.9g}" for t in scorer.latency(space.sample(COMPARED)))
    run = {
        "schema": SCHEMA, "version": FORMAT_VERSION, "space": space.name, "predictor": scorer.predictor,
        "batch_size": scorer.batch_size, "best": ranking.best, "value": value, "chunk": job.chunk,
        "max_ms": None if math.isinf(ranking.max_ms) else ranking.max_ms,
        "positions": [{"name": p.name, "choices": list(p.choices)} for p in space.positions],
        "latencies": hashlib.sha256(times.encode()).hexdigest(),
    }  # fmt: skip
    text = json.dumps(run, indent=1, default=repr) + "\n"
    folder = Path(job.folder)
    names = os.listdir(folder) if folder.is_dir() else []
    if not names:
        write_bytes(folder / RUN, text.encode())
    elif RUN not in names or (folder / RUN).read_bytes() != text.encode():
        kind = "another run" if RUN in names else "other files"
        raise InputError(
            f"{arg('output')} {folder}: holds {kind}; give another folder, or the arguments of that run "
            "to go on with it"
        )


def _run(job: Job, space: Space, ray: Any, shown: Progress) -> ScoreResult:
    """Score the ranges that have no file yet, and write the best of all into the folder."""
    starts, folder = job.starts(), Path(job.folder)
    done = {start: r for start in starts if (r := read_footer(job.path(start))) is not None}
    left = [start for start in starts if start not in done]
    if done:
        shown.note(f"going on: {len(done)} of {len(starts)} files are in {folder} already")
    if left:
        shown.start("scoring", len(left))
    here = (score_range(job, start) for start in left)
    total = Range(0, 0, [])
    try:
        for number, part in enumerate(
            itertools.chain(
                done.values(), here if ray is None else on_ray(ray, score_range, job, left)
            )
        ):
            best = sorted([*total.best, *part.best])[: job.ranking.listed]
            total = Range(total.scored + part.scored, total.kept + part.kept, best)
            if number >= len(done):
                shown.step()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; the files so far are in {folder}, the same command goes on from there"
        ) from None
    if not all(job.path(start).exists() for start in left):
        raise LolatError(
            f"a machine of the cluster has a folder {folder} of its own; expected one that all machines "
            f"share (NFS, EFS): give such a one as {arg('output')}"
        )
    rows = space.decode(np.array([index for _, index, _ in total.best], np.int64))
    archs = [space.arch(row) for row in rows]
    result = _result(space, job.ranking, total, archs, len(starts), len(done), str(folder))
    header = ["index", "latency_ms", *["value"] * (job.ranking.value is not None), "arch"]
    cells = [
        [repr(v) if isinstance(v, float) else v for v in row.values()] for row in result.rows()
    ]
    write_bytes(folder / BEST_FILE, to_csv(header, cells).encode())
    for path in folder.glob(".lolat-*.tmp"):  # half files of killed workers
        path.unlink(missing_ok=True)
    return result


def _result(
    space: Space, ranking: Ranking, total: Range, archs: list[str], files: int, reused: int, output: str
) -> ScoreResult:  # fmt: skip
    """The result; `archs`: the texts of the best."""
    scorer, limit = ranking.scorer, ranking.max_ms
    return ScoreResult(
        space.name, space.size, scorer.batch_size, scorer.predictor, scorer.source,
        None if math.isinf(limit) else limit, total.scored, total.kept, files, reused, output,
        tuple(
            BestCandidate(index, time, UNSET if ranking.value is None else -negative, arch)
            for (negative, index, time), arch in zip(total.best, archs, strict=True)
        ),
    )  # fmt: skip


# ---- The result as people read it.

MOST_ROWS = 20


def lines(result: ScoreResult) -> Iterator[str]:
    """The result as a table of text, with MOST_ROWS of the best."""
    yield result.words()
    yield f"latencies by {result.source}"
    yield ""
    with_value = bool(result.best) and result.best[0].value is not UNSET
    yield f"{'latency':>10}{'  ' + 'value'.rjust(10) if with_value else ''}   candidate"
    for row in result.best[:MOST_ROWS]:
        value = f"  {row.value:>10.6g}" if with_value else ""
        yield f"{milliseconds(row.latency_ms):>10}{value}   {row.arch}"
    if len(result.best) > MOST_ROWS:
        yield f"{MOST_ROWS} of the best {len(result.best)} are shown; the output has them all"
    yield ""
    yield f"written: {plain(result.output)}"
