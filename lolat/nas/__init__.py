"""Architecture search: spaces, predictors from few measurements, search, adapters.

    from lolat import nas
    nas.fit("fbnet", "samples.csv").latency_ms(rows)  # any network's, from ten measured
    nas.search("fbnet", "rtx-5090-amp", objective=my_score, max_ms=15)
    space = nas.spaces.fbnet.space()
    space.scorer(lolat.load("local")).latency(space.sample(1_000_000))

Importing it loads nothing else; a name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lolat.nas import spaces
    from lolat.nas.fewshot import NasModel
    from lolat.nas.pareto import Search
    from lolat.nas.questions import fit, score, search
    from lolat.nas.scorer import Scorer
    from lolat.nas.space import Position, Space
    from lolat.nas.tables import Part

_HOMES = {
    **dict.fromkeys(("fit", "score", "search"), "questions"),
    "NasModel": "fewshot", "Part": "tables", "Position": "space", "Scorer": "scorer",
    "Search": "pareto", "Space": "space", "spaces": "spaces",
}  # fmt: skip
__all__ = [
    "NasModel", "Part", "Position", "Scorer", "Search", "Space", "fit", "score", "search", "spaces",
]  # fmt: skip


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
