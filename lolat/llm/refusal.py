"""The error for limits that no row of an answer keeps."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from lolat.errors import AnswerIsNo, arg
from lolat.llm.remarks import links_words
from lolat.parameters import MOST_GPUS
from lolat.units import dollars, milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.llm.answer import ServingAnswer, ServingConfig
    from lolat.llm.question import ServingQuestion

FAR = math.log(30.0)
"""Logarithm of the factor over a limit from which on it may be of another unit."""


def no_row(
    made: ServingAnswer, asked: ServingQuestion, links: tuple[str, str], copies: str,
    enough: ServingConfig | None, in_other_dtype: ServingConfig | None,
) -> AnswerIsNo:  # fmt: skip
    """Return the error for limits that no row keeps; it names the nearest row, one with `enough` GPUs, one
    with weights of another data type, `slower_links` and `own_copies`.

    Its data: `told`, the remarks of the answer that the message has.
    """

    def distance(row: ServingConfig) -> tuple[float, ...]:
        rate = (row.largest_rate or 0.0) if row.saturated else 0.0
        return not row.fits, row.saturated or False, row.off(asked), -rate, row.tpot_ms or math.inf

    near, most = min(made.served, key=distance), max(row.gpus for row in made.served)
    most = max(most, MOST_GPUS * bool(asked.request_rate))
    gpus = f"of up to {plural(asked.gpus or most, 'GPU')}"
    keeps, helps, nearest = f"keeps {_limits_words(asked) or 'up with them'}", "", ""
    on, times = f"on {near.gpus_words}{near.split_words}", near.times_words(asked.percentile)
    under = f"under {near.requests_words} " * (len(asked.loads()) > 1)
    hint, is_hopeless = _meant(near, asked), bool(asked.request_rate) and near.is_hopeless
    if is_hopeless:
        under, on = "", f"on any number of replicas of {_tried(made, near)}"
        helps = "" if hint else "; try higher limits, shorter prompts, or a faster GPU"
    elif enough:
        given = "" if asked.request_rate else f" (ask with {arg('gpus')} {enough.gpus})"
        helps = f"; {_keeping(enough, asked)}{given}"
    without, helps = helps, helps + (with_type := _in_dtype(in_other_dtype, asked))
    if all(row.gpus > (asked.gpus or row.gpus) for row in made.served):
        keeps = f"is asked for ({arg('tensor_parallel')}, {arg('attention_data_parallel')})"
        short = f"{on}: {times}"
    elif near.tpot_ms is None:
        short = made.no_room_words(near)
    elif near.shortage:
        short = f"{near.shortage} {on}"
    elif asked.sure is not None:
        short = _not_sure(near, asked, f"{under}{on}: {times}")
    else:
        is_near = near.may_keep(asked)
        likely, error = "likely " * is_near, ", less than the error of these times" * is_near
        over = f"{near.over_words(asked)}{error}"
        short = f"{likely}too slow {under}{on}: {over}"
        nearest = f"{likely}too slow {under}{on}: {times}, {over}"
    name, load = f"{plain(made.model)} on {plain(made.gpu)}", near.requests_words
    message = f"{name}, {load}: no configuration {gpus} {keeps}; nearest: {nearest or short}{helps}"
    plain_short = _among_others(near, asked) or short + without * bool(enough)
    short += helps * bool(enough or in_other_dtype)
    if near.tpot_ms is None:  # however many replicas
        most = max(row.gpus // row.replicas for row in made.served)
        why = f"{made.warnings[0]}{with_type}"
        message = f"{name} does not fit on {plural(most, 'GPU')} a replica; {why}"
    told = [*filter(None, [links_words(*links), copies])]
    message = "; ".join(filter(None, [message, hint, *told]))
    told += made.warnings[: near.tpot_ms is None]
    return AnswerIsNo(
        message, made.to_dict(), made=made, told=told, short=short, off=near.off(asked),
        plain_short=plain_short, links=links[0] * (links[0] != made.gpu),
        other_dtype_usd=in_other_dtype and in_other_dtype.dollars_per_hour,
        hint=hint, is_hopeless=is_hopeless,
    )  # fmt: skip


def _meant(near: ServingConfig, asked: ServingQuestion) -> str:
    """Return a question whether a limit in ms that the nearest row misses by far was meant in seconds; ""
    for other limits.
    """
    limits = {
        "ttft": asked.max_ttft_ms,
        "tpot": None if asked.min_tokens_per_s else asked.max_tpot_ms,
    }
    if not FAR < near.off(asked) < math.inf:
        return ""
    name = max(near.excesses(asked)).name
    if not (limit := limits.get(name)):
        return ""
    return f"the limit of {limit:g} is in milliseconds: did you mean {1e3 * limit:g}?"


def _among_others(near: ServingConfig, asked: ServingQuestion) -> str:
    """Return why no number of GPUs is fast enough, in equal words for all that are far too slow; "" if the
    limits are near, or more GPUs help.
    """
    if not near.is_hopeless or near.tpot_ms is None:
        return ""
    on = f"too slow on any number of GPUs{f' under {near.requests_words}' * (len(asked.loads()) > 1)}"
    asked = replace(asked, sure=None)
    if near.keeps(asked):
        return ""
    if near.may_keep(asked):
        return f"likely {on}: {near.over_words(asked)}, less than the error of these times"
    return f"{on}: {near.over_words(asked, most=2.0)}"


def _not_sure(near: ServingConfig, asked: ServingQuestion, times: str) -> str:
    """Return why a row does not surely keep the limits, around its `times` in words."""
    if near.may_pile_up:
        return f"may be overloaded {times} ({near.over_words(asked)})"
    token, first = near.token_times(asked.percentile)
    ends = (milliseconds(time.ends[1]) for time in (first, token) if time.ends)
    slow = "not surely fast enough" if near.keeps(replace(asked, sure=None)) else "too slow"
    return f"{slow} {times} (surely up to {' and '.join(ends)})"


def _in_dtype(row: ServingConfig | None, asked: ServingQuestion) -> str:
    """Return a clause that GPUs keep the limits in a row's data type; "" without a row."""
    if row is None:
        return ""
    return f"; with {arg('dtype')} {row.dtype} (another checkpoint) {_keeping(row, asked)}"


