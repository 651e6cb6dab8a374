"""The largest that stays within a time, against trying everything; a prediction against limits."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lolat.errors import AnswerIsNo, InputError, MissingPackageError, NetworkError, arg
from lolat.graph import Graph
from lolat.graph.layers import Layers
from lolat.graph.width import NOTE, scaled, widened
from lolat.model import Model
from lolat.model.budget import (
    MOST_BATCH,
    MOST_WIDTH,
    WIDTH_STEPS,
    Limits,
    Question,
    before_of,
    enough,
    exceeded,
    is_prediction,
    largest,
    read_before,
    told,
)
from tests import synthetic

MODEL = Model(synthetic.document())
NETWORK = synthetic.network()


def at_size(side: int) -> Graph:
    """The network at another resolution; sizes below 24 and above 200 are refused."""
    if not 24 <= side <= 200:
        why = f"cannot be read at {side}"
        raise NetworkError(f"{why}; give another {arg('input_size')}", why=why)
    return synthetic.network(size=side)


def question(ms: float, model: Model = MODEL, **more: object) -> Question:
    return Question(model, NETWORK, ms, at_size=at_size, **more)  # type: ignore[arg-type]


def latencies(vary: str, predictor: str | None = None) -> dict[float, float]:
    """The latency of every value, one by one."""
    if vary == "batch":
        return {n: MODEL.predict(NETWORK, n, predictor).latency_ms for n in range(1, 300)}
    if vary == "width":
        made = functools.cache(lambda counts: widened(NETWORK, counts / 32))  # all counts are 32
        widths = [i / WIDTH_STEPS for i in range(1, MOST_WIDTH * WIDTH_STEPS + 1)]
        return {w: MODEL.predict(made(scaled(32, w)), 1, predictor).latency_ms for w in widths}
    # The network keeps its size: its stride is 1, so that every size is one.
    return {n: MODEL.predict(at_size(n), 1, predictor).latency_ms for n in range(24, 201)}


@pytest.mark.parametrize("predictor", ["extended", "two-regime"])
@pytest.mark.parametrize("vary", ["batch", "width", "resolution"])
def test_the_answer_is_what_trying_everything_finds(vary: str, predictor: str) -> None:
    tried = latencies(vary, predictor)
    least, most = min(tried.values()), max(tried.values())
    values = list(tried)
    for part in (0.001, 0.02, 0.1, 0.3, 0.7, 0.9):
        budget = least + part * (most - least)
        wanted = max(v for v, ms in tried.items() if ms <= budget)
        found = question(budget, predictor=predictor).answer(vary)
        assert found.best.value == wanted
        assert found.best.prediction.latency_ms == pytest.approx(tried[wanted], rel=1e-12)
        assert found.best.prediction.latency_ms <= budget
        assert found.next.value == values[values.index(wanted) + 1]
        assert found.next.prediction.latency_ms > budget


def test_exactly_the_budget_is_within_it() -> None:
    exact = MODEL.predict(NETWORK, 7).latency_ms
    assert question(exact).answer("batch").best.value == 7
    assert question(math.nextafter(exact, 0)).answer("batch").best.value == 6


@pytest.mark.parametrize("vary", ["batch", "width", "resolution"])
def test_to_be_sure_the_end_of_the_interval_counts(vary: str) -> None:
    exact = {
        "batch": MODEL.predict(NETWORK, 20),
        "width": MODEL.predict(widened(NETWORK, 5.0)),
        "resolution": MODEL.predict(at_size(150)),
    }
    budget = exact[vary].latency_ms
    found, sure = (question(budget, sure=s).answer(vary) for s in (False, True))
    assert sure.best.value < found.best.value
    assert sure.best.prediction.interval_ms[1] <= budget  # type: ignore[index]
    assert sure.next.prediction.interval_ms[1] > budget  # type: ignore[index]
    assert sure.to_dict()["sure"] is True


def test_a_narrower_interval_leaves_more() -> None:
    budget = 3 * MODEL.predict(NETWORK).latency_ms
    wide, narrow = (question(budget, sure=True, coverage=c).answer("batch") for c in (0.9, 0.5))
    assert narrow.best.value >= wide.best.value
    assert narrow.to_dict()["coverage"] == 0.5


@pytest.mark.parametrize(
    ("vary", "smallest"), [("batch", "batch 1"), ("width", "width x0.01"), ("resolution", "24 px")]
)
@pytest.mark.parametrize("sure", [False, True])
def test_a_budget_that_cannot_be_met(vary: str, smallest: str, sure: bool) -> None:
    """What the message tells to give is enough, and a little less is not."""
    with pytest.raises(AnswerIsNo, match=f"even {smallest} of 'hand made' takes") as error:
        question(0.01, sure=sure).answer(vary)
    assert error.value.code == "over-budget"
    told_ms = error.value.data["enough_ms"]
    assert float(str(error.value).rpartition("give max_ms ")[2].removesuffix(" or more")) == told_ms
    found = question(told_ms, sure=sure).answer(vary)
    # A width of up to 0.37 is 8 channels, as 0.01 is.
    assert found.best.value == {"batch": 1, "width": 0.37, "resolution": 24}[vary]
    with pytest.raises(AnswerIsNo):
        question(0.98 * told_ms, sure=sure).answer(vary)
    assert ("up to" in str(error.value)) == sure
    if vary == "resolution":
        assert "smaller is refused (cannot be read at 23)" in str(error.value)


def test_a_budget_that_is_never_exceeded() -> None:
    found = question(1e9).answer("batch")
    assert (found.best.value, found.next, found.refusal) == (MOST_BATCH, None, None)
    assert question(1e9).answer("width").best.value == MOST_WIDTH
    assert question(1e9).answer("width").to_dict()["next"] is None


def test_a_size_that_is_refused_is_said() -> None:
    found = question(1e9).answer("resolution")
    assert found.best.value == 200
    assert found.refusal == "cannot be read at 201"
    assert found.to_dict()["warnings"][-1] == "cannot be read at 201"


def test_a_network_that_refuses_all_other_sizes() -> None:
    def only_56(side: int) -> Graph:
        raise NetworkError("it is made for 56")

    now = MODEL.predict(NETWORK).latency_ms
    asked = Question(MODEL, NETWORK, 2 * now, at_size=only_56)
    assert asked.answer("resolution").best.value == 56
    with pytest.raises(AnswerIsNo, match=r"even 56 px .* smaller is refused"):
        Question(MODEL, NETWORK, 0.9 * now, at_size=only_56).answer("resolution")


def test_where_no_size_can_be_read_the_refusal_is_the_answer() -> None:
    def none(side: int) -> Graph:
        raise NetworkError("it is made for 57; give another", why="it is made for 57")

    asked = Question(MODEL, strided(57), 1.0, at_size=none)  # no multiple of its stride of 8
    with pytest.raises(InputError, match=r"^it is made for 57$"):
        asked.answer("resolution")


def strided(side: int, read: list[int] | None = None) -> Graph:
    """A network of stride 8; `read`: what was asked for."""
    if read is not None:
        read.append(side)
    net = Layers.on("strided", side, side, 3)
    return net.done(net.global_pool(net.conv(net.input, 256, 8, 8), flat=True))


def test_sizes_are_multiples_of_the_stride_and_few_are_read() -> None:
    read: list[int] = []
    budget = MODEL.predict(strided(800)).latency_ms
    asked = Question(MODEL, strided(64), budget, at_size=lambda side: strided(side, read))
    found = asked.answer("resolution")
    assert (found.best.value, found.next.value) == (800, 808)  # type: ignore[union-attr]
    assert len(read) <= 9


@pytest.mark.parametrize("ms", [math.nan, math.inf, -1.0, 0.0, "15"])
def test_a_budget_that_is_no_time(ms: float) -> None:
    with pytest.raises(InputError, match="expected a number of milliseconds above 0, such as 15"):
        question(ms)


def cannot_vary(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_what_cannot_be_varied() -> None:
    cannot_vary(lambda: question(5.0).answer("depth"), "expected one of width, resolution, batch")
    by_hand = Question(MODEL, NETWORK, 5.0)
    cannot_vary(lambda: by_hand.answer("resolution"), "it was not read by name")
    line = synthetic.one("dense", [(1, 4)], [(1, 1)], in_features=4, out_features=1, bias=True)
    for vary, why in (("resolution", "no square image"), ("width", "none of its channel counts")):
        asked = Question(MODEL, line, 5.0, at_size=at_size)
        cannot_vary(lambda asked=asked, vary=vary: asked.answer(vary), why)  # type: ignore[misc]


def test_to_be_sure_needs_an_interval() -> None:
    few = Model(synthetic.document(synthetic.measured(blocks=6, batches=(1,))), "few.json")
    assert few.predict(NETWORK).interval_ms is None
    cannot_vary(lambda: question(50.0, few, sure=True).answer("batch"), "few.json has too few")


def test_the_answer_as_json() -> None:
    found = question(2 * MODEL.predict(NETWORK).latency_ms).answer("width").to_dict()
    assert found["now"] == {
        "value": 1.0,
        "latency_ms": MODEL.predict(NETWORK).latency_ms,
        "interval_ms": list(MODEL.predict(NETWORK).interval_ms),  # type: ignore[arg-type]
    }
    ((before, after),) = found["channels"]
    assert before == 32
    assert found["warnings"] == [NOTE]
    graph = widened(NETWORK, found["answer"])
    assert graph.operations[0].attributes["out_channels"] == after


def test_words() -> None:
    assert [told("batch", 8), told("width", 0.75), told("resolution", 192)] == [
        "batch 8", "width x0.75", "192 px",
    ]  # fmt: skip


def test_a_missing_package_is_no_answer_about_the_network() -> None:
    def missing(side: int) -> Graph:
        raise MissingPackageError("Keras with TensorFlow", "tensorflow")

    with pytest.raises(MissingPackageError):
        Question(MODEL, NETWORK, 5.0, at_size=missing).answer("resolution")


# ---- The bisection against trying everything, and budgets that suffice


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60), st.data())
def test_the_bisection_finds_what_trying_everything_finds(
    count: int, limit: int, refused: int, data: st.DataObject
) -> None:
    """1 .. refused cannot be read, up to limit fits; start is a number that can be read."""
    refused = min(refused, count - 1)
    start = data.draw(st.integers(refused + 1, count))
    verdicts: dict[int, bool | None] = {}

    def fits(i: int) -> bool | None:
        assert i not in verdicts, "asked twice"
        verdicts[i] = None if i <= refused else i <= limit
        return verdicts[i]

    low, high, found = largest(fits, count, start)
    good = [i for i in range(refused + 1, count + 1) if i <= limit]
    assert found == bool(good)
    assert (low, high) == ((max(good), max(good) + 1) if good else (refused, refused + 1))
    assert len(verdicts) <= 1 + count.bit_length()


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 60))
def test_what_is_refused_above_ends_the_search(start: int, readable: int, limit: int) -> None:
    """Numbers above `readable` cannot be read; the search begins at one that can."""
    start, readable = sorted((start, readable))
    low, high, found = largest(lambda i: None if i > readable else i <= limit, 60, start)
    assert found == (limit > 0)
    if found:
        assert (low, high) == (min(limit, readable), min(limit, readable) + 1)


def test_a_start_that_is_refused() -> None:
    assert largest(lambda i: None, 9, 4) == (4, 4, False)


@given(st.floats(1e-6, 1e9))
def test_a_budget_that_suffices(takes: float) -> None:
    text = enough(takes)
    assert takes <= float(text) <= takes * 1.012


# ---- A prediction against limits


PREDICTION = replace(
    MODEL.predict(synthetic.network(name="net"), 4), latency_ms=10.0, interval_ms=(8.0, 12.5)
)
BEFORE = before_of(replace(PREDICTION, latency_ms=8.0, network="as it was"))


@pytest.mark.parametrize(
    ("limits", "exceeds"),
    [
        ({}, []),
        ({"max_ms": 10.0}, []),  # not more than that
        ({"max_ms": 9.99}, ["max_ms"]),
        ({"max_ms": 12.5, "sure": 0.9}, []),  # the upper end of the interval
        ({"max_ms": 12.4, "sure": 0.9}, ["max_ms"]),
        ({"before": structs.replace(BEFORE, latency_ms=9.53)}, []),  # 10 / 9.53 = 1.049
        ({"before": structs.replace(BEFORE, latency_ms=9.52)}, ["max_ratio"]),
        ({"max_ms": 9.0, "before": BEFORE}, ["max_ms", "max_ratio"]),
        ({"before": BEFORE, "max_ratio": 1.26}, []),  # 10 / 8 = 1.25
        ({"before": BEFORE, "max_ratio": 1.24}, ["max_ratio"]),
    ],
)
def test_limits(limits: dict[str, Any], exceeds: list[str]) -> None:
    lines = exceeded([PREDICTION], Limits(**limits))
    assert [name for line, name in zip(lines, exceeds, strict=True) if arg(name) in line] == exceeds


def test_each_prediction_is_checked() -> None:
    fast = replace(PREDICTION, latency_ms=5.0, network="fast")
    (line,) = exceeded([fast, PREDICTION], Limits(max_ms=7.0), ["a", "b"])
    assert line.startswith("net · batch 4 · 56x56x3 on b takes 10.0 ms, 43 % more than the 7 ms")


def test_limits_that_do_not_go_together() -> None:
    with pytest.raises(InputError, match="expected max_ms too"):
        Limits(sure=0.9)


def test_to_be_sure_takes_an_interval() -> None:
    with pytest.raises(InputError, match="sure needs an interval"):
        exceeded([replace(PREDICTION, interval_ms=None)], Limits(20.0, 0.9))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"model": "another"}, "model is another; expected desk"),
        ({"learned": "2026-01-02"}, "learned is 2026-01-02"),
        ({"predictor": "two-regime"}, "predictor is two-regime; expected extended"),
        ({"batch_size": 1}, "batch size is 1; expected 4"),
    ],
)
def test_what_cannot_be_compared(other: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        exceeded([PREDICTION], Limits(before=before_of(replace(PREDICTION, **other))))


def test_the_base_is_read_from_what_predict_wrote(tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    answer = {"schema": "lolat-prediction", "version": 1, **PREDICTION.to_dict()}
    path.write_text(json.dumps(answer))
    assert is_prediction(str(path))
    assert read_before(str(path)) == before_of(PREDICTION)
    path.write_text(
        json.dumps({k: v for k, v in answer.items() if k != "model"})
    )  # of an older version
    with pytest.raises(
        InputError, match=r"against .*base.json: .*`model`.*lolat predict MODEL NETWORK --json"
    ):
        read_before(str(path))
    path.write_text(json.dumps({"schema": "lolat-network"}))
    assert not is_prediction(str(path))
    assert not is_prediction("keras:ResNet50")
