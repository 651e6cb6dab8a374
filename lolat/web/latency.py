"""The answers on latency: how long a forward pass takes on each device, the most that fits in a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from shlex import join, quote
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from lolat.errors import AnswerIsNo, InputError
from lolat.fitting.domain import FOR_NETWORK
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.model.budget import BudgetAnswer, Question, Step, told
from lolat.model.prediction import Prediction, domain_words
from lolat.report.bottlenecks import Side, page
from lolat.report.charts import bar, key
from lolat.report.rows import View, module_paths, rows
from lolat.report.words import bottleneck_sentence, enumeration, familiar
from lolat.units import byte_size, milliseconds, percent, plain, quantity, shapes_text
from lolat.web.devices import DeviceModel
from lolat.web.forms import BudgetQuestion, FieldError, LatencyQuestion
from lolat.web.parts import between, block_rows, named, shown_path

# ---- Latency.


@dataclass(frozen=True)
class LatencyAnswer:
    """One device's answer: a prediction for each batch size of the question."""

    device: DeviceModel
    predictions: tuple[Prediction, ...]


def latencies(
    question: LatencyQuestion, graph: Graph, models: Mapping[str, DeviceModel]
) -> list[LatencyAnswer]:
    """An answer of each ticked model that knows of latency, in order; FieldError at the batch sizes."""
    found = []
    for device in (models[name] for name in question.models):
        if device.latency is not None:
            try:
                made = [device.latency.predict(graph, size) for size in question.batch]
            except InputError as error:
                raise FieldError("batch", str(error)) from error
            found.append(LatencyAnswer(device, tuple(made)))
    return found


def shown(
    question: LatencyQuestion,
    graph: Graph,
    file_name: str,
    answers: Sequence[LatencyAnswer],
    link: str,
) -> dict[str, Any]:
    """The answer as the template needs it. `link`: the query string of this view."""
    several = len(answers) > 1
    network = named(question.network, file_name)
    advised = " ".join(["--for", *map(quote, network)])
    figures = familiar(graph)
    batches = enumeration([f"{size:,}" for size in question.batch])
    cards = []
    for i, a in enumerate(answers):
        cards.append(_card(a, i if several else None, advised))
        cards[i]["report"] = f"/report?{link}&{urlencode({'only': a.device.key})}"
    pair = urlencode([("only", a.device.key) for a in answers[:2]])
    return {
        "network": plain(graph.name),
        "run": f"{shapes_text(graph.shapes(graph.inputs))}, batch {batches} · "
        f"{quantity(figures.macs, 'MACs')}, {quantity(figures.parameters)} parameters",
        "title": milliseconds(answers[0].predictions[0].latency_ms) if answers else "",
        "several": several,
        "cards": cards,
        "compared": _compared(question, answers),
        "blocks": _blocks(answers),
        "pair": f"/report?{link}&{pair}",
        "commands": _commands(question, answers, network),
    }


def _card(answer: LatencyAnswer, series: int | None, advised: str) -> dict[str, Any]:
    """The first batch size on one device, with what is to be said of it."""
    p = answer.predictions[0]
    rate = 1e3 * p.batch_size / (p.latency_ms or 1e-9)
    memory = [] if p.memory is None else [f"{byte_size(p.memory.total_bytes)} of memory"]
    return {
        **card_of(answer.device, series),
        "total": milliseconds(p.latency_ms),
        "beside": [f"{float(f'{rate:.3g}'):,g} samples a second", *memory],
        "sure": sure_of(p),
        "inside": p.in_domain,
        "domain": domain_words(p),
        "remarks": [plain(w.replace(FOR_NETWORK, advised)) for w in p.warnings],
    }


def card_of(device: DeviceModel, series: int | None) -> dict[str, Any]:
    """What heads a card; `series`: the device's color where there are several."""
    mark = None if series is None else Markup(key(series))
    told_later: dict[str, Any] = {
        "refusal": "",
        "report": "",
        "beside": [],
        "rows": [],
        "inside": None,
        "remarks": [],
    }
    return told_later | {"key": plain(device.key), "device": device.device, "mark": mark}


def sure_of(p: Prediction) -> str:
    """The interval in words."""
    if p.interval_ms is None or p.coverage is None:
        return "how sure this is, is not known: too few points"
    return f"{percent(p.coverage)} sure of {between(p.interval_ms, milliseconds)}"


