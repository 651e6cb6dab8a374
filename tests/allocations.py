"""Memory that PyTorch allocates, by its own profiler."""

from __future__ import annotations

from itertools import accumulate
from typing import Any


def most_bytes(seen: Any) -> int:
    """The most bytes that were allocated at once while PyTorch's profiler watched, beyond those before."""
    events = (e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]")
    in_order = sorted(events, key=lambda event: event.start_ns())
    return max(accumulate((event.nbytes() for event in in_order), initial=0))
