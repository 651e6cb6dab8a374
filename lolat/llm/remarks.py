"""Remarks on an answer about serving, which a user needs besides the numbers in its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lolat.arrays import np
from lolat.errors import InputError
from lolat.hardware.card_names import cards_meant, device_name, find_gpu
from lolat.io.results import Remark
from lolat.llm import steps
from lolat.llm.decoder import DTYPES, Decoder
from lolat.llm.domain import BETWEEN_GB_S, MOST_SERVED, beyond, is_unseen, unfitted
from lolat.llm.frameworks import CHECKED_RATES
from lolat.llm.gpu import IN_GENERAL, LINK_GB_S, OWN_FITS, OWN_IN_BFLOAT16
from lolat.llm.load import REQUESTS, Trace
from lolat.llm.names import named
from lolat.parameters import MOST_GPUS
from lolat.units import GIB, duration, milliseconds, percent, plural

if TYPE_CHECKING:
    from lolat.llm.answer import ServingConfig
    from lolat.llm.question import ServingQuestion
    from lolat.llm.row_parts import Split
    from lolat.llm.sizing import Sizing

FASTER = 0.9
"""Another data type gets a remark if its time per output token is below this fraction of the row's."""
SMALLER = "nvfp4"
"""The data type smaller than FP8 that GPUs compute in; other small types are only read."""
STAYS, SLOWER = 10.0, 5.0
"""Recorded requests that last less than STAYS times one request have no steady load; a percentile that
fewer than SLOWER requests exceed is noise."""
MOST_EXCHANGE = 0.5
"""All-reduces get a remark if they take more than this fraction of a prompt's time."""
MOST_NAMED = 16
"""The most GPUs per replica that a remark advises: two nodes."""
UNCORRECTED = 0.2
"""A time to the first token with a larger relative error gets a remark."""
KINDS = {"dense": "dense model", "experts": "mixture of experts", "latent": "model with latent attention",
         "linear": "model with linear attention"}  # fmt: skip
FP8_WO = ("this GPU computes no FP8: weights in FP8 are read in 8 bits and computed in bfloat16 (fp8_wo), "
          "as vLLM's Marlin kernels do")  # fmt: skip
CALLED = {"gemm": "products", "moe": "experts"}


def _true(*remarks: tuple[object, str]) -> list[str]:
    """The remarks whose conditions are true; `remarks`: (condition, remark)."""
    return [words for is_so, words in remarks if is_so]


def remarks_on(
    every: Mapping[Split, Sizing], rows: Sequence[ServingConfig], chosen: ServingConfig
) -> Iterator[str]:
    """Yield remarks on `rows`, and on the `chosen` row and its deployment. If weights do not fit, the first
    remark says so. `every`: the sizings of the rows.
    """
    sizing = every[chosen.split]
    asked, here, gpu = sizing.asked, sizing.deployment, sizing.gpu
    kind, served = KINDS[here.decoder.kind], gpu.section.served
    if none := next((one for one in rows if not one.largest_concurrency), None):
        types = asked.dtype, asked.kv_dtype
        yield _room(
            replace(
                sizing,
                deployment=steps.deployment_of(gpu.section, here.decoder, *none.split, *types),
            )
        )
    yield from _published(asked.dtype, here.decoder)
    if "fp8_wo" in (here.dtype, here.expert_dtype):
        yield FP8_WO
    if chosen.tpot_ms:
        yield from _faster(every, rows, chosen)
        yield from _fewer_gpus(sizing, chosen)
    if chosen.is_idle and asked.has_limits:
        prompt, token = (milliseconds(ms or 0.0) for ms in (chosen.prefill_ms, chosen.decode_ms))
        yield Remark(
            "limits are kept only on nearly idle GPUs; looser limits need far fewer GPUs",
            f"these are {percent(chosen.utilization or 0.0)} busy, as a prompt alone takes {prompt}, and a "
            f"token {token}",
        )
    card = find_gpu(sizing.device)
    yield from filter(None, [here.decoder.tower_remark, card.dies_remark if card else ""])
    others = [device_name(gpu) for gpu in cards_meant(sizing.device) if gpu != card]
    if card and others and not served:
        yield f"{sizing.device} is taken as {card.name}; another card is {' or '.join(others)}"
    yield from _not_timed(sizing)
    is_unlinked = gpu.section.sheet.link_gb_s is None and any(r.gpus > r.replicas for r in rows)
    yield from _true(
        (is_unlinked, f"the data sheet has no link_gb_s: {LINK_GB_S:g} GB/s between GPUs are assumed, "
         "those of PCI Express 4.0"),
        (not served, f"no served {kind if here.decoder.kind in OWN_FITS else 'model'} on this GPU and "
         "framework is known: its scheduling and kernel launches are assumed to be those of other GPUs"),
        (served and is_unseen(gpu, here), f"no served {kind} on this GPU and framework is known: its times "
         "follow from its operations, and the interval is wider"),
        (any(row.in_domain is False for row in rows) and unfitted(gpu, here),
         f"no served {kind} in {' and '.join(unfitted(gpu, here))} is known: its launch overhead is taken "
         "from other language models or GPUs; the lower end assumes no such overhead"),
    )  # fmt: skip
    yield from _first_token(sizing)
    if asked.request_rate and not gpu.section.server.is_rate_checked:
        yield CHECKED_RATES
    if isinstance(asked.arrivals, Trace):
        yield from _arrivals(asked.arrivals, asked, chosen)
    yield from _beyond(sizing, rows)


