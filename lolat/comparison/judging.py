"""Each predictor on blocks left out of its fit, and on whole networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lolat.comparison.candidates import CANDIDATES, Candidate, Fitted
from lolat.counts import COLUMNS, PLAIN
from lolat.errors import InputError
from lolat.fitting import leave_out
from lolat.points import Point, known_features, matrix, times
from lolat.predictors.extended import Extended

FOLDS = 10  # so that the learners, which take a second to fit, are done within the minute


@dataclass(frozen=True)
class Judged:
    """What a predictor made of points that it was not fitted on, and of networks.

    `fitted` is on all points; `left_out_ms`: (points,); `networks_ms`: (networks,), of `fitted`.
    """

    candidate: Candidate
    features: tuple[str, ...]
    fitted: Fitted
    left_out_ms: np.ndarray
    networks_ms: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """All predictors on the same points.

    `fitted_on`: the fewest and most points that one of the fits with blocks left out had; `missing`:
    why a predictor could not be compared, by its name.
    """

    judged: tuple[Judged, ...]
    missing: dict[str, str]
    folds: int
    fitted_on: tuple[int, int]


def judge(
    points: Sequence[Point],
    networks: np.ndarray,
    candidates: Sequence[Candidate] = CANDIDATES,
    done: Callable[[], None] = lambda: None,
) -> Comparison:
    """Fit every candidate with a tenth of the blocks left out at a time, and on all points.

    All batch sizes of a block are left out together, and the folds are the same for all. `networks`:
    (networks, COLUMNS) counts, maybe of none; `done` is called after each fit (`steps` in all).
    Raises InputError where the points are of a single block.
    """
    blocks = tuple(p.name for p in points)
    if len(set(blocks)) < 2:
        raise InputError(
            f"the model's points are of {len(set(blocks))} block: nothing to judge by when it is left "
            "out; expected points of several blocks"
        )
    known = known_features(points)
    measured = times(points)
    whole = np.array([p.whole for p in points])
    folds = list(leave_out(blocks, FOLDS))
    fewest = min(int(kept.sum()) for kept in folds)
    judged, missing = [], {}
    for candidate in candidates:
        names = candidate.features(known)
        reason = _lacking(candidate, known, fewest)
        if reason is not None:
            missing[candidate.name] = reason
            for _ in range(len(folds) + 1):
                done()
            continue
        features = matrix(points, names)
        more = (whole,) if candidate.knows_networks else ()
        left_out = np.empty(len(points))
        for kept in folds:
            fitted = candidate.fit(features[kept], measured[kept], names, *(w[kept] for w in more))
            own = [names.index(name) for name in _own(fitted, names)]
            others = [p for p, is_kept in zip(points, kept, strict=True) if not is_kept]
            left_out[~kept] = _answers(fitted, features[~kept][:, own]) + _alone(fitted, others)
            done()
        fitted = candidate.fit(features, measured, names, *more)
        done()
        names = _own(fitted, names)
        asked = _answers(fitted, networks[:, [COLUMNS.index(name) for name in names]])
        judged.append(Judged(candidate, names, fitted, left_out, asked))
    if not judged:
        raise InputError(
            f"the model's {len(points)} points are too few to compare predictors on; expected at least "
            "some twenty, of several blocks"
        )
    most = max(int(kept.sum()) for kept in folds)
    return Comparison(tuple(judged), missing, len(folds), (fewest, most))


def steps(points: Sequence[Point], candidates: Sequence[Candidate] = CANDIDATES) -> int:
    """How many fits `judge` makes."""
    return len(candidates) * (1 + min(FOLDS, len({p.name for p in points})))


def _lacking(candidate: Candidate, known: Sequence[str], fewest: int) -> str | None:
    """Why a candidate cannot be fitted; None where it can."""
    lacking = [name for name in candidate.needs if name not in known]
    if lacking:
        return f"not all points have {', '.join(lacking)}"
    # Kinds of operations are drawn to their families, so they need no points of their own.
    needed = sum(name in PLAIN for name in candidate.features(known)) + 2
    if fewest < needed:
        return f"a fit needs {needed} points; {fewest} are left without the blocks left out"
    return None


def _own(fitted: Fitted, names: Sequence[str]) -> tuple[str, ...]:
    """The counts that a fitted predictor answers from, of those it was given."""
    return fitted.features if isinstance(fitted, Extended) else tuple(names)


def _alone(fitted: Fitted, points: Sequence[Point]) -> np.ndarray:
    """(points,) ms that blocks take longer because they were measured alone, where that is known."""
    if not isinstance(fitted, Extended):
        return np.zeros(len(points))
    return np.array([0.0 if p.whole else fitted.alone_ms(p.counts) for p in points])


def _answers(fitted: Fitted, features: np.ndarray) -> np.ndarray:
    """(rows,) ms of (rows, features) counts."""
    return fitted.many(list(features.T), np.empty(len(features)))
