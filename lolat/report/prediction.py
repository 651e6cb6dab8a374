"""Predictions on a screen: a single one in a few lines, several in a table, and block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from shlex import quote
from typing import Any

from lolat.device.domain import LARGER, NEGLIGIBLE_SHARE, SMALLER, range_of
from lolat.device.fastest import precision_words
from lolat.device.limits import NO_LIMITS, Limits
from lolat.device.predicting import NEARLY, computes, nearly_as_fast
from lolat.device.prediction import (
    Prediction,
    domain_words,
    interval_words,
    memory_words,
    no_room_words,
)
from lolat.device.ranking import by_assumed_host, cheapest, compared, fastest
from lolat.device.summary import headline, known_by, not_alike
from lolat.graph.weights import parameters
from lolat.hardware.prices import price_list
from lolat.io.results import topic
from lolat.report.best_devices import best_lines, compares, has_prices, with_price
from lolat.report.ranked import (
    MOST_NAMES,
    MOST_NOTES,
    assumed_hosts,
    device_words,
    grouped_notes,
    levels_words,
    not_compared,
)
from lolat.report.rows import TERMS, block_rows, bottleneck_sentence, folded, marked_rows
from lolat.report.tables import Column, Part, ReportTable, ends_of, interval_head
from lolat.units import byte_size, digits, milliseconds, plain, plural, quantity, shapes_text

# ---- One prediction


def per_second(prediction: Prediction) -> str:
    """The samples a second, in words: "208 samples/s"."""
    return f"{digits(prediction.samples_per_s or 0.0)} samples/s"


def latency(prediction: Prediction) -> str:
    """The latency and its interval, in words."""
    interval = interval_words(prediction.interval_ms, prediction.coverage, prediction.latency_ms)
    return f"{milliseconds(prediction.latency_ms)}, {interval}"


def counts_words(prediction: Prediction) -> str:
    """The MACs, parameters and activations of the network, in words."""
    counts, number = prediction.counts, parameters(prediction.query.graph)
    return (
        f"{quantity(counts['flops'], 'MACs')} · {quantity(number)} parameters · "
        f"{quantity(counts['acts'])} convolution activations"
    )


def totals(prediction: Prediction) -> str:
    """The counts of the network, and its place in the measured range, in words."""
    return f"{counts_words(prediction)} · {domain_words(prediction)}"


def summary(prediction: Prediction) -> Iterator[str]:
    """A few lines on the latency of a network and its interval."""
    yield from room_lines(prediction)
    yield f"{prediction.title}: {latency(prediction)}"
    yield from precision_lines([prediction])
    yield known_by(prediction.query.device.profile, prediction.query.device.file)
    yield totals(prediction)
    yield memory_words(prediction)
    yield from note_lines(prediction.warnings)


def smaller_batch_lines(prediction: Prediction) -> Iterator[str]:
    """A line on the smallest batch that is nearly as fast as the largest that fits; none without one."""
    if smaller := nearly_as_fast(prediction):
        few, many = digits(computes(smaller)), digits(computes(prediction))
        yield (
            f"Nearly as fast: batch {smaller.batch_size}, {few} of {many} samples/s, in "
            f"{milliseconds(smaller.latency_ms)} and {byte_size(smaller.memory_bytes)}"
        )


def enough_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """A line on the smallest of several batches that is nearly as fast as the fastest; none without one.

    Several networks, devices or execution modes have no line.
    """
    fitting = [p for p in predictions if p.fits is not False]
    if compares(predictions) or len({(p.network, p.runs_as) for p in predictions}) > 1:
        return
    most = max(fitting, key=computes, default=None)
    if most and len(fitting) > 1:
        enough = min(
            (p for p in fitting if computes(p) >= NEARLY * computes(most)),
            key=attrgetter("batch_size"),
        )
        if enough.batch_size < most.batch_size:
            few, many = digits(computes(enough)), digits(computes(most))
            of = f"{few} of {many} samples/s"
            yield f"Nearly as fast as batch {most.batch_size}: {enough.batch_size}, {of}"


def room_lines(prediction: Prediction) -> Iterator[str]:
    """A line if the network does not fit into the device's memory."""
    if prediction.fits is False:
        assert prediction.available_bytes is not None
        yield no_room_words(
            prediction.memory_bytes, prediction.available_bytes, prediction.largest_batch
        )


def precision_lines(predictions: Sequence[Prediction]) -> Iterator[str]:
    """A line on a faster precision of a single device, if none was asked for; of several predictions the
    one with the largest batch is used.
    """
    largest = max(predictions, key=attrgetter("batch_size"))
    has_others = len(predictions) > 1 and len({p.row_name for p in predictions}) > 1
    if largest.launch is None or has_others:  # no GPU, or a comparison
        return
    at = f" at batch {largest.batch_size}" if len(predictions) > 1 else ""
    if words := precision_words(largest, at):
        yield words


def note_lines(remarks: Sequence[str]) -> Iterator[str]:
    """A line "note: ..." for each remark."""
    for remark in remarks:
        yield f"note: {plain(remark)}"


# ---- Block by block

