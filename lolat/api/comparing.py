"""A model compared with a table of networks or operations that somebody has timed; measures nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device.domain import Extrapolation
from lolat.device.intervals import normal_quantile
from lolat.device.predicting import interval_around, widened_half_width
from lolat.device.prediction import Prediction
from lolat.device.predictors.roofline import Roofline
from lolat.device.running import is_measured, mode_of
from lolat.errors import InputError, LolatError, arg
from lolat.fitting.points import matrix, point_of, read_blocks
from lolat.fitting.roofline import predicted
from lolat.fitting.times import Times
from lolat.graph import Graph
from lolat.graph.counts import FEATURES
from lolat.graph.modes import Mode
from lolat.graph.work import work_of
from lolat.hardware.gpus import card_of, find_gpu, name_of
from lolat.io.results import Result, plain_data
from lolat.io.tables import COPIES, Row, is_table, read_table, say_unread, to_csv
from lolat.parameters import COVERAGE, optimizer_named
from lolat.readers import read
from lolat.readers.children import OnProgress
from lolat.tables.left_out import LeftOut
from lolat.tables.timed import (
    BLOCKS,
    KERNELS,
    NETWORKS,
    OPERATIONS,
    SERVED,
    Network,
    Table,
    TimedNetwork,
    TimedOperation,
    content_of,
    counts_of,
    read_networks,
    read_operations,
)
from lolat.training.cost import training_of
from lolat.training.model import Training, TrainingRun
from lolat.units import percent, plain

if TYPE_CHECKING:
    from lolat.api.model import Model

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

    `in_domain`: whether it is like what was measured, None where the model does not say; `more`: further
    columns, such as the time to the first token of a served model.
    """

    timed: TimedNetwork | TimedOperation | TimedRow
    predicted_ms: float
    interval_ms: tuple[float, float] | None
    in_domain: bool | None = None
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
    """Compare the rows of a table of blocks by their six counts, or by three if a row lacks the others."""
    rows = [(row, point_of(row)) for row in read_blocks(path).of_devices(devices, "only")]
    names = FEATURES if all({*FEATURES} <= {*point.counts} for _, point in rows) else FEATURES[:3]
    counts = matrix([point for _, point in rows], names)
    ms = model.predict_counts(**dict(zip(names, counts.T, strict=True)), predictor=predictor)
    formula, found = model.predictor(predictor), []
    knows = names == FEATURES and bool(model.domain.ratios)
    beyond = model.domain.beyond(counts) if knows else np.zeros(len(rows), bool)
    for (row, point), latency, is_beyond in zip(rows, ms.tolist(), beyond.tolist(), strict=True):
        extrapolation = Extrapolation(float(is_beyond), known=knows)
        half_width, _ = widened_half_width(
            formula, None, extrapolation, model.inference, None, point.counts.get("ops", 1)
        )
        interval = None if half_width is None else interval_around(latency, half_width)
        in_domain = not is_beyond if knows else None
        timed = TimedRow(point.name, point.latency_ms, row)
        found.append(Compared(timed, latency, interval, in_domain))
    return found


def compare_table(
    model: Model,
    table: Table,
    predictor: str | None = None,
    training: bool = False,
    on_progress: OnProgress | None = None,
) -> list[Compared]:
    """Compare each row that the model can predict, as `Model.predict` does.

    `table.left_out` gets the others: networks that cannot be read, or that were run in another mode.
    `training`: compare training steps instead, as `Model.cost` has them, with the usual optimizer.
    InputError if no row is left.
    """
    mode = replace(mode_of(model.inference), training=training)
    rows = [row for row in table.rows if row.mode == mode]
    for row in table.rows:
        if row.mode != mode:
            table.left_out.add(_other_way(row.mode, mode), "mode")
    of_training = training_of(model.document, model.source) if training else None
    networks: dict[Network, list[int]] = {}
    for at, known in enumerate(counts_of(rows, on_progress)):
        if isinstance(known, LolatError):
            table.left_out.network(rows[at].name, rows[at].network[0], known)
        else:
            networks.setdefault(known.network, []).append(at)
    compared: dict[int, Compared] = {}
    opened = lru_cache(1)(read)  # thousands of graphs do not fit into memory
    for (spec, size, _), places in networks.items():
        for at in places:
            row = rows[at]
            try:
                graph = opened(spec, size)
                compared[at] = (
                    _predicted(row, model.predict(graph, row.batch_size, predictor))
                    if of_training is None
                    else _trained(row, of_training, graph)
                )
            except LolatError as error:
                table.left_out.network(row.name, row.network[0], error)
    if not compared:
        raise table.nothing()
    return [compared[at] for at in sorted(compared)]