def _keeping(row: ServingConfig, asked: ServingQuestion) -> str:
    """Return words that GPUs keep the limits, with their price: "2 GPUs keep them, $4,000 a month"."""
    month = row.dollars_per_month
    price = f", {dollars(month)} a month" if month is not None else ""
    keep = ("keep" if row.is_sure(asked) else "likely keep") + "s" * (row.gpus == 1)
    return f"{row.gpus_words}{row.split_words} {keep} them{price}"


def _tried(made: ServingAnswer, near: ServingConfig) -> str:
    """Return the GPUs of a replica that were tried and, of several, that of the nearest row."""
    *few, last = sorted({row.gpus // row.replicas for row in made.served if row.is_hopeless})
    if not few:
        return plural(last, "GPU")
    return f"{', '.join(map(str, few))} or {last} GPUs; with {near.gpus // near.replicas}"


def _limits_words(asked: ServingQuestion) -> str:
    """Return the limits of times in words; "" without one."""
    at = "" if asked.percentile is None else f" at P{asked.percentile}"
    token = f"{milliseconds(asked.max_tpot_ms)} a token" if asked.max_tpot_ms else ""
    if asked.min_tokens_per_s:
        token = f"{asked.min_tokens_per_s:g} tokens/s a request"
    first = f"{milliseconds(asked.max_ttft_ms)} to the first token" if asked.max_ttft_ms else ""
    sure = "" if asked.sure is None else ", surely"
    both = " and ".join(filter(None, [first, token]))
    return f"{both}{at}{sure}" if both else ""
