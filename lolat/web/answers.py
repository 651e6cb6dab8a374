"""Makes the answers of the tabs for the templates: a card for each device, and comparisons of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from shlex import join
from typing import Any
from urllib.parse import urlencode

from lolat.api.asking import compare
from lolat.api.choosing import in_mode_without_host
from lolat.api.model import Model
from lolat.api.predicting import ask
from lolat.api.profile_names import ALL
from lolat.device.attribution import AtSize
from lolat.device.budget import budget
from lolat.device.question import LatencyQuestion, Question
from lolat.device.summary import not_alike
from lolat.errors import AnswerIsNo
from lolat.graph import Graph
from lolat.io.results import answers_of
from lolat.llm.answer import BREAKDOWN, ServingConfig
from lolat.llm.compare import side_by_side
from lolat.llm.decoder import Decoder
from lolat.llm.question import ServingQuestion
from lolat.llm.refusal import refusal_of
from lolat.parameters import BEST
from lolat.report.cost import cost_parts, costs_parts, noted_lines
from lolat.report.cost_table import facts_of_training, legend, limits_words
from lolat.report.explanation import budget_lines, budgets_beside
from lolat.report.llm import (
    PRICE,
    breakdown,
    facts,
    llm_parts,
    load_line,
    row_words,
)
from lolat.report.llm_best import priced_gpus
from lolat.report.llm_offers import at_load, headline_words, sure_words
from lolat.report.llms import (
    EACH_LOAD,
    after_lines,
    by_price,
    compared_table,
    headlines,
    of_one_type,
    verdict_lines,
)
from lolat.report.ranked import Sentence, left_out_lines
from lolat.report.tables import ReportTable
from lolat.training.alternatives import offered
from lolat.training.choice import Choice
from lolat.training.compare import Costs, check_room, costs_of, joined, with_modes
from lolat.training.cost import Cost, CostRow, no_room
from lolat.training.listing import best_row
from lolat.training.prediction import check_limits
from lolat.training.question import TrainingQuestion
from lolat.units import by_text, capitalized, milliseconds, plain
from lolat.web.cards import (
    BudgetCard,
    Card,
    LatencyCard,
    ServingCard,
    SideBySide,
    TrainingCard,
)
from lolat.web.chart import is_crowded, loads_of
from lolat.web.devices import ListedDevice, on_page
from lolat.web.fields import COMPARING, MODE
from lolat.web.form import Form

Values = dict[str, Any]
"""Field name -> value, for the fields of a form."""
BEYOND = "not within the limits"
ROUNDED = 5e-4
"""Shares up to this are written as 0.0 %."""


def card(
    form: Form, question: Values, device: ListedDevice, subject: Any, at_size: AtSize | None
) -> Card:
    """The answer of a tab for one device; LolatError if the device has no answer."""
    if form.view == "llm":
        return _llm(form, question, device, subject)
    training = dict.fromkeys(("training", "decoder"), _training)
    make = {"latency": _latency, "budget": _budget, **training}[form.view]
    return make(form, question, device, subject, at_size)


def _command(name: str, form: Form, device: ListedDevice, *more: str) -> str:
    """The command line, for a POSIX shell, that gives the same figures as the page."""
    but = "host_us" if form.has_host and not device.model.has_host else ""
    return join(["lolat", name, device.argument, form.network(), *form.options(but), *more])


def _mode(question: Values) -> Values:
    """The fields of the execution mode that are set."""
    return {field.name: question[field.name] for field in MODE}


def model_as_asked(form: Form, device: ListedDevice, question: Values) -> Model:
    """The device's profile in the requested execution mode; "fastest" keeps the profile's own precision.

    A launch overhead is ignored for devices without a host, if another device has a host.
    """
    asked = LatencyQuestion(**_mode(question))
    return (
        in_mode_without_host(device.model, asked) if form.has_host else asked.device(device.model)
    )


def latencies(form: Form, question: Values, device: ListedDevice, graph: Graph) -> Any:
    """The card with a device's prediction for each batch size."""
    asked = LatencyQuestion(question["batch_size"], **_mode(question))
    return ask(graph, asked, [model_as_asked(form, device, question)])


