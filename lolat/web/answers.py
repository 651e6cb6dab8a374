"""The answers of the tabs for their templates: a card for each device, and comparisons of devices."""

from __future__ import annotations

from collections.abc import Callable
from shlex import join
from typing import Any
from urllib.parse import urlencode

from lolat.api.model import Model
from lolat.api.predicting import priced
from lolat.arrays import np
from lolat.device.budget import budget, value_words
from lolat.device.prediction import Prediction
from lolat.device.question import Question
from lolat.device.running import precisions_differ
from lolat.errors import AnswerIsNo
from lolat.graph import Graph
from lolat.hardware.prices import price_list
from lolat.llm.answer import BREAKDOWN, ServingAnswer, ServingConfig
from lolat.llm.compare import side_by_side
from lolat.llm.decoder import Decoder
from lolat.llm.load import Trace
from lolat.llm.question import ServingQuestion
from lolat.parameters import BEST, POISSON
from lolat.report.cost import cost_parts
from lolat.report.explanation import budget_lines
from lolat.report.llm import (
    EACH_LOAD,
    breakdown,
    compared_table,
    facts,
    llm_parts,
    loads_table,
    unpriced_lines,
    verdict_lines,
)
from lolat.report.ranked import apart_words, assumed_hosts, left_out_lines
from lolat.report.rows import TERMS, block_rows, bottleneck_sentence
from lolat.report.tables import Column, ReportTable, element
from lolat.training.cost import no_room
from lolat.units import digits, dollars, duration, milliseconds, plain, plural
from lolat.web.devices import ListedDevice
from lolat.web.form import MODE, Form

Card = dict[str, Any]
"""The answer of one device: "device", "title" in large letters, "command", and the values of its tab."""
AtSize = Callable[[int], Graph]
"""Reads the network again at another resolution."""


def card(
    form: Form, question: Card, device: ListedDevice, subject: Any, at_size: AtSize | None
) -> Card:
    """The answer of a tab for one device. LolatError if there is none."""
    if form.view == "llm":
        return {"device": device} | _llm(form, question, device, subject)
    training = dict.fromkeys(("training", "decoder"), _training)
    make = {"latency": _latency, "budget": _budget, **training}[form.view]
    return {"device": device} | make(form, question, device, subject, at_size)


def _command(name: str, form: Form, device: ListedDevice, *more: str) -> str:
    """The command line that gives the same figures, for a POSIX shell."""
    return join(["lolat", name, device.argument, form.network(), *form.options(), *more])


def asked_of(device: ListedDevice, question: Card) -> Model:
    """The device's model in the execution mode that is asked for."""
    return device.model.run_as(*(question[field.name] for field in MODE))


def _latency(
    form: Form, question: Card, device: ListedDevice, graph: Graph, _: AtSize | None
) -> Card:
    model = asked_of(device, question)
    listed, sizes = price_list(), question["batch_size"]
    predictions = [priced(model.predict(graph, size), device.model, listed) for size in sizes]
    return {
        "title": "does not fit"
        if predictions[0].fits is False
        else milliseconds(predictions[0].latency_ms),
        "predictions": predictions,
        "command": _command("predict", form, device),
        "report": f"/report{form.link()[1:]}&{urlencode({'only': device.key})}",
    }


def _budget(
    form: Form, question: Card, device: ListedDevice, graph: Graph, at_size: AtSize | None
) -> Card:
    sure, vary = question["sure"], question["vary"]
    coverage, limit = None if sure is None else sure / 100.0, question["max_ms"]
    asked = Question(question["batch_size"], None, coverage, max_ms=limit, sure=sure is not None)
    command = _command("budget", form, device)
    try:
        answer = budget(asked_of(device, question), graph, vary, asked, at_size)
    except AnswerIsNo as no:
        title = "takes longer" if no.code == "over-budget" else "does not fit"
        return {"title": title, "lines": [form.words(no)], "command": command}
    title = value_words(vary, answer.best.value)
    return {"title": title, "lines": list(budget_lines(answer)), "command": command}


def _training(
    form: Form, question: Card, device: ListedDevice, trained: Any, _: AtSize | None
) -> Card:
    asked = {field.name: question[field.name] for field in form.own_fields}
    size = question["sequence_length"] if form.subject.is_decoder else None
    cost = device.model.cost(trained, input_size=size, **asked)
    if cost.fits is False:
        return {
            "title": "does not fit",
            "lines": [no_room(cost)],
            "command": _command("cost", form, device),
        }
    first, (before, by_number, after) = cost.first, cost_parts(cost)
    on = f" on {plural(first.devices, 'device')}" * (first is not cost.options[0])
    words = [f"{duration(first.total_s or 0.0)}{on}"]
    words += [] if first.dollars is None else [dollars(first.dollars)]
    ends = [" .. ".join(map(duration, first.interval_s))] if first.interval_s else []
    return {
        "title": ", ".join(words),
        "lines": [*(f"{100 * cost.coverage:g} % sure of {end}" for end in ends), before[0]],
        "after": [*before[1:], *after],
        "remarks": cost.warnings,
        "table": by_number.html(f"On {plain(device.key)}, by number of devices"),
        "command": _command("cost", form, device),
    }


