"""The candidates that a search has scored, and their Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lolat.nas.latency import Answer
from lolat.nas.limits import Limit, rows_within
from lolat.nas.objective import Objective
from lolat.nas.search_result import FrontCandidate, OnDevice
from lolat.units import milliseconds


def front(latencies: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The indices of candidates on the Pareto front, sorted by latency; the first of equal candidates.

    `latencies`: (n,), smaller is better; `scores`: (n,), larger is better. A candidate with NaN is skipped.
    """
    known = np.flatnonzero(~(np.isnan(latencies) | np.isnan(scores)))
    best: list[int] = []
    for i in known[np.lexsort((known, -scores[known], latencies[known]))]:
        if not best or scores[i] > scores[best[-1]]:
            best.append(int(i))
    return np.array(best, np.intp)


class Archive:
    """All scored candidates: `rows`, `latencies` in ms, `scores` times `sign` (larger is better)."""

    def __init__(self, limits: Sequence[Limit], objective: Objective, sign: float) -> None:
        self.limits, self.objective, self.sign = limits, objective, sign
        self.estimator = limits[0].estimator
        lowest = ["lowest"] if sign < 0 else []
        objective.question = "; ".join([*(limit.question for limit in limits), *lowest])
        self.rows: list[np.ndarray] = []
        self.latencies: list[float] = []
        self.scores: list[float] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, row: np.ndarray) -> bool:
        return row.tobytes() in self._known

    def add(self, rows: np.ndarray) -> None:
        """Score the candidates among `rows` that are new."""
        for row, latency in zip(rows, self.estimator.latency(rows), strict=True):
            if row in self:
                continue
            self.scores.append(float(f"{self.sign * self.objective.score(row):.9g}"))  # likewise
            self.latencies.append(round(float(latency), 9))  # equal for every order of summation
            self.rows.append(row)
            self._known.add(row.tobytes())

    def front(self) -> list[int]:
        """The indices of candidates on the Pareto front, sorted by latency."""
        return front(np.array(self.latencies), np.array(self.scores)).tolist()

    def within(self, rows: np.ndarray) -> np.ndarray:
        """The `rows` that keep every limit."""
        return rows_within(self.limits, rows)

    def known(self) -> np.ndarray:
        """The candidates with a known score that keep every limit, in the order of their scoring."""
        return self.within(self.objective.space.parse(list(self.objective.known)))

    def others(self) -> int:
        """Number of known candidates that earlier searches with another limit or device scored."""
        asked, arch = self.objective.asked, self.objective.space.arch
        known = self.known() if asked else ()
        return sum(asked[arch(row)] != self.objective.question for row in known)

    def announce(self, total: int, others: int) -> None:
        """Show how many of `total` candidates a function has yet to score."""
        if self.objective.rows is None:
            self.objective.announce(total, len(self.known()), others)

    def improving(self) -> bool:
        """True if the best score is among the last tenth of scores."""
        before = np.array(self.scores[: -(-9 * len(self) // 10)])
        return bool(np.nanmax(self.scores) > np.nanmax(before, initial=-np.inf))

    def whole_front(self) -> tuple[tuple[FrontCandidate, ...], Sequence[Answer]]:
        """(front by the devices' answers for whole networks, answers for the candidate nearest the limits).

        Answers may differ from estimates: a candidate whose answer misses a limit is replaced by the next
        ones. Of candidates with equal printed latencies the front has only the one with the best score.
        """
        whole: dict[int, tuple[Answer, ...]] = {}
        times, scores = np.array(self.latencies), np.array(self.scores)
        while new := [n for n in front(times, scores).tolist() if n not in whole]:
            rows = np.array([self.rows[n] for n in new])
            by_device = (limit.answers(rows) for limit in self.limits)
            whole |= zip(new, zip(*by_device, strict=True), strict=True)
            for n in new:
                late = any(map(Limit.is_late, self.limits, whole[n]))
                times[n] = math.nan if late else round(whole[n][0].latency_ms, 9)
        order = front(times, scores).tolist()
        # Of latencies that print alike only the last is kept: it has the best score.
        last = {milliseconds(times[n]): n for n in order}.values()
        best = tuple(self._candidate(n, float(times[n]), whole[n]) for n in last)
        return best, min(whole.values(), key=lambda a: max(map(Limit.share, self.limits, a)))

    def _candidate(self, n: int, ms: float, whole: Sequence[Answer]) -> FrontCandidate:
        space, row = self.objective.space, self.rows[n]
        others = zip(self.limits[1:], whole[1:], strict=True)
        return FrontCandidate(
            arch=space.arch(row), candidate=tuple(row.tolist()), choices=space.named(row),
            score=self.sign * self.scores[n], **{**vars(whole[0]), "latency_ms": ms},
            others=tuple(
                OnDevice(device=o.device.label, batch_size=o.estimator.batch_size, **vars(one))
                for o, one in others
            ),
        )  # fmt: skip