def _latency(
    form: Form, question: Values, device: ListedDevice, graph: Graph, _: AtSize | None
) -> Card:
    predictions = latencies(form, question, device, graph)
    model = predictions[0].query.device
    return LatencyCard(
        device=device, name=plain(device.key), known=device.answered_by(model),
        command=_command("predict", form, device), predictions=predictions, shown=predictions[0],
    )  # fmt: skip


def show_largest(form: Form, cards: Sequence[LatencyCard]) -> list[LatencyCard]:
    """The cards of latencies, set to show the prediction, title and report of one batch size.

    This is the largest batch size that fits on the most devices: small batches are often host-bound.
    """
    of_size = zip(*(c.predictions for c in cards), strict=True)
    shown = max(of_size, key=lambda of: (sum(p.fits is not False for p in of), of[0].batch_size))
    link = form.link(batch_size=str(shown[0].batch_size))[1:]
    return [
        replace(
            card,
            shown=p,
            title="does not fit" if p.fits is False else milliseconds(p.latency_ms),
            report=f"/report{link}&{urlencode({'only': card.device.key})}",
        )
        for card, p in zip(cards, shown, strict=True)
    ]


def _budget(
    form: Form, question: Values, device: ListedDevice, graph: Graph, at_size: AtSize | None
) -> Card:
    vary, limit, sure = question["vary"], question["max_ms"], question["sure"]
    asked = Question(question["batch_size"], max_ms=limit, sure=sure)
    model = model_as_asked(form, device, question)
    about = BudgetCard(
        device=device, name=plain(device.key), known=device.answered_by(model),
        command=_command("budget", form, device),
    )  # fmt: skip
    try:
        answer = budget(model, graph, vary, asked, at_size, question["precision"])
    except AnswerIsNo as no:
        title = "nothing fits" if no.code == "over-budget" else "does not fit"
        remarks = (no.answer or {}).get("warnings", ())
        return replace(about, title=title, sentences=[Sentence(form.words(no))], remarks=remarks)
    best = answer.best.prediction.query.device
    return replace(
        about, title=answer.largest, bests=[(answer.largest, f"within {limit:g} ms")],
        lines=[*budget_lines(answer)],
        name=plain(device.key), known=device.answered_by(best), answer=answer,
    )  # fmt: skip


def _budgets_beside(cards: Sequence[BudgetCard]) -> SideBySide | None:
    """A table with the answer of each device, the largest first; None for fewer than two devices."""
    found = {card.name: card.answer for card in cards if card.answer}
    if len(found) < 2:
        return None
    largest, table = budgets_beside(found)
    best = next(card for card in cards if card.name == table.rows[0])
    noes = by_text((card.name, card.title) for card in cards if not card.answer)
    return SideBySide(
        bests=[(best.title, best.name)],
        sentences=largest.below_headline,
        table=table.html("The largest first"),
        lines=[f"{', '.join(names)}: {why}, as said below" for why, names in noes.items()],
    )


def _training_question(form: Form, question: Values) -> dict[str, Any]:
    """The arguments of `Model.cost` that the form sets."""
    asked = {field.name: question[field.name] for field in form.own_fields}
    return asked | {"input_size": question["sequence_length"] if form.subject.is_decoder else None}


