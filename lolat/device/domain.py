"""What was measured: whether a query lies inside it, and the remarks on a query that does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

import msgspec

from lolat.arrays import np
from lolat.device.intervals import LARGEST
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, MEANINGS, behavior
from lolat.graph.kinds import VIEWS
from lolat.io.documents import NotNegative, Positive, Range
from lolat.units import percent

SLACK = 2.0  # how far outside the measured range still counts as inside, as a factor
NEGLIGIBLE_SHARE = 0.05  # of a network's time; with less outside it is inside
MOSTLY_SHARE = 0.8  # of a network's time; with less inside it is outside
PASSED_OVER_SHARE = 0.01  # of a network's time: less than this has no remark
OUTSIDE_WIDENING = 2.0  # the interval of what is outside is so many times as wide (log)
MUCH_LARGER = 8.0
"""Times the largest batch of the networks timed: the cost of weights, once a batch, and of activations is
not told apart by small batches alone."""
UNLIKE_FACTOR = 2.0
"""A class of a GPU's operations that were not timed, and are taken to be as on other GPUs, may be so many
times off: then 90 % of the networks with a class left out of the fit are inside (docs/results/index.md).
The same of networks on a CPU whose multiply-accumulates are of other kinds than those of the timed ones:
83 to 99 % of transformers by a fit to 30 convolutional networks and the other way round, on two CPUs."""
MACS = tuple(name for name in COLUMNS if name.endswith("_macs"))
"""The kinds of multiply-accumulates."""
UNMEASURED_FACTOR = 4.0
"""A kind of operation or a data type that no block had may be so many times off."""


class MeasuredMinimum(msgspec.Struct, frozen=True, omit_defaults=True):
    """The smallest in the rows of a table of a GPU: samples of a batch, ms of a step, ms of an operation in
    it; `most_samples`: the largest batch of a network. None where the table does not tell.
    """

    batch_size: Positive | None = None
    latency_ms: Positive | None = None
    operation_ms: Positive | None = None
    most_samples: Positive | None = None

    def below(self, batch_size: int, latency_ms: float, operations: int) -> tuple[str, ...]:
        """Each figure of a step that is smaller than all measured ones by more than SLACK, in words."""
        rows = (
            (batch_size, self.batch_size, "samples"),
            (latency_ms, self.latency_ms, "ms"),
            (latency_ms / max(operations, 1), self.operation_ms, "ms an operation"),
        )
        return tuple(
            f"{value:.4g} {unit} (nearly all that was measured: from {least:.4g})"
            for value, least, unit in rows
            if least is not None and value < least / SLACK
        )

    def remark(self, batch_size: int, latency_ms: float, operations: int) -> str:
        """A remark on a step that is `below`, or of a batch MUCH_LARGER than those timed; "" on others."""
        if self.most_samples is not None and batch_size > MUCH_LARGER * self.most_samples:
            return (
                f"{batch_size:,} samples; networks were timed with {self.most_samples:,.0f} at most"
            )
        below = ", ".join(self.below(batch_size, latency_ms, operations))
        return below and f"smaller than what was measured: {below}"


class Domain(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was measured: kinds of operation, the ratios of a block's counts, its size.

    `ratios` and `sizes` map a name to (smallest, largest); sizes only bound from above, because a
    smaller block is always made of the same things. A query is judged block by block. `minimum`: of a table
    of networks or of a GPU. `shares`: of a table of networks alone, the largest share that each of MACS has
    in the multiply-accumulates of one.
    """

    kinds: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    ratios: dict[str, Range] = {}
    sizes: dict[str, Range] = {}
    minimum: MeasuredMinimum = msgspec.field(default=MeasuredMinimum(), name="least")
    shares: dict[str, NotNegative] = {}

    @property
    def is_known(self) -> bool:
        """Whether the model says what was measured."""
        return bool(self.ratios)

    def unlike(self, counts: np.ndarray) -> dict[str, float]:
        """Of MACS the shares that a network has beyond SLACK times the largest of those that were timed;
        `counts`: (COLUMNS,). Networks of one kind say little of another.
        """
        mine = shares_of(counts)
        beyond = {n: share - SLACK * self.shares.get(n, 0.0) for n, share in mine.items()}
        return {n: share for n, share in beyond.items() if self.shares and share > 0.0}

    def unlike_remarks(self, counts: np.ndarray) -> Iterator[str]:
        """A remark on the kinds of `unlike` that a network has much of."""
        mine, parts = shares_of(counts), []
        for name, beyond in self.unlike(counts).items():
            if beyond >= NEGLIGIBLE_SHARE:
                largest = self.shares.get(name, 0.0)
                most = f"at most {percent(largest)}" if largest else "none"
                parts.append(f"{MEANINGS[name].words} {percent(mine[name])} (of those {most})")
        if parts:
            yield (
                "of other multiply-accumulates than the networks that were timed: "
                + ", ".join(parts)
            )

    def beyond(self, counts: np.ndarray) -> np.ndarray:
        """(blocks,) whether each lies outside; `counts`: (blocks, 6) in the order of FEATURES."""
        outside = np.zeros(len(counts), bool)
        for measure, values in (ratios_of(counts) | sizes_of(counts)).items():  # NaN is inside
            low, high = self.ratios.get(measure) or (0.0, self.sizes.get(measure, (0, math.inf))[1])
            outside |= (values > high * SLACK) | (values < low / SLACK)
        return outside

    def unmeasured(self, graph: Graph) -> tuple[dict[int, str], dict[int, str]]:
        """(position of an operation -> its kind) where no measured block had that kind, and (position ->
        its data type) where that is another than the measured ones.
        """
        kinds: dict[int, str] = {}
        dtypes: dict[int, str] = {}
        for position, operation in enumerate(graph.operations):
            if operation.kind in VIEWS:
                continue
            # A table of single layers names a kind that moves memory by itself: `relu`.
            if self.kinds and self.kinds.isdisjoint((kind := behavior(operation), operation.kind)):
                kinds[position] = kind
            written = (graph.tensors[t].dtype for t in operation.outputs)
            other = next((t for t in written if "float" in t and t not in self.dtypes), None)
            if other is not None:
                dtypes[position] = other
        return kinds, dtypes

    def unmeasured_remarks(
        self, kinds: Mapping[int, str], dtypes: Mapping[int, str], shares: np.ndarray
    ) -> Iterator[str]:
        """Remarks on the operations of `unmeasured`; `shares`: (operations,) of the time."""
        if kinds:
            names = ", ".join(sorted(set(kinds.values())))
            yield f"no measured block has {names}, {percent(float(shares[list(kinds)].sum()))} of the time"
        if dtypes:
            measured, other = (", ".join(sorted(t)) for t in (self.dtypes, set(dtypes.values())))
            yield f"measured in {measured}, asked for {other}"


