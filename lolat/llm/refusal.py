"""The error for limits that no row of an answer keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from lolat.errors import AnswerIsNo, arg
from lolat.llm.ranking import best_of
from lolat.llm.remarks import links_words
from lolat.parameters import MOST_GPUS
from lolat.units import dollars, milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.llm.answer import ServingAnswer, ServingConfig
    from lolat.llm.question import ServingQuestion

MEANT_IN_SECONDS = math.log(10.0)
"""A limit in ms that is missed by more than this factor (a logarithm) may be meant in seconds."""


SPLIT, NO_ROOM, SHORTAGE, UNSURE, SLOW = "split", "no-room", "shortage", "unsure", "too-slow"


class Ways(NamedTuple):
    """The row with the fewest GPUs that keeps the limits, None without one, and those that do with weights
    of other data types, of each type the best.
    """

    enough: ServingConfig | None
    in_other_dtypes: tuple[ServingConfig, ...]


@dataclass(frozen=True)
class Refusal:
    """The reason why no row of an answer keeps the limits of its question; describes `near`, the nearest
    row.

    `code`: SPLIT (a replica takes more GPUs than were asked for), NO_ROOM (the language model does not
    fit), SHORTAGE (too few requests are served), UNSURE (the limits are not surely kept) or SLOW.
    `slow_host`, `shares`: see `slower_links`; `copies`: see `own_copies`.
    """

    code: str
    made: ServingAnswer
    asked: ServingQuestion
    near: ServingConfig
    slow_host: str = ""
    shares: str = ""
    copies: str = ""

    @cached_property
    def ways(self) -> Ways:
        """The rows that keep the limits."""
        return self.made.find_ways() if self.made.find_ways else Ways(None, ())

    @property
    def enough(self) -> ServingConfig | None:
        """The row with the fewest GPUs that keeps the limits; None without limits."""
        return self.ways.enough if self.asked.has_limits else None

    @property
    def in_other_dtype(self) -> ServingConfig | None:
        """The best row that keeps the limits with weights of another data type; None without limits."""
        return best_of(self.ways.in_other_dtypes, self.asked) if self.asked.has_limits else None

    @property
    def is_hopeless(self) -> bool:
        """True if even the largest possible number of replicas misses the limits."""
        asked = self.asked
        return bool(asked.request_rate and asked.has_limits) and self.near.is_hopeless

    @property
    def log_excess(self) -> float:
        """The nearest row's distance to the limits (see `ServingConfig`); infinite without limits."""
        return self.near.log_excess(self.asked) if self.asked.has_limits else math.inf

    @property
    def linked_host(self) -> str:
        """The host with slow links, if another host than the GPU's own was timed; else ""."""
        return self.slow_host * (self.slow_host != self.made.gpu)

    @property
    def remarks(self) -> list[str]:
        """Remarks of the answer that are also in the message."""
        links = links_words(self.slow_host, self.shares)
        first = self.made.warnings[: self.near.tpot_ms is None]
        return [*filter(None, [links, self.copies]), *first]

    @property
    def hint(self) -> str:
        """Asks whether a limit in ms was meant in seconds; "" unless the nearest row is far over it."""
        asked = self.asked
        limits = {
            "ttft": asked.max_ttft_ms,
            "e2e": asked.max_latency_ms,
            "tpot": None if asked.min_tokens_per_s else asked.max_tpot_ms,
        }
        if not MEANT_IN_SECONDS < self.log_excess < math.inf:
            return ""
        if not (limit := limits.get(max(self.near.excesses(asked)).name)):
            return ""
        return f"the limit of {limit:g} is in milliseconds: did you mean {1e3 * limit:g}?"

    @property
    def message(self) -> str:
        """The whole message: the limits, the nearest row, the remedies, the remarks."""
        made, near = self.made, self.near
        told = [self.hint, links_words(self.slow_host, self.shares), self.copies]
        if near.tpot_ms is None:  # however many replicas
            return "; ".join(
                filter(None, [f"{self.refused}; {made.warnings[0]}{self._with_type}", *told])
            )
        nearest = f"nearest: {self._reason(with_times=True)}{self._helps}{self._with_type}"
        return "; ".join(filter(None, [self.refused, nearest, *told]))

    @property
    def refused(self) -> str:
        """The limits that no row keeps, with the language model and the GPU."""
        made, asked = self.made, self.asked
        name = f"{plain(made.model)} on {plain(made.gpu)}"
        if self.near.tpot_ms is None:
            most = max(row.gpus // row.replicas for row in made.served)
            return f"{name} does not fit on {plural(most, 'GPU')} a replica"
        most = max(row.gpus for row in made.served)
        most = max(most, MOST_GPUS * bool(asked.request_rate))
        up_to = f"no configuration of up to {plural(asked.gpus or most, 'GPU')}"
        return f"{name}, {self.near.requests_words}: {up_to} {self.keeps}"

    @property
    def keeps(self) -> str:
        """The limits behind what does not keep them, in words."""
        if self.code == SPLIT:
            return f"has the split asked for ({arg('tensor_parallel')}, {arg('attention_data_parallel')})"
        return f"keeps {_limits_words(self.asked) or 'up with them'}"

    @property
    def short(self) -> str:
        """The reason in a list of devices, with remedies that are known to help."""
        helps = f"{self._helps}{self._with_type}" if self.enough or self.in_other_dtype else ""
        return f"{self._reason()}{helps}"

    @property
    def brief(self) -> str:
        """The reason beside devices with prices, without an offer of another data type. Devices that are
        far too slow get the same words, so that they can share a line.
        """
        if self.is_hopeless and (words := _far_too_slow(self.near, self.asked)):
            return words
        return self._reason() + (self._helps if self.enough else "")

    def _reason(self, with_times: bool = False) -> str:
        """The reason why the nearest row is refused; `with_times`: adds the times of a row that is too
        slow.
        """
        near, asked, on = self.near, self.asked, self._on
        times = near.times_words(asked.percentile)
        under = f"under {near.requests_words} " if self._has_loads and not self.is_hopeless else ""
        if self.code == SPLIT:
            return f"{on}: {times}"
        if self.code == NO_ROOM:
            return f"does not fit on {near.gpus_words}" + (
                f": {self.made.needs}" if self.made.needs else ""
            )
        if self.code == SHORTAGE:
            return f"{near.shortage} {on}"
        if self.code == UNSURE:
            return _not_sure(near, asked, f"{under}{on}: {times}")
        over = near.over_words(asked)
        over = f"{times}, {over}" if with_times else over
        if near.may_keep(asked):
            return f"likely too slow {under}{on}: {over}, less than the error of these times"
        return f"too slow {under}{on}: {over}"

    @property
    def _on(self) -> str:
        """The GPUs of the nearest row in words."""
        if self.is_hopeless:
            return f"on any number of replicas of {_tried(self.made, self.near)}"
        return f"on {self.near.gpus_words}{self.near.split_words}"

    @property
    def _has_loads(self) -> bool:
        return len(self.asked.loads()) > 1

    @property
    def _helps(self) -> str:
        """A clause on other GPUs or limits that help; "" if nothing is known."""
        if self.is_hopeless:
            return "" if self.hint else "; try higher limits, shorter prompts, or a faster GPU"
        if self.enough is None:
            return ""
        given = "" if self.asked.request_rate else f" (ask with {arg('gpus')} {self.enough.gpus})"
        return f"; {_keeping(self.enough, self.asked)}{given}"

    @property
    def _with_type(self) -> str:
        """A clause that GPUs keep the limits in another data type; "" if none does."""
        row = self.in_other_dtype
        if row is None:
            return ""
        return f"; with {arg('dtype')} {row.dtype} (another checkpoint) {_keeping(row, self.asked)}"


def no_row(
    made: ServingAnswer, asked: ServingQuestion, links: tuple[str, str], copies: str
) -> AnswerIsNo:
    """The error for limits that no row keeps; its data has the `Refusal`.

    `links`, `copies`: of `slower_links` and `own_copies`.
    """

    def distance(row: ServingConfig) -> tuple[float, ...]:
        rate = (row.largest_rate or 0.0) if row.saturated else 0.0
        return (
            not row.fits,
            row.saturated or False,
            row.log_excess(asked),
            -rate,
            row.tpot_ms or math.inf,
        )

    near = min(made.served, key=distance)
    if all(row.gpus > (asked.gpus or row.gpus) for row in made.served):
        code = SPLIT
    elif near.tpot_ms is None:
        code = NO_ROOM
    elif near.shortage:
        code = SHORTAGE
    else:
        code = SLOW if asked.sure is None else UNSURE
    refusal = Refusal(code, made, asked, near, *links, copies)
    return AnswerIsNo(refusal.message, made.to_dict(), refusal=refusal)


def no_room(made: ServingAnswer) -> AnswerIsNo:
    """The error for GPUs that cannot hold the language model, or the requests of any load."""
    near = max(made.served, key=lambda row: (row.largest_rate or 0.0, row.largest_concurrency))
    words, code = near.words(made.asked.percentile), SHORTAGE
    if near.tpot_ms is None:
        words, code = f"{words}; {made.warnings[0]}", NO_ROOM
    refusal = Refusal(code, made, made.asked, near)
    return AnswerIsNo(words, made.to_dict(), code="no-room", refusal=refusal)


def refusals_of(error: AnswerIsNo) -> dict[str, Refusal]:
    """The `Refusal` of each device that an error is about, the nearest to the limits first."""
    one = refusal_of(error)
    return error.data.get("refusals", {one.made.name: one} if one else {})


def refusal_of(error: AnswerIsNo) -> Refusal | None:
    """The `Refusal` of an error from `no_row` or `no_room`; None for another error."""
    return error.data.get("refusal")


def _far_too_slow(near: ServingConfig, asked: ServingQuestion) -> str:
    """The reason why no number of GPUs is fast enough; "" if the times of `near` keep the limits.

    All rows over twice their limit have the same words.
    """
    if near.tpot_ms is None:
        return ""
    load = f" under {near.requests_words}" if len(asked.loads()) > 1 else ""
    on = f"too slow on any number of GPUs{load}"
    asked = replace(asked, sure=None)
    if near.keeps(asked):
        return ""
    if near.may_keep(asked):
        return f"likely {on}: {near.over_words(asked)}, less than the error of these times"
    return f"{on}: {near.over_words(asked, most=2.0)}"


def _not_sure(near: ServingConfig, asked: ServingQuestion, times: str) -> str:
    """The reason why a row does not surely keep the limits; `times`: its GPUs and times in words."""
    if near.may_pile_up:
        return f"may be overloaded {times} ({near.over_words(asked)})"
    token, first = near.token_times(asked.percentile)
    whole = [near.whole_request(asked.percentile)] if asked.max_latency_ms else []
    ends = (milliseconds(time.ends[1]) for time in (first, token, *whole) if time.ends)
    slow = "not surely fast enough" if near.keeps(replace(asked, sure=None)) else "too slow"
    return f"{slow} {times} (surely up to {' and '.join(ends)})"


def _keeping(row: ServingConfig, asked: ServingQuestion) -> str:
    """A clause that a row's GPUs keep the limits, with the price: "2 GPUs keep them, $4,000 a month"."""
    month = row.dollars_per_month
    price = f", {dollars(month)} a month" if month is not None else ""
    likely, s = "" if row.is_sure(asked) else "likely ", "s" if row.gpus == 1 else ""
    return f"{row.gpus_words}{row.split_words} {likely}keep{s} them{price}"


def _tried(made: ServingAnswer, near: ServingConfig) -> str:
    """The numbers of GPUs per replica that were tried and, if there are several, the number in the nearest
    row.
    """
    *few, last = sorted({row.gpus // row.replicas for row in made.served if row.is_hopeless})
    if not few:
        return plural(last, "GPU")
    return f"{', '.join(map(str, few))} or {last} GPUs; with {near.gpus // near.replicas}"


def _limits_words(asked: ServingQuestion) -> str:
    """The limits of times in words; "" without limits."""
    at = "" if asked.percentile is None else f" at P{asked.percentile}"
    token = f"{milliseconds(asked.max_tpot_ms)} a token" if asked.max_tpot_ms else ""
    if asked.min_tokens_per_s:
        token = f"{asked.min_tokens_per_s:g} tokens/s a request"
    first = f"{milliseconds(asked.max_ttft_ms)} to the first token" if asked.max_ttft_ms else ""
    sure = "" if asked.sure is None else ", surely"
    whole = f"{milliseconds(asked.max_latency_ms)} a request" if asked.max_latency_ms else ""
    both = " and ".join(filter(None, [first, token, whole]))
    return f"{both}{at}{sure}" if both else ""
