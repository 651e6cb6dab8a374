"""The page of a report as one file, nothing loaded from anywhere: the answer, and where the time goes.

All numbers are computed and written here, for each of a few batch sizes. The script of the page shows those
of one batch size, and sorts, filters, folds and opens rows.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from importlib.resources import files
from shlex import quote
from string import Template
from typing import Any

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.analysis import analyze
from lolat.graph.counts import COLUMNS
from lolat.io.results import element, escape
from lolat.model import Model
from lolat.model.attribution import AtSize
from lolat.model.prediction import CALL, Prediction, bound_by
from lolat.report.bottlenecks import sections
from lolat.report.bottlenecks.sections import FAMILIES, FAMILY_OF
from lolat.report.rows import GLOSSARY, TERMS, bottlenecks, named_parts, paths_of
from lolat.units import digits, percent, plain, plural, quantity

STEPS = tuple(2**n for n in range(9))
"""Batch sizes of the slider, with the one that was asked for."""
MANY = 200
"""Blocks; of a network of more the page has the batch size that was asked for alone."""
Members = tuple[tuple[int, ...], ...]
"""Of each side the blocks of a row."""


@dataclass(frozen=True)
class Side:
    """A network on a device: one of the answers of the page.

    `paths`: see `rows.module_paths`; `model_name`, `network`: as the user gave them; `command`: the
    network in a command (`keras:X --input-size 96`); `at_size`: see `Model.explain`.
    """

    model: Model
    graph: Graph
    paths: Sequence[tuple[str, ...]]
    model_name: str
    network: str
    command: str = "NETWORK"
    at_size: AtSize | None = None


def command_of(network: str, input_size: Sequence[int] = ()) -> str:
    """A network and its size, as a command takes them."""
    size = f" --input-size {','.join(map(str, input_size))}" if input_size else ""
    return quote(network) + size


def page_of(predictions: Sequence[Prediction]) -> str:
    """The page of a prediction, or of two beside each other at the batch size of the first."""
    first, asked = predictions[0], [p.query for p in predictions]
    same = len({p.predictor for p in predictions}) == 1
    sides = [
        Side(
            a.model, a.graph, paths_of(a.graph), a.model.label, a.network,
            command_of(a.network, a.input_size), a.at_size,
        )
        for a in asked
    ]  # fmt: skip
    return page(sides, first.batch_size, first.predictor if same else None, asked[0].coverage)


def side_names(sides: Sequence[Side]) -> list[str]:
    """Names that differ: the networks, else the devices, else the words of the user."""
    named = [(s.graph.name, s.model.device, s.network, s.model_name) for s in sides]
    for names in zip(*named, strict=True):
        if len(set(names)) == len(sides):
            return [plain(name) for name in names]
    return [plain(f"{s.graph.name} ({i})") for i, s in enumerate(sides, start=1)]


def predictions(
    sides: Sequence[Side], batch_size: int, predictor: str | None, coverage: float | None
) -> list[list[Prediction]]:
    """Of each batch size of the page the predictions of the sides.

    InputError as `Model.predict` at `batch_size`; other sizes that are too large are left out.
    """
    many = max(len(analyze(s.graph).blocks) for s in sides) > MANY
    found = []
    for size in sorted({batch_size, *(() if many else STEPS)}):
        try:
            found.append([s.model.predict(s.graph, size, predictor, coverage) for s in sides])
        except InputError:
            if size <= batch_size:
                raise
            break
    return found


# ---- Rows: the blocks of one or two networks, or the modules that they are folded into.


@dataclass(frozen=True)
class Row:
    """A row of the table: `blocks` of each side, () where it has none, or where it is the call."""

    label: str
    summary: str
    blocks: Members
    is_call: bool = False

    def latencies(self, answers: Sequence[Prediction]) -> list[float | None]:
        """Milliseconds on each side, None where it has none of the blocks."""
        if self.is_call:
            return [answer.call_ms for answer in answers]
        return [
            float(answer.block_terms[list(members)].sum()) if members else None
            for answer, members in zip(answers, self.blocks, strict=True)
        ]

    def terms(self, answer: Prediction, side: int) -> dict[str, float]:
        """Milliseconds of each term on a side."""
        summed = answer.block_terms[list(self.blocks[side])].sum(axis=0)
        return dict(zip(answer.features, map(float, summed), strict=True))


def folded(side: Side, names: Sequence[str], depth: int | None) -> list[tuple[str, str, list[int]]]:
    """(label, summary, blocks) of each module `depth` names deep; None: of each block."""
    groups: dict[object, list[int]] = {}
    for i, path in enumerate(side.paths):
        is_deep = depth is not None and len(path) >= depth
        groups.setdefault(path[:depth][-1:] if is_deep else i, []).append(i)
    found = []
    for key, members in groups.items():
        label, summary = named_parts(names[members[0]])
        if len(members) > 1:
            label = plain(key[-1] if isinstance(key, tuple) and key else side.graph.name)
            summary = plural(len(members), "block")
        found.append((label, summary, members))
    return found


def pairs(labels: Sequence[Sequence[str]]) -> list[list[int]]:
    """Which row of each side, -1 for none; rows of one label stand together."""
    if len(labels) == 1:
        return [[i] for i in range(len(labels[0]))]
    first, second = labels
    found: list[list[int]] = []
    a = b = 0
    matcher = SequenceMatcher(None, list(first), list(second), autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        found += [[n, -1] for n in range(a, i)] + [[-1, n] for n in range(b, j)]
        found += [[i + n, j + n] for n in range(size)]
        a, b = i + size, j + size
    return found


def rows_at(sides: Sequence[Side], answers: Sequence[Prediction], depth: int | None) -> list[Row]:
    """The rows of the table at a depth, the call last."""
    own = [folded(s, a.names, depth) for s, a in zip(sides, answers, strict=True)]
    rows = []
    for pair in pairs([[label for label, *_ in of_side] for of_side in own]):
        first = next(side for side, at in enumerate(pair) if at >= 0)
        label, summary, _ = own[first][pair[first]]
        members = tuple(tuple(own[side][at][2]) if at >= 0 else () for side, at in enumerate(pair))
        rows.append(Row(label, summary, members))
    return [*rows, Row(CALL, "fixed cost, once a pass", ((),) * len(sides), is_call=True)]


EVERY_BLOCK = "not: every block"


def depths(sides: Sequence[Side]) -> dict[str, int | None]:
    """The foldings by their words."""
    deepest = max((len(path) for side in sides for path in side.paths), default=0)
    deep = {f"{plural(depth, 'name')} deep": depth for depth in range(1, deepest)}
    return {EVERY_BLOCK: None, **deep, "all into one": 0}


# ---- Their numbers at a batch size, as the script shows them.


def by_family(terms: Mapping[str, float], call_ms: float = 0.0) -> dict[str, float]:
    """Milliseconds by color."""
    parts = dict.fromkeys(FAMILIES, 0.0)
    for term, ms in terms.items():
        parts[FAMILY_OF.get(term, "starting")] += ms
    parts["call"] += call_ms
    return parts


def bar(parts: Mapping[str, float], longest: float) -> str:
    """A bar as one CSS image: painted, never laid out."""
    stops, start = [], 0.0
    for key, ms in parts.items():
        end = start + 100.0 * ms / longest
        if end > start:
            stops.append(f"var(--{key}) {start:.2f}% {end:.2f}%")
        start = end
    return f"linear-gradient(90deg, {', '.join([*stops, f'transparent {start:.2f}%'])})"


def numbers(rows: Sequence[Row], answers: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Of each row the texts of its cells, its bars, and the numbers that it is sorted by."""
    times = [row.latencies(answers) for row in rows]
    longest = max((ms for of_row in times for ms in of_row if ms), default=1.0)
    found = []
    for row, of_row in zip(rows, times, strict=True):
        bars = []
        for side, (answer, ms) in enumerate(zip(answers, of_row, strict=True)):
            call = answer.call_ms if row.is_call else 0.0
            parts = by_family({} if row.is_call else row.terms(answer, side), call)
            bars.append("none" if ms is None else bar(parts, longest))
        cells = ["–" if ms is None else digits(ms) for ms in of_row]
        told: dict[str, Any] = {"time": of_row[0] or 0.0, "bars": bars, "ms": of_row}
        if len(of_row) == 2:
            told["time2"], change = of_row[1] or 0.0, (of_row[1] or 0.0) - (of_row[0] or 0.0)
            told["change"] = abs(change)
            cells.append(sections.signed(change))
        else:
            (answer,), ms = answers, of_row[0] or 0.0
            members = list(row.blocks[0])
            macs = int(answer.block_counts[members, COLUMNS.index("flops")].sum())
            most = CALL if row.is_call else bound_by(row.terms(answer, 0))
            share, told["macs"] = percent(ms / (answer.latency_ms or 1.0)), macs
            cells += [share, quantity(macs) if macs else "–", TERMS.get(most, most)]
            marked = {b.name for b in bottlenecks(answer)}
            told["marked"] = len(members) == 1 and answer.names[members[0]] in marked
        found.append({**told, "cells": cells})
    return found


