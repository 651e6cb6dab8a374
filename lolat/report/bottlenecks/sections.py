"""The parts of the report's page around the table: the answer, details of a row, changes, doubts."""

from __future__ import annotations

from lolat.device.attribution import Explanation, explain
from lolat.device.prediction import Prediction, domain_words, interval_words, memory_words
from lolat.device.question import Question
from lolat.report.explanation import NO_CHANGE, STAR, change_table, operation_table, term_table
from lolat.report.prediction import counts_words, per_second
from lolat.report.rows import BlockRow, bottleneck_sentence
from lolat.report.tables import element, escape
from lolat.units import digits, milliseconds, plain

# ---- The answer.


def answer(prediction: Prediction) -> str:
    """The latency, its interval, and what its time is made of."""
    size, ms = prediction.batch_size, prediction.latency_ms
    amount, _, unit = milliseconds(ms).partition(" ")
    per = f"{digits(ms / size)} ms a sample, " if size > 1 else ""
    lines = [
        f"Batch size {size}: {per}{per_second(prediction)}",
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


def detail(answer: Prediction, row: BlockRow) -> str:
    """The terms of a block, its operations, and the savings by changes of it."""
    label, query, size = row.label, answer.query, answer.batch_size
    block_name = answer.names[row.blocks[0]]
    question = Question(size, answer.predictor)
    explanation = explain(query.model, query.graph, question, block=block_name)
    (block,) = explanation.blocks
    terms = term_table(block.terms, block.latency_ms)
    operations = operation_table(block, explanation.operations)
    return (
        terms.html(f"Where the time of {label} goes, batch size {size}")
        + operations.html(f"{label}, operation by operation, batch size {size}")
        + _saved(f"What a change of {label} would save, batch size {size}", explanation, True)
    )


# ---- What a change would save.


def _saved(caption: str, explanation: Explanation, of_block: bool) -> str:
    savings = explanation.counterfactuals
    if not savings:
        return element("p", f"{caption}: {NO_CHANGE}", class_="dim")
    return change_table(savings, of_block).html(caption)


def changes(answer: Prediction) -> str:
    """The savings of changes of the whole network."""
    query, size = answer.query, answer.batch_size
    question = Question(size, answer.predictor)
    explanation = explain(query.model, query.graph, question, query.at_size)
    caption = f"Each change counted anew and predicted, at batch size {size}"
    is_outside = any(c.in_domain is False for c in explanation.counterfactuals)
    notes = "".join(
        element("p", plain(n), class_="dim") for n in (*explanation.notes, *[STAR] * is_outside)
    )
    return _saved(caption, explanation, False) + notes


def doubts(answer: Prediction) -> str:
    """The warnings of a prediction, and those of its model, where LoLat measured the device."""
    model = answer.query.model.document
    of_model = () if "source" in model["environment"] else model.get("warnings", ())
    lines = [*dict.fromkeys((*answer.warnings, *of_model))] or ["There is nothing to remark."]
    return f"<ul>{''.join(element('li', plain(line)) for line in lines)}</ul>"
