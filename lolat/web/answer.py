"""The answer to a question: for each device model its time, money, memory, and where an iteration goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.training.blocks import BlockTime, iteration_blocks
from lolat.training.cost.billing import Machines
from lolat.training.cost.catalogue import Offer
from lolat.training.cost.plan import Option, Plan, Rent, plan
from lolat.training.cost.prices import Prices
from lolat.training.cost.renting import device_of, link_of
from lolat.training.cost.spot import Duration
from lolat.training.memory import largest_batch
from lolat.training.model import Training, TrainingPrediction
from lolat.training.optimizers import optimizer_named
from lolat.training.parallel.links import Link
from lolat.training.parallel.prediction import predict_parallel
from lolat.web.asked import Asked, Chosen
from lolat.web.device_models import DeviceModel, rented


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


class Refused(InputError):
    """The library refused a question; `field` is where."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def answers(
    asked: Asked, graph: Graph, models: Mapping[str, DeviceModel], prices: Prices
) -> tuple[DeviceAnswer, ...]:
    """An answer of each model that is ticked, in that order; Refused where the library refuses."""
    return tuple(_answer(asked, c, graph, models[c.key], prices) for c in asked.models)


def _answer(
    asked: Asked, chosen: Chosen, graph: Graph, device: DeviceModel, prices: Prices
) -> DeviceAnswer:
    model = device.model
    assert model is not None
    trained: dict[int, TrainingPrediction] = {}
    rent, price_from = _rent(chosen, model, prices)

    def link(count: int) -> Link:
        return asked.link or link_of(rent(count), device_of(model))

    def predict(count: int) -> Duration:
        told = _predicted(asked, graph, model, count, link(count))
        trained[count] = told
        assert told.total_s is not None  # as there are samples
        return Duration(told.total_s, told.interval_s)

    def planned(field: str, devices: tuple[int, ...]) -> Plan:
        try:
            return plan(
                predict, rent, devices, asked.epochs, asked.billing, coverage=asked.coverage
            )
        except InputError as error:
            raise Refused(field, str(error)) from error

    one = planned("devices", (asked.devices,))
    # Those whose batches together are larger than the data set are left out of the table, if any is left.
    possible = tuple(k for k in asked.compare if k * asked.batch_size <= asked.samples)
    memory = device.memory_bytes if chosen.memory_bytes is None else chosen.memory_bytes
    optimizer = optimizer_named(asked.optimizer)
    return DeviceAnswer(
        device,
        trained[asked.devices],
        one.options[0],
        planned("compare", possible or asked.compare),
        link(asked.devices),
        bool(price_from),
        price_from,
        memory,
        None if memory is None else largest_batch(graph, optimizer, memory),
        iteration_blocks(model, graph, asked.batch_size, asked.optimizer),
    )


def _predicted(
    asked: Asked, graph: Graph, model: Training, count: int, link: Link
) -> TrainingPrediction:
    return predict_parallel(
        model, graph, asked.batch_size, asked.samples, asked.epochs, asked.optimizer,
        asked.coverage, count, link, asked.strategy,
    ).training  # fmt: skip


class _Rent:
    """K devices for K times a price."""

    def __init__(self, price: float, source: str) -> None:
        self.offer = Offer("", "", 0, price, price, source=source)

    def __call__(self, devices: int) -> Machines:
        assert self.offer.price is not None
        return Machines(self.offer, devices, devices, devices * self.offer.price)


def _rent(chosen: Chosen, model: Training, prices: Prices) -> tuple[Rent, str]:
    """What is rented for a number of devices, and where its price is from, "" where none is known."""
    if chosen.price is not None:
        return _Rent(chosen.price, "the price given"), "the price given"
    found = rented(model, prices)
    if found is None:
        return _Rent(0.0, ""), ""
    return found.machines, found.where
