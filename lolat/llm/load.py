"""Loads of a server, at a rate or in a closed loop, and the times of their requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lolat.arrays import np
from lolat.errors import InputError
from lolat.io.tables import read_table
from lolat.llm.frameworks import FrameworkOverheads, Limits
from lolat.llm.gpu import GPU, ServedRow
from lolat.llm.scheduler import (
    Event,
    Requests,
    Simulated,
    StepTable,
    attention_of_prompt,
    simulate,
)
from lolat.llm.serving import PARTS, Deployment, StepParts, each_ms, rule_of, step_parts
from lolat.parameters import EVEN, POISSON, TRACE

REQUESTS = 1000
"""Requests of a load at a rate whose times are predicted."""
MOST_AT_ONCE = 4096
"""The most requests of a closed loop that are simulated at once; the times of more follow from the rate."""
SEED = 1
LONGEST_TRACE = 7 * 86400.0
"""Seconds; a trace that lasts longer has its times in another unit."""


@dataclass(frozen=True)
class Trace:
    """Recorded requests: seconds of arrivals, tokens of prompts and answers, as equally long tuples.

    `unread`: the names of the table's other columns.
    """

    arrival_s: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    unread: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Requests a second."""
        span = self.arrival_s[-1] - self.arrival_s[0]
        return (len(self.arrival_s) - 1) / span

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Tokens of a prompt and of an answer, on average."""
        number = len(self.arrival_s)
        return sum(self.input_tokens) / number, sum(self.output_tokens) / number

    def every(self, number: int) -> Trace:
        """Return each `number`th request, as one of so many replicas has them."""
        taken = max(len(self.arrival_s) // 2, 1)
        step = min(number, taken)
        return Trace(self.arrival_s[::step], self.input_tokens[::step], self.output_tokens[::step])


def read_trace(path: str | Path) -> Trace:
    """Read a table with the columns TRACE; InputError (code "trace") for one without order or requests."""
    expected = f"expected a trace with the columns {', '.join(TRACE)}"
    rows = [*read_table(path, TRACE, expected)]
    if len(rows) < 2:
        raise InputError(f"{path}: {len(rows)} requests; expected 2 or more", code="trace")
    arrivals = [row.number("arrival_s", 0.0) for row in rows]
    for row, before, after in zip(rows[1:], arrivals, arrivals[1:], strict=False):
        if after < before:
            raise row.wrong("arrival_s", f"seconds in ascending order, from {before:g}")
    if arrivals[-1] == arrivals[0]:
        raise InputError(
            f"{path}: all requests arrive at once; expected arrival_s to rise", code="trace"
        )
    if arrivals[-1] - arrivals[0] > LONGEST_TRACE:
        raise InputError(
            f"{path}: the last request arrives after {arrivals[-1]:,.0f} s; expected seconds, and at most "
            f"{LONGEST_TRACE:,.0f} of them (a week)", code="trace",
        )  # fmt: skip
    inputs, outputs = (tuple(row.whole(name) for row in rows) for name in TRACE[1:])
    unread = tuple(name for name in rows[0] if name not in TRACE)
    return Trace(tuple(arrivals), inputs, outputs, unread)


@dataclass(frozen=True)
class Load:
    """Requests of a server: `request_rate` a second, or `concurrency` of them at any time.

    `arrivals`: EVEN, POISSON, or a trace, whose times are stretched to the rate. `cached_tokens`: tokens of
    each prompt that the cache holds, but not of the first `distinct_prompts` requests. `range_ratio`:
    lengths are drawn evenly between this fraction of the tokens and all of them. `requests`: their number;
    0: as many as a steady load needs, which is there from the start.
    """

    input_tokens: float
    output_tokens: float
    concurrency: float = 0.0
    request_rate: float = 0.0
    arrivals: str | Trace = POISSON
    cached_tokens: float = 0.0
    distinct_prompts: int = 0
    range_ratio: float = 1.0
    requests: int = 0

    @classmethod
    def of(cls, row: ServedRow) -> Load:
        """Return the load of each group under which a row was timed."""
        groups = row.attention_data_parallel
        return cls(
            row.input_tokens, row.output_tokens, row.concurrency * (not row.request_rate) / groups,
            row.request_rate / groups, cached_tokens=row.cached_tokens,
            distinct_prompts=row.distinct_prompts, range_ratio=row.range_ratio,
            requests=row.requests // groups,
        )  # fmt: skip

    @property
    def longest(self) -> float:
        """Tokens of the longest request."""
        if isinstance(self.arrivals, Trace):
            pairs = zip(self.arrivals.input_tokens, self.arrivals.output_tokens, strict=True)
            return float(max(map(sum, pairs)))
        return self.input_tokens + self.output_tokens

    def drawn(self, at_once: int, front_ms: float) -> Requests:
        """Return the requests; of a closed loop at most `at_once` at any time."""
        rng = np.random.default_rng(SEED)
        trace = self.arrivals if isinstance(self.arrivals, Trace) else None
        if self.request_rate and trace:
            number, arrivals = len(trace.arrival_s), 1e3 * np.array(trace.arrival_s)
            arrivals = (arrivals - arrivals[0]) * (trace.rate / self.request_rate)
        elif self.request_rate:
            number = self.requests or REQUESTS
            gaps = np.ones(number) if self.arrivals == EVEN else rng.exponential(1.0, number)
            arrivals = 1e3 / self.request_rate * np.cumsum(gaps) * (number / gaps.sum())
        else:
            number, arrivals = self.requests or 2 * at_once + min(at_once, 64), None
        inputs = self._lengths(rng, self.input_tokens, number)
        outputs = self._lengths(rng, self.output_tokens, number)
        if trace and self.request_rate:
            inputs, outputs = np.array(trace.input_tokens), np.array(trace.output_tokens)
        cached = np.minimum(self.cached_tokens, inputs - 1.0)
        cached[: self.distinct_prompts] = 0.0
        ages = np.zeros(0)
        if arrivals is None and not self.requests:
            ages = rng.permutation((np.arange(at_once) + 0.5) / at_once) * self.output_tokens
        return Requests(inputs, outputs, cached, arrivals, at_once, front_ms, ages)

    def _lengths(self, rng: Any, most: float, number: int) -> np.ndarray:
        most = max(round(most), 1)
        if self.range_ratio >= 1.0:
            return np.full(number, most)
        return rng.integers(max(int(self.range_ratio * most), 1), most + 1, number)


class Times(NamedTuple):
    """Times of requests as (requests,) arrays in ms, and means of the server.

    `tpot_ms`: between the tokens of each request; `output_tokens`: their numbers. `requests_per_s`;
    `concurrency`: requests at the server on average; `utilization`: the fraction of the time in which it is
    busy. `step`: the mean step that decodes, as a token meets it: (PARTS + STARTS,) of it alone.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    e2e_ms: np.ndarray
    output_tokens: np.ndarray
    requests_per_s: float
    concurrency: float
    utilization: float
    step: np.ndarray
    preempted: int

    @property
    def mean_tpot_ms(self) -> float:
        """Mean time between tokens, over all tokens."""
        after = np.maximum(self.output_tokens - 1.0, 1.0)
        return float(np.sum(self.tpot_ms * after) / np.sum(after))


