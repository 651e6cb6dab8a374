"""Loads of a server, at a rate or in a closed loop, and the times of their requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lolat.arrays import np
from lolat.errors import InputError
from lolat.io.tables import Row, read_table
from lolat.llm.frameworks import BatchLimits, FrameworkOverheads
from lolat.llm.gpu import GPU, ServedRow
from lolat.llm.scheduler import (
    Event,
    Requests,
    Rule,
    Simulated,
    StepTable,
    attention_of_prompt,
    simulate,
)
from lolat.llm.serving import STEP_PARTS, Deployment, StepParts, cache_room, each_ms, step_parts
from lolat.parameters import EVEN, POISSON, TRACE
from lolat.units import digits, duration, plural

REQUESTS = 1000
"""Requests of a load at a rate whose times are predicted."""
MOST_AT_ONCE = 4096
"""The most requests of a closed loop that are simulated at once; the times of more follow from the rate."""
MORE_WAIT = 1.5
"""Requests at once, for each that can run, among which some always wait."""
STEADY = 20
"""Iterations towards the number of requests at once at a rate."""
STRATA, VARIES = 256, 0.1
"""Answers of a closed loop differ by up to VARIES of their tokens, in equal steps over each block of STRATA
requests: those of equal length that once meet in a prompt's step would end together forever."""
SEED = 1
TRACE_NAMES = (
    ("timestamp",),
    ("contexttokens", "prompt_tokens"),
    ("generatedtokens", "completion_tokens"),
)
"""Other names of the columns TRACE: Azure's (AzureLLMInferenceTrace), and those of OpenAI's usage."""
COLUMNS = [(name, *others) for name, others in zip(TRACE, TRACE_NAMES, strict=True)]
LONGEST_TRACE = 7 * 86400.0
"""Seconds; a trace that lasts longer has its times in another unit."""


