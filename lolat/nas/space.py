"""A search space: positions with choices, and tables of counts that make any candidate's prediction a sum.

A candidate is a row of small integers, one per position. What it takes is looked up:

    space = lolat.nas.spaces.fbnet.space()
    scorer = space.scorer(lolat.load("local"), batch_size=1)
    scorer.latency(candidates)               # (n, 22) integers in, (n,) milliseconds out

The answer is that of `model.predict(space.network(candidate))`, but for the rounding of floats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError, LolatError
from lolat.fitting.intervals import COVERAGE
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import COLUMNS
from lolat.graph.layers import Layers
from lolat.model import Model
from lolat.model.file import lacks
from lolat.model.prediction import Prediction, as_batch_size, operations_ms
from lolat.nas.fewshot import NasModel, from_document
from lolat.nas.scorer import Bounds, Grid, SampledScorer, Scorer, Times, compiled
from lolat.nas.tables import BorderTable, Decomposition, Finder, Networks, Part, Table
from lolat.readers import read
from lolat.units import shortened

KEPT_BATCH_SIZES = 8
MOST_NETWORKS = 3000  # that a factory is asked for
JUDGED = 32  # whole candidates that say what parts do to each other
LEAST_SPREAD = 0.02  # of their times: below, a line through them says nothing
Row = Sequence[int] | np.ndarray  # the integers of one candidate


@dataclass(frozen=True)
class Position:
    """Something that is chosen: its name, and the values that there are, by their integers."""

    name: str
    choices: tuple[Any, ...]


class Codec(Protocol):
    """How candidates are written as text: the modules of `lolat.nas.spaces` are such."""

    def parse_many(self, archs: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
        """(n, positions) integers of n texts; InputError names the first wrong one as `place(index)`."""
        ...

    def write(self, row: Row) -> str:
        """The text of one candidate."""
        ...


class Space:
    """Positions with choices, and how a candidate's counts come about.

    `decomposition`: how the positions that interact were found, where a function makes the networks.
    """

    name: str
    decomposition: Decomposition | None = None

    def __init__(
        self,
        name: str,
        positions: Sequence[Position],
        tables: Sequence[Table],
        build: Callable[[tuple[Any, ...], str], Graph],
        codec: Codec | None = None,
    ) -> None:
        """`tables`: counts that add up to a candidate's; `build(values, name)`: the whole network from
        the values chosen; `codec`: how candidates are written, integers with "-" between them if not
        given. InputError where a position has no choices.
        """
        self.name = name
        self.positions = tuple(positions)
        self.grid = Grid(tuple(len(p.choices) for p in positions))
        self.tables = tuple(tables)
        self.codec: Codec = Dashes(self.grid) if codec is None else codec
        self._build = build
        self._kept: dict[int, list[np.ndarray]] = {}

    @classmethod
    def of_parts(
        cls,
        name: str,
        positions: Sequence[Position],
        parts: Sequence[Part],
        codec: Codec | None = None,
    ) -> Space:
        """A network that is a chain of parts, each of which depends on some of the positions."""
        choices = [tuple(positions[p].choices for p in part.positions) for part in parts]
        tables = [part.table(c) for part, c in zip(parts, choices, strict=True)]
        if parts:
            tables.append(BorderTable.of(parts[0], choices[0], output=False))
            tables.append(BorderTable.of(parts[-1], choices[-1], output=True))
        return cls(name, positions, tables, partial(chain, tuple(parts)), codec)

    @classmethod
    def from_factory(
        cls,
        function: Callable[..., Any],
        choices: Sequence[Sequence[Any]] | Mapping[str, Sequence[Any]],
        name: str = "",
        input_size: Any = None,
        tolerance: float = 0.0,
        most_networks: int = MOST_NETWORKS,
        seed: int = 0,
        done: Callable[[], object] = lambda: None,
    ) -> Space:
        """The space of what `function` returns from its choices: a Keras or PyTorch network, or a Graph.

        `choices`: the values of each position in order, given by position, or a dict of them, given by
        name; `input_size`: see `lolat.read`; `tolerance`: how far the sum of a count may be off, relative;
        `most_networks`: that may be built; `done` is called after each. InputError where the function
        fails, and where the networks do not decompose, with the positions that are to blame.
        """
        if named := isinstance(choices, Mapping):
            names, lists = list(choices), list(choices.values())
        else:
            names, lists = [f"position {i}" for i in range(len(choices))], list(choices)
        values = [tuple(given) for given in lists]
        if not values or not all(values):
            raise InputError(
                f"choices {choices!r}: expected at least one position, each with choices"
            )
        title = name or getattr(function, "__name__", "factory")

        def make(chosen: Sequence[Any], title: str) -> Graph:
            by_name = dict(zip(names, chosen, strict=True))
            arguments = by_name if named else tuple(chosen)
            try:
                network = function(**by_name) if named else function(*chosen)
            except Exception as error:
                raise InputError(
                    f"{title} of {arguments} failed: {type(error).__name__}: {error}; expected a network "
                    "for every combination of choices"
                ) from error
            try:
                return read(network, input_size)
            except LolatError as error:
                raise InputError(f"{title} of {arguments}: {error.message}") from error

        finder = Finder(Networks(make, values, title, most_networks, done), names, tolerance)
        decomposition = finder.run(np.random.default_rng(seed))
        positions = [Position(n, v) for n, v in zip(names, values, strict=True)]
        space = cls(title, positions, list(finder.tables.values()), make)
        space.decomposition = decomposition
        return space

    @property
    def size(self) -> int:
        """How many candidates there are; an int of any size."""
        return self.grid.size

    def decode(self, indices: Any) -> np.ndarray:
        """(n, positions) integers of the candidates with these indices; see `Grid.decode`."""
        return self.grid.decode(indices)

    def encode(self, candidates: Any) -> np.ndarray:
        """(n,) int64 indices of (n, positions) integers; see `Grid.encode`."""
        return self.grid.encode(candidates)

    def sample(self, count: int, seed: int | np.random.Generator = 0) -> np.ndarray:
        """(count, positions) candidates drawn uniformly, which may repeat."""
        return self.grid.sample(count, np.random.default_rng(seed))

    def parse(
        self, archs: Sequence[str], place: Callable[[int], str] = lambda i: f"network {i + 1}"
    ) -> np.ndarray:
        """(n, positions) integers of candidates written as text; InputError names the first wrong one."""
        return self.codec.parse_many(archs, place)

    def arch(self, candidate: Row) -> str:
        """A candidate as text; `parse` is the inverse."""
        return self.codec.write(candidate)

    def values(self, candidate: Row) -> dict[str, Any]:
        """What a candidate has chosen: name of the position -> value. InputError for no candidate."""
        row = self.grid.checked(np.asarray(candidate)[None])[0]
        return {p.name: p.choices[c] for p, c in zip(self.positions, row, strict=True)}

    def row(self, values: Mapping[str, Any]) -> np.ndarray:
        """(positions,) integers of the candidate with these values; other names are left out.

        The inverse of `values`. A position with one choice needs none. InputError for a position without a
        value, or with a value that it does not have.
        """
        row = []
        for position in self.positions:
            choices = position.choices
            if position.name not in values and len(choices) == 1:
                row.append(0)
                continue
            value = values.get(position.name)
            # 1 is no True, though equal.
            same = [
                i for i, choice in enumerate(choices)
                if bool(choice == value) and isinstance(choice, bool) == isinstance(value, bool)
            ]  # fmt: skip
            if position.name not in values or not same:
                given = repr(value) if position.name in values else "not given"
                some = ", ".join(map(repr, choices[:12])) + ", ..." * (len(choices) > 12)
                raise InputError(
                    f"{position.name!r} of space {self.name!r} is {given}; expected one of {some}"
                )
            row.append(same[0])
        return np.array(row, np.int64)

    def network(self, candidate: Row, name: str = "") -> Graph:
        """A candidate's whole network as a Graph. InputError for no candidate."""
        chosen = tuple(self.values(candidate).values())
        return self._build(chosen, name or f"{self.name} {self.arch(candidate)}")

    def table_counts(self, batch_size: int = 1) -> list[np.ndarray]:
        """Each table at `batch_size`; kept for some batch sizes."""
        batch_size = as_batch_size(batch_size)
        if batch_size not in self._kept:
            if len(self._kept) >= KEPT_BATCH_SIZES:
                self._kept.pop(next(iter(self._kept)))
            self._kept[batch_size] = [table.at(batch_size) for table in self.tables]
        return self._kept[batch_size]

    def counts(self, candidates: Any, batch_size: int = 1) -> np.ndarray:
        """(n, COLUMNS) int64 counts of whole candidates at `batch_size`, exact. InputError as `checked`."""
        rows = self.grid.checked(candidates)
        total = np.zeros((len(rows), len(COLUMNS)), np.int64)
        for table, counts in zip(self.tables, self.table_counts(batch_size), strict=True):
            total += counts[tuple(rows[:, p] for p in table.positions)]
        return total

    def scorer(self, model: Model, batch_size: int = 1, predictor: str | None = None) -> Scorer:
        """What scores candidates on the device of `model`; small, and can be sent to other processes.

        InputError for an unknown predictor and a batch size that is too large or none, ModelFileError where
        the model knows no latencies of inference.
        """
        formula, times = self.tables_ms(model, batch_size, predictor)
        return compiled(self.grid, times, formula, batch_size)

    def tables_ms(
        self, model: Model, batch_size: int = 1, predictor: str | None = None
    ) -> tuple[Formula, list[Times]]:
        """The formula, and tables of milliseconds that with its constant add up to what it bends.

        Errors as `scorer`.
        """
        formula = model.predictor(predictor)
        if isinstance(formula, Kernels):
            return formula, self._by_operation(formula, as_batch_size(batch_size))
        columns = [COLUMNS.index(f) for f in formula.features]
        slopes = np.asarray(formula.slopes)
        counts = self.table_counts(batch_size)
        return formula, [
            (table.positions, of_table[..., columns] @ slopes)
            for table, of_table in zip(self.tables, counts, strict=True)
        ]

    def _by_operation(self, formula: Kernels, batch_size: int) -> list[Times]:
        """The same by a formula that takes operations one by one, and adds them up.

        What parts do to each other (a compiler joins operations of two, half precision converts between
        them) a few whole candidates tell: their times over the sum of their parts', a line.
        """
        times: list[Times] = [(t.positions, t.ms(formula, batch_size)) for t in self.tables]
        rows = self.sample(JUDGED, seed=0)
        sums = compiled(self.grid, times, formula, batch_size).latency(rows)
        whole = np.array([operations_ms(formula, self.network(row), batch_size) for row in rows])
        if np.allclose(sums, whole, rtol=1e-9):
            return times
        line = np.column_stack([sums, np.ones(len(sums))]) / whole[:, None]
        slope, more = np.linalg.lstsq(line, np.ones(len(sums)), rcond=None)[0]
        if np.ptp(sums) < LEAST_SPREAD * sums.mean() or slope <= 0.0:
            slope, more = float(np.median(whole / sums)), 0.0
        return [*((positions, slope * table) for positions, table in times), ((), np.array(more))]