def _training(
    form: Form, question: Values, device: ListedDevice, trained: Any, _: AtSize | None
) -> Card:
    asked = TrainingQuestion(**_training_question(form, question))
    cost = costs_of(device.model, trained, asked)
    ran = dict.fromkeys(plain(one.model) for one in answers_of(cost))
    is_own = form.subject.is_decoder or [*ran] == [plain(device.model.file.device)]
    known = device.name if is_own else "; ".join(ran)
    about = TrainingCard(
        device=device, name=plain(device.key), known=known,
        command=_command("cost", form, device), cost=cost,
    )  # fmt: skip
    if isinstance(cost, Costs):
        several = _compared_costs(
            form, _as_listed(form, cost), f"On {plain(device.key)}, the cheapest first"
        )
        remarks = dict.fromkeys(note for one in cost.answers for note in one.warnings)
        return replace(
            about, title=several.bests[0][0], bests=several.bests, facts=several.facts,
            sentences=several.sentences, lines=[several.about],
            table=several.table, legend=several.legend, after=several.lines, remarks=[*remarks],
        )  # fmt: skip
    if cost.fits is False:
        return replace(about, title="does not fit", sentences=[Sentence(no_room(cost))])
    before, by_number, after = cost_parts(cost)
    best, marks = cost.best, [*legend(cost, by_number.rows)]
    after = [line for line in after if line not in marks]
    title, no = _title_or_refusal(
        form, cost, cost.summary(best.devices) + limits_words(CostRow(cost, best))
    )
    aims = {"cheapest": cost.cheapest, "fastest": cost.fastest}
    are = [aim for aim, devices in aims.items() if devices == best.devices]
    return replace(
        about, title=title, bests=[(title, " and ".join(are))] if cost.options[1:] and not no else [],
        facts=[] if no else [*facts_of_training(cost, best)],
        sentences=_below_headline(no, before[1:]), lines=[before[0].first], after=after,
        legend=marks, remarks=cost.warnings,
        table=by_number.html(f"On {plain(device.key)}, by number of devices"),
    )  # fmt: skip


def _title_or_refusal(form: Form, cost: Cost | Costs, title: str) -> tuple[str, list[str]]:
    """(`title`, []); if no option fits or keeps the limits, (a title that says so, [the reason]); the least
    time and price follow the reason.
    """
    try:
        if isinstance(cost, Costs):
            check_room(cost)
        check_limits(cost, "" if isinstance(cost, Costs) else offered(cost))
    except AnswerIsNo as no:
        if no.code == "no-room":
            return "does not fit", [form.words(no)]
        return BEYOND, [form.words(no), capitalized(cost.least_words())]
    return title, []


def beside(
    form: Form, question: Values, cards: Sequence[Card], left_out: Mapping[str, str]
) -> SideBySide | None:
    """Compare several devices side by side, for the tabs What fits, training and serving.

    None for other tabs, and for fewer than two devices. `left_out`: device -> reason why it was not asked.
    """
    if form.view == "budget":
        return _budgets_beside([card for card in cards if isinstance(card, BudgetCard)])
    if len(cards) < 2 or form.view not in COMPARING:
        return None
    if form.view == "llm":
        served = [card for card in cards if isinstance(card, ServingCard)]
        return _served_beside(form, question, served, left_out)
    trained = [card for card in cards if isinstance(card, TrainingCard)]
    costs = [one for card in trained for one in answers_of(card.cost)]
    on = ",".join(card.device.argument for card in cards)
    return _costs(form, with_modes(joined(costs, {}, question["precision"])), on)


def trained_on_all(form: Form, question: Values, trained: Any) -> SideBySide:
    """Compare training on all devices and the user's own as a table; LolatError if none can answer."""
    asked = _training_question(form, question)
    on = ALL, *(device.argument for device in form.beside_all)
    costs = compare(trained, asked.pop("batch_size"), on, **asked)
    found = _costs(form, costs, ",".join(on))
    return replace(
        found, notes=[line.removeprefix("note").lstrip(": ") for line in noted_lines(costs, inf)]
    )


def _as_listed(form: Form, costs: Costs) -> Costs:
    """The costs of training, with each device named as in the page's list."""
    keys = {device.model.label: key for key, device in form.every.items()}

    def named(of: Any) -> Any:
        return replace(of, device=keys.get(of.device, of.device))

    def joined_of(of: Costs) -> Costs:
        return joined([*map(named, of.answers)], of.left_out, of.precision)

    others: dict[str, Any] = {
        name: (of := getattr(costs, name)) and named(of) for name in ("offer", "nearest")
    }
    for name in ("better_launch", "better_memory"):
        others[name] = {aim: named(choice) for aim, choice in getattr(costs, name).items()}
    others["by_launch"] = {way: joined_of(one) for way, one in costs.by_launch.items()}
    return replace(joined_of(costs), **others)


