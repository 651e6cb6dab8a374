"""Formulas to compare with, found again from data made with them; learners, as scikit-learn has them."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestRegressor

from lolat.comparison.candidates import (
    FlopsOnly,
    FreeLines,
    Paleo,
    check_sklearn,
    fit_forest,
    fit_process,
)
from lolat.errors import InputError, MissingPackageError
from lolat.model.learning import answers
from tests import synthetic


def test_a_column_may_be_one_number() -> None:
    formula = FlopsOnly(("flops",), (0.5,), 1.0)
    assert formula.many([4.0], np.empty(3)).tolist() == [3.0] * 3


def test_flops_alone_are_a_line() -> None:
    x = np.geomspace(1e6, 1e10, 30)[:, None]
    line = FlopsOnly.fit(x, 2e-8 * x[:, 0] + 0.4)
    assert line.coefficients == pytest.approx((2e-8,), rel=1e-6)
    assert line.constant == pytest.approx(0.4, rel=1e-6)
    assert line.one([1e9]) == pytest.approx(20.4)
    np.testing.assert_allclose(answers(line, np.array([[0.0], [1e9]])), [0.4, 20.4], rtol=1e-6)
    falling = FlopsOnly.fit(x[:4], np.array([8.0, 6.0, 4.0, 2.0]))
    assert falling.coefficients == (0.0,)
    assert falling.constant > 0


class TestPaleo:
    # flops, acts, inp, traffic, weights; ms. The first computes most a ms (1e8), the second moves most:
    # 4 * (100 + 200 + 300 + 400) bytes in 1 ms.
    points = np.array([[1e9, 1, 1, 1, 1], [1e3, 100, 200, 300, 400], [1e9, 10, 10, 10, 10]], float)
    times = np.array([10.0, 1.0, 40.0])

    def test_the_peaks_are_the_highest_rates_of_any_point_and_an_answer_their_sum(self) -> None:
        roofline = Paleo.fit(self.points, self.times)
        assert roofline.peak == pytest.approx(1e8)
        assert roofline.bandwidth == pytest.approx(4000.0)
        assert roofline.constant == 0.0
        by_hand = 5e8 / 1e8 + 4 * 10000 / 4000
        assert roofline.one([5e8, 1000, 2000, 3000, 4000]) == pytest.approx(by_hand)
        np.testing.assert_allclose(answers(roofline, self.points)[1], 1e3 / 1e8 + 1.0)

    @given(st.lists(st.tuples(*[st.integers(0, 10**9)] * 5), min_size=2, max_size=6))
    def test_a_network_takes_as_long_as_its_layers_together(
        self, layers: list[tuple[int, ...]]
    ) -> None:
        roofline = Paleo.fit(self.points, self.times)
        total = [sum(column) for column in zip(*layers, strict=True)]
        assert roofline.one(total) == pytest.approx(sum(roofline.one(layer) for layer in layers))

    @pytest.mark.parametrize(
        ("empty", "words"),
        [([0], "0 multiply-accumulates"), ([1, 2, 3, 4], "0 elements read or written")],
    )
    def test_points_without_work_have_no_peak(self, empty: list[int], words: str) -> None:
        points = self.points.copy()
        points[:, empty] = 0.0
        with pytest.raises(InputError, match=words):
            Paleo.fit(points, self.times)


def made_with_a_line(blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(counts, times, coefficients)."""
    made, true = synthetic.counts(blocks), np.array([2e-6, 1e-6, 2e-8])
    x = np.column_stack([made[c] for c in ("acts", "inp", "flops")])
    return x, x @ true + 0.4, true


class TestFreeLines:
    def test_lines_that_do_not_meet_are_found(self) -> None:
        x, base, true = made_with_a_line(101)
        breakpoint = float(
            np.sort(base)[30]
        )  # of 101 points that is a decile, and one that is tried
        y = np.where(base < breakpoint, 0.5 * base + 0.1, base)
        lines = FreeLines.fit(x, y)
        assert lines.coefficients == pytest.approx(true, rel=1e-3)
        assert lines.breakpoint == pytest.approx(breakpoint, rel=1e-9)
        assert (lines.slope, lines.offset) == pytest.approx((0.5, 0.1), rel=1e-2)
        np.testing.assert_allclose(answers(lines, x), y, rtol=1e-3)

    @pytest.mark.parametrize("blocks", [105, 6])  # one line fits; points too few for two
    def test_one_line_has_no_breakpoint(self, blocks: int) -> None:
        x, y, _ = made_with_a_line(blocks)
        line = FreeLines.fit(x, y)
        assert line.breakpoint == 0.0
        if blocks > 6:
            np.testing.assert_allclose(answers(line, x), y, rtol=1e-4)

    def test_one_answer_is_that_of_many(self) -> None:
        formula = FreeLines(("acts", "inp", "flops"), (1.0, 0.0, 0.0), 1.0, 5.0, 0.5, 7.0)
        assert formula.one([3.0, 0.0, 0.0]) == 9.0  # 0.5 * 4 + 7
        assert formula.one([4.0, 0.0, 0.0]) == 5.0
        many = answers(formula, np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 0.0]]))
        assert many.tolist() == [9.0, 5.0]


# ---- The learners of scikit-learn: as scikit-learn itself answers, and how they are asked for


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
