"""The page of a report as one file, nothing loaded from anywhere: the answer, and where the time goes.

All numbers are computed and written here, for each of a few batch sizes. The script of the page shows those
of one batch size, and sorts, filters and opens rows.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from lolat.device.predicting import predict
from lolat.device.prediction import CALL, Prediction
from lolat.device.question import Question
from lolat.device.summary import headline
from lolat.errors import InputError
from lolat.report.bottlenecks import sections
from lolat.report.rows import (
    COLORS,
    GLOSSARY,
    TERMS,
    block_rows,
    bottlenecks,
)
from lolat.report.tables import element, escape
from lolat.units import digits, percent, plain, quantity

BATCH_SIZES = tuple(2**n for n in range(9))
"""Batch sizes of the slider, with the one that was asked for."""
MANY = 200
"""Blocks; of a network of more the page has the batch size that was asked for alone."""


def at_sizes(prediction: Prediction) -> list[Prediction]:
    """The prediction at each batch size of the page; larger ones that cannot be are left out.

    InputError as `Model.predict` at the batch size of the prediction.
    """
    query, asked_size = prediction.query, prediction.batch_size
    question = Question(asked_size, prediction.predictor, query.coverage)
    found = []
    for size in sorted({asked_size, *(BATCH_SIZES if len(prediction.names) <= MANY else ())}):
        try:
            answer = predict(query.model, query.graph, question.at(size))
        except InputError:
            if size <= asked_size:
                raise
            break
        found.append(replace(answer, query=query))
    return found


# ---- The rows' numbers at a batch size, as the script shows them.


def bar(parts: Mapping[str, float], longest: float) -> str:
    """A bar as one CSS image: painted, never laid out."""
    stops, start = [], 0.0
    for key, ms in parts.items():
        end = start + 100.0 * ms / longest
        if end > start:
            stops.append(f"var(--{key}) {start:.2f}% {end:.2f}%")
        start = end
    return f"linear-gradient(90deg, {', '.join([*stops, f'transparent {start:.2f}%'])})"


def numbers(prediction: Prediction, depth: int | None) -> list[dict[str, Any]]:
    """The texts of each row's cells, its bar, and the numbers that it is sorted by."""
    table = block_rows(prediction, depth)
    longest = max((row.latency_ms for row in table), default=0.0) or 1.0
    marked = {block.name for block in bottlenecks(prediction)}
    found = []
    for row in table:
        blocks = [prediction.blocks[i] for i in row.blocks]
        macs = sum(block.counts["flops"] for block in blocks)
        most = TERMS[row.bound_by]
        texts = [digits(row.latency_ms), percent(row.share), quantity(macs) if macs else "–", most]
        found.append({
            "time": row.latency_ms, "macs": macs, "bar": bar(row.by_color, longest),
            "cells": texts, "marked": len(blocks) == 1 and blocks[0].name in marked,
        })  # fmt: skip
    return found


# ---- The page

HEADS = (("order", "#", "number"), ("name", "block", "block left"), ("", "", "bars left"),
           ("time", "ms", "time"), ("", "share", "share"), ("macs", "MACs", "macs"),
           ("", "most of it is", "most left"))  # fmt: skip
"""The number that each column is sorted by ("": none), its head, its CSS classes."""


def page(prediction: Prediction, depth: int | None = None) -> str:
    """The page of a prediction as HTML, folded `depth` names deep. InputError as of `at_sizes`."""
    predictions = at_sizes(prediction)
    sizes = [p.batch_size for p in predictions]
    start = sizes.index(prediction.batch_size)
    shown = predictions[start]

    def of_sizes(content: Callable[[Prediction], str]) -> str:
        return "".join(
            f'<div class="of-size" data-size="{i}"{" hidden" * (i != start)}>{content(p)}</div>'
            for i, p in enumerate(predictions)
        )

    data = {"start": start, "sizes": sizes, "rows": [numbers(p, depth) for p in predictions]}
    script, name = _file("page.js"), prediction.query.graph.name
    return Template(_file("page.html")).substitute(
        title=element("title", f"{name}: where the time goes"),
        heading=element("h1", name),
        place=of_sizes(lambda p: element("p", p.title.removeprefix(f"{plain(name)} · "))),
        device=element("p", headline(shown.query.model), class_="place"),
        answers=of_sizes(sections.answer),
        steps=str(len(sizes) - 1),
        start=str(start),
        ends=element("span", str(sizes[0])) + element("span", str(sizes[-1])),
        legend="".join(
            f'<li title="{escape(GLOSSARY[TERMS[group]])}"><i class="swatch {color}" aria-hidden="true">'
            f"</i>{escape(TERMS[group])}</li>"
            for group, color in COLORS.items()
        ),
        cols="".join(f'<col class="{classes}">' for *_, classes in HEADS),
        head="".join(_head(*column) for column in HEADS),
        body=_body(shown, depth),
        changes=sections.at_one_size(shown, sections.changes(shown)),
        doubts=of_sizes(sections.doubts),
        words="".join(element("dt", word) + element("dd", text) for word, text in GLOSSARY.items()),
        style=_file("page.css"),
        script=script,
        # A Content-Security-Policy names the script by its hash.
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        data=embedded(data),
    )


def _head(key: str, words: str, classes: str) -> str:
    """The head of a column, a button where it can be sorted by."""
    label = ' aria-label="network order"' if key == "order" else ""
    inner = words or '<span class="unseen">bar</span>'
    inner = f'<button type="button" data-sort="{key}"{label}>{inner}</button>' if key else inner
    return f'<th scope="col" role="columnheader" class="{classes}">{inner}</th>'


def _body(prediction: Prediction, depth: int | None) -> str:
    """The table's rows; the script fills in the numbers. A block's opens to its operations, but of the call
    and in networks of MANY blocks.
    """
    cells = "".join(f'<td role="cell" class="{classes}"></td>' for *_, classes in HEADS[3:])
    opens = depth is None and len(prediction.names) <= MANY
    lines = []
    for number, row in enumerate(block_rows(prediction, depth), start=1):
        is_open = opens and row.terms_ms
        summary = "fixed cost, once a pass" if row.label == CALL else row.summary
        name = f"{element('b', row.label)} {element('span', summary)}"
        state = ' aria-expanded="false"' if is_open else " disabled"
        lines.append(
            f'<tr role="row"><td role="cell" class="number">{number}</td><th scope="row" role="rowheader" '
            f'class="block"><button type="button"{state}>{name}</button></th><td role="cell" class="bars" '
            f'aria-hidden="true"><i class="bar"></i></td>{cells}</tr>'
        )
        if is_open:
            detail = sections.at_one_size(prediction, sections.detail(prediction, row))
            lines.append(
                f'<tr class="detail" role="row" hidden><td role="cell" colspan="{len(HEADS)}">'
                f"{detail}</td></tr>"
            )
    return f'<tbody role="rowgroup">{"".join(lines)}</tbody>'


def embedded(data: Any) -> str:
    """JSON that stays data blocks a <script>: no `<`, `>`, `&`, nor anything outside ASCII, as itself."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _file(name: str) -> str:
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")
