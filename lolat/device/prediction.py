"""A prediction: a latency, its interval, its blocks, and both in words."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np

from lolat.device.domain import NEGLIGIBLE_SHARE
from lolat.device.intervals import is_usable
from lolat.device.predictors.host import LATE
from lolat.device.state import State
from lolat.device.summary import mode_words, span
from lolat.graph import Graph
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.blocks import BlockName
from lolat.graph.counts import COLUMNS, FEATURES, GROUPS
from lolat.graph.memory import Memory
from lolat.graph.modes import layout_of
from lolat.hardware.card_names import form_and_memory
from lolat.io.forms import title_of
from lolat.io.results import Result
from lolat.io.writing import check_file
from lolat.parameters import InputSize
from lolat.units import between, byte_size, digits, milliseconds, percent, plain, shapes_text

if TYPE_CHECKING:
    from lolat.device.attribution import AtSize
    from lolat.device.device import Device
    from lolat.hardware.prices import Prices
    from lolat.readers.size import Size

CALL = "call"
MEMORY = "memory"
NOTHING = "nothing"
CLOSE = 0.1
"""Relative error of estimated memory: the largest error against torchtitan
(benchmarks/training_decoders.py)."""


@dataclass(frozen=True)
class Query:
    """The question that a prediction answers: the latency of `graph` on `device`.

    `fastest_of`: the device as asked, if `device` is that one in its fastest precision; else None.
    `spec`: the network as the user gave it, None for a graph; `coverage`: None for the default;
    `reader`: a function that reads the network at another resolution, None if `spec` suffices for that.
    """

    device: Device
    graph: Graph
    coverage: float | None = None
    spec: Any = None
    input_size: Size | None = None
    reader: AtSize | None = None
    fastest_of: Device | None = None

    @property
    def network(self) -> str:
        """The network as an argument of a command, or else the name of its graph."""
        if isinstance(self.spec, (str, os.PathLike)):
            return os.fspath(self.spec)
        return self.graph.name

    @property
    def title(self) -> str:
        """The network's name in a heading; a function is named with its file: "own.py:net"."""
        name = self.graph.name
        return title_of(self.network, name) if ":" in self.network else name

    @property
    def at_size(self) -> AtSize | None:
        """A function that reads the network at another resolution; None if it has one size only."""
        return self.reader or at_size(self.graph if self.spec is None else self.spec)

    @property
    def arguments(self) -> str | None:
        """MODEL NETWORK and the options of a command; None for a network that is a Python object."""
        if not isinstance(self.spec, (str, os.PathLike)):
            return None
        asked_of = f"{quote(plain(self.device.label))} {quote(plain(self.network))}"
        sizes = self.input_size.options if self.input_size else ""
        return f"{asked_of}{sizes}{self.device.asked.options}"


@dataclass(frozen=True)
class BlockPrediction:
    """A block of a network: its time in ms, share of the network's time, main cost, and ms of each term.

    `block`: its label, as `--block` takes it; `description`: the kinds of its operations, "" for a module.
    """

    KEYS = (
        "name", "latency_ms", "share", "bound_by", "counts", "terms_ms", "block", "description",
    )  # fmt: skip

    block: str
    description: str
    latency_ms: float
    share: float
    bound_by: str
    counts: Mapping[str, int]
    terms_ms: Mapping[str, float]

    @property
    def name(self) -> str:
        """The `block` and its `description`."""
        return str(BlockName(self.block, self.description))


