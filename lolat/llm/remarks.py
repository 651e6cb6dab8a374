"""What a user must know of the rows of an answer, besides their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lolat.arrays import np
from lolat.errors import InputError
from lolat.llm.decoder import DTYPES, WEIGHT_BYTES
from lolat.llm.domain import BETWEEN_GB_S, MOST_SERVED, beyond, is_unseen
from lolat.llm.frameworks import framework_of
from lolat.llm.gpu import GPU, IN_GENERAL, Ways
from lolat.llm.serving import (
    GIB,
    Layout,
    Load,
    Served,
    layout_of,
    limits_of,
    operations_of,
    serve,
    steady,
    steps_of,
    users_that_fit,
)
from lolat.units import milliseconds, percent, plural

if TYPE_CHECKING:
    from lolat.llm.answer import Question, ServedModel

SAME = 1.25
"""As long as a token takes no more than this times that of a single user, further users cost little."""
FASTER = 0.9
"""Another data type, or load, is spoken of where it takes less than this times as long."""
SHARES = {"gemm": ("weights", "products"), "decode_attention": ("attention",), "moe": ("experts",),
          "all_reduce": ("all_reduce",), "prefill_attention": ()}  # fmt: skip
CALLED = {"gemm": "products", "moe": "experts"}


def served_as(
    gpu: GPU, layout: Layout, row: ServedModel, users: np.ndarray, ways: Ways, prompts: Any = 1.0
) -> Served:
    """What so many `users` (rows,) of one replica see, with the tokens of `row`; `prompts` share a step."""
    size = np.ones(len(users))
    tokens = np.array([row.input_tokens + row.output_tokens])
    fit = users_that_fit(gpu.section, layout, tokens) * size
    load = Load(size * row.input_tokens, size * row.output_tokens, users, fit)
    return serve(ways, steps_of(gpu, layout, load, prompts), load)


def free_users(gpu: GPU, layout: Layout, row: ServedModel) -> int | None:
    """Up to how many users a token takes no more than SAME times that of one; None without times."""
    if row.tpot_ms is None:
        return None
    users = np.round(2.0 ** np.arange(0, 11, 0.25))
    users = np.unique(users[users <= max(row.largest_concurrency / row.replicas, 1.0)])
    ms = served_as(gpu, layout, row, users, gpu.section.ways).tpot_ms
    return max(int(np.interp(SAME * ms[0], np.maximum.accumulate(ms), users)), 1)


def remarks(
    gpu: GPU, layout: Layout, rows: Sequence[ServedModel], row: ServedModel, asked: Question
) -> Iterator[str]:
    """Of `rows`, and of the chosen `row` and its layout; the first: what holds weights that do not fit."""
    section, decoder = gpu.section, layout.decoder
    if any(not one.largest_concurrency for one in rows):
        yield _room(gpu, layout, asked)
    waits = [one for one in rows if one.largest_concurrency and not one.fits]
    if waits:
        yield (
            f"{plural(len(waits), 'row')}: not all requests fit in memory at once; the others wait for "
            "their first token"
        )
    if asked.dtype and decoder.expert_dtype.endswith("mxfp4"):
        yield (
            f"{decoder.name} is served as it was published, experts in MXFP4 and all else in bfloat16: "
            f"dtype {asked.dtype} changes nothing"
        )
    elif asked.dtype and row.tpot_ms is not None:
        yield from _faster(gpu, layout, row, asked)
    if decoder.cache_remark and not (asked.kv_dtype or asked.dtype):
        yield decoder.cache_remark
    yield from _not_timed(gpu, layout, row)
    if not section.served:
        yield (
            "no served model of this GPU and framework is known: how it schedules and starts kernels is "
            "as on others"
        )
    elif is_unseen(gpu, layout):
        kind = "mixture of experts" if decoder.experts else "dense model"
        yield (
            f"no served {kind} of this GPU and framework is known: its times are those of its operations, "
            "and the interval is wider"
        )
    if (ways := steady(section)) is not section.ways and row.ttft_ms is not None and row.fits:
        burst, even = (served_as(gpu, layout, row, _each(row), w) for w in (section.ways, ways))
        if row.ttft_ms < FASTER * burst.ttft_ms[0]:  # a single user waits for nobody
            yield (
                "this framework was measured with requests that all start at once: then the first token "
                f"takes about {milliseconds(burst.ttft_ms[0])}; here it is of a steady load, as of other "
                f"frameworks, in which each further token takes up to {milliseconds(even.tpot_ms[0])} "
                f"({row.load_words})"
            )
    yield from _scheduled(gpu, layout, rows)
    yield from _outside(gpu, rows)


def _outside(gpu: GPU, rows: Sequence[ServedModel]) -> Iterator[str]:
    """Loads that nobody served, and GPUs of several machines."""
    timed = [row for row in rows if row.tpot_ms is not None]
    columns = [
        (r.input_tokens, r.output_tokens, *_each(r), r.largest_concurrency / r.replicas)
        for r in timed
    ]
    if timed:
        found = beyond(Load(*np.array(columns).T))
        if what := [f"{MOST_SERVED[name]:,} {name}" for name, more in found.items() if more.any()]:
            number = int(np.any([*found.values()], axis=0).sum())
            yield (
                f"{plural(number, 'row')} OUTSIDE what was served on any GPU: more than "
                f"{' and '.join(what)}; the interval is wider for it"
            )
    node = int(gpu.section.sheet.gpus_per_node)
    if any(row.tensor_parallel > node for row in rows):
        yield (
            f"more than the {node} GPUs of a node is OUTSIDE: taken to be linked as within one, which few "
            f"are; the interval reaches to links of {BETWEEN_GB_S:.0f} GB/s"
        )


def _scheduled(gpu: GPU, layout: Layout, rows: Sequence[ServedModel]) -> Iterator[str]:
    """Rows of more sequences than the framework runs at once, and of prompts that it computes together."""
    framework, limits = framework_of(gpu.section.framework), limits_of(gpu.section)
    timed = [row for row in rows if row.tpot_ms]
    many = [
        r for r in timed if min(_each(r)[0], r.largest_concurrency / r.replicas) > limits.sequences
    ]
    if many:
        yield (
            f"{plural(len(many), 'row')}: {framework.title} runs at most {limits.sequences:,} requests at "
            f"once on this card, and the others wait, unless {framework.option} allows what is told here"
        )
    packed: list[tuple[float, ServedModel]] = []
    for row in timed:
        prompts = np.minimum(_each(row), limits.tokens // row.input_tokens)
        if prompts > 1:
            one = replace(layout, tensor_parallel=row.tensor_parallel)
            seen = served_as(gpu, one, row, _each(row), gpu.section.ways, prompts)
            packed.append((float(seen.tpot_ms[0]), row))
    packed = [(ms, row) for ms, row in packed if ms < FASTER * (row.tpot_ms or 0.0)]
    if packed:
        ms, row = min(packed, key=lambda one: one[0] / (one[1].tpot_ms or 1.0))
        yield (
            f"{plural(len(packed), 'row')}: prompts are taken one after the other, but a server computes "
            f"short ones together where they come together: a token takes from {milliseconds(ms)} on "
            f"instead of {milliseconds(row.tpot_ms or 0.0)} ({row.load_words})"
        )


def _each(row: ServedModel) -> np.ndarray:
    """(1,) users of one replica."""
    return np.array([math.ceil(row.concurrency / row.replicas)], float)


def _others(gpu: GPU, layout: Layout, asked: Question) -> Iterator[Layout]:
    """The same in each other data type that the GPU computes, the one that was published first."""
    for dtype in dict.fromkeys(["", *DTYPES]):
        try:
            other = layout_of(
                gpu.section, layout.decoder, layout.tensor_parallel, layout.expert_parallel, dtype,
                asked.kv_dtype,
            )  # fmt: skip
            operations_of(gpu, other)
        except InputError:
            continue
        if (other.dtype, other.expert_dtype) != (layout.dtype, layout.expert_dtype):
            yield other


def _faster(gpu: GPU, layout: Layout, row: ServedModel, asked: Question) -> Iterator[str]:
    """The fastest type of as many bytes, or of the configuration, where it is faster than FASTER says."""
    found: dict[str, float] = {}
    for other in _others(gpu, layout, asked):
        alike = math.isclose(WEIGHT_BYTES[other.dtype], WEIGHT_BYTES[layout.dtype], rel_tol=0.01)
        is_timed = not any(
            operation.like
            for one in (layout, other)
            for (name, _), operation in operations_of(gpu, one).items()
            if name in CALLED
        )
        if is_timed and (alike or other.dtype == layout.decoder.dtype):
            tokens = np.array([row.input_tokens + row.output_tokens])
            if _each(row) <= users_that_fit(gpu.section, other, tokens):
                seen = served_as(gpu, other, row, _each(row), gpu.section.ways)
                found[other.dtype] = float(seen.tpot_ms[0])
    best = min(found, key=found.__getitem__, default="")
    if best and found[best] < FASTER * (row.tpot_ms or 0.0):
        yield (
            f"{layout.dtype} is slower than {best} here, as its kernels were timed: dtype {best} takes "
            f"{milliseconds(found[best])} a token, {layout.dtype} {milliseconds(row.tpot_ms or 0.0)} "
            f"({row.load_words})"
        )


def _room(gpu: GPU, layout: Layout, asked: Question) -> str:
    """How many GPUs hold the weights, in this data type and in smaller ones."""
    memory = gpu.section.sheet.memory_gib
    room = framework_of(gpu.section.framework).room_gib(gpu.section.sheet)

    def least(one: Layout) -> int:
        number = math.ceil(one.weight_bytes * one.tensor_parallel / GIB / room)
        return 1 << (number - 1).bit_length()  # a tensor is split in halves

    taken = layout.weight_bytes * layout.tensor_parallel / GIB
    others = dict.fromkeys(DTYPES, 0)  # their order; of equal numbers the first type is named
    others |= {one.dtype: least(one) for one in _others(gpu, layout, asked)}
    first = {n: dtype for dtype, n in [*others.items()][::-1] if 0 < n < least(layout)}
    fewer = [f"{n} in {first[n]}" for n in sorted(first, reverse=True)]
    return (
        f"its weights take {taken:.0f} GiB, and {room:.0f} of a GPU's {memory:g} are free for them: at "
        f"least {plural(least(layout), 'GPU')}{'; ' * bool(fewer)}{', '.join(fewer)}"
    )


def _not_timed(gpu: GPU, layout: Layout, row: ServedModel) -> Iterator[str]:
    """The operations that were not timed on this GPU, what stands for them, and their share of a token.

    Where some data types of an operation are known in another way, its share is not told.
    """
    used, ms = operations_of(gpu, layout), row.goes_to or {}
    dtypes: dict[tuple[str, str], list[str]] = {}
    for (name, dtype), operation in used.items():
        dtypes.setdefault((operation.like, name), []).append(dtype)
    told: dict[str, list[str]] = {}
    for (like, name), of in dtypes.items():
        whole = len(of) == sum(other == name for other, _ in used)
        share = whole * sum(ms.get(part, 0.0) for part in SHARES[name]) / (row.tpot_ms or 1.0)
        words = f"{CALLED.get(name, name.replace('_', '-'))} in {' and '.join(of)}"
        words += f" ({percent(share)} of a token)" if share else ""
        told.setdefault(like, []).append(words)
    told.pop("", None)  # timed
    for like, names in sorted(told.items()):
        stands = f"as {like}" if like.startswith("its ") else f"as on {like}"
        stands = "by the usual rates of GPUs" if like == IN_GENERAL else stands
        yield f"not timed on this GPU, but taken {stands}: {', '.join(names)}"
