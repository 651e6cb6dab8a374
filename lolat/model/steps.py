"""A network by a formula of its operations: what the device takes, and how long it waits for the host."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import NormalDist

from lolat.arrays import np
from lolat.fitting.domain import PASSED_OVER_SHARE, Least, Outside
from lolat.fitting.intervals import COVERAGE
from lolat.fitting.predictors.host import waits
from lolat.fitting.predictors.kernels import IN_TF32, Kernels
from lolat.graph.modes import FLOAT32, GRAPH
from lolat.graph.work import CLASSES, Work
from lolat.units import milliseconds


@dataclass(frozen=True)
class Steps:
    """Steps in the order in which they run: `operation`, (steps,), which each is of; `run_ms`, (steps,),
    what the device takes, and `mostly`, (steps,), the feature that it goes to; `backward`, (steps,), of the
    backward pass; `starts_ms`, (steps,), what the host takes to start each, off by `host_half` at most, a
    logarithm, 90 % sure; None where the file does not say.
    """

    operation: np.ndarray
    run_ms: np.ndarray
    mostly: np.ndarray
    backward: np.ndarray
    starts_ms: np.ndarray | None
    host_half: float

    @classmethod
    def of(cls, formula: Kernels, work: Work) -> Steps:
        """Of a network's work, as it is in the formula's mode."""
        run_ms, mostly = formula.times(work)
        listed = len(work.operation) + np.arange(len(work.operation))
        order = np.argsort(np.where(work.backward, listed, work.operation), kind="stable")
        of_steps = work.operation[order], run_ms[order], mostly[order], work.backward[order]
        if formula.host is None:
            return cls(*of_steps, None, 0.0)
        starts_ms = formula.host.starts(work, formula.mode.launch)[order]
        return cls(*of_steps, starts_ms, formula.host.half)

    @property
    def device_ms(self) -> float:
        """To run all of them."""
        return float(self.run_ms.sum())

    @property
    def host_ms(self) -> float | None:
        """To start all of them."""
        return None if self.starts_ms is None else float(self.starts_ms.sum())

    @property
    def host_bound(self) -> bool | None:
        """Whether starting them takes longer than running them."""
        return None if self.host_ms is None else self.host_ms > self.device_ms

    @property
    def waits_ms(self) -> np.ndarray:
        """(steps,) ms that the device waits for the host before each."""
        if self.starts_ms is None:
            return np.zeros(len(self.run_ms))
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
        """Where the latency lies, ms, where the device's times are off by `half` at most, a logarithm, and
        the host's by its own.
        """
        sure = COVERAGE if coverage is None else coverage
        usual, asked = (NormalDist().inv_cdf((1.0 + c) / 2) for c in (COVERAGE, sure))
        of_host = self.host_half * asked / usual
        low, high = (self._slower(sign * half, sign * of_host).latency_ms for sign in (-1.0, 1.0))
        return low, high

    def _slower(self, device: float, host: float) -> Steps:
        """With other times, by the logarithms of how many times as long."""
        starts = None if self.starts_ms is None else self.starts_ms * math.exp(host)
        times = self.run_ms * math.exp(device)
        return replace(self, run_ms=times, starts_ms=starts)


def outside_of(
    formula: Kernels, work: Work, steps: Steps, batch_size: int, least: Least
) -> Outside:
    """What of a network is like nothing that was measured: all of it where the host decides, where it is
    launched in another way or smaller than the `least`; else its operations of other classes, and the time
    that the device waits.
    """
    unlike = formula.unlike(work, formula.times(work)[0])
    reasons = tuple(_reasons(formula, work, steps, batch_size, least))
    if reasons:
        outside = Outside(1.0)
    elif unlike is None:
        outside = Outside(known=False)
    else:
        waiting = float(steps.waits_ms.sum()) / (steps.latency_ms or 1.0)
        outside = Outside(waiting + (1.0 - waiting) * sum(unlike.values()))
    remarks = reasons
    if unlike and not outside.negligible:
        remarks += formula.unlike_remarks(unlike, PASSED_OVER_SHARE)
    kinds = {CLASSES[k] for k in np.unique(work.kind[work.bytes > 0])}
    if formula.tf32 > 1.0 and formula.mode.dtype == FLOAT32 and kinds & IN_TF32:
        remarks += (
            "convolutions in TF32, as PyTorch computes them by default on this GPU, by the rate of its "
            "data sheet",
        )
    return Outside(outside.beyond, outside.unmeasured, remarks, outside.known)


def _reasons(
    formula: Kernels, work: Work, steps: Steps, batch_size: int, least: Least
) -> Iterator[str]:
    """Why a network as a whole is outside the measured domain."""
    host, device_ms = formula.host, steps.device_ms
    operations = int((work.bytes > 0.0).sum())
    if host is not None and steps.host_ms is not None:
        if steps.host_bound:
            graph = "" if formula.mode.launch == GRAPH else " or a CUDA graph (--launch graph)"
            yield (
                f"host-bound: the host takes {milliseconds(steps.host_ms)} to start its {operations} "
                f"operations, the GPU {milliseconds(device_ms)} to run them (to start one takes "
                f"{1e3 * host.start_ms:.0f} µs, {host.source}, a factor of {host.factor:g} either way); a "
                f"faster GPU does not help, a larger batch{graph} does"
            )
        if host.launch != formula.mode.launch:
            yield (
                f"what was measured was launched in another way ({host.launch}); {formula.mode.launch} is "
                "estimated from it"
            )
    if below := least.below(batch_size, device_ms, operations):
        yield f"smaller than what was measured: {', '.join(below)}"
