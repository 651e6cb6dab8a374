"""Rows besides the best ones: near misses, rows that surely keep the limits, cheaper data types."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from lolat.errors import InputError
from lolat.llm.answer import ServingConfig
from lolat.llm.decoder import DTYPES
from lolat.llm.load import Load
from lolat.llm.ranking import best_of
from lolat.llm.remarks import published_fp8
from lolat.llm.steps import deployments_of

if TYPE_CHECKING:
    from lolat.llm.row_parts import Split
    from lolat.llm.sizing import Sizing

T = TypeVar("T")
CHEAPER = 0.9
"""Another data type is offered if its row costs less than this fraction of the best row's price."""
SURER = 0.1
"""Another data type at the price of the best row is offered if the chance that it keeps the limits is
higher by this much."""
NEARLY = math.log(1.25)
"""A near miss exceeds a limit by at most this factor (a logarithm), however wide its interval."""


class OtherDtypes(NamedTuple):
    """Offered rows in other data types of the weights, to compare with the best row of each rate.

    `cheaper`: rows that cost less than CHEAPER times the best row. `surely_cheaper`: rows that surely keep
    the limits and cost less than CHEAPER times the best row that surely keeps them. `surer`: rows that cost
    CHEAPER to 1 times as much as the best row, and keep the limits with a probability higher by SURER.
    """

    cheaper: tuple[ServingConfig, ...] = ()
    surely_cheaper: tuple[ServingConfig, ...] = ()
    surer: tuple[ServingConfig, ...] = ()


def near_miss(
    sizings: Mapping[Split, Sizing],
    rows: Sequence[ServingConfig],
    best: ServingConfig,
) -> ServingConfig | None:
    """The best row that is cheaper than `best` and whose interval, but not its predicted time, keeps the
    limits; None if there is none.
    """
    asked, near = sizings[best.split].asked, list[ServingConfig]()
    for one in (one for one in rows if one.request_rate == best.request_rate):
        sizing, fewer = sizings[one.split], one.replicas - 1 if one.within else one.replicas
        if fewer:
            near.append(sizing.row(sizing.load_of(one), fewer))
    near = [one for one in near if not one.within and _is_cheaper(one, best)]
    near = [one for one in near if one.may_keep(asked) and one.log_excess(asked) < NEARLY]
    return best_of(near, asked)


def _is_cheaper(row: ServingConfig, other: ServingConfig) -> bool:
    """True if a row costs less than another; without both prices, if it is on fewer GPUs."""
    usd, than = row.dollars_per_hour, other.dollars_per_hour
    return usd < than if usd and than else row.gpus < other.gpus


def surely_row(
    sizings: Mapping[Split, Sizing],
    rows: Sequence[ServingConfig],
    best: ServingConfig,
) -> ServingConfig | None:
    """The best row at the load of `best` that surely keeps the limits; None if `best` surely keeps them."""
    sizing = sizings[best.split]
    if sizing.asked.sure is not None or best.is_sure(sizing.asked):
        return None
    same = [row for row in rows if row.load == best.load and row.keeps(sizing.sure_question)]
    known = best_of(same, sizing.asked)
    return _cheapest(sizings.values(), sizing.load_of(best), known, surely=True)


def probable_rows(
    sizings: Mapping[Split, Sizing], bests: Sequence[ServingConfig], surer: Sequence[ServingConfig]
) -> tuple[ServingConfig, ...]:
    """Probable rows that cost less than those of `surer`: for each improbable row of `bests`, that of its
    split and load with the fewest further replicas.
    """
    sure, found = {row.load: row for row in surer}, list[ServingConfig]()
    for best in bests:
        above, sizing = sure.get(best.load), sizings[best.split]
        if above is None or best.is_probable:
            continue
        more = range(best.replicas + 1, sizing.affordable(above) + 1)
        place = bisect_left(more, True, key=partial(sizing.is_probable, sizing.load_of(best)))
        if place < len(more):
            row = sizing.row(sizing.load_of(best), more[place])
            found += [row] if _cost(row) < _cost(above) else []
    return tuple(found)


