"""The answer on training: time, money, memory, where an iteration goes on each device; as it is shown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.errors import InputError
from lolat.graph import Graph
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
from lolat.web.devices import DeviceModel, rented, shown_path
from lolat.web.form import ChosenModel, Question, options
from lolat.web.latency import block_table


@dataclass(frozen=True)
class DeviceAnswer:
    """One device model's answer.

    `training`: on the devices that were asked for, over `link`; `option`: what they cost, `plan` what each
    number of devices costs; where `price_from` is "" nobody knows a price and their dollars mean nothing.
    `largest`: the largest batch that fits, None where the memory is not known.
    """

    device: DeviceModel
    chosen: ChosenModel
    training: TrainingPrediction
    option: Option
    plan: Plan
    link: Link
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

    @property
    def memory_words(self) -> str:
        """Whether an iteration fits into the device."""
        if self.memory_bytes is None:
            return "estimated, on each device; give the device's to see whether it fits"
        has = f"of {byte_size(self.memory_bytes)} on each device"
        if self.fits:
            return f"{has}: fits, and so would a batch of {self.largest:,}"
        if self.largest:
            return f"{has}: does not fit; the largest batch that does is {self.largest:,}"
        return f"{has}: does not fit; nor does a batch of 1"

    @property
    def parts(self) -> str:
        """What an iteration is made of, as far as the model tells it apart."""
        found = ((part, self.training.parts_ms.get(part)) for part in PARTS)
        return ", ".join(f"{part} {milliseconds(ms)}" for part, ms in found if ms)


def _answer(
    question: Question, chosen: ChosenModel, graph: Graph, device: DeviceModel, prices: Prices
) -> DeviceAnswer:
    """InputError, with its field, where the library refuses."""
    model = device.training
    assert model is not None
    trained: dict[int, TrainingPrediction] = {}
    rent, price_from = _rent(chosen, model, prices)

    def link(count: int) -> Link:
        return question.link_gbps or link_of(rent(count), model)

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
            sure = question.coverage
            return plan(predict, rent, devices, question.epochs, question.billing, coverage=sure)
        except InputError as error:
            error.data["field"] = field
            raise

    one = planned("devices", (question.devices,))
    # Those whose batches together are larger than the data set are left out of the table, if any is left.
    possible = tuple(k for k in question.compare if k * question.batch_size <= question.samples)
    memory = device.memory_bytes if chosen.memory_bytes is None else chosen.memory_bytes
    optimizer = optimizer_named(question.optimizer)
    return DeviceAnswer(
        device,
        chosen,
        trained[question.devices],
        one.options[0],
        planned("compare", possible or question.compare),
        link(question.devices),
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
    offer = Offer("", "", 0, price, source=source)
    return (lambda devices: Machines(offer, devices, devices, devices * price)), source


# ---- The command lines that give what a page shows.


def _commands(question: Question, answer: DeviceAnswer, file_name: str) -> list[str]:
    """`lolat cost`, where there is a price, and `lolat training predict`, for a POSIX shell.

    `file_name`: what a network that was given as a file is called. Options that are as without them are
    left out.
    """
    chosen = answer.chosen
    run = [shown_path(answer.device.path), *question.network.named(file_name)]
    run += ["--samples", str(question.samples), "--epochs", str(question.epochs)]
    run += ["--batch-size", str(question.batch_size)]

    def usual(link: Link | None) -> list[str]:
        values = {"optimizer": question.optimizer, "strategy": question.strategy,
                  "link_gbps": f"{link.gbps:.12g}" if link else "",
                  "coverage": f"{question.coverage:.12g}"}  # fmt: skip
        return options(values)

    lines = []
    if answer.price_from:
        devices = ["--replicas", ",".join(str(o.devices) for o in answer.plan.options)]
        money = [] if chosen.price is None else ["--price-per-hour", f"{chosen.price:.12g}"]
        money += options({"billing": question.billing})
        lines.append(["lolat", "cost", *run, *devices, *money, *usual(question.link_gbps)])
    run += ["--replicas", str(question.devices)] if question.devices > 1 else []
    if chosen.memory_bytes is not None:
        run += ["--memory-gib", f"{chosen.memory_bytes / 2**30:.12g}"]
    link = question.link_gbps
    if answer.device.training is not None and not link:  # without prices it knows no instances
        assumed = assumed_link(device_of(answer.device.training), question.devices)
        link = None if answer.link == assumed else answer.link
    lines.append(["lolat", "training", "predict", *run, *usual(link)])
    return [shlex.join(line) for line in lines]


# ---- The page's plain data.


def trainings(
    question: Question,
    graph: Graph,
    file_name: str,
    models: Mapping[str, DeviceModel],
    prices: Prices,
) -> dict[str, Any]:
    """The answer of each ticked model that knows of training, as the template needs it; InputError,
    with its field.
    """
    ticked = [(chosen, models[chosen.key]) for chosen in question.models]
    answers = [
        _answer(question, chosen, graph, device, prices)
        for chosen, device in ticked
        if device.training is not None
    ]
    several = len(answers) > 1
    warnings = []
    for a in answers:
        unsure = ["how sure the time is, is not known"] * (a.training.interval_s is None)
        whose = f"{a.device.key}: " if several else ""
        warnings += [whose + plain(w) for w in (*a.training.warnings, *unsure)]
    devices = "one device" if question.devices == 1 else f"each of {question.devices:,} devices"
    total, money = duration(answers[0].option.total_s), dollars(answers[0].option.dollars)
    return {
        "network": plain(graph.name),
        "run": f"{plural(question.epochs, 'epoch')} of {plural(question.samples, 'sample')}, batch "
        f"{question.batch_size:,} on {devices}, {question.optimizer}",
        "devices": question.devices,
        "cards": answers,
        "blocks": _blocks(answers),
        "plan": _plan(question, answers),
        "warnings": list(dict.fromkeys(warnings)),
        "title": f"{total} and {money}" if answers[0].price_from else total,
        "commands": [
            (
                f"The same {'costs' if line.startswith('lolat cost') else 'times'} in a terminal"
                f"{f': {a.device.key}' if several else ''}",
                line,
            )
            for a in answers
            for line in _commands(question, a, file_name)
        ],
        "left_out": ", ".join(LEFT_OUT),
    }


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
    return block_table(names, times, sentences)


@dataclass(frozen=True)
class _Row:
    """A row of the table over numbers of devices; `series`: of which device."""

    series: int
    answer: DeviceAnswer
    option: Option
    on_frontier: bool


def _plan(question: Question, answers: Sequence[DeviceAnswer]) -> dict[str, Any]:
    """The table over numbers of devices."""
    several = len(answers) > 1
    priced = [o for a in answers if a.price_from for o in a.plan.options]
    best = iter(frontier([(o.total_s, o.dollars) for o in priced]))
    rows = [
        _Row(i, a, o, bool(a.price_from) and next(best))
        for i, a in enumerate(answers)
        for o in a.plan.options
    ]
    in_money = [row for row in rows if row.answer.price_from]
    # Those whose batches together are larger than the data set.
    compared = {o.devices for o in answers[0].plan.options}
    missing = ", ".join(f"{k:,}" for k in question.compare if k not in compared)
    return {
        "rows": rows,
        "priced": bool(priced),
        "rented": any(row.option.instance_type for row in rows),
        "coverage": percent(question.coverage),
        "left_out": missing
        and f"Not shown: {missing} devices, whose batches of {question.batch_size:,} together are larger "
        f"than the data set of {question.samples:,} samples.",
        "sentence": _choice(in_money, several),
    }


def _choice(priced: Sequence[_Row], several: bool) -> str:
    """The cheapest and the fastest in words."""
    if not priced:
        return "Give a price to see what it costs."

    def words(row: _Row) -> str:
        where = f" of {row.answer.device.key}" if several else ""
        devices = plural(row.option.devices, "device") + where
        return f"{devices}, {duration(row.option.total_s)}, {dollars(row.option.dollars)}"

    found = [(row.option.dollars, row.option.total_s, row.option.devices, row) for row in priced]
    cheapest = min(found, key=lambda o: o[:3])[3]
    fastest = min(found, key=lambda o: (o[1], o[0], o[2]))[3]
    if cheapest is fastest:
        return f"Cheapest and fastest: {words(cheapest)}."
    return f"Cheapest: {words(cheapest)}. Fastest: {words(fastest)}."
