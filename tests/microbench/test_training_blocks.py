"""What is measured to learn training: counts by hand, and the limits of batch sizes."""

from __future__ import annotations

import re

import pytest

from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from microbench import families as parts
from microbench.blocks import BLOCKS
from microbench.learn_training import (
    LARGE,
    MOST_ELEMENTS,
    MOST_FLOPS,
    TRAINING_BLOCKS,
    batch_sizes,
    is_unrolled,
    reads_image,
)

BY_NAME = {b.name: b for b in TRAINING_BLOCKS}


def test_they_are_the_predefined_blocks_and_five_more() -> None:
    assert len(BY_NAME) == len(TRAINING_BLOCKS) == len(BLOCKS) + 5
    assert {b.name for b in BLOCKS} < set(BY_NAME)


def test_counts_of_dense_layers_with_dropout_and_norm() -> None:
    found = count(parts.regularized(784, 512, 3)).total(1)
    products = 784 * 512 + 512 * 512 + 512 * 512 + 512 * 10
    assert found.flops == products
    assert found.weights == products + 3 * 512 + 10
    assert (found.acts, found.inp) == (0, 0)


def test_counts_of_a_small_vgg() -> None:
    found = count(parts.small_vgg(32, 32)).total(1)
    kernels = 9 * (3 * 32 + 32 * 32), 9 * (32 * 64 + 64 * 64)
    dense = 8 * 8 * 64 * 128 + 128 * 10
    assert found.flops == 32 * 32 * kernels[0] + 16 * 16 * kernels[1] + dense
    assert found.weights == sum(kernels) + 2 * 32 + 2 * 64 + dense + 128 + 10
    assert found.acts == 2 * 32 * 32 * 32 + 2 * 16 * 16 * 64
    assert found.inp == 32 * 32 * (3 + 32) + 16 * 16 * (32 + 64)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small vgg 3x32x32", (1, 64)),  # 64 times 25 M multiply-accumulates
        ("conv 1x1 320x7x7", (1, 64)),  # 64 times 20 M
        ("vgg 64x224x224", (1,)),  # 3.7 G already at 1
        ("head 2048x7x7", (1, 64)),
        ("max pool 3x3/2 64x112x112", (1, 64)),  # 64 times 1 M elements
        ("grouped 3x3 128x28x28", (1,)),
        ("depthwise 5x5/2 144x56x56", (1, 64)),
    ],
)
def test_the_largest_batch_that_the_limits_allow(name: str, expected: tuple[int, ...]) -> None:
    assert BY_NAME[name].batch_sizes == expected


@pytest.mark.parametrize("block", TRAINING_BLOCKS, ids=lambda b: b.name)
def test_no_block_is_beyond_the_limits_and_none_could_be_larger(block: object) -> None:
    graph: Graph = block.make()  # type: ignore[attr-defined]
    sizes: tuple[int, ...] = block.batch_sizes  # type: ignore[attr-defined]
    assert sizes[1:] in ((), *((n,) for n in LARGE))

    def fits(n: int) -> bool:
        found = count(graph).total(n)
        return found.flops <= MOST_FLOPS and found.acts + found.inp + found.traffic <= MOST_ELEMENTS

    grouped = any(o.kind == "grouped_conv" for o in graph.operations)
    larger = [n for n in LARGE if n > sizes[-1]]
    assert all(fits(n) for n in sizes[1:])
    assert not any(fits(n) for n in larger) or (grouped and sizes == (1,))


def convolution(groups: int) -> Graph:
    n = Layers.on("groups", 8, 8, 6)
    return n.done(n.conv(n.input, 6, 3, groups=groups))


def test_groups_of_several_channels_are_measured_at_one() -> None:
    assert batch_sizes(convolution(1)) == (1, 64)
    assert batch_sizes(convolution(3)) == (1,)
    assert [is_unrolled(o.attributes) for g in (1, 2, 3) for o in convolution(g).operations] == [
        False, True, True,
    ]  # fmt: skip
    assert not is_unrolled({"in_channels": 6, "groups": 6}), "a depthwise convolution is one kernel"
    assert not is_unrolled({"in_features": 6})


def test_which_blocks_read_an_image() -> None:
    entrances = {b.name for b in TRAINING_BLOCKS if reads_image(b.make())}
    assert entrances == {b.name for b in TRAINING_BLOCKS if re.search(r" 3x\d+x\d+$", b.name)}
    assert len(entrances) > 5
