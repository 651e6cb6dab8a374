"""Intervals fitted to held-out points: against SciPy's likelihood, by hand, and by their coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from lolat.device.intervals import STEEPEST, Calibration, Interval, NetworkErrors
from lolat.device.predictors.additive import AdditiveCosts
from lolat.fitting.blocks import fit_changes
from lolat.fitting.cross_validation import fit_interval, folds_of, interval_entry, network_entry


def uneven(
    blocks: int, batches: int, exponent: float, seed: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """(residuals, ops, names) of points whose spread falls with the operations, like real ones."""
    random = np.random.default_rng(seed)
    ops = np.repeat(np.exp(random.uniform(np.log(2), np.log(110), blocks)).round(), batches)
    names = [f"block {i}" for i in range(blocks) for _ in range(batches)]
    return 0.2 * ops**-exponent * random.standard_normal(len(ops)), ops, names


@pytest.mark.parametrize("seed", range(6))
def test_the_exponent_is_the_likeliest(seed: int) -> None:
    """By SciPy: the level and the exponent of Laplace's density, searched together."""
    from scipy.optimize import minimize

    residuals, ops, _ = uneven(105, 1, 0.3, seed)
    interval = fit_interval(residuals, ops)
    low, high = np.sort(ops)[[10, 94]]
    assert interval.ops == (low, high)  # a tenth of 105 points beyond either end
    x = np.log(np.clip(ops, low, high))

    def loss(p: np.ndarray) -> float:
        return -float(stats.laplace.logpdf(residuals, scale=np.exp(p[0] - p[1] * x)).sum())

    best = minimize(loss, [-2.0, 0.2], method="Nelder-Mead", options={"xatol": 1e-4}).x[1]
    assert interval.exponent == pytest.approx(float(np.clip(best, 0.0, STEEPEST)), abs=0.0075)
    steps = interval.exponent * 50 / STEEPEST
    assert steps == pytest.approx(round(steps), abs=1e-3)
    assert interval.exponent == round(interval.exponent, 6)
    least = fit_interval(residuals, np.where(ops <= np.median(ops), 0.5, ops))
    assert least.ops[0] == 1.0, "nothing has less than one operation"


def test_points_that_cannot_tell_have_no_scale() -> None:
    """Too few points, points of equal size, errors that rise with the size."""
    for blocks, exponent, has_scale in ((29, 0.4, False), (30, 0.4, True), (105, -0.5, False)):
        residuals, ops, names = uneven(blocks, 1, exponent, 0)
        assert (interval_entry(residuals, ops, folds_of(names)) is not None) == has_scale
    residuals, _, names = uneven(100, 1, 0.4, 0)
    assert interval_entry(residuals, np.full(100, 7.0), folds_of(names)) is None


def test_no_point_has_a_say_in_its_own_scale() -> None:
    """A block ten times as far off: its scores are ten times as large, those of others are not."""
    residuals, ops, names = uneven(40, 2, 0.3, 3)
    mine = np.array(names) == "block 1"
    before, after = (
        interval_entry(r, ops, folds_of(names))
        for r in (residuals, np.where(mine, 10 * residuals, residuals))
    )
    assert before is not None
    assert after is not None
    old, new = np.array(before["scores"]), np.array(after["scores"])
    assert new[mine] == pytest.approx(10 * old[mine], abs=1e-5)
    assert after["exponent"] != before["exponent"]
    middle = math.sqrt(before["ops"][0] * before["ops"][1])
    direct = np.abs(residuals) * (np.clip(ops, *before["ops"]) / middle) ** before["exponent"]
    assert old == pytest.approx(direct, rel=0.1)  # one block of forty says little
    assert (np.abs(old - direct) > 1e-5).any()


def coverages(normalized: bool) -> list[float]:
    """Shares of new points, small and large, inside 90 % intervals learned from 105 points."""
    random = np.random.default_rng(7)
    inside = np.zeros((120, 2))
    for i in range(len(inside)):
        residuals, ops, names = uneven(53, 2, 0.35, 100 + i)
        calibration = Calibration(residuals=tuple(residuals))
        if normalized and (entry := interval_entry(residuals, ops, folds_of(names))):
            calibration = Calibration(
                interval=Interval(entry["exponent"], tuple(entry["ops"]), tuple(entry["scores"]))
            )
        for size, (least, most) in enumerate([(2, 8), (40, 110)]):
            new = random.uniform(least, most, 60)
            errors = np.abs(0.2 * new**-0.35 * random.standard_normal(60))
            halves = np.array([calibration.half_width(n) for n in new])
            inside[i, size] = (errors <= halves).mean()
    return list(inside.mean(axis=0))


def test_small_and_large_are_covered_alike() -> None:
    """Without the scale the small ones are missed and the large ones too wide.

    One run's coverage is spread by sqrt(0.9 * 0.1 / 107) = 0.03 and the drawing of 60 points by 0.04,
    so that the mean of 120 runs is known to 0.005: three and a half of them on either side, and on
    the upper one what the clipped range leaves the largest.
    """
    small, large = coverages(normalized=True)
    assert 0.88 < small < 0.92
    assert 0.88 < large < 0.93
    small, large = coverages(normalized=False)
    assert small < 0.84
    assert large > 0.96


def test_the_spread_of_networks_by_hand() -> None:
    """Nine of spread 0.1, one ten times as far off, in three families."""
    residuals = np.array([0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, 1.0])
    assert network_entry(residuals, np.arange(10, 110, 10), 3) == {
        "ops": pytest.approx(19.0),  # a tenth of the way from the smallest to the largest
        "spread": pytest.approx(math.sqrt((9 * 0.01 + 1.0) / 10), abs=1e-6),
        "count": 3,
    }


def test_changes_of_the_fit_by_hand() -> None:
    """Without one point the MACs cost a tenth more, without another one a call takes half."""
    formula = AdditiveCosts.linear(("flops", "ops"), (1.0, 2.0), 4.0)
    refits = [
        AdditiveCosts.linear(("flops", "ops"), slopes, call)
        for slopes, call in (((1.1, 2.0), 4.0), ((1.0, 2.0), 2.0), ((1.0, 2.0), 4.0))
    ]
    networks = np.array([[8.0, 4.0], [4.0, 0.0], [1.0, 0.0]])
    shares = np.array([[0.4, 0.4, 0.2], [0.5, 0.0, 0.5], [0.2, 0.0, 0.8]])
    found = fit_changes(formula, refits, networks, 3)
    errors = NetworkErrors(1.0, 1.0, 2, tuple(found["changes"]), found["typical"])
    variances = (0.1 * shares[:, 0]) ** 2 + (0.5 * shares[:, 2]) ** 2
    assert found["typical"] == pytest.approx(float(np.median(variances)), abs=1e-6)
    for row, variance in zip(shares.tolist(), variances, strict=True):
        of_terms = dict(zip(("flops", "ops", "call"), row, strict=True))
        rest = 1.0 - found["typical"]
        assert errors.deviation(of_terms) ** 2 - rest == pytest.approx(variance, rel=0.01)
    # One direction keeps what varies the networks most, which is the call.
    (change,) = fit_changes(formula, refits, networks, 1)["changes"]
    assert abs(change["call"]) == pytest.approx(0.5, rel=0.01)
    assert abs(change.get("flops", 0.0)) < 0.01