def _other_way(mode: Mode, asked: Mode) -> str:
    """Why a row is left out that was run in another way than the rows asked for."""
    if mode == replace(asked, training=True):
        return "a training step; --training (in Python training=True) compares these"
    if mode == replace(asked, training=False):
        return "no training step; leave --training (in Python training=True) out to compare it"
    return f"run in another way ({mode}; asked for: {asked})"


def _predicted(timed: TimedNetwork | TimedOperation, found: Prediction) -> Compared:
    return Compared(timed, found.latency_ms, found.interval_ms, found.in_domain)


def _trained(row: TimedNetwork, training: Training, graph: Graph) -> Compared:
    """A training step as `Model.cost` has an iteration."""
    size = row.batch_size
    ms = training.iteration(graph, size, optimizer_named(TrainingRun.optimizer)).total
    interval = None
    with suppress(InputError):  # too few points for one
        interval = interval_around(ms, training.half_width(graph, size, COVERAGE))
    return Compared(row, ms, interval, training.in_domain(graph, size))


def compare_operations(
    model: Model, rows: Sequence[TimedOperation], predictor: str | None = None
) -> list[Compared]:
    """Operations that were timed one by one, each as the model has it alone: without a host's wait."""
    formula = model.predictor(predictor)
    if not isinstance(formula, Roofline):
        return [
            _predicted(row, model.predict(row.graph, row.batch_size, predictor)) for row in rows
        ]
    for row in rows:
        if {"dtype", "precision"} & row.row.keys() and row.dtype != formula.mode.dtype:
            raise row.row.refused(
                f"an operation in {row.dtype}; expected {formula.mode.dtype}, as the model's"
            )
    parts = [work_of(row.graph, row.batch_size, formula.mode) for row in rows]
    measured = np.array([row.latency_ms for row in rows])
    alone = predicted(formula, Times.of(parts, measured, np.zeros(len(rows), bool))).tolist()
    found = []
    for row, part, ms in zip(rows, parts, alone, strict=True):
        steps = formula.steps(part)
        unlike = formula.unlike(steps)
        extrapolation = Extrapolation(unlike=sum((unlike or {}).values()), known=unlike is not None)
        half_width, _ = widened_half_width(formula, steps, extrapolation, model.document, None, 1)
        interval = None if half_width is None else interval_around(ms, half_width)
        is_inside = extrapolation.known and extrapolation.negligible and is_measured(model.document)
        found.append(Compared(row, ms, interval, is_inside))
    return found


def compare_kernels(model: Model, path: str, left_out: LeftOut) -> list[Compared]:
    """Operations of language models, each timed alone; `left_out`: is told of those that are not known."""
    from lolat.llm.fit import rows_of, sizes_of
    from lolat.llm.gpu import operation_ms, specs_of

    section, found = model.language_models, []
    for (name, dtype), rows in rows_of(path).items():
        operation = section.operations.get(name, {}).get(dtype)
        if operation is None:
            left_out.add(f"nothing is known of {name} of {dtype}", rows=len(rows))
            continue
        ms = operation_ms(
            name, operation, sizes_of(name, rows), specs_of(section.sheet), dtype, alone=True
        )
        off = math.exp(normal_quantile(COVERAGE) * operation.spread)
        for row, one in zip(rows, ms.tolist(), strict=True):
            timed = TimedRow(f"{name} {dtype}", row.milliseconds(), row)
            found.append(Compared(timed, one, (one / off, one * off)))
    return _or_nothing(found, path, left_out)