def _published(dtype: str, decoder: Decoder) -> list[str]:
    """Remarks on a requested data type that differs from the published quantization."""
    parts = sorted({part for kind in decoder.kinds for part in kind.unquantized})
    mxfp4, words = decoder.has_mxfp4, " and ".join(parts).replace("_", "-")
    return _true(
        (dtype and mxfp4, f"{decoder.name} is served as it was published, experts in MXFP4 and all else in "
         f"bfloat16: dtype {dtype} changes nothing"),
        (not mxfp4 and decoder.dtype != "bfloat16" and dtype not in decoder.dtype, f"{decoder.name} was "
         f"published in {decoder.dtype}: dtype {dtype} needs converted weights, another checkpoint"),
        (dtype and parts and not mxfp4, f"{decoder.name} keeps the parts that were published in bfloat16 "
         f"({words}): dtype {dtype} applies to the other parts"),
        (dtype == "fp8" != decoder.dtype and published_fp8(decoder) == "fp8_block", f"{decoder.name} is "
         "published in FP8 by its maker with a scale for each block, which is dtype fp8_block; fp8 has "
         "one for each tensor or channel"),
    )  # fmt: skip


def published_fp8(decoder: Decoder) -> str:
    """The data type of the FP8 weights that a decoder's maker publishes; "" if none are known."""
    with suppress(InputError):
        return named(f"{decoder.name}-fp8").dtype
    return ""


def _arrivals(trace: Trace, asked: ServingQuestion, row: ServingConfig) -> list[str]:
    """Remarks on recorded requests: columns that are not read, cached prompts, and too few requests for a
    steady load or for a percentile.
    """
    number, cached, percentile = len(trace.arrival_s), asked.cached_tokens, asked.percentile
    short = sum(n <= cached for n in trace.input_tokens)
    seconds, lasts = (row.e2e_ms or 0.0) / 1e3, number / trace.rate
    number = max(round(lasts * (row.request_rate or trace.rate)), 2)
    slower = number * (1.0 - (percentile or 0.0) / 100.0)
    return _true(
        (trace.unread, f"columns of the arrivals that are not read: {', '.join(trace.unread)}"),
        (short, f"{plural(short, 'prompt')} of the arrivals with no more than the {cached:,} cached "
         "tokens: all but the last token of each is cached"),
        (lasts < STAYS * seconds, f"the arrivals last {duration(lasts)}, and a "
         f"request {duration(seconds)}: later ones would meet more of them; expected a longer log, of "
         f"{duration(STAYS * seconds)} or more, for a load that stays"),
        (percentile and slower < SLOWER, f"P{percentile} of {plural(number, 'request')} depends on the "
         f"slowest {slower:.2g} of them alone"),
    )  # fmt: skip


