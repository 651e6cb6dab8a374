"""Where a prediction comes from, and what would change it.

The attribution (a receipt to the user): how many milliseconds come from each term of the formula, for a
network, its blocks, and the operations of one block. They add up to the prediction. The counterfactuals:
what a change saves, each the prediction of a really changed network, counted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from msgspec import UNSET, UnsetType

from lolat.device import Device
from lolat.device.prediction import Prediction
from lolat.errors import InputError, arg
from lolat.graph import Graph
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.counts import COLUMNS
from lolat.graph.edits import bypassed, image_side, is_separable, separated
from lolat.graph.modes import GRAPH
from lolat.graph.width import NOTE, Widths, widths
from lolat.io.results import Result, of
from lolat.units import did_you_mean, milliseconds

SMALLEST_SAVING = 0.01  # of the time of the network or the block; a smaller saving is left out
HALF = 0.5  # of the channels, that a narrower network or block has

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
    """The time of a network, block or operation, term by term; `share`: of the network's time.

    `kind`: of an operation alone.
    """

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


Change = tuple[str, str, Graph | Device]
"""A change: its kind, for programs; in words; the changed network, or the device run in another way."""


@dataclass(frozen=True)
class Counterfactual:
    """The latency that a change would give, predicted for the changed network.

    `kind`, `change`: as of the Change. `of_block`: the saving as a share of the block's time;
    None for a change of the whole network.
    """

    kind: str
    change: str
    latency_ms: float
    interval_ms: tuple[float, float] | None
    saves_ms: float
    of_block: float | None
    of_network: float
    in_domain: bool | None


@dataclass(frozen=True, repr=False)
class Explanation(Result):
    """A prediction with its attributions, and the changes that save time, the largest saving first.

    Of a network: `blocks` are the attributions of all blocks, `operations` is empty. Of a block: `blocks`
    is its attribution alone, `operations` has one for each operation in it.
    """

    KEYS = (
        *of("prediction", "state", "network", "batch_size", "predictor", "latency_ms", "interval_ms"),
        *of("prediction", "coverage", "in_domain"), "warnings", "prediction.call_ms",
        "terms=total.by_term", "block", "blocks", "operations", "counterfactuals",
    )  # fmt: skip

    prediction: Prediction
    total: Attribution
    blocks: tuple[Attribution, ...]
    operations: tuple[Attribution, ...]
    counterfactuals: tuple[Counterfactual, ...]

    @property
    def block(self) -> str | None:
        """The name of the block that is explained; None: the whole network."""
        return self.blocks[0].name if self.operations else None

    @property
    def notes(self) -> tuple[str, ...]:
        """How exact the counts are of a network at another width."""
        return (NOTE,) if any(c.kind.endswith("width") for c in self.counterfactuals) else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the prediction, and the notes."""
        return (*self.prediction.warnings, *self.notes)

    def words(self) -> str:
        """The prediction, and the change that saves most."""
        change = "nothing that LoLat knows to try saves time"
        for best in self.counterfactuals[:1]:
            change = f"{best.change}: saves {milliseconds(best.saves_ms)}"
        return f"{self.prediction.words()}\n{change}"


def explain(
    model: Device,
    network: Graph | Analysis,
    batch_size: int = 1,
    predictor: str | None = None,
    at_size: AtSize | None = None,
    block: str | None = None,
) -> Explanation:
    """The attributions of a network and of its blocks, and the savings by changes of the network.

    `at_size` reads the network again at another resolution, where that can be done. `block`: explain this
    block alone, operation by operation; see `find_block`. Raises InputError as `Model.predict` does, and
    for an unknown block.
    """
    analysis = analyze(network)
    position = None if block is None else find_block(analysis, block)
    now = model.predict(analysis, batch_size, predictor)
    model = now.query.model  # in the precision of a network that is in half itself
    total = _attribution(
        now, now.network, now.block_counts.sum(axis=0), now.block_terms.sum(axis=0)
    )
    blocks = tuple(map(partial(_attribution, now), now.names, now.block_counts, now.block_terms))
    if position is None:
        of_network = _changes_of_network(analysis, blocks, at_size)
        judged = _judged(model, now, [*_changes_of_launch(model, now), *of_network])
        return Explanation(now, total, blocks, (), judged)
    counts = analysis.counts.at(now.batch_size)
    terms = model.predictor(now.predictor).of_operations(analysis, now.batch_size)
    inside, operations = analysis.blocks[position].operations, analysis.graph.operations
    parts = tuple(
        _attribution(now, operations[p].full_name, counts[p], terms[p], operations[p].kind)
        for p in inside
    )
    changes = _changes_of_block(analysis.graph, inside)
    block_ms = blocks[position].latency_ms
    return Explanation(
        now, total, (blocks[position],), parts, _judged(model, now, changes, block_ms)
    )


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


