"""From points to a profile: what is fitted, what is left out, what is said of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lolat.api.model import Model
from lolat.device.predictors.additive import TERMS
from lolat.device.schema import validate
from lolat.errors import InputError
from lolat.fitting.blocks import fit_document
from lolat.fitting.cross_validation import error_figures
from lolat.fitting.least_squares import fit_relative
from lolat.graph.counts import FEATURES, MEMBERS
from lolat.tables.blocks import Point, matrix, times
from tests import synthetic

THREE = ("acts", "inp", "flops")


def coefficients(document: dict, predictor: str) -> dict[str, float]:
    return document["predictors"][predictor]["coefficients"]


def test_errors_by_hand() -> None:
    measured = np.array([1.0, 1.0, 10.0, 10.0])
    predicted = np.array([1.05, 0.7, 10.9, 14.0])  # 5, 30, 9, 40 %
    assert error_figures(predicted, measured) == {
        "points": 4,
        "median": pytest.approx(0.195),
        "within_10_percent": pytest.approx(0.5),
        "median_from_2_ms": pytest.approx(0.245),
        "median_below_2_ms": pytest.approx(0.175),
    }
    assert error_figures(predicted[:2], measured[:2])["median_from_2_ms"] is None
    assert error_figures(predicted[2:], measured[2:])["median_below_2_ms"] is None


def test_all_counts_give_both_predictors() -> None:
    document = synthetic.document()
    validate(document, "made up")
    assert set(document["predictors"]) == {"two-regime", "extended"}
    assert document["default"] == "extended"
    assert document["warnings"] == []
    found = coefficients(document, "extended")
    assert set(found) == {*TERMS, "call"}
    for feature in ("flops", "weights", "ops"):  # whatever kind, they cost the same
        for kind in set(MEMBERS[feature]) & set(TERMS):
            assert found[kind] == pytest.approx(synthetic.TRUE[feature], rel=0.3), kind
    six = document["predictors"]["extended"]["six_counts"]["coefficients"]
    for feature in FEATURES:
        assert six[feature] == pytest.approx(synthetic.TRUE[feature], rel=0.3)


def test_the_formula_of_six_counts_has_the_errors_of_its_own_held_out_blocks() -> None:
    """Of a block, by weighted least squares on the relative errors of all others, written out."""
    points = synthetic.measured(noise=0.3)
    entry = synthetic.document(points)["predictors"]["extended"]
    rest = [p for p in points if p.name != "block 7"]
    own = [i for i, p in enumerate(points) if p.name == "block 7"]
    design = [np.column_stack([matrix(x, FEATURES), np.ones(len(x))]) for x in (rest, points)]
    costs = fit_relative(design[0], times(rest))
    expected = np.log(times(points) / (design[1] @ costs))[own]
    found = np.array(entry["six_counts"]["residuals"])
    np.testing.assert_allclose(found[own], expected, atol=1e-5)
    assert len(found) == len(points)
    assert not np.allclose(entry["residuals"], found, atol=1e-3)


@pytest.mark.parametrize("known", [THREE, (*THREE, "traffic"), (*THREE, "traffic", "ops")])
def test_some_of_the_six_counts_give_the_two_regime_formula_alone(known: tuple[str, ...]) -> None:
    document = synthetic.document(synthetic.measured(columns=known))
    validate(document, "made up")
    assert (set(document["predictors"]), document["default"]) == ({"two-regime"}, "two-regime")
    assert document["domain"] == {}
    assert document["points"][0]["weights"] is None


@pytest.mark.parametrize(
    ("law", "default"), [("two-regime", "two-regime"), ("extended", "extended")]
)
def test_the_default_is_the_better_on_what_was_left_out(law: str, default: str) -> None:
    """A phone's two lines, cheap up to 2 ms and ten times as steep above, or one line of six counts."""
    random, points = np.random.default_rng(0), synthetic.measured(columns=FEATURES)
    made = []
    for p in points:
        acts, inp, flops, traffic, weights, ops = (p.counts[name] for name in FEATURES)
        ms = 1e-6 * acts + 5e-7 * inp + 2e-8 * flops + 0.2
        if law == "extended":
            ms += 2e-6 * traffic + 1e-6 * weights + 0.1 * ops
        elif ms < 2.0:
            ms = 2.0 - 0.1 * (2.0 - ms)
        made.append(replace(p, samples_ms=None, latency_ms=ms * random.normal(1.0, 0.02)))
    document = fit_document(made)
    assert document["default"] == default
    left_out = {n: e["error"]["left_out"]["median"] for n, e in document["predictors"].items()}
    assert min(left_out, key=lambda n: left_out[n]) == default


