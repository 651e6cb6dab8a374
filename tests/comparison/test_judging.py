"""Left out means left out: with a predictor that remembers what it has seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from lolat.comparison import judge, steps
from lolat.comparison.candidates import CANDIDATES, Candidate
from lolat.errors import InputError
from lolat.fitting.points import Point, matrix, times
from lolat.fitting.predictors.extended import TERMS
from lolat.graph.counts import COLUMNS, FEATURES, PLAIN
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
    points = synthetic.measured(blocks=20, batches=(1, 4), noise=0.0, columns=PLAIN)
    chosen = [c for c in CANDIDATES if c.name in ("extended", "flops")]
    found = {j.candidate.name: j for j in judge(points, NONE, chosen).judged}
    np.testing.assert_allclose(found["extended"].left_out_ms, times(points), rtol=1e-3)
    assert found["extended"].candidate.numbers(found["extended"].fitted) == len(PLAIN) + 1
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
    monkeypatch.setattr("lolat.comparison.FOLDS", 3)
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
        "extended": f"a fit needs {len(PLAIN) + 2} points; 8 are left without the blocks left out"
    }


@pytest.mark.parametrize(
    ("blocks", "words"),
    [(0, "points are of 0 block"), (1, "of 1 block"), (2, "too few to compare")],
)
def test_what_cannot_be_judged_is_refused(blocks: int, words: str) -> None:
    points = synthetic.measured(blocks=max(blocks, 1), batches=(1,))[:blocks]
    with pytest.raises(InputError, match=words):
        judge(points, NONE)


def test_names_and_labels_are_unique() -> None:
    for field in ("name", "label"):
        values = [getattr(c, field) for c in CANDIDATES]
        assert len(set(values)) == len(values)
