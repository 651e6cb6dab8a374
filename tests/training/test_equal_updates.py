"""Comparisons of trainings: the size of an update that nobody gave, and the command of the choice."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import lolat as package
from lolat.graph.modes import EAGER
from lolat.training.compare import with_update
from lolat.training.question import TrainingQuestion
from lolat.training.trained import read_question
from tests.cli.commands import Command
from tests.training.several import GPUS, HEAD, network

ON = "v100,a100,p4"


def test_without_a_batch_size_every_device_makes_the_same_update(lolat: Command, net: str) -> None:
    """256 samples, as in many recipes; one line says so, and how to have others."""
    ask = ("cost", net, "--on", ON, "--samples", 10**6)
    answers = lolat.json(*ask)["answers"]
    sizes = {
        option["devices"] * option["batch_size"] * cost["accumulate"]
        for cost in answers
        for option in cost["options"]
    }
    assert sizes == {256}
    lines = lolat.done(*ask).out.splitlines()
    (told,) = (line for line in lines if line.startswith("Every update has 256 samples (default)"))
    assert "--global-batch-size N" in told
    assert "--batch-size auto" in told
    for given in (("--global-batch-size", 512), ("--batch-size", "auto"), ("--batch-size", 64)):
        assert "Every update" not in lolat.done(*ask, *given).out
    python = package.compare(net, on=ON, samples=10**6)
    assert [cost.best.iteration_ms for cost in python.answers] == pytest.approx(
        [min(o["iteration_ms"] for o in [c["options"][0]]) for c in answers]
    )


def test_an_update_that_leaves_the_devices_host_bound_is_told_as_too_small(lolat: Command) -> None:
    """By the answers in JSON: 32 samples on each of 8 H100s; all 256 on one are enough."""
    ask = ("cost", "timm:resnet50", "--on", "h100,a100", "--samples", 10**6)
    for replicas in ("1", "1,8"):
        answers = lolat.json(*ask, "--replicas", replicas)["answers"]
        bound = {o["devices"] for c in answers if c["host_bound"] for o in c["options"]}
        assert bound == ({8} if "8" in replicas else set())
        out = lolat.done(*ask, "--replicas", replicas).out
        assert ("(default), too few for 8 devices (host-bound);" in out) == bool(bound)


@pytest.mark.parametrize(
    ("asked", "update"),
    [
        ({}, 256), ({"replicas": (1, 3)}, 255), ({"replicas": (1, 300)}, 300),
        ({"replicas": (7, 11, 13)}, 1001), ({"samples": 100}, 96), ({"samples": 7}, None),
        ({"replicas": (7, 9, 11, 13)}, None), ({"accumulate": 2}, None), ({"batch_size": 8}, None),
        ({"global_batch_size": 64}, 64),
    ],
)  # fmt: skip
def test_the_size_of_an_update_by_hand(asked: dict[str, Any], update: int | None) -> None:
    """All numbers of devices divide it, 1, 2, 4 and 8 if none are given; the data fills it."""
    question = TrainingQuestion(**{"replicas": (), **asked})
    found = with_update(question, read_question(network(), None))
    assert found.global_batch_size == update
    assert found.batch_size == asked.get(
        "batch_size", None if update and not question.global_batch_size else "auto"
    )


def test_one_device_without_a_batch_size_takes_the_smallest_fast_one() -> None:
    model = package.load("a100")
    found, auto = model.cost(network(), samples=10**6), model.cost(network(), "auto", samples=10**6)
    assert found.is_auto
    assert (found.batch_size, found.best.total_s) == (auto.batch_size, auto.best.total_s)


def test_updates_that_differ_are_told_beside_the_speed(lolat: Command, net: str) -> None:
    """Eight GPUs compute eight batches in an update."""
    ask = ("cost", "a100", net, "--batch-size", 64, "--samples", 10**6, "--replicas", "1,8")
    (line,) = (x for x in lolat.done(*ask).out.splitlines() if x.startswith("Fastest"))
    assert "times the price, with updates 8.00 times as large" in line


DECODER: tuple[Any, ...] = ("--sequence-length", 2048, "--tune", "lora:16", "--tokens", 10**8)
CHOICES: dict[str, tuple[Any, ...]] = {
    "default": ("NET", "--on", ON, "--samples", 10**6),
    "limits": ("NET", "--on", ON, "--samples", 10**6, "--epochs", 3, "--max-hours", 10, "--sure", 95),
    "coverage": ("NET", "--on", ON, "--samples", 10**6, "--coverage", 0.5),
    "layout": ("timm:resnet50", "--on", "rtx-3090,h100", "--samples", 10**5, "--optimizer", "adamw"),
    "compiled": ("timm:resnet50", "--on", "rtx-4090,t4", "--launch", "compiled", "--samples", 10**5),
    "several": ("NET", "--on", "v100", "--samples", 10**6, "--replicas", 4, "--batch-size", "32,64"),
    "list": ("NET", "--on", "v100,p4", "--samples", 10**6, "--prices", "LIST"),
    "checkpointing": ("llama-3.1-8b", "--on", "h100,a100", "--checkpointing", "none,full", *DECODER),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_the_last_line_gives_the_choice_again(
    name: str, lolat: Command, net: str, tmp_path: Path
) -> None:
    """A comparison ends with the command of its cheapest row: alone it has the same time and price."""
    prices = tmp_path / "a list.csv"
    prices.write_text(f"{HEAD}v,2,V100-32GB,1\np,1,P4,1\n")
    ask = (
        "cost",
        *(str(prices) if a == "LIST" else net if a == "NET" else a for a in CHOICES[name]),
    )
    found = lolat.json(*ask)["cheapest"]
    last = lolat.done(*ask).out.splitlines()[-1]
    assert last.startswith("In detail: lolat cost ")
    alone = lolat.answer(*shlex.split(last.removeprefix("In detail: lolat ")))
    (option,) = alone["options"]
    assert (option["total_s"], option["dollars"]) == pytest.approx(
        (found["total_s"], found["dollars"])
    )
    assert (alone["precision"], alone["launch"] or EAGER) == (
        found["precision"],
        found["launch"] or EAGER,
    )


def test_an_object_of_python_has_no_command() -> None:
    found = package.compare(network(), 64, on=[*GPUS], samples=10**6)
    assert "In detail" not in found.report()
