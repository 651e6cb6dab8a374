"""Operations of transformers on the V100, each timed alone, against the networks that they are of.

    python benchmarks/justus_network.py DATA             the table of docs/results/justus2018.md

DATA: a folder with neusight/.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lolat.io.tables import read_table as read_cells  # noqa: E402

SHORTEST_MS = 0.012  # of an operation that runs on the GPU; below, it is the host's alone
INSIDE = re.compile(r"layer_0|_h_0|h_0")  # in the name of an operation of the layer that was traced


def row(*cells: object) -> None:
    """A row of a table."""
    click.echo("| " + " | ".join(map(str, cells)) + " |")


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True))
def main(data: Path) -> None:
    """A row for each network: the sum of its operations and what itself took."""
    traced = defaultdict(list)
    for one in read_cells(data / "neusight/operations.csv.gz"):
        traced[_which(one)].append(one)
    row(
        "network",
        "pass",
        "batch",
        "operations, ms",
        "network, ms",
        "on the GPU",
        "more by each, us",
    )
    row("---", "---", *["--:"] * 5)
    for one in read_cells(data / "neusight/networks.csv"):
        found = traced.get(_which(one))
        if not one["device"].startswith("v100") or one["compiled"] != "no" or not found:
            continue
        times = np.array([float(o["forward_ms"]) for o in found])
        at = [i for i, o in enumerate(found) if INSIDE.search(o["name"] + o["target"])]
        often = np.ones(len(times))
        often[min(at) : max(at) + 1] = int(one["layers"])
        whole, total = float(one["forward_ms"]), float(often @ times)
        started = float(often @ (times > SHORTEST_MS))
        row(one["network"], one["pass"], one["batch_size"], f"{total:.1f}", f"{whole:.1f}",
            f"{started:.0f}", f"{1e3 * (total - whole) / started:.0f}")  # fmt: skip


def _which(one: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(one[n] for n in ("device", "network", "pass", "sequence_length", "batch_size"))


if __name__ == "__main__":
    main()
