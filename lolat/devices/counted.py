"""Networks of a table, counted once and kept on disk: what a model needs of each for any batch size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lolat.counts import COLUMNS as COUNTS
from lolat.counts import count
from lolat.errors import LolatError
from lolat.graph import Graph
from lolat.modes import Mode
from lolat.readers.kept import Kept
from lolat.readers.many import arrays_of
from lolat.work import COLUMNS, Work, at, works

VERSION = 2
"""Raise it when `lolat.work` or the counts change: what was kept before is then made again."""
Said = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Counted:
    """Of a network: the table of its steps (`lolat.work.works`), and its counts, (2, COUNTS): whatever the
    batch, and of each sample.
    """

    steps: np.ndarray
    counts: np.ndarray

    def work(self, batch_size: int) -> Work:
        """Its steps at a batch size."""
        return at(self.steps, batch_size)

    def total(self, batch_size: int) -> dict[str, int]:
        """Its counts at a batch size."""
        values = self.counts[0] + batch_size * self.counts[1]
        return dict(zip(COUNTS, (int(v) for v in values), strict=True))

    @classmethod
    def of(cls, graph: Graph, mode: Mode) -> Counted:
        """From a graph."""
        counts = count(graph)
        totals = np.array([counts.fixed.sum(axis=0), counts.scaled.sum(axis=0)])
        return cls(works(graph, mode), totals.astype(float))


def counted(
    networks: Iterable[tuple[str, Any]], mode: Mode, said: Said | None = None
) -> dict[tuple[str, Any], Counted | LolatError]:
    """Each (NETWORK, size), read in processes of their own where it is not kept on disk, or why not."""
    name = f"device{VERSION}-{mode.dtype}-{int(mode.compiled)}{int(mode.channels_last)}{int(mode.training)}"
    found = arrays_of(networks, name, partial(_packed, mode), Kept(), said=said)
    return {
        asked: array if isinstance(array, LolatError) else _unpacked(array)
        for asked, array in found
    }


def _packed(mode: Mode, graph: Graph) -> np.ndarray:
    of = Counted.of(graph, mode)
    return np.concatenate([of.counts.ravel(), of.steps.ravel()])


def _unpacked(array: np.ndarray) -> Counted:
    counts = array[: 2 * len(COUNTS)].reshape(2, len(COUNTS))
    return Counted(array[2 * len(COUNTS) :].reshape(-1, len(COLUMNS)), counts)
