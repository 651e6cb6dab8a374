"""A prediction for people: rows of blocks or modules, the bottlenecks, terms in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lolat.device.bottlenecks import MOST_BOTTLENECKS, SLOW, WHOLE, bottlenecks
from lolat.device.prediction import CALL, MEMORY, NOTHING, BlockPrediction, Prediction, bound_by
from lolat.graph.blocks import BlockName
from lolat.graph.counts import GROUPS, MEANINGS
from lolat.parameters import COVERAGE
from lolat.units import digits, milliseconds, percent, plain, plural

# ---- Words

TERMS = {
    **{name: meaning.words for name, meaning in MEANINGS.items()},
    MEMORY: "memory traffic",
    NOTHING: "nothing",
    CALL: "fixed cost",
}
_OF_TERMS = {
    "flops": "Multiplications and additions (MACs), and exponentials.",
    MEMORY: "Reading and writing the tensors between layers.",
    "weights": "Reading the weights from memory, once a pass, whatever the batch size.",
    "patches": "The time of grouped convolutions beyond their MACs, on a device that is slow at them.",
    "ops": "The time to start each operation; a faster device does not shorten it.",
    CALL: "The time of one call of the network, however small the network is.",
}
GLOSSARY = {TERMS[term]: words for term, words in _OF_TERMS.items()} | {
    "MAC": "One multiply-accumulate. Some tools call it one FLOP, others two.",
    "parameters": "The numbers that training changes: kernels, biases, tables of embeddings, vectors of "
    "normalizations.",
    "convolution activations": "Elements of the outputs of all convolutions.",
    "block": "A stretch of layers between two points where only one tensor, with skip connections a few, "
    "passes on; "
    '"a to b" goes from one module into another.',
    "formula": "The rule that turns a network's counts into a time; profiles have one or several, by name.",
    "most of it is": "The kind of work with the largest part of a block's time. On a GPU kinds of work "
    "overlap: the parts divide the time, and none is the time that its work would take alone.",
    "latency": "The time of one forward pass whose input is already on the device.",
    f"{percent(COVERAGE)} sure": f"The true time of {percent(COVERAGE)} of networks like the measured ones "
    "lies in the interval. Its width comes from the errors on blocks, or networks, held out of the fit; "
    "outside the measured range it is wider.",
    "measured range": "The kinds and sizes of layers in the blocks, operations or networks that the "
    "device's profile was fitted to.",
}
"""Word on a report's page -> its meaning."""
COLORS = {
    "flops": "compute",
    MEMORY: "memory",
    "weights": "weights",
    "patches": "shapes",
    "ops": "starting",
    CALL: "call",
}
"""Group of terms -> its color, the name of a CSS class."""
INKS = {
    "compute": "#2f6f9f", "memory": "#e0a03c", "weights": "#8a6bb0", "shapes": "#cf5c4a",
    "starting": "#7f8b96", "call": "#c3cad0",
}  # fmt: skip
"""Color -> its RGB value, on pages and in pictures."""


def color_of(term: str) -> str:
    """The color of a term, or of the call."""
    return COLORS[term if term == CALL else GROUPS.get(term, "ops")]


