"""A search space's latency on a new device from a few measured networks.

`read_samples` reads what was measured, `fit` makes a `NasModel` of it, `suggest` says what to measure next.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NasModel", "fit", "read", "read_samples", "space_terms", "suggest", "write"]

_HOMES = {
    "NasModel": "lolat.nas.fewshot.model",
    "read": "lolat.nas.fewshot.file",
    "fit": "lolat.nas.fewshot.model",
    "read_samples": "lolat.nas.fewshot.samples",
    "space_terms": "lolat.nas.fewshot.samples",
    "suggest": "lolat.nas.fewshot.suggest",
    "write": "lolat.nas.fewshot.file",
}


def __getattr__(name: str) -> Any:
    """The public names, each imported when it is first used."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
