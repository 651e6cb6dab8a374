"""Recorded requests at another rate."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.llm.load import MOST_REPEATED, Trace


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
