"""Lines of `lolat explain` and `lolat budget`: a row for each term in its own units, and what a change
would save.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from lolat.device.attribution import Attribution, Counterfactual, Explanation, Term
from lolat.device.budget import BudgetAnswer, varied_words
from lolat.device.limits import end_ms
from lolat.device.prediction import CALL, Prediction, bound_by
from lolat.device.predictors.roofline import Roofline
from lolat.graph.counts import GROUPS, MEANINGS, MEMBERS
from lolat.parameters import BACKENDS, COVERAGE
from lolat.report.prediction import (
    clipped,
    further,
    latency,
    note_lines,
    precision_lines,
    range_words,
    room_lines,
    totals,
)
from lolat.report.ranked import Sentence, apart_words, rated
from lolat.report.rows import TERMS, color_of
from lolat.report.tables import Column, Part, ReportTable, ends_of, interval_head
from lolat.units import digits, milliseconds, percent, plain, plural, quantity, shapes_text

STARTED = {name for name, meaning in MEANINGS.items() if meaning.group == "ops"}
"""Terms whose rate counts single operations, not millions."""
SIZES = {
    "MACs": ("flops", *MEMBERS["flops"]),
    "elements": ("acts", "inp", "traffic", *MEMBERS["elements"]),
    "weights": ("weights", *MEMBERS["weights"]),
}
"""Head of a column of counts -> the terms whose counts it adds up. A formula has one term for the whole
count, or a term for each kind."""
TOP_BLOCKS = 5
LEAST, SMALL = 0.0005, 0.01
"""Shares of the time: causes below LEAST (0.0 %) are left out; in a terminal, causes below SMALL share a
row."""
MOST_COUNTS = 6
CALL_WORDS = "one call of the framework"


def explanation_lines(explanation: Explanation) -> Iterator[Part]:
    """The lines of `lolat explain`: terms, the longest blocks or all operations, and changes."""
    prediction = explanation.prediction
    yield from room_lines(prediction)
    yield f"{prediction.title}: {latency(prediction)}"
    yield totals(prediction)
    yield from precision_lines([prediction])
    yield ""
    if explanation.block is not None:
        block = explanation.blocks[0]
        words = f"{milliseconds(block.latency_ms)}, {percent(block.share)} of the network"
        yield f"{plain(block.name)}: {words}"
        terms = term_table(prediction, block.terms, block.latency_ms, least=SMALL)
        yield replace(terms, indent=2)
        yield "operation by operation"
        yield replace(operation_table(block, explanation.operations), indent=2)
    else:
        yield "where the time goes"
        ms, call_ms = prediction.latency_ms, prediction.call_ms
        terms = term_table(prediction, explanation.total.terms, ms, call_ms, SMALL)
        yield replace(terms, indent=2)
        yield f"the longest of {plural(len(explanation.blocks), 'block')}"
        yield replace(_block_table(explanation.blocks), indent=2)
    yield f"what would save time, {ANEW}"
    changes, starred = explanation.counterfactuals, leaves_range(explanation)
    if changes:
        yield replace(change_table(changes, starred), indent=2)
    else:
        yield f"  {NO_CHANGE}"
    if starred:
        yield f"  {STAR}"
    yield from note_lines(explanation.warnings)
    if explanation.block is not None:
        yield f"Next: {further(prediction)}"
    elif explanation.blocks:
        longest = min(explanation.blocks, key=attrgetter("order"))
        file = prediction.query.device.file
        if file.is_cpu and file.environment.is_learned and not explanation.has_other_runtimes:
            other = next(name for name in reversed(BACKENDS) if name != file.environment.framework)
            learn = file.environment.learn_command(other)
            yield f"Is another framework faster? First learn it: {learn}"
        if options := explanation.modes_to_learn:
            learn = file.environment.learn_command()
            yield f"Is another mode faster? First learn it: {learn} {' or '.join(options)}"
        yield f"Next: {further(prediction, plain(longest.named.label))}"


def rate(term: Term) -> tuple[str, str]:
    """(a term's count, cost of a unit), in words: ("3.86 GMACs", "8.52 ms/G")."""
    unit = MEANINGS[term.name].unit
    if term.name in STARTED:
        return (
            f"{quantity(term.count)} {unit.removesuffix('s' if term.count == 1 else '')}",
            milliseconds(term.rate_ms),
        )
    scale, prefix = (1e9, "G") if unit == "MACs" else (1e6, "M")
    count = quantity(term.count, unit) if unit == "MACs" else f"{quantity(term.count)} {unit}"
    return count, f"{milliseconds(term.rate_ms * scale)}/{prefix}"


def term_table(
    of: Prediction,
    terms: Sequence[Term],
    whole_ms: float,
    call_ms: float | None = None,
    least: float = LEAST,
) -> ReportTable:
    """A row for each term with a share of more than `least` of `whole_ms`, then for the call and the sum.

    Several smaller terms, with shares of more than LEAST, share a row. The column "family" names the cause
    as `lolat report` does, if any name differs.

    Terms of a roofline have no cost of a unit: only the longer of computing and moving counts, so a time
    divided by its count is not a rate of the device.
    """
    costly = sorted(
        (t for t in terms if t.latency_ms > LEAST * whole_ms), key=lambda t: -t.latency_ms
    )
    smaller = [t for t in costly if t.latency_ms <= least * whole_ms]
    if len(smaller) > 1:
        costly = costly[: -len(smaller)]
    rows = [
        (TERMS[t.name], color_of(t.name), *rate(t), t.latency_ms, TERMS[GROUPS[t.name]])
        for t in costly
    ]
    if len(smaller) > 1:
        ms = sum(t.latency_ms for t in smaller)
        rows.append((f"{len(smaller)} smaller causes", "", "", "", ms, ""))
    if call_ms:
        call = CALL_WORDS, color_of(CALL), "1", milliseconds(call_ms), call_ms
        rows.append((*call, TERMS[CALL]))
    rows.append(("together", "", "", "", whole_ms, ""))
    has_families = any(cause != family for cause, *_, family in rows[:-1])
    columns = [
        Column("cause", lambda row: row[0], is_text=True, color=lambda row: row[1]),
        Column("family", lambda row: row[5] if has_families else None, is_text=True),
        Column("count", lambda row: row[2]),
        Column("each", lambda row: "" if of.predictor == Roofline.name else row[3]),
        Column("ms", lambda row: row[4], digits),
        Column("share", lambda row: row[4] / (whole_ms or 1.0), percent),
    ]
    return ReportTable(columns, rows, has_total=True)


def _block_table(blocks: Sequence[Attribution]) -> ReportTable:
    """The table of the longest blocks; all other blocks share a row."""
    rows: list[tuple[str, float, float, str]] = []
    ordered = sorted(blocks, key=attrgetter("order"))
    for block in ordered[:TOP_BLOCKS]:
        cause, ms = _most(block)
        most = (
            f"{TERMS[cause]} {percent(ms / block.latency_ms)}" if block.latency_ms else TERMS[cause]
        )
        label, summary = map(plain, block.named)
        name = f"{label} · {clipped(summary)}" if summary else label
        rows.append((name, block.latency_ms, block.share, most))
    if rest := ordered[TOP_BLOCKS:]:
        times, shares = sum(b.latency_ms for b in rest), sum(b.share for b in rest)
        rows.append((plural(len(rest), "other block"), times, shares, ""))
    columns = [
        Column("block", lambda row: row[0], is_text=True),
        Column("ms", lambda row: row[1], digits),
        Column("share", lambda row: row[2], percent),
        Column("most of it is", lambda row: row[3], is_text=True),
    ]
    return ReportTable(columns, rows)


def operation_table(block: Attribution, operations: Sequence[Attribution]) -> ReportTable:
    """A row for each operation that takes time; names are shown without the block's label."""
    label = plain(block.named.label)

    def count_of(names: Sequence[str]) -> Callable[[Attribution], float | None]:
        return lambda o: sum(term.count for term in o.terms if term.name in names) or None

    columns = [
        Column("operation", lambda o: o.name.removeprefix(label).lstrip("_/.") or o.name, is_text=True),
        Column("kind", lambda o: (o.kind or "").replace("_", " "), is_text=True),
        *(Column(head, count_of(names), quantity, page="hidden") for head, names in SIZES.items()),
        Column("ms", lambda o: o.latency_ms, digits),
        Column("of block", lambda o: o.latency_ms / (block.latency_ms or 1.0), percent),
        Column("most of it is", lambda o: TERMS[_most(o)[0]], is_text=True, screen="hidden"),
    ]  # fmt: skip
    return ReportTable(columns, [o for o in operations if o.latency_ms > 0.0])


def _most(part: Attribution) -> tuple[str, float]:
    """(the family of causes that takes most of a part's time, its ms)."""
    cause = bound_by({t.name: t.latency_ms for t in part.terms})
    return cause, sum(t.latency_ms for t in part.terms if GROUPS[t.name] == cause)


def leaves_range(explanation: Explanation) -> list[Counterfactual]:
    """The changes that leave the measured range; none if the network itself is outside."""
    is_inside = explanation.prediction.in_domain is not False
    return [c for c in explanation.counterfactuals if is_inside and c.in_domain is False]


def change_table(
    changes: Sequence[Counterfactual], starred: Sequence[Counterfactual]
) -> ReportTable:
    """A row for each change, with the changed network's time; `starred` changes have a star."""

    def words(change: Counterfactual) -> str:
        bound = ", then host-bound" if change.becomes_host_bound else ""
        return f"{change.change}{bound}{' *' if change in starred else ''}"

    columns = [
        Column("change", words, is_text=True),
        Column("saves", lambda c: c.saves_ms, milliseconds),
        Column("of block", lambda c: c.of_block, percent),
        Column("of network", lambda c: c.of_network, percent),
        Column("then takes", lambda c: c.latency_ms, milliseconds),
        Column(interval_head(COVERAGE), lambda c: c.interval_ms, ends_of(milliseconds)),
    ]
    return ReportTable(columns, changes)


ANEW = "each change alone, as savings do not add up; accuracy is not predicted"
STAR = "* the changed network is outside the measured range"
NO_CHANGE = "nothing that LoLat knows to try"


def budget_lines(answer: BudgetAnswer) -> Iterator[str]:
    """The lines of `lolat budget`."""
    best, larger, now = answer.best, answer.next, answer.now
    budget = f"{answer.budget_ms:g} ms"
    yield f"{plain(best.prediction.network)}: {answer.verdict}: {latency(best.prediction)}"
    if answer.channels is not None:
        changed = [f"{before} -> {after}" for before, after in answer.channels]
        more = f", ... ({len(changed)} counts)" if len(changed) > MOST_COUNTS else ""
        is_split = len({before for before, _ in answer.channels}) < len(changed)
        split = "; one count becomes two where heads of attention, or groups, must divide it"
        yield f"  channels: {', '.join(changed[:MOST_COUNTS])}{more}{split * is_split}"
    sizes = shapes_text(best.prediction.query.graph.input_sizes)
    yield f"  {sizes} · {best.prediction.runs_as} · {totals(best.prediction)}"
    yield from precision_lines([best.prediction])
    if larger is not None and larger.prediction.fits is False:
        yield f"next: {varied_words(answer.vary, larger.value)} does not fit into the device's memory"
    elif larger is not None:
        over = end_ms(larger.prediction, answer.sure) - answer.budget_ms
        takes = f"takes {latency(larger.prediction)}"
        if 0.0 < over < 0.01 * answer.budget_ms:
            more = f"{digits(over)} ms more than {budget}"
            takes = f"takes {'up to ' * answer.sure}{more}: {latency(larger.prediction)}"
        yield f"next: {varied_words(answer.vary, larger.value)} {takes}"
    else:
        most = varied_words(answer.vary, best.value)
        yield f"next: nothing, {most} is the largest that is tried, and it keeps {budget}"
    yield f"now: {varied_words(answer.vary, now.value)} takes {latency(now.prediction)}"
    yield from note_lines(answer.warnings)


def budgets_beside(answers: Mapping[str, BudgetAnswer]) -> tuple[Sentence, ReportTable]:
    """(sentence on the device with the largest answer, table of the devices, the largest answer first).

    `answers`: by device. Batch sizes that are limited by time are too close to call if the times of a
    sample are too close to call.
    """
    order = sorted(answers, key=lambda name: -answers[name].best.value)
    first, value = answers[order[0]], attrgetter("best.value")
    alike = [name for name in order if value(answers[name]) == value(first)]
    head = f"Largest: {', '.join(alike)}, {first.largest}"
    by_time = {
        name: rated(p, 1.0 / p.batch_size)
        for name, a in answers.items()
        if a.vary == "batch" and a.next and a.next.prediction.fits is not False
        for p in [a.best.prediction]
    }
    close = apart_words(order[0], by_time, "; ") if order[0] in by_time and not alike[1:] else ""
    largest = Sentence(head + close, head="" if alike[1:] else head)
    coverages = {a.best.prediction.coverage for a in answers.values()}
    interval = "".join({*map(interval_head, coverages)})

    def next_words(answer: BudgetAnswer) -> str:
        larger = answer.next
        return "memory" if larger and larger.prediction.fits is False else "time" if larger else ""

    def of(name: str) -> Prediction:
        return answers[name].best.prediction

    columns = [
        Column("device", str, is_text=True, is_whole=True),
        Column("card", lambda name: of(name).card, is_text=True, screen="brackets", page="below"),
        Column("as it runs", lambda name: of(name).runs_as, is_text=True, page="varied"),
        Column("largest", lambda name: answers[name].largest, is_text=True),
        Column("ms", lambda name: of(name).latency_ms, digits),
        Column(interval, lambda name: of(name).interval_ms, ends_of(digits)),
        Column("limited by", lambda name: next_words(answers[name]), is_text=True),
        Column("measured range", lambda name: range_words(of(name)), is_text=True),
    ]
    return largest, ReportTable(columns, order, stacked=True)
