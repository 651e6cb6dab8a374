"""A search space: positions with choices, and tables of counts that make any candidate's prediction a sum.

A candidate is a row of small integers, one per position. Its latency is looked up:

    space = lolat.nas.spaces.fbnet.space()
    scorer = space.scorer(lolat.load("local"), batch_size=1)
    scorer.latency(candidates)               # (n, 22) integers in, (n,) milliseconds out

The answer is that of `model.predict(space.network(candidate))`, but for the rounding of floats, and on GPUs
but for what `scorer.source` says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from lolat.device import Device
from lolat.device.predicting import as_whole
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.kernels import Kernels
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import COLUMNS
from lolat.graph.layers import Layers
from lolat.io.progress import Progress
from lolat.nas.factory import Decomposition, Finder, Networks
from lolat.nas.grid import Grid
from lolat.nas.pieces import Pieces, of_tables
from lolat.nas.sampled import scorer_for
from lolat.nas.scorer import HostScorer, Scorer, Times, compiled
from lolat.nas.tables import DEVICE, HOST, LATENCY, MORE, Part, Table, times_ms, totals
from lolat.units import shortened

WHOLE_CANDIDATES = 32  # predicted whole, for what parts do to each other
LEAST_SPREAD = 0.02  # of their times: below, a line through them says nothing


Row = Sequence[int] | np.ndarray  # the integers of one candidate


class Codec(NamedTuple):
    """`parse`: the integers of a candidate's text, InputError for another text; `write`: the inverse."""

    parse: Callable[[str], Row]
    write: Callable[[Row], str]


def dashes(sizes: Sequence[int]) -> Codec:
    """Candidates as integers below `sizes` with "-" between them: 0-3-1."""

    def parse(arch: str) -> list[int]:
        numbers = [int(n) if re.fullmatch("[0-9]{1,9}", n) else -1 for n in arch.strip().split("-")]
        if len(numbers) != len(sizes) or not all(
            0 <= n < m for n, m in zip(numbers, sizes, strict=True)
        ):
            raise InputError(
                f"{shortened(arch)!r} is no candidate; expected {len(sizes)} whole numbers with '-' "
                f"between them, from {write([0] * len(sizes))} to {write([n - 1 for n in sizes])}"
            )
        return numbers

    def write(row: Row) -> str:
        return "-".join(str(int(n)) for n in row)

    return Codec(parse, write)


@dataclass(frozen=True)
class Position:
    """One decision: its name, and the values to choose from, by their integers."""

    name: str
    choices: tuple[Any, ...]


