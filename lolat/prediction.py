"""What a predictor makes of a network: a latency, how sure it is, and the parts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.blocks import cut
from lolat.counts import COLUMNS, FEATURES, behaviours, count
from lolat.domain import OUTSIDE_WIDENING, UNMEASURED_WIDENING
from lolat.errors import InputError
from lolat.graph import Graph, floating_types
from lolat.intervals import COVERAGE, check_coverage, conformal_quantile

if TYPE_CHECKING:
    from lolat.model import Model

CALL = "call"
MEMORY = "memory"
NOTHING = "nothing"
MOVING = frozenset(["acts", "inp", "traffic", "passes"])
"""Terms for elements that are read and written, as against computed with."""
_SIX = [COLUMNS.index(c) for c in FEATURES]


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
        """What takes most of the block's time; see `bound_by`."""
        return bound_by(self.terms_ms) if self.terms_ms else CALL

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

    `interval_ms` has the stated `coverage`; both are None where the model has too few points to tell.
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


def bound_by(terms_ms: Mapping[str, float]) -> str:
    """What takes most of the time: "memory" (all terms of MOVING), another term, or "nothing"."""
    grouped: dict[str, float] = {}
    for term, value in terms_ms.items():
        group = MEMORY if term in MOVING else term
        grouped[group] = grouped.get(group, 0.0) + value
    most = max(grouped, key=lambda k: grouped[k])
    return most if grouped[most] > 0.0 else NOTHING


def predict_network(
    model: Model, network: Graph, batch_size: int, predictor: str | None, coverage: float | None
) -> Prediction:
    """What `Model.predict` answers; it says what comes in and what is raised."""
    if not isinstance(network, Graph):
        raise InputError(
            f"predict() got a {type(network).__name__}; expected a Graph: lolat.read(network)"
        )
    batch_size = as_batch_size(batch_size)
    formula = model.predictor(predictor)
    names, fixed, scaled = _block_counts(network)
    if float(scaled.max(initial=0)) * batch_size > MOST_COUNT:
        raise InputError(
            f"batch size {batch_size} of {network.name!r}: too large, its counts do not fit in 64 bits; "
            "give a smaller batch size or input size"
        )
    counts = fixed + batch_size * scaled
    terms, call_ms = formula.shares(counts[:, [COLUMNS.index(f) for f in formula.features]])
    latency = float(terms.sum()) + call_ms
    shares = terms.sum(axis=1) / latency if latency > 0.0 else np.zeros(len(names))
    remarks, widening = _outside(model, network, counts, names, shares, (batch_size, formula.name))
    half, doubts = _half_width(model, formula.name, coverage)
    interval = None
    if half is not None:
        half *= widening
        interval = (latency * math.exp(-half), latency * math.exp(half))
    return Prediction(
        network=network.name,
        batch_size=batch_size,
        predictor=formula.name,
        latency_ms=latency,
        interval_ms=interval,
        coverage=None if interval is None else COVERAGE if coverage is None else coverage,
        in_domain=None if remarks is None else not remarks,
        warnings=(*count(network).warnings, *(remarks or ()), *doubts),
        names=names,
        features=formula.features,
        block_counts=counts,
        block_terms=terms,
        call_ms=call_ms,
    )


MOST_COUNT = 2.0**53  # of a block: the largest that a float still holds exactly


def as_batch_size(batch_size: Any) -> int:
    """`batch_size` as an int; InputError unless it is a whole number from 1."""
    good = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
    if not good or batch_size < 1:
        raise InputError(f"batch size {batch_size!r}: expected a whole number from 1")
    return int(batch_size)


def _half_width(
    model: Model, predictor: str, coverage: float | None
) -> tuple[float | None, tuple[str, ...]]:
    """Half the width of the interval, as a logarithm, and what is to be said of it.

    None where there are no residuals, or too few of them for the coverage that is usual; one that is
    asked for (not None) and cannot be had is an InputError.
    """
    wanted = COVERAGE if coverage is None else coverage
    check_coverage(wanted)
    key = ("half width", predictor, wanted)
    residuals = model.document["predictors"][predictor].get("residuals")
    if key not in model.cache:
        try:
            model.cache[key] = conformal_quantile(residuals, wanted) if residuals else None
        except InputError:
            if coverage is not None:
                raise
            return None, (
                f"no interval: {len(residuals)} points cannot give {100 * wanted:.0f} % coverage; "
                "measure more blocks, or ask for less coverage",
            )
    return model.cache[key], ()


def _outside(
    model: Model,
    network: Graph,
    counts: np.ndarray,
    names: tuple[str, ...],
    shares: np.ndarray,
    asked: tuple[int, str],
) -> tuple[tuple[str, ...] | None, float]:
    """Remarks on what lies outside the measured domain, and by what the interval is widened for it.

    The remarks are None when the model does not say what was measured. `asked`: batch size and
    predictor, which `counts` and `shares` are of.
    """
    domain = model.domain
    if domain is None:
        return None, 1.0
    # Kept with the network by the domain itself: another model's may get the same id later.
    kept = network.cache.setdefault("outside", {})
    of, found = kept.get(asked, (None, ((), 1.0)))
    if of is not domain:
        beyond = domain.outside(counts[:, _SIX], names, shares)
        strange = domain.unmeasured(
            sorted(behaviours(network.operations)), list(set(floating_types(network)))
        )
        widening = UNMEASURED_WIDENING if strange else OUTSIDE_WIDENING if beyond else 1.0
        found = ((*beyond, *strange), widening)
        kept[asked] = (domain, found)
    return found


def _block_counts(network: Graph) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names, fixed and scaled counts (blocks, COLUMNS) of a network's blocks; kept with it."""
    found = network.cache.get("block_counts")
    if found is None:
        blocks = cut(network)
        counts = count(network)
        owner = np.empty(len(network.operations), np.intp)
        for i, block in enumerate(blocks):
            owner[list(block.operations)] = i
        fixed = np.zeros((len(blocks), len(COLUMNS)), np.int64)
        scaled = np.zeros_like(fixed)
        np.add.at(fixed, owner, counts.fixed)
        np.add.at(scaled, owner, counts.scaled)
        found = network.cache["block_counts"] = (tuple(b.name for b in blocks), fixed, scaled)
    return found


def _named(row: np.ndarray) -> dict[str, int]:
    return dict(zip(COLUMNS, (int(v) for v in row), strict=True))
