"""The table of a training's cost: its columns, and the marks of its rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import lcm
from typing import Any

from lolat.device.prediction import CLOSE
from lolat.device.summary import IN_TF32, LAYOUTS
from lolat.hardware.prices import provider_of
from lolat.parameters import BEST
from lolat.report.llm import LEGEND
from lolat.report.ranked import Rated, apart_words
from lolat.report.tables import Column, Screen, ends_of
from lolat.training.best import Aim, verdict_on
from lolat.training.choice import Choice, mode_text
from lolat.training.compare import USUAL_UPDATE, Costs
from lolat.training.cost import Cost, CostRow, close_words, is_close
from lolat.training.parallel import BY_LAYER, GATHER_SHARE, NONE
from lolat.training.prediction import TrainingPrediction
from lolat.training.run import TrainingLimits
from lolat.training.ways import on_fewest, would_words
from lolat.units import byte_size, digits, dollars, duration, milliseconds, percent, plain, quantity

MARKS = {
    "*": "no other row is both faster and cheaper",
    "~": "estimated from inference: no training step, or too few, was measured on that device",
    "!": "extrapolating: outside of what was measured there (layers, precision, layout or batch; the notes "
    "say which)",
    "?": "wider interval: no run, published or yours, is like it in GPU, their number, tuning and "
    "checkpointing",
    "^": "several machines, whose gradients go over the network between them",
    "h": "host-bound: the host (an assumed one without --host-us) takes longer to launch the operations "
    "than the GPU to run them; --launch graph and larger batches shorten it",
    "m": f"the estimated memory is within {percent(CLOSE)} of what the device has: too close to be sure",
}
"""Mark in the last column of the table -> its meaning."""
NO_ROOM = "-"
UNSURE = {"likely", "unlikely"}
"""Verdicts if an interval contains the limit."""
LEAST_SHARE = 0.1
"""A column's unit of time is at most so large that its shortest time is this fraction of the unit."""
SAMPLE = {"samples": "sample", "tokens": "sequence"}


def rented_words(cost: Cost, option: TrainingPrediction) -> str:
    """Words on the rented instances, their provider, and their accelerator unless the name contains it;
    "does not fit" if the option does not fit.
    """
    rented = option.rented
    if option.fits is False:
        return "does not fit"
    if rented is None or not rented.instance_type:
        return ""
    name, facts = plain(rented.instance_type), [provider_of(rented.source)]
    if rented.accelerator.casefold() not in name.casefold():
        facts.append(rented.accelerator)
    if any(facts):
        name += f" ({plain(', '.join(filter(None, facts)))})"
    idle = f", {rented.idle_devices} idle" if rented.idle_devices else ""
    return f"{rented.instances} x {name}{idle}" if rented.instances > 1 else f"{name}{idle}"


def rented_line(rows: Sequence[CostRow]) -> Iterator[str]:
    """A line on the rented machines of rows and their prices an hour; none if no instance is known."""
    told = {
        rented_words(cost, option): f" {dollars(option.rented.price_per_hour)}"
        for cost, option in rows
        if option.rented and option.rented.instance_type and option.fits is not False
    }
    if told:
        yield f"Rented, an hour: {'; '.join(name + price for name, price in told.items())}"


def _memory_words(cost: Cost, option: TrainingPrediction) -> str | None:
    """The memory that a row needs, with the device's memory if it does not fit; None if unknown."""
    if option.memory_bytes is None:
        return None
    of = f" of {byte_size(cost.available_bytes or 0)}" if option.fits is False else ""
    return byte_size(option.memory_bytes) + of


