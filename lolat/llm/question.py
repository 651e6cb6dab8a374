"""A question about serving a language model: requests, GPUs, data types, limits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lolat.device.question import several
from lolat.errors import InputError, arg, argument_code
from lolat.llm.decoder import CACHE_BYTES, DTYPES
from lolat.parameters import (
    COVERAGE,
    EVEN,
    MOST_CONCURRENCY,
    MOST_GPUS,
    MOST_TOKENS,
    POISSON,
    TRACE,
    declared,
    parameters_of,
    percent_sure,
)
from lolat.units import percent, plain, plural

if TYPE_CHECKING:
    from lolat.hardware.prices import Prices
    from lolat.llm.decoder import Decoder
    from lolat.llm.frameworks import BatchLimits
    from lolat.llm.gpu import ServingSection
    from lolat.llm.load import Load, Trace

USUAL_LOADS = (1, 8, 32, 128)
"""Concurrent requests of a question that gives neither concurrent requests nor a rate."""
USUAL_TOKENS = 1024, 512
PERCENTILES = (50, 90, 99)
"""Percentiles of times in every answer, besides the percentile that was asked for."""


CACHE_NAMES = {"auto": "", "bf16": "bfloat16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
"""Name of a cache's data type in vLLM and SGLang -> its name here; "" is the default of the model."""


