"""Shares and rates of the parts of the time, against sums by hand."""

from __future__ import annotations

import pytest

from lolat.api.model import Model, load
from lolat.device.summary import PART_OF_GROUP, rates_of
from lolat.graph.counts import COLUMNS, GROUPS
from tests import synthetic


def made(points: list[dict[str, int]], whole: list[bool], **cost: float) -> Model:
    """A model with these coefficients, whose points have these counts."""
    document = synthetic.document()
    document["predictors"]["extended"] = {"coefficients": cost}
    document["points"] = [
        {**dict.fromkeys(COLUMNS, 0), **counts, "name": f"p{i}", "batch_size": 1, "latency_ms": 1.0,
         "samples_ms": None, "whole": is_whole}
        for i, (counts, is_whole) in enumerate(zip(points, whole, strict=True))
    ]  # fmt: skip
    return Model(document)


COST = {"pointwise_macs": 1e-8, "flat_macs": 4e-8, "conv_reads": 2e-7, "conv_ops": 0.01, "serial": 0.03,
        "exps": 5e-6, "call": 1.0}  # fmt: skip
NETWORK = {
    "pointwise_macs": 200_000_000, "flat_macs": 25_000_000, "conv_reads": 10_000_000, "conv_ops": 100,
    "serial": 50, "exps": 200_000,
}  # fmt: skip
# ms:       2 and 1                                     2                         1      1.5, and 1 of exps


def test_by_hand() -> None:
    found = rates_of(made([NETWORK], [True], **COST))
    assert found is not None
    total = 2 + 1 + 1 + 2 + 1 + 1.5 + 1.0  # the last one: the call
    assert (found.computing, found.moving, found.starting) == pytest.approx(
        (4 / total, 2 / total, 3.5 / total)
    )
    assert found.gmacs_per_s == pytest.approx(0.225 / 4e-3)
    assert found.convolution_gmacs_per_s == pytest.approx(0.2 / 2e-3)
    assert found.gb_per_s == pytest.approx(10e6 * 4 / 1e9 / 2e-3)
    assert found.operation_us == pytest.approx(2.5e3 / 100)
    assert found.call_ms == 1.0


def test_networks_count_and_blocks_only_where_there_are_none() -> None:
    block = {"pointwise_macs": 10**12}
    both = rates_of(made([NETWORK, block], [True, False], **COST))
    assert both == rates_of(made([NETWORK], [True], **COST))
    alone = rates_of(made([block], [False], **COST))
    assert alone is not None
    assert alone.computing == pytest.approx(1.0, abs=1e-3)


def test_shares_are_of_the_mean_network() -> None:
    """One of computing alone, one of moving alone a thousand times as long."""
    found = rates_of(made(
        [{"pointwise_macs": 10**8}, {"conv_reads": 5 * 10**9}], [True, True],
        pointwise_macs=1e-8, conv_reads=2e-7, call=0.0,
    ))  # fmt: skip
    assert found is not None
    assert (found.computing, found.moving, found.starting) == pytest.approx((0.5, 0.5, 0.0))
    assert (found.operation_us, found.call_ms) == (None, 0.0)


def test_half_precision_moves_half_the_bytes() -> None:
    single, half = (made([NETWORK], [True], **COST) for _ in range(2))
    half.document["environment"]["half"] = True
    first, second = rates_of(single), rates_of(half)
    assert first is not None
    assert second is not None
    assert first.gb_per_s == pytest.approx(2 * (second.gb_per_s or 0))


def test_without_points_or_by_operation_there_are_no_rates() -> None:
    document = synthetic.document()
    assert rates_of(Model({**document, "points": []})) is None
    del document["predictors"], document["default"]
    assert rates_of(Model(document)) is None
    assert rates_of(load("rtx-4090-amp")) is None


def test_every_count_is_of_a_part() -> None:
    assert set(GROUPS.values()) == set(PART_OF_GROUP)
    found = rates_of(load("epyc-2t"))
    assert found is not None
    assert found.computing + found.moving + found.starting == pytest.approx(1.0)
