"""What a predictor makes of a network: a latency, how sure it is, and the parts that it is made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from lolat.errors import InputError, arg
from lolat.fitting.domain import (
    MOSTLY_SHARE,
    NEGLIGIBLE_SHARE,
    Domain,
    Outside,
    fit_again,
    widened,
)
from lolat.fitting.intervals import COVERAGE, check_coverage, half_width, machine
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph
from lolat.graph.analysis import KEPT_BATCH_SIZES, Analysis, Memory, analyze
from lolat.graph.counts import COLUMNS, FEATURES, FORMULAS, GROUPS
from lolat.graph.work import work_of
from lolat.io.results import Result
from lolat.model.state import State
from lolat.units import between, byte_size, milliseconds, plain, shapes_text

CALL = "call"
MEMORY = "memory"
NOTHING = "nothing"
_SIX = [COLUMNS.index(c) for c in FEATURES]
_OPS = COLUMNS.index("ops")

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
    device = where.get("device")  # "unknown" of one that was fitted to published times
    mend = f"; for {own}: lolat learn {device} --backend {own}" if device in ("cpu", "gpu") else ""
    yield (
        f"the model was learned with {named} and this is {words}: the answer is for the same network "
        f"run by {learned}{mend}"
    )


def too_large(memory: Memory, where: Mapping[str, Any]) -> Iterator[str]:
    """A remark where a forward pass needs more memory than the device had; `where`: its environment."""
    free = where.get("available_bytes")
    if isinstance(free, (int, float)) and memory.total_bytes > free:
        yield (
            f"it needs about {byte_size(memory.total_bytes)} of memory, the device had {byte_size(free)} "
            "free when it was measured: it will not run there, or far slower; try a smaller batch size or "
            "input"
        )


def of_its_source(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model that somebody else's measurements made says of itself."""
    made_of = document["environment"].get("source")
    return tuple(document.get("warnings", ())) if isinstance(made_of, Mapping) else ()


@dataclass(frozen=True)
class BlockPrediction:
    """One block of a network: its time, its share of the whole, the milliseconds of each term."""

    name: str
    latency_ms: float
    share: float
    bound_by: str  # what takes most of its time
    counts: Mapping[str, int]
    terms_ms: Mapping[str, float]


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """The latency of one forward pass of a network, in ms, and where it comes from.

    `interval_ms` has the stated `coverage`; both are None where the model has too few points to tell.
    `inside_share`: of the time that is spent in what is like what was measured; `in_domain`: whether that
    is most of it; both None where the model does not say what was measured. `launch`: how a GPU's
    operations are launched (`lolat.graph.modes`); `host_ms`: what the host takes to start them all;
    `host_bound`: whether that is longer than running them; None where the model does not say.
    The blocks, the last one "call", the fixed cost of a call, add up to `latency_ms`. `device`: the model
    as it was given, among several answers. FLOPs are multiply-accumulates.
    """

    KEYS = (
        "model", "learned", "state", "network", "batch_size", "input_shapes", "predictor", "latency_ms",
        "interval_ms", "coverage", "in_domain", "inside_share", "launch", "host_ms", "host_bound",
        "memory_bytes", "memory", "warnings", "counts", "blocks", "device",
    )  # fmt: skip

    network: str
    batch_size: int
    predictor: str
    latency_ms: float
    interval_ms: tuple[float, float] | None
    coverage: float | None
    in_domain: bool | None
    warnings: tuple[str, ...]
    names: tuple[str, ...]
    features: tuple[str, ...]
    block_counts: np.ndarray  # (blocks, COLUMNS)
    block_terms: np.ndarray  # (blocks, features), ms
    call_ms: float = 0.0
    inside_share: float | None = None
    launch: str | None = None
    host_ms: float | None = None
    host_bound: bool | None = None
    memory: Memory | None = None  # of one forward pass
    model: str = ""  # its name, and when it was learned
    learned: str | None = None
    state: State | None = None
    input_shapes: tuple[tuple[int, ...], ...] = ()  # of what goes in, the batch first
    device: str | UnsetType = UNSET

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts of the whole network at this batch size."""
        return _named(self.block_counts.sum(axis=0))

    @cached_property
    def blocks(self) -> tuple[BlockPrediction, ...]:
        """The parts in network order, the last one being the call itself."""
        total, parts = self.latency_ms or 1.0, []
        for name, row, terms in zip(self.names, self.block_counts, self.block_terms, strict=True):
            ms, named = float(terms.sum()), dict(zip(self.features, map(float, terms), strict=True))
            bound = bound_by(named) if named else CALL
            parts.append(BlockPrediction(name, ms, ms / total, bound, _named(row), named))
        nothing = dict.fromkeys(COLUMNS, 0)
        return *parts, BlockPrediction(CALL, self.call_ms, self.call_ms / total, CALL, nothing, {})

    @property
    def memory_bytes(self) -> int | None:
        """Of weights and tensors at once."""
        return None if self.memory is None else self.memory.total_bytes

    @property
    def title(self) -> str:
        """Which network at which batch size, and what goes in."""
        size = shapes_text(self.input_shapes)
        return f"{plain(self.network)} · batch {self.batch_size}" + (f" · {size}" if size else "")

    def words(self) -> str:
        """The latency, how sure it is and whether the network is like what was measured."""
        return (
            f"{self.title}: {milliseconds(self.latency_ms)}"
            f"{interval_words(self.interval_ms, self.coverage)}; {domain_words(self)}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row for each block: name, latency_ms, share, bound_by and its counts."""
        told = ("name", "latency_ms", "share", "bound_by")
        return [{**{n: getattr(b, n) for n in told}, **b.counts} for b in self.blocks]


