"""`lolat training link`, without measuring: tests/microbench has that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.cli.training import predict
from lolat.errors import MeasuringError
from lolat.model.file import read
from lolat.training.exchange import Link
from microbench import exchange
from microbench.environment import label_of
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
    lines = lolat.text("training", "link").splitlines()
    assert asked == [("mirrored", 2, None, "cpu")]
    assert lines[:3] == [
        "MirroredStrategy · 2 replicas of 1 thread · tensorflow 2.21.0",
        "desk",
        "link 8 Gbit/s · 0.250 ms a step · 0.125 ms a variable · 0.200 ms an iteration",
    ]
    # Two steps of 0.25 ms, a variable, and 4,096 bytes at a million a ms, beside what an iteration costs.
    assert [line.split() for line in lines[5:8]] == [
        ["0", "0", "B", "0.200", "ms", "0.200", "ms"],
        ["1", "4.00", "KiB", "1.00", "ms", "0.829", "ms"],
        ["8", "32.0", "MiB", "45.0", "ms", "35.3", "ms"],
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


def test_it_is_added_to_a_model_and_used_from_there(
    lolat: Command, asked: list[Any], model: Path
) -> None:
    before = json.loads(model.read_text())
    mine = before | {"environment": {"device": "cpu"}, "device": label_of("cpu", {})}
    model.write_text(json.dumps(mine))
    done = lolat.done("training", "link", "--output", model)
    assert done.out.splitlines()[-1].endswith(
        f"predict {model} NETWORK --batch-size N --replicas 2 --strategy mirrored"
    )
    after = json.loads(model.read_text())
    assert {k: v for k, v in after.items() if k != "links"} == mine
    assert after["links"]["mirrored"]["points"][1]["with_ms"] == [2.0, 2.0, 2.0]

    network = "generate:fc?layers=32&input=16"
    ask = ("training", "predict", model, network, "--batch-size", 8, "--replicas", 2)
    answers = (lolat.done(*ask, "--strategy", s, "--json").out for s in ("mirrored", "ring"))
    parts = [*map(json.loads, answers)]
    # A ring of two: two steps of 0.25 ms, each with half of the bytes at a million a ms; two dense layers
    # and a normalization between them, of two variables each; an iteration.
    size = 4 * (16 * 32 + 32 + 2 * 32 + 32 * 2 + 2)
    assert parts[0]["weights_bytes"] == size
    added = 2 * (0.25 + size / 2 / 1e6) + 6 * 0.125 + 0.2
    assert parts[0]["parts_ms"]["exchange"] == pytest.approx(added)
    assert parts[0]["link"] == "mirrored measured on 2 replicas"
    assert "measured" not in parts[1]["link"]  # of another strategy
    told = lolat.done(*ask, "--strategy", "mirrored").out
    assert "The link is assumed" not in told
    given = lolat.done(*ask, "--strategy", "mirrored", "--link-gbps", 1, "--json").out
    assert (json.loads(given)["link"], json.loads(given)["link_gbps"]) == (None, 1.0)

    cost = ("cost", model, network, "--samples", 800, "--batch-size", 8, "--replicas", "1,2,16")
    cost = (*cost, "--price-per-hour", 1, "--strategy", "mirrored")
    links = lolat.answer(*cost)["links"]
    assert [(i["devices"], "measured" in i["link"]) for i in links] == [(2, True), (16, False)]
    assert "mirrored over mirrored measured on 2 replicas, 8 Gbit/s (the model's)" in (
        lolat.done(*cost).out
    )


def test_a_model_of_another_device_is_refused_before_measuring(
    lolat: Command, asked: list[Any], model: Path
) -> None:
    content = model.read_bytes()
    assert "is a model of another device" in lolat.refused("training", "link", "--output", model)
    assert asked == []
    assert model.read_bytes() == content


def test_a_new_file_knows_the_link_alone(lolat: Command, asked: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    lolat.done("training", "link", "--strategy", "ddp", "--output", path)
    assert list(read(path)["links"]) == ["ddp"]
    assert "link by ddp on 2 replicas" in lolat.done("show", path).out
    said = lolat.refused("training", "predict", path, "generate:fc", "--batch-size", 8)
    assert f"{path} knows the link of ddp, but no training; add them with" in said


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
