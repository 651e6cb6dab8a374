"""Scores of a search: functions that give them, and the file that they are added to."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat import nas
from lolat.errors import AnswerIsNo, InputError
from lolat.io.progress import Progress
from lolat.nas import Space, search
from lolat.nas.archive import front
from lolat.nas.objective import Objective
from tests.nas.test_search import CELLS, MODEL, ROWS, SPACE, TIMES, Recorder, choices, score, smooth


def test_a_function_gets_the_arguments_that_its_parameters_name() -> None:
    row = np.array([1, 2, 0, 1, 0])
    seen: list[Any] = []
    for function in (
        lambda arch: seen.append(arch) or 1,
        lambda candidate: seen.append(candidate) or 1,
        lambda choices: seen.append(choices) or 1,
        lambda choices, arch, more=5: seen.append((choices["kernel 2"], arch, more)) or 1,
    ):
        assert Objective(SPACE, function).score(row) == 1.0
    values = {"width 1": 16, "kernel 2": 5, "width 2": 8, "kernel 3": 5, "width 3": 16}
    assert seen == ["1-2-0-1-0", (1, 2, 0, 1, 0), values, (5, "1-2-0-1-0", 5)]


def test_a_function_of_other_parameters_is_refused_before_it_is_called() -> None:
    for function in (lambda foo: 1.0, lambda: 1.0):
        with pytest.raises(InputError, match=r"name it arch .* candidate .* or choices"):
            Objective(SPACE, function)


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    options: dict[str, Any] = {"candidates": 30, "seed": 1}
    calls: list[int] = []

    def interrupted(candidate: tuple[int, ...]) -> float:
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return score(candidate)

    with pytest.raises(KeyboardInterrupt):
        search(SPACE, MODEL, interrupted, accuracy=path, **options)
    with open(path, newline="") as file:
        assert len(list(csv.DictReader(file))) == 16
    whole = search(SPACE, MODEL, interrupted, accuracy=path, **options)
    assert (whole.scored, len(calls)) == (30, 31)  # the interrupted one again, none of the others
    assert choices(search(SPACE, MODEL, str(path))) == choices(whole)


def test_a_table_of_slow_candidates_says_that_it_is_the_table(tmp_path: Path) -> None:
    path, slow = tmp_path / "slow.csv", ROWS[np.median(TIMES) < TIMES]
    path.write_text("\n".join(["arch,score", *(f"{SPACE.arch(row)},1" for row in slow)]))
    with pytest.raises(AnswerIsNo, match=r"no candidate of .*slow.csv, a table of "):
        search(SPACE, MODEL, str(path), max_ms=float(np.median(TIMES)))
    with pytest.raises(AnswerIsNo, match=f"no candidate of {SPACE.name} is within"):
        search(SPACE, MODEL, score, max_ms=0.9 * float(TIMES.min()))


def as_by(path: Path, name: str) -> None:
    """Make the scores of a file those of another function, whatever its code."""
    with path.open(newline="") as file:
        rows = [row | {"objective": name, "code": ""} for row in csv.DictReader(file)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize("more", [60, 40, 15])
def test_a_search_for_more_scores_as_many_as_are_missing(more: int, tmp_path: Path) -> None:
    """And none where there are more than that already; its front is of all that have a score."""
    path, recorder = tmp_path / "scores.csv", Recorder()
    search(CELLS, MODEL, smooth, candidates=30, accuracy=path)

    def counted(candidate: tuple[int, ...]) -> float:
        recorder(candidate)
        return smooth(candidate)

    as_by(path, f"{counted.__module__}:{counted.__qualname__}")
    result = search(CELLS, MODEL, counted, candidates=more, accuracy=path)
    assert len(recorder.rows) == max(more - 30, 0)
    assert result.scored == max(more, 30)
    with open(path, newline="") as file:
        rows = [(row["arch"], float(row["score"])) for row in csv.DictReader(file)]
    times = nas.estimator(CELLS, MODEL).latency(CELLS.parse([arch for arch, _ in rows])).round(9)
    best = front(times, np.array([score for _, score in rows]))
    found = (
        nas.estimator(CELLS, MODEL).latency(np.array([c.candidate for c in result.front])).round(9)
    )
    pairs = list(zip(found, (c.score for c in result.front), strict=True))
    assert pairs == [(times[i], rows[i][1]) for i in best]


def test_a_table_of_a_part_of_the_space_is_told(tmp_path: Path) -> None:
    """The rows are counted by hand; a table of the whole space is called all of it."""
    path, every = tmp_path / "scores.csv", SPACE.decode(range(SPACE.size))
    for rows in (every, every[:10]):
        names = [SPACE.arch(row) for row in rows]
        path.write_text("arch,score\n" + "".join(f"{name},{n}\n" for n, name in enumerate(names)))
        words = search(SPACE, MODEL, path).words()
        assert ("10 of these have a score" in words) == (len(rows) == 10)
        assert (f"all {len(every)} scored" in words) == (len(rows) != 10)


def test_a_candidate_without_a_score_is_not_scored_again(tmp_path: Path) -> None:
    path, recorder = tmp_path / "scores.csv", Recorder()
    found = search(SPACE, MODEL, without_some, accuracy=path)
    assert found.unscored == 36
    assert search(SPACE, MODEL, without_some, accuracy=path) == found
    as_by(path, f"{Recorder.__module__}:Recorder")
    assert search(SPACE, MODEL, recorder, accuracy=path) == found
    assert recorder.rows == []


class Notes(Progress):
    """Keeps the remarks."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.started: list[tuple[int, int]] = []

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.started += [(total, done)] * (text == "scoring")

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_search_that_goes_on_tells_of_the_networks_that_it_builds(tmp_path: Path) -> None:
    """Scores of earlier are compared with the networks, which are built before they are needed."""
    positions = {f"p{n}": p.choices for n, p in enumerate(SPACE.positions)}
    for _ in range(2):
        shown = Notes()
        made = Space.from_factory(lambda **c: SPACE.build((*c.values(),), ""), positions)
        search(made, MODEL, score, accuracy=tmp_path / "s.csv", candidates=72, progress=shown)
        assert sum("networks built" in note for note in shown.notes) == 1


