"""The JSON answers on training and its cost; see `lolat.api.answers`."""

from __future__ import annotations

from typing import TypedDict

from lolat.api.answers.inference import Interval
from lolat.training.cost import Option
from lolat.training.cost.prices import Offer

# ---- training, cost, prices, link


class Training(TypedDict):
    """How long training takes; what was not asked for is null. The parts add up to an iteration.

    `interval_s` is of `total_s`. `devices`: how many train together; `hidden_ms`: what of the exchange
    happens during the backward pass.
    """

    network: str
    batch_size: int
    optimizer: str
    samples: int | None
    epochs: int
    iterations: int | None
    iteration_ms: float
    parts_ms: dict[str, float | None]
    epoch_s: float | None
    total_s: float | None
    interval_s: Interval | None
    coverage: float
    memory_bytes: int
    weights_bytes: int
    warnings: list[str]
    startup_s: float | None
    evaluation_s: float | None
    devices: int
    strategy: str
    link: str | None
    link_gbps: float
    hidden_ms: float
    available_bytes: int | None
    largest_batch: int | None


class TrainingFit(TypedDict):
    """A model of epochs: how many rows, and the relative error of the half of them that is nearest."""

    output: str
    name: str
    epochs: int
    networks: int
    optimizers: list[str]
    drop_last: bool
    left_out_error: float
    terms: list[str]


class CostLink(TypedDict):
    """What the gradients of so many devices travel over; `link`: null where it was given."""

    devices: int
    link: str | None
    gbps: float


class Cost(TypedDict):
    """Time and US$ on each number of devices; `frontier`: those that no other beats in both."""

    model: str
    network: str
    samples: int
    batch_size: int
    optimizer: str
    link_gbps: float | None
    links: list[CostLink]
    strategy: str
    prices: str
    epochs: int
    billing: str
    coverage: float
    options: list[Option]
    cheapest: Option
    fastest: Option
    frontier: list[int]
    left_out: list[str]


class Prices(TypedDict):
    """What instances cost: US$ an hour of the whole instance; `prices`: where that is from."""

    prices: str
    offers: list[Offer]
