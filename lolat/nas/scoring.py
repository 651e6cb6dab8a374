"""A whole space scored into a folder: a manifest that says what, a Parquet file per range, the best as CSV.

Names that are no data begin with "_", which readers of Parquet folders leave out. Ranges are scored in this
process, or with Ray Data on the cluster that `ray` is connected to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import itertools
import json
import logging
import math
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat import __version__
from lolat.errors import InputError, LolatError, arg, not_written, received, sent
from lolat.io.results import Result, dict_of
from lolat.io.tables import to_csv
from lolat.io.writing import write_bytes
from lolat.model import Model
from lolat.nas.adapters import needed
from lolat.nas.objective import brief
from lolat.nas.scorer import Ranked, Scorer
from lolat.nas.scoring_job import (
    OWN_COLUMNS,
    Job,
    Range,
    arrow,
    read_footer,
    score_range,
    write_range,
)
from lolat.nas.space import Space, scorer_for
from lolat.units import milliseconds, quantity

# ---- The folder: whose it is, what is done already, whether there is room for the rest.

MANIFEST, BEST = "_run.json", "_best.csv"
SCHEMA, FORMAT_VERSION = "lolat-nas-scores", 1
NOT_COMPARED = {"lolat", "positions", "model"}
SAMPLED, SAMPLES = 4096, 8  # candidates in a row, and how many such rows: what a file will take
MARGIN = 1.1  # over what a sample says, to be on the safe side


def make_job(
    space: Space,
    model: Model,
    folder: str | Path,
    batch_size: int = 1,
    predictor: str | None = None,
    limit: int | None = None,
    value_name: str | None = None,
    **options: Any,
) -> Job:
    """The job of scoring a space on the device of `model`, its folder made and known to be its own.

    `limit`: score only so many, the first; `options`: as in `Job`. InputError where an int64 cannot index
    the space, names of positions cannot be columns, or the folder is another run's.
    """
    stop = min(space.grid.countable(), space.size if limit is None else limit)
    scorer = scorer_for(space, model, batch_size, predictor)
    names = tuple(p.name for p in space.positions)
    where = os.path.realpath(folder)  # Path.resolve raises RuntimeError for a ring of links
    job = Job(space.name, scorer, space.codec, names, where, stop, **options)
    columns_there = [*OWN_COLUMNS, *names] if job.label == "choices" else []
    double = next((n for i, n in enumerate(columns_there) if n in columns_there[:i]), None)
    if double is not None:
        raise InputError(
            f"the space has a position {double!r}, which cannot be a column beside "
            f"{', '.join(OWN_COLUMNS)} and the other positions; rename it, or give {arg('label')} arch"
        )
    if min(job.best, job.chunk, stop) < 1:
        raise InputError(
            f"best {job.best}, chunk {job.chunk}, limit {limit}: expected whole numbers from 1"
        )
    arrow()
    manifest = {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "lolat": __version__,
        "space": space.name,
        "space_fingerprint": space_fingerprint(space, batch_size),
        "model": str(model.source),
        "model_fingerprint": fingerprint(scorer),
        "predictor": scorer.predictor,
        "batch_size": batch_size,
        "max_ms": None if math.isinf(job.max_ms) else float(job.max_ms),
        "limit": stop,
        **{name: getattr(job, name) for name in ("best", "chunk", "only_best", "label")},
        "value": value_name,
        "positions": [{"name": p.name, "choices": list(p.choices)} for p in space.positions],
    }
    _claim(Path(where), manifest)
    return replace(job, run=run_word(manifest))


def compared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run another one."""
    return {k: manifest[k] for k in sorted(manifest) if k not in NOT_COMPARED}


def run_word(manifest: Mapping[str, Any]) -> str:
    """A word of a run: that of another one differs."""
    return hashlib.sha256(json.dumps(compared(manifest)).encode()).hexdigest()[:16]


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the folder's run was; InputError where that cannot be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder / MANIFEST}: cannot be read ({' '.join(str(error).split())}); expected what a run of "
            f"this command wrote: give another {arg('output')}, or remove the folder"
        ) from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise InputError(
            f"{folder / MANIFEST}: is not of this command; give another {arg('output')}, or remove the "
            "folder"
        )
    return manifest


