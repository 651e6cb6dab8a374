"""What is measured to learn training, one point each: a pass, an update, an epoch, a start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from lolat.training.passes import PASS_TERMS


@dataclass(frozen=True)
class PassPoint:
    """A block's pass: `backward`: of both passes, else of the forward pass alone.

    `terms`: (PASS_TERMS,) of the block at `batch_size`; `latency_ms` from `samples_ms`, each beside a
    `reference_ms`; `spread` as of a `lolat.points.Point`.
    """

    name: str
    batch_size: int
    backward: bool
    terms: np.ndarray
    latency_ms: float
    samples_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    spread: float | None
    kinds: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a model file; terms that are 0 are left out."""
        terms = {t: _whole(v) for t, v in zip(PASS_TERMS, self.terms.tolist(), strict=True) if v}
        return {
            "name": self.name, "batch_size": self.batch_size, "backward": self.backward,
            "terms": terms, "latency_ms": self.latency_ms,
            "samples_ms": [round(t, 4) for t in self.samples_ms],
            "reference_ms": [round(t, 4) for t in self.reference_ms],
            "spread": self.spread, "kinds": list(self.kinds),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PassPoint:
        """Read what `to_dict` wrote; KeyError, TypeError or ValueError where it is damaged."""
        terms = document["terms"]
        unknown = sorted(set(terms) - set(PASS_TERMS))
        if unknown:
            raise ValueError(f"a point has the unknown term {unknown[0]!r}")
        return cls(
            name=document["name"],
            batch_size=document["batch_size"],
            backward=bool(document["backward"]),
            terms=np.array([float(terms.get(t, 0.0)) for t in PASS_TERMS]),
            latency_ms=_time(document["latency_ms"]),
            samples_ms=tuple(document.get("samples_ms") or ()),
            reference_ms=tuple(document.get("reference_ms") or ()),
            spread=document.get("spread"),
            kinds=tuple(document.get("kinds") or ()),
        )


@dataclass(frozen=True)
class UpdatePoint:
    """An update of `variables` tensors with `parameters` numbers in all."""

    optimizer: str
    variables: int
    parameters: int
    latency_ms: float
    samples_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class EpochPoint:
    """An epoch of `steps` iterations with nothing to compute, on `elements` input numbers each."""

    steps: int
    elements: int
    latency_ms: float
    samples_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class StartPoint:
    """A network's first step: `operations` traced, `variables` updated."""

    optimizer: str
    operations: int
    variables: int
    latency_ms: float


Plain = TypeVar("Plain", UpdatePoint, EpochPoint, StartPoint)


def plain(point: UpdatePoint | EpochPoint | StartPoint) -> dict[str, Any]:
    """As it stands in a model file."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(point).items()}


def from_plain(kind: type[Plain], document: Mapping[str, Any]) -> Plain:
    """Read what `plain` wrote; KeyError, TypeError or ValueError where it is damaged."""
    _time(document["latency_ms"])
    known: dict[str, Any] = {f.name: document[f.name] for f in fields(kind) if f.name in document}
    known |= {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
    return kind(**known)


def _time(value: Any) -> float:
    """A finite time above 0, ms, or ValueError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= 0.0:
        raise ValueError(f"`latency_ms` of a point is {value!r}, not a time above 0")
    return float(value)


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value
