"""What an explanation consists of: receipts, what a change would save, and both together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lolat.prediction import Prediction
from lolat.variations.tries import Try


@dataclass(frozen=True)
class Term:
    """A line of a receipt: so many units of a count at `rate_ms` each."""

    name: str
    count: int
    rate_ms: float
    latency_ms: float


@dataclass(frozen=True)
class Receipt:
    """What something costs, term by term; `share` is of the network's time."""

    name: str
    latency_ms: float
    share: float
    terms: tuple[Term, ...]
    kind: str | None = None  # of an operation

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the answer of `explain --json`."""
        document: dict[str, Any] = {
            "name": self.name,
            "latency_ms": self.latency_ms,
            "share": self.share,
            "terms": {
                t.name: {"count": t.count, "rate_ms": t.rate_ms, "latency_ms": t.latency_ms}
                for t in self.terms
            },
        }
        return document if self.kind is None else {**document, "kind": self.kind}


@dataclass(frozen=True)
class Counterfactual:
    """What a change would do to the network's latency, predicted for the changed network.

    `of_block` is the saving as a share of the block's time; None for a change of the whole network.
    """

    what: Try
    latency_ms: float
    interval_ms: tuple[float, float] | None
    saves_ms: float
    of_block: float | None
    of_network: float
    in_domain: bool | None

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the answer of `explain --json`."""
        return {
            "kind": self.what.kind,
            "change": self.what.change,
            "details": dict(self.what.details),
            "latency_ms": self.latency_ms,
            "interval_ms": None if self.interval_ms is None else list(self.interval_ms),
            "saves_ms": self.saves_ms,
            "of_block": self.of_block,
            "of_network": self.of_network,
            "in_domain": self.in_domain,
        }


@dataclass(frozen=True)
class BatchEffect:
    """The latency at another batch size, and what is left of it for each sample."""

    batch_size: int
    latency_ms: float
    per_sample_ms: float


@dataclass(frozen=True)
class Explanation:
    """A prediction with its receipts, and what would change it, the largest saving first.

    Of a network: `blocks` are the receipts of all blocks, `operations` is empty. Of a block: `blocks`
    is its receipt alone, `operations` has one for each operation in it.
    """

    prediction: Prediction
    total: Receipt
    blocks: tuple[Receipt, ...]
    operations: tuple[Receipt, ...]
    counterfactuals: tuple[Counterfactual, ...]
    batches: tuple[BatchEffect, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def of_block(self) -> bool:
        """Whether one block is explained, not the network."""
        return bool(self.operations)

    def to_dict(self) -> dict[str, Any]:
        """The answer of `explain --json`; docs/explain.md says what is in it."""
        p = self.prediction
        return {
            "network": p.network,
            "batch_size": p.batch_size,
            "predictor": p.predictor,
            "latency_ms": p.latency_ms,
            "interval_ms": None if p.interval_ms is None else list(p.interval_ms),
            "coverage": p.coverage,
            "in_domain": p.in_domain,
            "warnings": [*p.warnings, *self.notes],
            "call_ms": p.call_ms,
            "terms": self.total.to_dict()["terms"],
            "block": self.blocks[0].name if self.of_block else None,
            "blocks": [b.to_dict() for b in self.blocks],
            "operations": [o.to_dict() for o in self.operations],
            "counterfactuals": [c.to_dict() for c in self.counterfactuals],
            "batches": [vars(b) for b in self.batches],
        }
