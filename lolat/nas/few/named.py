"""Search spaces by name: how their networks are written, and what their latencies are made of."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.nas.few.terms import Pieces

_TERMS = {"nasbench201": "cell_terms", "fbnet": "layer_terms"}
SPACES = tuple(_TERMS)


@dataclass(frozen=True)
class SpaceTerms:
    """A space of SPACES: its encoding's verbs, its shape, and the assumptions on its latencies."""

    name: str
    positions: int
    choices: int
    parse_many: Callable[..., np.ndarray]
    write: Callable[[Sequence[int] | np.ndarray], str]
    assumptions: list[Pieces]
    candidates: Callable[[np.random.Generator], np.ndarray]

    def assumption(self, name: str) -> Pieces:
        """The assumption of that name. KeyError where there is none."""
        return {pieces.name: pieces for pieces in self.assumptions}[name]


def space_terms(name: str) -> SpaceTerms:
    """The space of that name. InputError where it is none of SPACES."""
    if name not in _TERMS:
        raise InputError(f"unknown space {name!r}; expected one of {', '.join(SPACES)}")
    encoding: Any = importlib.import_module(f"lolat.nas.encodings.{name}")
    terms: Any = importlib.import_module(f"lolat.nas.few.{_TERMS[name]}")
    return SpaceTerms(
        name,
        len(encoding.POSITIONS),
        len(encoding.CHOICES),
        encoding.parse_many,
        encoding.write,
        terms.assumptions(),
        terms.candidates,
    )
