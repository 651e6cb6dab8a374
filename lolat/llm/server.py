"""A server of a language model under a load: the times of its requests, and its largest request rates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from lolat.arrays import np
from lolat.llm.domain import interval
from lolat.llm.frameworks import BatchLimits, FrameworkOverheads
from lolat.llm.gpu import GPU
from lolat.llm.load import MOST_AT_ONCE, REQUESTS, STRATA, Load, Trace
from lolat.llm.scheduler import (
    Event,
    Requests,
    Rule,
    Simulated,
    StepTable,
    attention_of_prompt,
    simulate,
)
from lolat.llm.steps import STEP_PARTS, Deployment, StepParts, cache_room, each_ms, step_parts

MORE_WAIT, NEARLY = 1.5, 0.9
"""Ratios of concurrent requests to the most that can run: at MORE_WAIT some requests always wait, at NEARLY
none does.
"""
ROOM_REQUESTS, SPARE = 4000, 5.0
"""Requests do not pile up at a rate if, in a simulation of ROOM_REQUESTS, the server has room for their
mean number plus SPARE standard deviations. With 3 standard deviations they piled up within 40,000 requests
in one of five deployments, with 4 in none."""
RATE_STEP = 1.02
"""Two rates whose ratio is below this count as equal."""
STEADY = 20
"""Number of iterations that solve for the number of concurrent requests at a rate."""


class RequestTimes(NamedTuple):
    """Times of requests as (requests,) arrays in ms, and means of the server.

    `tpot_ms`: mean time between the tokens of each request with several, as benchmarks report it.
    `output_tokens`: tokens of each request. `requests_per_s`: requests served; `concurrency`: mean requests
    at the server. `step`: (STEP_PARTS + STARTS,) parts of the decoding step in which a mean output token is
    made, without prompts. `waited_ms`: mean time for each token after the first in which preempted requests
    wait for room in the cache.
    """

    ttft_ms: np.ndarray
    tpot_ms: np.ndarray
    e2e_ms: np.ndarray
    output_tokens: np.ndarray
    requests_per_s: float
    concurrency: float
    step: np.ndarray
    waited_ms: float

    @classmethod
    def together(cls, several: Sequence[RequestTimes]) -> RequestTimes:
        """Join the requests' times of several replicas."""
        arrays = (np.concatenate(each) for each in zip(*(one[:4] for one in several), strict=True))
        rest = (np.mean(each, axis=0) for each in zip(*(one[4:] for one in several), strict=True))
        return cls._make([*arrays, *rest])

    @property
    def mean_tpot_ms(self) -> float:
        """Mean time between tokens, over the tokens of all requests."""
        after = self.output_tokens[self.output_tokens > 1] - 1.0
        return float(np.sum(self.tpot_ms * after) / np.sum(after))

    def by_name(self, percentiles: Iterable[int]) -> dict[str, float]:
        """ms by name: means are "tpot", "ttft" and "e2e"; percentiles are "tpot_p90" and so on."""
        ms = {"tpot": self.tpot_ms, "ttft": self.ttft_ms, "e2e": self.e2e_ms}
        found = {time: float(each.mean()) for time, each in ms.items()} | {
            "tpot": self.mean_tpot_ms
        }
        for time, each in ms.items():
            ordered, ranks = np.sort(each), np.arange(len(each))  # np.percentile imports much
            for at in percentiles:
                rank = at / 100.0 * (len(each) - 1.0)
                found[f"{time}_p{at}"] = float(np.interp(rank, ranks, ordered))
        return found


