"""The learners of scikit-learn: as scikit-learn itself answers, and how they are asked for."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor

from lolat.comparison.candidates import check_sklearn, fit_forest, fit_process
from lolat.errors import MissingPackageError


def power_law(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts, and times that are smooth in their logarithms."""
    random = np.random.default_rng(seed)
    x = np.exp(random.uniform(0.0, 8.0, (rows, 3))).round()
    return x, 0.01 * (x[:, 0] + 1) ** 0.7 * (x[:, 1] + 1) ** 0.2


def test_a_forest_is_that_of_scikit_learn() -> None:
    x, t = power_law(40, 0)
    found = fit_forest(x, t)
    own = RandomForestRegressor(random_state=0).fit(np.log(x + 1), np.log(t))
    new, _ = power_law(20, 1)
    expected = np.exp(own.predict(np.log(new + 1)))
    np.testing.assert_allclose(found.many(list(new.T), np.empty(20)), expected, rtol=1e-9)
    assert found.one(list(new[3])) == pytest.approx(expected[3])
    assert found.numbers == sum(len(tree.tree_.value) for tree in own.estimators_)


def test_a_process_learns_what_is_smooth_and_goes_on_beyond_its_points() -> None:
    x, t = power_law(40, 0)
    found = fit_process(x, t)
    new, true = power_law(20, 1)
    np.testing.assert_allclose(found.many(list(new.T), np.empty(20)), true, rtol=0.05)
    far = np.array([[3e4, 3e4, 10.0]])  # ten times beyond the largest
    expected = 0.01 * (3e4 + 1) ** 0.9
    assert found.one(list(far[0])) == pytest.approx(expected, rel=0.2)
    # 40 points of 3 counts, a weight for each, 4 lengths and the like, what standardizes.
    assert found.numbers == 40 * 3 + 40 + 7 + 6


def test_rows_are_worked_on_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    x, t = power_law(30, 0)
    found = fit_process(x, t)
    at_once = found.many(list(x.T), np.empty(30))
    monkeypatch.setattr("lolat.comparison.candidates.CHUNK", 7)
    np.testing.assert_allclose(found.many(list(x.T), np.empty(30)), at_once, rtol=1e-9)


def test_a_count_that_is_always_the_same_does_no_harm() -> None:
    x, t = power_law(30, 0)
    x[:, 2] = 0.0
    assert np.isfinite(fit_process(x, t).one(list(x[0])))


def test_no_answer_is_infinite() -> None:
    x, t = power_law(30, 0)
    found = fit_process(x, t**2).one([1e300, 1e300, 1e300])  # some 1e540 ms
    assert 1e9 < found < np.inf


def test_without_scikit_learn_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_sklearn()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install scikit-learn"):
        check_sklearn()
