"""Compares the latencies of several devices and batch sizes, and the latencies of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from itertools import chain, zip_longest
from shlex import join

from lolat.device.domain import Place, range_of
from lolat.device.prediction import Prediction
from lolat.device.ranking import compared, fastest
from lolat.report.best_devices import cheapest_lines, fastest_lines, told_modes
from lolat.report.ranked import assumed_hosts, not_compared
from lolat.report.rows import TERMS, block_rows, bottleneck_sentence
from lolat.web.cards import BlockLine, BlockTable, LatencyCard, LatencyComparison, LatencyGroup
from lolat.web.form import Form

MARKS: dict[Place, str] = {
    "host-bound": "host-bound: the device waits for its host, which starts the operations",
    "outside": "outside: the network is outside the measured range, so that its time is extrapolated",
    "unknown": "not known: the device's file does not say what was measured",
}
"""Mark on a prediction's place relative to the measured range -> its explanation."""


def _labeled(prediction: Prediction, name: str) -> Prediction:
    """The prediction with its device named as on the card."""
    query, device = prediction.query, copy(prediction.query.device)
    device.label = name
    return replace(prediction, query=replace(query, device=device))


def _verdicts(predictions: Sequence[Prediction], is_alike: bool) -> tuple[list[str], list[str]]:
    """(sentences on devices left out, the fastest and the cheapest; the same for other execution modes)."""
    first = [*filter(None, [not_compared(predictions), assumed_hosts(predictions)])]
    if not is_alike:
        return first, []
    predictions = compared(predictions)
    modes = told_modes(predictions)
    first += [*fastest_lines(predictions), *cheapest_lines(predictions)]
    others = [*fastest_lines(predictions, modes), *cheapest_lines(predictions, in_modes=modes)]
    return first, [line for line in others if line not in first]


def comparison(
    form: Form, cards: Sequence[LatencyCard], is_alike: bool
) -> LatencyComparison | None:
    """A comparison of the devices at each batch size; None for a single answer.

    `is_alike`: True if their precisions and launches are alike; else no device is called the best.
    """
    of_size = [
        [_labeled(p, c.name) for c, p in zip(cards, found, strict=True)]
        for found in zip(*(c.predictions for c in cards), strict=True)
    ]
    if len(cards) * len(of_size) < 2:
        return None
    groups, every = list[LatencyGroup](), [*chain(*of_size)]
    for predictions in of_size:
        lines = [(i, cards[i], p) for i, p in enumerate(predictions)]
        lines.sort(key=lambda line: (line[2].fits is False, line[2].latency_ms))
        groups.append(LatencyGroup(predictions[0].batch_size, lines))
    first, others = _verdicts(every, is_alike)
    shown = [card.shown for card in cards]
    best = fastest(shown) if cards[1:] and is_alike else None
    places = {place for p in every for place in range_of(p.in_domain, p.host_bound)}
    on = ",".join(card.device.argument for card in cards)
    command = join(["lolat", "predict", form.network(), "--on", on, *form.options()])
    is_as_measured = len(cards) > 1 and not form.text("precision")  # no command of several runs so
    return LatencyComparison(
        groups=groups,
        longest=max(max(p.latency_ms, *(p.interval_ms or (0.0,))) for p in every) or 1.0,
        best=next((card for card in cards if card.shown is best), None),
        sentences=first,
        others=others,
        marks=[words for place, words in MARKS.items() if place in places],
        has_prices=any(p.dollars_per_million for p in every),
        command="" if is_as_measured else command,
    )


def block_table(cards: Sequence[LatencyCard]) -> BlockTable:
    """The table of blocks at the shown batch size, with a row for each block that takes time.

    Only a CPU has a last row for the framework call; on a GPU the launches contain it.
    """
    of_devices = [c.shown for c in cards]
    lines = list[BlockLine]()
    for of_block in zip_longest(*map(block_rows, of_devices)):
        row = next(filter(None, of_block))
        cells = [(r.latency_ms, r.share) if r else (0.0, 0.0) for r in of_block]
        most = TERMS[row.bound_by] if len(cards) == 1 else ""
        if any(ms > 0.0 for ms, _ in cells):
            lines.append(BlockLine(row.label, row.summary, cells, most))
    longest = max((share for line in lines for _, share in line.cells), default=0.0) or 1.0
    return BlockTable(lines, longest, [bottleneck_sentence(p) for p in of_devices])
