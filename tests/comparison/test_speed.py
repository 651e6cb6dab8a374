"""Timing with a clock that does not tick by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lolat.comparison as module
from lolat.comparison import many_rows, speeds


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


def test_a_million_unless_said_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.ROWS == 1_000_000
    monkeypatch.setattr(module, "ROWS", 12)
    assert len(many_rows(np.ones((1, 1)))) == 12
