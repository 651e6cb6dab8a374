"""A run: what is done already, the rest in this process or on Ray, and the best of it all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lolat import __version__
from lolat.errors import InputError, not_written
from lolat.model import Model
from lolat.nas.scoring import folder as files
from lolat.nas.scoring.job import Job, Range, Ranked, arrow, check_names, merge, score_range
from lolat.nas.space import Space

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
