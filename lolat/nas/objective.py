"""Scores of candidates: from a table, or from the user's function, each kept in a journal as it comes."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError, LolatError, arg, not_written
from lolat.io.tables import Table, read_table, to_csv
from lolat.nas.space import Space
from lolat.readers.code import attribute_of, is_function, stdout_to_stderr

# ---- What the command line names as `package.module:attribute`: spaces, and functions that score.


def find_space(spec: str) -> Space:
    """The space of a name (`lolat.nas.spaces.SPACES`) or of `package.module:callable`. InputError else."""
    from lolat.nas.spaces import SPACES

    if spec in SPACES:
        return SPACES[spec]()
    expected = f"{', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    make = find_attribute(spec, "space", expected)
    if isinstance(make, Space):
        return make
    with code_of_user(f"calling {spec!r}", f"expected {expected}", LolatError):
        space = make()
    if not isinstance(space, Space):
        raise InputError(f"{spec!r} returned a {type(space).__name__}; expected {expected}")
    return space


def find_function(spec: str) -> Callable[..., Any]:
    """The function that `package.module:callable` names. InputError else."""
    expected = "package.module:callable, or a CSV file with the columns arch,score"
    function: Callable[..., Any] = find_attribute(spec, "objective", expected)
    if not callable(function):
        raise InputError(
            f"objective {spec!r} is of type {type(function).__name__}; expected {expected}"
        )
    return function


def find_attribute(spec: str, what: str, expected: str) -> Any:
    """The object that `package.module:attribute` names.

    What the module prints goes to stderr, because stdout may be promised to JSON.
    """
    if not is_function(spec):
        raise InputError(f"no {what} {spec!r}; expected {expected}")
    with stdout_to_stderr():
        return attribute_of(spec, what, expected)


@contextlib.contextmanager
def code_of_user(what: str, expected: str, *passes: type[Exception]) -> Iterator[None]:
    """For code of the user's: what it writes goes to stderr, what it raises but `passes` is an InputError.

    `what` is done and what is `expected` are said in it.
    """
    with stdout_to_stderr():
        try:
            yield
        except KeyboardInterrupt:
            raise
        except passes:
            raise
        except BaseException as error:
            raise InputError(f"{what} failed: {brief(error)}; {expected}") from error


def brief(error: BaseException) -> str:
    """An exception with all that it says, in one line, with its type."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")


# ---- Objectives.

COLUMNS = ("arch", "score")
JOURNAL_COLUMNS = (*COLUMNS, "objective")
PARAMETERS = ("arch", "candidate", "choices")
"""What a function can ask for, by the names of its parameters."""


class Objective(Protocol):
    """Scores candidates of one space; large is good."""

    def score(self, row: np.ndarray) -> float:
        """The score of (positions,) integers; NaN where it has none."""
        ...


class TableObjective:
    """Scores from a CSV file with the columns arch and score; `rows`: (n, positions) integers."""

    def __init__(self, space: Space, path: str) -> None:
        """Read the table. InputError for what is not such a table, a wrong arch or score, with its line."""
        table = read_table(path, COLUMNS, rows="network")
        archs, scores = _scores(table)
        self.rows = _parse(space, table, archs)
        self._known: dict[bytes, float] = {}
        for index, (row, score) in enumerate(zip(self.rows, scores, strict=True)):
            if self._known.setdefault(row.tobytes(), score) != score:
                raise InputError(
                    f"{path}, line {table.line(index)}: {archs[index]} has score {score:g} here and "
                    f"{self._known[row.tobytes()]:g} further up; expected one score for each network"
                )

    def score(self, row: np.ndarray) -> float:
        """The score in the table, NaN for a candidate that it does not have."""
        return self._known.get(np.asarray(row, self.rows.dtype).tobytes(), math.nan)


class FunctionObjective:
    """Scores from a function; every score is written to a journal at once, and none is computed twice.

    `computed`: scores that the function was asked for; `reused`: those that the journal had.
    """

    def __init__(
        self, space: Space, function: Callable[..., Any], name: str, journal: str | None
    ) -> None:
        """`function` gets what its parameters are called: `arch` (text), `candidate` (integers) or
        `choices` (name of the position -> value); one of another name gets the integers. `name`: of the
        function, which the journal names. InputError for a journal of another one.
        """
        self.space, self.function, self.name = space, function, name
        self.journal = journal
        self.computed = 0
        try:
            parameters = list(inspect.signature(function).parameters)
        except (TypeError, ValueError):
            parameters = []
        self._wanted = [p for p in parameters if p in PARAMETERS]
        self._known: dict[str, float] = {}
        if journal is not None and Path(journal).exists() and os.path.getsize(journal):
            self._read(journal)
        self.reused = len(self._known)

    def _read(self, journal: str) -> None:
        data = Path(journal).read_bytes()
        whole = data.rfind(b"\n") + 1  # a killed run may have left half a line behind it
        if whole < len(data) and data.startswith(",".join(JOURNAL_COLUMNS).encode()):
            os.truncate(journal, whole)
        table = read_table(journal, COLUMNS)
        archs, scores = _scores(table)
        names = [row.get("objective", "") for row in table]
        other = next((n for n in names if n != self.name), None)
        if other is not None:
            raise InputError(
                f"{journal} has scores of {other or 'an objective without a name'}, not of {self.name}; "
                f"give another {arg('journal')}, or delete it"
            )
        _parse(self.space, table, archs)
        self._known.update(zip(archs, scores, strict=True))

    def score(self, row: np.ndarray) -> float:
        """The score of a candidate, from the journal or the function. InputError where the function
        fails or returns no number; a NaN or an infinity is NaN."""
        arch = self.space.arch(row)
        if arch not in self._known:
            self._known[arch] = self._compute(row, arch)
            self.computed += 1
            if self.journal is not None:
                self._append(self.journal, arch, self._known[arch])
        return self._known[arch]

    def _compute(self, row: np.ndarray, arch: str) -> float:
        candidate = tuple(int(c) for c in row)
        offered: dict[str, Any] = {"arch": arch, "candidate": candidate}
        if "choices" in self._wanted:
            offered["choices"] = self.space.values(row)
        named = {p: offered[p] for p in self._wanted}
        kept = f"; the scores so far are in {self.journal}" if self.journal else ""
        with code_of_user(f"objective {self.name} of {arch}", f"expected a number{kept}"):
            score = float(self.function(**named) if named else self.function(candidate))
        return score if math.isfinite(score) else math.nan

    def _append(self, path: str, arch: str, score: float) -> None:
        """Write one row through to the disk."""
        header, row = to_csv(JOURNAL_COLUMNS, [[arch, repr(score), self.name]]).split("\n", 1)
        try:
            with open(path, "a", newline="", encoding="utf-8") as file:
                file.write(row if file.tell() else f"{header}\n{row}")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise not_written(path, error, "journal") from error


def _scores(table: Table) -> tuple[list[str], list[float]]:
    """(archs, scores) of a table; "nan" is the score of a candidate that has none."""
    archs, scores = [], []
    for row in table:
        if not row["arch"]:
            raise row.wrong("arch", "an architecture")
        archs.append(row["arch"])
        scores.append(math.nan if row["score"].lower() == "nan" else row.number("score"))
    return archs, scores


def _parse(space: Space, table: Table, archs: list[str]) -> np.ndarray:
    return space.parse(archs, lambda index: f"{table.source}, line {table.line(index)}")
