"""The least squares that all formulas share, against SciPy, NumPy and coefficients known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares, lsq_linear

from lolat.errors import InputError
from lolat.fitting.least_squares import (
    SHRINK,
    fit_families,
    fit_relative,
    leave_out,
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


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(5, 40))
def test_coefficients_are_never_negative_and_finite(seed: int, blocks: int) -> None:
    x = design(blocks, seed)
    y = np.exp(np.random.default_rng(seed).uniform(-3, 5, blocks))
    found = fit_relative(x, y)
    assert np.isfinite(found).all()
    assert (found >= 0).all()


# ---- families -------------------------------------------------------------------------------------

# Two families of three and two kinds, two columns that stand alone, the constant.
FAMILIES: list[str | None] = ["macs", "macs", "macs", "moved", "moved", None, None, None]
OF_KINDS = np.array([2e-8, 5e-8, 3e-8, 1e-6, 2e-6, 0.02, 3e-7, 0.15])


def kinds_design(blocks: int = 120, seed: int = 0) -> np.ndarray:
    """(blocks, 8): each column spans decades and is zero for some blocks, as kinds of operations are."""
    random = np.random.default_rng(seed)
    size = np.exp(random.uniform(np.log(0.1), np.log(30), (blocks, 8)))
    size[:, :7] *= random.random((blocks, 7)) < 0.6
    found = size / OF_KINDS
    found[:, -1] = 1.0
    return found


def objective(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By SciPy, without robustness: (rates of families, all coefficients, the ridge's widths).

    What the documentation says, written out: weighted squares of relative errors; first one rate for
    each family, then (coefficient / rate - 1) ** 2 * SHRINK ** 2 for each kind, and what a column that
    stands alone contributes, its norm in the relative design times the coefficient, instead.
    """
    root = np.sqrt(weights)
    relative = x / y[:, None]
    sums = np.column_stack(
        [relative[:, :3].sum(axis=1), relative[:, 3:5].sum(axis=1), relative[:, -1]]
    )
    unit = np.linalg.norm(sums, axis=0)
    rates = lsq_linear(sums / unit * root[:, None], root, (0, np.inf), tol=1e-14).x / unit
    norms = np.linalg.norm(relative, axis=0)
    widths = np.array([*[rates[0]] * 3, *[rates[1]] * 2, *(1.0 / norms[5:7])])
    towards = np.array([1.0] * 5 + [0.0] * 2)
    # Unknowns in units of the widths, so that the solver sees numbers near 1.
    scale = np.array([*widths, 1.0])
    rows = np.vstack([relative * scale * root[:, None], SHRINK * np.eye(8)[:7]])
    found = lsq_linear(rows, np.array([*root, *(SHRINK * towards)]), (0, np.inf), tol=1e-14)
    return rates[:2], found.x * scale, widths


@pytest.mark.parametrize("seed", range(5))
def test_families_are_the_minimum_that_scipy_finds(seed: int) -> None:
    x = kinds_design(seed=seed)
    random = np.random.default_rng(seed)
    y = x @ OF_KINDS * np.exp(0.15 * random.standard_normal(len(x)))
    weights = random.uniform(0.3, 10.0, len(x))
    _, wanted, _ = objective(x, y, weights)
    found = fit_families(x, y, FAMILIES, weights, rounds=1)
    np.testing.assert_allclose(found / OF_KINDS, wanted / OF_KINDS, rtol=1e-4, atol=1e-5)


def test_families_are_robust() -> None:
    """A tenth of the points ten times too fast: the rest is still predicted."""
    x = kinds_design(200, seed=2)
    random = np.random.default_rng(2)
    y = x @ OF_KINDS * np.exp(0.02 * random.standard_normal(len(x)))
    bad = random.choice(len(x), 20, replace=False)
    y[bad] *= 0.1
    good = np.setdiff1d(np.arange(len(x)), bad)

    def error(rounds: int) -> float:
        found = fit_families(x, y, FAMILIES, np.ones(len(x)), rounds)
        return float(np.median(np.abs(x[good] @ found / (x[good] @ OF_KINDS) - 1)))

    assert error(12) < 0.1  # 0.8 where they pull all others down
    assert error(1) > 3 * error(12)


def test_exact_points_give_each_kind_back() -> None:
    """The ridge is worth less than one point for a kind: four hundred say otherwise."""
    x = kinds_design(400)
    found = fit_families(x, x @ OF_KINDS, FAMILIES, np.ones(len(x)))
    np.testing.assert_allclose(found, OF_KINDS, rtol=0.02)


def test_one_rate_for_a_family_is_given_back_exactly() -> None:
    """Where the kinds of a family cost alike, the ridge pulls nowhere."""
    true = np.array([3e-8] * 3 + [2e-6] * 2 + [0.0, 0.0, 0.15])
    x = kinds_design()
    found = fit_families(x, x @ true, FAMILIES, np.ones(len(x)))
    np.testing.assert_allclose(found, true, rtol=1e-6, atol=1e-15)