def _faster(
    every: Mapping[Split, Sizing], rows: Sequence[ServingConfig], chosen: ServingConfig
) -> Iterator[str]:
    """Remark on faster data types (see FASTER) in the chosen row; if it has none, in the row that gains
    most.
    """
    told = list[tuple[bool, float, int, dict[str, float]]]()
    for n, one in enumerate(rows):
        if one.tpot_ms and (types := _types(every[one.split], one)):
            told.append((one is chosen, one.tpot_ms / min(types.values()), n, types))
    if not told:
        return
    *_, number, found = max(told, key=lambda one: one[:2])
    row = rows[number]
    here, mine = every[row.split].deployment, milliseconds(row.tpot_ms or 0.0)
    where = f"{'on average; ' if every[row.split].asked.percentile else ''}{row.load_words}"
    smaller = found.pop(SMALLER, 0.0)
    best = min(found, key=found.__getitem__, default="")
    if best and here.dtype in unfitted(every[row.split].gpu, here):
        yield (
            f"{here.dtype}'s launch overhead is assumed, so that its {mine} a token may be too long: "
            f"{best} is predicted at {milliseconds(found[best])} ({where})"
        )
    elif best:
        both = f"{milliseconds(found[best])} a token, {here.dtype} {mine} ({where})"
        yield (
            f"{here.dtype} is slower than {best} here, as its kernels were timed: dtype {best} takes {both}"
        )
    if smaller:
        both = f"{milliseconds(smaller)} a token, {here.dtype} {mine} ({where})"
        yield f"another checkpoint is faster: dtype {SMALLER} takes {both}"


def _types(sizing: Sizing, row: ServingConfig) -> dict[str, float]:
    """Data type -> ms per output token, of data types that take less than FASTER times as long as a row.

    Candidates are the published data type (bfloat16 if the row has the published one), the other FP8 type
    of a row in FP8 and, if the question names no type, SMALLER. They must have been timed on the same GPU.
    """
    here, load, found = sizing.deployment, sizing.load_of(row), dict[str, float]()
    others = {"bfloat16" if here.dtype == here.decoder.dtype else here.decoder.dtype}
    if here.dtype in steps.FP8:
        others.update(steps.FP8 if sizing.asked.dtype else (*steps.FP8, SMALLER))
    for dtype in others - {here.dtype}:
        with suppress(InputError):  # a type that this GPU or framework lacks
            other = steps.deployment_of(
                sizing.gpu.section, here.decoder, *here.split, dtype, sizing.asked.kv_dtype
            )
            used = [
                *steps.operations_of(sizing.gpu, here).items(),
                *steps.operations_of(sizing.gpu, other).items(),
            ]
            sources = {operation.like for (name, _), operation in used if name in CALLED}
            its = replace(sizing, deployment=other)
            times = (one.unshared_ms(load, row.concurrency / row.groups) for one in (its, sizing))
            if len(sources) > 1 or all(a > FASTER * b for a, b in zip(*times, strict=True)):
                continue
            there = its.row(load, row.replicas)
            if there.fits and not there.saturated and there.tpot_ms:
                found[dtype] = there.tpot_ms
    return {dtype: ms for dtype, ms in found.items() if ms < FASTER * (row.tpot_ms or 0.0)}


def _fewer_gpus(sizing: Sizing, row: ServingConfig) -> Iterator[str]:
    """Remark on data types in which fewer GPUs hold the load, if none was asked for; under a rate the
    answer has rows in them.
    """
    here, at_once = sizing.deployment, math.ceil(row.concurrency / row.replicas)
    is_least = (
        not row.request_rate and not sizing.asked.dtype and here.gpus == _least(sizing, "", 1)
    )
    if is_least and (fewer := _least_by_dtype(sizing, here.gpus, at_once)):
        words = ", ".join(f"{plural(n, 'GPU')} in {dtype}" for n, dtype in fewer.items())
        yield f"another checkpoint fits on fewer GPUs: {words}"


def _first_token(sizing: Sizing) -> list[str]:
    """Remark that times to the first token may be off: the scheduler looks for requests more often than in
    the served rows, or a fit to own rows did not correct these times.
    """
    section, kind = sizing.gpu.section, sizing.deployment.decoder.kind
    server, of_own = section.server, section.own_error
    off = of_own[1] if len(of_own) > 1 else 0.0
    return _true(
        (server.polls and kind in OWN_FITS and not section.own, "the first token is that of "
         f"{server.title} with {server.polls} 1, its default, and is extrapolated: each served "
         f"{KINDS[kind]} had 10 or 30, which delays it by about as many steps; `lolat fit` with rows of "
         "your own server knows its delay"),
        (section.own and len(of_own) < 2, "the own rows of this file have no first token "
         "(ttft_ms): that is the time of other servers"),
        (section.own and off > UNCORRECTED, "the fit to own rows does not correct the first token, which "
         f"is off by {percent(off)} at the median of rows held out"),
    )  # fmt: skip