def scorer_for(
    space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
) -> Scorer:
    """What scores candidates on the device of `model`.

    Where the model has samples of the space they answer, unless a predictor or a batch size is asked for;
    else the formula of inference. Errors as of `Space.scorer`; ModelFileError where it knows neither,
    InputError where its samples are of another space of the same name.
    """
    sampled = space.name in model.document.get("spaces", {})
    if sampled and predictor is None and batch_size == 1:
        fitted = from_document(model.document, model.source, space.name)
        if not _has_samples_of(space, fitted):
            raise InputError(
                f"{model.source} has samples of LoLat's space {space.name}; this space of the same name "
                "has other networks: give it another name, or name a predictor"
            )
        return SampledScorer(grid=space.grid, batch_size=1, model=fitted)
    if not sampled and not model.predictors:
        raise lacks(model.document, model.source, space.name)
    return space.scorer(model, batch_size, predictor)


def _has_samples_of(space: Space, fitted: NasModel) -> bool:
    """Whether the networks that were measured are those that the space has in their place."""
    rows = fitted.terms.parse_many(fitted.archs)
    try:
        return np.array_equal(space.counts(rows), fitted.terms.counts(rows))
    except InputError:  # other positions
        return False


def bounds_of(
    scorer: Scorer, space: Space, model: Model, candidates: Any, coverage: float | None = None
) -> tuple[Prediction | Bounds, ...]:
    """How sure the latencies of (n, positions) candidates are, as `lolat.Prediction` says it."""
    if isinstance(scorer, SampledScorer):
        return scorer.bounds(candidates, COVERAGE if coverage is None else coverage)
    asked = scorer.batch_size, scorer.predictor, coverage
    return tuple(model.predict(space.network(row), *asked) for row in candidates)


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


