"""Each predictor on blocks left out of its fit, and on whole networks; figures of such comparisons."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from lolat.comparison.candidates import CANDIDATES, Candidate, Fitted
from lolat.errors import InputError, LolatError
from lolat.fitting.least_squares import leave_out
from lolat.fitting.points import Point, known_features, matrix, times
from lolat.fitting.predictors.extended import Extended
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, count
from lolat.graph.edits import block_graph
from lolat.io.documents import AtLeastOne, converted, read_json
from lolat.model.learning import answers, as_measured, errors
from lolat.readers import read

PLAIN = COLUMNS[: COLUMNS.index("pointwise_macs")]
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
    measured, whole = times(points), np.array([p.whole for p in points])
    folds = list(leave_out(blocks, FOLDS))
    fewest = min(int(kept.sum()) for kept in folds)
    judged, missing = [], {}
    for candidate in candidates:
        reason = _lacking(candidate, known, fewest)
        if reason is not None:
            missing[candidate.name] = reason
            for _ in range(len(folds) + 1):
                done()
            continue
        names = candidate.features(known)
        features = matrix(points, names)
        more = (whole,) if candidate.knows_networks else ()
        left_out = np.empty(len(points))
        for kept in folds:
            fitted = candidate.fit(features[kept], measured[kept], names, *(w[kept] for w in more))
            others = [p for p, is_kept in zip(points, kept, strict=True) if not is_kept]
            left_out[~kept] = (
                as_measured(fitted, others)
                if isinstance(fitted, Extended)
                else answers(fitted, features[~kept])
            )
            done()
        fitted = candidate.fit(features, measured, names, *more)
        done()
        if isinstance(fitted, Extended):  # which may need fewer than it was given
            names = fitted.features
        networks_ms = answers(fitted, networks[:, [COLUMNS.index(name) for name in names]])
        judged.append(Judged(candidate, names, fitted, left_out, networks_ms))
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


# ---- Whole networks that were measured: read from what `lolat evaluate --json` wrote, counted again.

EXPECTED = "expected what `lolat evaluate MODEL --json` wrote"


class NetworkTime(msgspec.Struct, frozen=True):
    """A network at a batch size (and input size; or a block of it), and its measured time.

    As an evaluation has it; `input_size`: None and () are the network's own.
    """

    spec: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="network")
    batch_size: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    measured_ms: Annotated[float, msgspec.Meta(gt=0.0, lt=1e12)]
    input_size: tuple[AtLeastOne, ...] | None = ()
    block: int | None = None

    @property
    def label(self) -> str:
        """What it is called in front of people, whatever the batch size."""
        size = "x".join(map(str, self.input_size or ()))
        part = "" if self.block is None else f"block {self.block}"
        return " ".join(word for word in (self.spec, size, part) if word)


class Evaluation(msgspec.Struct):
    """What is used of an evaluation."""

    networks: Annotated[list[NetworkTime], msgspec.Meta(min_length=1)]
    device: Any = None


def read_evaluation(path: str) -> tuple[list[NetworkTime], str | None]:
    """The measured networks of an evaluation, and the device (None where it does not say).

    Raises InputError for a file that cannot be read or is no evaluation.
    """
    evaluation: Evaluation = converted(read_json(path, EXPECTED), Evaluation, path)
    device = evaluation.device if isinstance(evaluation.device, str) else None
    return evaluation.networks, device


def count_networks(
    networks: Sequence[NetworkTime],
    reader: Callable[[str, Sequence[int]], Graph] = read,
    done: Callable[[], None] = lambda: None,
) -> tuple[list[NetworkTime], np.ndarray, dict[str, str]]:
    """Read and count: (those that could be, their (networks, COLUMNS) counts, why others could not).

    Each network is read once, at however many batch sizes; `done` is called after each entry.
    """
    graphs: dict[tuple[str, tuple[int, ...]], Graph] = {}
    parts: dict[str, Graph] = {}
    kept, rows = [], []
    skipped: dict[str, str] = {}
    for network in networks:
        key = (network.spec, network.input_size or ())
        label = network.label
        try:
            if label not in parts and label not in skipped:
                if key not in graphs:
                    graphs[key] = reader(*key)
                graph, block = graphs[key], network.block
                parts[label] = graph if block is None else block_graph(graph, block, label)
            if label in parts:
                rows.append(count(parts[label]).total(network.batch_size))
                kept.append(network)
        except LolatError as error:
            skipped[label] = str(error)
        done()
    return kept, np.array(rows, float).reshape(len(rows), len(COLUMNS)), skipped


# ---- How long a predictor takes to answer, as a ratio to a product of the same counts with a vector.

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
    timed = {name: _Timed(one, counts, used, clock) for name, (one, used) in fitted.items()}
    product = float("inf")
    for _ in range(ROUNDS):
        product = min(product, _seconds(lambda: counts @ weights, clock))
        for each in timed.values():
            each.once()
        done()
    base = max(product / len(counts), 1e-15)
    return {
        name: Speed(1e6 * each.one_s, 1e3 * ROWS * each.row_s, each.row_s / base, each.rows)
        for name, each in timed.items()
    }


class _Timed:
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


# ---- Figures of measured against predicted times


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation; None where it is not defined."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def r_squared(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    """1 - residual / total sum of squares, in milliseconds; None for fewer than two networks."""
    total = float(((measured - measured.mean()) ** 2).sum())
    return None if total == 0 else 1.0 - float(((measured - predicted) ** 2).sum()) / total


def figures(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """All figures of one predictor on a set of networks."""
    from scipy.stats import rankdata

    return {
        **errors(predicted, measured),
        "mean": float(np.abs(predicted / measured - 1.0).mean()),
        "bias": float(np.median(predicted / measured - 1.0)),
        "r2": r_squared(predicted, measured),
        "pearson": correlation(predicted, measured),
        "spearman": correlation(rankdata(predicted), rankdata(measured)),
    }


CERTAINTY = 0.95  # of the bounds on how many lie inside


def share_bounds(inside: int, of: int, certainty: float = CERTAINTY) -> tuple[float, float]:
    """Between which shares the true one lies, where `inside` of `of` independent ones were inside.

    Exact, from the binomial distribution (Clopper and Pearson 1934). One network at several batch
    sizes is not independent, so that the bounds are then somewhat too narrow.
    """
    from scipy.stats import binomtest

    bounds = binomtest(inside, of).proportion_ci(certainty, method="exact")
    return float(bounds.low), float(bounds.high)


def intervals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How the intervals of `networks` did; None where there are none.

    `median_width`: of (high - low) / prediction, by the default predictor, as the intervals are.
    """
    sure = [r for r in rows if r["interval_ms"] is not None]
    if not sure:
        return None
    inside = sum(r["inside"] for r in sure)
    return {
        "coverage": sure[0]["coverage"],
        "inside": inside,
        "of": len(sure),
        "bounds": list(share_bounds(inside, len(sure))),
        "certainty": CERTAINTY,
        "median_width": float(np.median([r["interval_width"] for r in sure])),
    }
