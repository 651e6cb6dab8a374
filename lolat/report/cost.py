"""Lines and tables of `lolat cost` for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from lolat.device.summary import IN_TF32, LAYOUTS
from lolat.graph.modes import COMPILED, EAGER
from lolat.parameters import BEST
from lolat.report.cost_bests import best_options, bests_among, bests_of, nearer
from lolat.report.cost_table import (
    SAMPLE,
    batch_words,
    chosen_words,
    columns,
    compared_links,
    legend,
    links_of,
    no_room_lines,
    recipe_words,
    recomputed_words,
    rented_line,
    training_mode_words,
    update_lines,
)
from lolat.report.ranked import (
    MOST_NOTES,
    Sentence,
    grouped_notes,
    left_out_lines,
    levels_words,
)
from lolat.report.tables import Part, ReportTable
from lolat.training.alternatives import faster, nearly, offered, remedy, without_checkpointing
from lolat.training.choice import Choice
from lolat.training.command import command_of
from lolat.training.compare import Costs
from lolat.training.cost import Cost, CostRow, close_words, no_room
from lolat.training.listing import (
    Listing,
    best_row,
    listing_of,
    most_row,
    ranked,
)
from lolat.training.parallel import NONE
from lolat.training.prediction import TrainingPrediction
from lolat.training.run import TrainingLimits
from lolat.training.tuning import Tuning
from lolat.training.ways import would_words
from lolat.units import (
    between,
    by_text,
    byte_size,
    capitalized,
    digits,
    duration,
    milliseconds,
    percent,
    plain,
    plural,
    shapes_text,
)

MOST_RENTED = 3
"""Rows of a comparison whose rented machines are told."""
NOT_INCLUDED = "without loading data, storage, data transfer, setting up the machines"


def cost_lines(cost: Cost) -> Iterator[Part]:
    """The lines of `lolat cost`, with its table and the best of its rows."""
    before, table, after = cost_parts(cost)
    no = no_room(cost) if cost.fits is False else cost.missed
    yield from _in_order(no, *([each.words] for each in before), is_limited=_is_limited(cost))
    if table.rows:
        yield from ("", table, "")
    yield from (*rented_line(table.rows), *after)


def misfit_words(cost: Cost) -> str:
    """A sentence that an iteration does not fit, with its memory, remedies, and the cost of the first."""
    needed, room, least = cost.memory_bytes, cost.available_bytes or 0, remedy(cost)
    words = f"It does not fit on {cost.named(cost.best)}: {byte_size(needed)} of {byte_size(room)}"
    of_first = least.words if least else ""
    return f"{words}{close_words(needed, room)}{would_words(cost.ways, cost_of_first=of_first)}"


def _is_limited(answer: Cost | Costs) -> bool:
    """True if the question is whether limits are kept."""
    return answer.limits != TrainingLimits() and (
        isinstance(answer, Costs) or answer.fits is not False
    )


def _in_order(no: str, title: list[str], *bests: list[str], is_limited: bool) -> Iterator[str]:
    """The refusal, the title and the lines on the best; these come first if limits were given."""
    parts = [*bests, title] if is_limited else [title, *bests]
    yield from filter(None, [capitalized(no), *chain(*parts)])


def _alternative_lines(
    cost: Cost, tried: Collection[str | None] = (), is_fastest: bool = False, on: str = ""
) -> Iterator[str]:
    """Lines on faster ways to train: without checkpointing, and in another execution mode.

    `tried`: kinds of checkpointing that are already answered; `is_fastest`: True if the mode is already the
    fastest; `on`: the device's name if several are shown.
    """
    if cost.fits is False or cost.missed:
        return
    without, within = (f"On {on} without", f"On {on} in") if on else ("Without", "In")
    if NONE not in tried and (other := without_checkpointing(cost)):
        best = Choice.of(other.cost, other.cost.best)
        total = f" ({best.words})" if best.total_s else ""
        yield f"{without} checkpointing it takes {other.share:.2f} times as long: {other.options}{total}"
    if not is_fastest and (other := faster(cost)):
        mode, share = Choice.of(other.cost, other.cost.options[0]).mode_words, f"{other.share:.2f}"
        yield f"{within} {mode} it takes {share} times as long: {other.options}"


def _alternatives_of(costs: Costs) -> Iterator[Sentence]:
    """Sentences on faster ways to train with the best row's device, else the first that has any."""
    if costs.missed or most_row(
        ranked(costs)
    ):  # the line on the most data has a better launch itself
        return
    best, tried = best_row(costs), {c.checkpointing for c in costs.answers}
    several = len({c.device for c in costs.answers}) > 1
    for cost in [best.cost] if best else costs.answers:
        # Choices tell other launches themselves; a device in its fastest precision has no other mode.
        is_fastest = costs.precision == BEST and (bool(costs.better_launch) or not cost.host_bound)
        if lines := [*_alternative_lines(cost, tried, is_fastest, cost.card * several)]:
            yield from map(Sentence, lines)
            return


