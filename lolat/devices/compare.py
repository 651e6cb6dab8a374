"""A model compared with a table of networks or operations that somebody has timed; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np

from lolat.devices.fit import predicted
from lolat.devices.left_out import LeftOut
from lolat.devices.tables import (
    NETWORKS,
    Counted,
    Table,
    TimedNetwork,
    TimedOperation,
    counts_of,
)
from lolat.devices.times import Times
from lolat.errors import InputError, LolatError
from lolat.fitting.domain import widened
from lolat.fitting.intervals import half_width
from lolat.fitting.points import matrix, point_of, read_blocks
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph.counts import FEATURES
from lolat.graph.work import work_of
from lolat.io.tables import to_csv
from lolat.model import Model
from lolat.model.predicting import within
from lolat.model.running import mode_of
from lolat.readers import read
from lolat.readers.children import Said

PREDICTED = ("predicted_ms", "low_ms", "high_ms")


@dataclass(frozen=True)
class TimedRow:
    """A row of a block, or of language models: `name` of an operation or a served model; `latency_ms`, also
    of a token.
    """

    name: str
    latency_ms: float
    row: Mapping[str, str]


@dataclass(frozen=True)
class Compared:
    """One row that could be predicted: as it stands in the table, its time and the model's, ms.

    `more`: further columns, such as the time to the first token of a served model.
    """

    timed: TimedNetwork | TimedOperation | TimedRow
    predicted_ms: float
    interval_ms: tuple[float, float] | None
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def row(self) -> Mapping[str, str]:
        """The row of the table."""
        return self.timed.row

    @property
    def latency_ms(self) -> float:
        """Its time in the table."""
        return self.timed.latency_ms


def compare_blocks(
    model: Model, path: str, predictor: str | None = None, devices: Collection[str] = ()
) -> list[Compared]:
    """The rows of a table of blocks, by their counts: all six, where every row has them, or three."""
    rows = [(row, point_of(row)) for row in read_blocks(path).of_devices(devices, "only")]
    names = FEATURES if all({*FEATURES} <= {*point.counts} for _, point in rows) else FEATURES[:3]
    counts = matrix([point for _, point in rows], names)
    ms = model.predict_counts(**dict(zip(names, counts.T, strict=True)), predictor=predictor)
    formula, found = model.predictor(predictor), []
    for (row, point), latency in zip(rows, ms.tolist(), strict=True):
        one, ops = np.array([latency]), np.array([point.counts.get("ops", 1)])
        half, _ = half_width(formula, model.inference, None, one, ops)
        interval = None if half is None else within(latency, half)
        found.append(Compared(TimedRow(point.name, point.latency_ms, row), latency, interval))
    return found


def compare_table(
    model: Model,
    table: Table,
    predictor: str | None = None,
    training: bool = False,
    said: Said | None = None,
) -> list[Compared]:
    """The rows of a table that the model can predict; others are in `table.left_out`.

    A network that cannot be read, and one that was run in another way than the model's, is left out.
    `training`: training steps, by a model of tables. InputError where nothing is left.
    """
    formula = model.predictor(predictor)
    mode = replace(mode_of(model.document), training=training)
    rows = [row for row in table.rows if row.mode == mode]
    for row in table.rows:
        if row.mode != mode:
            table.left_out.add(f"run in another way ({row.mode}; asked for: {mode})", "mode")
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
            table.left_out.network(row.name, row.network[0], error)
    if not compared:
        raise table.nothing()
    return compared


def _by_operation(model: Model, formula: Kernels, row: TimedNetwork, counts: Counted) -> Compared:
    """As `Model.predict` answers, from the steps of the network that are kept on disk."""
    steps = formula.steps(counts.work(row.batch_size))
    outside = formula.outside(steps, row.batch_size, model.domain.least)
    total = np.array([counts.total(row.batch_size)["ops"]])
    half, _ = half_width(formula, model.document, None, np.array([steps.latency_ms]), total)
    interval = None if half is None else steps.interval(widened(half, outside), None)
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


def compare_kernels(model: Model, path: str, left_out: LeftOut) -> list[Compared]:
    """Operations of language models, each timed alone; `left_out`: is told of those that are not known."""
    from lolat.llm.fit import rows_of, sizes_of
    from lolat.llm.gpu import ENOUGH, facts_of, operation_ms

    section, found = model.language_models, []
    for (name, dtype), rows in rows_of(path).items():
        operation = section.operations.get(name, {}).get(dtype)
        if operation is None:
            left_out.add(f"nothing is known of {name} of {dtype}", rows=len(rows))
            continue
        ms = operation_ms(
            name, operation, sizes_of(name, rows), facts_of(section.sheet), dtype, alone=True
        )
        off = math.exp(ENOUGH * operation.spread)
        for row, one in zip(rows, ms.tolist(), strict=True):
            timed = TimedRow(f"{name} {dtype}", row.milliseconds(), row)
            found.append(Compared(timed, one, (one / off, one * off)))
    return _or_nothing(found, path, left_out)


def compare_served(model: Model, path: str, left_out: LeftOut) -> list[Compared]:
    """Served models: time per output token, and that to the first as a further column."""
    from lolat.llm.calibration import by_layout, timed_of
    from lolat.llm.domain import interval
    from lolat.llm.gpu import GPU
    from lolat.llm.names import find_decoder
    from lolat.llm.served import read_served
    from lolat.llm.serving import layout_of, serve

    section, found = model.language_models, []
    device = model.device.partition(" (")[0]
    for some in by_layout(read_served(path, device, section.framework)):
        try:
            timed = timed_of(section, some, find_decoder)
            served = serve(section.ways, timed.steps, timed.load)
            layout = layout_of(section, find_decoder(some[0].model), *some[0].layout)
            low, high, _ = interval(GPU(section), layout, timed.load, timed.steps.decode)
            tpot = served.tpot_ms
            times = (column.tolist() for column in (tpot, tpot * low, tpot * high, served.ttft_ms))
            for row, ms, *ends, ttft in zip(some, *times, strict=True):
                one = TimedRow(f"{row.model} {row.dtype}".strip(), row.tpot_ms, row.row)
                found.append(Compared(one, ms, (ends[0], ends[1]), {"predicted_ttft_ms": ttft}))
        except LolatError as error:
            left_out.add(f"{some[0].model}: {error}", error.code, len(some))
    return _or_nothing(found, path, left_out)


def _or_nothing(found: list[Compared], path: str, left_out: LeftOut) -> list[Compared]:
    if not found:
        why = str(left_out) or "none is of this GPU and framework"
        raise InputError(f"{path}: no row could be used ({why})", code="nothing-comparable")
    return found


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
    more = dict.fromkeys(name for r in rows for name in r.more)
    return to_csv(
        [*columns, *PREDICTED, *more],
        [
            [
                *map(r.row.get, columns),
                r.predicted_ms,
                *(r.interval_ms or ("", "")),
                *map(r.more.get, more),
            ]
            for r in rows
        ],
    )
