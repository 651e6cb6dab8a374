"""The least squares that all formulas share, against SciPy, NumPy and coefficients known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, lsq_linear

from lolat.errors import InputError
from lolat.fitting import condition_number, fit_relative, leave_out, require_points
from tests import synthetic

NAMES = ("acts", "inp", "flops", "traffic", "weights", "ops")


def design(blocks: int = 80, seed: int = 0) -> np.ndarray:
    """(blocks, 7): the counts and a column of ones."""
    made = synthetic.counts(blocks, seed)
    return np.column_stack([*(made[n] for n in NAMES), np.ones(blocks)])


TRUE = np.array([*(synthetic.TRUE[n] for n in NAMES), synthetic.CALL_MS])


def test_exact_times_give_the_coefficients_back() -> None:
    x = design()
    np.testing.assert_allclose(fit_relative(x, x @ TRUE), TRUE, rtol=1e-6)


def test_a_coefficient_of_zero_is_found_and_never_negative() -> None:
    x = design()
    true = TRUE.copy()
    true[[1, 4]] = 0.0
    found = fit_relative(x, x @ true)
    np.testing.assert_allclose(found, true, rtol=1e-6, atol=1e-14)


def test_without_outliers_it_is_bounded_least_squares_on_the_relative_error() -> None:
    # Errors so alike that hardly one is above 1.5 times their median: the robust weights are 1.
    x = design(seed=3)
    random = np.random.default_rng(3)
    y = x @ TRUE * (1 + 0.05 * random.choice([-1.0, 1.0], len(x)))
    reference = lsq_linear(x / y[:, None], np.ones(len(y)), bounds=(0, np.inf), tol=1e-14)
    ours = fit_relative(x, y)
    relative = (x @ ours) / (x @ reference.x)
    np.testing.assert_allclose(relative, 1.0, atol=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_minimum_that_scipys_huber_loss_has(seed: int) -> None:
    x = design(90, seed)
    random = np.random.default_rng(seed)
    y = x @ TRUE * np.exp(0.1 * random.standard_t(2, len(x)).clip(-8, 8))
    ours = fit_relative(x, y, rounds=200)
    unit = np.linalg.norm(x / y[:, None], axis=0)
    relative = x / y[:, None] / unit
    threshold = 1.5 * np.median(np.abs(relative @ (ours * unit) - 1))
    reference = least_squares(
        lambda c: relative @ c - 1, np.full(7, 0.5), bounds=(0, np.inf), loss="huber",
        f_scale=threshold, xtol=1e-14, ftol=1e-14, gtol=1e-14,
    )  # fmt: skip
    np.testing.assert_allclose(ours * unit, reference.x, atol=0.005 * reference.x.max())
    plain = lsq_linear(relative, np.ones(len(y)), bounds=(0, np.inf)).x
    assert np.abs(plain - reference.x).max() > 0.02 * reference.x.max()  # it does make a difference


def test_one_round_is_scipys_answer() -> None:
    x = design(seed=4)
    y = x @ TRUE * np.exp(0.2 * np.random.default_rng(4).standard_normal(len(x)))
    unit = np.linalg.norm(x / y[:, None], axis=0)
    reference = lsq_linear(x / y[:, None] / unit, np.ones(len(y)), bounds=(0, np.inf), tol=1e-14)
    np.testing.assert_allclose(
        fit_relative(x, y, rounds=1) * unit, reference.x, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("wrong", [20.0, 0.05])
def test_a_tenth_of_absurd_points_does_not_bend_the_rest(wrong: float) -> None:
    x = design(100, seed=5)
    random = np.random.default_rng(5)
    y = x @ TRUE * np.exp(0.02 * random.standard_normal(len(x)))
    bad = random.choice(len(x), 10, replace=False)
    y[bad] *= wrong
    good = np.setdiff1d(np.arange(len(x)), bad)
    error = np.abs(x[good] @ fit_relative(x, y) / (x[good] @ TRUE) - 1)
    assert np.median(error) < 0.03
    plain = lsq_linear(x / y[:, None], np.ones(len(y)), bounds=(0, np.inf)).x
    if wrong < 1:  # a large relative residual; a time 20 times too long weighs nearly nothing
        assert np.median(np.abs(x[good] @ plain / (x[good] @ TRUE) - 1)) > 3 * np.median(error)


def test_a_column_without_anything_gets_nothing() -> None:
    x = design()
    x[:, 3] = 0.0
    found = fit_relative(x, x @ TRUE)
    assert found[3] == 0.0
    np.testing.assert_allclose(np.delete(found, 3), np.delete(TRUE, 3), rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(5, 40))
def test_coefficients_are_never_negative_and_finite(seed: int, blocks: int) -> None:
    x = design(blocks, seed)
    y = np.exp(np.random.default_rng(seed).uniform(-3, 5, blocks))
    found = fit_relative(x, y)
    assert np.isfinite(found).all()
    assert (found >= 0).all()


def test_each_fold_leaves_out_one_block_with_all_its_batch_sizes() -> None:
    names = ["a", "b", "a", "c", "b", "a"]
    masks = [m.tolist() for m in leave_out(names)]
    assert masks == [
        [False, True, False, True, True, False],
        [True, False, True, True, False, True],
        [True, True, True, False, True, True],
    ]


def test_a_long_table_is_left_out_in_a_bounded_number_of_folds() -> None:
    names = [f"row {i // 2}" for i in range(1000)]
    masks = list(leave_out(names, most=80))
    assert len(masks) == 80
    left_out = sum((~m).astype(int) for m in masks)
    assert (left_out == 1).all()  # every point exactly once
    for mask in masks:
        kept = {n for n, k in zip(names, mask, strict=True) if k}
        assert not kept & {n for n, k in zip(names, mask, strict=True) if not k}


def test_too_few_points_are_an_error() -> None:
    require_points(5, 4)
    with pytest.raises(InputError, match="4 points are too few to fit 4 coefficients"):
        require_points(4, 4)


def test_condition_number_is_that_of_unit_columns() -> None:
    x = design(60)
    y = x @ TRUE
    relative = x / y[:, None]
    values = np.linalg.svd(relative / np.linalg.norm(relative, axis=0), compute_uv=False)
    assert condition_number(x, y) == pytest.approx(values[0] / values[-1])
    assert condition_number(np.eye(4), np.ones(4)) == pytest.approx(1.0)
    # Columns in other units are the same design.
    assert condition_number(x * [1, 5, 1e-9, 3, 1, 2, 7], y) == pytest.approx(
        condition_number(x, y)
    )
    assert condition_number(np.column_stack([x, np.zeros(60)]), y) == pytest.approx(
        condition_number(x, y)
    )