SUMMARY = 40  # characters of the summary of a block
BAR = 12
EIGHTHS = " ▏▎▍▌▋▊▉"


def report_lines(
    prediction: Prediction, depth: int | None = None, has_page: bool = False
) -> Iterator[Part]:
    """The lines of `lolat report`: a head, a table of blocks with marked bottlenecks, a sentence on them.

    `depth`: fold the blocks to modules so many names deep; `has_page`: the HTML page is already written.
    """
    yield from room_lines(prediction)
    yield f"{prediction.title}: {latency(prediction)}"
    yield from precision_lines([prediction])
    yield headline(prediction.query.device)
    yield totals(prediction)
    yield memory_words(prediction)
    yield ""
    yield block_table(prediction, depth)
    if depth is not None and all(len(row.blocks) == 1 for row in block_rows(prediction, depth)):
        yield f"--depth {depth} folds nothing: no module {plural(depth, 'name')} deep holds several blocks"
    yield ""
    yield bottleneck_sentence(folded(prediction, depth))
    yield from note_lines(prediction.warnings)
    command = prediction.arguments
    is_known = command is not None and not has_page
    page = f" · lolat report {command}{page_options(depth)}" if is_known else ""
    yield f"Next: {further(prediction)}{page}"


def page_options(depth: int | None, file: str = "report.html") -> str:
    """The options of `lolat report` that write its HTML page, folded `depth` names deep."""
    return f"{'' if depth is None else f' --depth {depth}'} --html {quote(file)}"


def further(prediction: Prediction, block: str | None = None) -> str:
    """The command that explains a network or a block; a Python call if the network is a Python object."""
    if prediction.arguments is None:
        called = "" if block is None else f", block={block!r}"
        return f"model.explain(network{called}), other arguments as before"
    return (
        f"lolat explain {prediction.arguments}{'' if block is None else f' --block {quote(block)}'}"
    )


def block_table(prediction: Prediction, depth: int | None = None) -> ReportTable:
    """The table of blocks or modules; bottlenecks are bold red on a terminal."""
    shown = block_rows(prediction, depth)
    largest = max(row.share for row in shown)
    columns = [
        Column("block", lambda row: row.label, is_text=True),
        Column("", lambda row: clipped(row.summary), is_text=True),
        Column("ms", lambda row: row.latency_ms, digits),
        Column("share", lambda row: bar(row.share, largest), is_text=True),
        Column("", lambda row: 100 * row.share, "{:.1f} %".format),
        Column("most of it is", lambda row: TERMS[row.bound_by], is_text=True),
    ]
    return ReportTable(columns, shown, marked=marked_rows(prediction, depth))


def clipped(summary: str) -> str:
    """The summary of a block, cut to SUMMARY characters."""
    return summary if len(summary) <= SUMMARY else f"{summary[: SUMMARY - 1]}…"


