"""Recipes: the paper's columns and network as published; LoLat's: its physics by hand, what it learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lolat.mlp.devices import DEVICES, Device, Devices, known
from lolat.mlp.recipes import (
    BEST,
    FARTHEST,
    PAPER,
    SLOTS,
    Recipe,
    expected_ms,
    is_early,
    margin,
    updated,
)
from lolat.mlp.table import LayerTable, LayerWork
from lolat.mlp.training import learn
from tests.mlp.tables import random_rows, table, table_of

SIX = {name: DEVICES[name] for name in ("v100", "p100", "1080ti", "m60", "k40", "k80")}
ONE, TWO = ({name: SIX[name] for name in names} for names in (("v100",), ("v100", "k80")))


def named(
    recipe: Recipe, rows: LayerTable, devices: Devices, trained: Devices | None = None
) -> dict[str, np.ndarray]:
    """The features by name."""
    trained = devices if trained is None else trained
    names, found = recipe.columns(rows, devices, trained), recipe.features(rows, devices, trained)
    assert (found.dtype, found.shape) == (np.float64, (len(rows), len(names)))
    assert np.isfinite(found).all()
    return dict(zip(names, found.T, strict=True))


# ---- The paper's.


def test_a_convolution_has_the_papers_columns() -> None:
    rows = table_of(
        "convolution",
        {"batch_size": "5", "input_size": "100", "kernel_size": "7", "stride": "2"},
        {"padding": "valid", "use_bias": "0", "optimizer": "adam", "activation": "tanh"},
        {"optimizer": "rmsprop", "activation": "none"},
    )
    found = {name: values.tolist() for name, values in named(PAPER, rows, ONE).items()}
    sizes = {"batch_size": [5, 8, 8], "in_channels": [64] * 3, "out_channels": [32] * 3}
    sizes |= {"input_size_squared": [10_000, 3136, 3136], "kernel_size_squared": [49, 9, 9]}
    kinds = {"padding_same": [1, 0, 1], "stride": [2, 1, 1], "use_bias": [1, 0, 1]}
    kinds |= {"optimizer_adam": [0, 1, 0], "optimizer_rmsprop": [0, 0, 1]}
    kinds |= {
        "activation_relu": [1, 0, 0],
        "activation_tanh": [0, 1, 0],
        "activation_sigmoid": [0] * 3,
    }
    others = (f"optimizer_{name}" for name in ("sgd", "adadelta", "adagrad", "momentum"))
    assert found == sizes | kinds | dict.fromkeys(others, [0] * 3)


def test_a_dense_layer_has_its_sizes_as_they_are_and_facts_where_there_are_several_gpus() -> None:
    rows = table_of("dense", {"gpu": "k80"}, {"optimizer": "sgd"})
    found = {name: values.tolist() for name, values in named(PAPER, rows, TWO).items()}
    # GB/s, cores and MHz of one half of a K80, and of a V100, as the authors trained on them.
    of_gpus = {"bandwidth_gbs": [240, 900], "cores": [2496, 5120], "clock_mhz": [875, 1455]}
    sizes = {"batch_size": [8, 8], "in_features": [100, 100], "out_features": [10, 10]}
    assert found | of_gpus | sizes | {"optimizer_sgd": [0, 1]} == found
    assert set(named(PAPER, rows, ONE)) == set(found) - set(of_gpus)


@pytest.mark.parametrize("layer", ["convolution", "dense"])
def test_the_network_and_its_training_are_as_published(layer: str) -> None:
    plan = PAPER.plan(layer, False)
    assert plan.hidden == (32, 64, 128, 128)
    assert PAPER.plan(layer, True) == replace(plan, hidden=(32, 64, 128, 128, 128, 128))
    assert (plan.activation, plan.output_activation, plan.output_bias) == ("relu", "relu", False)
    assert (plan.dropout, plan.l2, plan.loss) == (0.2, 1e-5, "squared-log1p")
    assert (plan.optimizer, plan.epsilon, plan.learning_rate) == ("adam", 0.1, 0.1)
    assert (plan.schedule, plan.halve_every) == ("halve", 40)
    assert (plan.batch, plan.epochs) == (128, 300)


# ---- LoLat's: what a layer asks of a GPU, counted by hand, and how the expected time follows from it.

GPU = Device("G", 300, 2000, 1200)


def times(layer: str, *changes: dict[str, str], gpu: Device = GPU) -> np.ndarray:
    return expected_ms(table_of(layer, *changes), {"v100": gpu})


def taps(size: int, window: int, stride: int, padding: str) -> tuple[int, int]:
    """(positions, pixels of padding) along one side, by moving the window as TensorFlow's docs say."""
    if padding == "valid":
        return len(range(0, size - window + 1, stride)), 0
    starts = range(0, size, stride)
    return len(starts), max(0, starts[-1] + window - size)


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(
    ("size", "window", "stride"),
    [(7, 1, 1), (10, 4, 1), (11, 3, 2), (12, 3, 2), (9, 7, 4), (7, 7, 1), (5, 2, 3), (8, 1, 4)],
)
def test_a_convolution_is_counted_as_a_window_that_moves(
    size: int, window: int, stride: int, padding: str
) -> None:
    row = {
        "input_size": str(size), "kernel_size": str(window), "stride": str(stride), "padding": padding,
        "batch_size": "3", "in_channels": "5", "out_channels": "4", "optimizer": "adam",
    }  # fmt: skip
    layers = table_of("convolution", row)
    found = LayerWork(layers)
    positions, outside = taps(size, window, stride, padding)
    given, written, kernel = 3 * size**2 * 5, 3 * positions**2 * 4, window**2 * 5 * 4
    assert (found.side.tolist(), margin(layers, found).tolist()) == ([positions], [outside])
    assert found.macs.tolist() == [written * window**2 * 5]
    assert (found.input[0], found.output[0], found.kernel[0]) == (given, written, kernel)
    assert updated(layers, found).tolist() == [7 * (given + written + kernel)]
    plain = window == stride == 1 or (padding == "valid" and window == size)
    assert found.product.tolist() == [plain]


