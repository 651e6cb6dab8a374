"""Splits the counts of a function's networks into tables, by finding the positions that interact.

A candidate's counts are a sum around the base, the first choice of every position (cut-HDMR; Rabitz and
Alis, 1999): f(base) + the change by each single choice + the further change by each pair of choices + ...
Candidates are built and compared with their sums: first a set with every pair of neighbors' choices, then
random candidates, until twenty in a row need no further table. A candidate that deviates is reduced to the
fewest changes that still deviate, and the positions of these get a table of all their choices. If more than
MOST_TOGETHER positions interact, a space of at most MOST_NETWORKS candidates is tabulated whole.

The first and last choices of all positions are decomposed first: this needs few networks, finds most
interactions, and refuses a space that does not decompose before thousands of networks are built.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError
from lolat.graph.counts import COLUMNS, MEANINGS
from lolat.io.progress import Progress
from lolat.nas.candidates import MOST_NETWORKS, Candidate, CandidateNetworks
from lolat.nas.count_tables import CountTable
from lolat.units import percent

MOST_TOGETHER = 4  # limit on positions of a table, such as two widths, kernel, resolution
MOST_CHECKED = 200  # a space of up to this many candidates is compared whole if half are built
MOST_TOLERANCE = 0.5  # largest tolerance that an error message suggests
CHECKED_AT = (1, 8, 64)  # batch sizes, because of the thresholds of some counts
COVERING_CHECKS, FRESH_CHECKS = 100, 20


@dataclass(frozen=True)
class Decomposition:
    """The positions of a space that interact, and the error of the tables.

    `together`: names of positions that share a table; `checked`: number of distinct whole networks compared
    with their sums; `deviation`: the largest relative error, and `column` the count that has it (None if
    all were exact); `built`: number of networks built, of which an earlier run built `cached`; `size`:
    number of candidates in the space; `idle`: positions whose choices change no count.
    """

    together: tuple[tuple[str, ...], ...]
    checked: int
    deviation: float
    column: str | None
    built: int
    size: int
    cached: int = 0
    idle: tuple[str, ...] = ()

    def __str__(self) -> str:
        keys = ", ".join(f"({', '.join(names)})" for names in self.together) or "none"
        off = "exact"
        if self.column is not None:
            off = f"up to {percent(self.deviation)} off in {MEANINGS[self.column].words}"
        of_cache = ", cached ones as first built" if self.cached else ""
        return (
            f"{self._built_words}; positions that interact: {keys}; MACs and other counts, summed over a "
            f"network's parts, are {off}, checked on {self.checked} of {self.size:,} networks{of_cache}"
        )

    @property
    def _built_words(self) -> str:
        words = f"{self.built} networks built"
        if not self.cached:
            return words
        return f"{words} ({self.cached} by an earlier command: LOLAT_CACHE=off builds them anew)"

    def words(self) -> str:
        """The decomposition as text; short if all networks are exact or an earlier command said more."""
        idle = ""
        if self.idle:
            idle = f"; no count changes by {', '.join(self.idle)}: does the function use it?"
        if self.column is None and self.cached:
            return self._built_words + idle
        if self.column is None and self.checked == self.size:
            return f"{self._built_words}; the counts of each are exact{idle}"
        return str(self) + idle


@dataclass(frozen=True)
class ChangeTable:
    """The change of counts by the choices at `positions` together, beyond the changes by subsets of them.

    `numbers`: numbers of the networks with these choices and the base elsewhere, with an axis for each
    position. `is_whole`: True if it is the space's only table, with the candidates' own counts.
    """

    networks: CandidateNetworks
    positions: tuple[int, ...]
    numbers: np.ndarray
    is_whole: bool = False

    def at(self, batch_size: int) -> np.ndarray:
        """See `CountTable`."""
        return self._changes(self.networks.totals(batch_size)[self.numbers])

    def ms(self, formula: Roofline, batch_size: int) -> np.ndarray:
        """See `CountTable`."""
        return self._changes(self.networks.ms(formula, batch_size, self.numbers))

    def _changes(self, changes: np.ndarray) -> np.ndarray:
        """Subtract the values at the base's choice along each position."""
        for axis in () if self.is_whole else range(len(self.positions)):
            changes = changes - changes.take([0], axis)
        return changes


class UndecomposedError(InputError):
    """More positions interact than one table can have."""


