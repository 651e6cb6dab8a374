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

_HOMES = {
    "Part": "tables", "Position": "space", "Scorer": "scorer", "Search": "search", "Space": "space",
    "spaces": "spaces",
}  # fmt: skip
__all__ = ["Part", "Position", "Scorer", "Search", "Space", "spaces"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'lolat.nas' has no attribute {name!r}")
    module = importlib.import_module(f"lolat.nas.{_HOMES[name]}")
    globals()[name] = value = module if name == "spaces" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
