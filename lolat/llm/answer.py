"""Answers what a served language model costs: times and dollars by concurrent requests and GPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lolat.arrays import np
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.io.results import Result
from lolat.llm.decoder import Decoder
from lolat.llm.domain import interval
from lolat.llm.frameworks import steady
from lolat.llm.gpu import GPU, ServingSection
from lolat.llm.remarks import Chosen
from lolat.llm.serving import (
    GIB,
    PARTS,
    Deployment,
    Load,
    Served,
    ServingSteps,
    deployment_of,
    each_ms,
    requests_that_fit,
    serve,
    steps_of,
)
from lolat.parameters import COVERAGE, MOST_GPUS, PARAMETERS
from lolat.units import milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.hardware.prices import Rental

BREAKDOWN = ("weights", "products", "attention", "experts", "all_reduce", "small", "launches", "scheduling",
             "prompts")  # fmt: skip
"""The parts of an output token's time: reading dense weights, dense products beyond that, attention, routed
experts, all-reduces, small operations, kernel launches, scheduling, prompts of other requests."""


@dataclass(frozen=True, repr=False)
class ServingConfig(Result):
    """A language model served on a number of GPUs under one load.

    `gpus`: `replicas` times `tensor_parallel`; the replicas share the `concurrency`. `memory_gib`: GiB of
    weights and caches on each GPU; `fits`: True if each GPU has them. `largest_concurrency`: the most
    requests that fit; 0 if the weights do not fit, and then there are no times. `tokens_per_s`: output
    tokens of all GPUs. `dollars_per_million`: US$ for a million output tokens and their prompts.
    `breakdown`: ms of an output token by part. `rented`: the machines that cost `dollars_per_hour`; each
    holds whole replicas. `within`: True if it fits and keeps the limits; None without limits. `in_domain`:
    True if such a load was served and its operations were timed; else the intervals are wider.
    """

    model: str
    device: str
    dtype: str
    kv_dtype: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    tensor_parallel: int
    replicas: int
    gpus: int
    fits: bool
    memory_gib: float
    largest_concurrency: int
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tpot_interval_ms: tuple[float, float] | None = None
    ttft_interval_ms: tuple[float, float] | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_user: float | None = None
    tokens_per_s_gpu: float | None = None
    dollars_per_million: float | None = None
    dollars_per_hour: float | None = None
    rented: str | None = None
    breakdown: Mapping[str, float] | None = None
    within: bool | None = None
    in_domain: bool | None = None

    @property
    def gpus_words(self) -> str:
        """ "4 GPUs"; "4 x 2 GPUs" of four replicas."""
        several = f"{self.replicas} x {self.tensor_parallel} GPUs"
        return several if self.replicas > 1 else plural(self.gpus, "GPU")

    @property
    def load_words(self) -> str:
        """The concurrent requests and the GPUs, in words."""
        return f"{plural(self.concurrency, 'concurrent request')} on {self.gpus_words}"

    def words(self) -> str:
        """Return the load, the GPUs and both times in words."""
        where = f"{self.gpus_words} ({plain(self.device)})"
        what = f"{plain(self.model)} on {where}, {self.concurrency} at once"
        if self.tpot_ms is None or self.ttft_ms is None:
            return f"{what}: its weights do not fit"
        return f"{what}: {milliseconds(self.ttft_ms)} to the first token, {milliseconds(self.tpot_ms)} each"


@dataclass(frozen=True, repr=False)
class ServingAnswer(Result):
    """The answer of `Model.llm`: a row for each configuration, and the best one.

    `parameters`: those of the language model; `active`: those that a token uses. `framework`: the server.
    `coverage`: the probability of the intervals. `best`: the index of the row with the cheapest output
    tokens within the limits; None without limits. `chosen`: the best row, else the first one that fits,
    else the first one. `weights_gib`, `read_gib`, `free_concurrency` describe the chosen row: GiB of
    weights on each GPU, the most of them that a step reads, and the most concurrent requests at which an
    output token takes at most a quarter longer than with one request (None without times).
    """

    model: str
    device: str
    framework: str
    parameters: int
    active: int
    coverage: float
    max_tpot_ms: float | None
    max_ttft_ms: float | None
    served: tuple[ServingConfig, ...]
    best: int | None
    free_concurrency: int | None
    weights_gib: float
    read_gib: float
    prices: str | None
    warnings: tuple[str, ...]
    chosen: ServingConfig
    KEYS = ("model", "device", "framework", "parameters", "active", "coverage", "max_tpot_ms",
            "max_ttft_ms", "rows=served", "best", "free_concurrency", "weights_gib", "read_gib",
            "prices", "warnings")  # fmt: skip

    def words(self) -> str:
        """Return the chosen row in words."""
        return self.chosen.words()

    @property
    def compared(self) -> ServingConfig | None:
        """The row to compare with other GPUs: the best one that fits and keeps the limits."""
        return best_of([row for row in self.served if row.fits and row.within is not False])

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each configuration, with a column for each part of the breakdown."""
        found = []
        for row in self.served:
            cells = row.to_dict()
            parts = cells.pop("breakdown") or {}
            for name in ("tpot", "ttft"):
                low, high = cells.pop(f"{name}_interval_ms") or (None, None)
                cells |= {f"{name}_low_ms": low, f"{name}_high_ms": high}
            found.append(cells | {f"{part}_ms": ms for part, ms in parts.items()})
        return found


