"""Training on a device that was measured with `--mode training`: passes, update, loop and start apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.intervals import COVERAGE, check_coverage, effective_ops, interval_width
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import behaviors
from lolat.io.documents import show
from lolat.model import Model
from lolat.model.prediction import other_framework
from lolat.training.memory import FLOAT_BYTES, memory_bytes, parameters
from lolat.training.model import TrainingPrediction
from lolat.training.settings import Optimizer, check_sizes, optimizer_named
from lolat.training.terms import PASS_TERMS, iterations, pass_rows, started, variables

# ---- What a model file says of training, read and checked: coefficients, errors, what was
# measured.

LARGEST = 1e300  # a float holds it


@dataclass(frozen=True)
class Section:
    """Of one device, all times in ms.

    `forward`, `backward`: (PASS_TERMS,) for each unit, without the call of a block measured alone;
    `update`: optimiser -> for each variable and each parameter; `loop`: for each epoch, each step, each
    input element of a step; `start`: a constant and for each operation, None where it could not be
    measured; `start_variable`: optimiser -> for each variable; `kinds`: of operation, as
    `lolat.graph.counts.behaviors` names them; `entry`: residuals and interval, as
    `lolat.fitting.intervals` reads them;
    `floor`: the noise floor, relative.
    """

    forward: np.ndarray
    backward: np.ndarray
    update: Mapping[str, Mapping[str, float]]
    loop: Mapping[str, float]
    start: Mapping[str, float] | None
    start_variable: Mapping[str, float]
    kinds: frozenset[str]
    entry: Mapping[str, Any]
    floor: float


def read_section(document: Any) -> Section:
    """Read "training" of a model file; ValueError names the field that is missing or wrong."""
    section = _object(document, "training")
    updates = _object(section.get("update_ms"), "update_ms")
    if not updates:
        raise ValueError("`update_ms` has no optimiser")
    start, variable = section.get("start_ms"), {}
    if start is not None:
        found = _object(_object(start, "start_ms").get("variable"), "start_ms.variable")
        variable = _numbers(found, list(found), "start_ms.variable")
    return Section(
        _coefficients(section.get("forward_ms"), "forward_ms"),
        _coefficients(section.get("backward_ms"), "backward_ms"),
        {
            n: _numbers(own, ("variable", "parameter"), f"update_ms.{n}")
            for n, own in updates.items()
        },
        _numbers(section.get("loop_ms"), ("epoch", "step", "element"), "loop_ms"),
        None if start is None else _numbers(start, ("constant", "operation"), "start_ms"),
        variable,
        frozenset(map(str, _list(section.get("kinds"), "kinds"))),
        _errors(section),
        _number(_object(section.get("noise"), "noise").get("floor", 0.0), "noise.floor"),
    )


def _errors(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section, whose errors of left-out blocks are numbers."""
    for residual in _list(section.get("residuals"), "residuals"):
        _number(residual, "residuals", -math.inf)
    if "interval" in section:
        interval = _object(section["interval"], "interval")
        _number(interval.get("exponent"), "interval.exponent")
        for field in ("ops", "scores"):
            for number in _list(interval.get(field), f"interval.{field}"):
                _number(number, f"interval.{field}")
        if len(interval["ops"]) != 2:
            raise ValueError(f"`interval.ops` is {show(interval['ops'])}, not two numbers")
    return section


def _coefficients(value: Any, field: str) -> np.ndarray:
    """(PASS_TERMS,), 0 where not named, `call` left out; ValueError for a term that is not known."""
    named = _object(value, field)
    unknown = [t for t in named if t not in PASS_TERMS and t != "call"]
    if unknown:
        raise ValueError(f"`{field}` has the unknown term {show(unknown[0])}")
    return np.array([_number(named.get(t, 0.0), f"{field}.{t}") for t in PASS_TERMS])


def _numbers(value: Any, fields: Sequence[str], field: str) -> dict[str, float]:
    named = _object(value, field)
    return {f: _number(named.get(f), f"{field}.{f}") for f in fields}


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"`{field}` is {_given(value)}, not an object")
    return value


def _list(value: Any, field: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"`{field}` is {_given(value)}, not a list")
    return value