class Server:
    """A deployment with its framework's scheduler, for requests of up to `longest` tokens.

    `limits`: those of a step, else the framework's; `drafts`, `accepted`: as in Rule.
    """

    def __init__(
        self, gpu: GPU, deployment: Deployment, longest: float, limits: Limits | None = None,
        drafts: int = 0, accepted: float = 0.0,
    ) -> None:  # fmt: skip
        self.gpu, self.deployment = gpu, deployment
        self.rule = rule_of(gpu.section, deployment, longest, limits, drafts, accepted)
        self.longest = longest
        self._tables: dict[tuple[FrameworkOverheads, int], StepTable] = {}

    @cached_property
    def parts(self) -> StepParts:
        """The parts of its steps."""
        most = self.rule.sequences * (1 + self.rule.drafts) + 1
        tokens, sequences = max(self.rule.tokens, most), self.rule.sequences
        return step_parts(self.gpu, self.deployment, tokens, sequences, self.longest)

    @property
    def most_running(self) -> int:
        """The most requests of `longest` tokens that run at once."""
        return max(min(self.rule.sequences, int(self.rule.cache // self.longest), MOST_AT_ONCE), 1)

    def simulate(self, load: Load, overheads: FrameworkOverheads) -> tuple[Requests, Simulated]:
        """Simulate a load."""
        at_once = int(min(max(load.concurrency, 1.0), MOST_AT_ONCE))
        requests = load.drawn(at_once, overheads.front_ms)
        number = len(requests.inputs) if load.request_rate else at_once
        key = overheads, min(self.rule.sequences, number)
        if key not in self._tables:
            self._tables[key] = self.parts.table(*key)
        return requests, simulate(self._tables[key], self.rule, requests)

    def times(self, load: Load, overheads: FrameworkOverheads) -> Times:
        """Return the times of a load's requests; those that meet a server that fills up are left out."""
        requests, found = self.simulate(load, overheads)
        arrival, first, end = found[:3]
        if load.request_rate:
            is_seen = arrival >= end[0]
            if load.requests or isinstance(load.arrivals, Trace) or is_seen.mean() < 0.5:
                is_seen = np.ones(len(arrival), bool)
        else:
            skip = 0 if load.requests else len(requests.ages)
            is_seen = np.arange(len(arrival)) >= skip
        events = np.array(found.events, float)
        api, outputs = overheads.front_ms, requests.outputs[is_seen].astype(float)
        step = self.mean_step(events)
        api += overheads.poll_steps * float(step @ each_ms(overheads))
        ttft = (first - arrival)[is_seen] + api
        e2e = (end - arrival)[is_seen] + api
        tpot = (end - first)[is_seen] / np.maximum(outputs - 1.0, 1.0)
        busy = float(np.sum(events[:, 1] - events[:, 0]))
        span = float(end.max() - arrival.min())
        if load.request_rate:
            rate = len(arrival) / span * 1e3 if load.requests else load.request_rate
            concurrency = rate * 1e-3 * float(e2e.mean())
        else:
            rate, concurrency = 1e3 * load.concurrency / float(e2e.mean()), load.concurrency
            extra = load.concurrency - min(load.concurrency, MOST_AT_ONCE)
            if extra:  # more of them wait by what the server takes for those before them
                rate = 1e3 * MOST_AT_ONCE / float(e2e.mean())
                ttft, e2e = ttft + 1e3 * extra / rate, e2e + 1e3 * extra / rate
        return Times(ttft, tpot, e2e, outputs, rate, concurrency, min(busy / span, 1.0),
                     step, found.preempted)  # fmt: skip

    def mean_step(self, events: np.ndarray) -> np.ndarray:
        """(PARTS + STARTS,) of the mean step that decodes, without prompts, as output tokens meet it."""
        weight = events[:, 2] * events[:, 3]
        by_context = weight * events[:, 3]
        sequences = max(float(by_context.sum() / max(weight.sum(), 1.0)), 1.0)
        context = float(np.sum(by_context * events[:, 4]) / max(by_context.sum(), 1.0))
        mean = Event(0.0, 0.0, 1, sequences, context, 0, 0, 0.0)
        return self.parts.of(np.array([mean], float), self.rule)[0]

    def prompt_parts(self, new: float, start: float = 0.0) -> np.ndarray:
        """(PARTS + STARTS,) of a prompt alone, of `new` tokens behind `start` that the cache holds."""
        parts, rule = self.parts, self.rule
        chunks = max(math.ceil(new / rule.tokens), 1)
        attention = attention_of_prompt(parts.prefill.tolist(), parts.unit, start, new) / chunks
        each = Event(0.0, 0.0, chunks, 0, 0.0, new / chunks, 1, attention)
        return parts.of(np.array([each], float), rule)[0]

    def largest_rate(self, load: Load, overheads: FrameworkOverheads) -> float:
        """Return the requests a second above which more and more requests wait."""
        one = replace(load, request_rate=0.0, concurrency=float(self.most_running), requests=0)
        return self.times(one, overheads).requests_per_s


def of_requests(
    server: Server, load: Load, overheads: FrameworkOverheads
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(PARTS + STARTS,) of the mean times per output token, to the first token, and of `Times.step`.

    The schedule is that of `overheads`; the times with other overheads follow from the parts.
    """
    requests, found = server.simulate(load, overheads)
    events = np.array(found.events, float)
    attention = each_ms(overheads)[PARTS.index("attention")]
    parts = server.parts.of(events, server.rule, attention)
    at = events[:, :2].ravel()
    total = np.cumsum(parts, 0)
    both = np.repeat(np.vstack([np.zeros(parts.shape[1]), total]), 2, axis=0)[1:-1]
    skip = 0 if load.requests or load.request_rate else len(requests.ages)
    arrival, first, end = (times[skip:] for times in found[:3])

    def until(times: np.ndarray) -> np.ndarray:
        return np.column_stack([np.interp(times, at, column) for column in both.T])

    of_first, of_end = until(first), until(end)
    after = np.maximum(requests.outputs[skip:] - 1.0, 1.0)[:, None]
    decoded = of_end - of_first
    tpot = decoded.sum(0) / after.sum() if load.request_rate else (decoded / after).mean(0)
    return tpot, (of_first - until(arrival)).mean(0), server.mean_step(events)
