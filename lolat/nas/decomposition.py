"""Splits the counts of a function's networks into tables: finds the positions that interact.

A candidate's counts are a sum around the base, the first choice of every position (cut-HDMR; Rabitz and
Alis, 1999): f(base) + the change by each choice alone + the further change by each pair of choices + ...
Candidates are built and compared with their sums: first a set with every pair of neighbors' choices, then
random ones, until twenty need no further table. A candidate that deviates is reduced to the fewest changes
that still deviate, and their positions get a table of all their choices.
If more than MOST_TOGETHER interact, a space of at most MOST_NETWORKS candidates is tabulated whole.

The first and last choices of all positions are split first: this takes few networks, finds most
interactions, and refuses a space that does not decompose before thousands of networks are built.
"""

from __future__ import annotations

import inspect
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError, LolatError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, MEANINGS
from lolat.io.progress import Progress, quietly
from lolat.nas.tables import CountTable, times_ms, totals
from lolat.parameters import InputSize
from lolat.readers import read
from lolat.readers.cache import Cache, keras_settings, key_of
from lolat.readers.code import brief
from lolat.readers.opened import watched
from lolat.readers.reading import made
from lolat.readers.size import as_sizes
from lolat.readers.sources import UnknownCodeError, facts_of, modules_of, sources_of
from lolat.units import percent

MOST_NETWORKS = 3000  # that a function is called for
MOST_TOGETHER = 4  # positions of one table: two widths, kernel, resolution
MOST_CHECKED = 200  # candidates of a space that are all compared if half of them are built
MOST_TOLERANCE = 0.5  # that a refusal offers
CHECKED_AT = (1, 8, 64)  # batch sizes, because of the thresholds of some counts
COVERING_CHECKS, FRESH_CHECKS = 100, 20
FEW = 10  # networks that are built in a moment

Row = tuple[int, ...]


