"""Conformal quantiles against their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.intervals import conformal_quantile


def by_definition(residuals: list[float], coverage: float) -> float | None:
    """The smallest |residual| so that enough of n + 1 exchangeable ones are at most that large."""
    for candidate in sorted(map(abs, residuals)):
        inside = sum(abs(r) <= candidate for r in residuals)
        if inside / (len(residuals) + 1) >= coverage - 1e-12:
            return candidate
    return None


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=60),
    st.integers(1, 99).map(lambda percent: percent / 100),
)
def test_quantile_is_what_the_definition_says(residuals: list[float], coverage: float) -> None:
    expected = by_definition(residuals, coverage)
    if expected is None:
        with pytest.raises(InputError, match=f"coverage {coverage}: expected at most"):
            conformal_quantile(residuals, coverage)
    else:
        assert conformal_quantile(residuals, coverage) == expected


def test_coverage_is_what_is_promised() -> None:
    random = np.random.default_rng(0)
    inside = 0
    for _ in range(4000):
        seen = random.standard_t(3, 51)  # 50 left out, and a new one like them
        inside += abs(seen[-1]) <= conformal_quantile(seen[:-1].tolist(), 0.9)
    # 46 of 51: 0.902; the standard deviation of the share is 0.005.
    assert 46 / 51 - 0.02 < inside / 4000 < 46 / 51 + 0.02


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, -0.1, math.nan, math.inf, "0.9", None])
def test_a_coverage_that_is_none(coverage: object) -> None:
    with pytest.raises(InputError, match="expected a number above 0 and below 1"):
        conformal_quantile([0.1] * 50, coverage)  # type: ignore[arg-type]


def test_the_most_that_is_offered_is_possible() -> None:
    residuals = [0.1] * 105
    with pytest.raises(InputError, match=r"at most 0\.99, which is all that 105") as caught:
        conformal_quantile(residuals, 0.999)
    offered = float(str(caught.value).split("at most ")[1].split(",")[0])
    assert conformal_quantile(residuals, offered) == 0.1


def test_a_rank_that_rounding_lifts_is_put_right() -> None:
    """100 * 0.55 is 55.000000000000007 in floating point: the 55th is meant, not the 56th."""
    assert conformal_quantile([float(i) for i in range(1, 100)], 0.55) == 55.0