def own_copies(sizing: Sizing, rows: Iterable[ServingConfig]) -> str:
    """Remark that cached tokens are not shared, if requests wait for memory; "" if none waits."""
    cached, server = sizing.asked.cached_tokens, sizing.gpu.section.server
    most = sizing.asked.limits(sizing.gpu.section).sequences

    def is_full(row: ServingConfig) -> bool:
        return row.waits_for_memory or bool(
            row.saturated and row.largest_concurrency < most * row.groups
        )

    if not cached or not any(is_full(row) for row in rows if row.tpot_ms):
        return ""
    return (
        f"each request is given a copy of its {cached:,} cached tokens, and some wait for memory; "
        f"{server.title} keeps one copy of those that requests share, so that fewer wait"
    )


def slower_links(every: Iterable[Sizing]) -> tuple[str, str]:
    """(the host whose all-reduces take most of a prompt's time, their shares in words); ("", "") if there
    is none.
    """
    slow, host = list[str](), ""
    for sizing in (one for one in every if one.fitting_requests and one.deployment.gpus > 1):
        exchange = sizing.gpu.operation("all_reduce", "bfloat16")
        parts = sizing.prompt(sizing.asked.loads()[0]) * steps.each_ms(sizing.gpu.section.overheads)
        share = parts[steps.STEP_PARTS.index("all_reduce")] / parts.sum()
        host = exchange.like or sizing.device
        if share > MOST_EXCHANGE and exchange.like != IN_GENERAL:
            slow.append(f"{percent(share)} on {sizing.deployment.gpus}")
    return (host, f" ({', '.join(slow)} GPUs)") if slow else ("", "")


def links_words(host: str, shares: str = "") -> str:
    """Remark on the slow links of a host; "" without one. See `slower_links`."""
    if not host:
        return ""
    return (
        f"all-reduces take most of a prompt's time{shares}, as they were timed on one host of {host}; on a "
        "host with faster links the first token takes less"
    )


def _least(sizing: Sizing, dtype: str, requests: float) -> int:
    """The least tensor parallel that holds the weights in `dtype` ("": the published one) and the caches of
    `requests` requests; 0 if none does.
    """
    section, asked, decoder = sizing.gpu.section, sizing.asked, sizing.deployment.decoder
    tokens = asked.loads()[0].longest
    for n in (1 << power for power in range(MOST_GPUS.bit_length())):
        with suppress(InputError):  # a number that does not divide the decoder, a missing type
            one = steps.deployment_of(section, decoder, n, dtype=dtype, kv_dtype=asked.kv_dtype)
            if steps.requests_that_fit(section, one, tokens) >= requests:
                return n
    return 0


def _least_by_dtype(sizing: Sizing, gpus: int, requests: float) -> dict[int, str]:
    """Number of GPUs below `gpus` -> a data type in which they hold `requests` requests; the most GPUs
    first.
    """
    others = () if sizing.deployment.decoder.has_mxfp4 else reversed(DTYPES)
    fewer = {n: t for t in others if 0 < (n := _least(sizing, t, requests)) < gpus}
    return dict(sorted(fewer.items(), reverse=True))


def _room(sizing: Sizing) -> str:
    """Remark on weights that do not fit, or leave no room for a request, and on the GPUs that hold both."""
    sheet, here, asked = sizing.gpu.section.sheet, sizing.deployment, sizing.asked
    room, taken = sizing.gpu.section.server.room_gib(sheet), here.weight_bytes * here.gpus
    tokens, needed = int(asked.loads()[0].longest), needed_words(sizing)
    has_room = taken / here.gpus < GIB * room
    wanted = f", which leaves too little for the cache of {tokens:,} tokens" if has_room else ""
    wanted += f": {needed}" if needed else ""
    of_gpu = f"{room:.0f} of a GPU's {sheet.memory_gib:g} GiB"
    return (
        f"its weights take {taken / GIB:.0f} GiB on {plural(here.gpus, 'GPU')}, and {of_gpu} are free for "
        f"them{wanted}"
    )


def needed_gpus(sizing: Sizing) -> int:
    """The fewest GPUs that hold the model in the data type asked for; 0 for more than MOST_NAMED."""
    least = _least(sizing, sizing.asked.dtype, 1)
    return least * (least <= MOST_NAMED)


