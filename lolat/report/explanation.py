"""Where the time goes, in a terminal: a line per term in its own units, and what a change would save."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from lolat.graph.counts import KINDS, MEANINGS
from lolat.model.attribution import Attribution, BatchEffect, Counterfactual, Explanation, Term
from lolat.model.budget import BudgetAnswer, told
from lolat.report.rows import TERMS, short_name
from lolat.report.text import latency, totals, wide_console
from lolat.units import digits, milliseconds, percent, plain, plural, quantity

STARTED = {name for name, meaning in MEANINGS.items() if meaning.group == "ops"}
"""Told of one, not of a million."""
SIZES = (
    ("flops", *KINDS["flops"]),
    ("acts", "inp", "traffic", *KINDS["elements"]),
    ("weights", *KINDS["weights"]),
)
"""MACs, elements and weights: a formula has the count itself, or its kinds."""
TOP_BLOCKS = 5
MOST_COUNTS = 6
LEAST_TERMS = 12


def print_explanation(explanation: Explanation, model_name: str, network: str) -> None:
    """Where the time of a network or of a block goes, what it is made of, what would change it."""
    from rich.text import Text

    console = wide_console()

    def say(text: str = "", style: str = "") -> None:
        console.print(Text(plain(text), style=style))

    def table(rows: Sequence[Sequence[str]], *numbers: int) -> None:
        for line in columns(rows, numbers, console.width):
            say(line)

    prediction = explanation.prediction
    say(prediction.title, "bold")
    say(latency(prediction))
    say(totals(prediction))
    say()
    if explanation.of_block:
        block = explanation.blocks[0]
        words = f"{milliseconds(block.latency_ms)}, {percent(block.share)} of the network"
        say(f"{block.name}: {words}", "bold")
        table(_term_lines(block.terms, block.latency_ms, None), 1, 2, 3, 4)
        say("operation by operation", "bold")
        table(_operations(block, explanation.operations), 2, 3, 4, 5, 6)
    else:
        say("where the time goes", "bold")
        terms = _term_lines(explanation.total.terms, prediction.latency_ms, prediction.call_ms)
        table(terms, 1, 2, 3, 4)
        several = f"the longest of {len(explanation.blocks)} blocks"
        say(several if len(explanation.blocks) > 1 else "the only block", "bold")
        table(_blocks(explanation.blocks), 1, 2)
    say("what would save time, each counted anew and predicted", "bold")
    if explanation.counterfactuals:
        rows = _changes(explanation.counterfactuals, explanation.of_block)
        table(rows, *range(len(rows[0]) - 1))
        if any(c.in_domain is False for c in explanation.counterfactuals):
            say("  * the changed network is outside the measured domain", "dim")
    else:
        say("  nothing that LoLat knows to try")
    if explanation.batches:
        say(batch_sentence(explanation.batches))
    for note in (*prediction.warnings, *explanation.notes):
        say(f"note: {note}", "yellow")
    further = f"Next: lolat explain {quote(model_name)} {quote(network)}"
    if explanation.of_block:
        say(further)
    elif explanation.blocks:
        longest = max(explanation.blocks, key=lambda b: b.latency_ms)
        say(f"{further} --block {quote(longest.name.partition(' · ')[0])}")


def rate(term: Term) -> tuple[str, str]:
    """A term's count, and what a unit of it costs: ("3.86 GMACs", "8.52 ms/G")."""
    unit = MEANINGS[term.name].unit
    if term.name in STARTED:
        return f"{quantity(term.count)} {unit}", milliseconds(term.rate_ms)
    scale, prefix = (1e9, "G") if unit == "MACs" else (1e6, "M")
    count = quantity(term.count, unit) if unit == "MACs" else f"{quantity(term.count)} {unit}"
    return count, f"{milliseconds(term.rate_ms * scale)}/{prefix}"


