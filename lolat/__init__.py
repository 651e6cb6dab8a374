"""LoLat predicts a neural network's latency and cost on CPUs and GPUs.

    import lolat
    lolat.predict("keras:ResNet50", on=["a100", "l4"], precision="bf16", batch_size=[1, 32])
    model = lolat.load("rtx-5090")
    model.predict("keras:ResNet50", batch_size=8).latency_ms
    model.predict_counts(acts, inp, flops, traffic, weights, ops)

Importing it loads no framework, and numpy only when a profile is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lolat import nas as nas
    from lolat.api.asking import compare as compare
    from lolat.api.asking import predict as predict
    from lolat.api.fitting import fit as fit
    from lolat.api.learning import learn as learn
    from lolat.api.listing import models as models
    from lolat.api.loading import load as load
    from lolat.api.model import Model as Model
    from lolat.device.prediction import Prediction as Prediction
    from lolat.errors import AnswerIsNo as AnswerIsNo
    from lolat.errors import DeviceError as DeviceError
    from lolat.errors import InputError as InputError
    from lolat.errors import LolatError as LolatError
    from lolat.errors import MeasuringError as MeasuringError
    from lolat.errors import MissingPackageError as MissingPackageError
    from lolat.errors import ModelFileError as ModelFileError
    from lolat.errors import NetworkError as NetworkError
    from lolat.graph import Graph as Graph
    from lolat.readers import read as read

__version__ = "0.1.0"
_ERRORS = (
    "AnswerIsNo", "DeviceError", "InputError", "LolatError", "MeasuringError", "MissingPackageError",
    "ModelFileError", "NetworkError",
)  # fmt: skip
_HOMES = {
    "Graph": "lolat.graph",
    "Model": "lolat.api.model",
    "Prediction": "lolat.device.prediction",
    **dict.fromkeys(("compare", "predict"), "lolat.api.asking"),
    "fit": "lolat.api.fitting",
    "learn": "lolat.api.learning",
    "load": "lolat.api.loading",
    "models": "lolat.api.listing",
    "nas": "lolat",
    "read": "lolat.readers",
    **dict.fromkeys(_ERRORS, "lolat.errors"),
}
"""Public name -> the module that defines it."""
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "cost":  # the command's name
        raise AttributeError(
            "no lolat.cost: compare(NETWORK, ...) or load(DEVICE).cost(NETWORK, ...)"
        )
    if name not in _HOMES:
        raise AttributeError(f"module 'lolat' has no attribute {name!r}")
    import importlib

    importlib.import_module("lolat.api")  # every answer can then show itself
    home = _HOMES[name]
    if home == __name__:  # a part of this package, which its import puts here
        return importlib.import_module(f"{home}.{name}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("_"))})
