"""How fast a search space is scored, as ratios in one run.

Both sides of a ratio are measured in turns; single times are given for scale only.
"""

from __future__ import annotations

import resource
import time

import numpy as np

import lolat
from benchmarks.runner import Tables, benchmark, in_turns
from lolat.nas.scorer import Scored, Scorer, best_of
from lolat.nas.space import Space
from lolat.nas.spaces import fbnet, mobile, nasbench201

ROWS = 1_000_000


def from_strings(model: lolat.Model) -> tuple[float, float]:
    """Seconds for all NAS-Bench-201 networks from their strings, and for the tables that this needs."""
    space = nasbench201.space()
    archs = [space.arch(row) for row in space.decode(np.arange(space.size))]
    start = time.perf_counter()
    scorer = space.scorer(model)
    built = time.perf_counter() - start
    return in_turns(lambda: scorer.latency(space.parse(archs)))[0], built


def against_numpy(space: Space, model: lolat.Model) -> list[list[str]]:
    """Rows of the table: scoring against look-up-and-sum in bare numpy, on the same table."""
    scorer = space.scorer(model)
    own = table_of(space, scorer)
    positions = np.arange(len(own))
    lines = []
    for dtype in (np.int8, np.int64):
        rows = space.sample(ROWS).astype(dtype)

        def at_once(rows: np.ndarray = rows) -> np.ndarray:
            return own[positions, rows].sum(axis=1) + scorer.constant

        def by_column(rows: np.ndarray = rows) -> np.ndarray:
            found = np.full(len(rows), scorer.constant)
            for position, table in enumerate(own):
                found += table[rows[:, position]]
            return found

        def ours(rows: np.ndarray = rows) -> np.ndarray:
            return scorer.latency(rows)

        assert np.allclose(ours(), at_once(), rtol=1e-12)
        assert np.allclose(ours(), by_column(), rtol=1e-12)
        mine, *plain = in_turns(ours, at_once, by_column)
        best = min(plain)
        words = f"{ROWS:,} candidates of {len(own)} positions, {dtype.__name__}: speed / the faster of two "
        ratio = f"{best / mine:.2f} ({1e9 * mine / ROWS:.0f} ns / {1e9 * best / ROWS:.0f} ns a candidate)"
        lines.append([f"{words}look-up-and-sums in bare numpy", ratio])
    return lines


def table_of(space: Space, scorer: Scorer) -> np.ndarray:
    """(positions, choices) ms of a space whose positions do not interact."""
    sizes = space.grid.sizes
    zeros = np.zeros((1, len(sizes)), np.int8)
    base = scorer.latency(zeros)[0]
    found = np.zeros((len(sizes), max(sizes)))
    for position, size in enumerate(sizes):
        rows = np.repeat(zeros, size, axis=0)
        rows[:, position] = np.arange(size)
        found[position, :size] = scorer.latency(rows) - base
    found[0] += base - scorer.constant
    return found


def ten_best(scorer: Scorer, count: int) -> Scored:
    """Those of the largest second choice among the first `count` candidates within 20 ms."""
    best = Scored.none()
    for indices, rows, times in scorer.chunks(0, count):
        able = times <= 20.0
        best = best_of(best, Scored(indices[able], times[able], rows[able, 1].astype(float)), 10)
    return best


def streamed(model: lolat.Model, count: int) -> list[str]:
    """A row of the table: the best of `count` candidates by index, and what memory that takes."""
    scorer = mobile.space(
        widths=(0.75, 1.0),
        depths=(2, 3),
        kernels=(3, 5),
        expansions=(3, 6),
        resolutions=(160, 192, 224),
    ).scorer(model)
    ten_best(scorer, count // 100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    ten_best(scorer, count)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = f"best 10 of {count:,} candidates of {len(scorer.grid.sizes)} positions by their index"
    each = f"{seconds:.1f} s, {1e9 * seconds / count:.0f} ns a candidate"
    added = f"{(after - before) / 1024:.1f} MiB ({each})"
    return [f"{words}: added to the peak memory of {count // 100:,}", added]


@benchmark("scorer", "nas", "few-shot")
def scorer(model: str = "epyc-2t", candidates: str = "100000000") -> Tables:
    """How fast candidates are scored, beside bare NumPy."""
    known = lolat.load(model)
    seconds, built = from_strings(known)
    took = f"{1e3 * seconds:.1f} ms (once before: tables, {1e3 * built:.0f} ms)"
    lines = [
        ["all 15,625 NAS-Bench-201 networks from their strings", took],
        *against_numpy(fbnet.space(), known),
        streamed(known, int(candidates)),
    ]
    return {"speed": (["what", "measured"], lines)}
