"""Predicts training from measurements of passes, updates, the loop and the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from lolat.device.device import Device
from lolat.device.domain import (
    MOSTLY_SHARE,
    NEGLIGIBLE_SHARE,
    Extrapolation,
    extrapolated_half_width,
)
from lolat.device.file import DeviceFile
from lolat.device.intervals import Calibration
from lolat.device.predicting import predict
from lolat.device.profile_remarks import other_framework
from lolat.device.question import Question
from lolat.device.schema import Noise
from lolat.errors import InputError
from lolat.fitting.cross_validation import cross_validate, folds_of, interval_entry, log_errors
from lolat.fitting.least_squares import fit_relative, require_points
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.graph.modes import other_dtype
from lolat.io.documents import Count, NotNegative, Number, Positive, converted
from lolat.optimizers import Optimizer
from lolat.training.estimate import EstimatedTraining
from lolat.training.memory import numbers_of
from lolat.training.pass_counts import (
    PASS_TERMS,
    backward_rows,
    pass_rows,
    shares,
    started,
    variables,
)
from lolat.training.predictor import Iteration, TrainedBatch, TrainingPredictor, unmeasured
from lolat.units import percent

# ---- Points of measurement, all times in ms.

TermCounts = dict[Literal[PASS_TERMS], NotNegative]  # type: ignore[valid-type]
TermCosts = dict[Literal[(*PASS_TERMS, "call")], NotNegative]  # type: ignore[valid-type]
"""Term -> ms for each unit of it; `call`: the constant ms of a block that is measured alone."""


class PassPoint(msgspec.Struct):
    """A measured block: its forward pass or, if `backward`, both passes together; `terms` omits zeros."""

    name: str
    batch_size: Count
    backward: bool
    terms: TermCounts
    latency_ms: Positive
    samples_ms: tuple[Number, ...] = ()
    spread: NotNegative | None = None
    kinds: tuple[str, ...] = ()


class UpdatePoint(msgspec.Struct):
    """A measured update of `variables` tensors with `parameters` elements in all."""

    optimizer: str
    variables: Count
    parameters: Count
    latency_ms: Positive
    samples_ms: tuple[Number, ...] = ()


class EpochPoint(msgspec.Struct):
    """A measured epoch of `steps` iterations that compute nothing; each has `elements` input elements."""

    steps: Count
    elements: Count
    latency_ms: Positive
    samples_ms: tuple[Number, ...] = ()


class StartPoint(msgspec.Struct):
    """A network's measured first step, with `operations` to trace and `variables` to update."""

    optimizer: str
    operations: Count
    variables: Count
    latency_ms: Positive


class Points(msgspec.Struct):
    """All measurements of training in a device file."""

    points: list[PassPoint]
    update_points: list[UpdatePoint]
    epoch_points: list[EpochPoint]
    start_points: list[StartPoint]


def named_terms(row: np.ndarray) -> dict[str, float]:
    """Term -> count, from (PASS_TERMS,) counts, without zeros."""
    return {
        t: int(v) if v == int(v) else v for t, v in zip(PASS_TERMS, row.tolist(), strict=True) if v
    }


def _row(named: Mapping[str, float]) -> np.ndarray:
    """(PASS_TERMS,) numbers from numbers by term; 0 for a missing term."""
    return np.array([float(named.get(t, 0.0)) for t in PASS_TERMS])


# ---- Coefficients.


class UpdateTimes(msgspec.Struct):
    """Coefficients of an update: ms for each variable, ms for each parameter."""

    variable: NotNegative
    parameter: NotNegative


class LoopTimes(msgspec.Struct):
    """Coefficients of the framework's loop: ms for each epoch, step, and input element of a step."""

    epoch: NotNegative
    step: NotNegative
    element: NotNegative


class Start(msgspec.Struct):
    """Coefficients of the first step: constant ms, ms for each operation, optimizer -> ms for each
    variable.
    """

    constant: NotNegative
    operation: NotNegative
    variable: dict[str, NotNegative]


class TrainingCoefficients(Calibration, frozen=True, kw_only=True):
    """The section `training` of a device file: coefficients, and errors of blocks held out of the fit.

    Coefficients are ms for each unit. `start_ms`: None if no start was measured; `kinds`: measured kinds of
    operation, see `lolat.graph.counts.behaviors`.
    """

    forward_ms: TermCosts
    backward_ms: TermCosts
    update_ms: Annotated[dict[str, UpdateTimes], msgspec.Meta(min_length=1)]
    loop_ms: LoopTimes
    kinds: list[str]
    noise: Noise
    start_ms: Start | None = None


# ---- Fitting.

SIMPLEST = "sgd"  # stores nothing for a variable
LEAST_UPDATES = 3  # one for each coefficient: variable, parameter, call


