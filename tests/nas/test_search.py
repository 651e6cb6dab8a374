"""Searches against brute force over the whole space; what is shown."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat import nas
from lolat.api.model import Model
from lolat.device.prediction import Prediction
from lolat.errors import AnswerIsNo, InputError
from lolat.nas import Space, search, spaces
from lolat.nas.archive import front
from lolat.nas.latency import Answer
from lolat.nas.objective import Objective
from lolat.nas.search_result import FrontCandidate, SearchResult
from lolat.nas.user_code import find_space
from lolat.units import between, milliseconds
from tests import synthetic
from tests.nas.test_space import small
from tests.training import known_device

MODEL = Model(synthetic.document())
SPACE = small()
ROWS = SPACE.decode(np.arange(SPACE.size))
TIMES = nas.estimator(SPACE, MODEL).latency(ROWS)

# ---- The front.

# Few values, so that many are equal; a NaN is on no front.
VALUES = st.integers(0, 6).map(float) | st.just(math.nan)
PAIRS = st.lists(st.tuples(VALUES, VALUES), max_size=40)


def undominated(pairs: list[tuple[float, float]]) -> list[int]:
    """Brute force: no other is as good in both and better in one, or the same and earlier."""
    able = [i for i, (latency, score) in enumerate(pairs) if latency == latency and score == score]

    def beats(j: int, i: int) -> bool:
        (t, s), (latency, score) = pairs[j], pairs[i]
        return t <= latency and s >= score and ((t, s) != (latency, score) or j < i)

    return [i for i in able if not any(beats(j, i) for j in able if j != i)]


def distinct(pairs: list[tuple[float, float]]) -> list[int]:
    """Those of `undominated` that no better one equals in the latency's printed digits."""
    shown = [milliseconds(latency) for latency, _ in pairs]
    return [
        i
        for i in undominated(pairs)
        if not any(w == shown[i] and pairs[j][1] > pairs[i][1] for j, w in enumerate(shown))
    ]


@given(PAIRS)
def test_a_front_is_of_all_that_none_dominates(pairs: list[tuple[float, float]]) -> None:
    latencies, scores = np.array(pairs, float).reshape(-1, 2).T
    best = front(latencies, scores)
    assert sorted(best) == undominated(pairs)
    assert latencies[best].tolist() == sorted(latencies[best])


# ---- Searches.


def score(candidate: tuple[int, ...]) -> float:
    """Large where the time is long, but not always."""
    return float(10 * sum(candidate) + (7 * candidate[0] + 3 * candidate[2] + candidate[4]) % 5)


def choices(result: SearchResult) -> set[tuple[int, ...]]:
    return {c.candidate for c in result.front}


