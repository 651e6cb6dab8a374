"""Judges the formula on the zoo, without measuring anything.

For each device: a model is fitted to its blocks and to the thirteen predefined networks, as learning does;
then it predicts the other networks, which were measured in the same random rounds. Formula, blocks and
thresholds were chosen on the development split of the families alone.
"""

from __future__ import annotations

import json
import lzma
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Errors, Table, Tables, benchmark, joined, percent
from benchmarks.zoo import measure
from benchmarks.zoo.networks import CHOSEN, REPORTED
from lolat.api.model import Model
from lolat.fitting.blocks import fitted_file
from lolat.graph import Graph
from lolat.microbench.timing import Latencies, Visit, latencies
from lolat.tables.blocks import Point

HERE = Path(__file__).resolve().parent
FILLER, OWN = 3, (1, 2)  # modes of a sample: before or after another, and in a loop of its own


@dataclass(frozen=True)
class Device:
    """A device of the zoo, learned: its model, and (entry, Graph, measured ms) of the rest."""

    name: str
    model: Model
    latencies: Latencies
    networks: list[tuple[dict[str, Any], Graph, float]]
    cut: list[tuple[dict[str, Any], Graph, float]]


def visits(document: dict[str, Any]) -> dict[str, list[Visit]]:
    """The samples of a results file as a run has them: blocks with the network before them."""
    found: dict[str, list[Visit]] = {}
    before = ("", 0.0)
    for job, mode, at, ms, *_ in sorted(document["samples"], key=lambda s: s[2]):
        level = document["jobs"][job]["what"] == "level"
        if mode == FILLER and level:
            before = (str(job), ms)
        elif mode == FILLER:
            found.setdefault(str(job), []).append(Visit((ms,), (before[1],), (at,), before[0]))
        elif mode in OWN:
            found.setdefault(str(job), []).append(Visit((ms,), (), (at,)))
    return found


def key(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["what"], entry["name"], entry["batch"], entry.get("block")


def learn(path: Path) -> Device:
    """The model of the device whose results are in `path`."""
    document = json.loads(lzma.decompress(path.read_bytes()))
    backend = measure.DEVICES[document["device"]][0].partition("+")[0]
    graphs = {key(entry): graph for entry, graph in measure.jobs(backend)}
    found = latencies(visits(document))
    points, networks, cut = [], [], []
    for number, entry in enumerate(document["jobs"]):
        job, graph = found.jobs.get(str(number)), graphs.get(key(entry))
        if job is None or graph is None:
            continue
        if entry["what"] in ("block", "level"):
            whole = entry["what"] == "level"
            ms = job.latency_ms
            points.append(Point.from_graph(entry["name"], graph, entry["batch"], ms, whole=whole))
        else:
            kept = networks if entry["what"] == "network" else cut
            if kept is networks or not entry["name"].startswith(measure.RECUT):
                kept.append((entry, graph, job.latency_ms))
    name = document["device"]
    made = fitted_file(name, name, points, document["environment"], {"floor": found.floor})
    return Device(name, Model(made), found, networks, cut)


def judged(device: Device, jobs: list[tuple[dict[str, Any], Graph, float]], half: str) -> Errors:
    """The errors and intervals of the predictions of one half."""
    off, inside, widths = [], [], []
    for entry, graph, ms in jobs:
        if entry["half"] == half:
            found = device.model.predict(graph, entry["batch"])
            low, high = found.interval_ms or (0.0, np.inf)
            off.append(found.latency_ms / ms - 1)
            inside.append(bool(low <= ms <= high))
            widths.append((high - low) / found.latency_ms)
    return Errors(np.array(off), inside, widths)


HEADS = (
    "device", "networks", "median error", "bias", "within 10 %", "inside the 90 % interval", "its width",
    "two-regime", "cut blocks", "inside", "noise floor",
)  # fmt: skip
SUMMARY = (
    "what", "devices", "networks", "middle device", "worst device", "inside the 90 % interval", "its width",
)  # fmt: skip
PROCESSORS = {"epyc-25-17": "Zen 4", "epyc-26-2": "Zen 5"}
HALVES = {CHOSEN: "development split", REPORTED: "test split"}


def row(device: Device, half: str) -> tuple[list[str], Errors]:
    """Cells of the table, and the errors of the networks of a half."""
    errors, cut = judged(device, device.networks, half), judged(device, device.cut, half)
    published = [
        device.model.predict(graph, entry["batch"], "two-regime").latency_ms / ms - 1
        for entry, graph, ms in device.networks
        if entry["half"] == half
    ]
    figures = [errors.median, errors.bias, errors.within, errors.held, errors.width]
    others = [
        Errors(np.array(published)).median,
        cut.median,
        cut.held,
        percent(device.latencies.floor),
    ]
    return [device.name, str(len(errors.off)), *figures, *others], errors


def tables(processor: Path) -> tuple[dict[str, Table], list[list[str]]]:
    """Make the table of a processor's devices for each half, and the halves' rows of the summary."""
    with ProcessPoolExecutor() as pool:
        devices = list(pool.map(learn, sorted(processor.glob("*.json.xz"))))
    made: dict[str, Table] = {}
    lines = []
    for half, words in HALVES.items():
        rows = [row(device, half) for device in devices]
        medians = [float(np.median(np.abs(errors.off))) for _, errors in rows]
        every = joined(errors for _, errors in rows)
        made[f"{processor.name}-{half}"] = (HEADS, [cells for cells, _ in rows])
        lines.append([
            f"{PROCESSORS[processor.name]}, {words}", str(len(devices)), str(len(every.off)),
            percent(float(np.median(medians))), percent(max(medians)),
            percent(float(np.mean(every.inside)), 0), every.width,
        ])  # fmt: skip
    return made, lines


@benchmark("zoo", "accuracy", "extended")
def zoo() -> Tables:
    """The formula on thirteen and seven devices of two machines; nothing is measured."""
    made: dict[str, Table] = {}
    summary: list[list[str]] = []
    for processor in sorted((HERE / "results").iterdir()):
        of_processor, lines = tables(processor)
        made |= of_processor
        summary += lines
    return {**made, "summary": (SUMMARY, summary)}
