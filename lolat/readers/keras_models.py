"""Where Keras networks come from: keras.applications by name, and `.keras` files in safe mode."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.keras import import_keras
from lolat.readers.keras_calls import without_weights
from lolat.readers.wording import one_line, shortened


@contextlib.contextmanager
def _building(weights: bool) -> Iterator[None]:
    """Without Keras' warnings: they are about networks that are not the user's, or repeat an error."""
    with warnings.catch_warnings(), contextlib.nullcontext() if weights else without_weights():
        warnings.simplefilter("ignore")
        yield


def application(name: str, size: tuple[int, ...], weights: bool) -> Any:
    """A network of keras.applications with random weights, at its own input size or another."""
    keras = import_keras()
    names = [n for n in dir(keras.applications) if n[0].isupper()]
    by_lower = {n.lower(): n for n in names}
    found = by_lower.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), by_lower, n=3)
        hint = " or ".join(f"keras:{by_lower[n]}" for n in near)
        hint = f"did you mean {hint}?" if near else f"expected one of {', '.join(names)}"
        raise NetworkError(
            f"no network {shortened(f'keras:{name}')!r} in keras.applications; {hint}"
        )
    make = getattr(keras.applications, found)
    shape = size if len(size) == 3 else (*(size * 2 if len(size) == 1 else size), 3)
    options = {"input_shape": shape} if size else {}
    try:
        with _building(weights):
            model = make(weights=None, **options)
            if not size and None in model.inputs[0].shape[1:]:
                model = make(weights=None, input_shape=(224, 224, 3))
    except Exception as error:  # what an unfit size raises differs from network to network
        at = f" at {'x'.join(map(str, shape))}" if size else ""
        raise NetworkError(
            f"keras:{found} cannot be built{at}: {one_line(error)}; give another --input-size"
        ) from error
    return model


def saved(path: str, weights: bool) -> Any:
    """A network from a `.keras` file; a file with code in it is refused (Keras' safe mode)."""
    shown = shortened(path)
    if not os.path.isfile(path):
        raise NetworkError(f"no file {shown!r}; give the path of a .keras file")
    keras = import_keras()
    try:
        if weights:
            with _building(weights):
                return keras.saving.load_model(path, compile=False, safe_mode=True)
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        config.pop("compile_config", None)
        with _building(weights):
            return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # a damaged file can fail anywhere in Keras
        raise NetworkError(f"{shown!r} cannot be opened: {_reason(path, error)}") from error


def _reason(path: str, error: Exception) -> str:
    """Why a `.keras` file cannot be opened, and what to do about it."""
    if not _has_config(path):
        return "it is not a .keras file; expected a zip archive written by model.save"
    text = str(error).rpartition("Exception encountered: ")[2]  # Keras tells the cause last
    if "lambda" in text.lower():
        return (
            "it holds a Lambda layer, that is, code, which is refused; write it with layers or "
            "keras.ops, or give the network as package.module:callable"
        )
    if missing := re.match(r"Could not locate (\w+ '[^']*')", text):
        return (
            f"it needs the {shortened(missing[1])}, which Keras does not know; give the network as "
            "package.module:callable"
        )
    return f"{shortened(text.partition(chr(10))[0]) or one_line(error)}; write it again with model.save"


def _has_config(path: str) -> bool:
    """Whether the file is a zip archive with a network's configuration that can be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return isinstance(json.loads(archive.read("config.json")), dict)
    except Exception:
        return False
