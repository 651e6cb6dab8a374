"""Times of operations timed alone and of whole networks as arrays, with the steps of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.errors import InputError, arg
from lolat.graph.work import Workload
from lolat.hardware.gpus import Gpu
from lolat.hardware.specs import LOG_ERROR_OF_FASTEST, LOG_ERROR_OF_UNKNOWN, Specs

SAME = ("kind", "number", "rows", "columns", "depth", "bytes", "backward")
"""Fields of Workload; two steps in which these fields are equal take the same time."""


@dataclass(frozen=True)
class Times:
    """Measured times on a device, and the steps that each consists of.

    `work`: the distinct steps of each time, one time after the other; `owner`: (steps,) index of the time
    that a step belongs to; `multiplicity`: (steps,) number of runs of the step in its time; `latency_ms`:
    (times,); `whole`: (times,) True for a network, False for an operation timed alone.
    """

    work: Workload
    owner: np.ndarray
    multiplicity: np.ndarray
    latency_ms: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[Workload], latency_ms: np.ndarray, whole: np.ndarray) -> Times:
        """Make Times; equal steps of a network become one step. `parts`: the work of each time."""
        distinct, owners, multiplicity = [], [], []
        for i, part in enumerate(parts):
            first, count = np.zeros(1, int), np.ones(1, int)
            if len(part.kind) > 1:
                table = np.column_stack([getattr(part, name) for name in SAME]).astype(float)
                _, first, count = np.unique(table, axis=0, return_index=True, return_counts=True)
            distinct.append(part.take(first))
            owners.append(np.full(len(first), i))
            multiplicity.append(count)
        return cls(
            Workload.joined(distinct),
            np.concatenate([np.zeros(0, int), *owners]),
            np.concatenate([np.zeros(0), *multiplicity]),
            np.asarray(latency_ms, float),
            np.asarray(whole, bool),
        )

    @property
    def alone(self) -> np.ndarray:
        """(steps,) mask of the steps that were timed alone."""
        return ~self.whole[self.owner]

    @property
    def trained(self) -> np.ndarray:
        """(times,) mask of the training steps, which have a backward pass."""
        return self.total(self.work.backward.astype(float)) > 0.0

    def take(self, which: np.ndarray) -> Times:
        """The selected times; `which`: (times,) mask."""
        steps = which[self.owner]
        number = np.cumsum(which) - 1
        return Times(
            self.work.take(steps), number[self.owner[steps]], self.multiplicity[steps],
            self.latency_ms[which], self.whole[which],
        )  # fmt: skip

    def total(self, steps_ms: np.ndarray) -> np.ndarray:
        """(times,) sums over each time's steps; `steps_ms`: (steps,)."""
        return np.bincount(self.owner, steps_ms * self.multiplicity, len(self.latency_ms))


# ---- Times against a data sheet

REACHED, REACHED_WHOLE = 0.9, 0.5
"""Shares of a data sheet's rates that a table's fastest operation and fastest network usually reach."""
PASSED_OVER = 20  # one row in this many may be faster, such as a row in seconds
TOO_FAST, TOO_SLOW = 3.0, 30.0
"""Largest factors by which the fastest row of a table may be faster than the data sheet (caches, boost
clocks, matrix units), and slower. Beyond them the table and the sheet have different units."""


def check_sheet(specs: Specs, times: Times) -> None:
    """Raise InputError if a data sheet contradicts a table's times: another device, or other units."""
    reached = times.latency_ms
    for what, unit, sheet, work in (
        ("computes", "multiply-accumulates a ms", specs.rate * specs.tf32, times.work.macs),
        ("moves", "bytes a ms", specs.bandwidth, times.work.bytes),
    ):
        fastest = float(np.sort(times.total(work) / reached)[-1 - len(reached) // PASSED_OVER])
        units = "fp32_matrix_gflops is in GFLOPS, bandwidth_gb_s in GB/s, times in ms"
        if fastest > TOO_FAST * sheet or (what == "computes" and 0 < fastest < sheet / TOO_SLOW):
            raise InputError(
                f"{arg('facts')}: the fastest row of the table {what} {fastest:.3g} {unit}, "
                f"{fastest / sheet:.2g} times what the data sheet says; expected the sheet of the device "
                f"that was timed: {units}",
                code="sheet-and-times",
            )


def seen_specs(times: Times, gpu: Gpu | None = None) -> Specs:
    """Specs from the fastest times, with one multiprocessor, for a device without a data sheet.

    `gpu`: the device's row of the bundled list; None if it is not listed.
    """
    reached = np.where(times.whole, REACHED_WHOLE, REACHED) * times.latency_ms
    macs = float((times.total(times.work.macs) / reached).max())
    moved = float((times.total(times.work.bytes) / reached).max())
    width = LOG_ERROR_OF_UNKNOWN if times.whole.any() else LOG_ERROR_OF_FASTEST
    return Specs(1.0, macs or moved, moved, width, gpu=gpu)