def compare_served(model: Model, path: str, left_out: LeftOut) -> list[Compared]:
    """Served models: time per output token, and that to the first as a further column."""
    from lolat.llm.calibration import by_deployment, timed_of
    from lolat.llm.domain import interval
    from lolat.llm.gpu import GPU
    from lolat.llm.names import find_decoder
    from lolat.llm.served import read_served
    from lolat.llm.serving import deployment_of

    section, found = model.language_models, []
    device = name_of(model.document)
    for some in by_deployment(read_served(path, device, section.framework)):
        try:
            timed = timed_of(section, some, find_decoder)
            tpot, first = timed.found(section.overheads)
            deployment = deployment_of(section, find_decoder(some[0].model), *some[0].deployment)
            lengths = np.array([(row.input_tokens, row.output_tokens) for row in some])
            sizes = np.column_stack([np.minimum(timed.concurrency, timed.capacity), lengths])
            low, high, _ = interval(GPU(section), deployment, sizes, timed.step_parts)
            times = (column.tolist() for column in (tpot, tpot * low, tpot * high, first))
            for row, ms, *ends, ttft in zip(some, *times, strict=True):
                one = TimedRow(f"{row.model} {row.dtype}".strip(), row.tpot_ms, row.row)
                more = {"predicted_ttft_ms": ttft}
                found.append(Compared(one, ms, (ends[0], ends[1]), more=more))
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


# ---- `evaluate --table`


Rows = list[dict[str, Any]] | UnsetType