def cost_parts(cost: Cost) -> tuple[list[Sentence], ReportTable, list[str]]:
    """(title and best options, table by number of devices, lines on memory, links and prices)."""
    # The name of a GPU that serves language models lists the tables of its serving.
    of = cost.model if cost.sequence_length is None else cost.device
    several = len(cost.options) > 1
    sizes = shapes_text(cost.input_sizes)
    title = [plain(cost.network), sizes, batch_words([cost]), recipe_words(cost) + _run(cost)]
    form = f" ({cost.form})" if cost.form and cost.sequence_length else ""
    title += [plain(of) + form, training_mode_words(cost) + chosen_words(cost)]
    differ = len({o.memory_bytes for o in cost.options}) > 1
    of_best = f" of {cost.best.devices}" if cost.best.devices > 1 or differ else ""
    is_asked = cost.samples is not None or cost.limits != TrainingLimits()
    is_table = cost.fits is not False and (is_asked or several)
    best = best_options(cost) if is_table else map(Sentence, _iteration_lines(cost))
    near = nearer(offered(cost), nearly(cost)) if cost.missed else ()
    others = *_alternative_lines(cost), *update_lines([CostRow(cost, o) for o in cost.timed])
    rows = cost.option_rows if is_table else ()
    table = ReportTable(columns(cost, rows), rows, stacked=True)
    return [Sentence(" · ".join(filter(None, title))), *near, *best, *map(Sentence, others)], table, [
        *legend(cost, table.rows),
        *(_iteration_lines(cost) if is_table else ()),
        f"{byte_size(cost.memory_bytes)} of memory on each device{of_best}, {fit_words(cost)}",
        *_memory_lines(cost),
        *_auto_lines(cost),
        *_padding_lines(cost),
        *_link_lines(cost),
        *(_price_lines(cost) if is_asked else [no_data_words(cost)]),
        *(_card_lines(cost.options) if is_asked else ()),
        *_code_lines([cost]),
        *_layout_line(cost),
    ]  # fmt: skip


def _layout_line(cost: Cost) -> Iterator[str]:
    """A line on how to run a network channels last in eager launch."""
    if cost.channels_last and cost.launch == EAGER:
        yield f"{LAYOUTS[True]}: model.to(memory_format=torch.channels_last), and the images alike"


def _auto_lines(answer: Cost | Costs) -> Iterator[str]:
    """A line on how "auto" chooses batch sizes."""
    if any(c.is_auto for c in ([answer] if isinstance(answer, Cost) else answer.answers)):
        yield "batch auto: the smallest sure one within 2 % of the best speed; --batch-size N takes another"


def _padding_lines(cost: Cost) -> Iterator[str]:
    """A line on the share of padding, and on the time without it."""
    if cost.padding:
        yield (
            f"{percent(cost.padding)} of the computed tokens are padding; packed, the same data takes "
            f"{1.0 - cost.padding:.2f} times as long (--tokens without --mean-tokens); padded to the "
            "longest of each batch: give its mean length as --sequence-length"
        )


