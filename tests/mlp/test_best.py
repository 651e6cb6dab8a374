"""The recipe "best": its columns, what it says of known and of new GPUs, and what it learns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.mlp.devices import DEVICES, Device
from lolat.mlp.layer_model import Layer
from lolat.mlp.recipes import Devices, Facts, Recipe, find_recipe, trained_on
from lolat.mlp.recipes.best import FARTHEST, RECIPE, SLOTS, expected_ms
from lolat.mlp.table import LayerTable
from lolat.mlp.training import KerasNetwork, learn
from tests.mlp.tables import random_rows, rows_of, table

ONE = {"V100": DEVICES["V100"]}
SIX = {name: DEVICES[name] for name in ("V100", "P100", "1080ti", "M60", "K40", "K80")}


def named(rows: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """The features by name."""
    found = RECIPE.features(rows, devices)
    names = RECIPE.feature_names(rows.layer, len(devices) > 1)
    assert found.dtype == np.float64
    assert found.shape == (len(rows), len(names))
    assert np.isfinite(found).all()
    return dict(zip(names, found.T, strict=True))


@pytest.mark.parametrize("layer", ["convolution", "dense"])
@pytest.mark.parametrize("devices", [ONE, SIX], ids=["one", "several"])
def test_each_column_has_a_name_of_its_own(tmp_path: Path, layer: str, devices: Devices) -> None:
    rows = table(tmp_path, random_rows(layer, 20, gpus=list(devices)))
    names = RECIPE.feature_names(layer, len(devices) > 1)
    assert len(set(names)) == len(names) == len(named(rows, devices))
    assert ("known" in names) is (len(devices) > 1)
    assert find_recipe("best") is RECIPE


def test_columns_of_a_convolution_by_hand(tmp_path: Path) -> None:
    row = {"kernel_size": "4", "stride": "2", "batch_size": "2", "in_channels": "40"}
    found = named(table(tmp_path, rows_of("convolution", row, {"optimizer": "sgd"})), ONE)
    # 56 pixels, stride 2: 28 positions; the last window ends at 54 + 4 = 58, two pixels outside.
    assert np.exp(found["log_macs"][0]) == pytest.approx(2 * 28 * 28 * 16 * 40 * 32)
    assert np.exp(found["log_pixels"][0]) == pytest.approx(2 * 28 * 28)
    assert np.exp(found["log_window"][0]) == pytest.approx(16 * 40)
    assert np.exp(found["in_channels_tile_32"][0]) == pytest.approx(64 / 40)
    assert np.exp(found["in_channels_tile_4"]).tolist() == [1, 1]
    for name, values in {
        "margin": [2, 2], "odd_margin": [0, 0], "winograd": [0, 1], "overlap": [1, 1],
        "kernel_4": [1, 0], "kernel_3": [0, 1], "stride_2": [1, 0], "stride_1": [0, 1],
        "activation_relu": [1, 1], "activation_none": [0, 0], "optimizer_sgd": [0, 1],
    }.items():  # fmt: skip
        assert found[name].tolist() == values, name


@pytest.mark.parametrize("layer", ["convolution", "dense"])
def test_the_time_comes_back_from_the_target(tmp_path: Path, layer: str) -> None:
    rows = table(tmp_path, random_rows(layer, 50, gpus=list(SIX)))
    target = RECIPE.encode(rows.times_ms, rows, SIX)
    np.testing.assert_allclose(RECIPE.decode(target, rows, SIX), rows.times_ms, rtol=1e-12)


def test_an_output_from_far_outside_is_cut(tmp_path: Path) -> None:
    rows = table(tmp_path, rows_of("dense", {}, {}))
    found = RECIPE.decode(np.array([1e6, -1e6]), rows, ONE) / expected_ms(rows, ONE)
    np.testing.assert_allclose(found, [np.exp(FARTHEST), np.exp(-FARTHEST)])


def test_a_known_gpu_is_named_and_a_stranger_is_not(tmp_path: Path) -> None:
    rows = table(tmp_path, rows_of("dense", *({"gpu": g} for g in ("V100", "v100", "K80", "T4"))))
    facts = Facts({**SIX, "T4": DEVICES["T4"]}, trained=SIX)
    assert trained_on(facts) == set(SIX)
    assert trained_on(SIX) == set(SIX)
    found = named(rows, facts)
    known = [name for name in found if name.startswith("known")]
    seen = np.stack([found[name] for name in known], axis=1)
    assert len(known) == 1 + 3 + SLOTS
    assert found["known"].tolist() == [1, 1, 1, 0]
    assert (seen[0] == seen[1]).all()
    assert (seen[0] != seen[2]).any()
    assert not seen[3].any()
    slots = np.stack([found[f"known_{i}"] for i in range(SLOTS)], axis=1)
    assert slots.sum(axis=1).tolist() == [1, 1, 1, 0]


def test_the_order_and_spelling_of_the_facts_do_not_matter(tmp_path: Path) -> None:
    rows = table(tmp_path, rows_of("dense", *({"gpu": g} for g in SIX)))
    turned = {n.lower(): replace(SIX[n], name=n.lower()) for n in reversed(SIX)}
    np.testing.assert_array_equal(RECIPE.features(rows, SIX), RECIPE.features(rows, turned))


def test_of_a_stranger_the_network_sees_only_the_generation(tmp_path: Path) -> None:
    figures = {"a": (100, 1000, 1100), "b": (3000, 9000, 2000), "c": (100, 1000, 700)}
    strangers = [Device(name, *given) for name, given in figures.items()]
    rows = table(tmp_path, rows_of("convolution", *({"gpu": d.name} for d in strangers)))
    facts = Facts({**SIX, **{d.name: d for d in strangers}}, trained=SIX)
    found = RECIPE.features(rows, facts)
    names = RECIPE.feature_names("convolution", True)
    assert (found[0] == found[1]).all()
    assert [n for n, a, c in zip(names, found[0], found[2], strict=True) if a != c] == ["early"]


def small(strangers: float = 0.3, epochs: int = 40) -> Recipe:
    """The recipe with a small network."""
    plan = replace(RECIPE.plan("dense", True), hidden=(16, 16), batch=32, epochs=epochs)
    plan = replace(plan, learning_rate=0.02, strangers=strangers)
    return replace(RECIPE, plan=lambda layer, several: plan)


def test_known_gpus_are_learned_one_by_one_and_a_new_one_like_the_others(tmp_path: Path) -> None:
    factors = {"V100": 0.5, "P100": 1.0, "M60": 1.0, "1080ti": 1.0, "K80": 3.0}
    rows = table(tmp_path, random_rows("dense", 400, gpus=list(factors)))
    devices = {name: DEVICES[name] for name in factors}
    factor = np.array([factors[name] for name in rows["gpu"]])
    rows.columns["time_ms_median"][:] = factor * expected_ms(rows, devices)
    model = learn(rows, small(), devices, seed=1)
    ratio = model.predict(rows) / expected_ms(rows, devices)
    for name, expected in factors.items():
        assert np.median(ratio[rows["gpu"] == name]) == pytest.approx(expected, rel=0.1), name
    new = rows.select(rows["gpu"] == "V100")
    new.columns["gpu"][:] = "T4"  # from after 2014, as those whose median factor is 1
    found = model.predict(new) / expected_ms(new, DEVICES)
    assert np.median(found) == pytest.approx(1, rel=0.15)


def test_strangers_go_on_after_a_kill_as_they_would_have() -> None:
    rng = np.random.default_rng(0)
    x, y, strange = rng.normal(size=(40, 3)), rng.normal(size=40), rng.normal(size=(40, 3))
    plan = small(epochs=4).plan("dense", True)

    def flat(layers: list[Layer]) -> np.ndarray:
        return np.concatenate([layer.weights.ravel() for layer in layers])

    whole, first, second = (KerasNetwork(plan, x, y, 4, 7, strange) for _ in range(3))
    for _ in range(4):
        whole.epoch()
    for _ in range(2):
        first.epoch()
    second.take(first.state())
    for _ in range(2):
        second.epoch()
    np.testing.assert_array_equal(flat(whole.layers()), flat(second.layers()))
    without = KerasNetwork(replace(plan, strangers=0.0), x, y, 4, 7)
    for _ in range(4):
        without.epoch()
    assert (flat(whole.layers()) != flat(without.layers())).any()


def test_a_recipe_that_is_none() -> None:
    with pytest.raises(InputError, match="unknown recipe 'fast'; expected best or paper"):
        find_recipe("fast")