@dataclass(frozen=True)
class Dashes:
    """Candidates as integers with "-" between them: 0-3-1."""

    grid: Grid

    def parse_many(self, archs: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
        """(n, positions) integers; InputError names the first wrong text as `place(index)`."""
        rows = parse_each(self._parse, archs, place, len(self.grid.sizes), np.int64)
        return self.grid.checked(rows, place).astype(self.grid.dtype)

    def _parse(self, arch: str) -> list[int]:
        numbers, count = arch.strip().split("-"), len(self.grid.sizes)
        if len(numbers) != count or not all(re.fullmatch("[0-9]{1,9}", n) for n in numbers):
            raise InputError(
                f"{shortened(arch)!r} is no candidate; expected {count} whole numbers with '-' between "
                f"them, such as {self.write([0] * count)}"
            )
        return [int(n) for n in numbers]

    def write(self, row: Row) -> str:
        """The text of one candidate."""
        return "-".join(str(int(n)) for n in row)


def parse_each(
    parse: Callable[[str], Any],
    archs: Sequence[str],
    place: Callable[[int], str],
    positions: int,
    dtype: Any = np.int8,
) -> np.ndarray:
    """(n, positions) integers of texts parsed one by one; InputError names the first wrong one."""
    rows = np.empty((len(archs), positions), dtype)
    for index, arch in enumerate(archs):
        try:
            rows[index] = parse(arch)
        except InputError as error:
            raise InputError(f"{place(index)}: {error.message}") from None
    return rows
