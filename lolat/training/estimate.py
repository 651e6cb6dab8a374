"""Estimates training on a device where only inference was measured.

ForwardTraining knows only latencies. A backward pass has twice the products of its forward pass, for the
gradients of the inputs and of the weights. In training a normalization computes the statistics of its
batch, and its backward pass has many steps. Let n be the fraction of all moved elements that normalizations
move (`pass_rows`). Then

    forward  = (a + b n) latency,  backward = (c + d n) latency,
    update   = parameters x accesses x time of an element

EstimatedTraining has a formula for operations, which predicts each step of both passes
(`lolat.graph.work`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lolat.device.device import Device
from lolat.device.domain import (
    MOSTLY_SHARE,
    NEGLIGIBLE_SHARE,
    Extrapolation,
    extrapolated_half_width,
)
from lolat.device.file import OF_TRAINING, DeviceFile
from lolat.device.intervals import (
    FACTOR_QUANTILE,
    LARGEST,
    Calibration,
    conformal_quantile,
    normal_quantile,
    t_quantile,
)
from lolat.device.predicting import predict
from lolat.device.predictors.host import Steps
from lolat.device.predictors.roofline import (
    LEAST_TRAINING_STEPS,
    NOTHING_MEASURED,
    Roofline,
    TrainingSteps,
)
from lolat.device.profile_remarks import amp_remarks, of_its_source, other_framework
from lolat.device.question import Question
from lolat.device.remedies import how_to_add
from lolat.device.uncertainty import tables_extrapolation
from lolat.graph import Graph
from lolat.graph.analysis import analyze
from lolat.graph.counts import count
from lolat.graph.modes import DEFAULT_MODE, float32_remarks
from lolat.graph.work import ELEMENTS, work_of
from lolat.io.results import Figure, Remark
from lolat.optimizers import OPTIMIZERS, Optimizer
from lolat.training.memory import numbers_of, trained_parameters
from lolat.training.pass_counts import PASS_TERMS, pass_rows, shares
from lolat.training.predictor import Iteration, TrainedBatch, TrainingPredictor
from lolat.training.recipe import gradient_bytes
from lolat.units import milliseconds, plural

# ---- From latencies.


Ratios = tuple[float, float, float, float]
RATIOS: Mapping[str, Ratios] = {
    "epyc-2t": (0.95, 1.5, 2.03, 2.56),
    "epyc-2t-torch": (1.05, 1.8, 2.02, 1.24),
    "rtx-3090-amp": (1.26, 0.55, 1.49, 0.6),
}
"""Device -> (a, b, c, d) of the formulas above: ratios of forward and backward time to the inference
latency.

