"""What scoring a space costs, part by part, in one process and on a Ray of one and two workers.

    python benchmarks/nas_scale.py [--model MODEL] [--candidates N] [--price P] [--rounds R]

Takes about a minute and a half. Files are written to a temporary folder. `--price`: of a core for an hour.
"""

from __future__ import annotations

import argparse
import functools
import io
import logging
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ["PYTHONPATH"] = str(ROOT)

import lolat  # noqa: E402
from lolat.nas.scoring import (  # noqa: E402
    Ranges,
    here,
    make_job,
    on_ray,
    run,
)
from lolat.nas.scoring_job import Job, Range, arrow_table, parquet_options, schema, score_range  # noqa: E402
from lolat.nas.space import Space  # noqa: E402
from lolat.nas.spaces import mobile  # noqa: E402

CHUNK = 1_000_000
PART = 2**17  # candidates that the parts are measured on
START = 10**12  # somewhere in the middle of the space
TINY = 200  # ranges of one candidate: what a task costs
NODES, CORES = 100, 16
BUDGETS = ("all kept", "some dropped")
CHUNKS = (CHUNK, 10 * CHUNK)


def space() -> Space:
    """3.3e12 candidates of 41 positions."""
    return mobile.space(
        widths=(0.75, 1.0),
        depths=(2, 3),
        kernels=(3, 5),
        expansions=(3, 6),
        resolutions=(160, 192, 224),
    )


def median_s(call: Callable[[], object], rounds: int = 7) -> float:
    """Median seconds of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def parts(job: Job) -> dict[str, tuple[float, float]]:
    """Part of the work -> (ns a candidate, bytes a candidate)."""
    from pyarrow import parquet

    scorer = job.scorer
    indices = np.arange(START, START + PART)
    rows = scorer.grid.decode(indices)
    times = scorer.latency(rows)

    def write(columns: str) -> int:
        types = schema(replace(job, label=columns))
        file = io.BytesIO()
        with parquet.ParquetWriter(file, types, **parquet_options(types)) as writer:
            made = arrow_table(replace(job, label=columns), types, indices, rows, times, times)
            writer.write_table(made)
        return file.tell()

    def ns(call: Callable[[], object]) -> float:
        return 1e9 * median_s(call) / PART

    return {
        "decode the index": (ns(lambda: scorer.grid.decode(indices)), 0.0),
        "look up and add the milliseconds": (ns(lambda: scorer.latency(rows)), 0.0),
        "Parquet, index and latency": (ns(lambda: write("none")), write("none") / PART),
        "Parquet, 41 columns of choices too": (ns(lambda: write("choices")), write("choices") / PART),
    }  # fmt: skip


@contextmanager
def ray_of(cpus: int) -> Iterator[float]:
    """A Ray of this machine; seconds until it and its workers are ready."""
    import ray

    start = time.perf_counter()
    ray.init(
        address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR, object_store_memory=int(200e6),
    )  # fmt: skip
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(make(folder, 4 * cpus, 1), on_ray)
        yield time.perf_counter() - start
    finally:
        ray.shutdown()


def make(folder: str, limit: int, chunk: int, max_ms: float = math.inf) -> Job:
    """A job on the first candidates."""
    return make_job(SPACE, MODEL, folder, max_ms=max_ms, limit=limit, chunk=chunk)


def two_processes(job: Job, starts: list[int]) -> Iterator[Range]:
    """Every other range in a process of its own: what two cores of this machine can do without Ray."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(abs, range(8)))
        yield from pool.map(functools.partial(score_range, job), starts)


def per_second(ranges: Ranges, count: int, max_ms: float) -> tuple[float, float, float]:
    """(candidates a second, share kept, bytes a candidate) of a whole run."""
    with tempfile.TemporaryDirectory() as folder:
        job = make(folder, count, CHUNK, max_ms)
        start = time.perf_counter()
        found = run(job, ranges)
        seconds = time.perf_counter() - start
        size = sum(p.stat().st_size for p in Path(folder).glob("*.parquet"))
    return count / seconds, found.kept / count, size / count


