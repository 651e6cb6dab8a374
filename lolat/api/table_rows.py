"""Compares a profile with the rows of a table; each kind of row has its own function."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lolat.device.domain import NEGLIGIBLE_SHARE, Extrapolation
from lolat.device.intervals import interval_around, normal_quantile
from lolat.device.prediction import Prediction
from lolat.device.predictors.roofline import Roofline
from lolat.device.predictors.two_regime import TwoRegime
from lolat.device.question import EVERY_ROW, TableQuestion
from lolat.device.uncertainty import widened_half_width
from lolat.errors import InputError, LolatError
from lolat.fitting.roofline import predicted
from lolat.fitting.times import Times
from lolat.graph import Graph
from lolat.graph.counts import FEATURES
from lolat.graph.modes import PRECISION_OF, Mode
from lolat.graph.work import work_of
from lolat.io.progress import Warn, nobody
from lolat.io.tables import Table, is_table, read_table
from lolat.optimizers import OPTIMIZERS
from lolat.parameters import COVERAGE
from lolat.readers import read
from lolat.tables.blocks import matrix, point_of, read_blocks
from lolat.tables.contents import BLOCKS, KERNELS, NETWORKS, OPERATIONS, RUNS, SERVED
from lolat.tables.copies import row_key
from lolat.tables.counted import counts_of
from lolat.tables.devices import rows_of_devices
from lolat.tables.left_out import LeftOut
from lolat.tables.networks import Network, NetworkTable, TimedNetwork, read_networks
from lolat.tables.operations import TimedOperation, read_operations
from lolat.training.network_rows import predicted_step, step_run
from lolat.training.plan import training_of
from lolat.training.predictor import TrainingPredictor

if TYPE_CHECKING:
    from lolat.api.model import Model
    from lolat.llm.gpu import ServedRow


@dataclass(frozen=True)
class Comparison:
    """A table to compare, and the question that says how.

    `warn`: called if an execution mode is assumed; `left_out`: receives the rows that cannot be predicted.
    """

    path: str
    question: TableQuestion = EVERY_ROW
    warn: Warn = nobody
    left_out: LeftOut = field(default_factory=LeftOut)

    @cached_property
    def given(self) -> Table | None:
        """The cells of the file; None if it is not a table, InputError if there is no such file."""
        is_missing = not Path(self.path).exists()
        return read_table(self.path) if is_missing or is_table(self.path) else None

    def not_empty(self, found: list[Compared]) -> list[Compared]:
        """The rows `found`; InputError if there are none."""
        if not found:
            why = str(self.left_out) or "none is of this GPU and framework"
            raise InputError(
                f"{self.path}: no row could be used ({why})", code="nothing-comparable"
            )
        return found


@dataclass(frozen=True)
class TimedRow:
    """A row of a block, of an operation of language models, or of a served model.

    `name`: the block, operation or served model; `latency_ms`: its time, for a served model per output
    token; `key`: see `lolat.tables.copies.row_key`; `ttft_ms`: time to the first token, 0 if unknown.
    """

    name: str
    latency_ms: float
    row: Mapping[str, str]
    key: str = ""
    ttft_ms: float = 0.0


@dataclass(frozen=True)
class Compared:
    """A row that could be predicted: the row in the table, and its predicted time in ms.

    `in_domain`: True if the row is inside the measured range, None if the profile does not say; `more`:
    further predicted columns, such as the time to the first token of a served model.
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
        """The measured time, from the table."""
        return self.timed.latency_ms

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted_ms / self.latency_ms - 1.0

    @property
    def first_error(self) -> float | None:
        """The relative error of a served model's time to the first token; None if it is unknown."""
        known = isinstance(self.timed, TimedRow) and self.timed.ttft_ms
        return self.more["predicted_ttft_ms"] / known - 1.0 if known else None

    @property
    def further_errors(self) -> dict[str, float]:
        """Column -> relative error, for further columns of the row such as p99_ttft_ms."""
        names = ((name, name.removeprefix("predicted_")) for name in self.more)
        return {
            n: self.more[found] / float(self.row[n]) - 1.0 for found, n in names if n != "ttft_ms"
        }


