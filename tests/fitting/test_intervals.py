"""Conformal quantiles and the scale that they are of, against definitions, MAPIE and SciPy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lolat.errors import InputError
from lolat.fitting.intervals import (
    LARGEST,
    STEEPEST,
    UNLIKE,
    Evidence,
    Interval,
    Width,
    conformal_quantile,
    effective_ops,
    half_width,
    interval_entry,
    interval_width,
    machine,
    network_entry,
)
from lolat.fitting.least_squares import leave_out


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


class Known:
    """A fitted regressor, as scikit-learn's are, that answers with a function of the first column."""

    fitted_ = True  # what MAPIE looks for

    def __init__(self, function: Any) -> None:
        self.function = function

    def fit(self, x: Any, y: Any) -> Known:
        return self

    def predict(self, x: Any) -> np.ndarray:
        return np.array([self.function(row[0]) for row in np.asarray(x)])


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("exponent", [0.0, 0.3])
def test_widths_are_those_of_mapie(coverage: float, exponent: float) -> None:
    """Absolute scores where the scale is constant, residual-normalized ones where it is not."""
    regression = pytest.importorskip("mapie.regression")
    scores = pytest.importorskip("mapie.conformity_scores")
    random = np.random.default_rng(4)
    ops = random.integers(1, 90, 104).astype(float)
    residuals = random.standard_normal(104) * ops**-0.3
    scale = Interval(exponent, (3.0, 60.0))
    kind = (
        scores.ResidualNormalisedScore(Known(scale.scale), prefit=True)
        if exponent
        else scores.AbsoluteConformityScore()
    )
    oracle = regression.SplitConformalRegressor(
        Known(lambda n: 0.0), confidence_level=coverage, conformity_score=kind, prefit=True
    )
    oracle.conformalize(ops[:, None], residuals)
    asked = np.array([[1.0], [3.0], [12.0], [500.0]])
    _, found = oracle.predict_interval(asked)
    entry = {
        "interval": {
            "exponent": exponent,
            "ops": [3.0, 60.0],
            "scores": [float(abs(r) / scale.scale(n)) for r, n in zip(residuals, ops, strict=True)],
        }
    }
    width = interval_width(entry, coverage)
    wanted = found[:, 1, 0]
    assert [width.half(n) for n in asked[:, 0]] == pytest.approx(wanted)
    assert found[:, 0, 0] == pytest.approx(-wanted)


@given(
    st.floats(0.01, STEEPEST), st.floats(1, 1e3), st.floats(1, 1e3),
    st.lists(st.floats(0, 1e6), min_size=2, max_size=9),
)  # fmt: skip
def test_a_scale_never_rises_and_ends_where_was_measured(
    exponent: float, one: float, other: float, asked: list[float]
) -> None:
    low, high = sorted([one, other])
    scale = Interval(exponent, (low, high))
    found = [scale.scale(n) for n in sorted(asked)]
    assert found == sorted(found, reverse=True)
    assert min(found) >= scale.scale(high) > 0
    assert max(found) <= scale.scale(low)
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
    found = Interval.fit(residuals, ops)
    low, high = np.sort(ops)[[10, 94]]
    assert found.ops == (low, high)  # a tenth of 105 points beyond either end
    x = np.log(np.clip(ops, low, high))

    def loss(p: np.ndarray) -> float:
        return -float(stats.laplace.logpdf(residuals, scale=np.exp(p[0] - p[1] * x)).sum())

    best = minimize(loss, [-2.0, 0.2], method="Nelder-Mead", options={"xatol": 1e-4}).x[1]
    assert found.exponent == round(found.exponent, 2)
    assert found.exponent == pytest.approx(float(np.clip(best, 0.0, STEEPEST)), abs=0.0075)


@pytest.mark.parametrize(("exponent", "found"), [(-0.5, 0.0), (1.5, STEEPEST)])
def test_the_scale_neither_rises_nor_falls_too_fast(exponent: float, found: float) -> None:
    residuals, ops, names = uneven(105, 1, exponent, 0)
    assert Interval.fit(residuals, ops).exponent == found
    assert (interval_entry(residuals, ops, leave_out(names)) is None) == (found == 0.0)


