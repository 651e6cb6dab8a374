"""How long a predictor takes to answer, as a ratio to a product of the same counts with a vector."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.comparison.candidates import Fitted

ROWS = 1_000_000
ROUNDS = 9
ROUND_S = 0.1  # of a predictor in a round; a slow one is asked fewer rows
FEWEST_ROWS = 1000
MOST_CALLS = 1000  # of one query, in a round
Clock = Callable[[], float]


@dataclass(frozen=True)
class Speed:
    """`one_us`: microseconds of one query; `million_ms`: milliseconds of a million rows.

    `ratio`: `million_ms` over that of `X @ w`; `rows`: how many were asked at a time (fewer than a million
    of a slow one, and scaled).
    """

    one_us: float
    million_ms: float
    ratio: float
    rows: int


def speeds(
    fitted: Mapping[str, tuple[Fitted, Sequence[int]]],
    counts: np.ndarray,
    clock: Clock = time.perf_counter,
    done: Callable[[], None] = lambda: None,
) -> dict[str, Speed]:
    """Time predictors, each with the columns that it takes, on (rows, counts), C-contiguous float64.

    In every round each predictor answers once, and `X @ w` is computed once, with all columns whatever a
    predictor takes, so that all ratios are to the same. The best of the rounds counts, because whatever
    else the machine does only makes a call longer. `done` is called after each of the ROUNDS.
    """
    weights = np.ones(counts.shape[1])
    asked = {name: _Asked(one, counts, used, clock) for name, (one, used) in fitted.items()}
    product = float("inf")
    for _ in range(ROUNDS):
        product = min(product, _seconds(lambda: counts @ weights, clock))
        for each in asked.values():
            each.once()
        done()
    base = max(product / len(counts), 1e-15)
    return {
        name: Speed(1e6 * each.one_s, 1e3 * ROWS * each.row_s, each.row_s / base, each.rows)
        for name, each in asked.items()
    }


class _Asked:
    """A predictor that is asked again and again; `one_s` of a query and `row_s` of a row are the best."""

    def __init__(
        self, fitted: Fitted, counts: np.ndarray, used: Sequence[int], clock: Clock
    ) -> None:
        self.fitted, self.clock = fitted, clock
        self.columns = [np.ascontiguousarray(counts[:, i]) for i in used]
        self.query = [float(column[0]) for column in self.columns]
        few = min(FEWEST_ROWS, len(counts))
        row_s = self._rows_s(few) / few
        self.rows = min(len(counts), max(few, int(ROUND_S / max(row_s, 1e-12))))
        one_s = _seconds(lambda: fitted.one(self.query), clock)
        self.calls = min(MOST_CALLS, max(1, int(ROUND_S / max(one_s, 1e-12))))
        self.one_s = self.row_s = float("inf")

    def once(self) -> None:
        """One round."""
        self.row_s = min(self.row_s, self._rows_s(self.rows) / self.rows)
        seconds = _seconds(
            lambda: [self.fitted.one(self.query) for _ in range(self.calls)], self.clock
        )
        self.one_s = min(self.one_s, seconds / self.calls)

    def _rows_s(self, rows: int) -> float:
        part = [column[:rows] for column in self.columns]
        out = np.empty(rows)
        return _seconds(lambda: self.fitted.many(part, out), self.clock)


def many_rows(features: np.ndarray, rows: int | None = None, seed: int = 0) -> np.ndarray:
    """(rows, features) counts like those of points: drawn from them, each times some factor."""
    random = np.random.default_rng(seed)
    number = ROWS if rows is None else rows
    drawn = features[random.integers(0, len(features), number)]
    return np.ascontiguousarray(drawn * random.uniform(0.5, 2.0, (number, 1)))


def _seconds(call: Callable[[], object], clock: Clock) -> float:
    start = clock()
    call()
    return clock() - start
