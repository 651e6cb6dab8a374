"""Spaces whose scorers do harm in a worker of Ray, once; values of candidates."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.nas.scorer import TableScorer
from lolat.nas.space import Space
from lolat.nas.spaces import nasbench201

CHUNK = 1000


@dataclass(frozen=True, kw_only=True)
class Disturbed(TableScorer):
    """Calls `before(rows, indices)` ahead of each range in a process that is not `home`."""

    before: Callable[[np.ndarray], None]
    home: int

    def latency(self, rows: Any) -> np.ndarray:
        if os.getpid() != self.home:
            self.before(self.grid.encode(rows))
        return super().latency(rows)


@dataclass(frozen=True)
class KillsOnce:
    """Kills its process when candidate number `at` is first scored; its process writes its id to `mark`."""

    mark: str
    at: int

    def __call__(self, indices: np.ndarray) -> None:
        if self.at in indices and not os.path.exists(self.mark):
            Path(self.mark).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)


def fail(indices: np.ndarray) -> None:
    raise RuntimeError("an unforeseen error")


def disturbed(before: Callable[[np.ndarray], None], home: int = 0) -> Space:
    """NAS-Bench-201 with such a scorer."""

    class DisturbedSpace(Space):
        def scorer(self, *arguments: Any) -> Any:
            return Disturbed(**vars(super().scorer(*arguments)), before=before, home=home)

    space = nasbench201.space()
    space.__class__ = DisturbedSpace
    return space


def most_convolutions(rows: np.ndarray) -> np.ndarray:
    """A value for `--value`."""
    return (rows == 3).sum(axis=1)


def wrong_shape(rows: np.ndarray) -> np.ndarray:
    return np.zeros((len(rows), 2))
