"""Scores of candidates: from a table, or from the user's function, each kept in a journal as it comes."""

from __future__ import annotations

import contextlib
import csv
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lolat.errors import InputError, LolatError, not_written
from lolat.nas.space import Space

# ---- Finds what the command line names as `package.module:attribute`: spaces, and functions
# that score.


def find_space(spec: str) -> Space:
    """The space of a name (`lolat.nas.spaces.SPACES`) or of `package.module:callable`. InputError else."""
    from lolat.nas.spaces import SPACES

    if spec in SPACES:
        return SPACES[spec]()
    expected = (
        f"expected {', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    )
    if ":" not in spec:
        raise InputError(f"no space {spec!r}; {expected}")
    make = find_attribute(spec, "space", expected)
    if isinstance(make, Space):
        return make
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = make()
        except LolatError:
            raise
        except Exception as error:
            raise InputError(f"calling {spec!r} failed: {brief(error)}; {expected}") from error
    if not isinstance(found, Space):
        raise InputError(f"{spec!r} returned a {type(found).__name__}; {expected}")
    return found


def find_function(spec: str) -> Callable[..., Any]:
    """The function that `package.module:callable` names. InputError else."""
    expected = "expected package.module:callable, or a CSV file with the columns arch,score"
    found = find_attribute(spec, "objective", expected)
    if not callable(found):
        raise InputError(f"objective {spec!r} is of type {type(found).__name__}; {expected}")
    function: Callable[..., Any] = found
    return function


def find_attribute(spec: str, what: str, expected: str) -> Any:
    """The object that `package.module:attribute` names; the working directory can be imported from.

    What the module prints goes to stderr, because stdout may be promised to JSON.
    """
    module, _, attribute = spec.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise InputError(f"no {what} {spec!r}; {expected}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found: Any = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise InputError(
                f"importing {module!r} for {what} {spec!r} failed: {brief(error)}; it must be found from "
                f"{os.getcwd()} and import without error"
            ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(
                f"module {module!r} has no {attribute!r} ({what} {spec!r}); {expected}"
            )
        found = getattr(found, part)
    return found


def brief(error: BaseException) -> str:
    """An exception in one line, with its type."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


# ---- objective ----------------------------------------

COLUMNS = ("arch", "score")
JOURNAL_COLUMNS = (*COLUMNS, "objective")
GIVEN = ("arch", "candidate", "choices")
"""What a function can ask for, by the names of its parameters."""


class Objective(Protocol):
    """Scores candidates of one space; large is good."""

    def score(self, row: np.ndarray) -> float:
        """The score of (positions,) integers; NaN where it has none."""
        ...


class TableObjective:
    """Scores from a CSV file with the columns arch and score."""

    def __init__(self, space: Space, path: str) -> None:
        """Read the table. InputError for what is not such a table, a wrong arch or score, with its row."""
        self.path = path
        archs, scores, _ = read_scores(path)
        self.rows = space.parse(archs, lambda i: f"{path}, row {i + 1}")
        self.scores = np.array(scores)
        self._known: dict[bytes, float] = {}
        for number, (row, score) in enumerate(zip(self.rows, scores, strict=True), 1):
            if self._known.setdefault(row.tobytes(), score) != score:
                raise InputError(
                    f"{path}, row {number}: {archs[number - 1]} has score {score:g} here and "
                    f"{self._known[row.tobytes()]:g} further up; expected one score for each network"
                )

    def score(self, row: np.ndarray) -> float:
        """The score in the table, NaN for a candidate that it does not have."""
        return self._known.get(np.asarray(row, self.rows.dtype).tobytes(), math.nan)


class FunctionObjective:
    """Scores from a function; every score is written to a journal at once, and none is computed twice."""

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
        self._asked = _asked(function)
        self._known: dict[str, float] = {}
        if journal is not None and Path(journal).exists() and os.path.getsize(journal):
            self._read(journal)
        self.reused = len(self._known)

    def _read(self, journal: str) -> None:
        _mend(journal)
        archs, scores, names = read_scores(journal, journal=True)
        other = next((n for n in names if n != self.name), None)
        if other is not None:
            raise InputError(
                f"{journal} has scores of {other or 'an objective without a name'}, not of {self.name}; "
                "give another --journal, or delete it"
            )
        self.space.parse(archs, lambda i: f"{journal}, row {i + 1}")
        self._known.update(zip(archs, scores, strict=True))

    def score(self, row: np.ndarray) -> float:
        """The score of a candidate, from the journal or the function. InputError where the function
        fails or returns no number; a NaN or an infinity is NaN."""
        arch = self.space.arch(row)
        if arch not in self._known:
            found = self._compute(row, arch)
            self._known[arch] = found
            self.computed += 1
            if self.journal is not None:
                self._append(self.journal, arch, found)
        return self._known[arch]

    def _compute(self, row: np.ndarray, arch: str) -> float:
        known: dict[str, Callable[[], Any]] = {
            "arch": lambda: arch,
            "candidate": lambda: tuple(int(c) for c in row),
            "choices": lambda: self.space.values(row),
        }
        named = {p: known[p]() for p in self._asked}
        first = () if named else (known["candidate"](),)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                score = float(self.function(*first, **named))
        except Exception as error:
            kept = f"; the scores so far are in {self.journal}" if self.journal else ""
            raise InputError(
                f"objective {self.name} of {arch} failed: {brief(error)}; expected a number{kept}"
            ) from error
        return score if math.isfinite(score) else math.nan

    def _append(self, path: str, arch: str, score: float) -> None:
        """Write one row through to the disk."""
        try:
            with open(path, "a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if file.tell() == 0:
                    writer.writerow(JOURNAL_COLUMNS)
                writer.writerow([arch, repr(score), self.name])
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise not_written(path, error, "--journal") from error


def read_scores(path: str, journal: bool = False) -> tuple[list[str], list[float], list[str]]:
    """(archs, scores, objectives) of a CSV file with the columns arch and score; objectives are "" where
    the file has none. InputError with the row that is wrong; a `journal` may be empty.
    """
    archs, scores, names = [], [], []
    for number, row in _rows(path):
        score = _number(row.get("score"))
        arch = (row.get("arch") or "").strip()
        if not arch or score is None or math.isinf(score):
            raise InputError(
                f"{path}, row {number}: arch {arch!r}, score {row.get('score')!r}; expected an "
                "architecture and a number"
            )
        archs.append(arch)
        scores.append(score)
        names.append(row.get("objective") or "")
    if not archs and not journal:
        raise InputError(
            f"{path} has no rows; expected the columns arch,score and a row per network"
        )
    return archs, scores, names


def _mend(journal: str) -> None:
    """Take away the half line that a killed run may have left at the end of its journal."""
    data = Path(journal).read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data) and data.startswith(",".join(JOURNAL_COLUMNS).encode()):
        os.truncate(journal, whole)


def _rows(path: str) -> Iterator[tuple[int, dict[Any, Any]]]:
    """(row number from 1, columns by name) of a CSV file with the columns that scores have."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = [c.strip().lower() for c in reader.fieldnames or ()]
            if not set(COLUMNS) <= set(columns):
                raise InputError(
                    f"{path} has the columns {', '.join(columns) or 'of an empty file'}; expected "
                    "arch,score"
                )
            reader.fieldnames = columns
            yield from enumerate(reader, 1)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; expected a CSV file with the columns "
            "arch,score"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} is no CSV file in UTF-8 ({error}); expected arch,score"
        ) from error


def _number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _asked(function: Callable[..., Any]) -> Sequence[str]:
    """Which of GIVEN the parameters of a function are named after."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()
    return [p for p in parameters if p in GIVEN]