def domain_words(prediction: Prediction) -> str:
    """Whether a network is like what was measured: all, most (by its time) or too little of it."""
    share = prediction.inside_share
    if prediction.in_domain is None or share is None:
        return "the model does not say what was measured"
    if share > 1.0 - NEGLIGIBLE_SHARE:
        return "inside the measured domain"
    if prediction.host_bound:
        return "host-bound, OUTSIDE the measured domain"
    where = "mostly inside" if prediction.in_domain else "OUTSIDE"
    part = f"{math.floor(100 * share)} % of the time" + " inside" * (not prediction.in_domain)
    return f"{where} the measured domain ({part})"


def memory_words(prediction: Prediction) -> Iterator[str]:
    """What a forward pass needs in memory, and where it is most; nothing where that is not known."""
    memory = prediction.memory
    if memory is not None:
        at = f", most at {plain(memory.at)}" if memory.at else ""
        yield (
            f"{byte_size(memory.total_bytes)} of memory: {byte_size(memory.weights_bytes)} of weights, "
            f"{byte_size(memory.activations_bytes)} of tensors at once{at}"
        )


def interval_words(interval_ms: tuple[float, float] | None, coverage: float | None) -> str:
    """An interval as it follows its latency: ", 90 % sure of 26.4 .. 31.9"; nothing where there is none."""
    if interval_ms is None or coverage is None:
        return ""
    return f", {100 * coverage:g} % sure of {between(*interval_ms)}"


def bound_by(terms_ms: Mapping[str, float]) -> str:
    """What takes most of the time: a group of `lolat.graph.counts.GROUPS`, or "nothing"."""
    grouped: dict[str, float] = {}
    for term, value in terms_ms.items():
        group = GROUPS[term]
        grouped[group] = grouped.get(group, 0.0) + value
    most = max(grouped, key=lambda k: grouped[k])
    return most if grouped[most] > 0.0 else NOTHING


