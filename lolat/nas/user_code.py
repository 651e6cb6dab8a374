"""Spaces and functions by name, and calls of the user's code."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from lolat.errors import InputError, LolatError
from lolat.io.progress import Progress
from lolat.nas.space import Space
from lolat.readers.code import attribute_of, brief, is_function, stdout_to_stderr
from lolat.units import user_line


def find_space(spec: str | Space, progress: Progress | None = None) -> Space:
    """The space of a name of `SPACES`, or of `package.module:callable`. InputError where there is none."""
    from lolat.nas.spaces import SPACES

    if isinstance(spec, Space):
        return spec
    if spec in SPACES:
        return SPACES[spec]()
    expected = f"{', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    with late(progress, f"importing {spec}, which may import a framework ..."):
        space = _attribute(spec, "space", expected)
        if not isinstance(space, Space):
            with user_code(f"calling {spec!r}", f"expected {expected}"):
                space = space()
    if not isinstance(space, Space):
        raise InputError(f"{spec!r} returned a {type(space).__name__}; expected {expected}")
    return space


def find_function(spec: str | Callable[..., Any], argument: str) -> Callable[..., Any]:
    """The function that `package.module:callable` names, or the function itself. InputError else."""
    if not isinstance(spec, str):
        return spec
    function: Callable[..., Any] = _attribute(spec, argument, "package.module:callable")
    if not callable(function):
        raise InputError(f"{argument} {spec!r} is no function")
    return function


def _attribute(spec: str, argument: str, expected: str) -> Any:
    """The object that `package.module:attribute` names; InputError where there is none."""
    if not is_function(spec):
        raise InputError(f"no {argument} {spec!r}; expected {expected}")
    with stdout_to_stderr():  # stdout may be promised to JSON
        return attribute_of(spec, argument, expected)


LATE_S = 1.5


@contextlib.contextmanager
def late(progress: Progress | None, text: str) -> Iterator[None]:
    """Say what goes on, where it takes longer than a moment."""
    timer = threading.Timer(LATE_S, (progress or Progress()).note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def user_code(action: str, expected: str) -> Iterator[None]:
    """Run code of the user: prints go to stderr, an exception that is not LoLat's becomes an InputError.

    `action` and `expected` stand in the message.
    """
    with stdout_to_stderr():
        try:
            yield
        except LolatError:
            raise
        except Exception as error:
            where = user_line(error)
            raise InputError(f"{action} failed: {brief(error)}{where}; {expected}") from error
