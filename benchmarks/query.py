"""Speed of the answers of a learned model, as ratios in one run.

Every ratio compares two things measured in turns; single times are given for scale only. A query of a
network asks the model's default predictor, with its interval, domain and blocks.
"""

from __future__ import annotations

import itertools
import logging
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lolat
from benchmarks.runner import Tables, benchmark, in_turns
from lolat.nas.estimators import table_estimator
from lolat.nas.grid import Grid
from lolat.nas.ranking import Latencies, best_of

ROOT = Path(__file__).resolve().parent.parent
ROWS = 10_000_000
POSITIONS, CHOICES = 22, 7  # as many positions as FBNet has; 7**22 is what an int64 can index
CANDIDATES = 20_000_000
NETWORKS = ("resnet50", "mobilenetv2_100", "densenet121", "vit_base_patch16_224")


def start_up(model: str) -> list[float]:
    """Seconds of a new process that answers once, and of one that imports numpy."""
    question = (
        f"import lolat; print(lolat.load({model!r}).predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20))"
    )

    # What is installed is compiled once; where that is turned off, each process would compile it anew.
    compiling = {n: v for n, v in os.environ.items() if n != "PYTHONDONTWRITEBYTECODE"}

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run(
            [sys.executable, "-c", code], check=True, cwd=ROOT, env=compiling,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip

    run(question)()
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


def torch_readers() -> list[list[str]]:
    """Rows of the table: reading networks of timm in this process, against fvcore's count of them."""
    from fvcore.nn import FlopCountAnalysis

    from lolat.readers.torch import import_torch
    from lolat.readers.torch.named import named

    logging.disable(logging.WARNING)  # fvcore's, of operations that it skips
    example, lines = import_torch().randn(1, 3, 224, 224), []
    for name in NETWORKS:
        network = named(f"timm:{name}", (3, 224, 224), True)[0].eval()

        def ours(network: Any = network) -> object:
            return lolat.read(network, (3, 224, 224))

        def theirs(network: Any = network) -> object:
            return FlopCountAnalysis(network, example).total()

        ours(), theirs()
        mine, other = in_turns(ours, theirs, rounds=3)
        ratio = f"{mine / other:.2f} ({mine:.2f} s / {other:.2f} s)"
        lines.append([f"reading {name} (PyTorch) / fvcore's count of it", ratio])
    return lines


def search(model: lolat.Model) -> list[str]:
    """A row of the table: the ten fastest of a large space by index, extrapolated from a part of it."""
    random = np.random.default_rng(0)
    tables = [((i,), random.uniform(0.1, 1.0, CHOICES)) for i in range(POSITIONS)]
    estimator = table_estimator(Grid((CHOICES,) * POSITIONS), tables, model.predictor(), 1)
    start = time.process_time()
    best = Latencies.joined([])
    for indices, _, times in estimator.chunks(10**12, 10**12 + CANDIDATES):
        best = best_of(best, Latencies(indices, times), 10)
    seconds = (time.process_time() - start) / CANDIDATES * 1e9
    asked = f"the ten fastest of 10^9 candidates of {POSITIONS} positions, one core"
    return [asked, f"{seconds:.0f} s"]


@benchmark("query", "speed", "extended")
def query(model: str = str(ROOT / "models/epyc-2t.json")) -> Tables:
    """Speed of answers, beside `import numpy`, `X @ w` and fvcore."""
    known = lolat.load(model)
    answer, plain = start_up(model)
    ours, theirs, memory = rows(known)
    counts = each(lambda: known.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20), 5000)
    graph = lolat.read("keras:ResNet50")
    batch_sizes = itertools.count(1)
    known.predict(graph)
    fresh = each(lambda: known.predict(graph, next(batch_sizes)).latency_ms, 200)
    again = each(lambda: known.predict(graph, 200).latency_ms, 5000)
    lines = [
        ["import lolat, load a model, answer once, in a new process / `import numpy`",
         f"{answer / plain:.2f} ({1e3 * answer:.0f} ms / {1e3 * plain:.0f} ms)"],
        ["`predict_counts` on 10 million rows / `X @ w`",
         f"{ours / theirs:.2f} ({1e3 * ours:.0f} ms / {1e3 * theirs:.0f} ms)"],
        ["its peak memory / its input", f"{memory:.2f}"],
        ["one query from counts", f"{counts:.1f} µs"],
        ["one query of ResNet-50, a counted Graph, at another batch size", f"{fresh:.0f} µs"],
        ["the same, asked again", f"{again:.1f} µs"],
        *torch_readers(),
        search(known),
    ]  # fmt: skip
    return {"query": (["what", "measured"], lines)}
