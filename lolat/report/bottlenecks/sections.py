"""The parts of the report's page around the table: answers, causes, details of a row, changes, doubts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lolat.fitting.intervals import noise_floor
from lolat.graph.counts import GROUPS
from lolat.io.results import element, escape
from lolat.model.attribution import Counterfactual, explain
from lolat.model.prediction import CALL, Prediction, domain_words, interval_words, memory_words
from lolat.report.explanation import rate
from lolat.report.rows import TERMS, Row, bottleneck_sentence, familiar, rows, short_name
from lolat.units import digits, milliseconds, percent, plain, quantity, shapes_text

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
    """What a color stands for."""
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
    """A table with a caption, of cells that are HTML; the first cell of a row is its head."""

    def line(cells: Sequence[str]) -> str:
        others = "".join(f"<td>{cell}</td>" for cell in cells[1:])
        return f'<tr><th scope="row">{cells[0]}</th>{others}</tr>'

    first, *others = heads
    top = element("th", first, scope="col", class_="left")
    top += "".join(element("th", head, scope="col") for head in others)
    end = f"<tfoot>{line(foot)}</tfoot>" if foot else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"{element('caption', caption)}<thead><tr>{top}</tr></thead>"
        f"<tbody>{''.join(map(line, rows))}</tbody>{end}</table></div>"
    )


def swatch(key: str, words: str) -> str:
    """Words with their color in front."""
    return f'<i class="swatch {key}" aria-hidden="true"></i>{escape(words)}'


def signed(ms: float) -> str:
    """A difference of milliseconds."""
    return f"+{digits(ms)}" if ms > 0 else digits(ms).replace("-", "−")


# ---- The answers.


def answers(names: Sequence[str], predictions: Sequence[Prediction]) -> str:
    """The latency of each side, its interval, what its time is made of."""
    most = 1.04 * max(a.interval_ms[1] if a.interval_ms else a.latency_ms for a in predictions)
    parts = []
    for number, answer in enumerate(predictions):
        counts, size, ms = answer.counts, answer.batch_size, answer.latency_ms
        amount, _, unit = milliseconds(ms).partition(" ")
        rate = 1e3 * size / ms if ms else 0.0
        per = f"{digits(ms / size)} ms a sample, " if size > 1 else ""
        lines = [
            f"Batch size {size}: {per}{digits(rate) if rate < 1000 else quantity(rate)} samples a second",
            f"{quantity(counts['flops'], 'MACs')} · {quantity(counts['weights'])} weights · "
            f"{quantity(counts['acts'])} convolution activations",
            str(familiar(answer.query.graph)), memory_words(answer.memory),
        ]  # fmt: skip
        words = [element("p", bottleneck_sentence(answer))]
        if number:
            words.append(element("p", compared(names, [a.latency_ms for a in predictions])))
        words += [element("p", line, class_="dim") for line in lines if line]
        words.append(_domain(answer))
        head = element("h2", names[number]) if len(names) > 1 else ""
        shown = f'<data value="{ms!r}">{escape(amount)}</data> <small>{escape(unit)}</small>'
        kind = "answer second" if number else "answer" if len(names) > 1 else "answer only"
        parts.append(
            f'<div class="{kind}"><div>{head}<p class="ms">{shown}</p>{_interval(answer, most)}</div>'
            f'<div class="words">{"".join(words)}</div></div>'
        )
    return "".join(parts)


def compared(names: Sequence[str], times: Sequence[float]) -> str:
    """Which of two is how many times as fast."""
    slow, fast = (0, 1) if times[0] >= times[1] else (1, 0)
    ratio = times[slow] / (times[fast] or 1e-9)
    if ratio < 1.005:
        return f"{names[0]} and {names[1]} take the same time, within half a percent."
    return f"{names[fast]} is {digits(ratio)} times as fast as {names[slow]}."


def _interval(answer: Prediction, most: float) -> str:
    """The interval in words, and as a band on a line from 0 to `most` ms."""
    if answer.interval_ms is None:
        return ""
    low, high = (100 * t / most for t in answer.interval_ms)
    point = 100 * answer.latency_ms / most
    return element("p", interval_words(answer.interval_ms, answer.coverage).removeprefix(", ")) + (
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


def causes(names: Sequence[str], predictions: Sequence[Prediction]) -> str:
    """Milliseconds of two sides by cause, and their differences."""

    def cells(first: float, second: float) -> list[str]:
        return [digits(first), digits(second), signed(second - first)]

    first, second = ([by_family(row) for row in rows(p)] for p in predictions)
    sums = {key: [sum(r[key] for r in of_side) for of_side in (first, second)] for key in FAMILIES}
    lines = [[swatch(key, words_of(key)), *cells(*ms)] for key, ms in sums.items() if any(ms)]
    foot = ["together", *cells(*map(sum, zip(*sums.values(), strict=True)))]
    return table("Milliseconds by cause", ["cause", *names, "difference"], lines, foot)


# ---- A row that is open, at the batch size that was asked for.


def detail(answer: Prediction, row: Row, of: str) -> str:
    """The terms of a block, its operations, and the savings by changes of it. `of`: ends the captions."""
    label, query = row.label, answer.query
    block_name = answer.names[row.blocks[0]]
    explanation = explain(
        query.model, query.graph, answer.batch_size, answer.predictor, block=block_name
    )
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
    foot = ["together", "", "", digits(block.latency_ms), "100 %"]
    return (
        table(f"Where the time of {label} goes{of}", heads, terms, foot)
        + table(
            f"{label}, operation by operation{of}",
            ["operation", "ms", "of block", "most of it is"],
            operations,
        )
        + _saved(f"What a change of {label} would save{of}", explanation.counterfactuals, True)
    )


# ---- What a change would save.


def _saved(caption: str, savings: Sequence[Counterfactual], of_block: bool) -> str:
    if not savings:
        return element("p", f"{caption}: nothing that LoLat knows to try", class_="dim")
    heads = ["change", "saves, ms", *(["of block"] if of_block else []), "of network"]
    rows = [
        [escape(c.change + " *" * (c.in_domain is False)), digits(c.saves_ms),
         *([percent(c.of_block or 0.0)] if of_block else []), percent(c.of_network)]
        for c in savings
    ]  # fmt: skip
    return table(caption, heads, rows)


def changes(names: Sequence[str], predictions: Sequence[Prediction]) -> str:
    """What changes of each whole network would save."""
    parts = []
    for name, answer in zip(names, predictions, strict=True):
        of, query = f": {name}" if len(names) > 1 else "", answer.query
        caption = f"Each change counted anew and predicted, at batch size {answer.batch_size}{of}"
        explanation = explain(
            query.model, query.graph, answer.batch_size, answer.predictor, query.at_size
        )
        notes = "".join(element("p", plain(note), class_="dim") for note in explanation.notes)
        parts.append(f"<div>{_saved(caption, explanation.counterfactuals, False)}{notes}</div>")
    star = element("p", "* the changed network is outside the measured domain", class_="dim")
    return f'<div class="sides">{"".join(parts)}</div>{star if " *<" in "".join(parts) else ""}'


# ---- How sure it is.


def doubts(names: Sequence[str], predictions: Sequence[Prediction]) -> str:
    """The warnings of each prediction."""
    parts = []
    for name, answer in zip(names, predictions, strict=True):
        nothing = (
            "Every block is like what was measured on the device; there is nothing to remark."
            if answer.in_domain
            else "There is nothing to remark."
        )
        lines = "".join(element("li", plain(w)) for w in answer.warnings or (nothing,))
        head = element("h3", name) if len(names) > 1 else ""
        parts.append(f"{head}<ul>{lines}</ul>")
    return "".join(parts)


def facts(name: str, answer: Prediction) -> str:
    """Device, framework, when it was learned and how good it is, as a list."""
    model, graph = answer.query.model, answer.query.graph
    where: Mapping[str, Any] = model.document["environment"]
    predictor = model.document["predictors"][answer.predictor]
    rows = {"device": model.device}
    if "framework" in where:
        rows["framework"] = f"{where['framework']} {where.get('framework_version', '')}".strip()
    if isinstance(where.get("date"), str):
        rows["learned"] = where["date"][:16].replace("T", " ")
    rows["model"] = f"{model.name}, predictor {answer.predictor}"
    floor = noise_floor(model.document)
    if floor is not None:
        rows["noise floor"] = f"{percent(floor)}: measuring a block again differs by that"
    median = predictor.get("error", {}).get("left_out", {}).get("median")
    if median is not None:
        rows["median error"] = f"{percent(median)}, of blocks left out of the fit"
    rows["input"] = f"{shapes_text(graph.shapes(graph.inputs))} a sample"
    cells = "".join(element("dt", name) + element("dd", plain(rows[name])) for name in rows)
    head = element("h3", name) if name else ""
    return f"<div>{head}<dl>{cells}</dl></div>"
