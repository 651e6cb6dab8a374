"""Measures random layers of this device, for the companion to be trained on: times as in its table."""

from __future__ import annotations

import csv
import gzip
import io
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.mlp.devices import Device
from lolat.mlp.layer_counts import layer_counts
from lolat.mlp.table import COLUMNS, SPREADS, TIME, LayerTable
from lolat.model_file import write_bytes
from microbench import environment
from microbench.forecast import ITEM_BYTES, OVERHEAD_BYTES
from microbench.journal import Journal
from microbench.learn import (
    describe_noise,
    free_bytes,
    open_journal,
    reference_job,
    run_key,
    warnings,
)
from microbench.outcome import Outcome
from microbench.pace import Pace
from microbench.plan import Job, Settings
from microbench.random_layers import description, name
from microbench.runner import Progress, Runner
from microbench.timer import ENOUGH_CALM, Visit, calm_samples, centre, is_calm, settled_limit

SETTINGS = Settings(
    rounds=5,  # repetitions, as in the paper
    slice_s=0.0,  # one call each
    extra_s=60.0,
    least_calm=ENOUGH_CALM,
    together=100,
)
SLOTS = 2  # at most: numbers that an optimiser keeps per weight
MADE = 5  # tensors of the size of input and output at a time while a layer is trained, at most
TIMES = (TIME, *SPREADS)


@dataclass(frozen=True)
class MeasuredLayers:
    """What a run measured; the journal is still on disk.

    `table`: the layers that could be measured, with GPU, run and times; `samples_ms` of each row are all
    its raw times, `reference_ms` those of the reference block beside them.
    """

    table: LayerTable
    samples_ms: tuple[tuple[float, ...], ...]
    reference_ms: tuple[tuple[float, ...], ...]
    environment: Mapping[str, Any]
    noise: Mapping[str, Any]
    warnings: tuple[str, ...]
    journal: Journal


def measure_layers(
    backend: str,
    device: str,
    layers: LayerTable,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings = SETTINGS,
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> MeasuredLayers:
    """Time each of `layers` (without GPU and times) several times, in random order.

    Goes on from the journal if it is of the same run; `now` is in seconds since the epoch. `check` gets
    the environment before anything is measured, and may raise. Raises LolatError when device or backend
    are not there, or nothing could be measured.
    """
    jobs = [_job(layers, row) for row in range(len(layers))]
    reference = reference_job()
    with Runner(backend, device, progress) as runner:
        where = environment.describe(device) | runner.environment
        if check is not None:
            check(where)
        key = run_key(runner, device, jobs, reference, settings, "layers") | {"backend": backend}
        journal = open_journal(journal_path, key, now, restart, runner.progress)
        runner.progress = Pace(runner.progress, len(jobs), settings.rounds, runner.clock)
        try:
            outcome = runner.run(jobs, reference, settings, journal, free_bytes(runner, device))
        except BaseException:
            journal.close()
            raise
    gpu = gpu_name(device, where)
    return _measured(layers, jobs, outcome, settings, gpu, where, journal)


def gpu_name(device: str, where: Mapping[str, Any]) -> str:
    """What the column `gpu` says: the device's name, without the commas that separate names."""
    return environment.label_of(device, where).replace(",", "")


def write_csv(path: Path, table: LayerTable) -> None:
    """The table as a CSV with the columns of the data behind Justus et al. 2018; see `write_bytes`.

    Gzipped where the name ends in .gz.
    """
    names = ("gpu", "run", *COLUMNS[table.layer][1:], *TIMES)
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    columns = [[f"{t:.6g}" for t in table[n]] if n in TIMES else table[n].tolist() for n in names]
    writer.writerows(zip(*columns, strict=True))
    content = text.getvalue().encode()
    write_bytes(path, gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_record(
    path: Path, measured: MeasuredLayers, fact: Device, drawn: Mapping[str, Any]
) -> None:
    """What a CSV has no column for: the device's facts as `--devices` reads them, where, how, raw times.

    `drawn`: how the layers were chosen. See `write_bytes`.
    """
    rows = zip(measured.samples_ms, measured.reference_ms, strict=True)
    document = {
        "devices": {fact.name: fact.to_dict()},
        "layers": dict(drawn),
        "environment": dict(measured.environment),
        "noise": dict(measured.noise),
        "warnings": list(measured.warnings),
        "points": [
            {
                "name": name(measured.table, row),
                "samples_ms": [round(t, 5) for t in samples],
                "reference_ms": [round(t, 5) for t in reference],
            }
            for row, (samples, reference) in enumerate(rows)
        ],
    }
    write_bytes(path, (_lines(document) + "\n").encode("ascii"))


def _lines(document: Mapping[str, Any]) -> str:
    """JSON with a line per field and per point."""
    points = ",\n".join("  " + json.dumps(point) for point in document["points"])
    fields = {**document, "points": None}
    lines = [
        f" {json.dumps(k)}: " + (f"[\n{points}\n ]" if k == "points" else json.dumps(v))
        for k, v in fields.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def _job(layers: LayerTable, row: int) -> Job:
    """A row as a job, with the memory that it needs (float32)."""
    one = layers.select(np.array([row]))
    acts, inp, _, traffic, weights, _ = (int(n) for n in layer_counts(one)[0])
    trained = one["optimizer"][0] != "none"
    moved = acts + inp + traffic  # of a dense layer, its input and output are traffic
    keep = moved + weights * (1 + SLOTS * trained)
    need = keep + moved * (MADE if trained else 1) + weights * (1 + trained)
    return Job(
        key=name(layers, row),
        payload={"layer": description(layers, row)},
        need_bytes=ITEM_BYTES * need + OVERHEAD_BYTES,
        keep_bytes=ITEM_BYTES * keep,
    )


def _measured(
    layers: LayerTable,
    jobs: Sequence[Job],
    outcome: Outcome,
    settings: Settings,
    gpu: str,
    where: Mapping[str, Any],
    journal: Journal,
) -> MeasuredLayers:
    limit = settled_limit(outcome.visits.values())
    rows = [row for row, job in enumerate(jobs) if outcome.visits.get(job.key)]
    visits = [outcome.visits[jobs[row].key] for row in rows]
    times = np.array([_times(v, limit) for v in visits])
    table = LayerTable(
        layers.layer,
        {
            "gpu": np.full(len(rows), gpu),
            "run": np.zeros(len(rows), np.int64),
            **layers.select(np.array(rows)).columns,
            **dict(zip(TIMES, times.T, strict=True)),
        },
    )
    restless = [jobs[row].key for row, v in zip(rows, visits, strict=True) if not is_calm(v, limit)]
    relative = [float(std / median) for median, _, _, std in times]
    noise = describe_noise(outcome.reference(), limit, relative, len(restless))
    return MeasuredLayers(
        table,
        tuple(tuple(t for v in taken for t in v.samples) for taken in visits),
        tuple(tuple(t for v in taken for t in v.beside()) for taken in visits),
        where,
        noise,
        tuple(warnings(where, noise, outcome.failures, restless)),
        journal,
    )


def _times(visits: Sequence[Visit], limit: float) -> tuple[float, float, float, float]:
    """(centre, least, most, standard deviation) in ms: of calm moments where there are enough."""
    counted = calm_samples(visits, limit)
    if not is_calm(visits, limit):
        counted = [t for v in visits for t in v.samples]
    return centre(visits, limit), min(counted), max(counted), statistics.pstdev(counted)
