"""What a run measures and in which order: jobs, how long, rounds, what is in memory together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from microbench.timer import LEAST_CALM


@dataclass(frozen=True)
class Job:
    """Something to measure. `payload` is what the worker is told.

    `need_bytes`: foreseen memory while it is made or runs; `keep_bytes`: what it holds in between.
    `whole`: a whole network, timed in a loop of its own; anything else is timed after one.
    """

    key: str
    payload: dict[str, Any]
    need_bytes: int = 0
    keep_bytes: int = 0
    whole: bool = False


@dataclass(frozen=True)
class Settings:
    """How long and how often.

    `rounds` over all jobs, in which a job is visited once, for `slice_s` seconds or so, and further ones,
    up to `most_rounds`, while `enough_s` seconds have not passed; beside a reference block then up to
    `extra_rounds` for the jobs that saw too few calm moments, as long as `extra_s` seconds are left.
    An extra visit waits up to `patience_s` for a calm moment.
    `least_calm`: fewer calm samples than that are too few. `together`: at most so many jobs are held in
    memory and measured in turns, then the next so many; None: as many as there is room for.
    """

    rounds: int = 10
    slice_s: float = 0.03
    extra_rounds: int = 20
    extra_s: float = 100.0
    seed: int = 2026
    patience_s: float = 3.0
    least_calm: int = LEAST_CALM
    together: int | None = None
    most_rounds: int = 0
    enough_s: float = 0.0


def visiting_order(jobs: Sequence[Job], settings: Settings) -> Iterator[tuple[int, Job]]:
    """(round, job) for all rounds, each round in another random order, the same for the same seed.

    Those of `most_rounds` come after the others.
    """
    generator = random.Random(settings.seed)
    for number in range(max(settings.rounds, settings.most_rounds)):
        order = list(jobs)
        generator.shuffle(order)
        for job in order:
            yield number, job


def groups(
    jobs: Sequence[Job], available_bytes: int | None, most: int | None = None
) -> list[list[Job]]:
    """Jobs that may be held in memory at the same time, at least one job each, at most `most`.

    Together they keep at most half of what is free, and with the one that runs at most all of it.
    """
    result: list[list[Job]] = [[]]
    held = extra = 0
    for job in jobs:
        more = max(0, job.need_bytes - job.keep_bytes)
        full = len(result[-1]) == most or (
            available_bytes is not None
            and (
                held + job.keep_bytes > available_bytes / 2
                or held + job.keep_bytes + max(extra, more) > available_bytes
            )
        )
        if full and result[-1]:
            result.append([])
            held = extra = 0
        result[-1].append(job)
        held, extra = held + job.keep_bytes, max(extra, more)
    return result
