"""Continuous batching of requests by a server, simulated event by event.

A step decodes one token of each running sequence and computes prompts within a budget of tokens, as in the
schedulers of vLLM and TensorRT-LLM. A server that does not mix computes prompts in separate steps, as
SGLang does. Requests wait, share steps, are preempted when the cache is full, and leave. Between two events
the running sequences stay the same, so all steps up to the next event are one closed form.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lolat.arrays import np

UNLIMITED = 1e15  # tokens
CONTEXTS = 48
"""Number of intervals, from no context to the longest one, in the tables of attention times."""


class Rule(NamedTuple):
    """The limits of a scheduler.

    `tokens`, `sequences`: the most tokens and sequences in a step. `cache`: tokens that fit in the cache.
    `mixes`: prompts share steps with output tokens. `reserves`: a request starts only if its whole output
    fits in the cache. `is_ahead`: a step is scheduled while the previous step runs, so a new request waits
    one step longer. `drafts`: draft tokens of each sequence in a step; `accepted`: the probability that a
    draft token is accepted if the one before it was.
    """

    tokens: int = 8192
    sequences: int = 1024
    cache: float = UNLIMITED
    mixes: bool = True
    reserves: bool = False
    is_ahead: bool = False
    drafts: int = 0
    accepted: float = 0.0

    @property
    def tokens_per_step(self) -> float:
        """Mean output tokens of a sequence in a step (Leviathan et al. 2023, equation 1)."""
        if self.accepted >= 1.0:
            return self.drafts + 1.0
        return (1.0 - self.accepted ** (self.drafts + 1)) / (1.0 - self.accepted)


class StepTable(NamedTuple):
    """The ms of a step's parts, in lists whose index is a number of tokens or a size.

    `tokens`: ms of a step without attention and head, by its tokens. `head`: ms of the head, by output
    tokens. `decode`: number of sequences -> ms of their attention, by context in units of `unit` tokens.
    `prefill`: ms of a prompt's attention, by its tokens in units of `unit`.
    """

    tokens: Sequence[float]
    head: Sequence[float]
    decode: Callable[[int], Sequence[float]]
    prefill: Sequence[float]
    unit: float

    def step_ms(
        self, sequences: int, drafts: int, context: float, new: int = 0, last: int = 0
    ) -> float:
        """Time of a step, in ms, without the attention of prompts.

        `context`: mean tokens in the cache of a sequence. `new`: tokens of prompts; `last`: prompts that
        end.
        """
        m = sequences * (1 + drafts)
        time = self.tokens[m + new] + self.head[max(m + last, 1)]
        if not sequences:
            return time
        return time + between(self.decode(sequences), context / self.unit)


def between(row: Sequence[float], at: float) -> float:
    """Interpolate a row of CONTEXTS + 1 values; beyond its end, extrapolate the last interval."""
    i = int(at)
    if i >= CONTEXTS:
        i = CONTEXTS - 1
    return row[i] + (at - i) * (row[i + 1] - row[i])


def attention_of_prompt(prefill: Sequence[float], unit: float, start: float, new: float) -> float:
    """Time of attention of `new` tokens that follow `start` other tokens; `prefill`, `unit`: as in
    StepTable.
    """
    alone = between(prefill, new / unit)
    if not start:
        return alone
    return max(between(prefill, (start + new) / unit) - between(prefill, start / unit), alone)


@dataclass(frozen=True)
class Requests:
    """Requests as (requests,) arrays of tokens; `cached`: tokens of each prompt that the cache holds.

    At a rate: `arrivals`, ms from the start, ascending. Closed loop: `at_once` requests at any time;
    `front_ms` after a request ends, the next one arrives. `ages`: output tokens that the first requests
    already have, for a steady load from the start; empty: all start with their prompts. `counted`: the
    requests whose times count; the simulation ends when these have left, while others still arrive.
    """

    inputs: np.ndarray
    outputs: np.ndarray
    cached: np.ndarray
    arrivals: np.ndarray | None = None
    at_once: int = 0
    front_ms: float = 0.0
    ages: np.ndarray = field(default_factory=lambda: np.zeros(0))
    counted: slice = field(default_factory=lambda: slice(None))


class Event(NamedTuple):
    """A number of equal steps, one after the other.

    `start_ms`, `end_ms`: start of the first and end of the last step. In each step: `sequences` decode,
    with `context` mean tokens in the cache of each; `new` tokens of prompts are computed, `prompt_ms` is
    the time of their attention, and `last` prompts end.
    """

    start_ms: float = 0.0
    end_ms: float = 0.0
    steps: int = 1
    sequences: float = 0.0
    context: float = 0.0
    new: float = 0.0
    last: int = 0
    prompt_ms: float = 0.0


class Simulated(NamedTuple):
    """A simulation: (requests,) ms of arrivals, first tokens and ends (nan: after the simulation);
    `away_ms`: (requests,) ms in which each was preempted; `events`: (events, fields of Event).
    """

    arrival_ms: np.ndarray
    first_ms: np.ndarray
    end_ms: np.ndarray
    away_ms: np.ndarray
    events: np.ndarray


def simulate(table: StepTable, rule: Rule, requests: Requests) -> Simulated:
    """Simulate a server until all counted requests have left; the simulation is deterministic."""
    return _Server(table, rule, requests).run()


class _Server:
    """The state of a simulated server: its waiting requests, prompts and running sequences.

    `decoded`: number of steps so far in which sequences decoded. A running sequence ends when `decoded`
    reaches the number stored for it; each step adds `per_step` tokens to its context.
    """

    def __init__(self, table: StepTable, rule: Rule, requests: Requests) -> None:
        self.table, self.rule, self.requests = table, rule, requests
        self.inputs, self.cached = requests.inputs.tolist(), requests.cached.tolist()
        self.per_step = rule.tokens_per_step
        # The prompt gives the first token, each step some of the others.
        steps = np.ceil((requests.outputs - 1.0) / self.per_step - 1e-9)
        self.left = steps.astype(int).tolist()
        number = len(self.inputs)
        self.arrival, self.first = [0.0] * number, [math.nan] * number
        self.end, self.away = [math.nan] * number, [0.0] * number
        self.t, self.seen, self.decoded = 0.0, 0.0, 0
        # A heap of (step of the end, request), preempted ones among them.
        self.ends: list[tuple[int, int]] = []
        # Of a running request: tokens in its cache, less those of steps, when it started; step of its end.
        self.running: dict[int, tuple[float, int]] = {}
        self.context = 0.0  # tokens in the cache of all running sequences
        self.prompts: deque[list[float]] = deque()  # [request, tokens done, tokens in all]
        # Tokens of these in all, and those still to compute.
        self.in_prompts, self.to_compute = 0.0, 0.0
        self.waiting: deque[int] = deque()
        self.coming: deque[tuple[float, int]] = deque()
        self.again: dict[int, float] = {}  # tokens to compute again after a preemption
        self.reserved = 0.0
        self.preempts_at = math.inf if rule.reserves else rule.cache
        self.events: list[tuple[float, ...]] = []
        self.following = 0
        self.counted = range(number)[requests.counted]
        self.staying = len(self.counted)
        self._start()

    def _start(self) -> None:
        requests, first = self.requests, len(self.requests.ages)
        if requests.arrivals is None:
            self.following = first = min(requests.at_once, len(self.inputs))
        for one in range(first):
            if one < len(requests.ages) and self._has_room(one):
                done = min(int(requests.ages[one] / self.per_step), max(self.left[one] - 1, 0))
                self.left[one] -= done
                self._reserve(one)
                self._run(one, self.inputs[one] + 1.0 + done * self.per_step)
                self.first[one] = 0.0
            else:
                self.coming.append((0.0, one))
        if requests.arrivals is not None:
            self.arrival = requests.arrivals.tolist()
            self.coming.extend([*zip(self.arrival, range(len(self.arrival)), strict=True)][first:])

    # ---- Memory.

    def _needs(self, one: int) -> float:
        """Free tokens of the cache that a request needs to be admitted."""
        if self.rule.reserves:
            return self.inputs[one] + (self.left[one] + 1) * self.per_step
        return self.again.get(one, self.inputs[one])

    def _reserve(self, one: int, sign: int = 1) -> None:
        """Reserve the cache of a whole request (`sign` -1: free it), if the server reserves."""
        if self.rule.reserves:
            self.reserved += sign * self._needs(one)

    def _used(self) -> float:
        return self.reserved if self.rule.reserves else self.context + self.in_prompts

    def _has_room(self, one: int) -> bool:
        n, rule = len(self.running) + len(self.prompts), self.rule
        return n < rule.sequences and (not n or self._used() + self._needs(one) <= rule.cache)

    # ---- Requests.

    def _run(self, one: int, tokens: float) -> None:
        """Let a request with a computed prompt decode."""
        if self.left[one] <= 0:
            self._reserve(one, -1)
            self._leave(one)
            return
        end = self.decoded + self.left[one]
        heapq.heappush(self.ends, (end, one))
        self.running[one] = tokens - self.decoded * self.per_step, end
        self.context += tokens

    def _leave(self, one: int) -> None:
        self.end[one] = self.t
        self.staying -= one in self.counted
        if self.requests.arrivals is None and self.following < len(self.inputs):
            at = self.t + self.requests.front_ms
            self.arrival[self.following] = at
            self.coming.append((at, self.following))
            self.following += 1

    def _tokens_of(self, one: int) -> float:
        return self.running[one][0] + self.decoded * self.per_step

    def _remove(self, one: int) -> None:
        self.context -= self._tokens_of(one)
        self._reserve(one, -1)
        del self.running[one]

    def _preempt(self) -> None:
        """Drop the cache of the request that started last; its tokens will be computed again."""
        one = next(reversed(self.running))
        self.again[one] = self._tokens_of(one)
        self.away[one] -= self.t
        self.left[one] = self.running[one][1] - self.decoded
        self._remove(one)
        self.waiting.appendleft(one)

    # ---- Steps.

    def run(self) -> Simulated:
        """Run until all counted requests have left."""
        coming, prompts, running = self.coming, self.prompts, self.running
        while self.staying:
            if self.waiting or (coming and coming[0][0] <= self.seen):
                self._admit()
            if prompts:
                self._prompt_step()
            elif running:
                self._decode_steps()
            else:  # idle
                self.t = self.seen = max(coming[0][0], self.t)
        arrival, first, end, away = map(np.array, (self.arrival, self.first, self.end, self.away))
        return Simulated(arrival, first, end, away, np.array(self.events, float))

    def _admit(self) -> None:
        while self.coming and self.coming[0][0] <= self.seen:
            self.waiting.append(self.coming.popleft()[1])
        while self.waiting and self._has_room(self.waiting[0]):
            if self.to_compute >= self.rule.tokens:
                return  # more prompts than the next step takes
            one = self.waiting.popleft()
            whole = self.again.get(one, float(self.inputs[one]))
            known = 0.0 if one in self.again else min(self.cached[one], whole - 1.0)
            self._reserve(one)
            self.prompts.append([one, known, whole])
            self.in_prompts += whole
            self.to_compute += whole - known

    def _prompt_step(self) -> None:
        """Run one step with as many tokens of prompts as fit, or equal steps within a long prompt."""
        rule, table = self.rule, self.table
        if rule.mixes:
            self._make_room()
        decoding = len(self.running) if rule.mixes else 0
        budget = max(rule.tokens - decoding * (1 + rule.drafts), 1)
        steps = 1 if self.to_compute <= budget else self._equal_steps(decoding, budget)
        most, new, attention, ended = budget * steps, 0.0, 0.0, []
        for prompt in self.prompts:
            take = min(prompt[2] - prompt[1], most - new)
            if take <= 0:
                break
            attention += attention_of_prompt(table.prefill, table.unit, prompt[1], take)
            prompt[1] += take
            new += take
            if prompt[1] >= prompt[2]:
                ended.append(int(prompt[0]))
        self.to_compute -= new
        context = self.context / decoding if decoding else 0.0
        if steps == 1:
            last = attention + table.step_ms(decoding, rule.drafts, context, int(new), len(ended))
            time = last
        else:  # each at least as long as a prompt of as many tokens
            alone = attention_of_prompt(table.prefill, table.unit, 0.0, budget)
            attention, new = max(attention / steps, alone), new / steps
            grows = (steps - 1) * self.per_step
            first, last = (
                attention + table.step_ms(decoding, rule.drafts, at, int(new), len(ended))
                for at in (context, context + grows)
            )
            time, context = steps * (first + last) / 2.0, context + grows / 2.0
        self._advance(time, last, steps, decoding, context, new, len(ended), attention)
        for one in ended:
            whole = self.prompts.popleft()[2]
            self.in_prompts -= whole
            if math.isnan(self.first[one]):
                self.first[one] = self.t
            if self.again.pop(one, None):
                self.away[one] += self.t
            self._run(one, whole + 1.0)

    def _equal_steps(self, decoding: int, budget: float) -> int:
        """Number of steps that compute only parts of the first prompt, until anything else changes."""
        rule, (_, done, whole) = self.rule, self.prompts[0]
        steps = min((whole - done) // budget - 1.0, (self.to_compute - rule.tokens) // budget)
        if decoding:
            steps = min(steps, self._next_end() - self.decoded)
            if not rule.reserves:
                steps = min(steps, (rule.cache - self._used()) // (decoding * self.per_step))
        return max(int(steps), 1)

    def _decode_steps(self) -> None:
        """Run all steps until a sequence ends, a request with room arrives, or the cache is full."""
        rule, table, each = self.rule, self.table, self.per_step
        self._make_room()
        n, unit = len(self.running), table.unit
        start, m = self.context / n, n * (1 + rule.drafts)
        other, row = table.tokens[m] + table.head[m], table.decode(n)
        steps = self._next_end() - self.decoded
        if n > 1 and self.context + n * steps * each > self.preempts_at:
            steps = max(int((self.preempts_at - self.context) / (n * each)), 1)
        first = other + between(row, start / unit)
        if self.coming and not self.waiting and n < rule.sequences:
            gap = self.coming[0][0] - self.t
            at_gap = other + between(row, (start + gap / first * each) / unit)
            until = max(
                math.ceil(2.0 * gap / (first + at_gap)), 0
            )  # not too many: steps get no shorter
            while until < steps:
                last = other + between(row, (start + (until - 1) * each) / unit)
                if until * (first + last) >= 2.0 * gap:
                    break
                until += 1
            steps = min(steps, max(until + rule.is_ahead, 1))
        last = other + between(row, (start + (steps - 1) * each) / unit)
        context = start + (steps - 1) * each / 2.0
        self._advance(steps * (first + last) / 2.0, last, steps, n, context)

    def _advance(
        self, time: float, last: float, steps: int, sequences: int, context: float, new: float = 0.0,
        ended: int = 0, prompt_ms: float = 0.0,
    ) -> None:  # fmt: skip
        """Advance the clock by an event's `time`; sequences that end with it leave. `last`: ms of its last
        step.
        """
        start = self.t
        self.t = end = start + time
        self.seen = end - last if self.rule.is_ahead else end
        self.events.append((start, end, steps, sequences, context, new, ended, prompt_ms))
        if not sequences:
            return
        self.decoded += steps
        self.context += steps * sequences * self.per_step
        while self.running and self.ends[0][0] <= self.decoded and self._next_end() <= self.decoded:
            _, one = heapq.heappop(self.ends)
            self._remove(one)
            self._leave(one)

    def _next_end(self) -> int:
        while (found := self.running.get(self.ends[0][1])) is None or found[1] != self.ends[0][0]:
            heapq.heappop(self.ends)  # preempted
        return found[1]

    def _make_room(self) -> None:
        """Preempt the latest requests until the cache has room for a step of each running sequence."""
        n = len(self.running)
        while self.context + self.in_prompts + n * self.per_step > self.preempts_at and n > 1:
            self._preempt()
            n -= 1
