"""The answer on training: time, money, memory, where an iteration goes on each device; as it is shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.report.charts import Dot, frontier_chart, key
from lolat.training.cost import (
    LEFT_OUT,
    Duration,
    Machines,
    Option,
    Plan,
    Rent,
    device_of,
    frontier,
    link_of,
    plan,
)
from lolat.training.cost.prices import Offer, Prices
from lolat.training.exchange import Link, assumed_link
from lolat.training.iteration import largest_batch, optimizer_named
from lolat.training.model import PARTS, BlockTime, Training, TrainingPrediction, iteration_blocks
from lolat.training.replicas import predict_parallel
from lolat.units import byte_size, dollars, duration, milliseconds, percent, plain, plural
from lolat.web.devices import DeviceModel, rented
from lolat.web.forms import ChosenModel, FieldError, TrainingQuestion
from lolat.web.parts import between, block_rows, named, options, shown_path


@dataclass(frozen=True)
class DeviceAnswer:
    """One device model's answer.

    `training`: on the devices that were asked for, over `link`; `option`: what they cost, `plan` what each
    number of devices costs; where `priced` is False nobody knows a price and their dollars mean nothing.
    `largest`: the largest batch that fits, None where the memory is not known.
    """

    device: DeviceModel
    training: TrainingPrediction
    option: Option
    plan: Plan
    link: Link
    priced: bool
    price_from: str
    memory_bytes: float | None
    largest: int | None
    blocks: tuple[BlockTime, ...]

    @property
    def fits(self) -> bool | None:
        """Whether an iteration fits into the device's memory; None where that is not known."""
        if self.memory_bytes is None:
            return None
        return self.training.memory_bytes <= self.memory_bytes


def answers(
    question: TrainingQuestion, graph: Graph, models: Mapping[str, DeviceModel], prices: Prices
) -> tuple[DeviceAnswer, ...]:
    """An answer of each model that is ticked and knows of training, in that order; FieldError where the
    library refuses."""
    chosen = [c for c in question.models if models[c.key].training is not None]
    return tuple(_answer(question, c, graph, models[c.key], prices) for c in chosen)


def _answer(
    question: TrainingQuestion,
    chosen: ChosenModel,
    graph: Graph,
    device: DeviceModel,
    prices: Prices,
) -> DeviceAnswer:
    model = device.training
    assert model is not None
    trained: dict[int, TrainingPrediction] = {}
    rent, price_from = _rent(chosen, model, prices)

    def link(count: int) -> Link:
        return question.link or link_of(rent(count), model, question.strategy)

    def predict(count: int) -> Duration:
        training = predict_parallel(
            model, graph, question.batch_size, question.samples, question.epochs, question.optimizer,
            question.coverage, count, link(count), question.strategy,
        ).training  # fmt: skip
        trained[count] = training
        assert training.total_s is not None  # as there are samples
        return Duration(training.total_s, training.interval_s)

    def planned(field: str, devices: tuple[int, ...]) -> Plan:
        try:
            return plan(
                predict,
                rent,
                devices,
                question.epochs,
                question.billing,
                coverage=question.coverage,
            )
        except InputError as error:
            raise FieldError(field, str(error)) from error

    one = planned("devices", (question.devices,))
    # Those whose batches together are larger than the data set are left out of the table, if any is left.
    possible = tuple(k for k in question.compare if k * question.batch_size <= question.samples)
    memory = device.memory_bytes if chosen.memory_bytes is None else chosen.memory_bytes
    optimizer = optimizer_named(question.optimizer)
    return DeviceAnswer(
        device,
        trained[question.devices],
        one.options[0],
        planned("compare", possible or question.compare),
        link(question.devices),
        bool(price_from),
        price_from,
        memory,
        None if memory is None else largest_batch(graph, optimizer, memory),
        iteration_blocks(model, graph, question.batch_size, question.optimizer),
    )


def _rent(chosen: ChosenModel, model: Training, prices: Prices) -> tuple[Rent, str]:
    """What is rented for a number of devices, and where its price is from, "" where none is known."""
    listed = rented(model, prices) if chosen.price is None else None
    if listed is not None:
        return listed.machines, listed.where
    price, source = chosen.price or 0.0, "" if chosen.price is None else "the price given"
    offer = Offer("", "", 0, price, price, source=source)
    return (lambda devices: Machines(offer, devices, devices, devices * price)), source


# ---- The command lines that give what a page shows.