# ---- The page

ONE = (("time", "ms", "time"), ("", "share", "share"), ("macs", "MACs", "macs"),
       ("", "most of it is", "most left"))  # fmt: skip
Column = tuple[str, str, str]
"""By which number it is sorted ("": not at all), its head, its CSS classes."""


def page(
    sides: Sequence[Side],
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
) -> str:
    """The page, as HTML, of one side or of two beside each other; errors as of `predictions`."""
    found = predictions(sides, batch_size, predictor, coverage)
    sizes, names = [answers[0].batch_size for answers in found], side_names(sides)
    start, several = sizes.index(batch_size), len(sides) > 1
    asked = found[start]

    def of_sizes(content: Callable[[list[Prediction]], str]) -> str:
        return "".join(
            f'<div class="of-size" data-size="{i}"{" hidden" * (i != start)}>{content(answers)}</div>'
            for i, answers in enumerate(found)
        )

    foldings = {words: rows_at(sides, asked, depth) for words, depth in depths(sides).items()}
    data = {
        "start": start, "sizes": sizes,
        "foldings": [[numbers(rows, answers) for answers in found] for rows in foldings.values()],
    }  # fmt: skip
    script = _file("page.js")
    devices = " and ".join(dict.fromkeys(f"{s.model.name}: {s.model.device}" for s in sides))
    networks = " and ".join(dict.fromkeys(s.graph.name for s in sides))
    both = zip(sides, names, asked, strict=True)
    return Template(_file("page.html")).substitute(
        _table(sides, names, asked, foldings),
        title=element("title", f"{networks}: where the time goes"),
        heading=element("h1", networks),
        place=element("p", f"on {devices}", class_="place"),
        answers=of_sizes(lambda a: sections.answers(sides, names, a)),
        causes=of_sizes(lambda a: sections.causes(names, [*map(_whole, a)])) if several else "",
        hidden="" if several else "hidden",
        steps=str(len(sizes) - 1),
        start=str(start),
        ends=element("span", str(sizes[0])) + element("span", str(sizes[-1])),
        changes=sections.changes(sides, names, asked),
        doubts=of_sizes(lambda a: sections.doubts(names, a)),
        facts="".join(sections.facts(side, name, answer, several) for side, name, answer in both),
        words="".join(element("dt", word) + element("dd", text) for word, text in GLOSSARY.items()),
        style=_file("page.css"),
        script=script,
        # A Content-Security-Policy names the script by its hash.
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        data=embedded(data),
    )


