"""The extended formula: found again from data made with it; linear in all counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.counts import COLUMNS, FEATURES
from lolat.errors import ModelFileError
from lolat.learning import answers
from lolat.points import matrix, times
from lolat.predictors import PREDICTORS, from_dict
from lolat.predictors.extended import Extended
from tests import synthetic

TRUE = tuple(synthetic.TRUE[f] for f in FEATURES)


def test_exact_data_gives_every_number_back() -> None:
    points = synthetic.measured(noise=0.0)
    found = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    named = dict(zip(found.features, found.coefficients, strict=True))
    for feature, true in zip(FEATURES, TRUE, strict=True):
        assert named[feature] == pytest.approx(true, rel=1e-4)
    assert found.constant == pytest.approx(synthetic.CALL_MS, rel=1e-4)


def test_all_columns_are_fitted_where_points_have_them() -> None:
    points = synthetic.measured(noise=0.0)
    found = Extended.fit(matrix(points, COLUMNS), times(points), COLUMNS)
    assert set(FEATURES) <= set(found.features)
    np.testing.assert_allclose(
        answers(found, matrix(points, found.features)), times(points), rtol=1e-4
    )


def test_points_that_are_off_do_not_decide() -> None:
    points = synthetic.measured(noise=0.02, seed=4)
    x, y = matrix(points, FEATURES), times(points).copy()
    truth = x @ np.array(TRUE) + synthetic.CALL_MS
    random = np.random.default_rng(4)
    bad = random.choice(len(y), 10, replace=False)
    y[bad] *= random.choice([0.1, 10.0], 10)
    good = np.setdiff1d(np.arange(len(y)), bad)
    error = np.abs(answers(Extended.fit(x, y, FEATURES), x)[good] / truth[good] - 1)
    assert np.median(error) < 0.03


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(8, 60), st.floats(0.01, 2.0))
def test_whatever_the_points_nothing_is_negative(seed: int, blocks: int, noise: float) -> None:
    points = synthetic.measured(blocks, (1,), noise, seed)
    found = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    assert min(found.coefficients) >= 0
    assert found.constant >= 0


formulas = st.builds(
    lambda c, d: Extended(FEATURES, tuple(c), d),
    st.lists(st.floats(0, 1e-5), min_size=6, max_size=6),
    st.floats(0, 2),
)
rows = st.lists(st.integers(0, 10**11), min_size=6, max_size=6)


@given(formulas, rows, st.integers(0, 5), st.integers(0, 10**10))
def test_more_of_any_count_never_takes_less_time(
    formula: Extended, counts: list[int], which: int, more: int
) -> None:
    larger = list(counts)
    larger[which] += more
    assert 0.0 <= formula.one(counts) <= formula.one(larger)


@given(formulas, st.lists(rows, min_size=1, max_size=8))
def test_the_parts_add_up_to_the_whole(formula: Extended, parts: list[list[int]]) -> None:
    x = np.array(parts, float)
    terms, call = formula.shares(x)
    expected = float(np.dot(x.sum(axis=0), formula.coefficients)) + formula.constant
    assert terms.sum() + call == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert terms.min() >= 0
    assert call == formula.constant


def test_by_hand() -> None:
    formula = Extended(FEATURES, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), 7.0)
    assert formula.one([1, 10, 100, 1000, 10_000, 100_000]) == 654_321 + 7


def test_it_survives_the_model_file() -> None:
    formula = Extended(FEATURES, TRUE, 0.15)
    document = json.loads(json.dumps(formula.to_dict(), sort_keys=True))
    again = from_dict("extended", document)
    assert again is not None
    assert dict(zip(again.features, again.coefficients, strict=True)) == dict(
        zip(FEATURES, TRUE, strict=True)
    )
    assert again.constant == 0.15


def test_a_formula_of_a_newer_lolat_says_so() -> None:
    assert from_dict("quantum", {"coefficients": {}}) is None
    with pytest.raises(ModelFileError, match=r"count 'magic'.*pip install --upgrade lolat"):
        from_dict("extended", {"coefficients": {"acts": 1.0, "magic": 2.0}})


def test_every_predictor_has_the_name_it_is_found_by() -> None:
    assert {p.name for p in PREDICTORS.values()} == set(PREDICTORS)


def test_with_six_counts_the_formula_fitted_on_them_answers() -> None:
    """Who has no more than six counts gets a fit of its own, not the longer one with zeros in it."""
    points = synthetic.measured(noise=0.02)
    found = Extended.fit_with_six(matrix(points, COLUMNS), times(points), COLUMNS)
    alone = Extended.fit(matrix(points, FEATURES), times(points), FEATURES)
    assert found.six is not None
    assert found.six.features == FEATURES
    np.testing.assert_allclose(found.six.coefficients, alone.coefficients, rtol=1e-9)
    assert found.six.constant == pytest.approx(alone.constant, rel=1e-9)
    assert from_dict("extended", json.loads(json.dumps(found.to_dict()))) == found
    assert Extended.fit_with_six(matrix(points, FEATURES), times(points), FEATURES).six is None
