"""Which candidates no other is better than: faster, or of a higher score."""

from __future__ import annotations

import numpy as np


def front(latencies: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Positions of the candidates that are not dominated, by latency: none is faster with as high a score.

    `latencies`: (n,), small is good; `scores`: (n,), large is good; a NaN in either is left out. Of
    several with the same latency and score the first stays.
    """
    known = np.flatnonzero(~(np.isnan(latencies) | np.isnan(scores)))
    order = known[np.lexsort((known, -scores[known], latencies[known]))]
    found: list[int] = []
    for i in order:
        if not found or scores[i] > scores[found[-1]]:
            found.append(int(i))
    return np.array(found, np.intp)


def ranks(latencies: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """(n,) the front that each candidate is in: 0 for the first, 1 for that of what is left, ...

    Equal candidates after the first count as dominated, which keeps copies out. NaN: the last front.
    """
    found = np.full(len(latencies), len(latencies))
    left = np.arange(len(latencies))
    rank = 0
    while len(best := front(latencies[left], scores[left])):
        found[left[best]] = rank
        left = np.delete(left, best)
        rank += 1
    return found


def crowding(latencies: np.ndarray, scores: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """(n,) how far a candidate's neighbours in its front are apart; infinite at its ends.

    Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, 2002.
    """
    found = np.zeros(len(latencies))
    for rank in np.unique(ranks):
        members = np.flatnonzero(ranks == rank)
        for values in (latencies, scores):
            order = members[np.argsort(values[members], kind="stable")]
            span = values[order[-1]] - values[order[0]]
            found[order[[0, -1]]] = np.inf
            if len(order) > 2 and span > 0:
                found[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / span
    return found