@dataclass(frozen=True, repr=False)
class Prediction(Result):
    """The latency of one forward pass of a network, in ms, with its interval and its blocks.

    The times of the blocks add up to `latency_ms`; the last one, "call", is the fixed cost of a call. FLOPs
    are multiply-accumulates. A value that is not known is None.

    `interval_ms`: the latency lies in it with the stated `coverage`. `inside_share`: share of the time
    inside the measured range; `in_domain`: true from 0.8 on. `precision`, `framework`, `launch`,
    `channels_last`: the execution mode. `host_us`: the host's time to launch an addition, if given;
    `host_ms`: its time to launch all operations; `host_bound`: true if launching takes longer than running.
    `available_bytes`: the device's memory; `fits`: true if that suffices. `device`: the name or path that
    was asked for; `profile`: name or path of the profile that answers. `price_per_hour`: US$ of one device
    of the cheapest `instance`.
    """

    KEYS = (
        "model", "learned", "state", "network", "batch_size", "input_shapes", "predictor", "latency_ms",
        "interval_ms", "coverage", "in_domain", "inside_share", "precision", "framework", "launch",
        "channels_last", "host_us", "host_ms", "host_bound", "memory_bytes", "memory",
        "available_bytes", "fits", "warnings", "counts", "blocks", "device", "profile", "price_per_hour",
        "instance", "dollars_per_million",
    )  # fmt: skip

    network: str
    batch_size: int
    predictor: str
    latency_ms: float
    interval_ms: tuple[float, float] | None
    coverage: float | None
    in_domain: bool | None
    inside_share: float | None
    warnings: tuple[str, ...]
    names: tuple[BlockName, ...]
    features: tuple[str, ...]
    block_counts: np.ndarray  # (blocks, COLUMNS)
    block_terms: np.ndarray  # (blocks, features), ms
    call_ms: float
    precision: str
    framework: str | None
    launch: str | None
    host_ms: float | None
    host_bound: bool | None
    memory: Memory
    available_bytes: int | None
    model: str
    learned: str | None
    state: State | None
    query: Query = field(compare=False)
    prices: Prices | None = field(default=None, compare=False)
    """The price list; None for the built-in list."""

    def named(self, network: Any, input_size: InputSize, name: str = "") -> Self:
        """The prediction with the network as the user gave it; unchanged if the user gave a graph.

        `name`: the user's name for the network, if it is not the text of `network`.
        """
        if isinstance(network, (Graph, Analysis)):
            return self
        if name:
            return replace(self, query=replace(self.query, reader=at_size(network)))
        from lolat.readers.size import as_size

        query = replace(self.query, spec=network, input_size=as_size(input_size))
        return replace(self, network=query.network, query=query)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts of the whole network at this batch size."""
        return dict(zip(COLUMNS, self.block_counts.sum(axis=0).tolist(), strict=True))

    @cached_property
    def blocks(self) -> tuple[BlockPrediction, ...]:
        """The blocks in network order, followed by the fixed cost of the call."""
        total, parts = self.latency_ms or 1.0, []
        for name, row, terms in zip(self.names, self.block_counts, self.block_terms, strict=True):
            ms = float(terms.sum())
            terms_ms = dict(zip(self.features, map(float, terms), strict=True))
            bound = bound_by(terms_ms) if terms_ms else CALL
            counts = dict(zip(COLUMNS, row.tolist(), strict=True))
            parts.append(BlockPrediction(*name, ms, ms / total, bound, counts, terms_ms))
        nothing = dict.fromkeys(COLUMNS, 0)
        share = self.call_ms / total
        return *parts, BlockPrediction(CALL, "", self.call_ms, share, CALL, nothing, {})

    @property
    def device(self) -> str:
        """The name or path of the device that was asked for, as a command takes it."""
        return self.query.device.label

    @property
    def card(self) -> str:
        """The form and memory of the GPU, such as "PCIe 40 GB"; "" if the name asked for says them."""
        return form_and_memory(self.device, self.query.device.file.gpu)

    @property
    def row_name(self) -> str:
        """The device's name in tables and sentences; with its precision if several are compared."""
        return self.query.device.row_name

    @property
    def profile(self) -> str:
        """The name or path of the profile that answers, as a command takes it."""
        return self.query.device.profile

    @property
    def arguments(self) -> str | None:
        """MODEL NETWORK and the options of a command that repeats the question; None if no command can."""
        batch = "" if self.batch_size == 1 else f" --batch-size {self.batch_size}"
        return self.query.arguments and f"{self.query.arguments}{batch}"

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs, with the batch size first."""
        return self.query.graph.input_shapes(self.batch_size)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the weights and of the tensors alive at the peak."""
        return self.memory.total_bytes

    @property
    def host_us(self) -> float | None:
        """The host's time to launch an operation, µs; None if it was not given."""
        return self.query.device.asked.host_us

    @property
    def after_host_ms(self) -> float:
        """Time in ms of a host-bound network after the host's last launch; 0 for other networks."""
        return self.latency_ms - (self.host_ms or 0.0) if self.host_bound else 0.0

    @property
    def waits_for_host(self) -> bool:
        """True if the host's launches take nearly all of the time."""
        return bool(self.host_bound) and self.after_host_ms <= LATE * self.latency_ms

    @property
    def channels_last(self) -> bool | None:
        """True if images are stored channels last; None if the time does not depend on it."""
        device = self.query.device
        return layout_of(device.file.mode, self.query.graph, device.asked.channels_last)

    @property
    def runs_as(self) -> str:
        """The execution mode in words; see `mode_words`."""
        device = self.query.device
        return mode_words(device.file, self.query.graph, device.asked.channels_last)

    @property
    def fits(self) -> bool | None:
        """True if the network fits in the device's memory; None if the memory is not known."""
        return None if self.available_bytes is None else self.memory_bytes <= self.available_bytes

    @cached_property
    def _offered(self) -> tuple[float | None, str | None, str | None]:
        """(US$ an hour of one device, the cheapest instance whose devices hold the network, its card).

        The card is None unless its memory differs from the device's.
        """
        from lolat.hardware.rental import rental_of  # imported late, since few users ask for prices

        file = self.query.device.file
        rental = rental_of(file, None, self.prices, step_bytes=self.memory_bytes)
        if rental is None:
            return None, None, None
        offer = rental.of_one_device()
        in_use = ", all in use" if offer.devices > 1 else ""
        gib, own = rental.rented(1, offer).memory_gib, file.gpu
        of_gib = f"; {gib:g} GiB, this card has {own.memory_gib:g}" if gib and own else ""
        named = plain(offer.instance_type)
        if offer.accelerator:
            cards = f"{offer.devices} x {offer.accelerator}{in_use}{of_gib}"
            named += f" ({plain(', '.join([*offer.places[:1], cards]))})"
        return offer.price / offer.devices, named, offer.accelerator if of_gib else None

    @property
    def price_per_hour(self) -> float | None:
        """US$ an hour of one device; None if no price is known."""
        return self._offered[0]

    @property
    def instance(self) -> str | None:
        """The cheapest instance type with this device; None if no price is known."""
        return self._offered[1]

    @property
    def rented_card(self) -> str | None:
        """The card that the price list has at this price, if its memory differs from the device's."""
        return self._offered[2]

    @property
    def dollars_per_million(self) -> float | None:
        """US$ for a million samples on a fully used device; None without a price or enough memory."""
        if self.price_per_hour is None or self.fits is False:
            return None
        hours = 1e6 / self.batch_size * self.latency_ms / 3.6e6
        return hours * self.price_per_hour

    @property
    def largest_batch(self) -> int:
        """The largest batch size that fits in memory; 0 if none fits or the memory is not known."""
        analysis, mode = analyze(self.query.graph), self.query.device.file.mode
        return analysis.largest_batch(mode, self.available_bytes or 0)

    @property
    def title(self) -> str:
        """The header: network, batch size, input shapes, execution mode."""
        sizes = shapes_text(self.query.graph.input_sizes)
        parts = [plain(self.query.title), f"batch {self.batch_size}", sizes]
        return " · ".join(filter(None, [*parts, self.runs_as]))

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second; None without a latency."""
        return 1e3 * self.batch_size / self.latency_ms if self.latency_ms else None

    def words(self) -> str:
        """The prediction in a sentence.

        It has the latency on the device, its interval and the part inside the measured range; if it
        applies, also a lack of memory and a faster precision.
        """
        card = f" ({self.card})" if self.card else ""
        time = f"{self.title} on {plain(self.device)}{card}: {milliseconds(self.latency_ms)}"
        interval = interval_words(self.interval_ms, self.coverage, self.latency_ms)
        no_room = "does not fit into its memory" if self.fits is False else ""
        slow = self._shown().precision_lines([self])
        return "; ".join(filter(None, (f"{time}, {interval}", domain_words(self), no_room, *slow)))

    def rows(self) -> list[dict[str, Any]]:
        """One row: network, device, profile, precision, launch, batch_size, latency_ms, low_ms, high_ms,
        coverage, in_domain, predictor, fits, samples_per_s, dollars_per_million and the six counts."""
        low, high = self.interval_ms or (None, None)
        row = {
            "network": self.query.network, "device": self.device, "profile": self.profile,
            "precision": self.precision, "launch": self.launch,
            "batch_size": self.batch_size, "latency_ms": self.latency_ms, "low_ms": low, "high_ms": high,
        }  # fmt: skip
        others = "coverage in_domain predictor fits samples_per_s dollars_per_million"
        row |= {n: getattr(self, n) for n in others.split()}
        return [row | {name: self.counts[name] for name in FEATURES}]

    def folded(self, depth: int) -> Self:
        """The prediction with one block per module at a depth of the module path; depth 0: one block."""
        folded: Self = self._shown().folded(self, depth)
        return folded

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write `block_rows` as a CSV table. InputError if the file cannot be written."""
        check_file(path, "path")
        self._shown().write_csv(path, self.block_rows())

    def write_html(self, path: str | os.PathLike[str], depth: int | None = None) -> None:
        """Write a page to explore the blocks (see `folded`): one HTML file that loads nothing else.

        InputError if it cannot be written.
        """
        check_file(path, "path")
        self._shown().write_page(self, path, depth)

    def block_rows(self) -> list[dict[str, Any]]:
        """A row for each block: block, description, latency_ms, share, bound_by and its counts."""
        names = ("block", "description", "latency_ms", "share", "bound_by")
        return [{**{n: getattr(b, n) for n in names}, **b.counts} for b in self.blocks]


