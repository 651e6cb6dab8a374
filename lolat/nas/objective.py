"""The objective of a search: scores of candidates, from a table or by a function.

Each score of a function is appended to a file immediately.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np

from lolat.errors import InputError, arg
from lolat.io.paths import AnyPath, shown_path
from lolat.io.progress import Progress
from lolat.io.tables import Row, Table, is_table, read_table, to_csv
from lolat.io.writing import encoded, not_written
from lolat.nas.space import Space
from lolat.nas.user_code import user_code, user_object
from lolat.readers.opened_files import Stamps, Watch, stamp
from lolat.readers.source_hashes import code_of
from lolat.units import plural

CANDIDATE_ARGUMENTS = ("arch", "candidate", "choices")
"""Possible names of a scoring function's parameter: it gets text, integers, or position -> value."""

SYNCED_EVERY_S = 1.0
REMEDY = "give another file as {}, or remove this one"
"""The remedy for a file whose scores are of another objective or space."""
SCORE_COLUMNS = ("arch", "score", "objective", "choices", "code", "files", "question")
"""Columns of a file of scores. `objective`: the function's name; `choices`: the space's `fingerprint`;
`code`: the function's `code_of`; `files`: `Stamps`, as JSON, of files read since the previous row;
`question`: the limits and devices of the search."""

_reads = Watch()
"""Records the files that the objective reads, also for earlier scores."""


