"""Generated networks: the string, and networks whose layers are counted by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from lolat.readers import open_network
from lolat.readers.generated import FAMILIES, build, parse

# ---- the string ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("vgg?layers=2,2,3&filters=64,128,256&hidden=100&input=128&output=10",
         {"layers": (2, 2, 3), "filters": (64, 128, 256), "hidden": (100,), "input": (128,),
          "output": (10,)}),
        ("VGG?layers=1,1,1", {"layers": (1, 1, 1), "filters": (16, 32, 64)}),
        ("vgg?filters=8,9", {"layers": (2, 2), "filters": (8, 9)}),
        ("resnet", {"layers": (3, 3, 3, 3), "small": (False,), "hidden": (100,), "input": (128,)}),
        ("resnet?small=true&hidden=none", {"small": (True,), "hidden": ()}),
        ("inception?layers=2,2&f1=1,2", {"layers": (2, 2), "f1": (1, 2), "f2_in": (128,)}),
        ("fc?layers=30,20&dropout=none&input_dropout=0",
         {"layers": (30, 20), "input": (128,), "dropout": (), "input_dropout": (0,)}),
    ],
)  # fmt: skip
def test_what_a_string_says(spec: str, expected: dict[str, Any]) -> None:
    family, values = parse(spec)
    assert family == spec.partition("?")[0].lower()
    assert values == FAMILIES[family] | expected


def test_an_input_size_takes_the_place_of_the_input() -> None:
    for size, shape in ((96,), (96, 96, 3)), ((96, 64), (96, 64, 3)), ((96, 64, 1), (96, 64, 1)):
        graph = lolat.read("generate:vgg?input=32", size)
        assert graph.tensors[0].shape == (1, *shape)
        assert graph.name == "vgg?input=32"
    assert lolat.read("generate:fc", 64).tensors[0].shape == (1, 64)


@pytest.mark.parametrize(
    "spec",
    ["vg", "vgg?layer=2", "fc?filters=2", "vgg?layers=2,x", "vgg?layers=" + "[" * 200_000,
     "vgg?hidden=1.5", "vgg?output=1,2", "vgg?output=none", "resnet?small=5", "fc?dropout=true",
     "vgg?layers=2,2,2&filters=8,9", "vgg?filters=-8", "resnet?input=4", "vgg?input=1,2,3,4"],
)  # fmt: skip
def test_what_is_wrong(spec: str) -> None:
    with pytest.raises(NetworkError) as caught:
        build(*parse(spec))
    assert str(caught.value).isprintable()


# ---- the networks --------------------------------------------------------------------------------


def learned(inputs: int, outputs: int, kernel: int = 1, norm: bool = True) -> int:
    """Trainable weights of a layer with bias, and of the normalization after it."""
    return kernel**2 * inputs * outputs + outputs + (2 * outputs if norm else 0)


def bottleneck(before: int, filters: int, shortcut: bool) -> int:
    """Trainable weights of a bottleneck."""
    inner = learned(before, filters) + learned(filters, filters, 3) + learned(filters, 4 * filters)
    return inner + (learned(before, 4 * filters) if shortcut else 0)


def plain(before: int, filters: int) -> int:
    """Trainable weights of a small stage of one block: with a shortcut, and the one more."""
    first = learned(before, filters, 3) + learned(before, filters)
    return first + 3 * learned(filters, filters, 3)


HAND = {
    # 8x8 images; 4x4 after the first pooling, 2x2 after the second
    "vgg?layers=2,1&filters=4,8&hidden=10&input=8&output=3": (
        64 * 9 * 3 * 4 + 64 * 9 * 4 * 4 + 16 * 9 * 4 * 8 + 4 * 8 * 10 + 10 * 3,
        (3 * 9 * 4 + 4 + 8) + (4 * 9 * 4 + 4 + 8) + (4 * 9 * 8 + 8 + 16) + 330 + 33,
    ),
    "fc?layers=6,5&input=4&output=3": (
        4 * 6 + 6 * 5 + 5 * 3, (4 * 6 + 6 + 12) + (6 * 5 + 5 + 10) + (5 * 3 + 3)),
    # 32 -> 16 (stem) -> 7 (pooling without padding) -> 4 -> 2 -> 1
    "resnet?layers=1,2,1,1&input=32&hidden=10&output=3": (
        256 * 49 * 3 * 64
        + 49 * (64 * 64 + 9 * 64 * 64 + 64 * 256 + 64 * 256)
        + 16 * (256 * 128 + 9 * 128 * 128 + 128 * 512 + 256 * 512)
        + 16 * (512 * 128 + 9 * 128 * 128 + 128 * 512)
        + 4 * (512 * 256 + 9 * 256 * 256 + 256 * 1024 + 512 * 1024)
        + 1 * (1024 * 512 + 9 * 512 * 512 + 512 * 2048 + 1024 * 2048) + 2048 * 10 + 10 * 3,
        learned(3, 64, 7) + bottleneck(64, 64, True) + bottleneck(256, 128, True)
        + bottleneck(512, 128, False) + bottleneck(512, 256, True) + bottleneck(1024, 512, True)
        + learned(2048, 10, norm=False) + learned(10, 3, norm=False),
    ),
    "resnet?layers=1,1,1,1&input=32&hidden=none&output=3&small=true": (
        256 * 49 * 3 * 64
        + 49 * (9 * 64 * 64 * 4 + 64 * 64)
        + 16 * (9 * 64 * 128 + 9 * 128 * 128 * 3 + 64 * 128)
        + 4 * (9 * 128 * 256 + 9 * 256 * 256 * 3 + 128 * 256)
        + 1 * (9 * 256 * 512 + 9 * 512 * 512 * 3 + 256 * 512) + 512 * 3,
        learned(3, 64, 7) + plain(64, 64) + plain(64, 128) + plain(128, 256) + plain(256, 512)
        + learned(512, 3, norm=False),
    ),
    # 15 -> 5 (7x7, no padding) -> 3 -> 2, blocks of 2x2, -> 1; the second block's input is 2+4+6+7
    "inception?layers=2&f1=2&f2_in=3&f2_out=4&f3_in=5&f3_out=6&f4_out=7&input=15&hidden=10&output=3": (
        25 * 49 * 3 * 64
        + 9 * (64 * 128 + 9 * 128 * 192)
        + 4 * (192 * 2 + 192 * 3 + 9 * 3 * 4 + 192 * 5 + 25 * 5 * 6 + 192 * 7)
        + 4 * (19 * 2 + 19 * 3 + 9 * 3 * 4 + 19 * 5 + 25 * 5 * 6 + 19 * 7) + 19 * 10 + 10 * 3,
        learned(3, 64, 7) + learned(64, 128) + learned(128, 192, 3)
        + sum(learned(n, 2) + learned(n, 3) + learned(3, 4, 3) + learned(n, 5) + learned(5, 6, 5)
              + learned(n, 7) for n in (192, 19))
        + learned(19, 10, norm=False) + learned(10, 3, norm=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "macs", "weights"), [(k, *v) for k, v in HAND.items()])
def test_counts_by_hand(spec: str, macs: int, weights: int) -> None:
    made = open_network(f"generate:{spec}")
    assert count(made.graph()).total().flops == macs
    assert sum(math.prod(w.shape) for w in made.model.trainable_weights) == weights


def kinds(spec: str) -> str:
    return " ".join(o.kind for o in lolat.read(f"generate:{spec}").operations)


def test_the_order_of_the_layers() -> None:
    assert kinds("vgg?layers=2&hidden=5&input=8") == (
        "conv relu batch_norm conv relu batch_norm max_pool reshape dense relu dense softmax"
    )
    assert kinds("fc") == "dropout dense relu dropout batch_norm dense softmax"
    assert kinds("fc?dropout=none&input_dropout=none") == "dense relu batch_norm dense softmax"
    residual = "conv relu batch_norm conv relu batch_norm conv batch_norm"
    assert kinds("resnet?layers=2,1,1,1").split(" add ")[1].startswith(f"relu {residual}")


def test_a_network_of_every_family_runs_on_any_channels() -> None:
    import numpy as np

    for spec in (
        "vgg?layers=1&input=8,10,2&output=4",
        "resnet?layers=1,1,1,1&small=true&input=5,6,1&output=4",
        "inception?layers=1&input=7,9,1&output=4",
        "fc?layers=3,3&input=9&output=4",
    ):
        network = open_network(f"generate:{spec}", weights=True).model
        answer = network(np.zeros((2, *network.input_shape[1:]), "float32"), training=True)
        assert answer.shape == (2, 4)
        assert np.allclose(np.sum(answer, axis=1), 1, atol=1e-5)
