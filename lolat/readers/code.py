"""`package.module:attribute`: an object of the user's own code, imported quietly."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.io.forms import TORCH_PACKAGES
from lolat.units import one_line


def attribute_of(spec: str, what: str, expected: str) -> Any:
    """Import the object that `module:attribute` names; the working directory is searched too.

    `what`, `expected`: the object's purpose ("network") and the expected form, for messages. NetworkError
    if there is no such object.
    """
    module, _, attribute = spec.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _import_before(module)
    try:
        value: Any = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the module raises, SystemExit too
        why = f"{brief(error)}; looked in {os.getcwd()} and among the installed packages"
        if module.endswith(".py"):
            expected = f"{module.removesuffix('.py').replace('/', '.')}:{attribute}"
        raise NetworkError(
            f"cannot import {module!r} for {what} {spec!r}: {why}; expected {expected}",
            code="user-code",
        ) from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NetworkError(
                f"module {module!r} has no {attribute!r} ({what} {spec!r}); expected {expected}",
                code="user-code",
            )
        value = getattr(value, part)
    return value


def _import_before(module: str) -> None:
    """Import, before a module that names them, the packages that need care.

    TensorFlow prints to stderr. timm and transformers fail if torchvision and PyTorch are of different
    builds.
    """
    text = ""
    with contextlib.suppress(Exception):
        source = importlib.util.find_spec(module)
        text = Path(str(source and source.origin)).read_text(encoding="utf-8", errors="replace")
    if "keras" in text or "tensorflow" in text:
        with contextlib.suppress(MissingPackageError):
            from lolat.readers.keras import import_keras

            import_keras()
    if any(package in text for package in TORCH_PACKAGES):
        from lolat.readers.torch.named import load_torchvision

        load_torchvision()


def brief(error: BaseException) -> str:
    """An exception in one line, with its type."""
    text, kind = one_line(error), type(error).__name__
    return kind if text == kind else f"{kind}: {text}"
