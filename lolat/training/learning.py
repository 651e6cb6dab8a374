"""Training that was measured: points of passes, updates, loop and start, the fit, and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError, arg
from lolat.fitting.intervals import effective_ops, interval_entry, interval_width
from lolat.fitting.least_squares import fit_relative, leave_out, require_points
from lolat.graph import Graph
from lolat.graph.analysis import parameters
from lolat.graph.blocks import cut
from lolat.graph.counts import behaviors
from lolat.io.documents import Count, NotNegative, Number, Positive, converted
from lolat.model import Model
from lolat.model.file import Noise
from lolat.model.prediction import other_framework
from lolat.training.iteration import PASS_TERMS, Optimizer, pass_rows, started, variables
from lolat.training.model import Training

SIMPLEST = "sgd"  # keeps nothing for a variable
LEAST_UPDATES = 3  # so many coefficients has an update
LOOP = ("epoch", "step", "element")

# ---- What is measured, one point each, all times in ms.

Samples = tuple[Number, ...]


@dataclass(frozen=True)
class PassPoint:
    """A block's pass: `backward`: of both passes, else of the forward pass alone.

    `terms`: (PASS_TERMS,) of the block at `batch_size`, in a file by name and without those that are 0;
    `latency_ms` from `samples_ms`; `spread` as of a `lolat.fitting.points.Point`.
    """

    name: str
    batch_size: Count
    backward: bool
    terms: np.ndarray
    latency_ms: Positive
    samples_ms: Samples = ()
    spread: NotNegative | None = None
    kinds: tuple[str, ...] = ()


@dataclass(frozen=True)
class UpdatePoint:
    """An update of `variables` tensors with `parameters` numbers in all."""

    optimizer: str
    variables: Count
    parameters: Count
    latency_ms: Positive
    samples_ms: Samples = ()


@dataclass(frozen=True)
class EpochPoint:
    """An epoch of `steps` iterations with nothing to compute, on `elements` input numbers each."""

    steps: Count
    elements: Count
    latency_ms: Positive
    samples_ms: Samples = ()


@dataclass(frozen=True)
class StartPoint:
    """A network's first step: `operations` traced, `variables` updated."""

    optimizer: str
    operations: Count
    variables: Count
    latency_ms: Positive


class Points(msgspec.Struct):
    """All that a section was fitted on, as it stands in a model file."""

    points: list[PassPoint]
    update_points: list[UpdatePoint]
    epoch_points: list[EpochPoint]
    start_points: list[StartPoint]

    def document(self) -> dict[str, Any]:
        """As it is written: times to a tenth of a microsecond."""
        written: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(self, enc_hook=_named_terms)
        )
        for point in written["points"]:
            point["samples_ms"] = [round(t, 4) for t in point["samples_ms"]]
        return written


def _read_terms(kind: type, named: Mapping[str, float]) -> np.ndarray:
    unknown = sorted(set(named) - set(PASS_TERMS))
    if unknown:
        raise ValueError(f"the unknown term {unknown[0]!r}")
    return _row(named)


def _row(named: Mapping[str, float]) -> np.ndarray:
    """(PASS_TERMS,), 0 where not named, others left out."""
    return np.array([float(named.get(t, 0.0)) for t in PASS_TERMS])


def _named_terms(terms: np.ndarray) -> dict[str, int | float]:
    named = zip(PASS_TERMS, terms.tolist(), strict=True)
    return {t: int(v) if v == int(v) else v for t, v in named if v}


# ---- What a model file has under "training" for predictions.


class Update(msgspec.Struct):
    """ms of an update for each variable and each parameter."""

    variable: NotNegative
    parameter: NotNegative


class Loop(msgspec.Struct):
    """ms of the framework's loop for each epoch, each step, each input element of a step."""

    epoch: NotNegative
    step: NotNegative
    element: NotNegative


class Start(msgspec.Struct):
    """ms before the first step is done: a constant, for each operation, for each variable by optimizer."""

    constant: NotNegative
    operation: NotNegative
    variable: dict[str, NotNegative]


class Interval(msgspec.Struct):
    """As `lolat.fitting.intervals.interval_entry` makes it."""

    exponent: NotNegative
    ops: tuple[NotNegative, NotNegative]
    scores: list[NotNegative]


class Section(msgspec.Struct):
    """Coefficients in ms for each unit, and how far they were off.

    `forward_ms`, `backward_ms`: by term, `call` being what a block measured alone pays once; `start_ms`:
    None where it could not be measured; `residuals`: log(measured / predicted) of both passes of blocks
    left out; `kinds`: of operation, as `lolat.graph.counts.behaviors` names them.
    """

    forward_ms: dict[str, NotNegative]
    backward_ms: dict[str, NotNegative]
    update_ms: Annotated[dict[str, Update], msgspec.Meta(min_length=1)]
    loop_ms: Loop
    kinds: list[str]
    residuals: list[Number]
    noise: Noise
    start_ms: Start | None = None
    interval: Interval | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET


