"""Words on rows offered beside the best row: their price, and the chance that they keep the limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lolat.device.prediction import interval_words
from lolat.llm.answer import NEAR, ServingConfig
from lolat.llm.question import ServingQuestion
from lolat.units import digits, dollars, milliseconds, percent

EXTRAPOLATED = " (extrapolated, with a wider interval)"
"""Words after a row that surely keeps the limits, but by extrapolated times."""


def chance_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """A clause on how likely a row keeps the limits; "" if it surely keeps them, or without limits."""
    if not asked.has_limits or asked.sure is not None or row.is_sure(asked):
        return ""
    _, is_rate = row.least_sure(asked)
    return f"; {_kept_words(row, asked)}{' (else requests pile up)' if is_rate else ''}"


def _kept_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """Words on the chance that a row keeps the limits, for a row that does not surely keep them."""
    chance, sure = row.least_sure(asked)[0], sure_chance(asked)
    about = f"about {percent(chance)}" if chance < sure else f"just under {percent(sure)}"
    kept = "keeps the limits" if asked.has_time_limits else "serves all requests"
    return f"{kept} with a chance of {about}"


def chance_cell(row: ServingConfig, asked: ServingQuestion) -> str | None:
    """The cell with the chance that a row keeps the limits; None if it is unknown, or with `asked.sure`."""
    chance, sure = row.chance, sure_chance(asked)
    if chance is None or asked.sure is not None or row.tpot_ms is None or row.saturated:
        return None
    if not (asked.has_time_limits or asked.request_rate):
        return None  # the number of GPUs is no matter of chance
    if row.verdict == "yes" or row.is_sure(asked):
        # A time without an interval may keep its limit with any chance.
        return f"> {percent(sure)}" if row.verdict == "yes" else None
    return (
        f"< {percent(min(max(chance, 0.05), sure))}" if not 0.0 < chance < sure else percent(chance)
    )


def sure_words(row: ServingConfig, asked: ServingQuestion) -> str:
    """Words on the chance that a headline's row keeps the limits; without limits, on the interval of its
    time per token.

    "" if the chance is not known, or if the question asks for sure rows only.
    """
    if not asked.has_limits:
        token = row.token_times(asked.percentile).token
        return interval_words(token.ends, asked.coverage, token.ms) if token.ends else ""
    if chance_cell(row, asked) is None:
        return ""
    return "surely keeps the limits" if row.is_sure(asked) else _kept_words(row, asked)


def headline_words(row: ServingConfig, asked: ServingQuestion, of: str) -> str:
    """The words after a headline: `of` (the device or load), without limits the time per token, and
    `sure_words`.
    """
    ms = milliseconds(row.token_times(asked.percentile).token.ms)
    time = "" if asked.has_limits else f"{ms} a token"
    return ", ".join(filter(None, [of, time, sure_words(row, asked)]))


def sure_chance(asked: ServingQuestion) -> float:
    """The probability that a value is below the upper end of its interval: the meaning of "surely"."""
    return 0.5 * (1.0 + asked.coverage)


def surer_lines(
    surer: Sequence[ServingConfig], best: ServingConfig, asked: ServingQuestion, device: str = ""
) -> Iterator[str]:
    """A line on the row in another data type that keeps the limits most surely at the price of the best
    row.
    """
    at = sorted((r for r in surer if r.load == best.load), key=lambda r: -(r.chance or 0.0))
    for row in at[:1]:
        less = 1.0 - (row.dollars_per_hour or 1.0) / (best.dollars_per_hour or 1.0)
        price = f"{percent(less)} less" if less > 5e-4 else "the same price"
        to = f", up to {room(row)} requests/s" if room(row) else ""
        where = f"in {row.dtype}, another checkpoint: {device}{row.gpus_words}{row.split_words}"
        yield f"For {price}, surer {where}, {likely(row, asked)}{to}."


def other_dtype_lines(
    rows: Sequence[ServingConfig], asked: ServingQuestion, is_only: bool, device: str = ""
) -> Iterator[str]:
    """Lines on cheaper rows with weights of another data type, their times, and how surely they keep the
    limits.
    """
    for row in rows:
        outside = EXTRAPOLATED * (row.in_domain is False)
        what = f"Cheaper{at_load(row, is_only)} in {row.dtype}, another checkpoint"
        sure = f", {likely(row, asked)}" if asked.has_limits else ""
        yield f"{what}: {device}{offer(row)}, {limited_times(row, asked)}{sure}{outside}."


def limited_times(row: ServingConfig, asked: ServingQuestion) -> str:
    """The time per output token in words, and that to the first one and of a request if it has a limit."""
    token, first = row.token_times(asked.percentile)
    words = f"{milliseconds(token.ms)} a token"
    if asked.max_ttft_ms:
        words = f"{milliseconds(first.ms)} to the first token, {words}"
    whole = milliseconds(row.whole_request(asked.percentile).ms)
    return f"{words}, {whole} a request" if asked.max_latency_ms else words


def likely(row: ServingConfig, asked: ServingQuestion) -> str:
    """The chance that an offered row keeps the limits, in words; "surely" if it surely keeps them."""
    if asked.sure is not None or row.is_sure(asked):
        return "surely"
    # A row beyond the GPUs that were asked for has no chance of its own.
    least, is_rate = row.least_sure(asked)
    chance = least if row.chance is None else row.chance
    return f"with a chance of {percent(chance)}{' to serve all requests' if is_rate else ''}"


def near_lines(
    near: Sequence[ServingConfig], asked: ServingQuestion, is_only: bool, device: str = ""
) -> Iterator[str]:
    """Lines on rows that miss the limits by less than the error, with their price."""
    for row in near:
        over = f"{row.over_words(asked)}, less than the error of these times"
        yield f"Nearly{at_load(row, is_only)}: {device}{offer(row)}: {over}."


def at_load(row: ServingConfig, is_only: bool) -> str:
    """ " at" and the load of a row in words; "" if there is only one load."""
    return "" if is_only else f" at {row.requests_words}"


def offer(row: ServingConfig) -> str:
    """The GPUs of a row, and their price if it is known."""
    price = "" if row.dollars_per_month is None else f", {a_month(row)}"
    return f"{row.gpus_words}{row.split_words}{price}"


def more_words(ratio: float) -> str:
    """A ratio above 1 in words: "37 % more", from 2 on "2.40 times as many"."""
    return f"{percent(ratio - 1.0)} more" if ratio < 2.0 else f"{digits(ratio)} times as many"


def has_more(row: ServingConfig) -> bool:
    """True if the rate can rise by at least NEAR, the step of its search."""
    return (row.headroom or 0.0) >= NEAR


def room(row: ServingConfig) -> str | None:
    """The most requests a second within the limits, rounded down; None if unknown."""
    if row.headroom_rate is None:
        return None
    return rounded_down(row.headroom_rate) if has_more(row) else f"{row.request_rate:g}"


def rounded_down(rate: float) -> str:
    """A rate, rounded down to three digits, in words."""
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return digits(unit * math.floor(rate / unit + 1e-9))


def a_month(row: ServingConfig) -> str:
    """The price of a row in US$ a month."""
    return f"{dollars(row.dollars_per_month or 0.0)} a month"
