"""Where a prediction comes from, and what would change it.

The receipt: how many milliseconds come from each term of the formula, for a network, its blocks, and the
operations of one block. They add up to the prediction. The counterfactuals: what a change saves, each the
prediction of a really changed network, counted anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches

import numpy as np

from lolat.blocks import Block, cut
from lolat.counts import COLUMNS, count
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.model import Model
from lolat.prediction import Prediction
from lolat.receipts import BatchEffect, Counterfactual, Explanation, Receipt, Term
from lolat.variations.edits import bypassed
from lolat.variations.resolution import USUAL_STRIDE, image_side, total_stride
from lolat.variations.tries import Try, on_block, on_network

WORTH = 0.001  # of what is asked about: what saves less is not told
BATCHES = (1, 2, 4, 8, 16, 32)

AtSize = Callable[[int], Graph]
"""Reads the network again at an input of so many pixels; NetworkError where it cannot be."""


def explain_network(
    model: Model,
    network: Graph,
    batch_size: int = 1,
    predictor: str | None = None,
    at_size: AtSize | None = None,
) -> Explanation:
    """The receipts of a network and of its blocks, and what changes of all of it would save.

    `at_size` reads the network again at another resolution, where that can be done. Raises InputError
    as `Model.predict` does.
    """
    prediction = model.predict(network, batch_size, predictor)
    asked = _Asked(model, prediction)
    notes: list[str] = []
    tried = list(_until_unclear(on_network(network), notes))
    tried += [t for t in (_best_drop(asked, network), _smaller(network, at_size)) if t]
    return Explanation(
        prediction,
        asked.total(),
        asked.blocks(),
        (),
        asked.judged(tried, None),
        _batches(asked, network),
        tuple(notes),
    )


def explain_block(
    model: Model,
    network: Graph,
    name: str,
    batch_size: int = 1,
    predictor: str | None = None,
) -> Explanation:
    """The receipt of one block, operation by operation, and what changes of it would save.

    `name`: its label, its whole name, or how only one of them begins. Raises InputError for another
    name, and as `Model.predict` does.
    """
    position = find_block(network, name)
    prediction = model.predict(network, batch_size, predictor)
    asked = _Asked(model, prediction)
    block = cut(network)[position]
    notes: list[str] = []
    tried = list(_until_unclear(on_block(network, block.operations), notes))
    receipt = asked.blocks()[position]
    return Explanation(
        prediction,
        asked.total(),
        (receipt,),
        asked.operations(network, block),
        asked.judged(tried, receipt.latency_ms),
        (),
        tuple(notes),
    )


def find_block(network: Graph, name: str) -> int:
    """The position of a block by its label, its name, or the beginning of one of them alone."""
    blocks = cut(network)
    for exact in ([b.label for b in blocks], [b.name for b in blocks]):
        if name in exact:
            return exact.index(name)
    begins = [i for i, b in enumerate(blocks) if name and b.name.startswith(name)]
    if len(begins) == 1:
        return begins[0]
    labels = [b.label for b in blocks]
    if begins:
        raise InputError(
            f"--block {name!r} is the beginning of {len(begins)} blocks of {network.name!r}: "
            f"{_listed([labels[i] for i in begins])}; give the whole label of one"
        )
    near = get_close_matches(name, labels, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {_listed(labels)}"
    raise InputError(f"no block {name!r} in {network.name!r}; {hint}")


def _listed(labels: Sequence[str], most: int = 8) -> str:
    return ", ".join(labels[:most]) + (f" and {len(labels) - most} more" * (len(labels) > most))


class _Asked:
    """What was asked, and what is made of it: receipts and judgements."""

    def __init__(self, model: Model, prediction: Prediction) -> None:
        self.model = model
        self.prediction = prediction
        self.columns = [COLUMNS.index(f) for f in prediction.features]

    def receipt(
        self, name: str, counts: np.ndarray, terms: np.ndarray, kind: str | None = None
    ) -> Receipt:
        """From counts (COLUMNS) and milliseconds (features)."""
        latency = float(terms.sum())
        lines = [
            Term(f, int(n), float(ms) / int(n) if n else 0.0, float(ms))
            for f, n, ms in zip(self.prediction.features, counts[self.columns], terms, strict=True)
        ]
        return Receipt(
            name, latency, latency / (self.prediction.latency_ms or 1.0), tuple(lines), kind
        )

    def total(self) -> Receipt:
        """Of the whole network, without the call."""
        p = self.prediction
        return self.receipt(p.network, p.block_counts.sum(axis=0), p.block_terms.sum(axis=0))

    def blocks(self) -> tuple[Receipt, ...]:
        """Of each block."""
        p = self.prediction
        return tuple(map(self.receipt, p.names, p.block_counts, p.block_terms))

    def operations(self, network: Graph, block: Block) -> tuple[Receipt, ...]:
        """Of each operation of a block."""
        counts = count(network).at(self.prediction.batch_size)
        # All of the network, because a formula may bend for what is small.
        terms, _ = self.model.predictor(self.prediction.predictor).shares(counts[:, self.columns])
        found = []
        for p in block.operations:
            operation = network.operations[p]
            found.append(self.receipt(operation.full_name, counts[p], terms[p], operation.kind))
        return tuple(found)

    def predict(self, network: Graph, batch_size: int | None = None) -> Prediction:
        """As it was asked, of another network or at another batch size."""
        p = self.prediction
        return self.model.predict(network, batch_size or p.batch_size, p.predictor)

    def judged(self, tried: Iterable[Try], block_ms: float | None) -> tuple[Counterfactual, ...]:
        """What saves something, the most first."""
        now = self.prediction.latency_ms
        found = []
        for one in tried:
            new = self.predict(one.graph)
            saves = now - new.latency_ms
            if saves <= WORTH * (now if block_ms is None else block_ms):
                continue
            of_block = None if block_ms is None else saves / block_ms
            found.append(
                Counterfactual(
                    one,
                    new.latency_ms,
                    new.interval_ms,
                    saves,
                    of_block,
                    saves / now,
                    new.in_domain,
                )
            )
        return tuple(sorted(found, key=lambda c: -c.saves_ms))


def _until_unclear(tried: Iterable[Try], notes: list[str]) -> Iterable[Try]:
    """What can be tried; why the rest cannot goes to `notes`."""
    try:
        yield from tried
    except InputError as error:
        notes.append(str(error))


def _best_drop(asked: _Asked, network: Graph) -> Try | None:
    """The network without the one block whose loss saves most, of those that can be left out."""
    blocks = cut(network)
    receipts = asked.blocks()
    for i in sorted(range(len(blocks)), key=lambda i: -receipts[i].latency_ms):
        changed = bypassed(network, blocks[i].operations)
        if changed is not None:
            label = blocks[i].label
            words = f"without {label}: its input and output have the same shape"
            return Try("drop", words, changed, {"block": label})
    return None


def _smaller(network: Graph, at_size: AtSize | None) -> Try | None:
    """The network at about 6/7 of its resolution, in multiples of its stride."""
    side = image_side(network)
    if at_size is None or side is None:
        return None
    step = total_stride(network) or USUAL_STRIDE
    new = max(round(side * 6 / 7 / step), 1) * step
    new = new if new < side else side - step
    if new < 1:
        return None
    try:
        graph = at_size(new)
    except InputError:
        return None
    words = f"an input of {new} px instead of {side}"
    return Try("resolution", words, graph, {"from": side, "to": new})


def _batches(asked: _Asked, network: Graph) -> tuple[BatchEffect, ...]:
    """What a sample costs in batches of several sizes, the one asked for among them."""
    found = []
    for n in sorted({*BATCHES, asked.prediction.batch_size}):
        try:
            latency = asked.predict(network, n).latency_ms
        except InputError:  # too large to count
            break
        found.append(BatchEffect(n, latency, latency / n))
    return tuple(found)
