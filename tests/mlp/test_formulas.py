"""Formulas of layers in benchmarks/justus: LoLat's for each GPU and optimizer, and a linear regression."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.justus.formula_fit import LayerFormulas
from benchmarks.justus.linear import features, fit_linear
from lolat.errors import InputError
from lolat.graph.counts import FEATURES, count
from lolat.mlp.table import LAYERS, TIME, LayerTable, layer_counts, layer_name
from tests.mlp.tables import layer_graph, random_rows, table, table_of

COEFFICIENTS = {"acts": 3e-8, "inp": 2e-8, "flops": 2e-10, "traffic": 9e-9, "weights": 4e-8}
OPS_MS, CALL_MS = 0.01, 0.2


def varied(layer: str, number: int, seed: int = 0) -> LayerTable:
    """Layers at random, also of stride, padding and bias."""
    rows = random_rows(layer, number, seed)
    draw = np.random.default_rng(seed + 1)
    if layer == "convolution":
        for row in rows:
            row["stride"] = str(draw.integers(1, 5))
            row["padding"], row["use_bias"] = (
                str(draw.choice(["same", "valid"])),
                str(draw.integers(2)),
            )
    return table(rows)


def timed(
    layers: LayerTable, groups: list[tuple[str, str]], factors: dict[str, float]
) -> LayerTable:
    """The layers, one group after the other, with the times of a formula times the group's factors."""
    counts = layer_counts(layers)
    times = CALL_MS + OPS_MS * counts[:, FEATURES.index("ops")]
    for name, coefficient in COEFFICIENTS.items():
        times = times + coefficient * counts[:, FEATURES.index(name)]
    which = [groups[i % len(groups)] for i in range(len(layers))]
    times = times * [factors.get(g, 1.0) * factors.get(o, 1.0) for g, o in which]
    columns = {
        **layers.columns,
        "gpu": np.array([g for g, _ in which]),
        "optimizer": np.array([o for _, o in which]),
        TIME: times,
    }
    return LayerTable(layers.layer, columns)


