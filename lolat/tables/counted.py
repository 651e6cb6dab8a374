"""Counts of a table's networks, for any batch size, cached on disk."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from lolat.errors import LolatError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, REPACKED, count, repacked
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode
from lolat.graph.weights import parameters
from lolat.graph.work import (
    ATTENTION,
    CLASSES,
    GROUP_NORM,
    STEP_COLUMNS,
    Workload,
    step_table,
    workload_at,
)
from lolat.io.forms import HALF_NORM, REPARAMETERIZED, TAKEN_APART
from lolat.io.progress import OnProgress
from lolat.readers.children import arrays_of
from lolat.tables.networks import Network, RowSize, TimedNetwork

CACHE_VERSION = 23
"""Version of the cache; raise it when `lolat.graph.work` or the counts change."""
TOO_MANY = 0.004
"""Relative difference between a network's parameters and its row's, above which another form of it was
timed."""


@dataclass(frozen=True)
class Counted:
    """A timed network: its steps (`lolat.graph.work.step_table`), counts and number of parameters.

    `counts`: (2, COLUMNS), counts per pass and counts per sample.
    """

    network: Network
    steps: np.ndarray
    counts: np.ndarray
    parameters: float

    def has(self, name: str) -> bool:
        """True if a step belongs to the class of operations `name`."""
        return bool((self.steps[:, STEP_COLUMNS.index("kind")] == CLASSES.index(name)).any())

    def work(self, batch_size: int) -> Workload:
        """The steps at a batch size."""
        return workload_at(self.steps, batch_size)

    def total(self, batch_size: int) -> dict[str, int]:
        """The counts at a batch size."""
        values = self.counts[0] + batch_size * self.counts[1]
        values[REPACKED] = repacked(values, batch_size)
        return dict(zip(COLUMNS, (int(v) for v in values), strict=True))


def numbered(rows: Sequence[tuple[TimedNetwork, Counted]]) -> list[int]:
    """(rows,) a number for each distinct network.

    Rows that differ only in batch size, pass or name have the same number: two names mean one network if
    their steps and counts are equal.
    """
    numbers, by_name = dict[bytes, int](), dict[Network | tuple[str, RowSize], int]()
    for row, counted in rows:
        work = counted.counts.tobytes() + counted.steps.tobytes()
        by_name.setdefault(row.network[:2], numbers.setdefault(work, len(numbers)))
    return [by_name[row.network[:2]] for row, _ in rows]


def counts_of(
    rows: Sequence[TimedNetwork], on_progress: OnProgress | None = None
) -> list[Counted | LolatError]:
    """The counts of each row's network, or the error of reading the network.

    A network that is not cached on disk is read in a process of its own. Some networks of timm, such as
    RepVGG, are timed with merged branches: if the table has fewer parameters than the network, the form
    whose number is nearer is taken. Before PyTorch had fused attention, attention ran as single operations.
    Tables of timm have group norms in half precision.
    """
    counts = _read([row.network for row in rows], on_progress)
    others: dict[Network, Network] = {}
    for row in rows:
        (spec, size, mode), known = row.network, counts[row.network]
        if spec.startswith("timm:") and TOO_MANY < _excess(known, row) < math.inf:
            others[row.network] = (f"{spec}?{REPARAMETERIZED}", size, mode)
        elif row.before_fused and isinstance(known, Counted) and known.has(ATTENTION):
            others[row.network] = (f"{spec}?{TAKEN_APART}", size, mode)
        elif row.half_norm and isinstance(known, Counted) and known.has(GROUP_NORM):
            others[row.network] = (f"{spec}?{HALF_NORM}", size, mode)
    counts |= _read(others.values(), None)
    forms = [(others.get(row.network, row.network), row.network) for row in rows]
    return [
        min((counts[form] for form in both), key=lambda known: abs(_excess(known, row)))
        for row, both in zip(rows, forms, strict=True)
    ]


def _excess(counts: Counted | LolatError, row: TimedNetwork) -> float:
    """A network's parameters / its row's parameters - 1; infinite for an error."""
    if isinstance(counts, LolatError):
        return math.inf
    return 0.0 if row.parameters is None else counts.parameters / row.parameters - 1.0


def _read(
    networks: Collection[Network], on_progress: OnProgress | None
) -> dict[Network, Counted | LolatError]:
    """Network -> its counts, or the error of reading it; each network is read once."""
    counted: dict[Network, Counted | LolatError] = {}
    for mode in sorted({mode for *_, mode in networks}, key=str):
        specs = dict.fromkeys((spec, size) for spec, size, own in networks if own == mode)
        flags = (mode.fused, mode.channels_last, mode.training)
        name = f"device{CACHE_VERSION}-{mode.dtype}-{''.join(str(int(flag)) for flag in flags)}"
        for network, array in arrays_of(specs, name, partial(_packed, mode), on_progress):
            own = (*network, mode)
            counted[own] = array if isinstance(array, LolatError) else _unpacked(own, array)
    return counted


def _packed(mode: Mode, graph: Graph) -> np.ndarray:
    counts = count(as_trained(graph) if mode.training else graph)
    totals = [counts.fixed.sum(axis=0), counts.scaled.sum(axis=0)]
    return np.concatenate([[float(parameters(graph))], *totals, step_table(graph, mode).ravel()])


def _unpacked(network: Network, array: np.ndarray) -> Counted:
    end = 1 + 2 * len(COLUMNS)
    counts = array[1:end].reshape(2, len(COLUMNS))
    return Counted(network, array[end:].reshape(-1, len(STEP_COLUMNS)), counts, float(array[0]))
