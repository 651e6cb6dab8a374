"""Counts of a space whose networks a function returns: which positions interact, and a table for each.

The counts of a candidate are split around the first choice of every position, the base (cut-HDMR; Rabitz
and Alis, 1999): f(base) + the change by each choice alone + the further change by each pair of choices +
... The interacting pairs (triples, fours) are found in three steps:

1. Neighboring positions are tried with their last choices.
2. Candidates that together have every pair of choices of neighbors are built and compared with their sums.
   One that deviates is reduced to the fewest changes that still deviate; those get a table of all their
   choices.
3. So are random candidates, until twenty new ones need no further table.

The remaining deviation is reported, and refused above a tolerance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS
from lolat.model.predicting import operations_ms
from lolat.nas.grid import Grid
from lolat.nas.tables import totals
from lolat.readers import read
from lolat.readers.code import brief

MOST_NETWORKS = 3000  # that a function is called for
MOST_TOGETHER = 4  # positions of one table: two widths, kernel, resolution
CHECKED_AT = (1, 8, 64)  # batch sizes, because of the thresholds of some counts
COVERING_CHECKS, FRESH_CHECKS = 100, 20

Row = tuple[int, ...]


@dataclass(frozen=True)
class Decomposition:
    """How the networks of a function were split into tables.

    `together`: names of the positions of each table of several; `checked`: whole networks that were
    compared with their sums; `deviation`: the largest one, relative to the network's total of that count,
    and `column`, the count (None where all were exact); `built`: networks built in all.
    """

    together: tuple[tuple[str, ...], ...]
    checked: int
    deviation: float
    column: str | None
    built: int

    def __str__(self) -> str:
        pairs = ", ".join(" with ".join(names) for names in self.together) or "none"
        off = "exact" if self.column is None else f"off by {self.deviation:.2g} of {self.column}"
        return (
            f"{self.built} networks built; positions that interact: {pairs}; {self.checked} whole "
            f"networks against their sums: {off}"
        )


@dataclass
class Networks:
    """Networks of a function, each built once.

    `choices`: of each keyword argument the values; `input_size`: see `lolat.read`.
    """

    function: Callable[..., Any]
    choices: Mapping[str, Sequence[Any]]
    input_size: Any

    def __post_init__(self) -> None:
        self._graphs: list[Graph] = []
        self._number: dict[Row, int] = {}
        self._totals: dict[int, np.ndarray] = {}  # batch size -> (networks so far, COLUMNS)

    @property
    def name(self) -> str:
        """Of the function."""
        return getattr(self.function, "__name__", "factory")

    def build(self, values: Sequence[Any], name: str) -> Graph:
        """The network of these values; InputError where the function fails or makes no network."""
        arguments = dict(zip(self.choices, values, strict=True))
        try:
            return read(self.function(**arguments), self.input_size)
        except Exception as error:
            raise InputError(
                f"{name} of {arguments} failed: {brief(error)}; expected a network for every combination "
                "of choices"
            ) from error

    def __len__(self) -> int:
        return len(self._graphs)

    def require(self, more: int, task: str) -> None:
        """InputError where building `more` networks would be too many."""
        if len(self) + more > MOST_NETWORKS:
            raise InputError(
                f"{self.name}: {task} takes {len(self) + more} networks, more than {MOST_NETWORKS}; give "
                "fewer positions or choices"
            )

    def number(self, row: Row) -> int:
        """The number of a candidate's network, which is built where it is new."""
        if row not in self._number:
            self.require(1, "splitting its networks into tables")
            values = [v[c] for v, c in zip(self.choices.values(), row, strict=True)]
            self._graphs.append(self.build(values, self.name))
            self._number[row] = len(self._graphs) - 1
        return self._number[row]

    def totals(self, batch_size: int) -> np.ndarray:
        """(networks built, COLUMNS) counts of each at `batch_size`."""
        sums = self._totals.get(batch_size, np.zeros((0, len(COLUMNS)), np.int64))
        if len(sums) < len(self):
            more = totals(self._graphs[len(sums) :], batch_size, self.name)
            sums = self._totals[batch_size] = np.concatenate([sums, more])
        return sums

    def ms(self, formula: Kernels, batch_size: int, numbers: np.ndarray) -> np.ndarray:
        """Milliseconds of the networks with these numbers."""
        times = {
            number: operations_ms(formula, self._graphs[number], batch_size)
            for number in numbers.ravel().tolist()
        }
        return np.vectorize(times.__getitem__, otypes=[float])(numbers)


@dataclass(frozen=True)
class ChangeTable:
    """The change by the choices at `positions` together, beyond the changes by fewer of them.

    `numbers`: of the networks with those choices and the base elsewhere, an axis per position.
    """

    networks: Networks
    positions: tuple[int, ...]
    numbers: np.ndarray

    def at(self, batch_size: int) -> np.ndarray:
        """See `Table`."""
        return self._changes(self.networks.totals(batch_size)[self.numbers])

    def ms(self, formula: Kernels, batch_size: int) -> np.ndarray:
        """See `Table`."""
        return self._changes(self.networks.ms(formula, batch_size, self.numbers))

    def _changes(self, changes: np.ndarray) -> np.ndarray:
        """The differences from the base's choice, along each position."""
        for axis in range(len(self.positions)):
            changes = changes - changes.take([0], axis)
        return changes


