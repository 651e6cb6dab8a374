"""What a predictor answers with: a latency, how sure it is, and the parts that it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lolat.counts import COLUMNS

CALL = "call"


@dataclass(frozen=True)
class BlockPrediction:
    """One block of a network: its time, its share of the whole, the milliseconds of each term."""

    name: str
    latency_ms: float
    share: float
    counts: Mapping[str, int]
    terms_ms: Mapping[str, float]

    @property
    def bound_by(self) -> str:
        """The term that takes most of the block's time."""
        return max(self.terms_ms, key=lambda k: self.terms_ms[k]) if self.terms_ms else CALL

    def to_dict(self) -> dict[str, Any]:
        """As it stands under "blocks" in the JSON answers."""
        return {
            "name": self.name,
            "latency_ms": self.latency_ms,
            "share": self.share,
            "bound_by": self.bound_by,
            "counts": dict(self.counts),
            "terms_ms": dict(self.terms_ms),
        }


@dataclass(frozen=True)
class Prediction:
    """The latency of one forward pass of a network, in ms, and where it comes from.

    `interval_ms` has the stated `coverage`; both are None where the model has no points to tell.
    `in_domain` is None where the model does not say what was measured. The blocks, among them "call",
    the fixed cost of a call, add up to `latency_ms`.
    """

    network: str
    batch_size: int
    predictor: str
    latency_ms: float
    interval_ms: tuple[float, float] | None
    coverage: float | None
    in_domain: bool | None
    warnings: tuple[str, ...]
    names: tuple[str, ...] = field(repr=False)
    features: tuple[str, ...] = field(repr=False)
    block_counts: np.ndarray = field(repr=False)  # (blocks, COLUMNS)
    block_terms: np.ndarray = field(repr=False)  # (blocks, features), ms
    call_ms: float = 0.0

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts of the whole network at this batch size."""
        return _named(self.block_counts.sum(axis=0))

    @cached_property
    def blocks(self) -> tuple[BlockPrediction, ...]:
        """The parts in network order, the last one being the call itself."""
        total = self.latency_ms or 1.0
        parts = [
            BlockPrediction(
                name,
                float(terms.sum()),
                float(terms.sum()) / total,
                _named(counts),
                dict(zip(self.features, map(float, terms), strict=True)),
            )
            for name, counts, terms in zip(
                self.names, self.block_counts, self.block_terms, strict=True
            )
        ]
        parts.append(
            BlockPrediction(CALL, self.call_ms, self.call_ms / total, dict.fromkeys(COLUMNS, 0), {})
        )
        return tuple(parts)

    def to_dict(self) -> dict[str, Any]:
        """The answer of `predict --json`."""
        return {
            "network": self.network,
            "batch_size": self.batch_size,
            "predictor": self.predictor,
            "latency_ms": self.latency_ms,
            "interval_ms": None if self.interval_ms is None else list(self.interval_ms),
            "coverage": self.coverage,
            "in_domain": self.in_domain,
            "warnings": list(self.warnings),
            "counts": self.counts,
            "blocks": [b.to_dict() for b in self.blocks],
        }


def _named(row: np.ndarray) -> dict[str, int]:
    return dict(zip(COLUMNS, (int(v) for v in row), strict=True))
