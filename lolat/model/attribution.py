"""Where a prediction comes from, and what would change it.

The attribution (a receipt to the user): how many milliseconds come from each term of the formula, for a
network, its blocks, and the operations of one block. They add up to the prediction. The counterfactuals:
what a change saves, each the prediction of a really changed network, counted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.counts import COLUMNS
from lolat.graph.edits import bypassed, image_side, is_separable, separated
from lolat.graph.width import NOTE, Widths, widths
from lolat.io.results import Result, of
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.units import milliseconds

SMALLEST_SAVING = 0.001  # of what is asked about: what saves less is left out
BATCHES = (1, 2, 4, 8, 16, 32)
HALF = 0.5  # of the channels, that a narrower network or block has
MOST_LISTED = 8  # blocks in an error

AtSize = Callable[[int], Graph]
"""Reads the network again at an input of so many pixels; NetworkError where it cannot be."""


@dataclass(frozen=True)
class Term:
    """A line of an attribution: so many units of a count at `rate_ms` each."""

    KEYS = ("count", "rate_ms", "latency_ms")

    name: str
    count: int
    rate_ms: float
    latency_ms: float


@dataclass(frozen=True)
class Attribution:
    """What something costs, term by term; `share` is of the network's time, `kind` of an operation."""

    KEYS = ("name", "latency_ms", "share", "terms=by_term", "kind")

    name: str
    latency_ms: float
    share: float
    terms: tuple[Term, ...]
    kind: str | UnsetType = UNSET

    @property
    def by_term(self) -> dict[str, Term]:
        """The terms by name."""
        return {term.name: term for term in self.terms}


@dataclass(frozen=True)
class Change:
    """A changed network; `kind` is for programs, `change` says it to people, `details` in numbers."""

    kind: str
    change: str
    graph: Graph
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Counterfactual:
    """What a change would do to the network's latency, predicted for the changed network.

    `kind`, `change`, `details`: as of the Change. `of_block` is the saving as a share of the block's time;
    None for a change of the whole network.
    """

    kind: str
    change: str
    details: Mapping[str, Any]
    latency_ms: float
    interval_ms: tuple[float, float] | None
    saves_ms: float
    of_block: float | None
    of_network: float
    in_domain: bool | None


