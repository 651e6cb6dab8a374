"""Times a call between calls of a reference block, and says which of the times to trust.

Blocks are timed as they run inside a network: after something else has run, not in a hot loop of their
own, which would find its weights in the caches. That something else is the reference block, which is
timed too: where it is slow, the machine was disturbed, and the sample beside it does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds, increasing; `time.perf_counter` outside tests."""

CALM_FACTOR = 1.3
CALM_QUANTILE = 0.02
LEAST_SHARE = 0.03
MOST_JOBS = 0.7
FAST_TENTH = 0.1
CALM_NAP_S = 0.03
ENOUGH_CALM = 3  # samples that a centre is made of
LEAST_CALM = 6  # samples below which a point is visited again, while there is time


@dataclass(frozen=True)
class Visit:
    """Times of one visit, ms: `samples` of the job, and the `reference` before, between and after."""

    samples: tuple[float, ...]
    reference: tuple[float, ...]
    at_s: tuple[float, ...] = ()
    """When each sample began, seconds since the epoch; () where that was not recorded."""
    before: str = ""
    """Which network ran before each sample, once, in `reference` ms; "" in a loop of its own."""
    others_s: float | None = None
    """Processor seconds that other programs had used when the visit was over (`environment.others_s`)."""

    def beside(self) -> list[float]:
        """For each sample: the slower one of the references beside it."""
        return [max(pair) for pair in zip(self.reference, self.reference[1:], strict=False)]


def time_once(call: Callable[[], object], clock: Clock) -> float:
    """Wall time of one call, ms."""
    start = clock()
    call()
    return (clock() - start) * 1e3


def visit(
    call: Callable[[], object], reference: Callable[[], object], count: int, clock: Clock
) -> Visit:
    """`count` samples of `call`, each between two of `reference`.

    A first call is not counted: since the last visit others have run, its weights lie in memory rather
    than in a cache, and it would take up to twice as long as in an application that calls it again
    and again.
    """
    call()
    references = [time_once(reference, clock)]
    samples = []
    for _ in range(count):
        samples.append(time_once(call, clock))
        references.append(time_once(reference, clock))
    return Visit(tuple(samples), tuple(references))


def sample(
    call: Callable[[], object],
    before: Callable[[], object] | None,
    touch: Callable[[], object],
    count: int,
    clock: Clock,
    now: Clock,
) -> tuple[list[float], list[float], list[float]]:
    """`count` samples of `call` as in use: (ms of each, ms of `before` ahead of each, when each began).

    Something smaller than a network runs once after the network `before`, which leaves caches and
    threads as a network does, with its input read (`touch`) as if just written. Without `before` it is a
    network in a loop of its own, whose first call, after something else, does not count. `now`: seconds
    since the epoch.
    """
    samples, references, moments = [], [], []
    if before is None:
        call()
    for _ in range(count):
        if before is not None:
            references.append(time_once(before, clock))
            touch()
        moments.append(now())
        samples.append(time_once(call, clock))
    return samples, references, moments


def wait_for_calm(
    reference: Callable[[], object],
    limit_ms: float,
    patience_s: float,
    clock: Clock,
    sleep: Callable[[float], object],
) -> bool:
    """Wait until the reference takes at most `limit_ms`; False when `patience_s` seconds have passed.

    Between two looks the process sleeps: an idle moment is when a system puts things in order.
    """
    end = clock() + patience_s
    while time_once(reference, clock) > limit_ms:
        if clock() >= end:
            return False
        sleep(CALM_NAP_S)
    return True


def settle(
    call: Callable[[], object],
    clock: Clock,
    limit_s: float = 1.0,
    tolerance: float = 0.1,
    most: int = 20,
) -> float:
    """Call until two times in a row agree within `tolerance` (or `limit_s` or `most` is reached).

    The first call, which compiles and allocates, is not compared. Returns the last time in
    milliseconds: what one call costs, roughly.
    """
    start = clock()
    call()
    previous = time_once(call, clock)
    for _ in range(most):
        if clock() - start > limit_s:
            break
        current = time_once(call, clock)
        if abs(current - previous) <= tolerance * previous:
            return current
        previous = current
    return previous


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile, interpolated."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def states(reference: Sequence[float]) -> Iterator[float]:
    """How fast the machine was, state by state: the reference's limit of each, ms, fastest first.

    Other programs, or a virtual machine whose processors are moved apart, only ever add time; so the
    fastest times say how fast this machine is, and what is within 30 % of them is one state. The
    fastest of the rest are the next one.
    """
    rest = list(reference)
    while rest:
        limit = CALM_FACTOR * quantile(rest, CALM_QUANTILE)
        yield limit
        rest = [t for t in rest if t > limit]


def calm_limit(reference: Sequence[float]) -> float:
    """Up to which time of the reference the machine counts as undisturbed, ms.

    That of the fastest state, or of the next where hardly any of the run is that fast.
    """
    limit = 0.0
    for limit in states(reference):
        if sum(t <= limit for t in reference) >= LEAST_SHARE * len(reference):
            break
    return limit


def settled_limit(jobs: Collection[Sequence[Visit]]) -> float:
    """The limit that a finished run is judged by: of the fastest state that most jobs were seen in.

    `jobs`: the visits of each. With different states for different jobs their times would not be
    comparable.
    """
    reference = [t for visits in jobs for v in visits for t in v.reference]
    limit = 0.0
    for limit in states(reference):
        seen = sum(is_calm(visits, limit) for visits in jobs)
        if seen >= MOST_JOBS * len(jobs):
            break
    return limit


def calm_samples(visits: Sequence[Visit], limit: float) -> list[float]:
    """The samples that were taken while the machine was calm."""
    return [
        sample
        for v in visits
        for sample, beside in zip(v.samples, v.beside(), strict=True)
        if beside <= limit
    ]


def centre(visits: Sequence[Visit], limit: float) -> float:
    """The latency that visits stand for: the median of the calm samples.

    With fewer than ENOUGH_CALM of those: the fast tenth of all samples, because what disturbs only
    ever adds time.
    """
    calm = calm_samples(visits, limit)
    if len(calm) >= ENOUGH_CALM:
        return statistics.median(calm)
    everything = [t for v in visits for t in v.samples]
    if not everything:
        raise ValueError("centre() needs at least one sample")
    return quantile(everything, FAST_TENTH)


def is_calm(visits: Sequence[Visit], limit: float) -> bool:
    """Whether there are calm samples enough for `centre` to be made of them alone."""
    return len(calm_samples(visits, limit)) >= ENOUGH_CALM


def spread(visits: Sequence[Visit], limit: float) -> float | None:
    """What measuring again gives: how far the centres of every other visit are apart, relative.

    None where a half has too few calm samples: then the two are not comparable.
    """
    halves = [visits[start::2] for start in (0, 1)]
    if not all(is_calm(half, limit) for half in halves):
        return None
    centres = [centre(half, limit) for half in halves]
    return abs(centres[0] - centres[1]) / statistics.mean(centres)


def calls_per_visit(estimate_ms: float, slice_s: float, least: int = 1, most: int = 4) -> int:
    """How many samples fit into `slice_s` seconds, within bounds."""
    return max(least, min(most, int(slice_s * 1e3 / max(estimate_ms, 1e-6))))
