"""Searches against brute force over the whole space; scores, their journal, and what is said of errors."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import AnswerIsNo, InputError
from lolat.model import Model
from lolat.nas.objective import FunctionObjective, TableObjective, find_function, find_space
from lolat.nas.results import answer, lines
from lolat.nas.search import Found, Search
from lolat.nas.space import Space
from tests import synthetic
from tests.nas.test_space import every, small

MODEL = Model(synthetic.document())
SPACE = small()
SCORER = SPACE.scorer(MODEL)
TIMES = SCORER.latency(SPACE.decode(np.arange(SPACE.size)))


def score(candidate: tuple[int, ...]) -> float:
    """Large where the time is long, but not always."""
    return float(10 * sum(candidate) + (7 * candidate[0] + 3 * candidate[2] + candidate[4]) % 5)


def best_possible(max_ms: float = math.inf, sign: float = 1.0) -> set[tuple[int, ...]]:
    """The front by brute force: all pairs."""
    rows = [tuple(int(c) for c in row) for row in SPACE.decode(np.arange(SPACE.size))]
    able = [
        (r, round(t, 9), sign * score(r)) for r, t in zip(rows, TIMES, strict=True) if t <= max_ms
    ]

    def beaten(i: int) -> bool:
        _, time, value = able[i]
        return any(
            t <= time and v >= value and (t < time or v > value or j < i)
            for j, (_, t, v) in enumerate(able)
            if j != i
        )

    return {able[i][0] for i in range(len(able)) if not beaten(i)}


def search(function: Any = score, **options: Any) -> Search:
    return Search(SPACE, SCORER, FunctionObjective(SPACE, function, "mine", None), **options)


def front(found: Found) -> set[tuple[int, ...]]:
    return {c.choices for c in found.front}


@pytest.mark.parametrize("quantile", [0.3, 1.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_exhaustive_is_brute_force(quantile: float, sign: float) -> None:
    limit = float(np.quantile(TIMES, quantile))
    found = search(max_ms=limit, sign=sign).run("exhaustive")
    assert front(found) == best_possible(limit, sign)
    assert len(found.scored) == (limit >= TIMES).sum()
    assert [c.latency_ms for c in found.front] == sorted(c.latency_ms for c in found.front)


def test_a_small_space_is_searched_whole() -> None:
    assert search().run(samples=72).method == "exhaustive"
    assert search().run(samples=71).method == "evolutionary"


def dominated_area(times: np.ndarray, scores: np.ndarray, limit: float) -> float:
    """How much of the plane up to `limit` ms is below the front: the area under its steps."""
    order = np.argsort(times)
    best = np.maximum.accumulate(np.maximum(scores[order], 0.0))
    widths = np.diff(np.append(times[order], limit))
    return float(best @ widths)


def test_evolution_beats_as_many_random_candidates() -> None:
    from lolat.nas.spaces import nasbench201

    space = nasbench201.space()
    scorer = space.scorer(MODEL)
    worth = np.array([0.0, 1.0, 3.0, 4.0, 1.5])

    def smooth(candidate: tuple[int, ...]) -> float:
        straight = worth[list(candidate)]
        return float(straight.sum() + min(straight[0], straight[2]) + min(straight[2], straight[5]))

    limit = float(scorer.latency(np.full((1, 6), 3))[0])
    for seed in range(4):
        wanted = Search(space, scorer, FunctionObjective(space, smooth, "smooth", None))
        found = wanted.run("evolutionary", 150, 10, seed).scored
        rows = space.sample(150, seed)
        areas = [
            dominated_area(
                np.array([c.latency_ms for c in found]), np.array([c.score for c in found]), limit
            ),
            dominated_area(scorer.latency(rows), np.array([smooth(tuple(r)) for r in rows]), limit),
        ]
        assert areas[0] > 1.05 * areas[1]


def test_the_same_seed_finds_the_same() -> None:
    runs = [search().run("evolutionary", 20, 4, seed).scored for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_only_candidates_within_the_time_are_scored() -> None:
    asked: list[tuple[int, ...]] = []

    def counting(candidate: tuple[int, ...]) -> float:
        asked.append(candidate)
        return score(candidate)

    limit = float(np.quantile(TIMES, 0.12))
    found = search(counting, max_ms=limit).run("evolutionary", samples=40, generations=4)
    assert len(asked) == len(set(asked)) == len(found.scored) == (limit >= TIMES).sum()
    assert max(SCORER.latency(np.array(asked))) <= limit
    assert front(found) == best_possible(limit)


def test_no_candidate_is_fast_enough() -> None:
    fastest = f"the fastest takes {TIMES.min():.3g} ms"
    for method in ("evolutionary", "exhaustive"):
        with pytest.raises(AnswerIsNo, match=f"no candidate of small is within 0.01 ms; {fastest}"):
            search(max_ms=0.01).run(method)


def test_a_space_too_large_for_the_method() -> None:
    from lolat.nas.spaces import fbnet

    space = fbnet.space()
    objective = FunctionObjective(space, score, "mine", None)
    with pytest.raises(InputError, match="int64"):
        Search(space, space.scorer(MODEL), objective).run("exhaustive")
    found = Search(space, space.scorer(MODEL), objective).run(samples=30, generations=3)
    assert (found.method, len(found.scored)) == ("evolutionary", 30)


@pytest.mark.parametrize(("samples", "generations"), [(0, 1), (5, 0)])
def test_a_search_of_nothing(samples: int, generations: int) -> None:
    with pytest.raises(InputError, match="expected whole numbers from 1"):
        search().run(None, samples, generations)


def test_a_method_that_there_is_not() -> None:
    with pytest.raises(InputError, match="method 'luck'"):
        search().run("luck")


def test_candidates_without_a_score_are_left_out() -> None:
    def broken(candidate: tuple[int, ...]) -> float:
        return math.nan if candidate[0] else score(candidate)

    found = search(broken).run("exhaustive")
    assert (len(found.scored), found.unscored) == (36, 36)
    assert all(c.choices[0] == 0 for c in found.front)
    assert search(broken).run("evolutionary", 30, 3).unscored > 0
    assert search(lambda candidate: math.inf).run("evolutionary", 9, 3).front == ()


def test_a_function_gets_what_its_parameters_are_called() -> None:
    row = np.array([1, 2, 0, 1, 0])
    seen: list[Any] = []
    for function in (
        lambda arch: seen.append(arch) or 1,
        lambda candidate: seen.append(candidate) or 1,
        lambda choices: seen.append(choices) or 1,
        lambda anything: seen.append(anything) or 1,
        lambda choices, arch, more=5: seen.append((choices["kernel 2"], arch, more)) or 1,
    ):
        assert FunctionObjective(SPACE, function, "f", None).score(row) == 1.0
    values = {"width 1": 16, "kernel 2": 5, "width 2": 8, "kernel 3": 5, "width 3": 16}
    assert seen == ["1-2-0-1-0", (1, 2, 0, 1, 0), values, (1, 2, 0, 1, 0), (5, "1-2-0-1-0", 5)]


def test_a_function_that_fails_is_named_with_what_is_kept(tmp_path: Path) -> None:
    journal = str(tmp_path / "scores.csv")

    def fails(candidate: tuple[int, ...]) -> float:
        if candidate[1] == 2:
            raise RuntimeError("out of\nmemory")
        return 1.0

    objective = FunctionObjective(SPACE, fails, "m:fails", journal)
    with pytest.raises(
        InputError,
        match=r"m:fails of 0-2-0-0-0 failed: RuntimeError: out of memory; .* so far are in",
    ):
        Search(SPACE, SCORER, objective).run("exhaustive")
    assert len(Path(journal).read_text().splitlines()) == 1 + 2 * 3 * 2 * 2
    with pytest.raises(InputError, match="expected a number"):
        FunctionObjective(SPACE, lambda candidate: "high", "m:f", None).score(np.zeros(5, int))


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = str(tmp_path / "scores.csv")
    whole = search().run("evolutionary", 30, 5, seed=1)
    calls: list[int] = []

    def interrupted(candidate: tuple[int, ...]) -> float:
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return score(candidate)

    first = FunctionObjective(SPACE, interrupted, "m:f", journal)
    with pytest.raises(KeyboardInterrupt):
        Search(SPACE, SCORER, first).run("evolutionary", 30, 5, seed=1)
    with open(journal, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == first.computed == 16
    second = FunctionObjective(SPACE, interrupted, "m:f", journal)
    assert second.reused == 16
    found = Search(SPACE, SCORER, second).run("evolutionary", 30, 5, seed=1)
    assert found == whole
    assert len(calls) == 31  # the interrupted one again, none of the others
    # And as a table of scores, for another search.
    table = Search(SPACE, SCORER, TableObjective(SPACE, journal)).run()
    assert table.front == whole.front


def test_half_a_line_at_the_end_of_a_journal_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    first = FunctionObjective(SPACE, score, "m:f", str(path))
    for row in SPACE.decode(np.arange(4)):
        first.score(row)
    text = path.read_bytes()
    path.write_bytes(text[:-9])
    second = FunctionObjective(SPACE, score, "m:f", str(path))
    assert second.reused == 3
    for row in SPACE.decode(np.arange(4)):
        second.score(row)
    assert path.read_bytes() == text
    assert second.computed == 1


def test_a_journal_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    FunctionObjective(SPACE, score, "m:f", str(path)).score(np.zeros(5, int))
    text = path.read_bytes()
    with pytest.raises(InputError, match=r"has scores of m:f, not of m:g; give another --journal"):
        FunctionObjective(SPACE, score, "m:g", str(path))
    mine = tmp_path / "mine.csv"
    mine.write_text("arch,score\n0-0-0-0-0,0.25")  # no line end: not a journal of ours to mend
    with pytest.raises(InputError, match="an objective without a name"):
        FunctionObjective(SPACE, score, "m:f", str(mine))
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="has the columns a, b; expected arch,score"):
        FunctionObjective(SPACE, score, "m:f", str(other))
    assert path.read_bytes() == text
    assert mine.read_text() == "arch,score\n0-0-0-0-0,0.25"


def test_scores_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    space, rows, _ = every()
    chosen = rows[::3]
    body = "".join(f"{space.arch(r)},{score(tuple(r))}\n" for r in chosen)
    path.write_text("Arch,Score\n" + body)
    found = Search(SPACE, SCORER, TableObjective(SPACE, str(path))).run()
    assert found.method == "exhaustive"
    assert {c.choices for c in found.scored} == {tuple(int(n) for n in r) for r in chosen}
    some = Search(SPACE, SCORER, TableObjective(SPACE, str(path))).run("evolutionary", 30, 3)
    assert some.unscored + len(some.scored) == 30
    assert {c.choices for c in some.scored} <= {tuple(int(n) for n in r) for r in chosen}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "columns of an empty file; expected arch,score"),
        ("arch,latency\n", "columns arch, latency; expected arch,score"),
        ("arch,score\n", "has no rows"),
        ("arch,score\n0-0-0-0-0,1\n0-0-0-0-9,2\n", "row 2 has 9 at position 4"),
        ("arch,score\n0-0-0-0-0,high\n", "row 1: arch '0-0-0-0-0', score 'high'; expected an"),
        ("arch,score\n0-0-0-0-0,inf\n", "row 1"),
        ("arch,score\n,1\n", "row 1: arch ''"),
        ("arch,score\n0-0-0-0-0\n", "row 1: .* score None"),
        (
            "arch,score\n0-0-0-0-0,1\n0-0-0-0-0,2\n",
            "row 2: 0-0-0-0-0 has score 2 here and 1 further up",
        ),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        TableObjective(SPACE, str(path))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*No such file"):
        TableObjective(SPACE, str(tmp_path / "none.csv"))
    path = tmp_path / "binary.csv"
    path.write_bytes(b"arch,score\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="no CSV file in UTF-8"):
        TableObjective(SPACE, str(path))


def test_the_shown_front_is_of_whole_networks() -> None:
    wanted = search(max_ms=float(np.median(TIMES)))
    found = answer(wanted, wanted.run("exhaustive"), MODEL)
    for candidate, prediction in zip(found.found.front, found.predictions, strict=True):
        assert prediction.latency_ms == pytest.approx(candidate.latency_ms, abs=1e-9)
        assert prediction.counts["flops"] == SPACE.counts(np.array([candidate.choices]))[0, 2]
    text = list(lines(found))
    assert text[0].startswith("small: 72 candidates, exhaustive search: 36 scored within")
    assert len([line for line in text if line.endswith(found.found.front[0].arch)]) == 1
    assert max(map(len, text[1:-1])) < 80


def test_a_long_front_is_thinned_where_it_is_shown() -> None:
    from lolat.nas.spaces import nasbench201

    space = nasbench201.space()
    scorer = space.scorer(MODEL)
    objective = FunctionObjective(space, lambda c: scorer.latency(np.array([c]))[0], "slow", None)
    wanted = Search(space, scorer, objective)
    found = answer(wanted, wanted.run("evolutionary", 40, 2), MODEL)
    assert len(found.found.front) > 20
    text = list(lines(found))
    assert sum("~0|" in line for line in text) == 20
    assert f"20 of the {len(found.found.front)} are shown" in "\n".join(text)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "nothing",
            "no space 'nothing'; expected nasbench201, fbnet, ofa, mobile or package.module",
        ),
        (
            "no.such:thing",
            "importing 'no.such' for space 'no.such:thing' failed: ModuleNotFoundError",
        ),
        ("tests.nas.test_space:none", "has no 'none'"),
        ("tests.nas.test_space:SIDE.real.imag", "failed: TypeError"),
        ("tests.nas.test_space:every", "returned a tuple; expected"),
        ("a b:c", "no space 'a b:c'"),
    ],
)
def test_a_space_that_there_is_not(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_space(spec)


def test_spaces_by_name() -> None:
    assert find_space("fbnet").size == 9**22
    assert find_space("tests.nas.test_space:small").name == "small"
    assert isinstance(find_space("tests.nas.test_search:SPACE"), Space)
    assert find_function("tests.nas.test_search:score")((1, 0, 0, 0, 0)) == 12.0
    with pytest.raises(InputError, match=r"of type int; expected package\.module:callable"):
        find_function("tests.nas.test_space:SIDE")
