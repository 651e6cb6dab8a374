"""The answer on training, as the page's template needs it: what `lolat cost` says of each ticked device."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.training.cost import Cost, cost, frontier
from lolat.training.model import TrainingPrediction, TrainingRun
from lolat.units import dollars, duration, milliseconds, percent, plain, plural
from lolat.web.devices import PRICES, DeviceModel, shown_path
from lolat.web.form import ChosenModel, Question, options


@dataclass(frozen=True)
class Card:
    """One device: its `cost` on all numbers of devices, `option` on the number that was asked for."""

    device: DeviceModel
    chosen: ChosenModel
    cost: Cost
    option: TrainingPrediction

    @property
    def fits(self) -> bool | None:
        """Whether an iteration fits into the device's memory; None if that is not known."""
        available = self.cost.available_bytes
        return None if available is None else self.cost.memory_bytes <= available

    @property
    def parts(self) -> str:
        """The parts of an iteration, where the model tells them apart."""
        return ", ".join(f"{p} {milliseconds(ms)}" for p, ms in self.option.parts_ms.items() if ms)


def trainings(
    question: Question,
    graph: Graph,
    file_name: str,
    models: Mapping[str, DeviceModel],
) -> dict[str, Any]:
    """The answer of each ticked model that knows of training; InputError, with its field."""
    run = TrainingRun(
        question.batch_size, question.samples, question.epochs, question.optimizer, question.coverage
    )  # fmt: skip
    run.check_batch(question.devices)
    # Numbers of devices whose batches together are larger than the data set are left out.
    compared = [k for k in question.compare if k * run.batch_size <= question.samples]
    missing = [f"{k:,}" for k in question.compare if k not in compared]
    if not compared:
        raise InputError(
            f"a batch of {run.batch_size} on each of {question.compare[0]} devices is larger than the data "
            f"set of {question.samples} samples; compare fewer devices",
            field="compare",
        )
    cards = []
    for chosen in question.models:
        device = models[chosen.key]
        if device.training is None:
            continue
        answer = cost(
            device.training, graph, run, sorted({question.devices, *compared}),
            link_gbps=question.link_gbps, price_per_hour=chosen.price,
            prices=PRICES if chosen.price is None else None,
            memory_gib=chosen.memory_gib,
        )  # fmt: skip
        cards.append(Card(device, chosen, answer, answer.option(question.devices)))
    several = len(cards) > 1
    warnings = []
    for card in cards:
        unsure = ["how sure the time is, is not known"] * (card.option.interval_s is None)
        prefix = f"{card.device.key}: " if several else ""
        warnings += [prefix + plain(w) for w in (*card.cost.warnings, *unsure)]
    devices = "one device" if question.devices == 1 else f"each of {question.devices:,} devices"
    first = cards[0].option
    title = [duration(first.total_s or 0.0)]
    title += [] if first.dollars is None else [dollars(first.dollars)]
    return {
        "network": plain(graph.name),
        "run": f"{plural(run.epochs, 'epoch')} of {plural(question.samples, 'sample')}, batch "
        f"{run.batch_size:,} on {devices}, {run.optimizer}",
        "devices": question.devices,
        "cards": cards,
        "plan": _plan(cards, compared)
        | {
            "coverage": percent(run.coverage),
            "left_out": missing
            and f"Not shown: {', '.join(missing)} devices, whose batches of {run.batch_size:,} together "
            f"are larger than the data set of {question.samples:,} samples.",
        },
        "warnings": list(dict.fromkeys(warnings)),
        "title": " and ".join(title),
        "commands": [
            (
                f"The same figures in a terminal{f': {card.device.key}' if several else ''}",
                _command(question, card, file_name),
            )
            for card in cards
        ],
    }


def _command(question: Question, card: Card, file_name: str) -> str:
    """The `lolat cost` that gives what the page shows, for a POSIX shell, without options as at first.

    `file_name`: the name of a network that was given as a file.
    """
    words = ["lolat", "cost", shown_path(card.device.path), *question.network.named(file_name)]
    words += ["--samples", str(question.samples), "--epochs", str(question.epochs)]
    words += ["--batch-size", str(question.batch_size)]
    words += ["--replicas", ",".join(str(o.devices) for o in card.cost.options)]
    if card.chosen.price is not None:
        words += ["--price-per-hour", f"{card.chosen.price:.12g}"]
    if card.chosen.memory_gib is not None:
        words += ["--memory-gib", f"{card.chosen.memory_gib:.12g}"]
    link = question.link_gbps
    values = {
        "optimizer": question.optimizer,
        "link_gbps": f"{link:.12g}" if link else "",
        "coverage": f"{question.coverage:.12g}",
    }
    return shlex.join([*words, *options(values)])


def _plan(cards: Sequence[Card], compared: Sequence[int]) -> dict[str, Any]:
    """The table over numbers of devices: rows of (series of the card, card, option, on the frontier)."""
    cells = [(i, card, card.cost.option(k)) for i, card in enumerate(cards) for k in compared]
    priced = [o for _, _, o in cells if o.dollars is not None]
    best = iter(frontier([(o.total_s or 0.0, o.dollars or 0.0) for o in priced]))
    rows = [(*cell, cell[2].dollars is not None and next(best)) for cell in cells]
    return {
        "rows": rows,
        "priced": bool(priced),
        "rented": any(o.rented and o.rented.instance_type for _, _, o in cells),
        "sentence": _choice(
            [(card, o) for _, card, o in cells if o.dollars is not None], len(cards) > 1
        ),
    }


def _choice(priced: Sequence[tuple[Card, TrainingPrediction]], several: bool) -> str:
    """The cheapest and the fastest in words."""
    if not priced:
        return "Give a price to see what it costs."

    def words(choice: tuple[Card, TrainingPrediction]) -> str:
        card, option = choice
        return card.cost.summary(option.devices) + (f" of {card.device.key}" if several else "")

    def money_then_time(choice: tuple[Card, TrainingPrediction]) -> tuple[float, float, int]:
        return choice[1].dollars or 0.0, choice[1].total_s or 0.0, choice[1].devices

    cheapest = min(priced, key=money_then_time)
    fastest = min(priced, key=lambda c: (c[1].total_s or 0.0, c[1].dollars or 0.0, c[1].devices))
    if cheapest is fastest:
        return f"Cheapest and fastest: {words(cheapest)}."
    return f"Cheapest: {words(cheapest)}. Fastest: {words(fastest)}."
