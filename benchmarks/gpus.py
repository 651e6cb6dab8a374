"""Transformers on GPUs from at most 200 operations timed there: the table of docs/results/index.md.

    python benchmarks/gpus.py FOLDER [--rows 180] [--seeds 5]

FOLDER holds kernels-DEVICE.csv.gz, networks.csv, networks/ and devices.csv of NeuSight's measurements. For
each device operations are drawn at random, a third each of linear and bmm, the rest of the others; a model
is fitted as `lolat fit` does, and its inference of whole networks compared with the measured one.
"""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lolat.devices.compare import compare_table
from lolat.devices.from_tables import Timed, tables_document
from lolat.devices.sheets import read_facts
from lolat.devices.tables import TimedOperation, read_networks, read_operations
from lolat.errors import InputError
from lolat.graph.modes import Mode
from lolat.model import Model

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


def main() -> None:
    """Print the table."""
    given = sys.argv[1:]
    folder = Path(given[0])
    number = int(given[given.index("--rows") + 1]) if "--rows" in given else 180
    seeds = int(given[given.index("--seeds") + 1]) if "--seeds" in given else 5
    print("| " + " | ".join(HEADER) + " |")
    print("| --- |" + " --: |" * (len(HEADER) - 1))
    for path in sorted(folder.glob("kernels-*.csv.gz")):
        device = path.name.removeprefix("kernels-").removesuffix(".csv.gz")
        rows = read_operations(path)
        off, inside, widths, draws, trained = [], [], [], [], []
        for seed in range(seeds):
            timed = Timed(drawn(rows, number, seed), [], Mode())
            facts = read_facts(folder / "devices.csv", device)
            model = Model(tables_document(device, device, timed, facts, {}))
            networks = read_networks(folder / "networks.csv", device)
            try:
                found = compare_table(model, networks, training=False)
            except InputError:
                break
            errors = [r.predicted_ms / r.latency_ms - 1 for r in found]
            draws.append(np.mean(np.abs(errors)))
            off += errors
            for r in found:
                low, high = r.interval_ms or (0.0, np.inf)
                inside.append(low <= r.latency_ms <= high)
                widths.append((high - low) / r.predicted_ms)
            networks = read_networks(folder / "networks.csv", device)
            with contextlib.suppress(InputError):
                steps = compare_table(model, networks, training=True)
                trained += [abs(r.predicted_ms / r.latency_ms - 1) for r in steps]
        if not off:
            continue
        theirs = f"{PUBLISHED[device]} %" if device in PUBLISHED else "-"
        print(
            f"| {device} | {len(off) // seeds} | {100 * np.mean(np.abs(off)):.1f} % | "
            f"{100 * min(draws):.1f} .. {100 * max(draws):.1f} % | {100 * np.median(off):+.1f} % | "
            f"{sum(inside)} of {len(inside)} | {100 * np.median(widths):.0f} % | "
            f"{theirs} | "
            f"{f'{100 * np.mean(trained):.1f} %' if trained else '-'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