def test_a_dense_layer_is_one_product() -> None:
    layers = table_of("dense", {"optimizer": "none"}, {"optimizer": "sgd"})
    found = LayerWork(layers)
    for name, value in {"macs": 8000, "input": 800, "output": 80, "kernel": 1000}.items():
        assert getattr(found, name).tolist() == [value] * 2, name
    assert updated(layers, found).tolist() == [0, 3 * 1880]
    assert found.product.all()


@pytest.mark.parametrize("layer", ["convolution", "dense"])
@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_a_gpu_twice_as_fast_takes_half_of_all_but_the_start(layer: str, optimizer: str) -> None:
    fast = replace(GPU, bandwidth_gbs=600, cores=4000)
    endless = replace(GPU, bandwidth_gbs=3e9, cores=2 * 10**10)
    row = {"optimizer": optimizer, "batch_size": "64"}
    slow_ms, fast_ms, start_ms = (
        float(times(layer, row, gpu=gpu)[0]) for gpu in (GPU, fast, endless)
    )
    assert fast_ms - start_ms == pytest.approx((slow_ms - start_ms) / 2, rel=1e-4)
    assert 0.1 < start_ms < 0.5 < slow_ms / start_ms


@pytest.mark.parametrize(
    ("layer", "more"),
    [
        ("convolution", {"batch_size": "9"}),
        ("convolution", {"kernel_size": "5"}),
        ("convolution", {"optimizer": "sgd"}),
        ("dense", {"in_features": "120"}),
        ("dense", {"optimizer": "momentum"}),
    ],
)
def test_more_of_anything_takes_longer(layer: str, more: dict[str, str]) -> None:
    less_ms, more_ms = times(layer, {}, more)
    assert more_ms > less_ms > 0