# ---- Language models.

LOADS = tuple(round(2 ** (n / 2)) for n in (0, *range(2, 21)))
"""Concurrent requests of the chart."""
MOST_DRAWN = 4
"""The most devices in the chart: more of them are hard to read and take long."""
NO_LIMITS = dict.fromkeys(
    ("max_tpot_ms", "min_tokens_per_s", "max_ttft_ms", "gpus", "percentile", "sure")
)


def _given(form: Form, question: Card) -> Card:
    """The arguments of `Model.llm`."""
    given = {field.name: question[field.name] for field in form.own_fields}
    return {name: value for name, value in given.items() if value is not None}


def _llm(form: Form, question: Card, device: ListedDevice, decoder: Decoder) -> Card:
    asked, no = _given(form, question), []
    try:
        answer = device.model.llm(decoder, **asked)
    except AnswerIsNo as error:
        no, answer = [form.words(error)], error.data["made"]
    # Of several rates the largest, so that the rows of devices are of one load.
    row = answer.served[answer.bests[-1]] if answer.bests else answer.chosen
    at = answer.percentile
    before, configurations, after = llm_parts(answer)
    title = "does not fit"
    if no:
        title = "not within the limits"
    elif row.tpot_ms is not None:
        title = f"{milliseconds(row.judged(at)[0])} a token{'' if at is None else f' at P{at}'}, "
        title += row.load_words if row.fits else f"{row.load_words}, waits for memory"
    return {
        "title": title,
        "lines": [*no, *before],
        "table": configurations.html(f"On {plain(device.key)}, by requests and GPUs"),
        "load": row.load_words,
        "parts": [(BREAKDOWN.index(name), words, share) for name, words, share in breakdown(row)],
        "row": row,
        "facts": [*facts(row, answer)],
        "answer": None if no else answer,
        "ask": lambda more: device.model.llm(decoder, **asked | more),
        "after": after,
        "remarks": answer.warnings,
        "loads": _loads(device, decoder, asked, answer) if len(form.ticked) <= MOST_DRAWN else [],
        "command": _command("llm", form, device),
    }


def _loads(
    device: ListedDevice, decoder: Decoder, asked: Card, answer: ServingAnswer
) -> list[ServingConfig]:
    """Many loads on each number of GPUs that was asked for, else on each that holds the model."""
    free = asked | NO_LIMITS | {"request_rate": (), "arrivals": POISSON}
    if isinstance(trace := asked.get("arrivals"), Trace):
        tokens = map(round, trace.mean_tokens)
        free |= dict(zip(("input_tokens", "output_tokens"), tokens, strict=True))
    if not (parallel := asked["tensor_parallel"]):
        usual = device.model.llm(decoder, **free | {"concurrency": 1})
        parallel = sorted({row.tensor_parallel for row in (*usual.served, *answer.served)})
    every = sorted({*LOADS, *asked["concurrency"]})
    found = device.model.llm(decoder, **free | {"concurrency": every, "tensor_parallel": parallel})
    return [row for row in found.served if row.fits and row.tpot_ms and row.tokens_per_s_gpu]


def served_beside(form: Form, question: Card, cards: list[Card]) -> str:
    """The best rows of several devices under one load as a table; "" for fewer than two."""
    of = {c["device"].key: c for c in cards if c.get("answer") and c["answer"].compared}
    if len(of) < 2:
        return ""
    found = {key: card["answer"] for key, card in of.items()}
    asked = ServingQuestion(**_given(form, question))
    several = side_by_side(found, lambda key, more: of[key]["ask"](more), asked, {})
    lines = (
        *several.remarks,
        *verdict_lines(several),
        *unpriced_lines(several),
        *left_out_lines(several.left_out),
    )
    table = compared_table(several).html("The cheapest configuration of each")
    if several.by_load:
        table += loads_table(several).html(EACH_LOAD.removesuffix(":"))
    return table + "".join(element("p", line) for line in lines)


