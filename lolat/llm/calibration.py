"""Fits the overheads of a framework on a GPU to served rows, by robust least squares on logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError
from lolat.llm.decoder import Decoder
from lolat.llm.frameworks import FrameworkOverheads
from lolat.llm.gpu import GPU, UNSEEN, FrameworkFit, ServingSection, short
from lolat.llm.served import SERVED, ServedRow
from lolat.llm.serving import Load, ServingSteps, deployment_of, requests_that_fit, serve, steps_of
from lolat.parameters import COVERAGE
from lolat.units import percent, plural

WIDTHS = FrameworkOverheads(
    kernel_ms=1e-3, fp8_ms=1e-3, block_ms=1e-3, fp4_ms=1.5e-3, experts_ms=5e-3, exchange_ms=3e-3,
    step_ms=0.3, parallel_ms=0.3, small=0.5, burst_share=0.3, api_ms=20.0, chunked_share=0.4, level=0.2,
)  # fmt: skip
"""The change of an overhead that costs the fit as much as a row that is off by OFF_TPOT. For `level` it is
a change of the logarithm, if there are many more than FEW rows."""
FEW = 2
MOST_OVERHEADS = FrameworkOverheads(
    kernel_ms=0.05, fp8_ms=0.05, block_ms=0.05, fp4_ms=0.05, experts_ms=0.1, exchange_ms=0.05,
    step_ms=5.0, parallel_ms=5.0, small=6.0, burst_share=1.0, api_ms=40.0, chunked_share=1.0, level=2.5,
)  # fmt: skip
"""Upper bounds. Some served rows have an `api_ms` of hundreds, as their server was not warm."""
LEVEL = len(msgspec.structs.fields(FrameworkOverheads)) - 1
"""The index of `level` among them."""
OFF_TPOT, OFF_TTFT = 0.05, 0.1
A_GROUP = 40
"""Rows of one language model and data type that count in full; more of them together count no more."""
SPREADS = {"served": (0.16, 0.4), "timed": UNSEEN, "sheet": (0.22, 0.6)}
"""Half width of the interval of COVERAGE, as a logarithm, by what is known of a GPU: (tpot, ttft)."""
LEAST_SERVED = 10
FOLDS = 5
MOST_OFF = math.log(2.5)
"""The median error of served rows, as a logarithm, above which they must be those of another GPU."""
WAITING, LONGER = 0.5, 2.0
"""A request waits for memory if its first token takes more than WAITING times its output tokens, and more
than LONGER times what prompts explain. Such rows say nothing about the overheads."""
DecoderOf = Callable[[str], Decoder]


@dataclass(frozen=True)
class Timed:
    """Served rows with their steps, as (rows,) arrays; `group`: language model and data type."""

    steps: ServingSteps
    load: Load
    tpot_ms: np.ndarray
    ttft_ms: np.ndarray
    group: np.ndarray

    def take(self, which: np.ndarray) -> Timed:
        """Some of the rows."""
        steps = ServingSteps(*(column[which] for column in self.steps))
        load = Load(*(column[which] for column in self.load))
        return Timed(steps, load, self.tpot_ms[which], self.ttft_ms[which], self.group[which])


def by_deployment(rows: Sequence[ServedRow]) -> list[list[ServedRow]]:
    """Group served rows by deployment."""
    kinds: dict[Any, list[ServedRow]] = {}
    for row in rows:
        kinds.setdefault((row.model, *row.deployment), []).append(row)
    return [*kinds.values()]


def timed_of(section: ServingSection, rows: Sequence[ServedRow], decoder_of: DecoderOf) -> Timed:
    """Compute the steps of served rows of one deployment; `decoder_of`: the decoder of a name."""
    deployment = deployment_of(section, decoder_of(rows[0].model), *rows[0].deployment)
    columns = [(r.input_tokens, r.output_tokens, r.concurrency, r.tpot_ms, r.ttft_ms) for r in rows]
    inputs, outputs, concurrency, tpot, ttft = np.array(columns, float).T
    capacity = requests_that_fit(section, deployment, inputs + outputs / 2.0)
    load = Load(inputs, outputs, concurrency, capacity)
    group = np.full(len(rows), f"{rows[0].model} {rows[0].dtype}".strip())
    return Timed(steps_of(GPU(section), deployment, load), load, tpot, ttft, group)


def timed_steps(section: ServingSection, rows: Sequence[ServedRow], decoder_of: DecoderOf) -> Timed:
    """Compute the steps of the served rows that did not wait for memory; InputError if all did.

    `decoder_of`: the decoder of a name.
    """
    found = []
    for some in by_deployment(rows):
        one = timed_of(section, some, decoder_of)
        load = one.load
        by_prompts = serve(section.overheads, one.steps, load).ttft_ms
        is_waiting = one.ttft_ms >= WAITING * one.tpot_ms * load.output_tokens
        is_waiting &= one.ttft_ms > LONGER * by_prompts
        found.append(one.take(~is_waiting & (load.concurrency <= load.capacity)))
    if not sum(len(one.group) for one in found):
        raise InputError(
            f"no served row is of use: in each the first token takes most of the time; {SERVED}",
            code="served",
        )
    steps = ServingSteps(*map(np.concatenate, zip(*(one.steps for one in found), strict=True)))
    load = Load(*map(np.concatenate, zip(*(one.load for one in found), strict=True)))
    columns = ([getattr(one, name) for one in found] for name in ("tpot_ms", "ttft_ms", "group"))
    return Timed(steps, load, *map(np.concatenate, columns))


def fit_overheads(
    timed: Timed, start: FrameworkOverheads, one_server: bool = True
) -> FrameworkOverheads:
    """Fit the overheads to served rows; they shrink toward `start`.

    If the rows of one server share a level, it is fitted too. An overhead that moves far would explain that
    level up to the largest load of the rows, but not beyond; so a move then costs its square.
    """
    names, numbers = np.unique(timed.group, return_inverse=True)
    weight = np.sqrt(np.minimum(1.0, A_GROUP / np.bincount(numbers, minlength=len(names))))[numbers]
    fitted = LEVEL + (one_server and _shares_level(timed, start))
    every = map(msgspec.structs.astuple, (start, MOST_OVERHEADS, WIDTHS))
    begin, most, width = (np.array(one)[:fitted] for one in every)
    fixed = msgspec.structs.astuple(start)[fitted:]
    least = np.append(np.zeros(LEVEL), 1.0 / most[LEVEL:])
    tpot, known = np.log(timed.tpot_ms), timed.ttft_ms > 0
    ttft = np.log(np.where(known, timed.ttft_ms, 1.0))

    def errors(unknowns: np.ndarray) -> np.ndarray:
        found = serve(FrameworkOverheads(*unknowns, *fixed), timed.steps, timed.load)
        first = np.where(known, np.log(found.ttft_ms) - ttft, 0.0)
        off = [(np.log(found.tpot_ms) - tpot) * weight / OFF_TPOT, first * weight / OFF_TTFT]
        moved = (unknowns - begin) / width
        if len(moved) > LEVEL:
            few = math.sqrt(1.0 + FEW / len(tpot))
            moved[LEVEL] = np.log(unknowns[LEVEL] / begin[LEVEL]) * few / width[LEVEL]
            moved *= np.sqrt(1.0 + moved**2 / 4.0)  # soft_l1 makes this the square
        return np.concatenate([*off, moved])

    inside = np.clip(begin, least + 1e-9, most * (1.0 - 1e-9))
    from scipy.optimize import least_squares

    found = least_squares(errors, inside, loss="soft_l1", bounds=(least, most))
    return FrameworkOverheads(*(short(one) if one > 1e-6 else 0.0 for one in found.x), *fixed)


def _shares_level(timed: Timed, start: FrameworkOverheads) -> bool:
    """Return True if rows differ from `start` by more than from each other."""
    off = np.log(timed.tpot_ms / serve(start, timed.steps, timed.load).tpot_ms)
    middle = np.median(off)
    differ = 1.4826 * float(np.median(np.abs(off - middle)))
    return bool(abs(middle) > max(2.0 * differ, OFF_TPOT))


def left_out(timed: Timed, start: FrameworkOverheads, one_server: bool = True) -> np.ndarray:
    """(2, rows) log(predicted / measured) of tpot and ttft, by fits without the row's group.

    With one or two groups the fits lack a range of loads instead. nan: the row has no ttft.
    """
    names, parts = np.unique(timed.group, return_inverse=True)
    if len(names) <= 2:
        loads, places = np.unique(timed.load.concurrency, return_inverse=True)
        parts = places * min(FOLDS, len(loads)) // len(loads)
        if len(loads) == 1:
            parts = np.arange(len(parts)) % FOLDS
    off = np.full((2, len(parts)), np.nan)
    for out in (parts == part for part in np.unique(parts)):
        some = timed.take(out)
        overheads = start if out.all() else fit_overheads(timed.take(~out), start, one_server)
        found = serve(overheads, some.steps, some.load)
        off[0, out] = np.log(found.tpot_ms / some.tpot_ms)
        off[1, out] = np.log(found.ttft_ms / np.where(some.ttft_ms > 0, some.ttft_ms, np.nan))
    return off


def spread_of(
    off: np.ndarray, before: tuple[float, float] = SPREADS["served"]
) -> tuple[float, float]:
    """Return half widths of the intervals of COVERAGE of (tpot, ttft), as logarithms.

    `off`: the errors from `left_out`. `before`: the spread without these rows; it counts as LEAST_SERVED
    rows.
    """

    def of(errors: np.ndarray, was: float) -> float:
        errors = np.abs(errors[~np.isnan(errors)])
        here = len(errors) * np.quantile(errors, COVERAGE) ** 2 if len(errors) else 0.0
        return math.sqrt((LEAST_SERVED * was**2 + here) / (LEAST_SERVED + len(errors)))

    tpot, ttft = map(of, off, before)
    return short(tpot), short(max(ttft, tpot))


def types_words(section: ServingSection, rows: Sequence[ServedRow], decoder_of: DecoderOf) -> str:
    """Name the data types assumed for rows of benchmarks that do not state theirs; "" if all do."""
    taken: dict[str, None] = {}
    for row in rows:
        if not row.row and not row.dtype:
            one = deployment_of(section, decoder_of(row.model), row.tensor_parallel)
            taken[f"{row.model} in {one.dtype} with cache {one.kv_dtype}"] = None
    remedy = "; the keys dtype and kv_dtype in the JSON state others"
    return f"assumed: {', '.join(taken)}{remedy}" if taken else ""


def served_by(
    section: ServingSection,
    rows: Sequence[ServedRow],
    decoder_of: DecoderOf,
    one_server: bool = True,
) -> tuple[ServingSection, str]:
    """Fit the overheads of a section to served rows; return it, and a sentence on the errors.

    Rows of an earlier fit are fitted too; each counts once. InputError if the rows cannot be those of this
    GPU.
    """
    before = section.before or FrameworkFit(
        overheads=section.overheads, spread=section.spread, served=section.served, kinds=section.kinds
    )  # fmt: skip
    # The next fit reads a configuration again, by its full path.
    paths = {row.model: Path(row.model) for row in rows}
    full = {model: str(path.resolve()) for model, path in paths.items() if path.exists()}
    placed = (replace(row, model=full.get(row.model, row.model)) for row in rows)
    every = [*dict.fromkeys([*(ServedRow(*own) for own in section.own), *placed])]
    timed = timed_steps(section, every, decoder_of)
    was = serve(before.overheads, timed.steps, timed.load).tpot_ms / timed.tpot_ms
    middle = float(np.median(np.abs(np.log(was))))
    if middle > MOST_OFF:
        raise InputError(
            f"the served rows are off by {math.exp(middle):.1f} times at the median; expected tpot_ms in "
            "ms, of this GPU and framework, with the tensor_parallel and the dtype that were served",
            code="served-unlike",
        )
    off = left_out(timed, before.overheads, one_server)
    number, now = len(timed.group), np.exp(off[0])
    medians = (percent(float(np.median(np.abs(ratio - 1.0)))) for ratio in (was, now))
    words = (
        f"{plural(number, 'served row')}: time per output token off by {next(medians)} at the median "
        f"before, {next(medians)} now, on rows that are left out"
    )
    if waiting := len(every) - number:
        words += f"; without {plural(waiting, 'row')} of requests that waited for memory"
    used = {row.model for row in every if f"{row.model} {row.dtype}".strip() in timed.group}
    made = msgspec.structs.replace(
        section, served=before.served + number, own=tuple(row.own for row in every), before=before,
        overheads=fit_overheads(timed, before.overheads, one_server),
        kinds=tuple(sorted({*before.kinds, *(decoder_of(model).kind for model in used)})),
        spread=spread_of(off, before.spread if before.served else SPREADS["served"]),
    )  # fmt: skip
    return made, words
