"""The predefined blocks as a table, and how well their design tells the coefficients apart.

    python benchmarks/design.py [MODEL]

The relative design of the points of MODEL is judged: a model file, models/epyc-2t.json if not given.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lolat.fitting.least_squares import condition_number  # noqa: E402
from lolat.fitting.points import Point, known_features, matrix, times  # noqa: E402
from lolat.graph.counts import count  # noqa: E402
from lolat.model import load  # noqa: E402
from lolat.units import quantity  # noqa: E402
from microbench.blocks import points  # noqa: E402

SHOWN = ("acts", "inp", "flops", "traffic", "weights", "ops", "serial")


def main() -> None:
    """Print the table and the condition numbers."""
    rows = [(name, batch, count(graph).total(batch)) for name, batch, graph in points()]
    print(f"{'block':34} batch " + " ".join(f"{c:>8}" for c in SHOWN))
    for name, batch, counts in rows:
        cells = " ".join(f"{quantity(getattr(counts, c)):>8}" for c in SHOWN)
        print(f"{name:34} {batch:5} {cells}")
    model = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "models" / "epyc-2t.json")
    measured = [Point.from_dict(p) for p in load(model).document["points"]]
    features, time = matrix(measured, known_features(measured)), times(measured)
    design = np.column_stack([features, np.ones(len(features))])
    three = design[:, [0, 1, 2, -1]]
    six = design[:, [0, 1, 2, 3, 4, 5, -1]]
    print(f"{len(measured)} points of {model}; condition number of the relative design:")
    for words, columns in (("ACTS, INP, FLOPs, 1", three), ("six counts, 1", six), ("all", design)):
        print(f"  {words}: {condition_number(columns, time):.1f}")


if __name__ == "__main__":
    main()
