"""How fast a learned model answers, as ratios in one run. Writes docs/results/speed.md with --write.

    python benchmarks/query.py [--model MODEL] [--write]

Every ratio compares two things measured in turns; single times are given for scale only.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import lolat  # noqa: E402
from benchmarks.pages import update  # noqa: E402

ROWS = 10_000_000


def in_turns(a: Callable[[], object], b: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median seconds of `a` and of `b`, called in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, kept in zip((a, b), times, strict=True):
            start = time.perf_counter()
            call()
            kept.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def start_up(model: str) -> tuple[float, float]:
    """Seconds of a new process that answers once, and of one that imports numpy."""
    question = (
        f"import lolat; print(lolat.load({model!r}).predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20))"
    )

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL
        )

    return in_turns(run(question), run("import numpy"), rounds=21)


def rows(model: lolat.Model) -> tuple[float, float, float]:
    """Seconds for ROWS predictions and for X @ w, and peak memory over the input's size."""
    generator = np.random.default_rng(0)
    matrix = generator.uniform(1e3, 1e8, (ROWS, 6))
    columns = [np.ascontiguousarray(c) for c in matrix.T]
    weights = generator.uniform(1e-9, 1e-7, 6)
    ours, theirs = in_turns(
        lambda: model.predict_counts(*columns), lambda: matrix @ weights, rounds=5
    )
    tracemalloc.start()
    model.predict_counts(*columns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    size = sum(c.nbytes for c in columns)
    return ours, theirs, (size + peak) / size


def each(call: Callable[[], object], count: int) -> float:
    """Microseconds of one call, median of five rounds."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - start) / count * 1e6)
    return statistics.median(found)


def main() -> None:
    """Print the table; write it if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", default=None, help="a model file; the first shipped one if not given"
    )
    parser.add_argument("--write", action="store_true", help="write docs/results/speed.md")
    options = parser.parse_args()
    path = options.model or str(sorted((ROOT / "models").glob("*.json"))[0])
    model = lolat.load(path)
    answer, plain = start_up(path)
    ours, theirs, memory = rows(model)
    counts = each(lambda: model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20), 5000)
    graph = lolat.read("keras:ResNet50")
    batch_sizes = itertools.count(1)
    model.predict(graph)
    fresh = each(lambda: model.predict(graph, next(batch_sizes)).latency_ms, 200)
    again = each(lambda: model.predict(graph, 8).latency_ms, 1000)
    lines = [
        "| what | measured |",
        "| --- | --- |",
        f"| import lolat, load a model, answer once, in a new process / `import numpy` | "
        f"{answer / plain:.2f} ({1e3 * answer:.0f} ms / {1e3 * plain:.0f} ms) |",
        f"| `predict_counts` on 10 million rows / `X @ w` | {ours / theirs:.2f} "
        f"({1e3 * ours:.0f} ms / {1e3 * theirs:.0f} ms) |",
        f"| its peak memory / its input | {memory:.2f} |",
        f"| one query from counts | {counts:.1f} µs |",
        f"| one query of ResNet-50, a counted Graph, at a batch size not asked before | {fresh:.0f} µs |",
        f"| the same at a batch size asked before | {again:.0f} µs |",
    ]
    print("\n".join(lines))
    if options.write:
        update(ROOT / "docs/results/speed.md", {"query": lines})


if __name__ == "__main__":
    main()
