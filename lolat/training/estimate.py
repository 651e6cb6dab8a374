"""Training on a device where no training was measured: an estimate from what is known of inference.

Of a device of which nothing but latencies is known (ForwardTraining): a backward pass multiplies twice what
its forward pass does, for the gradients of the inputs and of the weights. In training a normalization
computes the statistics of its batch, and has a backward pass of many steps. So with share, the part of all
elements moved that normalizations move (`pass_rows`):

    forward  = (a + b share) latency,  backward = (c + d share) latency,
    update   = parameters x accesses x what the device takes for an element

Of a device of which a formula by operation is known (EstimatedTraining) each step goes by its terms: what a
backward pass asks of a device, its operations say (`lolat.graph.work`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import msgspec
import numpy as np

from lolat.fitting.domain import NEGLIGIBLE_SHARE, widened
from lolat.fitting.intervals import conformal_quantile, interval_width, noise_floor
from lolat.fitting.predictors.host import Steps
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph import Graph
from lolat.graph.analysis import FLOAT_BYTES, analyze, parameters
from lolat.graph.counts import count
from lolat.graph.work import ELEMENTS, work_of
from lolat.model import Model
from lolat.model.prediction import of_its_source, other_framework
from lolat.training.iteration import PASS_TERMS, Optimizer, pass_rows
from lolat.training.model import Training
from lolat.training.replicas import MACS_PER_ELEMENT
from lolat.units import milliseconds


@dataclass(frozen=True)
class Ratios:
    """What passes of training take, in latencies: a constant, and for the share of normalizations."""

    forward: float
    forward_norms: float
    backward: float
    backward_norms: float


KNOWN = {
    "epyc-2t": Ratios(0.95, 1.5, 2.03, 2.56),
    "epyc-2t-torch": Ratios(1.05, 1.8, 2.02, 1.24),
    "rtx-3090-amp": Ratios(1.26, 0.55, 1.49, 0.6),
}
"""Of the shipped models that know inference and training both, over the 53 networks of benchmarks/zoo at
two batch sizes: printed by benchmarks/training_estimate.py. A fourth, of the same GPU with channels last,
has its training steps from an older PyTorch that was slow at it: no ratio of one device.
"""
LEFT_OUT = (
    0.018, 0.028, 0.041, 0.059, 0.074, 0.085, 0.094, 0.095, 0.102, 0.109, 0.127, 0.149, 0.15, 0.161, 0.165,
    0.173, 0.183, 0.19, 0.196, 0.206, 0.211, 0.218, 0.221, 0.226, 0.234, 0.247, 0.268, 0.294, 0.324, 0.344,
    0.375, 0.437, 0.495, 0.535, 0.557, 0.592, 0.61, 0.626, 0.669,
)  # fmt: skip
"""|log(training / estimate)| of each of these devices by the ratios of the other two: quantiles of the
networks, each of the device where it is largest; from the same command. In timm's own results (RTX 3090,
PyTorch 1.12, 1.13) a training step takes 3.0 to 5.0 forward passes for 90 % of 585 networks, 3.7 at the
median."""
MOVED_BY = ("pair_elements", "weights", "traffic", "inp", "acts")
"""Terms of a formula that tell what an element costs to move; the first that a device has."""


def typical(known: Sequence[Ratios]) -> Ratios:
    """The median of each number over devices."""
    return Ratios(*np.median([astuple(r) for r in known], axis=0).tolist())


class ForwardTraining(Training):
    """By the latency of inference; every optimizer is answered."""

    def __init__(
        self, document: dict[str, Any], source: str, how: str, ratios: Ratios | None = None
    ) -> None:
        """`document`: a valid model file's, with latencies; `how`: the command that measures training."""
        self.document, self.how = document, how
        self.name = str(document["device"])
        self.residuals = LEFT_OUT
        self.latency = Model(document, source)
        self.ratios = typical(list(KNOWN.values())) if ratios is None else ratios

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of the three parts."""
        latency, of = self.latency.predict(graph, batch_size).latency_ms, self.ratios
        share = float(_work(graph, batch_size)[1].sum())
        return {
            "forward": latency * (of.forward + of.forward_norms * share),
            "backward": latency * (of.backward + of.backward_norms * share),
            "update": self._update_ms(graph, optimizer),
        }

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`; a block's time is shared among its operations by what they multiply and move."""
        prediction, of = self.latency.predict(graph, batch_size), self.ratios
        work, norms = _work(graph, batch_size)
        owner, blocks = analyze(graph).owner, prediction.block_terms.sum(axis=1)
        in_block = np.bincount(owner, work, len(blocks))
        each = blocks[owner] * work / np.where(in_block > 0.0, in_block, 1.0)[owner]
        each *= prediction.latency_ms / each.sum() if each.any() else 0.0
        more = prediction.latency_ms * (of.forward_norms + of.backward_norms) * norms
        return (of.forward + of.backward) * each + more, self._update_ms(graph, optimizer), 0.0

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """A forward pass of inference."""
        return self.latency.predict(graph, batch_size).latency_ms

    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """See `Training`."""
        prediction = self.latency.predict(graph, batch_size)
        times = self.ratios.forward + self.ratios.backward
        estimated = (
            "training was never measured on this device: an estimate from its latencies of inference, of "
            f"which forward and backward pass take {times:.1f} times as much and more for normalizations; "
            f"{self.how} measures it"
        )
        return estimated, *prediction.warnings

    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """See `Training`: as latencies are, and as far off as other devices' ratios are."""
        own = self.latency.predict(graph, batch_size, coverage=coverage).interval_ms
        assert own is not None  # as it is asked for
        of_ratios = conformal_quantile(self.residuals, coverage)
        return math.hypot(0.5 * math.log(own[1] / own[0]), of_ratios)

    def _update_ms(self, graph: Graph, optimizer: Optimizer) -> float:
        formula = self.latency.predictor()
        element_ms = next(
            (ms for t in MOVED_BY if (ms := formula.coefficients.get(t, 0.0)) > 0.0), 0.0
        )
        return float(parameters(graph) * optimizer.accesses * element_ms)


