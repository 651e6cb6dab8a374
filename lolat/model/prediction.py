"""What a predictor makes of a network: a latency, how sure it is, and the parts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.domain import NEGLIGIBLE, OUTSIDE_WIDENING, UNMEASURED_WIDENING, advice
from lolat.fitting.intervals import COVERAGE, drift, half_width, machine_factor
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph, floating_types
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS, FEATURES, GROUPS, behaviors, count
from lolat.graph.subgraph import block_kinds
from lolat.graph.work import work_of
from lolat.model.state import OF_GROUP, State

if TYPE_CHECKING:
    from lolat.model import Model

# ---- What a reader of an answer should know of the model that gave it.

FRAMEWORKS = {
    "keras": ("a Keras network", "tensorflow"),
    "torch": ("a PyTorch network", "torch"),
    "onnx": ("an ONNX network", "onnxruntime"),
}
"""What a network is written in (`Graph.framework`): in words, and the backend that runs it."""


def other_framework(where: Mapping[str, Any], written_in: str) -> Iterator[str]:
    """A remark where a network was written for another framework than the model was learned with.

    `where`: the model's environment; `written_in`: the network's `Graph.framework`. Nothing where either
    does not say. The network's counts are the same in every framework, its latency is not.
    """
    words, own = FRAMEWORKS.get(written_in, ("", ""))
    learned = where.get("framework")
    if not own or not isinstance(learned, str) or learned == own:
        return
    named = f"{learned} {where.get('framework_version') or ''}".strip()
    device = "gpu" if where.get("device") == "gpu" else "cpu"
    yield (
        f"the model was learned with {named} and this is {words}: the answer is for the same network "
        f"run by {learned}; for {own}: lolat learn {device} --backend {own}"
    )


def of_its_source(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model that somebody else's measurements made says of itself."""
    made_of = document["environment"].get("source")
    return tuple(document.get("warnings", ())) if isinstance(made_of, Mapping) else ()


# ---- prediction ----------------------------------------

CALL = "call"
MEMORY = "memory"
NOTHING = "nothing"
_SIX = [COLUMNS.index(c) for c in FEATURES]
_OPS = COLUMNS.index("ops")


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
    measure: tuple[str, ...] = ()  # names of the blocks whose measuring would bring it inside
    half: float | None = None  # of the interval without the machine's drift, as a logarithm
    quiet_ms: float | None = None  # on the machine as it is in its calmest moments, where known
    state: State | None = None  # of the machine that it is for; None: as it usually is

    def under(self, state: State) -> Prediction:
        """The same in a state of the machine, with the interval of a machine whose state is known."""
        factors = np.array([getattr(state, OF_GROUP[GROUPS[f]]) for f in self.features])
        terms = self.block_terms * factors
        call_ms = self.call_ms * state.starting
        latency = float(terms.sum()) + call_ms
        return replace(
            self,
            latency_ms=latency,
            block_terms=terms,
            call_ms=call_ms,
            interval_ms=None if self.half is None else _interval(latency, self.half),
            state=state,
        )

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
            "quiet_ms": self.quiet_ms,
            "state": None if self.state is None else self.state.to_dict(),
            "interval_ms": None if self.interval_ms is None else list(self.interval_ms),
            "coverage": self.coverage,
            "in_domain": self.in_domain,
            "warnings": list(self.warnings),
            "measure": list(self.measure),
            "counts": self.counts,
            "blocks": [b.to_dict() for b in self.blocks],
        }


def bound_by(terms_ms: Mapping[str, float]) -> str:
    """What takes most of the time: a group of `lolat.graph.counts.GROUPS`, or "nothing"."""
    grouped: dict[str, float] = {}
    for term, value in terms_ms.items():
        group = GROUPS[term]
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
    names, counts = _block_counts(network, batch_size)
    terms, call_ms, doubtful = _terms(formula, network, batch_size, counts)
    latency = float(terms.sum()) + call_ms
    times = terms.sum(axis=1)
    shares = times / latency if latency > 0.0 else np.zeros(len(names))
    asked = (batch_size, formula.name)
    if isinstance(formula, Kernels):
        remarks, widening = doubtful, OUTSIDE_WIDENING if doubtful else 1.0
        measure: tuple[str, ...] = ()
    else:
        remarks, widening, measure = _outside(model, network, counts, names, shares, asked)
    parts = (times, counts[:, _OPS])
    half, doubts = half_width(model.document, formula.name, coverage, parts, model.cache)
    interval = None
    if half is not None:
        half *= widening
        interval = _interval(latency, math.hypot(half, drift(model.document)))
    quiet = machine_factor(model.document, "quiet")
    return Prediction(
        network=network.name,
        batch_size=batch_size,
        predictor=formula.name,
        latency_ms=latency,
        interval_ms=interval,
        coverage=None if interval is None else COVERAGE if coverage is None else coverage,
        in_domain=None if remarks is None else not remarks,
        warnings=(
            *count(network).warnings,
            *(remarks or ()),
            *doubts,
            *other_framework(model.document["environment"], network.framework),
            *of_its_source(model.document),
        ),
        names=names,
        features=formula.features,
        block_counts=counts,
        block_terms=terms,
        call_ms=call_ms,
        measure=measure,
        half=half,
        quiet_ms=None if quiet is None else latency * quiet,
    )