def test_points_that_cannot_tell_have_no_scale() -> None:
    residuals, ops, names = uneven(29, 1, 0.4, 0)
    assert interval_entry(residuals, ops, leave_out(names)) is None
    residuals, ops, names = uneven(30, 1, 0.4, 0)
    assert interval_entry(residuals, ops, leave_out(names)) is not None
    residuals, ops, names = uneven(100, 1, 0.4, 0)
    for same in (0.0, 7.0):
        assert interval_entry(residuals, np.full(100, same), leave_out(names)) is None
    assert interval_entry(np.zeros(100), ops, leave_out(names)) is None


def test_no_point_has_a_say_in_what_it_is_measured_by() -> None:
    """A block ten times as far off: its scores are ten times as large, those of others are not."""
    residuals, ops, names = uneven(40, 2, 0.3, 3)
    before = interval_entry(residuals, ops, leave_out(names))
    mine = np.array(names) == "block 1"
    after = interval_entry(np.where(mine, 10 * residuals, residuals), ops, leave_out(names))
    assert before is not None
    assert after is not None
    old, new = np.array(before["scores"]), np.array(after["scores"])
    assert new[mine] == pytest.approx(10 * old[mine], abs=1e-5)
    assert after["exponent"] != before["exponent"]
    scale = msgspec.convert(before, Interval)
    direct = np.array([abs(r) / scale.scale(n) for r, n in zip(residuals, ops, strict=True)])
    assert old == pytest.approx(direct, rel=0.1)  # one block of forty says little
    assert (np.abs(old - direct) > 1e-5).any()


def coverages(normalized: bool) -> list[float]:
    """Shares of new points, small and large, inside 90 % intervals learned from 105 points."""
    random = np.random.default_rng(7)
    inside = np.zeros((120, 2))
    for i in range(len(inside)):
        residuals, ops, names = uneven(53, 2, 0.35, 100 + i)
        entry: dict[str, Any] = {"residuals": residuals.tolist()}
        if normalized and (found := interval_entry(residuals, ops, leave_out(names))):
            entry["interval"] = found
        width = interval_width(entry, 0.9)
        for size, (least, most) in enumerate([(2, 8), (40, 110)]):
            asked = random.uniform(least, most, 60)
            size_of_error = np.abs(0.2 * asked**-0.35 * random.standard_normal(60))
            half = np.array([width.half(n) for n in asked])
            inside[i, size] = (size_of_error <= half).mean()
    return list(inside.mean(axis=0))