def _work(graph: Graph, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """(operations,) elements that take as long as each; (operations,) what normalizations move of all."""
    rows = pass_rows(graph, batch_size)
    flops, norms, *moved = (
        rows[:, PASS_TERMS.index(t)] for t in ("flops", "norm_traffic", "acts", "inp", "traffic")
    )
    elements = sum(moved)
    return flops / MACS_PER_ELEMENT + elements, norms / max(float(np.sum(elements)), 1.0)


# ---- By the formula of each operation.

LEAST_STEPS = 20  # training steps left out of the fit that say how far off others are
UNMEASURED = 1.5  # times as wide (log) as that of latencies is the interval where there are fewer


class EstimatedTraining(Training):
    """By the formula of a device that is made from tables.

    An iteration has no start and no loop of its own. An update moves what the optimizer reads and writes,
    in one step; every optimizer is answered.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        """`document`: a valid model file's, with the predictor "kernels"."""
        self.document = document
        self.name = str(document["device"])
        self.entry = document["predictors"][Kernels.name]
        self.formula = msgspec.convert(self.entry, Kernels)
        steps = document["predictors"].get(TrainingSteps.name)
        self.trained = self.formula if steps is None else msgspec.convert(steps, TrainingSteps)
        # How far off what was left out of the fit is, and how many times as wide an interval that makes.
        training_residuals: Any = self.entry.get("training_residuals", ())
        self.measured_steps = len(training_residuals)
        enough = self.measured_steps >= LEAST_STEPS
        steps_alone = {
            "residuals": training_residuals,
            "elsewhere": self.entry.get("elsewhere", 0.0),
        }
        self.errors: Mapping[str, Any] = steps_alone if enough else self.entry
        self.residuals = self.errors.get("residuals", ())

    def parts(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> dict[str, float]:
        """ms of the three parts; the loss is in the forward and backward one."""
        steps, _ = self._steps(graph, batch_size)
        return {
            "forward": float(steps.ms[~steps.backward].sum()),
            "backward": float(steps.ms[steps.backward].sum()),
            "update": self._update_ms(graph, optimizer),
        }

    def operation_times(
        self, graph: Graph, batch_size: int, optimizer: Optimizer
    ) -> tuple[np.ndarray, float, float]:
        """See `Training`; the loss is with the last operation, and there is no rest."""
        steps, _ = self._steps(graph, batch_size)
        each = np.bincount(steps.operation, steps.ms, len(graph.operations))
        return each, self._update_ms(graph, optimizer), 0.0

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """A forward pass of inference."""
        return self._steps(graph, batch_size, training=False)[0].latency_ms

    def warnings(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> tuple[str, ...]:
        """See `Training`: that no training step was measured, or what work is unlike what was."""
        steps, unlike = self._steps(graph, batch_size)
        told = [*count(graph).warnings, *self.trained.unlike_remarks(unlike, NEGLIGIBLE_SHARE)]
        if steps.host_bound and steps.host_ms is not None:
            told.append(
                f"host-bound: the host takes {milliseconds(steps.host_ms)} to start the operations of an "
                f"iteration, the GPU {milliseconds(steps.device_ms)} to run them"
            )
        if self.measured_steps < LEAST_STEPS:
            number = self.measured_steps
            measured = f"only {number} training steps were" if number else "no training step was"
            told.append(
                f"{measured} measured on this device: the backward pass is estimated from the forward one"
            )
        told += other_framework(self.document["environment"], graph.framework)
        return *told, *of_its_source(self.document)

    def half_width(self, graph: Graph, batch_size: int, coverage: float) -> float:
        """See `Training`."""
        steps, unlike = self._steps(graph, batch_size)
        width = interval_width(self.errors, coverage, noise_floor(self.document) or 0.0)
        wider = UNMEASURED if self.measured_steps < LEAST_STEPS else 1.0
        half = widened(width.half(len(graph.operations)) * wider, sum(unlike.values()))
        return max(half, steps.host_half) if steps.host_bound else half

    def _steps(
        self, graph: Graph, batch_size: int, training: bool = True
    ) -> tuple[Steps, Mapping[str, float]]:
        """The steps of both passes of a batch, or of one of inference; what is like nothing measured."""
        formula = self.trained if training else self.formula
        work = work_of(graph, batch_size, replace(formula.mode, training=training))
        steps = formula.steps(work)
        return steps, formula.unlike(steps) or {}

    def _update_ms(self, graph: Graph, optimizer: Optimizer) -> float:
        moved = parameters(graph) * FLOAT_BYTES * optimizer.accesses
        if not moved:
            return 0.0
        return self.trained.moving_ms(ELEMENTS, float(moved))
