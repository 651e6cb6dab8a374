"""Conformal quantiles and their scale, against definitions and SciPy."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from lolat.device.intervals import (
    STEEPEST,
    Calibration,
    Interval,
    Networks,
    check_coverage,
    conformal_quantile,
    half_width_if_known,
    interval_entry,
    machine,
    network_entry,
    t_quantile,
)
from lolat.errors import InputError
from lolat.fitting.cross_validation import leave_out

RESIDUALS = tuple(i / 100 for i in range(-50, 50))  # the 91st smallest of their sizes is 0.45


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
@example([i / 100 for i in range(1, 100)], 0.55)  # 100 * 0.55 is a little more than 55
def test_a_quantile_follows_its_definition(residuals: list[float], coverage: float) -> None:
    expected = by_definition(residuals, coverage)
    if expected is None:
        with pytest.raises(InputError) as error:
            conformal_quantile(residuals, coverage)
        assert error.value.code == "coverage-range"
    else:
        assert conformal_quantile(residuals, coverage) == expected


@given(
    st.floats(0.01, STEEPEST), st.floats(1, 1e3), st.floats(1, 1e3),
    st.lists(st.floats(0, 1e6), min_size=2, max_size=9),
)  # fmt: skip
def test_a_scale_never_rises_and_is_constant_beyond_its_range(
    exponent: float, one: float, other: float, sizes: list[float]
) -> None:
    low, high = sorted([one, other])
    scale = Interval(exponent, (low, high))
    scales = [scale.scale(n) for n in sorted(sizes)]
    assert scales == sorted(scales, reverse=True)
    assert scale.scale(low) >= scales[0] >= scales[-1] >= scale.scale(high) > 0
    assert scale.scale(low) * scale.scale(high) == pytest.approx(1.0)
    assert scale.scale(low) / scale.scale(high) == pytest.approx((high / low) ** exponent)


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
    interval = Interval.fit(residuals, ops)
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
    least = Interval.fit(residuals, np.where(ops <= np.median(ops), 0.5, ops))
    assert least.ops[0] == 1.0, "nothing has less than one operation"


def test_points_that_cannot_tell_have_no_scale() -> None:
    """Too few points, points of equal size, errors that rise with the size."""
    for blocks, exponent, has_scale in ((29, 0.4, False), (30, 0.4, True), (105, -0.5, False)):
        residuals, ops, names = uneven(blocks, 1, exponent, 0)
        assert (interval_entry(residuals, ops, leave_out(names)) is not None) == has_scale
    residuals, _, names = uneven(100, 1, 0.4, 0)
    assert interval_entry(residuals, np.full(100, 7.0), leave_out(names)) is None


def test_no_point_has_a_say_in_its_own_scale() -> None:
    """A block ten times as far off: its scores are ten times as large, those of others are not."""
    residuals, ops, names = uneven(40, 2, 0.3, 3)
    mine = np.array(names) == "block 1"
    before, after = (
        interval_entry(r, ops, leave_out(names))
        for r in (residuals, np.where(mine, 10 * residuals, residuals))
    )
    assert before is not None
    assert after is not None
    old, new = np.array(before["scores"]), np.array(after["scores"])
    assert new[mine] == pytest.approx(10 * old[mine], abs=1e-5)
    assert after["exponent"] != before["exponent"]
    scale = Interval(before["exponent"], tuple(before["ops"]))
    direct = np.array([abs(r) / scale.scale(n) for r, n in zip(residuals, ops, strict=True)])
    assert old == pytest.approx(direct, rel=0.1)  # one block of forty says little
    assert (np.abs(old - direct) > 1e-5).any()


def coverages(normalized: bool) -> list[float]:
    """Shares of new points, small and large, inside 90 % intervals learned from 105 points."""
    random = np.random.default_rng(7)
    inside = np.zeros((120, 2))
    for i in range(len(inside)):
        residuals, ops, names = uneven(53, 2, 0.35, 100 + i)
        calibration = Calibration(residuals=tuple(residuals))
        if normalized and (entry := interval_entry(residuals, ops, leave_out(names))):
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


# ---- Whole networks, the noise floor, the machine's ups and downs


def test_the_spread_of_networks_by_hand() -> None:
    """Nine of spread 0.1, one ten times as far off, in three families."""
    residuals = np.array([0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, 1.0])
    assert network_entry(residuals, np.arange(10, 110, 10), 3) == {
        "ops": pytest.approx(19.0),  # a tenth of the way from the smallest to the largest
        "spread": pytest.approx(math.sqrt((9 * 0.01 + 1.0) / 10), abs=1e-6),
        "count": 3,
    }


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 13, 99, 100, 1000])
@pytest.mark.parametrize("coverage", [0.01, 0.5, 0.9, 0.999])
def test_quantiles_of_student(freedom: int, coverage: float) -> None:
    """As SciPy has them, to 1 % where the normal distribution stands for many."""
    expected = stats.t.ppf((1 + coverage) / 2, freedom)
    close = 1e-9 if freedom < 100 else 0.03 if coverage == 0.999 else 0.01
    assert t_quantile(coverage, freedom) == pytest.approx(expected, rel=close)


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.6])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_from_blocks_to_networks(spread: float, coverage: float) -> None:
    """Large networks have the interval of Student's t, single blocks 1.3 times their own."""
    blocks = 1.3 * Calibration(residuals=RESIDUALS).half_width(1, coverage)
    calibration = Calibration(residuals=RESIDUALS, networks=Networks(100.0, spread, 12))
    networks = float(stats.t.ppf((1 + coverage) / 2, 12)) * spread
    halves = [calibration.half_width(n, coverage) for n in (0, 1, 2, 5, 10, 40, 99, 100, 500, 1e9)]
    assert halves[:2] == pytest.approx([blocks] * 2)
    assert halves[-3:] == pytest.approx([networks] * 3)
    assert halves == sorted(halves, reverse=blocks > networks)
    # 10 is half of the way to 100: a sixteenth.
    assert calibration.half_width(10, coverage) == pytest.approx((15 * blocks + networks) / 16)


