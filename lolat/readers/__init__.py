"""Reads a framework's network into a Graph: one module per framework, imported when it is asked for.

NETWORK is written as `keras:ResNet50` (any name of keras.applications, random weights), a path to a
`.keras` file, or `package.module:callable`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph

FORMS = "keras:NAME (such as keras:ResNet50), a .keras file, or package.module:callable"


@dataclass(frozen=True)
class Network:
    """A framework's network, opened, with what reads it into a Graph."""

    name: str
    model: Any
    read: Callable[[], Graph]

    def graph(self) -> Graph:
        """The network as a Graph."""
        return self.read()


def read(network: Any, input_size: int | Sequence[int] | None = None) -> Graph:
    """A network as a Graph.

    `network`: a Keras model, or a string: `keras:ResNet50`, a path to a `.keras` file,
    `package.module:callable`. `input_size`: height = width, or a shape without the batch, where the
    network leaves it open or another one is wanted. Raises NetworkError when it cannot be read.
    """
    size = as_size(input_size)
    if isinstance(network, Graph):
        return network
    if isinstance(network, (str, os.PathLike)):
        return open_network(os.fspath(network), size).graph()
    return _of_object(network, "", size).graph()


def as_size(size: int | Sequence[int] | None) -> tuple[int, ...]:
    """An input size as a tuple; () for none. InputError when it is not of positive integers."""
    sizes = () if size is None else (size,) if isinstance(size, int) else tuple(size)
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise InputError(
            f"input size {size!r}: expected a positive whole number (224) or several (3,224,224)"
        )
    return sizes


def open_network(spec: str, size: tuple[int, ...] = (), weights: bool = False) -> Network:
    """Open NETWORK; `weights` asks for real (random or stored) weights, so that it can run."""
    if spec.startswith("keras:"):
        from lolat.readers import keras_models

        model = keras_models.application(spec.removeprefix("keras:"), size, weights)
        return _of_object(model, spec.removeprefix("keras:"), size)
    if spec.endswith(".keras"):
        from lolat.readers import keras_models

        return _of_object(keras_models.saved(spec, weights), Path(spec).stem, size)
    if Path(spec).exists():
        raise NetworkError(f"{spec} is not a network that LoLat can read; expected {FORMS}")
    module, colon, attribute = spec.partition(":")
    if colon and all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        return _of_object(_called(spec, module, attribute, weights), attribute, size)
    raise NetworkError(f"no network {spec!r}: expected {FORMS}")


def _of_object(model: Any, name: str, size: tuple[int, ...]) -> Network:
    """Wrap a framework's object, whose classes tell which framework it is of."""
    frameworks = {c.__module__.partition(".")[0] for c in type(model).__mro__}
    if "keras" in frameworks:
        from lolat.readers.keras import read_model

        return Network(name or model.name, model, lambda: read_model(model, name, size))
    raise NetworkError(
        f"{name or 'the object given'} is a {type(model).__module__}.{type(model).__name__}, not a "
        f"network that LoLat can read; expected a Keras model"
    )


def _called(spec: str, module: str, attribute: str, weights: bool) -> Any:
    """What `module:callable` returns; the working directory can be imported from.

    What the user's code prints goes to stderr, because stdout may be promised to JSON.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is not None and module.startswith(error.name):
                raise NetworkError(
                    f"no module {module!r} for network {spec!r} (looked in {os.getcwd()} and among "
                    f"the installed packages); expected {FORMS}"
                ) from error
            raise NetworkError(f"importing {module!r} failed: {error}") from error
        except Exception as error:
            raise NetworkError(f"importing {module!r} failed: {_brief(error)}") from error
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise NetworkError(f"module {module!r} has no {attribute!r} (network {spec!r})")
            found = getattr(found, part)
        if not callable(found):
            raise NetworkError(f"{spec!r} is a {type(found).__name__}, not a callable")
        if any("Model" in c.__name__ for c in type(found).__mro__):
            return found  # a network itself, not a function that makes one
        try:
            return found()
        except LolatError:
            raise
        except Exception as error:
            raise NetworkError(f"calling {spec!r} failed: {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    """An exception in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