def _marks(answer: Cost | Costs, row: CostRow, has_memory: bool) -> Collection[str]:
    """The marks of a row; `has_memory`: True if the table has a column of memory."""
    cost, option = row
    if option.fits is False:
        return {NO_ROOM}
    is_one = isinstance(answer, Cost)
    if isinstance(answer, Cost):
        is_best = bool(option.devices in answer.frontier and option.total_s and answer.options[1:])
    else:
        is_best = Choice.of(cost, option) in answer.frontier
    is_unlike, is_decoder = cost.in_domain is False, cost.sequence_length is not None
    unsure = [
        cost.estimated and not is_decoder,
        is_unlike and not is_decoder,
        is_unlike and is_decoder,
    ]
    are_so = (
        is_best, *(so and not is_one for so in unsure), option.machines != 1,
        cost.host_bound and not is_one,
        has_memory and is_close(option.memory_bytes, cost.available_bytes),
    )  # fmt: skip
    return {mark for mark, is_so in zip(MARKS, are_so, strict=True) if is_so}


def _has_memory(answer: Cost | Costs) -> bool:
    """True if the table has a column of memory: for several devices, decoders, or different memory of
    options.
    """
    sizes = {o.memory_bytes for o in answer.options} if isinstance(answer, Cost) else ()
    return not isinstance(answer, Cost) or answer.data == "tokens" or len(sizes) > 1


def batch_words(costs: Sequence[Cost]) -> str:
    """Words on batch sizes, micro-batches of an update, and samples of an update: "batch 2 x 4 on each
    device, 8 to 64 in all".
    """

    def ends(sizes: Sequence[int]) -> str:
        return " to ".join(f"{size:,}" for size in dict.fromkeys((min(sizes), max(sizes))))

    costs = [c for c in costs if c.fits is not False] or costs
    every = [Choice.of(c, o) for c in costs for o in c.options]
    times = [c.accumulate for c in costs]
    words = f"batch {ends([c.batch_size for c in every])}"
    words += f" x {ends(times)}" if max(times) > 1 else ""
    whole = f" on each device, {ends([c.in_all for c in every])} in all"
    return words + whole * (max(c.devices for c in every) > 1)


def recipe_words(cost: Cost) -> str:
    """The optimizer (marked if default), the way of tuning unless all is trained, and the sharding, in
    words.
    """
    tune = None if cost.tune in (None, "full") else cost.tune
    usual = (
        " (default)" if cost.question is not None and cost.question.asked.optimizer is None else ""
    )
    sharding = cost.sharding.removeprefix(NONE)
    return " · ".join(filter(None, (cost.optimizer + usual, tune, sharding)))


def training_mode_words(cost: Cost) -> str:
    """The precision, launch (unless eager), layout (if it matters) and checkpointing, in words."""
    precision = cost.precision and cost.precision + IN_TF32 * cost.tf32
    return mode_text(precision, cost.launch, LAYOUTS[cost.channels_last], cost.checkpointing)


def chosen_words(cost: Cost) -> str:
    """A clause that precision and layout were chosen as the fastest; "" if the user gave them."""
    is_chosen = cost.question is not None and cost.question.asked.precision == BEST
    is_told = is_chosen and not cost.sequence_length
    return " (its fastest; --precision takes another)" if is_told else ""


