"""A space from any function that makes networks from choices: Keras, PyTorch or Graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError
from lolat.graph import Graph
from lolat.nas.interactions import Decomposition, Finder, Networks
from lolat.nas.space import Position, Space
from lolat.readers import read

MOST_NETWORKS = 3000


class FactorySpace(Space):
    """A space of the networks that a function returns; `decomposition` says how it was found."""

    decomposition: Decomposition


def from_factory(
    function: Callable[..., Any],
    choices: Sequence[Sequence[Any]] | Mapping[str, Sequence[Any]],
    name: str = "",
    input_size: Any = None,
    tolerance: float = 0.0,
    most_networks: int = MOST_NETWORKS,
    seed: int = 0,
    done: Callable[[], object] = lambda: None,
) -> FactorySpace:
    """The space of what `function` returns: a Keras or PyTorch network (or a Graph) from its choices.

    `choices`: the values of each position in order, given by position, or a dict of them, given by name;
    `input_size`: see `lolat.read`; `tolerance`: how far the sum of a count may be off, relative;
    `most_networks`: that may be built; `done` is called after each. InputError where the function fails,
    and where the networks do not decompose, with the positions that are to blame.
    """
    named = isinstance(choices, Mapping)
    names = (
        list(choices)
        if isinstance(choices, Mapping)
        else [f"position {i}" for i in range(len(choices))]
    )
    values = [tuple(v) for v in (choices.values() if isinstance(choices, Mapping) else choices)]
    if not values or not all(values):
        raise InputError(f"choices {choices!r}: expected at least one position, each with choices")
    title = name or getattr(function, "__name__", "factory")
    make = Maker(function, tuple(names) if named else (), input_size)
    networks = Networks(make, values, title, most_networks, done)
    found = Finder(networks, names, tolerance)
    decomposition = found.run(np.random.default_rng(seed))
    positions = [Position(n, v) for n, v in zip(names, values, strict=True)]
    space = FactorySpace(title, positions, found.tables(), make)
    space.decomposition = decomposition
    return space


@dataclass(frozen=True)
class Maker:
    """Calls a function with values, by `names` where there are some, and reads the network."""

    function: Callable[..., Any]
    names: tuple[str, ...]
    input_size: Any

    def __call__(self, values: Sequence[Any], name: str) -> Graph:
        """The network of these values. InputError where the function fails or it cannot be read."""
        given = dict(zip(self.names, values, strict=True)) if self.names else {}
        try:
            network = self.function(**given) if given else self.function(*values)
        except Exception as error:
            raise InputError(
                f"{name} of {given or tuple(values)} failed: {type(error).__name__}: {error}; expected a "
                "network for every combination of choices"
            ) from error
        try:
            return read(network, self.input_size)
        except LolatError as error:
            raise InputError(f"{name} of {given or tuple(values)}: {error}") from error