USUAL_LOADS = (1, 8, 32, 128)
"""Concurrent requests that are answered if none are given."""


@dataclass(frozen=True)
class ServingQuestion:
    """A question about serving; each concurrency with each tensor parallel is a row of the answer."""

    input_tokens: int = 1024
    output_tokens: int = 512
    concurrency: tuple[int, ...] = USUAL_LOADS
    tensor_parallel: tuple[int, ...] = ()
    expert_parallel: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    max_tpot_ms: float | None = None
    max_ttft_ms: float | None = None
    gpus: int | None = None

    def check(self, decoder: Decoder) -> None:
        """Raise InputError for an impossible question."""
        for name, values in (
            ("input_tokens", (self.input_tokens,)),
            ("output_tokens", (self.output_tokens,)),
            ("concurrency", self.concurrency),
            ("tensor_parallel", self.tensor_parallel or (1,)),
            ("expert_parallel", (self.expert_parallel,)),
            ("gpus", (1 if self.gpus is None else self.gpus,)),
        ):
            PARAMETERS[name].check(values)
        for name, ms in (("max_tpot_ms", self.max_tpot_ms), ("max_ttft_ms", self.max_ttft_ms)):
            if ms is not None and not 0 < ms < math.inf:
                raise InputError(f"{arg(name)} {ms}: expected milliseconds above 0")
        if self.expert_parallel > 1 and not decoder.experts:
            raise InputError(
                f"{arg('expert_parallel')} {self.expert_parallel}: {decoder.name} has no experts; "
                "expected 1"
            )
        if decoder.context and self.input_tokens + self.output_tokens > decoder.context:
            raise InputError(
                f"{arg('input_tokens')} {self.input_tokens:,} and {self.output_tokens:,} output tokens: "
                f"{decoder.name} holds {decoder.context:,} tokens; expected no more together"
            )
        if self.output_tokens == 1:
            raise InputError(
                f"{arg('output_tokens')} 1: the time per output token counts those after the first; "
                "expected 2 or more"
            )

    @property
    def limits(self) -> bool:
        """True if the question asks for the best row within limits."""
        return (self.max_tpot_ms, self.max_ttft_ms, self.gpus) != (None, None, None)

    def within(self, row: ServingConfig) -> bool:
        """Return True if a row fits and keeps the limits."""
        tpot, ttft = self.max_tpot_ms or math.inf, self.max_ttft_ms or math.inf
        times = (row.tpot_ms or 0.0) <= tpot and (row.ttft_ms or 0.0) <= ttft
        return row.fits and times and row.gpus <= (self.gpus or MOST_GPUS)


# ---- The answer.


