"""A prediction for people: rows of blocks or modules, the bottlenecks, terms in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lolat.graph import Graph
from lolat.graph.analysis import analyze, parameters
from lolat.graph.blocks import Block
from lolat.graph.counts import COLUMNS, MEANINGS, count
from lolat.model.prediction import CALL, MEMORY, NOTHING, BlockPrediction, Prediction, bound_by
from lolat.units import plain, quantity

# ---- A network's parameters, MACs and activations as torchinfo, Keras and fvcore print them.
#
# They are near to our counts, but not the same: parameters have the vectors of the normalizations and whole
# tables of embeddings, activations the outputs of dense layers and matrix products too (fvcore's
# ActivationCountAnalysis). MACs are ours; a layer that is used twice counts twice.


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
    counts = dict(zip(COLUMNS, count(graph).at(1).sum(axis=0).tolist(), strict=True))
    products = (o for o in graph.operations if o.kind in ("dense", "matmul"))
    written = sum(graph.tensors[t].elements() for o in products for t in o.outputs)
    for o in graph.operations:
        if o.kind == "attention":  # the scores and the result
            result = graph.tensors[o.outputs[0]].elements()
            written += result + result // o.attributes["value_size"] * o.attributes["keys"]
    return Figures(parameters(graph), counts["flops"], counts["acts"] + written)


# ---- Words

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
    most = bound_by(terms_of(blocks))
    if prediction.call_ms >= max(prediction.latency_ms / 2, longest.latency_ms):
        share = prediction.call_ms / (prediction.latency_ms or 1.0)
        return (
            f"The fixed cost of a call takes {100 * share:.0f} % of the time: ask for more at once."
        )
    if not top:
        return (
            f"No block stands out: the longest of {len(blocks)}, {named_parts(longest.name)[0]}, takes "
            f"{100 * longest.share:.0f} % of the time; of all of them, most is {TERMS.get(most, most)}."
        )
    time = sum(b.share for b in top)
    all_flops = prediction.counts["flops"]
    flops = sum(b.counts["flops"] for b in top) / all_flops if all_flops else 0.0
    one, most = len(top) == 1, bound_by(terms_of(top))
    compute = "it computes" if one else "they compute"
    why = f"most of it is {TERMS.get(most, most)}"
    if most == "flops":
        why = compute
    elif most == MEMORY:
        why = f"{'it moves' if one else 'they move'} data more than {compute}"
    names = enumeration([named_parts(b.name)[0] for b in top])
    return (
        f"{'Bottleneck' if one else 'Bottlenecks'}: {names} {'takes' if one else 'take'} "
        f"{100 * time:.0f} % of the time for {100 * flops:.0f} % of the MACs: {why}."
    )


def terms_of(blocks: Sequence[BlockPrediction]) -> dict[str, float]:
    """Milliseconds of each term, of all blocks together."""
    terms: dict[str, float] = defaultdict(float)
    for block in blocks:
        for term, value in block.terms_ms.items():
            terms[term] += value
    return dict(terms)


def enumeration(names: Sequence[str]) -> str:
    """a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


# ---- Where the blocks of a network belong: module paths from their labels and their operations' paths.
#
# A name is cut where a module ends: at `/` and `.`, at `_` between a number and a word ("conv2_block1" is
# in "conv2"; "block_3" and "multi_head" are one name) and in front of a single letter behind a number
# ("block2a" is in "block2").

_PLACES = re.compile(r"[/._]|(?<=\d)(?=[a-z](?![a-z0-9]))")
_NUMBERED = re.compile(r"\d[a-z]?$")
_DIMENSIONS = re.compile(r"(?:conv|pool|ling|ding|norm|pout)[123]d$")


def module_paths(graph: Graph, blocks: Sequence[Block]) -> list[tuple[str, ...]]:
    """For each block, the modules that it is in, the outermost first, and the block itself last.

    Each is written with what is around it: ("conv2", "conv2_block1"). What all blocks are in is left out.
    """
    modules = []
    for block in blocks:
        paths = [graph.operations[p].path.split("/") for p in block.operations]
        shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
        modules.append(levels(_joined([part for part, *_ in shared if part], block.label)))
    while modules and len({m[0] for m in modules}) == 1 and min(map(len, modules)) > 1:
        modules = [m[1:] for m in modules]
    return modules


def paths_of(graph: Graph) -> list[tuple[str, ...]]:
    """`module_paths` of the blocks that a report has."""
    return module_paths(graph, analyze(graph).blocks)


def levels(name: str) -> tuple[str, ...]:
    """The beginnings of a name at which a module ends, and the name."""
    ends = [m.start() for m in _PLACES.finditer(name) if _is_end(name, m.start())]
    return (*(name[:end] for end in ends if name[:end].strip("/._")), name)


def _is_end(name: str, at: int) -> bool:
    before, mark, behind = name[:at], name[at], name[at + 1 : at + 2]
    if mark in "/.":
        return True
    if _DIMENSIONS.search(before if mark == "_" else before + mark):
        return False  # a kind of layer: conv2d, max_pooling2d
    return mark != "_" or bool(_NUMBERED.search(before) and not behind.isdigit())


def _joined(path: Sequence[str], label: str) -> str:
    """A label behind the part of the path that it does not repeat."""
    names = label.replace(".", "/").split("/")
    parts = "/".join(path).replace(".", "/").split("/") if path else []
    for start in range(len(parts)):
        inside = parts[start : start + len(names)]
        if inside == names[: len(inside)]:  # the label begins with the rest of the path
            return "/".join([*parts[:start], label])
    return "/".join([*parts, label])


# ---- Rows of a report


@dataclass(frozen=True)
class Row:
    """A block or a module: `blocks` are those in it, as positions in `Prediction.blocks`."""

    label: str
    summary: str
    latency_ms: float
    share: float
    terms_ms: Mapping[str, float]
    blocks: tuple[int, ...]

    @property
    def bound_by(self) -> str:
        """The part of the work that takes most of the time: a group of terms, or the call."""
        return bound_by(self.terms_ms) if self.terms_ms else CALL


def rows(prediction: Prediction, depth: int | None = None) -> list[Row]:
    """The blocks in the network's order, folded by their modules `depth` names deep; None: not folded.

    A module with a single block in it is shown as that block; the fixed cost of a call is never folded.
    """
    paths = [] if depth is None else paths_of(prediction.query.graph)
    groups: dict[object, list[int]] = defaultdict(list)
    for i in range(len(prediction.blocks)):
        is_deep = i < len(paths) and len(paths[i]) >= (depth or 0)
        groups[paths[i][:depth][-1:] if is_deep else i].append(i)
    result = []
    for key, members in groups.items():
        name = key[-1] if isinstance(key, tuple) and key else prediction.network
        result.append(_row(prediction.blocks, members, str(name)))
    return result


def _row(blocks: Sequence[BlockPrediction], members: Sequence[int], name: str) -> Row:
    inside = [blocks[i] for i in members]
    label, summary = named_parts(inside[0].name)
    if len(inside) > 1:
        label, summary = plain(name), f"{len(inside)} blocks"
    return Row(
        label,
        summary,
        sum(b.latency_ms for b in inside),
        sum(b.share for b in inside),
        terms_of(inside),
        tuple(members),
    )


def named_parts(name: str) -> tuple[str, str]:
    """A block's label, and the summary of what is in it."""
    label, _, summary = plain(name).partition(" · ")
    return label, summary


def short_name(name: str, label: str) -> str:
    """An operation's name without the label of its block in front."""
    return name.removeprefix(label).lstrip("_/.") or name
