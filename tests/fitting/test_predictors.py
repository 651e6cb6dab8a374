"""What holds of every formula on counts, and each found again from data made with it."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import ModelFileError
from lolat.fitting import Formula
from lolat.fitting.points import Point, matrix, times
from lolat.fitting.predictors import PREDICTORS, from_dict
from lolat.fitting.predictors.extended import ALONE, TERMS, Extended
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph.counts import COLUMNS, FEATURES, KINDS, PLAIN
from lolat.model.learning import answers
from tests import synthetic

THREE = ("acts", "inp", "flops")
rates = st.floats(0, 1e-5)
formulas = st.one_of(
    st.builds(
        lambda c, d: Extended(FEATURES, tuple(c), d),
        st.lists(rates, min_size=6, max_size=6),
        st.floats(0, 2),
    ),
    st.builds(
        lambda a, b, c, d, breakpoint, part: TwoRegime(
            THREE, (a, b, c), d, breakpoint,
            # any slope that a fit may give: above 0, and the lower line is not negative at d
            max(0.05, part * (breakpoint / (breakpoint - d) if breakpoint > d else 2.0)) * (1 - 1e-12),
        ),
        rates, rates, rates, st.floats(0, 2), st.floats(0, 50), st.floats(0.01, 1),
    ),
)  # fmt: skip
counts_of_rows = st.lists(
    st.lists(st.integers(0, 10**11), min_size=6, max_size=6), min_size=1, max_size=20
)


@given(formulas, counts_of_rows, st.integers(0, 2), st.integers(0, 10**10))
def test_more_of_any_count_never_takes_less_time(
    formula: Formula, rows: list[list[int]], which: int, more: int
) -> None:
    for counts in rows:
        counts = counts[: len(formula.features)]
        larger = [*counts]
        larger[which] += more
        assert 0.0 <= formula.one(counts) <= formula.one(larger)


@given(formulas, counts_of_rows)
def test_one_and_many_agree_and_the_ranking_never_turns_round(
    formula: Formula, rows: list[list[int]]
) -> None:
    x = np.array(rows, float)[:, : len(formula.features)]
    many = answers(formula, x)
    np.testing.assert_allclose(many, [formula.one(r) for r in x], rtol=1e-12)
    order = np.argsort(x @ np.array(formula.coefficients) + formula.constant, kind="stable")
    assert (np.diff(many[order]) >= -1e-12 * np.abs(many[order][1:])).all()


@given(formulas, counts_of_rows)
def test_the_parts_add_up_to_the_whole(formula: Formula, rows: list[list[int]]) -> None:
    parts = np.array(rows, float)[:, : len(formula.features)]
    terms, call = formula.shares(parts)
    whole = formula.one(parts.sum(axis=0))
    # Below 1e-280 ms the shares of a time are drawn from next to nothing.
    assert terms.sum() + call == pytest.approx(whole, rel=1e-9, abs=1e-280)
    assert terms.min() >= 0
    assert call >= 0


@pytest.mark.parametrize("tiny", [5e-324, 1e-310, 1e-250])
def test_parts_that_are_next_to_nothing(tiny: float) -> None:
    """A latency divided by them would be infinite."""
    formula = TwoRegime(THREE, (tiny, 0.0, 0.0), 0.0, 1.0, 0.5)
    terms, call = formula.shares(np.array([[1.0, 1.0, 1.0]]))
    assert terms.sum() + call == pytest.approx(formula.one([1, 1, 1]))


def test_formulas_survive_the_model_file() -> None:
    points = [
        replace(p, whole=i % 2 == 0) for i, p in enumerate(synthetic.measured(60, (1, 3), 0.05))
    ]
    whole = np.array([p.whole for p in points])
    by_kind = Extended.fit_with_six(matrix(points, COLUMNS), times(points), COLUMNS, whole)
    assert by_kind.alone
    assert by_kind.six is not None
    lines = TwoRegime(THREE, (2e-6, 1e-6, 2e-8), 0.4, 5.0, 0.5)
    assert (lines.to_dict()["offset_ms"], lines.to_dict()["breakpoint_ms"]) == (2.5, 5.0)
    for formula in (by_kind, Extended(FEATURES, (1e-6,) * 6, 0.15), lines):
        document = json.loads(json.dumps(formula.to_dict(), sort_keys=True))
        assert from_dict(formula.name, document) == formula


def test_formulas_of_a_newer_lolat() -> None:
    assert {p.name for p in PREDICTORS.values()} == set(PREDICTORS)
    assert from_dict("quantum", {"coefficients": {}}) is None
    with pytest.raises(ModelFileError, match=r"count 'magic'.*get a newer LoLat"):
        from_dict("extended", {"coefficients": {"acts": 1.0, "magic": 2.0}})


# ---- The published formula: found again from data made with it, continuous, rising, never negative


A, B, C, D = 2e-6, 1e-6, 2e-8, 0.4


def features(blocks: int = 105, seed: int = 0) -> np.ndarray:
    made = synthetic.counts(blocks, seed)
    return np.column_stack([made[c] for c in THREE])


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
    found = TwoRegime.fit(x, y)
    np.testing.assert_allclose(found.coefficients, (A, B, C), rtol=1e-3)
    assert found.constant == pytest.approx(D, rel=2e-3)
    if breakpoint:
        assert found.breakpoint == pytest.approx(breakpoint, rel=0.02)
        assert found.slope == pytest.approx(slope, rel=0.02)
    np.testing.assert_allclose(answers(found, x), y, rtol=0.01)


def test_noisy_data_gives_them_back_nearly() -> None:
    x = features(300, seed=2)
    truth = lower(linear(x), 8.0, 0.6, 8.0 * 0.4)
    y = truth * np.exp(0.03 * np.random.default_rng(2).standard_normal(len(x)))
    found = TwoRegime.fit(x, y)
    assert np.median(np.abs(answers(found, x) / truth - 1)) < 0.02
    assert found.breakpoint == pytest.approx(8.0, rel=0.3)
    assert found.slope == pytest.approx(0.6, rel=0.2)


def test_a_jump_at_the_breakpoint_is_not_copied() -> None:
    """The published tool's fit jumps from 88 to 176 ms; ours of such data does not jump."""
    x = features(200, seed=3)
    base = linear(x)
    y = np.where(base >= 2.0, base, 0.5 * base)
    found = TwoRegime.fit(x, y)
    assert_sound(found)
    error = np.abs(answers(found, x) / y - 1)
    assert np.median(error) < 0.25
    assert np.median(error[base >= 2.0]) < 0.15  # whole networks are above


