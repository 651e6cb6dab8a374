"""A prediction of one device carried over to several, by hand and through `lolat training predict`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lolat.cli.common import run
from lolat.cli.training import training
from lolat.training.exchange import Link
from lolat.training.replicas import ParallelPrediction, predict_parallel
from tests import synthetic
from tests.cli.commands import Command, Result
from tests.training.known_training import KnownTraining


def known(**more: Any) -> KnownTraining:
    """100 ms an iteration, 2 s an epoch's start, 40 MB of gradients."""
    return KnownTraining(epoch_ms=2000.0, gradients=40_000_000, **more)


def asked(
    model: KnownTraining, samples: int | None, devices: int, strategy: str = "ring", epochs: int = 3
) -> ParallelPrediction:
    link = Link(1.6, 5.0)  # 200,000 bytes per ms
    network = synthetic.network()
    return predict_parallel(
        model, network, 10, samples, epochs, "adam", 0.9, devices, link, strategy
    )


def test_four_devices_by_hand() -> None:
    found = asked(known(), 1001, 4).training
    # A ring of four: six steps of 10 MB, 5 + 50 ms each. Shares of 251 samples: 26 iterations.
    assert found.parts_ms["exchange"] == pytest.approx(330)
    assert found.iteration_ms == pytest.approx(430)
    assert (found.samples, found.iterations) == (1001, 26)
    assert found.epoch_s == pytest.approx(2 + 26 * 0.43)
    assert found.total_s == pytest.approx(3 * (2 + 26 * 0.43))
    more_s = 3 * 26 * 0.33  # at both ends of what a device alone takes, 4/5 and 5/4
    alone_s = found.total_s - more_s
    assert found.interval_s == pytest.approx((0.8 * alone_s + more_s, 1.25 * alone_s + more_s))


def test_a_last_batch_that_is_left_out() -> None:
    assert asked(known(drop_last=True), 1039, 4).training.iterations == 25


@pytest.mark.parametrize("strategy", ["ring", "tree", "one-to-all", "mirrored"])
def test_one_device_is_what_the_model_says(strategy: str) -> None:
    model, network = known(), synthetic.network()
    found = asked(model, 1000, 1, strategy)
    assert found.training == model.predict(network, 10, 1000, 3, "adam")


ASK = ("predict", "m.json", "n", "--batch-size", 10, "--samples", 1000)


class TrainingCommand(Command):
    """The group itself, as `lolat training`."""

    def __call__(self, *arguments: object) -> Result:
        self.capsys.readouterr()
        code = run(training, [str(a) for a in arguments], "lolat")
        return Result(code, *self.capsys.readouterr())


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("lolat.training.load_training", lambda _: known())
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    return TrainingCommand(capsys)


def test_the_command_answers_for_several_devices(lolat: Command) -> None:
    done = lolat(*ASK, "--replicas", 2, "--strategy", "tree", "--link-gbps", 0.32, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    # One level up, one down, each 5 microseconds and 1,000 ms.
    assert answer["parts_ms"]["exchange"] == pytest.approx(2000.01)
    assert answer["iteration_ms"] == pytest.approx(2100.01)
    assert answer["epoch_s"] == pytest.approx(2 + 50 * 2.10001)
    assert (answer["devices"], answer["strategy"], answer["link_gbps"]) == (2, "tree", 0.32)


def test_the_command_says_what_is_waited_for(lolat: Command) -> None:
    told = lolat(*ASK, "--replicas", 2, "--link-gbps", 0.32).out.splitlines()
    assert told[-1] == (
        "2 devices, a batch of 10 on each, gradients by ring over 0.32 Gbit/s: 1000 ms of an iteration"
    )
    assert "devices" not in lolat(*ASK).out


def test_the_command_says_what_is_hidden(lolat: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lolat.training.load_training",
        lambda _: known(times={"forward": 40.0, "backward": 60.0}),
    )
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network(width=256))
    options = ("--replicas", 2, "--link-gbps", 8)
    line = lolat(*ASK, *options).out.splitlines()[-1]
    assert line.endswith(" ms more are hidden by the backward pass (--no-overlap: none)")
    hiding = json.loads(lolat(*ASK, *options, "--json").out)
    hidden = json.loads(lolat(*ASK, *options, "--no-overlap", "--json").out)
    assert 0 < hiding["hidden_ms"] <= 60
    assert hidden["hidden_ms"] == 0
    assert hidden["iteration_ms"] > hiding["iteration_ms"]
    assert "hidden" not in lolat(*ASK, *options, "--no-overlap").out
    assert "hidden" not in lolat(*ASK, *options, "--strategy", "mirrored").out


@pytest.mark.parametrize("given", [(), ("--no-overlap",)])
def test_cost_passes_it_on(
    given: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def predict(*arguments: Any, overlap: bool, **more: Any) -> ParallelPrediction:
        found.append(overlap)
        return predict_parallel(*arguments, overlap=overlap, **more)

    monkeypatch.setattr("lolat.training.load_training", lambda _: known())
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    monkeypatch.setattr("lolat.api.training.predict_parallel", predict)
    done = Command(capsys)("cost", "m", "n", "--samples", 100, "--batch-size", 10, "--replicas", 2,
                           "--price-per-hour", 1, *given)  # fmt: skip
    assert (done.code, done.err) == (0, "")
    assert found == [not given]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--replicas", 0), "'0': expected a whole number from 1"),
        (("--replicas", 2, "--link-gbps", 0), "'0': expected a number of Gbit/s above 0"),
        (("--link-gbps", 0), "'0': expected a number of Gbit/s above 0"),
        (("--strategy", "star"), "'star' is not one of 'ring', 'tree'"),
        (("--replicas", 101), "batch of 10 on each of 101 devices is larger than the data set"),
    ],
)
def test_the_command_refuses(lolat: Command, options: tuple[object, ...], words: str) -> None:
    assert words in lolat.refused(*ASK, *options)
