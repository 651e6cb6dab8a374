"""The whole networks that are measured, against what is published of those that they are like."""

from __future__ import annotations

import pytest

from lolat.graph import Graph
from lolat.graph.counts import count
from microbench import families as f
from microbench.blocks import MBCONV, MOBILE, NETWORKS, Predefined

BY_NAME = {b.name: b for b in NETWORKS}

# Parameters that torchvision states of its networks, whose architectures these are; the size of the
# image changes none of them.
PUBLISHED = {
    "residual 50 3x160x160": 25_557_032,
    "residual 34 3x128x128": 21_797_672,
    "grouped residual 50 3x128x128": 25_028_904,  # 32 groups of 4
    "inverted 3x224x224": 3_504_872,  # MobileNetV2
    "inverted 3x128x128": 3_504_872,
    "mbconv 3x160x160": 5_288_548,  # EfficientNet-B0
    "dense net 121 3x128x128": 7_978_856,
    # ConvNeXt-T without its scales of layers and the norm in front of its classes
    "convnext 3x128x128": 28_589_128 - (3 * 96 + 3 * 192 + 9 * 384 + 3 * 768) - 2 * 768,
}


def parameters(graph: Graph) -> int:
    """Kernels, biases, and the two vectors of each normalisation, which our weights leave out."""
    norms = (o for o in graph.operations if o.kind in ("batch_norm", "layer_norm"))
    return count(graph).total().weights + sum(
        2 * graph.tensors[o.outputs[0]].shape[-1] for o in norms
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_it_has_the_parameters_of_the_published_network(name: str) -> None:
    assert parameters(BY_NAME[name].make()) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("graph", "macs"),
    [
        (f.residual_network(224, (3, 4, 6, 3)), 4.09e9),
        (f.residual_network(224, (3, 4, 6, 3), False), 3.66e9),
        (f.residual_network(224, (3, 4, 6, 3), groups=32), 4.23e9),
        (f.inverted_network(224, MOBILE, "relu6", False, 32, 1280), 0.30e9),
        (f.inverted_network(224, MBCONV, "silu", True, 32, 1280), 0.39e9),
        (f.dense_network(224, (6, 12, 24, 16)), 2.83e9),
        (f.convnext_network(224, (3, 3, 9, 3)), 4.46e9),
    ],
    ids=lambda v: v.name if isinstance(v, Graph) else "",
)
def test_at_the_published_size_it_has_the_published_work(graph: Graph, macs: float) -> None:
    """GMACs that torchvision states, of two digits behind the point."""
    assert count(graph).total().flops == pytest.approx(macs, abs=0.011e9)


def test_vgg_by_hand() -> None:
    layers = (  # positions, channels in, channels out
        (96 * 96, 3, 64), (48 * 48, 64, 128), (24 * 24, 128, 256), (24 * 24, 256, 256),
        (12 * 12, 256, 512), (12 * 12, 512, 512), (6 * 6, 512, 512), (6 * 6, 512, 512),
    )  # fmt: skip
    dense = ((3 * 3 * 512, 1024), (1024, 1000))
    found = count(BY_NAME["vgg 11 3x96x96"].make()).total()
    assert found.flops == sum(9 * n * i * o for n, i, o in layers) + sum(i * o for i, o in dense)
    assert found.weights == sum(9 * i * o + o for _, i, o in layers) + sum(
        i * o + o for i, o in dense
    )
    assert found.acts == sum(n * o for n, _, o in layers)
    assert found.inp == sum(n * i for n, i, _ in layers)
    # eight convolutions, each with relu; five pools; two dense layers, relu and softmax
    assert found.ops == 8 + 8 + 5 + 2 + 2


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


def test_a_u_net_by_hand() -> None:
    """Sizes 96, 48, 24, 12, 6; on the way up a 2x2 transposed convolution, then the skip beside it."""
    widths, sizes = (32, 64, 128, 256, 512), (96, 48, 24, 12, 6)
    macs, inside = 0, 3
    for width, size in zip(widths, sizes, strict=True):
        macs += 9 * size * size * (inside * width + width * width)
        inside = width
    for width, size in zip(widths[-2::-1], sizes[-2::-1], strict=True):
        macs += (
            4 * (size // 2) ** 2 * (2 * width) * width
        )  # each position to 2x2, from twice the width
        macs += 9 * size * size * (2 * width * width + width * width)
    graph = BY_NAME["u-net 3x96x96"].make()
    assert count(graph).total().flops == macs + 96 * 96 * 32 * 2
    assert graph.shapes(graph.outputs) == [(1, 96, 96, 2)]
    assert sum(o.kind == "concatenate" for o in graph.operations) == 4


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
