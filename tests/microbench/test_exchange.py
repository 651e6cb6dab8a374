"""The link out of timed exchanges, by hand; and exchanges of real replicas on this machine's processors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lolat.errors import DeviceError, InputError, MeasuringError
from microbench import environment
from microbench.exchange import (
    CACHED,
    GRADIENTS,
    STRATEGIES,
    ExchangePoint,
    fit_link,
    joined,
    measure_link,
)
from microbench.timing import REPLICA_CALLS as CALLS
from microbench.timing import REPLICA_ROUNDS as ROUNDS
from microbench.worker import run_together
from tests.microbench import replica_calls

MIB = 2**20
FRAMEWORK = {"framework": "fake", "framework_version": "1"}


def added(replicas: int, variables: int, size_bytes: int, messages: int = 1) -> float:
    """0.5 ms an iteration, 0.1 a step, 0.01 a variable, 1 ms for each 1,000,000 bytes sent."""
    if not variables:
        return 0.5
    steps = 2 * (replicas - 1)
    sent = steps * size_bytes / replicas
    return 0.5 + messages * steps * 0.1 + 0.01 * variables + sent / 1e6


def point(variables: int, size_bytes: int, added_ms: float) -> ExchangePoint:
    without = (3.0, 1.0, 2.0)
    return ExchangePoint(variables, size_bytes, without, tuple(t + added_ms for t in without))


class Together:
    """Processes that take known times, and what they were asked."""

    def __init__(self, ms: Any = added, spread: float = 0.0) -> None:
        self.ms, self.spread = ms, spread
        self.call, self.requests = "", [{}]

    def __call__(
        self, call: str, requests: Sequence[Mapping[str, Any]], limit_s: float
    ) -> list[Any]:
        self.call, self.requests = call, [dict(r) for r in requests]
        answers = []
        for rank, request in enumerate(requests):
            gradients = request["gradients"]
            with_ms = [
                [
                    (1 + self.ms(request["replicas"], v, b) - 0.1 * rank)
                    * (1 + self.spread * (-1) ** i)
                ]
                * 3
                for i, (v, b) in enumerate(gradients)
            ]
            without = [[1.0 - 0.1 * rank] * 3 for _ in gradients]
            answers.append({"with_ms": with_ms, "without_ms": without, "environment": FRAMEWORK})
        return answers


@pytest.fixture(autouse=True)
def four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cpu_count", lambda: 4)


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_the_line_that_times_follow_is_found(replicas: int) -> None:
    points = [point(v, b, added(replicas, v, b)) for v, b in GRADIENTS]
    link, variable_ms, fixed_ms, error = fit_link("mirrored", points, replicas)
    assert link.gbps == pytest.approx(8, rel=1e-3)  # 1,000,000 bytes a ms
    assert link.latency_ms == pytest.approx(0.1, rel=1e-2)
    assert variable_ms == pytest.approx(0.01, rel=1e-2)
    assert fixed_ms == pytest.approx(0.5)
    assert error < 1e-3


@pytest.mark.parametrize(
    ("factor", "rel"),
    [
        (lambda v, b: 0.6 if CACHED[0] < b < CACHED[1] else 1.0, 1e-3),  # what a cache holds
        (lambda v, b: 3.0 if (v, b) == GRADIENTS[2] else 1.0, 0.05),  # one that was disturbed
    ],
)
def test_what_hardly_bends_the_line(factor: Any, rel: float) -> None:
    points = [point(v, b, added(2, v, b) * factor(v, b)) for v, b in GRADIENTS]
    assert any(p.added_ms != pytest.approx(added(2, p.variables, p.size_bytes)) for p in points)
    link, *_ = fit_link("mirrored", points, 2)
    assert link.gbps == pytest.approx(8, rel=rel)


def buckets(variables: int, size_bytes: int) -> int:
    """DDP's messages: the first one of 1 MiB at least, others of 25 MiB at least, counted one by one."""
    left, messages, held, limit = variables, 0, 0.0, MIB
    while left:
        left, held = left - 1, held + size_bytes / variables
        if held >= limit or not left:
            messages, held, limit = messages + 1, 0.0, 25 * MIB
    return messages


