"""The rows of a report: blocks, or the modules that they are folded into, sorted and in chosen columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lolat.counts import COLUMNS as COUNTS
from lolat.errors import InputError
from lolat.prediction import CALL, BlockPrediction, Prediction, bound_by
from lolat.report.words import TERMS
from lolat.units import milliseconds, plain, quantity

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
        """What takes most of the time; see `lolat.prediction.bound_by`."""
        return bound_by(self.terms_ms) if self.terms_ms else CALL

    def cell(self, column: str) -> str:
        """What stands in a column of HEADS."""
        if column == "ms":
            return milliseconds(self.latency_ms).removesuffix(" ms")
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
