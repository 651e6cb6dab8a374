"""The ranges of a job scored with Ray Data on the cluster that `ray` is connected to.

A range is a row of a dataset; scoring it is a task of one CPU, which writes the range's file and returns a
line about it. A task whose worker dies is run again by Ray, elsewhere if need be; ranges that it had
finished are files already and are not scored twice.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, MissingPackageError, not_written
from lolat.nas.named import brief
from lolat.nas.scoring.folder import require_run
from lolat.nas.scoring.job import Job, Range, half_written, score_range

MOST_BLOCKS = (
    20_000  # of the dataset: what Ray's driver keeps a few kilobytes of each in memory for
)
DEATHS = 10  # of workers in the same range: then it is not the workers


def on_ray(job: Job, starts: list[int]) -> Iterator[Range]:
    """Score ranges as tasks of Ray, each as it is done; see `lolat.nas.scoring.run.Ranges`.

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
