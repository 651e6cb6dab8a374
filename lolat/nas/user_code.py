"""Spaces, functions and packages by name, and calls of the user's code."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from lolat.errors import InputError, LolatError, MissingPackageError
from lolat.nas.space import Space
from lolat.readers.code import attribute_of, is_function, stdout_to_stderr
from lolat.units import one_line


def find_space(spec: str) -> Space:
    """The space of a name (`lolat.nas.spaces.SPACES`) or of `package.module:callable`. InputError else."""
    from lolat.nas.spaces import SPACES

    if spec in SPACES:
        return SPACES[spec]()
    expected = f"{', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    space = find_attribute(spec, "space", expected)
    if not isinstance(space, Space):
        with user_code(f"calling {spec!r}", f"expected {expected}", LolatError):
            space = space()
    if not isinstance(space, Space):
        raise InputError(f"{spec!r} returned a {type(space).__name__}; expected {expected}")
    return space


def find_function(spec: str, argument: str) -> Callable[..., Any]:
    """The function that `package.module:callable` names, the value of an argument. InputError else."""
    function: Callable[..., Any] = find_attribute(spec, argument, "package.module:callable")
    if not callable(function):
        raise InputError(
            f"{argument} {spec!r} is of type {type(function).__name__}, not a function"
        )
    return function


def find_attribute(spec: str, argument: str, expected: str) -> Any:
    """The object that `package.module:attribute` names. InputError where there is none.

    Prints of the module go to stderr, because stdout may be promised to JSON.
    """
    if not is_function(spec):
        raise InputError(f"no {argument} {spec!r}; expected {expected}")
    with stdout_to_stderr():
        return attribute_of(spec, argument, expected)


def needed(module: str, what: str, extra: str) -> Any:
    """A module of a package, imported; MissingPackageError where it cannot be.

    `what`: the name that people know it by; `extra`: the extra of LoLat that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} is needed and cannot be imported ({error})", extra
        ) from error


@contextlib.contextmanager
def user_code(action: str, expected: str, *passes: type[Exception]) -> Iterator[None]:
    """Run code of the user: prints go to stderr, any exception but `passes` becomes an InputError.

    Also one that would end the program. `action` and `expected` stand in the message.
    """
    with stdout_to_stderr():
        try:
            yield
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, *passes)):
                raise
            raise InputError(
                f"{action} failed: {type(error).__name__}: {one_line(error)}; {expected}"
            ) from error
