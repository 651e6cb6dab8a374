"""A search space's latency on a new device from a few measured networks.

`read_samples` reads what was measured, `fit` makes a `NasModel` of it, `suggest` says what to measure next.
Importing it loads nothing else; a name is imported when it is first used.
"""

from __future__ import annotations

from typing import Any

_HOMES = {
    **dict.fromkeys(["NasModel", "fit", "read", "write"], "model"),
    **dict.fromkeys(["read_samples", "space_terms"], "samples"),
    "suggest": "suggest",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
