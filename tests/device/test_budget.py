"""The largest that stays within a time, against trying everything."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat.api.model import Model
from lolat.device.budget import LARGEST_TRIED_BATCH, MOST_WIDTH, WIDTH_STEPS, BudgetAnswer, budget
from lolat.device.largest_batch import last_within
from lolat.device.question import Question
from lolat.errors import AnswerIsNo, InputError, MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.layers import Layers
from lolat.graph.width import HEADS, NOTE, scaled, widened
from lolat.units import milliseconds
from tests import synthetic

MODEL = Model(synthetic.document())
NETWORK = synthetic.network()


def at_size(side: int) -> Graph:
    """The network at another resolution; sizes below 24 and above 200 are refused."""
    if not 24 <= side <= 200:
        raise NetworkError(f"cannot be read at {side}")
    return synthetic.network(size=side)


def within(ms: float, vary: str, model: Model = MODEL, **more: Any) -> BudgetAnswer:
    return budget(model, NETWORK, vary, Question(max_ms=ms, **more), at_size)


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
def test_the_answer_is_that_of_trying_everything(vary: str, predictor: str) -> None:
    tried = latencies(vary, predictor)
    least, most = min(tried.values()), max(tried.values())
    values = list(tried)
    for part in (0.001, 0.02, 0.1, 0.3, 0.7, 0.9):
        limit = least + part * (most - least)
        expected = max(v for v, ms in tried.items() if ms <= limit)
        answer = within(limit, vary, predictor=predictor)
        assert answer.best.value == expected
        assert answer.best.prediction.latency_ms == pytest.approx(tried[expected], rel=1e-12)
        assert answer.best.prediction.latency_ms <= limit
        assert answer.next is not None
        assert answer.next.value == values[values.index(expected) + 1]
        assert answer.next.prediction.latency_ms > limit


@pytest.mark.parametrize("vary", ["batch", "width", "resolution"])
def test_to_be_sure_the_end_of_the_interval_counts(vary: str) -> None:
    exact = {
        "batch": MODEL.predict(NETWORK, 20),
        "width": MODEL.predict(widened(NETWORK, 5.0)),
        "resolution": MODEL.predict(at_size(150)),
    }
    limit = exact[vary].latency_ms
    answer, sure = (within(limit, vary, sure=s) for s in (False, True))
    assert sure.best.value < answer.best.value
    assert sure.best.prediction.interval_ms[1] <= limit  # type: ignore[index]
    assert sure.next.prediction.interval_ms[1] > limit  # type: ignore[union-attr, index]
    assert sure.to_dict()["sure"] is True


@pytest.mark.parametrize("percent", [50, 99])
def test_a_number_is_how_sure_in_percent(percent: int) -> None:
    """The largest batch of all, one by one, whose interval of that coverage ends within the limit."""
    model, network = lolat.load("rtx-4090-amp"), lolat.read("timm:resnet18")
    share, ends = percent / 100, list[float]()
    for n in range(1, 200):
        interval = model.predict(network, n, coverage=share).interval_ms
        assert interval is not None
        ends.append(interval[1])
    limit = ends[120]
    expected = max(n for n, end in enumerate(ends, start=1) if end <= limit)
    for answer in (
        model.budget(network, limit, "batch", sure=percent).best.value,
        model.budget(network, limit, "batch", sure=True, coverage=share).best.value,
        model.predict(network, "auto", max_ms=limit, sure=percent).batch_size,
        lolat.predict(network, model, "auto", max_ms=limit, sure=percent).batch_size,
    ):
        assert answer == expected
    assert model.budget(network, limit, "batch", sure=True).best.value != expected
    with pytest.raises(InputError, match="coverage"):
        model.budget(network, limit, "batch", sure=percent, coverage=share)


@pytest.mark.parametrize("vary", ["batch", "width", "resolution"])
@pytest.mark.parametrize("sure", [False, True])
def test_a_budget_that_cannot_be_met(vary: str, sure: bool) -> None:
    """The time that the error names is enough, and a little less is not."""
    with pytest.raises(AnswerIsNo) as error:
        within(0.01, vary, sure=sure)
    assert error.value.code == "over-budget"
    now = MODEL.predict(NETWORK)
    assert now.interval_ms is not None
    assert milliseconds(now.interval_ms[1] if sure else now.latency_ms) in str(error.value)
    enough = error.value.data["enough_ms"]
    # A width of up to 0.37 is 8 channels, as 0.01 is.
    smallest = {"batch": 1, "width": 0.37, "resolution": 24}[vary]
    assert within(enough, vary, sure=sure).best.value == smallest
    with pytest.raises(AnswerIsNo):
        within(0.98 * enough, vary, sure=sure)


def test_a_budget_that_is_never_exceeded() -> None:
    answer = within(1e9, "batch")
    assert (answer.best.value, answer.next) == (LARGEST_TRIED_BATCH, None)
    assert within(1e9, "width").best.value == MOST_WIDTH
    sized = within(1e9, "resolution")  # 201 is refused
    assert (sized.best.value, sized.next) == (200, None)


def test_a_network_that_refuses_all_other_sizes() -> None:
    def only_56(side: int) -> Graph:
        raise NetworkError("it is made for 56")

    now = MODEL.predict(NETWORK).latency_ms
    for part in (0.9, 2.0):
        with pytest.raises(InputError, match="another resolution"):
            budget(MODEL, NETWORK, "resolution", Question(max_ms=part * now), only_56)


def test_an_input_that_is_no_square_image_is_told_as_it_is() -> None:
    net = Layers.on("wide", 256, 512, 3)
    wide = net.done(net.global_pool(net.conv(net.input, 8, 3), flat=True))
    with pytest.raises(InputError, match="square images, not 256x512x3;"):
        budget(MODEL, wide, "resolution", Question(max_ms=1.0), at_size)


def test_a_graph_has_one_size() -> None:
    with pytest.raises(
        InputError, match="it was read before, at one size; expected what it was read from"
    ):
        budget(MODEL, NETWORK, "resolution", Question(max_ms=1.0))


def strided(side: int, sides: list[int] | None = None) -> Graph:
    """A network of stride 8; `sides`: those that are read."""
    if sides is not None:
        sides.append(side)
    net = Layers.on("strided", side, side, 3)
    return net.done(net.global_pool(net.conv(net.input, 256, 8, 8), flat=True))


def test_sizes_are_multiples_of_the_stride_and_few_are_read() -> None:
    sides: list[int] = []
    limit = MODEL.predict(strided(800)).latency_ms
    answer = budget(
        MODEL, strided(64), "resolution", Question(max_ms=limit), lambda side: strided(side, sides)
    )
    assert answer.next is not None
    assert (answer.best.value, answer.next.value) == (800, 808)
    assert len(sides) <= 9


def test_unknown_and_fixed_values() -> None:
    few = Model(synthetic.document(synthetic.measured(blocks=6, batches=(1,))), "few.json")
    line = synthetic.one("dense", [(1, 4)], [(1, 1)], in_features=4, out_features=1, bias=True)

    def refused(side: int) -> Graph:
        raise NetworkError("it is made for 57")

    for model, network, vary, reader in (
        (MODEL, NETWORK, "depth", None),
        (MODEL, NETWORK, "resolution", None),  # it was not read by name
        (MODEL, line, "resolution", at_size),  # no image
        (MODEL, line, "width", None),  # no free channels
        (MODEL, strided(57), "resolution", refused),  # no multiple of its stride of 8
        (few, NETWORK, "batch", None),  # no intervals
    ):
        with pytest.raises(InputError):
            budget(model, network, vary, Question(max_ms=5.0, sure=model is few), reader)


def test_the_answer_as_json() -> None:
    now = MODEL.predict(NETWORK)
    answer = within(2 * now.latency_ms, "width").to_dict()
    interval = list(now.interval_ms or ())
    assert answer["now"] == {"value": 1.0, "latency_ms": now.latency_ms, "interval_ms": interval}
    ((before, after),) = answer["channels"]
    assert before == 32
    assert answer["warnings"] == [NOTE]
    graph = widened(NETWORK, answer["answer"])
    assert graph.operations[0].attributes["out_channels"] == after


def test_heads_of_another_size_are_told() -> None:
    """A network with attention; the code that PyTorch runs may name the size of its heads."""
    b = GraphBuilder("heads", "torch")
    x = b.input((1, 16, 64))
    parts = [
        b.add("dense", [x], (1, 16, 64), in_features=64, out_features=64, bias=False)
        for _ in range(3)
    ]
    each = [b.add("reshape", [part], (1, 2, 16, 32)) for part in parts]
    mixed = b.add(
        "attention", each, (1, 2, 16, 32), heads=2, key_heads=2, queries=16, keys=16, head_size=32,
        value_size=32,
    )  # fmt: skip
    flat = b.add("reshape", [mixed], (1, 16, 64))
    graph = b.build(
        [b.add("dense", [flat], (1, 16, 64), in_features=64, out_features=64, bias=False)]
    )
    found = budget(MODEL, graph, "width", Question(max_ms=100.0))
    assert found.warnings[-2:] == (NOTE, HEADS)


def test_a_missing_package_is_no_answer_about_the_network() -> None:
    def missing(side: int) -> Graph:
        raise MissingPackageError("Keras with TensorFlow", "tensorflow")

    with pytest.raises(MissingPackageError):
        budget(MODEL, NETWORK, "resolution", Question(max_ms=5.0), missing)


@given(st.integers(1, 60), st.integers(0, 30), st.integers(0, 61), st.integers(0, 60), st.data())
def test_the_bisection_against_trying_every_number(
    most: int, below: int, above: int, limit: int, data: st.DataObject
) -> None:
    """Numbers up to `below` and from `above` on are refused, the others up to `limit` fit."""
    below, above = min(below, most - 1), max(min(below, most - 1) + 2, above)
    start = data.draw(st.integers(below + 1, min(above - 1, most)))
    verdicts: dict[int, bool | None] = {}

    def fits(i: int, sure: bool) -> bool | None:
        assert i not in verdicts, "asked twice"
        verdicts[i] = i <= limit if below < i < above else None
        return verdicts[i]

    expected = max(min(limit, above - 1, most), below)
    assert last_within(fits, most, start, sure=False) == expected
    assert len(verdicts) <= 1 + most.bit_length()


@given(st.integers(1, 3000), st.integers(0, 3000), st.integers(1, 3000), st.integers(0, 3000),
       st.integers(0, 3000))  # fmt: skip
def test_an_upper_end_that_falls_against_trying_every_number(
    most: int, limit: int, measured: int, sure_below: int, more: int
) -> None:
    """Upper ends are wide below `measured`, where up to `sure_below` keep the limit; from there on more."""
    end = min(measured + measured // 8 + more, limit)

    def fits(i: int, sure: bool) -> bool:
        return i <= (limit if not sure else min(sure_below, limit) if i < measured else end)

    expected = max((i for i in range(1, most + 1) if fits(i, True)), default=0)
    assert last_within(fits, most, 1, sure=True) == expected