def _table(
    sides: Sequence[Side], names: Sequence[str], asked: Sequence[Prediction],
    foldings: Mapping[str, Sequence[Row]],
) -> dict[str, str]:  # fmt: skip
    """The parts of the page for the table: its columns, rows, controls, and the legend."""
    several = len(sides) > 1
    heads: Sequence[Column] = ONE
    if several:
        times = [("time2" if s else "time", f"{name}, ms", "time") for s, name in enumerate(names)]
        heads = [*times, ("change", "difference", "share")]
    columns = [
        ("order", "#", "number"),
        ("name", "block", "block left"),
        ("", "", "bars left"),
        *heads,
    ]
    bodies = []
    for words, rows in foldings.items():
        opened = [_detail(sides, names, asked, row) for row in rows] if words == EVERY_BLOCK else []
        bodies.append(_body(rows, heads, opened))
    titles = {"order": "network order", "name": "name"}
    options = [(titles.get(key, words), key) for key, words, _ in columns if key]
    return {
        "two": "two" if several else "",
        "head": "".join(map(_head, columns)),
        "cols": "".join(f'<col class="{classes}">' for *_, classes in columns),
        "fold": "".join(element("option", words, value=str(i)) for i, words in enumerate(foldings)),
        "sort": "".join(element("option", words, value=key) for words, key in options),
        "legend": "".join(
            f'<li title="{escape(GLOSSARY.get(words, ""))}">{sections.swatch(key, words)}</li>'
            for key, (words, _) in FAMILIES.items()
        ),
        "bodies": "".join(bodies),
    }


