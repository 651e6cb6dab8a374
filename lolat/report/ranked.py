"""Several answers compared: their limits, ties and notes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lolat.device.intervals import chance_of_less, ratio_half_width
from lolat.device.limits import PROBABLE
from lolat.device.ranking import by_assumed_host, compared, errors_of, hosts_decide
from lolat.io.results import in_one, topic, wording
from lolat.parameters import COVERAGE
from lolat.units import by_text, percent, plain, plural

if TYPE_CHECKING:
    from lolat.device.prediction import Prediction

MOST_NOTES, MOST_NAMES, MOST_APART, MOST_KINDS = 3, 8, 2, 3
SURE = (1.0 + COVERAGE) / 2
"""An answer is not mentioned beside the best if the best is better with at least this probability."""
PERHAPS_RATIO = 1.25
"""Below that chance the best is "perhaps better" than an answer of at least this ratio; a nearer one is too
close to call."""


@dataclass(frozen=True)
class Sentence:
    """A sentence, with clauses that a terminal shows indented below it; `head`: its first words, if a
    headline can show them.
    """

    first: str
    clauses: tuple[str, ...] = ()
    head: str = ""

    @property
    def lines(self) -> list[str]:
        """A line for the sentence, and one for each clause."""
        return [self.first, *(f"  {clause}" for clause in self.clauses)]

    @property
    def words(self) -> str:
        """The whole sentence."""
        return "; ".join((self.first, *self.clauses))

    @property
    def below_headline(self) -> list[Sentence]:
        """The rest of the sentence, to show below a headline that has `head`."""
        parts = self.first.removeprefix(self.head).lstrip(",;: "), *self.clauses
        return [Sentence(part[0].upper() + part[1:]) for part in parts if part]


class Rated(NamedTuple):
    """A time or a price, with its interval (None: not known).

    `errors`: a key; values with the same key have similar errors (see `errors_of`). None: similar to no
    other value. `coverage`: of the interval.
    """

    value: float
    interval: tuple[float, float] | None
    errors: Hashable = None
    coverage: float = COVERAGE

    @property
    def half_width(self) -> float:
        """The half width of the interval, a logarithm; infinite if the interval is not known."""
        low, high = self.interval or (0.0, 0.0)
        return math.log(high / low) / 2 if low > 0 else math.inf


def rated(prediction: Prediction, scale: float = 1.0) -> Rated:
    """The latency of a prediction, times `scale`, with its interval."""
    ends, coverage = scaled(prediction.interval_ms, scale), prediction.coverage or COVERAGE
    return Rated(scale * prediction.latency_ms, ends, errors_of(prediction), coverage)


Ranked = Mapping[str, Rated]
"""Name -> its time or price."""


def apart_words(best: str, ranked: Ranked, before: str = "") -> str:
    """Words on values close to the best of a ranking: "too close to call against ...; perhaps better than
    ...; probably better than ...", after `before`; the next best comes first. "" if no value is close.

    Each value has its difference from the best, and the chance that the best is better. The best is
    probably better if the chance is between PROBABLE and SURE; perhaps better if it is below and the values
    differ much (PERHAPS_RATIO). Otherwise, or if an interval is not known, the two are too close to call.
    """

    def chance(other: Rated) -> float | None:
        are_alike = first.errors is not None and first.errors == other.errors
        width = ratio_half_width(first.half_width, other.half_width, are_alike)
        return chance_of_less(first.value, other.value, width, first.coverage)

    def words(name: str) -> str:
        less, difference = chances[name], _difference(ranked[name].value, first.value)
        sure = "" if less is None else f", {math.floor(100.0 * less)} % sure"
        return f"{name} ({difference}{sure})"

    first = ranked[best]
    order = sorted((name for name in ranked if name != best), key=lambda name: ranked[name].value)
    chances = {name: chance(ranked[name]) for name in order}
    near = [name for name, less in chances.items() if less is None or 1.0 - SURE < less < SURE]
    probable = [name for name in near if (chances[name] or 0.0) >= PROBABLE]
    perhaps = [
        name for name in near
        if chances[name] is not None and name not in probable
        and ranked[name].value >= PERHAPS_RATIO * first.value
    ]  # fmt: skip
    close = [name for name in near if name not in (*probable, *perhaps)]
    because = ": not all have an interval" if any(chances[name] is None for name in close) else ""
    told = []
    if close:
        told = [f"too close to call against {few([*map(words, close)], MOST_APART)}{because}"]
    left = MOST_APART - len(close)
    for which, names in ("perhaps", perhaps), ("probably", probable):
        if names:
            told.append(f"{which} better than {few([*map(words, names)], max(left, 1))}")
        left -= len(names)
    return before * bool(told) + "; ".join(told)


def _difference(value: float, best: float) -> str:
    """The difference of a value from the best, in words: "+11 %"."""
    ratio = 1.0 if value == best else value / best if best else math.inf
    off = percent(abs(ratio - 1.0))
    return "the same" if off == percent(0.0) else f"{'-' if ratio < 1.0 else '+'}{off}"


def levels_words(own_runs: Mapping[str, int]) -> Iterator[str]:
    """A remark that own runs set the level of some of the compared devices, but not of all; `own_runs`:
    device -> number of runs.
    """
    if any(own_runs.values()) and not all(own_runs.values()):
        own = ", ".join(name for name, runs in own_runs.items() if runs)
        yield f"Levels differ: own runs corrected {own} alone; runs on the others do the same (lolat fit)"


def not_compared(predictions: Sequence[Prediction]) -> str:
    """A remark on devices that were learned while other programs ran and are left out of the verdicts; ""
    without any.
    """
    idle = {id(p) for p in compared(predictions)}
    busy = dict.fromkeys(device_words(p) for p in predictions if id(p) not in idle)
    if not busy:
        return ""
    was = "was" if len(busy) == 1 else "were"
    return f"Not compared: {few([*busy], MOST_NAMES)}, which {was} learned while other programs ran"


def assumed_hosts(predictions: Sequence[Prediction]) -> str:
    """A remark on compared devices whose times depend on an assumed host; "" if no time does."""
    if not hosts_decide(predictions):
        return ""
    every = {plain(p.query.network) for p in predictions}
    found: dict[tuple[tuple[str, ...], tuple[int, ...]], list[str]] = {}
    for name in dict.fromkeys(map(device_words, predictions)):
        its = [p for p in predictions if device_words(p) == name]
        bound = [p for p in its if by_assumed_host(p)]
        networks = tuple(dict.fromkeys(plain(p.query.network) for p in bound))
        at = tuple(dict.fromkeys(p.batch_size for p in bound))
        where = networks if {*networks} != every else (), at if {*at} != _sizes(its) else ()
        if bound:
            found.setdefault(where, []).append(name)
    bound_on = []
    for (networks, at), names in found.items():
        of = f"{few(networks, MOST_NAMES)} on " if networks else ""
        size = f" at batch {few([*map(str, at)], MOST_NAMES)}" if at else ""
        bound_on.append(f"{of}{few(names, MOST_NAMES)}{size}")
    gpus = {p.row_name for p in predictions if p.host_bound is not None}
    compare = "these times compare assumed hosts, not GPUs (one host for all: --host-us)"
    alone = "its time is that of an assumed host"
    has_networks = any(networks for networks, _ in found)
    begin = "Host-bound:" if has_networks else "Host-bound on"
    return f"{begin} {'; '.join(bound_on)}: {compare if len(gpus) > 1 else alone}"


def _sizes(predictions: Iterable[Prediction]) -> set[int]:
    return {p.batch_size for p in predictions}


def device_words(prediction: Prediction) -> str:
    """The name of a prediction's device, as in its row."""
    return plain(prediction.row_name)