def columns(rows: Sequence[Sequence[str]], numbers: Sequence[int], width: int) -> Iterator[str]:
    """Rows as lines of at most `width`, in columns; those at `numbers` are aligned to the right.

    Where it is too narrow the widest of the other columns is cut, never a number.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    words = [i for i in range(len(widths)) if i not in numbers]
    while words and sum(widths) + 2 * len(widths) > width:
        widest = max(words, key=lambda i: widths[i])
        if widths[widest] <= LEAST_TERMS:
            break
        widths[widest] -= 1
    for row in rows:
        cells = [
            cell.rjust(n) if i in numbers else shortened(cell, n).ljust(n)
            for i, (cell, n) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()


def _term_lines(terms: Sequence[Term], whole: float, call_ms: float | None) -> list[list[str]]:
    parts = [
        (TERMS.get(term.name, term.name), term.latency_ms, *rate(term))
        for term in sorted(terms, key=lambda t: -t.latency_ms)
        if term.latency_ms > 0.0
    ]
    if call_ms is not None:
        parts.append(("one call of the framework", call_ms, "1", milliseconds(call_ms)))
    return [
        *(
            [words, n, f"x {each}", f"= {milliseconds(ms)}", percent(ms / whole) if whole else ""]
            for words, ms, n, each in parts
        ),
        ["together", "", "", f"= {milliseconds(whole)}", ""],
    ]


def _blocks(blocks: Sequence[Attribution]) -> list[list[str]]:
    rows = [["", "ms", "share", "most of it"]]
    ordered = sorted(blocks, key=lambda b: -b.latency_ms)
    for block in ordered[:TOP_BLOCKS]:
        largest = max(block.terms, key=lambda t: t.latency_ms)
        part = percent(largest.latency_ms / (block.latency_ms or 1.0))
        most = f"{TERMS.get(largest.name, largest.name)} {part}" if block.latency_ms else "nothing"
        rows.append([plain(block.name), digits(block.latency_ms), percent(block.share), most])
    rest = ordered[TOP_BLOCKS:]
    if rest:
        times, shares = sum(b.latency_ms for b in rest), sum(b.share for b in rest)
        rows.append([plural(len(rest), "other block"), digits(times), percent(shares), ""])
    return rows


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _operations(block: Attribution, operations: Sequence[Attribution]) -> list[list[str]]:
    """One row per operation that costs something, without the block's label in front of its name."""
    label, whole = block.name.partition(" · ")[0], block.latency_ms
    rows = [["", "", "MACs", "elements", "weights", "ms", "of block"]]
    for operation in operations:
        counts = {t.name: t.count for t in operation.terms}
        if not any(counts.values()):
            continue  # what is free
        sizes = (sum(counts.get(n, 0) for n in names) for names in SIZES)
        ms, kind = operation.latency_ms, (operation.kind or "").replace("_", " ")
        row = [plain(short_name(operation.name, label)), plain(kind)]
        row += [quantity(n) if n else "" for n in sizes]
        rows.append([*row, digits(ms), percent(ms / whole) if whole else ""])
    return rows


def _changes(found: Sequence[Counterfactual], of_block: bool) -> list[list[str]]:
    """One row per change; a star for one that leaves the measured domain."""
    rows = [["saves", *(["of block", "of network"] if of_block else ["share"]), "", "by"]]
    for one in found:
        shares = [one.of_block, one.of_network] if of_block else [one.of_network]
        told_shares = [percent(s) for s in shares if s is not None]
        outside = "*" if one.in_domain is False else ""
        rows.append([milliseconds(one.saves_ms), *told_shares, outside, plain(one.change)])
    return rows


def batch_sentence(batches: Sequence[BatchEffect]) -> str:
    """What a sample costs alone and in larger batches."""
    first, *rest = batches
    some = (b for b in rest if b.batch_size in (8, 32))
    told = [f"{milliseconds(b.per_sample_ms)} at {b.batch_size}" for b in some]
    more = f", {' and '.join(told)}" if told else ""
    return f"a sample takes {milliseconds(first.per_sample_ms)} at batch {first.batch_size}{more}"


def budget_lines(answer: BudgetAnswer) -> Iterator[str]:
    """What `lolat budget` answers."""
    best, further, now = answer.best, answer.next, answer.now
    budget = f"{answer.budget_ms:g} ms"
    yield (
        f"{plain(best.prediction.network)}: {told(answer.vary, best.value)} stays within {budget}: "
        f"{latency(best.prediction)}"
    )
    if answer.channels is not None:
        changed = [f"{before} -> {after}" for before, after in answer.channels]
        more = f", ... ({len(changed)} counts)" if len(changed) > MOST_COUNTS else ""
        yield f"  channels: {', '.join(changed[:MOST_COUNTS])}{more}"
    yield f"  {totals(best.prediction)}"
    if further is not None:
        takes = further.prediction.latency_ms
        # 12.0 ms would not look like more than 12 ms.
        exactly = f" ({takes:.6g} ms)" if float(digits(takes)) <= answer.budget_ms < takes else ""
        yield f"next: {told(answer.vary, further.value)} takes {latency(further.prediction)}{exactly}"
    elif answer.refusal is not None:
        yield f"next: refused: {plain(answer.refusal)}"
    else:
        yield f"next: {budget} is not exceeded by anything up to here; larger is not tried"
    yield f"now: {told(answer.vary, now.value)} takes {latency(now.prediction)}"
    for note in (*best.prediction.warnings, *answer.notes):
        yield f"note: {plain(note)}"
