"""Finds the user's spaces and functions by name, runs them, and keeps scores in a file."""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from lolat.device import Device
from lolat.errors import InputError, LolatError, arg
from lolat.io.forms import is_function
from lolat.io.paths import AnyPath, shown_path
from lolat.io.progress import Progress, quietly
from lolat.io.tables import Row, is_table, read_table, to_csv
from lolat.io.writing import encoded, not_written
from lolat.nas.space import Space
from lolat.nas.spaces import SPACES
from lolat.readers.code import attribute_of, brief, meant_here, missing_arguments
from lolat.readers.opened import Stamps, Watch, stamp
from lolat.readers.sources import code_of
from lolat.units import plural, user_line


def find_space(spec: str | Space) -> Space:
    """Return the space of a name in `SPACES`, or of `package.module:callable`; InputError without one."""
    if isinstance(spec, Space):
        return spec
    if spec in SPACES:
        return SPACES[spec]()
    expected = f"{', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    space = _attribute(spec, "space", expected)
    if not isinstance(space, Space):
        if callable(space) and (missing := missing_arguments(space)):
            raise InputError(
                f"{spec!r} takes {', '.join(missing)}, as the function of one candidate does; "
                "expected one without arguments: def space(): return lolat.nas.Space.from_factory("
                f"{space.__name__}, {{{', '.join(f'{name!r}: (...)' for name in missing)}}})"
            )
        with user_code(f"calling {spec!r}", f"expected {expected}"):
            space = space()
    if not isinstance(space, Space):
        raise InputError(f"{spec!r} returned a {type(space).__name__}; expected {expected}")
    if space.decomposer:  # its name is that of the function of one candidate
        space.label = space.decomposer.networks.name = spec
    return space


def check_order(space: str | Space, model: AnyPath | Device) -> None:
    """InputError if the space and the device are given in each other's place, or several devices."""
    if not isinstance(model, str):
        return
    if "," in model and not os.path.exists(model):
        raise InputError(
            f"{model}: expected one device; ask once for each (nas search takes several)"
        )
    if isinstance(space, Space):
        return
    if looks_like_space(model) and not looks_like_space(space):
        raise InputError(
            f"{model} looks like a space, which comes before the device; expected {model} {space}"
        )


def looks_like_space(name: str) -> bool:
    """Return whether this is a known space, or may be a function that returns one."""
    return name in SPACES or is_function(name)


def opened(space: str | Space, model: AnyPath | Device) -> tuple[Space, Device]:
    """Return a space as of `find_space`, and the device that a file or the name of a profile has."""
    check_order(space, model)
    device = model if isinstance(model, Device) else Device.load(model)
    return find_space(space), device


def _attribute(spec: str, argument: str, expected: str) -> Any:
    """Return the object that `package.module:attribute` names; InputError if there is none."""
    if not is_function(spec):
        raise InputError(f"no {argument} {spec!r}; {meant_here(spec) or f'expected {expected}'}")
    with quietly():
        return attribute_of(spec, argument, expected)


@contextlib.contextmanager
def user_code(action: str, expected: str) -> Iterator[None]:
    """Run the user's code: its prints go to stderr, its exceptions become an InputError."""
    with quietly():
        try:
            yield
        except LolatError:
            raise
        except Exception as error:
            where = user_line(error)
            raise InputError(f"{action} failed: {brief(error)}{where}; {expected}") from error


OF_A_CANDIDATE = ("arch", "candidate", "choices")
"""Names of a function's parameter: the text, the integers, or the values by position."""

# ---- The scores of an objective: from a table, or by a function, each added to a file at once.

SYNCED_EVERY_S = 1.0
REMEDY = "give another file as {}, or remove this one"
"""The remedy for a file whose scores are not those of the question."""
SCORES = ("arch", "score")
SCORE_COLUMNS = (*SCORES, "objective", "choices", "code", "files")
"""Columns of a file of scores: the function's name, the space's `fingerprint`, the function's `code_of`,
the `Stamps` of files that it has read since the row before, as JSON."""

_reads = Watch()
"""The files that the objective reads, also those that it read for an earlier score."""