@dataclass(frozen=True)
class BatchEffect:
    """The latency at another batch size, and its part for each sample."""

    batch_size: int
    latency_ms: float
    per_sample_ms: float


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """A prediction with its attributions, and what would change it, the largest saving first.

    Of a network: `blocks` are the attributions of all blocks, `operations` is empty. Of a block: `blocks`
    is its attribution alone, `operations` has one for each operation in it.
    """

    KEYS = (
        *of("prediction", "state", "network", "batch_size", "predictor", "latency_ms", "interval_ms"),
        *of("prediction", "coverage", "in_domain"), "warnings", "prediction.call_ms",
        "terms=total.by_term", "block", "blocks", "operations", "counterfactuals", "batches",
    )  # fmt: skip

    prediction: Prediction
    total: Attribution
    blocks: tuple[Attribution, ...]
    operations: tuple[Attribution, ...]
    counterfactuals: tuple[Counterfactual, ...]
    batches: tuple[BatchEffect, ...] = ()

    @property
    def of_block(self) -> bool:
        """Whether one block is explained, not the network."""
        return bool(self.operations)

    @property
    def notes(self) -> tuple[str, ...]:
        """How exact the counts of changes are, where they are not those of a network that was read."""
        return (NOTE,) if any(c.kind.endswith("width") for c in self.counterfactuals) else ()

    def words(self) -> str:
        """The prediction, and the change that saves most."""
        best = next(iter(self.counterfactuals), None)
        change = "nothing that LoLat knows to try saves time"
        if best is not None:
            change = f"{best.change}: saves {milliseconds(best.saves_ms)}"
        return f"{self.prediction.words()}\n{change}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each block (of one block: each operation): latency_ms, share, and ms by term."""
        return [
            {
                "name": a.name,
                "latency_ms": a.latency_ms,
                "share": a.share,
                **{f"{t.name}_ms": t.latency_ms for t in a.terms},
            }
            for a in self.operations or self.blocks
        ]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the prediction, and what could not be tried."""
        return (*self.prediction.warnings, *self.notes)

    @property
    def block(self) -> str | None:
        """The one that is explained; None: the whole network."""
        return self.blocks[0].name if self.of_block else None


def explain_network(
    model: Model,
    network: Graph | Analysis,
    batch_size: int = 1,
    predictor: str | None = None,
    at_size: AtSize | None = None,
) -> Explanation:
    """The attributions of a network and of its blocks, and what changes of all of it would save.

    `at_size` reads the network again at another resolution, where that can be done. Raises InputError
    as `Model.predict` does.
    """
    analysis = analyze(network)
    prediction = model.predict(analysis, batch_size, predictor)
    attributions = _attributions(prediction)
    graph = analysis.graph
    changes = (
        _narrower(graph), _best_drop(analysis, attributions), _smaller(graph, at_size),
        *_separable(graph, range(len(graph.operations))),
    )  # fmt: skip
    return Explanation(
        prediction,
        _total(prediction),
        attributions,
        (),
        _judged(model, prediction, filter(None, changes)),
        _batches(model, analysis, prediction),
    )


def explain_block(
    model: Model,
    network: Graph | Analysis,
    name: str,
    batch_size: int = 1,
    predictor: str | None = None,
) -> Explanation:
    """The attribution of one block, operation by operation, and what changes of it would save.

    `name`: its label, its whole name, or how only one of them begins. Raises InputError for another
    name, and as `Model.predict` does.
    """
    analysis = analyze(network)
    position = find_block(analysis, name)
    prediction = model.predict(analysis, batch_size, predictor)
    block, attribution = analysis.blocks[position], _attributions(prediction)[position]
    counts = analysis.counts.at(prediction.batch_size)
    terms = model.predictor(predictor).of_operations(analysis, prediction.batch_size)
    operations = analysis.graph.operations
    return Explanation(
        prediction,
        _total(prediction),
        (attribution,),
        tuple(
            _attribution(
                prediction, operations[p].full_name, counts[p], terms[p], operations[p].kind
            )
            for p in block.operations
        ),
        _judged(
            model, prediction, on_block(analysis.graph, block.operations), attribution.latency_ms
        ),
    )


def find_block(network: Graph | Analysis, name: str) -> int:
    """The position of a block by its label, its name, or the beginning of one of them alone."""
    analysis = analyze(network)
    blocks, title = analysis.blocks, analysis.graph.name
    labels = [b.label for b in blocks]
    for names in (labels, [b.name for b in blocks]):
        if name in names:
            return names.index(name)
    begins = [i for i, b in enumerate(blocks) if name and b.name.startswith(name)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise InputError(
            f"{arg('block')} {name!r} is the beginning of {len(begins)} blocks of {title!r}: "
            f"{_listed([labels[i] for i in begins])}; give the whole label of one"
        )
    near = get_close_matches(name, labels, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {_listed(labels)}"
    raise InputError(f"no block {name!r} in {title!r}; {hint}")


def _listed(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - MOST_LISTED} more" if len(labels) > MOST_LISTED else ""
    return ", ".join(labels[:MOST_LISTED]) + more


# ---- Attributions


def _attribution(
    prediction: Prediction,
    name: str,
    counts: np.ndarray,
    terms: np.ndarray,
    kind: str | UnsetType = UNSET,
) -> Attribution:
    """From counts (COLUMNS) and milliseconds (features)."""
    latency = float(terms.sum())
    numbers = counts[[COLUMNS.index(f) for f in prediction.features]]
    lines = tuple(
        Term(f, int(n), float(ms) / int(n) if n else 0.0, float(ms))
        for f, n, ms in zip(prediction.features, numbers, terms, strict=True)
    )
    return Attribution(name, latency, latency / (prediction.latency_ms or 1.0), lines, kind)


def _total(p: Prediction) -> Attribution:
    """Of the whole network, without the call."""
    return _attribution(p, p.network, p.block_counts.sum(axis=0), p.block_terms.sum(axis=0))


def _attributions(p: Prediction) -> tuple[Attribution, ...]:
    """Of each block."""
    return tuple(map(partial(_attribution, p), p.names, p.block_counts, p.block_terms))


def _batches(model: Model, analysis: Analysis, prediction: Prediction) -> tuple[BatchEffect, ...]:
    """What a sample costs in batches of several sizes, the one asked for among them."""
    effects = []
    for n in sorted({*BATCHES, prediction.batch_size}):
        try:
            latency = model.predict(analysis, n, prediction.predictor).latency_ms
        except InputError:  # too large to count
            break
        effects.append(BatchEffect(n, latency, latency / n))
    return tuple(effects)


# ---- Changes that a designer would try to make a block or a network faster.


def _judged(
    model: Model, now: Prediction, changes: Iterable[Change], block_ms: float | None = None
) -> tuple[Counterfactual, ...]:
    """The changes that save something, the most first; `block_ms`: of the block, if one is explained."""
    judged = []
    for change in changes:
        new = model.predict(change.graph, now.batch_size, now.predictor)
        saves = now.latency_ms - new.latency_ms
        if saves > SMALLEST_SAVING * (now.latency_ms if block_ms is None else block_ms):
            of_block = None if block_ms is None else saves / block_ms
            judged.append(
                Counterfactual(
                    change.kind, change.change, change.details, new.latency_ms, new.interval_ms, saves,
                    of_block, saves / now.latency_ms, new.in_domain,
                )
            )  # fmt: skip
    return tuple(sorted(judged, key=lambda c: -c.saves_ms))


def _best_drop(analysis: Analysis, attributions: Sequence[Attribution]) -> Change | None:
    """The network without the one block whose loss saves most, of those that can be left out."""
    for i in sorted(range(len(attributions)), key=lambda i: -attributions[i].latency_ms):
        block = analysis.blocks[i]
        changed = bypassed(analysis.graph, block.operations)
        if changed is not None:
            words = f"without {block.label}: its input and output have the same shape"
            return Change("drop", words, changed, {"block": block.label})
    return None


def _smaller(network: Graph, at_size: AtSize | None) -> Change | None:
    """The network at half its resolution, where it can be read at that."""
    side = image_side(network)
    if at_size is None or side is None or side < 2:
        return None
    try:
        graph = at_size(side // 2)
    except InputError:
        return None
    words = f"an input of {side // 2} px instead of {side}"
    return Change("resolution", words, graph, {"from": side, "to": side // 2})


def _narrower(network: Graph) -> Change | None:
    """The network at half its width, where it has channels that are free to change."""
    channels = widths(network)
    if not channels.free:
        return None
    words = f"width x{HALF:g}: every channel count, in multiples of 8"
    return Change("width", words, channels.at(HALF), {"factor": HALF})


def _separable(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """Depthwise and pointwise convolutions in place of full ones."""
    changed = separated(graph, positions)
    if changed is not None:
        full = (o for o in (graph.operations[p] for p in positions) if is_separable(o))
        sizes = sorted({"x".join(map(str, o.attributes["kernel"])) for o in full})
        words = f"depthwise-separable instead of full {' and '.join(sizes)} convolutions"
        yield Change("separable", words, changed)


def on_block(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """Changes of the block of these operations."""
    changed = bypassed(graph, positions)
    if changed is not None:
        words = "without this block: its input and output have the same shape"
        yield Change("drop", words, changed)
    yield from _separable(graph, positions)
    inside = Widths(graph, positions)
    pairs = [(before, after) for before, after in inside.pairs(HALF)[::-1] if after < before]
    if pairs:
        examples = ", ".join(f"{before} -> {after}" for before, after in pairs[:3])
        examples += ", ..." if len(pairs) > 3 else ""
        fewer = pairs[0][0] - pairs[0][1]
        words = f"{fewer} fewer channels" if len(pairs) == 1 else f"width x{HALF:g}"
        details = {"factor": HALF, "channels": [list(pair) for pair in pairs]}
        yield Change("inner_width", f"{words} inside ({examples})", inside.at(HALF), details)