def _compared(question: LatencyQuestion, answers: Sequence[LatencyAnswer]) -> dict[str, Any] | None:
    """Each device at each batch size, the fastest first; None where there is nothing to compare."""
    if not answers or len(answers) * len(question.batch) < 2:
        return None
    groups = []
    for i, size in enumerate(question.batch):
        both = [(a.device, d, a.predictions[i]) for d, a in enumerate(answers)]
        longest = max((p.interval_ms or (0.0, p.latency_ms))[1] for _, _, p in both) or 1.0
        lines = [
            {
                "key": plain(device.key),
                "mark": Markup(key(series)),
                "bar": Markup(bar(p.latency_ms / longest, series, _ends(p, longest))),
                "ms": milliseconds(p.latency_ms),
                "sure": between(p.interval_ms, milliseconds) or "not known",
                "each": milliseconds(p.latency_ms / size),
                "outside": p.in_domain is False,
            }
            for device, series, p in sorted(both, key=lambda b: b[2].latency_ms)
        ]
        groups.append({"batch": f"Batch {size:,}", "rows": lines})
    return {"groups": groups, "sentence": _fastest(question, answers)}


def _ends(p: Prediction, longest: float) -> tuple[float, float] | None:
    return p.interval_ms and (p.interval_ms[0] / longest, p.interval_ms[1] / longest)


def _fastest(question: LatencyQuestion, answers: Sequence[LatencyAnswer]) -> str:
    """Which device is the fastest, and where a sample takes the least."""
    found = []
    by_time = sorted(answers, key=lambda a: a.predictions[0].latency_ms)
    first, last = by_time[0], by_time[-1]
    if first is not last:
        ratio = last.predictions[0].latency_ms / (first.predictions[0].latency_ms or 1e-9)
        found.append(
            f"At batch {question.batch[0]:,}, {plain(first.device.key)} is {ratio:.3g} times as fast as "
            f"{plain(last.device.key)}."
        )
    if len(question.batch) > 1:
        a, p = min(
            ((a, p) for a in answers for p in a.predictions),
            key=lambda both: both[1].latency_ms / both[1].batch_size,
        )
        found.append(
            f"A sample takes the least at batch {p.batch_size:,} on {plain(a.device.key)}: "
            f"{milliseconds(p.latency_ms / p.batch_size)}."
        )
    return " ".join(found)


def _blocks(answers: Sequence[LatencyAnswer]) -> dict[str, Any] | None:
    """Where the first batch's time goes; of a single device also what most of each block's time is."""
    if not answers:
        return None
    found = [rows(a.predictions[0], (), View()) for a in answers]
    names = [row.label for row in found[0]]
    table = block_rows(names, [[row.latency_ms for row in own] for own in found])
    for line in table:
        whole = [found[0][i] for i in line["blocks"]]
        if len(whole) == 1 and len(answers) == 1:
            line |= {"summary": whole[0].summary, "most": whole[0].cell("most")}
    told_of = [(a.device.key, bottleneck_sentence(a.predictions[0])) for a in answers]
    several = len(answers) > 1
    return {
        "rows": table,
        "heads": [a.device.key for a in answers],
        "sentences": [f"{plain(k)}: {said}" if several else said for k, said in told_of],
    }


def _commands(
    question: LatencyQuestion, answers: Sequence[LatencyAnswer], network: Sequence[str]
) -> list[tuple[str, str]]:
    if not answers:
        return []
    first, *others = (shown_path(a.device.path) for a in answers)

    def line(name: str, sizes: Sequence[int], others: Sequence[str], *more: str) -> str:
        batch = [] if list(sizes) == [1] else ["--batch-size", ",".join(map(str, sizes))]
        beside = [word for other in others for word in ("--device", other)]
        return join(["lolat", name, first, *network, *batch, *beside, *more])

    # A page has two devices at most, at one batch size.
    page_of = line("report", question.batch[:1], others[:1], "--html", "report.html")
    return [
        ("The same times in a terminal", line("predict", question.batch, others)),
        ("Block by block, as a page in one file", page_of),
    ]


