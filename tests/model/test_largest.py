"""The search against trying everything, and budgets that suffice."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lolat.model.budget import enough, search

NUMBERS = st.integers(1, 60)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 60), st.data())
@example(60, 0, 0, None)
def test_the_search_finds_what_trying_everything_finds(
    count: int, limit: int, refused: int, data: st.DataObject | None
) -> None:
    """1 .. refused cannot be read, up to limit fits; start is a number that can be read."""
    refused = min(refused, count - 1)
    start = data.draw(st.integers(refused + 1, count)) if data else 1
    guess = data.draw(st.integers(1, count)) if data else 1
    verdicts: dict[int, bool | None] = {}

    def fits(i: int) -> bool | None:
        assert i not in verdicts, "asked twice"
        verdicts[i] = None if i <= refused else i <= limit
        return verdicts[i]

    low, high, found = search(fits, count, start, guess)
    good = [i for i in range(refused + 1, count + 1) if i <= limit]
    assert found == bool(good)
    if good:
        assert (low, high) == (max(good), max(good) + 1)
    else:
        assert (low, high) == (refused, refused + 1)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 60), NUMBERS)
def test_what_is_refused_above_ends_the_search(
    start: int, readable: int, limit: int, guess: int
) -> None:
    """Numbers above `readable` cannot be read; the search begins at one that can."""
    start, readable = sorted((start, readable))

    def fits(i: int) -> bool | None:
        return None if i > readable else i <= limit

    low, high, found = search(fits, 60, start, guess)
    assert found == (limit > 0)
    if found:
        assert (low, high) == (min(limit, readable), min(limit, readable) + 1)


def test_a_start_that_is_refused_is_said() -> None:
    assert search(lambda i: None, 9, 4, 7) == (4, 4, False)


def test_a_good_guess_asks_thrice() -> None:
    asked: list[int] = []

    def fits(i: int) -> bool:
        asked.append(i)
        return i <= 50_000

    assert search(fits, 65_536, 1, 50_000) == (50_000, 50_001, True)
    assert len(asked) == 3
    asked.clear()
    assert search(fits, 65_536, 1, 49_000)[0] == 50_000
    assert len(asked) < 25


@given(st.floats(1e-6, 1e9))
def test_a_budget_that_suffices(takes: float) -> None:
    text = enough(takes)
    assert takes <= float(text) <= takes * 1.0101


@pytest.mark.parametrize(
    ("takes", "text"), [(12.04, "12.1"), (12.1, "12.1"), (0.98765, "0.988"), (1234.2, "1.24e+03")]
)
def test_a_budget_has_three_digits(takes: float, text: str) -> None:
    assert float(enough(takes)) == float(text)