class Server:
    """A deployment with its framework's scheduler, for requests of up to `longest` tokens.

    `limits`: limits of a step; None: the framework's. `drafts`, `accepted`: as in Rule. `tokens`: mean
    tokens of a request; 0: `longest`.
    """

    def __init__(
        self, gpu: GPU, deployment: Deployment, longest: float, limits: BatchLimits | None = None,
        drafts: int = 0, accepted: float = 0.0, tokens: float = 0.0,
    ) -> None:  # fmt: skip
        self.gpu, self.deployment = gpu, deployment
        server, each = gpu.section.server, tokens or longest
        limits = limits or server.limits_on(gpu.section.sheet)
        cache = cache_room(gpu.section, deployment) / (deployment.cache_bytes(each) / each)
        self.rule = Rule(
            tokens=limits.tokens, sequences=limits.sequences, cache=cache, mixes=server.mixes,
            reserves=server.reserves, is_ahead=True, drafts=drafts, accepted=accepted,
        )  # fmt: skip
        self.longest = longest
        self._tables: dict[tuple[FrameworkOverheads, int], StepTable] = {}

    @cached_property
    def parts(self) -> StepParts:
        """The parts of the server's steps, by size."""
        most = self.rule.sequences * (1 + self.rule.drafts) + 1
        tokens, sequences = max(self.rule.tokens, most), self.rule.sequences
        return step_parts(self.gpu, self.deployment, tokens, sequences, self.longest)

    def simulate(
        self, load: Load, overheads: FrameworkOverheads, number: int = REQUESTS
    ) -> tuple[Requests, Simulated]:
        """Simulate a load; `number`: requests that count at a rate, if the load does not say how many."""
        at_once = int(min(max(load.concurrency, 1.0), MOST_AT_ONCE))
        table = self._table(load, overheads, at_once)
        running = None if load.request_rate else self.most_running(load)
        if load.request_rate and not load.requests:
            at_once = self._steady(load, table)
        requests = load.drawn(at_once, overheads.front_ms, running, number)
        return requests, simulate(table, self.rule, requests)

    def _table(self, load: Load, overheads: FrameworkOverheads, at_once: int) -> StepTable:
        most = self.rule.sequences
        key = overheads, most if load.request_rate else min(most, at_once)
        if key not in self._tables:
            self._tables[key] = self.parts.table(*key)
        return self._tables[key]

    def most_running(self, load: Load) -> int:
        """The number of requests that decode at once while others always wait.

        The cache has room for their tokens, and each step has room for the prompts of the requests that
        replace them.
        """
        rule = self.rule
        each = load.tokens - load.output_tokens / 2.0 * (not rule.reserves)
        most = min(rule.sequences, rule.cache / each)
        if rule.mixes:
            steps = max((load.output_tokens - 1.0) / rule.tokens_per_step, 1.0)
            most = min(most, rule.tokens / (1 + rule.drafts + load.new_tokens / steps))
        return max(int(most), 1)

    def _steady(self, load: Load, table: StepTable) -> int:
        """The number of concurrent requests under a load at a rate if none waits, by Little's law.

        Computing prompts takes a fraction of the time of all decoding requests.
        """
        rule, n, per_ms = self.rule, 1, 1e-3 * load.request_rate
        new, context = load.new_tokens, load.input_tokens + load.output_tokens / 2.0
        cached = load.input_tokens - new
        most = max(min(rule.sequences, int(rule.cache / context), MOST_AT_ONCE), 1)
        for _ in range(STEADY):
            step = table.step_ms(n, rule.drafts, context)
            room = max(rule.tokens - n * (1 + rule.drafts) * rule.mixes, 1)
            chunks = math.ceil(new / room)
            whole = table.step_ms(n * rule.mixes, rule.drafts, context, int(new / chunks), 1)
            attention = attention_of_prompt(table.prefill, table.unit, cached, new)
            prompt = attention + chunks * (whole - step * rule.mixes)
            left = max(1.0 - per_ms * prompt, 1e-9)
            steps = load.output_tokens / rule.tokens_per_step
            n = int(min(max(per_ms * steps * step / left, 1), most))
        return n

    def times(self, load: Load, overheads: FrameworkOverheads) -> RequestTimes:
        """Simulate a load; return the times of its counted requests."""
        requests, found = self.simulate(load, overheads)
        arrival, first, end, away = (times[requests.counted] for times in found[:4])
        api, outputs = overheads.front_ms, requests.outputs[requests.counted].astype(float)
        step = self.mean_step(found.events)
        api += overheads.poll_steps * float(step @ each_ms(overheads))
        ttft, e2e = first - arrival + api, end - arrival + api
        several = outputs > 1
        tpot = (end - first)[several] / (outputs[several] - 1.0)
        if load.request_rate:
            span = float(end.max() - arrival.min())
            rate = len(arrival) / span * 1e3 if load.requests else load.request_rate
            concurrency = rate * 1e-3 * float(e2e.mean())
        else:
            if not load.requests:  # without answers that differ by VARIES
                as_asked = (round(load.output_tokens) - 1.0) / np.maximum(outputs - 1.0, 1.0)
                e2e = ttft + (end - first) * as_asked
            rate, concurrency = 1e3 * load.concurrency / float(e2e.mean()), load.concurrency
            extra = load.concurrency - min(load.concurrency, MOST_AT_ONCE)
            if extra:  # further requests wait for as long as the server takes for earlier ones
                rate = 1e3 * MOST_AT_ONCE / float(e2e.mean())
                ttft, e2e = ttft + 1e3 * extra / rate, e2e + 1e3 * extra / rate
        waited = float(away.sum() / max(np.sum(outputs - 1.0), 1.0))
        return RequestTimes(
            ttft_ms=ttft, tpot_ms=tpot, e2e_ms=e2e, output_tokens=outputs, requests_per_s=rate,
            concurrency=concurrency, step=step, waited_ms=waited,
        )  # fmt: skip

    def work_factors(
        self, load: Load, step: np.ndarray, rate: float, at_once: float, is_full: bool = False
    ) -> tuple[float, float]:
        """(lower, upper) factors of the interval of the time that a server takes for all of its work.

        They are a mean of the factors of an output token and of a prompt, weighted by the fraction of the
        time that prompts take at `rate` requests a second. `step`: (STEP_PARTS + STARTS,) parts of a step;
        `at_once`: concurrent requests; `is_full`: as in `half_widths`.
        """
        new, gpu = load.new_tokens, self.gpu
        prompt = self.prompt_parts(new, load.input_tokens - new)
        share = min(1e-3 * rate * float(prompt @ each_ms(gpu.section.overheads)), 1.0)
        of = gpu, self.deployment, (at_once, load.input_tokens, load.output_tokens)
        token = interval(*of, step, None, at_rate=True, is_full=is_full)
        first = interval(*of, prompt, new / load.input_tokens, at_rate=True, is_full=is_full)
        low, high = (
            (1.0 - share) * a + share * b for a, b in zip(token[:2], first[:2], strict=True)
        )
        return low, high

    def slowed(self, load: Load, overheads: FrameworkOverheads, factor: float) -> RequestTimes:
        """The times of a load at a rate if all work of the server takes `factor` times as long.

        A server that is slower by `factor` is a usual server with all times multiplied: ask it at `factor`
        times the rate, and multiply the answer by `factor`. If requests then pile up, the times are only
        those of the first simulated requests.
        """
        faster = replace(load, request_rate=factor * load.request_rate)
        times = self.times(faster, overheads)
        ttft, tpot, e2e = (factor * ms for ms in times[:3])
        return times._replace(
            ttft_ms=ttft, tpot_ms=tpot, e2e_ms=e2e, requests_per_s=times.requests_per_s / factor,
            step=factor * times.step, waited_ms=factor * times.waited_ms,
        )  # fmt: skip

    def mean_step(self, events: np.ndarray) -> np.ndarray:
        """(STEP_PARTS + STARTS,) parts of the mean decoding step, weighted by output tokens, without
        prompts.
        """
        weight = events[:, 2] * events[:, 3]
        by_context = weight * events[:, 3]
        sequences = max(float(by_context.sum() / max(weight.sum(), 1.0)), 1.0)
        context = float(np.sum(by_context * events[:, 4]) / max(by_context.sum(), 1.0))
        mean = Event(sequences=sequences, context=context)
        return self.parts.of(np.array([mean], float), self.rule)[0]

    def prompt_parts(self, new: float, start: float = 0.0) -> np.ndarray:
        """(STEP_PARTS + STARTS,) parts of computing a prompt's `new` tokens, after `start` cached ones,
        with no other requests.
        """
        parts, rule = self.parts, self.rule
        chunks = max(math.ceil(new / rule.tokens), 1)
        attention = attention_of_prompt(parts.prefill.tolist(), parts.unit, start, new) / chunks
        each = Event(steps=chunks, new=new / chunks, last=1, prompt_ms=attention)
        return parts.of(np.array([each], float), rule)[0]

    def largest_rate(self, load: Load, overheads: FrameworkOverheads) -> float:
        """The most requests a second, to within RATE_STEP, that do not pile up.

        A server with a full cache preempts requests and computes them again, so it serves fewer than a
        server with a nearly full cache. Between `backlog_rate` and this rate a queue that exists never
        drains.
        """
        low = self.backlog_rate(load, overheads)
        at_once = max(NEARLY * self.most_running(load), 1.0)
        nearly = replace(load, request_rate=0.0, requests=0, concurrency=at_once)
        high = self.times(nearly, overheads).requests_per_s
        while high > RATE_STEP * low:
            rate = math.sqrt(low * high)
            low, high = (rate, high) if self._has_room(load, rate, overheads) else (low, rate)
        return low

    def _has_room(self, load: Load, rate: float, overheads: FrameworkOverheads) -> bool:
        """True if all requests at a rate can run at once: the mean plus SPARE deviations, or the most in a
        trace.
        """
        arrivals = load.arrivals
        trace = arrivals.at_rate(rate) if isinstance(arrivals, Trace) else None
        one = replace(load, request_rate=rate, requests=0, arrivals=trace or arrivals)
        requests, found = self.simulate(one, overheads, ROOM_REQUESTS)
        left = np.searchsorted(np.sort(found.end_ms), found.arrival_ms)
        there = (np.arange(1, len(left) + 1) - left)[requests.counted]
        most = there.max() if trace else there.mean() + SPARE * there.std()
        return bool(most <= self.most_running(load))

    def backlog_rate(self, load: Load, overheads: FrameworkOverheads) -> float:
        """The requests a second that the server completes while other requests always wait."""
        running, front_ms = self.most_running(load), overheads.front_ms
        at_once = min(math.ceil(MORE_WAIT * running), MOST_AT_ONCE) + 1
        one = replace(load, request_rate=0.0, requests=0)
        requests = one.drawn(at_once, front_ms, running)
        first = running // 2  # until these have left, it is not steady
        requests = replace(requests, counted=slice(first + max(running, STRATA)))
        found = simulate(self._table(one, overheads, at_once), self.rule, requests)
        ends = np.sort(found.end_ms[~np.isnan(found.end_ms)])
        events = found.events[found.events[:, 0] >= ends[first]]
        left = len(ends) - first - 1.0
        if any(requests.outputs > 1):  # tokens are counted with less noise
            decoded = self.rule.tokens_per_step * np.sum(events[:, 2] * events[:, 3])
            left = decoded / np.mean(requests.outputs - 1.0)
        return float(1e3 * left / (events[-1, 1] - events[0, 0]))