def columns(answer: Cost | Costs, rows: Sequence[CostRow]) -> list[Column]:
    """The columns of the table of `rows`, for one device or several."""
    is_one = isinstance(answer, Cost)
    costs = [answer] if isinstance(answer, Cost) else answer.answers
    has_memory = _has_memory(answer)
    has_batch = len({(o.batch_size, c.accumulate) for c in costs for o in c.options}) > 1
    are_unequal = has_batch and len({Choice.of(c, o).in_all for c in costs for o in c.options}) > 1
    accumulates = len({cost.accumulate for cost, _ in rows}) > 1
    is_alike = len({Choice.of(c, o).mode_words for c in costs for o in c.options}) == 1
    # In a comparison of one data set the times tell the speeds.
    speed: Screen = "hidden" if not is_one and answer.samples else "shown"

    def marks(row: CostRow) -> str:
        found = _marks(answer, row, has_memory)
        each = (mark if mark in found else " " for mark in MARKS)
        return NO_ROOM if NO_ROOM in found else "".join(each).rstrip()

    money = _money if is_one else _money_of(costs)
    sure = f", {percent(answer.coverage or 0.0)}" if _is_of_money(answer) else ""
    of_dollars = f"${sure} between"

    def one(value: Callable[[TrainingPrediction], Any]) -> Callable[[CostRow], Any]:
        return lambda row: value(row.option) if is_one else None

    return [
        Column("device", lambda row: None if is_one else row.cost.card, is_text=True,
               is_whole=True),
        Column("form", lambda row: None if is_one else row.cost.form, is_text=True, screen="brackets",
               page="below"),
        Column("precision", lambda row: None if is_one else Choice.of(*row).mode_words, is_text=True,
               page="varied" if is_alike else "below"),
        Column("devices", lambda row: row.option.devices, page="shown" if is_one else "varied"),
        Column("batch", lambda row: row.option.batch_size if has_batch else None, "{:,}".format,
               page="below"),
        Column("accumulate", lambda row: row.cost.accumulate if accumulates else None, "x {}".format,
               screen="brackets"),
        Column("in all", lambda row: Choice.of(*row).in_all if are_unequal else None, "{:,}".format),
        Column("rented", lambda row: rented_words(*row), is_text=True, screen="hidden"),
        Column("$/hour", one(lambda o: o.rented and o.rented.price_per_hour), _money,
               screen="hidden"),
        Column("iteration", lambda row: row.option.iteration_ms if is_one or not answer.samples else None,
               milliseconds, page="hidden"),
        Column("exchange", one(lambda o: o.parts_ms["exchange"] or None), milliseconds, page="hidden"),
        Column("samples/s", lambda row: None if is_one or row.option.tokens_per_s else
               row.option.samples_per_s, digits, screen=speed),
        Column("tokens/s", lambda row: row.option.tokens_per_s, digits, screen=speed),
        Column("MFU", lambda row: row.option.mfu if row.option.tokens_per_s else None, percent,
               page="hidden"),
        Column("memory", lambda row: _memory_words(*row) if has_memory else None),
        Column("epoch", one(lambda o: o.epoch_s if o.epoch_s != o.total_s else None), duration,
               page="hidden"),
        *_total_columns(answer, [o for c in costs for o in c.options]),
        Column("$", lambda row: row.option.dollars, money),
        # Several devices have one of the two intervals, as their relative widths are equal.
        Column(of_dollars, lambda row: row.option.dollars_interval, ends_of(money), page="below",
               screen="shown" if is_one or answer.limits.sure or _is_of_money(answer) else "hidden"),
        *_limit_columns(answer.limits, [o for c in costs for o in c.options]),
        Column("marks", marks, is_text=True),
    ]  # fmt: skip


def _total_columns(answer: Cost | Costs, options: Sequence[TrainingPrediction]) -> Iterator[Column]:
    """The columns of the total time and its interval; all rows of several have the unit in the head."""
    times = [o.total_s or 0.0 for o in options] or [0.0]
    units = ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0)
    unit, unit_s = next(
        (one for one in units if max(times) >= one[1] and min(times) >= LEAST_SHARE * one[1]),
        units[-1],
    )
    is_single = isinstance(answer, Cost) and not options[1:]

    def time(seconds: float) -> str:
        return duration(seconds) if is_single else digits(seconds / unit_s)

    between = f"{percent(answer.coverage or 0.0)} between"
    yield Column("total" if is_single else unit, lambda row: row.option.total_s, time)
    screen: Screen = "hidden" if _is_of_money(answer) else "shown"
    yield Column(
        between, lambda row: row.option.interval_s, ends_of(time), page="below", screen=screen
    )


def _is_of_money(answer: Cost | Costs) -> bool:
    """True for several devices with a limit in dollars alone: their prices have the intervals."""
    limits = answer.limits
    return not (isinstance(answer, Cost) or limits.sure or limits.max_hours) and bool(
        limits.max_dollars
    )