def key_of_served(row: ServedRow) -> str:
    """The key of a served row in a table or a profile: see `lolat.tables.copies.row_key`."""
    load = row.input_tokens, row.output_tokens, row.concurrency, row.request_rate
    return row_key(row.model, row.tpot_ms, *load)


def fitted_rows(model: Model) -> set[str]:
    """The keys of the rows that a profile was fitted to, as far as its file stores them."""
    points = ((p.name, p.latency_ms, p.batch_size) for p in model.file.points)
    known = {*model.file.environment.rows, *(row_key(*point) for point in points)}
    if model.file.llm is not None:
        section = model.language_models
        known.update(
            key_of_served(row) for fit in (section, *section.fits.values()) for row in fit.own
        )
    return known


def compare_blocks(model: Model, asked: Comparison) -> list[Compared]:
    """Compare the rows of a table of blocks by six counts, or by three if any row lacks the others."""
    rows = [
        (row, point_of(row))
        for row in rows_of_devices(read_blocks(asked.path), asked.question.devices, "only")
    ]
    names = FEATURES if all({*FEATURES} <= {*point.counts} for _, point in rows) else FEATURES[:3]
    counts = matrix([point for _, point in rows], names)
    ms = model.predict_counts(
        **dict(zip(names, counts.T, strict=True)), predictor=asked.question.predictor
    )
    usual = None if names == FEATURES else TwoRegime.name
    formula, found = model.predictor(asked.question.predictor or usual).of_six_counts, []
    knows = names == FEATURES and bool(model.latencies_file.domain.ratios)
    beyond = model.file.domain.beyond(counts) if knows else np.zeros(len(rows), bool)
    for (row, point), latency, is_beyond in zip(rows, ms.tolist(), beyond.tolist(), strict=True):
        extrapolation = Extrapolation(float(is_beyond), known=knows)
        half_width, _ = widened_half_width(
            formula,
            None,
            extrapolation,
            model.latencies_file.noise,
            None,
            point.counts.get("ops", 1),
        )
        in_domain = not is_beyond if knows else None
        key = row_key(point.name, point.latency_ms, point.batch_size)
        timed = TimedRow(point.name, point.latency_ms, row, key)
        found.append(Compared(timed, latency, interval_around(latency, half_width), in_domain))
    return found


def compare_networks(model: Model, asked: Comparison) -> list[Compared]:
    """Compare each row that the profile can predict, as `Model.predict` does.

    Rows of networks that cannot be read, or that were run in another execution mode, are left out.
    InputError if no row is left, and for rows of several kinds of device.
    """
    question = asked.question
    if asked.given is not None:
        rows_of_devices(asked.given, question.devices, "only")
    own = model.latencies_file.mode
    given = question.devices, own, asked.left_out, question.training
    table = read_networks(asked.path, *given, iterations=True)
    if question.precision is not None:
        table.assumed = None  # the caller states it
    table.say_assumed(asked.warn)
    return compare_rows(model, table, asked)


def compare_rows(model: Model, table: NetworkTable, asked: Comparison) -> list[Compared]:
    """Compare the rows of a table that is already read; see `compare_networks`.

    Rows of training steps are compared with `Model.cost`, with the row's optimizer or sgd.
    """
    question = asked.question
    training = question.training
    mode = replace(model.latencies_file.mode, training=training)
    rows = [row for row in table.rows if row.mode == mode]
    ways = {
        other: _other_way(model, other, mode) for other in {r.mode for r in table.rows} - {mode}
    }
    for row in table.rows:
        if row.mode in ways:
            table.left_out.add(ways[row.mode], "mode")
    of_training = training_of(model) if training else None
    networks: dict[Network, list[int]] = {}
    for at, known in enumerate(counts_of(rows, question.on_progress)):
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
                    _predicted(row, model.predict(graph, row.batch_size, question.predictor))
                    if of_training is None
                    else _trained(row, of_training, graph)
                )
            except LolatError as error:
                table.left_out.network(row.name, row.network[0], error)
    if not compared:
        raise table.nothing()
    return [compared[at] for at in sorted(compared)]


