"""The fit of a space's costs: made-up devices are found again, noise and absurd readings borne."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import spearmanr

from lolat.nas.fewshot import model as regression
from lolat.nas.fewshot.model import FREEDOM, explain, outlying
from lolat.nas.fewshot.samples import space_terms
from tests.nas.few_devices import (
    FIXED,
    PHONE,
    everything,
    layered,
    only_needed,
    some_cells,
    some_layers,
)

CELLS = space_terms("nasbench201")
LAYERS = space_terms("fbnet")


def predicted(found: list, rows: np.ndarray) -> np.ndarray:
    parts = [w * np.log(e.pieces.counts(rows) @ e.pieces.costs(e.parameters)[0]) for w, e in found]
    return np.exp(np.sum(parts, axis=0))


def test_the_costs_of_a_device_are_found_from_twelve_exact_readings() -> None:
    archs = some_cells(12)
    times = np.array([everything(a) for a in archs])
    found = explain(CELLS.assumptions, CELLS.parse_many(archs), times)
    assert sum(w for w, e in found if e.pieces.name == "all") > 0.99
    costs = found[0][1].pieces.costs(found[0][1].parameters)[0]
    # skip_connect is free in PHONE, so the rest is what is fixed.
    wanted = [
        FIXED,
        PHONE["none"],
        PHONE["nor_conv_1x1"],
        PHONE["nor_conv_3x3"],
        PHONE["avg_pool_3x3"],
    ]
    assert costs == pytest.approx(wanted, rel=0.02)
    others = some_cells(500, seed=1)
    exact = [everything(a) for a in others]
    assert predicted(found, CELLS.parse_many(others)) == pytest.approx(exact, rel=0.01)


def test_a_device_that_removes_what_is_not_needed_is_seen() -> None:
    archs = some_cells(12, seed=3)
    times = np.array([only_needed(a) for a in archs])
    found = explain(CELLS.assumptions, CELLS.parse_many(archs), times)
    assert sum(w for w, e in found if e.pieces.name == "needed") > 0.99
    others = some_cells(500, seed=4)
    exact = np.array([only_needed(a) for a in others])
    assert spearmanr(predicted(found, CELLS.parse_many(others)), exact)[0] > 0.99


def test_absurd_readings_hardly_count_and_are_named() -> None:
    archs = some_cells(12, seed=5)
    rows, times = CELLS.parse_many(archs), np.array([everything(a) for a in archs])
    times *= np.exp(0.01 * np.random.default_rng(0).standard_normal(12))
    times[4], times[7] = 0.003, times[7] * 3.0
    found = explain(CELLS.assumptions, rows, times)
    others = some_cells(500, seed=6)
    exact = np.array([everything(a) for a in others])
    assert np.median(np.abs(predicted(found, CELLS.parse_many(others)) / exact - 1.0)) < 0.02
    off = outlying(found, rows, times)
    assert set(np.flatnonzero(off != 1.0)) == {4, 7}
    assert off[7] == pytest.approx(3.0, rel=0.1)
    assert off[4] < 0.01


def test_whole_milliseconds_count_as_rounded() -> None:
    archs = some_cells(15, seed=7)
    rows, exact = CELLS.parse_many(archs), np.array([everything(a) / 4.0 for a in archs])
    rounded = np.round(exact)
    assert np.abs(rounded / exact - 1.0).max() > 0.05
    found = explain(CELLS.assumptions, rows, rounded, step=1.0)
    # What rounding explains is no noise of the device.
    assert found[0][1].noise < explain(CELLS.assumptions, rows, rounded)[0][1].noise
    assert (outlying(found, rows, rounded, step=1.0) == 1.0).all()


@pytest.mark.parametrize("count", [1, 3])
def test_fewer_samples_than_costs_still_rank(count: int) -> None:
    archs = some_cells(count, seed=8)
    found = explain(
        CELLS.assumptions, CELLS.parse_many(archs), np.array([everything(a) for a in archs])
    )
    others = some_cells(500, seed=9)
    exact = [everything(a) for a in others]
    assert spearmanr(predicted(found, CELLS.parse_many(others)), exact)[0] > 0.75


def test_fbnet_is_ranked_from_ten_and_known_from_many() -> None:
    others = some_layers(300, seed=1)
    exact = np.array([layered(a) for a in others])
    scores = []
    for count in (10, 100):
        archs = some_layers(count, seed=2)
        times = np.array([layered(a) for a in archs])
        found = explain(LAYERS.assumptions[:1], LAYERS.parse_many(archs), times)
        answer = predicted(found, LAYERS.parse_many(others))
        scores.append((spearmanr(answer, exact)[0], np.median(np.abs(answer / exact - 1.0))))
    assert scores[0][0] > 0.8
    assert scores[1][0] > 0.97
    assert scores[1][1] < 0.03


def test_the_most_probable_costs_are_those_of_a_general_minimiser() -> None:
    """The same posterior, written anew, minimised by scipy without our derivatives."""
    pieces = CELLS.assumptions[0]
    archs = some_cells(8, seed=10)
    counts = pieces.counts(CELLS.parse_many(archs))
    noise = 0.05
    random = np.random.default_rng(3).standard_normal(8)
    times = np.array([everything(a) for a in archs]) * np.exp(noise * random)
    spread = np.concatenate([[50.0], [1.5, 1.5, 1.5, 1.5, 2.0], pieces.spread])

    def posterior(x: np.ndarray) -> float:
        costs = (pieces.terms @ np.exp(x[1:6])) * np.exp(x[0] + pieces.factors @ x[6:])
        z = (np.log(times) - np.log(counts @ costs)) / noise
        return float(np.sum(2.5 * np.log1p(z**2 / FREEDOM)) + 0.5 * np.sum((x / spread) ** 2))

    start = np.zeros(pieces.size)
    start[0] = 1.0
    problem = regression._Problem(pieces, counts, np.log(times), 0.0, noise)
    ours = regression._most_probable(problem, start)
    other = minimize(posterior, start, method="BFGS", options={"gtol": 1e-8, "maxiter": 2000})
    assert posterior(ours) == pytest.approx(other.fun, abs=1e-3)


def test_weights_add_up_and_the_likeliest_is_first() -> None:
    archs = some_cells(10, seed=11)
    times = np.array([everything(a) for a in archs])
    found = explain(CELLS.assumptions, CELLS.parse_many(archs), times)
    weights = [w for w, _ in found]
    assert sum(weights) == pytest.approx(1.0)
    assert weights == sorted(weights, reverse=True)
