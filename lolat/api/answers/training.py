"""The JSON answers on training and its cost, search spaces and layers; see `lolat.api.answers`."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from lolat.api.answers.inference import Interval
from lolat.mlp.layer_model import Errors
from lolat.mlp.networks import LayerTime, OtherLayer
from lolat.training.cost import Option, Spot
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
    spot: Spot | None
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


class PricesRefresh(TypedDict):
    """What was downloaded: offers by provider, and why others were left out."""

    offers: dict[str, int]
    left_out: dict[str, str]
    file: str
    date: str


class ExchangePoint(TypedDict):
    """Iterations with gradients of so many variables and bytes, with the strategy and without it."""

    variables: int
    bytes: int
    without_ms: list[float]
    with_ms: list[float]
    predicted_ms: float


class Link(TypedDict):
    """What exchanging gradients adds to an iteration here, measured."""

    strategy: str
    device: str
    replicas: int
    threads: int
    gbps: float
    latency_ms: float
    variable_ms: float
    fixed_ms: float
    error: float
    points: list[ExchangePoint]
    environment: dict[str, Any]
    warnings: list[str]


# ---- nas


class Assumption(TypedDict):
    """An assumption on a space's latencies, and how sure it is."""

    words: str
    weight: float


class NasFit(TypedDict):
    """A space's model; `typical_error`: half of all its networks should be within it, relative."""

    output: str
    space: str
    samples: int
    noise: float
    typical_error: float
    assumptions: list[Assumption]
    warnings: list[str]


class NasSuggest(TypedDict):
    """Networks of a space to measure, the most telling first."""

    space: str
    archs: list[str]


class NasPredict(TypedDict):
    """A table of predicted latencies was written; `predictor`: "samples" or a formula of inference."""

    output: str
    space: str
    networks: int
    predictor: str


class FrontCandidate(TypedDict):
    """A network of the front: its choices as integers, its score, its latency as the model predicts it."""

    arch: str
    candidate: list[int]
    latency_ms: float
    score: float
    interval_ms: Interval | None
    coverage: float | None
    in_domain: bool | None


class NasSearch(TypedDict):
    """The fastest at each score and the best at each latency, by latency.

    `fastest_ms`: of all candidates, where none is within `max_ms` (exit code 3) and the front is empty.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    method: str
    max_ms: float | None
    scored: int
    unscored: int
    fastest_ms: NotRequired[float]
    front: list[FrontCandidate]


class BestCandidate(TypedDict):
    """One of the best; `value`: where a function of the user's said it."""

    index: int
    latency_ms: float
    value: NotRequired[float]
    arch: str


class NasScore(TypedDict):
    """A space scored into a folder of Parquet files."""

    space: str
    size: int
    batch_size: int
    predictor: str
    scored: int
    kept: int
    max_ms: float | None
    files: int
    output: str
    best: list[BestCandidate]


# ---- mlp


class LayerErrors(TypedDict):
    """Errors of rows: root of the mean square in ms, relative ones, the measurements' own spread."""

    rows: int
    rmse_ms: float
    mean_relative_error: float
    median_relative_error: float
    spread: float | None
    gpus: dict[str, Errors]
    optimizers: dict[str, Errors]


class LayerEvaluation(LayerErrors):
    """Predicted against measured times of layers."""

    model: str
    table: str
    layer: str
    recipe: str
    warnings: list[str]


class LayerFit(LayerErrors):
    """A layer model that was trained: its errors on rows left out."""

    output: str
    layer: str
    recipe: str


class LayerPredict(TypedDict):
    """A table of predicted layers was written."""

    output: str
    rows: int
    warnings: list[str]


class LayerNetwork(TypedDict):
    """A network from its layers; `unpredicted`: what is not in the sum."""

    network: str
    gpu: str
    optimizer: str
    batch_size: int
    batch_ms: float
    call_ms: float | None
    samples: int | None
    batches: int | None
    epoch_s: float | None
    layers: list[LayerTime]
    unpredicted: list[OtherLayer]
    unpredicted_formula_ms: float | None
    warnings: list[str]
    formula_model: str | None
