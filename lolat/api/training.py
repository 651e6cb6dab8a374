"""How long training takes on one device or several, and what it costs: one call for each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lolat import readers
from lolat.errors import InputError, arg
from lolat.fitting.intervals import COVERAGE, check_coverage
from lolat.graph import Graph
from lolat.io.results import Result, keys, of
from lolat.training.cost import (
    SECOND,
    Duration,
    Machines,
    Plan,
    Rent,
    device_of,
    is_price_of,
    link_of,
    machines_for,
    offers_for,
    plan,
    shown_device,
)
from lolat.training.cost.prices import Offer, accelerator_of, accelerators, find_prices, listed
from lolat.training.exchange import Link, assumed_link
from lolat.training.iteration import check_sizes, largest_batch, optimizer_named
from lolat.training.model import Training, TrainingPrediction, with_input
from lolat.training.replicas import ParallelPrediction, check_strategy, predict_parallel
from lolat.units import plain

# ---- What is asked: the same groups of words as on the command line.


@dataclass(frozen=True)
class Run:
    """The training that is asked about; `samples` None: of iterations alone."""

    batch_size: int
    optimizer: str = "sgd"
    samples: int | None = None
    epochs: int = 1
    coverage: float | None = None

    def checked(self, validation: int | None = None) -> Run:
        """The same with the optimizer's own name and a coverage; InputError for what cannot be."""
        check_sizes(self.batch_size, self.samples, self.epochs, validation)
        coverage = COVERAGE if self.coverage is None else self.coverage
        check_coverage(coverage)
        return replace(self, optimizer=optimizer_named(self.optimizer).name, coverage=coverage)


@dataclass(frozen=True)
class Exchange:
    """How devices exchange gradients, and what feeds them."""

    strategy: str = "ring"
    link_gbps: float | None = None
    no_overlap: bool = False
    input_ms: float = 0.0

    @property
    def link(self) -> Link | None:
        """The link that is given; InputError for one that cannot be."""
        return None if self.link_gbps is None else Link(self.link_gbps)


@dataclass(frozen=True)
class Payment:
    """What is rented, and at which price."""

    price_per_hour: float | None = None
    prices_file: str | None = None
    accelerator: str | None = None
    as_if: bool = False
    billing: str = SECOND

    def rent(self, model: Training) -> tuple[Rent, str]:
        """What is rented for a number of devices, and where its price is from."""
        offers, where = self._offers(model)

        def rent(devices: int) -> Machines:
            return machines_for(offers, devices)

        return rent, where

    def _offers(self, model: Training) -> tuple[tuple[Offer, ...], str]:
        price = self.price_per_hour
        if price is not None:
            if self.prices_file is not None:
                raise InputError(
                    f"{arg('price_per_hour')} and {arg('prices')} are two prices; give one of them"
                )
            return (Offer("", "", 0, price, source="--price-per-hour"),), "--price-per-hour"
        prices = find_prices(self.prices_file)
        device = device_of(model)
        name = self.accelerator or accelerator_of(device, prices.offers)
        if name is None:
            raise InputError(
                f"{prices.where} has no accelerator like {device!r}, the device of the model; give "
                f"{arg('price_per_hour')}, or {arg('as_if')} and {arg('accelerator')} with one of "
                f"{listed(accelerators(prices.offers))}"
            )
        offers = offers_for(model, prices.offers, name, prices.where)
        where = f"{name} in {prices.where}"
        if is_price_of(name, device):
            return offers, where
        shown = shown_device(model)
        if not self.as_if:
            raise InputError(
                f"the price is of {plain(name)}, the times of the model are of {shown}; give a model "
                f"of {plain(name)}, {arg('price_per_hour')} for {shown}, or {arg('as_if')} to take both "
                "all the same",
                code="other-device",
            )
        return offers, f"{where}, as if it were that of {shown}"


# ---- How long training takes.


@dataclass(frozen=True, repr=False)
class TrainingAnswer(Result):
    """How long training takes on `device`, and the memory of an iteration.

    `prediction` has the times; `available_bytes`: memory of each device, None where nobody knows;
    `largest_batch`: the largest batch in it; `assumed`: whether nobody gave the link. In JSON `devices`
    says how many train together, `hidden_ms` how much of the exchange the backward pass hides.
    """

    KEYS = (
        *of("prediction.training", *keys(TrainingPrediction)),
        *of("prediction.iteration", "devices", "strategy"),
        *of("prediction.link", "link=known_name", "link_gbps=gbps"), "prediction.iteration.hidden_ms",
        "available_bytes", "largest_batch",
    )  # fmt: skip

    prediction: ParallelPrediction
    device: str
    available_bytes: int | None
    largest_batch: int | None
    assumed: bool

    def words(self) -> str:
        """An iteration's time, and that of all epochs where there are samples."""
        return f"{self.prediction.training.words()}\non {plain(self.device)}"

    def rows(self) -> list[dict[str, Any]]:
        """One row: what was asked, an iteration and its parts in ms, an epoch and the whole in s."""
        (row,) = self.prediction.training.rows()
        return [row | {"replicas": self.prediction.iteration.devices}]