def _costs(form: Form, costs: Costs, on: str) -> SideBySide:
    costs = _as_listed(form, costs)
    command = join(["lolat", "cost", form.network(), "--on", on, *form.options()])
    found = _compared_costs(form, costs, "The cheapest first")
    lines = [*found.lines, *left_out_lines(on_page(costs.left_out), None)]
    return replace(found, lines=lines, command=command)


def _compared_costs(form: Form, costs: Costs, caption: str) -> SideBySide:
    """A comparison of several trainings, without its command line."""
    said, table, bests, after = costs_parts(costs)
    row, is_one = best_row(costs), len({cost.device for cost in costs.answers}) == 1
    title = ""
    if row:
        title = row.cost.summary(row.option.devices) if is_one else Choice.of(*row).words
        title += limits_words(row)
    found, no = _title_or_refusal(form, costs, title)
    aim, marks = "cheapest" if costs.cheapest else "fastest", [*legend(costs, table.rows)]
    return SideBySide(
        about=said,
        bests=[(found, "" if no else aim)],
        facts=[*facts_of_training(*row)] if row and not no else [],
        sentences=_below_headline(no, bests),
        table=table.html(caption) if table.rows else "",
        legend=marks,
        lines=[line for line in after if line not in marks],
    )


def _below_headline(no: Sequence[str], said: Sequence[Sentence]) -> list[Sentence]:
    """The sentences below the headline, which is the first choice in `said`, or the refusal `no`."""
    best = None if no else next((one for one in said if one.head), None)
    told = (one.below_headline if one is best else [one] for one in said)
    return [*map(Sentence, no), *chain(*told)]


# ---- Language models.


def _serving_question(form: Form, question: Values) -> dict[str, Any]:
    """The arguments of `Model.llm` that the form sets."""
    given = {field.name: question[field.name] for field in form.own_fields}
    return {name: value for name, value in given.items() if value is not None}


def _llm(form: Form, question: Values, device: ListedDevice, decoder: Decoder) -> Card:
    asked, no, told = _serving_question(form, question), list[str](), list[str]()
    try:
        answer = device.model.llm(decoder, **asked)
    except AnswerIsNo as error:
        if (refusal := refusal_of(error)) is None:
            raise
        no, answer, told = [form.words(error)], refusal.made, refusal.remarks
    # Of several rates the last is the largest, so that the rows of devices are of one load.
    row, bests = answer.chosen, list[ServingConfig]()
    if row.request_rate and answer.bests:
        *_, row = bests = [answer.served[n] for n in answer.bests]
    before, configurations, notes, best = llm_parts(answer)
    title = BEYOND if no else "does not fit"
    is_answer = not no and row.tpot_ms is not None
    several = bests if bests[1:] else []
    then = [_token_words(row, answer.asked.percentile)]
    if is_answer:
        title = priced_gpus(row)
        # Each of several headlines says itself how sure it is.
        then += [sure_words(row, answer.asked)] if not several else []
    return ServingCard(
        device=device, name=plain(device.key), known=device.name,
        command=_command("llm", form, device), title=title,
        then="; ".join(filter(None, then)) if is_answer else "",
        bests=[
            (priced_gpus(of), headline_words(of, answer.asked, at_load(of, False).strip()))
            for of in several
        ],
        sentences=[*map(Sentence, [*no, *best] if is_answer else no)], lines=before,
        table=_card_table(configurations).html(f"On {plain(device.key)}, {load_line(answer.served)}"),
        load=row.load_words, parts=_token_parts(row) if is_answer else [], row=row,
        facts=[fact for fact in facts(row, answer) if not (best and fact[0] == "Headroom")]
        if is_answer else [],
        answer=None if no else answer, after=notes if is_answer else [],
        remarks=[note for note in answer.warnings if note not in told],
        loads=[] if is_crowded(form) else loads_of(device.model, decoder, asked, answer),
    )  # fmt: skip