def _terms(
    formula: Formula, network: Graph, batch_size: int, counts: np.ndarray
) -> tuple[np.ndarray, float, tuple[str, ...] | None]:
    """Ms of each block by term, (blocks, features), and those of the call. `counts`: of the blocks.

    Third, of a formula by operation: what of the network is like nothing that was measured.
    """
    if not isinstance(formula, Kernels):
        return *formula.shares(counts[:, [COLUMNS.index(f) for f in formula.features]]), None
    work = work_of(network, batch_size, formula.mode)
    times, mostly = formula.times(work)
    found = np.zeros((len(counts), len(formula.features)))
    np.add.at(found, (_owners(network)[1][work.operation], mostly), times)
    return found, 0.0, formula.unlike(work, times, NEGLIGIBLE)


def operations_ms(formula: Kernels, network: Graph, batch_size: int) -> float:
    """Ms of a whole network by a formula that takes operations one by one."""
    return float(formula.times(work_of(network, batch_size, formula.mode))[0].sum())


def _interval(latency: float, half: float) -> tuple[float, float]:
    return latency * math.exp(-half), latency * math.exp(half)


MOST_COUNT = 2.0**53  # of an operation: the largest that a float still holds exactly
KEPT_BATCH_SIZES = 64  # of a network


def as_batch_size(batch_size: Any) -> int:
    """`batch_size` as an int; InputError unless it is a whole number from 1."""
    good = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
    if not good or batch_size < 1:
        raise InputError(f"batch size {batch_size!r}: expected a whole number from 1")
    return int(batch_size)


def _outside(
    model: Model,
    network: Graph,
    counts: np.ndarray,
    names: tuple[str, ...],
    shares: np.ndarray,
    asked: tuple[int, str],
) -> tuple[tuple[str, ...] | None, float, tuple[str, ...]]:
    """Remarks on what lies outside the measured domain, by what the interval is widened for it, and
    the names of the blocks to measure to bring it inside.

    The remarks are None when the model does not say what was measured. `asked`: batch size and
    predictor, which `counts` and `shares` are of.
    """
    domain = model.domain
    if domain is None:
        return None, 1.0, ()
    # Kept with the network by the domain itself: another model's may get the same id later.
    kept = network.cache.setdefault("outside", {})
    of, found = kept.get(asked, (None, ((), 1.0, ())))
    if of is not domain:
        beyond = domain.outside(counts[:, _SIX], names, shares)
        strange = domain.unmeasured(
            sorted(behaviors(network.operations)), list(set(floating_types(network)))
        )
        widening = UNMEASURED_WIDENING if strange else OUTSIDE_WIDENING if beyond else 1.0
        measure: tuple[str, ...] = ()
        if beyond or strange:
            kinds, able = block_kinds(network, domain.dtypes)
            rows, complete = domain.to_measure(counts[:, _SIX], kinds, shares, np.array(able))
            measure = tuple(names[i] for i in rows)
            complete = complete and domain.dtypes.issuperset(floating_types(network))
            where = model.document["environment"].get("device")
            if where in ("cpu", "gpu"):  # one that can measure
                strange = [*strange, *advice(model.source, measure, complete, asked[0])]
        found = ((*beyond, *strange), widening, measure)
        kept[asked] = (domain, found)
    return found


def _block_counts(network: Graph, batch_size: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Names and counts (blocks, COLUMNS) of a network's blocks; kept with it for some batch sizes.

    InputError where a count does not fit in 64 bits.
    """
    kept: dict[int, np.ndarray] = network.cache.setdefault("block_counts", {})
    names, owner = _owners(network)
    found = kept.get(batch_size)
    if found is None:
        counts = count(network)
        if float(counts.scaled.max(initial=0)) * batch_size > MOST_COUNT:
            raise InputError(
                f"batch size {batch_size} of {network.name!r}: too large, its counts do not fit in 64 "
                "bits; give a smaller batch size or input size"
            )
        found = np.zeros((len(names), len(COLUMNS)), np.int64)
        np.add.at(found, owner, counts.at(batch_size))
        if len(kept) >= KEPT_BATCH_SIZES:
            kept.pop(next(iter(kept)))
        kept[batch_size] = found
    return names, found


def _owners(network: Graph) -> tuple[tuple[str, ...], np.ndarray]:
    """The blocks' names, and (operations,) which block each operation belongs to; kept with it."""
    found = network.cache.get("owners")
    if found is None:
        blocks = cut(network)
        owner = np.empty(len(network.operations), np.intp)
        for i, block in enumerate(blocks):
            owner[list(block.operations)] = i
        found = network.cache["owners"] = (tuple(b.name for b in blocks), owner)
    return found


def _named(row: np.ndarray) -> dict[str, int]:
    return dict(zip(COLUMNS, (int(v) for v in row), strict=True))
