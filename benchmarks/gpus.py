"""Transformers on GPUs from at most 180 operations timed there.

DATA holds kernels-DEVICE.csv.gz, networks.csv, networks/ and devices.csv of NeuSight's measurements. For
each device operations are drawn at random, a third each of linear and bmm, the rest of the others; a model
is fitted as `lolat fit` does, and its inference of whole networks compared with the measured one.
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import numpy as np

from benchmarks.runner import Errors, Tables, benchmark, percent
from lolat.api.model import Model
from lolat.api.table_rows import Comparison, compare_rows
from lolat.device.question import TableQuestion
from lolat.errors import InputError
from lolat.fitting.from_tables import TimedRows, tables_document
from lolat.graph.modes import Mode
from lolat.hardware.specs import read_specs
from lolat.tables.networks import read_networks
from lolat.tables.operations import TimedOperation, read_operations

PUBLISHED = {
    "a100-pcie-40gb": 6.5, "v100-pcie-32gb": 5.9, "p100-pcie-16gb": 7.1, "t4": 18.5, "p4": 27.0,
    "h100-sxm-80gb": 6.1,
}  # fmt: skip
"""NeuSight's mean errors in %, as the data's README has them."""
HEADER = (
    "GPU", "networks", "mean error", "of the draws", "bias", "inside the 90 % interval", "its width",
    "NeuSight", "training steps",
)  # fmt: skip


def drawn(rows: list[TimedOperation], number: int, seed: int) -> list[TimedOperation]:
    """`number` operations: a third each of linear and bmm, and of all others but convolutions."""
    draw = random.Random(seed)
    parts = [
        [r for r in rows if r.name == "linear"],
        [r for r in rows if r.name == "bmm"],
        [r for r in rows if r.name not in ("linear", "bmm", "conv")],
    ]
    return [r for p in parts for r in draw.sample(p, min(number // 3, len(p)))]


def judged(folder: Path, device: str, number: int, seeds: int) -> list[str]:
    """The row of a device; empty where no networks are to be judged by."""
    rows = read_operations(folder / f"kernels-{device}.csv.gz")
    off, inside, widths, draws, trained = [], [], [], [], []
    for seed in range(seeds):
        timed = TimedRows(drawn(rows, number, seed), [], Mode())
        facts = read_specs(folder / "devices.csv", device)
        model = Model(tables_document(device, device, timed, facts, {}, print))
        networks = read_networks(folder / "networks.csv", [device])
        try:
            found = compare_rows(model, networks, Comparison(networks.path))
        except InputError:
            return []
        errors = [r.predicted_ms / r.latency_ms - 1 for r in found]
        draws.append(float(np.mean(np.abs(errors))))
        off += errors
        for r in found:
            low, high = r.interval_ms or (0.0, np.inf)
            inside.append(low <= r.latency_ms <= high)
            widths.append((high - low) / r.predicted_ms)
        networks = read_networks(folder / "networks.csv", [device])
        with contextlib.suppress(InputError):
            steps = compare_rows(
                model, networks, Comparison(networks.path, TableQuestion(training=True))
            )
            trained += [abs(r.predicted_ms / r.latency_ms - 1) for r in steps]
    every = Errors(np.array(off), inside, widths)
    theirs = f"{PUBLISHED[device]} %" if device in PUBLISHED else "-"
    span = f"{100 * min(draws):.1f} .. {percent(max(draws))}"
    of_steps = percent(float(np.mean(trained))) if trained else "-"
    cells = [every.mean, span, every.bias, every.held, percent(float(np.median(widths)), 0)]
    return [device, str(len(off) // seeds), *cells, theirs, of_steps]


def devices(folder: Path) -> list[str]:
    """The devices that have a table of operations."""
    return sorted(
        p.name.removeprefix("kernels-").removesuffix(".csv.gz") for p in folder.glob("kernels-*")
    )


@benchmark("operations", "gpus", "kernels", data="NeuSight's tables")
def operations(data: Path, number: str = "180", seeds: str = "5") -> Tables:
    """Transformers on GPUs from 180 operations of each, beside NeuSight."""
    rows = [judged(data, device, int(number), int(seeds)) for device in devices(data)]
    return {"operations": (HEADER, [row for row in rows if row])}
