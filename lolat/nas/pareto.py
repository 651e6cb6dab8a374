"""The front of latency and score in a space: latency from a model, the score from the user.

The score is expensive. So it is asked for only of candidates within the time, and never twice.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device import Device, load
from lolat.device.intervals import COVERAGE
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.io.progress import Progress
from lolat.io.results import Result
from lolat.io.tables import is_table, read_table, to_csv
from lolat.io.writing import AnyPath, check_file, not_written, shown_path
from lolat.nas.evolution import Archive, evolve, fastest, front
from lolat.nas.fewshot import read_archs
from lolat.nas.sampled import NasModel
from lolat.nas.scorer import Scorer
from lolat.nas.space import Space
from lolat.nas.user_code import call_with, find_function, find_space, parameters, user_code

CANDIDATES = 200
EXHAUSTIVE, EVOLUTIONARY = "exhaustive", "evolutionary"


@dataclass(frozen=True)
class FrontCandidate:
    """A network of the front: its choices as integers and by name, its latency, its score.

    `interval_ms` holds the latency with probability `coverage`; `in_domain`: by samples whether one is as
    fast and one as slow.
    """

    arch: str
    candidate: tuple[int, ...]
    choices: dict[str, Any]
    latency_ms: float
    score: float
    interval_ms: tuple[float, float] | None
    coverage: float | None
    in_domain: bool | None


@dataclass(frozen=True, repr=False)
class SearchResult(Result):
    """The front of a space of `size` candidates, by latency; `source` of the latencies in words.

    `scored`, `unscored`: candidates with a score and without one; `fastest_ms`: of all candidates, where
    none is within the time (exit code 3) and the front is empty.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    method: str
    max_ms: float | None
    scored: int
    unscored: int
    front: tuple[FrontCandidate, ...]
    fastest_ms: float | UnsetType = UNSET

    def words(self) -> str:
        """How many were scored, and how many are on the front."""
        budget = "" if self.max_ms is None else f" within {self.max_ms:g} ms"
        without = f" ({self.unscored} more have no score)" if self.unscored else ""
        size = f"{self.size:,}" if self.size < 10**7 else f"{self.size:.2g}"
        return (
            f"{self.space}: {size} candidates, {self.method} search: {self.scored:,} scored{budget}"
            f"{without}, {len(self.front)} on the front"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network of the front: arch, latency_ms, low_ms, high_ms, in_domain, score, and
        its choice at each position."""
        rows = []
        for c in self.front:
            low, high = c.interval_ms or (None, None)
            bounds = {"low_ms": low, "high_ms": high, "in_domain": c.in_domain}
            row = {"arch": c.arch, "latency_ms": c.latency_ms, **bounds, "score": c.score}
            rows.append(row | c.choices | row)  # a position of such a name gives way
        return rows


def search(
    space: str | Space,
    model: AnyPath | Device,
    objective: AnyPath | Callable[..., Any],
    *,
    max_ms: float | None = None,
    candidates: int | None = None,
    seed: int | None = None,
    lower_is_better: bool = False,
    batch_size: int = 1,
    predictor: str | None = None,
    accuracy: AnyPath | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """The fastest candidates of a space at each score, and the best at each latency, on a device.

    `space`: a `Space`, a name (nasbench201, fbnet, fbnet-cifar, ofa) or "package.module:callable".
    `model`: a `Model`, or what `lolat.load` takes. `objective`: a CSV file with the columns arch and
    score, all of whose networks are compared; or a function that scores one candidate (its parameter is
    named arch, candidate or choices), or its name, "package.module:callable". `max_ms`: only candidates
    that take at most this. `candidates`: how many a function scores (None: 200): all of a space that has no
    more, else the search is evolutionary; `seed`: of its draws. `lower_is_better`: a low score is good,
    such as a loss. `accuracy`: a CSV file to which each score of a function is added at once, and which is
    read when the search is run again; with more `candidates` only as many are scored as are missing.

    Raises AnswerIsNo where no candidate is within the time, or none has a score; InputError for a wrong
    argument.
    """
    shown = progress or Progress()
    loaded = model if isinstance(model, Device) else load(model)
    check_file(accuracy, "accuracy")
    known = Scores(of_space := find_space(space, shown), objective, accuracy, shown)
    if known.rows is not None:
        _none_of(objective, accuracy=accuracy, candidates=candidates, seed=seed)
    scorer, most = of_space.scorer(loaded, batch_size, predictor, shown), candidates or CANDIDATES
    method, rows = _begun(of_space, scorer, known.rows, most)
    result = SearchResult(
        of_space.name, of_space.size, batch_size, scorer.predictor, scorer.source, method, max_ms, 0, 0, ()
    )  # fmt: skip
    limit = math.inf if max_ms is None else max_ms
    times = scorer.latency(rows)
    if times.min() > limit:
        fastest_ms = float(times.min())
        raise none_within(replace(result, fastest_ms=fastest_ms), fastest_ms)
    sign = -1.0 if lower_is_better else 1.0
    able = rows[times <= limit]
    if known.rows is None:
        if known.known:
            shown.note(f"{len(known.known)} scores are in {accuracy} already{known.changed}")
        shown.start("scoring", most if method == EVOLUTIONARY else len(able))
    if method == EVOLUTIONARY:
        archive = _evolved(known, sign, scorer, able[0], most, limit, seed or 0)
    else:
        archive = Archive(scorer, lambda row: sign * known.score(row))
        archive.add(able)
    unscored = int(np.isnan(archive.scores).sum())
    result = replace(result, scored=len(archive) - unscored, unscored=unscored)
    if not result.scored:
        raise none_scored(result)
    return replace(result, front=_front(archive, sign, of_space, loaded, limit))


def _none_of(table: Any, **given: Any) -> None:
    """InputError for an argument that is for a function, beside a table of scores."""
    for name, value in given.items():
        if value is not None:
            raise InputError(
                f"{arg(name)} {value}: all networks of the table {table} have a score and are compared; "
                f"leave it out, or give a function as {arg('objective')}",
                code=name,
            )


def _evolved(
    known: Scores, sign: float, scorer: Scorer, fast: np.ndarray, candidates: int, limit: float, seed: int
) -> Archive:  # fmt: skip
    """The candidates of an evolutionary search, with all that have a score and are within the time."""
    rows = known.space.parse(sorted(known.known))
    rows = rows[scorer.latency(rows) <= limit] if len(rows) else rows
    before = {row.tobytes() for row in rows}
    archive = Archive(
        scorer,
        lambda row: sign * known.score(row),
        lambda row: row.tobytes() in before,
        candidates - len(before),
    )
    evolve(archive, fast, candidates, limit, np.random.default_rng(seed))
    archive.add(rows)  # those that this search did not come across
    return archive


def _begun(
    space: Space, scorer: Scorer, rows: np.ndarray | None, most: int
) -> tuple[str, np.ndarray]:
    """(how candidates are chosen, (n, positions) those that a search begins with); `rows`: of a table."""
    if rows is not None:
        return EXHAUSTIVE, rows
    if space.size <= most:
        return EXHAUSTIVE, space.decode(np.arange(space.size))
    return EVOLUTIONARY, fastest(scorer)[None]


def none_scored(result: SearchResult) -> AnswerIsNo:
    """The error where no candidate has a score."""
    return AnswerIsNo(
        f"{arg('objective')} gave no finite number for any of {result.unscored:,} candidates of "
        f"{result.space}; expected one for some of them",
        result.to_dict(),
    )


def none_within(result: Any, fastest_ms: float) -> AnswerIsNo:
    """The error where no candidate of a search, or of a space that was scored, is within the time."""
    return AnswerIsNo(
        f"no candidate of {result.space} is within {result.max_ms:g} ms; the fastest takes "
        f"{fastest_ms:.3g} ms",
        result.to_dict(),
    )


def _front(
    archive: Archive, sign: float, space: Space, model: Device, max_ms: float
) -> tuple[FrontCandidate, ...]:
    """The front of all that were scored, its whole networks predicted by the model.

    Where its answer is another than the scorer's, what is then too slow or dominated is left out.
    """
    numbers, scorer = archive.front(), archive.scorer
    rows = np.array([archive.rows[n] for n in numbers], int).reshape(-1, len(space.positions))
    bounds: list[tuple[Any, float | None, bool | None]]
    times, kept = [archive.latencies[n] for n in numbers], list(range(len(numbers)))
    if isinstance(scorer, NasModel):
        low, high = map(np.ndarray.tolist, scorer.interval(rows, COVERAGE))
        inside = scorer.inside(np.array(times)).tolist()
        ends = zip(low, high, strict=True)
        bounds = [(pair, COVERAGE, is_so) for pair, is_so in zip(ends, inside, strict=True)]
    else:
        whole = [model.predict(space.network(r), scorer.batch_size, scorer.predictor) for r in rows]
        bounds = [(p.interval_ms, p.coverage, p.in_domain) for p in whole]
        times = [round(p.latency_ms, 9) for p in whole]
        exact = front(np.array(times), np.array([archive.scores[n] for n in numbers]))
        kept = [i for i in exact if times[i] <= max_ms + 1e-9]
    return tuple(
        FrontCandidate(
            space.arch(rows[i]),
            tuple(rows[i].tolist()),
            space.named(rows[i]),
            times[i],
            sign * archive.scores[numbers[i]],
            *bounds[i],
        )
        for i in kept
    )


# ---- Scores: from a table, or by a function, each added to a file at once.

COLUMNS = ("arch", "score")
OBJECTIVE, CHOICES = "objective", "choices"
"""Further columns of the file of a function's scores: its name, and the space's `fingerprint`."""


class Scores:
    """Scores of a space's candidates.

    `rows`: (n, positions) the networks of a table, None for a function; `known`: the scores so far, by the
    candidates' texts; `changed`: that the function's file changed after they were written.
    """

    def __init__(
        self,
        space: Space,
        objective: AnyPath | Callable[..., Any],
        path: AnyPath | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`objective`: a CSV table, a function, or its name; `path`: of the scores of a function.

        InputError for a wrong table, with its line, and where the function cannot be found.
        """
        self.space, self.path, self.progress = space, path, progress or Progress()
        self.rows: np.ndarray | None = None
        self.changed = ""
        self.known: dict[str, float] = {}
        objective = os.fspath(objective) if isinstance(objective, os.PathLike) else objective
        if isinstance(objective, str) and (is_table(objective) or os.path.isfile(objective)):
            self.path = None
            self.rows = self._read(objective)
            return
        self.function = find_function(objective, "objective")
        self._named, self._name = parameters(self.function), _name_of(objective)
        if path is not None and os.path.exists(path) and os.path.getsize(path):
            self.changed = _changed(self.function, path)
            _cut_last_line(path)
            self._read(path)

    def _read(self, path: AnyPath) -> np.ndarray:
        """The rows of a table of scores, which are then known."""
        table = read_table(os.fspath(path), COLUMNS, rows="network" if self.path is None else None)
        archs, rows = read_archs(table, self.space)
        fingerprint = self.space.fingerprint
        for arch, row, cells in zip(archs, rows, table, strict=True):
            score = math.nan if cells["score"].lower() == "nan" else cells.number("score")
            if self.path is not None and cells.get(OBJECTIVE, self._name) != self._name:
                raise cells.refused(
                    f"a score by {cells[OBJECTIVE]}; expected scores by {self._name}: give another file "
                    f"as {arg('accuracy')}, or remove this one"
                )
            if self.path is not None and cells.get(CHOICES, fingerprint) != fingerprint:
                raise cells.refused(
                    f"a score of before the choices or networks of {self.space.name} changed: {arch} is "
                    f"another network now; give another file as {arg('accuracy')}, or remove this one"
                )
            if self.known.setdefault(self.space.arch(row), score) not in (
                score,
            ):  # nan is math.nan
                raise cells.refused(
                    f"{arch} has another score further up; expected one for each network"
                )
        return rows

    def score(self, row: np.ndarray) -> float:
        """The score of a candidate, NaN where there is none.

        InputError where the function fails or returns no number; an infinity is NaN.
        """
        arch = self.space.arch(row)
        if arch not in self.known and self.rows is None:
            self.known[arch] = self._compute(row, arch)
            if self.path is not None:
                cells = [arch, repr(self.known[arch]), self._name, self.space.fingerprint]
                _append(self.path, cells)
        if self.rows is None:
            self.progress.step()
        return self.known.get(arch, math.nan)

    def _compute(self, row: np.ndarray, arch: str) -> float:
        with user_code(f"objective {arch}", "expected a number, or nan to leave it out"):
            score = float(call_with(self.function, self._named, self.space, row))
        return score if math.isfinite(score) else math.nan


def _name_of(objective: str | Callable[..., Any]) -> str:
    """Of a function: package.module:callable."""
    if isinstance(objective, str):
        return objective
    named = objective if hasattr(objective, "__qualname__") else type(objective)
    return f"{named.__module__}:{named.__qualname__}"


def _changed(function: Callable[..., Any], path: AnyPath) -> str:
    """That a function's file changed after its scores were written to `path`; "" where it did not."""
    code = getattr(function, "__code__", None)
    with contextlib.suppress(OSError):
        if code is not None and os.path.getmtime(code.co_filename) > os.path.getmtime(path):
            name = os.path.basename(code.co_filename)
            return f", and {name} changed later: remove the scores to compute them anew"
    return ""


def _cut_last_line(path: AnyPath) -> None:
    """Remove the half line that a killed run may have left in a file of scores."""
    data = Path(path).read_bytes()
    if data.startswith(",".join(COLUMNS).encode()):
        os.truncate(path, data.rfind(b"\n") + 1)


def _append(path: AnyPath, cells: list[str]) -> None:
    """Write one row through to the disk; a file without the name of its objective stays without."""
    try:
        with open(path, "a+", newline="", encoding="utf-8") as file:
            file.seek(0)
            header = file.readline().strip() or ",".join([*COLUMNS, OBJECTIVE, CHOICES])
            row = to_csv(header.split(","), [cells[: header.count(",") + 1]])
            file.write(row.split("\n", 1)[1] if file.tell() else row)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise not_written(error, f"{arg('accuracy')} {shown_path(path)}") from error