def read_section(document: Any, source: str) -> Section:
    """ "training" of a model file, checked. ModelFileError, beginning with `source`."""
    section: Section = converted(document, Section, source, "$.training")
    if unknown := {*section.forward_ms, *section.backward_ms} - {*PASS_TERMS, "call"}:
        raise ModelFileError(
            f"{source}: its `training` has the unknown term {min(unknown)!r}; expected of "
            f"{', '.join(PASS_TERMS)}"
        )
    return section


# ---- Fitting.


def fit_passes(points: Sequence[PassPoint]) -> dict[str, Any]:
    """Coefficients of both passes, and how far off they are for blocks left out.

    One fit of all points: a forward pass costs its terms' forward coefficients, both passes the sum of
    forward and backward ones, all from 0. So backward is never negative, and the sum, which is asked for
    most, is fitted itself. `residuals`: log(measured / predicted) of both passes of blocks left out.
    InputError for too few points, in either direction, or of a single block.
    """
    both = np.array([p.backward for p in points], bool)
    for directions in (both, ~both):
        require_points(int(directions.sum()), len(PASS_TERMS) + 1)
    names = [p.name for p in points]
    if len(set(names)) < 2:
        raise InputError(
            f"all passes are of the block {names[0]!r}; expected several blocks, to see how good a fit is "
            "for one left out"
        )
    terms = np.column_stack([np.array([p.terms for p in points]), np.ones(len(points))])
    rows = np.hstack([terms, terms * both[:, None]])
    measured = np.array([p.latency_ms for p in points])
    coefficients = fit_relative(rows, measured)
    predicted = np.empty(len(points))
    for kept in leave_out(names):
        predicted[~kept] = rows[~kept] @ fit_relative(rows[kept], measured[kept])
    residuals = np.log(measured / np.maximum(predicted, 1e-9))[both]
    error = np.abs(predicted / measured - 1.0)
    folds = list(leave_out([p.name for p in points if p.backward]))
    interval = interval_entry(residuals, terms[both, PASS_TERMS.index("ops")], folds)
    return {
        "forward_ms": _named(coefficients[: terms.shape[1]]),
        "backward_ms": _named(coefficients[terms.shape[1] :]),
        "error": {
            "left_out_median": round(float(np.median(error[both])), 5),
            "left_out_forward_median": round(float(np.median(error[~both])), 5),
        },
        "residuals": [round(float(r), 6) for r in residuals],
        **({} if interval is None else {"interval": interval}),
    }


def _named(coefficients: np.ndarray) -> dict[str, float]:
    """By term, `call` being the constant; those that are 0 are left out."""
    named = zip((*PASS_TERMS, "call"), coefficients.tolist(), strict=True)
    return {t: c for t, c in named if c > 0.0}


def fit_update(points: Sequence[UpdatePoint]) -> dict[str, dict[str, float]]:
    """Optimizer -> ms for each variable and for each parameter; what comes once is the call's.

    An optimizer of fewer than LEAST_UPDATES points is left out, as these could not be told apart.
    InputError where that leaves none.
    """
    updates = {}
    for name in dict.fromkeys(p.optimizer for p in points):
        own = [p for p in points if p.optimizer == name]
        if len(own) < LEAST_UPDATES:
            continue
        rows = np.array([[p.variables, p.parameters, 1.0] for p in own])
        variable, parameter, _ = fit_relative(rows, np.array([p.latency_ms for p in own])).tolist()
        updates[name] = {"variable": variable, "parameter": parameter}
    if not updates:
        raise InputError(
            f"no optimizer has as many as {LEAST_UPDATES} measured updates, which it takes to tell a "
            f"variable from a parameter; measure again with {arg('restart')}",
            code="too-few-points",
        )
    return updates


def fit_loop(points: Sequence[EpochPoint]) -> dict[str, float]:
    """ms that the framework's loop takes: for each epoch, each step, each input element of a step.

    Fewer points than that tell of the first ones alone: what cannot be told is 0.
    """
    known = LOOP[: len(points)]
    rows = np.array([[1.0, p.steps, p.steps * p.elements][: len(known)] for p in points])
    times = np.array([p.latency_ms for p in points])
    coefficients = fit_relative(rows, times).tolist() if known else []
    return {**dict.fromkeys(LOOP, 0.0), **dict(zip(known, coefficients, strict=True))}


def fit_start(points: Sequence[StartPoint]) -> dict[str, Any] | None:
    """ms before the first step is done: a constant, for each operation, for each variable by optimizer.

    Of SIMPLEST the variables' part is in that of the operations, and an optimizer without a point is left
    out. None where SIMPLEST has not started two networks of different numbers of operations: a constant
    could not be told from the rest then.
    """
    if len({p.operations for p in points if p.optimizer == SIMPLEST}) < 2:
        return None
    names = [n for n in dict.fromkeys(p.optimizer for p in points) if n != SIMPLEST]
    rows = [
        [1.0, p.operations, *(p.variables * float(p.optimizer == n) for n in names)] for p in points
    ]
    times = np.array([p.latency_ms for p in points])
    constant, operation, *each = fit_relative(np.array(rows), times).tolist()
    variable = {SIMPLEST: 0.0, **dict(zip(names, each, strict=True))}
    return {"constant": constant, "operation": operation, "variable": variable}