def assert_sound(formula: TwoRegime) -> None:
    """Continuous at the breakpoint, rising, never negative: by the formula's own words."""
    b = formula.breakpoint
    assert min(formula.coefficients) >= 0
    assert formula.constant >= 0
    assert formula.slope > 0
    assert formula.slope * b + formula.offset == pytest.approx(b, rel=1e-12, abs=1e-15)
    assert formula.slope * formula.constant + formula.offset >= -1e-12 * b
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
    formula = TwoRegime.fit(x, y)
    assert_sound(formula)
    everywhere = np.sort(np.concatenate([np.geomspace(1e-6, 1e3, 300), [formula.breakpoint]]))
    bent = formula.bend(everywhere.copy())
    assert (np.diff(bent) >= 0).all()
    linear_sums = everywhere[everywhere >= formula.constant]
    assert (formula.bend(linear_sums.copy()) >= 0).all()


def test_two_lines_by_hand() -> None:
    formula = TwoRegime(THREE, (0.001, 0.002, 0.01), 1.0, 5.0, 0.5)
    assert formula.offset == 2.5
    assert formula.one([1000, 2000, 300]) == pytest.approx(1 + 4 + 3 + 1)
    assert formula.one([1000, 0, 0]) == pytest.approx(0.5 * 2 + 2.5)
    assert formula.one([0, 0, 0]) == pytest.approx(3.0)
    terms, call = formula.shares(np.array([[1000.0, 0, 0], [0, 0, 100]]))  # t = 3 -> 4 ms
    np.testing.assert_allclose(terms, np.array([[1.0, 0, 0], [0, 0, 1.0]]) * 4 / 3)
    assert call == pytest.approx(4 / 3)


# ---- The extended formula: found again from data made with it; linear in all counts


TRUE = tuple(synthetic.TRUE[f] for f in FEATURES)


@pytest.mark.parametrize("columns", [FEATURES, PLAIN])
def test_exact_data_gives_every_count_back(columns: tuple[str, ...]) -> None:
    """Of the six, and of what else was told apart in a model file of before."""
    points = synthetic.measured(noise=0.0, columns=columns)
    found = Extended.fit(matrix(points, columns), times(points), columns)
    assert found.features == columns
    assert found.constant == pytest.approx(synthetic.CALL_MS, rel=1e-4)
    np.testing.assert_allclose(
        answers(found, matrix(points, found.features)), times(points), rtol=1e-4
    )
    named = dict(zip(found.features, found.coefficients, strict=True))
    assert [named[f] for f in FEATURES] == pytest.approx(TRUE, rel=1e-4)


def test_where_one_kind_is_not_known_the_formula_is_that_of_before() -> None:
    points = synthetic.measured(noise=0.0)
    known = [c for c in COLUMNS if c != "gelus"]
    found = Extended.fit(matrix(points, known), times(points), known)
    assert found.features == PLAIN
    assert found.alone == {}