def test_errors_of_the_machine_and_of_another_host() -> None:
    """Normal quantiles from tables; independent errors add up in squares."""
    noise = {"noise": {"repeatability": 0.1}}
    assert machine(noise, 0.9) == pytest.approx(1.6449 * math.log(1.1), rel=1e-4)
    assert machine(noise, 0.5) == pytest.approx(0.6745 * math.log(1.1), rel=1e-4)
    assert machine({}, 0.9) == 0.0
    alone, other = (Calibration(residuals=RESIDUALS, elsewhere=e).half_width(1) for e in (0.0, 0.2))
    assert other == pytest.approx(math.hypot(alone, 1.6449 * 0.2), rel=1e-4)


def test_the_interval_of_a_prediction() -> None:
    """At 90 % by default, and never narrower than the noise."""
    wide = Calibration(residuals=RESIDUALS)
    narrow = Calibration(residuals=tuple(r / 100 for r in RESIDUALS))
    noisy = {"noise": {"floor": 0.02}}
    assert half_width_if_known(wide, noisy, None, 1) == (0.45, ())
    assert half_width_if_known(wide, noisy, 0.5, 1) == (0.25, ())
    assert half_width_if_known(narrow, noisy, 0.9, 1) == (math.log1p(0.02), ())
    assert half_width_if_known(narrow, {}, 0.9, 1)[0] == pytest.approx(0.0045)
    # Many operations are better known than one.
    scaled = Calibration(interval=Interval(0.5, (1, 100), (1.0,) * 20))
    halves = [half_width_if_known(scaled, {}, None, ops)[0] for ops in (100, 1)]
    assert halves == pytest.approx([math.sqrt(0.1), math.sqrt(10)])


def test_coverages_that_cannot_be() -> None:
    """Too few points: a remark by default, an error if a coverage is asked for."""
    for coverage in (0.0, 1.0, -0.1, "0.9"):
        with pytest.raises(InputError) as error:
            check_coverage(coverage)  # type: ignore[arg-type]
        assert (error.value.code, error.value.data) == ("coverage-range", {"coverage": coverage})
    few = Calibration(residuals=(0.1,) * 8)
    assert half_width_if_known(few, {}, 0.8, 1) == (0.1, ())
    for calibration in (few, Calibration()):
        half, (remark,) = half_width_if_known(calibration, {}, None, 1)
        assert (half, remark[:13]) == (None, "no interval: ")
        with pytest.raises(InputError) as error:
            half_width_if_known(calibration, {}, 0.9, 1)
        assert error.value.data == {"coverage": 0.9}
    with pytest.raises(InputError, match=r"coverage 0.95: expected at most 0.9, "):
        conformal_quantile([0.1] * 9, 0.95)


def test_a_file_has_no_fewer_operations_than_one_and_no_more_than_there_are() -> None:
    document = {"exponent": 0.5, "scores": [0.1]}
    assert msgspec.convert({**document, "ops": [1.0, 1e30]}, Interval).ops == (1.0, 1e30)
    for ops in ([0.5, 2.0], [1.0, 1e31]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**document, "ops": ops}, Interval)