class Knowledge:
    """What a model file says besides its formulas, and what was found out of networks with it."""

    def __init__(
        self, document: Mapping[str, Any], source: str, state: State | None = None
    ) -> None:
        self.source = source
        self.state = state
        self.model: str = document["name"]
        self.environment: Mapping[str, Any] = document["environment"]
        date = self.environment.get("date")
        self.learned = date if isinstance(date, str) else None
        domain = msgspec.convert(document["domain"], Domain)
        self.domain = domain if domain.is_known else None
        self.least = domain.least
        self.document = document
        self.remarks = of_its_source(document)
        # The counts of the networks that the model was fitted to as a whole.
        whole = (p for p in document["points"] if p.get("whole"))
        self.timed = {tuple(p.get(c) for c in FEATURES) for p in whole}
        self._forget()

    def _forget(self) -> None:
        self.predicted: WeakKeyDictionary[Analysis, dict[Any, Prediction]] = WeakKeyDictionary()
        # What `Domain.unmeasured` says, which is the same at each batch size.
        self.unmeasured: WeakKeyDictionary[Analysis, Any] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        """Without what was found out of networks, which hangs on objects of this process."""
        return self.__dict__ | {"predicted": None, "unmeasured": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def outside(
        self, analysis: Analysis, batch_size: int, formula: Formula, shares: np.ndarray
    ) -> Outside:
        """What lies outside where the blocks take `shares`, (blocks,), of the time by `formula`."""
        domain = self.domain
        if domain is None:
            return Outside(known=False)
        counts = analysis.block_counts(batch_size)[:, _SIX]
        beyond = domain.beyond(counts)
        found = self.unmeasured.get(analysis)
        if found is None:
            found = self.unmeasured[analysis] = domain.unmeasured(analysis.graph)
        kinds, dtypes = found
        own = np.zeros(len(analysis.owner))  # each operation's share of the time
        if kinds or dtypes:
            own = formula.of_operations(analysis, batch_size).sum(axis=1)
            own *= float(shares.sum()) / (float(own.sum()) or 1.0)
        strange = np.zeros(len(own), bool)
        strange[[*kinds, *dtypes]] = True
        by_block = np.bincount(analysis.owner, own * strange, len(shares))
        rest = float((shares - by_block)[beyond].clip(0.0).sum())
        outside = Outside(rest, float(by_block.sum()))
        if outside.negligible:
            return outside
        said = domain.outside(counts, analysis.names, shares)
        remarks = (*said, *domain.unmeasured_remarks(kinds, dtypes, own))
        if self._can_learn(analysis, batch_size):
            remarks += (
                "to have the model know it, time the whole network on the model's device and fit it in "
                f"(timed.csv: network,batch_size,latency_ms): {fit_again(self.source)}",
            )
        return replace(outside, remarks=remarks)

    def _can_learn(self, analysis: Analysis, batch_size: int) -> bool:
        """Whether the time of the whole network would tell a model that was measured something new."""
        if self.environment.get("device") not in ("cpu", "gpu") or self.domain is None:
            return False
        total = tuple(analysis.block_counts(batch_size)[:, _SIX].sum(axis=0).tolist())
        known = all(o.kind in FORMULAS for o in analysis.graph.operations)
        return known and analysis.dtypes <= self.domain.dtypes and total not in self.timed


def predict_network(
    network: Graph | Analysis,
    batch_size: int,
    formula: Formula,
    coverage: float | None,
    knowledge: Knowledge,
) -> Prediction:
    """What `Model.predict` answers, which says what comes in and is raised; the last answers are kept."""
    if not isinstance(network, (Graph, Analysis)):
        raise InputError(
            f"predict() got a {type(network).__name__}; expected a Graph: lolat.read(network)"
        )
    if coverage is not None:
        check_coverage(coverage)
    key, analysis = (as_batch_size(batch_size), formula.name, coverage), analyze(network)
    kept = knowledge.predicted.setdefault(analysis, {})
    found = kept.get(key)
    if found is None:
        if len(kept) >= KEPT_BATCH_SIZES:
            kept.pop(next(iter(kept)), None)
        found = kept[key] = _predicted(analysis, key[0], formula, coverage, knowledge)
    return copy(found)  # whose blocks and counts nobody else has


def _predicted(
    analysis: Analysis,
    batch_size: int,
    formula: Formula,
    coverage: float | None,
    knowledge: Knowledge,
) -> Prediction:
    graph, counts = analysis.graph, analysis.block_counts(batch_size)
    terms, call_ms, steps = formula.of_blocks(analysis, batch_size)
    terms.setflags(write=False)  # all answers to this question have it
    latency = float(terms.sum()) + call_ms
    times = terms.sum(axis=1)
    if steps is not None:
        outside = formula.outside(steps, batch_size, knowledge.least)
    else:
        shares = times / latency if latency > 0.0 else np.zeros(len(times))
        outside = knowledge.outside(analysis, batch_size, formula, shares)
    memory = analysis.liveness.memory(batch_size)
    inside, document = outside.inside_share, knowledge.document
    half, doubts = half_width(formula, document, coverage, times, counts[:, _OPS])
    interval = None
    if half is not None:
        half = widened(half, outside.beyond, outside.unmeasured)
        half = math.hypot(half, machine(document, coverage or COVERAGE))
        interval = within(latency, half) if steps is None else steps.interval(half, coverage)
    return Prediction(
        network=graph.name,
        batch_size=batch_size,
        predictor=formula.name,
        latency_ms=latency,
        interval_ms=interval,
        coverage=None if interval is None else COVERAGE if coverage is None else coverage,
        in_domain=None if inside is None else inside >= MOSTLY_SHARE,
        inside_share=inside,
        memory=memory,
        model=knowledge.model,
        learned=knowledge.learned,
        state=knowledge.state,
        input_shapes=tuple((batch_size, *s[1:]) for s in graph.shapes(graph.inputs)),
        warnings=(
            *analysis.counts.warnings,
            *outside.remarks,
            *doubts,
            *other_framework(knowledge.environment, graph.framework),
            *knowledge.remarks,
            *too_large(memory, knowledge.environment),
        ),
        names=analysis.names,
        features=formula.features,
        block_counts=counts,
        block_terms=terms,
        call_ms=call_ms,
        launch=formula.launch,
        host_ms=None if steps is None else steps.host_ms,
        host_bound=None if steps is None else steps.host_bound,
    )


def operations_ms(formula: Kernels, network: Graph, batch_size: int) -> float:
    """Ms of a whole network by a formula that takes operations one by one."""
    work = work_of(network, batch_size, formula.mode)
    return formula.steps(work).latency_ms


def within(latency: float, half: float) -> tuple[float, float]:
    """The interval around a latency, ms, of half the width `half`, a logarithm."""
    return latency * math.exp(-half), latency * math.exp(half)


def as_batch_size(batch_size: Any) -> int:
    """`batch_size` as an int; InputError unless it is a whole number from 1."""
    whole = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
    if not whole or batch_size < 1:
        raise InputError(f"{arg('batch_size')} {batch_size!r}: expected a whole number from 1")
    return int(batch_size)


def _named(row: np.ndarray) -> dict[str, int]:
    return dict(zip(COLUMNS, (int(v) for v in row), strict=True))
