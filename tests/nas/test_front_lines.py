"""The lines of a search and of a ranking: which rows are shown, and what is said of the best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lolat import nas
from lolat.api.model import Model
from lolat.nas import search
from lolat.nas.latency import Answer
from lolat.nas.search_result import FrontCandidate, SearchResult
from lolat.report.search import LISTED
from tests import synthetic
from tests.nas.test_space import small

MODEL = Model(synthetic.document())
SPACE = small()
ROWS = [tuple(map(int, row)) for row in SPACE.decode(np.arange(SPACE.size))]
TIMES = nas.estimator(SPACE, MODEL).latency(np.array(ROWS))
ANSWER = Answer(1.0, None, 0.9, True, 1.0, False, 1000, True, ())


def result_of(
    *ends: tuple[float, float], max_ms: float | None = 3.0, **answer: Any
) -> SearchResult:
    """A front of candidates with these intervals, whose middles are their latencies."""
    front = tuple(
        FrontCandidate(
            arch=f"net{n}", candidate=(n,), choices={}, score=float(n),
            **vars(replace(ANSWER, latency_ms=(low + high) / 2, interval_ms=(low, high), **answer)),
        )
        for n, (low, high) in enumerate(ends, 1)
    )  # fmt: skip
    return SearchResult("space", 9, 1, "p", "s", "desk", "desk", "exhaustive", max_ms, 9, 0, front)


def test_scores_that_differ_in_the_order_of_a_sum_are_equal() -> None:
    """0.1 + 0.2 + 0.3 is 0.6000000000000001 from the left and 0.6 from the right."""
    fast, slow = ROWS[int(np.argmin(TIMES))], ROWS[int(np.argmax(TIMES))]
    scores = {fast: (0.3 + 0.2) + 0.1, slow: (0.1 + 0.2) + 0.3}
    assert scores[slow] > scores[fast]
    found = search(SPACE, MODEL, lambda candidate: scores.get(candidate, 0.0), candidates=100)
    assert [c.candidate for c in found.front] == [fast]


@pytest.mark.parametrize("max_ms", [3.0, None])
def test_a_long_front_is_shown_in_part(max_ms: float | None) -> None:
    result = result_of(*((0.01 * n, 0.01 * n + 0.1) for n in range(1, 73)), max_ms=max_ms)
    lines = result.report().splitlines()
    names = [
        line.split()[-1]
        for line in lines
        if line.split()[-1:] and line.split()[-1].startswith("net")
    ]
    assert len(names) == LISTED
    assert "52 more on the front: " in result.report()
    assert names[-1] == "net72"
    assert names[0] == ("net53" if max_ms else "net1"), (
        "those nearest the limit, or of all latencies"
    )
    short = result_of((1, 2), (2, 2.5)).report()
    assert "more on the front" not in short


def test_candidates_within_the_limit_that_are_not_scored_are_told() -> None:
    """A search of ten of more, and one that scores them all."""
    limit = float(np.sort(TIMES)[39])
    few = search(SPACE, MODEL, sum_of, max_ms=limit, candidates=10)
    left = few.within - few.scored
    assert (few.within, few.scored) == (40, 10)
    assert f"{left} of these are not scored: candidates=40 scores all" in few.report()
    assert "not scored" not in search(SPACE, MODEL, sum_of, max_ms=limit, candidates=40).report()


def sum_of(candidate: tuple[int, ...]) -> float:
    return float(sum(candidate))


def test_the_best_that_surely_keeps_the_limit_is_named() -> None:
    text = result_of((0.5, 1.0), (1.0, 2.5), (1.5, 3.1), (2.0, 3.9)).report()
    assert "2 of 4 may take longer than 3 ms" in text
    assert "Surely within 3 ms: net2, 1.75 ms (1.00 .. 2.50), score 2" in text
    assert "Surely" not in result_of((0.5, 1.0), (1.0, 2.5)).report()
    assert "Surely" not in result_of((2.0, 3.9)).report()


def test_a_ranking_within_a_time_shows_those_nearest_to_it() -> None:
    limit = float(np.sort(TIMES)[39])
    found = nas.rank(SPACE, MODEL, max_ms=limit)
    assert found.within == 40
    order = np.argsort(-TIMES, kind="stable")
    wanted = [SPACE.arch(np.array(ROWS[n])) for n in order if limit >= TIMES[n]][:10]
    assert [one.arch for one in found.nearest] == wanted
    whole = [MODEL.predict(SPACE.network(SPACE.parse([one.arch])[0])) for one in found.nearest]
    assert [one.interval_ms for one in found.nearest] == [p.interval_ms for p in whole]
    assert f"the 10 nearest to {limit:g} ms:" in found.report()
    assert not nas.rank(SPACE, MODEL).nearest
    assert not nas.rank(SPACE, MODEL, max_ms=limit, best=5).nearest