def test_small_and_large_are_covered_alike() -> None:
    """What the scale is for: without it the small ones are missed and the large ones too wide.

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


def test_effective_operations_by_hand() -> None:
    def of(times: list[float], ops: list[int]) -> float:
        return effective_ops(np.array(times), np.array(ops))

    assert of([7.0], [12]) == pytest.approx(12)  # a block, as the points are
    assert of([1.0, 2.0, 3.0], [4, 8, 12]) == pytest.approx(24)  # all operations take as long
    assert of([3e-4, 1e-4], [1, 1]) == pytest.approx(1.6)  # whatever the unit
    assert of([3.0, 1.0], [1, 1]) == pytest.approx(1.6)  # 16 / (9 + 1)
    assert of([3e-290, 1e-290], [1, 1]) == pytest.approx(1.6)  # whose squares are no more
    assert of([5.0, 0.0], [2, 50]) == pytest.approx(2)
    assert of([5.0, 0.0], [2, 0]) == pytest.approx(2)  # a block of reshapes
    assert of([0.0, 0.0], [2, 3]) == 5
    assert of([], []) == 1


@given(st.lists(st.tuples(st.floats(1e-300, 1e3), st.integers(1, 500)), min_size=1, max_size=20))
def test_no_more_operations_average_out_than_there_are(parts: list[tuple[float, int]]) -> None:
    times, ops = (np.array(column, float) for column in zip(*parts, strict=True))
    assert 1.0 - 1e-9 <= effective_ops(times, ops) <= ops.sum() * (1 + 1e-9)


def test_errors_average_out_as_effective_operations_say() -> None:
    random = np.random.default_rng(0)
    times, ops = np.array([6.0, 3.0, 1.0]), np.array([3, 6, 1])
    each = np.repeat(times / ops, ops)
    totals = (each * (1 + 0.1 * random.standard_normal((20000, len(each))))).sum(axis=1) / 10
    assert totals.std() == pytest.approx(0.1 / math.sqrt(effective_ops(times, ops)), rel=0.03)


# ---- whole networks, and the machine's ups and downs -----------------------------------------------


def test_what_is_kept_of_networks_by_hand() -> None:
    """Ten of spread 0.1 or so, one ten times as far off: it counts as 2.5 times what is usual."""
    residuals = np.array([0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, -0.1, 0.1, 1.0])
    entry = network_entry(residuals, np.arange(10, 110, 10))
    largest = 2.5 * 1.4826 * 0.1
    assert entry == {
        "ops": pytest.approx(19.0),  # a tenth of the way from the smallest to the largest
        "spread": pytest.approx(math.sqrt((9 * 0.01 + largest**2) / 10), abs=1e-6),
        "count": 10,
    }


@pytest.mark.parametrize("seed", range(3))
def test_of_networks_whose_errors_are_normal_the_spread_is_theirs(seed: int) -> None:
    """But for the few beyond 2.5 times what is usual, which is 2.5 standard deviations."""
    residuals = np.random.default_rng(seed).normal(0.0, 0.08, 4000)
    wanted = 0.08 * math.sqrt(stats.norm.expect(lambda z: min(z * z, 2.5**2)))
    found = network_entry(residuals, np.ones(4000))["spread"]
    assert found == pytest.approx(wanted, rel=0.05)
    assert wanted == pytest.approx(0.08, rel=0.05)


def entry_with_networks(spread: float, count: int = 12, ops: float = 100.0) -> dict[str, Any]:
    return {"residuals": RESIDUALS, "networks": {"ops": ops, "spread": spread, "count": count}}


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_networks_have_the_normal_distributions_interval(coverage: float) -> None:
    width = interval_width(entry_with_networks(0.05), coverage)
    wanted = stats.norm.ppf((1 + coverage) / 2) * 0.05
    for ops in (100, 1000, 1e9):
        assert width.half(ops) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("spread", [0.02, 0.6])
def test_between_blocks_and_networks_it_goes_over(spread: float) -> None:
    blocks = UNLIKE * interval_width({"residuals": RESIDUALS}, 0.9).half(1)
    width = interval_width(entry_with_networks(spread), 0.9)
    found = [width.half(n) for n in (0, 1, 2, 5, 10, 40, 99, 100, 500)]
    assert found[0] == found[1] == pytest.approx(blocks)
    assert found[-1] == found[-2] == pytest.approx(width.networks[1])  # type: ignore[index]
    assert found == sorted(found, reverse=blocks > found[-1])
    # 10 is half of the way to 100: a sixteenth.
    assert width.half(10) == pytest.approx((15 * blocks + found[-1]) / 16)


@given(
    st.floats(0, 1), st.floats(0, 3), st.floats(0.01, 0.5), st.floats(0, 1e4),
    st.lists(st.floats(0, 1e6), min_size=2, max_size=9),
)  # fmt: skip
def test_whatever_the_file_it_lies_between_the_two(
    half: float, quantile: float, exponent: float, large: float, asked: list[float]
) -> None:
    scale = Interval(exponent, (3.0, 60.0))
    blocks, both = Width(quantile, scale), Width(quantile, scale, 0.0, (large, half))
    for ops in asked:
        ends = sorted([UNLIKE * blocks.half(ops), half])
        assert ends[0] - 1e-12 <= both.half(ops) <= ends[1] + 1e-12
    if half <= UNLIKE * blocks.half(
        1e9
    ):  # better known than any block: never wider for more operations
        found = [both.half(n) for n in sorted(asked)]
        assert all(b <= a + 1e-12 for a, b in itertools.pairwise(found))


def test_networks_are_not_known_better_than_can_be_measured_either() -> None:
    width = interval_width(entry_with_networks(0.001), 0.9, floor=0.02)
    assert width.half(1000) == pytest.approx(math.log(1.02))


@pytest.mark.parametrize(
    ("noise", "coverage", "expected"),
    [
        ({"repeatability": 0.1}, 0.9, 1.6449 * math.log(1.1)),
        ({"repeatability": 0.1}, 0.5, 0.6745 * math.log(1.1)),
        ({"repeatability": 0.0}, 0.9, 0.0),
        ({"quiet": 0.8, "busy": 1.3}, 0.9, 0.0),
    ],
)
def test_how_far_a_machine_moves(noise: dict[str, Any], coverage: float, expected: float) -> None:
    """The normal distribution's quantiles are those of tables."""
    assert machine({"noise": noise}, coverage) == pytest.approx(expected, rel=1e-4)