class Space:
    """Positions with choices, and the counts of each candidate."""

    _finder: Finder | None = None
    _found: Decomposition | None = None

    def __init__(
        self,
        name: str,
        positions: Sequence[Position],
        tables: Sequence[Table],
        build: Callable[[tuple[Any, ...], str], Graph],
        codec: Codec | None = None,
        assumptions: Callable[[Space], list[Pieces]] | None = None,
    ) -> None:
        """`tables`: counts that add up to a candidate's; `build(values, name)`: the whole network from
        the values chosen; `codec`: text of candidates, integers with "-" between them if not given;
        `assumptions(space)`: the prior knowledge that a fit to a few measured networks needs. InputError
        where a position has no choices.
        """
        self.name = name
        self.positions = tuple(positions)
        self.grid = Grid(tuple(len(p.choices) for p in positions))
        self._tables = tuple(tables)
        self.codec = codec or dashes(self.grid.sizes)
        self._assumptions = assumptions
        self._build = build

    @classmethod
    def of_parts(
        cls,
        name: str,
        positions: Sequence[Position],
        parts: Sequence[Part],
        codec: Codec | None = None,
        assumptions: Callable[[Space], list[Pieces]] | None = None,
    ) -> Space:
        """A network that is a chain of parts, each of which depends on some of the positions."""
        tables = [
            part.table(
                [positions[p].choices for p in part.positions], part is parts[0], part is parts[-1]
            )
            for part in parts
        ]
        return cls(name, positions, tables, partial(chain, tuple(parts)), codec, assumptions)

    @classmethod
    def from_factory(
        cls,
        function: Callable[..., Any],
        choices: Mapping[str, Sequence[Any]],
        input_size: Any = None,
        tolerance: float = 0.0,
    ) -> Space:
        """The space of the networks that `function` returns: Keras or PyTorch networks, or Graphs.

        `choices`: of each keyword argument the values; `input_size`: see `lolat.read`; `tolerance`: how far
        the sum of a count may be off, relative. The networks are built when they are needed first: see
        `prepare`. InputError where the function does not take the choices.
        """
        positions = [Position(name, tuple(values)) for name, values in choices.items()]
        networks = Networks(function, choices, input_size)
        space = cls(networks.name, positions, (), networks.build)
        space._finder = Finder(networks, tolerance)
        return space

    def prepare(self, progress: Progress | None = None) -> Decomposition | None:
        """Build the networks that the tables need, unless that was done before.

        Returns which positions interact; None where no function makes the networks. InputError where the
        function fails, and where the networks do not decompose; it names the positions.
        """
        if self._finder is not None and self._found is None:
            self._found = self._finder.run(progress or Progress())
            self._tables = tuple(self._finder.tables.values())
        return self._found

    @property
    def decomposition(self) -> Decomposition | None:
        """See `prepare`."""
        return self.prepare()

    @property
    def tables(self) -> tuple[Table, ...]:
        """Counts that add up to a candidate's."""
        self.prepare()
        return self._tables

    @property
    def size(self) -> int:
        """How many candidates there are; an int of any size."""
        return self.grid.size

    @cached_property
    def fingerprint(self) -> str:
        """A text that tells apart spaces with other choices, or other networks of them: what was scored or
        measured of one is of other networks in another.

        Of the networks it has ACTS, INP, FLOPs and weights: where all choices are the first, the last.
        """
        choices = [(p.name, [_plain(value) for value in p.choices]) for p in self.positions]
        ends = [[0] * len(self.grid.sizes), [n - 1 for n in self.grid.sizes]]
        sums = totals([self.network(row) for row in ends], 1, self.name)[:, :4]
        text = json.dumps([choices, sums.tolist()])
        text = re.sub(" at 0x[0-9a-fA-F]+", "", text)  # where an object lies says nothing
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of the candidates with these indices; see `Grid.decode`."""
        return self.grid.decode(indices)

    def sample(self, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
        """(count, positions) candidates drawn uniformly, which may repeat."""
        return self.grid.sample(count, np.random.default_rng(seed))

    def parse(
        self, archs: Sequence[str], place: Callable[[int], str] = lambda i: f"network {i + 1}"
    ) -> np.ndarray:
        """(n, positions) integers of candidates written as text; InputError names the first wrong one."""
        rows = np.empty((len(archs), len(self.positions)), np.int64)
        for index, arch in enumerate(archs):
            try:
                rows[index] = self.codec.parse(arch)
            except InputError as error:
                raise InputError(f"{place(index)}: {error.message}") from None
        return rows.astype(self.grid.dtype)

    def arch(self, candidate: Row) -> str:
        """A candidate as text; `parse` is the inverse."""
        return self.codec.write(candidate)

    def values(self, candidate: Row) -> dict[str, Any]:
        """The choices of a candidate: name of the position -> value. InputError for no candidate."""
        row = self.grid.checked(np.asarray(candidate)[None])[0]
        return {p.name: p.choices[c] for p, c in zip(self.positions, row, strict=True)}

    def named(self, candidate: Row) -> dict[str, Any]:
        """The same as JSON has it: numbers, text, and of other values their names."""
        return {name: _plain(value) for name, value in self.values(candidate).items()}

    def assumptions(self) -> list[Pieces]:
        """The prior knowledge for a fit to measured networks: assumptions on how a device runs them."""
        if self._assumptions is None:
            return of_tables(self.name, self.tables)
        return self._assumptions(self)

    def network(self, candidate: Row, name: str = "") -> Graph:
        """A candidate's whole network as a Graph. InputError for no candidate."""
        chosen = tuple(self.values(candidate).values())
        return self._build(chosen, name or f"{self.name} {self.arch(candidate)}")

    def counts(self, candidates: Any, batch_size: int = 1) -> np.ndarray:
        """(n, COLUMNS) int64 counts of whole candidates at `batch_size`; errors as of `Grid.checked`."""
        rows = self.grid.checked(candidates)
        total = np.zeros((len(rows), len(COLUMNS)), np.int64)
        for table in self.tables:
            total += table.at(as_whole(batch_size))[tuple(rows[:, p] for p in table.positions)]
        return total

    def scorer(
        self,
        model: Device,
        batch_size: int = 1,
        predictor: str | None = None,
        progress: Progress | None = None,
    ) -> Scorer:
        """The scorer of candidates on the device of `model`; can be sent to other processes.

        Samples of the space answer where the model has some, unless a predictor or a batch size is asked
        for; else the formula of inference. InputError for an unknown predictor and a wrong batch size,
        ModelFileError where the model has neither.
        """
        return scorer_for(self, model, batch_size, predictor, progress)

    def by_formula(
        self, model: Device, batch_size: int = 1, predictor: str | None = None
    ) -> Scorer:
        """The scorer by the formula of inference, whatever samples the model has; small."""
        formula, size = model.predictor(predictor), as_whole(batch_size)
        if not isinstance(formula, Kernels):
            return compiled(self.grid, self.tables_ms(model, size, predictor)[1], formula, size)
        rows, whole = self._whole(formula, size)
        kinds = [LATENCY] if formula.host is None else [LATENCY, DEVICE, HOST, MORE]
        all_times = self._by_operation(formula, size, kinds, rows, whole)
        alone, *of_host = (compiled(self.grid, times, formula, size) for times in all_times)
        # Where a compiler joins operations across parts, the sum of latencies may be nearer.
        scorers: list[Scorer] = [alone, *([HostScorer.of(*of_host)] if of_host else [])]
        errors = [np.abs(s.latency(rows) / whole[:, LATENCY] - 1.0) for s in scorers]
        best = min(range(len(scorers)), key=lambda n: float((errors[n] ** 2).mean()))
        found, off = scorers[best], float(errors[best].max())
        if off < 1e-9:
            return found
        exact = f"{found.source}, to within {100 * off:.2g} % for {len(rows)} whole networks"
        return replace(found, source=exact)

    def tables_ms(
        self, model: Device, batch_size: int = 1, predictor: str | None = None
    ) -> tuple[Formula, list[Times]]:
        """The formula, and tables of milliseconds that add up, with its constant, to a latency.

        A formula that bends is applied to the sum. Errors as `scorer`.
        """
        formula = model.predictor(predictor)
        if isinstance(formula, Kernels):
            size = as_whole(batch_size)
            found = self._by_operation(formula, size, [LATENCY], *self._whole(formula, size))
            return formula, found[0]
        columns = [COLUMNS.index(f) for f in formula.features]
        slopes = np.asarray(formula.slopes)
        size = as_whole(batch_size)
        return formula, [(t.positions, t.at(size)[..., columns] @ slopes) for t in self.tables]

    def _whole(self, formula: Kernels, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
        """A few candidates, and (n, 4) `times_ms` of their whole networks."""
        rows = self.sample(WHOLE_CANDIDATES, seed=0)
        graphs = map(self.network, rows)
        return rows, np.array([times_ms(formula, g, batch_size, whole=True) for g in graphs])

    def _by_operation(
        self,
        formula: Kernels,
        batch_size: int,
        kinds: list[int],
        rows: np.ndarray,
        whole: np.ndarray,
    ) -> list[list[Times]]:
        """The tables of some of `times_ms`, by a formula that takes operations one by one.

        Parts change each other: a compiler joins operations of two, half precision converts between them.
        So a line through the times of whole candidates over the sums of their parts corrects the sums.
        """
        tables = [(t.positions, t.ms(formula, batch_size)) for t in self.tables]
        found = []
        for kind in kinds:
            times: list[Times] = [(positions, table[..., kind]) for positions, table in tables]
            if kind == MORE:  # parts tell nothing of it, whole networks all
                found.append(times if self._finder else [])
                continue
            sums, actual = (
                compiled(self.grid, times, formula, batch_size).latency(rows),
                whole[:, kind],
            )
            if not np.allclose(sums, actual, rtol=1e-9):
                line = np.column_stack([sums, np.ones(len(sums))]) / actual[:, None]
                slope, offset = np.linalg.lstsq(line, np.ones(len(sums)), rcond=None)[0]
                if np.ptp(sums) < LEAST_SPREAD * sums.mean() or slope <= 0.0:
                    slope, offset = 1.0, float(np.median(actual - sums))
                times = [(positions, slope * table) for positions, table in times]
                times.append(((), np.array(offset)))
            found.append(times)
        return found


def _plain(value: Any) -> Any:
    """A choice as JSON has it."""
    value = value.item() if isinstance(value, np.generic) else value
    if (
        value is None
        or isinstance(value, int | str)
        or (isinstance(value, float) and isfinite(value))
    ):
        return value
    return getattr(value, "__name__", str(value))


def chain(parts: Sequence[Part], values: Sequence[Any], name: str) -> Graph:
    """A network from parts, one behind the other, with these values, one per position."""
    builder = GraphBuilder(name)
    x: int | None = None
    for part in parts:
        chosen = [values[p] for p in part.positions]
        shape = part.shape(*chosen)
        if x is None:
            x = builder.input(shape)
        elif builder.tensors[x].shape != shape:
            raise InputError(
                f"part {part.name!r} of {name!r} says that it reads {shape}; the part before it "
                f"writes {builder.tensors[x].shape}"
            )
        x = part.write(Layers(builder, part.name), x, *chosen)
    return builder.build([] if x is None else [x])