class Finder:
    """Finds the positions that interact."""

    def __init__(self, networks: Networks, tolerance: float) -> None:
        self.networks, self.names, self.tolerance = networks, list(networks.choices), tolerance
        self.sizes = Grid(tuple(len(v) for v in networks.choices.values())).sizes
        self.tables: dict[tuple[int, ...], ChangeTable] = {}  # they add up to a candidate's counts
        self._checks: list[Row] = []

    def run(self) -> Decomposition:
        """Find the interactions; InputError where they are of too many positions, or networks."""
        random = np.random.default_rng(0)
        self.networks.require(1 + sum(n - 1 for n in self.sizes), "a change of each position alone")
        self._add(())
        last = range(len(self.sizes))
        for position in last:
            self._add((position,))
        for pair in itertools.pairwise(last):
            row = tuple(n - 1 if p in pair else 0 for p, n in enumerate(self.sizes))
            if self._deviation(row)[0] > self.tolerance:
                self._add(pair)
        checks = self._checks = list(dict.fromkeys(self._covering(random)))
        while True:
            # A new table may change the sum of a candidate that was right by chance: check all again.
            while off := [row for row in checks if self._deviation(row)[0] > self.tolerance]:
                self._add(self._reduced(off[0]))
            # Random ones, which no table was made for.
            fresh = [
                tuple(int(random.integers(0, n)) for n in self.sizes) for _ in range(FRESH_CHECKS)
            ]
            checks += fresh
            if all(self._deviation(row)[0] <= self.tolerance for row in fresh):
                break
        worst, column = max(map(self._deviation, checks), key=lambda d: d[0])
        together = [key for key in self.tables if len(key) > 1]
        largest = [k for k in together if not any(set(k) < set(other) for other in together)]
        return Decomposition(
            tuple(tuple(self.names[p] for p in key) for key in largest),
            len(checks), worst, column if worst > 0.0 else None, len(self.networks),
        )  # fmt: skip

    def _covering(self, random: np.random.Generator) -> Iterator[Row]:
        """Candidates that together have each pair of choices of neighbors, up to COVERING_CHECKS."""
        # Even positions go through their choices for each choice of the odd ones, in orders of their own.
        orders = [random.permutation(n) for n in self.sizes]
        even, odd = max(self.sizes[::2]), max(self.sizes[1::2], default=1)
        pairs = random.permutation(even * odd)[:COVERING_CHECKS]
        for a, b in zip(*np.divmod(pairs, odd), strict=True):
            yield tuple(int(o[(b if p % 2 else a) % len(o)]) for p, o in enumerate(orders))

    def _add(self, key: tuple[int, ...]) -> None:
        """Give some positions a table together, and all fewer of them one each."""
        if key in self.tables:
            return
        for fewer in itertools.combinations(key, len(key) - 1) if key else ():
            self._add(fewer)
        shape = tuple(self.sizes[p] for p in key)
        if len(key) > 1:
            named = " with ".join(self.names[p] for p in key)
            self.networks.require(math.prod(n - 1 for n in shape), f"a table of {named}")
        numbers = np.empty(shape, np.intp)
        for chosen in itertools.product(*map(range, shape)):
            row = [0] * len(self.sizes)
            for position, choice in zip(key, chosen, strict=True):
                row[position] = choice
            numbers[chosen] = self.networks.number(tuple(row))
        self.tables[key] = ChangeTable(self.networks, key, numbers)

    def _deviation(self, row: Row) -> tuple[float, str]:
        """The largest relative error of the sum for a candidate, and the count that has it."""
        number = self.networks.number(row)
        worst = (0.0, "")
        for batch_size in CHECKED_AT:
            actual = self.networks.totals(batch_size)[number]
            summed = sum(
                table.at(batch_size)[tuple(row[p] for p in key)]
                for key, table in self.tables.items()
            )
            error = np.abs(summed - actual) / np.maximum(actual, 1)
            at = int(np.argmax(error))
            worst = max(worst, (float(error[at]), COLUMNS[at]))
        return worst

    def _reduced(self, row: Row) -> tuple[int, ...]:
        """The fewest positions whose choices in `row` deviate; InputError where they are too many."""
        changed = [p for p, choice in enumerate(row) if choice]
        for position in list(changed):
            fewer = [p for p in changed if p != position]
            without = tuple(c if p in fewer else 0 for p, c in enumerate(row))
            if self._deviation(without)[0] > self.tolerance:
                changed = fewer
        if len(changed) > MOST_TOGETHER:
            error, column = max(map(self._deviation, self._checks), key=lambda d: d[0])
            names = ", ".join(self.names[p] for p in changed)
            raise InputError(
                f"{self.networks.name} does not decompose: {names} change its {column} together (sums are "
                f"off by up to {100 * error:.2g} %), and tables are of {MOST_TOGETHER} positions at most; "
                f"make one position of them, or accept it with tolerance={1.2 * error:.2g}"
            )
        return tuple(changed)