def space_fingerprint(space: Space, batch_size: int) -> str:
    """Of the positions, their choices and the counts, from which all latencies of a space come."""
    digest = hashlib.sha256(repr([(p.name, p.choices) for p in space.positions]).encode())
    for table, counts in zip(space.tables, space.table_counts(batch_size), strict=True):
        digest.update(repr((table.positions, counts.shape)).encode())
        digest.update(np.ascontiguousarray(counts, "<i8").tobytes())
    return digest.hexdigest()[:16]


def fingerprint(scorer: Scorer) -> str:
    """Of all numbers that latencies come from."""
    told = json.dumps(scorer.numbers(), sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _claim(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make the folder of a run, or see that it is this run's.

    InputError where it holds another run or other files, or cannot be written.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(
                f"{arg('output')} {folder}: is no folder; expected the name of a new one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise not_written(folder, error, "output") from error
    if MANIFEST in names:
        _require_same(read_manifest(folder), manifest, folder)
    elif names:
        raise InputError(
            f"{arg('output')} {folder}: holds other files ({names[0][:60]}); expected a new folder, an "
            "empty one, or one of this command that is to go on"
        )
    else:
        text = json.dumps(manifest, indent=1, default=repr) + "\n"
        write_bytes(folder / MANIFEST, text.encode())


def _require_same(there: Mapping[str, Any], here: Mapping[str, Any], folder: Path) -> None:
    """InputError that says what differs, if `there` is another run."""
    differing = [key for key, value in compared(here).items() if there.get(key) != value]
    told = []
    for key in differing:
        if key.endswith("_fingerprint"):
            what = key.removesuffix("_fingerprint")
            same = there.get(what) == here.get(what)
            told.append(f"its {what} {'has changed' if same else f'is {there.get(what)}'}")
        elif key != "space" or "space_fingerprint" not in differing:
            was, now = _option_text(there.get(key)), _option_text(here[key])
            told.append(f"{arg(key)} was {was}, not {now}")
    if told:
        raise InputError(
            f"{arg('output')} {folder}: is of another run ({'; '.join(told[:3])}); give another "
            f"{arg('output')}, or what that run was given to go on with it, or remove the folder"
        )


def _option_text(value: Any) -> str:
    """What became of an option, as a person gives it."""
    if value is None or isinstance(value, bool):
        return "given" if value else "left out"
    return f"{value:g}" if isinstance(value, float) else str(value)


def finished(job: Job) -> dict[int, Range]:
    """The ranges that are done, by where they begin: those whose file is whole."""
    try:
        names = set(os.listdir(job.folder))
    except OSError as error:
        raise not_written(job.folder, error, "output") from error
    done = {}
    for start in job.starts() if any(n.endswith(".parquet") for n in names) else ():
        path = job.path(start)
        if path.name not in names:
            continue
        if footer := read_footer(path):
            done[start] = footer
        else:  # not by us, or a disk that failed
            with contextlib.suppress(OSError):
                path.unlink()
    return done


def require_room(job: Job, ranges: int) -> None:
    """InputError where the files of so many ranges will not fit on the disk, judged by a sample."""
    wanted = ranges / max(1, len(job.starts())) * size_bytes(job) * MARGIN
    try:
        free = shutil.disk_usage(job.folder).free
    except OSError as error:
        raise not_written(job.folder, error, "output") from error
    if wanted > free:
        raise InputError(
            f"{arg('output')} {job.folder}: the files would take about {quantity(wanted, 'B')}, and "
            f"{quantity(free, 'B')} are free; give {arg('max_ms')}, {arg('only_best')}, "
            f"{arg('label')} none, a {arg('limit')}, or another disk's folder"
        )


def size_bytes(job: Job) -> float:
    """About how many bytes all files of a job take; exact work on a few thousand candidates."""
    if job.only_best:
        each = 100.0 + 30.0 * job.best + len(job.names) * (100.0 + job.best)
        return len(job.starts()) * (1000.0 + each)

    def written(start: int, stop: int) -> int:
        buffer = io.BytesIO()
        write_range(job, start, stop, buffer)
        return buffer.getbuffer().nbytes

    length = min(SAMPLED, job.stop)
    starts = sorted({int(s) for s in np.linspace(0, job.stop - length, SAMPLES)})
    header = written(0, 0)
    body = sum(max(0, written(s, s + length) - header) for s in starts)
    return len(job.starts()) * header + job.stop * body / (len(starts) * length)


# ---- A run: what is done already, the rest in this process or on Ray, and the best of it all.

Ranges = Callable[[Job, list[int]], Iterable[Range]]
"""What scores the ranges of a job that begin at some candidates, in any order, each as it is done.
LolatError where a range cannot be scored or written."""


@dataclass(frozen=True)
class BestCandidate:
    """One of the best; `value`: where a function of the user's said it."""

    index: int
    latency_ms: float
    value: float | UnsetType
    arch: str


@dataclass(frozen=True, repr=False)
class ScoreAnswer(Result):
    """A space of `size` candidates scored at a batch size by `source`, in words, and what came of it.

    How many were `scored` and `kept`, and the best of them; `reused`: ranges that were done already.
    """

    KEYS = (
        "space", "size", "batch_size", "predictor", "scored", "kept", "max_ms", "files",
        "output=job.folder", "best=ranking",
    )  # fmt: skip

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    job: Job
    scored: int
    kept: int
    best: tuple[Ranked, ...]
    reused: int

    def words(self) -> str:
        """How many were scored and kept, and the fastest or best."""
        told = f"{self.space}: {self.scored:,} scored, {self.kept:,} kept"
        return f"{told}; best: {milliseconds(self.best[0][2])}" if self.best else told

    @property
    def ranking(self) -> tuple[BestCandidate, ...]:
        """The best, as text."""
        job = self.job
        rows = job.scorer.grid.decode(np.array([index for _, index, _ in self.best], np.int64))
        return tuple(
            BestCandidate(
                index, time, UNSET if job.value is None else -negative, job.codec.write(row)
            )
            for (negative, index, time), row in zip(self.best, rows, strict=True)
        )

    @property
    def max_ms(self) -> float | None:
        """The longest that a candidate may take; None: as long as it likes."""
        return None if math.isinf(self.job.max_ms) else self.job.max_ms

    @property
    def files(self) -> int:
        """How many Parquet files there are."""
        return len(self.job.starts())

    def rows(self) -> list[dict[str, Any]]:
        """A row for each of the best: index, latency_ms, (value,) arch."""
        return [dict_of(candidate) for candidate in self.ranking]


def here(job: Job, starts: list[int]) -> Iterator[Range]:
    """Score ranges in this process; see `Ranges`."""
    for start in starts:
        try:
            yield score_range(job, start)
        except OSError as error:
            raise not_written(job.path(start), error, "output") from error


def run(
    job: Job,
    ranges: Ranges = here,
    begin: Callable[[int, int], object] = lambda done, left: None,
    step: Callable[[], object] = lambda: None,
) -> ScoreAnswer:
    """Score what is not done yet, and write the best of all into the folder.

    `begin(done, left)` is called with how many ranges there are already and how many are to be scored,
    `step` after each. Errors of `ranges`; InputError where the disk has not enough room.
    """
    done = finished(job)
    left = [start for start in job.starts() if start not in done]
    if left:  # what it refuses is to be the first word
        require_room(job, len(left))
    begin(len(done), len(left))
    scored, kept, best = 0, 0, list[Ranked]()
    parts = itertools.chain(done.values(), ranges(job, left) if left else ())
    for number, part in enumerate(parts):
        scored += part.scored
        kept += part.kept
        best = sorted([*best, *part.best])[: job.best]
        if number >= len(done):
            step()
    by = job.scorer
    about = (job.space, by.size, by.batch_size, by.predictor, by.source)
    answer = ScoreAnswer(*about, job, scored, kept, tuple(best), len(done))
    header = ["index", "latency_ms", *["value"] * (job.value is not None), "arch"]
    rows = [[repr(v) if isinstance(v, float) else v for v in row.values()] for row in answer.rows()]
    write_bytes(Path(job.folder) / BEST, to_csv(header, rows).encode())
    for path in Path(job.folder).glob(".part-*.tmp"):  # what killed workers left half written
        with contextlib.suppress(OSError):
            path.unlink()
    return answer


# ---- On Ray: a range is a row of a dataset, scoring it a task of one CPU, which writes the range's file
# and returns a line about it. A task whose worker dies is run again by Ray, elsewhere if need be; ranges
# that it had finished are files already and are not scored twice.

MOST_BLOCKS = 20_000  # of the dataset: Ray's driver keeps a few kilobytes of each in memory
DEATHS = 10  # of workers in the same range: then it is not the workers


def on_ray(job: Job, starts: list[int]) -> Iterator[Range]:
    """Score ranges as tasks of Ray, each as it is done; see `Ranges`.

    LolatError where a worker cannot score or write a range, dies again and again, or does not see the
    job's folder; MissingPackageError where ray[data] is not installed.
    """
    ray = needed("ray", "Ray", "ray")
    data = needed("ray.data", "Ray Data", "ray")
    # Ray Data says nothing that is no warning: progress is shown by LoLat.
    data.DataContext.get_current().enable_progress_bars = False
    for name in ("", "._internal.execution.streaming_executor", ".exceptions"):
        logging.getLogger(f"ray.data{name}").setLevel(logging.CRITICAL)
    rows = data.from_items(
        [{"start": start} for start in starts], override_num_blocks=min(len(starts), MOST_BLOCKS)
    )
    told = rows.map(functools.partial(score_row, ray.put(job)), num_cpus=1)
    try:
        for row in told.iter_rows():
            yield answer_of(job, row)
    except ray.exceptions.RayError as error:
        raise LolatError(
            f"Ray could not score {job.folder}: {in_short(error)}; what is done stays, the same command "
            "goes on from there"
        ) from error


def score_row(reference: Any, row: dict[str, Any]) -> dict[str, Any]:
    """In a worker: score a range; a line about it, or its error as JSON.

    `reference`: to the job, which each machine fetches once.
    """
    job: Job = importlib.import_module("ray").get(reference)
    start, line = int(row["start"]), ""
    error: LolatError | None = None
    try:
        require_run(job)
        require_luck(job, start)
        line = score_range(job, start).to_json()
    except LolatError as refused:
        error = refused
    except OSError as refused:
        error = not_written(job.folder, refused, "output")
    except Exception as unforeseen:
        error = LolatError(f"scoring failed in a worker: {brief(unforeseen)}")
    return {"line": line, "error": "" if error is None else json.dumps(sent(error))}


def require_run(job: Job) -> None:
    """LolatError where this machine does not see the folder of the run."""
    try:
        if run_word(read_manifest(Path(job.folder))) == job.run:
            return
    except InputError:
        pass
    raise LolatError(
        f"the machine {socket.gethostname()} does not see the folder {job.folder}; expected one that "
        f"all machines of the cluster share (NFS, EFS): give such a one as {arg('output')}"
    )


def require_luck(job: Job, start: int) -> None:
    """LolatError where DEATHS workers have died in this range; each left behind what it had written.

    Ray Data runs the task of a dead worker again without end, and for ever so.
    """
    left_behind = list(Path(job.folder).glob(job.half_written(start)))
    if len(left_behind) < DEATHS:
        return
    for path in left_behind:  # so that the same command tries again
        path.unlink(missing_ok=True)
    raise LolatError(
        f"{DEATHS} workers died scoring the candidates {start} to {job.end(start) - 1}, often for want of "
        "memory; what is done stays: look into Ray's logs, and give the same command again"
    )


def answer_of(job: Job, row: dict[str, Any]) -> Range:
    """What a worker said of a range, or the error that it met."""
    if row["error"]:
        raise received(json.loads(row["error"]), LolatError)
    return Range.from_json(row["line"])


def in_short(error: Exception) -> str:
    """An error of Ray's in a line: what it is at bottom, and a remedy where one is known."""
    text = str(error)
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return f"a machine has no module {missing[1]}; install the same LoLat on all of them"
    named = re.search(r"^\s*([\w.]+(Error|Exception): .*)", text, re.MULTILINE)
    return (named[1].rstrip() if named else brief(error))[:300]
