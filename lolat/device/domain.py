"""The measured domain: its limits, the part of a network that extrapolates, and remarks about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from shlex import quote
from typing import Literal

import msgspec

from lolat.arrays import np
from lolat.device.intervals import FACTOR_QUANTILE, LARGEST, normal_quantile
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, MEANINGS, behavior
from lolat.graph.kinds import VIEWS
from lolat.io.documents import NotNegative, Positive, Range
from lolat.io.results import Figure, Remark
from lolat.units import milliseconds, percent

RANGE_SLACK = 2.0  # factor beyond the measured range that is still inside
NEGLIGIBLE_SHARE = 0.05  # share of the time outside, below which a network is inside
MOSTLY_SHARE = 0.8  # share of the time inside, below which a network is outside
PASSED_OVER_SHARE = 0.01  # share of the time below which a part has no remark
OUTSIDE_WIDENING = 2.0  # factor of the interval's width (log) outside
UNLIKE_FACTOR = 2.0
"""Error factor of a class of operations that was not timed on a GPU and is assumed to run as on other GPUs:
it covers 90 % of the networks with a class held out of the fit (docs/results/index.md). On a CPU, it is
also the factor of networks with other kinds of multiply-accumulates than the timed networks: on two CPUs it
covers 83 to 99 % of transformers by a fit to 30 convolutional networks, and of convolutional networks by a
fit to transformers."""
MACS = tuple(name for name in COLUMNS if name.endswith("_macs"))
"""Names of the counts of multiply-accumulates, one for each kind."""
NETWORK = "this network"
"""The default subject of a remark."""
Place = Literal["inside", "outside", "unknown", "host-bound"]
"""The place of a network relative to the measured range. A network inside it for which a GPU waits for its
host is "host-bound" instead."""
_LESS = " is smaller than nearly all timed ones, so the interval is wider"
_MORE = " has a larger batch than any measured one, so the interval is wider"
SMALLER, LARGER = NETWORK + _LESS, NETWORK + _MORE
"""Topics of remarks. Any batch above the measured ones gets LARGER, without RANGE_SLACK: times of small
batches do not separate the cost of weights from the cost of activations."""
UNMEASURED_FACTOR = 4.0
"""Error factor of a kind of operation, or a data type, that no measured block has."""


def range_of(in_domain: bool | None, host_bound: bool | None) -> tuple[Place, ...]:
    """The place of an answer relative to the measured range, from its `in_domain` and `host_bound`."""
    if host_bound:
        return ("outside", "host-bound") if in_domain is False else ("host-bound",)
    return ("unknown" if in_domain is None else "inside" if in_domain else "outside",)


class MeasuredMinimum(msgspec.Struct, frozen=True, omit_defaults=True):
    """The smallest times in a GPU's table, in ms: of a step, and of an operation; None if unknown.

    They are first percentiles: 99 % of the times in the table are longer. `most_samples`: the largest batch
    size in the table.
    """

    latency_ms: Positive | None = None
    operation_ms: Positive | None = None
    most_samples: Positive | None = None

    def remark(
        self, batch_size: int, latency_ms: float, operations: int, subject: str = NETWORK,
        with_host_ms: float | None = None,
    ) -> str:  # fmt: skip
        """A remark if a step is RANGE_SLACK times faster than the minimum or has a larger batch; else "".

        `subject`: the sentence's subject, such as "a forward pass". `latency_ms`: time without the host's;
        `with_host_ms`: time with it, which the remark gives if it is below the minimum too. A small batch
        gets no remark: networks that take long at it are predicted as well as others
        (docs/explanation/intervals.md).
        """
        if self.most_samples is not None and batch_size > self.most_samples:
            at_most = f"(measured: {self.most_samples:,.0f} or less)"
            batch = Figure("{:,}".format, batch_size)
            return Remark(f"{subject}{_MORE}", f"batch {{batch}} {at_most}", batch=batch)
        told_ms, words = latency_ms if with_host_ms is None else with_host_ms, "takes"
        if self.latency_ms is not None and told_ms >= self.latency_ms:
            told_ms, words = latency_ms, "runs, without waiting for its host,"
        each_ms = latency_ms / max(operations, 1)
        rows = (
            ("step", latency_ms, self.latency_ms, told_ms, f"it {words}"),
            ("each", each_ms, self.operation_ms, each_ms, "an operation takes"),
        )
        below, numbers = list[str](), dict[str, Figure]()
        for name, ms, least, told, subject_words in rows:
            if least is not None and ms < least / RANGE_SLACK:
                least_words = f"99 in 100 timed ones took {{least_{name}}} ms or more"
                below.append(f"{subject_words} {{{name}}}; {least_words}")
                numbers[name] = Figure(milliseconds, told)
                numbers[f"least_{name}"] = Figure("{:.4g}".format, least)
        return Remark(f"{subject}{_LESS}", "; ".join(below), **numbers) if below else ""


class Domain(msgspec.Struct, frozen=True, omit_defaults=True):
    """The measured domain: kinds of operations, data types, ratios of a block's counts, sizes of a block.

    `ratios` and `sizes` map a name to (smallest, largest); a size has only an upper limit. A network is
    judged block by block. `minimum`: from a table of networks or of a GPU's operations. `shares`: from a
    table of networks, the largest share that each kind in MACS has of a network's multiply-accumulates.
    """

    kinds: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    ratios: dict[str, Range] = {}
    sizes: dict[str, Range] = {}
    minimum: MeasuredMinimum = MeasuredMinimum()
    shares: dict[str, NotNegative] = {}

    def unlike(self, counts: np.ndarray) -> tuple[float, tuple[str, ...]]:
        """(share of the multiply-accumulates unlike the timed networks', remarks on large parts of it).

        The share of each kind in MACS counts as far as it exceeds RANGE_SLACK times the largest timed
        share: timed networks of one kind say little about another kind. `counts`: (COLUMNS,).
        """
        in_all, parts, shares = 0.0, list[str](), dict[str, Figure]()
        for name, share in shares_of(counts).items() if self.shares else ():
            largest = self.shares.get(name, 0.0)
            beyond = max(share - RANGE_SLACK * largest, 0.0)
            in_all += beyond
            if beyond >= NEGLIGIBLE_SHARE:
                most = f"at most {percent(largest)}" if largest else "none"
                parts.append(f"{MEANINGS[name].words} {{{name}}} (there {most})")
                shares[name] = Figure(percent, share)
        about = "multiply-accumulates of other kinds than in the timed networks"
        return in_all, (Remark(about, ", ".join(parts), **shares),) if parts else ()

    def beyond(self, counts: np.ndarray) -> np.ndarray:
        """(blocks,) True for each block outside the measured range; `counts`: (blocks, FEATURES)."""
        outside = np.zeros(len(counts), bool)
        ratios, sizes = measures_of(counts)
        for measure, values in (ratios | sizes).items():  # NaN is inside
            low, high = self.ratios.get(measure) or (0.0, self.sizes.get(measure, (0, math.inf))[1])
            outside |= (values > high * RANGE_SLACK) | (values < low / RANGE_SLACK)
        return outside

    def unmeasured(self, graph: Graph) -> tuple[dict[int, str], dict[int, str]]:
        """(position -> kind that no measured block has, position -> data type that was not measured).

        Positions are those of operations in `graph`.
        """
        kinds: dict[int, str] = {}
        dtypes: dict[int, str] = {}
        for position, operation in enumerate(graph.operations):
            if operation.kind in VIEWS:
                continue
            # Tables of single layers name operations that only move memory by their own kind, as `relu`.
            if self.kinds and self.kinds.isdisjoint((kind := behavior(operation), operation.kind)):
                kinds[position] = kind
            written = (graph.tensors[t].dtype for t in operation.outputs)
            numbers = (t for t in written if "float" in t or "complex" in t)
            other = next((t for t in numbers if t not in self.dtypes), None)
            if other is not None:
                dtypes[position] = other
        return kinds, dtypes

    def unmeasured_remarks(
        self, kinds: Mapping[int, str], dtypes: Mapping[int, str], shares: np.ndarray
    ) -> Iterator[str]:
        """Remarks on the operations in `unmeasured`; `shares`: (operations,) share of the time."""
        if kinds:
            names = ", ".join(sorted(set(kinds.values())))
            takes, them = ("takes", "it") if len({*kinds.values()}) == 1 else ("take", "them")
            share = percent(float(shares[list(kinds)].sum()))
            yield f"{names} {takes} {share} of the time, but no measured block has {them}"
        if dtypes:
            measured, other = (", ".join(sorted(t)) for t in (self.dtypes, set(dtypes.values())))
            yield f"measured in {measured}, asked for {other}"


def beyond_remarks(beyond: np.ndarray, names: Sequence[str], shares: np.ndarray) -> tuple[str, ...]:
    """A remark on the blocks outside the measured range, unless they take next to no time.

    `beyond`: (blocks,) True outside; `names`: of the blocks; `shares`: (blocks,) share of the time.
    """
    share = float(shares[beyond].sum())
    if share <= PASSED_OVER_SHARE:
        return ()
    return (
        Remark(
            "larger, or of other proportions, than any measured block",
            "{beyond} of {all} blocks, the first is {name}, {share} of the time",
            beyond=Figure(str, int(beyond.sum())),
            all=Figure(str, len(names)),
            name=repr(names[int(np.argmax(beyond))]),
            share=Figure(percent, share),
        ),
    )


@dataclass(frozen=True)
class Extrapolation:
    """The part of a network outside the measured range, as shares of its time.

    `beyond`: blocks that are larger or have other ratios of counts; `unmeasured`: kinds and data types that
    were not measured; `unlike`: classes known only from other devices; `known`: False if the file does not
    say what was measured.
    """

    beyond: float = 0.0
    unmeasured: float = 0.0
    unlike: float = 0.0
    remarks: tuple[str, ...] = ()
    known: bool = True

    @property
    def share(self) -> float:
        """The share of the time outside the domain; a share below NEGLIGIBLE_SHARE does not matter."""
        return self.beyond + self.unmeasured + self.unlike


def extrapolated_half_width(
    half_width: float, extrapolation: Extrapolation, coverage: float
) -> float:
    """Half width of the log interval of a network that is partly outside the measured range.

    `half_width`: half width for the part inside. The part `beyond` gets OUTSIDE_WIDENING times this width,
    `unlike` the error factor UNLIKE_FACTOR, `unmeasured` UNMEASURED_FACTOR or more, since its share is
    uncertain too. The upper ends of the parts add up, since their errors may not average out.
    """
    if not extrapolation.share:
        return min(half_width, LARGEST)
    inside, twice = max(1.0 - extrapolation.share, 0.0), OUTSIDE_WIDENING * half_width
    of_factor = normal_quantile(coverage) / FACTOR_QUANTILE
    unlike = math.hypot(half_width, of_factor * math.log(UNLIKE_FACTOR))
    unknown = of_factor * math.log(UNMEASURED_FACTOR)
    unmeasured = max(twice, unknown * (1.0 + extrapolation.unmeasured))
    parts = (
        (inside, half_width),
        (extrapolation.beyond, twice),
        (extrapolation.unlike, unlike),
        (extrapolation.unmeasured, unmeasured),
    )
    with np.errstate(divide="ignore"):
        return float(reduce(np.logaddexp, [np.log(s) + min(w, LARGEST) for s, w in parts]))


def fit_again(source: str) -> str:
    """The command that fits a user's networks into a profile; `source`: the profile's path or name."""
    return f"lolat fit {quote(source)} timed.csv --output mine.json"


def shares_of(counts: np.ndarray) -> dict[str, float]:
    """The share of each kind in MACS in a network's multiply-accumulates; `counts`: (COLUMNS,)."""
    each = {name: float(counts[COLUMNS.index(name)]) for name in MACS}
    total = sum(each.values()) or 1.0
    return {name: macs / total for name, macs in each.items()}


def measures_of(counts: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(ratios of blocks' counts, sizes of blocks), by name; `counts`: (blocks, FEATURES).

    A ratio is NaN if one of its counts is 0.
    """
    acts, inp, flops, traffic, weights, ops = counts.T
    elements = acts + inp + traffic
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = {
            "FLOPs per element": np.where(flops * elements > 0, flops / elements, np.nan),
            "elements per operation": np.where(ops > 0, elements / ops, np.nan),
        }
    return ratios, {"FLOPs": flops, "elements": elements, "weights": weights}
