"""Rows that are left out: three lines at most."""

from __future__ import annotations

from lolat.errors import NetworkError
from lolat.tables.left_out import LeftOut


def test_at_most_three_lines_that_count_every_row() -> None:
    found = LeftOut()
    found.add("on several devices")
    assert [*found.lines("t.csv")] == ["1 row of t.csv left out: on several devices"]
    found = LeftOut()
    found.add("of another device", rows=4)
    for name in ("a", "b", "c"):
        found.network(
            name, f"timm:{name}", NetworkError(f"no network {name}", code="unknown-network")
        )
    assert [*found.lines("t.csv")] == [
        "4 rows of t.csv left out: of another device",
        "3 rows of t.csv left out: a: no network a (and 2 more like it: b, c)",
    ]
    for number in (1, 2):
        found.add(f"cell {number}", "cells", place=f"line {number + 6}")
    assert len([*found.lines()]) == 3
    found.add("on several devices")
    assert [*found.lines()][1:] == [
        "3 left out: a: no network a (and 2 more like it: b, c)",
        "3 left out for 2 other reasons, such as: line 7: cell 1 (and 1 more like it: line 8)",
    ]
    assert str(found).startswith(
        "4 x of another device; 3 x a: no network a (and 2 more like it: b, c); 2 x"
    )
    assert str(found).endswith("; and 1 other reasons")
    assert found.reasons["cell 2"] == 1
    assert (str(LeftOut()), [*LeftOut().lines()]) == ("", [])
