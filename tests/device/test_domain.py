"""The measured domain: what is inside, and what is said of the rest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat.api.model import Model
from lolat.device.domain import (
    LARGER,
    SMALLER,
    Domain,
    Extrapolation,
    MeasuredMinimum,
    beyond_remarks,
    extrapolated_half_width,
)
from lolat.device.prediction import domain_words
from lolat.errors import InputError
from lolat.fitting.blocks import domain_of
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import FEATURES
from lolat.report.prediction import table_of_predictions
from lolat.report.tables import lines_of
from lolat.tables.blocks import Point
from tests import synthetic


def point(kinds: tuple[str, ...] = ("conv",), **counts: int) -> Point:
    whole = {"acts": 100, "inp": 100, "flops": 1000, "traffic": 200, "weights": 50, "ops": 4}
    return Point("a block", 1, whole | counts, 1.0, kinds=kinds)


def row(**counts: int) -> np.ndarray:
    return np.array([point(**counts).counts[c] for c in FEATURES], float)


# 400 elements each; 2.5 and 25 FLOPs per element; 100 and 50 elements per operation.
OWN = [point(), point(("conv", "memory traffic"), flops=10_000, ops=8)]
DOMAIN = domain_of(OWN)


def test_ranges_are_those_of_the_points() -> None:
    assert DOMAIN.ratios == {"FLOPs per element": (2.5, 25.0), "elements per operation": (50, 100)}
    assert DOMAIN.sizes == {"FLOPs": (1000, 10_000), "elements": (400, 400), "weights": (50, 50)}
    assert DOMAIN.kinds == {"conv", "memory traffic"}


@pytest.mark.parametrize(
    ("counts", "beyond"),
    [
        ({"flops": 20_000}, False),  # within the slack of two
        ({"flops": 400 * 2}, False),
        ({"flops": 0}, False),  # a block without any multiplication has no such ratio
        ({"flops": 20_400}, True),
        ({"flops": 400}, True),  # FLOPs per element
        ({"weights": 101}, True),
        ({"weights": 0}, False),  # small is no other thing
        ({"traffic": 601, "flops": 3000}, True),
        ({"ops": 17}, True),  # elements per operation
        ({"ops": 1}, True),
    ],
)
def test_a_block_is_judged_by_ratios_and_sizes(counts: dict[str, int], beyond: bool) -> None:
    assert DOMAIN.beyond(np.array([row(), row(**counts)])).tolist() == [False, beyond]


def test_blocks_are_judged_one_by_one_and_not_their_total() -> None:
    blocks = np.array([row()] * 50)
    assert not DOMAIN.beyond(blocks).any()
    assert DOMAIN.beyond(blocks.sum(axis=0, keepdims=True)).all()


def test_a_remark_counts_the_blocks_and_names_the_first() -> None:
    beyond = np.array([False, True, False, True])
    (remark,) = beyond_remarks(beyond, list("abcd"), np.array([0.01, 0.19, 0.3, 0.5]))
    assert remark.endswith("2 of 4 blocks, the first is 'b', 69 % of the time")
    assert beyond_remarks(beyond, list("abcd"), np.array([0.6, 0.005, 0.39, 0.005])) == ()


def chain_of(kinds: Sequence[str], dtype: str = "float32") -> Graph:
    b = GraphBuilder("a chain")
    x = b.input((1, 8, 8, 3))
    for kind in kinds:
        x = b.add(kind, [x], (1, 8, 8, 3), dtype=dtype)
    return b.build([x])


def remarks_on(domain: Domain, graph: Graph) -> list[str]:
    """The remarks on a network whose operations all take the same time."""
    kinds, dtypes = domain.unmeasured(graph)
    shares = np.full(len(graph.operations), 1 / len(graph.operations))
    return list(domain.unmeasured_remarks(kinds, dtypes, shares))


def test_kinds_and_types_that_were_not_measured() -> None:
    assert DOMAIN.unmeasured(chain_of(["conv", "relu", "max_pool", "flatten"])) == ({}, {})
    assert DOMAIN.unmeasured(chain_of(["conv"], "complex64")) == ({}, {0: "complex64"})
    assert DOMAIN.unmeasured(chain_of(["conv"], "int64")) == ({}, {})
    found = chain_of(["lstm", "gelu", "conv", "gelu"])
    assert DOMAIN.unmeasured(found) == ({0: "lstm", 1: "gelu", 3: "gelu"}, {})
    assert remarks_on(DOMAIN, found) == [
        "gelu, lstm take 75 % of the time, but no measured block has them"
    ]
    assert remarks_on(DOMAIN, chain_of(["conv", "lstm"], "float16")) == [
        "lstm takes 50 % of the time, but no measured block has it",
        "measured in float32, asked for float16",
    ]


@pytest.mark.parametrize("kind", ["resize", "sort", "roll", "unfold", "scatter", "trigonometric"])
def test_a_copy_that_was_timed_says_nothing_of_code_of_another_kind(kind: str) -> None:
    assert DOMAIN.unmeasured(chain_of(["relu", "transpose", kind]))[0] == {2: kind}
    assert domain_of([point(("conv", kind))]).unmeasured(chain_of([kind, "add"]))[0] == {
        1: "memory traffic"
    }


def test_points_whose_counts_do_not_tell_have_no_domain() -> None:
    """A ratio that no block has is left out too, as JSON has no such number."""
    assert domain_of([]) == domain_of(synthetic.measured(5, columns=FEATURES[:3])) == Domain()
    assert list(domain_of([point(flops=0)] * 2).ratios) == ["elements per operation"]


@given(
    st.floats(0.01, 2.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0),
    st.sampled_from([(0.9, 1.0), (0.1, 0.1256613 / 1.6448536), (0.99, 2.5758293 / 1.6448536)]),
)  # fmt: skip
def test_the_interval_is_wider_by_what_is_outside(
    half: float, a: float, b: float, sure: tuple[float, float]
) -> None:
    """Against the times of three parts, each off by as much as its own interval has it; the factor of what
    was not measured is of 90 %, for another coverage as the quantiles of tables of the normal distribution.
    """
    (coverage, share), outside, strange = sure, a, (1 - a) * b
    times = max(4 ** (share * (1 + strange)), np.exp(2 * half))  # what was not measured is off by
    inside = 1 - outside - strange
    slowest = inside * np.exp(half) + outside * np.exp(2 * half) + strange * times
    found = extrapolated_half_width(half, Extrapolation(outside, strange), coverage)
    assert found == pytest.approx(np.log(slowest))
    assert half <= found * (1 + 1e-9)
    fastest = inside * np.exp(-half) + outside * np.exp(-2 * half) + strange / times
    assert np.exp(-found) <= fastest * (1 + 1e-9)


# ---- as a prediction says it ---------------------------------------------------------------------

MODEL = Model(synthetic.document(), "my models/desk.json")


def test_a_prediction_outside_says_how_to_fit_the_network_in() -> None:
    inside = MODEL.predict(synthetic.network())
    assert (inside.in_domain, inside.warnings) == (True, ())
    outside = MODEL.predict(synthetic.network(width=4096, size=224), 2)
    assert outside.in_domain is False
    command = "lolat fit 'my models/desk.json' timed.csv --output mine.json"
    assert outside.warnings[-1].endswith(command)


def test_a_time_does_not_help_with_a_kind_without_a_formula() -> None:
    x = 4096
    graph = synthetic.one("teleport", [(1, x, x, 9)], [(1, x, x, 9)])
    found = MODEL.predict(graph)
    assert found.in_domain is False
    assert not [w for w in found.warnings if "lolat fit" in w]


def test_below_the_smallest_step_of_a_table() -> None:
    """Times below the minimum by more than SLACK; an operation takes its share of the step."""
    minimum = MeasuredMinimum(latency_ms=8.0, operation_ms=0.1)
    assert minimum.remark(1, 8.0, 80) == ""
    smaller = f"{SMALLER}: it takes 0.500 ms; 99 in 100 timed ones took 8 ms or more"
    assert minimum.remark(1, 0.5, 1) == smaller
    smaller = f"{SMALLER}: an operation takes 0.001 ms; 99 in 100 timed ones took 0.1 ms or more"
    assert minimum.remark(1, 8.0, 8000) == smaller
    assert MeasuredMinimum().remark(1, 1e-9, 1) == ""


def test_the_time_of_a_small_network_is_that_of_the_answer() -> None:
    """With the waits for its host; if that is no longer small, the time without them."""
    minimum = MeasuredMinimum(latency_ms=8.0)
    assert "it takes 0.700 ms;" in minimum.remark(1, 0.5, 1, with_host_ms=0.7)
    assert "without waiting for its host, 0.500 ms;" in minimum.remark(1, 0.5, 1, with_host_ms=9.0)


def test_a_network_of_other_products_than_the_timed_ones() -> None:
    """A 3x3 convolution and a dense layer of its size, against networks with a fifth in dense layers."""
    b = GraphBuilder("half")
    x = b.add(
        "conv", [b.input((1, 4, 4, 8))], (1, 4, 4, 8), kernel=(3, 3), strides=(1, 1), dilation=(1, 1),
        padding="same", in_channels=8, out_channels=8, groups=1, bias=False,
    )  # fmt: skip
    flat = b.add("flatten", [x], (1, 128))
    of_dense = 4 * 4 * 8 * 8 * 9 // 128
    graph = b.build(
        [b.add("dense", [flat], (1, of_dense), in_features=128, out_features=of_dense, bias=False)]
    )
    like = {"spatial_macs": 1.0, "flat_macs": 0.3}
    most = {**dict.fromkeys(like, 0.0), "spatial_macs": 1.0, "flat_macs": 0.2}
    inside, outside = (
        Model(synthetic.document(domain={"shares": shares})).predict(graph)
        for shares in (like, most)
    )
    assert (inside.in_domain, inside.inside_share, inside.warnings) == (True, 1.0, ())
    assert outside.inside_share == pytest.approx(1 - (0.5 - 2 * 0.2))
    assert "dense layers 50 % (there at most 20 %)" in outside.warnings[0]
    (low, high), (least, greatest) = inside.interval_ms or (0, 0), outside.interval_ms or (0, 0)
    half = np.log(high / low) / 2
    wide = np.log(0.9 * np.exp(half) + 0.1 * np.exp(np.hypot(half, np.log(2))))
    assert np.log(greatest / least) / 2 == pytest.approx(wide, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_networks_of_another_data_type_than_a_table_of_a_cpu(dtype: str) -> None:
    """1,135 networks were timed in float32 alone: every question of another type is outside."""
    cpu, graphs = lolat.load("i9-10940x-compiled"), []
    for each in ("float32", dtype):
        b = GraphBuilder("dense")
        x = b.input((1, 64), dtype=each)
        y = b.add("dense", [x], (1, 64), dtype=each, in_features=64, out_features=64, bias=False)
        graphs.append(b.build([y]))
    usual, other = graphs
    told = f"measured in float32, asked for {dtype}"
    found = cpu.predict(other)
    for answer in (
        found,
        cpu.explain(other).prediction,
        cpu.budget(other, 50, "batch").best.prediction,
    ):
        assert told in answer.warnings
        assert answer.in_domain is False
    assert told in cpu.cost(other, 8).warnings
    assert told not in cpu.predict(usual).warnings
    low, high = cpu.predict(usual).interval_ms or (0, 0)
    assert (found.interval_ms or (1, 0))[0] < low
    assert (found.interval_ms or (1, 0))[1] > high


def test_batches_beyond_those_of_a_table_of_a_cpu() -> None:
    """Networks were timed at batch 1 alone: from 2 on a question is outside, with a factor of two more."""
    known, graph = lolat.load("i7-12700h-compiled"), synthetic.network()
    cpu = lolat.Model(known.file.document | {"domain": {}}, "i7-12700h-compiled")
    told = f"{LARGER}: batch 2 (measured: 1 or less)"
    inside, outside = cpu.predict(graph, 1), cpu.predict(graph, 2)
    assert (told in inside.warnings, told in outside.warnings) == (False, True)
    assert (inside.in_domain, outside.in_domain) == (None, False)
    assert domain_words(inside) == "the measured range is known by batch alone: 1"
    *_, first, second, _ = lines_of(table_of_predictions([inside, outside]))
    assert "by batch alone" in first
    assert "outside: large" in second
    halves = [np.log(high / low) / 2 for low, high in (inside.interval_ms, outside.interval_ms)]
    assert halves[1] == pytest.approx(np.hypot(halves[0], np.log(2)), rel=0.02)


def convolutions(kernel: tuple[int, ...], size: tuple[int, ...]) -> Graph:
    b = GraphBuilder("convolutions", "torch")
    x = b.input((1, 64, *size))
    shape = b.tensors[x].shape
    for _ in range(4):
        channels = {"in_channels": 64, "out_channels": 64, "groups": 1}
        x = b.add("conv", [x], shape, kernel=kernel, bias=False, **channels)
    return b.build([x])


def test_only_convolutions_over_two_dimensions_lie_channels_last() -> None:
    """torch.channels_last "required rank 4 tensor" (PyTorch's error); others keep their layout."""
    device, last = lolat.load("rtx-3090-amp"), lolat.load("rtx-3090-amp-nhwc")
    sizes = {(9,): (4096,), (3, 9): (32, 1024), (3, 3, 3): (32, 32, 32)}
    for kernel, size in sizes.items():
        graph, has_images = convolutions(kernel, size), len(kernel) == 2
        offered = {change.kind for change in device.explain(graph, 64).counterfactuals}
        assert has_images or "channels_last" not in offered
        answer = device.cost(graph, 64, precision="best")
        assert has_images or not answer.channels_last
        told = "cannot be in PyTorch" in " ".join(last.predict(graph, 64).warnings)
        assert told is not has_images
        if has_images:
            assert device.predict(graph, 64, channels_last=True).latency_ms > 0
        else:
            with pytest.raises(InputError, match="no images to lay"):
                device.predict(graph, 64, channels_last=True)


def test_convolutions_in_three_dimensions_are_outside_on_a_gpu_that_timed_those_in_two() -> None:
    """In inference and in training; the same products in two dimensions are inside."""
    device = lolat.load("rtx-3090-amp")
    sizes = {(3, 9): (32, 1024), (3, 3, 3): (32, 32, 32)}
    for kernel, size in sizes.items():
        is_inside = len(kernel) == 2
        graph = convolutions(kernel, size)
        told = "no convolution or pool in three dimensions was timed"
        found = device.predict(graph, 16)
        assert (told in " ".join(found.warnings)) is not is_inside
        assert is_inside or found.inside_share == pytest.approx(0, abs=1e-9)
        run = device.cost(graph, 16)
        assert (told in " ".join(run.warnings)) is not is_inside
