"""The JSON answers on latencies and on models; see `lolat.api.answers`."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from lolat.model.attribution import BatchEffect
from lolat.model.state import State

Interval = tuple[float, float]
Counts = dict[str, int]

# ---- predict, report, explain, budget


class Block(TypedDict):
    """A block: its share of the latency from 0 to 1, what takes most of it, ms by term of the formula."""

    name: str
    latency_ms: float
    share: float
    bound_by: str
    counts: Counts
    terms_ms: dict[str, float]


class Memory(TypedDict):
    """Bytes of a forward pass: weights, and the most of the tensors alive at once, `at` which operation."""

    weights_bytes: int
    activations_bytes: int
    at: str


class Prediction(TypedDict):
    """The latency of one forward pass. The blocks, the last one the call itself, add up to it.

    `input_shapes`: of what goes in, the batch first. `interval_ms` has the stated `coverage`. `quiet_ms`:
    on the machine in its calmest moments. `state`: of the machine that it is for; null: as it usually is.
    `inside_share`: of the time that is spent in what is like what was measured; `in_domain`: whether that
    is most of it. `measure`: names of the blocks whose measuring would bring it inside. `memory_bytes`: of
    weights and tensors at once. FLOPs are multiply-accumulates.
    """

    model: str
    learned: str | None
    network: str
    batch_size: int
    input_shapes: list[list[int]]
    predictor: str
    latency_ms: float
    quiet_ms: float | None
    state: State | None
    interval_ms: Interval | None
    coverage: float | None
    in_domain: bool | None
    inside_share: float | None
    memory_bytes: int | None
    memory: Memory | None
    warnings: list[str]
    measure: list[str]
    counts: Counts
    blocks: list[Block]


class OnDevice(Prediction):
    """A prediction among others: `device`, the model as it was given."""

    device: str


class Predictions(TypedDict):
    """Several networks, batch sizes or devices; `failures`: why some could not be read, by network."""

    answers: list[OnDevice]
    failures: dict[str, str]


class Term(TypedDict):
    """So many units of a count, each `rate_ms`."""

    count: int
    rate_ms: float
    latency_ms: float


class Attribution(TypedDict):
    """What a block or an operation costs, by term of the formula; `kind`: of an operation."""

    name: str
    latency_ms: float
    share: float
    terms: dict[str, Term]
    kind: NotRequired[str]


class Change(TypedDict):
    """What a change would make of the latency; `of_block`, `of_network`: the saving as a share."""

    kind: str
    change: str
    details: dict[str, Any]
    latency_ms: float
    interval_ms: Interval | None
    saves_ms: float
    of_block: float | None
    of_network: float
    in_domain: bool | None


class Explanation(TypedDict):
    """Which ms come from what, and what changes would save, the largest saving first.

    `block`: the one that was asked about, which `operations` are of; null: the whole network.
    """

    network: str
    batch_size: int
    predictor: str
    latency_ms: float
    interval_ms: Interval | None
    coverage: float | None
    in_domain: bool | None
    warnings: list[str]
    call_ms: float
    terms: dict[str, Term]
    block: str | None
    blocks: list[Attribution]
    operations: list[Attribution]
    counterfactuals: list[Change]
    batches: list[BatchEffect]


class Step(TypedDict):
    """One value of what is varied, and the latency at it."""

    value: float
    latency_ms: float
    interval_ms: Interval | None


class Budget(TypedDict):
    """The largest `answer` of what is varied that stays within `budget_ms`, and the next value.

    `answer` is null where none stays within it (exit code 3), `next` is the smallest then. `channels`: of a
    width, each number of channels now and then.
    """

    network: str
    vary: str
    budget_ms: float
    sure: bool
    predictor: str
    batch_size: int
    answer: float | None
    latency_ms: float | None
    interval_ms: Interval | None
    coverage: float | None
    channels: list[tuple[int, int]] | None
    next: Step | None
    now: Step
    in_domain: bool | None
    warnings: list[str]


# ---- evaluate, doctor


class Figures(TypedDict):
    """Relative errors (0.05 is 5 %) of a predictor, and how it ranks."""

    points: int
    median: float
    within_10_percent: float
    median_from_2_ms: float | None
    median_below_2_ms: float | None
    mean: NotRequired[float]
    bias: NotRequired[float]
    r2: NotRequired[float | None]
    pearson: NotRequired[float | None]
    spearman: NotRequired[float | None]


class EvaluatedNetwork(TypedDict):
    """A network measured, beside what each predictor says: for the machine's state then, and as usual."""

    network: str
    input_size: list[int]
    block: int | None
    batch_size: int
    measured_ms: float
    spread: float | None
    predicted_ms: dict[str, float]
    error: dict[str, float]
    usual_ms: dict[str, float]
    quiet_ms: float | None
    coverage: float | None
    interval_ms: Interval | None
    interval_width: float | None
    inside: bool | None
    inside_usual: bool | None
    in_domain: bool | None


