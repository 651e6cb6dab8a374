"""The folder of a run: a manifest that says what is scored, a Parquet file per range, the best as CSV.

Names that are no data begin with "_", which readers of Parquet folders leave out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import importlib
import io
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, MissingPackageError, not_written
from lolat.fitting.predictors.formula import Formula
from lolat.nas.fewshot.file import write_text
from lolat.nas.scorer import Scorer
from lolat.nas.space import Codec, Space

# ---- What is to be scored, and the scoring of one range of it into one file: the work of every
# worker.
#
# The range's file is complete or not there: it is written under another name, then renamed. What is
# known of the range besides its rows, how many were kept and which are the best, is in its footer, so
# that a
# run that goes on need not read the rows of what is done.

PIECE = 2**17  # candidates in memory at a time, and rows of a Parquet row group
OWN_COLUMNS = ("index", "latency_ms", "value")
FOOTER = b"lolat"

Ranked = tuple[float, int, float]
"""(-value, index, latency in ms): of two, the smaller one is better; of equal values the first."""


@dataclass(frozen=True)
class Job:
    """Candidates 0 to `stop` of a space, in ranges of `chunk`, into `folder`.

    Only candidates of at most `max_ms` are kept, and of these only the `best` ones of each range if
    `only_best`. `value`: what is to be large, (n,) from (n, positions); the fastest are the best without.
    `columns`: "choices" (a column of integers for each of `names`), "arch" (text by `codec`) or "none".
    It is sent to the workers; `run` is a word that the folder's manifest has too.
    """

    scorer: Scorer
    codec: Codec
    names: tuple[str, ...]
    folder: str
    run: str
    stop: int
    chunk: int
    max_ms: float = math.inf
    best: int = 10
    only_best: bool = False
    columns: str = "choices"
    value: Callable[[np.ndarray], np.ndarray] | None = None

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


@dataclass(frozen=True)
class Range:
    """What came of a range: candidates scored, how many of them were kept, and the best."""

    start: int
    scored: int
    kept: int
    best: tuple[Ranked, ...]

    def to_json(self) -> str:
        """As text, for the footer and for the way home from a worker; numbers stay exact."""
        return json.dumps([self.start, self.scored, self.kept, self.best])

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
    temporary = path.with_name(half_written(job, start).replace("*", own))
    try:
        with open(temporary, "xb") as file:
            found = write_range(job, start, job.end(start), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return found


def half_written(job: Job, start: int) -> str:
    """What the files of a range are called before they are whole: a pattern with one "*"."""
    return f".{job.path(start).stem}-*.tmp"


def write_range(job: Job, start: int, stop: int, file: Any) -> Range:
    """Write the candidates from `start` to before `stop` as Parquet into an open file. Errors as above."""
    pa, pq = arrow()
    types = schema(job)
    kept = 0
    best: list[Ranked] = []
    held: list[Any] = []
    with pq.ParquetWriter(file, types, **how_written(types)) as writer:

        def flush(least: int) -> None:
            if held and sum(map(len, held)) >= least:
                writer.write_table(pa.concat_tables(held), row_group_size=2 * PIECE)
                held.clear()

        for first in range(start, stop, PIECE):
            indices = np.arange(first, min(first + PIECE, stop), dtype=np.int64)
            rows = job.scorer.grid.decode(indices)
            times = job.scorer.latency(rows)
            able = times <= job.max_ms
            if not able.all():
                indices, rows, times = indices[able], rows[able], times[able]
            values = -times if job.value is None else values_of(job.value, rows)
            kept += len(indices)
            best = merge(best, top(values, indices, times, job.best), job.best)
            if not job.only_best:
                held.append(table(job, types, indices, rows, times, values))
                flush(PIECE)
        if best and job.only_best:
            order = sorted(best, key=lambda item: item[1])
            indices = np.array([i for _, i, _ in order], np.int64)
            times, values = (np.array([item[n] for item in order]) for n in (2, 0))
            rows = job.scorer.grid.decode(indices)
            held.append(table(job, types, indices, rows, times, -values))
        flush(1)
        found = Range(start, stop - start, kept, tuple(best))
        writer.add_key_value_metadata({FOOTER: found.to_json().encode()})
    return found


def top(values: np.ndarray, indices: np.ndarray, times: np.ndarray, k: int) -> list[Ranked]:
    """The `k` best of a piece, best first; a value that is NaN is none."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > k:
        least = np.partition(values[known], len(known) - k)[len(known) - k]
        known = known[values[known] >= least]
    order = known[np.lexsort((indices[known], -values[known]))][:k]
    return [(-float(values[i]), int(indices[i]), float(times[i])) for i in order]


def merge(best: Sequence[Ranked], others: Sequence[Ranked], k: int) -> list[Ranked]:
    """The `k` best of both, best first."""
    return sorted([*best, *others])[:k]


