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
from lolat.web.forms import Asked, Chosen

# ---- The device models that a page offers: those named when the server was started, local and
# shipped ones.

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
        environment = _environment(self.model)
        # What was free when a CPU was learned; of a GPU that is the host's.
        free = environment.get("available_bytes") if environment.get("device") == "cpu" else None
        found = environment.get("memory_bytes", free)
        if isinstance(found, bool) or not isinstance(found, int | float) or not found > 0:
            return None
        return float(found)


@dataclass(frozen=True)
class Rented:
    """What the price list has for a device: its name there, the offers, and where they are from."""

    accelerator: str
    offers: tuple[Offer, ...]
    where: str

    def machines(self, devices: int) -> Machines:
        """The instances for a number of devices; InputError where there are none."""
        return machines_for(self.offers, devices, where=self.where)


class DeviceModels:
    """The list, looked up anew for each page; a file is read again only where it has changed."""

    def __init__(self, named: Sequence[Path] = ()) -> None:
        """`named`: files that whoever started the server gave; a page can never name a file."""
        self.named = [path.resolve() for path in named]
        self._read: dict[Path, tuple[tuple[int, int], DeviceModel | None]] = {}
        self._lock = threading.Lock()

    def all(self) -> list[DeviceModel]:
        """The models in order: those that can be used first. InputError where a folder cannot be read."""
        paths = [*self.named, *(path.resolve() for _, path, _ in places.list_models())]
        found: dict[str, DeviceModel] = {}
        for path in dict.fromkeys(paths):
            key, number = path.stem, 2
            while key in found:  # a local and a shipped one of the same name
                key, number = f"{path.stem}-{number}", number + 1
            model = self._known(path, key)
            if model is not None:
                found[key] = model
        return sorted(found.values(), key=lambda m: m.model is None)

    def _known(self, path: Path, key: str) -> DeviceModel | None:
        try:
            status = path.stat()
        except OSError:  # removed since the folder was listed
            return None
        stamp = (status.st_mtime_ns, status.st_size)
        with self._lock:
            known = self._read.get(path)
            if known is None or known[0] != stamp or (known[1] and known[1].key != key):
                known = self._read[path] = (stamp, _opened(path, key))
        return known[1]


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


def rented(model: Training, prices: Prices) -> Rented | None:
    """What the list has for a model's device, as `lolat cost` finds it without --price-per-hour."""
    name = accelerator_of(device_of(model), prices.offers)
    if name is None:
        return None
    try:
        offers = offers_for(model, prices.offers, name, prices.where)
    except InputError:
        return None
    where = f"{name} in {prices.where}"
    try:
        machines_for(offers, 1, where=where)
    except InputError:  # spot prices alone
        return None
    return Rented(name, offers, where)


class PriceList:
    """The prices of `lolat prices`; the list downloaded last is read again only where it has changed."""

    def __init__(self) -> None:
        self._known: tuple[object, Prices] | None = None

    def current(self) -> Prices:
        """What `lolat cost` takes without --price-per-hour or --prices; errors as `find_prices`."""
        try:
            status = refreshed_file().stat()
            stamp: object = (status.st_mtime_ns, status.st_size)
        except OSError:
            stamp = None
        known = self._known
        if known is None or known[0] != stamp:
            known = self._known = (stamp, find_prices())
        return known[1]


def prices_at_first(models: Sequence[DeviceModel], prices: Prices) -> dict[str, str]:
    """The price field of each usable model before anybody types: empty where the list has a price."""
    return {
        m.key: "" if rented(m.model, prices) else EXAMPLE_PRICE
        for m in models
        if m.model is not None
    }


def _environment(model: Training | None) -> dict[str, Any]:
    found = model.document.get("environment") if model is not None else None
    return found if isinstance(found, dict) else {}


# ---- answer ----------------------------------------


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
