"""Where Keras networks come from: keras.applications by name, and `.keras` files in safe mode."""

from __future__ import annotations

import contextlib
import difflib
import json
import zipfile
from pathlib import Path
from typing import Any

from lolat.errors import NetworkError
from lolat.readers.keras import import_keras, one_line


def _scope(keras: Any, weights: bool) -> Any:
    """Without weights, variables get a shape but no memory, so that building takes no time."""
    if weights:
        return contextlib.nullcontext()
    return keras.StatelessScope(initialize_variables=False)


def application(name: str, size: tuple[int, ...], weights: bool) -> Any:
    """A network of keras.applications with random weights, at its own input size or another."""
    keras = import_keras()
    names = [n for n in dir(keras.applications) if n[0].isupper()]
    by_lower = {n.lower(): n for n in names}
    found = by_lower.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), by_lower, n=3)
        hint = " or ".join(by_lower[n] for n in near) or ", ".join(names)
        raise NetworkError(f"no network keras:{name}; did you mean {hint}?")
    make = getattr(keras.applications, found)
    shape = size if len(size) == 3 else (*(size * 2 if len(size) == 1 else size), 3)
    options = {"input_shape": shape} if size else {}
    try:
        with _scope(keras, weights):
            model = make(weights=None, **options)
            if not size and None in model.inputs[0].shape[1:]:
                model = make(weights=None, input_shape=(224, 224, 3))
    except ValueError as error:
        raise NetworkError(
            f"keras:{found} cannot be built at {'x'.join(map(str, shape))}: {one_line(error)}"
        ) from error
    return model


def saved(path: str, weights: bool) -> Any:
    """A network from a `.keras` file; a file with code in it is refused (Keras' safe mode)."""
    if not Path(path).is_file():
        raise NetworkError(f"no file {path}; give the path of a .keras file")
    if not zipfile.is_zipfile(path):
        raise NetworkError(f"{path} is not a .keras file (a zip archive written by model.save)")
    keras = import_keras()
    try:
        if weights:
            return keras.saving.load_model(path, compile=False, safe_mode=True)
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        config.pop("compile_config", None)
        with _scope(keras, weights):
            return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except KeyError as error:
        raise NetworkError(f"{path} is not a .keras file: {one_line(error)}") from error
    except (ValueError, TypeError, ImportError, AttributeError) as error:
        text = one_line(error)
        if "lambda" in str(error).lower():
            text = (
                "it holds a Lambda layer, that is, code, which is refused; write it with layers "
                "or keras.ops, or give the network as package.module:callable"
            )
        elif "custom" in str(error).lower() or "locate class" in str(error).lower():
            text = (
                f"it needs a class that Keras does not know ({text}); give the network as "
                "package.module:callable"
            )
        raise NetworkError(f"{path} cannot be opened: {text}") from error