def _limit_columns(
    limits: TrainingLimits, options: Sequence[TrainingPrediction]
) -> Iterator[Column]:
    """The columns of the verdict on each limit; without data, one column of the data within the limits."""
    has_amount = any(option.data_within_limits is not None for option in options)
    for its in [limits] if has_amount else limits.each():

        def words(row: CostRow, its: TrainingLimits = its) -> str:
            return amount_words(row.option) or verdict_on(row.option, its)

        yield Column(its.words("within" if has_amount else "<="), words, is_text=True)


def legend(answer: Cost | Costs, rows: Sequence[CostRow]) -> Iterator[str]:
    """Lines that explain the marks and the verdicts that the rows of a table have."""
    has_memory = _has_memory(answer)
    marks = {mark for row in rows for mark in _marks(answer, row, has_memory)}
    legend = MARKS | {NO_ROOM: "does not fit: the time is that of such a device with more memory"}
    told = [f"{mark} {words}" for mark, words in legend.items() if mark in marks]
    yield from [*told[:-1], f"{told[-1]}; more: docs/reference/tables.md"] if told else ()
    if answer.limits.sure:
        yield f"yes / no: the whole {percent(answer.coverage)} interval keeps the limit / does not."
    if {verdict_on(option, its) for _, option in rows for its in answer.limits.each()} & UNSURE:
        yield LEGEND


def ends_words(row: CostRow, limits: TrainingLimits) -> str:
    """The intervals of the values that only likely keep a limit, after a colon; "" if there are none."""
    cost, option = row
    each = []
    for one in limits.each():
        of_money = one.max_hours is None
        ends = option.dollars_interval if of_money else option.interval_s
        if ends is not None and verdict_on(option, one) == "likely":
            low, high = map(dollars if of_money else duration, ends)
            each.append(f"between {low} and {high}")
    return f": {percent(cost.coverage)} {', '.join(each)}" if each else ""


def amount_words(option: TrainingPrediction) -> str:
    """The data that the limits allow, with its interval and time: "1.2 M samples (..) in 3 h"; "" if there
    is none.
    """
    if option.data_within_limits is None:
        return ""
    low, high = option.data_within_interval or (None, None)
    ends = "" if low is None else f" ({quantity(low)} .. {quantity(high or low)})"
    of = "samples" if option.tokens_per_s is None else "tokens"
    took = duration(option.data_within_limits / (option.tokens_per_s or option.samples_per_s))
    return f"{quantity(option.data_within_limits)} {of}{ends} in {took}"


def limits_words(row: CostRow) -> str:
    """A clause on the limits that a row keeps or likely keeps; "" without limits."""
    limits = row.cost.limits.words()
    clauses = {"yes": (f",{limits}" if limits else ""), "likely": f"; likely{limits}"}
    return clauses.get(verdict_on(row.option, row.cost.limits), "")


def update_lines(listed: Sequence[CostRow]) -> Iterator[str]:
    """A line that the updates differ in size, with the options that make them equal; or that they have a
    default size.
    """
    again = listed[0].cost.question if listed else None
    if again and again.asked.batch_size is None:
        size = f"{Choice.of(*listed[0]).in_all:,} {SAMPLE[listed[0].cost.data]}s"
        bound = [o.devices for cost, o in listed if cost.host_bound and o.devices > 1]
        few = f", too few for {max(bound)} devices (host-bound)" if bound else ""
        yield (
            f"Every update has {size} (default){few}; your recipe's: --global-batch-size N; each device's "
            "fastest batch: --batch-size auto"
        )
    sizes = {Choice.of(*row).in_all for row in listed}
    if len(sizes) > 1:
        ends = f"{min(sizes):,} to {max(sizes):,} {SAMPLE[listed[0].cost.data]}s"
        each = lcm(*(o.devices for _, o in listed))
        usual = each * max(round(USUAL_UPDATE / each), 1)
        auto = ", with --batch-size auto" if not listed[0].cost.is_auto else ""
        alike = f"--global-batch-size {usual}, or that of your recipe{auto}"
        yield f"Updates differ, {ends}; for equal ones {alike}"


