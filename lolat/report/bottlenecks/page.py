"""The page of a report, a single HTML file without external files: the answer, and where the time goes.

Python writes all of it; the script of the page only sorts, filters and opens rows.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from datetime import date
from hashlib import sha256
from importlib.resources import files
from string import Template

from lolat import __version__
from lolat.device.attribution import Explanation, explain
from lolat.device.intervals import is_usable
from lolat.device.prediction import CALL, Prediction, domain_words, interval_words, memory_words
from lolat.device.question import Question
from lolat.device.summary import headline
from lolat.report.device import error_lines
from lolat.report.explanation import (
    ANEW,
    NO_CHANGE,
    STAR,
    change_table,
    leaves_range,
    operation_table,
    term_table,
)
from lolat.report.prediction import (
    counts_words,
    page_options,
    per_second,
    precision_lines,
    room_lines,
)
from lolat.report.ranked import device_words
from lolat.report.rows import (
    COLORS,
    GLOSSARY,
    INKS,
    TERMS,
    BlockRow,
    block_rows,
    bottleneck_sentence,
    folded,
    marked_rows,
)
from lolat.report.tables import element, escape, for_readers
from lolat.units import capitalized, digits, milliseconds, plain, quantity

HOST_FIRST = (
    "The device waits for its host, so a change saves the time in which the host starts the "
    "operations that it takes out, not the time of the block."
)
MANY = 200
"""Blocks can be opened on pages of at most so many blocks."""
HEADS = (("order", "#", "number"), ("name", "block", "block left"), ("", "", "bars left"),
         ("time", "ms", "time"), ("", "share", "share"), ("macs", "MACs", "macs"),
         ("", "most of it is", "most left"))  # fmt: skip
"""(attribute that a column is sorted by or "", its head, its CSS classes) of each column."""


def page(prediction: Prediction, depth: int | None = None, file: str = "report.html") -> str:
    """The page of a prediction as HTML; `depth`: fold the blocks to modules so deep; `file`: the file's
    name.
    """
    script, name = _file("page.js"), prediction.query.title
    shown = {
        c for row in block_rows(prediction, depth) for c, ms in row.by_color.items() if ms > 0.0
    }
    absent = {TERMS[group] for group, color in COLORS.items() if color not in shown}
    return Template(_file("page.html")).substitute(
        title=element("title", f"{name} on {device_words(prediction)}: where the time goes"),
        heading=element("h1", f"{name} on {device_words(prediction)}"),
        place=element("p", prediction.title.removeprefix(f"{plain(name)} · "), class_="place"),
        device=element("p", headline(prediction.query.device, "profile fitted to"), class_="place"),
        answer=_answer(prediction, bottleneck_sentence(folded(prediction, depth))),
        legend="".join(
            f'<li title="{escape(GLOSSARY[TERMS[group]])}"><i class="swatch {color}" aria-hidden="true">'
            f"</i>{escape(TERMS[group])}</li>"
            for group, color in COLORS.items()
            if color in shown
        ),
        cols="".join(f'<col class="{classes}">' for *_, classes in HEADS),
        head="".join(_head(*column) for column in HEADS),
        body=(body := _body(prediction, depth)),
        opens="Click a name for its operations, a" if "aria-expanded" in body else "Click a",
        marks=" Bottlenecks are red, with a dot." if 'class="marked"' in body else "",
        changes=_changes(prediction),
        doubts=_doubts(prediction),
        made=element("footer", _made(prediction, depth, file), class_="dim"),
        words="".join(
            element("dt", word) + element("dd", text)
            for word, text in GLOSSARY.items()
            if word not in absent
        ),
        style=style(),
        script=script,
        # A Content-Security-Policy names the script by its hash.
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
    )


def style() -> str:
    """The CSS of a page, with the colors of causes."""
    inks = " ".join(f"--{color}: {ink};" for color, ink in INKS.items())
    return Template(_file("page.css")).substitute(inks=inks)


def _file(name: str) -> str:
    """The text of one of the page's source files: style, script or template."""
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")


def _made(prediction: Prediction, depth: int | None, file: str) -> str:
    """The date, the version, and the command that makes the page again."""
    command = prediction.arguments
    words = "" if command is None else f": lolat report {command}{page_options(depth, file)}"
    return f"Made on {date.today():%Y-%m-%d} by LoLat {__version__}{words}"


# ---- The answer


def _answer(prediction: Prediction, sentence: str) -> str:
    """The latency, its interval, the `sentence` on bottlenecks; above, a warning if memory lacks."""
    size, ms = prediction.batch_size, prediction.latency_ms
    amount, _, unit = milliseconds(prediction.latency_ms).partition(" ")
    per = f"{digits(ms / size)} ms a sample, " if size > 1 else ""
    lines = [
        f"Batch size {size}: {per}{per_second(prediction)}",
        counts_words(prediction), memory_words(prediction),
    ]  # fmt: skip
    domain = domain_words(prediction)
    domain = escape(capitalized(domain))
    is_outside = prediction.in_domain is False
    domain += ': <a href="#sure">see how sure this is</a>' if is_outside else ""
    words = element("p", sentence)
    lines += map(for_readers, precision_lines([prediction]))
    words += "".join(element("p", line, class_="dim") for line in lines)
    words += f'<p class="{"outside" if is_outside else "dim"}">{domain}</p>'
    shown = f'<data value="{ms!r}">{escape(amount)}</data> <small>{escape(unit)}</small>'
    room = "".join(element("p", line, class_="outside") for line in room_lines(prediction))
    return (
        f'{room}<div class="answer"><div><p class="ms">{shown}</p>{_interval(prediction)}</div>'
        f'<div class="words">{words}</div></div>'
    )