@dataclass(frozen=True)
class Decomposition:
    """Which positions of a space interact, and how exact the tables are.

    `together`: names of the positions that share a table; `checked`: distinct whole networks compared
    with their sums; `deviation`: the largest relative error, of the count `column` (None if all were
    exact); `built`: networks built in all, `cached` of them by an earlier run; `size`: candidates of the
    space; `idle`: positions whose choices change no count.
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
        return (
            f"{self._built_words}; positions that interact: {keys}; "
            f"MACs and other counts, summed over a network's parts, are {off}, checked on "
            f"{self.checked} of {self.size:,} networks{', cached ones as first built' * bool(self.cached)}"
        )

    @property
    def _built_words(self) -> str:
        before = f" ({self.cached} by an earlier command: LOLAT_CACHE=off builds them anew)"
        return f"{self.built} networks built{before * bool(self.cached)}"

    def words(self) -> str:
        """Return the text; a short one where all networks are exact, or an earlier command said more."""
        idle = f"; no count changes by {', '.join(self.idle)}: does the function use it?" * bool(
            self.idle
        )
        if self.column is None and self.cached:
            return self._built_words + idle
        if self.column is None and self.checked == self.size:
            return f"{self._built_words}; the counts of each are exact{idle}"
        return str(self) + idle


class CandidateNetworks:
    """A function's networks, each built once and numbered; `choices`: the values of each argument.

    Networks that an earlier run built are read from the cache; `cached`: how many.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        choices: Mapping[str, Sequence[Any]],
        input_size: InputSize,
    ) -> None:
        self.function, self.choices, self.input_size = function, choices, input_size
        self.name = self.place = getattr(function, "__name__", "factory")
        if code := getattr(function, "__code__", None):
            self.place += f" ({os.path.basename(code.co_filename)}, line {code.co_firstlineno})"
        try:
            inspect.signature(function).bind(**choices)
        except TypeError as error:
            raise InputError(
                f"{self.place}: {error}; its choices are of {', '.join(choices)}; expected choices for "
                "each argument without a default, and for no other name"
            ) from None
        except ValueError:  # a function without a known signature
            pass
        self.size = math.prod(map(len, choices.values()))
        self._graphs: list[Graph] = []
        self._number: dict[Row, int] = {}
        self._totals: dict[int, np.ndarray] = {}  # batch size -> (networks so far, COLUMNS)
        self._progress, self._stage, self._is_shown = Progress(), "", False
        self._done, self._expected, self._total = 0, 1, 1
        self.cached, self._key, self._left = 0, "", MOST_NETWORKS
        self._fresh: dict[Row, Graph] = {}  # without a number yet

    def build(self, values: Sequence[Any], name: str = "") -> Graph:
        """Build the network of these values; InputError if the function fails or returns no network."""
        chosen = dict(zip(self.choices, values, strict=True))
        try:
            with quietly():
                network = made(partial(self.function, **chosen))
            if not (isinstance(network, tuple) and self.input_size):
                return read(network, self.input_size)
        except Exception as error:
            why = error.message if isinstance(error, LolatError) else brief(error)
            remedy = "fix the function, or leave out a choice"
            if getattr(error, "code", "") == "input-size":
                remedy = "give Space.from_factory(..., input_size=224), or the size that they have"
            raise InputError(
                f"{self.place} failed for {self._words(values)}: {why}; expected a network for every "
                f"combination of choices: {remedy}"
            ) from error
        raise InputError(
            f"{self.place} returns networks with their inputs, and input_size would change the size of "
            "these; expected no input_size"
        )

    def __len__(self) -> int:
        return len(self._graphs)

    def require(self, more: int, task: str) -> None:
        """Raise InputError if `more` networks would be too many."""
        needed = min(len(self) + more, self.size)  # each candidate is built once
        if needed > MOST_NETWORKS:
            raise InputError(
                f"{self.place}: {task} takes {needed} networks, more than {MOST_NETWORKS}; "
                "give fewer positions or choices"
            )

    def number(self, row: Row) -> int:
        """Return the number of a candidate's network, and build it if it is new."""
        if row not in self._number:
            self.require(1, "splitting its networks into tables")
            if row not in self._fresh:
                found = self._cached(row)
                self.cached += found is not None
                self._fresh[row] = self._built(row) if found is None else found
                self._step(is_quick=found is not None)
            self._graphs.append(self._fresh.pop(row))
            self._number[row] = len(self._graphs) - 1
        return self._number[row]

    def graph(self, row: Row) -> Graph:
        """Return a candidate's network: one that has a number, a cached one, or one that is built now."""
        if row in self._number:
            return self._graphs[self._number[row]]
        found = self._cached(row)
        return self._built(row) if found is None else found

    def confirm(self) -> None:
        """Build the first and the last network again; InputError if the counts of one differ.

        Networks that an earlier run built are confirmed by the key of the cache.
        """
        for number in () if self.cached else sorted({0, len(self) - 1}):
            values = self._values([*self._number][number])
            both = totals([self._graphs[number], self.build(values)], 1, self.name)
            if (both[0] != both[1]).any():
                raise InputError(
                    f"{self.place} returns another network each time for {self._words(values)}; expected "
                    "the same network for the same choices: make what it draws at random, or keeps between "
                    "calls, a choice or a constant",
                    code="random-networks",
                )

    def _values(self, row: Row) -> list[Any]:
        """The values of a candidate's choices."""
        return [v[c] for v, c in zip(self.choices.values(), row, strict=True)]

    def _words(self, values: Sequence[Any]) -> str:
        """The names of the choices with these values."""
        return ", ".join(f"{n}={v!r}" for n, v in zip(self.choices, values, strict=True))

    def _built(self, row: Row) -> Graph:
        """Build a candidate's network, and cache it."""
        with watched() as files:
            graph = self.build(self._values(row))
        if self._key and self._left:  # a long loop of the user's fills no folder
            self._left -= 1
            Cache().put_graph(key_of([self._key, row]), graph, files)
        return graph

    def _cached(self, row: Row) -> Graph | None:
        return Cache().graph(key_of([self._key, row])) if self._key else None

    def use_cache(self) -> None:
        """Find what earlier runs cached, unless the code of the networks may have changed since.

        The key has the source text of the function's module and of the modules that it imports, and a few
        networks that are built anew, with each choice in one of them: they tell if a setting changed.
        Each cached network has the files that Python opened by then, and is used while these are the same.
        """
        if Cache().folder is None:
            return
        try:
            given = facts_of([self.function, self.choices])
        except UnknownCodeError:
            return
        for number in range(max(map(len, self.choices.values()))):
            row = tuple(number % len(values) for values in self.choices.values())
            if row not in self._fresh:
                self._fresh[row] = self._built(row)
                self._step(is_quick=number < FEW)
        seen = [_without_names(graph.to_dict()) for graph in self._fresh.values()]
        try:  # now that all modules are imported
            sources = sources_of(modules_of([self.function, self.choices]))
        except (UnknownCodeError, ImportError, OSError, SyntaxError, ValueError):
            return
        python = [*sys.version_info[:3]]
        facts = [given, as_sizes(self.input_size), sources, seen, keras_settings(), python]
        self._key = key_of(facts)

    def expect(self, more: int, progress: Progress, purpose: str = "") -> None:
        """Begin a stage of about `more` networks, 0: not known; `progress` shows it once one is built."""
        self._progress, self._is_shown = progress, False
        self._stage = f"building candidates of {self.name}{purpose}"
        self._expected = max(min(more, self.size - self._done), 1)
        self._total = self._done + self._expected if more else 0

    def _step(self, is_quick: bool) -> None:
        """Count one more network, and show it unless `is_quick`."""
        self._done += 1
        if is_quick:
            self._is_shown = False
            return
        if not self._is_shown or self._done > self._total > 0:
            if self._done > self._total > 0:  # of as many again
                self._total = min(self._done - 1 + self._expected, self.size)
            self._progress.start(self._stage, self._total, self._done - 1)
            self._is_shown = True
        self._progress.step()

    def totals(self, batch_size: int) -> np.ndarray:
        """(networks built, COLUMNS) counts at `batch_size`."""
        sums = self._totals.get(batch_size, np.zeros((0, len(COLUMNS)), np.int64))
        if len(sums) < len(self):
            more = totals(self._graphs[len(sums) :], batch_size, self.name)
            sums = self._totals[batch_size] = np.concatenate([sums, more])
        return sums

    def ms(self, formula: Roofline, batch_size: int, numbers: np.ndarray) -> np.ndarray:
        """(*numbers.shape, 4) ms, as of `times_ms`, of the networks with these numbers."""
        new, places = np.unique(numbers, return_inverse=True)
        times = [times_ms(formula, self._graphs[number], batch_size, whole=True) for number in new]
        return np.array(times)[places.reshape(numbers.shape)]