def chart(cards: list[Card]) -> Card | None:
    """All loads and numbers of GPUs by tokens/s of a request and of a GPU, in a square of 1 x 1.

    `dots`: place, color, words; `colors`: words of each color, which is a device's or, of one device, that
    of a split on GPUs; `front`: places of those that no other one beats in both; `rings`: places and
    words of the chosen rows; `ticks`: (label, place), of both axes. None if nothing is served.
    """
    loads = [(card["device"].key, row) for card in cards for row in card.get("loads", ())]
    if not loads:
        return None
    is_one = len({key for key, _ in loads}) == 1
    names = [
        plural(row.gpus, "GPU") + row.experts_words if is_one else plain(key) for key, row in loads
    ]
    splits = {row.expert_parallel for _, row in loads} != {1}
    colors = [*dict.fromkeys(names)]
    speeds = [(row.tokens_per_s_user or 0.0, row.tokens_per_s_gpu or 0.0) for _, row in loads]
    rows = [card["row"] for card in cards if card.get("answer") and card["answer"].compared]
    rings = [(row.tokens_per_s_user, row.tokens_per_s_gpu) for row in rows]
    chosen = [row.gpus_words if is_one else plain(row.device) for row in rows]
    front: list[int] = []
    for n in sorted(range(len(loads)), key=lambda n: speeds[n], reverse=True):
        if not front or speeds[n][1] > speeds[front[-1]][1]:
            front.append(n)
    logs = np.log(speeds + rings)
    low, high = logs.min(0) - 0.1, logs.max(0) + np.array([0.1, 0.4])  # words above

    def place(speeds: Any) -> list[float]:
        return ((np.log(speeds) - low) / (high - low)).tolist()

    ticks = [n * 10.0**power for power in range(-3, 6) for n in (1, 2, 5)]
    columns = [
        Column("device", lambda n: plain(loads[n][0]), is_text=True),
        Column("GPUs", lambda n: loads[n][1].gpus),
        Column("expert parallel", lambda n: loads[n][1].expert_parallel if splits else None),
        Column("requests", lambda n: loads[n][1].concurrency, "{:,}".format),
        Column("per token", lambda n: loads[n][1].tpot_ms, milliseconds),
        Column("tokens/s a request", lambda n: speeds[n][0], digits),
        Column("a GPU", lambda n: speeds[n][1], digits),
    ]
    return {
        "dots": [
            (place(speeds[n]), colors.index(names[n]), f"{plain(key)}: {row.load_words}")
            for n, (key, row) in enumerate(loads)
        ],
        "colors": colors,
        "front": [place(speeds[n]) for n in front],
        "rings": [(*place(ring), words) for ring, words in zip(rings, chosen, strict=True)],
        "ticks": [
            [(f"{tick:g}", at) for tick in ticks if 0.0 < (at := place((tick, tick))[axis]) < 1.0]
            for axis in (0, 1)
        ],
        "table": ReportTable(columns, front).html("The configurations on the line"),
    }


# ---- Latency: the devices beside each other.


Compared = tuple[int, float, list[tuple[int, Card, Prediction]], str]


def differ(form: Form, question: Card, cards: list[Card]) -> str:
    """The remark on devices that answer in precisions that differ; "" without them."""
    precision = form.fields.get("precision")
    if form.subject.is_decoder or precision is None or question["precision"] == BEST:
        return ""
    remedy = f'one for all in "{precision.label}"'
    remedy += ", or each device's fastest" * (BEST in (precision.choices or ()))
    models = (
        c["predictions"][0].query.model if "predictions" in c else asked_of(c["device"], question)
        for c in cards
    )
    return precisions_differ(models, remedy)


def compared(cards: list[Card], is_alike: bool) -> list[Compared]:
    """A comparison of the devices at each batch size; none for a single answer.

    It has the batch size; the longest time of all intervals; (number, card, prediction) of each device, the
    fastest first and those without room last; a sentence on devices that cannot be told apart, if the
    precisions are alike.
    """
    of_size = list(zip(*(c["predictions"] for c in cards), strict=True))
    if len(cards) * len(of_size) < 2:
        return []
    groups = []
    for predictions in of_size:
        lines = [(i, cards[i], p) for i, p in enumerate(predictions)]
        lines.sort(key=lambda line: (line[2].fits is False, line[2].latency_ms))
        longest = max(max(p.latency_ms, *(p.interval_ms or (0.0,))) for p in predictions) or 1.0
        names = [plain(card["device"].key) for _, card, _ in lines]
        times = {
            name: (p.latency_ms, p.interval_ms)
            for name, (_, _, p) in zip(names, lines, strict=True)
            if p.fits is not False
        }
        alike = assumed_hosts(predictions) if is_alike else ""
        if is_alike and not alike and names[0] in times:
            alike = apart_words(names[0], times, f"The fastest, {names[0]}, ")
        groups.append((predictions[0].batch_size, longest, lines, alike))
    return groups


def blocks(cards: list[Card]) -> dict[str, Any]:
    """The blocks at the first batch size: a row for each, with (ms, share) on each device."""
    of_devices = [c["predictions"][0] for c in cards]
    columns = [block_rows(p) for p in of_devices]
    lines = []
    for of_block in zip(*columns, strict=True):
        row = of_block[0]
        most = TERMS[row.bound_by] if len(cards) == 1 else ""
        cells = [(r.latency_ms, r.share) for r in of_block]
        lines.append({"name": row.label, "summary": row.summary, "cells": cells, "most": most})
    return {
        "rows": lines,
        "longest": max((share for line in lines for _, share in line["cells"]), default=0.0) or 1.0,
        "sentences": [bottleneck_sentence(p) for p in of_devices],
    }
