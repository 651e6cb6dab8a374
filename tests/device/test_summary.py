"""The families of a formula: against rates by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.device.predictors.additive import TERMS, AdditiveCosts
from lolat.device.summary import FAMILIES, PER, families_of
from lolat.fitting.linear import fit_additive_costs
from lolat.graph.counts import COLUMNS, MEANINGS, MEMBERS


def test_families_by_hand() -> None:
    names = ("exps", "pointwise_macs", "flat_macs", "conv_reads", "conv_ops", "groups")
    cost = (3e-6, 4e-9, 16e-9, 2e-7, 0.0123, 0.5)
    rates = {"flops": 8e-9, "weights": 0.0, "elements": 2e-7, "ops": 0.0123}
    found = families_of(AdditiveCosts.linear(names, cost, 0.25, families=rates))
    computing, moving, weights, operations = found.families
    assert [(k.name, k.of_family) for k in computing.kinds] == [
        ("flat_macs", pytest.approx(2.0)), ("pointwise_macs", pytest.approx(0.5)),
    ]  # fmt: skip
    assert str(computing.rate) == "8.00 ms a GMAC"
    assert str(computing.kinds[0]) == "16.0 ms a GMAC"
    assert str(moving.rate) == "0.200 ms a million elements"
    assert weights.kinds == ()
    assert str(operations.rate) == "12.3 us an operation"
    assert {(r.name, r.of_family, str(r)) for r in found.besides} == {
        ("exps", None, "3.00 ms a million elements"), ("groups", None, "0.500 ms a group"),
    }  # fmt: skip
    assert found.call_ms == 0.25


def test_a_device_has_every_term_once() -> None:
    random = np.random.default_rng(0)
    counts = random.integers(0, 10**6, (200, len(COLUMNS)))
    cost = random.uniform(1e-9, 1e-6, len(TERMS))
    times = counts[:, [COLUMNS.index(t) for t in TERMS]] @ cost
    formula = fit_additive_costs(counts, times, COLUMNS)
    found = families_of(formula)
    assert [f.rate.name for f in found.families] == list(FAMILIES)
    kinds = [kind for family in found.families for kind in family.kinds]
    assert sorted(k.name for k in (*kinds, *found.besides)) == sorted(TERMS)
    for family in found.families:
        names = [name for name in MEMBERS[family.rate.name] if name in TERMS]
        assert sorted(k.name for k in family.kinds) == sorted(names)
        known = formula.coefficients
        number = {n: counts[:, COLUMNS.index(n)].sum() for n in names}
        rate = sum(number[n] * known[n] for n in names) / sum(number.values())
        assert family.rate.ms == pytest.approx(rate * PER[MEANINGS[names[0]].unit][0])
        least, most = family.kinds[-1].of_family, family.kinds[0].of_family
        assert least is not None
        assert most is not None
        assert least <= 1.0 <= most