def test_ddp_pays_for_every_bucket() -> None:
    gradients = [g for g in GRADIENTS if g[0]]
    assert [buckets(*g) for g in gradients] == [1, 1, 1, 1, 2, 2, 2, 3]
    points = [point(v, b, added(4, v, b, buckets(v, b)) - 0.5) for v, b in gradients]
    link, variable_ms, fixed_ms, error = fit_link("ddp", points, 4)
    assert (link.gbps, link.latency_ms) == (
        pytest.approx(8, rel=1e-3),
        pytest.approx(0.1, rel=1e-2),
    )
    assert variable_ms == pytest.approx(0.01, rel=1e-2)
    assert (fixed_ms, error < 1e-3) == (0.0, True)


def test_an_iteration_that_got_faster_costs_nothing() -> None:
    points = [point(v, b, added(2, v, b) if v else -0.2) for v, b in GRADIENTS]
    assert fit_link("mirrored", points, 2)[2] == 0.0


def test_the_slowest_replica_counts() -> None:
    answers = [
        {"without_ms": [[1.0, 5.0]], "with_ms": [[7.0, 8.0]]},
        {"without_ms": [[2.0, 3.0]], "with_ms": [[9.0, 6.0]]},
    ]
    assert joined([(1, 4096)], answers) == (ExchangePoint(1, 4096, (2.0, 5.0), (9.0, 8.0)),)


def test_mirrored_is_one_process_and_ddp_is_several() -> None:
    mirrored, ddp = Together(), Together()
    found = measure_link("mirrored", 3, together=mirrored)
    assert mirrored.call == STRATEGIES["mirrored"]
    (request,) = mirrored.requests
    assert (request["replicas"], request["threads"], request["device"]) == (3, 1, "cpu")
    assert found.fixed_ms == pytest.approx(0.5)
    assert measure_link("ddp", 3, 2, "gpu", ddp).threads == 2
    assert [r["rank"] for r in ddp.requests] == [0, 1, 2]
    assert {r["device"] for r in ddp.requests} == {"gpu"}
    assert all(variables for variables, _ in ddp.requests[0]["gradients"])


def test_what_is_measured_is_told_in_json() -> None:
    found = measure_link("mirrored", 2, together=Together())
    told = json.loads(json.dumps(found.to_dict()))
    assert told["gbps"] == pytest.approx(8, rel=1e-3)
    assert (told["strategy"], told["replicas"], told["threads"]) == ("mirrored", 2, 2)
    assert told["environment"]["framework"] == "fake"
    assert told["warnings"] == []
    last = told["points"][-1]
    assert (last["variables"], last["bytes"]) == (64, 32 * MIB)
    assert last["with_ms"] == pytest.approx([1.0 + added(2, 64, 32 * MIB)] * 3)
    assert last["predicted_ms"] == pytest.approx(added(2, 64, 32 * MIB), rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "threads", "words"),
    [
        (("mirrored", 2), 2, ""),  # four processors, shared out
        (("mirrored", 8), 1, "8 replicas of 1 thread share 4 processors"),
        (("mirrored", 2, 3), 3, "2 replicas of 3 threads share 4 processors"),
        (("ddp", 8, 1, "gpu"), 1, ""),
    ],
)
def test_too_many_threads_are_warned_of(arguments: Any, threads: int, words: str) -> None:
    found = measure_link(*arguments, together=Together())
    assert found.threads == threads
    assert bool(found.warnings) == bool(words)
    assert words in "".join(found.warnings)


