"""Measured networks of a space from a CSV table with the columns arch and latency_ms."""

from __future__ import annotations

import csv
import gzip
import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.nas.fewshot.terms import Pieces

# ---- Search spaces by name: how their networks are written, and what their latencies are made
# of.

SPACES = ("nasbench201", "fbnet")


@dataclass(frozen=True)
class SpaceTerms:
    """A space of SPACES: its encoding's verbs, its shape, and the assumptions on its latencies."""

    name: str
    positions: int
    choices: int
    parse_many: Callable[..., np.ndarray]
    write: Callable[[Sequence[int] | np.ndarray], str]
    assumptions: list[Pieces]
    candidates: Callable[[np.random.Generator], np.ndarray]

    def assumption(self, name: str) -> Pieces:
        """The assumption of that name. KeyError where there is none."""
        return {pieces.name: pieces for pieces in self.assumptions}[name]


def space_terms(name: str) -> SpaceTerms:
    """The space of that name. InputError where it is none of SPACES."""
    if name not in SPACES:
        raise InputError(f"unknown space {name!r}; expected one of {', '.join(SPACES)}")
    encoding: Any = importlib.import_module(f"lolat.nas.spaces.{name}")
    terms: Any = importlib.import_module(f"lolat.nas.fewshot.{name}")
    return SpaceTerms(
        name,
        len(encoding.POSITIONS),
        len(encoding.CHOICES),
        encoding.parse_many,
        encoding.write,
        terms.assumptions(),
        terms.candidates,
    )


# ---- samples ----------------------------------------

ENOUGH = 10  # with fewer samples a warning says that the prior speaks too
_SHORTEST, _LONGEST = 1e-9, 1e12  # ms: nothing that runs takes less or more
_REQUIRED = ("arch", "latency_ms")


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

    InputError names the line whose text is no network of the space. `path` may end in .gz.
    """
    lines, cells = _table(path, ("arch",))
    archs = [row[0] for row in cells]
    return archs, space.parse_many(archs, _place(path, lines))


def read_samples(path: str | Path, space: SpaceTerms, one_network: bool = False) -> Samples:
    """Samples from a table with the columns arch, latency_ms; others are ignored.

    Several readings of one network all count; rows that are the same in both columns count once, and
    `remarks` says so. InputError names what is wrong and its line: a missing column, no rows, an
    unknown operation, a time that is not a number above 0, or, unless `one_network` is allowed, several
    readings that are all of one network.
    """
    lines, cells = _table(path, _REQUIRED)
    if not cells:
        raise InputError(f"{path} has no rows; expected one per measured network")
    archs = [row[0] for row in cells]
    rows = space.parse_many(archs, _place(path, lines))
    times = np.array([_time(row[1], path, line) for row, line in zip(cells, lines, strict=True)])
    seen: dict[tuple[bytes, float], int] = {}
    for index, (row, time) in enumerate(zip(rows, times, strict=True)):
        seen.setdefault((row.tobytes(), float(time)), index)
    kept = list(seen.values())
    remarks = []
    if len(kept) < len(cells):
        remarks.append(
            f"{path}: {len(cells) - len(kept)} of {len(cells)} rows repeat another one, network and "
            "time; each counts once"
        )
    networks = len({row.tobytes() for row in rows})
    if networks == 1 and len(cells) > 1 and not one_network:
        raise InputError(
            f"{path}: all {len(cells)} rows are of one network, {archs[0]}, which says nothing on what "
            f"another costs; expected different networks (`lolat nas suggest --space {space.name}` "
            "names good ones)"
        )
    if networks < len(kept):
        remarks.append(
            f"{path}: {len(kept)} readings of {networks if networks > 1 else 'one'} "
            f"network{'s' * (networks > 1)}; all of them count"
        )
    step = rounding([cells[index][1] for index in kept])
    if step == 1.0:
        remarks.append(f"{path}: whole milliseconds only; taken as rounded")
    found = tuple(archs[index].strip() for index in kept)
    return Samples(found, rows[kept], times[kept], step, tuple(remarks))


def rounding(texts: Sequence[str]) -> float:
    """What times were rounded to, ms: 1, 0.1 or 0.01 where all have so few digits, else 0."""
    times = [float(t) for t in texts]
    for digits in (0, 1, 2):
        step = 10.0**-digits
        if all(t > step / 2 and math.isclose(t, round(t, digits), rel_tol=1e-9) for t in times):
            return step
    return 0.0


def _table(path: str | Path, columns: Sequence[str]) -> tuple[list[int], list[list[str]]]:
    """(line numbers, cells of the columns asked for) of a CSV table, plain or .gz."""
    try:
        opened = gzip.open if str(path).lower().endswith(".gz") else open
        with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [cell.strip().lower() for cell in next(reader, [])]
            missing = [c for c in columns if c not in header]
            if missing:
                raise InputError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                    f"expected a first line with {','.join(columns)}"
                )
            places = [header.index(c) for c in columns]
            lines, cells = [], []
            for row in reader:
                if any(cell.strip() for cell in row):
                    lines.append(reader.line_num)
                    cells.append([row[p] if p < len(row) else "" for p in places])
    except (UnicodeDecodeError, csv.Error, EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is not a CSV table in UTF-8: {error}") from error
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; expected a CSV table"
        ) from error
    return lines, cells


def _place(path: str | Path, lines: Sequence[int]) -> Callable[[int], str]:
    """How the message on a network says where it stands."""
    return lambda index: f"{path}, line {lines[index]} (row {index + 1})"


def _time(text: str, path: str | Path, line: int) -> float:
    """A time in milliseconds above 0, or InputError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _SHORTEST <= value <= _LONGEST:
        given = f"is {text!r}" if text.strip() else "is empty"
        raise InputError(
            f"{path}, line {line}: latency_ms {given}; expected a time above 0, in milliseconds, "
            f"from {_SHORTEST:g} to {_LONGEST:g}"
        )
    return value