def test_what_is_left_to_score_is_told(tmp_path: Path) -> None:
    """Of those within the time, the new ones alone: a longer time has some, a shorter one again none."""
    path, limits = tmp_path / "s.csv", np.quantile(TIMES, (0.1, 0.5))
    few, many = (int((limit >= TIMES).sum()) for limit in limits)
    said = []
    for limit in (limits[0], limits[1], limits[0]):
        shown = Notes()
        search(SPACE, MODEL, score, max_ms=float(limit), accuracy=path, candidates=72,
               progress=shown)  # fmt: skip
        said.append((shown.started, [n for n in shown.notes if "already" in n]))
    assert said == [
        ([(few, 0)], []),
        ([(many, few)], [f"{path} has {few} scores already, {many - few} to go"]),
        ([], [f"{path} has {few} scores already, 0 to go"]),
    ]


def test_scores_of_another_question_are_reused_but_not_counted(tmp_path: Path) -> None:
    """Each question calls the function for its own candidates, none twice; back at one, no call is made."""
    path, recorder = tmp_path / "s.csv", Recorder()
    times = nas.estimator(CELLS, MODEL).latency(CELLS.decode(range(CELLS.size)))
    short, long = map(float, np.quantile(times, (0.2, 0.9)))

    def more(**question: Any) -> tuple[int, list[str]]:
        before, shown = len(recorder.rows), Notes()
        search(CELLS, MODEL, recorder, accuracy=path, candidates=20, progress=shown, **question)
        return len(recorder.rows) - before, [n for n in shown.notes if "already" in n]

    assert more(max_ms=short) == (20, [])
    beside = "20 by searches with another limit or device are reused, not counted"
    said = f"{path} has 20 scores already; {beside}; 20 to go"
    found, (note,) = more(max_ms=long)
    assert (found, note.split(": ")[0]) == (20, said)
    assert more(max_ms=long)[0] == more(max_ms=short)[0] == 0
    assert more(max_ms=long, lower_is_better=True)[0] == more(max_ms=long, batch_size=2)[0] == 20
    assert len({*recorder.rows}) == len(recorder.rows)


