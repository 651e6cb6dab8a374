"""The ranges of a job scored with Ray Data on the cluster that `ray` is connected to.

A range is a row of a dataset; scoring it is a task of one CPU, which writes the range's file and returns a
line about it. A task whose worker dies is run again by Ray, elsewhere if need be; ranges that it had
finished are files already and are not scored twice.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lolat import __version__
from lolat.errors import InputError, LolatError, MissingPackageError, not_written
from lolat.model import Model
from lolat.nas import scoring_job as files
from lolat.nas.objective import brief
from lolat.nas.scoring_job import (
    Job,
    Range,
    Ranked,
    arrow,
    check_names,
    half_written,
    merge,
    require_run,
    score_range,
)
from lolat.nas.space import Space

# ---- A run: what is done already, the rest in this process or on Ray, and the best of it all.

CHUNK = 1_000_000


class Ranges(Protocol):
    """What scores the ranges of a job that begin at `starts`, in any order, each as it is done."""

    def __call__(self, job: Job, starts: list[int]) -> Iterable[Range]:
        """LolatError where a range cannot be scored or written."""
        ...


@dataclass(frozen=True)
class Scores:
    """What came of a run: candidates scored, how many kept, the best; `reused`: ranges found done."""

    job: Job
    scored: int
    kept: int
    best: tuple[Ranked, ...]
    reused: int

    def to_dict(self) -> dict[str, Any]:
        """As it stands in JSON."""
        job = self.job
        rows = zip(self.best, files.archs(job, self.best), strict=True)
        candidates = [
            {"index": index, "arch": arch, "latency_ms": time}
            | ({} if job.value is None else {"value": -negative})
            for (negative, index, time), arch in rows
        ]
        return {
            "scored": self.scored,
            "kept": self.kept,
            "max_ms": None if math.isinf(job.max_ms) else job.max_ms,
            "files": len(job.starts()),
            "output": job.folder,
            "best": candidates,
        }


def make_job(
    space: Space,
    model: Model,
    folder: str | Path,
    batch_size: int = 1,
    predictor: str | None = None,
    max_ms: float = math.inf,
    best: int = 10,
    chunk: int = CHUNK,
    limit: int | None = None,
    only_best: bool = False,
    columns: str = "choices",
    value: Callable[..., Any] | None = None,
    value_name: str | None = None,
) -> Job:
    """The job of scoring a space on the device of `model`, its folder made and known to be its own.

    `limit`: score only so many, the first; the rest as in `Job`. InputError where an int64 cannot index
    the space, names of positions cannot be columns, or the folder is another run's.
    """
    stop = min(space.grid.countable(), space.size if limit is None else limit)
    names = tuple(p.name for p in space.positions)
    if columns == "choices":
        check_names(names)
    if min(best, chunk, stop) < 1:
        raise InputError(
            f"best {best}, chunk {chunk}, limit {limit}: expected whole numbers from 1"
        )
    arrow()
    scorer = space.scorer(model, batch_size, predictor)
    manifest = {
        "schema": files.SCHEMA,
        "version": files.FORMAT_VERSION,
        "lolat": __version__,
        "space": space.name,
        "space_fingerprint": files.space_fingerprint(space, batch_size),
        "model": str(model.source),
        "model_fingerprint": files.formula_fingerprint(scorer.formula),
        "predictor": scorer.formula.name,
        "batch_size": batch_size,
        "max_ms": None if math.isinf(max_ms) else float(max_ms),
        "limit": stop,
        "best": best,
        "chunk": chunk,
        "only_best": only_best,
        "columns": columns,
        "value": value_name,
        "positions": [{"name": p.name, "choices": list(p.choices)} for p in space.positions],
    }
    where = Path(folder).resolve()
    files.prepare(where, manifest)
    return Job(
        scorer, space.codec, names, str(where), files.word(manifest), stop, chunk, max_ms, best, only_best,
        columns, value,
    )  # fmt: skip


def here(job: Job, starts: list[int]) -> Iterator[Range]:
    """Score ranges in this process; see `Ranges`."""
    for start in starts:
        try:
            yield score_range(job, start)
        except OSError as error:
            raise not_written(job.path(start), error, "--output") from error


def run(
    job: Job,
    ranges: Ranges = here,
    begin: Callable[[int, int], object] = lambda done, left: None,
    step: Callable[[], object] = lambda: None,
) -> Scores:
    """Score what is not done yet, and write the best of all into the folder.

    `begin(done, left)` is called with how many ranges there are already and how many are to be scored,
    `step` after each. Errors of `ranges`; InputError where the disk has not enough room.
    """
    done = files.finished(job)
    left = [start for start in job.starts() if start not in done]
    if left:  # what it refuses is to be the first word
        files.require_room(job, len(left))
    begin(len(done), len(left))
    reused = len(done)
    best: list[Ranked] = []
    scored = kept = 0

    def add(found: Range) -> None:
        nonlocal best, scored, kept
        best = merge(best, found.best, job.best)
        scored += found.scored
        kept += found.kept

    for found in done.values():
        add(found)
    for found in ranges(job, left) if left else ():
        add(found)
        step()
    files.write_best(job, best)
    files.tidy(job)
    return Scores(job, scored, kept, tuple(best), reused)


# ---- on ray ----------------------------------------

MOST_BLOCKS = (
    20_000  # of the dataset: what Ray's driver keeps a few kilobytes of each in memory for
)
DEATHS = 10  # of workers in the same range: then it is not the workers


def on_ray(job: Job, starts: list[int]) -> Iterator[Range]:
    """Score ranges as tasks of Ray, each as it is done; see `lolat.nas.scoring.Ranges`.

    LolatError where a worker cannot score or write a range, dies again and again, or does not see the
    job's folder; MissingPackageError where ray[data] is not installed.
    """
    try:
        ray = importlib.import_module("ray")
        data = importlib.import_module("ray.data")
    except ImportError as error:
        raise MissingPackageError(
            f"Ray Data cannot be imported here ({error}); install it: pip install 'lolat[ray]'"
        ) from error
    _quiet(data)
    rows = data.from_items(
        [{"start": start} for start in starts], override_num_blocks=min(len(starts), MOST_BLOCKS)
    )
    told = rows.map_batches(
        functools.partial(score_batch, ray.put(job)),
        batch_size=1,
        batch_format="numpy",
        num_cpus=1,
    )
    try:
        for row in told.iter_rows():
            yield answer_of(job, row)
    except ray.exceptions.RayError as error:
        raise LolatError(
            f"Ray could not score {job.folder}: {in_short(error)}; what is done stays, the same command "
            "goes on from there"
        ) from error


def score_batch(reference: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In a worker: score the ranges of a batch; a line about each, and its error (class, text, errno).

    `reference`: to the job, which each machine fetches once.
    """
    job: Job = importlib.import_module("ray").get(reference)
    lines, errors, kinds, codes = [], [], [], []
    for start in batch["start"]:
        line, error, kind, code = "", "", "", 0
        try:
            require_run(job)
            require_luck(job, int(start))
            line = score_range(job, int(start)).to_json()
        except InputError as refused:
            error, kind = str(refused), "input"
        except LolatError as refused:
            error, kind = str(refused), "lolat"
        except OSError as refused:
            error, kind, code = refused.strerror or str(refused), "system", refused.errno or 0
        except Exception as unforeseen:
            error, kind = f"scoring failed in a worker: {brief(unforeseen)}", "lolat"
        lines.append(line)
        errors.append(error)
        kinds.append(kind)
        codes.append(code)
    return {
        "line": np.array(lines), "error": np.array(errors), "kind": np.array(kinds),
        "errno": np.array(codes),
    }  # fmt: skip


def require_luck(job: Job, start: int) -> None:
    """LolatError where DEATHS workers have died in this range; each left behind what it had written.

    Ray Data runs the task of a dead worker again without end, and for ever so.
    """
    left_behind = list(Path(job.folder).glob(half_written(job, start)))
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
    if row["kind"] == "system":
        raise not_written(job.folder, OSError(int(row["errno"]), row["error"]), "--output")
    if row["kind"]:
        raise (InputError if row["kind"] == "input" else LolatError)(row["error"])
    return Range.from_json(row["line"])


def in_short(error: Exception) -> str:
    """An error of Ray's in a line: what it is at bottom, and a remedy where one is known."""
    text = str(error)
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return f"a machine has no module {missing[1]}; install the same LoLat on all of them"
    lines = [
        line.strip() for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception): ", line)
    ]
    return (lines[0] if lines else " ".join(f"{type(error).__name__}: {text}".split()))[:300]


def _quiet(data: Any) -> None:
    """Ray Data says nothing that is no warning: progress is shown by LoLat."""
    import logging

    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    for name in ("", "._internal.execution.streaming_executor", ".exceptions"):
        logging.getLogger(f"ray.data{name}").setLevel(logging.CRITICAL)