def at_size(network: Any) -> AtSize | None:
    """A function that reads a network at another resolution; None for a graph, which has one size."""
    from lolat.readers import read

    if isinstance(network, (Graph, Analysis)):
        return None
    return lambda side: titled(read(network, (side,)), network)


def titled(graph: Graph, spec: Any) -> Graph:
    """The graph, named as a heading should name the network; `spec`: the network as the user gave it."""
    return msgspec.structs.replace(graph, name=title_of(spec, graph.name))


def domain_words(prediction: Prediction) -> str:
    """The share of a network's time that is inside the measured range, in words."""
    share = prediction.inside_share
    if prediction.in_domain is None or share is None:
        known = prediction.query.device.file.timed_batches
        return f"the measured range is {f'known by batch alone: {span(known)}' if known else 'not known'}"
    if share > 1.0 - NEGLIGIBLE_SHARE:
        return "inside the measured range"
    if prediction.host_bound:
        return "host-bound, extrapolating: outside the measured range"
    where = "mostly inside" if prediction.in_domain else "extrapolating: outside"
    if share <= 0.0:
        return "extrapolating: outside the measured range"
    part = f"{math.floor(100 * share)} % of the time" + (
        " inside" if not prediction.in_domain else ""
    )
    return f"{where} the measured range ({part})"


