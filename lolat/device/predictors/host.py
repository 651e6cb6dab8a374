"""Launch overhead: the host launches a network's operations while the device runs them.

PyTorch launches one operation after the other without waiting. The device runs an operation once it is
launched and the operation before has ended:

    end[i] = max(end[i - 1], started[i]) + time[i]

Below some batch size the latency is nearly the host's time, which no faster GPU shortens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from lolat.arrays import np
from lolat.device.intervals import FACTOR_QUANTILE, normal_quantile
from lolat.device.predictors.operation_classes import OPERATION_CLASSES
from lolat.graph.modes import AMP, EAGER, GRAPH, Launch, Mode
from lolat.graph.work import CLASSES, Workload
from lolat.hardware.gpus import Gpu
from lolat.io.documents import NotNegative, Positive
from lolat.parameters import COVERAGE

VIEW = 0.3
"""Launch overhead of a view (reshape, transpose) / launch overhead of an addition; the device runs nothing
for a view."""
TIMING = 0.3
"""Share that two timing events take of the time of an addition timed alone; assumed."""
USUAL_MS, OLDER_MS = 0.02, 0.026
"""Launch overhead of an addition in ms: on hosts of GPUs with PCIe 4 or newer, and on older hosts.
Published networks at batch 1 take 0.017 (NVIDIA), 0.025 (Hugging Face) and 0.020 ms (AITemplate) on A100,
0.014 on MI250; 0.028 and 0.025 on V100, 0.029 on T4; by TorchScript 0.011, 0.017 and 0.024 on A100, V100
and T4."""
OPERATION_MS = 0.04
"""Average launch overhead of an operation of a transformer in ms, for training decoders."""
BACKWARD, COMPILED_BACKWARD = 2.0, 0.5
"""Launch overhead of the backward pass and the update / launch overhead of the forward pass: eager, and
compiled. The first is from DenseNet-121 and MobileNetV3, bound by an H100's host (benchmarks/h100); the
second is assumed."""
_CAST = [name for name, of in OPERATION_CLASSES.items() if of.has_weights]
GRAPH_MS = 0.0015
"""Launch overhead of an operation in a CUDA graph, in ms: 0.0005 according to NVIDIA (Getting Started with
CUDA Graphs, 2019); 0.001 to 0.002 between two operations on current GPUs."""
GRAPH_CALLS = 2  # launches of a call of a CUDA graph: the copy of the input, the graph
LATE = 0.1
"""Share of a host-bound pass after the last launch; above it a faster device helps too."""
OLDER_LINKS = ("PCIe 3", "NVLink 1", "NVLink 2")
Source = Literal["assumed", "fitted", "given"]
ASSUMED: Source = "assumed"
FITTED: Source = "fitted"
GIVEN: Source = "given"
FACTOR = {FITTED: 1.6, ASSUMED: 1.8, GIVEN: 1.3}
"""Source of a launch overhead -> the factor within which it is right in 90 % of cases. FITTED: the user's
host may still be another host. GIVEN: the overheads fitted to three networks on one host (AITemplate, A100)
are 0.020 ms (BERT), 0.021 ms (ResNet-50) and 0.014 ms (ViT)."""


class Host(msgspec.Struct, frozen=True):
    """The host of a device.

    `start_ms`: launch overhead of an addition, right within a `factor` either way (FACTOR); other
    operations take multiples of it (`OperationClass.launch`). `source`: FITTED to measured blocks, ASSUMED,
    or GIVEN by the user; `launch`: the launch of the measurements; `call_ms`: time of a call before its
    first operation. `training`: (launch overhead of a forward operation in training / in inference, the
    same of a backward operation, ms of a call); None if no training was measured.
    """

    start_ms: Positive
    factor: Positive
    source: Source
    launch: Launch = EAGER
    call_ms: NotNegative = 0.0
    training: tuple[NotNegative, NotNegative, NotNegative] | None = None

    def starts(self, work: Workload, mode: Mode) -> np.ndarray:
        """(steps,) ms that the host takes to launch each step."""
        launch = mode.launch
        if launch == GRAPH:
            own = np.full(len(work.kind), GRAPH_MS)
            return own + GRAPH_CALLS * self.start_ms / max(len(own), 1)
        each = launches(work)
        if mode.dtype == AMP and launch == EAGER:
            each += work.is_of(*_CAST) & ~work.backward
        back = BACKWARD if launch == EAGER else COMPILED_BACKWARD
        forward, back, _ = self.training or (1.0, back, 0.0)
        ahead = forward if work.backward.any() else 1.0
        return self.start_ms * each * np.where(work.backward, back, ahead)

    def before_ms(self, work: Workload) -> float:
        """Time in ms of a call before its first operation."""
        return self.training[2] if self.training and work.backward.any() else self.call_ms


def launches(work: Workload) -> np.ndarray:
    """(steps,) launch overhead of each step / launch overhead of an addition."""
    each = np.array([OPERATION_CLASSES[name].launch for name in CLASSES])
    return np.where(work.bytes > 0.0, each[work.kind], VIEW)


def launches_alone(work: Workload) -> np.ndarray:
    """(steps,) launch overhead of each step / that of an addition, if each is timed alone."""
    return TIMING + (1.0 - TIMING) * launches(work)


def usual_ms(gpu: Gpu | None) -> float:
    """The usual launch overhead of an addition on a GPU's host, in ms; older GPU links have older hosts."""
    is_older = gpu is not None and gpu.link.startswith(OLDER_LINKS)
    return OLDER_MS if is_older else USUAL_MS


