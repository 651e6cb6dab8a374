"""Judges the formula on the zoo, without measuring anything: the tables of docs/results/accuracy.md.

    python benchmarks/zoo/judge.py [--rows]
    python benchmarks/zoo/judge.py --update docs/results/accuracy.md

For each device: a model is fitted to its blocks and to the thirteen predefined networks, as learning does;
then it predicts the other networks, which were measured in the same random rounds. Formula, blocks and
thresholds were chosen on the first half of the families alone.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import measure
from networks import CHOSEN, REPORTED

from benchmarks.pages import update
from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from lolat.model import Model
from lolat.model.learning import model_document
from microbench.timing import Levels, Visit, levels

HERE = Path(__file__).resolve().parent
FILLER, OWN = 3, (1, 2)  # modes of a sample: before or after another, and in a loop of its own


@dataclass(frozen=True)
class Device:
    """A device of the zoo, learned: its model, and (entry, Graph, measured ms) of the rest."""

    name: str
    model: Model
    levels: Levels
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
    found = levels(visits(document))
    points, networks, cut = [], [], []
    for number, entry in enumerate(document["jobs"]):
        level, graph = found.jobs.get(str(number)), graphs.get(key(entry))
        if level is None or graph is None:
            continue
        if entry["what"] in ("block", "level"):
            counts = count(graph).total(entry["batch"])._asdict()
            kinds = tuple(sorted(behaviors(graph.operations)))
            whole = entry["what"] == "level"
            points.append(
                Point(
                    entry["name"],
                    entry["batch"],
                    counts,
                    level.latency_ms,
                    kinds=kinds,
                    whole=whole,
                )
            )
        else:
            kept = networks if entry["what"] == "network" else cut
            kept.append((entry, graph, level.latency_ms))
    name = document["device"]
    made = model_document(name, name, points, document["environment"], {"floor": found.floor})
    return Device(name, Model(made), found, networks, cut)


def _judged(
    device: Device, entry: dict[str, Any], graph: Graph, ms: float
) -> tuple[float, bool, float]:
    """The error of a prediction, whether the time is inside its interval, the interval's width."""
    found = device.model.predict(graph, entry["batch"])
    low, high = found.interval_ms or (0.0, np.inf)
    return found.latency_ms / ms - 1, bool(low <= ms <= high), (high - low) / found.latency_ms


def row(device: Device, half: str) -> tuple[list[str], list[float], list[bool], list[float]]:
    """Cells of the table, and (errors, whether inside, widths) of the networks of a half."""
    errors, published, inside, widths = [], [], [], []
    for entry, graph, ms in device.networks:
        if entry["half"] == half:
            error, is_inside, width = _judged(device, entry, graph, ms)
            errors.append(error)
            inside.append(is_inside)
            widths.append(width)
            two = device.model.predict(graph, entry["batch"], "two-regime")
            published.append(two.latency_ms / ms - 1)
    cut, cut_inside = [], []
    for entry, graph, ms in device.cut:
        if entry["half"] == half:
            error, is_inside, _ = _judged(device, entry, graph, ms)
            cut.append(error)
            cut_inside.append(is_inside)
    size = np.abs(errors)
    cells = [
        device.name,
        str(len(errors)),
        _percent(np.median(size)),
        f"{100 * np.median(errors):+.1f} %",
        f"{100 * np.mean(size <= 0.1):.0f} %",
        f"{sum(inside)} of {len(inside)}",
        _percent(np.median(widths)),
        _percent(np.median(np.abs(published))),
        _percent(np.median(np.abs(cut))),
        f"{sum(cut_inside)} of {len(cut)}",
        _percent(device.levels.floor),
    ]
    return cells, errors, inside, widths


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


HEADER = (
    "device", "networks", "median error", "bias", "within 10 %", "inside the 90 % interval", "its width",
    "two-regime", "cut blocks", "inside", "noise floor",
)  # fmt: skip
SUMMARY = (
    "", "devices", "networks", "middle device", "worst device", "inside the 90 % interval", "its width",
)  # fmt: skip
HALVES = {CHOSEN: "first half", REPORTED: "second half"}


def head(cells: Sequence[str]) -> list[str]:
    """The first two lines of a Markdown table."""
    return [f"| {' | '.join(cells)} |", "|" + " --- |" * len(cells)]


def tables(processor: Path) -> tuple[dict[str, list[str]], list[str]]:
    """By half, a table of what was measured on a processor; and the halves' lines of the summary."""
    with ProcessPoolExecutor() as pool:
        devices = list(pool.map(learn, sorted(processor.glob("*.json.xz"))))
    found, lines = {}, []
    for half, words in HALVES.items():
        judged = [row(device, half) for device in devices]
        medians = [float(np.median(np.abs(errors))) for _, errors, _, _ in judged]
        inside = [hit for _, _, hits, _ in judged for hit in hits]
        widths = [width for *_, each in judged for width in each]
        found[f"{processor.name}-{half}"] = [
            *head(HEADER), *(f"| {' | '.join(cells)} |" for cells, *_ in judged)
        ]  # fmt: skip
        cells = (
            f"family {processor.name.split('-')[1]}, {words}", len(devices), len(inside),
            _percent(float(np.median(medians))), _percent(max(medians)), f"{100 * np.mean(inside):.0f} %",
            _percent(float(np.median(widths))),
        )  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
        if "--rows" in sys.argv:
            for device in devices:
                for entry, graph, ms in device.networks:
                    if entry["half"] == half:
                        off = device.model.predict(graph, entry["batch"]).latency_ms / ms - 1
                        print(
                            f"{device.name} {entry['name']} x{entry['batch']} {ms:.1f} {off:+.1%}"
                        )
    return found, lines


def main() -> None:
    """Print the tables, and put them into a page where asked."""
    found: dict[str, list[str]] = {}
    lines = head(SUMMARY)
    for processor in sorted((HERE / "results").iterdir()):
        of_processor, more = tables(processor)
        found |= of_processor
        lines += more
    found["summary"] = lines
    for name, table in found.items():
        print(f"\n{name}:\n", *table, sep="\n")
    if "--update" in sys.argv:
        update(Path(sys.argv[sys.argv.index("--update") + 1]), found)


if __name__ == "__main__":
    main()