def network_words(prediction: Prediction) -> str:
    """The name of a prediction's network, as in its row."""
    return plain(prediction.query.network)


def groups_of(predictions: Iterable[Prediction]) -> dict[tuple[str, int], list[Prediction]]:
    """(network, batch size) -> its predictions."""
    groups: dict[tuple[str, int], list[Prediction]] = {}
    for p in predictions:
        groups.setdefault((network_words(p), p.batch_size), []).append(p)
    return groups


def scaled(interval: tuple[float, float] | None, factor: float) -> tuple[float, float] | None:
    """An interval, times a factor; None stays None."""
    return None if interval is None else (factor * interval[0], factor * interval[1])


def grouped_notes(
    answers: Sequence[tuple[str, Sequence[str], tuple[float, float] | None]],
    most: float = MOST_NOTES,
    chosen: Collection[str] = (),
) -> Iterator[str]:
    """Lines of notes on several answers, each note once with the names of its answers; about `most` lines.

    `answers`: (name, notes, interval). The notes of the `chosen` answers, such as the cheapest, come first,
    then the notes of the answers with the widest intervals. If there are more than `most` notes, only those
    of chosen answers are shown, and a line has the number and the commonest kinds of the others. If no
    chosen answer has a note, the first note of the answer with the widest interval is shown.
    """

    def width(interval: tuple[float, float] | None) -> float:
        low, high = interval or (0.0, 1.0)
        return high / max(low, 1e-9)

    first_told = {name for name, remarks, _ in answers if name in chosen and remarks}
    answers = sorted(answers, key=lambda answer: (answer[0] not in first_told, -width(answer[2])))
    notes: dict[str, dict[str, list[str]]] = {}
    for name, remarks, _ in answers:
        for remark in remarks:
            notes.setdefault(topic(remark), {}).setdefault(name, []).append(remark)
    names, lines = {name for name, *_ in answers}, []
    for each in notes.values():
        alike = in_one(note for of_one in each.values() for note in of_one)
        first = wording(next(iter(each.values()))[0])
        told = [name for name, of_one in each.items() if first in map(wording, of_one)]
        whose = "" if len(told) == len(names) else f" ({few(told)})"
        others = few([name for name in each if name not in told]) or "the others"
        differ = f" (other words for {others})" if len(alike) > 1 else ""
        lines.append(f"note{whose}: {plain(alike[0])}{differ}")
    taken = sum(not first_told.isdisjoint(each) for each in notes.values())
    if len(lines) <= max(most, taken):
        yield from lines
        return
    widths = [width(interval) for *_, interval in answers]
    if taken:
        yield from lines[:taken]
    elif len(names) > 1 and widths[0] > widths[1]:
        each = next(iter(notes.values()))
        more = len(each) - 1
        alike_words = f" ({more} more {'has' if more == 1 else 'have'} the like)" if more else ""
        first = plain(next(iter(each.values()))[0])
        yield f"note on {answers[0][0]}, the least sure answer{alike_words}: {first}"
    else:
        yield lines[0]
    kinds = sorted([*notes][taken or 1 :], key=lambda kind: -len(notes[kind]))
    heads: dict[str, dict[str, None]] = {}
    for kind in kinds:
        head = re.split("[:;(]|, so ", plain(kind))[0].strip()
        heads.setdefault(head, {}).update(dict.fromkeys(notes[kind]))
    whose_kind = (
        head if len(of) == len(names) else f"{few([*of])}: {head}" for head, of in heads.items()
    )
    among = few([*whose_kind], MOST_KINDS, "; ", "other kinds")
    number = plural(len(kinds), "more note")
    yield f"{number} ({among}): --json has them, or ask about one network on one device"


def left_out_lines(left_out: Mapping[str, str], most: int | None = MOST_NOTES) -> Iterator[str]:
    """The first `most` reasons why devices cannot answer, then the names of other devices; None: all
    reasons.
    """
    reasons = by_text((plain(name), plain(why)) for name, why in left_out.items())
    for why, names in [*reasons.items()][:most]:
        yield f"{few(names, MOST_NAMES)}: {why}"
    if most and (more := [name for names in [*reasons.values()][most:] for name in names]):
        yield f"{few(more, MOST_NAMES)}: no answer either (--json has why)"


def few(names: Sequence[str], most: int = 2, between: str = ", ", others: str = "more") -> str:
    """The first `most` names, and the number of others, which are called `others`."""
    left = len(names) - most
    more = f" and {left} {others.removesuffix('s') if left == 1 else others}" if left > 0 else ""
    return between.join(names[:most]) + more