def waits(starts_ms: np.ndarray, run_ms: np.ndarray) -> np.ndarray:
    """(steps,) ms that the device waits for the host before each step; steps are in running order.

    `starts_ms`: (steps,) ms of the host; `run_ms`: (steps,) ms of the device.
    """
    before = np.cumsum(run_ms) - run_ms
    latest = np.maximum.accumulate(np.cumsum(starts_ms) - before)
    return np.diff(latest, prepend=0.0)


@dataclass(frozen=True)
class Steps:
    """The steps of a network in the order in which they run; each array is (steps,).

    `operation`: position in the graph; `kind`: class of work; `moves`: True if the step moves bytes;
    `run_ms`: the device's time; `shares`: (features, steps) `run_ms` by term, as shares; `backward`: True
    in the backward pass; `starts_ms`: the host's time to launch the step, 0 without a host. `host_half`:
    logarithm of the factor by which the host's times may be wrong; `launch`: the network's launch.
    """

    operation: np.ndarray
    kind: np.ndarray
    moves: np.ndarray
    run_ms: np.ndarray
    shares: np.ndarray
    backward: np.ndarray
    starts_ms: np.ndarray
    host_half: float
    launch: Launch

    @classmethod
    def of(
        cls, work: Workload, run_ms: np.ndarray, shares: np.ndarray, host: Host | None, mode: Mode
    ) -> Steps:
        """Order the work of a network by operation, with the backward pass last."""
        listed = len(work.operation) + np.arange(len(work.operation))
        order = np.argsort(np.where(work.backward, listed, work.operation), kind="stable")
        starts = np.zeros(len(order)) if host is None else host.starts(work, mode)[order]
        starts[:1] += 0.0 if host is None else host.before_ms(work)
        return cls(
            work.operation[order], work.kind[order], (work.bytes > 0.0)[order], run_ms[order],
            shares[:, order], work.backward[order], starts, 0.0 if host is None else math.log(host.factor),
            mode.launch,
        )  # fmt: skip

    @property
    def device_ms(self) -> float:
        """Time in ms to run all steps."""
        return float(self.run_ms.sum())

    @property
    def host_ms(self) -> float | None:
        """Time in ms to launch all steps; None without a host."""
        return float(self.starts_ms.sum()) or None

    @property
    def host_bound(self) -> bool | None:
        """True if launching takes longer than running; None without a host."""
        return None if self.host_ms is None else self.host_ms > self.device_ms

    @property
    def waits_ms(self) -> np.ndarray:
        """(steps,) ms that the device waits for the host before each step."""
        return waits(self.starts_ms, self.run_ms)

    @property
    def ms(self) -> np.ndarray:
        """(steps,) ms of each step, including the wait before it."""
        return self.run_ms + self.waits_ms

    @property
    def of_device_ms(self) -> np.ndarray:
        """(steps,) ms of each step that a faster device would shorten.

        It is the time to run the step; in a host-bound pass, only the part after the host has launched all
        steps.
        """
        if not self.host_bound:
            return self.run_ms
        ends = np.cumsum(self.ms)
        return np.clip(ends - self.starts_ms.sum(), 0.0, self.run_ms)

    @property
    def latency_ms(self) -> float:
        """Time in ms until the last step has ended."""
        return float(self.run_ms.sum() + self.waits_ms.sum())

    def interval(self, half_width: float, coverage: float | None) -> tuple[float, float]:
        """(low, high) of the latency in ms; `half_width`: half width of the device's log interval."""
        sure = COVERAGE if coverage is None else coverage
        of_host = self.host_half * normal_quantile(sure) / FACTOR_QUANTILE
        low, high = (
            replace(
                self,
                run_ms=self.run_ms * math.exp(sign * half_width),
                starts_ms=self.starts_ms * math.exp(sign * of_host),
            ).latency_ms
            for sign in (-1.0, 1.0)
        )
        return low, high