class Objective:
    """Scores of a space's candidates, from a table or a function.

    `given`: a CSV table, a function, or its name; `path`: a file that stores the function's scores. `rows`:
    (n, positions) integers of a table's networks, None for a function; `known`: candidate's text -> score
    so far; `asked`: candidate's text -> question of the earlier search that scored it; `question`: the
    search's own. InputError for a wrong table, with the line, and for an unknown function.
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
        self.asked: dict[str, str] = {}
        self.question = ""
        self._synced, self._stamps = 0.0, Stamps()
        _reads.stamps.clear()
        given = os.fspath(given) if isinstance(given, os.PathLike) else given
        if isinstance(given, str) and (is_table(given) or os.path.isfile(given)):
            self.rows = self._take(space.read_table(given, ["score"], "network"))
            return
        expected = "a CSV table with the columns arch,score, or package.module:callable"
        self.function = (
            user_object(given, "objective", expected) if isinstance(given, str) else given
        )
        with user_code("reading the parameters of the objective", f"expected {expected}"):
            signature = inspect.signature(self.function)
        self._named = [p for p in signature.parameters if p in CANDIDATE_ARGUMENTS]
        if not self._named:
            raise InputError(
                f"{arg('objective')} has the parameters {signature}; expected one: name it arch (the "
                "text), candidate (a tuple of integers) or choices (a dict)",
                code="objective",
            )
        code = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        self._name = given if isinstance(given, str) else f"{code.__module__}:{code.__qualname__}"
        self._code, is_all = code_of(self.function)
        self._is_unsure = not is_all
        if path is not None and os.path.exists(path) and os.path.getsize(path):
            self._read_own(path)

    def _read_own(self, path: AnyPath) -> None:
        """Read the function's earlier scores; InputError for scores of other code or another space."""
        table = read_table(os.fspath(path), SCORE_COLUMNS)
        for row in table:  # before it is parsed: another space has other texts
            self._refuse_other(row)
        self.space.prepare(self.progress)  # may build networks for minutes
        for row in table:
            self._refuse_other_space(row)
        asked = table.cells("question")
        self.asked = dict(zip(map(self.space.arch, self._take(table)), asked, strict=True))

    def _take(self, table: Table) -> np.ndarray:
        """Read the scores of a table; return (n, positions) integers of its networks."""
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
        """Raise InputError unless the row's score is by this function; an empty `code` is not compared."""
        remedy = REMEDY.format(arg("accuracy"))
        if row["objective"] != self._name:
            why, expected = f"a score by {row['objective']}", f"scores by {self._name}"
        elif row["code"] and self._code and row["code"] != self._code:
            why = f"the source of {self._name}, or of what it imports, has changed since"
            expected = "scores by it as it is now"
            remedy += ", or empty its column code if the scores are still right"
        elif changed := _changed(row):
            why = f"{shown_path(changed)}, which {self._name} reads, has changed since"
            expected = "scores by the file as it is now"
            remedy += ", or empty its column files if the scores are still right"
        else:
            self._is_unsure |= not row["code"]
            return
        raise row.refused(f"{why}; expected {expected}: {remedy}")

    def _refuse_other_space(self, row: Row) -> None:
        """Raise InputError unless the row's score is for this space."""
        if row["choices"] != self.space.fingerprint:
            raise row.refused(
                "the choices or networks of the space have changed since; expected scores of these: "
                + REMEDY.format(arg("accuracy"))
            )

    def announce(self, total: int, known: int, others: int = 0) -> None:
        """Show that the function scores `total` candidates, except `known` ones that the file has.

        `others`: the number of `known` ones beyond the asked number, by searches for other questions.
        """
        left = max(total - known, 0)
        if known:
            unsure = f": remove it if {self._name} has changed since" if self._is_unsure else ""
            beside = (
                f"; {others:,} by searches with another limit or device are reused, not counted"
            )
            said = f"{self.path} has {plural(known, 'score')} already{beside * bool(others)}"
            said += f"{';' if others else ','} {left:,} to go{unsure}"
            self.progress.note(said)
        if left:
            self.progress.start("scoring", total, known)

    def score(self, row: np.ndarray) -> float:
        """A candidate's score, NaN if it has none; InputError if the function fails."""
        arch = self.space.arch(row)
        if self.rows is None and arch not in self.known:
            self.known[arch] = self._compute(row, arch)
            self.progress.step()
        return self.known.get(arch, math.nan)

    def _compute(self, row: np.ndarray, arch: str) -> float:
        """Call the function, and append its score to the file immediately."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.space.named(row).items())
        expected = "expected a number, or nan to skip the candidate"
        if self.path is not None and self.known:
            where = shown_path(self.path)
            expected += f"; the scores so far are in {where}, and the same search goes on from them"
            if self._code:
                expected += (
                    "; after a change of the source empty its column code, if they are right"
                )
        with _reads.during() as stamps, user_code(f"the objective of {arch} ({chosen})", expected):
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
            _append(self.path, [arch, repr(score), *by, self.question])
            if time.monotonic() - self._synced >= SYNCED_EVERY_S:
                self._sync()
        return score

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self._sync()

    def _sync(self) -> None:
        """Flush the scores to the disk, so that they survive a loss of power."""
        self._synced = time.monotonic()
        if self.rows is None and self.path is not None and os.path.exists(self.path):
            with _writing(self.path), open(self.path, "ab") as file:
                os.fsync(file.fileno())


def _changed(row: Row) -> str:
    """A file whose stamp differs from the stamp in the row; "" if all are missing or unchanged."""
    try:
        stamps: Stamps = dict(json.loads(row["files"] or "{}"))
    except ValueError:
        raise row.wrong("files", "what a search wrote there, or nothing") from None
    return next((path for path, was in stamps.items() if stamp(path) not in (was, None)), "")


def _append(path: AnyPath, cells: list[str]) -> None:
    """Append a row to a file and close it; a new file begins with the names of the columns.

    A gzip file may consist of several members (RFC 1952, section 2.2): each row is one.
    """
    with _writing(path), open(path, "ab") as file:
        text = to_csv(SCORE_COLUMNS, [cells])
        file.write(encoded(path, text.split("\n", 1)[1] if file.tell() else text))


@contextlib.contextmanager
def _writing(path: AnyPath) -> Iterator[None]:
    """Turn errors of writing the file of scores into an error that names the file."""
    try:
        yield
    except OSError as error:
        raise not_written(error, f"{arg('accuracy')} {shown_path(path)}") from error