def _code_lines(costs: Iterable[Cost]) -> Iterator[str]:
    """A line on the training code whose speed is predicted, for decoders without own runs."""
    if any(cost.sequence_length and not cost.own_runs for cost in costs):
        yield (
            "Speed of tuned code (MosaicML's llm-foundry). A slower training loop is not in the interval: "
            "torchtitan took a tenth longer, of others no figure is known; a run of your own sets the "
            "level (lolat fit)."
        )


def _run(answer: Cost | Costs) -> str:
    """The end of a title: epochs and samples; "" without samples."""
    if not answer.samples:
        return ""
    return f" · {plural(answer.epochs, 'epoch')} of {plural(answer.samples, SAMPLE[answer.data])}"


def _iteration_lines(cost: Cost) -> Iterator[str]:
    """Lines on an iteration's time and parts, the MFU, and further times of an epoch."""
    best = cost.best
    parts = [f"{name} {milliseconds(ms)}" for name, ms in best.parts_ms.items() if ms]
    where = f" on {plural(best.devices, 'device')}" if cost.options[1:] else ""
    sure, iteration = "", milliseconds(best.iteration_ms)
    if best.interval_ms:
        ends = between(*best.interval_ms, best.iteration_ms)
        sure = f" ({percent(cost.coverage)} between {ends})"
    more = "with more memory: " if cost.fits is False else ""
    yield (
        f"{more}{iteration} an iteration{where}{sure}, {digits(best.samples_per_s)} "
        f"{SAMPLE[cost.data]}s/s{': ' if parts else ''}{' · '.join(parts)}"
    )
    if best.mfu is not None:
        part = Tuning.named(cost.tune or "full").part
        each = {"lora": "4", "frozen": "2 or 6", "full": "6"}[part]
        how = f"{each} FLOPs a parameter and token, and attention's"
        how = how if cost.sequence_length else "FLOPs of the products of both passes"
        useful = ", without padding" if cost.padding else ""
        tokens = f"{digits(best.tokens_per_s_per_gpu or 0.0)} tokens/s on each GPU{useful}, "
        tokens *= best.tokens_per_s is not None
        peak = "bfloat16" if cost.sequence_length else f"{cost.precision}{IN_TF32 * cost.tf32}"
        yield f"{tokens}{percent(best.mfu)} of its peak in {peak} (MFU: {how}{useful})"
    if best.startup_s:
        yield f"the first epoch takes {duration(best.startup_s)} more to start"
    if best.evaluation_s:
        yield f"the evaluation takes {duration(best.evaluation_s)} of an epoch"


LEAST_SHOWN = 0.005  # least share of the memory that has an entry


def _memory_lines(cost: Cost) -> Iterator[str]:
    """Lines on the parts of the memory, the largest first, the recipe and the trained parameters."""
    parts, least = cost.memory.items(), LEAST_SHOWN * cost.memory_bytes
    shown = [p for p in sorted(parts, key=lambda part: -part[1]) if p[1] >= least]
    named = " · ".join(f"{name} {byte_size(size)}" for name, size in shown)
    yield f"memory at {plain(cost.peak)}: {named}"
    yield cost.recipe
    trained, every = cost.trained_parameters or 0, cost.parameters or 0
    if trained < every:
        frozen = f"; frozen: up to {plain(cost.frozen_up_to or '')}" if cost.frozen_up_to else ""
        yield f"{trained:,} of {every:,} parameters are trained ({percent(trained / every)}){frozen}"


def no_data_words(answer: Cost | Costs) -> str:
    """The hint to give samples or tokens, for hours and dollars."""
    if answer.data == "tokens":
        return "Give --tokens N for hours and dollars."
    return "Give --samples N for epochs, and with a price their cost."


def no_price_words(devices: Sequence[str], price_list: str) -> str:
    """The remark that a price list has no price for some devices."""
    found = f"No price of {', '.join(devices)} in {plain(price_list)}"
    return f"{found}: give another list (--prices), or --price-per-hour."


def fit_words(cost: Cost) -> str:
    """A clause on whether an iteration fits into a device's memory."""
    if cost.available_bytes is None:
        return "estimated; that of the device is not known (--memory-gib)"
    fits = "fits" if cost.memory_bytes <= cost.available_bytes else "does not fit"
    largest = (
        f"; the largest batch that fits is {cost.largest_batch:,}" if cost.largest_batch else ""
    )
    close = close_words(cost.memory_bytes, cost.available_bytes)
    return f"estimated: {fits} into {byte_size(cost.available_bytes)}{close}{largest}"


