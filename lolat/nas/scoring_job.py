"""A job of scoring a space and one range of it scored into one file: the work of every worker.

A range's file is complete or not there: it is written under another name, then renamed. What is known of
the range besides its rows, how many were kept and which are the best, is in its footer, so that a run that
goes on need not read the rows of what is done.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lolat.errors import InputError, arg
from lolat.nas.adapters import needed
from lolat.nas.objective import code_of_user
from lolat.nas.scorer import Ranked, Scorer, best_of
from lolat.nas.space import Codec

CHUNK = 1_000_000
PIECE = 2**17  # candidates in memory at a time, and rows of a Parquet row group
OWN_COLUMNS = ("index", "latency_ms", "value")
FOOTER = b"lolat"


@dataclass(frozen=True)
class Job:
    """Candidates 0 to `stop` of `space`, in ranges of `chunk`, into `folder`.

    Only candidates of at most `max_ms` are kept, and of these only the `best` ones of each range if
    `only_best`. `value`: what is to be large, (n,) from (n, positions); the fastest are the best without.
    `label`: "choices" (a column of integers for each of `names`), "arch" (text by `codec`) or "none".
    It is sent to the workers; `run` is a word that the folder's manifest has too.
    """

    space: str
    scorer: Scorer
    codec: Codec
    names: tuple[str, ...]
    folder: str
    stop: int
    chunk: int = CHUNK
    max_ms: float = math.inf
    best: int = 10
    only_best: bool = False
    label: str = "choices"
    value: Callable[[np.ndarray], np.ndarray] | None = None
    run: str = ""

    def starts(self) -> range:
        """Where the ranges begin."""
        return range(0, self.stop, self.chunk)

    def end(self, start: int) -> int:
        """One past the last candidate of the range that begins at `start`."""
        return min(start + self.chunk, self.stop)

    def path(self, start: int) -> Path:
        """The file of the range that begins at `start`; by name they are in the order of the ranges."""
        digits = len(str(self.stop))
        name = f"part-{start:0{digits}d}-{self.end(start):0{digits}d}.parquet"
        return Path(self.folder) / name

    def half_written(self, start: int) -> str:
        """What the files of a range are called before they are whole: a pattern with one "*"."""
        return f".{self.path(start).stem}-*.tmp"

    def values(self, rows: np.ndarray) -> np.ndarray:
        """(n,) what `value` makes of (n, positions) candidates; InputError unless it is numbers."""
        assert self.value is not None
        with code_of_user(arg("value"), "expected a number for each candidate"):
            values = np.asarray(self.value(rows))
        if values.shape != (len(rows),) or values.dtype.kind not in "fiub":
            raise InputError(
                f"{arg('value')} returned an array of shape {values.shape} and type {values.dtype} for "
                f"candidates of shape {rows.shape}; expected a number for each, shape ({len(rows)},)"
            )
        return values.astype(np.float64)


class Range(NamedTuple):
    """What came of a range: candidates scored, how many of them were kept, and the best."""

    start: int
    scored: int
    kept: int
    best: tuple[Ranked, ...]

    def to_json(self) -> str:
        """As text, for the footer and for the way home from a worker; numbers stay exact."""
        return json.dumps(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Range:
        """The inverse of `to_json`; ValueError or TypeError for anything else."""
        start, scored, kept, best = json.loads(text)
        return cls(start, scored, kept, tuple((v, i, t) for v, i, t in best))


def score_range(job: Job, start: int) -> Range:
    """Score the range that begins at `start` and put its file there; what is there already is kept.

    InputError for what the scorer or the value refuses, OSError where the file cannot be written.
    """
    path = job.path(start)
    done = read_footer(path)
    if done is not None:
        return done
    own = f"{os.getpid()}-{os.urandom(4).hex()}"
    temporary = path.with_name(job.half_written(start).replace("*", own))
    try:
        with open(temporary, "xb") as file:
            scored = write_range(job, start, job.end(start), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return scored


def write_range(job: Job, start: int, stop: int, file: Any) -> Range:
    """Write the candidates from `start` to before `stop` as Parquet into an open file. Errors as above."""
    pa, pq = arrow()
    types = schema(job)
    kept = 0
    best: list[Ranked] = []
    held: list[Any] = []
    with pq.ParquetWriter(file, types, **parquet_options(types)) as writer:

        def flush(least: int) -> None:
            if held and sum(map(len, held)) >= least:
                writer.write_table(pa.concat_tables(held), row_group_size=2 * PIECE)
                held.clear()

        for first in range(start, stop, PIECE):
            indices = np.arange(first, min(first + PIECE, stop), dtype=np.int64)
            rows = job.scorer.grid.between(first, first + len(indices))
            times = job.scorer.latency(rows)
            able = times <= job.max_ms
            if not able.all():
                indices, rows, times = indices[able], rows[able], times[able]
            values = -times if job.value is None else job.values(rows)
            kept += len(indices)
            best = best_of(best, values, indices, times, job.best)
            if not job.only_best:
                held.append(arrow_table(job, types, indices, rows, times, values))
                flush(PIECE)
        if best and job.only_best:
            in_order = sorted(best, key=lambda item: item[1])
            indices = np.array([i for _, i, _ in in_order], np.int64)
            times, values = (np.array([item[n] for item in in_order]) for n in (2, 0))
            rows = job.scorer.grid.decode(indices)
            held.append(arrow_table(job, types, indices, rows, times, -values))
        flush(1)
        scored = Range(start, stop - start, kept, tuple(best))
        writer.add_key_value_metadata({FOOTER: scored.to_json().encode()})
    return scored


def schema(job: Job) -> Any:
    """The columns of a file."""
    pa, _ = arrow()
    fields = [("index", pa.int64()), ("latency_ms", pa.float64())]
    if job.value is not None:
        fields.append(("value", pa.float64()))
    if job.label == "arch":
        fields.append(("arch", pa.string()))
    elif job.label == "choices":
        integer = pa.from_numpy_dtype(job.scorer.grid.dtype)
        fields += [(name, integer) for name in job.names]
    return pa.schema(fields)


def arrow_table(
    job: Job, types: Any, indices: np.ndarray, rows: np.ndarray, times: np.ndarray, values: np.ndarray
) -> Any:  # fmt: skip
    """Some candidates as an Arrow table with the columns of `types`."""
    pa, _ = arrow()
    columns: list[Any] = [indices, times]
    if job.value is not None:
        columns.append(values)
    if job.label == "arch":
        columns.append([job.codec.write(row) for row in rows])
    elif job.label == "choices":
        columns += list(np.ascontiguousarray(rows.T))
    arrays = [pa.array(c, field.type) for c, field in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=types)


def parquet_options(types: Any) -> dict[str, Any]:
    """Options of the Parquet writer: indices as differences, latencies byte by byte, choices as bits."""
    own = [name for name in types.names[:3] if name in OWN_COLUMNS]
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in types.names if name not in own],
        "column_encoding": {
            **dict.fromkeys(own, "BYTE_STREAM_SPLIT"), "index": "DELTA_BINARY_PACKED"
        },
        "write_statistics": own,
    }  # fmt: skip


def read_footer(path: Path) -> Range | None:
    """What came of a range, from its file; None where there is no whole file of ours."""
    _, pq = arrow()
    try:
        with open(path, "rb") as file:
            return Range.from_json(pq.read_metadata(file).metadata[FOOTER])
    except (OSError, ValueError, KeyError, TypeError):  # pyarrow's errors are such
        return None


def arrow() -> tuple[Any, Any]:
    """(pyarrow, pyarrow.parquet); MissingPackageError where it is not installed."""
    what, extra = "pyarrow, which writes Parquet files,", "parquet"
    return needed("pyarrow", what, extra), needed("pyarrow.parquet", what, extra)
