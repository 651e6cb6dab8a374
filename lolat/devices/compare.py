"""A model compared with a table of networks or operations that somebody has timed; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from lolat.devices.fit import predicted
from lolat.devices.tables import (
    NETWORKS,
    Counted,
    Table,
    TimedNetwork,
    TimedOperation,
    counts_of,
    mode_of,
)
from lolat.devices.times import Times
from lolat.errors import LolatError
from lolat.fitting.domain import widened
from lolat.fitting.intervals import half_width
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph.work import work_of
from lolat.io.tables import to_csv
from lolat.model import Model
from lolat.model.predicting import within
from lolat.readers import read
from lolat.readers.children import Said

PREDICTED = ("predicted_ms", "low_ms", "high_ms")


@dataclass(frozen=True)
class Compared:
    """One row that could be predicted: as it stands in the table, its time and the model's, ms."""

    timed: TimedNetwork | TimedOperation
    predicted_ms: float
    interval_ms: tuple[float, float] | None

    @property
    def row(self) -> Mapping[str, str]:
        """The row of the table."""
        return self.timed.row

    @property
    def latency_ms(self) -> float:
        """Its time in the table."""
        return self.timed.latency_ms


def compare_table(
    model: Model,
    table: Table,
    predictor: str | None = None,
    training: bool = False,
    said: Said | None = None,
) -> list[Compared]:
    """The rows of a table that the model can predict; others are counted in `table.skipped`.

    A network that cannot be read, and one that was run in another way than the model's, is left out.
    `training`: training steps, by a model of tables. InputError where nothing is left.
    """
    formula = model.predictor(predictor)
    mode = replace(mode_of(model.document), training=training)
    rows = [row for row in table.rows if row.mode == mode]
    for row in table.rows:
        if row.mode != mode:
            table.skipped[f"run in another way ({row.mode}; asked for: {mode})"] += 1
    steps = model.predictors.get(TrainingSteps.name)
    if training and predictor is None and isinstance(steps, Kernels):
        formula = steps
    counts = counts_of(rows, said) if isinstance(formula, Kernels) else [None] * len(rows)
    opened = cache(read)
    compared = []
    for row, known in zip(rows, counts, strict=True):
        try:
            if isinstance(known, LolatError):
                raise known
            if known is not None and isinstance(formula, Kernels):
                compared.append(_by_operation(model, formula, row, known))
                continue
            graph = opened(*row.network[:2])
            prediction = model.predict(graph, row.batch_size, predictor)
            compared.append(Compared(row, prediction.latency_ms, prediction.interval_ms))
        except LolatError as error:
            table.skipped[f"{row.name}: {error}"] += 1
    if not compared:
        raise table.nothing()
    return compared


def _by_operation(model: Model, formula: Kernels, row: TimedNetwork, counts: Counted) -> Compared:
    """As `Model.predict` answers, from the steps of the network that are kept on disk."""
    steps = formula.steps(counts.work(row.batch_size))
    outside = formula.outside(steps, row.batch_size, model.domain.least)
    total = np.array([counts.total(row.batch_size)["ops"]])
    half, _ = half_width(formula, model.document, None, np.array([steps.latency_ms]), total)
    interval = None if half is None else steps.interval(widened(half, outside.beyond), None)
    return Compared(row, steps.latency_ms, interval)


def compare_operations(
    model: Model, rows: Sequence[TimedOperation], predictor: str | None = None
) -> list[Compared]:
    """Operations that were timed one by one, each as the model has it alone."""
    formula = model.predictor(predictor)
    if not isinstance(formula, Kernels):
        answers = [model.predict(row.graph, row.batch_size, predictor) for row in rows]
        pairs = zip(rows, answers, strict=True)
        return [Compared(row, one.latency_ms, one.interval_ms) for row, one in pairs]
    parts = [work_of(row.graph, row.batch_size) for row in rows]
    measured = np.array([row.latency_ms for row in rows])
    alone = predicted(formula, Times.of(parts, measured, np.zeros(len(rows), bool))).tolist()
    half, _ = half_width(formula, model.document, None, np.ones(1), np.ones(1))
    return [
        Compared(row, ms, None if half is None else within(ms, half))
        for row, ms in zip(rows, alone, strict=True)
    ]


def summary(rows: Sequence[Compared], content: str = NETWORKS) -> dict[str, Any]:
    """The errors of rows, relative: mean, median, bias, and how many are within 10 % and the interval."""
    off = [r.predicted_ms / r.latency_ms - 1.0 for r in rows]
    intervals = [(r.latency_ms, r.interval_ms) for r in rows if r.interval_ms is not None]
    return {
        content: len(rows),
        "mean": sum(map(abs, off)) / len(off),
        "median": median(map(abs, off)),
        "bias": median(off),
        "within_10": sum(abs(o) <= 0.1 for o in off) / len(off),
        "inside": sum(low <= ms <= high for ms, (low, high) in intervals),
        "intervals": len(intervals),
    }


def predictions(rows: list[Compared], columns: Sequence[str]) -> str:
    """A CSV table of the rows with PREDICTED as further columns."""
    return to_csv(
        [*columns, *PREDICTED],
        [[*map(r.row.get, columns), r.predicted_ms, *(r.interval_ms or ("", ""))] for r in rows],
    )