def beyond_remarks(beyond: np.ndarray, names: Sequence[str], shares: np.ndarray) -> tuple[str, ...]:
    """A remark on the blocks that lie outside; none where they take next to no time.

    `beyond`: (blocks,); `names`: of the blocks; `shares`: (blocks,) of the time.
    """
    share = float(shares[beyond].sum())
    if share <= PASSED_OVER_SHARE:
        return ()
    return (
        f"larger, or of other proportions, than any measured block: {beyond.sum()} of {len(names)} "
        f"blocks, the first is {names[int(np.argmax(beyond))]!r}, {percent(share)} of the time",
    )


@dataclass(frozen=True)
class Extrapolation:
    """The part of a network that lies outside the measured domain.

    `beyond`, `unmeasured`, `unlike`: shares of its time, as of `widened`; `known`: whether the model says
    what was measured.
    """

    beyond: float = 0.0
    unmeasured: float = 0.0
    unlike: float = 0.0
    remarks: tuple[str, ...] = ()
    known: bool = True

    @property
    def inside_share(self) -> float | None:
        """The share of the time inside the domain; None where it is not known."""
        return max(1.0 - self.share, 0.0) if self.known else None

    @property
    def share(self) -> float:
        """The share of the time outside the domain."""
        return self.beyond + self.unmeasured + self.unlike

    @property
    def negligible(self) -> bool:
        """Whether so little is outside that the network counts as inside."""
        return self.share < NEGLIGIBLE_SHARE


def widened(half_width: float, extrapolation: Extrapolation) -> float:
    """Half the width, as a logarithm, of an interval of which some is known less well.

    `half_width`: of what is inside. Twice that is for what is larger than what was measured or of other
    proportions (`beyond`); the factors are for what was not measured. The ends of the parts add up, as if
    all were off together: nothing tells that they average out. Where much is unmeasured, its share is not
    well known either.
    """
    inside, twice = max(1.0 - extrapolation.share, 0.0), OUTSIDE_WIDENING * half_width
    unlike = math.hypot(half_width, math.log(UNLIKE_FACTOR))
    unmeasured = max(twice, math.log(UNMEASURED_FACTOR) * (1.0 + extrapolation.unmeasured))
    parts = (
        (inside, half_width),
        (extrapolation.beyond, twice),
        (extrapolation.unlike, unlike),
        (extrapolation.unmeasured, unmeasured),
    )
    with np.errstate(divide="ignore"):
        return float(np.logaddexp.reduce([np.log(s) + min(w, LARGEST) for s, w in parts]))


def fit_again(source: str) -> str:
    """The command that fits networks of the user's own into a model; `source`: as a command takes it."""
    return f"lolat fit {quote(source)} timed.csv --output mine.json"


def shares_of(counts: np.ndarray) -> dict[str, float]:
    """The share of each of MACS in the multiply-accumulates of a network; `counts`: (COLUMNS,)."""
    each = {name: float(counts[COLUMNS.index(name)]) for name in MACS}
    total = sum(each.values()) or 1.0
    return {name: macs / total for name, macs in each.items()}


def ratios_of(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Proportions of blocks; NaN where a block has none of either."""
    acts, inp, flops, traffic, _, ops = counts.T
    elements = acts + inp + traffic
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            "FLOPs per element": np.where(flops * elements > 0, flops / elements, np.nan),
            "elements per operation": np.where(ops > 0, elements / ops, np.nan),
        }


def sizes_of(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Sizes of blocks."""
    acts, inp, flops, traffic, weights, _ = counts.T
    return {"FLOPs": flops, "elements": acts + inp + traffic, "weights": weights}
