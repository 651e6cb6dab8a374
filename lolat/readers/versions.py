"""The versions of packages, and the settings of Keras, that a network depends on."""

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
    """The installed version of a package, which is not imported; "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


USUAL = ["channels_last", "float32", "tensorflow"]


def keras_settings() -> list[str]:
    """Keras' order of axes, data type of layers, and backend.

    If Keras is not loaded, they come from its settings file and the environment.
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
