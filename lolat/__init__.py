"""LoLat predicts a neural network's latency and cost on CPUs and GPUs.

    import lolat
    lolat.predict("keras:ResNet50", on=["a100", "l4"], precision="bf16", batch_size=[1, 32])
    model = lolat.load("rtx-5090")
    model.predict("keras:ResNet50", batch_size=8).latency_ms
    model.predict_counts(acts, inp, flops, traffic, weights, ops)

Importing it loads no framework, and numpy only when a model is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lolat import nas
    from lolat.api.asking import compare, load, predict
    from lolat.api.fitting import fit
    from lolat.api.learning import learn
    from lolat.api.listing import models
    from lolat.api.model import Model
    from lolat.api.predicting import Prediction
    from lolat.errors import (
        AnswerIsNo,
        DeviceError,
        InputError,
        LolatError,
        MeasuringError,
        MissingPackageError,
        ModelFileError,
        NetworkError,
    )
    from lolat.graph import Graph
    from lolat.readers import read

__version__ = "0.1.0"
_HOMES = {
    "Model": "lolat.api.model",
    **dict.fromkeys(("compare", "load", "predict"), "lolat.api.asking"),
    "fit": "lolat.api.fitting",
    "models": "lolat.api.listing",
    "learn": "lolat.api.learning",
    "Graph": "lolat.graph",
    "Prediction": "lolat.api.predicting",
    "nas": "lolat",
    "read": "lolat.readers",
}
"""Public names and the modules that have them; all others are errors."""
__all__ = [
    "AnswerIsNo",
    "DeviceError",
    "Graph",
    "InputError",
    "LolatError",
    "MeasuringError",
    "MissingPackageError",
    "Model",
    "ModelFileError",
    "NetworkError",
    "Prediction",
    "compare",
    "fit",
    "learn",
    "load",
    "models",
    "nas",
    "predict",
    "read",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'lolat' has no attribute {name!r}")
    import importlib

    importlib.import_module("lolat.api")  # every answer can then show itself
    home = _HOMES.get(name, "lolat.errors")
    if home == __name__:  # a part of this package, which its import puts here
        return importlib.import_module(f"{home}.{name}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})