def test_bias_activation_and_uneven_padding_are_passes_of_their_own() -> None:
    plain = {"use_bias": "0", "activation": "none", "kernel_size": "3"}
    alone, bias, active = times(
        "convolution", plain, {**plain, "use_bias": "1"}, {**plain, "activation": "relu"}
    )
    assert bias > alone
    assert active == pytest.approx(bias)  # one more reading and writing of the output each
    # 56 pixels, stride 1: a window of 4 needs 3 pixels of padding, one of 3 needs 2.
    even, odd = times("convolution", plain, {**plain, "kernel_size": "4"})
    without = times("convolution", {**plain, "kernel_size": "4", "padding": "valid"})
    assert odd - even > without[0] - even


def test_the_generation_is_told_by_clock_and_year() -> None:
    early = [DEVICES["k40"], DEVICES["k80"], Device("old", 200, 2000, 800)]
    later = [DEVICES["m60"], DEVICES["v100"], Device("small and new", 60, 512, 900, year=2019)]
    assert [is_early(device) for device in early + later] == [True] * 3 + [False] * 3


# ---- Its features and what it learns.


def test_columns_of_a_convolution_by_hand() -> None:
    row = {"kernel_size": "4", "stride": "2", "batch_size": "2", "in_channels": "40"}
    found = named(BEST, table_of("convolution", row, {"optimizer": "sgd"}), ONE)
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
def test_the_time_comes_back_from_the_target(layer: str) -> None:
    rows = table(random_rows(layer, 50, gpus=list(SIX)))
    target = BEST.encode(rows.times_ms, rows, SIX)
    np.testing.assert_allclose(BEST.decode(target, rows, SIX), rows.times_ms, rtol=1e-12)


def test_an_output_from_far_outside_is_cut() -> None:
    rows = table_of("dense", {}, {})
    found = BEST.decode(np.array([1e6, -1e6]), rows, ONE) / expected_ms(rows, ONE)
    np.testing.assert_allclose(found, [np.exp(FARTHEST), np.exp(-FARTHEST)])


def test_a_known_gpu_is_named_and_a_stranger_is_not() -> None:
    rows = table_of("dense", *({"gpu": g} for g in ("V100", "v100", "K80", "T4")))
    found = named(BEST, rows, DEVICES, SIX)
    columns = [name for name in found if name.startswith("known")]
    seen = np.stack([found[name] for name in columns], axis=1)
    assert len(columns) == 1 + 3 + SLOTS
    assert found["known"].tolist() == [1, 1, 1, 0]
    assert (seen[0] == seen[1]).all()
    assert (seen[0] != seen[2]).any()
    assert not seen[3].any()
    slots = np.stack([found[f"known_{i}"] for i in range(SLOTS)], axis=1)
    assert slots.sum(axis=1).tolist() == [1, 1, 1, 0]


def test_of_a_stranger_the_network_sees_only_the_generation() -> None:
    figures = {"a": (100, 1000, 1100), "b": (3000, 9000, 2000), "c": (100, 1000, 700)}
    strangers = [Device(name, *given) for name, given in figures.items()]
    rows = table_of("convolution", *({"gpu": d.name} for d in strangers))
    found = named(BEST, rows, {**SIX, **{d.name: d for d in strangers}}, SIX)
    assert all(a == b for a, b, _ in found.values())
    assert [n for n, (a, _, c) in found.items() if a != c] == ["early"]


def small(strangers: float = 0.3, epochs: int = 40) -> Recipe:
    """The recipe with a small network."""
    plan = replace(BEST.plan("dense", True), hidden=(16, 16), batch=32, epochs=epochs)
    plan = replace(plan, learning_rate=0.02, strangers=strangers)
    return replace(BEST, plan=lambda layer, several: plan)


def test_known_gpus_are_learned_one_by_one_and_a_new_one_like_the_others() -> None:
    factors = {"V100": 0.5, "P100": 1.0, "M60": 1.0, "1080ti": 1.0, "K80": 3.0}
    rows = table(random_rows("dense", 400, gpus=list(factors)))
    devices = known(factors, DEVICES)
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
