"""How fast a search space is scored, as ratios in one run.

Both sides of a ratio are measured in turns; single times are given for scale only.
"""

from __future__ import annotations

import time

import numpy as np

import lolat
from benchmarks.runner import Tables, benchmark, in_turns
from lolat.nas.scorer import Scorer
from lolat.nas.space import Space
from lolat.nas.spaces import fbnet, nasbench201

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


@benchmark("scorer", "nas", "few-shot")
def scorer(model: str = "epyc-2t") -> Tables:
    """How fast candidates are scored, beside bare NumPy."""
    known = lolat.load(model)
    seconds, built = from_strings(known)
    took = f"{1e3 * seconds:.1f} ms (once before: tables, {1e3 * built:.0f} ms)"
    lines = [
        ["all 15,625 NAS-Bench-201 networks from their strings", took],
        *against_numpy(fbnet.space(), known),
    ]
    return {"speed": (["what", "measured"], lines)}
