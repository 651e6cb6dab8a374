"""The networks that a user's function returns for candidates: each is built once, numbered and counted."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError, LolatError
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS
from lolat.io.progress import Progress
from lolat.nas.candidate_cache import CandidateCache
from lolat.nas.count_tables import times_ms, totals
from lolat.parameters import InputSize
from lolat.readers import read
from lolat.readers.opened_files import watched
from lolat.readers.reading import call_without_weights
from lolat.readers.user_modules import quietly
from lolat.readers.user_objects import brief

MOST_NETWORKS = 3000  # limit on the networks that are built with a function
FEW = 10  # this number of networks is built in a moment

Candidate = tuple[int, ...]
"""The index of the chosen value, for each position."""


class CandidateNetworks:
    """A function's networks by number. `choices`: the values of each argument.

    Networks that an earlier run built are read from the cache; `cached`: their number. `place`: the
    function with its file and line, for messages; `size`: number of candidates; `stages`: shows the
    progress.
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
        self.stages, self.cached = Stages(), 0
        self._cache = CandidateCache([function, choices], input_size, MOST_NETWORKS)
        self._graphs: list[Graph] = []
        self._number: dict[Candidate, int] = {}
        self._fresh: dict[Candidate, Graph] = {}  # networks without a number yet
        self._totals: dict[int, np.ndarray] = {}  # batch size -> (networks so far, COLUMNS)

    def build(self, values: Sequence[Any], name: str = "") -> Graph:
        """Build the network for these values; InputError if the function fails or returns no network."""
        chosen = dict(zip(self.choices, values, strict=True))
        try:
            with quietly():
                network = call_without_weights(partial(self.function, **chosen))
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
        """Raise InputError if `more` networks would exceed the limit; `task`: what needs them."""
        needed = min(len(self) + more, self.size)  # each candidate is built once
        if needed > MOST_NETWORKS:
            raise InputError(
                f"{self.place}: {task} takes {needed} networks, more than {MOST_NETWORKS}; "
                "give fewer positions or choices"
            )

    def number(self, candidate: Candidate) -> int:
        """The number of a candidate's network; builds it if it is new."""
        if candidate not in self._number:
            self.require(1, "splitting its networks into tables")
            if candidate not in self._fresh:
                found = self._cache.find(candidate)
                self.cached += found is not None
                self._fresh[candidate] = self._built(candidate) if found is None else found
                self.stages.step(is_quick=found is not None)
            self._graphs.append(self._fresh.pop(candidate))
            self._number[candidate] = len(self._graphs) - 1
        return self._number[candidate]

    def graph(self, candidate: Candidate) -> Graph:
        """A candidate's network: numbered before, cached, or built now."""
        if candidate in self._number:
            return self._graphs[self._number[candidate]]
        found = self._cache.find(candidate)
        return self._built(candidate) if found is None else found

    def use_cache(self) -> None:
        """Use cached networks, after a few were built anew as a check: see `CandidateCache.open`."""
        self._cache.open(self._anew)

    def _anew(self) -> Iterator[Graph]:
        """Build a few networks, such that each choice is in one of them."""
        for number in range(max(map(len, self.choices.values()))):
            candidate = tuple(number % len(values) for values in self.choices.values())
            if candidate not in self._fresh:
                self._fresh[candidate] = self._built(candidate)
                self.stages.step(is_quick=number < FEW)
        yield from self._fresh.values()

    def confirm(self) -> None:
        """Build the first and the last network again; InputError if their counts have changed.

        Cached networks are not built again, because the key of the cache covers the code that builds them.
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

    def totals(self, batch_size: int) -> np.ndarray:
        """(number of networks, COLUMNS) counts at `batch_size`."""
        sums = self._totals.get(batch_size, np.zeros((0, len(COLUMNS)), np.int64))
        if len(sums) < len(self):
            more = totals(self._graphs[len(sums) :], batch_size, self.name)
            sums = self._totals[batch_size] = np.concatenate([sums, more])
        return sums

    def ms(self, formula: Roofline, batch_size: int, numbers: np.ndarray) -> np.ndarray:
        """(*numbers.shape, 4) ms of the networks with these numbers, as in `times_ms`."""
        new, places = np.unique(numbers, return_inverse=True)
        times = [times_ms(formula, self._graphs[number], batch_size, whole=True) for number in new]
        return np.array(times)[places.reshape(numbers.shape)]

    def announce(self, progress: Progress, total: int, purpose: str = "") -> None:
        """Begin a stage of `total` networks; 0: unknown."""
        self.stages.begin(f"building candidates of {self.name}{purpose}", total, progress)

    def _values(self, candidate: Candidate) -> list[Any]:
        return [v[c] for v, c in zip(self.choices.values(), candidate, strict=True)]

    def _words(self, values: Sequence[Any]) -> str:
        """The choices with these values as text."""
        return ", ".join(f"{n}={v!r}" for n, v in zip(self.choices, values, strict=True))

    def _built(self, candidate: Candidate) -> Graph:
        """Build a candidate's network, and cache it."""
        with watched() as files:
            graph = self.build(self._values(candidate))
        self._cache.put(candidate, graph, files)
        return graph


class Stages:
    """Shows the progress of building networks, in stages with a continuous count."""

    def __init__(self) -> None:
        self._progress, self._text, self._is_shown = Progress(), "", False
        self._done = self._total = 0

    def begin(self, text: str, total: int, progress: Progress) -> None:
        """Begin a stage after which `total` networks are built (0: unknown), shown once one is built."""
        self._progress, self._text, self._total, self._is_shown = progress, text, total, False

    def step(self, is_quick: bool) -> None:
        """Count one more network, and show it unless `is_quick`."""
        self._done += 1
        if is_quick:
            self._is_shown = False
            return
        if not self._is_shown:
            self._progress.start(self._text, self._total, self._done - 1)
            self._is_shown = True
        self._progress.step()