def report(
    question: LatencyQuestion, graph: Graph, file_name: str, devices: Sequence[DeviceModel]
) -> str:
    """The page of `lolat report --html`, of one device or of two beside each other."""
    network = named(question.network, file_name)
    advised = " ".join(["--for", *map(quote, network)])
    paths = module_paths(graph, cut(graph))
    sides = [
        Side(d.latency, graph, paths, shown_path(d.path), network[0], advised)
        for d in devices
        if d.latency is not None
    ]
    return page(sides, question.batch[0])


# ---- The most that fits in a time.


def budgets(
    question: BudgetQuestion,
    graph: Graph,
    file_name: str,
    models: Mapping[str, DeviceModel],
    at_size: Callable[[int], Graph],
) -> dict[str, Any]:
    """The answer as the template needs it, of each ticked model that knows of latency.

    `at_size` reads the network again at another resolution; what it raises, apart from InputError, comes
    through.
    """
    able = [d for d in (models[name] for name in question.models) if d.latency is not None]
    several = len(able) > 1
    cards, lines = [], []
    network = named(question.network, file_name)
    for i, device in enumerate(able):
        assert device.latency is not None
        asked = Question(
            device.latency, graph, question.max_ms, question.at_batch, None, question.sure,
            question.sure is not None, None if question.network.uploaded else at_size,
        )  # fmt: skip
        cards.append(card_of(device, i if several else None) | _most(asked, question.vary))
        run = [shown_path(device.path), *network, "--vary", question.vary]
        run += ["--max-ms", f"{question.max_ms:g}"]
        run += [] if question.sure is None else ["--sure", f"{100 * question.sure:g}"]
        run += ["--batch-size", str(question.at_batch)] if question.at_batch > 1 else []
        words = f"The same in a terminal{f': {device.key}' if several else ''}"
        lines.append((words, join(["lolat", "budget", *run])))
    at = "" if question.vary == "batch" else f", batch {question.at_batch:,}"
    sure = "" if question.sure is None else f", {percent(question.sure)} sure"
    what = {"width": "widest", "resolution": "largest input", "batch": "largest batch"}
    return {
        "network": plain(graph.name),
        "run": f"the {what[question.vary]} within {question.max_ms:g} ms{at}{sure}",
        "title": cards[0]["total"] if cards else "",
        "several": several,
        "cards": cards,
        "commands": lines,
    }


def _most(question: Question, vary: str) -> dict[str, Any]:
    """One device's answer, or why there is none."""
    try:
        answer = question.answer(vary)
    except (AnswerIsNo, InputError) as error:
        # What the command line mends with an option is a field here.
        said = re.sub(
            r"give --(?:max-)?ms (\S+) or more", r"allow \1 ms or more", plain(str(error))
        )
        return {"total": "does not fit", "refusal": said, "sure": ""}
    p = answer.best.prediction
    return {
        "total": _value(vary, answer.best.value),
        "sure": f"takes {milliseconds(p.latency_ms)}, {sure_of(p)}",
        "rows": _changes(answer),
        "inside": p.in_domain,
        "domain": domain_words(p),
        "remarks": [plain(w) for w in p.warnings],
    }


def _value(vary: str, value: float) -> str:
    return told(vary, value).replace("width x", "width × ")


def _changes(answer: BudgetAnswer) -> list[tuple[str, str, str]]:
    """(what, value, words): as it is, the next larger one, the sizes."""

    def line(step: Step) -> tuple[str, str]:
        p = step.prediction
        return milliseconds(p.latency_ms), between(p.interval_ms, milliseconds)

    vary, best = answer.vary, answer.best.prediction
    found = [(f"Now, {_value(vary, answer.now.value)}", *line(answer.now))]
    if answer.next is not None:
        found.append((f"Next, {_value(vary, answer.next.value)}", *line(answer.next)))
    else:
        why = plain(answer.refusal) if answer.refusal else "larger is not tried"
        found.append(("Next", "none", why))
    if answer.channels is not None:
        changed = [f"{a} → {b}" for a, b in answer.channels]
        more = f"and {len(changed) - 6} more" if len(changed) > 6 else ""
        found.append(("Channels", ", ".join(changed[:6]), more))
    macs, weights = quantity(best.counts["flops"], "MACs"), quantity(best.counts["weights"])
    return [*found, ("Then it has", macs, f"{weights} weights")]