def needed_words(sizing: Sizing) -> str:
    """Words on the fewest GPUs, up to MOST_NAMED, that hold the model, also in other data types."""
    least = needed_gpus(sizing)
    every = _least_by_dtype(sizing, least or MOST_GPUS, 1)
    fewer = {n: dtype for n, dtype in every.items() if n <= MOST_NAMED}
    words = [f"at least {plural(least, 'GPU')} (--tensor-parallel {least})"] if least else []
    words += [f"{n if least else plural(n, 'GPU')} in {dtype}" for n, dtype in fewer.items()]
    return "; ".join(words) or f"more than {MOST_NAMED} are needed"


def _not_timed(sizing: Sizing) -> Iterator[str]:
    """Remark on operations that were not timed on this GPU, one remark for each source of their times."""
    told: dict[str, dict[str, list[str]]] = {}
    for (name, dtype), operation in steps.operations_of(sizing.gpu, sizing.deployment).items():
        if operation.like:
            called = CALLED.get(name, name.replace("_", "-"))
            told.setdefault(operation.like, {}).setdefault(called, []).append(dtype)
    for like, names in sorted(told.items()):
        source = f"as {like}" if like in OWN_IN_BFLOAT16.values() else f"as on {like}"
        source = "by the usual rates of GPUs" if like == IN_GENERAL else source
        words = ", ".join(f"{name} in {' and '.join(dtypes)}" for name, dtypes in names.items())
        yield f"not timed on this GPU, but assumed {source}: {words}"


def _beyond(sizing: Sizing, rows: Sequence[ServingConfig]) -> list[str]:
    """Remarks on overloaded rows, on more requests than run at once, and on loads or GPUs beyond any served
    row.
    """
    section, here, rows = (
        sizing.gpu.section,
        sizing.deployment,
        [row for row in rows if row.tpot_ms],
    )
    limits, node = sizing.asked.limits(section), int(section.sheet.gpus_per_node)
    full = [row.largest_rate or 0.0 for row in rows if row.saturated]
    most = [
        min(math.ceil(r.concurrency / r.groups), r.largest_concurrency / r.groups) for r in rows
    ]
    closed = [n for n, row in zip(most, rows, strict=True) if row.request_rate is None]
    many = sum(number > limits.sequences for number in closed)
    sizes = [(n, r.input_tokens, r.output_tokens) for n, r in zip(most, rows, strict=True)]
    found = beyond(np.array(sizes).reshape(-1, len(MOST_SERVED)))
    what = " and ".join(f"{MOST_SERVED[name]:,} {name}" for name, far in found.items() if far.any())
    number = int(np.any([*found.values()], axis=0).sum())
    groups = here.attention_data_parallel
    return _true(
        (full, f"{plural(len(full), 'row')} overloaded: requests arrive faster than they are served, at "
         f"most {max(full, default=0.0):.3g} a second, so that more and more wait; the times in --json are "
         f"those of the first {REQUESTS:,} requests"),
        (many, f"{plural(many, 'row')}: {section.server.title} runs at most {limits.sequences:,} requests "
         f"at once{'' if sizing.asked.max_num_seqs else ' on this card'}, and the others wait, unless "
         f"{section.server.option} allows these numbers"),
        (words := steps.product_words(here.tensor_parallel, groups), words),
        (groups > 1, "extrapolating: groups with attention of their own wait for each other in ways that "
         "no fit knows; the interval is wider"),
        (what, f"{plural(number, 'row')} extrapolating: outside what was served on any GPU, with more "
         f"than {what}; the interval is wider"),
        (any(row.gpus > node * row.replicas for row in rows), "extrapolating: more GPUs than the "
         f"{node} of a node; links are assumed to be those within a node, and the interval reaches to "
         f"links of {BETWEEN_GB_S:.0f} GB/s, as of InfiniBand, which many rented machines lack"),
    )  # fmt: skip


# ---- Limits that are not kept


def replicas_left_out(rows: Sequence[ServingConfig], asked: ServingQuestion) -> Iterator[str]:
    """Remark on each size of a replica that misses the limits with any number of replicas."""
    for row in {row.split: row for row in rows}.values():
        token, first = (
            milliseconds(ms) + (f" (up to {milliseconds(ends[1])})" if ends and asked.sure else "")
            for ms, ends in row.token_times(asked.percentile)
        )
        split = f"{row.split_words}," if row.split_words else ""
        replica = f"{plural(row.gpus // row.replicas, 'GPU')} a replica{split}"
        yield (
            f"{replica} left out: no number of replicas keeps the limits; a request that has a "
            f"replica to itself takes {first} to the first token and {token} per output token"
        )