@dataclass(frozen=True, repr=False)
class TableEvaluation(Result):
    """A table's times compared; `content`: "networks", "operations", "blocks" or "served"; `skipped`:
    reason -> rows left out; `warnings`: remarks on the table.

    In JSON `networks`, `operations`, `blocks` or `served` are the rows as they stand in the table, with
    latency_ms, predicted_ms, interval_ms and in_domain; `summary` has relative errors, and how many rows
    there are.
    """

    KEYS = ("networks", "operations", "blocks", "served", "summary", "skipped", "warnings")

    content: str
    compared: list[Compared]
    left_out: LeftOut
    columns: Sequence[str]
    warnings: tuple[str, ...]
    networks: Rows = UNSET
    operations: Rows = UNSET
    blocks: Rows = UNSET
    served: Rows = UNSET

    @property
    def skipped(self) -> Mapping[str, int]:
        """Why rows were left out -> how many."""
        return self.left_out.reasons

    @property
    def summary(self) -> dict[str, float]:
        """Errors over all rows, and the number inside their intervals."""
        figures: dict[str, float] = summary(self.compared, self.content)
        return figures

    def words(self) -> str:
        """The median error of the predictions."""
        return (
            f"{len(self.compared)} {self.content}: median error {percent(self.summary['median'])}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Each row as it stands in the table, with latency_ms, predicted_ms, interval_ms, in_domain."""
        rows: list[dict[str, Any]] = getattr(self, self.content)
        return rows

    def to_csv(self) -> str:
        """The table's rows with predicted_ms, low_ms, high_ms."""
        return predictions(self.compared, self.columns)


def evaluate_table(
    model: Model,
    table: str,
    only: str | Collection[str] | None,
    predictor: str | None,
    precision: str | None,
    training: bool,
    on_progress: OnProgress | None,
) -> TableEvaluation:
    """Compare with the times in a table; nothing is measured. See `Model.evaluate_table`."""
    given = read_table(table) if is_table(table) else None
    columns = () if given is None else given.names
    if training and predictor:
        raise InputError(
            f"{arg('predictor')} is for a forward pass, and {arg('training')} compares training steps; "
            "give one of them",
            code="predictor",
        )
    content, left_out, remarks = content_of(columns) if columns else SERVED, LeftOut(), list[str]()
    _refuse_ignored(
        table, content, columns,
        only=only, predictor=predictor, precision=precision, training=training,
    )  # fmt: skip
    model = model.run_as(precision)
    devices = [only] if isinstance(only, str) else only or ()
    if content in (KERNELS, SERVED):
        compare = compare_kernels if content == KERNELS else compare_served
        compared = compare(model, table, left_out)
    elif content == OPERATIONS:
        timed = read_operations(table, devices, "only")
        compared = compare_operations(model, timed, predictor)
    elif content == BLOCKS:
        compared = compare_blocks(model, table, predictor, devices)
    else:
        if given is not None:
            given.of_devices(devices, "only")  # InputError for times of several devices
        networks = read_networks(table, devices, mode=mode_of(model.inference))
        networks.say_assumed(remarks.append)
        left_out = networks.left_out
        compared = compare_table(model, networks, predictor, training, on_progress)
    remarks += _of_others(model, compared, table)
    if content != NETWORKS:
        say_unread((row.row for row in compared if isinstance(row.row, Row)), remarks.append)
    once = {(row.timed.name, *row.row.values()): row for row in compared}
    if copies := len(compared) - len(once):
        remarks.append(COPIES.format(copies, len(compared)))
    compared, name = [*once.values()], Path(table).name
    if name in str(model.document["environment"].get("source", "")).split(", "):
        remarks.append(
            f"{model.name} was fitted to a table {name}: errors of rows that it was "
            f"fitted to are smaller than others (`lolat show {model.name}` has those of rows left out)"
        )
    kind = "served" if content == SERVED else OPERATIONS if content == KERNELS else content
    names = ("latency_ms", "predicted_ms", "interval_ms", "in_domain")
    rows = [
        {**c.row, **{name: plain_data(getattr(c, name)) for name in names}, **c.more}
        for c in compared
    ]
    of_kind = {kind: rows}
    return TableEvaluation(kind, compared, left_out, columns, tuple(remarks), **of_kind)


def _of_others(model: Model, compared: Sequence[Compared], table: str) -> list[str]:
    """A remark if the rows are of another device than the model, by their column `device`, or else by the
    name of the table.
    """
    own = name_of(model.document)
    found = dict.fromkeys(filter(None, (row.row.get("device") for row in compared)))
    card = None if found else card_of(Path(table).stem)
    if card and card != card_of(own):
        return [f"by its name the table is of {card}, the predictions are of {own}"]
    others = [name for name in found if name not in (own, model.name) and _differ(name, own)]
    return [f"the times are of {', '.join(others)}, the predictions of {own}"] if others else []


def _differ(one: str, other: str) -> bool:
    """True unless both are names of one known GPU."""
    gpu = find_gpu(one)
    return gpu is None or gpu != find_gpu(other)


TAKES: Mapping[str, Collection[str]] = {
    NETWORKS: ("only", "predictor", "precision", "training"),
    OPERATIONS: ("only", "predictor", "precision"), BLOCKS: ("only", "predictor", "precision"),
}  # fmt: skip
"""Content of a table -> the options that change how its rows are compared."""


def _refuse_ignored(table: str, content: str, columns: Collection[str], **options: object) -> None:
    """InputError for an option that the rows of a table have no use for."""
    for name, value in options.items():
        no_device = name == "only" and "device" not in columns
        if value and (no_device or name not in TAKES.get(content, ())):
            of = "operations of language models" if content == KERNELS else content
            lacks = " and no column device" if no_device else ""
            raise InputError(
                f"{plain(table)} has {of}{lacks}, to which {arg(name)} does not apply; leave it out, or "
                "give a table that it is for",
                code=name,
            )
