"""The predefined blocks and networks: what they cover, against what is published and counts by hand."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest

from lolat.graph import Graph
from lolat.graph.counts import FEATURES, count
from lolat.microbench import families as f
from lolat.microbench.blocks import BLOCKS, MBCONV, MOBILE, NETWORKS, Predefined

ROOT = Path(__file__).resolve().parent.parent.parent
BY_NAME = {b.name: b for b in (*BLOCKS, *NETWORKS)}


def points(blocks: tuple[Predefined, ...] = (*BLOCKS, *NETWORKS)) -> list[tuple[str, int, Graph]]:
    """(name, batch size, graph) of every point."""
    return [(b.name, n, g) for b in blocks for g in [b.make()] for n in b.batch_sizes]


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
    assert [b.name for b in BLOCKS[:9]] == list(MACS)


def test_about_a_hundred_measurements_of_their_own_names() -> None:
    assert 100 <= len(points()) <= 130
    assert 10 <= len(NETWORKS) <= 15
    told = (ROOT / "docs" / "how-to" / "measure.md").read_text(encoding="utf-8")
    assert f"measures {len(BLOCKS)} blocks and {len(NETWORKS)} whole networks" in told
    assert f"({len(points())} measurements; " in told
    assert len(BY_NAME) == len(BLOCKS) + len(NETWORKS)
    assert ({b.whole for b in NETWORKS}, {b.whole for b in BLOCKS}) == ({True}, {False})
    for block in BLOCKS:
        assert block.make() == block.make()
        assert sorted(set(block.batch_sizes)) == list(block.batch_sizes)
        assert block.batch_sizes[0] >= 1


def test_what_networks_are_made_of_is_among_the_blocks() -> None:
    """Else nothing would tell what it costs apart from the rest of the network."""
    kinds = {o.kind for _, _, g in points(BLOCKS) for o in g.operations}
    assert {o.kind for _, _, g in points(NETWORKS) for o in g.operations} <= kinds


def encoder_macs(tokens: int, features: int) -> int:
    """Four products with weights, scores, weighted values, a perceptron four times as wide."""
    return 4 * tokens * features**2 + 2 * tokens**2 * features + 8 * tokens * features**2


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        *MACS.items(),
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
    found = count(BY_NAME[name].make())
    assert (found.total(1).flops, found.total(8).flops) == (macs, 8 * macs)


def test_the_coefficients_can_be_told_apart(record_property: pytest.RecordProperty) -> None:
    # Times as a plain roofline has them, so that this needs no measuring: 50 GMAC/s, 10 GB/s, 10 us.
    features = np.array([count(g).total(n)[: len(FEATURES)] for _, n, g in points()], float)
    acts, inp, flops, traffic, weights, ops = features.T
    times = flops / 5e7 + 4 * (acts + inp + traffic + weights) / 1e7 + ops * 0.01
    relative = np.column_stack([features, np.ones(len(features))]) / times[:, None]
    number = float(np.linalg.cond(relative / np.linalg.norm(relative, axis=0)))
    record_property("condition_number", number)
    assert math.isfinite(number)
    assert number < 30, f"condition number {number:.1f}"


# ---- Whole networks


def parameters(graph: Graph) -> int:
    """Kernels, biases, and the two vectors of each normalisation, which our weights leave out."""
    norms = (o for o in graph.operations if o.kind in ("batch_norm", "layer_norm"))
    return count(graph).total().weights + sum(
        2 * graph.tensors[o.outputs[0]].shape[-1] for o in norms
    )


R50 = (3, 4, 6, 3)
mobile = functools.partial(f.inverted_network, 224, stem=32, last=1280)


@pytest.mark.parametrize(
    ("name", "large", "weights", "gmacs"),
    [
        ("residual 50 3x160x160", f.residual_network(224, R50), 25_557_032, 4.09),
        ("residual 34 3x128x128", f.residual_network(224, R50, False), 21_797_672, 3.66),
        ("grouped residual 50 3x128x128", f.residual_network(224, R50, groups=32), 25_028_904, 4.23),
        ("inverted 3x128x128", mobile(MOBILE, "relu6", False), 3_504_872, 0.30),  # MobileNetV2
        ("mbconv 3x160x160", mobile(MBCONV, "silu", True), 5_288_548, 0.39),  # EfficientNet-B0
        ("dense net 121 3x128x128", f.dense_network(224, (6, 12, 24, 16)), 7_978_856, 2.83),
        # ConvNeXt-T without its scales of layers and the norm in front of its classes: of 28,589,128
        ("convnext 3x128x128", f.convnext_network(224, (3, 3, 9, 3)), 28_580_968, 4.46),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)  # fmt: skip
def test_published_parameters_and_work(name: str, large: Graph, weights: int, gmacs: float) -> None:
    """The figures of torchvision (two digits behind the point); an image's size changes no weights."""
    assert parameters(BY_NAME[name].make()) == parameters(large) == weights
    assert count(large).total().flops == pytest.approx(gmacs * 1e9, abs=0.011e9)


def test_a_transformer_by_hand() -> None:
    """224 / 16 = 14: 196 tokens of 384, six heads of 64, eight times attention and a perceptron."""
    n, f = 196, 384
    attention = 4 * n * f * f + 2 * n * n * f
    perceptron = 2 * n * f * 4 * f
    found = count(BY_NAME["transformer 3x224x224"].make())
    total = found.total()
    assert total.flops == n * 3 * 16 * 16 * f + 8 * (attention + perceptron) + f * 1000
    dense = 8 * (4 * (f * f + f) + f * 4 * f + 4 * f + 4 * f * f + f)
    assert total.weights == 3 * 16 * 16 * f + f + dense + f * 1000 + 1000
    assert found.total(4).flops == 4 * total.flops
    assert found.total(4).weights == total.weights


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.name)
def test_it_is_a_whole_network(network: Predefined) -> None:
    """From an image of the size in its name to a thousand classes, or an image."""
    made = network.make()
    assert network.whole
    (given,), (out,) = made.shapes(made.inputs), made.shapes(made.outputs)
    channels, height, width = map(int, network.name.rsplit(" ", 1)[1].split("x"))
    assert given == (1, height, width, channels)
    assert out == ((1, 1000) if network.name[:5] != "u-net" else (1, height, width, 2))
    work = count(made).total(network.batch_sizes[0]).flops
    assert 10**8 < work < 4 * 10**9, "at 50 GMAC/s ten calls a second or more"
    used = {i for o in made.operations for i in o.inputs} | set(made.outputs)
    assert all(set(o.outputs) & used for o in made.operations), "nothing is computed for nobody"
