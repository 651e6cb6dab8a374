"""Latency for the tools that people search with: each adapter is a module of its own.

    optuna    latency as an objective and as a constraint of a study
    ray_tune  latency as a metric, trials over a budget stopped
    mixture   the expected latency of a mixture of choices, to be differentiated by PyTorch

Importing this, or one of them, imports none of the tools; they are imported when they are used.
"""

from __future__ import annotations

import importlib
from typing import Any

from lolat.errors import InputError, MissingPackageError


def needed(module: str, what: str, extra: str) -> Any:
    """A module of a package, imported; MissingPackageError where it is missing or does not import.

    `what`: the name that people know it by; `extra`: the extra of LoLat that has it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} is needed for this and cannot be imported ({error})", extra
        ) from error


def budget(max_ms: float) -> float:
    """A budget; InputError where it is not a number of milliseconds above 0."""
    if not max_ms > 0:
        raise InputError(f"max_ms is {max_ms!r}; expected a number of milliseconds above 0")
    return max_ms
