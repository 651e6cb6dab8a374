"""The predefined blocks: what they cover, and that the published ones are what was published."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lolat.fitting.least_squares import condition_number
from lolat.graph.counts import FEATURES, count
from microbench.blocks import BLOCKS, NETWORKS, PUBLISHED, REFERENCE_BLOCK, points

BY_NAME = {b.name: b for b in BLOCKS}

# Worked out by hand: positions x (kernel x channels in x channels out), layer by layer.
MACS = {
    "basic 256x14x14": 14 * 14 * 2 * (9 * 256 * 256),
    "conv 3x3 3x224x224": 224 * 224 * 9 * 3 * 64,
    "bottleneck 256x56x56": 56 * 56 * (256 * 64 + 9 * 64 * 64 + 64 * 256),
    "bottleneck 1024x14x14": 14 * 14 * (1024 * 256 + 9 * 256 * 256 + 256 * 1024),
    "bottleneck 64x56x56": 56 * 56 * (64 * 16 + 9 * 16 * 16 + 16 * 64),
    "bottleneck 224x28x28": 28 * 28 * (224 * 56 + 9 * 56 * 56 + 56 * 224),
    "inverted 24x56x56": 56 * 56 * (24 * 144 + 9 * 144 + 144 * 24),
    "inverted 16x112x112": 112 * 112 * (16 * 96 + 9 * 96 + 96 * 16),
    # its squeeze-excite has one position: 240 channels to 10 and back
    "mbconv 40x28x28": 28 * 28 * (40 * 240 + 25 * 240 + 240 * 40) + 2 * 240 * 10,
}


def test_the_nine_published_blocks_are_measured() -> None:
    assert set(PUBLISHED) == set(MACS)
    assert len(PUBLISHED) == 9
    for name, macs in MACS.items():
        assert count(BY_NAME[name].make()).total(1).flops == macs
        assert count(BY_NAME[name].make()).total(8).flops == 8 * macs


def test_names_are_unique_and_graphs_are_made_alike_each_time() -> None:
    assert len(BY_NAME) == len(BLOCKS)
    for block in BLOCKS:
        assert block.make() == block.make()
        assert sorted(set(block.batch_sizes)) == list(block.batch_sizes)
        assert block.batch_sizes[0] >= 1
    assert REFERENCE_BLOCK.make() == REFERENCE_BLOCK.make()


def test_about_a_hundred_points() -> None:
    assert 100 <= len(points()) <= 120
    assert len(points(BLOCKS)) + len(points(NETWORKS)) == len(points())
    assert 10 <= len(NETWORKS) <= 15


def test_networks_are_told_from_blocks() -> None:
    assert not any(b.whole for b in BLOCKS)
    assert all(b.whole for b in NETWORKS)
    assert len({b.name for b in (*BLOCKS, *NETWORKS)}) == len(BLOCKS) + len(NETWORKS)


def test_what_networks_are_made_of_is_among_the_blocks() -> None:
    """Else nothing would tell what it costs apart from the rest of the network."""
    kinds = {o.kind for _, _, g in points(BLOCKS) for o in g.operations}
    assert {o.kind for _, _, g in points(NETWORKS) for o in g.operations} <= kinds


def encoder_macs(tokens: int, features: int) -> int:
    """By hand: four products with weights, scores, weighted values, a perceptron four times as wide."""
    return 4 * tokens * features**2 + 2 * tokens**2 * features + 8 * tokens * features**2


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("2 encoders 197x192", 2 * encoder_macs(197, 192)),
        ("encoder 128x768", encoder_macs(128, 768)),
        ("encoder 64x256", encoder_macs(64, 256)),
        ("token mlp 3136x96", 3136 * 2 * 96 * 384),
        ("token mlp 784x192 relu", 784 * 2 * 192 * 768),
        ("depthwise 7x7 192x28x28", 28 * 28 * 49 * 192),
        ("mlp 2 x 4096", 2 * 4096 * 4096),
        # 2x2 from 64 to 32 channels, then 3x3 over what is twice as large, the skip beside it
        ("up transposed 64x56x56", 4 * 56 * 56 * 64 * 32 + 112 * 112 * 9 * 64 * 32),
        ("conv 3x3 512x14x14", 14 * 14 * 9 * 512 * 512),
    ],
)
def test_work_by_hand(name: str, macs: int) -> None:
    assert count(BY_NAME[name].make()).total(1).flops == macs


def test_the_coefficients_can_be_told_apart(record_property: pytest.RecordProperty) -> None:
    # Times as a plain roofline has them, so that this needs no measuring: 50 GMAC/s, 10 GB/s, 10 us.
    features = np.array([count(g).total(n)[: len(FEATURES)] for _, n, g in points()], float)
    acts, inp, flops, traffic, weights, ops = features.T
    times = flops / 5e7 + 4 * (acts + inp + traffic + weights) / 1e7 + ops * 0.01
    number = condition_number(np.column_stack([features, np.ones(len(features))]), times)
    record_property("condition_number", number)
    assert math.isfinite(number)
    assert number < 30, f"condition number {number:.1f}"


def test_no_block_takes_too_long_or_is_lost_in_the_call_overhead() -> None:
    for name, batch_size, graph in points():
        total = count(graph).total(batch_size)
        work = total.flops / 5e7 + 4 * (total.acts + total.inp + total.traffic) / 1e7
        assert 0.01 < work < 500, f"{name} x{batch_size}: {work:.2f} ms by the roofline"