def test_noisy_times_are_warned_of() -> None:
    (said,) = measure_link("mirrored", 2, together=Together(spread=0.6)).warnings
    assert said.startswith("half of the times are more than ")
    assert said.endswith(
        " % off the line: other programs may have run; close them and measure again"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("star", 2, 1), "^'star' cannot be measured; expected one of mirrored, ddp$"),
        (("ddp", 1, 1), "^1 replicas have nothing to exchange .*; expected 2 to 64$"),
        (("ddp", 65, 1), "^65 replicas have nothing"),
        (("ddp", 0, 1), "^0 replicas have nothing"),
        (("ddp", 2, 0), "^0 threads cannot compute; expected 1 or more for each replica$"),
    ],
)
def test_wrong_calls(arguments: tuple[str, int, int], words: str) -> None:
    asked = Together()
    with pytest.raises(InputError, match=words):
        measure_link(*arguments, together=asked)
    assert asked.call == ""


def test_times_that_tell_nothing() -> None:
    with pytest.raises(
        MeasuringError, match=r"^the strategy added time in 0 of 6 .*measure again$"
    ):
        measure_link("mirrored", together=Together(lambda *_: 0.0))
    with pytest.raises(MeasuringError, match=r"^exchanging 32 MiB took no longer than a few KiB, "):
        measure_link("mirrored", together=Together(lambda _, v, __: 0.3 if v else 0.0))


# ---- Real replicas: that they exchange gradients, and what it is said to take


def request(strategy: str) -> list[dict[str, object]]:
    one = {"device": "cpu", "replicas": 2, "threads": 1}
    return [one] if strategy == "mirrored" else [{**one, "rank": rank} for rank in (0, 1)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exchanges_are_timed(strategy: str) -> None:
    framework = "tensorflow" if strategy == "mirrored" else "torch"
    pytest.importorskip(framework)
    gradients = [(0, 0), (3, 60000)][strategy != "mirrored" :]
    asked = [{**r, "gradients": gradients} for r in request(strategy)]
    answers = run_together(STRATEGIES[strategy], asked, 120)
    assert len(answers) == len(asked)
    for answer in answers:
        for key in ("with_ms", "without_ms"):
            assert np.shape(answer[key]) == (len(gradients), ROUNDS * CALLS)
            assert np.min(answer[key]) > 0
        said = answer["environment"]
        assert (said["framework"], said["intra_op_threads"]) == (framework, 1)


def test_mirrored_replicas_add_up_their_gradients() -> None:
    pytest.importorskip("tensorflow")
    (found,) = run_together(f"{replica_calls.__name__}:mirrored", [{"threads": 2}], 120)
    # The batch and the loss by hand: mean over 8 numbers of (sum of a row - 1) squared.
    batch = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    slope = 2 * (batch.sum(axis=1) - 1) / 8
    kernel = np.stack([batch.T @ slope] * 2, axis=1)
    bias = np.full(2, slope.sum())
    for name, factor in (("beside", 1), ("mirrored", 2)):  # Keras adds up; both have the same batch
        for change, expected in zip(found[name], (kernel, bias), strict=True):
            assert np.array(change) == pytest.approx(factor * expected, rel=1e-2, abs=2e-3)
    threads = found["environment"]
    assert (threads["intra_op_threads"], threads["inter_op_threads"]) == (4, 2)


def test_ddp_replicas_average_their_gradients() -> None:
    pytest.importorskip("torch")
    for found in run_together(f"{replica_calls.__name__}:averaged", request("ddp"), 120):
        assert found["gradients"] == [[1.5] * 5] * 2  # of 1 and 2
        assert found["environment"]["exchange"] == "gloo"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gpus_that_are_not_there(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, tensorflow = (pytest.importorskip(name) for name in ("torch", "tensorflow"))
    if torch.cuda.is_available() or tensorflow.config.list_physical_devices("GPU"):
        pytest.skip("there are GPUs")
    for name in ("KERAS_BACKEND", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    from microbench.backends.tensorflow.training import Replicas
    from microbench.backends.torch.training import Replica

    words = r"finds 0 GPUs here, but 2 replicas need one each; give fewer --replicas, or cpu"
    asked = {"device": "gpu", "replicas": 2, "rank": 0, "threads": 1}
    with pytest.raises(DeviceError, match=words):
        _ = Replicas("gpu", 2, 1) if strategy == "mirrored" else Replica(asked)
