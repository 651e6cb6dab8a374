"""The state of a machine: how much slower than usual it computes, moves data and starts operations now.

It is seen on a few whole networks, the same that the model was learned with: how much longer each takes
now, and what the model says its time goes to.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.graph.counts import GROUPS
from lolat.io.documents import converted, read_json

KINDS = ("computing", "moving", "starting")
RIDGE = 0.05
"""How much the kinds are held together, per network: shares that differ by 20 % tell them half apart."""
LEAST_FACTOR, MOST_FACTOR = 0.01, 100.0  # that a file may have


@dataclass(frozen=True)
class State:
    """Factors on the time that computing, moving data and starting operations usually take."""

    computing: float = 1.0
    moving: float = 1.0
    starting: float = 1.0

    def to_dict(self) -> dict[str, float]:
        """As it stands in the answers of `doctor` and `evaluate`, and in a file."""
        return {k: round(getattr(self, k), 4) for k in KINDS}


def parts_of(terms_ms: Mapping[str, float], call_ms: float = 0.0) -> dict[str, float]:
    """Milliseconds of each of KINDS, from those of a formula's terms and of the call."""
    parts = {"computing": 0.0, "moving": 0.0, "starting": call_ms}
    for term, ms in terms_ms.items():
        parts[OF_GROUP[GROUPS[term]]] += ms
    return parts


OF_GROUP = {
    "flops": "computing",
    "weights": "moving",
    "memory": "moving",
    "patches": "moving",
    "ops": "starting",
}
"""What a group of terms (`lolat.graph.counts.GROUPS`) is a kind of."""


def state_of(parts: Sequence[Mapping[str, float]], ratios: Sequence[float]) -> State:
    """The state in which networks of these `parts` took `ratios` times as long as usual.

    Least squares on the ratios with a ridge around their median, which is what the kinds have in common:
    a machine that is slower in everything is told by few networks, one that is slower in some only
    where the networks differ. ValueError without networks.
    """
    if not ratios:
        raise ValueError("state_of() needs at least one network")
    level = statistics.median(ratios)
    shares = np.array([[p[k] / (sum(p.values()) or 1.0) for k in KINDS] for p in parts])
    ridge = np.sqrt(RIDGE * len(ratios)) * np.eye(len(KINDS))
    rest = np.concatenate([np.asarray(ratios) - shares.sum(axis=1) * level, np.zeros(len(KINDS))])
    factors = level + np.linalg.lstsq(np.vstack([shares, ridge]), rest, rcond=None)[0]
    return State(*(float(np.clip(f, LEAST_FACTOR, MOST_FACTOR)) for f in factors))


class _Factors(msgspec.Struct):
    """A state in a file."""

    computing: Annotated[float, msgspec.Meta(ge=LEAST_FACTOR, le=MOST_FACTOR)]
    moving: Annotated[float, msgspec.Meta(ge=LEAST_FACTOR, le=MOST_FACTOR)]
    starting: Annotated[float, msgspec.Meta(ge=LEAST_FACTOR, le=MOST_FACTOR)]


def read_state(path: str | os.PathLike[str]) -> State:
    """The state in a JSON file: that of `lolat doctor MODEL --json`, or its "state" alone.

    InputError says what was found and what is expected.
    """
    expected = (
        "expected a file that `lolat doctor MODEL --json` has written, or "
        '{"computing": 1.2, "moving": 1.1, "starting": 1.0}, or: now'
    )
    try:
        document = read_json(path, expected)
    except ModelFileError as error:
        raise InputError(f"--state {error}") from error
    state = document.get("state", document) if isinstance(document, dict) else document
    try:
        found = converted(state, _Factors, f"--state {path}")
    except ModelFileError as error:
        raise InputError(f"{error}; {expected}") from error
    return State(*(float(getattr(found, k)) for k in KINDS))
