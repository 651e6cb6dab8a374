"""The page of a report as one file, nothing loaded from anywhere: the answer, and where the time goes.

All numbers are computed and written here, for each of a few batch sizes. The script of the page shows those
of one batch size, and sorts, filters, folds and opens rows.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any

from lolat.errors import InputError
from lolat.io.results import element, escape
from lolat.model.prediction import CALL, Prediction
from lolat.report.bottlenecks import sections
from lolat.report.bottlenecks.sections import FAMILIES, by_family, words_of
from lolat.report.rows import GLOSSARY, TERMS, Row, bottlenecks, paths_of, rows
from lolat.units import digits, percent, plain, plural, quantity

STEPS = tuple(2**n for n in range(9))
"""Batch sizes of the slider, with the one that was asked for."""
MANY = 200
"""Blocks; of a network of more the page has the batch size that was asked for alone."""
Rows = Sequence[Sequence[Row | None]]
"""The rows of the table, each as (sides,); None where a side has no such block."""


def at_sizes(asked: Sequence[Prediction]) -> list[list[Prediction]]:
    """Of each batch size of the page the predictions of the sides, one or two.

    InputError as `Model.predict` at the batch size of the first; larger ones that cannot be are left out.
    """
    largest = max(len(p.names) for p in asked)
    predictions = []
    for size in sorted({asked[0].batch_size, *(STEPS if largest <= MANY else ())}):
        try:
            predictions.append([_at(p, size) for p in asked])
        except InputError:
            if size <= asked[0].batch_size:
                raise
            break
    return predictions


def _at(prediction: Prediction, batch_size: int) -> Prediction:
    """The same question at another batch size."""
    query = prediction.query
    answer = query.model.predict(query.graph, batch_size, prediction.predictor, query.coverage)
    return replace(answer, query=query)


def side_names(asked: Sequence[Prediction]) -> list[str]:
    """Names that differ: the networks, else the devices, else the words of the user."""
    queries = [p.query for p in asked]
    named = [(q.graph.name, q.model.device, q.network, q.model.label) for q in queries]
    for names in zip(*named, strict=True):
        if len(set(names)) == len(asked):
            return [plain(name) for name in names]
    return [plain(f"{q.graph.name} ({i})") for i, q in enumerate(queries, start=1)]


# ---- Rows: the blocks of one or two networks, or the modules that they are folded into.


def pairs(labels: Sequence[Sequence[str]]) -> list[list[int]]:
    """Which row of each side, -1 for none; rows of one label stand together."""
    if len(labels) == 1:
        return [[i] for i in range(len(labels[0]))]
    first, second = labels
    pairs: list[list[int]] = []
    a = b = 0
    matcher = SequenceMatcher(None, list(first), list(second), autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        pairs += [[n, -1] for n in range(a, i)] + [[-1, n] for n in range(b, j)]
        pairs += [[i + n, j + n] for n in range(size)]
        a, b = i + size, j + size
    return pairs


def rows_at(predictions: Sequence[Prediction], depth: int | None) -> Rows:
    """The rows of the table, folded `depth` names deep, the call last; None: a row for each block."""
    of_sides = [rows(p, depth) for p in predictions]
    return [
        [of_side[i] if i >= 0 else None for of_side, i in zip(of_sides, pair, strict=True)]
        for pair in pairs([[row.label for row in of_side] for of_side in of_sides])
    ]


EVERY_BLOCK = "not: every block"


def depths(asked: Sequence[Prediction]) -> dict[str, int | None]:
    """The foldings by their words."""
    deepest = max((len(path) for p in asked for path in paths_of(p.query.graph)), default=0)
    deep = {f"{plural(depth, 'name')} deep": depth for depth in range(1, deepest)}
    return {EVERY_BLOCK: None, **deep, "all into one": 0}


# ---- Their numbers at a batch size, as the script shows them.


def bar(parts: Mapping[str, float], longest: float) -> str:
    """A bar as one CSS image: painted, never laid out."""
    stops, start = [], 0.0
    for key, ms in parts.items():
        end = start + 100.0 * ms / longest
        if end > start:
            stops.append(f"var(--{key}) {start:.2f}% {end:.2f}%")
        start = end
    return f"linear-gradient(90deg, {', '.join([*stops, f'transparent {start:.2f}%'])})"


def numbers(table: Rows, predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Of each row the texts of its cells, its bars, and the numbers that it is sorted by."""
    longest = max((row.latency_ms for pair in table for row in pair if row), default=0.0) or 1.0
    return [_two(pair, longest) if len(pair) == 2 else _one(pair, longest, predictions[0])
            for pair in table]  # fmt: skip