def answer(
    section: ServingSection, device: str, decoder: Decoder, asked: ServingQuestion,
    rental: Rental | None = None, remark: str = "",
) -> ServingAnswer:  # fmt: skip
    """Answer a question about a decoder on a GPU; `remark`: a warning if nothing is rented.

    InputError for an impossible question; AnswerIsNo if no row keeps the limits.
    """
    asked.check(decoder)
    if rental is not None and not all(0 <= offer.price < math.inf for offer in rental.offers):
        price = rental.offers[0].price
        raise InputError(f"{arg('price_per_hour')} {price}: expected US$ from 0, such as 2.50")
    gpu, deployments = GPU(section), _deployments(section, decoder, asked)
    rows = [row for one in deployments for row in _rows(gpu, device, one, asked, rental)]
    rows.sort(key=lambda row: (row.concurrency, row.tensor_parallel))
    if asked.limits:
        rows = _replicated([replace(row, within=asked.within(row)) for row in rows])
    best = best_of([row for row in rows if row.within])
    row = best or next((row for row in rows if row.fits), rows[0])
    deployment = next(one for one in deployments if one.tensor_parallel == row.tensor_parallel)
    chosen = Chosen(gpu, deployment, row, asked)
    made = ServingAnswer(
        decoder.name, device, section.framework, decoder.parameters, decoder.active_parameters, COVERAGE,
        asked.max_tpot_ms, asked.max_ttft_ms, tuple(rows), rows.index(best) if best else None,
        chosen.free_concurrency(), deployment.weight_bytes / GIB, deployment.read_bytes / GIB,
        rental.prices if rental else None,
        (*chosen.remarks(rows), *([remark] if remark and not rental else ())), row,
    )  # fmt: skip
    if asked.limits and best is None:
        raise _no(made, asked)
    return made


def best_of(rows: Sequence[ServingConfig]) -> ServingConfig | None:
    """Return the row with the cheapest tokens; without prices, the one with the most tokens/s a GPU."""

    def worth(row: ServingConfig) -> tuple[float, ...]:
        dollars = row.dollars_per_million
        cost = -(row.tokens_per_s_gpu or 0.0) if dollars is None else dollars
        return dollars is None, cost, row.gpus, row.tpot_ms or 0.0

    return min(rows, key=worth, default=None)


def _deployments(
    section: ServingSection, decoder: Decoder, asked: ServingQuestion
) -> list[Deployment]:
    """Return the deployments asked for; else those on 1, 2, 4, 8 GPUs of a node that hold the weights.

    If none holds the weights: the deployment on the most GPUs that divide the decoder.
    """
    found, refused = list[Deployment](), None
    most = min(asked.gpus or MOST_GPUS, int(section.sheet.gpus_per_node))
    more = asked.expert_parallel, asked.dtype, asked.kv_dtype
    for parallel in asked.tensor_parallel or (1 << n for n in range(most.bit_length())):
        try:
            found.append(deployment_of(section, decoder, parallel, *more))
        except InputError as error:
            if asked.tensor_parallel or error.code not in ("tensor-parallel", "expert-parallel"):
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    if asked.tensor_parallel:
        return found
    return [d for d in found if requests_that_fit(section, d, np.ones(1))[0]] or found[-1:]


def _rows(
    gpu: GPU, device: str, deployment: Deployment, asked: ServingQuestion, rental: Rental | None
) -> list[ServingConfig]:
    """Return a deployment's rows: each concurrency with each number of replicas within the limits."""
    section, parallel = gpu.section, deployment.tensor_parallel
    tokens = asked.input_tokens + asked.output_tokens
    most = (asked.gpus or int(section.sheet.gpus_per_node)) // parallel if asked.limits else 1
    pairs = [(n, r) for n in asked.concurrency for r in range(1, max(most, 1) + 1) if r <= n]
    concurrency, replicas = np.array(pairs, float).T
    each, size = np.ceil(concurrency / replicas), np.ones(len(pairs))
    fit = requests_that_fit(section, deployment, np.array([tokens])) * size
    load = Load(asked.input_tokens * size, asked.output_tokens * size, each, fit)
    steps = steps_of(gpu, deployment, load)
    found = serve(section.overheads, steps, load)
    first = serve(steady(section.overheads), steps, load).ttft_ms
    memory = (deployment.weight_bytes + each * deployment.cache_bytes(tokens)) / GIB
    rate = 1e3 * asked.output_tokens * concurrency / found.cycle_ms
    *ends, inside = interval(gpu, deployment, load, steps.decode)
    *first_ends, first_inside = interval(gpu, deployment, load, steps.prompt, first=True)
    tpots = np.stack(ends, 1) * found.tpot_ms[:, None]
    ttfts = np.stack(first_ends, 1) * first[:, None]
    columns = (fit * replicas, memory, rate, first, found.tpot_ms, found.prompt_ms, found.step_ms,
               _breakdown(gpu, deployment, steps, found), tpots, ttfts, inside & first_inside)  # fmt: skip
    what = (deployment.decoder.name, device, _called(deployment), deployment.kv_dtype,
            asked.input_tokens, asked.output_tokens)  # fmt: skip
    hourly = {r: _rented(rental, r, parallel) for _, r in pairs}
    rows = []
    for (n, r), *cells in zip(pairs, *(column.tolist() for column in columns), strict=True):
        largest, gib, speed, ttft, tpot, prompt, step, parts, tpot_of, ttft_of, is_inside = cells
        gpus, (dollars, machines) = parallel * r, hourly[r]
        where = (*what, n, parallel, r, gpus, n <= largest, gib, int(largest))
        if not largest:
            rows.append(ServingConfig(*where))
            continue
        price = None if dollars is None else dollars / 3600.0 / speed * 1e6
        row = ServingConfig(
            *where, ttft, tpot, tuple(tpot_of), tuple(ttft_of), prompt, step, speed, 1e3 / tpot,
            speed / gpus, price, dollars, machines, dict(zip(BREAKDOWN, parts, strict=True)),
            in_domain=is_inside,
        )  # fmt: skip
        rows.append(row)
    return rows


