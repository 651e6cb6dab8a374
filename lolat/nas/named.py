"""Finds what the command line names as `package.module:attribute`: spaces, and functions that score."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from lolat.errors import InputError, LolatError
from lolat.nas.space import Space


def find_space(spec: str) -> Space:
    """The space of a name (`lolat.nas.spaces.SPACES`) or of `package.module:callable`. InputError else."""
    from lolat.nas.spaces import SPACES

    if spec in SPACES:
        return SPACES[spec]()
    expected = (
        f"expected {', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    )
    if ":" not in spec:
        raise InputError(f"no space {spec!r}; {expected}")
    make = find_attribute(spec, "space", expected)
    if isinstance(make, Space):
        return make
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = make()
        except LolatError:
            raise
        except Exception as error:
            raise InputError(f"calling {spec!r} failed: {brief(error)}; {expected}") from error
    if not isinstance(found, Space):
        raise InputError(f"{spec!r} returned a {type(found).__name__}; {expected}")
    return found


def find_function(spec: str) -> Callable[..., Any]:
    """The function that `package.module:callable` names. InputError else."""
    expected = "expected package.module:callable, or a CSV file with the columns arch,score"
    found = find_attribute(spec, "objective", expected)
    if not callable(found):
        raise InputError(f"objective {spec!r} is of type {type(found).__name__}; {expected}")
    function: Callable[..., Any] = found
    return function


def find_attribute(spec: str, what: str, expected: str) -> Any:
    """The object that `package.module:attribute` names; the working directory can be imported from.

    What the module prints goes to stderr, because stdout may be promised to JSON.
    """
    module, _, attribute = spec.partition(":")
    if not all(part.isidentifier() for part in [*module.split("."), *attribute.split(".")]):
        raise InputError(f"no {what} {spec!r}; {expected}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found: Any = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise InputError(
                f"importing {module!r} for {what} {spec!r} failed: {brief(error)}; it must be found from "
                f"{os.getcwd()} and import without error"
            ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InputError(
                f"module {module!r} has no {attribute!r} ({what} {spec!r}); {expected}"
            )
        found = getattr(found, part)
    return found


def brief(error: BaseException) -> str:
    """An exception in one line, with its type."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
