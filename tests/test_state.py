"""The state of a machine, from how much longer a few networks take; against a solver of its own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lolat.state import KINDS, LEAST, MOST, RIDGE, State, parts_of, state_of

times = st.floats(0.0, 50.0)
some = st.fixed_dictionaries(
    {"computing": times, "moving": times, "starting": st.floats(0.1, 50.0)}
)
networks = st.lists(st.tuples(some, st.floats(0.5, 3.0)), min_size=1, max_size=8)


def test_parts_by_hand() -> None:
    terms = {
        "flops": 3.0,
        "acts": 1.0,
        "traffic": 0.5,
        "weights": 0.25,
        "ops": 2.0,
        "patches": 0.125,
    }
    assert parts_of(terms, 0.1) == pytest.approx(
        {"computing": 3.0, "moving": 1.0 + 0.5 + 0.25 + 0.125, "starting": 2.1}
    )
    kinds = {"spatial_macs": 1.0, "dense_weights": 2.0, "conv_reads": 4.0, "conv_ops": 8.0}
    assert parts_of(kinds) == pytest.approx({"computing": 1.0, "moving": 6.0, "starting": 8.0})


def test_a_factor_is_that_of_each_part() -> None:
    state = State(computing=2.0, moving=1.0, starting=3.0)
    assert state.factor({"computing": 1.0, "moving": 1.0, "starting": 2.0}) == pytest.approx(9 / 4)
    assert state.factor(dict.fromkeys(KINDS, 0.0)) == 1.0, "of nothing"
    assert State().factor({"computing": 1.0, "moving": 5.0, "starting": 2.0}) == 1.0


@given(st.lists(some, min_size=1, max_size=8), st.floats(0.3, 5.0))
def test_what_is_slower_in_all_comes_out_as_it_is(
    parts: list[dict[str, float]], slow: float
) -> None:
    found = state_of(parts, [slow] * len(parts))
    assert [getattr(found, k) for k in KINDS] == pytest.approx([slow] * 3)


@given(networks)
def test_it_is_the_least_of_what_it_says(rows: list[tuple[dict[str, float], float]]) -> None:
    """Squares of what is left, and RIDGE for each network times how far the kinds are from the median."""
    parts, ratios = [p for p, _ in rows], np.array([r for _, r in rows])
    shares = np.array([[p[k] / sum(p.values()) for k in KINDS] for p in parts])
    level = float(np.median(ratios))

    def loss(factors: np.ndarray) -> float:
        apart = ((factors - level) ** 2).sum()
        return float(((shares @ factors - ratios) ** 2).sum() + RIDGE * len(rows) * apart)

    oracle = minimize(loss, np.full(3, level), method="BFGS", options={"gtol": 1e-9}).x
    found = state_of(parts, list(ratios))
    wanted = np.clip(oracle, LEAST, MOST)
    assert [getattr(found, k) for k in KINDS] == pytest.approx(wanted, abs=1e-4)


def test_no_networks_no_state() -> None:
    with pytest.raises(ValueError, match="at least one network"):
        state_of([], [])


def test_as_it_stands_in_a_file() -> None:
    assert State(1.23456, 1.0, 0.5).to_dict() == {
        "computing": 1.2346,
        "moving": 1.0,
        "starting": 0.5,
    }