def _link_lines(cost: Cost) -> Iterator[str]:
    """Lines on the links between devices; numbers of devices with the same link share a line."""
    for words, rows in links_of(cost.option_rows).items():
        yield f"gradients of {', '.join(str(o.devices) for _, o in rows)} devices over {words}"


def _card_lines(options: Iterable[TrainingPrediction]) -> Iterator[str]:
    """A line on rented accelerators with another memory than the profile's device."""
    rented = [o.rented for o in options if o.rented and o.rented.memory_gib is not None]
    if rented:
        cards = {f"{plain(r.accelerator)} with {r.memory_gib:g} GiB" for r in rented}
        yield (
            f"Rented: {', '.join(sorted(cards))}, not the memory of the profile's device; the training "
            "fits, and the same speed is assumed"
        )


def _price_lines(cost: Cost) -> Iterator[str]:
    """A line on the source of the price, or that no price is known."""
    if cost.fits is False:
        return
    if cost.prices is None:
        card = cost.card if cost.available_bytes is None else f"{cost.card} with that memory"
        yield no_price_words([card], cost.price_list or "")
        return
    dated = {
        f"{plain(r.source)}, read {r.date}" for o in cost.options if (r := o.rented) and r.date
    }
    source = f" ({'; '.join(sorted(dated))})" if dated else ""
    yield f"Billed by the second: {plain(cost.prices or '')}{source}; {NOT_INCLUDED}."


# ---- Several devices


def costs_lines(costs: Costs) -> Iterator[Part]:
    """The lines of `lolat cost` for several devices: the best, the table, devices left out, notes."""
    title, table, bests, after = costs_parts(costs)
    no, lines = costs.no_room or costs.missed, [best.lines for best in bests]
    yield from _in_order(no, [title], *lines, is_limited=bool(costs.no_room) or _is_limited(costs))
    yield from ("", table) if table.rows else ()
    chosen = costs.cheapest, costs.fastest
    least = costs.least() if costs.missed else ()
    is_free = not any(chosen) and not least
    told = (
        row for row in table.rows if is_free or Choice.of(*row) in chosen or row.option in least
    )
    yield from ("", *rented_line([*islice(told, MOST_RENTED)]), *after)
    yield from left_out_lines(costs.left_out)
    yield from noted_lines(costs)
    if row := best_row(costs):
        yield from (f"In detail: {command}" for command in [command_of(*row)] if command)


def noted_lines(costs: Costs, most: float = MOST_NOTES) -> Iterator[str]:
    """Notes on the shown rows: on all devices, on the best, on others; `most`: see `grouped_notes`."""
    several = len({c.checkpointing for c in costs.answers}) > 1
    shown = [cost for cost, _ in listing_of(costs, ranked(costs)).shown]
    answers = [c for c in costs.answers if any(c is one for one in shown)] or costs.answers
    told = [
        (c.card + recomputed_words(c) * several, c.warnings, c.options[0].interval_ms)
        for c in answers
    ]
    of_all = [note for note in told[0][1] if all(note in notes for _, notes, _ in told)]
    yield from (f"note: {plain(note)}" for note in of_all)
    chosen = {Choice.of(cost, option): name for cost, (name, *_) in zip(answers, told, strict=True)
              for option in cost.options}  # fmt: skip
    yield from grouped_notes(
        [(name, [n for n in notes if n not in of_all], ends) for name, notes, ends in told], most,
        {chosen[best] for _, best, _ in bests_of(costs) if best},
    )  # fmt: skip


