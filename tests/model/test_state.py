"""The state of a machine: found again from made-up networks; read from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from lolat.errors import InputError
from lolat.graph.counts import COLUMNS
from lolat.model.state import (
    KINDS,
    LEAST_FACTOR,
    MOST_FACTOR,
    RIDGE,
    State,
    parts_of,
    read_state,
    state_of,
)


def networks(count: int, seed: int = 0, alike: float = 0.0) -> list[dict[str, float]]:
    """Milliseconds of each kind; `alike`: from 0, networks of hardly more than one kind, to 1."""
    random = np.random.default_rng(seed)
    shares = (1 - alike) * random.dirichlet([0.15] * 3, count) + alike / 3
    totals = np.exp(random.uniform(-1, 5, count))
    return [dict(zip(KINDS, map(float, row), strict=True)) for row in shares * totals[:, None]]


def ratios_in(state: State, parts: list[dict[str, float]]) -> list[float]:
    """How much longer each takes, by hand."""
    return [
        (state.computing * p["computing"] + state.moving * p["moving"] + state.starting * p["starting"])
        / (p["computing"] + p["moving"] + p["starting"])
        for p in parts
    ]  # fmt: skip


def test_a_state_is_found_again() -> None:
    """Up to what the ridge holds back: of 1.5 against 0.9 not more than a fifth."""
    true = State(1.5, 1.2, 0.9)
    parts = networks(12)
    found = state_of(parts, ratios_in(true, parts))
    for kind in KINDS:
        assert getattr(found, kind) == pytest.approx(getattr(true, kind), abs=0.12)
    assert found.computing > found.moving > found.starting


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_minimum_that_scipy_finds(seed: int) -> None:
    parts = networks(7, seed, alike=0.3)
    random = np.random.default_rng(seed)
    ratios = ratios_in(State(1.3, 1.1, 1.6), parts) * np.exp(0.03 * random.standard_normal(7))
    shares = np.array([[p[k] / sum(p.values()) for k in KINDS] for p in parts])
    level = np.median(ratios)

    def loss(f: np.ndarray) -> float:
        held = RIDGE * 7 * ((f - level) ** 2).sum()
        return float(((shares @ f - ratios) ** 2).sum() + held)

    best = minimize(loss, [1.0] * 3, method="BFGS", options={"gtol": 1e-10}).x
    found = state_of(parts, list(ratios))
    assert [getattr(found, k) for k in KINDS] == pytest.approx(list(best), abs=1e-5)


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=9), st.floats(0.01, 100.0))
def test_networks_of_equal_parts_tell_one_factor(ratios: list[float], size: float) -> None:
    """Nothing tells the kinds apart: all are slower by as much, near what is usual among them."""
    found = state_of([dict.fromkeys(KINDS, size)] * len(ratios), ratios)
    assert found.computing == pytest.approx(found.moving) == pytest.approx(found.starting)
    assert min(ratios) - 1e-9 <= found.computing <= max(ratios) + 1e-9


def test_a_network_without_time_says_nothing() -> None:
    parts = [*networks(5), dict.fromkeys(KINDS, 0.0)]
    found = state_of(parts, [*[1.2] * 5, 50.0])
    assert [getattr(found, k) for k in KINDS] == pytest.approx([1.2] * 3)


def test_no_factor_is_nothing_or_without_bounds() -> None:
    parts = [{"computing": 1.0, "moving": 0.0, "starting": 0.0}] * 5
    found = state_of(parts, [1e6] * 5)
    assert found.computing == MOST_FACTOR
    assert state_of(parts, [1e-9] * 5).computing == LEAST_FACTOR


def test_without_networks_there_is_no_state() -> None:
    with pytest.raises(ValueError, match="needs at least one network"):
        state_of([], [])


def test_a_state_is_told_with_four_places() -> None:
    assert State(1.23456, 1.0, 1.0).to_dict() == {
        "computing": 1.2346,
        "moving": 1.0,
        "starting": 1.0,
    }


def test_what_terms_are_a_kind_of() -> None:
    """Multiplying and what is dearer than it; everything read or written; starting, and the call."""
    terms = {
        "flops": 1.0, "spatial_macs": 2.0, "gelus": 4.0,
        "traffic": 8.0, "weights": 16.0, "patches": 32.0, "clip_elements": 64.0,
        "ops": 128.0, "serial": 256.0, "conv_ops": 512.0,
    }  # fmt: skip
    assert parts_of(terms, 1024.0) == {"computing": 7.0, "moving": 120.0, "starting": 1920.0}
    assert parts_of({}) == {"computing": 0.0, "moving": 0.0, "starting": 0.0}
    for term in COLUMNS:  # every term is some kind
        assert sum(parts_of({term: 3.0}).values()) == 3.0


# ---- files ----------------------------------------------------------------------------------------

GOOD = {"computing": 1.2, "moving": 1, "starting": 0.9}


def written(folder: Path, document: Any) -> Path:
    path = folder / "state.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.mark.parametrize(
    "document", [GOOD, {"state": GOOD}, {"state": {**GOOD, "later": "x"}, "verdict": "ok"}]
)
def test_a_state_or_an_answer_with_one_is_read(tmp_path: Path, document: Any) -> None:
    assert read_state(written(tmp_path, document)) == State(1.2, 1.0, 0.9)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("hello", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([1, 2], "Expected `object`, got `array`"),
        ({"state": None}, "Expected `object`, got `null`"),
        ({}, "missing required field `computing`"),
        ({"computing": 1.0, "moving": 1.0}, "missing required field `starting`"),
        ({**GOOD, "moving": "1"}, "at `$.moving`"),
        ({**GOOD, "moving": True}, "at `$.moving`"),
        ({**GOOD, "starting": 0}, "Expected `float` >= 0.01 - at `$.starting`"),
        ({"state": {**GOOD, "computing": 1e3}}, "Expected `float` <= 100.0 - at `$.computing`"),
        ('{"computing": NaN, "moving": 1, "starting": 1}', "not JSON"),
    ],
)  # fmt: skip
def test_what_is_no_state_is_said(tmp_path: Path, document: Any, said: str) -> None:
    path = written(tmp_path, document)
    with pytest.raises(InputError) as refused:
        read_state(path)
    message = str(refused.value)
    assert message.startswith(f"--state {path}: ")
    assert said in message
    assert (
        'expected a file that `lolat doctor MODEL --json` has written, or {"computing"' in message
    )
    assert message.isprintable()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file; expected .*, or: now$"):
        read_state(tmp_path / "none.json")