def test_residuals_are_those_of_blocks_left_out() -> None:
    """Done again by hand for one block: fitted on all others, its own points predicted."""
    points = synthetic.measured(noise=0.2, columns=FEATURES)
    entry = fit_document(points)["predictors"]["extended"]
    rest = [p for p in points if p.name != "block 7"]
    x, y = (np.column_stack([matrix(p, FEATURES), np.ones(len(p))]) for p in (rest, points))
    fitted = fit_relative(x, times(rest))
    for i, point in enumerate(points):
        if point.name == "block 7":
            wanted = np.log(point.latency_ms / (y[i] @ fitted))
            assert entry["residuals"][i] == pytest.approx(wanted, abs=1e-5)
    left_out = np.abs(np.exp(-np.array(entry["residuals"])) - 1)
    assert entry["error"]["left_out"]["median"] == pytest.approx(np.median(left_out), abs=1e-5)
    assert entry["error"]["left_out"]["median"] > entry["error"]["fitted"]["median"]


def with_networks(networks: int, noise: float = 0.05) -> list[Point]:
    """Blocks, and whole networks, each a family of its own."""
    return synthetic.measured(30, (1, 2), noise=noise) + [
        replace(p, name=chr(ord("a") + i), whole=True)
        for i, p in enumerate(synthetic.measured(networks, (1,), noise=noise, seed=77))
    ]


def test_networks_left_out_have_errors_of_their_own() -> None:
    points = with_networks(12)
    document = synthetic.document(points)
    validate(document, "made up")
    entry = document["predictors"]["extended"]
    residuals = np.array(entry["residuals"])[[p.whole for p in points]]
    found = entry["error"]["networks_left_out"]
    measured = np.array([p.latency_ms for p in points if p.whole])
    assert found == pytest.approx(error_figures(measured / np.exp(residuals), measured), rel=1e-4)
    assert found["points"] == 12
    # Residuals of 12 networks of 5 % noise; their spread is that of the noise, if a little more.
    assert entry["networks"]["count"] == 12
    assert 0.03 < entry["networks"]["spread"] < 0.12
    ops = sorted(p.counts["ops"] for p in points if p.whole)
    assert ops[0] <= entry["networks"]["ops"] <= ops[2]


def test_a_network_is_left_out_with_all_its_batch_sizes() -> None:
    """One network that is five times as slow at each of two batch sizes stands alone with that."""
    points = with_networks(12)
    odd = [replace(p, name="odd", latency_ms=5 * p.latency_ms) for p in points[-2:]]
    points = points[:-2] + odd
    residuals = fit_document(points)["predictors"]["extended"]["residuals"]
    assert residuals[-2:] == pytest.approx([np.log(5)] * 2, abs=0.3)


def test_a_network_of_a_kind_that_no_other_has_widens_no_other_interval() -> None:
    """Left out, it is outside the measured range. One of measured kinds that is as far off counts."""
    points = with_networks(12)
    slow = replace(points[-1], name="odd", latency_ms=5 * points[-1].latency_ms)
    alone = replace(slow, kinds=(*slow.kinds, "lstm"))
    spread, known, unknown = (
        fit_document(of)["predictors"]["extended"]["networks"]["spread"]
        for of in (points, [*points, slow], [*points, alone])
    )
    assert unknown == pytest.approx(spread, rel=0.5)
    assert known > 3 * unknown


def uneven() -> list[Point]:
    """Points of few operations off by far, those of many by little, as measured ones are."""
    random = np.random.default_rng(11)
    points = synthetic.measured(noise=0.0, columns=FEATURES)
    return [
        replace(p, latency_ms=p.latency_ms * float(np.exp(0.4 * random.standard_normal() / n)))
        for p, n in ((p, p.counts["ops"]) for p in points)
    ]


def test_where_few_operations_are_off_by_more_the_interval_says_so() -> None:
    points = uneven()
    document = synthetic.document(points)
    validate(document, "made up")
    entry = document["predictors"]["extended"]
    found = entry["interval"]
    ops = np.array([p.counts["ops"] for p in points])
    # A score is |residual| / scale; one that many blocks agree on hardly depends on who is left out.
    middle = np.sqrt(found["ops"][0] * found["ops"][1])
    scale = (np.clip(ops, *found["ops"]) / middle) ** -found["exponent"]
    assert found["scores"] == pytest.approx(np.abs(entry["residuals"]) / scale, rel=0.2, abs=1e-5)
    assert 0.3 < found["exponent"] <= 0.5


@pytest.mark.parametrize("count", [0, 1, 4])
def test_too_few_points(count: int) -> None:
    with pytest.raises(
        InputError, match=rf"{count} points? (is|are) too few to fit 4 coefficients"
    ):
        fit_document(synthetic.measured(max(count, 1), (1,))[:count])


@pytest.mark.parametrize("blocks", [1, 2])
def test_points_of_hardly_any_block_have_no_interval(blocks: int) -> None:
    """Without the one block there is nothing to fit on."""
    points = synthetic.measured(blocks, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)[: 10 if blocks == 1 else 2])
    points += synthetic.measured(blocks, (16,), seed=5)
    document = synthetic.document(points)
    validate(document, "made up")
    for entry in document["predictors"].values():
        assert "residuals" not in entry
        assert "left_out" not in entry["error"]
    found = Model(document).predict(synthetic.network())
    assert found.interval_ms is None
