"""Loads: recorded requests at another rate, and as many requests as GPUs hold."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.api.model import Model
from lolat.llm.compare import compare
from lolat.llm.load import MOST_REPEATED, Trace
from lolat.report.llm import llm_parts


def test_requests_of_another_rate_come_at_the_same_times() -> None:
    """Three times as many keep each arrival, and each gap has two more; a third are evenly chosen ones."""
    at = tuple(
        float(s) for minute in range(10) for s in (60 * minute + n / 10.0 for n in range(30))
    )
    trace = Trace(at, tuple(range(1, 301)), tuple(range(301, 601)))
    more, fewer = trace.at_rate(3.0 * trace.rate), trace.at_rate(trace.rate / 3.0)
    assert trace.at_rate(trace.rate) is trace
    assert {*more.arrival_s} >= {*at}
    assert [*more.arrival_s] == sorted(more.arrival_s)
    assert sorted(more.input_tokens) == sorted(3 * [*trace.input_tokens])
    assert all(
        output - input == 300
        for input, output in zip(more.input_tokens, more.output_tokens, strict=True)
    )
    for part, factor in ((more, 3), (fewer, 1 / 3)):
        counts = np.histogram(part.arrival_s, bins=60 * np.arange(11))[0]
        assert counts == pytest.approx(30 * factor, abs=2)
        assert part.rate == pytest.approx(factor * trace.rate, rel=0.02)
    assert [*np.diff(fewer.input_tokens)] == 99 * [3]


def test_a_sparse_trace_at_a_high_rate_has_its_busiest_part() -> None:
    """A request a minute, and ten in one second: a thousand times as many of these, in that second."""
    burst = [3000.0 + n / 10.0 for n in range(10)]
    at = tuple(sorted({60.0 * n for n in range(100)} | {*burst}))
    trace = Trace(at, (10,) * len(at), (20,) * len(at))
    more = trace.at_rate(2000.0 * trace.rate)
    assert len(more.arrival_s) == MOST_REPEATED == 2000 * len(burst)
    assert min(more.arrival_s) == 3000.0
    assert max(more.arrival_s) < 3060.0
    counts = np.histogram(more.arrival_s, bins=[3000.0, *(t + 0.1 for t in burst[:-1])])[0]
    assert counts == pytest.approx(2000, abs=1)


def test_gpus_that_are_too_small_for_a_usual_load_are_asked_with_as_many_as_fit() -> None:
    """No number of requests that they hold has cheaper tokens."""
    model = Model.load("h100-vllm")
    free = model.llm("qwen3-32b", tensor_parallel=(1, 2))
    most = free.served[0].largest_concurrency
    assert 8 < most < 32, "of one GPU; two hold all usual loads"
    assert [(row.concurrency, row.gpus) for row in llm_parts(free).table.rows] == [
        (n, gpus) for n in (1, 8, most, 32, 128) for gpus in (1, 2) if (n, gpus) != (most, 2)
    ]
    alone = model.llm("qwen3-32b", tensor_parallel=1)
    every = model.llm("qwen3-32b", concurrency=range(1, most + 1), tensor_parallel=1).served
    assert alone.chosen == min(every, key=lambda row: row.dollars_per_million or 0.0)
    assert alone.chosen.concurrency == most
    cells = [row[-1] for row in llm_parts(free).table.cells]
    assert sum("cheapest tokens" in words for words in cells) == 1
    assert sum("cheapest" in words for words in cells) == len(free.bests) == 5
    compared = compare({"a": model.llm, "b": model.llm}, "qwen3-32b")
    assert {row.concurrency for row in compared.best_rows.values()} == {128}


def test_a_given_load_has_the_cheaper_row_of_fewer_requests() -> None:
    model = Model.load("h100-vllm")
    (full,) = model.llm("qwen3-32b", concurrency=28, tensor_parallel=1).served
    assert (full.fits, full.largest_concurrency) == (True, 28)
    found = model.llm("qwen3-32b", concurrency=32)
    assert (found.fuller, found.chosen.gpus) == (full, 2)
    assert "\nCheaper with up to 28 requests at once: 1 GPU, $1." in found.report()
    for other in ({"concurrency": 28}, {"concurrency": 32, "max_tpot_ms": 30.0}, {}):
        answer = model.llm("qwen3-32b", **other)
        assert answer.fuller is None
        assert "at once: " not in answer.report()
