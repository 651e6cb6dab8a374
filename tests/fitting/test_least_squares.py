"""The least squares that all formulas share, against SciPy, NumPy and coefficients known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import lsq_linear, minimize

from lolat.errors import InputError
from lolat.fitting.cross_validation import folds_of
from lolat.fitting.least_squares import (
    FAMILY_SPREAD,
    KIND_SPREAD,
    NETWORK_WEIGHT,
    OUTLYING_POINT,
    START_SHARE,
    fit_families,
    fit_relative,
    point_weights,
    require_points,
)
from tests import synthetic

NAMES = ("acts", "inp", "flops", "traffic", "weights", "ops")


def design(blocks: int = 80, seed: int = 0) -> np.ndarray:
    """(blocks, 7): the counts and a column of ones."""
    made = synthetic.counts(blocks, seed)
    return np.column_stack([*(made[n] for n in NAMES), np.ones(blocks)])


TRUE = np.array([*(synthetic.TRUE[n] for n in NAMES), synthetic.CALL_MS])


def soft(z: np.ndarray) -> np.ndarray:
    return 2.0 * (np.sqrt(1.0 + z**2) - 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_minimum_that_scipy_finds(seed: int) -> None:
    """Of the loss as it is documented, over coefficients that may be 0, by a general minimizer."""
    x = design(90, seed)
    random = np.random.default_rng(seed)
    y = x @ TRUE * np.exp(0.1 * random.standard_t(2, len(x)).clip(-8, 8))
    relative = x / y[:, None]
    unit = np.linalg.norm(relative, axis=0)
    relative /= unit

    def loss(c: np.ndarray) -> float:
        return float(soft(np.log(np.maximum(relative @ c, 1e-12)) / OUTLYING_POINT).sum())

    start = np.full(7, 0.5)
    reference = minimize(
        loss, start, bounds=[(0, None)] * 7, options={"maxiter": 2000, "ftol": 1e-13}
    )
    ours = fit_relative(x, y) * unit
    assert loss(ours) <= reference.fun * (1 + 1e-4)
    np.testing.assert_allclose(ours, reference.x, atol=0.01 * reference.x.max())
    plain = lsq_linear(relative, np.ones(len(y)), bounds=(0, np.inf)).x
    assert np.abs(plain - reference.x).max() > 0.02 * reference.x.max()  # it does make a difference


def test_a_column_without_anything_gets_nothing() -> None:
    x = design()
    x[:, 3] = 0.0
    found = fit_relative(x, x @ TRUE)
    assert found[3] == 0.0
    np.testing.assert_allclose(np.delete(found, 3), np.delete(TRUE, 3), rtol=1e-6)


# ---- families -------------------------------------------------------------------------------------

# Two families of three and two kinds, one of a single one, the constant.
FAMILIES = ["macs", "macs", "macs", "moved", "moved", "ops", "call"]
OF_KINDS = np.array([2e-8, 5e-8, 3e-8, 1e-6, 2e-6, 0.02, 0.15])


def kinds_design(blocks: int = 120, seed: int = 0) -> np.ndarray:
    """(blocks, 7): each column spans decades and is zero for some blocks, as kinds of operations are."""
    random = np.random.default_rng(seed)
    size = np.exp(random.uniform(np.log(0.1), np.log(30), (blocks, 7)))
    size[:, :6] *= random.random((blocks, 6)) < 0.6
    found = size / OF_KINDS
    found[:, -1] = 1.0
    return found


def objective(rates: np.ndarray, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """What the documentation says, written out: `rates`, the logarithms of four families and five kinds."""
    family, own = rates[:4], rates[4:]
    logs = family[[0, 0, 0, 1, 1, 2, 3]] + np.array([*own, 0.0, 0.0])
    off = np.log(x @ np.exp(logs) / y) / OUTLYING_POINT
    points = (weights * 2.0 * (np.sqrt(1.0 + off**2) - 1.0)).sum()
    relative = x / y[:, None]
    sums = [
        relative[:, :3].sum(axis=1),
        relative[:, 3:5].sum(axis=1),
        relative[:, 5],
        relative[:, 6],
    ]
    middles = [np.log(START_SHARE / np.median(s[s > 0.0])) for s in sums]
    return float(
        points
        + ((own / KIND_SPREAD) ** 2).sum()
        + (((family - middles) / FAMILY_SPREAD) ** 2).sum()
    )


@pytest.mark.parametrize("seed", range(4))
def test_families_are_the_minimum_that_scipy_finds(seed: int) -> None:
    x = kinds_design(seed=seed)
    random = np.random.default_rng(seed)
    y = x @ OF_KINDS * np.exp(0.15 * random.standard_normal(len(x)))
    weights = random.uniform(0.3, 10.0, len(x))
    truth = np.log(OF_KINDS)
    first = np.array([truth[0], truth[3], truth[5], truth[6], *np.zeros(5)])
    wanted = minimize(objective, first, (x, y, weights), method="BFGS", options={"gtol": 1e-3}).x
    logs = wanted[[0, 0, 0, 1, 1, 2, 3]] + np.array([*wanted[4:], 0.0, 0.0])
    found = fit_families(x, y, FAMILIES, weights)
    np.testing.assert_allclose(np.log(found), logs, atol=2e-3)


def test_a_kind_without_points_costs_what_its_family_costs() -> None:
    x = kinds_design(seed=1)
    x[:, 1] = 0.0
    found = fit_families(x, x @ OF_KINDS, FAMILIES, np.ones(len(x)))
    # Between its sisters: the mean of their logarithms, since the family is free.
    assert found[1] == pytest.approx(np.sqrt(found[0] * found[2]), rel=0.05)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_units_do_not_matter(seed: int, time: float, macs: float, ops: float) -> None:
    """Seconds for milliseconds, bytes for elements: of a family together."""
    x = kinds_design(60, seed)
    y = x @ OF_KINDS * np.exp(0.1 * np.random.default_rng(seed).standard_normal(60))
    units = np.array([macs] * 3 + [1.0] * 2 + [ops, 1.0])
    first = fit_families(x, y, FAMILIES, np.ones(60))
    second = fit_families(x * units, y * time, FAMILIES, np.ones(60))
    np.testing.assert_allclose(second * units / time, first, rtol=1e-4)


def test_a_point_that_counts_twice_is_two_points() -> None:
    x = kinds_design(60, seed=8)
    y = x @ OF_KINDS * np.exp(0.1 * np.random.default_rng(8).standard_normal(60))
    twice = np.ones(60)
    twice[:20] = 2.0
    again = np.concatenate([np.arange(60), np.arange(20)])
    one = fit_families(x, y, FAMILIES, twice)
    two = fit_families(x[again], y[again], FAMILIES, np.ones(80))
    # But for where families start, which is of points that all count alike, and holds them hardly.
    np.testing.assert_allclose(one, two, rtol=0.01)


def test_what_points_count_for() -> None:
    """A network for several blocks, where there are both."""
    both = np.array([False, True, False])
    assert point_weights(both).tolist() == [1.0, NETWORK_WEIGHT, 1.0]
    assert point_weights(both & False).tolist() == point_weights(both | True).tolist() == [1.0] * 3


def test_a_long_table_is_left_out_in_a_bounded_number_of_folds() -> None:
    names = [f"row {i // 2}" for i in range(1000)]
    folds = folds_of(names, most=80)
    assert len({*folds}) == 80
    assert len({*zip(names, folds, strict=True)}) == 500  # one fold for each name


def test_too_few_points_are_an_error() -> None:
    require_points(5, 4)
    with pytest.raises(InputError) as caught:
        require_points(4, 4)
    assert caught.value.code == "too-few-points"
