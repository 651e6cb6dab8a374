"""Finds the user's spaces and functions by name, and runs them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from lolat.device.device import Device
from lolat.errors import InputError, LolatError
from lolat.io.forms import is_function
from lolat.io.paths import AnyPath
from lolat.nas.space import Space
from lolat.nas.spaces import SPACES
from lolat.readers.user_modules import quietly
from lolat.readers.user_objects import attribute_of, brief, meant_here, missing_arguments
from lolat.units import user_line


def find_space(spec: str | Space) -> Space:
    """Find a space by a name in `SPACES` or by `package.module:callable`; InputError if there is none."""
    if isinstance(spec, Space):
        return spec
    if spec in SPACES:
        return SPACES[spec]()
    expected = f"{', '.join(SPACES)} or package.module:callable that returns a lolat.nas.Space"
    space = user_object(spec, "space", expected)
    if not isinstance(space, Space):
        if callable(space) and (missing := missing_arguments(space)):
            raise InputError(
                f"{spec!r} takes {', '.join(missing)}, as the function of one candidate does; "
                "expected one without arguments: def space(): return lolat.nas.Space.from_factory("
                f"{space.__name__}, {{{', '.join(f'{name!r}: (...)' for name in missing)}}})"
            )
        with user_code(f"calling {spec!r}", f"expected {expected}"):
            space = space()
    if not isinstance(space, Space):
        raise InputError(f"{spec!r} returned a {type(space).__name__}; expected {expected}")
    if space.decomposer:  # named after the function that builds a candidate
        space.label = space.decomposer.networks.name = spec
    return space


def check_order(space: str | Space, model: AnyPath | Device) -> None:
    """Raise InputError if the space and the device are swapped, or several devices are given."""
    if not isinstance(model, str):
        return
    if "," in model and not os.path.exists(model):
        raise InputError(
            f"{model}: expected one device; ask once for each (nas search takes several)"
        )
    if isinstance(space, Space):
        return
    if looks_like_space(model) and not looks_like_space(space):
        raise InputError(
            f"{model} looks like a space, which comes before the device; expected {model} {space}"
        )


def looks_like_space(name: str) -> bool:
    """True if `name` is a known space, or may be a function that returns a space."""
    return name in SPACES or is_function(name)


def space_and_device(space: str | Space, model: AnyPath | Device) -> tuple[Space, Device]:
    """(space by `find_space`, device by the file or the name of its profile)."""
    check_order(space, model)
    device = model if isinstance(model, Device) else Device.load(model)
    return find_space(space), device


def user_object(spec: str, argument: str, expected: str) -> Any:
    """The object that `package.module:attribute` names; InputError if there is none."""
    if not is_function(spec):
        raise InputError(f"no {argument} {spec!r}; {meant_here(spec) or f'expected {expected}'}")
    with quietly():
        return attribute_of(spec, argument, expected)


@contextlib.contextmanager
def user_code(action: str, expected: str) -> Iterator[None]:
    """A context for the user's code: its prints go to stderr, its exceptions become an InputError."""
    with quietly():
        try:
            yield
        except LolatError:
            raise
        except Exception as error:
            where = user_line(error)
            raise InputError(f"{action} failed: {brief(error)}{where}; {expected}") from error