def _without_names(value: Any) -> Any:
    """A graph's document without the names of layers, whose numbers Keras raises with each layer."""
    if isinstance(value, dict):
        named = ("name", "path")
        return {key: _without_names(one) for key, one in value.items() if key not in named}
    return [*map(_without_names, value)] if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class ChangeTable:
    """The change that the choices at `positions` make together, beyond the changes by fewer of them.

    `numbers`: numbers of the networks with these choices and the base elsewhere, an axis for each position.
    `is_whole`: it is the one table of the space, and has the candidates' own counts.
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
        """Subtract the values at the base's choice, along each position."""
        for axis in () if self.is_whole else range(len(self.positions)):
            changes = changes - changes.take([0], axis)
        return changes


class UndecomposedError(InputError):
    """More positions interact than a table has."""


class Decomposer:
    """Finds the positions that interact, and `tables` that add up to a candidate's counts.

    `picks`: the choices of each position that are compared, all if not given. A candidate's
    integers are indices of `picks` here.
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
        self._checks: list[Row] = []
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
        """Return whether the choices at a position change no count."""
        changes = (
            self._counts(key, size) - self._counts(key, size).take([0], key.index(position))
            for key in self.tables if position in key for size in CHECKED_AT
        )  # fmt: skip
        return self.sizes[position] > 1 and not any(map(np.any, changes))

    def _whole(self, progress: Progress) -> Decomposition:
        """Build all candidates; they are the one table."""
        networks, positions = self.networks, tuple(p for p, n in enumerate(self.sizes) if n > 1)
        networks.expect(networks.size, progress)
        numbers = np.array(
            [networks.number(row) for row in itertools.product(*map(range, self.sizes))]
        )
        shape = tuple(self.sizes[p] for p in positions)
        self.tables = {positions: ChangeTable(networks, positions, numbers.reshape(shape), True)}
        together = (tuple(self.names[p] for p in positions),)
        return Decomposition(together, networks.size, 0.0, None, len(networks), networks.size)

    def _split(self, progress: Progress) -> Decomposition:
        """Find the interactions; errors as of `run`."""
        networks = self.networks
        most = f"at most {MOST_NETWORKS:,} of " * (networks.size > MOST_NETWORKS)
        networks.expect(0, progress, f" ({most}{networks.size:,}) to find choices that interact")
        networks.use_cache()
        ends = Decomposer(networks, self.tolerance, [sorted({0, n - 1}) for n in self.sizes])
        ends.find([])
        new = {key: math.prod(self.sizes[p] - 1 for p in key) for key in ends.tables}
        more = sum(new.values()) - len(networks)
        self._require(max(new, key=new.__getitem__), more)
        networks.expect(more + FRESH_CHECKS, progress)
        return self.find(list(ends.tables))

    def find(self, known: Sequence[tuple[int, ...]]) -> Decomposition:
        """The interactions among the `picks`; positions in `known` are known to interact."""
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

    def _covering(self, random: np.random.Generator) -> Iterator[Row]:
        """Yield candidates that have each pair of neighbors' choices, up to COVERING_CHECKS."""
        # Even positions go through their choices for each choice of the odd ones, in orders of their own.
        orders = [random.permutation(n) for n in self.sizes]
        even, odd = max(self.sizes[::2]), max(self.sizes[1::2], default=1)
        pairs = random.permutation(even * odd)[:COVERING_CHECKS]
        for a, b in zip(*np.divmod(pairs, odd), strict=True):
            yield tuple(int(o[(b if p % 2 else a) % len(o)]) for p, o in enumerate(orders))

    def _add(self, key: tuple[int, ...]) -> None:
        """Make a table for these positions together, and for each smaller set of them."""
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
        """Raise InputError if `more` networks are too many, most of them for a table of `key`."""
        self.networks.require(more, f"a table of {' with '.join(self.names[p] for p in key)}")

    def _number(self, row: Row) -> int:
        """Return the number of a row's network."""
        return self.networks.number(tuple(p[c] for p, c in zip(self.picks, row, strict=True)))

    def _counts(self, key: tuple[int, ...], batch_size: int) -> np.ndarray:
        """Return the counts of a table, computed once."""
        if (key, batch_size) not in self._made:
            self._made[key, batch_size] = self.tables[key].at(batch_size)
        return self._made[key, batch_size]

    def _deviation(self, row: Row) -> tuple[float, str]:
        """Return the largest relative error of a candidate's sum, and the count that has it."""
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
        """Return the largest deviation of all checks."""
        return max(map(self._deviation, self._checks), key=lambda deviation: deviation[0])

    def _reduced(self, row: Row) -> tuple[int, ...]:
        """Return the fewest positions whose choices in `row` deviate; InputError for too many."""
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