def training_section(
    points: Points,
    environment: Mapping[str, Any],
    noise: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """What a model file has under "training". InputError where too little was measured."""
    return {
        **_fitted(points),
        "environment": dict(environment),
        "noise": dict(noise),
        "warnings": list(warnings),
        **points.document(),
    }


def _fitted(points: Points) -> dict[str, Any]:
    """The part of a section that comes from its points."""
    return {
        **fit_passes(points.points),
        "update_ms": fit_update(points.update_points),
        "loop_ms": fit_loop(points.epoch_points),
        "start_ms": fit_start(points.start_points),
        "kinds": sorted({k for p in points.points for k in p.kinds}),
    }


def refitted(section: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A model file's "training", fitted again on its own points; one without points as it is.

    ModelFileError, beginning with `source`, where a point is damaged or there are too few.
    """
    if not section.get("points"):
        return dict(section)
    try:
        fitted = _fitted(msgspec.convert(section, Points, dec_hook=_read_terms))
    except (InputError, msgspec.ValidationError) as error:
        said = error.message if isinstance(error, InputError) else error
        raise ModelFileError(
            f"{source}: its `training` cannot be fitted again ({said}); learn it again with `lolat learn "
            "DEVICE --mode training`"
        ) from error
    return {**{k: v for k, v in section.items() if k != "interval"}, **fitted}


# ---- Predicting: passes, update, loop and start apart.

WIDENING = 2.0  # of the interval, for operations that no measured block had, as of latencies


class MeasuredTraining(Training):
    """Each part of an iteration by its own coefficients.

    `forward`, `backward`: (PASS_TERMS,) ms for each unit; the call of a block measured alone is left out,
    as the loop has one call for all. An interval comes from blocks left out of the fit.
    """

    starts = True

    def __init__(self, document: dict[str, Any], source: str) -> None:
        """`document`: a valid model file's; ModelFileError where its `training` is damaged."""
        self.section = section = read_section(document["training"], source)
        self.document, self.source = document, source
        self.name = str(document["device"])
        self.residuals = section.residuals
        self.epoch_ms = section.loop_ms.epoch
        self.forward, self.backward = map(_row, (section.forward_ms, section.backward_ms))
        self.latency = Model(document, source)

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of the three parts; taking the batch and calling the framework are in the forward one."""
        total = pass_rows(graph, batch_size).sum(axis=0)
        return {
            "forward": float(total @ self.forward) + self._step_ms(graph, batch_size),
            "backward": float(total @ self.backward),
            "update": self._update_ms(graph, optimizer),
        }

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`."""
        both = pass_rows(graph, batch_size) @ (self.forward + self.backward)
        return both, self._update_ms(graph, optimizer), self._step_ms(graph, batch_size)

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """Forward, as latencies are predicted, in the same loop."""
        predicted = self.latency.predict(graph, batch_size)
        return predicted.latency_ms - predicted.call_ms + self._step_ms(graph, batch_size)

    def startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Tracing and ordering the operations, making the optimizer's variables; None: not measured."""
        start = self.section.start_ms
        if start is None or optimizer.name not in start.variable:
            return None
        of_network = start.constant + start.operation * started(graph)
        return (of_network + start.variable[optimizer.name] * variables(graph)) / 1e3

    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """See `Training`."""
        strange, framework = self._strange(graph), graph.framework
        told = [*graph.warnings, *other_framework(self.document["environment"], framework)]
        if strange:
            several = "s" * (len(strange) > 1)
            told.append(
                f"no block measured in training has the operation{several} {', '.join(strange)}"
            )
        return tuple(told)

    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """See `Training`; more for operations that no measured block had."""
        floor = self.section.noise.floor
        width = interval_width(self.document["training"], coverage, floor)
        rows = pass_rows(graph, batch_size)
        times = rows @ (self.forward + self.backward)
        blocks = [list(b.operations) for b in cut(graph)]
        parts = np.array([times[b].sum() for b in blocks])
        ops = np.array([rows[b, PASS_TERMS.index("ops")].sum() for b in blocks])
        return width.half(effective_ops(parts, ops)) * (WIDENING if self._strange(graph) else 1.0)

    def _strange(self, graph: Graph) -> list[str]:
        """The kinds of operation that no measured block had."""
        return sorted(behaviors(graph.operations).difference(self.section.kinds))

    def _step_ms(self, graph: Graph, batch_size: int) -> float:
        """What the loop takes for a step: a constant, and moving the batch."""
        elements = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
        return self.section.loop_ms.step + self.section.loop_ms.element * elements

    def _update_ms(self, graph: Graph, optimizer: Optimizer) -> float:
        own = self.section.update_ms.get(optimizer.name)
        if own is None:
            raise InputError(
                f"{self.source} has no times of {optimizer.name}; it was measured with "
                f"{', '.join(self.section.update_ms)}"
            )
        return own.variable * variables(graph) + own.parameter * parameters(graph)