class Decomposer:
    """Finds the positions that interact, and makes `tables` that add up to a candidate's counts.

    `picks`: the choices of each position that are considered, by default all. A candidate's integers are
    indices into `picks` here.
    """

    def __init__(
        self,
        networks: CandidateNetworks,
        tolerance: float,
        picks: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.networks, self.names, self.tolerance = networks, list(networks.choices), tolerance
        self.picks = picks or [range(len(v)) for v in networks.choices.values()]
        self.sizes = tuple(map(len, self.picks))
        self.tables: dict[tuple[int, ...], CountTable] = {}
        self.found: Decomposition | None = None
        self._made: dict[tuple[tuple[int, ...], int], np.ndarray] = {}  # by positions, batch size
        self._checks: list[Candidate] = []
        networks.require(1 + sum(n - 1 for n in self.sizes), "a change of each position alone")

    def run(self, progress: Progress) -> Decomposition:
        """Find the interactions, once; InputError if they take too many positions or networks."""
        if self.found is None:
            try:
                self.found = self._split(progress)
            except UndecomposedError:
                self.networks.confirm()  # random networks do not decompose either
                if self.networks.size > MOST_NETWORKS:
                    raise
                self.found = self._whole(progress)
            self.networks.confirm()
            idle = tuple(name for p, name in enumerate(self.names) if self._is_idle(p))
            self.found = replace(self.found, cached=self.networks.cached, idle=idle)
            progress.note(f"{self.networks.name}: {self.found.words()}")
        return self.found

    def _is_idle(self, position: int) -> bool:
        """True if the choices at a position change no count."""
        changes = (
            self._counts(key, size) - self._counts(key, size).take([0], key.index(position))
            for key in self.tables if position in key for size in CHECKED_AT
        )  # fmt: skip
        return self.sizes[position] > 1 and not any(map(np.any, changes))

    def _whole(self, progress: Progress) -> Decomposition:
        """Build all candidates, and make one table of them."""
        networks, positions = self.networks, tuple(p for p, n in enumerate(self.sizes) if n > 1)
        networks.announce(progress, networks.size)
        every = itertools.product(*map(range, self.sizes))
        numbers = np.array([networks.number(row) for row in every])
        shape = tuple(self.sizes[p] for p in positions)
        self.tables = {positions: ChangeTable(networks, positions, numbers.reshape(shape), True)}
        together = (tuple(self.names[p] for p in positions),)
        return Decomposition(together, networks.size, 0.0, None, len(networks), networks.size)

    def _split(self, progress: Progress) -> Decomposition:
        """Find the interactions; errors as in `run`."""
        networks = self.networks
        of = f" of {networks.size:,}" if networks.size > MOST_NETWORKS else ""
        most = f"{min(MOST_NETWORKS, networks.size):,}{of}"
        about = f" (at most {most}) to find choices that interact"
        networks.announce(progress, 0, about)  # how many is not known before the last is built
        networks.use_cache()
        ends = Decomposer(networks, self.tolerance, [sorted({0, n - 1}) for n in self.sizes])
        ends.find([])
        new = {key: math.prod(self.sizes[p] - 1 for p in key) for key in ends.tables}
        more = sum(new.values()) - len(networks)
        self._require(max(new, key=new.__getitem__), more)
        return self.find(list(ends.tables))

    def find(self, known: Sequence[tuple[int, ...]]) -> Decomposition:
        """Find the interactions among the `picks`; `known`: sets of positions known to interact."""
        random = np.random.default_rng(0)
        for key in [(), *((p,) for p in range(len(self.sizes))), *known]:
            self._add(key)
        checks = self._checks = list(dict.fromkeys(self._covering(random)))
        while True:
            # A new table may change the sum of a candidate that was right by chance: check all again.
            while off := [row for row in checks if self._deviation(row)[0] > self.tolerance]:
                self._add(self._reduced(off[0]))
            # Random ones, which no table was made for; all if most are built anyway.
            fresh = [
                tuple(int(random.integers(0, n)) for n in self.sizes) for _ in range(FRESH_CHECKS)
            ]
            if math.prod(self.sizes) <= min(2 * len(self.networks), MOST_CHECKED):
                fresh = [*itertools.product(*map(range, self.sizes))]
            checks[:] = dict.fromkeys([*checks, *fresh])
            if all(self._deviation(row)[0] <= self.tolerance for row in fresh):
                break
        worst, column = self._worst()
        together = [key for key in self.tables if len(key) > 1]
        largest = [k for k in together if not any(set(k) < set(other) for other in together)]
        return Decomposition(
            tuple(tuple(self.names[p] for p in key) for key in largest),
            len(set(checks)), worst, column if worst > 0.0 else None, len(self.networks),
            math.prod(self.sizes),
        )  # fmt: skip

    def _covering(self, random: np.random.Generator) -> Iterator[Candidate]:
        """Yield up to COVERING_CHECKS candidates that together have each pair of neighbors' choices."""
        # Even positions go through their choices for each choice of the odd ones, in orders of their own.
        orders = [random.permutation(n) for n in self.sizes]
        even, odd = max(self.sizes[::2]), max(self.sizes[1::2], default=1)
        pairs = random.permutation(even * odd)[:COVERING_CHECKS]
        for a, b in zip(*np.divmod(pairs, odd), strict=True):
            yield tuple(int(o[(b if p % 2 else a) % len(o)]) for p, o in enumerate(orders))

    def _add(self, key: tuple[int, ...]) -> None:
        """Make a table for the positions `key`, and for each of their subsets."""
        if key in self.tables:
            return
        for fewer in itertools.combinations(key, len(key) - 1) if key else ():
            self._add(fewer)
        shape = tuple(self.sizes[p] for p in key)
        if len(key) > 1:
            self._require(key, math.prod(n - 1 for n in shape))
        numbers = np.empty(shape, np.intp)
        for chosen in np.ndindex(shape):
            row = [0] * len(self.sizes)
            for position, choice in zip(key, chosen, strict=True):
                row[position] = choice
            numbers[chosen] = self._number(tuple(row))
        self.tables[key] = ChangeTable(self.networks, key, numbers)

    def _require(self, key: tuple[int, ...], more: int) -> None:
        """Raise InputError if `more` networks, mostly for a table of `key`, exceed the limit."""
        self.networks.require(more, f"a table of {' with '.join(self.names[p] for p in key)}")

    def _number(self, row: Candidate) -> int:
        return self.networks.number(tuple(p[c] for p, c in zip(self.picks, row, strict=True)))

    def _counts(self, key: tuple[int, ...], batch_size: int) -> np.ndarray:
        """The counts of the table of positions `key`, cached."""
        if (key, batch_size) not in self._made:
            self._made[key, batch_size] = self.tables[key].at(batch_size)
        return self._made[key, batch_size]

    def _deviation(self, row: Candidate) -> tuple[float, str]:
        """(largest relative error of a candidate's sum, the count that has it)."""
        number = self._number(row)
        worst = (0.0, "")
        for batch_size in CHECKED_AT:
            actual = self.networks.totals(batch_size)[number]
            summed = sum(self._counts(k, batch_size)[tuple(row[p] for p in k)] for k in self.tables)
            error = np.abs(summed - actual) / np.maximum(actual, 1)
            at = int(np.argmax(error))
            worst = max(worst, (float(error[at]), COLUMNS[at]))
        return worst

    def _worst(self) -> tuple[float, str]:
        """(largest relative error of all checked candidates, the count that has it)."""
        return max(map(self._deviation, self._checks), key=lambda deviation: deviation[0])

    def _reduced(self, row: Candidate) -> tuple[int, ...]:
        """The fewest positions whose choices in `row` deviate; InputError if too many for a table."""
        changed = [p for p, choice in enumerate(row) if choice]
        for position in list(changed):
            fewer = [p for p in changed if p != position]
            without = tuple(c if p in fewer else 0 for p, c in enumerate(row))
            if self._deviation(without)[0] > self.tolerance:
                changed = fewer
        names = [self.names[p] for p in changed]
        if len(changed) <= MOST_TOGETHER:
            return tuple(changed)
        error, column = self._worst()
        far = f"{percent(error)} off" if error < 1.0 else f"off by {error:.2g} times the number"
        accept = (
            ", or accept it where the space is made: Space.from_factory(..., "
            f"tolerance={1.2 * error:.2g})"
        )
        raise UndecomposedError(
            f"{self.networks.place} does not decompose: {', '.join(names)} change its "
            f"{MEANINGS[column].words} together (sums are up to {far}), and tables are of "
            f"{MOST_TOGETHER} positions at most in a space of more than {MOST_NETWORKS} candidates; give "
            f"fewer choices, or make one position of some that go together"
            f"{accept if error <= MOST_TOLERANCE else ''}"
        )
