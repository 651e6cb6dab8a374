"""Spaces whose scorers do harm in a worker of Ray, once, or wait there until a test says go."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.nas.scorer import TableScorer
from lolat.nas.space import Space
from lolat.nas.spaces import nasbench201

CHUNK = 1000
GATE = "LOLAT_TEST_GATE"


@dataclass(frozen=True, kw_only=True)
class KillsOnce(TableScorer):
    """Kills its process, if it is not `home`, when it first scores candidate number `at`; writes `mark`."""

    mark: str
    at: int
    home: int

    def latency(self, rows: Any) -> np.ndarray:
        away = os.getpid() != self.home
        if away and self.at in self.grid.encode(rows) and not os.path.exists(self.mark):
            Path(self.mark).write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return super().latency(rows)


@dataclass(frozen=True, kw_only=True)
class Waits(TableScorer):
    """Scores ranges of CHUNK from the fourth on only when the file that GATE names is there."""

    gate: str

    def latency(self, rows: Any) -> np.ndarray:
        if len(rows) == CHUNK and self.grid.encode(rows[:1])[0] >= 3 * CHUNK:
            for _ in range(2000):
                if os.path.exists(self.gate):
                    break
                time.sleep(0.05)
        return super().latency(rows)


class GatedSpace(Space):
    """A space with such a scorer."""

    def scorer(self, *arguments: Any) -> Any:
        return Waits(**vars(super().scorer(*arguments)), gate=os.environ[GATE])


def gated() -> Space:
    space = nasbench201.space()
    space.__class__ = GatedSpace
    return space


def most_convolutions(rows: np.ndarray) -> np.ndarray:
    """A value for `--value`."""
    return (rows == 3).sum(axis=1)


def wrong_shape(rows: np.ndarray) -> np.ndarray:
    return np.zeros((len(rows), 2))