def relative(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Sizes of the relative errors."""
    return np.abs(found / wanted - 1.0)


@pytest.mark.parametrize("layer", LAYERS)
def test_counts_are_those_of_the_layer_as_a_network(layer: str) -> None:
    layers = varied(layer, 150)
    found = layer_counts(layers)
    for row in range(len(layers)):
        total = count(layer_graph(layers, row)).total(int(layers["batch_size"][row]))
        assert found[row].tolist() == [getattr(total, name) for name in FEATURES], layer_name(
            layers, row
        )


def test_counts_by_hand() -> None:
    convolution = {"batch_size": "2", "input_size": "9", "kernel_size": "3", "in_channels": "5",
                   "out_channels": "7", "stride": "2", "activation": "tanh"}  # fmt: skip
    valid = {**convolution, "padding": "valid", "use_bias": "0", "activation": "none"}
    found = layer_counts(table_of("convolution", convolution, valid))
    # 9 pixels in steps of 2: 5 positions with padding, 4 without.
    acts, kernel = 2 * 25 * 7, 9 * 5 * 7
    assert found[0].tolist() == [acts, 2 * 81 * 5, acts * 45, 2 * acts, kernel + 7, 2]
    acts = 2 * 16 * 7
    assert found[1].tolist() == [acts, 2 * 81 * 5, acts * 45, 0, kernel, 1]
    dense = {"batch_size": "3", "in_features": "11", "out_features": "4"}
    found = layer_counts(table_of("dense", dense))
    assert found[0].tolist() == [0, 0, 3 * 44, 3 * (11 + 4) + 3 * 8, 44 + 4, 2]


def test_a_row_in_words() -> None:
    rows = [{"stride": "2", "padding": "valid"}, {"activation": "none"}]
    layers = table_of("convolution", *rows)
    assert layer_name(layers, 0) == "conv 3x3/2 valid 64x56x56 to 32, relu"
    assert layer_name(layers, 1) == "conv 3x3 64x56x56 to 32"
    assert layer_name(table_of("dense", {}), 0) == "dense 100 to 10, relu"


def test_a_formula_is_found_again_for_each_gpu_and_optimiser() -> None:
    groups = [("V100", "none"), ("V100", "adam"), ("K80", "none")]
    rows = timed(varied("convolution", 300), groups, {"K80": 8.0, "adam": 3.0})
    known, other = rows.select(np.arange(240)), rows.select(np.arange(240, 300))
    formulas = LayerFormulas.fit(known)
    assert set(formulas.own) == set(groups)
    assert relative(formulas.predict(other), other.times_ms).max() < 0.02


def test_a_few_rows_of_a_gpu_say_how_much_slower_it_is() -> None:
    layers = varied("convolution", 160)
    usual, slow = np.arange(0, 150), np.arange(150, 160)
    first = timed(layers.select(usual), [("V100", "none"), ("V100", "adam")], {"adam": 3.0})
    second = timed(layers.select(slow), [("K80", "none")], {"K80": 6.0})
    joined = {c: np.concatenate([first[c], second.select(np.arange(6))[c]]) for c in first.columns}
    formulas = LayerFormulas.fit(LayerTable("convolution", joined))
    assert ("K80", "none") not in formulas.own
    unseen = second.select(np.arange(6, 10))
    assert relative(formulas.predict(unseen), unseen.times_ms).max() < 0.35  # as by V100: 0.83
    # Nothing was measured of it, but both of its factors are known.
    trained = timed(layers.select(slow), [("K80", "adam")], {"K80": 6.0, "adam": 3.0})
    assert relative(formulas.predict(trained), trained.times_ms).max() < 0.35


def test_some_rows_get_coefficients_of_their_own_only_where_they_help() -> None:
    layers = varied("convolution", 224)
    many = timed(layers.select(np.arange(200)), [("V100", "none")], {})
    same = timed(layers.select(np.arange(200, 209)), [("P100", "none")], {"P100": 2.0})
    noise = np.exp(0.4 * np.random.default_rng(3).standard_normal(9))
    same = LayerTable("convolution", {**same.columns, TIME: same.times_ms * noise})
    odd = timed(layers.select(np.arange(209, 224)), [("M60", "none")], {})
    constant = LayerTable("convolution", {**odd.columns, TIME: np.full(15, 5.0)})
    everything = {c: np.concatenate([many[c], same[c], constant[c]]) for c in many.columns}
    formulas = LayerFormulas.fit(LayerTable("convolution", everything))
    assert set(formulas.own) == {("V100", "none"), ("M60", "none")}
    assert formulas.predict(odd) == pytest.approx(np.full(15, 5.0), rel=0.02)


def test_wrong_tables() -> None:
    rows = timed(varied("dense", 30), [("V100", "none")], {})
    formulas = LayerFormulas.fit(rows)
    other = table_of("convolution", {})
    with pytest.raises(InputError, match="a table of convolution layers; expected dense layers"):
        formulas.predict(other)
    with pytest.raises(InputError, match="no rows to fit"):
        LayerFormulas.fit(rows.select(np.arange(0)))
    timeless = LayerTable("dense", {c: v for c, v in rows.columns.items() if c != TIME})
    with pytest.raises(InputError, match=TIME):
        LayerFormulas.fit(timeless)


def test_the_features_are_the_sizes_and_the_authors_count_of_work() -> None:
    rows = table_of("convolution", {}, {"padding": "valid", "stride": "4", "use_bias": "0"})
    # 8 images, 56 x 56, 3 x 3, 64 to 32 channels; valid: (56 - 2) / 4 = 13.5, which is not rounded.
    work = [8 * 56**2 * 9 * 64 * 32, 8 * 13.5**2 * 9 * 64 * 32]
    assert features(rows).tolist() == [
        [8, 3136, 9, 64, 32, 1, 1, 1, work[0]],
        [8, 3136, 9, 64, 32, 0, 4, 0, work[1]],
    ]
    dense = table_of("dense", {})
    assert features(dense).tolist() == [[8, 100, 10, 8 * 100 * 10]]


@pytest.mark.parametrize("layer", ["convolution", "dense"])
def test_it_is_least_squares(layer: str) -> None:
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rows = table(random_rows(layer, 120, seed=3))
    others = table(random_rows(layer, 30, seed=4))
    reference = make_pipeline(StandardScaler(), LinearRegression()).fit(
        features(rows), rows.times_ms
    )
    expected = reference.predict(features(others))
    found = fit_linear(rows).predict(others)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.ptp(expected))