def _number(value: Any, field: str, least: float = 0.0) -> float:
    """A finite number of at least `least`, or ValueError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not abs(value) <= LARGEST or value < least:  # neither NaN nor infinite
        expected = "a number of 0 or more" if least == 0.0 else "a number"
        raise ValueError(f"`{field}` is {_given(value)}, not {expected}")
    return float(value)


def _given(value: Any) -> str:
    return "missing" if value is None else show(value)


# ---- measured ----------------------------------------

WIDENING = 2.0  # of the interval, for operations that no measured block had, as of latencies


class MeasuredTraining:
    """Time of an iteration, an epoch and a training, each part by its own coefficients.

    `forward`, `backward`: (PASS_TERMS,) ms for each unit; the call of a block measured alone is left out,
    as the loop has one call for all. An interval comes from blocks left out of the fit.
    """

    drop_last = False

    def __init__(self, document: dict[str, Any], source: str) -> None:
        """`document`: a valid model file's; ValueError where its `training` is damaged."""
        self.document = document
        self.source = source
        self.name = str(document["device"])
        section = read_section(document["training"])
        self.forward, self.backward = section.forward, section.backward
        self.update, self.loop = section.update, section.loop
        self.section = section
        self.latency = Model(document, source)

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """Forward and backward of each operation, (operations,) ms; the update, ms; the rest, ms.

        They add up to an iteration. InputError for an optimiser that was not measured.
        """
        both = self.forward + self.backward
        rest = self._step_ms(graph, batch_size)
        return pass_rows(graph, batch_size) @ both, self._update_ms(graph, optimizer), rest

    def predict(
        self,
        graph: Graph,
        batch_size: int,
        samples: int | None = None,
        epochs: int = 1,
        optimizer: str = "sgd",
        coverage: float = COVERAGE,
        validation: int | None = None,
    ) -> TrainingPrediction:
        """How long an iteration, an epoch of `samples` and `epochs` of them take; see `TrainingModel`.

        `validation`: samples that are evaluated after each epoch.
        """
        used = optimizer_named(optimizer)
        check_sizes(batch_size, samples, epochs, validation)
        check_coverage(coverage)
        parts = self._parts(graph, batch_size, used)
        iteration_ms = sum(parts.values())
        warnings, half = self._doubts(graph, batch_size, coverage)
        epoch_s = total_s = interval = steps = evaluation_s = startup_s = None
        if samples is not None:
            full, rest = divmod(samples, batch_size)
            epoch_ms = full * iteration_ms + self.loop["epoch"]
            if rest:
                epoch_ms += sum(self._parts(graph, rest, used).values())
            if validation:
                evaluation_s = self._evaluation_ms(graph, batch_size, validation) / 1e3
            epoch_s = epoch_ms / 1e3 + (evaluation_s or 0.0)
            startup_s = self._startup_s(graph, used)
            if startup_s is None:
                unknown = f"the start of a training with {used.name} was not measured"
                warnings = (*warnings, f"{unknown}: the total is without it")
            total_s = (startup_s or 0.0) + epochs * epoch_s
            steps = iterations(samples, batch_size, False)
            if half is not None:
                interval = (total_s * math.exp(-half), total_s * math.exp(half))
        return TrainingPrediction(
            graph.name, batch_size, used.name, samples, epochs, steps, iteration_ms,
            {**parts, "exchange": 0.0}, epoch_s, total_s, interval, coverage,
            memory_bytes(graph, batch_size, used), parameters(graph) * FLOAT_BYTES, warnings,
            startup_s, evaluation_s,
        )  # fmt: skip

    def _parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of an iteration's parts; taking the batch and calling the framework are in the forward one."""
        total = pass_rows(graph, batch_size).sum(axis=0)
        return {
            "forward": float(total @ self.forward) + self._step_ms(graph, batch_size),
            "backward": float(total @ self.backward),
            "update": self._update_ms(graph, optimizer),
        }

    def _step_ms(self, graph: Graph, batch_size: int) -> float:
        """What the loop takes for a step: a constant, and moving the batch."""
        elements = sum(graph.tensors[i].elements(batch_size) for i in graph.inputs)
        return self.loop["step"] + self.loop["element"] * elements

    def _update_ms(self, graph: Graph, optimizer: Optimizer) -> float:
        if optimizer.name not in self.update:
            raise InputError(
                f"{self.source} has no times of {optimizer.name}; it was measured with "
                f"{', '.join(self.update)}"
            )
        own = self.update[optimizer.name]
        return own["variable"] * variables(graph) + own["parameter"] * parameters(graph)

    def _startup_s(self, graph: Graph, optimizer: Optimizer) -> float | None:
        """Tracing and ordering the operations, making the optimiser's variables: before the first step.

        None where it was not measured.
        """
        start, each = self.section.start, self.section.start_variable.get(optimizer.name)
        if start is None or each is None:
            return None
        of_network = start["constant"] + start["operation"] * started(graph)
        return (of_network + each * variables(graph)) / 1e3

    def _evaluation_ms(self, graph: Graph, batch_size: int, validation: int) -> float:
        """A pass over the validation samples: forward, as latencies are predicted, in the same loop."""
        full, rest = divmod(validation, batch_size)

        def step(size: int) -> float:
            predicted = self.latency.predict(graph, size)
            return predicted.latency_ms - predicted.call_ms + self._step_ms(graph, size)

        steps = full * step(batch_size) if full else 0.0
        return steps + (step(rest) if rest else 0.0) + self.loop["epoch"]

    def _doubts(
        self, graph: Graph, batch_size: int, coverage: float
    ) -> tuple[tuple[str, ...], float | None]:
        """What is to be said of a prediction; half its interval's width, a logarithm, None if unknown."""
        warnings = [
            *graph.warnings,
            *other_framework(self.document["environment"], graph.framework),
        ]
        widening = 1.0
        strange = sorted(behaviors(graph.operations) - self.section.kinds)
        if strange:
            widening = WIDENING
            several = "s" * (len(strange) > 1)
            warnings.append(
                f"no block measured in training has the operation{several} {', '.join(strange)}"
            )
        try:
            width = interval_width(self.section.entry, coverage, self.section.floor)
        except InputError:
            left_out = len(self.section.entry["residuals"])
            warnings.append(
                f"no interval: {left_out} points cannot give {100 * coverage:g} % coverage"
            )
            return tuple(warnings), None
        rows = pass_rows(graph, batch_size)
        times = rows @ (self.forward + self.backward)
        blocks = [list(b.operations) for b in cut(graph)]
        parts = np.array([times[b].sum() for b in blocks])
        ops = np.array([rows[b, PASS_TERMS.index("ops")].sum() for b in blocks])
        return tuple(warnings), widening * width.half(effective_ops(parts, ops))
