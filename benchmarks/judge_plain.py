"""Compares what `benchmarks/plain.py` timed with what models predict.

python benchmarks/judge_plain.py MODEL TIMES.json ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import lolat


def main() -> None:
    """A row for each file of times."""
    model = lolat.load(sys.argv[1])
    print("| times | median error | bias | within 10 % | inside the 90 % interval | two-regime |")
    print("| --- | --: | --: | --: | --: | --: |")
    for path in sys.argv[2:]:
        rows = json.loads(Path(path).read_text())["median_ms"]
        errors, inside, published = [], 0, []
        for name, ms in rows.items():
            network, pixels, batch = name.split(":")
            graph = lolat.read(f"keras:{network}", input_size=int(pixels))
            found = model.predict(graph, int(batch))
            errors.append(found.latency_ms / ms - 1)
            low, high = found.interval_ms or (0.0, 0.0)
            inside += low <= ms <= high
            published.append(model.predict(graph, int(batch), "two-regime").latency_ms / ms - 1)
        size = np.abs(errors)
        print(
            f"| {Path(path).stem} | {100 * np.median(size):.1f} % | {100 * np.median(errors):+.1f} % | "
            f"{100 * np.mean(size <= 0.1):.0f} % | {inside} of {len(rows)} | "
            f"{100 * np.median(np.abs(published)):.0f} % |"
        )


if __name__ == "__main__":
    main()