class Intervals(TypedDict):
    """How many times were inside their intervals, and between which shares the true one lies."""

    coverage: float
    inside: int
    of: int
    bounds: Interval
    certainty: float
    median_width: float


class Evaluation(TypedDict):
    """Networks measured on this machine and compared with the model; `failures`: what could not be."""

    model: str
    device: str
    default: str
    predictors: list[str]
    state: State | None
    networks: list[EvaluatedNetwork]
    summary: dict[str, Figures]
    as_usual: dict[str, Figures]
    inside_interval: int
    inside_usual_interval: int
    intervals: Intervals | None
    noise_floor: float | None
    failures: dict[str, str]
    noise: dict[str, Any]


class TableSummary(TypedDict):
    """Relative errors of a table's rows; `networks` or `operations`: how many there are."""

    networks: NotRequired[int]
    operations: NotRequired[int]
    mean: float
    median: float
    bias: float
    within_10: float
    inside: int
    intervals: int


class TableEvaluation(TypedDict):
    """A table's rows as they stand there, with latency_ms, predicted_ms and interval_ms."""

    networks: NotRequired[list[dict[str, Any]]]
    operations: NotRequired[list[dict[str, Any]]]
    summary: TableSummary
    skipped: dict[str, int]


class NetworkAgain(TypedDict):
    """A network of the model measured again; `ratio`: new over learned time."""

    name: str
    batch_size: int
    learned_ms: float
    now_ms: float
    ratio: float


class Difference(TypedDict):
    """What is otherwise than when the model was learned."""

    field: str
    learned: Any
    now: Any


class Diagnosis(TypedDict):
    """Whether a model still holds: `verdict` is ok, drifted, another machine or unsettled.

    `state` is what `predict --state` takes.
    """

    model: str
    device: str
    verdict: str
    ratio: float | None
    measured: str | None
    spread: Interval | None
    limit: float
    network_limit: float
    state: State | None
    networks: list[NetworkAgain]
    unrest: float | None
    loaded: float
    seconds: float
    starting_seconds: float
    differences: list[Difference]
    failures: dict[str, str]
    warnings: list[str]


# ---- read


class NetworkFile(TypedDict):
    """A network was written to a file: how many operations, and its counts of one sample."""

    network: str
    output: str
    operations: int
    counts: Counts
    warnings: list[str]


# ---- models: show, learn, fit, models


class FittedPredictor(TypedDict):
    """A formula's coefficients, and relative errors on what was left out of its fit."""

    coefficients: dict[str, float]
    error: dict[str, float]


class Model(TypedDict):
    """What a model file says of its device, without its points.

    `knows`: its sections, in words; `default`: null, and `predictors` empty, without latencies of
    inference; `training`: whether it was measured; `epochs`: how many were fitted to; `spaces`: measured
    networks of each.
    """

    name: str
    device: str
    file: str
    knows: list[str]
    epochs: int
    spaces: dict[str, int]
    default: str | None
    points: int
    noise_floor: float | None
    environment: dict[str, Any]
    predictors: dict[str, FittedPredictor]
    domain: dict[str, Any]
    training: bool
    warnings: list[str]


class ListedModel(TypedDict):
    """A model that can be named; `origin`: local or shipped; `problem`: why it cannot be read, or null."""

    name: str
    file: str
    origin: str
    device: str | None
    source: str | None
    error: float | None
    problem: str | None


class Models(TypedDict):
    """The models that there are, local ones first."""

    models: list[ListedModel]