def _rented(
    rental: Rental | None, replicas: int, parallel: int
) -> tuple[float, str] | tuple[None, None]:
    """Return US$ an hour and the name of the cheapest machines that hold each replica whole.

    None for both without such machines. A price that the user gives counts for one GPU in any machine.
    """
    if rental is None:
        return None, None
    if not rental.offers[0].instance_type:
        return rental.offers[0].price * replicas * parallel, rental.prices
    choices = []
    for offer in rental.offers:
        if groups := offer.devices // parallel:
            number = -(-replicas // groups)
            other = rental.rented(1, offer).memory_gib  # than that of this GPU
            with_more = f" ({other:g} GiB a GPU)" if other else ""
            choices.append((number * offer.price, number, offer.instance_type + with_more))
    if not choices:
        return None, None
    price, number, name = min(choices)
    return price, f"{number} x {name}" if number > 1 else name


def _called(deployment: Deployment) -> str:
    """Return the data type of the weights; experts in another one follow behind a +."""
    differs = deployment.decoder.experts and deployment.expert_dtype != deployment.dtype
    return f"{deployment.dtype}+{deployment.expert_dtype}" if differs else deployment.dtype


def _breakdown(gpu: GPU, deployment: Deployment, steps: ServingSteps, found: Served) -> np.ndarray:
    """(rows, BREAKDOWN) ms of an output token by part."""
    ms = steps.decode * each_ms(gpu.section.overheads)
    products, head, attention, experts, reduced, moved = ms[:, : len(PARTS)].T
    kernels, fp8, blocks, fp4, layers, exchanges, step, parallel = ms[:, len(PARTS) :].T
    dense = products + head
    weights = np.minimum(deployment.dense_bytes / gpu.specs.bandwidth, dense)
    return np.column_stack(
        [weights, dense - weights, attention, experts, reduced + exchanges, moved,
         kernels + fp8 + blocks + fp4 + layers, step + parallel, found.tpot_ms - found.step_ms]
    )  # fmt: skip


def _replicated(rows: Sequence[ServingConfig]) -> list[ServingConfig]:
    """Keep one number of replicas of each load: the best within the limits, else the most."""
    found = []
    for _, some in itertools.groupby(rows, key=lambda row: (row.concurrency, row.tensor_parallel)):
        several = [*some]
        found.append(best_of([row for row in several if row.within]) or several[-1])
    return found


def _no(made: ServingAnswer, asked: ServingQuestion) -> AnswerIsNo:
    near = min(made.served, key=lambda row: (not row.fits, row.tpot_ms or math.inf))
    room = "" if near.fits else f", with room for {near.largest_concurrency:,} at once"
    room = f"; {made.warnings[0]}" if near.tpot_ms is None else room
    limits = {"per output token": asked.max_tpot_ms, "to the first": asked.max_ttft_ms}
    kept = " and ".join(f"{milliseconds(ms)} {what}" for what, ms in limits.items() if ms)
    return AnswerIsNo(
        f"no configuration of up to {asked.gpus or max(r.gpus for r in made.served)} GPUs keeps "
        f"{kept or 'all requests in memory'}; nearest is {near.words()}{room}",
        made.to_dict(),
    )
