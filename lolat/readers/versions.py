"""Versions of packages, and settings of Keras, PyTorch and timm, that a network's graph depends on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any


@cache  # else a thousand networks would open the package's metadata a thousand times
def installed_version(package: str) -> str:
    """The installed version of a package, without importing it; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


USUAL = ["channels_last", "float32", "tensorflow"]


def keras_settings() -> list[str]:
    """Keras' image data format, data type of layers, and backend.

    If Keras is not imported, they are read from its settings file and the environment.
    """
    keras: Any = sys.modules.get("keras")
    if hasattr(keras, "config"):
        config = keras.config
        return [config.image_data_format(), config.dtype_policy().name, config.backend()]
    names, settings = ("image_data_format", "floatx", "backend"), USUAL
    with contextlib.suppress(Exception):  # Keras itself reports a damaged file of settings
        home = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
        own = json.loads(Path(home, "keras.json").read_bytes())
        settings = [own.get(name, usual) for name, usual in zip(names, USUAL, strict=True)]
    return [*settings[:2], os.environ.get("KERAS_BACKEND") or settings[2]]


def torch_settings() -> list[str]:
    """PyTorch's default data type and timm's unfused attention, if they are not the usual settings."""
    torch: Any = sys.modules.get("torch")
    dtype = (
        str(torch.get_default_dtype()) if hasattr(torch, "get_default_dtype") else "torch.float32"
    )
    timm: Any = sys.modules.get("timm.layers.config")
    fused = getattr(timm, "_USE_FUSED_ATTN", os.environ.get("TIMM_FUSED_ATTN", "1"))
    apart = ["attention taken apart"] if str(fused) in ("0", "False") else []
    return ([dtype] if dtype != "torch.float32" else []) + apart
