"""`Model.llm`: how fast and how dear a language model is served, for each number of users and of GPUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lolat.arrays import np
from lolat.errors import AnswerIsNo, InputError, ModelFileError, arg
from lolat.io.documents import converted
from lolat.io.results import Result
from lolat.llm.decoder import Decoder
from lolat.llm.domain import interval
from lolat.llm.gpu import GPU, Section, is_whole
from lolat.llm.remarks import free_users, remarks
from lolat.llm.serving import (
    GIB,
    PARTS,
    Layout,
    Load,
    Served,
    Steps,
    each_ms,
    layout_of,
    serve,
    steady,
    steps_of,
    users_that_fit,
)
from lolat.units import milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.hardware.prices import Rental

COVERAGE = 0.9
MOST_TOKENS, MOST_USERS, MOST_GPUS = 10_000_000, 1_000_000, 1024
GOES_TO = ("weights", "products", "attention", "experts", "all_reduce", "small", "launches", "scheduling",
           "prompts")  # fmt: skip
"""What an output token's time goes to: weights of dense layers read, their products beyond that,
attention, routed experts, all-reduces, small operations, starts of kernels, a step's scheduling, other
requests' prompts."""


@dataclass(frozen=True, repr=False)
class ServedModel(Result):
    """One configuration of a served model.

    `gpus`: `replicas` times `tensor_parallel`, which share the `concurrency`. `memory_gib`: of weights and
    the cache of all requests, each GPU; `fits`: whether that is there; `largest_concurrency`: the most that
    fits, 0 where not even the weights do: then there are no times. `tokens_per_s`: output tokens of all
    GPUs. `dollars_per_million`: output tokens, their prompts included. `goes_to`: ms of an output token.
    `rented`: the machines whose price `dollars_per_hour` is; each holds whole groups of GPUs.
    `within`: whether it fits and keeps the limits, None where there are none. `in_domain`: whether such a
    load was served and its operations timed; else the intervals are wider.
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
    goes_to: Mapping[str, float] | None = None
    within: bool | None = None
    in_domain: bool | None = None

    @property
    def gpus_words(self) -> str:
        """ "4 GPUs"; "4 x 2 GPUs" of four replicas."""
        several = f"{self.replicas} x {self.tensor_parallel} GPUs"
        return several if self.replicas > 1 else plural(self.gpus, "GPU")

    @property
    def load_words(self) -> str:
        """Users and GPUs."""
        return f"{plural(self.concurrency, 'user')} on {self.gpus_words}"

    def words(self) -> str:
        """Users, GPUs, times."""
        where = f"{self.gpus_words} ({plain(self.device)})"
        what = f"{plain(self.model)} on {where}, {self.concurrency} at once"
        if self.tpot_ms is None or self.ttft_ms is None:
            return f"{what}: its weights do not fit"
        return f"{what}: {milliseconds(self.ttft_ms)} to the first token, {milliseconds(self.tpot_ms)} each"


@dataclass(frozen=True, repr=False)
class LanguageModel(Result):
    """The answer of `Model.llm`: its `served` rows, and the `best` of them.

    `parameters`, `active`: of the model, of a token; `framework`: whose ways these are; `coverage`: of the
    intervals; `best`: the number in `rows` of the one with the cheapest output tokens within the limits,
    None where no limits were asked for; `chosen`: the best row, or the first that fits, or the first; of
    it, on each GPU, `weights_gib` and `read_gib`, of them what a step reads at most; and `free_users`: up
    to how many a token takes at most a quarter longer than with one,
    None without times.
    """

    model: str
    device: str
    framework: str
    parameters: int
    active: int
    coverage: float
    max_tpot_ms: float | None
    max_ttft_ms: float | None
    served: tuple[ServedModel, ...]
    best: int | None
    free_users: int | None
    weights_gib: float
    read_gib: float
    prices: str | None
    warnings: tuple[str, ...]
    chosen: ServedModel
    KEYS = ("model", "device", "framework", "parameters", "active", "coverage", "max_tpot_ms",
            "max_ttft_ms", "rows=served", "best", "free_users", "weights_gib", "read_gib",
            "prices", "warnings")  # fmt: skip

    def words(self) -> str:
        """The chosen row."""
        return self.chosen.words()

    @property
    def compared(self) -> ServedModel | None:
        """The row that stands beside those of other GPUs: the best of all that fit, within the limits."""
        return best_of([row for row in self.served if row.fits and row.within is not False])

    def rows(self) -> list[dict[str, Any]]:
        """A row for each configuration; what the time goes to is a column each."""
        found = []
        for row in self.served:
            cells = row.to_dict()
            parts = cells.pop("goes_to") or {}
            for name in ("tpot", "ttft"):
                low, high = cells.pop(f"{name}_interval_ms") or (None, None)
                cells |= {f"{name}_low_ms": low, f"{name}_high_ms": high}
            found.append(cells | {f"{part}_ms": ms for part, ms in parts.items()})
        return found


# ---- What is asked.


@dataclass(frozen=True)
class Question:
    """What is asked of a GPU; every combination of concurrency and tensor parallel is a row."""

    input_tokens: int = 1024
    output_tokens: int = 512
    concurrency: tuple[int, ...] = (1, 8, 32, 128)
    tensor_parallel: tuple[int, ...] = ()
    expert_parallel: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    max_tpot_ms: float | None = None
    max_ttft_ms: float | None = None
    gpus: int | None = None

    def check(self, decoder: Decoder) -> None:
        """InputError for what cannot be."""
        for name, values, most in (
            ("input_tokens", (self.input_tokens,), MOST_TOKENS),
            ("output_tokens", (self.output_tokens,), MOST_TOKENS),
            ("concurrency", self.concurrency, MOST_USERS),
            ("tensor_parallel", self.tensor_parallel, MOST_GPUS),
            ("expert_parallel", (self.expert_parallel,), MOST_GPUS),
            ("gpus", (1 if self.gpus is None else self.gpus,), MOST_GPUS),
        ):
            if not (values or name == "tensor_parallel") or not all(
                isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= most for v in values
            ):
                raise InputError(
                    f"{arg(name)} {', '.join(map(str, values))}: expected whole numbers from 1 to {most:,}"
                )
        for name, ms in (("max_tpot_ms", self.max_tpot_ms), ("max_ttft_ms", self.max_ttft_ms)):
            if ms is not None and not 0 < ms < math.inf:
                raise InputError(f"{arg(name)} {ms}: expected milliseconds above 0")
        if self.expert_parallel > 1 and not decoder.experts:
            raise InputError(
                f"{arg('expert_parallel')} {self.expert_parallel}: {decoder.name} has no experts; "
                "expected 1"
            )
        total = self.input_tokens + self.output_tokens
        if decoder.context and total > decoder.context:
            raise InputError(
                f"{arg('input_tokens')} {self.input_tokens:,} and {self.output_tokens:,} of output: "
                f"{decoder.name} holds {decoder.context:,} tokens; expected no more together"
            )
        if self.output_tokens == 1:
            raise InputError(
                f"{arg('output_tokens')} 1: the time per output token is of those after the first; "
                "expected 2 or more"
            )

    @property
    def limits(self) -> bool:
        """Whether the best within limits is asked for."""
        return (self.max_tpot_ms, self.max_ttft_ms, self.gpus) != (None, None, None)

    def within(self, row: ServedModel) -> bool:
        """Whether a row fits and keeps the limits."""
        tpot, ttft = self.max_tpot_ms or math.inf, self.max_ttft_ms or math.inf
        times = (row.tpot_ms or 0.0) <= tpot and (row.ttft_ms or 0.0) <= ttft
        return row.fits and times and row.gpus <= (self.gpus or MOST_GPUS)


# ---- The answer.


def answer(
    section: Section, device: str, decoder: Decoder, asked: Question, rental: Rental | None = None,
    remark: str = "",
) -> LanguageModel:  # fmt: skip
    """The answer of a GPU; `remark`: told where nothing is rented.

    InputError for what cannot be; AnswerIsNo where no row keeps the limits.
    """
    asked.check(decoder)
    if rental is not None and not all(0 <= offer.price < math.inf for offer in rental.offers):
        raise InputError(
            f"{arg('price_per_hour')} {rental.offers[0].price}: expected US$ from 0, such as 2.50"
        )
    gpu, layouts = GPU(section), _layouts(section, decoder, asked)
    rows = [row for layout in layouts for row in _rows(gpu, device, layout, asked, rental)]
    rows.sort(key=lambda row: (row.concurrency, row.tensor_parallel))
    if asked.limits:
        rows = _replicated([replace(row, within=asked.within(row)) for row in rows])
    best = best_of([row for row in rows if row.within])
    chosen = best or next((row for row in rows if row.fits), rows[0])
    layout = next(one for one in layouts if one.tensor_parallel == chosen.tensor_parallel)
    made = LanguageModel(
        decoder.name, device, section.framework, decoder.parameters, decoder.active_parameters, COVERAGE,
        asked.max_tpot_ms, asked.max_ttft_ms, tuple(rows), rows.index(best) if best else None,
        free_users(gpu, layout, chosen), layout.weight_bytes / GIB, layout.read_bytes / GIB,
        rental.prices if rental else None,
        (*remarks(gpu, layout, rows, chosen, asked), *([remark] if remark and not rental else ())), chosen,
    )  # fmt: skip
    if asked.limits and best is None:
        raise _no(made, asked)
    return made


def best_of(rows: Sequence[ServedModel]) -> ServedModel | None:
    """The row with the cheapest output tokens; where no price is known the most a second from each GPU."""

    def worth(row: ServedModel) -> tuple[float, ...]:
        dollars = row.dollars_per_million
        cost = -(row.tokens_per_s_gpu or 0.0) if dollars is None else dollars
        return dollars is None, cost, row.gpus, row.tpot_ms or 0.0

    return min(rows, key=worth, default=None)


def _layouts(section: Section, decoder: Decoder, asked: Question) -> list[Layout]:
    """What is asked for; else 1, 2, 4, 8 GPUs of a node that divide the model; of them those that hold its
    weights, if any.
    """

    def on(parallel: int) -> Layout:
        return layout_of(
            section, decoder, parallel, asked.expert_parallel, asked.dtype, asked.kv_dtype
        )

    if asked.tensor_parallel:
        return [on(parallel) for parallel in asked.tensor_parallel]
    most = min(asked.gpus or MOST_GPUS, int(section.sheet.gpus_per_node))
    found, refused = list[Layout](), None
    for parallel in (1 << n for n in range(most.bit_length())):
        try:
            found.append(on(parallel))
        except InputError as error:
            if error.code not in ("tensor-parallel", "expert-parallel"):
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    return [one for one in found if users_that_fit(section, one, np.ones(1))[0]] or found[-1:]


def _rows(
    gpu: GPU, device: str, layout: Layout, asked: Question, rental: Rental | None
) -> list[ServedModel]:
    """Rows of one layout: each concurrency, with as many replicas as may be asked for."""
    section, parallel = gpu.section, layout.tensor_parallel
    tokens = asked.input_tokens + asked.output_tokens
    most = (asked.gpus or int(section.sheet.gpus_per_node)) // parallel if asked.limits else 1
    pairs = [(n, r) for n in asked.concurrency for r in range(1, max(most, 1) + 1) if r <= n]
    users, replicas = np.array(pairs, float).T
    each, size = np.ceil(users / replicas), np.ones(len(pairs))
    fit = users_that_fit(section, layout, np.array([tokens])) * size
    load = Load(asked.input_tokens * size, asked.output_tokens * size, each, fit)
    steps = steps_of(gpu, layout, load)
    found = serve(section.ways, steps, load)
    first = serve(steady(section), steps, load).ttft_ms  # the same load for all frameworks
    memory = (layout.weight_bytes + each * layout.cache_bytes(tokens)) / GIB
    rate = 1e3 * asked.output_tokens * users / found.cycle_ms
    low, high, inside = interval(gpu, layout, load, steps.decode)
    first_low, first_high, first_inside = interval(gpu, layout, load, steps.prompt, first=True)
    tpots = np.stack([low, high], 1) * found.tpot_ms[:, None]
    ttfts = np.stack([first_low, first_high], 1) * first[:, None]
    columns = (fit * replicas, memory, rate, first, found.tpot_ms, found.prompt_ms, found.step_ms,
               _goes_to(gpu, layout, steps, found), tpots, ttfts, inside & first_inside)  # fmt: skip
    what = (layout.decoder.name, device, _called(layout), layout.kv_dtype, asked.input_tokens,
            asked.output_tokens)  # fmt: skip
    numbers = {r for _, r in pairs}
    hourly = {r: _rented(rental, r, parallel) for r in numbers}
    rows = []
    for (n, r), *cells in zip(pairs, *(column.tolist() for column in columns), strict=True):
        largest, gib, speed, ttft, tpot, prompt, step, goes_to, tpot_of, ttft_of, is_inside = cells
        gpus = parallel * r
        where = (*what, n, parallel, r, gpus, n <= largest, gib, int(largest))
        if not largest:
            rows.append(ServedModel(*where))
            continue
        dollars, machines = hourly[r]
        price = None if dollars is None else dollars / 3600.0 / speed * 1e6
        row = ServedModel(
            *where, ttft, tpot, tuple(tpot_of), tuple(ttft_of), prompt, step, speed, 1e3 / tpot,
            speed / gpus, price, dollars, machines, dict(zip(GOES_TO, goes_to, strict=True)),
            in_domain=is_inside,
        )  # fmt: skip
        rows.append(row)
    return rows


def _rented(
    rental: Rental | None, replicas: int, parallel: int
) -> tuple[float, str] | tuple[None, None]:
    """(US$ an hour, machines) of the cheapest machines that hold each replica whole; (None, None)
    where none does. A price that was given is that of one GPU in any machine.
    """
    if rental is None:
        return None, None
    if not rental.offers[0].instance_type:
        return rental.offers[0].price * replicas * parallel, rental.prices
    ways = []
    for offer in rental.offers:
        if groups := offer.devices // parallel:
            number = -(-replicas // groups)
            other = rental.rented(1, offer).memory_gib  # than that of this GPU
            with_more = f" ({other:g} GiB a GPU)" if other else ""
            ways.append((number * offer.price, number, offer.instance_type + with_more))
    if not ways:
        return None, None
    price, number, name = min(ways)
    return price, f"{number} x {name}" if number > 1 else name


def _called(layout: Layout) -> str:
    """The data type of a layout; of experts behind a +, where it is another one."""
    differs = layout.decoder.experts and layout.expert_dtype != layout.dtype
    return f"{layout.dtype}+{layout.expert_dtype}" if differs else layout.dtype


def _goes_to(gpu: GPU, layout: Layout, steps: Steps, found: Served) -> np.ndarray:
    """(rows, GOES_TO) ms of an output token."""
    ms = steps.decode * each_ms(gpu.section.ways)
    products, head, attention, experts, reduced, moved = ms[:, : len(PARTS)].T
    kernels, fp8, blocks, fp4, layers, exchanges, step, parallel = ms[:, len(PARTS) :].T
    dense = products + head
    weights = np.minimum(layout.dense_bytes / gpu.facts.bandwidth, dense)
    return np.column_stack(
        [weights, dense - weights, attention, experts, reduced + exchanges, moved,
         kernels + fp8 + blocks + fp4 + layers, step + parallel, found.tpot_ms - found.step_ms]
    )  # fmt: skip


def _replicated(rows: Sequence[ServedModel]) -> list[ServedModel]:
    """For each concurrency and tensor parallel the best replicas within the limits, else the most."""
    found = []
    for _, some in itertools.groupby(rows, key=lambda row: (row.concurrency, row.tensor_parallel)):
        several = [*some]
        found.append(best_of([row for row in several if row.within]) or several[-1])
    return found


def _no(made: LanguageModel, asked: Question) -> AnswerIsNo:
    near = min(made.served, key=lambda row: (not row.fits, row.tpot_ms or math.inf))
    room = "" if near.fits else f", with room for {near.largest_concurrency:,} at once"
    room = f"; {made.warnings[0]}" if near.tpot_ms is None else room
    limits = [
        f"{milliseconds(ms)} {what}"
        for what, ms in (
            ("per output token", asked.max_tpot_ms),
            ("to the first", asked.max_ttft_ms),
        )
        if ms
    ]
    return AnswerIsNo(
        f"no configuration of up to {asked.gpus or max(r.gpus for r in made.served)} GPUs keeps "
        f"{' and '.join(limits) or 'all requests in memory'}; nearest is {near.words()}{room}",
        made.to_dict(),
    )


def section_of(document: Mapping[str, Any], source: str) -> Section:
    """The section of a model file, checked; ModelFileError where the file is damaged."""
    section: Section = converted(document["llm"], Section, source, "$.llm")
    for name, dtypes in section.operations.items():
        for dtype, operation in dtypes.items():
            if not is_whole(name, dtype, operation):
                raise ModelFileError(
                    f"{source}: {name} of {dtype} is damaged, or of another LoLat; expected the terms of "
                    "its form; fit the model again with `lolat fit`"
                )
    return section
