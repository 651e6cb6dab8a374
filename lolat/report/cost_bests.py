"""Sentences on the best options of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from lolat.device.fastest import SHORTER
from lolat.errors import in_options
from lolat.report.cost_table import (
    SAMPLE,
    across,
    alike_words,
    amount_words,
    ends_words,
    rivals_of,
    update_lines,
)
from lolat.report.ranked import (
    Sentence,
)
from lolat.training.best import CHEAPEST, FASTEST, Aim, surest, verdict_on
from lolat.training.choice import Choice, choice_words
from lolat.training.compare import Costs
from lolat.training.cost import Cost, CostRow, close_words
from lolat.training.listing import (
    larger_update,
    more_data,
    most_row,
    on_one_machine,
    ranked,
)
from lolat.training.run import TrainingLimits
from lolat.units import (
    byte_size,
    capitalized,
    digits,
    dollars,
    duration,
    percent,
)

BOTH = "Cheapest and fastest"


def nearer(kept: str, near: str, which: str = "") -> Iterator[Sentence]:
    """A sentence on an option in another execution mode that keeps the limits (`kept`), else on the option
    nearest to them (`near`). `which`: words for an option that keeps limits; "": "Within the limits:".
    """
    if kept or near:
        words = (
            f"{which or 'Within the limits:'} {kept}"
            if kept
            else f"Nearest, but not within: {near}"
        )
        yield Sentence(in_options(words))


def bests_of(answer: Cost | Costs) -> tuple[tuple[Aim, Any, TrainingLimits], ...]:
    """(aim, best option or choice, limits that it has to keep) for both aims, price and time; time comes
    first if only money is limited.
    """
    limits = answer.limits
    both = (CHEAPEST, answer.cheapest, limits), (FASTEST, answer.fastest, limits.of_money)
    is_for_money = limits.max_dollars is not None and limits.max_hours is None
    return both[::-1] if is_for_money and answer.cheapest != answer.fastest else both


def _facts(best: CostRow, limits: TrainingLimits) -> str:
    """Clauses on the machines of the best option, and that it only likely keeps the limits."""
    likely = (
        f"; likely{ends_words(best, limits)}" if verdict_on(best.option, limits) == "likely" else ""
    )
    return across(best.option) + likely


def _sure_line(
    name: str,
    aim: Aim,
    best: CostRow,
    rows: Sequence[CostRow],
    limits: TrainingLimits,
    words: Callable[[CostRow], str],
) -> Iterator[str]:
    """A line on the best row that surely keeps the limits, if the `best` row only likely does."""
    sure = surest((option for _, option in rows), limits, aim.worth)
    if verdict_on(best.option, limits) == "likely" and sure:
        row = next(row for row in rows if row.option is sure)
        yield f"{name}{limits.words()}, sure: {words(row)}{across(sure)}"


def _faster_words(cheapest: Choice, other: Choice) -> str:
    """A clause that compares a choice with the cheapest: time, price, updates; "" for the cheapest."""
    if other == cheapest or not (cheapest.total_s and other.total_s and cheapest.dollars):
        return ""
    times, price = cheapest.total_s / other.total_s, (other.dollars or 0.0) / cheapest.dollars
    larger = other.in_all / cheapest.in_all
    updates = f", with updates {digits(larger)} times as large" if larger > 1 else ""
    return f"; {digits(times)} times as fast as the cheapest, for {digits(price)} times the price{updates}"


def nearly_words(
    best: CostRow,
    rows: Sequence[CostRow],
    limits: TrainingLimits,
    aim: Aim,
    words: Callable[[CostRow], str],
) -> str:
    """A clause on a row that is clearly better (SHORTER) than the sure `best` one but only likely keeps the
    limits.
    """
    likely = [row for row in rows if verdict_on(row.option, limits) == "likely"]
    least = min(likely, key=lambda row: aim.worth(row.option), default=best)
    least_worth = SHORTER * aim.worth(best.option)[0]
    if verdict_on(best.option, limits) != "yes" or aim.worth(least.option)[0] > least_worth:
        return ""
    which = "faster" if aim is FASTEST else "cheaper"
    return f"{which}, but only likely{limits.words()}: {words(least)}"


def most_sentence(row: CostRow, better: CostRow | None = None) -> Sentence:
    """A sentence on the row with the most data within the limits, and on a row in another launch that has
    more (`better`).
    """

    def words(row: CostRow) -> str:
        return f"{row.option.devices} x {row.cost.card}, {amount_words(row.option)}{across(row.option)}"

    clauses = (f"with --launch {better.cost.launch}: {words(better)}",) if better else ()
    return Sentence(f"Most{row.cost.limits.words()}: {words(row)}", clauses)


def launch_words(costs: Costs, aim: Aim, limits: TrainingLimits) -> str:
    """A clause on `better_launch` for an aim, with the interval, how likely it keeps the limits, and
    choices that may be as good; "" if there is none.
    """
    best, one = getattr(costs, aim.field), costs.better_launch.get(aim.field)
    if one is None or best is None or (aim is FASTEST and best == costs.cheapest):
        return ""
    listed = ranked(costs.by_launch[one.launch or ""])
    row = next(row for row in listed if Choice.of(*row) == one)
    is_alike = (one.card, one.devices) == (best.card, best.devices)
    is_alike &= one.batch_size == best.batch_size
    told = choice_words(replace(one, precision=None), costs.tells_batch and not is_alike)
    told = told.partition(", ")[2] if is_alike else told
    precision = f" in {one.precision}" if one.precision != best.precision else ""
    words = f"with --launch {one.launch}{precision}"
    words += f": {told}, {percent(1.0 - aim.value(one) / aim.value(best))} {aim.less}"
    sure = ""
    if ends := getattr(row.option, aim.interval):
        form = dollars if aim is CHEAPEST else duration
        sure = f"{percent(row.cost.coverage)} between {' and '.join(map(form, ends))}"
    likely = f"likely{limits.words()}" if verdict_on(row.option, limits) == "likely" else ""
    alike = alike_words(aim, row, rivals_of(row, listed, limits))
    return "; ".join(filter(None, (words, likely or sure, alike)))


def memory_words(costs: Costs, aim: Aim) -> str:
    """A clause on `better_memory` for an aim; "" if there is none."""
    best, one = getattr(costs, aim.field), costs.better_memory.get(aim.field)
    if one is None or best is None or (aim is FASTEST and best == costs.cheapest):
        return ""
    is_sharded = one.sharding != best.sharding
    how = f"--sharding {one.sharding}" if is_sharded else f"--checkpointing {one.checkpointing}"
    less = f"{percent(1.0 - aim.value(one) / aim.value(best))} {aim.less}"
    return f"with {how}: {choice_words(replace(one, precision=None), costs.tells_batch)}, {less}"


def best_options(cost: Cost) -> Iterator[Sentence]:
    """Sentences on the cheapest and the fastest option, or on the most data within limits."""
    if most := most_row(cost.option_rows):
        yield most_sentence(most)
        return
    if cost.samples is None or cost.prices is None or cost.missed:  # the refusal has the fastest
        return
    bests = bests_of(cost)
    if is_both := cost.cheapest == cost.fastest:
        is_told = cost.options[1:] or cost.limits != TrainingLimits()
        bests = ((CHEAPEST, cost.fastest, cost.limits),) if is_told else ()
    for aim, devices, limits in bests:
        name = "" if not cost.options[1:] else BOTH if is_both else aim.word
        if devices is not None:
            best = CostRow(cost, cost.option(devices))
            choice = Choice.of(*best)
            cheapest = Choice.of(cost, cost.option(cost.cheapest)) if cost.cheapest else choice
            more = _faster_words(cheapest, choice)
            head = f"{capitalized(f'{name}{limits.words()}'.strip())}: {cost.summary(devices)}"
            rows = cost.option_rows

            def words(row: CostRow) -> str:
                return cost.summary(row.option.devices)

            near = nearly_words(best, rows, limits, aim, words)
            clauses = (near,) if near else ()
            yield Sentence(head + _facts(best, limits) + more, clauses, head)
            yield from map(Sentence, _sure_line(name, aim, best, rows, limits, words))


def bests_among(costs: Costs, listed: Sequence[CostRow]) -> Iterator[Sentence]:
    """Sentences on the cheapest and the fastest choice within the limits, and on updates of different size.

    Each choice has clauses on choices that may be as good, and on the best sure choice.
    """
    if row := most_row(listed):
        yield most_sentence(row, more_data(costs))
    is_both = costs.cheapest is not None and costs.cheapest == costs.fastest
    for aim, choice, limits in bests_of(costs)[: 1 if is_both else 2]:
        if choice is None or costs.missed:  # the refusal has the fastest
            continue
        best = next(row for row in listed if Choice.of(*row) == choice)
        rivals = rivals_of(best, listed, limits)
        words = choice_words(choice, costs.tells_batch, best.cost.form)
        more = _faster_words(costs.cheapest, choice) if costs.cheapest else ""
        if one := on_one_machine(best, rivals, aim.worth):
            more += f"; on one machine: {choice_words(Choice.of(*one))}"
        if aim is CHEAPEST and (larger := larger_update(choice, listed)):
            saved = percent(1.0 - (larger.dollars or 0.0) / (choice.dollars or 1.0))
            several = f"{larger.devices} x {larger.card}"
            size = f"{larger.in_all:,} {SAMPLE[best.cost.data]}s"
            more += f"; {saved} cheaper: {several} with updates of {size}"
        if best.cost.is_auto and (most := best.option.largest_batch or 0) > best.option.batch_size:
            more += f"; batches up to {most:,} fit"
        needed, room = best.option.memory_bytes, best.cost.available_bytes
        if needed and room and (close := close_words(needed, room)):
            more += f"; {byte_size(needed)} of {byte_size(room)}{close}"

        def of_row(row: CostRow) -> str:
            return choice_words(Choice.of(*row), costs.tells_batch)

        head = f"{BOTH if is_both else aim.word}{limits.words()}: {words}"
        line = head + _facts(best, limits) + more
        near = nearly_words(best, listed, limits, aim, of_row)
        alike = alike_words(aim, best, rivals)
        by_time = alike_words(FASTEST, best, rivals) if is_both else ""
        memory = memory_words(costs, aim)
        clauses = (
            memory,
            near,
            alike,
            by_time and f"by time {by_time}",
            launch_words(costs, aim, limits),
        )
        yield Sentence(line, tuple(filter(None, clauses)), head)
        yield from map(Sentence, _sure_line(aim.word, aim, best, listed, limits, of_row))
    yield from map(Sentence, update_lines(listed))
