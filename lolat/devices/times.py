"""Times of a device as arrays: of operations alone and of whole networks, each with its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.graph.work import Work

SAME = ("kind", "number", "rows", "columns", "depth", "bytes", "backward")
"""Fields of steps that take as long as each other."""


@dataclass(frozen=True)
class Times:
    """`latency_ms`, (times,), and the steps that each is made of.

    `work`: steps; `owner`: (steps,) the number of the time that each is part of, and `often` how many
    times; `whole`: (times,) of a network, not of a step alone.
    """

    work: Work
    owner: np.ndarray
    often: np.ndarray
    latency_ms: np.ndarray
    whole: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[Work], latency_ms: np.ndarray, whole: np.ndarray) -> Times:
        """`parts`: the work of each time. Steps of a network that are equal are taken together."""
        distinct, owners, often = [], [], []
        for i, part in enumerate(parts):
            first, count = np.zeros(1, int), np.ones(1, int)
            if len(part.kind) > 1:
                table = np.column_stack([getattr(part, name) for name in SAME]).astype(float)
                _, first, count = np.unique(table, axis=0, return_index=True, return_counts=True)
            distinct.append(part.take(first))
            owners.append(np.full(len(first), i))
            often.append(count)
        return cls(
            Work.joined(distinct),
            np.concatenate([np.zeros(0, int), *owners]),
            np.concatenate([np.zeros(0), *often]),
            np.asarray(latency_ms, float),
            np.asarray(whole, bool),
        )

    @property
    def alone(self) -> np.ndarray:
        """(steps,) whether each was timed alone."""
        return ~self.whole[self.owner]

    @property
    def trained(self) -> np.ndarray:
        """(times,) whether each is of a training step: one with a backward pass."""
        return self.total(self.work.backward.astype(float)) > 0.0

    def take(self, which: np.ndarray) -> Times:
        """Some of the times, (times,) true or false."""
        steps = which[self.owner]
        number = np.cumsum(which) - 1
        return Times(
            self.work.take(steps), number[self.owner[steps]], self.often[steps],
            self.latency_ms[which], self.whole[which],
        )  # fmt: skip

    def total(self, steps_ms: np.ndarray) -> np.ndarray:
        """(times,) the sums of (steps,)."""
        return np.bincount(self.owner, steps_ms * self.often, len(self.latency_ms))
