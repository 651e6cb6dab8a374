"""Networks of a table, counted once and kept on disk: what a model needs of each for any batch size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lolat.devices.tables import TimedNetwork
from lolat.errors import LolatError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS as COUNTS
from lolat.graph.counts import count
from lolat.graph.modes import Mode
from lolat.graph.work import COLUMNS, Work, at, works
from lolat.readers.cache import Cache
from lolat.readers.many import Said, arrays_of
from lolat.readers.torch.named import REPARAMETERIZED
from lolat.training.memory import parameters

VERSION = 5
"""Raise it when `lolat.graph.work` or the counts change: what was kept before is then made again."""
REPARAMETERIZED_FORM = f"?{REPARAMETERIZED}"
TOO_MANY_PARAMETERS = 1.004
"""Times the parameters that a table says: the network was timed in another form."""


@dataclass(frozen=True)
class Counted:
    """Of a network: the table of its steps (`lolat.graph.work.works`); its counts, (2, COUNTS): whatever
    the batch, and of each sample; how many parameters it has.
    """

    steps: np.ndarray
    counts: np.ndarray
    parameters: float

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
        return cls(works(graph, mode), totals.astype(float), float(parameters(graph)))


def counts_of(rows: Sequence[TimedNetwork], said: Said | None = None) -> list[Counted | LolatError]:
    """The counts of each row's network, or why there are none.

    Read in processes of their own where they are not kept on disk. Some networks of timm are timed with
    their branches made one, as RepVGG's: where a table's parameters are fewer than the network has, that
    form is the one, if it is nearer.
    """
    counted: dict[tuple[str, Any, Mode], Counted | LolatError] = {}

    def read(networks: Iterable[tuple[str, Any, Mode]], said: Said | None = None) -> None:
        new = [n for n in dict.fromkeys(networks) if n not in counted]
        for mode in sorted({n[2] for n in new}, key=str):
            specs = [n[:2] for n in new if n[2] == mode]
            counted.update({(*k, mode): v for k, v in _counted(specs, mode, said)})

    read(((r.spec, r.size, r.mode) for r in rows), said)
    plain = [counted[r.spec, r.size, r.mode] for r in rows]
    others = {
        i: (r.spec + REPARAMETERIZED_FORM, r.size, r.mode)
        for i, (r, own) in enumerate(zip(rows, plain, strict=True))
        if isinstance(own, Counted)
        and r.parameters is not None
        and r.spec.startswith("timm:")
        and own.parameters > TOO_MANY_PARAMETERS * r.parameters
    }
    read(others.values())
    chosen = list(plain)
    for i, network in others.items():
        other, own, said_to_have = counted[network], plain[i], rows[i].parameters
        if isinstance(other, Counted) and isinstance(own, Counted) and said_to_have is not None:
            distance = abs(other.parameters - said_to_have)
            if distance < abs(own.parameters - said_to_have):
                chosen[i] = other
    return chosen


def _counted(
    networks: Iterable[tuple[str, Any]], mode: Mode, said: Said | None
) -> Iterator[tuple[tuple[str, Any], Counted | LolatError]]:
    name = f"device{VERSION}-{mode.dtype}-" + "".join(
        str(int(flag)) for flag in (mode.compiled, mode.channels_last, mode.training)
    )
    for network, array in arrays_of(networks, name, partial(_packed, mode), Cache(), said=said):
        yield network, array if isinstance(array, LolatError) else _unpacked(array)


def _packed(mode: Mode, graph: Graph) -> np.ndarray:
    of = Counted.of(graph, mode)
    return np.concatenate([[of.parameters], of.counts.ravel(), of.steps.ravel()])


def _unpacked(array: np.ndarray) -> Counted:
    end = 1 + 2 * len(COUNTS)
    counts = array[1:end].reshape(2, len(COUNTS))
    return Counted(array[end:].reshape(-1, len(COLUMNS)), counts, float(array[0]))