def costs_parts(costs: Costs) -> tuple[str, ReportTable, list[Sentence], list[str]]:
    """(title, table with the cheapest row first, sentences on the best rows, other lines)."""
    recipe, sizes = recipe_words(costs.answers[0]), shapes_text(costs.answers[0].input_sizes)
    what = " · ".join(filter(None, (plain(costs.network), sizes, batch_words(costs.answers))))
    title = f"Training {what} · {recipe}{_run(costs)}"
    listed = ranked(costs)
    listing = listing_of(costs, listed)
    table = ReportTable(columns(costs, listing.shown), listing.shown, stacked=True)
    is_without_data = not costs.samples and costs.limits == TrainingLimits()
    no_data = [Sentence(no_data_words(costs))] if is_without_data else []
    near = nearer(costs.offered, costs.nearly, costs.no_room and "It fits with")
    return (
        title,
        table,
        [*no_data, *near, *bests_among(costs, listed), *_alternatives_of(costs)],
        [*_left_words(listing, costs.limits.sure), *_after(costs, listing.shown)],
    )


def _left_words(listing: Listing, sure: bool) -> list[str]:
    """A line on the rows of a comparison that are not shown; empty if all are shown.

    `sure`: only rows whose whole interval keeps the limits count as within the limits.
    """

    def all_of(devices: Sequence[str]) -> str:
        return f" (all of {', '.join(devices)})" if devices else ""

    beyond = "not surely within the limits" if sure else "surely beyond the limits"
    dear = f"at over {listing.times:g} times the price of the cheapest"
    each = (
        (listing.less, "with less data than the device's best"),
        (listing.beaten, "slower and dearer than another and not the cheapest of their device"),
        (listing.dear, dear + all_of(listing.costly)),
        (listing.beyond, beyond + all_of(listing.lost)),
    )
    words = [f"{plural(number, 'row')} {why}" for number, why in each if number]
    more = "--on DEVICE tells all of its rows"
    return [f"Left out: {', '.join(words)}; {more}"] if words else []


def _after(costs: Costs, listed: Sequence[CostRow]) -> Iterator[str]:
    """Lines after the table: marks, launches, devices without room or price, links, prices."""
    yield from _auto_lines(costs)
    yield from _padding_lines(costs.answers[0])
    yield from _code_lines(c for c, _ in listed)
    yield from legend(costs, listed)
    others = {c.launch: [a.card for a in costs.answers if a.launch == c.launch] for c, _ in listed}
    if len(others) > 1:
        named = (
            f"{launch} on {', '.join(dict.fromkeys(on))}"
            for launch, on in others.items()
            if launch != EAGER
        )
        yield f"Launches differ: {'; '.join(named)}; one for all: --launch {EAGER}, or {COMPILED}"
    yield from levels_words({c.card: c.own_runs for c, _ in listed})
    yield from no_room_lines(costs.answers)
    unpriced = (c for c in costs.answers if c.prices is None and c.fits is not False)
    lists = by_text((c.card, c.price_list or "") for c in unpriced)
    yield from (no_price_words([*dict.fromkeys(names)], name) for name, names in lists.items())
    yield from compared_links(listed)
    if paid := [o for _, o in listed if o.rented and (o.dollars or o.data_within_limits)]:
        yield from _card_lines(paid)
        name = next((c.price_list for c, o in listed if o.rented), None)
        of = f" in {plain(name)}" if name else ""
        yield f"Prices by the second{of}: {NOT_INCLUDED}."
    yield from _loading_lines(costs, listed)


def _loading_lines(costs: Costs, listed: Sequence[CostRow]) -> Iterator[str]:
    """A line on the samples or tokens a second that an input pipeline must deliver."""
    rates, launched = dict[str, list[str]](), dict[str, str]()
    for aim, choice, _ in bests_of(costs):
        for option in (o for c, o in listed if Choice.of(c, o) == choice):
            value, of = option.tokens_per_s, "tokens/s"
            value, of = (option.samples_per_s, "samples/s") if value is None else (value, of)
            rate = f"{digits(value)} {of}"
            rates.setdefault(rate, []).append(aim.field)
            if one := costs.better_launch.get(aim.field):
                more = digits(value * choice.total_s / one.total_s)
                launched[rate] = f" ({more} with --launch {one.launch})"
    if rates:
        each = (
            f"{rate}{launched.get(rate, '')} for the {' and '.join(names)}"
            for rate, names in rates.items()
        )
        yield f"Your input pipeline must deliver {', '.join(each)}."
