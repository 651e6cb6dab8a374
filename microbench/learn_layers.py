"""Measures random layers of this device, each a block of one layer, for `lolat mlp learn`."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.io.progress import Progress
from lolat.io.tables import to_csv
from lolat.mlp.table import ACTIVATIONS, OPTIMIZERS, PADDINGS, SPREADS, TIME
from microbench import environment
from microbench.journal import Journal
from microbench.learn import network_jobs, noise_of, run_jobs, warnings
from microbench.runner import Job, Settings, graph_job
from microbench.timing import levels

SETTINGS = Settings(rounds=5)  # repetitions, as in the paper
MOST_MACS = {"cpu": 1e9, "gpu": float("inf")}  # of work, forward
ELEMENT_MACS = 64  # that take as long as moving an element: 64 GMAC/s and 4 GB/s
Row = dict[str, Any]  # a layer in the columns of `lolat.mlp.table`, without "gpu"


def draw(layer: str, number: int, seed: int, most_macs: float) -> list[Row]:
    """`number` different layers, "convolution" or "dense"; fewer are the first ones of more.

    `most_macs`: of each, multiply-accumulates forward, and ELEMENT_MACS for each element read or written.
    """
    generator, rows = random.Random(seed), dict[tuple[Any, ...], Row]()
    while len(rows) < number:
        row = _drawn(layer, generator)
        n = count(layer_graph(row)).total(row["batch_size"])
        if n.flops + ELEMENT_MACS * (n.acts + n.inp + n.traffic + n.weights) <= most_macs:
            rows[tuple(row.values())] = row
    return list(rows.values())


def _drawn(layer: str, generator: random.Random) -> Row:
    """A layer of the ranges of Justus et al. 2018, in which each value is as likely as the others."""
    whole = generator.randint
    row: Row = {"batch_size": whole(1, 64)}
    if layer == "convolution":
        size = whole(1, 512)
        row |= {"input_size": size, "kernel_size": whole(1, min(size, 7))}
        row |= {f"{way}_channels": whole(1, 10_000 // size) for way in ("in", "out")}
        row |= {"stride": whole(1, 4), "padding": generator.choice(PADDINGS)}
        row["use_bias"] = whole(0, 1)
    else:
        row |= {f"{way}_features": whole(1, 4095) for way in ("in", "out")}
    forward, *trained = OPTIMIZERS
    optimizer = forward if generator.random() < 0.5 else generator.choice(trained)
    return row | {"activation": generator.choice(ACTIVATIONS), "optimizer": optimizer}


def layer_graph(row: Row) -> Graph:
    """A row as a block of one layer, its activation an operation of its own."""
    if "kernel_size" in row:
        n = Layers.on("layer", row["input_size"], row["input_size"], row["in_channels"])
        x = n.conv(n.input, row["out_channels"], row["kernel_size"], row["stride"],
                   bias=bool(row["use_bias"]), padding=row["padding"])  # fmt: skip
    else:
        n = Layers.on("layer", row["in_features"])
        x = n.dense(n.input, row["out_features"])
    return n.done(x if row["activation"] == "none" else n.same(row["activation"], x))


def job_of(row: Row) -> Job:
    """A row as a job: forward as any block, else with the backward pass and the optimizer's update."""
    job = graph_job(layer_graph(row), " ".join(map(str, row.values())), row["batch_size"])
    if row["optimizer"] == "none":
        return job
    step = {"backward": True, "of_inputs": True, "optimizer": row["optimizer"]}
    # With gradients, and at most two numbers that an optimizer keeps of each weight.
    return replace(job, payload={"training": {"passes": job.payload | step}},
                   need_bytes=3 * job.need_bytes, keep_bytes=4 * job.keep_bytes)  # fmt: skip


def measure_layers(
    backend: str, device: str, rows: Sequence[Row], path: Path, restart: bool, progress: Progress
) -> tuple[str, str, list[str], Journal]:
    """(the device's name, CSV in the columns of Justus et al. 2018, remarks, the journal at `path`).

    The median is the latency without the machine's level, the others are of raw times. Errors: `run_jobs`.
    """
    jobs, frame = [job_of(row) for row in rows], (SETTINGS, path, time.time(), restart, progress)
    with run_jobs(backend, device, jobs, network_jobs(backend), *frame) as (_, outcome, journal):
        found = levels(outcome.visits)
    name = environment.label_of(device, outcome.environment).replace(",", "")  # separates names
    lines = []
    for job, row in zip(jobs, rows, strict=True):
        if level := found.jobs.get(job.key):
            raw = [t for visit in outcome.visits[job.key] for t in visit.samples]
            times = level.latency_ms, min(raw), max(raw), statistics.pstdev(raw)
            lines.append((name, 0, *row.values(), *(f"{ms:.6g}" for ms in times)))
    table = to_csv(("gpu", "run", *rows[0], TIME, *SPREADS), lines)
    return name, table, warnings(outcome.environment, noise_of(found), outcome.failures), journal