def without_some(candidate: tuple[int, ...]) -> float:
    return math.nan if candidate[0] else score(candidate)


def test_scores_of_other_choices_are_refused(tmp_path: Path) -> None:
    """Even of another number of choices, whose texts this space cannot read."""
    path = tmp_path / "scores.csv"
    search(CELLS, MODEL, smooth, accuracy=path, candidates=5)
    with pytest.raises(InputError, match=r"networks of the space have changed .* remove this one"):
        search(SPACE, MODEL, smooth, accuracy=path, candidates=5)


def test_a_failed_score_names_its_choices_and_where_the_others_are(tmp_path: Path) -> None:
    path, calls = tmp_path / "scores.csv", []

    def failing(choices: dict[str, Any]) -> float:
        calls.append(choices)
        if len(calls) == 3:
            raise RuntimeError("out of memory")
        return 1.0

    with pytest.raises(InputError) as info:
        search(SPACE, MODEL, failing, accuracy=path, candidates=72)
    chosen = ", ".join(f"{name}={value}" for name, value in calls[-1].items())
    assert f"({chosen}) failed: RuntimeError: out of memory" in str(info.value)
    assert f"the scores so far are in {path}" in str(info.value)
    assert "after a change of the source empty its column code" in str(info.value)


def test_scores_by_another_function_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    search(SPACE, MODEL, score, accuracy=path, candidates=5)
    text = path.read_text()
    assert {row["objective"] for row in csv.DictReader(text.splitlines())} == {
        f"{score.__module__}:score"
    }
    search(SPACE, MODEL, f"{score.__module__}:score", accuracy=path, candidates=5)
    with pytest.raises(
        InputError, match=r":score; expected scores by .*:smooth: give another file"
    ):
        search(SPACE, MODEL, smooth, accuracy=path, candidates=5)
    assert path.read_text() == text


@pytest.fixture
def rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes modules some time ago, and returns the function `score` of the first, imported anew."""
    monkeypatch.syspath_prepend(str(tmp_path))
    days = itertools.count(1)

    def write(**texts: str) -> Any:
        for name, text in texts.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            os.utime(path, (next(days) * 86400,) * 2)  # another time: Python compiles it anew
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts))).score

    yield write
    for name in ("rated", "weighed"):
        sys.modules.pop(name, None)


def test_scores_by_the_function_as_it_was_are_refused(
    rewritten: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if a module that it imports changed, but not for a comment or docstring; the front has the
    scores of the function as it is.
    """
    rated = "def score(candidate):\n    from weighed import weight\n    return weight * sum(candidate)\n"
    path = tmp_path / "scores.csv"
    more: dict[str, Any] = {"candidates": 72, "accuracy": path}

    def best(function: Any) -> float:
        return search(SPACE, MODEL, function, **more).front[-1].score

    total = max(sum(row) for row in ROWS.tolist())
    assert best(rewritten(rated=rated, weighed="weight = 2\n")) == 2 * total
    assert best(rewritten(rated=rated, weighed="weight = 2\n")) == 2 * total
    kept = path.read_text()
    said = '# Sums.\n"""Scores."""\n' + rated.replace("    from", '    """A sum."""\n    from')
    assert best(rewritten(rated=said, weighed="weight = 2  # of each\n")) == 2 * total
    for texts in (
        {"rated": rated.replace("weight *", "1 + weight *"), "weighed": "weight = 2\n"},
        {"rated": rated, "weighed": "weight = 3\n"},
    ):
        function = rewritten(**texts)
        with monkeypatch.context() as patch:
            # They are refused before networks are built, which may take minutes.
            patch.setattr(Space, "prepare", lambda *_: pytest.fail("networks were built"))
            with pytest.raises(
                InputError, match=r"source of rated:score, .* changed since.* column code"
            ):
                best(function)
        assert path.read_text() == kept
    lines = [line.split(",")[:4] for line in kept.splitlines()]
    path.write_text(
        "".join(
            f"{','.join(line)},{',,' if n else 'code,files,question'}\n"
            for n, line in enumerate(lines)
        )
    )
    more["progress"] = shown = Notes()
    assert best(rewritten(rated=rated)) == 2 * total  # the user's word that they are right
    assert shown.notes == [
        f"{path} has 72 scores already, 0 to go: remove it if rated:score has changed since"
    ]
    path.unlink()
    assert best(rewritten(rated=rated)) == 3 * total


