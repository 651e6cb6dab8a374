"""The frontier of time and money: what nothing else beats in both."""

from __future__ import annotations

from collections.abc import Sequence


def frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """For each (time, dollars) whether no other is at least as good in both and better in one."""
    return [not any(o[0] <= p[0] and o[1] <= p[1] and o != p for o in points) for p in points]
