"""The parts of the report's page around the table: the answer, details of a row, changes, doubts."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.device.attribution import Explanation, explain
from lolat.device.prediction import CALL, Prediction, domain_words, interval_words, memory_words
from lolat.device.question import Question
from lolat.graph.counts import GROUPS
from lolat.io.results import element, escape
from lolat.report.explanation import rate
from lolat.report.prediction import counts_words
from lolat.report.rows import TERMS, Row, bottleneck_sentence, short_name
from lolat.units import digits, milliseconds, percent, plain, quantity

FAMILIES = {
    "compute": "flops",
    "memory": "memory",
    "weights": "weights",
    "shapes": "patches",
    "starting": "ops",
    "call": CALL,
}
"""The colors of a bar: the group of terms of each."""
COLORS = {group: key for key, group in FAMILIES.items()}


def words_of(color: str) -> str:
    """The meaning of a color."""
    return TERMS[FAMILIES[color]]


def color_of(term: str) -> str:
    """The color of a term."""
    return COLORS.get(GROUPS.get(term, "ops"), "starting")


def by_family(row: Row) -> dict[str, float]:
    """Milliseconds of a row by color."""
    parts = dict.fromkeys(FAMILIES, 0.0)
    for term, ms in row.terms_ms.items():
        parts[color_of(term)] += ms
    parts["call"] += row.latency_ms if not row.terms_ms else 0.0
    return parts


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], foot: Sequence[str] = ()
) -> str:
    """A table with a caption, of heads and cells that are HTML; the first cell of a row is its head."""

    def line(cells: Sequence[str]) -> str:
        others = "".join(f"<td>{cell}</td>" for cell in cells[1:])
        return f'<tr><th scope="row">{cells[0]}</th>{others}</tr>'

    first, *others = heads
    top = f'<th scope="col" class="left">{first}</th>'
    top += "".join(f'<th scope="col">{head}</th>' for head in others)
    end = f"<tfoot>{line(foot)}</tfoot>" if foot else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"{element('caption', caption)}<thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(map(line, rows))}</tbody>{end}</table></div>"
    )


def swatch(key: str, words: str) -> str:
    """Words with their color in front."""
    return f'<i class="swatch {key}" aria-hidden="true"></i>{escape(words)}'


# ---- The answer.


def answer(prediction: Prediction) -> str:
    """The latency, its interval, and what its time is made of."""
    size, ms = prediction.batch_size, prediction.latency_ms
    amount, _, unit = milliseconds(ms).partition(" ")
    rate = 1e3 * size / ms if ms else 0.0
    per = f"{digits(ms / size)} ms a sample, " if size > 1 else ""
    lines = [
        f"Batch size {size}: {per}{digits(rate) if rate < 1000 else quantity(rate)} samples a second",
        counts_words(prediction), memory_words(prediction.memory),
    ]  # fmt: skip
    words = element("p", bottleneck_sentence(prediction))
    words += "".join(element("p", line, class_="dim") for line in lines) + _domain(prediction)
    shown = f'<data value="{ms!r}">{escape(amount)}</data> <small>{escape(unit)}</small>'
    return (
        f'<div class="answer"><div><p class="ms">{shown}</p>{_interval(prediction)}</div>'
        f'<div class="words">{words}</div></div>'
    )


def _interval(answer: Prediction) -> str:
    """The interval in words, and as a band on a line from 0 to a little above its upper end."""
    if answer.interval_ms is None:
        return ""
    most = 1.04 * answer.interval_ms[1]
    low, high, point = (100 * t / most for t in (*answer.interval_ms, answer.latency_ms))
    return element("p", interval_words(answer.interval_ms, answer.coverage)) + (
        '<svg class="range" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="band" x="{low:.3f}" y="4" width="{high - low:.3f}" height="6"></rect>'
        f'<rect class="point" x="{point - 0.25:.3f}" y="0" width="0.5" height="10"></rect></svg>'
    )


def _domain(answer: Prediction) -> str:
    words = domain_words(answer)
    words = words[:1].upper() + words[1:]
    if answer.in_domain is not False:
        return element("p", words, class_="dim")
    link = '<a href="#sure">see how sure this is</a>'
    return f'<p class="outside">{escape(words)}: {link}</p>'


def at_one_size(answer: Prediction, content: str) -> str:
    """Content of the batch size that was asked for; the script hides it while the slider is elsewhere."""
    size = answer.batch_size
    words = f"Worked out at batch size {size} alone: set the slider to {size} to see it."
    return (
        f'<div class="at-start">{content}</div><p class="at-other dim" hidden>{escape(words)}</p>'
    )


# ---- A row that is open, at the batch size that was asked for.


def detail(answer: Prediction, row: Row) -> str:
    """The terms of a block, its operations, and the savings by changes of it."""
    label, query, size = row.label, answer.query, answer.batch_size
    block_name = answer.names[row.blocks[0]]
    question = Question(size, answer.predictor)
    explanation = explain(query.model, query.graph, question, block=block_name)
    (block,) = explanation.blocks
    whole = block.latency_ms or 1.0
    terms = [
        [swatch(color_of(t.name), TERMS[t.name]), *rate(t), digits(t.latency_ms),
         percent(t.latency_ms / whole)]
        for t in sorted(block.terms, key=lambda t: -t.latency_ms) if t.latency_ms > 0.0
    ]  # fmt: skip
    operations = [
        [f"{element('b', plain(short_name(o.name, label)))} {escape(str(o.kind).replace('_', ' '))}",
         digits(o.latency_ms), percent(o.latency_ms / whole),
         escape(TERMS[max(o.terms, key=lambda t: t.latency_ms).name])]
        for o in explanation.operations if o.latency_ms > 0.0
    ]  # fmt: skip
    heads = ["cause", "count", "each", "ms", "share"]
    of_block = ["operation", "ms", "of block", "most of it is"]
    foot = ["together", "", "", digits(block.latency_ms), "100 %"]
    return (
        table(f"Where the time of {label} goes, batch size {size}", heads, terms, foot)
        + table(f"{label}, operation by operation, batch size {size}", of_block, operations)
        + _saved(f"What a change of {label} would save, batch size {size}", explanation, True)
    )


# ---- What a change would save.


def _saved(caption: str, explanation: Explanation, of_block: bool) -> str:
    savings = explanation.counterfactuals
    if not savings:
        return element("p", f"{caption}: nothing that LoLat knows to try", class_="dim")
    heads = ["change", "saves, ms", *(["of block"] if of_block else []), "of network"]
    rows = [
        [escape(c.change + " *" * (c.in_domain is False)), digits(c.saves_ms),
         *([percent(c.of_block or 0.0)] if of_block else []), percent(c.of_network)]
        for c in savings
    ]  # fmt: skip
    return table(caption, heads, rows)


def changes(answer: Prediction) -> str:
    """The savings of changes of the whole network."""
    query, size = answer.query, answer.batch_size
    question = Question(size, answer.predictor)
    explanation = explain(query.model, query.graph, question, query.at_size)
    caption = f"Each change counted anew and predicted, at batch size {size}"
    star = "* the changed network is outside the measured range"
    is_outside = any(c.in_domain is False for c in explanation.counterfactuals)
    notes = "".join(
        element("p", plain(n), class_="dim") for n in (*explanation.notes, *[star] * is_outside)
    )
    return _saved(caption, explanation, False) + notes


def doubts(answer: Prediction) -> str:
    """The warnings of a prediction, and those of its model, where LoLat measured the device."""
    model = answer.query.model.document
    of_model = () if "source" in model["environment"] else model.get("warnings", ())
    lines = [*dict.fromkeys((*answer.warnings, *of_model))] or ["There is nothing to remark."]
    return f"<ul>{''.join(element('li', plain(line)) for line in lines)}</ul>"
