"""The extended formula: found again from data made with it; linear in all counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.fitting.points import Point, matrix, times
from lolat.fitting.predictors.extended import ALONE, TERMS, Extended
from lolat.graph.counts import COLUMNS, FEATURES, KINDS
from lolat.model.learning import answers
from tests import synthetic

TRUE = tuple(synthetic.TRUE[f] for f in FEATURES)


def test_exact_data_gives_every_number_back() -> None:
    points = synthetic.measured(noise=0.0, columns=FEATURES)
    found = Extended.fit(matrix(points, FEATURES), times(points))
    assert found.features == FEATURES
    assert found.constant == pytest.approx(synthetic.CALL_MS, rel=1e-4)
    np.testing.assert_allclose(
        answers(found, matrix(points, found.features)), times(points), rtol=1e-4
    )
    named = dict(zip(found.features, found.coefficients, strict=True))
    assert [named[f] for f in FEATURES] == pytest.approx(TRUE, rel=1e-4)


def test_where_one_kind_is_not_known_the_formula_is_that_of_six_counts() -> None:
    points = synthetic.measured(noise=0.0)
    known = [c for c in COLUMNS if c != "gelus"]
    found = Extended.fit(matrix(points, known), times(points), known)
    assert found.features == FEATURES
    assert found.alone == {}
    assert Extended.fit_with_six(matrix(points, known), times(points), known).six is None


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


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(8, 60), st.floats(0.01, 2.0))
def test_whatever_the_points_nothing_is_negative(seed: int, blocks: int, noise: float) -> None:
    points = synthetic.measured(blocks, (1,), noise, seed)
    found = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    assert min(found.coefficients) >= 0
    assert found.constant >= 0


def test_by_hand() -> None:
    formula = Extended(FEATURES, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 7.0)
    assert formula.one([1, 10, 100, 1000, 10_000, 100_000]) == 654_321 + 7


def test_with_six_counts_the_formula_fitted_on_them_answers() -> None:
    """Who has no more than six counts gets a fit of its own, not the longer one with zeros in it."""
    points = synthetic.measured(noise=0.02)
    found = Extended.fit_with_six(matrix(points, COLUMNS), times(points), COLUMNS)
    alone = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    assert found.six is not None
    assert found.six.features == FEATURES
    np.testing.assert_allclose(found.six.coefficients, alone.coefficients, rtol=1e-9)
    assert found.six.constant == pytest.approx(alone.constant, rel=1e-9)
    assert Extended.fit_with_six(matrix(points, FEATURES), times(points), FEATURES).six is None