def _interval(answer: Prediction) -> str:
    """The interval in words, and if usable drawn as a band on a line from 0 to its upper end."""
    if answer.interval_ms is None:
        return ""
    words = interval_words(answer.interval_ms, answer.coverage, answer.latency_ms)
    if not is_usable(answer.interval_ms):
        return element("p", words)
    most = answer.interval_ms[1]
    low, high, point = (100 * t / most for t in (*answer.interval_ms, answer.latency_ms))
    ends = element("span", "0") + element("span", milliseconds(most))
    return element("p", words) + (
        '<svg class="range" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="band" x="{low:.3f}" y="4" width="{high - low:.3f}" height="6"></rect>'
        f'<rect class="point" x="{point - 0.25:.3f}" y="0" width="0.5" height="10"></rect></svg>'
        f'<p class="dim ends" aria-hidden="true">{ends}</p>'
    )


# ---- The table of blocks


def _head(key: str, words: str, classes: str) -> str:
    """The head of a column; a button if the table can be sorted by it."""
    label = ' aria-label="network order"' if key == "order" else ""
    inner = words or '<span class="unseen">bar</span>'
    inner = f'<button type="button" data-sort="{key}"{label}>{inner}</button>' if key else inner
    return f'<th scope="col" role="columnheader" class="{classes}">{inner}</th>'


def _body(prediction: Prediction, depth: int | None) -> str:
    """The rows of the table. A block's row opens to its operations if there are at most MANY blocks."""
    rows, marked = block_rows(prediction, depth), marked_rows(prediction, depth)
    longest = max((row.latency_ms for row in rows), default=0.0) or 1.0
    opens = len(prediction.names) <= MANY
    lines = []
    for number, row in enumerate(rows, start=1):
        blocks = [prediction.blocks[i] for i in row.blocks]
        macs = sum(block.counts["flops"] for block in blocks)
        summary = "fixed cost, once a pass" if row.label == CALL else row.summary
        name = f"{element('b', row.label)} {element('span', summary)}"
        is_open = opens and len(blocks) == 1 and row.terms_ms
        state = ' aria-expanded="false"' if is_open else " disabled"
        texts = [digits(row.latency_ms), f"{100 * row.share:.1f} %", quantity(macs) if macs else "–",
                 TERMS[row.bound_by]]  # fmt: skip
        cells = (
            f'<td role="cell" class="{classes}">{escape(text)}</td>'
            for (*_, classes), text in zip(HEADS[3:], texts, strict=True)
        )
        mark = "marked" if number - 1 in marked else ""
        lines.append(
            f'<tr role="row" class="{mark}" data-time="{row.latency_ms!r}" '
            f'data-macs="{macs}"><td role="cell" class="number">{number}</td><th scope="row" '
            f'role="rowheader" class="block"><button type="button"{state}>{name}</button></th>'
            f'<td role="cell" class="bars" aria-hidden="true">{bar(row.by_color, longest)}</td>'
            f"{''.join(cells)}</tr>"
        )
        if is_open:
            detail = f'<td role="cell" colspan="{len(HEADS)}">{_detail(prediction, row)}</td>'
            lines.append(f'<tr class="detail" role="row" hidden>{detail}</tr>')
    return f'<tbody role="rowgroup">{"".join(lines)}</tbody>'


def bar(parts: Mapping[str, float], longest: float) -> str:
    """A bar of colored parts; `parts`: color -> ms; `longest`: ms of the longest bar."""
    rects, start = [], 0.0
    for color, ms in parts.items():
        width = 100.0 * ms / longest
        if width > 0.0:
            rects.append(
                f'<rect class="{color}" x="{start:.2f}" width="{width:.2f}" height="1"></rect>'
            )
        start += width
    return f'<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none">{"".join(rects)}</svg>'


def _detail(answer: Prediction, row: BlockRow) -> str:
    """The details of a block: its terms, its operations, and what changes of the block would save."""
    query, label = answer.query, row.label
    question = Question(answer.batch_size, answer.predictor)
    explanation = explain(
        query.device, query.graph, question, block=answer.blocks[row.blocks[0]].name
    )
    (block,) = explanation.blocks
    terms = term_table(answer, block.terms, block.latency_ms)
    operations = operation_table(block, explanation.operations)
    return (
        terms.html(f"Where the time of {label} goes")
        + operations.html(f"{label}, operation by operation")
        + _saved(f"What a change of {label} would save", explanation)
    )


# ---- What a change would save, and how sure all this is


def _saved(caption: str, explanation: Explanation) -> str:
    savings = explanation.counterfactuals
    if not savings:
        return element("p", f"{caption}: {NO_CHANGE}", class_="dim")
    host = HOST_FIRST * explanation.prediction.waits_for_host
    note = element("p", host, class_="dim") if host else ""
    return for_readers(change_table(savings, leaves_range(explanation)).html(caption)) + note


def _changes(answer: Prediction) -> str:
    """The table of savings by changes of the whole network."""
    query, question = answer.query, Question(answer.batch_size, answer.predictor)
    explanation = explain(query.device, query.graph, question, query.at_size)
    notes = (*map(for_readers, explanation.notes), *([STAR] if leaves_range(explanation) else []))
    table = _saved(capitalized(ANEW), explanation)
    return table + "".join(element("p", plain(note), class_="dim") for note in notes)


def _doubts(answer: Prediction) -> str:
    """The warnings of a prediction, the warnings of a learned profile, and its errors on held-out times."""
    file = answer.query.device.file
    of_model = () if file.environment.source else file.warnings
    lines = [*dict.fromkeys((*answer.warnings, *of_model))]
    lines += map(capitalized, error_lines(answer.query.device))
    return f"<ul>{''.join(element('li', plain(for_readers(line))) for line in lines)}</ul>"
