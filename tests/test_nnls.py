"""Non-negative least squares without SciPy, against SciPy's and against brute force."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from lolat.fitting import fit_relative
from lolat.nnls import active_set, solver


def brute_force(matrix: np.ndarray, wanted: np.ndarray) -> float:
    """The least |matrix @ x - wanted| of all choices of columns whose solution is not negative."""
    best = float(np.linalg.norm(wanted))
    columns = range(matrix.shape[1])
    for count in range(1, matrix.shape[1] + 1):
        for chosen in itertools.combinations(columns, count):
            part = matrix[:, chosen]
            x = np.linalg.lstsq(part, wanted, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.linalg.norm(part @ x - wanted)))
    return best


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 5))
def test_as_good_as_the_best_of_all_choices(seed: int, rows: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    matrix, wanted = random.normal(size=(rows, columns)), random.normal(size=rows)
    found = active_set(matrix, wanted)
    assert (found >= 0).all()
    left = float(np.linalg.norm(matrix @ found - wanted))
    assert left == pytest.approx(brute_force(matrix, wanted), rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
@example(243)  # rounding leaves the column that must go at 1e-17, not at 0: that loop had no end
@example(1227)
@example(2049)
def test_the_same_as_scipy_on_counts_of_many_sizes(seed: int) -> None:
    """Counts span decades, columns nearly repeat each other, and some are all zero."""
    random = np.random.default_rng(seed)
    matrix = 10.0 ** random.uniform(-3, 3, (60, 8)) * (random.random((60, 8)) < 0.7)
    matrix[:, 5] = matrix[:, 4] * (1 + 1e-6 * random.random(60))
    matrix[:, 7] = 0.0
    wanted = matrix @ np.maximum(random.normal(size=8), 0.0) + random.random(60)
    _, left = nnls(matrix, wanted)
    ours = active_set(matrix, wanted)
    assert (ours >= 0).all()
    assert np.linalg.norm(matrix @ ours - wanted) == pytest.approx(left, rel=1e-7)


def test_without_scipy_a_fit_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(7)
    features = 10.0 ** random.uniform(3, 8, (50, 5))
    times = features @ np.array([1e-7, 0.0, 3e-8, 2e-8, 0.0]) * random.lognormal(0, 0.05, 50)
    theirs = fit_relative(features, times)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert solver() is active_set
    assert fit_relative(features, times) == pytest.approx(theirs, rel=1e-6, abs=1e-14)


def test_nothing_to_fit_is_zeros() -> None:
    assert active_set(np.zeros((3, 2)), np.ones(3)).tolist() == [0.0, 0.0]
    assert active_set(-np.ones((3, 1)), np.ones(3)).tolist() == [0.0]
