"""What the host needs to start a network's operations, while the device runs those that it has started.

PyTorch starts one operation after the other and waits for none; the device runs each when it has been
started and the one before has ended:

    end[i] = max(end[i - 1], started[i]) + time[i]

Below some batch size that is nearly the host's time, which no GPU makes shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from lolat.arrays import np
from lolat.device.intervals import COVERAGE, normal_quantile
from lolat.graph import work as c
from lolat.graph.modes import AMP, EAGER, GRAPH, Launch, Mode
from lolat.graph.work import CLASSES, Workload
from lolat.io.documents import NotNegative, Positive

VIEW = 0.4
"""The host's time for a view (reshape, transpose ...) over that for another operation: the host makes it,
the device does nothing. Chosen, like USUAL_MS, on the first half of the networks that docs/results/index.md
judges by published times."""
USUAL_MS = 0.04
"""Of an operation that starts something: ResNet-50, BEiT, ConvNeXt and OwlViT at batch 1 on A100 and V100
by PyTorch 2.0.1 take 0.035 to 0.042 ms each, eager, and as much for each step of torch.compile's."""
BACKWARD = 0.5
"""Of a step of the backward pass, relative: autograd's engine starts those without Python. Assumed."""
CASTS = frozenset([c.DENSE, c.POINTWISE, c.CONVOLUTION, c.GROUPED, c.DEPTHWISE])
"""What autocast starts one more operation for: it converts the weights anew in every pass."""
GRAPH_MS = 0.0015
"""Of an operation in a CUDA graph: NVIDIA, Getting Started with CUDA Graphs (2019): 0.5 us more than the
kernel; on the GPUs of now 1 to 2 us between two."""
GRAPH_CALLS = 2  # starts of a call of a graph: the copy of the input, the graph
Source = Literal["assumed", "fitted"]
ASSUMED: Source = "assumed"
FITTED: Source = "fitted"
FACTOR = {FITTED: 1.6, ASSUMED: 2.0}
"""How far off the time of a start may be, 90 % sure. Tables tell of hosts that take 0.02 to 0.05 ms; one
that was fitted may still be another host than the user's."""


class Host(msgspec.Struct, frozen=True):
    """`start_ms`: to start an operation, at most `factor` times as much or as little (90 % sure); `source`:
    FITTED to operations timed alone or to measured blocks, or ASSUMED; `launch`: how the table was made;
    `call_ms`: what a call takes besides, before its first operation starts.
    """

    start_ms: Positive
    factor: Positive
    source: Source
    launch: Launch = EAGER
    call_ms: NotNegative = 0.0

    def starts(self, work: Workload, mode: Mode) -> np.ndarray:
        """(steps,) ms that the host needs for each."""
        launch = mode.launch
        if launch == GRAPH:
            own = np.full(len(work.kind), GRAPH_MS)
            return own + GRAPH_CALLS * self.start_ms / max(len(own), 1)
        each = np.where(work.bytes > 0.0, 1.0, VIEW)
        if mode.dtype == AMP and launch == EAGER:
            each += np.isin(work.kind, [CLASSES.index(name) for name in CASTS]) & ~work.backward
        return self.start_ms * each * np.where(work.backward, BACKWARD, 1.0)


def waits(starts_ms: np.ndarray, run_ms: np.ndarray) -> np.ndarray:
    """(steps,) ms that the device waits before each, for the host that takes `starts_ms` to start each;
    `run_ms`: what the device takes for each; all in the order in which they run.
    """
    before = np.cumsum(run_ms) - run_ms
    latest = np.maximum.accumulate(np.cumsum(starts_ms) - before)
    return np.diff(latest, prepend=0.0)


@dataclass(frozen=True)
class Steps:
    """The steps of a network in the order in which they run, each field (steps,) but `shares`.

    `operation`: its number in the graph; `kind`: its class of work; `moves`: whether it moves any bytes;
    `run_ms`: the device's time; `shares`: (features, steps) of it, for each feature; `backward`: whether
    it is of the backward pass; `starts_ms`: the host's time to start it, 0 where the model knows no host.
    `host_half`: how far off that may be at most, a logarithm, 90 % sure.
    """

    operation: np.ndarray
    kind: np.ndarray
    moves: np.ndarray
    run_ms: np.ndarray
    shares: np.ndarray
    backward: np.ndarray
    starts_ms: np.ndarray
    host_half: float

    @classmethod
    def of(
        cls, work: Workload, run_ms: np.ndarray, shares: np.ndarray, host: Host | None, mode: Mode
    ) -> Steps:
        """From the work of a network, in the order of its operations; the backward pass comes last."""
        listed = len(work.operation) + np.arange(len(work.operation))
        order = np.argsort(np.where(work.backward, listed, work.operation), kind="stable")
        starts = np.zeros(len(order)) if host is None else host.starts(work, mode)[order]
        starts[:1] += 0.0 if host is None else host.call_ms
        return cls(
            work.operation[order], work.kind[order], (work.bytes > 0.0)[order], run_ms[order],
            shares[:, order], work.backward[order], starts, 0.0 if host is None else math.log(host.factor),
        )  # fmt: skip

    @property
    def device_ms(self) -> float:
        """To run all of them."""
        return float(self.run_ms.sum())

    @property
    def host_ms(self) -> float | None:
        """To start all of them; None where that is not known."""
        return float(self.starts_ms.sum()) or None

    @property
    def host_bound(self) -> bool | None:
        """Whether starting them takes longer than running them."""
        return None if self.host_ms is None else self.host_ms > self.device_ms

    @property
    def waits_ms(self) -> np.ndarray:
        """(steps,) ms that the device waits for the host before each."""
        return waits(self.starts_ms, self.run_ms)

    @property
    def ms(self) -> np.ndarray:
        """(steps,) ms by which each makes the end later."""
        return self.run_ms + self.waits_ms

    @property
    def latency_ms(self) -> float:
        """Until the last one has ended."""
        return float(self.run_ms.sum() + self.waits_ms.sum())

    def interval(self, half: float, coverage: float | None) -> tuple[float, float]:
        """(low, high) ms of the latency, where the device's times are off by `half` at most, a logarithm,
        and the host's by `host_half`.
        """
        sure = COVERAGE if coverage is None else coverage
        of_host = self.host_half * normal_quantile(sure) / normal_quantile(COVERAGE)
        low, high = (
            replace(
                self,
                run_ms=self.run_ms * math.exp(sign * half),
                starts_ms=self.starts_ms * math.exp(sign * of_host),
            ).latency_ms
            for sign in (-1.0, 1.0)
        )
        return low, high
