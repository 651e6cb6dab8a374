"""Recipes: data sheets, the paper's columns and network as published, LoLat's features by hand."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.mlp.recipes import BEST_RECIPE, PAPER, Devices, Recipe, data_sheets, key
from lolat.mlp.table import LayerTable, layer_work
from tests.mlp.tables import table_of

ONE, TWO = data_sheets(["V100"]), data_sheets(["V100", "K80"])


@pytest.mark.parametrize(
    ("name", "cores", "clock_mhz"),
    # Cores and boost clock of the makers' data sheets.
    [("P100", 3584, 1303), ("1080ti", 3584, 1582), ("M60", 2048, 1178), ("GTX 1080", 2560, 1733),
     ("T4", 2560, 1590), ("RTX 3090", 10496, 1695), ("A100", 6912, 1410)],
)  # fmt: skip
def test_the_clock_follows_from_peak_and_cores(name: str, cores: int, clock_mhz: float) -> None:
    (sheet,) = data_sheets([name]).values()
    assert sheet.cores == cores
    assert sheet.clock_mhz == pytest.approx(clock_mhz, rel=0.025)


@pytest.mark.parametrize(
    ("name", "own"),
    [("NVIDIA Tesla V100", "v100"), ("1080TI", "1080ti"), ("GTX 1080 Ti", "1080ti"),
     ("GeForce RTX 2080 Ti", "rtx2080ti")],
)  # fmt: skip
def test_names_are_found_without_regard_to_case_and_maker(name: str, own: str) -> None:
    assert key(name) == own
    assert len(data_sheets([name, own])) == 1


def test_of_several_gpus_each_needs_a_data_sheet() -> None:
    rows = table_of("dense", {}, {"gpu": "X1"})
    with pytest.raises(InputError) as caught:
        PAPER.features(rows, data_sheets(["V100", "X1"]))
    assert caught.value.code == "unknown-gpu"
    rows = table_of("dense", {"gpu": "X1"})
    assert PAPER.features(rows, data_sheets(["X1"])).shape == (1, 12)


def named(recipe: Recipe, rows: LayerTable, devices: Devices) -> dict[str, np.ndarray]:
    """The features by name."""
    names, found = recipe.columns(rows, devices), recipe.features(rows, devices)
    assert (found.dtype, found.shape) == (np.float64, (len(rows), len(names)))
    assert np.isfinite(found).all()
    return dict(zip(names, found.T, strict=True))


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
    of_gpus = {"bandwidth_gbs": [240, 900], "cores": [2496, 5120]}
    sizes = {"batch_size": [8, 8], "in_features": [100, 100], "out_features": [10, 10]}
    assert found | of_gpus | sizes | {"optimizer_sgd": [0, 1]} == found
    alone = named(PAPER, table_of("dense", {}), ONE)
    assert set(found) == {*alone, *of_gpus, "clock_mhz"}


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
    found = {name: values.item() for name, values in layer_work(layers).items()}
    positions, outside = taps(size, window, stride, padding)
    written, kernel = 3 * positions**2 * 4, window**2 * 5 * 4
    assert found["side"] == positions
    assert found["macs"] == written * window**2 * 5
    amounts = found["input"], found["output"], found["kernel"]
    assert amounts == (3 * size**2 * 5, written, kernel)
    assert named(BEST_RECIPE, layers, ONE)["padding"].tolist() == [outside]


def test_a_dense_layer_is_one_product() -> None:
    found = layer_work(table_of("dense", {}))
    for name, value in {"macs": 8000, "input": 800, "output": 80, "kernel": 1000}.items():
        assert found[name].tolist() == [value], name


def test_columns_of_a_convolution_by_hand() -> None:
    row = {"kernel_size": "4", "stride": "2", "batch_size": "2", "in_channels": "40", "gpu": "K80"}
    found = named(BEST_RECIPE, table_of("convolution", row, {"optimizer": "sgd"}), TWO)
    # 56 pixels, stride 2: 28 positions; the last window ends at 54 + 4 = 58, two pixels outside.
    assert np.exp(found["log_macs"][0]) == pytest.approx(2 * 28 * 28 * 16 * 40 * 32)
    assert np.exp(found["inside_tile_32"][0]) == pytest.approx(40 / 64)
    assert np.exp(found["inside_tile_4"]).tolist() == [1, 1]
    assert np.exp(found["cores"]) == pytest.approx([2496, 5120])
    for name, values in {
        "padding": [2, 2], "odd": [0, 0], "activation_relu": [1, 1], "optimizer_sgd": [0, 1],
    }.items():  # fmt: skip
        assert found[name].tolist() == values, name
