"""The answer on training: for each device its time, money, memory, and where an iteration goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.training.cost import Duration, Machines, Option, Plan, Rent, link_of, plan
from lolat.training.cost.prices import Offer, Prices
from lolat.training.exchange import Link
from lolat.training.memory import largest_batch, optimizer_named
from lolat.training.model import BlockTime, Training, TrainingPrediction, iteration_blocks
from lolat.training.replicas import predict_parallel
from lolat.web.devices import DeviceModel, rented
from lolat.web.forms import ChosenModel, FieldError, TrainingQuestion


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
