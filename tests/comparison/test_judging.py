"""Left out means left out; networks of an evaluation; speed by a clock that does not tick by itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat.comparison.judging as module
from lolat.comparison.candidates import CANDIDATES, Candidate
from lolat.comparison.judging import (
    NetworkTime,
    count_networks,
    judge,
    many_rows,
    read_evaluation,
    speeds,
    steps,
)
from lolat.errors import InputError, NetworkError
from lolat.fitting.points import Point, matrix, times
from lolat.fitting.predictors.extended import TERMS
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, FEATURES
from lolat.model import Model
from microbench.evaluate import compare
from tests import synthetic

NONE = np.empty((0, len(COLUMNS)))


@dataclass
class Remembers:
    """Answers with how often it saw the counts that it is asked about."""

    seen: np.ndarray

    def one(self, counts: Any) -> float:
        return float((self.seen == np.asarray(counts)).all(axis=1).sum())

    def many(self, columns: Any, out: np.ndarray) -> np.ndarray:
        out[:] = [self.one(row) for row in np.column_stack(columns)]
        return out


def remembering(needs: tuple[str, ...] = ("flops", "acts"), **more: Any) -> Candidate:
    return Candidate(
        "remembers", "remembers", "", needs, lambda x, t, names: Remembers(x), lambda f: 0, **more
    )


def block_flops(points: list[Point], name: str) -> set[int]:
    return {p.counts["flops"] for p in points if p.name == name}


def test_no_batch_size_of_a_block_is_seen_when_it_is_left_out() -> None:
    points = synthetic.measured(blocks=23, batches=(1, 2, 4))
    sizes = []

    @dataclass
    class Blocks:
        flops: set[float]

        def many(self, columns: Any, out: np.ndarray) -> np.ndarray:
            for i, value in enumerate(columns[0]):
                name = next(p.name for p in points if p.counts["flops"] == value)
                out[i] = len(block_flops(points, name) & self.flops)
            return out

    def fit(x: np.ndarray, t: np.ndarray, names: Any) -> Any:
        sizes.append(len(t))
        return Blocks(set(x[:, 0]))

    found = judge(points, NONE, [Candidate("b", "b", "", ("flops",), fit, lambda f: 0)])
    assert found.judged[0].left_out_ms.tolist() == [0.0] * 69
    assert found.folds == 10
    # 23 blocks in 10 folds: two or three blocks are left out, with three points each.
    assert sizes == [60] * 3 + [63] * 7 + [69]
    assert found.fitted_on == (60, 63)


def test_all_points_are_fitted_for_networks_and_asked_in_the_right_columns() -> None:
    points = synthetic.measured(blocks=12)
    networks = np.array([[points[4].counts[c] for c in COLUMNS], [7.0] * len(COLUMNS)])
    found = judge(points, networks, [remembering()])
    assert found.judged[0].networks_ms.tolist() == [1.0, 0.0]
    assert found.judged[0].features == ("flops", "acts")


def test_every_fit_is_reported_even_of_what_is_missing() -> None:
    points = synthetic.measured(blocks=4, columns=FEATURES)
    candidates = [remembering(), remembering(("patches",))]
    called: list[int] = []
    found = judge(points, NONE, candidates, lambda: called.append(1))
    assert len(called) == steps(points, candidates) == 2 * 5
    assert found.missing == {"remembers": "not all points have patches"}


def test_the_real_ones_follow_points_made_by_a_formula() -> None:
    points = synthetic.measured(blocks=20, batches=(1, 4), noise=0.0, columns=FEATURES)
    chosen = [c for c in CANDIDATES if c.name in ("extended", "flops")]
    found = {j.candidate.name: j for j in judge(points, NONE, chosen).judged}
    np.testing.assert_allclose(found["extended"].left_out_ms, times(points), rtol=1e-3)
    assert found["extended"].candidate.numbers(found["extended"].fitted) == len(FEATURES) + 1
    assert np.median(abs(found["flops"].left_out_ms / times(points) - 1)) > 0.05


def test_the_formula_is_judged_as_it_is_measured() -> None:
    """Blocks that take half a millisecond longer alone than in networks, and networks that do not."""
    points = [
        replace(p, whole=i % 2 == 0, latency_ms=p.latency_ms + 0.5 * (i % 2))
        for i, p in enumerate(synthetic.measured(blocks=80, batches=(1, 4, 5), noise=0.0))
    ]
    chosen = [c for c in CANDIDATES if c.name == "extended"]
    networks = matrix(points, COLUMNS)
    (found,) = judge(points, networks, chosen).judged
    assert found.features == TERMS
    assert np.median(abs(found.left_out_ms / times(points) - 1)) < 0.03
    inside = times(points) - [0.0 if p.whole else 0.5 for p in points]
    assert np.median(abs(found.networks_ms / inside - 1)) < 0.05
    assert found.candidate.numbers(found.fitted) == len(TERMS) + 1 + len(found.fitted.alone)  # type: ignore[attr-defined]
    assert found.fitted.alone["call"] > 0.3  # type: ignore[attr-defined]


def test_a_table_of_three_counts_leaves_out_what_needs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lolat.comparison.judging.FOLDS", 3)
    points = synthetic.measured(blocks=20, batches=(1,), columns=("acts", "inp", "flops"))
    chosen = [c for c in CANDIDATES if c.name != "gaussian-process"]
    found = judge(points, NONE, chosen)
    assert found.missing == {
        "extended": "not all points have traffic, weights, ops",
        "paleo": "not all points have traffic, weights",
    }
    forest = next(j for j in found.judged if j.candidate.name == "random-forest")
    assert forest.features == ("acts", "inp", "flops")


def test_too_few_points_for_a_formula_are_said() -> None:
    points = synthetic.measured(blocks=5, batches=(1, 2))
    chosen = [c for c in CANDIDATES if c.name in ("extended", "two-regime")]
    found = judge(points, NONE, chosen)
    assert [j.candidate.name for j in found.judged] == ["two-regime"]
    assert found.missing == {
        "extended": "a fit needs 21 points; 8 are left without the blocks left out"
    }


@pytest.mark.parametrize(
    ("blocks", "words"),
    [(0, "points are of 0 block"), (1, "of 1 block"), (2, "too few to compare")],
)
def test_what_cannot_be_judged_is_refused(blocks: int, words: str) -> None:
    points = synthetic.measured(blocks=max(blocks, 1), batches=(1,))[:blocks]
    with pytest.raises(InputError, match=words):
        judge(points, NONE)


# ---- An evaluation read again: its networks counted, what is wrong with it named


ROW = {"network": "keras:A", "batch_size": 2, "measured_ms": 3.5}


def written(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "e.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_what_evaluate_prints_is_read(tmp_path: Path) -> None:
    model = Model(synthetic.document())
    graph = synthetic.network()
    measured = [
        synthetic.Measured("keras:A", graph, 1, 3.5),
        synthetic.Measured("m:b", graph, 4, 9.0),
    ]
    found, device = read_evaluation(written(tmp_path, compare(model, measured, {})))
    assert found == [NetworkTime("keras:A", 1, 3.5), NetworkTime("m:b", 4, 9.0)]
    assert device == "a desk, 2 threads"


def test_sizes_and_blocks_are_kept(tmp_path: Path) -> None:
    rows = [{**ROW, "input_size": [96, 96, 3], "block": 0}, {**ROW, "input_size": None}]
    found, device = read_evaluation(written(tmp_path, {"networks": rows}))
    assert found[0] == NetworkTime("keras:A", 2, 3.5, (96, 96, 3), 0)
    assert found[0].label == "keras:A 96x96x3 block 0"
    assert found[1].label == "keras:A"
    assert device is None


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("hello", "not JSON"),
        ("[1]", "Expected `object`"),
        ({"schema": "lolat-model"}, "missing required field `networks`"),
        ({"networks": []}, r"at `\$.networks`"),
        ({"networks": [3]}, r"at `\$.networks\[0\]`"),
        ({"networks": [ROW, {**ROW, "network": 3}]}, r"at `\$.networks\[1\].network`"),
        ({"networks": [{**ROW, "batch_size": 0}]}, r"at `\$.networks\[0\].batch_size`"),
        ({"networks": [{**ROW, "batch_size": True}]}, r"at `\$.networks\[0\].batch_size`"),
        ({"networks": [{**ROW, "measured_ms": 0}]}, r"at `\$.networks\[0\].measured_ms`"),
        ({"networks": [{**ROW, "measured_ms": float("nan")}]}, "not JSON"),
        ({"networks": [{"network": "a"}]}, r"missing required field `batch_size` - at `\$.networks\[0\]`"),
        ({"networks": [{**ROW, "input_size": [0]}]}, r"at `\$.networks\[0\].input_size\[0\]`"),
        ({"networks": [{**ROW, "input_size": "96"}]}, r"at `\$.networks\[0\].input_size`"),
        ({"networks": [{**ROW, "block": "stem"}]}, r"at `\$.networks\[0\].block`"),
    ],
)  # fmt: skip
def test_what_is_no_evaluation_is_named(tmp_path: Path, document: Any, words: str) -> None:
    with pytest.raises(InputError, match=rf"e\.json: .*{words}"):
        read_evaluation(written(tmp_path, document))


GRAPH = synthetic.network()


def test_networks_are_read_once_and_counted_at_each_batch_size() -> None:
    asked: list[tuple[str, Sequence[int]]] = []

    def reader(spec: str, size: Sequence[int]) -> Graph:
        asked.append((spec, size))
        return GRAPH

    wanted = [
        NetworkTime("a", 1, 1.0),
        NetworkTime("a", 4, 1.0),
        NetworkTime("a", 1, 1.0, (96,)),
        NetworkTime("a", 2, 1.0, (), 0),
    ]
    called: list[int] = []
    kept, counts, skipped = count_networks(wanted, reader, lambda: called.append(1))
    assert asked == [("a", ()), ("a", (96,))]
    assert kept == wanted
    assert skipped == {}
    assert len(called) == 4
    for row, batch_size in zip(counts[:3], (1, 4, 1), strict=True):
        expected = synthetic.totals(GRAPH, batch_size)
        assert row.tolist() == [expected[c] for c in COLUMNS]
    # The stem: a 3x3 convolution of 3 channels to 32 at 56x56, twice.
    assert counts[3, COLUMNS.index("acts")] == 2 * 56 * 56 * 32
    assert counts[3, COLUMNS.index("flops")] >= 2 * 56 * 56 * 32 * 27


def test_what_cannot_be_read_is_skipped_with_its_reason() -> None:
    def reader(spec: str, size: Sequence[int]) -> Graph:
        if spec == "gone":
            raise NetworkError("no network 'gone'")
        return GRAPH

    wanted = [
        NetworkTime("gone", 1, 1.0),
        NetworkTime("gone", 2, 1.0),
        NetworkTime("here", 1, 1.0, (), 99),
        NetworkTime("here", 1, 1.0),
    ]
    kept, counts, skipped = count_networks(wanted, reader)
    assert kept == wanted[3:]
    assert len(counts) == 1
    assert skipped["gone"] == "no network 'gone'"
    assert skipped["here block 99"].startswith("'hand made' has no block 99: expected 0 to ")
    assert len(skipped) == 2


# ---- Timing with a clock that does not tick by itself


class Clock:
    """Stands still but for what is added."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Takes:
    """Takes `row_s` for each row and `one_s` for one query; in all rounds but one, three times that."""

    def __init__(self, clock: Clock, row_s: float, one_s: float) -> None:
        self.clock, self.row_s, self.one_s = clock, row_s, one_s
        self.asked: list[int] = []
        self.width = 0

    def one(self, counts: Any) -> float:
        self.clock.now += self.disturbed() * self.one_s
        return 0.0

    def many(self, columns: Any, out: np.ndarray) -> np.ndarray:
        self.asked.append(len(out))
        self.width = len(columns)
        self.clock.now += self.disturbed() * self.row_s * len(out)
        return out

    def disturbed(self) -> float:
        return 1.0 if len(self.asked) == 3 else 3.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    product = np.ndarray.__matmul__

    class Matrix(np.ndarray):
        """A product of it takes a nanosecond for each row."""

        def __matmul__(self, other: Any) -> Any:
            found.now += 1e-9 * len(self)
            return product(self, other)

    monkeypatch.setattr(found, "matrix", lambda x: x.view(Matrix), raising=False)
    return found


