"""A model compared with a table of networks or operations that somebody has timed; measures nothing."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from lolat.devices.counted import Counted, counts_of
from lolat.devices.fit import Times, predicted
from lolat.devices.tables import NAMES, Table, TimedNetwork, TimedOperation
from lolat.errors import InputError, LolatError
from lolat.fitting.domain import NEGLIGIBLE, OUTSIDE_WIDENING
from lolat.fitting.intervals import half_width
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph import Graph
from lolat.graph.modes import Mode
from lolat.graph.work import work_of
from lolat.model import Model
from lolat.readers import read
from lolat.readers.many import Said

PREDICTED = ("predicted_ms", "low_ms", "high_ms")
Answer = tuple[float, tuple[float, float] | None]


@dataclass(frozen=True)
class Compared:
    """One row that could be predicted: as it stands in the table, its time and the model's, ms."""

    row: Mapping[str, str]
    batch_size: int
    latency_ms: float
    predicted_ms: float
    interval_ms: tuple[float, float] | None


def mode_of(model: Model) -> Mode:
    """How the device that a model is of runs networks."""
    found = model.predictors.get(Kernels.name)
    return found.mode if isinstance(found, Kernels) else Mode()


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
    mode, rows = mode_of(model), list[TimedNetwork]()
    of_counts = Kernels.name in model.predictors
    if training is None:  # what most would ask for
        training = of_counts and all(row.mode.training for row in table.rows)
    mode = replace(mode, training=training)
    for row in table.rows:
        if row.mode == mode:
            rows.append(row)
        else:
            table.skip(f"run in another way ({row.mode}; asked for: {mode})")
    if of_counts:
        answers = _of_counts(model, rows, predictor, said)
    else:
        answers = _of_graphs(model, rows, predictor, opened)
    found = []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, LolatError):
            table.skip(f"{row.name}: {answer}")
        else:
            found.append(Compared(row.row, row.batch_size, row.latency_ms, *answer))
    if not found:
        raise table.nothing()
    return found


def compare_operations(
    model: Model, rows: Sequence[TimedOperation], predictor: str | None = None
) -> list[Compared]:
    """Operations that were timed one by one, each as the model has it alone."""
    formula = model.predictor(predictor)
    if not isinstance(formula, Kernels):
        answers = [model.predict(row.graph, row.batch_size, predictor) for row in rows]
        return [
            Compared(row.row, row.batch_size, row.latency_ms, answer.latency_ms, answer.interval_ms)
            for row, answer in zip(rows, answers, strict=True)
        ]
    parts = [work_of(row.graph, row.batch_size) for row in rows]
    measured = np.array([row.latency_ms for row in rows])
    found = predicted(formula, Times.of(parts, measured, np.zeros(len(rows), bool)))
    one = np.ones(1)
    half, _ = half_width(model.document, formula.name, None, (one, one), model.cache)
    return [
        Compared(row.row, row.batch_size, row.latency_ms, ms, _within(ms, half))
        for row, ms in zip(rows, map(float, found), strict=True)
    ]


def _within(ms: float, half: float | None) -> tuple[float, float] | None:
    """The interval whose half width is a logarithm."""
    return None if half is None else (ms * math.exp(-half), ms * math.exp(half))


def _of_counts(
    model: Model, rows: Sequence[TimedNetwork], predictor: str | None, said: Said | None
) -> list[Answer | LolatError]:
    """The answers of a model by operation, from what is kept of networks."""
    return [
        known if isinstance(known, LolatError) else _answer(model, known, row, predictor)
        for row, known in zip(rows, counts_of(rows, said), strict=True)
    ]


def _answer(
    model: Model, network: Counted, row: TimedNetwork, predictor: str | None
) -> Answer | LolatError:
    """Latency and interval, ms, as `Model.predict` has them."""
    if row.mode.training and predictor is None and TrainingSteps.name in model.predictors:
        predictor = TrainingSteps.name
    formula, batch_size = model.predictor(predictor), row.batch_size
    counts = network.total(batch_size)
    if row.mode.training and not isinstance(formula, Kernels):
        return InputError(f"the predictor {formula.name} knows nothing of training")
    widening = 1.0
    if isinstance(formula, Kernels):
        work = network.work(batch_size)
        times, _ = formula.times(work)
        latency = float(times.sum())
        if formula.unlike(work, times, NEGLIGIBLE):
            widening = OUTSIDE_WIDENING
    else:
        latency = formula.one([counts[f] for f in formula.features])
    parts = np.array([latency]), np.array([counts["ops"]])
    half, _ = half_width(model.document, formula.name, None, parts, model.cache)
    return latency, _within(latency, None if half is None else half * widening)


def _of_graphs(
    model: Model,
    rows: Sequence[TimedNetwork],
    predictor: str | None,
    opened: Callable[[str, Any], Graph],
) -> list[Answer | LolatError]:
    """The answers of a model that was learned, which looks at a network's blocks."""
    graphs: dict[tuple[str, Any], Graph] = {}
    found: list[Answer | LolatError] = []
    for row in rows:
        key = row.spec, row.size
        try:
            if key not in graphs:
                graphs[key] = opened(*key)
            answer = model.predict(graphs[key], row.batch_size, predictor)
            found.append((answer.latency_ms, answer.interval_ms))
        except LolatError as error:
            found.append(error)
    return found


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
    found: dict[str, list[Compared]] = {}
    for row in rows:
        found.setdefault(next(row.row[c] for c in NAMES if c in row.row), []).append(row)
    return found


def predictions(rows: list[Compared], columns: list[str]) -> str:
    """A CSV table of the rows with PREDICTED as further columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*columns, *PREDICTED], lineterminator="\n")
    writer.writeheader()
    for r in rows:
        low, high = r.interval_ms or ("", "")
        writer.writerow({**r.row, **dict(zip(PREDICTED, (r.predicted_ms, low, high), strict=True))})
    return text.getvalue()