def test_a_kind_without_points_costs_what_its_family_costs() -> None:
    x = kinds_design(seed=1)
    x[:, 1] = 0.0
    y = x @ OF_KINDS
    found = fit_families(x, y, FAMILIES, np.ones(len(x)), rounds=1)
    rates, _, _ = objective(x, y, np.ones(len(x)))
    assert found[1] == pytest.approx(rates[0], rel=1e-6)
    assert (
        min(found[0], found[2]) < found[1] < max(found[0], found[2])
    )  # it lies between its sisters
    x[:, [5, 6]] = 0.0  # of no family: nothing
    assert fit_families(x, y, FAMILIES, np.ones(len(x)))[5:7].tolist() == [0.0, 0.0]


def test_few_points_of_a_kind_say_little_and_many_say_all() -> None:
    """The kind costs five times its family's rate; from one point to fifty it comes to be believed."""
    found = []
    for points in (1, 4, 50):
        x = kinds_design(150, seed=6)
        x[points:, 1] = 0.0
        x[:points, 1] = 4.0 * (x[:points] @ OF_KINDS) / 1.5e-7
        true = OF_KINDS.copy()
        true[:3] = 3e-8, 1.5e-7, 3e-8
        found.append(fit_families(x, x @ true, FAMILIES, np.ones(len(x)), 1)[1] / 1.5e-7)
    assert found == sorted(found)
    assert found[0] < 0.85
    assert found[-1] == pytest.approx(1.0, abs=0.08)


def test_the_ridge_gives_way_to_a_kind_that_is_far_from_its_family() -> None:
    """Fifteen points of a kind that costs twelve times as much; a ridge that stays is off by 14 %."""
    x = kinds_design(150, seed=6)
    true = OF_KINDS.copy()
    true[:3] = 3e-8, 36e-8, 3e-8
    x[15:, 1] = 0.0
    x[:15, 1] = 0.5 * (x[:15] @ OF_KINDS) / true[1]
    found = fit_families(x, x @ true, FAMILIES, np.ones(len(x)))
    assert found[1] == pytest.approx(true[1], rel=0.02)


def test_a_family_that_costs_nothing_may_have_a_kind_that_does() -> None:
    """Half of the points would be faster with any rate at all for the family as a whole."""
    random = np.random.default_rng(0)
    x = kinds_design(seed=3)
    true = OF_KINDS.copy()
    true[:5] = 0.0, 0.0, 0.0, 1e-6, 2e-6
    y = x @ true * np.exp(0.01 * random.standard_normal(len(x)))
    x[:, 0] *= -np.log(random.random(len(x)))  # of no influence
    found = fit_families(x, y, FAMILIES, np.ones(len(x)))
    assert found[:3] @ x[:, :3].mean(axis=0) < 0.02 * y.mean()
    np.testing.assert_allclose(found[3:5], true[3:5], rtol=0.1)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(3, 40))
def test_no_cost_of_a_kind_is_negative(seed: int, blocks: int) -> None:
    x = kinds_design(blocks, seed)
    random = np.random.default_rng(seed)
    found = fit_families(x, np.exp(random.uniform(-3, 5, blocks)), FAMILIES, np.ones(blocks))
    assert np.isfinite(found).all()
    assert (found >= 0).all()


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_units_do_not_matter(seed: int, time: float, macs: float, alone: float) -> None:
    """Seconds for milliseconds, bytes for elements: of a family together, of other columns each."""
    x = kinds_design(60, seed)
    y = x @ OF_KINDS * np.exp(0.1 * np.random.default_rng(seed).standard_normal(60))
    units = np.array([macs] * 3 + [1.0] * 2 + [alone, 1.0, 1.0])
    first = fit_families(x, y, FAMILIES, np.ones(60))
    second = fit_families(x * units, y * time, FAMILIES, np.ones(60))
    np.testing.assert_allclose(second * units / time, first, rtol=1e-5, atol=1e-7 * OF_KINDS.min())


def test_a_point_that_counts_twice_is_two_points() -> None:
    x = kinds_design(60, seed=8)
    x[:, [5, 6]] = 0.0  # what stands alone is held back by more, the more points there are
    y = x @ OF_KINDS * np.exp(0.1 * np.random.default_rng(8).standard_normal(60))
    twice = np.ones(60)
    twice[:20] = 2.0
    again = np.concatenate([np.arange(60), np.arange(20)])
    np.testing.assert_allclose(
        fit_families(x, y, FAMILIES, twice, rounds=1),
        fit_families(x[again], y[again], FAMILIES, np.ones(80), rounds=1),
        rtol=1e-6,
        atol=1e-14,
    )


def test_what_points_count_for() -> None:
    """A network for ten, a block for its time in 2 ms, from 0.3 to 1."""
    times = np.array([0.01, 0.6, 1.0, 1.5, 2.0, 50.0, 0.01, 50.0])
    whole = np.array([False] * 6 + [True] * 2)
    assert point_weights(times, whole).tolist() == [0.3, 0.3, 0.5, 0.75, 1.0, 1.0, 10.0, 10.0]


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
