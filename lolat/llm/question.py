"""A question about serving a language model: requests, GPUs, data types, limits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lolat.errors import InputError, arg
from lolat.llm.frameworks import Limits
from lolat.llm.load import EVEN, POISSON, TRACE, Load, Trace, read_trace
from lolat.parameters import MOST_GPUS, PARAMETERS
from lolat.units import plain

if TYPE_CHECKING:
    from lolat.llm.answer import ServingConfig
    from lolat.llm.decoder import Decoder
    from lolat.llm.gpu import ServingSection

USUAL_LOADS = (1, 8, 32, 128)
"""Concurrent requests that are answered if neither these nor a rate are given."""
USUAL_TOKENS = 1024, 512
PERCENTILES = (50, 90, 99)


def asked_arrivals(
    arrivals: str, rates: tuple[float, ...]
) -> tuple[str | Trace, tuple[float, ...]]:
    """Return the kind of arrivals, or the trace in that file, and the rates: that of a trace if none."""
    if arrivals in (POISSON, EVEN):
        return arrivals, rates
    if not Path(arrivals).exists():
        raise InputError(
            f"{arg('arrivals')} {plain(arrivals)}: no such file; expected {POISSON}, {EVEN}, or a table "
            f"with the columns {', '.join(TRACE)}", code="arrivals",
        )  # fmt: skip
    trace = read_trace(arrivals)
    return trace, rates or (trace.rate,)


@dataclass(frozen=True)
class ServingQuestion:
    """A question about serving; each load with each tensor parallel is a row of the answer.

    The loads are `concurrency`, requests at any time, or `request_rate`, requests a second, which arrive as
    `arrivals` says; neither: USUAL_LOADS. `expert_parallel`: groups of GPUs, each with whole experts.
    `attention_data_parallel`: groups of `tensor_parallel` GPUs, each with the attention of its own
    requests; all of them share the experts.
    `dtype`: of weights ("bfloat16", "fp8", "fp8_block", "nvfp4", "int4_wo"); "": as published. `kv_dtype`:
    of the cache ("bfloat16", "fp8"); "": as published, else the framework's usual one. `max_tpot_ms`,
    `max_ttft_ms`, `gpus`: limits; the best row keeps them. `percentile`: of the times that the limits hold
    for (50, 90, 99); None: their means. `cached_tokens`: tokens of a prompt that are found in the prefix
    cache. `draft_tokens`: drafted in each step, each `accepted` with that probability; drafting itself
    takes no time. `max_num_seqs`, `max_num_batched_tokens`: limits of a step; None: the framework's.
    """

    input_tokens: int = USUAL_TOKENS[0]
    output_tokens: int = USUAL_TOKENS[1]
    concurrency: tuple[int, ...] = ()
    tensor_parallel: tuple[int, ...] = ()
    expert_parallel: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    max_tpot_ms: float | None = None
    max_ttft_ms: float | None = None
    gpus: int | None = None
    request_rate: tuple[float, ...] = ()
    arrivals: str | Trace = POISSON
    percentile: int | None = None
    cached_tokens: int = 0
    draft_tokens: int = 0
    accepted: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    attention_data_parallel: int = 1

    def check(self, decoder: Decoder) -> None:
        """Raise InputError for an impossible question."""
        for name, given in vars(self).items():
            values = given if isinstance(given, tuple) else (given,) * (given is not None)
            if values and name in PARAMETERS and PARAMETERS[name].kind is not str:
                PARAMETERS[name].check(values)
        trace = self.arrivals if isinstance(self.arrivals, Trace) else None
        longest = int(Load(self.input_tokens, self.output_tokens, arrivals=self.arrivals).longest)
        given = (
            f"{arg('input_tokens')} {self.input_tokens:,} and {self.output_tokens:,} output tokens"
        )
        given = f"{arg('arrivals')}: a request of {longest:,} tokens" if trace else given
        prompt, of = self.input_tokens, "a prompt"
        if trace:
            prompt, of = max(trace.input_tokens), f"the longest prompt in {arg('arrivals')}"
        limits, tokens = (
            (self.max_tpot_ms, self.max_ttft_ms),
            (self.input_tokens, self.output_tokens),
        )
        for wrong, words in (
            (self.expert_parallel > 1 and not decoder.experts, f"{arg('expert_parallel')} "
             f"{self.expert_parallel}: {decoder.name} has no experts; expected 1"),
            (0 < decoder.context < longest, f"{given}: {decoder.name} holds {decoder.context:,} tokens; "
             "expected no more together"),
            (self.output_tokens == 1, f"{arg('output_tokens')} 1: the time per output token counts those "
             "after the first; expected 2 or more"),
            (self.cached_tokens > prompt, f"{arg('cached_tokens')} {self.cached_tokens:,}: expected from 0 "
             f"to the {prompt:,} tokens of {of}"),
            (self.concurrency and self.request_rate, f"{arg('concurrency')} and {arg('request_rate')}: "
             "requests at any time, or requests a second; expected one of them"),
            (self.arrivals != POISSON and not self.request_rate, f"{arg('arrivals')}: how requests arrive "
             f"at a rate; expected {arg('request_rate')} too"),
            (trace and tokens != USUAL_TOKENS, f"{arg('input_tokens')}, {arg('output_tokens')}: the "
             f"requests in {arg('arrivals')} have tokens of their own; expected one of both"),
            (self.percentile not in (None, *PERCENTILES), f"{arg('percentile')} {self.percentile}: "
             f"expected one of {', '.join(map(str, PERCENTILES))}"),
            (self.percentile is not None and limits == (None, None), f"{arg('percentile')} "
             f"{self.percentile}: of the times that limits hold for; expected {arg('max_ttft_ms')} or "
             f"{arg('max_tpot_ms')} too; the JSON has all percentiles"),
            (bool(self.draft_tokens) != (self.accepted is not None), f"{arg('draft_tokens')} and "
             f"{arg('accepted')}: the tokens that a step drafts, and the probability from 0 to 1 that one "
             "is accepted; expected both"),
        ):  # fmt: skip
            if wrong:
                raise InputError(words)

    @property
    def has_limits(self) -> bool:
        """True if the question asks for the best row within limits."""
        return (self.max_tpot_ms, self.max_ttft_ms, self.gpus) != (None, None, None)

    def most_gpus(self, section: ServingSection) -> int:
        """Return the most GPUs of a row."""
        usual = MOST_GPUS if self.request_rate else int(section.sheet.gpus_per_node)
        return self.gpus or usual

    def limits(self, section: ServingSection) -> Limits:
        """Return the limits of a step."""
        usual = section.server.limits_on(section.sheet)
        return Limits(
            0, self.max_num_seqs or usual.sequences, self.max_num_batched_tokens or usual.tokens
        )

    def loads(self) -> list[Load]:
        """Return the loads, each on one replica."""
        each = [(float(n), 0.0) for n in self.concurrency] + [(0.0, r) for r in self.request_rate]
        each = each or [(float(n), 0.0) for n in USUAL_LOADS]
        tokens: tuple[float, float] = self.input_tokens, self.output_tokens
        if isinstance(self.arrivals, Trace):
            tokens = self.arrivals.mean_tokens
        return [Load(*tokens, n, rate, self.arrivals, self.cached_tokens) for n, rate in each]

    def within(self, row: ServingConfig) -> bool:
        """Return True if a row fits and keeps the limits."""
        return self.off(row) <= 0.0

    def off(self, row: ServingConfig) -> float:
        """Return `off_by` of a row's times; infinite if it cannot serve the load."""
        if not row.fits or row.saturated or row.gpus > (self.gpus or MOST_GPUS):
            return math.inf
        return self.off_by(*row.judged(self.percentile))

    def off_by(self, tpot_ms: float, ttft_ms: float) -> float:
        """Return the logarithm of the largest factor of a time to its limit."""
        limits = (tpot_ms, self.max_tpot_ms), (ttft_ms, self.max_ttft_ms)
        return max(
            (math.log(ms / limit) for ms, limit in limits if limit and ms), default=-math.inf
        )