def bar(share: float, largest: float) -> str:
    """A bar of at most BAR characters, drawn in eighths of a character."""
    eighths = round(8 * BAR * share / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


# ---- Several predictions


def range_words(answer: Any) -> str:
    """The place of an answer in the measured range (`range_of`), in words."""
    places = range_of(answer.in_domain, answer.host_bound)
    return ", ".join("not known" if place == "unknown" else place for place in places)


def mostly(answer: Any) -> str:
    """The word "mostly " if a small part of the time is outside the measured range, else ""."""
    share = answer.inside_share
    is_part = share is not None and share <= 1.0 - NEGLIGIBLE_SHARE
    return "mostly " if answer.in_domain is True and is_part and not answer.host_bound else ""


def memory_cell(answer: Any) -> str | None:
    """The memory that an answer needs, marked if it does not fit; None if unknown."""
    needed, is_short = answer.memory_bytes, answer.fits is False
    return None if needed is None else byte_size(needed) + (" DOES NOT FIT" if is_short else "")


def _range(prediction: Prediction) -> str:
    """`range_words` with reasons (small network, large batch), or "by batch alone"."""
    topics = {topic(remark) for remark in prediction.warnings}
    why = (": small" if SMALLER in topics else "") + (": large" if LARGER in topics else "")
    if prediction.in_domain is None and prediction.query.device.file.timed_batches:
        return "by batch alone"
    return mostly(prediction) + range_words(prediction) + ("" if prediction.host_bound else why)


def _runs_as(prediction: Prediction) -> str:
    """The execution mode; on a CPU with the processor and threads, as the device's name says little."""
    file = prediction.query.device.file
    return prediction.runs_as + (f", on {plain(file.product)}" if file.is_cpu else "")


def table_of_predictions(
    predictions: Sequence[Prediction], limits: Limits = NO_LIMITS, most_notes: float = MOST_NOTES
) -> Iterator[Part]:  # fmt: skip
    """A table with a row for each prediction; then lines on the best and the notes, each note once.

    "vs. first": ratio of the time of a sample to that on the network's first device, at the same batch size
    if possible. "$ a million": price of a million samples. GPUs in different precisions or launches, or
    bound by assumed hosts, are not compared. `limits`: a column shows which rows keep them.
    """
    differ = not_alike(p.query.device for p in predictions)
    is_priced = has_prices(predictions)
    interval = "".join({interval_head(p.coverage) for p in predictions})

    columns = [
        Column("network", lambda p: plain(p.query.network), is_text=True, page="varied"),
        Column("device", lambda p: plain(p.device), is_text=True, is_whole=True),
        Column("card", lambda p: p.card, is_text=True, screen="brackets", page="below"),
        Column("input", lambda p: shapes_text(p.query.graph.input_sizes), is_text=True, page="varied"),
        Column("as it runs", _runs_as, is_text=True, page="varied"),
        Column("batch", lambda p: p.batch_size, page="varied"),
        Column("ms", lambda p: p.latency_ms, digits),
        Column(interval, lambda p: p.interval_ms, ends_of(digits)),
        Column("samples/s", lambda p: p.samples_per_s, digits),
        Column("vs. first", _versus_first([] if differ else compared(predictions))),
        Column("$ a million", lambda p: (is_priced and p.dollars_per_million) or None, digits),
        Column("price of", lambda p: (is_priced and p.rented_card) or None, is_text=True),
        Column(limits.heading, lambda p: limits.kept(p) if limits else None, is_text=True),
        Column("measured range", _range, is_text=True),
        Column("memory", memory_cell, is_text=True),
    ]  # fmt: skip
    yield ReportTable(columns, predictions, stacked=True)
    yield from filter(None, [differ, not_compared(predictions), assumed_hosts(predictions)])
    yield from precision_lines(predictions)
    yield from levels_words(
        {device_words(p): p.query.device.file.environment.own_networks for p in predictions}
    )
    if limits and "likely" in {limits.kept(p) for p in predictions}:
        yield "likely: the time keeps the limit, perhaps barely; its whole interval does not (--sure 90)"
    yield from best_lines(predictions, limits)
    yield from enough_lines(predictions)
    if any(p.query.fastest_of for p in predictions):
        yield (
            "Each device in its fastest precision (alone: --precision best); "
            "one for all is --precision NAME"
        )
    yield from _rented(predictions if is_priced else [])
    noted = [*_noted(predictions)]
    able = [p for p in predictions if not limits or limits.kept(p) in ("yes", "likely")]
    each = [[p for p in able if p.network == of] for of in {p.network for p in able}]
    best = [b for its in each if compares(its) for b in (fastest(its), cheapest(its))]
    chosen = {
        one[0] for one, p in zip(noted, predictions, strict=True) if any(p is b for b in best)
    }
    yield from grouped_notes(noted, most_notes, chosen)


def _versus_first(predictions: Sequence[Prediction]) -> Callable[[Prediction], str | None]:
    """A function that returns a prediction's "vs. first" (see `table_of_predictions`), or None."""
    firsts: dict[str, Prediction] = {}
    by_size: dict[tuple[str, int], Prediction] = {}
    for p in predictions:
        network = p.query.network
        if device_words(p) == device_words(firsts.setdefault(network, p)):
            by_size[network, p.batch_size] = p

    those = {id(p) for p in predictions}

    def relative(p: Prediction) -> str | None:
        if id(p) not in those:
            return None
        other = by_size.get((p.query.network, p.batch_size)) or firsts[p.query.network]
        are_hosts = device_words(other) != device_words(p) and any(map(by_assumed_host, (other, p)))
        if are_hosts or not (p.samples_per_s and other.samples_per_s):
            return None
        return f"{other.samples_per_s / p.samples_per_s:.2f}x"

    each = {id(p) for p in by_size.values()}
    has_others = any(relative(p) for p in predictions if id(p) not in each)
    return relative if has_others else lambda _: None


def _noted(
    predictions: Sequence[Prediction],
) -> Iterator[tuple[str, Sequence[str], tuple[float, float] | None]]:
    """(name, notes, interval) of each prediction for `grouped_notes`. The name has the device, network and
    batch size, as far as there are several.
    """
    has_several = len({p.query.network for p in predictions}) > 1
    has_batches = len({p.batch_size for p in predictions}) > 1
    is_named = has_several or not has_batches or compares(predictions)
    for p in predictions:
        of = f"{plain(p.query.network)} on " if has_several else ""
        named = f"{of}{device_words(p)}" + (f" at batch {p.batch_size}" if has_batches else "")
        yield named if is_named else f"batch {p.batch_size}", p.warnings, p.interval_ms


def _rented(predictions: Sequence[Prediction]) -> Iterator[str]:
    """A line on the prices an hour of devices that fit; with instances if there are at most MOST_NAMES."""
    priced = {plain(p.device): p for p in with_price(predictions).values()}
    has_places = len(priced) <= MOST_NAMES
    rented = [
        f"{name}: {f'{p.instance}, ' if has_places else ''}${digits(p.price_per_hour or 0.0)}"
        for name, p in priced.items()
    ]
    lists = dict.fromkeys(plain(price_list(p.prices).prices) for p in priced.values())
    if rented:
        of = "".join(f" in {name}" for name in lists)
        yours = "yours: --prices FILE" + ("" if has_places else "; instances: --json")
        yield f"Prices per hour{of}, device always busy: {'; '.join(rented)} ({yours})"