def test_each_is_asked_in_turns_and_the_best_round_counts(clock: Clock) -> None:
    rows = clock.matrix(many_rows(np.ones((3, 4)), 20_000))  # type: ignore[attr-defined]
    fast, slow = Takes(clock, 2e-9, 5e-7), Takes(clock, 1e-4, 0.2)
    called: list[int] = []
    found = speeds(
        {"fast": (fast, [0, 2]), "slow": (slow, [1])}, rows, clock, lambda: called.append(1)
    )
    assert len(called) == module.ROUNDS
    assert fast.asked == [1000] + [20_000] * module.ROUNDS
    assert fast.width == 2
    assert found["fast"].rows == 20_000
    assert found["fast"].one_us == pytest.approx(0.5)
    assert found["fast"].million_ms == pytest.approx(2.0)  # 1e6 rows of 2e-9 s
    assert found["fast"].ratio == pytest.approx(2.0)
    assert slow.asked == [1000] * (1 + module.ROUNDS)  # and scaled to a million
    assert found["slow"].rows == 1000
    assert found["slow"].million_ms == pytest.approx(1e5)
    assert found["slow"].ratio == pytest.approx(1e5)
    assert found["slow"].one_us == pytest.approx(2e5)


def test_rows_are_like_the_points() -> None:
    points = np.array([[10.0, 1000.0], [20.0, 0.0]])
    found = many_rows(points, 500)
    assert found.shape == (500, 2)
    assert found.flags.c_contiguous
    first = found[:, 1] > 0
    np.testing.assert_allclose(found[first, 1] / found[first, 0], 100.0)
    assert found[~first, 0].min() >= 10.0
    assert found[~first, 0].max() <= 40.0
    assert 0 < first.sum() < 500
