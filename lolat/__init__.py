"""LoLat: how long a neural network takes on your device, from a formula learned there once.

    import lolat
    model = lolat.load("models/cpu.json")
    model.predict(lolat.read("keras:ResNet50"), batch_size=8).latency_ms
    model.predict_counts(acts, inp, flops, traffic, weights, ops)

Importing it loads no framework, and numpy only when a model is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lolat.graph import Graph
    from lolat.model import Model, load
    from lolat.model.prediction import Prediction
    from lolat.readers import read

__version__ = "0.1.0"
__all__ = ["Graph", "Model", "Prediction", "load", "read"]

_HOMES = {
    "Graph": "lolat.graph",
    "Model": "lolat.model",
    "Prediction": "lolat.model.prediction",
    "load": "lolat.model",
    "read": "lolat.readers",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lolat' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
