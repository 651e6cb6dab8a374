"""`lolat training link`, without measuring: tests/microbench has that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lolat.cli.training import predict
from lolat.errors import MeasuringError
from lolat.training.exchange import Link
from microbench import exchange
from microbench.exchange import ExchangePoint, MeasuredLink
from tests.cli.commands import Command

POINTS = (
    ExchangePoint(0, 0, (0.1,), (0.3,)),
    ExchangePoint(1, 4096, (1.0, 1.0, 9.0), (2.0, 2.0, 2.0)),
    ExchangePoint(8, 32 * 2**20, (5.0,), (50.0,)),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []

    def measure(strategy: str, replicas: int, threads: int | None, device: str) -> MeasuredLink:
        found.append((strategy, replicas, threads, device))
        where = {"device": "desk", "framework": "tensorflow", "framework_version": "2.21.0"}
        said = ("they wait for one another",) if replicas > 2 else ()
        return MeasuredLink(
            strategy, device, replicas, threads or 1, Link(8, 0.25), 0.125, 0.2, 0.1, POINTS, where,
            said,
        )  # fmt: skip

    monkeypatch.setattr(exchange, "measure_link", measure)
    return found


def test_people_read_lines(lolat: Command, asked: list[Any]) -> None:
    done = lolat("training", "link")
    assert (done.code, done.err) == (0, "")
    assert asked == [("mirrored", 2, None, "cpu")]
    lines = done.out.splitlines()
    assert lines[:3] == [
        "MirroredStrategy · 2 replicas of 1 thread · tensorflow 2.21.0",
        "desk",
        "link 8 Gbit/s · 0.250 ms a step · 0.125 ms a variable · 0.200 ms an iteration",
    ]
    # Two steps of 0.25 ms, a variable, and 4,096 bytes at a million a ms, beside what an iteration costs.
    assert [line.split() for line in lines[5:8]] == [
        ["0", "0", "KiB", "0.200", "ms", "0.200", "ms"],
        ["1", "4", "KiB", "1.00", "ms", "0.829", "ms"],
        ["8", "32", "MiB", "45.0", "ms", "35.3", "ms"],
    ]
    assert lines[-1].endswith("--replicas 2 --strategy mirrored --link-gbps 8")
    assert max(map(len, lines[:-1])) <= 80


def test_json_has_what_predict_takes(lolat: Command, asked: list[Any]) -> None:
    done = lolat("training", "link", "--backend", "torch", "--replicas", 4, "--threads", 2,
                 "gpu", "--json")  # fmt: skip
    assert asked == [("ddp", 4, 2, "gpu")]
    answer = json.loads(done.out)
    assert (answer["gbps"], answer["latency_ms"], answer["fixed_ms"]) == (8, 0.25, 0.2)
    assert (answer["variable_ms"], answer["replicas"], answer["threads"]) == (0.125, 4, 2)
    assert answer["points"][1]["with_ms"] == [2.0, 2.0, 2.0]
    assert done.err == "lolat: warning: they wait for one another\n"


def test_what_predict_is_told_next_is_a_strategy_of_it(lolat: Command, asked: list[Any]) -> None:
    last = lolat("training", "link", "--backend", "torch").out.splitlines()[-1]
    given = last.partition("predict MODEL NETWORK ")[2].replace(" N ", " 8 ").split()
    parsed = predict.make_context("predict", ["m", "n", *given]).params
    assert (parsed["strategy"], parsed["replicas"], parsed["link_gbps"]) == ("ring", 2, 8.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--backend", "jax"), "'jax' is not one of 'tensorflow', 'torch'"),
        (("--replicas", 1), "1 replicas have nothing to exchange"),
        (("--replicas", 0), "'0': expected a whole number from 1"),
        (("--threads", 0), "'0': expected a whole number from 1"),
        (("tpu",), "'tpu' is not one of 'cpu', 'gpu'"),
    ],
)
def test_wrong_calls_are_refused(lolat: Command, options: tuple[object, ...], words: str) -> None:
    assert words in lolat.refused("training", "link", *options)


def test_a_dead_process_is_one_line(lolat: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise MeasuringError("a measuring process was killed")

    monkeypatch.setattr(exchange, "measure_link", dies)
    assert lolat.refused("training", "link", code=1).endswith("a measuring process was killed")
