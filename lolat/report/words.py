"""What the terms of a formula are called in front of people, and what a device is bound by."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph
from lolat.graph.analysis import parameters
from lolat.graph.counts import COLUMNS, KINDS, MEANINGS, count
from lolat.model import Model
from lolat.model.prediction import CALL, MEMORY, NOTHING, BlockPrediction, Prediction, bound_by
from lolat.units import milliseconds, plain, quantity

# ---- A network's parameters, MACs and activations as torchinfo, Keras and fvcore print them.
#
# They are near to our counts, but not the same: parameters have the vectors of the normalizations and whole
# tables of embeddings, activations the outputs of dense layers and matrix products too (fvcore's
# ActivationCountAnalysis). MACs are ours; a layer that is used twice counts twice.

ACTS, FLOPS = (COLUMNS.index(c) for c in ("acts", "flops"))


@dataclass(frozen=True)
class Figures:
    """Of one sample: learned parameters, multiply-accumulates, elements of activations."""

    parameters: int
    macs: int
    activations: int

    def __str__(self) -> str:
        """The summary line, three digits each."""
        return (
            f"{quantity(self.parameters)} parameters · {quantity(self.macs)} mult-adds · "
            f"{quantity(self.activations)} activations (one sample, as torchinfo and fvcore count)"
        )


def familiar(graph: Graph) -> Figures:
    """The figures of a network."""
    counts = count(graph).at(1)
    products = (o for o in graph.operations if o.kind in ("dense", "matmul"))
    written = sum(graph.tensors[t].elements() for o in products for t in o.outputs)
    activations = int(counts[:, ACTS].sum()) + written
    return Figures(parameters(graph), int(counts[:, FLOPS].sum()), activations)


# ---- words ----------------------------------------

TERMS = {
    **{name: meaning.words for name, meaning in MEANINGS.items()},
    MEMORY: "memory traffic",
    NOTHING: "nothing",
    CALL: "fixed cost",
}
_OF_TERMS = {
    "flops": "Multiplying and adding: MACs times what one takes on the device, and exponentials.",
    MEMORY: "Reading and writing tensors: the elements that layers read and write.",
    "weights": "Reading kernels from memory, once a pass, whatever the batch size.",
    "patches": "What convolutions in groups cost beyond their MACs, where a device is slow at them.",
    "ops": "What each operation costs before it does anything; a faster device does not help.",
    CALL: "What one call of the network costs, however small the network is.",
}
GLOSSARY = {TERMS[term]: words for term, words in _OF_TERMS.items()} | {
    "MAC": "One multiply-accumulate. Some tools call it one FLOP, others two.",
    "weights": "Kernels and biases of convolutions, dense and recurrent layers. Parameters, as torchinfo "
    "counts them, also have the vectors of normalizations and whole embedding tables.",
    "convolution activations": "Elements of the outputs of all convolutions.",
    "block": "A part of the network between two points where a single tensor goes through.",
    "latency": "The time of one forward pass; its input is on the device already.",
    "90 % sure": "Of so many networks like the measured ones, the true time lies in the interval. It is as "
    "wide as the errors on blocks that were left out of the fit, and wider outside what was measured.",
    "measured domain": "What the model was learned from. Outside it, layers are of another kind or size.",
}
"""The words of the page of a report, each explained."""
MOST_BOTTLENECKS = 3


def bottlenecks(prediction: Prediction) -> list[BlockPrediction]:
    """The blocks that stand out: at most three, each at least half as long again as the average.

    In a network of up to three blocks the longest one always does.
    """
    blocks = [b for b in prediction.blocks if b.name != CALL]
    if not blocks:
        return []
    average = sum(b.share for b in blocks) / len(blocks)
    top = sorted(blocks, key=lambda b: -b.latency_ms)[:MOST_BOTTLENECKS]
    standing_out = [b for b in top if b.share >= 1.5 * average]
    return standing_out or (top[:1] if len(blocks) <= MOST_BOTTLENECKS else [])


def bottleneck_sentence(prediction: Prediction) -> str:
    """Which blocks take most of the time, and why."""
    blocks = [b for b in prediction.blocks if b.name != CALL]
    if not blocks:
        return "There is nothing to compute."
    top = bottlenecks(prediction)
    longest = max(blocks, key=lambda b: b.latency_ms)
    if prediction.call_ms >= max(prediction.latency_ms / 2, longest.latency_ms):
        share = prediction.call_ms / (prediction.latency_ms or 1.0)
        return (
            f"The fixed cost of a call takes {100 * share:.0f} % of the time: ask for more at once."
        )
    if not top:
        return (
            f"No block stands out: the longest of {len(blocks)}, {plain(_label(longest))}, takes "
            f"{100 * longest.share:.0f} % of the time; of all of them, {_most(blocks)}."
        )
    time = sum(b.share for b in top)
    all_flops = prediction.counts["flops"]
    flops = sum(b.counts["flops"] for b in top) / all_flops if all_flops else 0.0
    one = len(top) == 1
    names = enumeration([plain(_label(b)) for b in top])
    return (
        f"{'Bottleneck' if one else 'Bottlenecks'}: {names} {'takes' if one else 'take'} "
        f"{100 * time:.0f} % of the time for {100 * flops:.0f} % of the MACs: {_why(top)}."
    )


def _label(block: BlockPrediction) -> str:
    return block.name.split(" · ")[0]


def _most(blocks: Sequence[BlockPrediction]) -> str:
    """What blocks together spend most of their time on."""
    most = bound_by(terms_of(blocks))
    return f"most is {TERMS.get(most, most)}"


def terms_of(blocks: Sequence[BlockPrediction]) -> dict[str, float]:
    """Milliseconds of each term, of all blocks together."""
    terms: dict[str, float] = {}
    for block in blocks:
        for term, value in block.terms_ms.items():
            terms[term] = terms.get(term, 0.0) + value
    return terms


def _why(top: Sequence[BlockPrediction]) -> str:
    """What these blocks spend their time on."""
    most = bound_by(terms_of(top))
    one = len(top) == 1
    compute = "it computes" if one else "they compute"
    if most == "flops":
        return compute
    if most == MEMORY:
        return f"{'it moves' if one else 'they move'} data more than {compute}"
    return f"most of it is {TERMS.get(most, most)}"


def enumeration(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def bound_sentence(model: Model) -> str:
    """What the device is bound by, from the coefficients of the default predictor.

    Nothing of `kernels`, whose linear part is the best of all classes and what no network reaches.
    """
    formula = model.predictor()
    if isinstance(formula, Kernels):
        return ""
    cost = dict(zip(formula.features, formula.coefficients, strict=True))
    flop = cost.get("flops", 0.0) or _usual(cost, "flops")
    element = max(cost.get("traffic", 0.0), cost.get("acts", 0.0), cost.get("inp", 0.0))
    element = element or _usual(cost, "elements")
    started = cost.get("ops", 0.0) or _usual(cost, "ops")
    parts = []
    if flop > 0:
        parts.append(f"this device does {quantity(1e3 / flop, 'MACs')} a second")
    if flop > 0 and element > 0:
        parts.append(
            f"{element / flop:.0f} in the time of moving one element: blocks with fewer MACs per "
            "element are bound by memory, the others by compute"
        )
    if started > 0:
        parts.append(f"starting one operation costs {1e3 * started:.3g} µs")
    parts.append(f"one call costs {milliseconds(formula.constant)}")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _usual(cost: Mapping[str, float], family: str) -> float:
    """The median cost of a family's kinds that cost anything; 0 of a formula that has none of them."""
    found = [cost[name] for name in KINDS[family] if cost.get(name, 0.0) > 0]
    return statistics.median(found) if found else 0.0


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: set[int]
) -> Iterator[str]:
    """Columns two blanks apart, those of `left` to the left; empty ones are left out."""
    shown = [i for i in range(len(header)) if any(row[i] for row in rows)]
    widths = {i: max(len(row[i]) for row in (header, *rows)) for i in shown}
    for row in (header, *rows):
        cells = (row[i].ljust(widths[i]) if i in left else row[i].rjust(widths[i]) for i in shown)
        yield "  ".join(cells).rstrip()