def bottleneck_sentence(prediction: Prediction) -> str:
    """A sentence on the blocks that take most of the time, and why."""
    blocks = [b for b in prediction.blocks if b.name != CALL]
    if not blocks:
        return "There is nothing to compute."
    if prediction.host_bound:
        starts, rest = map(milliseconds, (prediction.host_ms or 0.0, prediction.after_host_ms))
        host = f"the host, which takes {starts} to start the operations"
        if prediction.waits_for_host:
            return f"Bottleneck: {host}; the device waits for it and ends {rest} later."
        return (
            f"Bottlenecks: {host}, and the device, which then takes {rest} to run the last of them."
        )
    longest = max(blocks, key=lambda b: b.latency_ms)
    if prediction.call_ms >= max(prediction.latency_ms / 2, longest.latency_ms):
        share = prediction.call_ms / (prediction.latency_ms or 1.0)
        return f"The fixed cost of a call takes {100 * share:.0f} % of the time: a larger batch shares it."
    top = bottlenecks(prediction)
    most = bound_by(terms_of(top or blocks))
    if not top and blocks[1:] and longest.share > WHOLE:
        return (
            f"{_label(longest)} is nearly the network: it takes {100 * longest.share:.0f} % of the time"
            f"{_macs([longest], prediction)}. Most of that is {TERMS[longest.bound_by]}."
        )
    if not top:
        equal = sum(digits(b.latency_ms) == digits(longest.latency_ms) for b in blocks) - 1
        alone = f"the longest of {plural(len(blocks), 'block')}, takes"
        of = f"as long as {plural(equal, 'other')}, takes" if equal else alone
        work = _macs([longest], prediction) * (longest.share > 0.5)
        return (
            f"No block stands out: {_label(longest)}, {of} {100 * longest.share:.0f} % of the time{work}. "
            f"The network's time is {_parts(prediction)}."
        )
    one, most_named = len(top) == 1, MOST_BOTTLENECKS + (len(top) == MOST_BOTTLENECKS + 1)
    more = len(top) - most_named
    names = [_label(b) for b in top[:most_named]]
    causes: dict[str, list[str]] = defaultdict(list)
    for name, block in zip(names, top, strict=False):
        causes[block.bound_by].append(name)
    why = _why(most, one)
    if len(causes) > 1:
        why = ", ".join(_why(cause, len(of) == 1, _listed(of)) for cause, of in causes.items())
    named = _listed(names + ([f"{more} equally long ones"] if more > 0 else []))
    time = sum(b.share for b in top)
    return (
        f"{'Bottleneck' if one else 'Bottlenecks'}: {named} {'takes' if one else 'take'} "
        f"{100 * time:.0f} % of the time{_macs(top, prediction)}: {why}."
    )


def _parts(prediction: Prediction) -> str:
    """The two largest parts of a network's time in words: "53 % memory traffic, 47 % compute"."""
    grouped: dict[str, float] = defaultdict(float)
    for term, ms in terms_of(prediction.blocks).items():
        grouped[GROUPS[term]] += ms
    first = sorted(grouped.items(), key=lambda one: -one[1])[:2]
    shares = ((ms / (prediction.latency_ms or 1.0), TERMS[group]) for group, ms in first)
    told = ", ".join(f"{100 * share:.0f} % {words}" for share, words in shares if share >= 0.005)
    return told


def _macs(blocks: Sequence[BlockPrediction], prediction: Prediction) -> str:
    """A clause on the share of the MACs in some blocks; "" if it is near their share of the time."""
    macs = sum(b.counts["flops"] for b in blocks) / (prediction.counts["flops"] or 1)
    is_alike = macs / SLOW <= sum(b.share for b in blocks) <= macs * SLOW
    return f" for {100 * macs:.0f} % of the MACs" if not is_alike else ""


def _label(block: BlockPrediction) -> str:
    """A block's label in a sentence; in quotes if it is a number or has several words."""
    label = plain(block.block)
    if label.isdigit():
        return f'block "{label}"'
    return f'"{label}"' if " " in label else label


def _why(cause: str, is_one: bool, named: str = "") -> str:
    """A clause on the main cause of the time of a block (`is_one`) or of several; `named`: its subject."""
    compute, move = ("computes", "moves") if is_one else ("compute", "move")
    it = "it" if is_one else "they"
    whys = {
        "flops": f"{named or it} {compute}",
        MEMORY: f"{named or it} {move} data more than {it} {compute}",
    }
    return whys.get(cause, f"most of {named or 'it'} is {TERMS[cause]}")


def _listed(names: Sequence[str]) -> str:
    """The names with commas, and "and" in front of the last."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def terms_of(blocks: Sequence[BlockPrediction]) -> dict[str, float]:
    """Term -> ms, summed over blocks."""
    terms: dict[str, float] = defaultdict(float)
    for block in blocks:
        for term, value in block.terms_ms.items():
            terms[term] += value
    return dict(terms)


# ---- Where the blocks of a network belong, from their labels.

TO = " to "
"""The word between the first and the last module in a block's label."""
_DIMENSIONS = "(?:conv|pool|ling|ding|norm|pout)[123]"  # with a `d`, a kind of layer: max_pooling2d
_MODULE_ENDS = re.compile(
    rf"""[/.] | [ ]\(                                     # tower (2)
    | (?<!{_DIMENSIONS}d) (?:(?<=\d)|(?<=\d[a-z])) _ (?!\d)  # conv2_block1; not block_3, multi_head
    | (?<=\d) (?!(?<={_DIMENSIONS})d) (?=[a-z](?![a-z0-9]))   # block2a is in block2""",
    re.VERBOSE,
)


