"""What a convolution pays when it is timed alone: the terms by hand, and told from rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.mlp.devices import Device
from lolat.mlp.networks import START, Alone, Parts, alike, fit, usable
from tests.mlp.tables import random_rows, rows_of, table

GPU = Device("V100", 1000, 5120, 1000)  # 5.12e9 MACs and 1e9 bytes a ms, 80 multiprocessors
ALIKE = {
    "kernel_size": "1",
    "in_channels": "64",
    "out_channels": "128",
    "input_size": "16",
    "batch_size": "1",
}
FREE = {**START, "rate": 1.0, "bandwidth": 1.0, "fill": 0.0, "small": 0.0, "tiny": 0.0, "deep": 0.0}


def parts_of(tmp_path: Path, change: Mapping[str, str], **terms: float) -> Parts:
    """Of one layer, by the plain terms and others."""
    return Alone({**FREE, **terms}, GPU).parts(table(tmp_path, rows_of("convolution", change)))


def test_the_parts_of_a_layer_by_hand(tmp_path: Path) -> None:
    found = parts_of(tmp_path, ALIKE, call=0.1, start=0.01, move=2.0, turned=1e-6, missed=0.0)
    # 16x16 pixels of 64 channels become 128: a call, 5 operations (two of them turn), each element read
    # and written at half the bandwidth.
    elements = 256 * (64 + 128)
    assert found.alone == pytest.approx(0.1 + 5 * 0.01 + 2 * elements * 8 / 1e9)
    assert found.kernel == pytest.approx(64 * 128 * 1e-6)
    # Bias and ReLU: each reads and writes 256 * 128 elements.
    assert found.after == pytest.approx(2 * 2 * 256 * 128 * 8 / 1e9)
    # The product of 256 x 64 and 64 x 128 in 32 tiles of 32 x 32 is one wave on 80 multiprocessors, beside
    # it 4 bytes of every element are moved.
    wave, moved = 80 * 32 * 32 * 64 / 5.12e9, (elements + 64 * 128) * 4 / 1e9
    assert found.computing == pytest.approx(np.hypot(wave, moved))
    assert found.network == pytest.approx(found.kernel + found.computing + found.after)
    assert found.total == pytest.approx(found.alone + found.network)


def test_neither_bias_nor_activation_is_nothing_after(tmp_path: Path) -> None:
    found = parts_of(
        tmp_path, {**ALIKE, "use_bias": "0", "activation": "none"}, call=0.1, start=0.01
    )
    assert found.after == 0
    assert found.alone < parts_of(tmp_path, ALIKE, call=0.1, start=0.01).alone


def test_winograd_pads_the_batch_to_sixteen(tmp_path: Path) -> None:
    # In-between tiles of 36 for each 4x4 of 8x8 pixels alone: 4 of them, of 16 or 32 images, 64 channels
    # written and 128 read, twice, as the product reads and writes them beside a computing that is free.
    layer = {**ALIKE, "kernel_size": "3", "input_size": "8"}
    terms = {
        "winograd": 1e9,
        "transformed": 1.0,
        "kernel": 1e9,
        "winograd_deep": 0.0,
        "rate": 1e-9,
        "fused": 1e-9,
    }
    for batch, whole in ((1, 16), (16, 16), (17, 32)):
        found = parts_of(tmp_path, {**layer, "batch_size": str(batch)}, **terms)
        between = 36 * 4 * whole * (64 + 128) * 4 / 1e9
        ends = batch * 64 * (64 + 128) * 4 / 1e9
        assert found.computing == pytest.approx(2 * between + ends, rel=1e-3)


def test_large_kernels_miss_more(tmp_path: Path) -> None:
    terms = {"turned": 1e-8, "missed": 1e-7, "pages": 1e7, "spread": 0.0, "sharp": 50.0}
    few, many = (
        parts_of(tmp_path, {**ALIKE, "in_channels": c, "out_channels": c}, **terms).kernel
        for c in ("1000", "10000")
    )
    assert few == pytest.approx(1e6 * 1e-8, rel=1e-3)
    assert many == pytest.approx(1e8 * 1.1e-7, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "here", "tells"),
    [
        ({}, True, True),
        ({"kernel_size": "1"}, True, True),
        ({"kernel_size": "1", "use_bias": "0", "activation": "none"}, True, False),
        ({"kernel_size": "1", "use_bias": "0"}, True, True),
        ({"use_bias": "0", "activation": "none"}, True, True),
        ({"stride": "2"}, False, False),
        ({"kernel_size": "5"}, False, False),
        ({"kernel_size": "7", "input_size": "7", "padding": "valid"}, True, True),
        ({"out_channels": "15"}, False, False),
        ({"optimizer": "sgd"}, False, False),
    ],
)
def test_which_rows_tell(
    tmp_path: Path, change: Mapping[str, str], here: bool, tells: bool
) -> None:
    rows = table(tmp_path, rows_of("convolution", change))
    assert (alike(rows)[0], usable(rows)[0]) == (here, tells)


def timed(tmp_path: Path, count: int, **more: Any) -> Any:
    """1x1 convolutions whose times are made of amounts alone."""
    draw, rows = np.random.default_rng(1), []
    for _ in range(count):
        batch, size, inside, outside = (
            int(draw.integers(1, 65)), int(draw.integers(8, 65)), *map(int, draw.integers(32, 513, 2)),
        )  # fmt: skip
        given, written = batch * size**2 * inside, batch * size**2 * outside
        network = (
            given * outside / (0.8 * 5.12e9) + inside * outside * 3e-8 + 2 * written * 8 * 1.3 / 1e9
        )
        alone = 0.3 + (given + written) * 8 * 1.3 / 1e9
        rows += rows_of("convolution", {
            **ALIKE, "batch_size": str(batch), "input_size": str(size), "in_channels": str(inside),
            "out_channels": str(outside), "time_ms_median": f"{alone + network:.6g}", **more,
            "run": f"{network:.6g}",
        })  # fmt: skip
    return table(tmp_path, rows)


def test_the_terms_are_told_from_rows(tmp_path: Path) -> None:
    rows = timed(tmp_path, 300)
    found = fit(rows, GPU).parts(rows)
    assert np.median(np.abs(found.total / rows.times_ms - 1)) < 0.03
    # What a network would take was not in the rows that were fitted.
    network = rows["run"].astype(float).sum()
    assert found.network.sum() == pytest.approx(network, rel=0.08)
    assert rows.times_ms.sum() > 1.2 * network


def test_rows_of_other_gpus_are_not_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0 convolutions of V100 .* at least 100"):
        fit(timed(tmp_path, 120, gpu="K80"), GPU)


def test_too_few_rows(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"99 convolutions of V100 .* at least 100: forward only"):
        fit(timed(tmp_path, 99), GPU)


def test_dense_layers(tmp_path: Path) -> None:
    rows = table(tmp_path, random_rows("dense", 20))
    with pytest.raises(InputError, match="a table of dense layers; expected convolutions"):
        fit(rows, GPU)