def in_other_dtypes(
    sizing: Sizing, bests: Sequence[ServingConfig], surer: Sequence[ServingConfig]
) -> OtherDtypes:
    """Rows in other data types of the weights, by rate and price; no rows for concurrent requests.

    `bests` and `surer` have at most one row of each rate.
    """
    if not sizing.asked.request_rate or not bests:
        return OtherDtypes()
    every = [(row, False) for row in bests] + [(row, True) for row in surer]
    found = [dict[tuple[float | None, str], ServingConfig]() for _ in range(3)]

    def ask(each: list[Sizing]) -> list[tuple[int, ServingConfig]]:
        told = list[tuple[int, ServingConfig]]()
        for row, surely in every:
            one = _cheapest(each, sizing.load_of(row), row, surely=surely) or row
            if _cost(one) < CHEAPER * _cost(row):
                told.append((int(surely), one))
            elif not surely and (one.chance or 0.0) >= (row.chance or 0.0) + SURER:
                here = next(of for of in each if of.deployment.split == one.split)
                told.append((2, here.with_headroom(one)))
        return told

    for of_type in _in_each_dtype(sizing, ask):
        for place, one in of_type:
            found[place][one.request_rate, one.dtype] = (
                one  # fp8 may become fp8_block: a type twice
            )
    by_price = (
        sorted(rows.values(), key=lambda row: (row.request_rate or 0.0, _cost(row), row.tpot_ms))
        for rows in found
    )
    return OtherDtypes(*map(tuple, by_price))


def enough_in_other_dtypes(sizing: Sizing) -> tuple[ServingConfig, ...]:
    """The best row for each other data type of the weights.

    It is the best within the limits; without limits, the one with the fewest GPUs.
    """
    loads, asked = sizing.asked.loads(), sizing.asked

    def best(each: list[Sizing]) -> ServingConfig | None:
        if asked.has_limits:
            return _cheapest(each, loads[0], None)
        rows = (one.best_row(load, one.affordable(None)) for one in each for load in loads)
        served = [row for row in rows if row.tpot_ms and row.is_good]
        return min(served, key=lambda row: (row.gpus, -row.load), default=None)

    return tuple(filter(None, _in_each_dtype(sizing, best)))


def _in_each_dtype(sizing: Sizing, ask: Callable[[list[Sizing]], T]) -> Iterator[T]:
    """Yield the answers of `ask` for the deployments in each other data type of the weights.

    Data types that raise InputError, for example untimed ones, are left out.
    """
    asked, decoder = sizing.asked, sizing.deployment.decoder
    if decoder.has_mxfp4:
        return
    for dtype in {*DTYPES} - ({"fp8_block"} if published_fp8(decoder) != "fp8_block" else set()):
        with suppress(InputError):  # a type that this GPU lacks, a number that does not divide
            other = replace(asked, dtype=dtype)
            several = deployments_of(sizing.gpu.section, decoder, other)
            if several[0].called != sizing.deployment.called:
                yield ask([replace(sizing, deployment=one, asked=other) for one in several])


def _cost(row: ServingConfig) -> float:
    """The price of a row in US$ an hour; its number of GPUs if it has no price."""
    return row.dollars_per_hour or float(row.gpus)


def _cheapest(
    sizings: Iterable[Sizing], load: Load, known: ServingConfig | None, *, surely: bool = False
) -> ServingConfig | None:
    """The best row of a load that keeps the limits and costs no more than a `known` row, else that row.

    `surely`: the whole intervals must keep the limits, not only the predicted times.
    """
    for sizing in sizings:
        if most := sizing.affordable(known):
            row = sizing.best_row(load, most, surely=surely)
            if row.keeps(sizing.sure_question if surely else sizing.asked):
                known = best_of([one for one in (known, row) if one], sizing.asked)
    return known