def rivals_of(best: CostRow, listed: Sequence[CostRow], limits: TrainingLimits) -> list[CostRow]:
    """The best row, and the rows of other devices that may keep the limits."""
    others = (row for row in listed if row.cost.device != best.cost.device)
    return [best, *(r for r in others if verdict_on(r[1], limits) in ("", "yes", "likely"))]


def alike_words(aim: Aim, best: CostRow, rivals: Sequence[CostRow]) -> str:
    """A clause on rows of other devices that are too close to the best to call; "" if there are none."""
    values: dict[str, Rated] = {}
    numbers: dict[str, int] = {}
    for cost, o in rivals:
        value, ends = getattr(o, aim.amount), getattr(o, aim.interval)
        device = cost.card
        # The interval of an assumed network is too wide to tell anything.
        if value is None or (o.machines != 1 and o.link is not None):
            continue
        if device not in values or value < values[device].value:
            values[device] = Rated(value, ends, coverage=cost.coverage)
            numbers[device] = o.devices
    each = {d: (f"{n} x " if n > 1 else "") + d for d, n in numbers.items()}  # as its row
    named = {each[device]: value for device, value in values.items()}
    of = best.cost.card
    return apart_words(each[of], named) if of in values else ""


def no_room_lines(costs: Sequence[Cost]) -> Iterator[str]:
    """Lines on devices with too little memory; devices with the same remedy share a line.

    The memory is that of the largest number of devices, because fewer devices lack memory too; numbers that
    need more are told apart. A remedy is named with the fewest devices that it lets fit, and not if it is
    checkpointing that was already asked for.
    """
    asked = {cost.checkpointing for cost in costs}
    several = len(asked) > 1
    each, alike = (
        dict[tuple[str, str], list[CostRow]](),
        dict[tuple[str, str], dict[tuple[str, str], list[str]]](),
    )
    for cost in (c for c in costs if c.fits is False):
        is_told = several or cost.checkpointing not in (None, "none")
        key = recomputed_words(cost) if is_told else "", f"{cost.card} {cost.batch_size}"
        each.setdefault(key, []).extend(cost.option_rows)
    for (again, _), rows in each.items():
        cost, _ = max(rows, key=lambda row: row.option.devices)
        needs = {
            o.devices: byte_size(o.memory_bytes or c.memory_bytes)
            for c, o in sorted(rows, key=_number)
        }
        room, most = cost.available_bytes or 0, cost.largest_batch
        needed = byte_size(cost.memory_bytes)
        numbers = [str(k) for k, size in needs.items() if size == needed]
        apart = "".join(f"; {k} x: {size}" for k, size in needs.items() if size != needed)
        words = f"{needed} of {byte_size(room)}"
        words += f", batch {most:,} fits" if most else ""
        words += close_words(cost.memory_bytes, room) + apart
        largest_first = sorted(rows, key=_number, reverse=True)
        ways = on_fewest(way for c, _ in largest_first for way in c.ways)
        known = asked if several else set[str | None]()
        ways = [way for way in ways if way.given.get("checkpointing", "") not in known]
        sized = ", ".join(numbers), f"batch {cost.batch_size:,} ({words})"
        helps = would_words(ways, with_devices=len(needs) > 1)
        alike.setdefault((again, helps), {}).setdefault(sized, []).append(cost.card)
    for (again, helps), devices in alike.items():
        each_words = (f"{k} x {', '.join(names)} {size}" for (k, size), names in devices.items())
        yield f"DOES NOT FIT{again}: {', '.join(each_words)}{helps}"


def _number(row: CostRow) -> int:
    return row.option.devices


def recomputed_words(cost: Cost) -> str:
    """A clause on the kind of checkpointing."""
    checkpointing = cost.checkpointing or "none"
    return (
        " without checkpointing"
        if checkpointing == "none"
        else f" with {checkpointing} checkpointing"
    )