def no_room_words(
    needed_bytes: int, available_bytes: int, largest_batch: int, devices: int = 1
) -> str:
    """The remark on a network that does not fit in memory, with the largest batch that fits."""
    where = "the device" if devices == 1 else f"each of {devices} devices"
    fits = "not even batch 1 fits"
    if largest_batch:
        fits = f"the largest batch that fits is {largest_batch:,}"
    return (
        f"DOES NOT FIT: it needs {byte_size(needed_bytes)} of memory; {where} has "
        f"{byte_size(available_bytes)} for it; {fits}"
    )


def memory_words(prediction: Prediction) -> str:
    """The memory of a forward pass, and the operation at its peak, in words.

    Autocast keeps copies of the weights used before the peak, so the copies depend on the batch size.
    """
    memory = prediction.memory
    copies = " and their half-precision copies" if prediction.precision == "amp" else ""
    at = f", most at {plain(memory.at)}" if memory.at else ""
    has = prediction.available_bytes
    of = f"of the device's {byte_size(has)} of free memory" if has else "of memory"
    is_full = has and (1.0 - CLOSE) * has <= memory.total_bytes <= has
    close = f"; too close to be sure: within {percent(CLOSE)}" if is_full else ""
    return (
        f"{byte_size(memory.total_bytes)} {of}: {byte_size(memory.weights_bytes)} of weights{copies}, "
        f"{byte_size(memory.activations_bytes)} of tensors at once{at}{close}"
    )


def interval_words(
    interval_ms: tuple[float, float] | None, coverage: float | None, latency_ms: float
) -> str:
    """An interval with its coverage, in the latency's unit: "90 % sure of 26.4 .. 31.9"."""
    if interval_ms is None or coverage is None:
        return "how sure that is, is not known"
    if not is_usable(interval_ms):
        return f"no usable interval: its ends are {digits(interval_ms[1] / interval_ms[0])} times apart"
    return f"{100 * coverage:g} % sure of {between(*interval_ms, latency_ms)}"


def bound_by(terms_ms: Mapping[str, float]) -> str:
    """The entry of `lolat.graph.counts.GROUPS` that takes most of the time; "nothing" without a time."""
    grouped = Counter[str]()
    for term, ms in terms_ms.items():
        grouped[GROUPS[term]] += ms  # type: ignore[assignment]
    ((most, ms),) = grouped.most_common(1)
    return most if ms > 0.0 else NOTHING
