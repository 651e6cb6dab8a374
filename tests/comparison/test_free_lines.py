"""Two lines that need not meet: found again from data made with them."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.fitting.predictors.baselines import FreeLines
from lolat.model.learning import answers
from tests import synthetic

TRUE = np.array([2e-6, 1e-6, 2e-8])
CONSTANT = 0.4


def features(blocks: int = 105) -> np.ndarray:
    made = synthetic.counts(blocks)
    return np.column_stack([made[c] for c in ("acts", "inp", "flops")])


def test_lines_that_do_not_meet_are_found() -> None:
    x = features(101)
    base = x @ TRUE + CONSTANT
    breakpoint = float(np.sort(base)[30])  # of 101 points that is a decile, and one that is tried
    y = np.where(base < breakpoint, 0.5 * base + 0.1, base)
    found = FreeLines.fit(x, y)
    assert found.coefficients == pytest.approx(TRUE, rel=1e-3)
    assert found.breakpoint == pytest.approx(breakpoint, rel=1e-9)
    assert (found.slope, found.offset) == pytest.approx((0.5, 0.1), rel=1e-2)
    np.testing.assert_allclose(answers(found, x), y, rtol=1e-3)


def test_where_one_line_fits_there_is_no_breakpoint() -> None:
    x = features()
    y = x @ TRUE + CONSTANT
    found = FreeLines.fit(x, y)
    assert found.breakpoint == 0.0
    np.testing.assert_allclose(answers(found, x), y, rtol=1e-4)


def test_one_answer_is_that_of_many() -> None:
    formula = FreeLines(("acts", "inp", "flops"), (1.0, 0.0, 0.0), 1.0, 5.0, 0.5, 7.0)
    assert formula.one([3.0, 0.0, 0.0]) == 9.0  # 0.5 * 4 + 7
    assert formula.one([4.0, 0.0, 0.0]) == 5.0
    many = answers(formula, np.array([[3.0, 0.0, 0.0], [4.0, 0.0, 0.0]]))
    assert many.tolist() == [9.0, 5.0]


def test_few_points_are_one_line() -> None:
    x = features(6)
    assert FreeLines.fit(x, x @ TRUE + CONSTANT).breakpoint == 0.0
