"""The rows of a comparison of trainings: their order, which rows are shown, and the best row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lolat.device.fastest import clearly_least
from lolat.device.limits import VERDICTS
from lolat.training.best import Worth, verdict_on
from lolat.training.choice import Choice
from lolat.training.compare import Costs
from lolat.training.cost import NEARLY, CostRow

NOTICED = 0.0005
"""A larger update gets a remark if it saves at least this share of the price: printed as 0.1 %."""
FEW_ROWS = 12
"""A table of at most so many rows shows all of them; a longer one is shortened."""
DEAR_IF_LONG, DEAR_IF_SHORT = 2.0, 10.0
"""Factors over the cheapest row above which a row is expensive (`dear`): in a table that is still longer
than FEW_ROWS, and in a shorter one."""


@dataclass(frozen=True)
class Listing:
    """The rows that are shown, and the numbers of hidden rows by reason.

    `less`: rows with less data than the best row of their device, if the limits decide the amount of data.
    `beaten`: rows that another row beats in both time and price, and that are not the cheapest of their
    device. `dear`: beaten rows that are the cheapest of their device, but cost over `times` the
    cheapest row; `costly`: the devices of these rows that have no shown row. `beyond`: rows beyond the
    limits; `lost`: devices all of whose rows are beyond the limits.
    """

    shown: Sequence[CostRow]
    less: int = 0
    beaten: int = 0
    dear: int = 0
    times: float = DEAR_IF_LONG
    costly: tuple[str, ...] = ()
    beyond: int = 0
    lost: tuple[str, ...] = ()


def ranked(costs: Costs) -> list[CostRow]:
    """The rows that fit, sorted: the most data first; without limits on data the cheapest, else the
    fastest.
    """
    rows = [row for c in costs.answers for row in c.option_rows if c.fits is not False]

    def order(row: CostRow) -> tuple[float, ...]:
        _, option = row
        usd, seconds = option.dollars or 0.0, option.total_s or 0.0
        amount = -(option.data_within_limits or 0)
        return amount, option.dollars is None, usd, seconds, -option.samples_per_s

    return sorted(rows, key=order)


def listing_of(costs: Costs, rows: Sequence[CostRow]) -> Listing:
    """Choose the rows to show: all if there are at most FEW_ROWS.

    Otherwise these rows are shown: rows that no other row beats in both time and price; the cheapest row of
    each device, unless it is expensive; of the rows beyond the limits only the best, or those of the first
    kind if no row keeps them. If the limits decide the amount of data, each device shows only its row with
    the most data.
    """
    if len(rows) > FEW_ROWS and not costs.frontier and rows[0].option.data_within_limits:
        most = {row.cost.card: row for row in reversed(rows)}
        shown = [row for row in rows if row in most.values()]
        return Listing(shown, less=len(rows) - len(shown))
    if len(rows) <= FEW_ROWS or not costs.frontier:
        return Listing(rows)
    bests, choices = {costs.cheapest, costs.fastest}, [Choice.of(*row) for row in rows]
    if costs.missed:
        bests |= {
            *costs.frontier,
            *(choices[n] for n, row in enumerate(rows) if row.option in costs.least()),
        }
    verdicts = [verdict_on(row.option, costs.limits) for row in rows]
    order = sorted(
        range(len(rows)), key=lambda n: VERDICTS.index(verdicts[n]) > 1 if verdicts[n] else 0
    )
    within = [n for n in order if verdicts[n] != "no" or choices[n] in bests]
    least = {choices[n].card: n for n in reversed(within)}
    best = {n for n in within if choices[n] in {*costs.frontier, *bests}}
    kept = best | {*least.values()}
    least_usd = (costs.cheapest and costs.cheapest.dollars) or math.inf
    times = DEAR_IF_LONG if len(kept) > FEW_ROWS else DEAR_IF_SHORT
    dear = {n for n in kept - best if (choices[n].dollars or 0.0) > times * least_usd}
    devices = dict.fromkeys(c.card for c in choices)
    shown = [rows[n] for n in sorted(kept - dear)]
    told = {cost.card for cost, _ in shown}
    return Listing(
        shown,
        beaten=len(within) - len(kept),
        dear=len(dear),
        times=times,
        costly=tuple(choices[n].card for n in sorted(dear) if choices[n].card not in told),
        beyond=len(rows) - len(within),
        lost=tuple(name for name in devices if name not in least),
    )


def best_row(costs: Costs) -> CostRow | None:
    """The row that stands for a comparison: the cheapest, without prices the fastest; None without rows."""
    best = costs.cheapest or costs.fastest
    rows = (CostRow(c, o) for c in costs.answers for o in c.timed)
    return next((row for row in rows if Choice.of(*row) == best), None)


def on_one_machine(best: CostRow, rivals: Sequence[CostRow], worth: Worth) -> CostRow | None:
    """The best row on one machine, if `best` has several and is hardly better (NEARLY); else None."""
    whole = (row for row in rivals if row.option.machines == 1)
    one = (
        None
        if best.option.machines == 1
        else min(whole, key=lambda row: worth(row.option)[0], default=None)
    )
    return one if one and worth(one.option)[0] <= NEARLY * worth(best.option)[0] else None


def larger_update(best: Choice, rows: Sequence[CostRow]) -> Choice | None:
    """The choice with a larger update on the same device that costs less (NOTICED) than the best; else
    None.
    """
    choices = (Choice.of(*row) for row in rows)
    larger = [
        one
        for one in choices
        if (one.device, one.mode_words) == (best.device, best.mode_words)
        and one.in_all > best.in_all
    ]
    least = min(larger, key=lambda one: one.dollars or math.inf, default=best)
    saved = 1.0 - (least.dollars or math.inf) / (best.dollars or math.inf)
    return least if saved >= NOTICED else None


def most_row(rows: Sequence[CostRow]) -> CostRow | None:
    """The row with the most data within the limits; None if the limits do not decide the amount of data."""
    amounts = [row for row in rows if row.option.data_within_limits]
    return max(amounts, key=lambda row: row.option.data_within_limits or 0, default=None)


def more_data(costs: Costs) -> CostRow | None:
    """The row with the most data in another launch, if that is clearly more (see `clearly_least`); else
    None.
    """

    def share(row: CostRow) -> float:
        return 1.0 / (row.option.data_within_limits or math.inf)

    best = most_row(ranked(costs))
    others = (most_row(ranked(one)) for one in costs.by_launch.values())
    return clearly_least(others, share, share(best)) if best else None