def _shown(pair: Sequence[Row | None], longest: float) -> dict[str, Any]:
    """What a row has with one side and with two."""
    times = [row.latency_ms if row else None for row in pair]
    return {
        "time": times[0] or 0.0,
        "ms": times,
        "bars": [bar(by_family(row), longest) if row else "none" for row in pair],
        "cells": ["–" if ms is None else digits(ms) for ms in times],
    }


def _one(pair: Sequence[Row | None], longest: float, prediction: Prediction) -> dict[str, Any]:
    (row,) = pair
    assert row is not None
    macs = sum(prediction.blocks[i].counts["flops"] for i in row.blocks)
    most = TERMS.get(row.bound_by, row.bound_by)
    marked = {block.name for block in bottlenecks(prediction)}
    shown = _shown(pair, longest)
    shown["cells"] += [percent(row.share), quantity(macs) if macs else "–", most]
    is_marked = len(row.blocks) == 1 and prediction.blocks[row.blocks[0]].name in marked
    return {**shown, "macs": macs, "marked": is_marked}


def _two(pair: Sequence[Row | None], longest: float) -> dict[str, Any]:
    shown = _shown(pair, longest)
    first, second = (ms or 0.0 for ms in shown["ms"])
    shown["cells"].append(sections.signed(second - first))
    return {**shown, "time2": second, "change": abs(second - first)}


# ---- The page

ONE = (("time", "ms", "time"), ("", "share", "share"), ("macs", "MACs", "macs"),
       ("", "most of it is", "most left"))  # fmt: skip
Column = tuple[str, str, str]
"""By which number it is sorted ("": not at all), its head, its CSS classes."""


def page(asked: Sequence[Prediction]) -> str:
    """The page of a prediction, or of two beside each other at the batch size of the first, as HTML.

    InputError as of `at_sizes`.
    """
    predictions, names = at_sizes(asked), side_names(asked)
    sizes, several = [of_size[0].batch_size for of_size in predictions], len(asked) > 1
    start = sizes.index(asked[0].batch_size)
    asked = predictions[start]

    def of_sizes(content: Callable[[Sequence[str], list[Prediction]], str]) -> str:
        return "".join(
            f'<div class="of-size" data-size="{i}"{" hidden" * (i != start)}>{content(names, p)}</div>'
            for i, p in enumerate(predictions)
        )

    foldings = depths(asked)
    data = {
        "start": start,
        "sizes": sizes,
        "foldings": [
            [numbers(rows_at(of_size, depth), of_size) for of_size in predictions]
            for depth in foldings.values()
        ],
    }
    script = _file("page.js")
    models = [p.query.model for p in asked]
    networks = " and ".join(dict.fromkeys(p.query.graph.name for p in asked))
    devices = " and ".join(dict.fromkeys(f"{m.name}: {m.device}" for m in models))
    return Template(_file("page.html")).substitute(
        _table(names, asked, {words: rows_at(asked, depth) for words, depth in foldings.items()}),
        title=element("title", f"{networks}: where the time goes"),
        heading=element("h1", networks),
        place=element("p", f"on {devices}", class_="place"),
        answers=of_sizes(sections.answers),
        causes=of_sizes(sections.causes) if several else "",
        hidden="" if several else "hidden",
        steps=str(len(sizes) - 1),
        start=str(start),
        ends=element("span", str(sizes[0])) + element("span", str(sizes[-1])),
        changes=sections.changes(names, asked),
        doubts=of_sizes(sections.doubts),
        facts="".join(map(sections.facts, names if several else [""], asked)),
        words="".join(element("dt", word) + element("dd", text) for word, text in GLOSSARY.items()),
        style=_file("page.css"),
        script=script,
        # A Content-Security-Policy names the script by its hash.
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        data=embedded(data),
    )


