"""How the counts of timm's networks compare with the published ones: the figures of docs/results/gpus.md.

    python benchmarks/coverage.py FOLDER

Reads every network of the tables in FOLDER (processes of their own; what was read is kept, so it goes on
where it was), and compares its multiply-accumulates with `gmacs`, which fvcore counted: that counts norms
and pools too, 2 for each element of a batch norm, 5 of another norm, 1 of a pool, and nothing for what it
does not know. Networks below 0.3 GMACs are left out: `gmacs` has two decimals.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lolat.devices.tables import Counted, TimedNetwork, counts_of, read_networks
from lolat.errors import LolatError
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.kinds import NORMALIZATIONS, POOLINGS
from lolat.readers.cache import Cache

LEAST, NEAR = 0.3, 0.03


def as_fvcore(graph: Graph) -> float:
    """Multiply-accumulates, and what fvcore counts for norms and pools."""
    total = float(count(graph).total(1).flops)
    for operation in graph.operations:
        elements = graph.tensors[operation.inputs[0]].elements() if operation.inputs else 0
        if operation.kind == "batch_norm":
            total += 2 * elements
        elif operation.kind in NORMALIZATIONS:
            total += 5 * elements
        elif operation.kind in POOLINGS:
            total += elements
    return total


def main() -> None:
    """Print how many are near, and every other one."""
    published: dict[tuple[str, int | None], tuple[TimedNetwork, float]] = {}
    failed: dict[str, str] = {}
    for path in sorted(Path(sys.argv[1]).glob("infer-*.csv.gz"), reverse=True):
        for row in read_networks(path).rows:
            if row.row.get("gmacs"):
                published.setdefault((row.spec, row.size), (row, float(row.row["gmacs"])))
    rows = [row for row, _ in published.values()]
    kept, near, explained, others = Cache(), 0, 0, []
    large = 0
    for (row, gmacs), known in zip(published.values(), counts_of(rows), strict=True):
        if isinstance(known, LolatError):
            failed[row.spec] = str(known)
            continue
        assert isinstance(known, Counted)
        if gmacs < LEAST:
            continue
        large += 1
        ours = known.total(1)["flops"] / 1e9
        if abs(ours / gmacs - 1) <= NEAR:
            near += 1
            continue
        graph = kept.graph(row.spec, row.size)
        theirs = as_fvcore(graph) / 1e9 if graph is not None else ours
        if abs(theirs / gmacs - 1) <= NEAR:
            explained += 1
        else:
            others.append((ours / gmacs, theirs / gmacs, row.spec, row.size, gmacs))
    print(
        f"{len(published)} networks and sizes, {len(failed)} not read, {large} from {LEAST} GMACs"
    )
    print(
        f"{near} within 3 % ({100 * near / large:.1f} %); {explained} more with norms and pools as fvcore"
    )
    for own, theirs, spec, size, gmacs in sorted(others):
        print(f"{own:.3f} {theirs:.3f} {spec} {size} published {gmacs}")
    for spec, why in failed.items():
        print(f"not read: {spec}: {why}")


if __name__ == "__main__":
    main()