def of_requests(
    server: Server, load: Load, overheads: FrameworkOverheads
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(parts of the time per output token, of the time to the first token, of `RequestTimes.step`), each
    (STEP_PARTS + STARTS,).

    The schedule is simulated with `overheads`; times with other overheads can be computed from the parts.
    """
    requests, found = server.simulate(load, overheads)
    attention = each_ms(overheads)[STEP_PARTS.index("attention")]
    parts = server.parts.of(found.events, server.rule, attention)
    at = found.events[:, :2].ravel()
    total = np.cumsum(parts, 0)
    both = np.repeat(np.vstack([np.zeros(parts.shape[1]), total]), 2, axis=0)[1:-1]
    arrival, first, end = (times[requests.counted] for times in found[:3])

    def until(times: np.ndarray) -> np.ndarray:
        return np.column_stack([np.interp(times, at, column) for column in both.T])

    of_first, of_end = until(first), until(end)
    after = requests.outputs[requests.counted, None] - 1.0
    several = after[:, 0] > 0
    after, decoded = after[several], (of_end - of_first)[several]
    # As benchmarks report it.
    is_pooled = load.request_rate and not isinstance(load.arrivals, Trace)
    is_pooled = is_pooled or not load.requests
    tpot = decoded.sum(0) / after.sum() if is_pooled else (decoded / after).mean(0)
    return tpot, (of_first - until(arrival)).mean(0), server.mean_step(found.events)