def commands(
    question: TrainingQuestion, answer: DeviceAnswer, file_name: str, chosen: ChosenModel
) -> tuple[str, ...]:
    """`lolat cost`, where there is a price, and `lolat training predict`, for a POSIX shell.

    `file_name`: what a network that was given as a file is called. Options that are as without them are
    left out.
    """
    network = question.network
    run = [shown_path(answer.device.path), *named(network, file_name)]
    run += ["--samples", str(question.samples), "--epochs", str(question.epochs)]
    run += ["--batch-size", str(question.batch_size)]

    def usual(link: Link | None) -> list[str]:
        values = {"optimizer": question.optimizer, "strategy": question.strategy,
                  "link_gbps": f"{link.gbps:.12g}" if link else "",
                  "coverage": f"{question.coverage:.12g}"}  # fmt: skip
        return options(values)

    lines = []
    if answer.priced:
        devices = ["--replicas", ",".join(str(o.devices) for o in answer.plan.options)]
        money = [] if chosen.price is None else ["--price-per-hour", f"{chosen.price:.12g}"]
        money += options({"billing": question.billing})
        lines.append(["lolat", "cost", *run, *devices, *money, *usual(question.link)])
    run += ["--replicas", str(question.devices)] if question.devices > 1 else []
    if chosen.memory_bytes is not None:
        run += ["--memory-gib", f"{chosen.memory_bytes / 2**30:.12g}"]
    link = question.link
    if answer.device.training is not None and not link:  # without prices it knows no instances
        assumed = assumed_link(device_of(answer.device.training), question.devices)
        link = None if answer.link == assumed else answer.link
    lines.append(["lolat", "training", "predict", *run, *usual(link)])
    return tuple(map(shlex.join, lines))


# ---- The page's plain data.


def shown(
    question: TrainingQuestion, graph: Graph, file_name: str, answers: Sequence[DeviceAnswer]
) -> dict[str, Any]:
    """The answer as the template needs it."""
    chosen = {c.key: c for c in question.models}
    several = len(answers) > 1
    warnings = []
    for a in answers:
        unsure = ["how sure the time is, is not known"] * (a.training.interval_s is None)
        whose = f"{a.device.key}: " if several else ""
        warnings += [whose + plain(w) for w in (*a.training.warnings, *unsure)]
    devices = "one device" if question.devices == 1 else f"each of {question.devices:,} devices"
    cards = [_card(question, a, i if several else None) for i, a in enumerate(answers)]
    return {
        "network": plain(graph.name),
        "run": f"{plural(question.epochs, 'epoch')} of {plural(question.samples, 'sample')}, batch "
        f"{question.batch_size:,} on {devices}, {question.optimizer}",
        "several": several,
        "cards": cards,
        "blocks": _blocks(answers),
        "plan": _plan(question, answers),
        "warnings": list(dict.fromkeys(warnings)),
        "title": " and ".join(filter(None, (cards[0]["total"], cards[0]["dollars"]))),
        "commands": [
            (
                f"The same {'costs' if line.startswith('lolat cost') else 'times'} in a terminal"
                f"{f': {a.device.key}' if several else ''}",
                line,
            )
            for a in answers
            for line in commands(question, a, file_name, chosen[a.device.key])
        ],
        "left_out": ", ".join(LEFT_OUT),
    }


def _card(question: TrainingQuestion, answer: DeviceAnswer, series: int | None) -> dict[str, Any]:
    """One model's answer: the total first."""
    t, option = answer.training, answer.option
    assert t.total_s is not None
    assert t.epoch_s is not None
    # What an iteration is made of, as far as the model tells it apart.
    parts = ", ".join(f"{p} {milliseconds(ms)}" for p in PARTS if (ms := t.parts_ms.get(p)))
    rows = [
        ("An iteration", milliseconds(t.iteration_ms), parts),
        ("An epoch", duration(t.epoch_s), plural(t.iterations or 0, "iteration")),
    ]
    if t.startup_s:
        rows.append(("Starting", duration(t.startup_s), "more for the first epoch"))
    if question.devices > 1:
        whose = "assumed" if answer.link.name else "the link given"
        rows.append(("Gradients travel over", str(answer.link), whose))
    if answer.priced:
        source = ", ".join(filter(None, (_instances(option), plain(answer.price_from))))
        rows.append(("An hour costs", dollars(option.price_per_hour), source))
        rows.append(("An epoch costs", dollars(option.dollars_per_epoch), ""))
    rows.append(("Memory", byte_size(t.memory_bytes), _memory(answer)))
    sure = between(t.interval_s, duration)
    return {
        "key": answer.device.key,
        "mark": None if series is None else Markup(key(series)),
        "device": answer.device.device,
        "total": duration(t.total_s),
        "sure": f"{percent(t.coverage)} sure of {sure}" if sure else None,
        "dollars": dollars(option.dollars) if answer.priced else None,
        "dollars_sure": between(option.dollars_interval, dollars) if answer.priced else None,
        "rows": rows,
        "fits": answer.fits,
    }


def _instances(option: Option) -> str:
    return f"{option.instances} × {plain(option.instance_type)}" if option.instance_type else ""


