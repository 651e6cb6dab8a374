"""The paper's recipe: its columns by hand, its network and its training as published."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lolat.mlp.devices import DEVICES
from lolat.mlp.recipes import find_recipe
from lolat.mlp.recipes.paper import RECIPE
from tests.mlp.tables import rows_of, table

ONE = {"V100": DEVICES["V100"]}
TWO = {**ONE, "K80": DEVICES["K80"]}


def columns(recipe_table: object, devices: object) -> dict[str, list[float]]:
    """The features by name."""
    found = RECIPE.features(recipe_table, devices)  # type: ignore[arg-type]
    names = RECIPE.feature_names(recipe_table.layer, len(devices) > 1)  # type: ignore[attr-defined, arg-type]
    assert found.dtype == np.float64
    assert found.shape == (len(recipe_table), len(names))
    return {name: found[:, i].tolist() for i, name in enumerate(names)}


def test_a_convolution_has_the_papers_columns(tmp_path: Path) -> None:
    rows = table(
        tmp_path,
        rows_of(
            "convolution",
            {"batch_size": "5", "input_size": "100", "kernel_size": "7", "stride": "2"},
            {"padding": "valid", "use_bias": "0", "optimizer": "adam", "activation": "tanh"},
            {"optimizer": "rmsprop", "activation": "none"},
        ),
    )
    assert columns(rows, ONE) == {
        "batch_size": [5, 8, 8],
        "input_size_squared": [10_000, 3136, 3136],
        "kernel_size_squared": [49, 9, 9],
        "in_channels": [64, 64, 64],
        "out_channels": [32, 32, 32],
        "padding_same": [1, 0, 1],
        "stride": [2, 1, 1],
        "use_bias": [1, 0, 1],
        "optimizer_sgd": [0, 0, 0],
        "optimizer_adadelta": [0, 0, 0],
        "optimizer_adagrad": [0, 0, 0],
        "optimizer_momentum": [0, 0, 0],
        "optimizer_adam": [0, 1, 0],
        "optimizer_rmsprop": [0, 0, 1],
        "activation_relu": [1, 0, 0],
        "activation_tanh": [0, 1, 0],
        "activation_sigmoid": [0, 0, 0],
    }


def test_a_dense_layer_has_its_sizes_as_they_are_and_facts_where_there_are_several_gpus(
    tmp_path: Path,
) -> None:
    rows = table(tmp_path, rows_of("dense", {"gpu": "k80"}, {"optimizer": "sgd"}))
    found = columns(rows, TWO)
    assert [found[name] for name in ("batch_size", "in_features", "out_features")] == [
        [8, 8], [100, 100], [10, 10],
    ]  # fmt: skip
    assert found["optimizer_sgd"] == [0, 1]
    # GB/s, cores and MHz of one half of a K80, and of a V100, as the authors trained on them.
    assert found["bandwidth_gbs"] == [240, 900]
    assert found["cores"] == [2496, 5120]
    assert found["clock_mhz"] == [875, 1455]
    assert set(columns(rows, ONE)) == set(found) - {"bandwidth_gbs", "cores", "clock_mhz"}


@pytest.mark.parametrize("layer", ["convolution", "dense"])
def test_the_network_and_its_training_are_as_published(layer: str) -> None:
    assert find_recipe("paper") is RECIPE
    plan = RECIPE.plan(layer, False)
    assert plan.hidden == (32, 64, 128, 128)
    assert RECIPE.plan(layer, True).hidden == (32, 64, 128, 128, 128, 128)
    assert (plan.activation, plan.output_activation, plan.output_bias) == ("relu", "relu", False)
    assert (plan.dropout, plan.l2, plan.loss) == (0.2, 1e-5, "squared-log1p")
    assert (plan.optimizer, plan.epsilon, plan.learning_rate) == ("adam", 0.1, 0.1)
    assert (plan.schedule, plan.halve_every) == ("halve", 40)
    assert (plan.batch, plan.epochs) == (128, 300)


def test_the_networks_output_is_the_time_in_ms(tmp_path: Path) -> None:
    rows = table(tmp_path, rows_of("dense", {}, {"time_ms_median": "7.25"}))
    target = RECIPE.encode(rows.times_ms, rows, ONE)
    assert target.tolist() == [0.5, 7.25]
    assert RECIPE.decode(target, rows, ONE).tolist() == [0.5, 7.25]