def _other_way(model: Model, mode: Mode, asked: Mode) -> str:
    """The reason to leave out a row that was run in another execution mode than asked for."""
    if mode == replace(asked, training=True):
        return "a training step; --training (in Python training=True) compares these"
    if mode == replace(asked, training=False):
        return "no training step; leave --training (in Python training=True) out to compare it"
    way = f"run in another way ({mode}; asked for: {asked}"
    if mode == replace(asked, dtype=mode.dtype):
        name = PRECISION_OF[mode.dtype]
        with suppress(InputError):
            model.run_as(name)
            return f'{way}); --precision {name} (in Python precision="{name}") compares these'
    return f"{way})"


def _predicted(timed: TimedNetwork | TimedOperation, found: Prediction) -> Compared:
    return Compared(timed, found.latency_ms, found.interval_ms, found.in_domain)


def _trained(row: TimedNetwork, training: TrainingPredictor, graph: Graph) -> Compared:
    """Compare a row of a training step with an iteration of `Model.cost`."""
    found = predicted_step(training, graph, row)
    batch = training.batch(graph, row.batch_size, OPTIMIZERS[step_run(row).optimizer])
    return Compared(row, found.iteration_ms, found.interval_ms, batch.in_domain)


def compare_operations(model: Model, asked: Comparison) -> list[Compared]:
    """Compare operations that were timed one by one, predicted without a host's launch overhead."""
    predictor = asked.question.predictor
    rows = read_operations(asked.path, asked.question.devices, "only")
    formula = model.predictor(predictor)
    if not isinstance(formula, Roofline):
        return [
            _predicted(row, model.predict(row.graph, row.batch_size, predictor)) for row in rows
        ]
    for row in rows:
        if {"dtype", "precision"} & row.row.keys() and row.mode.dtype != formula.mode.dtype:
            raise row.row.refused(
                f"an operation in {row.mode.dtype}; expected {formula.mode.dtype}, as the profile's"
            )
    parts = [work_of(row.graph, row.batch_size, formula.mode) for row in rows]
    measured = np.array([row.latency_ms for row in rows])
    alone = predicted(formula, Times.of(parts, measured, np.zeros(len(rows), bool))).tolist()
    found = []
    for row, part, ms in zip(rows, parts, alone, strict=True):
        steps = formula.steps(part)
        unlike = formula.unlike(steps)
        extrapolation = Extrapolation(unlike=sum((unlike or {}).values()), known=unlike is not None)
        half_width, _ = widened_half_width(formula, steps, extrapolation, model.file.noise, None, 1)
        is_inside = extrapolation.known and extrapolation.share < NEGLIGIBLE_SHARE
        is_inside &= model.file.is_measured
        found.append(Compared(row, ms, interval_around(ms, half_width), is_inside))
    return found


def compare_kernels(model: Model, asked: Comparison) -> list[Compared]:
    """Compare operations of language models that were timed one by one; unknown operations are left out."""
    from lolat.llm.gpu import operation_ms, specs_of
    from lolat.llm.operation_tables import rows_of, sizes_of

    section, found = model.language_models, []
    for (name, dtype), rows in rows_of(asked.path, asked.question.devices, "only").items():
        operation = section.operations.get(name, {}).get(dtype)
        if operation is None:
            asked.left_out.add(f"nothing is known of {name} of {dtype}", rows=len(rows))
            continue
        ms = operation_ms(
            name, operation, sizes_of(name, rows), specs_of(section.sheet), dtype, alone=True
        )
        half_width = normal_quantile(COVERAGE) * operation.spread
        for row, one in zip(rows, ms.tolist(), strict=True):
            timed = TimedRow(f"{name} {dtype}", row.milliseconds(), row)
            found.append(Compared(timed, one, interval_around(one, half_width)))
    return asked.not_empty(found)


