"""The answer to a question: for each device model its time, money, memory, and where an iteration goes."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError
from lolat.graph import Graph
from lolat.io import paths as places
from lolat.io.documents import read_json
from lolat.model.file import LARGEST_BYTES
from lolat.training.cost import (
    Duration,
    Machines,
    Option,
    Plan,
    Rent,
    device_of,
    link_of,
    machines_for,
    offers_for,
    plan,
)
from lolat.training.cost.prices import Offer, Prices, accelerator_of, find_prices, refreshed_file
from lolat.training.exchange import Link
from lolat.training.file import load_training
from lolat.training.memory import largest_batch, optimizer_named
from lolat.training.model import BlockTime, Training, TrainingPrediction, iteration_blocks
from lolat.training.replicas import predict_parallel
from lolat.units import plain
from lolat.web.forms import ChosenModel, FieldError, Question

# ---- The device models that a page offers: those named when the server was started, local and
# shipped ones; and the prices of their devices.

EXAMPLE_PRICE = "1.00"
"""US$ an hour, filled in at first for a device that the price list does not know."""
_SCHEMAS = ("lolat-model", "lolat-training-model")


@dataclass(frozen=True)
class DeviceModel:
    """A model in the list: `key` names it in links; `model` is None where `lacking` says what it lacks."""

    key: str
    path: Path
    device: str
    model: Training | None
    lacking: str = ""

    @property
    def memory_bytes(self) -> float | None:
        """The memory of its device, where its file says that."""
        environment = self.model.document.get("environment") if self.model else None
        if not isinstance(environment, dict):
            return None
        # What was free when a CPU was learned; of a GPU that is the host's.
        free = environment.get("available_bytes") if environment.get("device") == "cpu" else None
        size = environment.get("memory_bytes", free)
        if isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
            return None
        return float(size)


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes with a file's contents; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


class DeviceModels:
    """The list, looked up anew for each page; a file is read again only where it has changed."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        """`named`: files that whoever started the server gave; a page can never name a file."""
        self.named = [path.resolve() for path in named]
        self._cache: dict[tuple[Path, str], tuple[object, DeviceModel | None]] = {}
        self._lock = threading.Lock()

    def all(self) -> list[DeviceModel]:
        """The models in order: those that can be used first. InputError where a folder cannot be read."""
        paths = [*self.named, *(path.resolve() for _, path, _ in places.list_models())]
        models: dict[str, DeviceModel] = {}
        for path in dict.fromkeys(paths):
            key, number = path.stem, 2
            while key in models:  # a local and a shipped one of the same name
                key, number = f"{path.stem}-{number}", number + 1
            stamp = _stamp(path)
            if stamp is None:  # removed since the folder was listed
                continue
            with self._lock:
                if self._cache.get((path, key), (None,))[0] != stamp:
                    self._cache[path, key] = stamp, _opened(path, key)
                model = self._cache[path, key][1]
            if model is not None:
                models[key] = model
        return sorted(models.values(), key=lambda m: m.model is None)


def _opened(path: Path, key: str) -> DeviceModel | None:
    """A file as it is listed; None for one that is of something else, such as of single layers."""
    try:
        model = load_training(path)
        label = model.document.get("device")
        shown = label if isinstance(label, str) else device_of(model)
        return DeviceModel(key, path, plain(shown), model)
    except LolatError as error:
        lacking = plain(str(error)).removeprefix(f"{path}: ")
    try:
        document: Any = read_json(path, "", LARGEST_BYTES)
    except LolatError:
        document = {}
    if not isinstance(document, dict) or document.get("schema") not in _SCHEMAS:
        return None
    device = document.get("device")
    return DeviceModel(key, path, plain(device) if isinstance(device, str) else "", None, lacking)


@dataclass(frozen=True)
class Rented:
    """What the price list has for a device: the offers, and their name and where they are from."""

    offers: tuple[Offer, ...]
    where: str

    def machines(self, devices: int) -> Machines:
        """The instances for a number of devices; InputError where there are none."""
        return machines_for(self.offers, devices, where=self.where)


def rented(model: Training, prices: Prices) -> Rented | None:
    """What the list has for a model's device, as `lolat cost` finds it without --price-per-hour."""
    name = accelerator_of(device_of(model), prices.offers)
    if name is None:
        return None
    try:
        offers = offers_for(model, prices.offers, name, prices.where)
        listed = Rented(offers, f"{name} in {prices.where}")
        listed.machines(1)
    except InputError:  # no offer for so many devices, or spot prices alone
        return None
    return listed


class PriceList:
    """The prices of `lolat prices`; the list downloaded last is read again only where it has changed."""

    def __init__(self) -> None:
        self._cache: tuple[object, Prices] | None = None

    def current(self) -> Prices:
        """What `lolat cost` takes without --price-per-hour or --prices; errors as `find_prices`."""
        stamp, cache = _stamp(refreshed_file()), self._cache
        if cache is None or cache[0] != stamp:
            cache = self._cache = (stamp, find_prices())
        return cache[1]


def prices_at_first(models: Sequence[DeviceModel], prices: Prices) -> dict[str, str]:
    """The price field of each usable model before anybody types: empty where the list has a price."""
    return {
        m.key: "" if rented(m.model, prices) else EXAMPLE_PRICE
        for m in models
        if m.model is not None
    }


# ---- The answer.


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
    question: Question, graph: Graph, models: Mapping[str, DeviceModel], prices: Prices
) -> tuple[DeviceAnswer, ...]:
    """An answer of each model that is ticked, in that order; FieldError where the library refuses."""
    return tuple(_answer(question, c, graph, models[c.key], prices) for c in question.models)


def _answer(
    question: Question, chosen: ChosenModel, graph: Graph, device: DeviceModel, prices: Prices
) -> DeviceAnswer:
    model = device.model
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