RATED = """
import functools, weighed

def given(candidate, scale):
    return scale * sum(candidate)

class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, candidate):
        return given(candidate, self.scale)

"""
WEIGHED = """
import functools

def plain(f):
    @functools.wraps(f)
    def called(candidate):
        return f(candidate)
    return called

def times(scale):
    def decorator(f):
        @functools.wraps(f)
        def called(candidate):
            return scale * f(candidate)
        return called
    return decorator
"""
OBJECTIVES = {
    "partial": "score = functools.partial(given, scale=2)\n",
    "partial of another": "score = functools.partial(functools.partial(given), scale=2)\n",
    "decorated": "@weighed.plain\ndef score(candidate):\n    return 2 * sum(candidate)\n",
    "decorated with a value": "@weighed.times(2)\ndef score(candidate):\n    return sum(candidate)\n",
    "instance": "score = Scaled(2)\n",
    "method": "score = Scaled(2).__call__\n",
}


@pytest.mark.parametrize("changed", ["rated", "weighed"])
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_scores_by_any_callable_as_it_was_are_refused(
    kind: str, changed: str, rewritten: Callable[..., Any], tmp_path: Path
) -> None:
    """A decorator may be in another file than what it decorates. An instance's values are not compared."""
    texts = {"rated": RATED + OBJECTIVES[kind], "weighed": WEIGHED}
    shown, total = Notes(), max(sum(row) for row in ROWS.tolist())

    def best() -> float:
        more: dict[str, Any] = {"accuracy": tmp_path / "scores.csv", "candidates": 72}
        return search(SPACE, MODEL, rewritten(**texts), progress=shown, **more).front[-1].score

    assert best() == best() == 2 * total
    is_told = ["remove it if" in note for note in shown.notes]
    assert any(is_told) == ("partial" not in kind and kind != "decorated")
    texts[changed] += "more = 1\n"
    with pytest.raises(InputError, match="or of what it imports, has changed since"):
        best()


def test_scores_of_a_file_that_has_changed_are_refused(
    rewritten: Callable[..., Any], tmp_path: Path
) -> None:
    """A function that reads trained weights, which are trained anew, are touched by nobody, or are gone."""
    (weights := tmp_path / "weights.json").write_text("3")
    function = rewritten(
        rated=f"def score(candidate):\n    return int(open({str(weights)!r}).read()) * sum(candidate)\n"
    )
    path, total = tmp_path / "scores.csv", max(sum(row) for row in ROWS.tolist())

    def best(candidates: int) -> float:
        found = search(SPACE, MODEL, function, candidates=candidates, accuracy=path)
        return found.front[-1].score

    assert best(72) == best(72) == 3 * total
    weights.write_text("4")
    os.utime(weights, (1, 1))
    with pytest.raises(
        InputError, match=r"weights.json, which rated:score reads, has changed since"
    ):
        best(72)
    weights.unlink()
    assert best(72) == 3 * total
    weights.write_text("4")
    path.unlink()
    assert best(72) == 4 * total


@pytest.mark.parametrize(
    "text", ["arch,score\n0-0-0-0-9,2\n", "arch,score\n0-0-0-0-0,1\n0-0-0-0-0,2\n"]
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    for objective, scores in ((str(path), None), (score, path)):
        with pytest.raises(InputError):
            Objective(SPACE, objective, scores)
    assert path.read_text() == text