@dataclass(frozen=True)
class Trace:
    """Recorded requests: seconds of arrivals, tokens of prompts and answers, as equally long tuples.

    `unread`: the names of the table's other columns; `source`: the table's file.
    """

    arrival_s: tuple[float, ...]
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    unread: tuple[str, ...] = ()
    source: str = ""

    @property
    def rate(self) -> float:
        """Requests a second."""
        span = self.arrival_s[-1] - self.arrival_s[0]
        return (len(self.arrival_s) - 1) / span

    @property
    def mean_tokens(self) -> tuple[float, float]:
        """Tokens of a prompt and of an answer, on average."""
        number = len(self.input_tokens)
        return sum(self.input_tokens) / number, sum(self.output_tokens) / number

    def words(self) -> str:
        """Return the number of requests, their time, their rate, and that in the busiest minute."""
        at, minute = np.array(self.arrival_s), 60.0
        span = float(at[-1] - at[0])
        told = f"{plural(len(at), 'request')} in {duration(span)}: {digits(self.rate)} a second on average"
        if span > minute:
            most = int(np.max(np.searchsorted(at, at + minute) - np.arange(len(at))))
            told += f", {digits(most / minute)} a second in the busiest minute"
        return told

    def at_rate(self, rate: float) -> Trace:
        """Return requests of another rate at the same times: evenly chosen ones, or each of them several
        times, further ones at random before the next arrival, so that a burst grows as the rate does.
        """
        factor = max(rate / self.rate, 2.0 / len(self.arrival_s))
        if abs(factor - 1.0) < 1e-9:
            return self
        at = np.array(self.arrival_s)
        copies = np.diff(np.floor(factor * np.arange(len(at) + 1) + 1e-9)).astype(int)
        which = np.repeat(np.arange(len(at)), copies)
        is_first = np.diff(which, prepend=-1) > 0
        gaps = np.append(np.diff(at), 0.0)[which]
        later = np.random.default_rng(0).random(len(which)) * gaps * ~is_first
        order = np.argsort(at[which] + later, kind="stable")
        arrives, which = (at[which] + later)[order], which[order]
        inputs, outputs = (np.array(of)[which] for of in (self.input_tokens, self.output_tokens))
        return Trace(tuple(arrives.tolist()), tuple(inputs.tolist()), tuple(outputs.tolist()))

    def shares(self, number: int) -> list[Trace]:
        """Return each `number`th request, as one of so many replicas has them, for as many replicas as have
        REQUESTS together; the first one has some with tokens to time.
        """
        step = min(number, max(len(self.arrival_s) // 2, 1))
        first = next((n for n, tokens in enumerate(self.output_tokens) if tokens > 1), 0)
        most = min(step, -(-REQUESTS * step // len(self.arrival_s)))
        some = [slice((first + n) % step, None, step) for n in range(most)]
        return [Trace(self.arrival_s[n], self.input_tokens[n], self.output_tokens[n]) for n in some]


def read_trace(path: str | Path) -> Trace:
    """Read a table with the columns TRACE; InputError (code "trace") for one without order or requests.

    Columns may have the names in TRACE_NAMES; arrivals may be dates.
    """
    known = read_table(path).names
    names = [next((one for one in some if one in known), some[0]) for some in COLUMNS]
    columns = ", ".join(map(" or ".join, COLUMNS))
    rows = [*read_table(path, names, f"expected a trace with the columns {columns}")]
    arrives, *tokens = names
    arrivals = [_seconds(row, arrives) for row in rows]
    for row, before, after in zip(rows[1:], rows, np.diff(arrivals), strict=False):
        if after < 0.0:
            raise row.wrong(
                arrives, f"{before[arrives]} or later; sort the rows by it, as logs are often in the order "
                "of completion",
            )  # fmt: skip
    span = arrivals[-1] - arrivals[0] if rows else 0.0
    for is_wrong, why in (
        (len(rows) < 2, f"{plural(len(rows), 'request')}; expected 2 or more"),
        (span == 0.0, "all requests arrive at once; expected arrival_s to rise"),
        (span > LONGEST_TRACE, f"the last request arrives after {max(arrivals, default=0.0):,.0f} s; "
         f"expected seconds, and at most {LONGEST_TRACE:,.0f} of them (a week)"),
    ):  # fmt: skip
        if is_wrong:
            raise InputError(f"{path}: {why}", code="trace")
    inputs, outputs = (tuple(row.whole(name) for row in rows) for name in tokens)
    unread = tuple(name for name in rows[0] if name not in names)
    return Trace(tuple(arrivals), inputs, outputs, unread, Path(path).name)


def _seconds(row: Row, column: str) -> float:
    """The seconds of an arrival, a number or a date."""
    if row[column][4:5] == "-":
        with suppress(ValueError):
            date = datetime.fromisoformat(row[column])
            return date.replace(tzinfo=date.tzinfo or UTC).timestamp()
    return row.number(column, 0.0, expected="seconds, or a date such as 2023-11-16 18:15:46.68")


@dataclass(frozen=True)
class Load:
    """Requests of a server: `request_rate` a second, or `concurrency` of them at any time.

    `arrivals`: EVEN, POISSON, or a trace, whose times, if it has any, are stretched to the rate (those of
    another rate: `Trace.at_rate`).
    `cached_tokens`: tokens of each prompt that the cache holds, but not of the first `distinct_prompts`
    requests. `range_ratio`: lengths are drawn evenly between this fraction of the tokens and all of them.
    `requests`: their number, all of which count, as in a benchmark; 0: as many as a steady load needs.
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
        inputs, outputs = (tokens[::groups] for tokens in row.lengths or ((), ()))
        return cls(
            row.input_tokens, row.output_tokens, row.concurrency * (not row.request_rate) / groups,
            row.request_rate / groups, Trace((), inputs, outputs) if inputs else POISSON, row.cached_tokens,
            distinct_prompts=row.distinct_prompts, range_ratio=row.range_ratio,
            requests=row.requests // groups,
        )  # fmt: skip

    @property
    def longest(self) -> float:
        """Tokens of the longest request."""
        if isinstance(self.arrivals, Trace):
            pairs = zip(self.arrivals.input_tokens, self.arrivals.output_tokens, strict=True)
            return float(max(map(sum, pairs)))
        return self.tokens

    @property
    def tokens(self) -> float:
        """Tokens of a request, on average."""
        return self.input_tokens + self.output_tokens

    @property
    def new_tokens(self) -> float:
        """Tokens of a prompt that are computed."""
        return self.input_tokens - min(self.cached_tokens, self.input_tokens - 1.0)

    def drawn(self, at_once: int, front_ms: float, running: int | None = None) -> Requests:
        """Return the requests, `at_once` of them at any time, at a rate on average.

        `running`: those of a steady load that decode from the start; None: all at once.
        """
        running = at_once if running is None else min(running, at_once)
        rng = np.random.default_rng(SEED)
        trace = self.arrivals if isinstance(self.arrivals, Trace) else None
        is_closed, is_steady = not self.request_rate, not self.requests
        number, counted, arrivals, ages = self.requests, slice(None), None, np.zeros(0)
        if trace and trace.arrival_s and not is_closed:
            number, arrivals = len(trace.arrival_s), 1e3 * np.array(trace.arrival_s)
            arrivals = (arrivals - arrivals[0]) * (trace.rate / self.request_rate)
            is_steady = False
        elif is_steady:
            begin, blocks = at_once * (2 - is_closed), STRATA * -(-at_once // STRATA)
            counted = slice(begin, begin + (blocks if is_closed else REQUESTS))
            number = counted.stop + 2 * at_once + STRATA
        if arrivals is None and not is_closed:
            gaps = np.ones(number) if self.arrivals == EVEN else rng.exponential(1.0, number)
            gaps = gaps * (1e3 / self.request_rate / gaps[counted].mean())
            gaps[: at_once * is_steady] = 0.0
            arrivals = np.cumsum(gaps)
        if trace:
            pairs = np.column_stack([trace.input_tokens, trace.output_tokens])
            if is_closed and is_steady:
                order = np.argsort(pairs.sum(1))[:: len(pairs) // REQUESTS + 1]
                pairs = _shuffled(rng, pairs[order], number, at_once)
            inputs, outputs = np.resize(pairs, (number, 2)).T
        else:
            both = self.input_tokens, self.output_tokens
            inputs, outputs = (self._lengths(rng, most, number) for most in both)
        if is_steady:
            if is_closed and not trace:
                strata = (np.arange(STRATA) + 0.5) / (STRATA / 2.0) - 1.0
                varies = VARIES * _shuffled(rng, strata, number, at_once)
                outputs = outputs + np.rint(outputs * varies)
            ages = rng.permutation((np.arange(running) + 0.5) / running) * outputs[:running]
        cached = np.minimum(self.cached_tokens, inputs - 1.0)
        cached[: self.distinct_prompts] = 0.0
        return Requests(inputs, outputs, cached, arrivals, at_once, front_ms, ages, counted)

    def _lengths(self, rng: Any, most: float, number: int) -> np.ndarray:
        most = max(round(most), 1)
        if self.range_ratio >= 1.0:
            return np.full(number, most)
        return rng.integers(max(int(self.range_ratio * most), 1), most + 1, number)


def _shuffled(rng: Any, values: np.ndarray, number: int, begin: int) -> np.ndarray:
    """Return `number` of the values: all of them in one order after the other, one of which starts at
    `begin`.
    """
    first = -begin % len(values)
    orders = (rng.permutation(len(values)) for _ in range(-(-(first + number) // len(values))))
    return values[np.concatenate([*orders])[first : first + number]]


class RequestTimes(NamedTuple):
    """Times of requests as (requests,) arrays in ms, and means of the server.

    `tpot_ms`: between the tokens of each request that has several, as benchmarks report it;
    `output_tokens`: their numbers. `requests_per_s`; `concurrency`: requests at the server on average.
    `step`: the mean step that decodes, as a token meets it: (STEP_PARTS + STARTS,) of it alone.
    `waited_ms`: mean time, over all tokens after the first, in which a preempted request waits for a cache.
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
        """Return the times of replicas' requests as those of one."""
        arrays = (np.concatenate(each) for each in zip(*(one[:4] for one in several), strict=True))
        rest = (np.mean(each, axis=0) for each in zip(*(one[4:] for one in several), strict=True))
        return cls._make([*arrays, *rest])

    @property
    def mean_tpot_ms(self) -> float:
        """Mean time between tokens, over all tokens."""
        after = self.output_tokens[self.output_tokens > 1] - 1.0
        return float(np.sum(self.tpot_ms * after) / np.sum(after))


class Server:
    """A deployment with its framework's scheduler, for requests of up to `longest` tokens.

    `limits`: those of a step, else the framework's; `drafts`, `accepted`: as in Rule. `tokens`: those of a
    request on average; 0: `longest`.
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
            limits.tokens, limits.sequences, cache, server.mixes, server.reserves, True, drafts, accepted
        )  # fmt: skip
        self.longest = longest
        self._tables: dict[tuple[FrameworkOverheads, int], StepTable] = {}

    @cached_property
    def parts(self) -> StepParts:
        """The parts of its steps."""
        most = self.rule.sequences * (1 + self.rule.drafts) + 1
        tokens, sequences = max(self.rule.tokens, most), self.rule.sequences
        return step_parts(self.gpu, self.deployment, tokens, sequences, self.longest)

    def simulate(self, load: Load, overheads: FrameworkOverheads) -> tuple[Requests, Simulated]:
        """Simulate a load."""
        at_once = int(min(max(load.concurrency, 1.0), MOST_AT_ONCE))
        table = self._table(load, overheads, at_once)
        running = None if load.request_rate else self.most_running(load)
        if load.request_rate and not load.requests:
            at_once = self._steady(load, table)
        requests = load.drawn(at_once, overheads.front_ms, running)
        return requests, simulate(table, self.rule, requests)

    def _table(self, load: Load, overheads: FrameworkOverheads, at_once: int) -> StepTable:
        most = self.rule.sequences
        key = overheads, most if load.request_rate else min(most, at_once)
        if key not in self._tables:
            self._tables[key] = self.parts.table(*key)
        return self._tables[key]

    def most_running(self, load: Load) -> int:
        """Return the requests that decode at once while others always wait.

        There is room for their tokens, and each step has room for the prompts that follow them.
        """
        rule = self.rule
        each = load.tokens - load.output_tokens / 2.0 * (not rule.reserves)
        most = min(rule.sequences, rule.cache / each)
        if rule.mixes:
            steps = max((load.output_tokens - 1.0) / rule.tokens_per_step, 1.0)
            most = min(most, rule.tokens / (1 + rule.drafts + load.new_tokens / steps))
        return max(int(most), 1)

    def _steady(self, load: Load, table: StepTable) -> int:
        """Return the requests at once under a load at a rate, if none waits: those of Little's law.

        Prompts take a fraction of the time from all that decode.
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
        """Return the times of a load's counted requests."""
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
            if not load.requests:  # nobody asked for answers that differ by VARIES
                as_asked = (round(load.output_tokens) - 1.0) / np.maximum(outputs - 1.0, 1.0)
                e2e = ttft + (end - first) * as_asked
            rate, concurrency = 1e3 * load.concurrency / float(e2e.mean()), load.concurrency
            extra = load.concurrency - min(load.concurrency, MOST_AT_ONCE)
            if extra:  # more of them wait by what the server takes for those before them
                rate = 1e3 * MOST_AT_ONCE / float(e2e.mean())
                ttft, e2e = ttft + 1e3 * extra / rate, e2e + 1e3 * extra / rate
        waited = float(away.sum() / max(np.sum(outputs - 1.0), 1.0))
        return RequestTimes(ttft, tpot, e2e, outputs, rate, concurrency, step, waited)

    def mean_step(self, events: np.ndarray) -> np.ndarray:
        """(STEP_PARTS + STARTS,) of the mean decoding step, without prompts, as output tokens meet it."""
        weight = events[:, 2] * events[:, 3]
        by_context = weight * events[:, 3]
        sequences = max(float(by_context.sum() / max(weight.sum(), 1.0)), 1.0)
        context = float(np.sum(by_context * events[:, 4]) / max(by_context.sum(), 1.0))
        mean = Event(0.0, 0.0, 1, sequences, context, 0, 0, 0.0)
        return self.parts.of(np.array([mean], float), self.rule)[0]

    def prompt_parts(self, new: float, start: float = 0.0) -> np.ndarray:
        """(STEP_PARTS + STARTS,) of a prompt alone, of `new` tokens behind `start` that the cache holds."""
        parts, rule = self.parts, self.rule
        chunks = max(math.ceil(new / rule.tokens), 1)
        attention = attention_of_prompt(parts.prefill.tolist(), parts.unit, start, new) / chunks
        each = Event(0.0, 0.0, chunks, 0, 0.0, new / chunks, 1, attention)
        return parts.of(np.array([each], float), rule)[0]

    def largest_rate(self, load: Load, overheads: FrameworkOverheads) -> float:
        """Return the requests a second that leave while others always wait for a place."""
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
    """(STEP_PARTS + STARTS,) of times per output token, to the first token, and of `RequestTimes.step`.

    The schedule is that of `overheads`; the times with other overheads follow from the parts.
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