def compare_served(model: Model, asked: Comparison) -> list[Compared]:
    """Compare served models by time per output token, with time to the first token as a further column."""
    from lolat.llm.calibration import by_deployment, percentiles_of, timed_of, types_words
    from lolat.llm.domain import interval
    from lolat.llm.load import Load
    from lolat.llm.names import find_decoder
    from lolat.llm.served_rows import read_served, refuse_unused

    known, found = model.language_models, []
    compared: list[ServedRow] = []
    device = model.file.product
    gpus, served = asked.question.tensor_parallel, asked.question.served_model
    rows = read_served(asked.path, device, known.framework, gpus, asked.warn, served)
    refuse_unused(rows, () if gpus is None else (gpus,), served)
    for some in by_deployment(rows):
        try:
            section = known.of(find_decoder(some[0].model).kind).usual
            timed = timed_of(section, some)
            columns = timed.server, timed.capacity, timed.step_parts
            every = zip(some, *columns, *timed.predicted(section.overheads), strict=True)
            for row, server, room, parts, ms, ttft in every:
                load = Load.of(row)
                stay_ms = ttft + (load.output_tokens - 1.0) * ms
                inside = max(1e-3 * load.request_rate * stay_ms, load.concurrency)  # Little's law
                at_once = min(inside, room, server.rule.sequences)
                sizes = at_once, load.input_tokens, load.output_tokens
                at_rate = load.request_rate > 0.0
                most = server.largest_rate(load, section.overheads) if at_rate else 0.0
                is_full = load.request_rate > most
                of = server.gpu, server.deployment, sizes, parts
                low, high, _ = interval(*of, at_rate=at_rate, is_full=is_full)
                ends = float(ms * low), float(ms * high)
                if at_rate and not is_full:  # as `Sizing` has it
                    factors = server.work_factors(load, parts, load.request_rate, at_once)
                    slowed = (server.slowed(load, section.overheads, factor) for factor in factors)
                    least, most = (times.mean_tpot_ms for times in slowed)
                    ends = min(ends[0], least), max(ends[1], most)
                name = f"{row.model} {row.dtype}".strip()
                one = TimedRow(name, row.tpot_ms, row.row, key_of_served(row), row.ttft_ms)
                tails = percentiles_of(server, row, section.overheads)
                more = {f"predicted_{name}": at for name, at in tails.items()}
                more |= {"predicted_ttft_ms": float(ttft)}
                found.append(Compared(one, float(ms), ends, more=more))
            compared += some
        except LolatError as error:
            asked.left_out.add(f"{some[0].model}: {error}", error.code, len(some))
    if words := types_words(known, compared):
        asked.warn(words)
    return asked.not_empty(found)


def compare_runs(model: Model, asked: Comparison) -> list[Compared]:
    """Compare the time of an iteration for each run that trains a decoder."""
    from lolat.llm.gpu import GPU
    from lolat.training.decoder_plan import card_gib, half_width
    from lolat.training.decoder_rows import read_runs

    section, card = model.language_models, model.file.kind
    gpu, level = GPU(section), 1.0 if section.trained is None else section.trained.level
    gib = card_gib(card, section)
    devices = asked.question.devices or (model.file.product,)
    rows, refused = read_runs(asked.path, model.file, gib, devices, "only")
    for _, error in refused:
        asked.left_out.add(str(error), error.code)
    found = []
    for row in rows:
        ms, passes = level * row.predicted_ms(gpu), row.step.passes
        interval = interval_around(ms, half_width(section, card, passes, row.parallel, COVERAGE))
        found.append(Compared(TimedRow(passes.decoder.name, row.ms, row.row), ms, interval))
    return asked.not_empty(found)


COMPARE = {
    BLOCKS: compare_blocks,
    OPERATIONS: compare_operations,
    NETWORKS: compare_networks,
    KERNELS: compare_kernels,
    SERVED: compare_served,
    RUNS: compare_runs,
}
"""Content of a table -> the function that compares its rows with a profile's predictions."""
