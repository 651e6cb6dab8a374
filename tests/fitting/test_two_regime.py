"""The published formula: found again from data made with it, continuous, rising, never negative."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.device.predictors.two_regime import TwoRegime
from lolat.fitting.linear import fit_two_regime
from tests import synthetic

A, B, C, D = 2e-6, 1e-6, 2e-8, 0.4
COLUMNS = ("acts", "inp", "flops")


def features(blocks: int = 105, seed: int = 0) -> np.ndarray:
    made = synthetic.counts(blocks, seed)
    return np.column_stack([made[c] for c in COLUMNS])


def linear(x: np.ndarray) -> np.ndarray:
    return x @ [A, B, C] + D


def lower(times: np.ndarray, breakpoint: float, slope: float, offset: float) -> np.ndarray:
    """The published formula, written plainly."""
    return np.where(times >= breakpoint, times, slope * times + offset)


@pytest.mark.parametrize(("breakpoint", "slope"), [(4.0, 0.5), (3.0, 0.8), (2.0, 1.2), (0.0, 1.0)])
def test_exact_data_gives_every_number_back(breakpoint: float, slope: float) -> None:
    x = features()
    offset = breakpoint * (1 - slope)
    y = lower(linear(x), breakpoint, slope, offset)
    found = fit_two_regime(x, y)
    np.testing.assert_allclose(found.slopes, (A, B, C), rtol=1e-3)
    assert found.constant == pytest.approx(D, rel=2e-3)
    if breakpoint:
        assert found.breakpoint_ms == pytest.approx(breakpoint, rel=0.02)
        assert found.slope == pytest.approx(slope, rel=0.02)
    np.testing.assert_allclose(found.rows(x), y, rtol=0.01)


def test_a_jump_at_the_breakpoint_is_not_copied() -> None:
    """The published tool's fit jumps from 88 to 176 ms; ours of such data does not jump."""
    x = features(200, seed=3)
    base = linear(x)
    y = np.where(base >= 2.0, base, 0.5 * base)
    found = fit_two_regime(x, y)
    assert_sound(found)
    error = np.abs(found.rows(x) / y - 1)
    assert np.median(error) < 0.25
    assert np.median(error[base >= 2.0]) < 0.15  # whole networks are above


def assert_sound(formula: TwoRegime) -> None:
    """Continuous at the breakpoint, rising, never negative: by the formula's own words."""
    b = formula.breakpoint_ms
    assert min(formula.slopes) >= 0
    assert formula.constant >= 0
    assert formula.slope > 0
    assert formula.slope * b + formula.to_dict()["offset_ms"] == pytest.approx(
        b, rel=1e-12, abs=1e-15
    )
    assert formula.slope * formula.constant + formula.to_dict()["offset_ms"] >= -1e-12 * b
    least = formula.one([0.0, 0.0, 0.0])
    assert least >= 0
    below = math.nextafter(b, 0.0)
    assert formula.bend_one(below) <= formula.bend_one(b)
    assert formula.bend_one(below) == pytest.approx(b, rel=1e-9, abs=1e-12)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(5, 60), st.floats(0.01, 2.0))
def test_whatever_the_points_the_formula_is_sound(seed: int, blocks: int, noise: float) -> None:
    x = features(blocks, seed)
    random = np.random.default_rng(seed)
    bend = random.uniform(0.05, 1.3)
    y = lower(linear(x), 6.0, bend, 6.0 * (1 - bend) * random.uniform(0, 2))
    y = np.maximum(y, 1e-3) * np.exp(noise * random.standard_normal(blocks))
    formula = fit_two_regime(x, y)
    assert_sound(formula)
    everywhere = np.sort(np.concatenate([np.geomspace(1e-6, 1e3, 300), [formula.breakpoint_ms]]))
    bent = formula.bend(everywhere.copy())
    assert (np.diff(bent) >= 0).all()
    linear_sums = everywhere[everywhere >= formula.constant]
    assert (formula.bend(linear_sums.copy()) >= 0).all()


def test_by_hand() -> None:
    formula = TwoRegime.linear(COLUMNS, (0.001, 0.002, 0.01), 1.0, breakpoint_ms=5.0, slope=0.5)
    assert formula.to_dict()["offset_ms"] == 2.5
    assert formula.one([1000, 2000, 300]) == pytest.approx(1 + 4 + 3 + 1)
    assert formula.one([1000, 0, 0]) == pytest.approx(0.5 * 2 + 2.5)
    assert formula.one([0, 0, 0]) == pytest.approx(3.0)
    terms, call = formula.shares(np.array([[1000.0, 0, 0], [0, 0, 100]]))  # t = 3 -> 4 ms
    np.testing.assert_allclose(terms, np.array([[1.0, 0, 0], [0, 0, 1.0]]) * 4 / 3)
    assert call == pytest.approx(4 / 3)
