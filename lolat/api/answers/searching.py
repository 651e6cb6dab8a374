"""The JSON answers on search spaces and on layers; see `lolat.api.answers`."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from lolat.api.answers.inference import Interval
from lolat.mlp.layer_model import Errors
from lolat.mlp.networks import LayerTime, OtherLayer

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
    samples: int | None
    batches: int | None
    epoch_s: float | None
    layers: list[LayerTime]
    unpredicted: list[OtherLayer]
    unpredicted_formula_ms: float | None
    warnings: list[str]
    formula_model: str | None
