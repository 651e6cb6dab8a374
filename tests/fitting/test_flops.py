"""FLOPs alone: a line, found again from data made with it."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.fitting.predictors.baselines import FlopsOnly
from lolat.model.learning import answers


def test_exact_data_gives_both_numbers_back() -> None:
    x = np.geomspace(1e6, 1e10, 30)[:, None]
    found = FlopsOnly.fit(x, 2e-8 * x[:, 0] + 0.4)
    assert found.coefficients == pytest.approx((2e-8,), rel=1e-6)
    assert found.constant == pytest.approx(0.4, rel=1e-6)
    assert found.one([1e9]) == pytest.approx(20.4)
    np.testing.assert_allclose(answers(found, np.array([[0.0], [1e9]])), [0.4, 20.4], rtol=1e-6)


def test_times_that_fall_with_flops_give_no_negative_slope() -> None:
    x = np.array([[1e6], [1e7], [1e8], [1e9]])
    found = FlopsOnly.fit(x, np.array([8.0, 6.0, 4.0, 2.0]))
    assert found.coefficients == (0.0,)
    assert found.constant > 0