def _card_table(table: ReportTable) -> ReportTable:
    """The table on a card; under a request rate the price of tokens stands under the monthly price."""
    if table.rows[0].request_rate is None:
        return table
    columns = [replace(c, page="below") if c.head == PRICE else c for c in table.columns]
    return replace(table, columns=columns)


def _token_parts(row: ServingConfig) -> list[tuple[int, str, float]]:
    """(color, name, share) for each part of a token's time; the last entry sums all small parts."""
    parts = [(BREAKDOWN.index(name), words, share) for name, words, share in breakdown(row)]
    rest = 1.0 - sum(share for *_, share in parts)
    has_rest = parts and rest > ROUNDED
    return [*parts, (len(BREAKDOWN), "other", rest)] if has_rest else parts


def _token_words(row: ServingConfig, at: int | None) -> str:
    """A clause with the time per token under a load."""
    words = f"{milliseconds(row.token_times(at).token.ms)} a token{'' if at is None else f' at P{at}'}, "
    return words + row.load_words + (", waits for memory" if not row.fits else "")


def _served_beside(
    form: Form, question: Values, cards: Sequence[ServingCard], left_out: Mapping[str, str]
) -> SideBySide:
    """Compare the best rows of several devices under one load; table and cards have the cheapest first."""
    found = {c.device.key: c.answer for c in cards if c.answer and c.is_compared}
    asked = ServingQuestion(**_serving_question(form, question))
    several = side_by_side(found, asked, left_out)
    table, place = "", by_price(several, several.best_rows)
    if place:
        cards = sorted(cards, key=lambda card: [*place, card.device.key].index(card.device.key))
        each = f"The cheapest configuration of each, {load_line([*several.best_rows.values()])}"
        caption = EACH_LOAD.removesuffix(":") if several.by_load else each
        table = of_one_type(compared_table(several), caption)
    others = [c for c in cards if not c.is_compared]
    noes = by_text((plain(c.device.key), row_words(c.row) if c.answer else c.title) for c in others)
    on = [d.argument for d in (form.beside_all if form.is_all else (c.device for c in cards))]
    leaders = map(several.leaders, several.loads.values())
    best = dict.fromkeys(filter(None, (of["cheapest"] or of["fastest"] for of in leaders)))
    warned = [note for note in several.warnings_of(best) if note not in several.remarks]
    return SideBySide(
        cards=cards,
        bests=[*headlines(several)] or [(cards[0].title, plain(cards[0].device.key))],
        sentences=[*map(Sentence, [*verdict_lines(several), *warned])],
        table=table,
        lines=[
            *(f"{', '.join(names)}: {why}, as said below" for why, names in noes.items()),
            *several.remarks,
            *after_lines(several),
        ],
        command=join(
            [
                "lolat",
                "llm",
                ",".join(([ALL] if form.is_all else []) + on),
                form.network(),
                *form.options(),
            ]
        ),
    )


def unlike_remark(form: Form, question: Values, cards: Sequence[Card]) -> str:
    """The remark that devices answer in different precisions or launches; "" if they do not."""
    precision, launch = (form.fields.get(name) for name in ("precision", "launch"))
    if form.subject.is_decoder or precision is None or launch is None:
        return ""
    if question.get("precision") == BEST and not any(isinstance(c, LatencyCard) for c in cards):
        return ""  # a training in each device's fastest precision
    remedy = f'one for all in "{precision.label}"'
    remedy += ", or each device's fastest" if BEST in (precision.choices or ()) else ""
    models = (
        c.predictions[0].query.device
        if isinstance(c, LatencyCard)
        else model_as_asked(form, c.device, question)
        for c in cards
    )
    return not_alike(models, remedy, f'one for all in "{launch.label}"')