def values_of(value: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """What a user's function makes of candidates; InputError unless (n,) numbers."""
    found = np.asarray(value(rows))
    if found.shape != (len(rows),) or found.dtype.kind not in "fiub":
        raise InputError(
            f"--value returned an array of shape {found.shape} and type {found.dtype} for candidates of "
            f"shape {rows.shape}; expected a number for each, shape ({len(rows)},)"
        )
    return found.astype(np.float64)


def schema(job: Job) -> Any:
    """The columns of a file."""
    pa, _ = arrow()
    fields = [("index", pa.int64()), ("latency_ms", pa.float64())]
    if job.value is not None:
        fields.append(("value", pa.float64()))
    if job.columns == "arch":
        fields.append(("arch", pa.string()))
    elif job.columns == "choices":
        integer = pa.from_numpy_dtype(job.scorer.grid.dtype)
        fields += [(name, integer) for name in job.names]
    return pa.schema(fields)


def table(
    job: Job, types: Any, indices: np.ndarray, rows: np.ndarray, times: np.ndarray, values: np.ndarray
) -> Any:  # fmt: skip
    """Some candidates as an Arrow table with the columns of `types`."""
    pa, _ = arrow()
    columns: list[Any] = [indices, times]
    if job.value is not None:
        columns.append(values)
    if job.columns == "arch":
        columns.append([job.codec.write(row) for row in rows])
    elif job.columns == "choices":
        columns += list(np.ascontiguousarray(rows.T))
    arrays = [pa.array(c, field.type) for c, field in zip(columns, types, strict=True)]
    return pa.Table.from_arrays(arrays, schema=types)


def how_written(types: Any) -> dict[str, Any]:
    """Options of the Parquet writer: indices as differences, latencies byte by byte, choices as bits."""
    own = [name for name in types.names[:3] if name in OWN_COLUMNS]
    encodings = dict.fromkeys(own, "BYTE_STREAM_SPLIT") | {"index": "DELTA_BINARY_PACKED"}
    return {
        "compression": "zstd",
        "use_dictionary": [name for name in types.names if name not in own],
        "column_encoding": encodings,
        "write_statistics": own,
    }


def read_footer(path: Path) -> Range | None:
    """What came of a range, from its file; None where there is no whole file of ours."""
    _, pq = arrow()
    try:
        with open(path, "rb") as file:
            known = pq.read_metadata(file).metadata or {}
        return Range.from_json(known[FOOTER])
    except (OSError, ValueError, KeyError, TypeError):  # pyarrow's errors are such
        return None


def check_names(names: Sequence[str]) -> None:
    """InputError where the names of positions cannot be those of columns."""
    taken = set(OWN_COLUMNS)
    for name in names:
        if name in taken:
            raise InputError(
                f"the space has a position {name!r}, which cannot be a column beside "
                f"{', '.join(OWN_COLUMNS)} and the other positions; rename it, or give --columns arch"
            )
        taken.add(name)


def arrow() -> tuple[Any, Any]:
    """(pyarrow, pyarrow.parquet); MissingPackageError where it is not installed."""
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingPackageError(
            f"Parquet files need pyarrow, which cannot be imported here ({error}); install it: "
            "pip install 'lolat[parquet]'"
        ) from error
    return pyarrow, parquet


# ---- folder ----------------------------------------

MANIFEST = "_run.json"
BEST = "_best.csv"
SCHEMA, FORMAT_VERSION = "lolat-nas-scores", 1
SAMPLED, SAMPLES = 4096, 8  # candidates in a row, and how many such rows: what a file will take
ROOM = 1.1  # of what a sample says, to be on the safe side
NOT_COMPARED = {"lolat", "positions", "model"}


def space_fingerprint(space: Space, batch_size: int) -> str:
    """Of the positions, their choices and the counts, from which all latencies of a space come."""
    found = hashlib.sha256(repr([(p.name, p.choices) for p in space.positions]).encode())
    for one, counts in zip(space.tables, space.table_counts(batch_size), strict=True):
        found.update(repr((one.positions, counts.shape)).encode())
        found.update(np.ascontiguousarray(counts, "<i8").tobytes())
    return found.hexdigest()[:16]


def formula_fingerprint(formula: Formula) -> str:
    """Of all numbers of a predictor."""
    told = json.dumps([formula.name, formula.features, formula.to_dict()], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def word(manifest: Mapping[str, Any]) -> str:
    """A run's word: that of another one differs."""
    return hashlib.sha256(json.dumps(_compared(manifest)).encode()).hexdigest()[:16]


def prepare(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make the folder of a run, or find that it is this run's.

    InputError where it holds another run or other files, or cannot be written.
    """
    path = folder / MANIFEST
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"--output {folder}: is no folder; expected the name of a new one")
        folder.mkdir(parents=True, exist_ok=True)
        there = sorted(entry.name for entry in os.scandir(folder))
    except OSError as error:
        raise not_written(folder, error, "--output") from error
    if MANIFEST in there:
        compare(read_manifest(folder), manifest, folder)
    elif there:
        raise InputError(
            f"--output {folder}: holds other files ({there[0][:60]}); expected a new folder, an empty one, "
            "or one of this command that is to go on"
        )
    else:
        write_text(path, json.dumps(manifest, indent=1, default=repr) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the folder's run was; InputError where that cannot be read."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / MANIFEST}: cannot be read ({' '.join(str(error).split())}); expected what a run of "
            "this command wrote: give another --output, or remove the folder"
        ) from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise InputError(
            f"{folder / MANIFEST}: is not of this command; give another --output, or remove the folder"
        )
    return found


def compare(there: Mapping[str, Any], here: Mapping[str, Any], folder: Path) -> None:
    """InputError that says what differs, if `there` is another run."""
    a, b = _compared(there), _compared(here)
    differing = [key for key in b if a.get(key) != b[key]]
    if not differing:
        return
    told = []
    for key in differing:
        if key.endswith("_fingerprint"):
            what = key.removesuffix("_fingerprint")
            same = there.get(what) == here.get(what)
            told.append(f"its {what} {'has changed' if same else f'is {there.get(what)}'}")
        elif key != "space" or "space_fingerprint" not in differing:
            told.append(f"--{key.replace('_', '-')} was {_said(a.get(key))}, not {_said(b[key])}")
    raise InputError(
        f"--output {folder}: is of another run ({'; '.join(told[:3])}); give another --output, or what "
        "that run was given to go on with it, or remove the folder"
    )


def _compared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {k: manifest[k] for k in sorted(manifest) if k not in NOT_COMPARED}


def _said(value: Any) -> str:
    """What became of an option, as a person gives it."""
    if value is None or value is False:
        return "left out"
    if value is True:
        return "given"
    return f"{value:g}" if isinstance(value, float) else str(value)


def finished(job: Job) -> dict[int, Range]:
    """The ranges that are done, by where they begin: those whose file is whole."""
    try:
        there = {entry.name for entry in os.scandir(job.folder)}
    except OSError as error:
        raise not_written(job.folder, error, "--output") from error
    found = {}
    for start in job.starts() if any(n.endswith(".parquet") for n in there) else ():
        path = job.path(start)
        if path.name in there:
            known = read_footer(path)
            if known is None:  # not by us, or a disk that failed
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                found[start] = known
    return found


def require_room(job: Job, ranges: int) -> None:
    """InputError where the files of so many ranges will not fit on the disk, judged by a sample."""
    share = ranges / max(1, len(job.starts()))
    needed = share * size_bytes(job) * ROOM
    try:
        free = shutil.disk_usage(job.folder).free
    except OSError as error:
        raise not_written(job.folder, error, "--output") from error
    if needed > free:
        raise InputError(
            f"--output {job.folder}: the files would take about {_bytes(needed)}, and {_bytes(free)} are "
            "free; give a lower --max-ms, --only-best, --columns none, a --limit, or another disk's folder"
        )


def size_bytes(job: Job) -> float:
    """About how many bytes all files of a job take; exact work on a few thousand candidates."""
    if job.only_best:
        each = 100.0 + 30.0 * job.best + len(job.names) * (100.0 + job.best)
        return len(job.starts()) * (1000.0 + each)
    length = min(SAMPLED, job.stop)
    starts = sorted({int(s) for s in np.linspace(0, job.stop - length, SAMPLES)})
    header = _written(job, 0, 0)
    body = sum(max(0, _written(job, s, s + length) - header) for s in starts)
    return len(job.starts()) * header + job.stop * body / (len(starts) * length)


def _written(job: Job, start: int, stop: int) -> int:
    buffer = io.BytesIO()
    write_range(job, start, stop, buffer)
    return buffer.getbuffer().nbytes


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB", "PB", "EB"):
        if number < 1000 or unit == "EB":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError


def write_best(job: Job, best: Sequence[Ranked]) -> None:
    """The best candidates as CSV: index, latency_ms, (value,) arch."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    with_value = job.value is not None
    writer.writerow(["index", "latency_ms", *["value"] * with_value, "arch"])
    for (negative, index, time), arch in zip(best, archs(job, best), strict=True):
        writer.writerow([index, repr(time), *[repr(-negative)] * with_value, arch])
    write_text(Path(job.folder) / BEST, text.getvalue())


def archs(job: Job, best: Sequence[Ranked]) -> list[str]:
    """The best candidates as text."""
    rows = job.scorer.grid.decode(np.array([index for _, index, _ in best], np.int64))
    return [job.codec.write(row) for row in rows]


def tidy(job: Job) -> None:
    """Remove what killed workers left half written; for when all ranges are done."""
    for path in Path(job.folder).glob(".part-*.tmp"):
        with contextlib.suppress(OSError):
            path.unlink()


def require_run(job: Job) -> None:
    """LolatError where this machine does not see the folder of the run: for workers on other machines."""
    try:
        seen = word(read_manifest(Path(job.folder))) == job.run
    except InputError:
        seen = False
    if not seen:
        import socket

        raise LolatError(
            f"the machine {socket.gethostname()} does not see the folder {job.folder}; expected one that "
            "all machines of the cluster share (NFS, EFS): give such a one as --output"
        )
