"""Better ways to run a training are told whichever way the question is put."""

from __future__ import annotations

from typing import Any

import pytest

import lolat as package
from lolat.api.asking import train_on
from lolat.report.cost import cost_lines, costs_lines
from lolat.report.tables import lines_of
from lolat.units import dollars, percent
from tests.training.several import network

LLAMA = {"sequence_length": 4096, "tune": "lora:16", "checkpointing": "full"}
WAYS = {
    "precision": ("a100-fp32", network(), 64, {}, "--precision best"),
    "layout": ("a100-sxm-80gb", network(), 64, {"precision": "amp"}, "--channels-last"),
    "launch": ("h100", "timm:mobilenetv3_small_100", 1, {"precision": "amp"}, "--launch graph"),
    "checkpointing": ("h100-vllm", "llama-3.1-8b", 4, LLAMA, "--checkpointing none"),
}
"""What is better -> a device, a network, a batch size, the question, the option that is told."""


def told(lines: list[str]) -> list[str]:
    starts = "In ", "Without checkpointing"
    return [line for line in lines if line.startswith(starts)]


@pytest.mark.parametrize("way", WAYS)
def test_a_list_and_a_global_batch_tell_the_better_ways_of_one_question(way: str) -> None:
    """A list's first size, and a global batch on one device, are the question with one size."""
    device, of, size, asked, option = WAYS[way]
    model = package.load(device)
    alone = told(lines_of(cost_lines(model.cost(of, size, **asked))))
    assert any(option in line for line in alone)
    forms: dict[str, dict[str, Any]] = {
        "list": {"batch_size": [size, 2 * size]},
        "global": {"batch_size": size, "global_batch_size": size, "replicas": 1},
    }
    if way != "checkpointing":
        forms["ways"] = {"batch_size": size, "checkpointing": ["none", "full"]}
    for name, form in forms.items():
        lines = lines_of(costs_lines(model.cost(of, **{**asked, **form})))
        assert told(lines) == alone, name


@pytest.mark.parametrize("more", [{}, {"max_dollars": 12.0}])
def test_a_decoder_that_costs_less_sharded_says_so(more: dict[str, Any]) -> None:
    """By the same question with FSDP; its own answer, and one that is asked as sharded, say nothing."""
    ask = {"sequence_length": 2048, "tokens": 1e8, "on": "b200,h100"} | more
    ask |= {"global_batch_size": 256, "replicas": (1, 8)}
    found = package.compare("llama-3.1-8b", "auto", **ask)
    sharded = package.compare("llama-3.1-8b", "auto", **ask, sharding="fsdp")
    assert sharded.cheapest is not None
    assert sharded.cheapest.sharding == "fsdp"
    assert not sharded.better_memory
    lines = [*lines_of(costs_lines(found))]
    told = [line for line in lines if line.startswith("  with --sharding fsdp: ")]
    if found.cheapest is None:
        assert (told, found.better_memory, found.offer) == ([], {}, sharded.cheapest)
        return
    saved = 1.0 - (sharded.cheapest.dollars or 0.0) / (found.cheapest.dollars or 0.0)
    assert saved > 0.1
    assert found.better_memory["cheapest"] == sharded.cheapest
    assert lines[2] == told[0]
    assert told[0].endswith(
        f" {dollars(sharded.cheapest.dollars or 0.0)}, {percent(saved)} cheaper"
    )


def test_a_decoder_that_fits_sharded_alone_says_what_that_costs() -> None:
    """By the same question with FSDP; one that fits nowhere sharded either has no offer."""
    ask: dict[str, Any] = {"sequence_length": 2048, "tokens": 1e8}
    found = train_on("llama-3.1-8b", None, ["h100", "a100"], **ask)
    sharded = train_on("llama-3.1-8b", None, ["h100", "a100"], **ask, sharding="fsdp")
    assert found.no_room
    assert sharded.cheapest is not None
    assert found.offer == sharded.cheapest
    assert found.better_memory == {}
    lines = [*lines_of(costs_lines(found))]
    usd = dollars(sharded.cheapest.dollars or 0.0)
    told = [line for line in lines if line.startswith("It fits with --sharding fsdp (")]
    assert [line.endswith(f", {usd})") for line in told] == [True]
    small = train_on("llama-3.1-8b", None, ["l4"], **ask | {"sequence_length": 16384})
    assert (bool(small.no_room), small.offer) == (True, None)
