"""The answer of a search: its Pareto front, and its devices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET, UnsetType

from lolat.io.results import Result
from lolat.nas.latency import Answer
from lolat.units import plain

EXHAUSTIVE, EVOLUTIONARY = "exhaustive", "evolutionary"


@dataclass(frozen=True)
class OtherDevice:
    """A further device of a search, besides the first."""

    device: str
    profile: str
    batch_size: int
    predictor: str
    source: str
    max_ms: float | None


@dataclass(frozen=True, kw_only=True)
class OnDevice(Answer):
    """A network's latency and memory on a further device; see `FrontCandidate`."""

    device: str
    batch_size: int

    def column(self, name: str) -> str:
        """A column's name with the device, for the front's table: latency_ms_rtx-4090_batch_64."""
        device = os.path.basename(self.device).removesuffix(".json")
        return f"{name}_{'-'.join(device.split())}_batch_{self.batch_size}"


@dataclass(frozen=True, kw_only=True)
class FrontCandidate(Answer):
    """A network on the front: its score, and its latency and memory by `predict`.

    `inside_share`: share of the time inside the measured range. `fits`: True if the network fits into the
    device's memory. If samples answer, memory is unknown, and a network is `in_domain` if its latency is
    between the fastest and the slowest sample. `others`: its answers on the further devices.
    """

    KEYS = ("arch", "candidate", "choices", "latency_ms", "score", "interval_ms", "coverage", "in_domain",
            "inside_share", "host_bound", "memory_bytes", "fits", "warnings", "others")  # fmt: skip

    arch: str
    candidate: tuple[int, ...]
    choices: dict[str, Any]
    score: float
    others: tuple[OnDevice, ...] = ()


@dataclass(frozen=True, repr=False)
class SearchResult(Result):
    """The Pareto front of a space with `size` candidates, the fastest first.

    `source`: the method behind the latencies. `device`: the name or path that was asked for; `profile`: the
    profile that answered. `scored`, `unscored`: numbers of candidates whose score is a number, and is NaN;
    candidates that a table lacks are in neither. `sure`: True if the upper ends of the intervals keep
    `max_ms`. `improving`: True if the best score came in the last tenth of an evolutionary search.
    `within`: number of `compared` candidates that keep all limits by the estimator, None without a limit;
    in a large space the compared candidates are random. `exact`: True if the estimator's times (with
    `sure`, the upper ends) equal the times of whole networks.
    """

    space: str
    size: int
    batch_size: int
    predictor: str
    source: str
    device: str
    profile: str
    method: str
    max_ms: float | None
    scored: int
    unscored: int
    front: tuple[FrontCandidate, ...]
    sure: bool = False
    improving: bool = False
    fastest_ms: float | UnsetType = UNSET
    others: tuple[OtherDevice, ...] = ()
    within: int | None = None
    compared: int | None = None
    exact: bool | None = None

    def words(self) -> str:
        """A text with the number of scored candidates, and the number on the front."""
        without = f" ({self.unscored} more have no score)" if self.unscored else ""
        size = f"{self.size:,}" if self.size < 10**7 else f"{self.size:.2g}"
        others = "".join(f", and {plain(o.device)}, batch {o.batch_size}" for o in self.others)
        on = f"{plain(self.device)}, batch {self.batch_size}{others}"
        asked = f"{self.space} on {on}: {size} candidates"
        scored = f"{self.method} search: {self.scored:,} scored{self.budget_words()}"
        if self.method == EXHAUSTIVE and not self.unscored:
            scored = f"all {self.scored:,}{self.budget_words()} scored"
        known = self.scored + self.unscored if self.compared is None else self.compared
        if self.method == EXHAUSTIVE and known < self.size:  # only a table's candidates have scores
            scored = f"{known:,} of these have a score"
            if kept := self.budget_words():
                scored += f", {self.scored:,}{kept}"
        return f"{asked}, {scored}{without}, {len(self.front)} on the front{self._outside()}"

    def budget_words(self) -> str:
        """A text with the time limits, and how surely they are kept; "" without a limit."""
        every = [(self.max_ms, self.device), *((o.max_ms, o.device) for o in self.others)]
        limits = [(ms, device) for ms, device in every if ms is not None]
        if not limits:
            return ""
        coverage = next((c.coverage for c in self.front if c.coverage), None)
        surely = f" ({100 * coverage:g} % sure)" if self.sure and coverage else ""
        each = [f"{ms:g} ms on {plain(device)}" for ms, device in limits]
        if not self.others:
            each = [f"{ms:g} ms" for ms, _ in limits]
        return f" within {' and '.join(each)}{surely}"

    def within_words(self) -> str:
        """A text with the number of candidates within the limits; "" unless the search was evolutionary.

        A number estimated from a sample has two digits.
        """
        if self.within is None or self.compared is None or self.method == EXHAUSTIVE:
            return ""
        is_exact = self.exact or not self.within
        about, count = ("", self.within) if is_exact else ("about ", float(f"{self.within:.2g}"))
        drawn = " drawn at random" if self.compared < self.size else ""
        several = sum(ms is not None for ms in (self.max_ms, *(o.max_ms for o in self.others))) > 1
        limit = "these limits" if several else "this limit"
        kept = f"{count:,.0f} of {self.compared:,} candidates{drawn}"
        return f"{about}{kept} {'keeps' if self.within == 1 else 'keep'} {limit}"

    @property
    def unasked(self) -> int:
        """Number of candidates within the limits that the evolutionary search did not score, or 0."""
        are_counted = self.within and self.exact and self.compared == self.size
        if self.method != EVOLUTIONARY or not are_counted:
            return 0
        return max((self.within or 0) - self.scored - self.unscored, 0)

    def _outside(self) -> str:
        """A text with the number of networks on the front outside the measured range."""
        devices, words = [self.device, *(o.device for o in self.others)], ""
        for place, device in enumerate(devices):
            ranges = [(c, *c.others)[place].in_domain for c in self.front]
            if outside := ranges.count(False):
                how_many = "all" if outside == len(ranges) else outside
                on = f" on {plain(device)}" if self.others else ""
                words += f", {how_many} of them outside the measured range{on}"
        return words

    def rows(self) -> list[dict[str, Any]]:
        """A row for each network on the front, with its interval and its choice at each position."""
        rows = []
        for c in self.front:
            low, high = c.interval_ms or (None, None)
            names = ("in_domain", "host_bound", "memory_bytes", "fits")
            bounds = {"low_ms": low, "high_ms": high, **{name: getattr(c, name) for name in names}}
            for other in c.others:
                low, high = other.interval_ms or (None, None)
                cells = {"latency_ms": other.latency_ms, "low_ms": low, "high_ms": high}
                cells |= {name: getattr(other, name) for name in names}
                bounds |= {other.column(name): value for name, value in cells.items()}
            row = {"arch": c.arch, "latency_ms": c.latency_ms, **bounds, "score": c.score}
            rows.append(row | c.choices | row)  # a position of such a name gives way
        return rows