def per_range(ranges: Ranges) -> tuple[float, float]:
    """Seconds of a range that holds one candidate, and of one that is done: what a task costs."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        job = make(folder, TINY, 1)
        for _ in range(2):
            start = time.perf_counter()
            list(ranges(job, list(job.starts())))
            found.append((time.perf_counter() - start) / TINY)
    return found[0], found[1]


def whole_runs(count: int, rounds: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, float]]:
    """(where, budget) -> what `per_second` says; where -> what `per_range` says; seconds of the start."""
    job = make(tempfile.mkdtemp(), PART, PART)
    tenth = float(np.quantile(job.scorer.latency(job.scorer.grid.decode(np.arange(PART))), 0.1))
    found: dict[str, Any] = {}
    tiny: dict[str, Any] = {}
    starts: dict[str, float] = {}

    def all_of(where: str, ranges: Ranges) -> None:
        for budget, max_ms in zip(BUDGETS, (math.inf, tenth), strict=True):
            told = [per_second(ranges, count, max_ms) for _ in range(rounds)]
            found[f"{where}, {budget}"] = max(told)
        tiny[where] = per_range(ranges)

    all_of("in one process", here)
    all_of("two processes, no Ray", two_processes)
    for cpus in (1, 2):
        with ray_of(cpus) as seconds:
            where = f"Ray, {cpus} worker{'s' * (cpus > 1)}"
            starts[where] = seconds
            all_of(where, on_ray)
    return found, tiny, starts


def main() -> None:
    """Print the tables."""
    global SPACE, MODEL
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--model", default=None, help="a model file; the first shipped one if not given"
    )
    parser.add_argument("--candidates", type=int, default=12_000_000)
    parser.add_argument("--price", type=float, default=0.05, help="US$ of a core for an hour")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    SPACE = space()
    MODEL = lolat.load(options.model or sorted((ROOT / "models").glob("*.json"))[0])
    print(
        "| part of the work, one core | ns a candidate | bytes a candidate |\n| --- | --: | --: |"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, (ns, size) in parts(make(folder, PART, PART)).items():
            print(f"| {name} | {ns:.0f} | {size:.1f} |" if size else f"| {name} | {ns:.0f} | |")
    found, tiny, starts = whole_runs(options.candidates, options.rounds)
    print(f"\n| {options.candidates:,} candidates, files included | kept | million a second | bytes a "
          "candidate | 10^9: core hours, US$ |\n| --- | --: | --: | --: | --: |")  # fmt: skip
    for name, (speed, kept, size) in found.items():
        cores = 2 if "2 workers" in name or "two processes" in name else 1
        hours = cores * 1e9 / speed / 3600
        print(f"| {name} | {100 * kept:.0f} % | {speed / 1e6:.2f} | {size:.2f} | {hours:.2f}, "
              f"{options.price * hours:.3f} |")  # fmt: skip
    print("\n| ms a range | of one candidate | that is done already |\n| --- | --: | --: |")
    for name, (scored, done) in tiny.items():
        print(f"| {name} | {1e3 * scored:.1f} | {1e3 * done:.2f} |")
    for name, seconds in starts.items():
        print(f"\nSeconds to start {name}: {seconds:.1f}.", end="")
    print()
    reasoned(found, tiny, options.price)


def reasoned(found: dict[str, Any], tiny: dict[str, Any], price: float) -> None:
    """What a large cluster would do, from the measured parts."""
    dispatch = 1 / tiny["Ray, 2 workers"][1]
    head = " | ".join(f"{budget}, ranges of {chunk:,}" for budget in BUDGETS for chunk in CHUNKS)
    print(f"\n| {NODES} nodes of {CORES} cores, reasoned | {head} |")
    print("| --- | --: | --: | --: | --: |")
    rows: dict[str, list[str]] = {}
    for budget in BUDGETS:
        speed, _, size = found[f"Ray, 2 workers, {budget}"]
        cores = NODES * CORES * speed / 2
        for chunk in CHUNKS:
            driver = dispatch * chunk
            least = min(cores, driver)
            for name, value in {
                "million a second: all cores": f"{cores / 1e6:,.0f}",
                "million a second: one driver": f"{driver / 1e6:,.0f}",
                "seconds for 10^9": f"{1e9 / least:.1f}",
                "hours for 10^12": f"{1e12 / least / 3600:.2f}",
                "TB for 10^12": f"{size:.2f}",
                "MB a second onto the disk": f"{least * size / 1e6:,.0f}",
                "US$ for 10^12": f"{price * NODES * CORES * 1e12 / least / 3600:,.0f}",
            }.items():
                rows.setdefault(name, []).append(value)
    for name, values in rows.items():
        print(f"| {name} | {' | '.join(values)} |")


if __name__ == "__main__":
    main()
