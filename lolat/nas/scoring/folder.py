"""The folder of a run: a manifest that says what is scored, a Parquet file per range, the best as CSV.

Names that are no data begin with "_", which readers of Parquet folders leave out.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, not_written
from lolat.nas.few.nas_file import write_text
from lolat.nas.scoring.job import Job, Range, Ranked, read_footer, write_range
from lolat.nas.space import Space
from lolat.predictors.formula import Formula

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
