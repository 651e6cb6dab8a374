"""Imports the package that an adapter is for, or says how to install it."""

from __future__ import annotations

import importlib
from typing import Any

from lolat.errors import MissingPackageError


def needed(module: str, what: str, install: str) -> Any:
    """A module of a package, imported; MissingPackageError where it is missing or does not import.

    `what`: the name that people know it by; `install`: what pip has to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} is needed for this and cannot be imported ({error}); install it with: "
            f"pip install '{install}'"
        ) from error
