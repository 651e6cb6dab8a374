"""Rows of the answer about a served language model: times and prices, by load and GPUs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lolat.arrays import np
from lolat.device.intervals import normal_quantile
from lolat.llm.answer import BREAKDOWN, ServingConfig
from lolat.llm.domain import interval, tail
from lolat.llm.gpu import CALIBRATED_AT, GPU
from lolat.llm.load import Load, Trace
from lolat.llm.question import PERCENTILES, ServingQuestion
from lolat.llm.ranking import best_of
from lolat.llm.rates import least_within, rate_at, step_of
from lolat.llm.row_parts import RentedMachines, ServedNames, rented_machines
from lolat.llm.scheduler import Event
from lolat.llm.server import RequestTimes, Server
from lolat.llm.steps import (
    STARTS,
    STEP_PARTS,
    Deployment,
    each_ms,
    requests_that_fit,
)
from lolat.parameters import MOST_GPUS
from lolat.units import GIB, MONTH_HOURS

if TYPE_CHECKING:
    from lolat.hardware.rental import Rental

SLOWEST = 1.0 / 16.0
"""The search for a rate that surely keeps the limits goes down to this fraction of the row's rate."""
ENDS = LOWER, UPPER = 0, 1
"""The indices of an interval's ends."""


@dataclass(frozen=True)
class Sizing:
    """A deployment on a GPU, with a question about it; `rental`: the machines and their prices."""

    gpu: GPU
    device: str
    deployment: Deployment
    asked: ServingQuestion
    rental: Rental | None
    names: ServedNames
    found: dict[tuple[Load, int], ServingConfig] = field(default_factory=dict, init=False)
    """Cached: (load, number of replicas) -> row."""
    simulated: dict[Load, RequestTimes] = field(default_factory=dict, init=False)
    """Cached: load of a group -> its times. Several numbers of replicas may have the same load."""
    slowed: dict[tuple[Load, int], dict[str, float]] = field(default_factory=dict, init=False)
    """Cached: (load of a group, end of the interval) -> the result of `_if_slower`."""

    @cached_property
    def server(self) -> Server:
        """The server of one replica, or of one attention group of a replica."""
        asked, section = self.asked, self.gpu.section
        load = asked.loads()[0]
        return Server(
            self.gpu, self.deployment, load.longest, asked.limits(section), asked.draft_tokens,
            asked.accepted or 0.0, load.tokens,
        )  # fmt: skip

    @cached_property
    def fitting_requests(self) -> int:
        """Number of requests that fit on a group; 0 if the weights or the longest request do not fit."""
        load, of = self.asked.loads()[0], (self.gpu.section, self.deployment)
        return requests_that_fit(*of, load.tokens) if requests_that_fit(*of, load.longest) else 0

    @cached_property
    def largest_rate(self) -> float:
        """The most requests a second that do not pile up at one replica."""
        each = self.server.largest_rate(self.asked.loads()[0], self.gpu.section.overheads)
        return each * self.deployment.attention_data_parallel

    @cached_property
    def backlog_rate(self) -> float:
        """The requests a second that one replica serves once requests have piled up."""
        each = self.server.backlog_rate(self.asked.loads()[0], self.gpu.section.overheads)
        return each * self.deployment.attention_data_parallel

    @property
    def drained_rate(self) -> float:
        """The largest request rate at which a queue at one replica drains."""
        return min(self.largest_rate, self.backlog_rate)

    @cached_property
    def sure_question(self) -> ServingQuestion:
        """The question with `sure`, so that whole intervals must keep the limits."""
        return replace(self.asked, sure=100.0 * self.asked.coverage)

    @property
    def percentiles(self) -> set[int]:
        """The percentiles of times in a row."""
        return {*PERCENTILES, self.asked.percentile or PERCENTILES[0]}

    @property
    def most_gpus(self) -> int:
        """The most GPUs that a row may have."""
        usual = MOST_GPUS if self.asked.request_rate else int(self.gpu.section.sheet.gpus_per_node)
        return self.asked.gpus or usual

    def rows(self) -> list[ServingConfig]:
        """A row for each load; with limits, its number of replicas is the best one."""
        return [self.best_row(load, self.affordable(None)) for load in self.asked.loads()]

    def affordable(self, known: ServingConfig | None) -> int:
        """The largest number of replicas to try.

        Under a rate more replicas would cost more than the `known` row or, without prices, have more GPUs.
        A trace has no such bound, because the parts of its replicas differ.
        """
        each = self.deployment.gpus
        most = max(self.most_gpus // each, 1)
        if known is None or not known.request_rate or isinstance(self.asked.arrivals, Trace):
            return most
        if not known.dollars_per_hour:
            return most if self._rented(1).dollars else min(most, known.gpus // each)
        usd = known.dollars_per_hour * (1.0 + 1e-9)  # so that equal ones are
        return bisect_right(
            range(1, most + 1), usd, key=lambda n: self._rented(n).dollars or math.inf
        )

    def best_row(self, load: Load, most: int, *, surely: bool = False) -> ServingConfig:
        """The row of a load with the best number of replicas that keeps the limits, up to `most`.

        `surely`: the whole intervals must keep the limits.
        """
        if load.request_rate:
            return self._least_replicas(load, most, surely)
        asked = self.sure_question if surely else self.asked
        numbers = range(1, min(most, int(load.concurrency)) + 1)
        rows = [self.row(load, n) for n in (numbers if self.asked.has_limits else (1,))]
        good = [row for row in rows if row.keeps(asked)]
        return best_of(good, self.asked) or rows[-1]

    def _least_replicas(self, load: Load, most: int, surely: bool) -> ServingConfig:
        """The row with the fewest replicas that keep the limits, up to `most`, plus the replicas for which
        the rented machines still have room.
        """
        if not self.fitting_requests:
            return self.row(load, 1)
        asked = self.sure_question if surely else self.asked
        first = min(max(math.ceil(load.request_rate / self.drained_rate), 1), most)
        if not self.asked.has_limits:
            return self.row(load, first)
        low = first - 1  # too few
        for number in (first, min(2 * first, most), most):
            if self.keeps(load, number, asked):
                break
            low = number
        else:
            return self.row(load, number)
        row = self.row(load, least_within(low, number, lambda n: self.keeps(load, n, asked)))
        rented = self._rented(row.replicas).replicas
        fuller = self.row(load, min(rented, most)) if rented > row.replicas else row
        return fuller if fuller.keeps(asked) else row

    def load_of(self, row: ServingConfig) -> Load:
        """The load of a row."""
        loads = self.asked.loads()
        if row.request_rate is None:
            return replace(loads[0], concurrency=float(row.concurrency))
        return next(load for load in loads if load.request_rate == row.request_rate)

    def full_row(self, row: ServingConfig) -> ServingConfig | None:
        """The row with as many requests as the GPUs of a row hold at once; None if its own load fits."""
        most = float(row.largest_concurrency)
        if row.fits or row.request_rate or not most:
            return None
        return self.row(replace(self.load_of(row), concurrency=most), row.replicas)

    def with_headroom(self, row: ServingConfig) -> ServingConfig:
        """A row with `headroom_rate` and `sure_rate`: the most requests a second at which its times, or its
        whole intervals, keep the limits.

        `sure_rate` is None if the question asks for sure rows, or if it would be below SLOWEST times the
        row's rate.
        """
        most, surely = self._most_within(row, self.asked), None
        if self.asked.sure is None:
            surely = self._most_within(row, self.sure_question)
        return replace(row, headroom_rate=most, sure_rate=surely)

    def _most_within(self, row: ServingConfig, asked: ServingQuestion) -> float | None:
        """The most requests a second at which the GPUs of a row keep the limits; None if there is no such
        rate.

        The rate is on the scale of `rate_at`, or is the rate of the row.
        """
        load, own, number = self.load_of(row), row.request_rate or 0.0, row.replicas

        def keeps(step: int) -> bool:
            return self.keeps(replace(load, request_rate=rate_at(-step)), number, asked)

        low = math.ceil(-step_of(self.drained_rate * number)) - 1
        high = math.floor(-step_of(own)) + 1
        if row.keeps(asked):  # such rates keep them
            return max(rate_at(-least_within(low, high, keeps)), own)
        slow = math.floor(-step_of(SLOWEST * own)) + 1
        return rate_at(-least_within(high - 2, slow, keeps)) if keeps(slow) else None

    def row(self, load: Load, replicas: int) -> ServingConfig:
        """The row of a load on `replicas` replicas; cached."""
        key = load, replicas
        if key not in self.found:
            self.found[key] = self._new_row(load, replicas)
        return self.found[key]

    def is_probable(self, load: Load, replicas: int) -> bool:
        """True if the row keeps the limits with a chance of at least PROBABLE."""
        return self.row(load, replicas).is_probable

    def keeps(self, load: Load, replicas: int, asked: ServingQuestion) -> bool:
        """True if the row keeps the limits of `asked`; it simulates only what these are compared with."""
        if (load, replicas) in self.found:
            return self.row(load, replicas).keeps(asked)
        ends = () if asked.sure is None else (UPPER,)
        return self._new_row(load, replicas, ends).keeps(asked)

    def _new_row(self, load: Load, replicas: int, ends: Sequence[int] = ENDS) -> ServingConfig:
        """Make a row; `ends`: the ends of its intervals for which a server of that speed is simulated."""
        deployment, limits = self.deployment, self.asked.limits(self.gpu.section)
        groups, rate = replicas * deployment.attention_data_parallel, load.request_rate or None
        # Requests that wait for a free sequence hold no memory.
        each = min(math.ceil(load.concurrency / groups), limits.sequences)
        row = ServingConfig(
            model=deployment.decoder.name, **self.names._asdict(),
            dtype=deployment.called, kv_dtype=deployment.kv_dtype,
            input_tokens=round(load.input_tokens), output_tokens=round(load.output_tokens),
            concurrency=int(load.concurrency), request_rate=rate,
            tensor_parallel=deployment.tensor_parallel, expert_parallel=deployment.expert_parallel,
            attention_data_parallel=deployment.attention_data_parallel,
            replicas=replicas, gpus=deployment.gpus * replicas,
            fits=bool(self.fitting_requests) if rate else each <= self.fitting_requests,
            memory_gib=self._memory_gib(load, each), largest_concurrency=self.fitting_requests * groups,
        )  # fmt: skip
        if self.fitting_requests:
            row = replace(row, **self._timed(row, *self.times(load, groups), ends))
        if not self.asked.has_limits or len(ends) < 2:
            return row
        return replace(
            row,
            within=row.keeps(self.asked),
            verdicts=row.judge(self.asked),
            verdict=row.verdict_on(self.asked),
            chance=0.0 if row.log_excess(self.asked) == math.inf else row.least_sure(self.asked)[0],
        )

    def _memory_gib(self, load: Load, requests: float) -> float:
        """GiB of weights, and of the caches of `requests` requests, on each GPU."""
        cache = requests * self.deployment.cache_bytes(load.tokens)
        return (self.deployment.weight_bytes + cache) / GIB

    def times(self, load: Load, groups: int) -> tuple[Load, RequestTimes]:
        """Divide a load among `groups` groups; return (the load of one group, its times)."""
        each = math.ceil(load.concurrency / groups)
        one = replace(load, request_rate=load.request_rate / groups, concurrency=float(each))
        several = [one]
        if isinstance(load.arrivals, Trace):
            trace = load.arrivals.at_rate(load.request_rate)
            several = [replace(one, arrivals=part) for part in trace.shares(groups)]
        if several[0] not in self.simulated:
            times = [self.server.times(part, self.gpu.section.overheads) for part in several]
            self.simulated[several[0]] = RequestTimes.together(times)
        return several[0], self.simulated[several[0]]

    def prompt(self, load: Load) -> np.ndarray:
        """(STEP_PARTS + STARTS,) ms, and numbers of events, of computing a prompt's uncached tokens."""
        return self.server.prompt_parts(load.new_tokens, load.input_tokens - load.new_tokens)

    def unshared_ms(self, load: Load, sequences: float) -> tuple[float, float]:
        """(ms of an output token in a step of `sequences`, ms of a prompt), without waiting."""
        each = each_ms(self.gpu.section.overheads)
        context = load.input_tokens + load.output_tokens / 2.0
        event = Event(sequences=sequences, context=context)
        step = float(self.server.mean_step(np.array([event])) @ each)
        return step / self.server.rule.tokens_per_step, float(self.prompt(load) @ each)

    def _timed(
        self, row: ServingConfig, load: Load, times: RequestTimes, ends: Sequence[int]
    ) -> dict[str, Any]:
        """The fields of a row that follow from the times of one group."""
        section, rate, groups = self.gpu.section, row.request_rate, row.groups
        tpot, ttft = times.mean_tpot_ms, float(times.ttft_ms.mean())
        prompt = self.prompt(load)
        step = times.step * each_ms(section.overheads)
        done = times.requests_per_s * groups
        if rate is None and load.concurrency * groups != row.concurrency:
            done *= row.concurrency / (load.concurrency * groups)  # the last group has fewer
        capacity = self._capacity(row, load, times.step)
        is_saturated = bool(capacity.get("saturated"))
        done = capacity["backlog_rate"] if is_saturated else done
        # A replica has every nth request of a trace, so its answers differ from those of all.
        is_trace = isinstance(load.arrivals, Trace)
        speed = done * (load.output_tokens if is_trace else float(times.output_tokens.mean()))
        rented = self._rented(row.replicas)
        dollars = rented.dollars
        month = None if dollars is None else MONTH_HOURS * dollars
        concurrency = row.concurrency if rate is None else times.concurrency * groups
        memory_gib = self._memory_gib(load, min(concurrency / groups, self.fitting_requests))
        memory = memory_gib if rate else row.memory_gib
        return self._percentiles(load, times, prompt, is_saturated, ends) | {
            "concurrency": concurrency, "ttft_ms": ttft, "tpot_ms": tpot, "memory_gib": memory,
            "prefill_ms": float(prompt @ each_ms(section.overheads)), "decode_ms": float(step.sum()),
            "tokens_per_s": speed, "tokens_per_s_user": 1e3 / tpot, "tokens_per_s_gpu": speed / row.gpus,
            "dollars_per_million": None if dollars is None else dollars / 3600.0 / speed * 1e6,
            "dollars_per_hour": dollars, "dollars_per_month": month, "rented": rented.machines,
            "rented_gpus": rented.gpus,
            "breakdown": dict(zip(BREAKDOWN, self._breakdown(step, times), strict=True)),
            "requests_per_s": done, "e2e_ms": float(times.e2e_ms.mean()),
        } | capacity  # fmt: skip

    def _capacity(self, row: ServingConfig, load: Load, step: np.ndarray) -> dict[str, Any]:
        """The fields of a row that compare its rate with the largest rate; {} without a rate.

        The interval follows from the time that a full server takes for its work.
        """
        if not (rate := row.request_rate):
            return {}
        most = self.largest_rate * row.replicas
        at_once = self.server.most_running(load)
        low, high = self.server.work_factors(load, step, most / row.groups, at_once, True)
        ends = self._widened(most, (most / high, most / low))
        return {
            "largest_rate": most, "largest_rate_interval": ends, "saturated": rate > most,
            "backlog_rate": self.backlog_rate * row.replicas, "utilization": min(rate / most, 1.0),
        }  # fmt: skip

    def _if_slower(
        self, load: Load, step: np.ndarray, at_once: float, end: int
    ) -> dict[str, float]:
        """Times by name if the server is as fast (LOWER) or as slow (UPPER) as its error allows.

        A slightly slower server is also busier, so near the largest rate requests wait far longer.
        """
        if (load, end) not in self.slowed:
            overheads, server = self.gpu.section.overheads, self.server
            factors = server.work_factors(load, step, load.request_rate, at_once)
            factor = self._widened(1.0, factors)[end]
            times = server.slowed(load, overheads, factor).by_name(self.percentiles)
            rate = load.request_rate * self.deployment.attention_data_parallel
            if end == UPPER and factor * rate > self.largest_rate:
                # They pile up: their wait is as long as the simulation. A token takes a full server's time.
                times |= dict.fromkeys((n for n in times if not n.startswith("tpot")), math.inf)
            self.slowed[load, end] = times
        return self.slowed[load, end]

    def _widened(self, value: float, ends: tuple[float, float]) -> tuple[float, float]:
        """The ends of a value's interval, converted from CALIBRATED_AT to the coverage of the question."""
        if self.asked.sure is None:
            return ends
        wider = normal_quantile(self.asked.coverage) / normal_quantile(CALIBRATED_AT)
        low, high = (value * (end / value) ** wider for end in ends)
        return low, high

    def _rented(self, replicas: int) -> RentedMachines:
        """The cheapest machines that hold each replica whole."""
        node = int(self.gpu.section.sheet.gpus_per_node)
        return rented_machines(self.rental, replicas, self.deployment.gpus, node)

    def _percentiles(
        self,
        load: Load,
        times: RequestTimes,
        prompt: np.ndarray,
        is_full: bool,
        slower: Sequence[int],
    ) -> dict[str, Any]:
        """The fields of a row with percentiles of times, and with the intervals of all times."""
        at_once = min(times.concurrency, self.server.rule.sequences, self.fitting_requests)
        at_rate = load.request_rate > 0.0
        sizes = at_once, load.input_tokens, load.output_tokens
        ms, experts = times.by_name(self.percentiles), self.deployment.decoder.experts
        ends, why = dict[str, tuple[float, float]](), list[str]()
        computed = 1.0 - min(load.cached_tokens / load.input_tokens, 1.0)
        for time, parts, part in (("tpot", times.step, None), ("ttft", prompt, computed)):
            of = self.gpu, self.deployment, sizes, parts, part
            low, high, reasons = interval(*of, at_rate=at_rate, is_full=is_full)
            ends[time] = ms[time] * low, ms[time] * high
            why += reasons
        after = (ms["e2e"] - ms["ttft"]) / ms["tpot"]  # tokens behind the first one
        low, high = (a + after * b for a, b in zip(ends["ttft"], ends["tpot"], strict=True))
        ends["e2e"] = low, high
        for name in (name for name in ms if name not in ends):
            time, _, at = name.partition("_p")
            factors = tail([end / ms[time] for end in ends[time]], time, experts, int(at))
            ends[name] = ms[name] * factors[0], ms[name] * factors[1]
        wide = {name: [*self._widened(ms[name], both)] for name, both in ends.items()}
        for end in slower if at_rate and not is_full else ():
            at_end, outer = self._if_slower(load, times.step, at_once, end), (min, max)[end]
            for name, both in wide.items():
                both[end] = outer(both[end], at_end[name])
        tpot = tuple(wide.pop("tpot"))
        others = {n: (a, None if b == math.inf else b) for n, (a, b) in wide.items()}
        ttft = others.pop("ttft")
        asked = f"_p{self.asked.percentile}"
        usual = tuple(f"_p{at}" for at in PERCENTILES)
        return {f"{n}_ms": at for n, at in ms.items() if n.endswith(usual)} | {
            "percentiles_ms": {n: at for n, at in ms.items() if n.endswith(asked)} or None,
            "tpot_interval_ms": tpot, "ttft_interval_ms": ttft, "intervals_ms": others,
            "in_domain": not why, "extrapolated": tuple(dict.fromkeys(why)),
        }  # fmt: skip

    def _breakdown(self, step: np.ndarray, times: RequestTimes) -> list[float]:
        """(BREAKDOWN,) ms of an output token by part; `step`: (STEP_PARTS + STARTS,) ms of a step."""
        ms = dict(zip((*STEP_PARTS, *STARTS), step.tolist(), strict=True))
        dense = ms["products"] + ms["head"]
        weights = min(self.deployment.dense_bytes / self.gpu.specs.bandwidth, dense)
        launches = sum(ms[name] for name in STARTS[: STARTS.index("exchanges")])
        parts = [weights, dense - weights, ms["attention"], ms["experts"],
                 ms["all_reduce"] + ms["exchanges"], ms["moved"], launches,
                 ms["steps"] + ms["parallel"]]  # fmt: skip
        tpot = times.mean_tpot_ms
        shrink = min(1.0 / self.server.rule.tokens_per_step, tpot / sum(parts))
        parts = [part * shrink for part in parts]
        rest = max(tpot - sum(parts), 0.0)
        waiting = min(times.waited_ms, rest)
        return [*parts, rest - waiting, waiting]
