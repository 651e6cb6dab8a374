"""The answers on latency: how long a forward pass takes on each device, the most that fits in a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from shlex import join
from typing import Any
from urllib.parse import urlencode

import numpy as np

from lolat.errors import AnswerIsNo, InputError, LolatError
from lolat.graph import Graph
from lolat.model import Model
from lolat.model.budget import BudgetAnswer, Step, budget, value_words
from lolat.model.prediction import Prediction
from lolat.report import rows as report_rows
from lolat.report.rows import bottleneck_sentence, enumeration
from lolat.units import milliseconds, percent, plain, quantity, shapes_text
from lolat.web import form
from lolat.web.devices import DeviceModel, shown_path

MOST_BLOCKS = 24
"""Rows of a table of blocks; of a longer network the rest is one row."""

Answers = Sequence[tuple[DeviceModel, list[Prediction]]]
"""Of each device a prediction for each batch size of the question."""

# ---- What the other tabs share.


def between(ends: tuple[float, float] | None, words: Callable[[float], str]) -> str:
    """An interval in words, "" for none."""
    if not ends:
        return ""
    low, high = map(words, ends)
    return f"{low.removesuffix(' ms') if high.endswith(' ms') else low} to {high}"


def block_table(
    names: Sequence[str], times: Sequence[Sequence[float]], sentences: Sequence[str]
) -> dict[str, Any]:
    """A table of blocks, in the network's order, the shortest of many together in one row, and its words.

    `times`: of each device, the ms of each block. A row has its name, which blocks it is of, and of each
    device ms and share; `longest` is the largest share.
    """
    ms = np.array(times)
    totals = ms.sum(axis=1, keepdims=True)
    shares = ms / np.where(totals == 0.0, 1.0, totals)
    order = np.argsort(-shares.max(axis=0), kind="stable").tolist()
    groups = [(names[i], [i]) for i in sorted(order[:MOST_BLOCKS])]
    if rest := sorted(order[MOST_BLOCKS:]):
        groups.append((f"{len(rest)} shorter ones together", rest))
    summed = [np.stack((ms, shares))[:, :, group].sum(axis=2) for _, group in groups]
    return {
        "rows": [
            {"name": name, "blocks": group, "of": None, "cells": pair.T.tolist()}
            for (name, group), pair in zip(groups, summed, strict=True)
        ],
        "longest": max(float(pair[1].max()) for pair in summed) or 1.0,
        "sentences": sentences,
    }


# ---- Latency.


def latencies(
    question: form.Question,
    graph: Graph,
    file_name: str,
    models: Mapping[str, DeviceModel],
    link: str,
) -> dict[str, Any]:
    """The answer of each ticked model that knows of latency, as the template needs it; InputError at the
    batch sizes. `link`: the query string of this view.
    """
    try:
        answers = [
            (device, [model.predict(graph, size) for size in question.batch])
            for device, model in _able(question, models)
        ]
    except InputError as error:
        error.data["field"] = "batch"
        raise
    network = question.network.named(file_name)
    counts = answers[0][1][0].counts
    batches = enumeration([f"{size:,}" for size in question.batch])
    cards = [
        {
            "device": device,
            "prediction": p,
            "remarks": [plain(w) for w in p.warnings],
            "report": f"/report?{link}&{urlencode({'only': device.key})}",
        }
        for device, (p, *_) in answers
    ]
    return {
        "network": plain(graph.name),
        "run": f"{shapes_text(graph.shapes(graph.inputs))}, batch {batches} · "
        f"{quantity(counts['flops'] // question.batch[0], 'MACs')}, {quantity(counts['weights'])} weights",
        "title": milliseconds(answers[0][1][0].latency_ms),
        "cards": cards,
        "compared": _compared(question, answers),
        "blocks": _blocks(answers),
        "commands": _commands(question, answers, network),
    }


def _able(
    question: form.Question, models: Mapping[str, DeviceModel]
) -> list[tuple[DeviceModel, Model]]:
    ticked = [models[m.key] for m in question.models]
    return [(device, device.latency) for device in ticked if device.latency is not None]


def sure_of(p: Prediction) -> str:
    """The interval in words."""
    if p.interval_ms is None or p.coverage is None:
        return "how sure this is, is not known: too few points"
    return f"{percent(p.coverage)} sure of {between(p.interval_ms, milliseconds)}"


def _compared(question: form.Question, answers: Answers) -> dict[str, Any] | None:
    """Of each batch size the longest time and (number, device, prediction) of each, the fastest first; None
    where there is nothing to compare.
    """
    if len(answers) * len(question.batch) < 2:
        return None
    groups = []
    for i, size in enumerate(question.batch):
        rows = [(series, device, found[i]) for series, (device, found) in enumerate(answers)]
        longest = max(p.latency_ms for _, _, p in rows) or 1.0
        groups.append((size, longest, sorted(rows, key=lambda row: row[2].latency_ms)))
    return {"groups": groups, "sentence": _fastest(question, answers)}


def _fastest(question: form.Question, answers: Answers) -> str:
    """Which device is the fastest, and where a sample takes the least."""
    found = []
    by_time = sorted((p[0].latency_ms, i) for i, (_, p) in enumerate(answers))
    (least, first), (most, last) = by_time[0], by_time[-1]
    if first != last:
        found.append(
            f"At batch {question.batch[0]:,}, {plain(answers[first][0].key)} is "
            f"{most / (least or 1e-9):.3g} times as fast as {plain(answers[last][0].key)}."
        )
    if len(question.batch) > 1:
        device, p = min(
            ((device, p) for device, own in answers for p in own),
            key=lambda both: both[1].latency_ms / both[1].batch_size,
        )
        found.append(
            f"A sample takes the least at batch {p.batch_size:,} on {plain(device.key)}: "
            f"{milliseconds(p.latency_ms / p.batch_size)}."
        )
    return " ".join(found)


def _blocks(answers: Answers) -> dict[str, Any]:
    """Where the first batch's time goes; of a single device also what most of each block's time is."""
    found = [report_rows.rows(own[0]) for _, own in answers]
    several = len(answers) > 1
    told_of = [(plain(device.key), bottleneck_sentence(own[0])) for device, own in answers]
    table = block_table(
        [row.label for row in found[0]],
        [[row.latency_ms for row in own] for own in found],
        [f"{key}: {said}" if several else said for key, said in told_of],
    )
    for line in table["rows"]:
        if len(line["blocks"]) == 1 and not several:
            line["of"] = row = found[0][line["blocks"][0]]
            line["most"] = report_rows.TERMS.get(row.bound_by, row.bound_by)
    return table


def _commands(
    question: form.Question, answers: Answers, network: Sequence[str]
) -> list[tuple[str, str]]:
    first, *others = (shown_path(device.path) for device, _ in answers)

    def line(name: str, sizes: Sequence[int], others: Sequence[str], *more: str) -> str:
        batch = [] if list(sizes) == [1] else ["--batch-size", ",".join(map(str, sizes))]
        beside = [word for other in others for word in ("--device", other)]
        return join(["lolat", name, first, *network, *batch, *beside, *more])

    page_of = line("report", question.batch[:1], (), "--html", "report.html")  # of the first alone
    return [
        ("The same times in a terminal", line("predict", question.batch, others)),
        ("Block by block, as a page in one file", page_of),
    ]


# ---- The most that fits in a time.


def budgets(
    question: form.Question,
    graph: Graph,
    file_name: str,
    models: Mapping[str, DeviceModel],
    at_size: Callable[[int], Graph],
    words: Callable[[LolatError], str],
) -> dict[str, Any]:
    """The answer of each ticked model that knows of latency, as the template needs it.

    `at_size` reads the network again at another resolution; what it raises, apart from InputError, comes
    through. `words`: an error in the page's words.
    """
    cards, lines = [], []
    sure = None if question.sure is None else question.sure / 100.0
    network, able = question.network.named(file_name), _able(question, models)
    for device, model in able:
        find = partial(
            budget, model, graph, question.max_ms, question.vary, question.at_batch, None, sure,
            sure is not None, None if question.network.uploaded else at_size,
        )  # fmt: skip
        cards.append({"device": device} | _most(find, words))
        run = [shown_path(device.path), *network, "--vary", question.vary]
        run += ["--max-ms", f"{question.max_ms:g}"]
        run += [] if question.sure is None else ["--sure", f"{question.sure:g}"]
        run += ["--batch-size", str(question.at_batch)] if question.at_batch > 1 else []
        title = f"The same in a terminal{f': {device.key}' if len(able) > 1 else ''}"
        lines.append((title, join(["lolat", "budget", *run])))
    at = "" if question.vary == "batch" else f", batch {question.at_batch:,}"
    sure_words = "" if sure is None else f", {percent(sure)} sure"
    what = {"width": "widest", "resolution": "largest input", "batch": "largest batch"}
    return {
        "network": plain(graph.name),
        "run": f"the {what[question.vary]} within {question.max_ms:g} ms{at}{sure_words}",
        "title": cards[0]["total"],
        "cards": cards,
        "commands": lines,
    }


def _most(find: Callable[[], BudgetAnswer], words: Callable[[LolatError], str]) -> dict[str, Any]:
    """One device's answer, or why there is none."""
    try:
        answer = find()
    except (AnswerIsNo, InputError) as error:
        return {
            "total": "does not fit", "refusal": words(error), "prediction": None, "rows": ()
        }  # fmt: skip
    p = answer.best.prediction
    return {
        "total": _value(answer.vary, answer.best.value),
        "prediction": p,
        "rows": _changes(answer),
        "remarks": [plain(w) for w in p.warnings],
    }


def _value(vary: str, value: float) -> str:
    return value_words(vary, value).replace("width x", "width × ")


def _changes(answer: BudgetAnswer) -> list[tuple[str, str, str]]:
    """(what, value, words): as it is, the next larger one, the sizes."""

    def line(when: str, step: Step) -> tuple[str, str, str]:
        p, what = step.prediction, f"{when}, {_value(answer.vary, step.value)}"
        return what, milliseconds(p.latency_ms), between(p.interval_ms, milliseconds)

    best = answer.best.prediction
    found = [line("Now", answer.now)]
    if answer.next is not None:
        found.append(line("Next", answer.next))
    else:
        found.append(("Next", "none", "larger is not tried, or cannot be read"))
    if answer.channels is not None:
        changed = [f"{a} → {b}" for a, b in answer.channels]
        more = f"and {len(changed) - 6} more" if len(changed) > 6 else ""
        found.append(("Channels", ", ".join(changed[:6]), more))
    macs, weights = quantity(best.counts["flops"], "MACs"), quantity(best.counts["weights"])
    return [*found, ("Then it has", macs, f"{weights} weights")]