# Milliseconds a unit: kinds of one family differ by up to five times.
OF_KINDS = {
    name: rate * (1.0 + 0.5 * (i % 5 - 1))
    for family, rate in {"flops": 2e-8, "weights": 5e-7, "elements": 1e-6, "ops": 0.01}.items()
    for i, name in enumerate(KINDS[family])
}


def of_kinds(blocks: int, noise: float = 0.0, seed: int = 0) -> list[Point]:
    """Points that follow OF_KINDS."""
    random = np.random.default_rng(seed + 50)
    return [
        replace(p, latency_ms=time * float(np.exp(noise * random.standard_normal())))
        for p in synthetic.measured(blocks, (1, 3), seed=seed)
        for time in [0.15 + sum(rate * p.counts[n] for n, rate in OF_KINDS.items())]
    ]


def test_kinds_are_told_apart() -> None:
    """Of new blocks each made of a single kind, the time; a formula of the six cannot know it."""
    points = of_kinds(300)
    found = Extended.fit(matrix(points, COLUMNS), times(points), COLUMNS)
    assert found.features == TERMS == tuple(c for c in COLUMNS if c in TERMS)
    assert not set(FEATURES) & set(TERMS)
    named = dict(zip(found.features, found.coefficients, strict=True))
    off = {n: named[n] / rate - 1 for n, rate in OF_KINDS.items() if n not in KINDS["weights"]}
    assert np.median(np.abs(list(off.values()))) < 0.05
    assert max(map(abs, off.values())) < 0.4
    new = of_kinds(100, seed=9)
    error = np.abs(answers(found, matrix(new, TERMS)) / times(new) - 1)
    six = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    without = np.abs(answers(six, matrix(new, FEATURES)) / times(new) - 1)
    assert np.median(error) < 0.01
    assert np.median(without) > 5 * np.median(error)


def test_blocks_that_pay_for_being_alone() -> None:
    """Half of the points are networks, the blocks take a call, their weights and operations longer."""
    points = [
        replace(
            p,
            whole=i % 2 == 0,
            latency_ms=p.latency_ms
            + (i % 2) * (0.4 + 3e-7 * p.counts["weights"] + 0.02 * p.counts["ops"]),
        )
        for i, p in enumerate(of_kinds(200, noise=0.01))
    ]
    whole = np.array([p.whole for p in points])
    found = Extended.fit(matrix(points, COLUMNS), times(points), COLUMNS, whole)
    assert tuple(found.alone) == ALONE
    # Drawn to nothing, as a column that stands alone is: a fifth less than it was.
    assert found.alone["border"] == 0.0
    assert found.alone["call"] == pytest.approx(0.4, rel=0.3)
    assert 0.01 < found.alone["ops"] < 0.022
    blocks = [p for p in points if not p.whole]
    wanted = np.array([0.4 + 3e-7 * p.counts["weights"] + 0.02 * p.counts["ops"] for p in blocks])
    alone = np.array([found.alone_ms(p.counts) for p in blocks])
    assert 0.7 < np.median(alone / wanted) < 1.05
    # Inside a network they do not take it.
    free = np.array([0.15 + sum(r * p.counts[n] for n, r in OF_KINDS.items()) for p in blocks])
    assert np.median(np.abs(answers(found, matrix(blocks, TERMS)) / free - 1)) < 0.03


def test_what_a_block_pays_by_hand() -> None:
    formula = Extended(("ops",), (1.0,), 0.5, None, {"call": 2.0, "weights": 0.25, "ops": 0.5})
    assert formula.alone_ms({"ops": 6, "weights": 8, "border": 10}) == 2.0 + 2.0 + 3.0
    assert Extended(("ops",), (1.0,), 0.5).alone_ms({}) == 0.0


@pytest.mark.parametrize("networks", [False, True])
def test_without_both_blocks_and_networks_nobody_can_tell(networks: bool) -> None:
    points = of_kinds(40)
    whole = np.full(len(points), networks)
    found = Extended.fit(matrix(points, COLUMNS), times(points), COLUMNS, whole)
    assert found.alone == {}
    assert "alone" not in found.to_dict()


def test_all_six_by_hand() -> None:
    formula = Extended(FEATURES, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 7.0)
    assert formula.one([1, 10, 100, 1000, 10_000, 100_000]) == 654_321 + 7


def test_with_six_counts_the_formula_fitted_on_them_answers() -> None:
    """Who has no more than six counts gets a fit of its own, not the longer one with zeros in it."""
    points = synthetic.measured(noise=0.02)
    found = Extended.fit_with_six(matrix(points, COLUMNS), times(points), COLUMNS)
    alone = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    assert found.six.features == FEATURES
    np.testing.assert_allclose(found.six.coefficients, alone.coefficients, rtol=1e-9)
    assert found.six.constant == pytest.approx(alone.constant, rel=1e-9)
    assert Extended.fit_with_six(matrix(points, FEATURES), times(points), FEATURES).six is None
