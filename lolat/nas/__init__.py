"""Architecture search: spaces, predictors from few measurements, search, adapters.

    from lolat import nas
    space = nas.spaces.fbnet.space()
    space.scorer(lolat.load("local")).latency(space.sample(1_000_000))

Importing it loads nothing else; a name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lolat.nas import spaces
    from lolat.nas.scorer import Scorer
    from lolat.nas.search import Search
    from lolat.nas.space import Position, Space
    from lolat.nas.tables import Part

__all__ = ["Part", "Position", "Scorer", "Search", "Space", "spaces"]

_HOMES = {
    "Part": "lolat.nas.tables",
    "Position": "lolat.nas.space",
    "Scorer": "lolat.nas.scorer",
    "Search": "lolat.nas.search",
    "Space": "lolat.nas.space",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    import importlib

    if name == "spaces":
        return importlib.import_module("lolat.nas.spaces")
    if name not in _HOMES:
        raise AttributeError(f"module 'lolat.nas' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
