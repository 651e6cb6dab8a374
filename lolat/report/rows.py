"""The rows of a report: blocks, or the modules that they are folded into, sorted and in chosen columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.blocks import Block
from lolat.graph.counts import COLUMNS as COUNTS
from lolat.model.prediction import CALL, BlockPrediction, Prediction, bound_by
from lolat.report.words import TERMS
from lolat.units import digits, plain, quantity

# ---- Where the blocks of a network belong: module paths from their labels and their
# operations' paths.
#
# A name is cut where a module ends: at `/` and `.`, at `_` between a number and a word ("conv2_block1"
# is in
# "conv2"; "block_3" and "multi_head" are one name) and in front of a single letter behind a number
# ("block2a" is in "block2").

_PLACES = re.compile(r"[/._]|(?<=\d)(?=[a-z](?![a-z0-9]))")
_NUMBERED = re.compile(r"\d[a-z]?$")
_DIMENSIONS = re.compile(r"(?:conv|pool|ling|ding|norm|pout)[123]d$")


def module_paths(graph: Graph, blocks: Sequence[Block]) -> list[tuple[str, ...]]:
    """For each block, the modules that it is in, the outermost first, and the block itself last.

    Each is written with what is around it: ("conv2", "conv2_block1"). What all blocks are in is left out.
    """
    found = []
    for block in blocks:
        paths = [graph.operations[p].path.split("/") for p in block.operations]
        found.append(levels(_joined(_common(paths), block.label)))
    while found and len({f[0] for f in found}) == 1 and min(map(len, found)) > 1:
        found = [f[1:] for f in found]
    return found


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


def _common(paths: Sequence[Sequence[str]]) -> list[str]:
    """The components with which all paths begin."""
    first = min(paths, default=[], key=len)
    shared = 0
    while shared < len(first) and all(path[shared] == first[shared] for path in paths):
        shared += 1
    return [part for part in first[:shared] if part]


def _joined(path: Sequence[str], label: str) -> str:
    """A label behind the part of the path that it does not repeat."""
    own = label.replace(".", "/").split("/")
    parts = "/".join(path).replace(".", "/").split("/") if path else []
    for start in range(len(parts)):
        inside = parts[start : start + len(own)]
        if (
            inside == own[: len(inside)]
        ):  # the path goes on with the label, or the label with the path
            return "/".join([*parts[:start], label])
    return "/".join([*parts, label])


# ---- rows ----------------------------------------

MACS = "macs"
USUAL = ("ms", "share", "most")
HEADS = {"ms": "ms", "share": "share", "most": "most of it is", MACS: "MACs"} | {
    name: name for name in COUNTS if name != "flops"
}
"""The columns that there are, and what stands above them."""
SORTS = ("order", "time", "macs", "name")


@dataclass(frozen=True)
class View:
    """What a report shows: how deep modules are folded (None: blocks), which columns, in which order."""

    depth: int | None = None
    columns: tuple[str, ...] = USUAL
    sort: str = "order"

    def __post_init__(self) -> None:
        """InputError for a depth below 0, a column or an order that there is not."""
        if self.depth is not None and self.depth < 0:
            raise InputError(
                f"--depth {self.depth}: expected a whole number from 0 (the whole network in a row)"
            )
        for name in self.columns:
            if name not in HEADS:
                raise InputError(
                    f"--columns: there is no column {name!r}; expected some of {', '.join(HEADS)}, with "
                    "commas between them"
                )
        if self.sort not in SORTS:
            raise InputError(f"--sort {self.sort}: expected one of {', '.join(SORTS)}")

    @property
    def is_usual(self) -> bool:
        """Whether nothing was chosen."""
        return self == View()


@dataclass(frozen=True)
class Row:
    """A block or a module: `blocks` are those in it, as positions in `Prediction.blocks`."""

    label: str
    summary: str
    latency_ms: float
    share: float
    counts: Mapping[str, int]
    terms_ms: Mapping[str, float]
    blocks: tuple[int, ...]

    @property
    def bound_by(self) -> str:
        """What takes most of the time; see `lolat.model.prediction.bound_by`."""
        return bound_by(self.terms_ms) if self.terms_ms else CALL

    def cell(self, column: str) -> str:
        """What stands in a column of HEADS."""
        if column == "ms":
            return digits(self.latency_ms)
        if column == "share":
            return f"{100 * self.share:.1f} %"
        if column == "most":
            return TERMS.get(self.bound_by, self.bound_by)
        value = self.counts["flops" if column == MACS else column]
        return quantity(value) if value else "-"


def rows(prediction: Prediction, paths: Sequence[tuple[str, ...]], view: View) -> list[Row]:
    """The rows of a report. `paths`: of each block but the call (`module_paths`); () where not folded.

    A module with a single block in it is shown as that block; the fixed cost of a call is never folded.
    """
    groups: dict[object, list[int]] = {}
    for i in range(len(prediction.blocks)):
        own: object = i
        if view.depth is not None and i < len(paths):
            own = paths[i][: view.depth][-1:]
            own = own if len(paths[i]) >= view.depth else i
        groups.setdefault(own, []).append(i)
    found = []
    for key, members in groups.items():
        name = key[-1] if isinstance(key, tuple) and key else prediction.network
        found.append(_row(prediction.blocks, members, str(name)))
    return sorted(found, key=lambda row: _rank(row, view.sort))


def _row(blocks: Sequence[BlockPrediction], members: Sequence[int], name: str) -> Row:
    inside = [blocks[i] for i in members]
    label, summary = named_parts(inside[0].name)
    if len(inside) > 1:
        label, summary = plain(name), f"{len(inside)} blocks"
    terms: dict[str, float] = {}
    for block in inside:
        for term, value in block.terms_ms.items():
            terms[term] = terms.get(term, 0.0) + value
    return Row(
        label,
        summary,
        sum(b.latency_ms for b in inside),
        sum(b.share for b in inside),
        {name: sum(b.counts[name] for b in inside) for name in COUNTS},
        terms,
        tuple(members),
    )


def _rank(row: Row, sort: str) -> tuple[object, ...]:
    if sort == "time":
        return (-row.latency_ms,)
    if sort == MACS:
        return (-row.counts["flops"],)
    if sort == "name":
        return (row.label == CALL, row.label)
    return ()


def named_parts(name: str) -> tuple[str, str]:
    """A block's label, and the summary of what is in it."""
    label, _, summary = plain(name).partition(" · ")
    return label, summary


def short_name(name: str, label: str) -> str:
    """An operation's name without the label of its block in front."""
    return name.removeprefix(label).lstrip("_/.") or name