def fit_passes(points: Sequence[PassPoint]) -> dict[str, Any]:
    """Fit the coefficients of both passes; return them with the errors of blocks held out of the fit.

    One fit uses all points: a point of both passes has the sum of the forward and the backward
    coefficients. `residuals` in the result: log(measured / predicted) of points of both passes. InputError
    for too few points in either direction.
    """
    both = np.array([p.backward for p in points], bool)
    for directions in (both, ~both):
        require_points(int(directions.sum()), len(PASS_TERMS) + 1)
    terms = np.array([[*_row(p.terms), 1.0] for p in points])
    rows = np.hstack([terms, terms * both[:, None]])
    measured = np.array([p.latency_ms for p in points])
    sides = np.split(fit_relative(rows, measured), 2)

    def of_others(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        return np.asarray(rows[out] @ fit_relative(rows[kept], measured[kept]))

    predicted = cross_validate(folds_of([p.name for p in points]), of_others)
    residuals = log_errors(measured, predicted)[both]
    error = np.abs(predicted / measured - 1.0)
    folds = folds_of([p.name for p in points if p.backward])
    interval = interval_entry(residuals, terms[both, PASS_TERMS.index("ops")], folds)
    forward, backward = (
        {t: c for t, c in zip((*PASS_TERMS, "call"), side.tolist(), strict=True) if c > 0.0}
        for side in sides
    )
    return {
        "forward_ms": forward,
        "backward_ms": backward,
        "error": {
            "left_out_median": round(float(np.median(error[both])), 5),
            "left_out_forward_median": round(float(np.median(error[~both])), 5),
        },
        "residuals": [round(float(r), 6) for r in residuals],
        **({} if interval is None else {"interval": interval}),
    }


def _fitted(
    names: Sequence[str], rows: Sequence[Sequence[float]], points: Sequence[Any]
) -> dict[str, float]:
    """Fit coefficients for the columns of `rows` to the ms of `points`; `names`: of the first columns."""
    times = np.array([p.latency_ms for p in points])
    return dict(zip(names, fit_relative(np.array(rows), times).tolist(), strict=False))


def fit_update(points: Sequence[UpdatePoint]) -> dict[str, dict[str, float]]:
    """Optimizer -> fitted coefficients of `UpdateTimes`; the fitted constant, the time of a call, is left
    out.

    An optimizer with fewer than LEAST_UPDATES points is left out.
    """
    updates = {}
    for name in dict.fromkeys(p.optimizer for p in points):
        some = [p for p in points if p.optimizer == name]
        if len(some) >= LEAST_UPDATES:
            rows = [[p.variables, p.parameters, 1.0] for p in some]
            updates[name] = _fitted(("variable", "parameter"), rows, some)
    return updates


def fit_loop(points: Sequence[EpochPoint]) -> dict[str, float]:
    """Fit the coefficients of `LoopTimes`; all are 0 if there are fewer than three points."""
    names = ("epoch", "step", "element")
    if len(points) < len(names):
        return dict.fromkeys(names, 0.0)
    return _fitted(names, [[1.0, p.steps, p.steps * p.elements] for p in points], points)


def fit_start(points: Sequence[StartPoint]) -> dict[str, Any] | None:
    """Fit the coefficients of `Start`; the optimizer SIMPLEST adds no time for variables.

    The result is None unless SIMPLEST was timed on two networks with different numbers of operations: one
    network does not determine the constant.
    """
    if len({p.operations for p in points if p.optimizer == SIMPLEST}) < 2:
        return None
    names = [n for n in dict.fromkeys(p.optimizer for p in points) if n != SIMPLEST]
    rows = [[1.0, p.operations, *(p.variables * (p.optimizer == n) for n in names)] for p in points]
    found = _fitted(("constant", "operation", *names), rows, points)
    variable = {SIMPLEST: 0.0} | {n: found.pop(n) for n in names}
    return {**found, "variable": variable}


def training_section(
    points: Points, environment: Mapping[str, Any], noise: Mapping[str, Any], warnings: Sequence[str]
) -> dict[str, Any]:  # fmt: skip
    """Make the section `training` of a device file by fits to points; InputError if these are too few."""
    return {
        **fit_passes(points.points),
        "update_ms": fit_update(points.update_points),
        "loop_ms": fit_loop(points.epoch_points),
        "start_ms": fit_start(points.start_points),
        "kinds": sorted({k for p in points.points for k in p.kinds}),
        "environment": dict(environment),
        "noise": dict(noise),
        "warnings": list(warnings),
        **msgspec.json.decode(msgspec.json.encode(points)),
    }


def refitted(section: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Fit the section `training` of a device file again, to its stored points.

    ModelFileError, which begins with `source`, for a damaged point; InputError for too few points.
    """
    points = converted(section, Points, source, "$.training")
    about = {name: section[name] for name in ("environment", "noise", "warnings")}
    return training_section(points, **about)


# ---- Predicting: passes, update, loop and start, each by its own coefficients.

WIDENING = 2.0  # factor on the interval for operations that no measured block had; as for latencies


def effective_ops(times: np.ndarray, ops: np.ndarray) -> float:
    """The number of equally long operations whose errors average out as much as the errors of these parts.

    `times`: (parts,) ms; `ops`: (parts,) numbers of operations. If the errors of operations are
    independent, and the operations of a part take equal times, the relative variance is sum(time**2 / ops)
    / total**2. For n operations of equal time it is 1 / n.
    """
    total = float(times.sum())
    if total <= 0.0:
        return max(float(ops.sum()), 1.0)
    shares = times / total  # divided first, as squares of tiny times are 0
    return 1.0 / float(shares @ (shares / np.maximum(ops, 1)))


class MeasuredTraining(TrainingPredictor):
    """Predicts training by coefficients that were measured on the device.

    `forward`, `backward`: (PASS_TERMS,) ms for each unit of a term. The coefficient "call" is left out,
    because the loop has one call for all blocks. `passes`: predicts both passes by roofline and launch
    model, if the launch overheads were fitted to timed passes; a sum over operations would count launches
    that the device hides. The times assume that batches arrive while the device computes, as from a loader
    with workers and pinned memory.
    """

    def __init__(self, file: DeviceFile, source: str) -> None:
        """Read the section `training` of a device file; ModelFileError if it is damaged."""
        self.file, self.source = file, source
        self.section: TrainingCoefficients = converted(
            file.training, TrainingCoefficients, source, "$.training"
        )
        self.epoch_ms = self.section.loop_ms.epoch
        self.forward, self.backward = map(_row, (self.section.forward_ms, self.section.backward_ms))
        self.latency = Device(file, source)
        host = file.kernels and file.kernels.host
        self.passes = EstimatedTraining(file) if host and host.training else None

    def batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        """See `TrainingPredictor`; the measured range is that of the inference measurements."""
        update = self.section.update_ms.get(optimizer.name)
        if update is None:
            raise InputError(
                f"{self.source} has no times of {optimizer.name}; it was measured with "
                f"{', '.join(self.section.update_ms)}",
                code="no-optimizer",
                of_device=True,
            )
        update_ms = (
            update.variable * variables(graph) + update.parameter * numbers_of(graph).trained
        )
        if self.passes:
            found = self.passes.batch(graph, batch_size, optimizer)
            its = replace(found.iteration, update=update_ms, step=self.section.loop_ms.step)
            return replace(found, iteration=its, host_bound=False, estimated=False)
        rows = pass_rows(graph, batch_size)
        forward = rows @ self.forward
        backward = backward_rows(graph, rows) @ self.backward + shares(graph)[1] * forward
        step_ms = self._step_ms(graph, batch_size)
        remarks = [*other_framework(self.file, graph.framework, "training")]
        if unknown := unmeasured(graph, self.section.kinds):
            remarks.append(f"no block measured in training has the operations {', '.join(unknown)}")
        remarks += other_dtype(graph)
        inside: float | None = None  # the fraction of a forward pass
        if self.file.has_latencies:
            inside = predict(self.latency, graph, Question(batch_size)).inside_share
        if inside is not None and inside < MOSTLY_SHARE:
            remarks.append(
                f"{percent(1.0 - inside)} of a forward pass is larger, or of other proportions, than what "
                "was measured in inference"
            )
        of_inference = None if inside is None else inside >= MOSTLY_SHARE
        return TrainedBatch(
            Iteration(float(forward.sum()), backward, update_ms, step_ms),
            (*remarks, *count(graph).warnings),
            partial(self._half_width, graph, rows, WIDENING if unknown else 1.0, inside),
            in_domain=False if unknown else of_inference,
        )  # fmt: skip

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """See `TrainingPredictor`; the latency of inference, with the loop's time of a step in place of the
        call.
        """
        prediction = predict(self.latency, graph, Question(batch_size))
        return prediction.latency_ms - prediction.call_ms + self._step_ms(graph, batch_size)

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Seconds to trace the operations and make the optimizer's variables; None if not measured."""
        start = self.section.start_ms
        if start is None or optimizer.name not in start.variable:
            return None
        of_network = start.constant + start.operation * started(graph)
        return (of_network + start.variable[optimizer.name] * variables(graph)) / 1e3

    def _half_width(
        self, graph: Graph, rows: np.ndarray, wider: float, inside: float | None, coverage: float
    ) -> float:
        """Half width of the interval, a logarithm. `rows`: (operations, PASS_TERMS) counts of a pass;
        `wider`: a factor; `inside`: the share inside the measured range.
        """
        blocks = np.array([rows[list(b.operations)].sum(axis=0) for b in cut(graph)])
        ops = blocks[:, PASS_TERMS.index("ops")]
        number = effective_ops(blocks @ (self.forward + self.backward), ops)
        half_width = (
            self.section.half_width(number, coverage, self.section.noise.floor or 0.0) * wider
        )
        if inside is None or 1.0 - inside < NEGLIGIBLE_SHARE:
            return half_width
        return extrapolated_half_width(half_width, Extrapolation(beyond=1.0 - inside), coverage)

    def _step_ms(self, graph: Graph, batch_size: int) -> float:
        """ms of the loop for a step: a constant, and a time for each input element."""
        elements = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
        return self.section.loop_ms.step + self.section.loop_ms.element * elements