@dataclass(frozen=True)
class ServingQuestion:
    """A question about serving; the answer has a row for each combination of a load and a tensor parallel.

    The loads are `concurrency` (requests at any time) or `request_rate` (requests a second); without both
    USUAL_LOADS. The best row keeps the limits `max_tpot_ms`, `max_ttft_ms`, `max_latency_ms`, `gpus`.
    InputError for a number out of its range, and if the file `arrivals` does not exist.
    """

    # fmt: off
    input_tokens: int | None = declared(
        None, f"Tokens of a prompt; {USUAL_TOKENS[0]:,} if not given.", most=MOST_TOKENS)
    output_tokens: int | None = declared(
        None, f"Tokens of an answer; {USUAL_TOKENS[1]} if not given.", 2, MOST_TOKENS)
    concurrency: int | Sequence[int] = declared(
        (), "Requests always in progress; 1, 8, 32, 128 and the most that fit, if fewer, if neither "
        "--concurrency nor --request-rate is given.",
        most=MOST_CONCURRENCY, metavar="N[,N]", example="1,8,32")
    tensor_parallel: int | Sequence[int] = declared(
        (), "GPUs that share the model. If not given, each of 1, 2, 4, 8 with room for it.", most=MOST_GPUS,
        metavar="N[,N]", example="1,8,32")
    _: KW_ONLY
    request_rate: float | Sequence[float] = declared(
        (), "Requests that arrive per second.", 0, 1e6, is_open=True, metavar="R[,R]", example="1,3,10")
    arrivals: str | Trace | None = declared(
        None, "How requests arrive: poisson (at random; the default), even, or as in a table with the "
        f"columns {','.join(TRACE)}, at its own rate if --request-rate is not given. Another rate keeps "
        "the table's times: it takes fewer of the requests, evenly chosen, or each several times, the "
        "further ones at random before the next arrival.", metavar="KIND|TABLE")
    cached_tokens: int = declared(
        0, "Tokens of each prompt that are in the prefix cache; requests share no memory.", 0, MOST_TOKENS)
    expert_parallel: int | Sequence[int] = declared(
        1, "Groups of GPUs among which whole experts are divided.", most=MOST_GPUS, metavar="N[,N]",
        example="1,8")
    attention_data_parallel: int | Sequence[int] = declared(
        (), "Replicas of attention, each on --tensor-parallel GPUs; all these GPUs share the "
        "experts. If neither option is given: 1, and all GPUs of a node if tensor parallel would copy the "
        "cache.",
        most=MOST_GPUS, metavar="N[,N]", example="1,8")
    dtype: str = declared(
        "", f"Data type of the weights: {', '.join(DTYPES)}; if not given, as published. fp8 has a scale "
        "for each tensor or channel, fp8_block for each block of 128 (the FP8 of DeepSeek and Qwen). "
        "Several compare them.",
        metavar="TYPE[,TYPE]")
    kv_dtype: str = declared(
        "", f"Data type of the cache: {', '.join(CACHE_BYTES)}; if not given, as published, or the "
        "framework's usual type.", metavar="TYPE")
    draft_tokens: int = declared(
        0, "Tokens that each step drafts (speculative decoding); drafting takes no time and no memory.",
        0, 64)
    accepted: float | None = declared(
        None, "The probability that a drafted token is accepted.", 0, 1, metavar="SHARE")
    max_num_seqs: int | None = declared(
        None, "The most requests in a step; the framework's usual number if not given.",
        most=MOST_CONCURRENCY)
    max_num_batched_tokens: int | None = declared(
        None, "The most tokens in a step; the framework's usual number if not given.", most=MOST_TOKENS)
    max_tpot_ms: float | None = declared(
        None, "The longest time per output token.", 0, is_open=True, metavar="MS")
    min_tokens_per_s: float | None = declared(
        None, "The fewest output tokens a second of a request, in place of --max-tpot-ms.", 0, 1e6,
        is_open=True, metavar="N")
    max_ttft_ms: float | None = declared(
        None, "The longest time to the first token.", 0, is_open=True, metavar="MS")
    max_latency_ms: float | None = declared(
        None, "The longest time of a whole request, from its arrival to its last token.", 0, is_open=True,
        metavar="MS")
    percentile: int | None = declared(
        None, "Show this percentile over requests, from 1 to 99, and judge limits by it; means if not "
        "given. A request's time per token is the mean of its tokens (TPOT of vLLM, not ITL).",
        most=99)
    gpus: int | None = declared(
        None, "The most GPUs to use, all replicas together.", most=MOST_GPUS)
    # fmt: on
    sure: float | None = None
    price_per_hour: float | None = None
    prices: str | Prices | None = None

    def __post_init__(self) -> None:
        rates, arrivals = several(self.request_rate), self.arrivals
        if not (arrivals is None or (isinstance(arrivals, str) and arrivals in (POISSON, EVEN))):
            arrivals = _trace(arrivals)
            rates = rates or (float(f"{arrivals.rate:.4g}"),)
        for name, value in (
            ("concurrency", several(self.concurrency)), ("tensor_parallel", several(self.tensor_parallel)),
            ("request_rate", rates), ("arrivals", arrivals), ("dtype", _word("dtype", self.dtype)),
            ("kv_dtype", CACHE_NAMES.get(cache := _word("kv_dtype", self.kv_dtype), cache)),
            ("expert_parallel", several(self.expert_parallel) or (1,)),
            ("attention_data_parallel", several(self.attention_data_parallel)),
            ("sure", percent_sure(self.sure)),
        ):  # fmt: skip
            object.__setattr__(self, name, value)
        for name, parameter in parameters_of(ServingQuestion).items():
            given = getattr(self, name)
            values = several(given) if parameter.example else (given,)
            if parameter.kind is not str and values not in ((), (None,)):
                parameter.check(*values)
        if self.min_tokens_per_s is not None:
            if self.max_tpot_ms not in (None, 1e3 / self.min_tokens_per_s):
                raise InputError(
                    f"{arg('max_tpot_ms')} and {arg('min_tokens_per_s')}: limits of one time; expected one",
                    code="max-tpot-ms",
                )
            object.__setattr__(self, "max_tpot_ms", 1e3 / self.min_tokens_per_s)

    def check(self, decoder: Decoder) -> None:
        """Raise InputError for an impossible question."""
        from lolat.llm.load import Load, Trace

        trace = self.arrivals if isinstance(self.arrivals, Trace) else None
        longest = int(Load(*self.tokens, arrivals=self.arrivals or POISSON).longest)
        has_tokens = (self.input_tokens, self.output_tokens) != (None, None)
        prompt, answer = (
            map(max, (trace.input_tokens, trace.output_tokens)) if trace else self.tokens
        )
        for wrong, argument, words in (
            (0 < decoder.context < longest, "arrivals" if trace else "input_tokens",
             f": a request of {longest:,} tokens; {decoder.name} holds {decoder.context:,} "
             "tokens; expected no more together"),
            (answer == 1, "arrivals", ": every answer has 1 token; the time per output token "
             "counts those after the first; expected 2 or more"),
            (self.cached_tokens > prompt, "cached_tokens", f" {self.cached_tokens:,}: expected from 0 "
             f"to the {prompt:,} tokens of the longest prompt"),
            (self.concurrency and trace, "concurrency", f" and {arg('arrivals')}: the arrivals have a "
             "rate of their own; expected one of them"),
            (self.concurrency and self.request_rate, "concurrency", " (requests in progress) and "
             f"{arg('request_rate')} (requests that arrive a second); expected one of them"),
            (self.arrivals is not None and not self.request_rate, "arrivals", ": how requests arrive "
             f"at a rate; expected {arg('request_rate')} too"),
            (trace and has_tokens, "input_tokens", f", {arg('output_tokens')}: the "
             f"requests in {arg('arrivals')} have tokens of their own; expected one of both"),
            (bool(self.draft_tokens) != (self.accepted is not None), "draft_tokens", " and "
             f"{arg('accepted')}: the tokens that a step drafts, and the probability from 0 to 1 that one "
             "is accepted; expected both"),
            (self.sure and not self.has_time_limits, "sure", ": the certainty of limits; expected "
             f"{arg('max_tpot_ms')}, {arg('max_ttft_ms')} or {arg('max_latency_ms')} too"),
        ):  # fmt: skip
            if wrong:
                raise InputError(f"{arg(argument)}{words}", code=argument_code(argument))

    @property
    def tokens(self) -> tuple[int, int]:
        """(tokens of a prompt, tokens of an answer), USUAL_TOKENS if not given."""
        own = self.input_tokens, self.output_tokens
        prompt, answer = (one if n is None else n for n, one in zip(own, USUAL_TOKENS, strict=True))
        return prompt, answer

    @property
    def coverage(self) -> float:
        """The coverage of the intervals: the share of true values inside them."""
        return COVERAGE if self.sure is None else self.sure / 100.0

    @property
    def unusual(self) -> list[str]:
        """Words on the given arguments among cached tokens, draft tokens, arrivals and limits of a step."""
        arrivals, accepted = self.arrivals or POISSON, percent(self.accepted or 0.0)
        source = arrivals if isinstance(arrivals, str) else plain(arrivals.source)
        given = (
            (self.cached_tokens, f"{self.cached_tokens:,} tokens of each prompt cached"
             + (", of which the last is computed again" if self.cached_tokens >= self.tokens[0] else "")),
            (self.draft_tokens, f"{self.draft_tokens} tokens drafted a step, each accepted at {accepted}, "
             "drafting itself free"),
            (arrivals != POISSON and source, f"arrivals {source}"),
            (self.max_num_seqs, f"at most {plural(self.max_num_seqs or 0, 'request')} a step"),
            (self.max_num_batched_tokens, f"at most {self.max_num_batched_tokens or 0:,} tokens a step"),
        )  # fmt: skip
        return [words for is_given, words in given if is_given]

    @property
    def has_limits(self) -> bool:
        """True if the question asks for the best row within limits."""
        return self.has_time_limits or self.gpus is not None

    @property
    def has_time_limits(self) -> bool:
        """True if a time has a limit."""
        return (self.max_tpot_ms, self.max_ttft_ms, self.max_latency_ms) != (None, None, None)

    def limits(self, section: ServingSection) -> BatchLimits:
        """The limits of a step; InputError if the framework would refuse them."""
        server, own = section.server, (self.max_num_seqs or 0, self.max_num_batched_tokens or 0)
        limits = server.limits_on(section.sheet, *own)
        if server.token_each and limits.tokens < limits.sequences:
            raise InputError(
                f"{arg('max_num_seqs')} {limits.sequences:,}: more than the {limits.tokens:,} tokens in a "
                f"step of {server.title}, which has one for each request; expected at most as many as "
                f"{arg('max_num_batched_tokens')}", code="step-tokens", of_device=True,
            )  # fmt: skip
        return limits

    def loads(self) -> list[Load]:
        """The loads of the question, each once."""
        from lolat.llm.load import Load, Trace

        each = [(0.0, rate) for rate in several(self.request_rate)]
        each = each or [(float(n), 0.0) for n in several(self.concurrency) or USUAL_LOADS]
        tokens: tuple[float, float] = self.tokens
        if isinstance(self.arrivals, Trace):
            tokens = self.arrivals.mean_tokens
        each = [*dict.fromkeys(each)]
        arrivals = self.arrivals or POISSON
        return [Load(*tokens, n, rate, arrivals, self.cached_tokens) for n, rate in each]


def _word(name: str, value: str) -> str:
    """Convert a word to lower case; InputError for anything but a string."""
    if not isinstance(value, str):
        raise InputError(
            f"{arg(name)} {value!r}: expected one word, such as 'fp8'", code=argument_code(name)
        )
    return value.lower()


def _trace(given: Any) -> Trace:
    """Read a file of arrivals; a `Trace` is returned as it is."""
    from lolat.llm.load import Trace, read_trace

    if isinstance(given, Trace):
        return given
    is_path = isinstance(given, (str, PathLike))
    if not is_path or not Path(given).exists():
        shown = plain(os.fspath(given)) if is_path else f"of type {type(given).__name__}"
        raise InputError(
            f"{arg('arrivals')} {shown}: no such file; expected {POISSON}, {EVEN}, or a table "
            f"with the columns {', '.join(TRACE)}", code="arrivals",
        )  # fmt: skip
    return read_trace(given)
