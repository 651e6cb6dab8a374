"""Spaces by name, and measured networks of them from a CSV table with the columns arch and latency_ms."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.io.tables import Table, read_table
from lolat.nas.fewshot.pieces import Pieces
from lolat.units import plural

SPACES = ("nasbench201", "fbnet")
ENOUGH_SAMPLES = 10  # with fewer samples a warning says that the prior speaks too


@dataclass(frozen=True)
class SpaceTerms:
    """A space of SPACES: its encoding's verbs, and the assumptions on its latencies."""

    name: str
    parse_many: Callable[..., np.ndarray]
    write: Callable[[Sequence[int] | np.ndarray], str]
    assumptions: list[Pieces]
    candidates: Callable[[np.random.Generator], np.ndarray]

    def assumption(self, name: str) -> Pieces:
        """The assumption of that name. KeyError where there is none."""
        return {pieces.name: pieces for pieces in self.assumptions}[name]


@cache
def space_terms(name: str) -> SpaceTerms:
    """The space of that name. InputError where it is none of SPACES."""
    if name not in SPACES:
        raise InputError(f"unknown space {name!r}; expected one of {', '.join(SPACES)}")
    space: Any = importlib.import_module(f"lolat.nas.spaces.{name}")
    return SpaceTerms(name, space.parse_many, space.write, space.assumptions(), space.candidates)


def space_of(path: str | Path, sampled: Collection[str], others: bool) -> SpaceTerms:
    """The space of the networks in a table, by the first of them.

    `sampled`: names of spaces that a model has samples of; `others`: whether it can tell of others too. The
    first space where the network is of none. InputError where there is no such table.
    """
    names = [*sampled, *(n for n in SPACES if others and n not in sampled)] or list(SPACES)
    table = read_table(path, ("arch",))
    first = table.columns[table.names.index("arch")][:1]
    for name in names:
        try:
            space_terms(name).parse_many(first)
        except InputError:
            continue
        return space_terms(name)
    return space_terms(names[0])


@dataclass(frozen=True)
class Samples:
    """What was measured: `rows` (samples, positions) integers, `times` (samples,) ms, all above 0.

    `archs` is how each network was written, `step` what the times were rounded to (ms, 0 where it is
    too fine to tell), `remarks` what was merged or rounded, in words.
    """

    archs: tuple[str, ...]
    rows: np.ndarray
    times: np.ndarray
    step: float
    remarks: tuple[str, ...]


def read_archs(path: str | Path, space: SpaceTerms) -> tuple[list[str], np.ndarray]:
    """(texts, (networks, positions) integers) of the column arch of a table, in its order.

    InputError names the line whose text is no network of the space. The file may be gzipped.
    """
    return _archs(read_table(path, ("arch",)), space)


def _archs(table: Table, space: SpaceTerms) -> tuple[list[str], np.ndarray]:
    archs = list(table.columns[table.names.index("arch")])

    def place(index: int) -> str:
        return f"{table.source}, line {table.line(index)} (row {index + 1})"

    return archs, space.parse_many(archs, place)


def read_samples(path: str | Path, space: SpaceTerms, one_network: bool = False) -> Samples:
    """Samples from a table with the columns arch, latency_ms; others are ignored.

    Several readings of one network all count; rows that are the same in both columns count once, and
    `remarks` says so. InputError names what is wrong and its line: a missing column, no rows, an
    unknown operation, a time that is not a number above 0, or, unless `one_network` is allowed, several
    readings that are all of one network.
    """
    table = read_table(path, ("arch", "latency_ms"), rows="measured network")
    archs, rows = _archs(table, space)
    texts = [row["latency_ms"] for row in table]
    times = np.array([row.milliseconds() for row in table])
    seen: dict[tuple[bytes, float], int] = {}
    for index, (row, time) in enumerate(zip(rows, times, strict=True)):
        seen.setdefault((row.tobytes(), float(time)), index)
    kept = list(seen.values())
    remarks = []
    if len(kept) < len(archs):
        remarks.append(
            f"{path}: {len(archs) - len(kept)} of {len(archs)} rows repeat another one, network and time; "
            "each counts once"
        )
    networks = len({row.tobytes() for row in rows})
    if networks == 1 and len(archs) > 1 and not one_network:
        raise InputError(
            f"{path}: all {len(archs)} rows are of one network, {archs[0]}, which says nothing on what "
            f"another costs; expected different networks (`lolat nas suggest {space.name}` "
            "names good ones)"
        )
    if networks < len(kept):
        remarks.append(
            f"{path}: {len(kept)} readings of {plural(networks, 'network')}; all of them count"
        )
    step = rounding([texts[index] for index in kept])
    if step == 1.0:
        remarks.append(f"{path}: whole milliseconds only; taken as rounded")
    return Samples(
        tuple(archs[index].strip() for index in kept), rows[kept], times[kept], step, tuple(remarks)
    )


def rounding(texts: Sequence[str]) -> float:
    """What times were rounded to, ms: 1, 0.1 or 0.01 where all have so few digits, else 0."""
    times = [float(t) for t in texts]
    for digits in (0, 1, 2):
        step = 10.0**-digits
        if all(t > step / 2 and math.isclose(t, round(t, digits), rel_tol=1e-9) for t in times):
            return step
    return 0.0