def _detail(
    sides: Sequence[Side], names: Sequence[str], asked: Sequence[Prediction], row: Row
) -> str:
    """The content of a row that is open; "" of the call, of modules, of networks of MANY blocks."""
    parts = []
    for side, name, answer, blocks in zip(sides, names, asked, row.blocks, strict=True):
        of = f", batch size {answer.batch_size}" + f": {name}" * (len(sides) > 1)
        if len(blocks) == 1 and len(answer.names) <= MANY:
            parts.append(f"<div>{sections.detail(side, answer, row, blocks[0], of)}</div>")
    return f'<div class="sides">{"".join(parts)}</div>' if parts else ""


def _whole(answer: Prediction) -> dict[str, float]:
    """Milliseconds of a network by color."""
    summed = answer.block_terms.sum(axis=0)
    return by_family(dict(zip(answer.features, map(float, summed), strict=True)), answer.call_ms)


def _head(column: Column) -> str:
    """The head of a column, a button where it can be sorted by."""
    key, words, classes = column
    label = ' aria-label="network order"' if key == "order" else ""
    inner = escape(words) if words else '<span class="unseen">bar</span>'
    inner = f'<button type="button" data-sort="{key}"{label}>{inner}</button>' if key else inner
    return f'<th scope="col" role="columnheader" class="{classes}">{inner}</th>'


def _body(rows: Sequence[Row], columns: Sequence[Column], details: Sequence[str]) -> str:
    """The rows of a folding; the script fills in the numbers. `details`: of each row, hidden at first."""
    lines = []
    cells = "".join(f'<td role="cell" class="{classes}"></td>' for *_, classes in columns)
    for number, row in enumerate(rows, start=1):
        name = f"{element('b', row.label)} {element('span', row.summary)}"
        opened = details[number - 1] if details else ""
        state = ' aria-expanded="false"' if opened else " disabled"
        bars = "".join(f'<i class="bar{" second" * s}"></i>' for s in range(len(row.blocks)))
        lines.append(
            f'<tr role="row"><td role="cell" class="number">{number}</td><th scope="row" role="rowheader" '
            f'class="block"><button type="button"{state}>{name}</button></th><td role="cell" class="bars" '
            f'aria-hidden="true">{bars}</td>{cells}</tr>'
        )
        if opened:
            lines.append(
                f'<tr class="detail" role="row" hidden><td role="cell" colspan="{3 + len(columns)}">'
                f"{opened}</td></tr>"
            )
    return f'<tbody role="rowgroup" hidden>{"".join(lines)}</tbody>'


def embedded(data: Any) -> str:
    """JSON that stays data inside a <script>: no `<`, `>`, `&`, nor anything outside ASCII, as itself."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _file(name: str) -> str:
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")
