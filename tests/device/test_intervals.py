"""Conformal quantiles and their scale, against definitions and SciPy."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from lolat.device.domain import Extrapolation
from lolat.device.intervals import (
    STEEPEST,
    Calibration,
    Interval,
    NetworkErrors,
    conformal_quantile,
    ratio_half_width,
    t_quantile,
)
from lolat.device.schema import Noise
from lolat.device.uncertainty import widened_half_width
from lolat.errors import InputError

RESIDUALS = tuple(i / 100 for i in range(-50, 50))  # the 91st smallest of their sizes is 0.45


def half_width(
    calibration: Calibration, noise: object, coverage: float | None, ops: float
) -> tuple[float | None, tuple[str, ...]]:
    """Of a network inside the measured range."""
    return widened_half_width(calibration, None, Extrapolation(), Noise(**noise), coverage, ops)


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
    calibration = Calibration(interval=Interval(exponent, (low, high), (1.0,) * 9))
    scales = [calibration.half_width(n) for n in (low, *sorted(sizes), high)]
    assert scales[1:-1] == sorted(scales[1:-1], reverse=True)
    assert scales[0] >= scales[1] >= scales[-2] >= scales[-1] > 0
    assert scales[0] * scales[-1] == pytest.approx(1.0)
    assert scales[0] / scales[-1] == pytest.approx((high / low) ** exponent)


# ---- Whole networks, the noise floor, the machine's ups and downs


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 10, 13, 99, 100, 1000])
@pytest.mark.parametrize("coverage", [0.01, 0.5, 0.9, 0.999])
def test_quantiles_of_student(freedom: int, coverage: float) -> None:
    """SciPy's quantiles, to 1 % from 100 degrees of freedom on."""
    expected = stats.t.ppf((1 + coverage) / 2, freedom)
    close = 1e-8 if freedom < 100 else 0.03 if coverage == 0.999 else 0.01
    assert t_quantile(coverage, freedom) == pytest.approx(expected, rel=close)


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.6])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_from_blocks_to_networks(spread: float, coverage: float) -> None:
    """Large networks have the interval of Student's t, single blocks 1.3 times their own."""
    blocks = 1.3 * Calibration(residuals=RESIDUALS).half_width(1, coverage)
    calibration = Calibration(residuals=RESIDUALS, networks=NetworkErrors(100.0, spread, 12))
    networks = float(stats.t.ppf((1 + coverage) / 2, 12)) * spread
    halves = [calibration.half_width(n, coverage) for n in (0, 1, 2, 5, 10, 40, 99, 100, 500, 1e9)]
    assert halves[:2] == pytest.approx([blocks] * 2)
    assert halves[-3:] == pytest.approx([networks] * 3)
    assert halves == sorted(halves, reverse=blocks > networks)
    # 10 is half of the way to 100: a sixteenth.
    assert calibration.half_width(10, coverage) == pytest.approx((15 * blocks + networks) / 16)


def test_errors_of_the_machine_and_of_another_host() -> None:
    """Normal quantiles from tables; independent errors add up in squares."""
    for coverage, quantile in ((0.9, 1.6449), (0.5, 0.6745)):
        own = Calibration(residuals=RESIDUALS).half_width(1, coverage)
        found, _ = half_width(Calibration(residuals=RESIDUALS), {"repeatability": 0.1}, coverage, 1)
        assert found == pytest.approx(math.hypot(own, quantile * math.log(1.1)), rel=1e-4)
    alone, other = (Calibration(residuals=RESIDUALS, elsewhere=e).half_width(1) for e in (0.0, 0.2))
    assert other == pytest.approx(math.hypot(alone, 1.6449 * 0.2), rel=1e-4)