benchmarks/training_estimate.py prints them for the bundled devices with measurements of both inference and
training, over the 53 networks of benchmarks/zoo at two batch sizes. A fourth device is left out, because
its training steps come from an older PyTorch than its latencies."""
RATIO_ERRORS = (
    0.018, 0.028, 0.041, 0.059, 0.074, 0.085, 0.094, 0.095, 0.102, 0.109, 0.127, 0.149, 0.15, 0.161, 0.165,
    0.173, 0.183, 0.19, 0.196, 0.206, 0.211, 0.218, 0.221, 0.226, 0.234, 0.247, 0.268, 0.294, 0.324, 0.344,
    0.375, 0.437, 0.495, 0.535, 0.557, 0.592, 0.61, 0.626, 0.669,
)  # fmt: skip
"""Quantiles of |log(measured / estimated)|, where each device is estimated by the ratios of the other two;
each quantile is the largest of the three devices. benchmarks/training_estimate.py prints them."""
MOVING_TERMS = ("pair_elements", "weights", "traffic", "inp", "acts")
"""Terms of a formula with ms for each moved element; the first of them that a device has gives the time to
move an element."""
NEAR_BATCH, NEAR_SPREAD = 4.0, 0.09
"""The log errors of a network at two batch sizes, whose ratio is at most NEAR_BATCH, differ with the
standard deviation NEAR_SPREAD: 21 pairs on an H100 in half precision differ by 0.07 at the median, by 0.15
at 90 % (inference; benchmarks/h100/networks.csv)."""
MACS_PER_ELEMENT = 10.0
"""Multiply-accumulates that take as long as moving an element. CPUs and GPUs have the same order of
magnitude (an H200 with 30 TMAC/s and 4.8 TB/s: 25; a core with 50 GMAC/s and 20 GB/s: 10)."""


class ForwardTraining(TrainingPredictor):
    """Estimates training from latencies of inference, for every optimizer."""

    def __init__(
        self, file: DeviceFile, source: str, known: Collection[Ratios] = RATIOS.values()
    ) -> None:
        """`file`: a device file with latencies; `known`: the ratios of devices, whose median is used."""
        self.file = file
        self.command = how_to_add(file, source, OF_TRAINING)
        self.latency = Device(file, source)
        self.ratios = np.median(list(known), axis=0).tolist()

    def batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        """See `TrainingPredictor`; a block's latency is divided among its operations in proportion to their
        work.
        """
        prediction = predict(self.latency, graph, Question(batch_size))
        forward, forward_norms, backward, backward_norms = self.ratios
        work, norms = operation_work(graph, batch_size)
        owner, blocks = analyze(graph).owner, prediction.block_terms.sum(axis=1)
        block_work = np.bincount(owner, work, len(blocks))
        each = blocks[owner] * work / np.where(block_work > 0.0, block_work, 1.0)[owner]
        each *= prediction.latency_ms / each.sum() if each.any() else 0.0
        norms = prediction.latency_ms * norms
        terms = self.latency.predictor().coefficients
        element_ms = float(next((terms[t] for t in MOVING_TERMS if terms.get(t)), 0.0))
        back, again = shares(graph)
        forward_ms = forward * each + forward_norms * norms
        iteration = Iteration(
            float(forward_ms.sum()),
            back * (backward * each + backward_norms * norms) + again * forward_ms,
            numbers_of(graph).trained * optimizer.accesses * element_ms,
        )
        how = f"an estimate from its latencies of inference; measure it with {self.command}"
        remarks = Remark("training was never measured on this device", how), *prediction.warnings

        def half_width(coverage: float) -> float:
            sure = Question(batch_size, coverage=coverage)
            interval = predict(self.latency, graph, sure).interval_ms
            assert interval is not None  # a coverage was given
            of_ratios = conformal_quantile(RATIO_ERRORS, coverage)
            return math.hypot(0.5 * math.log(interval[1] / interval[0]), of_ratios)

        return TrainedBatch(iteration, remarks, half_width, prediction.in_domain, estimated=True)

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """ms of a forward pass of inference, by the measured latencies."""
        return predict(self.latency, graph, Question(batch_size)).latency_ms


def operation_work(graph: Graph, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """((operations,) work in elements, (operations,) the part of n (see above) in each operation)."""
    terms = dict(zip(PASS_TERMS, pass_rows(graph, batch_size).T, strict=True))
    elements = terms["acts"] + terms["inp"] + terms["traffic"]
    work = terms["flops"] / MACS_PER_ELEMENT + elements
    return work, terms["norm_traffic"] / max(float(elements.sum()), 1.0)


# ---- From a formula by operation.


class EstimatedTraining(TrainingPredictor):
    """Estimates training by the formula for operations of a device fitted to tables, for every optimizer.

    An update is one step that moves the elements that the optimizer reads and writes, less the elements of
    an update that the measured training steps already include.
    """

    def __init__(self, file: DeviceFile) -> None:
        """`file`: a device file with the predictor "kernels"."""
        self.file, self.latency = file, Device(file)
        formula = file.kernels
        trained = file.formulas.get(TrainingSteps.name, formula)
        assert formula is not None
        assert isinstance(trained, Roofline)
        self.formula, self.trained = formula, trained
        residuals = self.formula.training_residuals
        self.measured_steps = len(residuals)
        self.estimated = self.measured_steps < LEAST_TRAINING_STEPS
        self.own_runs = len(formula.own_steps) + file.environment.own_networks
        optimizer = "" if self.estimated else self.formula.training_optimizer
        self.within = OPTIMIZERS.get(optimizer)  # "none": the steps were timed without an update
        self._last: tuple[Graph | None, dict[tuple[int, bool | Optimizer], Any]] = None, {}
        self.calibration: Calibration = self.formula
        if not self.estimated:
            self.calibration = Calibration(residuals=residuals, elsewhere=self.formula.elsewhere)

    def batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        """See `TrainingPredictor`; the last operation includes the loss."""
        known, asked = self._known_of(graph), (batch_size, optimizer)
        if asked not in known:  # equal for all numbers of devices
            known[asked] = self._batch(graph, batch_size, optimizer)
        found: TrainedBatch = known[asked]
        return found

    def _batch(self, graph: Graph, batch_size: int, optimizer: Optimizer) -> TrainedBatch:
        own, beyond = self._own(graph, batch_size), self._extrapolation(graph, batch_size)
        forward, backward = self._passes(graph, batch_size)
        within = self.within.accesses if self.within else 0
        # The measured networks have no large tables: their steps contain the update of other weights only.
        each = [*zip(graph.operations, trained_parameters(graph), strict=True)]
        trained, tables = sum(n for _, n in each), sum(n for o, n in each if o.kind == "embedding")
        accesses = optimizer.accesses * trained - within * (trained - tables)
        moved = max(accesses, 0) * gradient_bytes(graph, self.mode or DEFAULT_MODE)
        level = math.exp(float(np.median(own or [0.0])))
        update_ms = self.trained.moving_ms(ELEMENTS, moved) if moved else 0.0
        is_known = 1.0 - beyond.share >= MOSTLY_SHARE and self.file.is_measured
        return TrainedBatch(
            Iteration(level * float(forward.sum()), level * backward, update_ms),
            self._warnings(graph, batch_size, own, beyond),
            partial(self._half_width, graph, batch_size, own, beyond),
            in_domain=is_known or bool(own),
            host_bound=bool(self._steps(graph, batch_size)[0].host_bound),
            estimated=self.estimated and not own,
        )

    def _passes(self, graph: Graph, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """((operations,) ms of the forward pass, (operations,) ms of the backward pass), by the formula
        alone.
        """
        steps, _ = self._steps(graph, batch_size)
        number, back = len(graph.operations), steps.backward
        forward = np.bincount(steps.operation, steps.ms * ~back, number)
        backward = np.bincount(steps.operation, steps.ms * back, number)
        return forward, backward + shares(graph)[1] * forward

    def key(self, graph: Graph) -> str:
        """A key that is equal for training steps with the same work in the same execution mode."""
        mode = self.mode or DEFAULT_MODE
        work, again = work_of(graph, 1, replace(mode, training=True)), shares(graph)[1].sum()
        return f"{mode}: {work.macs.sum():.9g} {work.bytes.sum():.9g} {len(work.kind)} {again:g}"

    def _own(self, graph: Graph, batch_size: int) -> list[float]:
        """log(measured / predicted) of the user's steps of this network with similar batch sizes
        (NEAR_BATCH).
        """
        steps = self.formula.own_steps
        key = self.key(graph) if steps else ""
        return [
            math.log(o.passes_ms / np.sum(self._passes(graph, o.batch_size)))
            for o in steps
            if o.key == key and 1 / NEAR_BATCH <= batch_size / o.batch_size <= NEAR_BATCH
        ]

    def evaluated_ms(self, graph: Graph, batch_size: int) -> float:
        """The ms of a forward pass of inference."""
        return self._steps(graph, batch_size, training=False)[0].latency_ms

    def _warnings(
        self, graph: Graph, batch_size: int, own: list[float], beyond: Extrapolation
    ) -> tuple[str, ...]:
        steps, unlike = self._steps(graph, batch_size)
        remarks = [*self.trained.unlike_remarks(unlike, NEGLIGIBLE_SHARE)]
        remarks += beyond.remarks
        if steps.host_bound and steps.host_ms is not None:
            words = "the host takes {host} to launch the operations of an iteration, the GPU {gpu} to run"
            host, gpu = (Figure(milliseconds, ms) for ms in (steps.host_ms, steps.device_ms))
            remarks.append(Remark("host-bound", f"{words} them", host=host, gpu=gpu))
        steps_of_user = self.formula.own_steps
        if own:
            remarks.append(f"at the level of {plural(len(own), 'own run')} of this network")
        elif steps_of_user:
            of = plural(len(steps_of_user), "run")
            others = f"its level is from {of} of other networks, batch sizes or modes"
            remarks.append(
                Remark("no own run is like this one", f"{others}, with a wider interval")
            )
        if self.estimated and not own:
            number, level = self.measured_steps, ", at their level" if self.measured_steps else ""
            measured = f"only {plural(number, 'training step')}" if number else "no training step"
            verb = "were" if number > 1 else "was"
            how = "the backward pass is estimated from the forward one"
            remarks.append(f"{measured} {verb} measured on this device: {how}{level}")
        elif self.within is not None:
            name = self.within.name
            remarks.append(f"the update of {name} is part of the measured training steps")
        elif not self.formula.training_optimizer and not own:
            untold = "the tables do not say whether their training steps contain an update"
            remarks.append(f"{untold}; one is added")
        remarks += other_framework(self.file, graph.framework, "training")
        remarks += of_its_source(self.file)
        remarks += (*amp_remarks(self.file), *float32_remarks(graph, self.file.mode))
        first = graph.batch_independent * (batch_size > 1)
        return tuple(dict.fromkeys((*first, *remarks, *count(graph).warnings)))

    def _half_width(
        self,
        graph: Graph,
        batch_size: int,
        own: list[float],
        beyond: Extrapolation,
        coverage: float,
    ) -> float:
        if own:
            half_width = normal_quantile(coverage) * NEAR_SPREAD
            if (number := len(own)) > 1:
                spread = float(np.std(own, ddof=1)) * math.sqrt(1.0 + 1.0 / number)
                half_width = max(half_width, t_quantile(coverage, number - 1) * spread)
            return min(half_width, LARGEST)
        steps, _ = self._steps(graph, batch_size)
        floor = self.file.noise.floor or 0.0
        half_width = self.calibration.half_width(len(graph.operations), coverage, floor)
        off = self.formula.training_residuals
        if self.estimated and len(off) > 1:  # runs that agree less make their level less certain
            spread = normal_quantile(coverage) * float(np.std(off, ddof=1))
            half_width = min(max(half_width, spread * math.sqrt(1.0 + 1.0 / len(off))), LARGEST)
        half_width = math.hypot(half_width, math.log(self.formula.own_level))
        half_width = extrapolated_half_width(half_width, beyond, coverage)
        if not steps.host_bound:
            return half_width
        return max(half_width, steps.host_half * normal_quantile(coverage) / FACTOR_QUANTILE)

    def _extrapolation(self, graph: Graph, batch_size: int) -> Extrapolation:
        """The part of an iteration outside the measured range, judged by that of inference."""
        if not self.formula.measured:
            return Extrapolation(unlike=1.0, remarks=(NOTHING_MEASURED,))
        share = sum(self._steps(graph, batch_size)[1].values())
        forward, unlike = self._steps(graph, batch_size, training=False)
        found = Extrapolation(unlike=sum(unlike.values()))
        of_pass = found, forward, self.formula
        found = tables_extrapolation(self.latency, analyze(graph), batch_size, *of_pass)
        minimum, number, smaller = self.file.domain.minimum, int(forward.moves.sum()), ""
        if self.estimated:
            smaller = minimum.remark(
                batch_size, forward.device_ms, number, "a forward pass", forward.latency_ms
            )
        reasons = [smaller, self.formula.launched_otherwise]
        unlike_share = 1.0 - found.unmeasured if any(reasons) else max(share, found.unlike)
        remarks = *found.remarks, *filter(None, reasons)
        return Extrapolation(unlike=unlike_share, unmeasured=found.unmeasured, remarks=remarks)

    def _steps(
        self, graph: Graph, batch_size: int, training: bool = True
    ) -> tuple[Steps, Mapping[str, float]]:
        """Two parts: the steps of both passes (not `training`: of inference), and {untimed class: its share
        of the time}.
        """
        known, asked = self._known_of(graph), (batch_size, training)
        if asked not in known:
            formula = self.trained if training else self.formula
            work = work_of(graph, batch_size, replace(formula.mode, training=training))
            steps = formula.steps(work)
            known[asked] = steps, formula.unlike(steps) or {}
        found: tuple[Steps, Mapping[str, float]] = known[asked]
        return found

    def _known_of(self, graph: Graph) -> dict[tuple[int, bool | Optimizer], Any]:
        """The cache of results for a graph; only the last graph is kept."""
        if self._last[0] is not graph:
            self._last = graph, {}
        return self._last[1]
