"""Fits the overheads of a framework on a GPU to served rows, by robust least squares on logarithms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.errors import InputError
from lolat.io.tables import Row
from lolat.llm.frameworks import FrameworkOverheads
from lolat.llm.gpu import (
    CALIBRATED_AT,
    GPU,
    OWN_FITS,
    UNSEEN,
    FrameworkFit,
    ServedRow,
    ServingSection,
    short,
)
from lolat.llm.load import Load
from lolat.llm.names import find_decoder
from lolat.llm.served_rows import SERVED, percentiles
from lolat.llm.server import Server, of_requests
from lolat.llm.steps import deployment_of, each_ms
from lolat.tables.copies import copies_words
from lolat.units import percent, plural

WIDTHS = FrameworkOverheads(
    kernel_ms=1e-3, fp8_ms=1e-3, block_ms=1e-3, fp4_ms=1.5e-3, experts_ms=5e-3, exchange_ms=3e-3,
    step_ms=0.3, parallel_ms=0.3, small=0.5, front_ms=20.0, poll_steps=10.0, level=0.2,
)  # fmt: skip
"""Prior widths: an overhead that moves by its width costs the fit as much as a row that is off by OFF_TPOT.
The width of `level` belongs to its logarithm, and is divided by sqrt(1 + FEW / rows)."""
FEW = 2
MOST_OVERHEADS = FrameworkOverheads(
    kernel_ms=0.05, fp8_ms=0.05, block_ms=0.05, fp4_ms=0.05, experts_ms=0.1, exchange_ms=0.05,
    step_ms=5.0, parallel_ms=5.0, small=12.0, front_ms=40.0, poll_steps=60.0, level=2.5,
)  # fmt: skip
"""Upper bounds of the fit; cold servers in some served rows would fit a `front_ms` of hundreds."""
POLLS, LEVEL = map(FrameworkOverheads.__struct_fields__.index, ("poll_steps", "level"))
"""The indices of `poll_steps` and `level` in FrameworkOverheads."""
OFF_TPOT, OFF_TTFT = 0.05, 0.2
A_GROUP = 40
"""Rows of one language model and data type that count fully; more rows add no weight."""
SPREADS = {"served": (0.16, 0.4), "timed": UNSEEN, "sheet": (0.22, 0.6)}
"""Half widths (tpot, ttft), as logarithms, of intervals with coverage CALIBRATED_AT, for a GPU with served
rows, with timed operations, or with only a data sheet."""
LEAST_SERVED = 10
FOLDS = 5
"""Number of parts into which `left_out` divides the rows of only one or two groups."""
MOST_OFF = math.log(2.5)
"""Median |log(predicted / measured)| above which the served rows must come from another GPU."""
SUSPICIOUS_ERROR = math.log(1.4)
"""Median |log(predicted / measured)| above which a remark says that the tensor parallel or the data type
may be wrong."""
SUSPICIOUS_FIRST_ERROR = 0.5
"""Median relative error of first tokens above which unknown lengths of requests get a remark."""
WAITING, LONGER = 0.5, 2.0
"""A request waits for memory if its first token takes more than WAITING times its output tokens, and more
than LONGER times its predicted time. Such rows say nothing about the overheads."""
FEW_REQUESTS = 8.0
"""Above this concurrency prompts wait for each other, and times to the first token tell less about
`poll_steps`."""
COLD = 10.0
"""A server was not warm if its first token takes COLD times the predicted time; the row's ttft is then
ignored."""


@dataclass(frozen=True)
class ServedTimes:
    """Served rows with the parts of their times, as (rows,) arrays; `group`: language model and data type.

    `tpot_parts`, `ttft_parts`: (rows, STEP_PARTS + STARTS) parts of the times per output token and to the
    first token. `step_parts`: parts of a step without prompts. `capacity`: the requests whose caches fit.
    `polls`: True if servers of such a decoder may look for new requests at intervals. `server`: the server
    of each row.
    """

    tpot_parts: np.ndarray
    ttft_parts: np.ndarray
    step_parts: np.ndarray
    concurrency: np.ndarray
    capacity: np.ndarray
    tpot_ms: np.ndarray
    ttft_ms: np.ndarray
    polls: np.ndarray
    group: np.ndarray
    server: np.ndarray

    def take(self, which: np.ndarray) -> ServedTimes:
        """Some of the rows."""
        return ServedTimes(*(column[which] for column in vars(self).values()))

    def predicted(self, overheads: FrameworkOverheads) -> tuple[np.ndarray, np.ndarray]:
        """(rows,) predicted ms per output token, and (rows,) to the first token, with these overheads."""
        each = each_ms(overheads)
        waiting = overheads.front_ms + overheads.poll_steps * (self.step_parts @ each)
        return self.tpot_parts @ each, waiting + self.ttft_parts @ each

    def log_errors(self, overheads: FrameworkOverheads) -> np.ndarray:
        """(2, rows) log(predicted / measured) of tpot and ttft; nan if a row has no ttft."""
        known = np.where(self.ttft_ms > 0, self.ttft_ms, np.nan)
        return np.log(np.array(self.predicted(overheads)) / [self.tpot_ms, known])


def by_deployment(rows: Sequence[ServedRow]) -> list[list[ServedRow]]:
    """Group served rows by deployment."""
    kinds: dict[Any, list[ServedRow]] = {}
    for row in rows:
        kinds.setdefault((row.model, *row.deployment), []).append(row)
    return [*kinds.values()]


def timed_of(
    section: ServingSection, rows: Sequence[ServedRow], overheads: FrameworkOverheads | None = None
) -> ServedTimes:
    """Simulate served rows, deployment by deployment, with `overheads` (None: those of the section)."""
    gpu, found = GPU(section), list[Any]()
    for some in by_deployment(rows):
        decoder, servers = find_decoder(some[0].model), dict[Any, Server]()
        deployment = deployment_of(section, decoder, *some[0].deployment)
        for row in some:
            load = Load.of(row)
            key = load.longest, row.limits(section)
            if key not in servers:
                servers[key] = Server(gpu, deployment, *key)
            parts = of_requests(servers[key], load, overheads or section.overheads)
            room = servers[key].rule.cache // load.tokens
            times = row.tpot_ms, row.ttft_ms, decoder.kind in OWN_FITS
            name = f"{row.model} {row.dtype}".strip()
            found.append((*parts, load.concurrency, room, *times, name, servers[key]))
    return ServedTimes(*map(np.array, zip(*found, strict=True)))


def timed_steps(
    section: ServingSection, rows: Sequence[ServedRow], overheads: FrameworkOverheads | None = None
) -> ServedTimes:
    """Simulate the served rows that did not wait for memory; InputError if there is none."""
    if not rows:
        why = f"no serving measurement is of this device and framework ({section.server.title}); {SERVED}"
        raise InputError(why, code="served")
    overheads = overheads or section.overheads
    timed = timed_of(section, rows, overheads)
    outputs = np.array([row.output_tokens for some in by_deployment(rows) for row in some])
    is_waiting = timed.ttft_ms >= WAITING * timed.tpot_ms * outputs
    is_waiting &= timed.ttft_ms > LONGER * timed.predicted(overheads)[1]
    is_cold = timed.polls & (timed.ttft_ms > COLD * timed.predicted(section.server.overheads)[1])
    timed = replace(timed, ttft_ms=np.where(is_cold, 0.0, timed.ttft_ms))
    of_use = ~is_waiting & (timed.concurrency <= timed.capacity)
    if not of_use.any():
        files = ", ".join(dict.fromkeys(row.source for row in rows if row.source))
        why = f"{files}: " if files else ""
        why += "no serving measurement is of use: in each the first token takes "
        at_once = all(0 < row.requests <= row.concurrency for row in rows)
        remedy = "all requests were sent at once; run it with --max-concurrency"
        raise InputError(f"{why}most of the time; {remedy if at_once else SERVED}", code="served")
    return timed.take(of_use)


def fit_overheads(
    timed: ServedTimes, start: FrameworkOverheads, one_server: bool = True
) -> FrameworkOverheads:
    """Fit the overheads to served rows; they shrink toward `start`.

    A `level` that the rows of one server share is fitted too. Other overheads could imitate a level at the
    loads of these rows, but not at other loads, so the fit then penalizes their squared moves.
    """
    names, numbers = np.unique(timed.group, return_inverse=True)
    weight = np.sqrt(np.minimum(1.0, A_GROUP / np.bincount(numbers, minlength=len(names))))[numbers]
    every = map(msgspec.structs.astuple, (start, MOST_OVERHEADS, WIDTHS))
    begin, most, width = map(np.array, every)
    has_level, least = one_server and _shares_level(timed, start), np.zeros(LEVEL + 1)
    least[LEVEL] = 1.0 / most[LEVEL]
    free = np.ones(LEVEL + 1, bool)
    free[[POLLS, LEVEL]] = timed.polls.any(), has_level
    tpot, known = np.log(timed.tpot_ms), timed.ttft_ms > 0
    ttft = np.log(np.where(known, timed.ttft_ms, 1.0))
    few = np.sqrt(FEW_REQUESTS / np.maximum(timed.concurrency, FEW_REQUESTS))  # at most 1
    lighter = np.where(timed.polls, few, 1.0)

    def overheads(unknowns: np.ndarray) -> np.ndarray:
        every = begin.copy()
        every[free] = unknowns
        return every

    def errors(unknowns: np.ndarray) -> np.ndarray:
        every = overheads(unknowns)
        per_token, to_first = timed.predicted(FrameworkOverheads(*every))
        first = np.where(known, np.log(to_first) - ttft, 0.0)
        off = [(np.log(per_token) - tpot) * weight / OFF_TPOT, first * weight * lighter / OFF_TTFT]
        moved = (every - begin) / width
        if has_level:
            few = math.sqrt(1.0 + FEW / len(tpot))
            moved[LEVEL] = np.log(every[LEVEL] / begin[LEVEL]) * few / width[LEVEL]
            moved *= np.sqrt(1.0 + moved**2 / 4.0)  # soft_l1 then costs the plain square
        return np.concatenate([*off, moved[free]])

    inside = np.clip(begin, least + 1e-9, most * (1.0 - 1e-9))[free]
    from scipy.optimize import least_squares

    found = least_squares(errors, inside, loss="soft_l1", bounds=(least[free], most[free]))
    rounded = [short(one) if one > 1e-6 else 0.0 for one in found.x]
    return FrameworkOverheads(*overheads(np.array(rounded)).tolist())


def _shares_level(timed: ServedTimes, start: FrameworkOverheads) -> bool:
    """True if the rows share a level: their errors with `start` are alike and far from 0."""
    off = np.log(timed.tpot_ms / timed.predicted(start)[0])
    middle = np.median(off)
    differ = 1.4826 * float(np.median(np.abs(off - middle)))
    return bool(abs(middle) > max(2.0 * differ, OFF_TPOT))


def left_out(timed: ServedTimes, start: FrameworkOverheads, one_server: bool = True) -> np.ndarray:
    """(2, rows) log(predicted / measured) of tpot and ttft, where each row is held out with its group.

    With only one or two groups, ranges of loads are held out instead. nan: the row has no ttft.
    """
    names, parts = np.unique(timed.group, return_inverse=True)
    if len(names) <= 2:
        loads, places = np.unique(timed.concurrency, return_inverse=True)
        parts = places * min(FOLDS, len(loads)) // len(loads)
        parts = np.arange(len(parts)) % FOLDS if len(loads) == 1 else parts
    off = np.full((2, len(parts)), np.nan)
    for out in (parts == part for part in np.unique(parts)):
        some = timed.take(out)
        overheads = start if out.all() else fit_overheads(timed.take(~out), start, one_server)
        off[:, out] = some.log_errors(overheads)
    return off


def spread_of(
    off: np.ndarray, before: tuple[float, float] = SPREADS["served"]
) -> tuple[float, float]:
    """Half widths (tpot, ttft), as logarithms, of intervals with coverage CALIBRATED_AT.

    `off`: the errors from `left_out`. `before`: the half widths without these rows, which count as much as
    LEAST_SERVED rows.
    """

    def of(errors: np.ndarray, was: float) -> float:
        errors = np.abs(errors[~np.isnan(errors)])
        here = len(errors) * np.quantile(errors, CALIBRATED_AT) ** 2 if len(errors) else 0.0
        return math.sqrt((LEAST_SERVED * was**2 + here) / (LEAST_SERVED + len(errors)))

    tpot, ttft = map(of, off, before)
    return short(tpot), short(max(ttft, tpot))


def types_words(section: ServingSection, rows: Sequence[ServedRow]) -> str:
    """Name the data types assumed for benchmarks that state none; "" if all benchmarks state them."""
    taken: dict[str, None] = {}
    for row in (row for row in rows if not isinstance(row.row, Row) and not row.dtype):
        one = deployment_of(section, find_decoder(row.model), row.tensor_parallel)
        taken[f"{row.model} in {one.dtype} with cache {one.kv_dtype}"] = None
    remedy = "; the keys dtype and kv_dtype in the JSON state others"
    return f"assumed: {', '.join(taken)}{remedy}" if taken else ""


def percentiles_of(
    server: Server, row: ServedRow, overheads: FrameworkOverheads
) -> dict[str, float]:
    """Predict the percentiles of a row, in ms, by their names in its benchmark."""
    if not (names := percentiles(row)):
        return {}
    times, found = server.times(Load.of(row), overheads), dict[str, float]()
    for name in names:
        at, time, _ = name.split("_")
        ms = {"ttft": times.ttft_ms, "tpot": times.tpot_ms, "e2el": times.e2e_ms}[time]
        found[name] = float(np.percentile(ms, 50.0 if at == "median" else float(at[1:])))
    return found


def percentile_words(rows: Sequence[ServedRow]) -> str:
    """A remark that the percentiles in rows are not fitted; "" if the rows have none."""
    names = ", ".join({name: None for row in rows for name in percentiles(row)})
    return f"percentiles are compared by `lolat evaluate`, not fitted: {names}" if names else ""


def served_by(
    section: ServingSection, rows: Sequence[ServedRow], one_server: bool = True
) -> tuple[ServingSection, str]:
    """Fit the overheads of a section to served rows; return the section, and a sentence on the errors.

    `one_server`: the rows are of one server, whose level is fitted.

    Each kind of decoder in OWN_FITS has its own fit, which starts from the common one. In the common fit,
    rows with attention data parallel count only if there are no others. Rows of an earlier fit count too,
    each once. InputError if the rows cannot come from this GPU.
    """
    several, said = dict[str, list[ServedRow]](), list[str]()
    for row in rows:
        kind = find_decoder(row.model).kind
        several.setdefault(kind if kind in OWN_FITS else "", []).append(row)
    for kind, some in sorted(several.items()) or [("", [])]:
        if not kind:  # published rows of groups often have the times of one group
            some = [row for row in some if row.attention_data_parallel == 1] or some
        known, is_new = section.of(kind), bool(kind) and kind not in section.fits
        if is_new:
            known = msgspec.structs.replace(known, served=0, kinds=())
        fitted, words = _served_by(known, some, one_server and not is_new)
        section = section.with_fit(kind, fitted)
        said.append(f"{kind} attention: {words}" if kind else words)
    return section, "; ".join(said)


def _served_by(
    section: ServingSection, rows: Sequence[ServedRow], one_server: bool
) -> tuple[ServingSection, str]:
    """Fit served rows of one kind of decoder."""
    fields = {name: getattr(section, name) for name in FrameworkFit.__struct_fields__}
    before = section.before or FrameworkFit(**fields)
    # The next fit reads a configuration again, by its full path.
    paths = {row.model: Path(row.model) for row in rows}
    full = {model: str(path.resolve()) for model, path in paths.items() if path.exists()}
    named = (vars(row) | {"model": full.get(row.model, row.model), "row": {}} for row in rows)
    placed = [msgspec.convert(one, ServedRow) for one in named]  # rounded as in a file
    every = [*dict.fromkeys([*section.own, *placed])]
    copies = len(section.own) + len(placed) - len(every)
    timed = timed_steps(section, every, before.overheads)
    was = timed.log_errors(before.overheads)
    middle = float(np.median(np.abs(was[0])))
    if middle > MOST_OFF:
        raise InputError(
            f"the serving measurements are off by {math.exp(middle):.1f} times at the median; expected "
            "tpot_ms in ms, of this GPU and framework, with the tensor_parallel and dtype that were served",
            code="served-unlike",
        )
    # The schedule is simulated with the fitted overheads, and these are fitted again.
    timed = timed_steps(section, every, fit_overheads(timed, before.overheads, one_server))
    off = left_out(timed, before.overheads, one_server)
    number, error, was_error = len(timed.group), _medians(off), _medians(was)
    words = f"{plural(number, 'serving measurement')}: {_error_words(was_error, error)}"
    if error[0] >= was_error[0]:
        words += "; the fit to these rows is no better than the device without them"
    words += "; check their tensor_parallel, and their dtype" if middle > SUSPICIOUS_ERROR else ""
    alike = (r for r in rows if not isinstance(r.row, Row) and not r.lengths and r.range_ratio == 1)
    files = ", ".join(dict.fromkeys(row.source for row in alike if row.concurrency > 1))
    if files and error[1] > SUSPICIOUS_FIRST_ERROR:
        words += f"; requests of {files} are all taken as long as their mean, so that they start in step: "
        words += "`vllm bench serve --save-detailed` saves the length of each"
    words += f"; {copies_words(copies, len(rows))}" if copies else ""
    if waiting := len(every) - number:
        words += f"; without {plural(waiting, 'row')} of requests that waited for memory"
    used = {row.model for row in every if f"{row.model} {row.dtype}".strip() in timed.group}
    dtypes = {*before.dtypes}
    if before.dtypes or not before.served:
        for row in every:
            one = deployment_of(section, find_decoder(row.model), *row.deployment)
            dtypes |= {product.dtype for product in one.products}
    overheads = fit_overheads(timed, before.overheads, one_server)
    usual = SPREADS["served" if number >= LEAST_SERVED else "timed"]
    per_token, to_first = spread_of(off, before.spread if before.served else usual)
    here = np.abs(timed.log_errors(overheads)[1])[timed.ttft_ms > 0]
    if len(here):  # a first token depends on more properties of a server than are fitted
        to_first = max(to_first, short(float(np.quantile(here, CALIBRATED_AT, method="higher"))))
    made = msgspec.structs.replace(
        section, served=before.served + number, own=tuple(every), before=before, overheads=overheads,
        kinds=tuple(sorted({*before.kinds, *(find_decoder(model).kind for model in used)})),
        spread=(per_token, to_first), own_error=tuple(map(short, error)),
        was_error=tuple(map(short, was_error)), dtypes=tuple(sorted(dtypes)),
    )  # fmt: skip
    return made, words


def _error_words(before: Sequence[float], now: Sequence[float]) -> str:
    """Name the median errors before and after a fit."""
    times = ("time per output token off", "at the median before"), ("first token", "before")
    pairs = zip(times, before, now, strict=False)
    each = (f"{name} by {percent(a)} {at}, {percent(b)} now, " for (name, at), a, b in pairs)
    return f"{''.join(each)}on rows that are left out"


def _medians(off: np.ndarray) -> list[float]:
    """The median relative errors of tpot and, if a row has one, of ttft."""
    known = (np.abs(np.expm1(one[~np.isnan(one)])) for one in off)
    return [float(np.median(one)) for one in known if len(one)]
