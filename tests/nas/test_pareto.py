"""Searches against brute force over the whole space; scores, their journal, and what is said of errors."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import AnswerIsNo, InputError
from lolat.model import Model
from lolat.nas.objective import FunctionObjective, TableObjective, find_function, find_space
from lolat.nas.pareto import Search, SearchResult, answer, crowding, front, lines, ranks
from lolat.nas.space import Space
from lolat.nas.spaces import fbnet, nasbench201
from tests import synthetic
from tests.nas.test_space import small

MODEL = Model(synthetic.document())
SPACE = small()
SCORER = SPACE.scorer(MODEL)
ROWS = SPACE.decode(np.arange(SPACE.size))
TIMES = SCORER.latency(ROWS)

# ---- The front.

# Few values, so that many are equal.
PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=40)


def dominated(i: int, pairs: list[tuple[float, float]]) -> bool:
    """Whether another is as good in both and better in one, or the same and earlier."""
    latency, score = pairs[i]
    return any(
        (t <= latency and s >= score) and ((t, s) != (latency, score) or j < i)
        for j, (t, s) in enumerate(pairs)
        if j != i
    )


@given(PAIRS)
def test_ranks_are_fronts_of_what_is_left(pairs: list[tuple[float, float]]) -> None:
    latencies, scores = np.array(pairs, float).reshape(-1, 2).T
    best = front(latencies, scores)
    assert sorted(best) == [i for i in range(len(pairs)) if not dominated(i, pairs)]
    assert latencies[best].tolist() == sorted(latencies[best])
    rank = ranks(latencies, scores)
    left = list(range(len(pairs)))
    for number in range(len(pairs)):
        here = [pairs[i] for i in left]
        first = {left[k] for k in range(len(here)) if not dominated(k, here)}
        assert first == {i for i in range(len(pairs)) if rank[i] == number}
        left = [i for i in left if i not in first]


def test_a_nan_is_on_no_front() -> None:
    latencies, scores = np.array([1.0, np.nan, 2.0, 3.0]), np.array([1.0, 9.0, np.nan, 2.0])
    assert front(latencies, scores).tolist() == [0, 3]
    assert ranks(latencies, scores).tolist() == [0, 4, 4, 0]


def test_crowding_by_hand() -> None:
    # Deb's distance: neighbors' difference over the range, in both; the ends are infinite.
    latencies, scores = np.array([0.0, 1.0, 4.0, 10.0, 7.0]), np.array([0.0, 5.0, 8.0, 10.0, 1.0])
    rank = ranks(latencies, scores)
    assert rank.tolist() == [0, 0, 0, 0, 1]
    found = crowding(latencies, scores, rank)
    assert found[[0, 3, 4]].tolist() == [np.inf] * 3
    np.testing.assert_allclose(found[1:3], [4 / 10 + 8 / 10, 9 / 10 + 5 / 10])


# ---- Searches.


def score(candidate: tuple[int, ...]) -> float:
    """Large where the time is long, but not always."""
    return float(10 * sum(candidate) + (7 * candidate[0] + 3 * candidate[2] + candidate[4]) % 5)


def best_possible(max_ms: float = math.inf, sign: float = 1.0) -> set[tuple[int, ...]]:
    """The front by brute force: all pairs."""
    able = [tuple(map(int, r)) for r, t in zip(ROWS, TIMES, strict=True) if t <= max_ms]
    pairs = [
        (round(float(t), 9), sign * score(r))
        for r, t in zip(able, TIMES[max_ms >= TIMES], strict=True)
    ]
    return {able[i] for i in range(len(able)) if not dominated(i, pairs)}


def search(function: Any = score, journal: Any = None, name: str = "m:f", **options: Any) -> Search:
    objective = FunctionObjective(SPACE, function, name, None if journal is None else str(journal))
    return Search(SPACE, SCORER, objective, **options)


def choices(result: SearchResult) -> set[tuple[int, ...]]:
    return {c.choices for c in result.front}


@pytest.mark.parametrize("quantile", [0.3, 1.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_exhaustive_is_brute_force(quantile: float, sign: float) -> None:
    limit = float(np.quantile(TIMES, quantile))
    found = search(max_ms=limit, sign=sign).run("exhaustive")
    assert choices(found) == best_possible(limit, sign)
    assert len(found.scored) == (limit >= TIMES).sum()
    assert [c.latency_ms for c in found.front] == sorted(c.latency_ms for c in found.front)


def dominated_area(times: np.ndarray, scores: np.ndarray, limit: float) -> float:
    """How much of the plane up to `limit` ms is below the front: the area under its steps."""
    order = np.argsort(times)
    best = np.maximum.accumulate(np.maximum(scores[order], 0.0))
    return float(best @ np.diff(np.append(times[order], limit)))


def test_evolution_beats_as_many_random_candidates() -> None:
    space = nasbench201.space()
    scorer = space.scorer(MODEL)
    worth = np.array([0.0, 1.0, 3.0, 4.0, 1.5])

    def smooth(candidate: tuple[int, ...]) -> float:
        straight = worth[list(candidate)]
        return float(straight.sum() + min(straight[0], straight[2]) + min(straight[2], straight[5]))

    limit = float(scorer.latency(np.full((1, 6), 3))[0])
    gains = []
    for seed in range(4):
        wanted = Search(space, scorer, FunctionObjective(space, smooth, "smooth", None))
        found = wanted.run("evolutionary", 150, 10, seed).scored
        times = np.array([c.latency_ms for c in found])
        ours = dominated_area(times, np.array([c.score for c in found]), limit)
        rows = space.sample(150, seed)
        scores = np.array([smooth(tuple(r)) for r in rows])
        gains.append(ours / dominated_area(scorer.latency(rows), scores, limit))
    assert min(gains) > 1.0
    assert np.mean(gains) > 1.02


def test_which_method_and_seed() -> None:
    assert search().run(samples=72).method == "exhaustive"
    assert search().run(samples=71).method == "evolutionary"
    runs = [search().run("evolutionary", 20, 4, seed).scored for seed in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_only_candidates_within_the_time_are_scored() -> None:
    scored: list[tuple[int, ...]] = []

    def counting(candidate: tuple[int, ...]) -> float:
        scored.append(candidate)
        return score(candidate)

    limit = float(np.quantile(TIMES, 0.12))
    found = search(counting, max_ms=limit).run("evolutionary", samples=40, generations=4)
    assert len(scored) == len(set(scored)) == len(found.scored) == (limit >= TIMES).sum()
    assert max(SCORER.latency(np.array(scored))) <= limit
    assert choices(found) == best_possible(limit)


def test_what_cannot_be_searched() -> None:
    for method in ("evolutionary", "exhaustive"):
        with pytest.raises(AnswerIsNo, match=rf"small is within 0.01 ms; .* {TIMES.min():.3g} ms"):
            search(max_ms=0.01).run(method)
    for samples, generations in ((0, 1), (5, 0)):
        with pytest.raises(InputError, match="expected whole numbers from 1"):
            search().run(None, samples, generations)
    with pytest.raises(InputError, match="method 'luck': expected exhaustive or evolutionary"):
        search().run("luck")
    space = fbnet.space()
    wanted = Search(space, space.scorer(MODEL), FunctionObjective(space, score, "mine", None))
    with pytest.raises(InputError, match="int64"):
        wanted.run("exhaustive")
    found = wanted.run(samples=30, generations=3)
    assert (found.method, len(found.scored)) == ("evolutionary", 30)


def test_candidates_without_a_score_are_left_out() -> None:
    def broken(candidate: tuple[int, ...]) -> float:
        return math.nan if candidate[0] else score(candidate)

    found = search(broken).run("exhaustive")
    assert (len(found.scored), found.unscored) == (36, 36)
    assert all(c.choices[0] == 0 for c in found.front)
    assert search(broken).run("evolutionary", 30, 3).unscored > 0
    assert search(lambda candidate: math.inf).run("evolutionary", 9, 3).front == ()


# ---- Objectives and their journal.


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
    def fails(candidate: tuple[int, ...]) -> float:
        if candidate[1] == 2:
            raise RuntimeError("out of\nmemory")
        return 1.0

    journal = tmp_path / "scores.csv"
    with pytest.raises(InputError, match=r"m:f of 0-2-0-0-0 .*: out of memory; .* so far are in"):
        search(fails, journal).run("exhaustive")
    assert len(journal.read_text().splitlines()) == 1 + 2 * 3 * 2 * 2
    with pytest.raises(InputError, match="expected a number"):
        search(lambda candidate: "high").run("exhaustive")


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path) -> None:
    journal = tmp_path / "scores.csv"
    whole = search().run("evolutionary", 30, 5, seed=1)
    calls: list[int] = []

    def interrupted(candidate: tuple[int, ...]) -> float:
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return score(candidate)

    with pytest.raises(KeyboardInterrupt):
        search(interrupted, journal).run("evolutionary", 30, 5, seed=1)
    with open(journal, newline="") as file:
        assert len(list(csv.DictReader(file))) == 16
    second = search(interrupted, journal)
    assert second.objective.reused == 16  # type: ignore[attr-defined]
    assert second.run("evolutionary", 30, 5, seed=1) == whole
    assert len(calls) == 31  # the interrupted one again, none of the others
    # And as a table of scores, for another search.
    table = Search(SPACE, SCORER, TableObjective(SPACE, str(journal))).run()
    assert table.front == whole.front


def test_half_a_line_at_the_end_of_a_journal_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"

    def of_four() -> FunctionObjective:
        objective = FunctionObjective(SPACE, score, "m:f", str(path))
        for row in ROWS[:4]:
            objective.score(row)
        return objective

    of_four()
    text = path.read_bytes()
    path.write_bytes(text[:-9])
    second = of_four()
    assert (second.reused, second.computed) == (3, 1)
    assert path.read_bytes() == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "arch,score,objective\n0-0-0-0-0,0.25,m:g\n",
            "scores of m:g, not of m:f; give another journal",
        ),
        # Not ours, so nothing to mend.
        ("arch,score\n0-0-0-0-0,0.25", "an objective without a name"),
        ("a,b\n1,2\n", "lacks the columns arch, score"),
    ],
)
def test_a_journal_of_something_else_is_left_alone(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        search(journal=path)
    assert path.read_text() == text


def test_scores_from_a_table(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    chosen = {tuple(int(n) for n in r) for r in ROWS[::3]}
    path.write_text("Arch,Score\n" + "".join(f"{SPACE.arch(r)},{score(r)}\n" for r in chosen))
    wanted = Search(SPACE, SCORER, TableObjective(SPACE, str(path)))
    found = wanted.run()
    assert found.method == "exhaustive"
    assert {c.choices for c in found.scored} == chosen
    some = wanted.run("evolutionary", 30, 3)
    assert some.unscored + len(some.scored) == 30
    assert {c.choices for c in some.scored} <= chosen


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty; expected .*arch,score"),
        ("arch,latency\n", "lacks the column score; expected .*arch,score"),
        ("arch,score\n0-0-0-0-0,1\n0-0-0-0-9,2\n", "line 3 has 9 at position 4"),
        ("arch,score\n0-0-0-0-0,high\n", "line 2: score is 'high'"),
        ("arch,score\n0-0-0-0-0,inf\n", "line 2: score is 'inf'"),
        ("arch,score\n,1\n", "line 2: arch is empty"),
        ("arch,score\n0-0-0-0-0,1\n0-0-0-0-0,2\n", "line 3: .* score 2 here and 1 further up"),
    ],
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        TableObjective(SPACE, str(path))


# ---- What is shown.


def test_the_shown_front_is_of_whole_networks() -> None:
    wanted = search(max_ms=float(np.median(TIMES)))
    found = answer(wanted, wanted.run("exhaustive"), MODEL)
    for candidate, prediction in zip(found.result.front, found.predictions, strict=True):
        assert prediction.latency_ms == pytest.approx(candidate.latency_ms, abs=1e-9)
        assert prediction.counts["flops"] == SPACE.counts(np.array([candidate.choices]))[0, 2]
    text = list(lines(found))
    assert text[0].startswith("small: 72 candidates, exhaustive search: 36 scored within")
    assert len([line for line in text if line.endswith(found.result.front[0].arch)]) == 1
    assert max(map(len, text[1:-1])) < 80


def test_a_long_front_is_thinned_where_it_is_shown() -> None:
    space = nasbench201.space()
    scorer = space.scorer(MODEL)
    objective = FunctionObjective(space, lambda c: scorer.latency(np.array([c]))[0], "slow", None)
    wanted = Search(space, scorer, objective)
    found = answer(wanted, wanted.run("evolutionary", 40, 2), MODEL)
    assert len(found.result.front) > 20
    text = list(lines(found))
    assert sum("~0|" in line for line in text) == 20
    assert f"20 of the {len(found.result.front)} are shown" in "\n".join(text)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            "nothing",
            "no space 'nothing'; expected nasbench201, fbnet, fbnet-cifar, ofa, mobile or package.module",
        ),
        ("no.such:thing", "no module 'no.such' for space"),
        ("tests.nas.test_space:none", "has no 'none'"),
        ("tests.nas.test_space:SIDE.real.imag", "failed: TypeError"),
        ("tests.nas.test_space:every", "returned a tuple; expected"),
        ("a b:c", "no space 'a b:c'"),
    ],
)
def test_a_space_that_there_is_not(spec: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_space(spec)


def test_spaces_and_functions_by_name() -> None:
    assert find_space("fbnet").size == 9**22
    assert find_space("tests.nas.test_space:small").name == "small"
    assert isinstance(find_space("tests.nas.test_pareto:SPACE"), Space)
    assert find_function("tests.nas.test_pareto:score")((1, 0, 0, 0, 0)) == 12.0
    with pytest.raises(InputError, match=r"of type int; expected package\.module:callable"):
        find_function("tests.nas.test_space:SIDE")
