"""What a layer asks of a GPU, counted by hand, and how the expected time follows from it and the facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lolat.mlp.devices import DEVICES, Device
from lolat.mlp.layers import LayerWork
from lolat.mlp.recipes.best import expected_ms, is_early, margin, updated
from tests.mlp.tables import rows_of, table

GPU = Device("G", 300, 2000, 1200)
FACTS = {"V100": GPU}


def times(tmp_path: Path, layer: str, *changes: dict[str, str], gpu: Device = GPU) -> np.ndarray:
    return expected_ms(table(tmp_path, rows_of(layer, *changes)), {"V100": gpu})


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
    tmp_path: Path, size: int, window: int, stride: int, padding: str
) -> None:
    row = {
        "input_size": str(size), "kernel_size": str(window), "stride": str(stride), "padding": padding,
        "batch_size": "3", "in_channels": "5", "out_channels": "4", "optimizer": "adam",
    }  # fmt: skip
    layers = table(tmp_path, rows_of("convolution", row))
    found = LayerWork.of(layers)
    positions, outside = taps(size, window, stride, padding)
    assert found.side.tolist() == [positions]
    assert margin(layers, found).tolist() == [outside]
    assert found.macs.tolist() == [3 * positions**2 * window**2 * 5 * 4]
    assert found.input.tolist() == [3 * size**2 * 5]
    assert found.output.tolist() == [3 * positions**2 * 4]
    assert found.kernel.tolist() == [window**2 * 5 * 4]
    everything = found.input + found.output + found.kernel
    assert updated(layers, found).tolist() == (7 * everything).tolist()
    plain = window == stride == 1 or (padding == "valid" and window == size)
    assert found.product.tolist() == [plain]


def test_a_dense_layer_is_one_product(tmp_path: Path) -> None:
    layers = table(tmp_path, rows_of("dense", {"optimizer": "none"}, {"optimizer": "sgd"}))
    found = LayerWork.of(layers)
    assert found.macs.tolist() == [8 * 100 * 10] * 2
    assert found.input.tolist() == [800] * 2
    assert found.output.tolist() == [80] * 2
    assert found.kernel.tolist() == [1000] * 2
    assert updated(layers, found).tolist() == [0, 3 * 1880]
    assert found.product.all()


def test_large_amounts_do_not_overflow(tmp_path: Path) -> None:
    big = {"batch_size": "2000000000", "in_features": "2000000000", "out_features": "2000000000"}
    assert LayerWork.of(table(tmp_path, rows_of("dense", big))).macs[0] == 8e27


@pytest.mark.parametrize("layer", ["convolution", "dense"])
@pytest.mark.parametrize("optimizer", ["none", "adam"])
def test_a_gpu_twice_as_fast_takes_half_of_all_but_the_start(
    tmp_path: Path, layer: str, optimizer: str
) -> None:
    fast = replace(GPU, bandwidth_gbs=600, cores=4000)
    endless = replace(GPU, bandwidth_gbs=3e9, cores=2 * 10**10)
    row = {"optimizer": optimizer, "batch_size": "64"}
    slow_ms, fast_ms, start_ms = (
        float(times(tmp_path, layer, row, gpu=gpu)[0]) for gpu in (GPU, fast, endless)
    )
    assert fast_ms - start_ms == pytest.approx((slow_ms - start_ms) / 2, rel=1e-4)
    assert 0.1 < start_ms < 0.5 < slow_ms / start_ms


@pytest.mark.parametrize(
    ("layer", "more"),
    [
        ("convolution", {"batch_size": "9"}),
        ("convolution", {"out_channels": "40"}),
        ("convolution", {"kernel_size": "5"}),
        ("convolution", {"activation": "tanh", "optimizer": "sgd"}),
        ("convolution", {"optimizer": "sgd"}),
        ("dense", {"batch_size": "9"}),
        ("dense", {"in_features": "120"}),
        ("dense", {"optimizer": "momentum"}),
    ],
)
def test_more_of_anything_takes_longer(tmp_path: Path, layer: str, more: dict[str, str]) -> None:
    less_ms, more_ms = times(tmp_path, layer, {}, more)
    assert more_ms > less_ms > 0


def test_bias_activation_and_uneven_padding_are_passes_of_their_own(tmp_path: Path) -> None:
    plain = {"use_bias": "0", "activation": "none", "kernel_size": "3"}
    alone, bias, active = times(
        tmp_path, "convolution", plain, {**plain, "use_bias": "1"}, {**plain, "activation": "relu"}
    )
    assert bias > alone
    assert active == pytest.approx(bias)  # one more reading and writing of the output each
    # 56 pixels, stride 1: a window of 4 needs 3 pixels of padding, one of 3 needs 2.
    even, odd = times(tmp_path, "convolution", plain, {**plain, "kernel_size": "4"})
    without = times(tmp_path, "convolution", {**plain, "kernel_size": "4", "padding": "valid"})
    assert odd - even > without[0] - even


@pytest.mark.parametrize(
    ("device", "early"),
    [
        (DEVICES["K40"], True),
        (DEVICES["K80"], True),
        (DEVICES["M60"], False),
        (DEVICES["V100"], False),
        (Device("old", 200, 2000, 800), True),
        (Device("small and new", 60, 512, 900, year=2019), False),
    ],
)
def test_the_generation_is_told_by_clock_and_year(device: Device, early: bool) -> None:
    assert is_early(device) is early


def test_an_early_gpu_reaches_less_of_its_peak(tmp_path: Path) -> None:
    # One clock, so that the peak is the same, and the year tells them apart.
    old, new = Device("a", 300, 3000, 900, year=2013), Device("b", 300, 3000, 900, year=2018)
    row = {"batch_size": "64"}
    early_ms, later_ms = (times(tmp_path, "convolution", row, gpu=d)[0] for d in (old, new))
    assert 1.5 < early_ms / later_ms < 3