def _table(
    names: Sequence[str], asked: Sequence[Prediction], foldings: Mapping[str, Rows]
) -> dict[str, str]:
    """The parts of the page for the table: its columns, rows, controls, and the legend."""
    several = len(asked) > 1
    heads: Sequence[Column] = ONE
    if several:
        times = [("time2" if s else "time", f"{name}, ms", "time") for s, name in enumerate(names)]
        heads = [*times, ("change", "difference", "share")]
    first = (("order", "#", "number"), ("name", "block", "block left"), ("", "", "bars left"))
    columns = [*first, *heads]
    titles = {"order": "network order", "name": "name"}
    options = [(titles.get(key, words), key) for key, words, _ in columns if key]
    bodies = []
    for words, table in foldings.items():
        opened = [_detail(names, asked, pair) if words == EVERY_BLOCK else "" for pair in table]
        bodies.append(_body(table, heads, opened))
    return {
        "two": "two" if several else "",
        "head": "".join(map(_head, columns)),
        "cols": "".join(f'<col class="{classes}">' for *_, classes in columns),
        "fold": "".join(element("option", words, value=str(i)) for i, words in enumerate(foldings)),
        "sort": "".join(element("option", words, value=key) for words, key in options),
        "legend": "".join(
            f'<li title="{escape(GLOSSARY[words_of(key)])}">{sections.swatch(key, words_of(key))}</li>'
            for key in FAMILIES
        ),
        "bodies": "".join(bodies),
    }


def _detail(names: Sequence[str], asked: Sequence[Prediction], pair: Sequence[Row | None]) -> str:
    """The content of a row that is open; "" of the call, and of networks of MANY blocks."""
    parts = []
    for name, prediction, row in zip(names, asked, pair, strict=True):
        of = f", batch size {prediction.batch_size}" + f": {name}" * (len(asked) > 1)
        if row is not None and row.terms_ms and len(prediction.names) <= MANY:
            parts.append(f"<div>{sections.detail(prediction, row, of)}</div>")
    return f'<div class="sides">{"".join(parts)}</div>' if parts else ""


def _head(column: Column) -> str:
    """The head of a column, a button where it can be sorted by."""
    key, words, classes = column
    label = ' aria-label="network order"' if key == "order" else ""
    inner = escape(words) if words else '<span class="unseen">bar</span>'
    inner = f'<button type="button" data-sort="{key}"{label}>{inner}</button>' if key else inner
    return f'<th scope="col" role="columnheader" class="{classes}">{inner}</th>'


def _body(table: Rows, columns: Sequence[Column], details: Sequence[str]) -> str:
    """The rows of a folding; the script fills in the numbers. `details`: of each row, hidden at first."""
    lines = []
    cells = "".join(f'<td role="cell" class="{classes}"></td>' for *_, classes in columns)
    for number, (pair, detail) in enumerate(zip(table, details, strict=True), start=1):
        row = next(filter(None, pair))
        summary = "fixed cost, once a pass" if row.label == CALL else row.summary
        name = f"{element('b', row.label)} {element('span', summary)}"
        state = ' aria-expanded="false"' if detail else " disabled"
        bars = "".join(f'<i class="bar{" second" * s}"></i>' for s in range(len(pair)))
        lines.append(
            f'<tr role="row"><td role="cell" class="number">{number}</td><th scope="row" role="rowheader" '
            f'class="block"><button type="button"{state}>{name}</button></th><td role="cell" class="bars" '
            f'aria-hidden="true">{bars}</td>{cells}</tr>'
        )
        if detail:
            lines.append(
                f'<tr class="detail" role="row" hidden><td role="cell" colspan="{3 + len(columns)}">'
                f"{detail}</td></tr>"
            )
    return f'<tbody role="rowgroup" hidden>{"".join(lines)}</tbody>'


def embedded(data: Any) -> str:
    """JSON that stays data inside a <script>: no `<`, `>`, `&`, nor anything outside ASCII, as itself."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _file(name: str) -> str:
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")