class Recorder:
    """A score that remembers each candidate."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def __call__(self, candidate: tuple[int, ...]) -> float:
        self.rows.append(candidate)
        return score(candidate)


@pytest.mark.parametrize("quantile", [0.12, 0.3, 1.0])
@pytest.mark.parametrize("low", [False, True])
def test_exhaustive_is_brute_force(quantile: float, low: bool) -> None:
    """And only candidates within the time are scored, each once."""
    limit, recorder = float(np.quantile(TIMES, quantile)), Recorder()
    result = search(SPACE, MODEL, recorder, max_ms=limit, lower_is_better=low, candidates=72)
    able = [tuple(map(int, row)) for row in ROWS[limit >= TIMES]]
    assert sorted(recorder.rows) == sorted(able)
    sign = -1.0 if low else 1.0
    pairs = [
        (float(t), sign * score(r))
        for r, t in zip(able, TIMES[limit >= TIMES].round(9), strict=True)
    ]
    assert choices(result) == {able[i] for i in distinct(pairs)}
    assert (result.method, result.scored) == ("exhaustive", len(able))
    assert [c.latency_ms for c in result.front] == sorted(c.latency_ms for c in result.front)


CELLS = spaces.nasbench201.space()
WORTH = np.array([0.0, 1.0, 3.0, 4.0, 1.5])


def smooth(candidate: tuple[int, ...]) -> float:
    """A score of cells in which two pairs of edges go together."""
    straight = WORTH[list(candidate)]
    return float(straight.sum() + min(straight[0], straight[2]) + min(straight[2], straight[5]))


def climbed(start: tuple[int, ...], limit: float) -> float:
    """The score at the end of a steepest ascent, one choice at a time, within the time."""
    best, score = np.array(start), smooth(start)
    while True:
        near = np.array([np.where(np.arange(6) == p, c, best) for p in range(6) for c in range(5)])
        near = near[nas.estimator(CELLS, MODEL).latency(near) <= limit]
        scores = [smooth(tuple(row)) for row in near]
        if max(scores) <= score:
            return score
        best, score = near[int(np.argmax(scores))], max(scores)


@pytest.mark.parametrize("seed", range(4))
def test_climbing_from_the_front_finds_nothing_better(seed: int) -> None:
    limit = float(np.quantile(nas.estimator(CELLS, MODEL).latency(CELLS.sample(2000)), 0.6))
    result = search(CELLS, MODEL, smooth, candidates=150, seed=seed, max_ms=limit)
    best = max(climbed(c.candidate, limit) for c in result.front)
    assert result.front[-1].score == best


def test_the_same_seed_finds_the_same() -> None:
    assert search(SPACE, MODEL, score, candidates=72).method == "exhaustive"
    runs = []
    for seed in (3, 3, 4):
        recorder = Recorder()
        search(CELLS, MODEL, recorder, candidates=20, seed=seed)
        runs.append(recorder.rows)
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize("coverage", [0.5, 0.95])
@pytest.mark.parametrize("candidates", [20, 40, 72])  # 29 keep the time: all are scored, or some
def test_the_ends_of_the_intervals_keep_the_time(coverage: float, candidates: int) -> None:
    """The intervals are those of `predict`."""
    ends = []
    for row in ROWS:
        interval = MODEL.predict(SPACE.network(row), coverage=coverage).interval_ms
        assert interval is not None
        ends.append(interval[1])
    limit = float(np.quantile(ends, 0.4))
    result, in_percent = (
        search(SPACE, MODEL, score, max_ms=limit, candidates=candidates, **asked)
        for asked in ({"sure": True, "coverage": coverage}, {"sure": 100 * coverage})
    )
    assert in_percent == result
    able = [i for i, end in enumerate(ends) if end <= limit]
    found = {tuple(ROWS[i].tolist()) for i in able}
    assert choices(result) <= found
    assert (result.method, result.scored) == (
        ("evolutionary", 20) if candidates == 20 else ("exhaustive", len(able))
    )
    if candidates > 20:
        pairs = [(float(TIMES[i].round(9)), score(tuple(ROWS[i].tolist()))) for i in able]
        assert choices(result) == {tuple(ROWS[able[i]].tolist()) for i in distinct(pairs)}
    assert result.report().count(f" within {limit:g} ms ({100 * coverage:g} % sure)") == 2
    with pytest.raises(InputError, match="sure"):
        search(SPACE, MODEL, score, sure=True)
    with pytest.raises(AnswerIsNo, match="for sure; the fastest takes up to"):
        search(SPACE, MODEL, score, max_ms=min(ends) * 0.99, sure=True, coverage=coverage)


GPU = Model(known_device.document(mode={"dtype": "amp"}))


@pytest.mark.parametrize("sure", [False, True])
@pytest.mark.parametrize("candidates", [8, 72])
def test_a_front_on_several_devices_keeps_each_limit(sure: bool, candidates: int) -> None:
    """Brute force: each device's own prediction of each network, which the GPU's parts estimate."""
    networks = map(SPACE.network, ROWS)
    whole = [(MODEL.predict(net), GPU.predict(net, batch_size=8)) for net in networks]

    def end(one: Prediction) -> float:
        return one.interval_ms[1] if sure and one.interval_ms else one.latency_ms

    ends = np.array([[*map(end, pair)] for pair in whole])
    limits = np.quantile(ends, 0.6, axis=0)
    limits[1] = np.quantile(ends[ends[:, 0] <= limits[0], 1], 0.5)  # so that both leave some out
    able = [i for i in range(len(ROWS)) if (ends[i] <= limits).all()]
    assert 8 < len(able) < (ends[:, 0] <= limits[0]).sum()
    asked: dict[str, Any] = {"max_ms": limits.tolist(), "batch_size": [1, 8], "sure": sure}
    result = search(SPACE, [MODEL, GPU], score, candidates=candidates, **asked)
    found = [[*map(tuple, ROWS.tolist())].index(c.candidate) for c in result.front]
    assert found
    assert {*found} <= {*able}
    if candidates == 72:
        pairs = [(float(TIMES[i].round(9)), score(tuple(ROWS[i].tolist()))) for i in able]
        assert {*found} == {able[i] for i in distinct(pairs)}
    for i, candidate in zip(found, result.front, strict=True):
        (other,) = candidate.others
        assert (other.batch_size, other.latency_ms) == (8, whole[i][1].latency_ms)
        assert (other.interval_ms, other.in_domain) == (
            whole[i][1].interval_ms,
            whole[i][1].in_domain,
        )
    row = result.rows()[0]
    assert row[f"latency_ms_{GPU.label}_batch_8"] == whole[found[0]][1].latency_ms
    assert row[f"host_bound_{GPU.label}_batch_8"] == whole[found[0]][1].host_bound
    assert row[f"memory_bytes_{GPU.label}_batch_8"] == whole[found[0]][1].memory_bytes
    assert f"on {GPU.label}" in result.report()
    with pytest.raises(AnswerIsNo) as caught:
        search(SPACE, [MODEL, GPU], score, **asked | {"max_ms": [limits[0], 1e-6]})
    nearest = ends[:, 1].argmin()
    assert milliseconds(ends[nearest, 1]) in str(caught.value)


@pytest.mark.parametrize("candidates", [8, 72])
def test_the_number_of_candidates_that_keep_the_limit_is_told(candidates: int) -> None:
    limit = float(np.quantile(TIMES, 0.4))
    found = search(SPACE, MODEL, score, max_ms=limit, candidates=candidates)
    few = int((limit >= TIMES).sum())
    assert (found.within, found.compared) == (few, 72)
    told = f"\n{few} of 72 candidates keep this limit\n" in found.report()
    assert told is (candidates < few)
    without = search(SPACE, MODEL, score, candidates=candidates)
    assert (without.within, "keep this" in without.report()) == (None, False)


@pytest.mark.parametrize("sure", [False, True])
def test_the_number_by_sums_of_parts_is_called_about(sure: bool) -> None:
    """By whole networks, one by one, the parts' sums of a GPU are not exact; nor is an interval's end."""
    networks = [SPACE.network(row) for row in ROWS]
    whole = [GPU.predict(network).latency_ms for network in networks]
    assert not np.allclose(nas.estimator(SPACE, GPU).latency(ROWS), whole, rtol=1e-6)
    found = search(SPACE, GPU, score, max_ms=1.2 * max(whole), candidates=9)
    assert "\nabout 72 of 72 candidates keep this limit\n" in found.report()
    assert found.exact is False
    longest = 2.0 * float(TIMES.max())
    found = search(SPACE, MODEL, score, max_ms=longest, sure=sure, candidates=9)
    assert ("\nabout " in found.report()) is sure


def by_choices(candidate: tuple[int, ...]) -> float:
    return float(sum(candidate))


def test_of_a_large_space_candidates_are_drawn_to_tell_how_many_keep_the_limit() -> None:
    large, device = spaces.fbnet.space(), lolat.load("epyc-2t")
    rows = large.sample(500, seed=7)
    limit = float(np.median(nas.estimator(large, device).latency(rows)))
    found = search(large, device, by_choices, max_ms=limit, candidates=2)
    assert found.compared == 2000
    assert found.within is not None
    assert 850 < found.within < 1150  # half of them, three standard deviations of both samples
    assert "of 2,000 candidates drawn at random keep this limit\n" in found.report()


def test_a_table_of_a_search_has_columns_without_spaces() -> None:
    (row, *_) = search(SPACE, [MODEL, GPU], score, max_ms=1e6).rows()
    assert [name for name in row if " " in name] == [
        p.name for p in SPACE.positions if " " in p.name
    ]


def test_scores_reach_the_disk_once_a_second_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is in the file at once, so that only a loss of power could take those of a second."""
    path, lines, synced, now = tmp_path / "s.csv", [], [], [100.0]
    monkeypatch.setattr("lolat.nas.objective.time.monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(path.read_text().count("\n")))

    def slow(candidate: tuple[int, ...]) -> float:
        lines.append(path.read_text().count("\n") if path.exists() else 0)
        now[0] += 0.25
        return score(candidate)

    search(SPACE, MODEL, slow, accuracy=path, candidates=72)
    assert lines == [0, *range(2, 73)]
    assert synced == [2, *range(6, 74, 4), 73]


def test_several_devices_have_one_value_for_all_or_one_for_each() -> None:
    both = search(SPACE, [MODEL, GPU], score, max_ms=1e6, batch_size=8)
    each = search(SPACE, [MODEL, GPU], score, max_ms=[1e6, 1e6], batch_size=[8, 8])
    assert both == each
    assert both.front[0].others
    for wrong in ({"max_ms": [1, 2, 3]}, {"batch_size": [1, 2, 3]}, {"max_ms": []}):
        with pytest.raises(InputError, match="one value, or 2, one for each device"):
            search(SPACE, [MODEL, GPU], score, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected one value$"):
        search(SPACE, MODEL, score, max_ms=[1, 2])
    with pytest.raises(InputError, match="empty"):
        search(SPACE, [], score)


def test_the_answer_tells_its_best_and_what_may_change_it(tmp_path: Path) -> None:
    """By hand: the score rises with the number of calls, or falls."""
    seen: list[str] = []
    for sign, rising in ((1, True), (-1, False)):
        seen.clear()
        kept: dict[str, Any] = {
            "candidates": 30,
            "accuracy": tmp_path / (f"{sign}.csv" + ".gz" * rising),
        }

        def moving(arch: str, sign: int = sign) -> float:
            seen.append(arch)
            return sign * len(seen)

        for _ in range(2):  # and when the file has all scores
            result = search(CELLS, MODEL, moving, **kept)
            assert result.improving is rising
            assert ("still rose" in result.report()) is rising
        assert len(seen) == 30
    assert len(gzip.decompress((tmp_path / "1.csv.gz").read_bytes()).splitlines()) == 1 + 30
    best, limit = result.front[-1], 1.01 * result.front[-1].latency_ms
    assert f"Best: {best.arch}, " in result.report()
    late = search(CELLS, MODEL, lambda arch: float(arch == best.arch), candidates=30, max_ms=limit)
    many = sum(c.interval_ms is not None and c.interval_ms[1] > limit for c in late.front)
    assert (f"{many} of {len(late.front)} may take longer than" in late.report()) is (many > 0)


@pytest.mark.parametrize("candidates", [20, 100])
def test_no_candidate_is_within_the_time(candidates: int) -> None:
    with pytest.raises(AnswerIsNo) as caught:
        search(SPACE, MODEL, score, max_ms=0.01, candidates=candidates)
    assert caught.value.answer is not None
    assert caught.value.answer["fastest_ms"] == pytest.approx(TIMES.min())
    interval = MODEL.predict(SPACE.network(ROWS[TIMES.argmin()])).interval_ms
    assert interval is not None
    assert f"takes {TIMES.min():.3g} ms ({between(*interval, TIMES.min())})" in str(caught.value)


def test_candidates_without_a_score_are_left_out() -> None:
    def broken(candidate: tuple[int, ...]) -> float:
        return math.nan if candidate[0] else score(candidate)

    result = search(SPACE, MODEL, broken)
    assert (result.scored, result.unscored) == (36, 36)
    assert all(c.candidate[0] == 0 for c in result.front)
    assert search(SPACE, MODEL, broken, candidates=30).unscored > 0
    for candidates in (9, 100):
        with pytest.raises(AnswerIsNo, match="no finite number for any of"):
            search(SPACE, MODEL, lambda candidate: math.inf, candidates=candidates)


# ---- What is shown, and names.


@pytest.mark.parametrize(
    ("model", "batch_size"), [(MODEL, 1), (Model(known_device.document(mode={"dtype": "amp"})), 8)]
)
def test_the_front_is_of_whole_networks(model: Model, batch_size: int) -> None:
    limit = float(np.median(nas.estimator(SPACE, model, batch_size).latency(ROWS)))
    front = search(SPACE, model, score, max_ms=limit, batch_size=batch_size).front
    assert front
    for candidate in front:
        whole = model.predict(SPACE.network(candidate.candidate), batch_size)
        assert candidate.latency_ms == pytest.approx(whole.latency_ms, abs=1e-9)
        assert candidate.interval_ms == whole.interval_ms
        assert candidate.latency_ms <= limit


def test_spaces_and_functions_by_name() -> None:
    assert find_space("fbnet").size == 9**22
    assert find_space("fbnet") is find_space("fbnet")  # what it worked out is kept
    assert find_space("tests.nas.test_space:small").name == "small"
    assert isinstance(find_space("tests.nas.test_search:SPACE"), Space)
    assert Objective(SPACE, "tests.nas.test_search:score").score(ROWS[0]) == score(tuple(ROWS[0]))
    with pytest.raises(InputError):
        Objective(SPACE, "tests.nas.test_space:SIDE")
    for wrong in ("nothing", "tests.nas.test_space:none", "tests.nas.test_space:every"):
        with pytest.raises(InputError):
            find_space(wrong)


def test_the_tutorial_names_the_columns_of_the_front() -> None:
    """Those of a candidate with its three choices, in the order of the file."""
    choices = {"width": 8, "depth": 2, "kernel": 3}
    whole = vars(Answer(1.0, None, None, True, 1.0, False, 64, True, ()))
    one = FrontCandidate(**whole, arch="0-1-0", candidate=(0, 1, 0), choices=choices, score=0.5)
    found = SearchResult(
        "space", 8, 1, "extended", "formula", "epyc-2t", "epyc-2t", "exhaustive", 2.0, 8, 0, (one,)
    ).rows()
    page = Path(__file__).parents[2] / "docs" / "tutorial" / "search.md"
    assert f"`{','.join(found[0])}`" in page.read_text(encoding="utf-8")
