"""Candidates as what other tools hold: values by the name of their position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.nas.space import Space


def row_of(space: Space, values: Mapping[str, Any]) -> np.ndarray:
    """(positions,) integers of the candidate with these values; names that the space lacks are left out.

    A position with one choice needs none. InputError for a position without a value, or with a value
    that it does not have.
    """
    found = []
    for position in space.positions:
        if position.name not in values:
            if len(position.choices) == 1:
                found.append(0)
                continue
            raise InputError(
                f"no value for {position.name!r} of space {space.name!r}; expected one of "
                f"{shown(position.choices)}"
            )
        value = values[position.name]
        matching = [i for i, c in enumerate(position.choices) if same(c, value)]
        if not matching:
            raise InputError(
                f"{position.name!r} is {value!r}; expected one of {shown(position.choices)}"
            )
        found.append(matching[0])
    return np.array(found, np.int64)


def same(choice: Any, value: Any) -> bool:
    """Whether a value is a choice: equal, and not a number where that is True or False."""
    return bool(choice == value) and isinstance(choice, bool) == isinstance(value, bool)


def shown(choices: tuple[Any, ...]) -> str:
    """Choices as they stand in a message."""
    text = ", ".join(map(repr, choices[:12]))
    return text if len(choices) <= 12 else f"{text}, ..."