class Objective:
    """Scores of a space's candidates, from a table or a function.

    `given`: a CSV table, a function, or its name; `path`: a file that keeps the function's scores. `rows`:
    (n, positions) integers of a table's networks, None for a function; `known`: the scores so far, by the
    candidate's text. InputError for a wrong table, with its line, and for an unknown function.
    """

    def __init__(
        self,
        space: Space,
        given: AnyPath | Callable[..., Any],
        path: AnyPath | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.space, self.path, self.progress = space, path, progress or Progress()
        self.rows: np.ndarray | None = None
        self.known: dict[str, float] = {}
        self._synced, self._stamps = 0.0, Stamps()
        _reads.stamps.clear()
        given = os.fspath(given) if isinstance(given, os.PathLike) else given
        if isinstance(given, str) and (is_table(given) or os.path.isfile(given)):
            self.rows = self._read(given, SCORES, rows="network")
            return
        expected = "a CSV table with the columns arch,score, or package.module:callable"
        self.function = (
            _attribute(given, "objective", expected) if isinstance(given, str) else given
        )
        with user_code("reading the parameters of the objective", f"expected {expected}"):
            signature = inspect.signature(self.function)
        self._named = [p for p in signature.parameters if p in OF_A_CANDIDATE]
        if not self._named:
            raise InputError(
                f"{arg('objective')} has the parameters {signature}; expected one: name it arch (the "
                "text), candidate (a tuple of integers) or choices (a dict)"
            )
        of = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        self._name = given if isinstance(given, str) else f"{of.__module__}:{of.__qualname__}"
        self._code = code_of(self.function)
        self._is_unsure = not self._code
        if path is not None and os.path.exists(path) and os.path.getsize(path):
            self._read(path, SCORE_COLUMNS)

    def _read(self, path: AnyPath, columns: Sequence[str], rows: str | None = None) -> np.ndarray:
        """Read a table of scores; return (n, positions) integers of its networks."""
        if rows is None:
            table = read_table(os.fspath(path), columns, rows=rows)
            for row in table:  # before it is parsed: another space has other texts
                self._refuse_other(row)
            self.space.prepare(self.progress)  # may build networks for minutes
            for row in table:
                self._refuse_other_space(row)
        else:
            table = self.space.read_table(path, columns[1:], rows)
        networks = self.space.parse_table(table)
        for network, row in zip(networks, table, strict=True):
            score = math.nan if row["score"].lower() == "nan" else row.number("score")
            known = self.known.setdefault(self.space.arch(network), score)
            if known != score and not (math.isnan(known) and math.isnan(score)):
                raise row.refused(
                    f"{row['arch']} has another score further up; expected one for each network"
                )
        table.say_unread(self.progress.note)
        return networks

    def _refuse_other(self, row: Row) -> None:
        """Raise InputError unless the score is by this function; no `code` may be any."""
        remedy = REMEDY.format(arg("accuracy"))
        if row["objective"] != self._name:
            of, expected = f"a score by {row['objective']}", f"scores by {self._name}"
        elif row["code"] and self._code and row["code"] != self._code:
            of = f"the source of {self._name}, or of what it imports, has changed since"
            expected = "scores by it as it is now"
            remedy += ", or empty its column code if the scores are still right"
        elif changed := _changed(row):
            of = f"{shown_path(changed)}, which {self._name} reads, has changed since"
            expected = "scores by the file as it is now"
            remedy += ", or empty its column files if the scores are still right"
        else:
            self._is_unsure |= not row["code"]
            return
        raise row.refused(f"{of}; expected {expected}: {remedy}")

    def _refuse_other_space(self, row: Row) -> None:
        """Raise InputError unless the score is of this space."""
        if row["choices"] != self.space.fingerprint:
            raise row.refused(
                "the choices or networks of the space have changed since; expected scores of these: "
                + REMEDY.format(arg("accuracy"))
            )

    def announce(self, total: int, known: int) -> None:
        """Show that the function scores the rest of `total` candidates, `known` of which the file has."""
        left = max(total - known, 0)
        if known:
            unsure = f": remove it if {self._name} has changed since" if self._is_unsure else ""
            said = f"{self.path} has {plural(known, 'score')} already, {left:,} to go{unsure}"
            self.progress.note(said)
        if left:
            self.progress.start("scoring", total, known)

    def score(self, row: np.ndarray) -> float:
        """Return a candidate's score, NaN without one; InputError if the function fails."""
        arch = self.space.arch(row)
        if self.rows is None and arch not in self.known:
            self.known[arch] = self._compute(row, arch)
            self.progress.step()
        return self.known.get(arch, math.nan)

    def _compute(self, row: np.ndarray, arch: str) -> float:
        """Call the function, and write its score to the file at once."""
        of = ", ".join(f"{name}={value}" for name, value in self.space.named(row).items())
        kept = (
            ""
            if self.path is None or not self.known
            else (
                f"; the scores so far are in {shown_path(self.path)}, and the same search goes on from them"
            )
        )
        expected = f"expected a number, or nan to skip the candidate{kept}"
        with _reads.during() as stamps, user_code(f"the objective of {arch} ({of})", expected):
            values: dict[str, Any] = {"arch": arch, "candidate": tuple(row.tolist())}
            values["choices"] = self.space.values(row)
            found = self.function(**{p: values[p] for p in self._named})
            if found is None:
                raise TypeError("it returned None: does it lack a `return`?")
            score = float(found)
        score = score if math.isfinite(score) else math.nan
        if self.path is not None:
            stamps.pop(os.path.abspath(self.path), None)
            read = {f: found for f, found in stamps.items() if found != self._stamps.get(f)}
            self._stamps |= read
            by = [self._name, self.space.fingerprint, self._code, json.dumps(read) if read else ""]
            _append(self.path, [arch, repr(score), *by])
            if time.monotonic() - self._synced >= SYNCED_EVERY_S:
                self._sync()
        return score

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._sync()

    def _sync(self) -> None:
        """Let the disk have the scores, so that they outlast a loss of power."""
        self._synced = time.monotonic()
        if self.rows is None and self.path is not None and os.path.exists(self.path):
            with _writing(self.path), open(self.path, "ab") as file:
                os.fsync(file.fileno())


def _changed(row: Row) -> str:
    """Return a file that has another stamp than the row has for it; "" if all are gone or the same."""
    try:
        stamps: Stamps = dict(json.loads(row["files"] or "{}"))
    except ValueError:
        raise row.wrong("files", "what a search wrote there, or nothing") from None
    return next((path for path, was in stamps.items() if stamp(path) not in (was, None)), "")


def _append(path: AnyPath, cells: list[str]) -> None:
    """Append a row, which outlasts this process; a new file begins with the names of the columns.

    A compressed file may consist of several parts (RFC 1952, section 2.2): each row is one.
    """
    with _writing(path), open(path, "ab") as file:
        text = to_csv(SCORE_COLUMNS, [cells])
        file.write(encoded(path, text.split("\n", 1)[1] if file.tell() else text))


@contextlib.contextmanager
def _writing(path: AnyPath) -> Iterator[None]:
    """Name the file of scores in the error if it cannot be written."""
    try:
        yield
    except OSError as error:
        raise not_written(error, f"{arg('accuracy')} {shown_path(path)}") from error