def find_block(analysis: Analysis, name: str) -> int:
    """The position of a block by its label or its name; InputError where there is none."""
    labels, names = [b.label for b in analysis.blocks], [b.name for b in analysis.blocks]
    for known in (labels, names):
        if name in known:
            return known.index(name)
    some = f"expected one of {', '.join(labels)}"
    hint = did_you_mean(name, {label: label for label in labels}, some)
    raise InputError(f"{arg('block')} {name!r} is no block of {analysis.graph.name!r}; {hint}")


# ---- Changes that a designer would try to make a block or a network faster.


def _judged(
    model: Device, now: Prediction, changes: Iterable[Change], block_ms: float | None = None
) -> tuple[Counterfactual, ...]:
    """The changes that save something, the most first; `block_ms`: of the block, if one is explained."""
    judged = []
    for kind, words, changed in changes:
        asked, graph = (
            (model, changed) if isinstance(changed, Graph) else (changed, now.query.graph)
        )
        new = asked.predict(graph, now.batch_size, now.predictor)
        saves = now.latency_ms - new.latency_ms
        if saves > SMALLEST_SAVING * (now.latency_ms if block_ms is None else block_ms):
            of_block = None if block_ms is None else saves / block_ms
            judged.append(
                Counterfactual(
                    kind, words, new.latency_ms, new.interval_ms, saves, of_block,
                    saves / now.latency_ms, new.in_domain,
                )
            )  # fmt: skip
    return tuple(sorted(judged, key=lambda c: -c.saves_ms))


def _changes_of_launch(model: Device, now: Prediction) -> Iterator[Change]:
    """A CUDA graph, where the host decides."""
    if now.host_bound and now.launch != GRAPH:
        words = "its operations started at once from a CUDA graph (--launch graph)"
        yield ("launch", words, model.run_as(None, GRAPH))


def _changes_of_network(
    analysis: Analysis, blocks: Sequence[Attribution], at_size: AtSize | None
) -> Iterator[Change]:
    """Half the width, no longest block, half the resolution, separable convolutions: where possible."""
    graph = analysis.graph
    if widths(graph).free:
        words = f"width x{HALF:g}: every channel count, in multiples of 8"
        yield ("width", words, widths(graph).at(HALF))
    for position in sorted(range(len(blocks)), key=lambda i: -blocks[i].latency_ms):
        block = analysis.blocks[position]
        if changed := bypassed(graph, block.operations):
            words = f"without {block.label}: its input and output have the same shape"
            yield ("drop", words, changed)
            break
    side = image_side(graph)
    if at_size is not None and side is not None and side > 1:
        with suppress(InputError):
            words = f"an input of {side // 2} px instead of {side}"
            yield ("resolution", words, at_size(side // 2))
    yield from _separable(graph, range(len(graph.operations)))


def _separable(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """Depthwise and pointwise convolutions in place of full ones."""
    if changed := separated(graph, positions):
        full = (o for o in (graph.operations[p] for p in positions) if is_separable(o))
        sizes = sorted({"x".join(map(str, o.attributes["kernel"])) for o in full})
        words = f"depthwise-separable instead of full {' and '.join(sizes)} convolutions"
        yield ("separable", words, changed)


def _changes_of_block(graph: Graph, positions: Sequence[int]) -> Iterator[Change]:
    """No block, separable convolutions, half of the channels inside: where possible."""
    if changed := bypassed(graph, positions):
        words = "without this block: its input and output have the same shape"
        yield ("drop", words, changed)
    yield from _separable(graph, positions)
    inside = Widths(graph, positions)
    pairs = [(before, after) for before, after in inside.pairs(HALF)[::-1] if after < before]
    if pairs:
        channels = ", ".join(f"{before} -> {after}" for before, after in pairs)
        yield ("inner_width", f"width x{HALF:g} inside ({channels})", inside.at(HALF))