def predict_training(
    model: Training,
    network: Any,
    run: Run,
    exchange: Exchange,
    replicas: int = 1,
    validation: int | None = None,
    memory_gib: float | None = None,
    input_size: Any = None,
) -> TrainingAnswer:
    """Time of an iteration, an epoch and a whole training of a network, and the memory that it needs.

    `validation`: samples evaluated after each epoch; `memory_gib`: of each device, what was free when it
    was learned if None. InputError for what cannot be.
    """
    run = run.checked(validation)
    check_strategy(exchange.strategy, replicas)
    available = _available_bytes(model, memory_gib)
    link = exchange.link or assumed_link(device_of(model), replicas)
    graph = readers.read(network, input_size)
    answer = _predicted(model, graph, run, exchange, replicas, link, validation)
    optimizer = optimizer_named(run.optimizer)
    largest = None if available is None else largest_batch(graph, optimizer, available)
    return TrainingAnswer(answer, model.name, available, largest, exchange.link is None)


def _predicted(
    model: Training, graph: Graph, run: Run, exchange: Exchange, replicas: int, link: Link,
    validation: int | None = None,
) -> ParallelPrediction:  # fmt: skip
    """The checked `run` on some devices, waiting for its input too."""
    assert run.coverage is not None  # as it is checked
    answer = predict_parallel(
        model, graph, run.batch_size, run.samples, run.epochs, run.optimizer, run.coverage, replicas,
        link, exchange.strategy, overlap=not exchange.no_overlap, validation=validation,
    )  # fmt: skip
    return replace(answer, training=with_input(answer.training, exchange.input_ms, replicas))


def _available_bytes(model: Training, memory_gib: float | None) -> int | None:
    """Memory of a device: as said, or what the model's file has of it; None where nobody knows."""
    if memory_gib is not None:
        if not 0.0 < memory_gib < 2**30:
            raise InputError(
                f"{arg('memory_gib')} {memory_gib:g}: expected more than 0 GiB, such as 16"
            )
        return int(memory_gib * 2**30)
    environment = model.document.get("environment") or {}
    own = environment.get("available_bytes") if environment.get("device") == "cpu" else None
    return own if isinstance(own, int) and own > 0 else None


# ---- What training costs.


@dataclass(frozen=True)
class CostLink:
    """What the gradients of so many devices travel over; `link`: None where it was given."""

    devices: int
    link: str | None
    gbps: float


@dataclass(frozen=True, repr=False)
class CostAnswer(Result):
    """What a run takes and costs on each number of devices.

    `plan` has the options; `prices`: where the price is from; `links`: by the number of devices, what
    gradients travel over.
    """

    KEYS = (
        "model=device", "network", *of("run", "samples", "batch_size", "optimizer"), "exchange.link_gbps",
        "links=exchanged_over", "exchange.strategy", "prices", *of("plan", *Plan.KEYS),
    )  # fmt: skip

    plan: Plan
    device: str
    network: str
    run: Run
    exchange: Exchange
    links: Mapping[int, Link]
    prices: str
    warnings: tuple[str, ...]

    def words(self) -> str:
        """The cheapest and the fastest."""
        return f"{plain(self.network)} on {plain(self.device)}: {self.plan.words()}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each number of devices: what is rented, times in s, money in US$."""
        return self.plan.rows()

    @property
    def exchanged_over(self) -> tuple[CostLink, ...]:
        """The links of several devices."""
        several = [(k, link) for k, link in self.links.items() if k > 1]
        return tuple(CostLink(k, link.known_name, link.gbps) for k, link in several)


def cost_of(
    model: Training,
    network: Any,
    run: Run,
    exchange: Exchange,
    payment: Payment,
    replicas: Sequence[int] = (1,),
    input_size: Any = None,
) -> CostAnswer:
    """Time and money of training a network on each number of devices in `replicas`.

    Without storage and data transfer. InputError for what cannot be, and where there is no price.
    """
    given, run = exchange.link, run.checked()
    if run.samples is None:
        raise InputError("samples None: expected how many there are in the data set, such as 50000")
    check_strategy(exchange.strategy, max(replicas, default=0))
    rent, where = payment.rent(model)
    graph = readers.read(network, input_size)  # last, as it is what takes long
    links = {k: given or link_of(rent(k), model) for k in replicas}
    warnings: dict[str, None] = {}

    def predict(count: int) -> Duration:
        answer = _predicted(model, graph, run, exchange, count, links[count]).training
        warnings.update(dict.fromkeys(answer.warnings))
        assert answer.total_s is not None  # as there are samples
        return Duration(answer.total_s, answer.interval_s)

    assert run.coverage is not None
    options = plan(predict, rent, replicas, run.epochs, payment.billing, run.coverage)
    told = tuple(warnings)
    return CostAnswer(options, model.name, graph.name, run, exchange, links, where, told)
