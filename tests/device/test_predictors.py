"""Properties of every formula on counts, and formulas in a profile."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.device.predictors import PREDICTORS
from lolat.device.predictors.additive import AdditiveCosts
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.two_regime import TwoRegime
from lolat.fitting.linear import fit_additive_costs
from lolat.graph.counts import COLUMNS, FEATURES
from lolat.tables.blocks import matrix, times
from tests import synthetic

THREE = ("acts", "inp", "flops")
rates = st.floats(0, 1e-5)
formulas = st.one_of(
    st.builds(
        lambda c, d: AdditiveCosts.linear(FEATURES, c, d),
        st.lists(rates, min_size=6, max_size=6),
        st.floats(0, 2),
    ),
    st.builds(
        lambda a, b, c, d, breakpoint, part: TwoRegime.linear(
            THREE, (a, b, c), d, breakpoint_ms=breakpoint,
            # any slope that a fit may give: above 0, and the lower line not negative at d
            slope=max(0.05, part * (breakpoint / (breakpoint - d) if breakpoint > d else 2)) * (1 - 1e-12),
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


@given(formulas, counts_of_rows, st.floats(0.3, 3.0))
def test_a_scaled_formula_takes_a_multiple_of_the_time_for_everything(
    formula: Formula, rows: list[list[int]], factor: float
) -> None:
    scaled = formula.scaled(factor)
    for counts in rows:
        counts = counts[: len(formula.features)]
        assert scaled.one(counts) == pytest.approx(
            factor * formula.one(counts), rel=1e-9, abs=1e-12
        )


@given(formulas, counts_of_rows)
def test_one_and_many_agree_and_the_ranking_never_turns_round(
    formula: Formula, rows: list[list[int]]
) -> None:
    x = np.array(rows, float)[:, : len(formula.features)]
    many = formula.rows(x)
    np.testing.assert_allclose(many, [formula.one(r) for r in x], rtol=1e-12)
    order = np.argsort(x @ np.array(formula.slopes) + formula.constant, kind="stable")
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


def test_formulas_survive_the_model_file() -> None:
    points = [
        replace(p, whole=i % 2 == 0) for i, p in enumerate(synthetic.measured(60, (1, 3), 0.05))
    ]
    whole = np.array([p.whole for p in points])
    by_kind = fit_additive_costs(
        matrix(points, COLUMNS), times(points), COLUMNS, whole, with_six=True
    )
    assert by_kind.families
    assert by_kind.six_counts is not None
    lines = TwoRegime.linear(THREE, (2e-6, 1e-6, 2e-8), 0.4, breakpoint_ms=5.0, slope=0.5)
    assert (lines.to_dict()["offset_ms"], lines.to_dict()["breakpoint_ms"]) == (2.5, 5.0)
    for formula in (by_kind, AdditiveCosts.linear(FEATURES, (1e-6,) * 6, 0.15), lines):
        document = json.loads(json.dumps(formula.to_dict(), sort_keys=True))
        assert msgspec.convert(document, PREDICTORS[formula.name]) == formula
