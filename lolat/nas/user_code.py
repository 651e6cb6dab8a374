"""Spaces and functions by name, and calls of the user's code."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, arg
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


OF_A_CANDIDATE = ("arch", "candidate", "choices")
"""Parameters of a user's function: the text, the integers, and the values by position."""


def parameters(function: Callable[..., Any], whole_space: bool = False) -> list[str]:
    """The names among OF_A_CANDIDATE of a function's parameters.

    `whole_space`: whether it may have none, and one parameter for many candidates at once. InputError where
    it cannot be called so.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a function in C, which Python does not know
        return []
    named = [p for p in signature.parameters if p in OF_A_CANDIDATE]
    try:
        if not named and not whole_space:
            raise TypeError("none of the names that are expected")
        signature.bind(*([] if named else [None]), **dict.fromkeys(named))
    except TypeError as error:
        many = ", or by another name ((n, positions) integers, for n numbers)" * whole_space
        raise InputError(
            f"{arg('value' if whole_space else 'objective')} has the parameters {signature} ({error}); "
            f"expected one: name it arch (the text), candidate (the integers) or choices (a dict){many}"
        ) from None
    return named


def call_with(
    function: Callable[..., Any], named: Sequence[str], space: Space, row: np.ndarray
) -> Any:
    """What a function says of one candidate; `named`: see `parameters`."""
    values: dict[str, Any] = {"arch": space.arch(row), "candidate": tuple(row.tolist())}
    values["choices"] = space.values(row)
    return function(**{p: values[p] for p in named}) if named else function(values["candidate"])


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
