"""Architecture search: spaces, predictors from few measurements, search.

    from lolat import nas
    nas.fit("fbnet", "samples.csv").predict(archs)  # any network's, from ten measured
    nas.search("fbnet", "rtx-5090-amp", objective=my_score, max_ms=15)
    space = nas.spaces.fbnet.space()
    space.scorer(lolat.load("local")).latency(space.sample(1_000_000))

Importing it loads nothing else; a name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lolat.nas import spaces
    from lolat.nas.fewshot import NasModel, fit
    from lolat.nas.pareto import search
    from lolat.nas.scorer import Scorer
    from lolat.nas.scoring import score
    from lolat.nas.space import Position, Space
    from lolat.nas.tables import Part

_HOMES = {
    "NasModel": "fewshot", "Part": "tables", "Position": "space", "Scorer": "scorer", "Space": "space",
    "fit": "fewshot", "score": "scoring", "search": "pareto", "spaces": "spaces",
}  # fmt: skip
__all__ = ["NasModel", "Part", "Position", "Scorer", "Space", "fit", "score", "search", "spaces"]


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
