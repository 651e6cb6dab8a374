"""The extended formula: found again from data made with it; linear in all counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lolat.device.predictors.additive import APART, TERMS
from lolat.fitting.linear import fit_additive_costs
from lolat.graph.counts import COLUMNS, FEATURES, MEMBERS
from lolat.tables.blocks import Point, matrix, times
from tests import synthetic

TRUE = tuple(synthetic.TRUE[f] for f in FEATURES)


def test_exact_data_gives_every_number_back() -> None:
    points = synthetic.measured(noise=0.0, columns=FEATURES)
    found = fit_additive_costs(matrix(points, FEATURES), times(points))
    assert found.features == FEATURES
    assert found.constant == pytest.approx(synthetic.CALL_MS, rel=1e-4)
    np.testing.assert_allclose(found.rows(matrix(points, found.features)), times(points), rtol=1e-4)
    assert [found.coefficients[f] for f in FEATURES] == pytest.approx(TRUE, rel=1e-4)


def test_where_one_kind_is_not_known_the_formula_is_that_of_six_counts() -> None:
    points = synthetic.measured(noise=0.0)
    known = [c for c in COLUMNS if c != "serial"]
    found = fit_additive_costs(matrix(points, known), times(points), known)
    assert found.features == FEATURES
    assert (
        fit_additive_costs(matrix(points, known), times(points), known, with_six=True).six_counts
        is None
    )


# Milliseconds a unit: kinds of one family differ by up to five times.
OF_KINDS = {
    name: rate * (1.0 + 0.5 * (i % 5 - 1))
    for family, rate in {"flops": 2e-8, "weights": 5e-7, "elements": 1e-6, "ops": 0.01}.items()
    for i, name in enumerate(n for n in MEMBERS[family] if n in TERMS)
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
    found = fit_additive_costs(matrix(points, COLUMNS), times(points), COLUMNS)
    assert found.features == TERMS == tuple(c for c in COLUMNS if c in TERMS)
    assert not set(FEATURES) & set(TERMS)
    named = found.coefficients
    off = {n: named[n] / rate - 1 for n, rate in OF_KINDS.items() if n not in MEMBERS["weights"]}
    assert np.median(np.abs(list(off.values()))) < 0.05
    assert max(map(abs, off.values())) < 0.4
    new = of_kinds(100, seed=9)
    error = np.abs(found.rows(matrix(new, TERMS)) / times(new) - 1)
    six = fit_additive_costs(matrix(points, FEATURES), times(points), FEATURES)
    without = np.abs(six.rows(matrix(new, FEATURES)) / times(new) - 1)
    assert np.median(error) < 0.01
    assert np.median(without) > 5 * np.median(error)


def test_what_no_point_has_is_not_known_to_cost_anything() -> None:
    """But a kind of a family is: it costs what the family does."""
    names = [n for n in APART if n in TERMS]
    points = of_kinds(60)
    counts = matrix(points, COLUMNS)
    counts[:, [COLUMNS.index(n) for n in (*names, "spatial_macs")]] = 0
    found = fit_additive_costs(counts, times(points), COLUMNS)
    cost = found.coefficients
    assert [cost[n] for n in names] == [0.0] * len(names)
    macs = [cost[n] for n in MEMBERS["flops"] if n in TERMS and n != "spatial_macs"]
    assert min(macs) < cost["spatial_macs"] < max(macs)


def test_with_six_counts_the_formula_fitted_on_them_answers() -> None:
    """Who has no more than six counts gets a fit of its own, not the longer one with zeros in it."""
    points = synthetic.measured(noise=0.02)
    found = fit_additive_costs(matrix(points, COLUMNS), times(points), COLUMNS, with_six=True)
    alone = fit_additive_costs(matrix(points, FEATURES), times(points), FEATURES)
    assert found.six_counts is not None
    assert found.six_counts.features == FEATURES
    np.testing.assert_allclose(found.six_counts.slopes, alone.slopes, rtol=1e-9)
    assert found.six_counts.constant == pytest.approx(alone.constant, rel=1e-9)