def modules(prediction: Prediction) -> list[tuple[str, ...]]:
    """The modules that each block is in, the outermost first, and the block itself last.

    Each name includes the names of the modules around it: ("conv2", "conv2_block1"). Modules that contain
    all blocks are left out.
    """
    names = [_around(plain(name.label)) for name in prediction.names]
    while names and len({n[0] for n in names}) == 1 and min(map(len, names)) > 1:
        names = [n[1:] for n in names]
    return names


def _around(label: str) -> tuple[str, ...]:
    """The modules that a block is in, then its label. A block from one module to another ("enc.3 to up") is
    in the modules that contain both.
    """
    first, _, last = label.partition(TO)
    *around, _ = prefixes(first)
    return (*(m for m in around if not last or m in prefixes(last)), label)


def prefixes(name: str) -> tuple[str, ...]:
    """The beginnings of a name that are names of modules, the shortest first, then the name itself."""
    found = [m for m in _MODULE_ENDS.finditer(name) if m[0] != "." or "/" not in name]
    ends = [name[: match.start()] for match in found]
    return (*(beginning for beginning in ends if beginning.strip("/._")), name)


# ---- Rows of a report


@dataclass(frozen=True)
class BlockRow:
    """A row for a block or a module; `blocks`: the positions of its blocks in `Prediction.blocks`."""

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

    @property
    def by_color(self) -> dict[str, float]:
        """Color of a cause -> its ms."""
        parts = dict.fromkeys(COLORS.values(), 0.0)
        for term, ms in (self.terms_ms or {CALL: self.latency_ms}).items():
            parts[color_of(term)] += ms
        return parts


def block_rows(prediction: Prediction, depth: int | None = None) -> list[BlockRow]:
    """The rows in the network's order, with blocks folded to modules `depth` names deep; None: not folded.

    A module with a single block is shown as that block. The fixed cost of a call is never folded, and has
    no row if it is 0.
    """
    paths = [] if depth is None else modules(prediction)
    groups: dict[object, list[int]] = defaultdict(list)
    for i in range(len(prediction.blocks) - (prediction.call_ms == 0.0)):
        is_deep = i < len(paths) and len(paths[i]) >= (depth or 0)
        groups[paths[i][:depth][-1:] if is_deep else i].append(i)
    return [_row(prediction, members, key) for key, members in groups.items()]


def marked_rows(prediction: Prediction, depth: int | None = None) -> list[int]:
    """The positions of the bottlenecks among `block_rows`."""
    names = {block.name for block in bottlenecks(folded(prediction, depth))}
    found = list[int]()
    for i, row in enumerate(block_rows(prediction, depth)):
        name = row.label if len(row.blocks) > 1 else prediction.blocks[row.blocks[0]].name
        if name in names:
            found.append(i)
    return found


def folded(prediction: Prediction, depth: int | None) -> Prediction:
    """The prediction with a block for each row of `block_rows`, except the call; unchanged for `depth`
    None.
    """
    if depth is None:
        return prediction
    named = [(r.label, [*r.blocks]) for r in block_rows(prediction, depth) if r.label != CALL]
    names = [prediction.names[i[0]] if len(i) == 1 else BlockName(label) for label, i in named]
    counts, terms = (
        np.array([table[members].sum(axis=0) for _, members in named])
        for table in (prediction.block_counts, prediction.block_terms)
    )
    return replace(prediction, names=tuple(names), block_counts=counts, block_terms=terms)


def _row(prediction: Prediction, members: Sequence[int], key: object) -> BlockRow:
    """The row of the blocks `members`; `key`: a tuple with the name of their module."""
    chosen = [prediction.blocks[i] for i in members]
    label, summary = plain(chosen[0].block), plain(chosen[0].description)
    if len(chosen) > 1:
        label = plain(
            str(key[-1] if isinstance(key, tuple) and key else prediction.query.graph.name)
        )
        spanning = (plain(name.label).partition(TO) for name in prediction.names)
        if any(to and (label in prefixes(a)) != (label in prefixes(b)) for a, to, b in spanning):
            first, last = (plain(b.block) for b in (chosen[0], chosen[-1]))
            label = first.partition(TO)[0] + TO + last.rpartition(TO)[2]
        summary = f"{len(chosen)} blocks"
    time, share = sum(b.latency_ms for b in chosen), sum(b.share for b in chosen)
    return BlockRow(label, summary, time, share, terms_of(chosen), tuple(members))
