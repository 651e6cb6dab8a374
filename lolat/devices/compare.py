"""A model compared with a table of networks or operations that somebody has timed; measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from lolat.devices.fit import predicted
from lolat.devices.tables import NAMES, Table, TimedNetwork, TimedOperation, counts_of
from lolat.devices.times import Times
from lolat.errors import LolatError
from lolat.fitting.domain import widened
from lolat.fitting.intervals import half_width
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph import Graph
from lolat.graph.modes import Mode
from lolat.graph.work import work_of
from lolat.io.tables import to_csv
from lolat.model import Model
from lolat.model.predicting import within
from lolat.readers import read
from lolat.readers.many import Said

PREDICTED = ("predicted_ms", "low_ms", "high_ms")
Answer = tuple[float, tuple[float, float] | None]  # latency and interval, ms


@dataclass(frozen=True)
class Compared:
    """One row that could be predicted: as it stands in the table, its time and the model's, ms."""

    row: Mapping[str, str]
    batch_size: int
    latency_ms: float
    predicted_ms: float
    interval_ms: tuple[float, float] | None

    @classmethod
    def of(cls, timed: TimedNetwork | TimedOperation, answer: Answer) -> Compared:
        """What was timed, and what the model says of it."""
        return cls(timed.row, timed.batch_size, timed.latency_ms, *answer)


def mode_of(model: Model) -> Mode:
    """How the device that a model is of runs networks."""
    formula = model.predictors.get(Kernels.name)
    return formula.mode if isinstance(formula, Kernels) else Mode()


def compare_table(
    model: Model,
    table: Table,
    predictor: str | None = None,
    training: bool | None = None,
    opened: Callable[[str, Any], Graph] = read,
    said: Said | None = None,
) -> list[Compared]:
    """The rows of a table that the model can predict; others are counted in `table.skipped`.

    A network that cannot be read, and one that was run in another way than the model's, is left out.
    `training`: training steps, by a model of tables; None: inference, or training where the table has
    nothing else. InputError where nothing is left.
    """
    formula = model.predictor(predictor)
    if training is None:  # what most would ask for
        training = formula.by_operation and all(row.mode.training for row in table.rows)
    mode, rows = replace(mode_of(model), training=training), list[TimedNetwork]()
    for row in table.rows:
        if row.mode == mode:
            rows.append(row)
        else:
            table.skip(f"run in another way ({row.mode}; asked for: {mode})")
    if isinstance(formula, Kernels):
        steps = model.predictors.get(TrainingSteps.name)
        if training and predictor is None and isinstance(steps, Kernels):
            formula = steps
        answers = _by_operation(model, formula, rows, said)
    else:
        answers = _by_counts(model, rows, predictor, opened)
    compared = []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, LolatError):
            table.skip(f"{row.name}: {answer}")
        else:
            compared.append(Compared.of(row, answer))
    if not compared:
        raise table.nothing()
    return compared


def _by_operation(
    model: Model, formula: Kernels, rows: Sequence[TimedNetwork], said: Said | None
) -> Iterator[Answer | LolatError]:
    """As `Model.predict` answers, from the steps of each network that are kept on disk."""
    for row, network in zip(rows, counts_of(rows, said), strict=True):
        if isinstance(network, LolatError):
            yield network
            continue
        steps = formula.steps(network.work(row.batch_size))
        outside = formula.outside(steps, row.batch_size, model.domain.least)
        parts = np.array([steps.latency_ms]), np.array([network.total(row.batch_size)["ops"]])
        half, _ = half_width(formula, model.document, None, *parts)
        interval = None if half is None else steps.interval(widened(half, outside.beyond), None)
        yield steps.latency_ms, interval


def _by_counts(
    model: Model,
    rows: Sequence[TimedNetwork],
    predictor: str | None,
    opened: Callable[[str, Any], Graph],
) -> Iterator[Answer | LolatError]:
    """The answers of a model that was learned, which looks at a network's blocks."""
    graphs: dict[tuple[str, Any], Graph] = {}
    for row in rows:
        key = row.spec, row.size
        try:
            if key not in graphs:
                graphs[key] = opened(*key)
            prediction = model.predict(graphs[key], row.batch_size, predictor)
            yield prediction.latency_ms, prediction.interval_ms
        except LolatError as error:
            yield error


def compare_operations(
    model: Model, rows: Sequence[TimedOperation], predictor: str | None = None
) -> list[Compared]:
    """Operations that were timed one by one, each as the model has it alone."""
    formula = model.predictor(predictor)
    if not isinstance(formula, Kernels):
        answers = [model.predict(row.graph, row.batch_size, predictor) for row in rows]
        pairs = [(answer.latency_ms, answer.interval_ms) for answer in answers]
        return list(map(Compared.of, rows, pairs))
    parts = [work_of(row.graph, row.batch_size) for row in rows]
    measured = np.array([row.latency_ms for row in rows])
    alone = predicted(formula, Times.of(parts, measured, np.zeros(len(rows), bool)))
    half, _ = half_width(formula, model.document, None, np.ones(1), np.ones(1))
    return [
        Compared.of(row, (ms, None if half is None else within(ms, half)))
        for row, ms in zip(rows, map(float, alone), strict=True)
    ]


def summary(rows: Sequence[Compared], what: str = "networks") -> dict[str, Any]:
    """The errors of rows, relative: mean, median, bias, and how many are within 10 % and the interval."""
    off = [r.predicted_ms / r.latency_ms - 1.0 for r in rows]
    intervals = [(r.latency_ms, r.interval_ms) for r in rows if r.interval_ms is not None]
    return {
        what: len(rows),
        "mean": sum(map(abs, off)) / len(off),
        "median": median(map(abs, off)),
        "bias": median(off),
        "within_10": sum(abs(o) <= 0.1 for o in off) / len(off),
        "inside": sum(low <= ms <= high for ms, (low, high) in intervals),
        "intervals": len(intervals),
    }


def by_operation(rows: Sequence[Compared]) -> dict[str, list[Compared]]:
    """Rows of operations by what the table calls each."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(next(row.row[c] for c in NAMES if c in row.row), []).append(row)
    return groups


def predictions(rows: list[Compared], columns: list[str]) -> str:
    """A CSV table of the rows with PREDICTED as further columns."""
    return to_csv(
        [*columns, *PREDICTED],
        [[*map(r.row.get, columns), r.predicted_ms, *(r.interval_ms or ("", ""))] for r in rows],
    )