RESIDUALS = [i / 100 for i in range(-50, 50)]  # the 91st smallest of their sizes is 0.45


def test_a_file_without_a_scale_has_one_width_for_everything() -> None:
    width = interval_width({"residuals": RESIDUALS}, 0.9)
    assert width.half(1) == width.half(1000) == 0.45


def test_nothing_is_known_better_than_it_can_be_measured() -> None:
    entry = {"residuals": [r / 100 for r in RESIDUALS]}
    assert interval_width(entry, 0.9).half(5) == pytest.approx(0.0045)
    assert interval_width(entry, 0.9, floor=0.02).half(5) == pytest.approx(math.log(1.02))
    assert interval_width({"residuals": RESIDUALS}, 0.9, floor=0.02).half(5) == 0.45


@pytest.mark.parametrize(
    "interval",
    [
        Interval(1e30, (1e-30, 1e30), tuple(RESIDUALS)),
        Interval(0.5, (1e30, -5.0), (1e30,) * 100),
        Interval(0.5, (0, 0), (1e30,) * 100),
    ],
)
def test_a_strange_file_is_answered_with_numbers(interval: Interval) -> None:
    width = Evidence(interval=interval).width(0.9)
    for ops in (0.0, 1.0, 1e12):
        assert 0.0 <= width.half(ops) <= LARGEST


@pytest.mark.parametrize(
    "entry", [{}, {"residuals": []}, {"interval": {"exponent": 0.1, "ops": [1, 2], "scores": []}}]
)
def test_without_left_out_points_there_is_no_interval(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^coverage 0\.9: this model has no errors .*; learn it"):
        interval_width(entry, 0.9)
    half, (why,) = half_width(msgspec.convert(entry, Evidence), {}, None, np.ones(1), np.ones(1))
    assert half is None
    assert why.startswith("no interval: the model has no errors of left-out points; learn it again")


def test_the_interval_of_a_prediction() -> None:
    """At 90 % where nobody says otherwise, and never narrower than the noise."""
    wide, one = Evidence(residuals=tuple(RESIDUALS)), np.ones(1)
    narrow = Evidence(residuals=tuple(r / 100 for r in RESIDUALS))
    noisy = {"noise": {"floor": 0.02}}
    assert half_width(wide, noisy, None, one, one) == (0.45, ())
    assert half_width(wide, noisy, 0.5, one, one) == (0.25, ())
    assert half_width(narrow, noisy, 0.9, one, one) == (math.log1p(0.02), ())
    assert half_width(narrow, {}, 0.9, one, one)[0] == pytest.approx(0.0045)
    few = Evidence(residuals=(0.1,) * 8)
    half, (why,) = half_width(few, {}, None, one, one)
    assert half is None
    assert why.startswith("no interval: 8 points cannot give 90 % coverage")
    assert half_width(few, {}, 0.8, one, one) == (0.1, ())
    for coverage in (0.9, 1.0):
        with pytest.raises(InputError) as error:
            half_width(few, {}, coverage, one, one)
        assert error.value.code == "coverage-range"
    # Many operations that take as long are better known than one that takes all the time.
    scaled = Evidence(interval=Interval(0.5, (1, 100), (1.0,) * 20))
    ops = np.array([1, 99])
    halves = [half_width(scaled, {}, None, np.array(t), ops)[0] for t in ([1, 99], [1, 0])]
    assert halves == pytest.approx([math.sqrt(0.1), math.sqrt(10)])