def test_the_interval_of_a_prediction() -> None:
    """At 90 % by default, and never narrower than the noise."""
    wide = Calibration(residuals=RESIDUALS)
    narrow = Calibration(residuals=tuple(r / 100 for r in RESIDUALS))
    noisy = {"floor": 0.02}
    assert half_width(wide, noisy, None, 1) == (pytest.approx(0.45), ())
    assert half_width(wide, noisy, 0.5, 1) == (pytest.approx(0.25), ())
    assert half_width(narrow, noisy, 0.9, 1) == (pytest.approx(math.log1p(0.02)), ())
    assert half_width(narrow, {}, 0.9, 1)[0] == pytest.approx(0.0045)
    # Many operations are better known than one.
    scaled = Calibration(interval=Interval(0.5, (1, 100), (1.0,) * 20))
    halves = [half_width(scaled, {}, None, ops)[0] for ops in (100, 1)]
    assert halves == pytest.approx([math.sqrt(0.1), math.sqrt(10)])


def test_coverages_that_cannot_be() -> None:
    """Too few points: a remark by default, an error if a coverage is asked for."""
    for coverage in (0.0, 1.0, -0.1, "0.9"):
        with pytest.raises(InputError) as error:
            conformal_quantile(RESIDUALS, coverage)  # type: ignore[arg-type]
        assert (error.value.code, error.value.data["given"]) == ("coverage", [coverage])
    few = Calibration(residuals=(0.1,) * 8)
    assert half_width(few, {}, 0.8, 1) == (pytest.approx(0.1), ())
    for calibration in (few, Calibration()):
        half, (remark,) = half_width(calibration, {}, None, 1)
        assert (half, remark[:13]) == (None, "no interval: ")
        with pytest.raises(InputError) as error:
            half_width(calibration, {}, 0.9, 1)
        assert error.value.data == {"coverage": 0.9}
    with pytest.raises(InputError, match=r"coverage 0.95: expected at most 0.9, "):
        conformal_quantile([0.1] * 9, 0.95)


def test_a_file_has_no_fewer_operations_than_one_and_no_more_than_there_are() -> None:
    document = {"exponent": 0.5, "scores": [0.1]}
    assert msgspec.convert({**document, "ops": [1.0, 1e30]}, Interval).ops == (1.0, 1e30)
    for ops in ([0.5, 2.0], [1.0, 1e31]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**document, "ops": ops}, Interval)


def test_the_deviation_of_a_network_by_hand() -> None:
    """The rest of the variance, 0.01 - 0.0036, and the squares of two changes of its time."""
    changes = ({"flops": 0.2, "call": -0.1}, {"ops": 1.0})
    errors = NetworkErrors(100.0, 0.1, 12, changes, 0.0036)
    shares = {"flops": 0.6, "ops": 0.1, "weights": 0.1, "call": 0.2}
    expected = math.sqrt(0.0064 + (0.12 - 0.02) ** 2 + 0.1**2)
    assert errors.deviation(shares) == pytest.approx(expected)
    assert errors.deviation({"weights": 1.0}) == pytest.approx(0.08)
    # A share of the variance stays, and without shares the errors are those of all networks.
    mostly_fit = NetworkErrors(100.0, 0.1, 12, changes, 0.0099)
    assert mostly_fit.deviation({"weights": 1.0}) == pytest.approx(0.05)
    assert errors.deviation() == NetworkErrors(100.0, 0.1, 12).deviation(shares) == 0.1
    half = Calibration(residuals=RESIDUALS, networks=errors).half_width(100, 0.9, terms_ms=shares)
    assert half == pytest.approx(float(stats.t.ppf(0.95, 12)) * expected)


@given(st.floats(0.05, 0.6), st.floats(0.05, 0.6), st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_a_ratio_with_errors_in_common_is_what_drawn_errors_say(
    one: float, other: float, seed: int
) -> None:
    """Errors are drawn as a common part, of 0.7 of the narrower one's variance, and parts of their own."""
    draw = np.random.default_rng(seed)
    common, *own = draw.standard_normal((3, 200_000)) / 1.6448536
    narrow = min(one, other)
    shared = math.sqrt(0.7) * narrow * common
    first = shared + math.sqrt(one**2 - 0.7 * narrow**2) * own[0]
    second = shared + math.sqrt(other**2 - 0.7 * narrow**2) * own[1]
    half = ratio_half_width(one, other, True)
    assert np.mean(np.abs(first - second) <= half) == pytest.approx(0.9, abs=0.005)
    assert ratio_half_width(one, other, False) == pytest.approx(math.hypot(one, other))
    assert math.isinf(ratio_half_width(one, math.inf, True))
