"""Training on a device that was measured with `--mode training`: passes, update, loop and start apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.intervals import effective_ops, interval_width
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import behaviors
from lolat.model import Model
from lolat.model.prediction import other_framework
from lolat.training.learning import read_section
from lolat.training.memory import parameters
from lolat.training.model import Doubts, Training
from lolat.training.settings import Optimizer
from lolat.training.terms import PASS_TERMS, pass_rows, started, variables

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

    def doubts(
        self, graph: Graph, batch_size: int, optimizer: Optimizer, coverage: float
    ) -> Doubts:
        """How sure an answer is: less for operations that no measured block had."""
        warnings = [
            *graph.warnings,
            *other_framework(self.document["environment"], graph.framework),
        ]
        strange = sorted(behaviors(graph.operations).difference(self.section.kinds))
        if strange:
            several = "s" * (len(strange) > 1)
            warnings.append(
                f"no block measured in training has the operation{several} {', '.join(strange)}"
            )
        try:
            floor = self.section.noise.floor
            width = interval_width(self.document["training"], coverage, floor)
        except InputError:
            return Doubts(tuple(warnings), None)
        rows = pass_rows(graph, batch_size)
        times = rows @ (self.forward + self.backward)
        blocks = [list(b.operations) for b in cut(graph)]
        parts = np.array([times[b].sum() for b in blocks])
        ops = np.array([rows[b, PASS_TERMS.index("ops")].sum() for b in blocks])
        half = width.half(effective_ops(parts, ops)) * (WIDENING if strange else 1.0)
        return Doubts(tuple(warnings), half)

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


def _row(coefficients: Mapping[str, float]) -> np.ndarray:
    """(PASS_TERMS,), 0 where not named, `call` left out."""
    return np.array([coefficients.get(t, 0.0) for t in PASS_TERMS])