def link_words(row: CostRow, is_told: bool = True, is_given: bool = False) -> str:
    """The link of a row in words: its name and Gbit/s, between machines for each machine and for each GPU.
    `is_told`: adds that the link is assumed and, unless a link is given (`is_given`), how to give one.
    """
    cost, option = row
    rented, machine, gbps = option.rented, cost.machine, option.link_gbps or 0.0
    if rented and rented.instance_type:
        machine = (option.devices + rented.idle_devices) // rented.instances
    words, own = f"{gbps:g} Gbit/s", ""
    if option.devices > machine > 1:
        own = f" {gbps / machine:.4g}"
        words += f" a machine of {machine},{own} a GPU"
    if option.devices > machine and cost.sharding in BY_LAYER:
        words += f"; messages of single layers reach {gbps / machine * GATHER_SHARE:.4g}"
    yours = "" if is_given else f"; yours: --link-gbps{own}"
    assumed = f" (assumed{yours})" if is_told else ""
    return f"{option.link}, {words}{assumed}" if option.link else words


def links_of(rows: Sequence[CostRow]) -> dict[str, list[CostRow]]:
    """Link in words -> the rows of several devices that have it."""
    several = [row for row in rows if row.option.devices > 1]
    is_given, found = any(o.link is None for _, o in several), dict[str, list[CostRow]]()
    for row in several:
        found.setdefault(link_words(row, is_given=is_given), []).append(row)
    return found


def compared_links(rows: Sequence[CostRow]) -> Iterator[str]:
    """Lines on the links between the devices of each row."""
    links = links_of(rows)
    if all(option.link for some in links.values() for _, option in some):
        if links:
            each = {link_words(some[0], is_told=False) for some in links.values()}
            yield f"Links assumed: {'; '.join(sorted(each))} (yours: --link-gbps, of a GPU)"
        return
    for words, some in links.items():
        names = dict.fromkeys(f"{o.devices} x {c.card}" for c, o in some)
        yield f"Gradients of {', '.join(names)} over {words}"


def across(option: TrainingPrediction) -> str:
    """A clause on the machines of an option and their network; "" for one machine."""
    if option.machines == 1:
        return ""
    machines = f"{option.machines or 'several'} separate machines"
    assumed = ", assumed" if option.link is not None else ""
    return f", {machines} over {option.link_gbps:g} Gbit/s{assumed}"


def facts_of_training(cost: Cost, option: TrainingPrediction) -> Iterator[tuple[str, str]]:
    """(name, words) pairs on the interval, memory, batch, speed and rented machines of a row."""
    ends = [" .. ".join(map(duration, option.interval_s or ()))]
    ends += [" .. ".join(map(dollars, option.dollars_interval or ()))]
    if any(ends):
        yield f"{percent(cost.coverage)} sure of", ", ".join(filter(None, ends))
    needed, room = option.memory_bytes or cost.memory_bytes, cost.available_bytes
    of_room = "" if room is None else f" of {byte_size(room)}{close_words(needed, room)}"
    yield "Memory of a device", byte_size(needed) + of_room
    if cost.checkpointing is not None:
        yield "Checkpointing", cost.checkpointing
    accumulated = f" x {cost.accumulate} accumulated" if cost.accumulate > 1 else ""
    whole = (
        f" on each device, {Choice.of(cost, option).in_all:,} in all" if option.devices > 1 else ""
    )
    yield "Batch", f"{option.batch_size:,}{accumulated}{whole}"
    yield "Iteration", milliseconds(option.iteration_ms)
    if option.tokens_per_s is not None:
        yield "Tokens/s", digits(option.tokens_per_s)
    if option.mfu is not None:
        yield "MFU", f"{percent(option.mfu)} of the peak of the GPU"
    if option.rented is not None and (name := rented_words(cost, option)):
        yield "Rented", f"{name}, {dollars(option.rented.price_per_hour)} an hour"


def _money_of(costs: Sequence[Cost]) -> Callable[[float], str]:
    """A function that writes the prices of several devices; below a dollar with three digits, as cents may
    be equal.
    """
    is_little = any(0.0 < (o.dollars or 0.0) < 1.0 for c in costs for o in c.options)
    return digits if is_little else _money


def _money(value: float) -> str:
    """US$ without the sign, for a column with the sign in its head."""
    return dollars(value, sign="")