def _memory(answer: DeviceAnswer) -> str:
    """Whether an iteration fits into the device."""
    if answer.memory_bytes is None:
        return "estimated, on each device; give the device's to see whether it fits"
    has = f"of {byte_size(answer.memory_bytes)} on each device"
    if answer.fits:
        return f"{has}: fits, and so would a batch of {answer.largest:,}"
    if answer.largest:
        return f"{has}: does not fit; the largest batch that does is {answer.largest:,}"
    return f"{has}: does not fit; nor does a batch of 1"


def _blocks(answers: Sequence[DeviceAnswer]) -> dict[str, Any]:
    """The table of an iteration, and what stands out."""
    names = [plain(block.name) for block in answers[0].blocks]
    times = [[block.iteration_ms for block in a.blocks] for a in answers]
    shares = [max(a.blocks[i].share for a in answers) for i in range(len(names))]
    sentences = []
    if any(shares):
        longest = max(range(len(names)), key=lambda i: shares[i])
        sentences.append(
            f"The longest of {len(names)}, {names[longest]}, takes {percent(shares[longest])} of an "
            "iteration on one device."
        )
    heads = [a.device.key for a in answers]
    return {"rows": block_rows(names, times), "heads": heads, "sentences": sentences}


@dataclass(frozen=True)
class _Row:
    """A row of the table over numbers of devices; `dollars` mean nothing where there is no price."""

    series: int
    answer: DeviceAnswer
    option: Option
    on_frontier: bool = False


def _plan(question: TrainingQuestion, answers: Sequence[DeviceAnswer]) -> dict[str, Any]:
    """The table over numbers of devices, and the chart of money and time."""
    several = len(answers) > 1
    rows = [_Row(i, a, o) for i, a in enumerate(answers) for o in a.plan.options]
    priced = [row for row in rows if row.answer.priced]
    best = frontier([(row.option.total_s, row.option.dollars) for row in priced])
    priced = [replace(row, on_frontier=b) for row, b in zip(priced, best, strict=True)]
    unpriced = [row for row in rows if not row.answer.priced]
    rows = sorted([*priced, *unpriced], key=lambda row: row.series)
    # Those whose batches together are larger than the data set.
    compared = {o.devices for o in answers[0].plan.options}
    missing = ", ".join(f"{k:,}" for k in question.compare if k not in compared)
    return {
        "rows": [_cells(row, several) for row in rows],
        "priced": bool(priced),
        "rented": any(row.option.instance_type for row in rows),
        "coverage": percent(question.coverage),
        "left_out": missing
        and f"Not shown: {missing} devices, whose batches of {question.batch_size:,} together are larger "
        f"than the data set of {question.samples:,} samples.",
        "sentence": _choice(priced, several),
        "chart": _chart(priced, several) if priced else None,
    }


def _cells(row: _Row, several: bool) -> dict[str, Any]:
    option, priced = row.option, row.answer.priced
    return {
        "model": row.answer.device.key,
        "mark": Markup(key(row.series)) if several else "",
        "devices": f"{option.devices:,}",
        "rented": _instances(option),
        "idle": plural(option.idle_devices, "device") + " idle" if option.idle_devices else "",
        "total": duration(option.total_s),
        "between": between(option.interval_s, duration) or "not known",
        "dollars": dollars(option.dollars) if priced else "",
        "dollars_between": between(option.dollars_interval, dollars) if priced else "",
        "on_frontier": row.on_frontier,
    }


def _choice(priced: Sequence[_Row], several: bool) -> str:
    """The cheapest and the fastest in words."""
    if not priced:
        return "Give a price to see what it costs."

    def words(row: _Row) -> str:
        where = f" of {row.answer.device.key}" if several else ""
        devices = plural(row.option.devices, "device") + where
        return f"{devices}, {duration(row.option.total_s)}, {dollars(row.option.dollars)}"

    options = [(row.option.dollars, row.option.total_s, row.option.devices, row) for row in priced]
    cheapest = min(options, key=lambda o: o[:3])[3]
    fastest = min(options, key=lambda o: (o[1], o[0], o[2]))[3]
    if cheapest is fastest:
        return f"Cheapest and fastest: {words(cheapest)}."
    return f"Cheapest: {words(cheapest)}. Fastest: {words(fastest)}."


def _chart(priced: Sequence[_Row], several: bool) -> Markup:
    dots, texts = [], []
    for row in priced:
        o = row.option
        dots.append(Dot(o.total_s, o.dollars, f"{o.devices:,}", row.series, row.on_frontier))
        whose = f"{row.answer.device.key}, " if several else ""
        devices = whose + plural(o.devices, "device")
        texts.append(f"{devices}: {duration(o.total_s)}, {dollars(o.dollars)}")
    return Markup(frontier_chart(dots, "; ".join(texts)))
