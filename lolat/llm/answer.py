"""The answer to a question about serving a language model: a row for each load and number of GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lolat.device.intervals import normal_quantile
from lolat.device.limits import PROBABLE, VERDICTS
from lolat.io.results import Result, nested
from lolat.llm.frameworks import framework_row
from lolat.llm.question import ServingQuestion
from lolat.llm.row_parts import Excess, LimitedValue, Split, Time, TokenTimes
from lolat.parameters import MOST_GPUS
from lolat.units import between, digits, dollars, milliseconds, percent, plain, plural

if TYPE_CHECKING:
    from lolat.llm.refusal import Ways

BREAKDOWN = ("weights", "products", "attention", "experts", "all_reduce", "small", "launches", "scheduling",
             "prompts", "waiting")  # fmt: skip
"""The parts of the time per output token: reading dense weights, the further time of dense products,
attention, routed experts, all-reduces, small operations, kernel launches, scheduling, prompts of other
requests, and waiting for memory (a preempted request waits until its tokens are computed again)."""
NEAR = 0.02
"""A rate that can rise by less than this fraction, one step of the search for rates, has no room."""
JUST = 1.0005
"""A time over its limit by less than this factor is "just over" it, not "0.0 % over"."""
IDLE = 0.15
"""Replicas are nearly idle if their utilization is below this fraction."""
LIMITS = ("coverage", "max_tpot_ms", "min_tokens_per_s", "max_ttft_ms", "max_latency_ms", "percentile",
          "sure")  # fmt: skip
"""Arguments of the question that the JSON of an answer repeats."""
HEADROOM = ("headroom_rate", "headroom")
"""Attributes of the chosen row that the JSON of an answer has."""
LEAST_WAIT = 0.001
"""Waiting for memory is reported if it takes more than this share of the time per output token."""
UNBOUNDED = 10.0
"""Factor over the limit that stands for a time whose interval has no upper end."""
RATE = "rate"
"""The name of the request rate in `LimitedValue` and `Excess`, beside the names of times."""


@dataclass(frozen=True, repr=False)
class ServingConfig(Result):
    """A language model served on a number of GPUs under one load.

    Times are means over requests; p50, p90 and p99 in a name are percentiles.

    `device`: the name in the question; `profile`, `framework`, `gpu`: the profile that answers, its
    framework, its GPU. `gpus`: `replicas` times `tensor_parallel` times `attention_data_parallel`.
    `concurrency`: concurrent requests; under a `request_rate` their mean. `memory_gib`: weights and caches
    on each GPU. `fits`: True if they fit into each GPU; under a rate True if the weights fit.
    `largest_concurrency`: the most requests whose caches fit; 0 if the weights do not fit, and then there
    are no times. `e2e_ms`: time of a whole request. `breakdown`: ms of an output token by part.
    `intervals_ms`: intervals of further times, by name such as "ttft_p90". The interval of a time to the
    first token or of a whole request has no upper end (None) if requests would pile up on a server as slow
    as the error allows. `percentiles_ms`: times at the percentile that was asked for. `largest_rate`: the
    most requests a second that do not pile up, with `largest_rate_interval`; `saturated`: True if more
    arrive; `utilization`: the request rate over `largest_rate`. `backlog_rate`: the requests a second that
    are served once requests have piled up. A row that gets more never works off a queue, and keeps no
    limits. `headroom_rate`: the most requests a second at which the best row of a rate keeps the limits;
    `sure_rate`: the most at which its whole intervals keep the limits; None if they miss the limits even at
    a sixteenth of the rate. `tokens_per_s`: output tokens of all GPUs. `dollars_per_million`: US$ for a
    million output tokens and their prompts; `dollars_per_month`: US$ for 730 hours. `rented`: the machines
    that cost `dollars_per_hour`; `rented_gpus`: all of their GPUs. `within`: True if it fits and keeps the
    limits. `verdicts`: a verdict on each limit, "ttft", "tpot" and "e2e": "yes" if the whole interval keeps
    it, "likely" if the predicted time keeps it, "unlikely" if only a part of the interval keeps it, else
    "no". No verdict is better than the verdict on the rate; with `sure` each is "yes" or "no". `verdict`:
    the worst of these and of the verdict on the rate; "no" if the row does not fit; None without limits.
    `chance`: the probability that the least sure limit is kept, rounded to 0.05; None without a `verdict`.
    `in_domain`: True if such loads were served and their operations timed; `extrapolated`: the reasons if
    it is False, in words.
    """

    model: str
    device: str
    dtype: str
    kv_dtype: str
    input_tokens: int
    output_tokens: int
    concurrency: float
    tensor_parallel: int
    replicas: int
    gpus: int
    fits: bool
    memory_gib: float
    largest_concurrency: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tpot_interval_ms: tuple[float, float] | None = None
    ttft_interval_ms: tuple[float, float | None] | None = None
    intervals_ms: Mapping[str, tuple[float, float | None]] | None = None
    percentiles_ms: Mapping[str, float] | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_user: float | None = None
    tokens_per_s_gpu: float | None = None
    dollars_per_million: float | None = None
    dollars_per_hour: float | None = None
    rented: str | None = None
    rented_gpus: int | None = None
    breakdown: Mapping[str, float] | None = None
    within: bool | None = None
    in_domain: bool | None = None
    request_rate: float | None = None
    requests_per_s: float | None = None
    largest_rate: float | None = None
    largest_rate_interval: tuple[float, float] | None = None
    backlog_rate: float | None = None
    saturated: bool | None = None
    utilization: float | None = None
    e2e_ms: float | None = None
    ttft_p50_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p90_ms: float | None = None
    tpot_p99_ms: float | None = None
    e2e_p50_ms: float | None = None
    e2e_p90_ms: float | None = None
    e2e_p99_ms: float | None = None
    attention_data_parallel: int = 1
    expert_parallel: int = 1
    headroom_rate: float | None = None
    sure_rate: float | None = None
    dollars_per_month: float | None = None
    verdicts: Mapping[str, str] | None = None
    verdict: str | None = None
    chance: float | None = None
    profile: str = ""
    framework: str = ""
    gpu: str = ""
    extrapolated: tuple[str, ...] = ()

    @property
    def headroom(self) -> float | None:
        """The fraction by which the request rate can rise within the limits; None if it is not known."""
        rate, most = self.request_rate, self.headroom_rate
        return most / rate - 1.0 if rate and most else None

    @property
    def split(self) -> Split:
        """The parallelism of a replica."""
        return Split(self.tensor_parallel, self.expert_parallel, self.attention_data_parallel)

    def time(self, name: str, percentile: int | None) -> float | None:
        """The time "tpot", "ttft" or "e2e" in ms, at a percentile; `percentile` None: the mean."""
        name = name if percentile is None else f"{name}_p{percentile}"
        asked = (self.percentiles_ms or {}).get(name)
        return asked or getattr(self, f"{name}_ms", None)

    def token_times(self, percentile: int | None) -> TokenTimes:
        """The times per output token and to the first token, at a percentile; None: the means."""
        ends = {"tpot": self.tpot_interval_ms, "ttft": self.ttft_interval_ms}
        if percentile is not None:
            ends = {t: (self.intervals_ms or {}).get(f"{t}_p{percentile}") for t in ends}
        closed = {n: both and (both[0], both[1] or math.inf) for n, both in ends.items()}
        return TokenTimes(
            *(Time(self.time(n, percentile) or 0.0, both) for n, both in closed.items())
        )

    def whole_request(self, percentile: int | None) -> Time:
        """The time of a whole request at a percentile; None: the mean."""
        name = "e2e" if percentile is None else f"e2e_p{percentile}"
        ends = (self.intervals_ms or {}).get(name)
        return Time(self.time("e2e", percentile) or 0.0, ends and (ends[0], ends[1] or math.inf))

    def log_excess(self, asked: ServingQuestion) -> float:
        """The logarithm of the largest ratio of a time, or of the rate, to its limit; infinite if the row
        cannot serve its load or has more GPUs than allowed.
        """
        if not self.fits or self.saturated or self.gpus > (asked.gpus or MOST_GPUS):
            return math.inf
        return max((math.log(one.factor) for one in self.excesses(asked)), default=-math.inf)

    def keeps(self, asked: ServingQuestion) -> bool:
        """True if the row fits and keeps the limits."""
        return self.log_excess(asked) <= 0.0

    def may_keep(self, asked: ServingQuestion) -> bool:
        """True if a part of each interval keeps its limit; False if the question asks for sure rows."""
        return asked.sure is None and self.log_excess(asked) < math.inf and self.is_sure(asked, 0)

    def _limited(self, asked: ServingQuestion) -> list[LimitedValue]:
        """The times with a limit, at the percentile of the question, then the request rate.

        The limit of the rate is `drained_rate`; its interval follows from `largest_rate_interval`.
        """
        token, first = self.token_times(asked.percentile)
        whole = self.whole_request(asked.percentile)
        times = (("tpot", token, asked.max_tpot_ms), ("ttft", first, asked.max_ttft_ms),
                 ("e2e", whole, asked.max_latency_ms))  # fmt: skip
        found = [
            LimitedValue(name, *time, limit) for name, time, limit in times if limit and time.ms
        ]
        if (rate := self.request_rate) and (most := self.largest_rate):
            low, high = self.largest_rate_interval or (most, most)
            ends = rate * most / high, rate * most / low
            found.append(LimitedValue(RATE, rate, ends, self.drained_rate))
        return found

    def excesses(self, asked: ServingQuestion) -> list[Excess]:
        """The ratio of each time with a limit to its limit; with `sure` the ratio of its upper end."""
        of = {"tpot": "a token", "ttft": "to the first token", "e2e": "a request"}
        found = list[Excess]()
        for name, value, ends, limit in self._limited(asked):
            most = value if asked.sure is None else ends[1] if ends else math.inf
            words = f"{milliseconds(limit)} {of[name]}" if name in of else self._served_words(asked)
            factor = UNBOUNDED if ends and most == math.inf else most / limit
            found.append(Excess(factor, name, words))
        if found and found[-1].name == RATE and found[-1].factor > 1.0:  # why a time has no end
            return [one for one in found if one.factor != UNBOUNDED]
        return found

    def _served_words(self, asked: ServingQuestion) -> str:
        """The largest rate at which a queue drains, in words; with `sure` the lower end of its interval."""
        sure, most = "", self.drained_rate
        if asked.sure is not None and (ends := self.largest_rate_interval):
            sure, most = "surely ", most * ends[0] / (self.largest_rate or most)
        return f"{digits(most)} requests/s at which a queue {sure}drains"

    def judge(self, asked: ServingQuestion) -> dict[str, str]:
        """Make the field `verdicts`; {} for a row that is overloaded or has no times."""
        is_sure, limited = asked.sure is not None, () if self.saturated else self._limited(asked)
        told = {one.name: one.verdict(is_sure) for one in limited}
        # No time stays where requests pile up; of `sure` a remark says so.
        least = "yes" if is_sure else told.get(RATE, "yes")
        return {n: max(word, least, key=VERDICTS.index) for n, word in told.items() if n != RATE}

    def verdict_on(self, asked: ServingQuestion) -> str | None:
        """Make the field `verdict`."""
        if not asked.has_limits:
            return None
        if self.log_excess(asked) == math.inf:
            return "no"
        words = (one.verdict(asked.sure is not None) for one in self._limited(asked))
        return max(words, key=VERDICTS.index, default="yes")

    def is_sure(self, asked: ServingQuestion, end: int = 1) -> bool:
        """True if the upper ends of all intervals are within the limits; `end` 0: if the lower ends are."""
        return all(one.ends[end] <= one.limit for one in self._limited(asked) if one.ends)

    def least_sure(self, asked: ServingQuestion) -> tuple[float, bool]:
        """(the probability that the least sure limit is kept, rounded to 0.05; True if that limit is the
        largest rate).
        """
        # Logarithms of times are normal. A time without an upper end is as wide above as below.
        chances = [(1.0, False)]
        for name, value, ends, limit in self._limited(asked):
            if ends and ends[1] > value > 0.0:
                wide = ends[1] / value if ends[1] < math.inf else value / ends[0]
                room = math.log(limit / value) / math.log(wide)
                error = room * normal_quantile(asked.coverage) / math.sqrt(2.0)
                chances.append(((1.0 + math.erf(error)) / 2.0, name == RATE))
        least, is_rate = min(chances)
        return round(20.0 * least) / 20.0, is_rate

    def over_words(self, asked: ServingQuestion, most: float = math.inf) -> str:
        """Words on how far a row is over the limit that it misses most; "over N times" above `most` = N."""
        times, name, limit = max(self.excesses(asked))
        is_just = times < JUST
        if asked.min_tokens_per_s and name == "tpot":
            least = asked.min_tokens_per_s
            under = "just" if is_just else percent(1.0 - 1.0 / times)
            return f"{digits(least / times)} tokens/s a request, {under} under the {least:g}"
        over = f"{percent(times - 1.0)} over" if times < 2.0 else f"{digits(times)} times"
        over = over if times < most else f"over {most:g} times"
        return f"{'just over' if is_just else over} the {limit}"

    @property
    def groups(self) -> int:
        """The number of GPU groups with requests of their own, in all replicas."""
        return self.replicas * self.attention_data_parallel

    @property
    def gpus_words(self) -> str:
        """The number of GPUs in words: "4 GPUs", or "4 x 2 GPUs" for four replicas."""
        several = f"{self.replicas} x {self.gpus // self.replicas} GPUs"
        return several if self.replicas > 1 else plural(self.gpus, "GPU")

    @property
    def load_words(self) -> str:
        """The load and the GPUs, in words."""
        return f"{self.requests_words} on {self.gpus_words}{self.split_words}"

    @property
    def split_words(self) -> str:
        """Expert parallel and attention data parallel above 1, in words that follow a number of GPUs."""
        numbers = self.split._asdict()
        del numbers["tensor_parallel"]
        return "".join(f", {name.replace('_', ' ')} {n}" for name, n in numbers.items() if n > 1)

    @property
    def load(self) -> float:
        """The request rate; without a rate the number of concurrent requests."""
        return self.request_rate or self.concurrency

    @property
    def requests_words(self) -> str:
        """The load in words: "8 concurrent requests" or "2 requests/s"."""
        return requests_words(self.load, self.request_rate is not None)

    @property
    def shortage(self) -> str:
        """Words on the part of the load that a row serves, or on a lasting queue; "" if it serves all."""
        if self.saturated:
            served = digits(self.requests_per_s or 0.0)
            return f"overloaded, serves {served} of {self.request_rate:g} requests/s"
        if (self.request_rate or 0.0) > self.drained_rate:
            return "a queue never drains"
        of = f"{self.largest_concurrency:,} of {self.concurrency:,g} requests"
        return "" if self.fits else f"room for {of} at once"

    @property
    def waits_for_memory(self) -> bool:
        """True if requests of a row that is not overloaded wait for room in the caches."""
        is_rate, waiting = self.request_rate is not None, (self.breakdown or {}).get("waiting")
        is_long = (waiting or 0.0) > LEAST_WAIT * (self.tpot_ms or 0.0)
        is_full = not self.fits or (is_rate and is_long)
        return bool(self.largest_concurrency) and not self.saturated and is_full

    @property
    def drained_rate(self) -> float:
        """The largest request rate at which the queue after a burst drains; infinite without a rate."""
        return min(self.largest_rate or math.inf, self.backlog_rate or math.inf)

    @property
    def may_queue(self) -> bool:
        """True if all times are bounded, but no queue drains at the lower end of the largest rate."""
        low, _ = self.largest_rate_interval or (math.inf, 0.0)
        piled = (self.request_rate or 0.0) * (self.largest_rate or 0.0) / low > self.drained_rate
        return piled and (self.ttft_interval_ms or (0.0, 0.0))[1] is not None

    @property
    def may_pile_up(self) -> bool:
        """True if the times surely keep the limits, but requests may pile up at this rate."""
        piles = (self.ttft_interval_ms or (0.0, 0.0))[1] is None
        times = {v for n, v in (self.verdicts or {}).items() if n == "tpot" or not piles}
        is_kept = self.fits and not self.saturated and times <= {"yes"}
        return self.within is False and is_kept and self.request_rate is not None

    @property
    def is_idle(self) -> bool:
        """True if a row has several replicas whose utilization is below IDLE."""
        return self.replicas > 1 and not self.saturated and (self.utilization or 1.0) < IDLE

    @property
    def is_good(self) -> bool:
        """True if the row serves its load within the limits, with a queue that drains."""
        return not self.shortage and self.within is not False

    @property
    def is_probable(self) -> bool:
        """True if the row keeps all limits with a chance of at least PROBABLE."""
        return self.is_good and (self.chance or 0.0) >= PROBABLE

    @property
    def is_hopeless(self) -> bool:
        """True if even the largest possible number of replicas misses the limits."""
        each = self.gpus // self.replicas
        return self.within is False and not self.saturated and self.gpus + each > MOST_GPUS

    def words(self, percentile: int | None = None) -> str:
        """The load, the GPUs, both times at a percentile (None: the means), the price and the verdict."""
        framework = f", {self.framework}" if self.framework not in self.device else ""
        where = f"{self.gpus_words} ({plain(self.device)}{framework}){self.split_words}"
        times = self.times_words(percentile)
        words = f"{plain(self.model)} on {where}, {self.requests_words}: {times}"
        if self.tpot_ms is None or self.shortage:
            return words
        token = self.token_times(percentile).token
        words += f" ({between(*token.ends, token.ms)})" if token.ends else ""
        limits = f"limits: {self.verdict}" if self.verdict is not None else ""
        limits += (
            f" ({percent(self.chance or 0.0)})" if self.verdict in ("likely", "unlikely") else ""
        )
        return "; ".join(filter(None, [words, self._price_words, limits]))

    @property
    def _price_words(self) -> str:
        """The price in words, a month under a rate, else for a million tokens; "" if it is not known."""
        if self.request_rate is not None and self.dollars_per_month is not None:
            return f"{dollars(self.dollars_per_month)} a month"
        usd = self.dollars_per_million
        return "" if usd is None else f"{dollars(usd)} a million tokens"

    def times_words(self, percentile: int | None = None) -> str:
        """Both times in words, at a percentile (None: the means); the reason if the row has no times."""
        if self.tpot_ms is None:
            return "does not fit"
        if self.saturated:
            return self.shortage
        token, first = (milliseconds(time.ms) for time in self.token_times(percentile))
        at = " on average" if percentile is None else f" at P{percentile}"
        short = f"; {self.shortage}" if self.shortage else ""
        return f"{first} to the first token, {token} a token{at}{short}"

    def rows(self) -> list[dict[str, Any]]:
        """One row, with a column for each end of an interval and each part of the breakdown."""
        cells = self.to_dict()
        parts, more, told = (cells.pop(n) or {} for n in ("breakdown", "intervals_ms", "verdicts"))
        cells |= {f"{name}_ms": ms for name, ms in (cells.pop("percentiles_ms") or {}).items()}
        cells["extrapolated"] = "; ".join(cells["extrapolated"])
        cells |= {f"{name}_verdict": told.get(name) for name in ("tpot", "ttft", "e2e")}
        ends = {name: cells.pop(f"{name}_interval_ms") for name in ("tpot", "ttft")}
        for name, both in (ends | more).items():
            low, high = both or (None, None)
            cells |= {f"{name}_low_ms": low, f"{name}_high_ms": high}
        return [cells | {f"{part}_ms": ms for part, ms in parts.items()}]


@dataclass(frozen=True, repr=False)
class ServingAnswer(Result):
    """The answer of `Model.llm`: a row for each configuration, and the best one.

    `device`, `profile`, `framework`, `gpu`: as in its rows. `name`: the device; in a comparison of several
    models a name such as "qwen3-8b on h100-vllm", of several data types "h100-vllm in fp8". `parameters`:
    the number of parameters of the language model; `active`: the number that a token uses. `asked`: the
    question, whose limits, `percentile`, `sure` and `coverage` are keys in JSON. `best`: the index of the
    row with the cheapest output tokens within the limits; None if no row keeps them. `bests`: the indices
    of the best row of each load. `chosen`: the best row; the first row if no row keeps the limits. `near`:
    rows that miss the limits by less than the error, and cost less than the best row of their rate or,
    without prices, have fewer GPUs. `surer`: for each best row whose intervals reach over the limits, the
    cheapest row of its load whose intervals do not; `probable`: the row between both with the fewest
    replicas that keeps the limits with a chance of at least PROBABLE, if there is one. `other_dtypes`:
    rows with weights of another data type (another checkpoint) that keep the limits and cost at least a
    tenth less than the best row of their rate: the best of each type, the cheapest first;
    `surer_other_dtypes`: the same for rows that surely keep the limits, compared with `surer`;
    `surer_at_price`: rows that cost as much as the best row of their rate, or up to a tenth less, and
    keep the limits more surely. `fuller`: a row with cheaper tokens than the best row, for as many
    requests as fit on GPUs that hold fewer than were asked for.
    `price_list`: the name of the price list, with its assumptions. `needs`: the GPUs that hold a language
    model that does not fit, in words. `largest_machine`: the most GPUs of one machine in `prices`.
    """

    model: str
    device: str
    framework: str
    parameters: int
    active: int
    asked: ServingQuestion
    served: tuple[ServingConfig, ...]
    best: int | None
    prices: str | None
    warnings: tuple[str, ...]
    chosen: ServingConfig
    bests: tuple[int, ...] = ()
    near: tuple[ServingConfig, ...] = ()
    surer: tuple[ServingConfig, ...] = ()
    probable: tuple[ServingConfig, ...] = ()
    other_dtypes: tuple[ServingConfig, ...] = ()
    surer_other_dtypes: tuple[ServingConfig, ...] = ()
    surer_at_price: tuple[ServingConfig, ...] = ()
    fuller: ServingConfig | None = None
    price_list: str = ""
    needs: str = ""
    largest_machine: int = 0
    remarks_on: Callable[[ServingConfig], Iterable[str]] | None = field(
        default=None, repr=False, compare=False
    )
    """A function that returns the warnings on one of the rows."""
    find_ways: Callable[[], Ways] | None = field(default=None, repr=False, compare=False)
    """Find the rows that keep the limits, if none of the answer does."""
    profile: str = ""
    gpu: str = ""
    name: str = ""
    KEYS = ("name", "model", "device", "profile", "framework", "gpu", "parameters", "active",
            *nested("asked", *LIMITS), "rows=served", "best", "bests", *nested("chosen", *HEADROOM), "near",
            "surer", "probable", "other_dtypes", "surer_other_dtypes", "surer_at_price", "fuller", "prices",
            "price_list", "warnings")  # fmt: skip

    def alone(self, row: ServingConfig) -> ServingAnswer:
        """The answer with one of its rows alone."""
        told = self.warnings if self.remarks_on is None else tuple(self.remarks_on(row))
        return replace(self, served=(row,), best=0, bests=(0,), chosen=row, warnings=told)

    def words(self) -> str:
        """The chosen row in words, and the unusual arguments of the question."""
        return "; ".join([self.chosen.words(self.asked.percentile), *self.asked.unusual])

    @property
    def compared(self) -> ServingConfig | None:
        """The best row; None if none serves its load within the limits."""
        return None if self.best is None else self.served[self.best]

    @property
    def is_rate_unchecked(self) -> bool:
        """True if requests arrive at a rate and the framework was never compared at rates."""
        return bool(self.asked.request_rate) and not framework_row(self.framework).is_rate_checked

    def rows(self) -> list[dict[str, Any]]:
        """A row for each configuration, with a column for each part of the breakdown."""
        return [cells for row in self.served for cells in row.rows()]


def requests_words(load: float, is_rate: bool) -> str:
    """A load in words: requests a second (`is_rate`), or concurrent requests."""
    if is_rate:
        return f"{load:g} request{'s' if load != 1 else ''}/s"
    return plural(int(load), "concurrent request")
