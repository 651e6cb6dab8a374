"""Whether a model still holds: a few of its whole networks measured again within seconds, and the verdict.

They are measured as learning does it: in loops of their own, in rounds of random order. A ratio is new over
learned time. The model holds where the median ratio is within 10 % of 1, or within what the model's own
repeated measurements differ by, where that is more (`lolat.model.state.limit_of`).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from lolat.errors import DeviceError, InputError
from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.io.progress import Progress
from lolat.model import Model
from lolat.model.state import limit_of
from lolat.units import off
from microbench import environment
from microbench.blocks import NETWORKS, Predefined, known_blocks
from microbench.environment import Difference
from microbench.learn import OTHERS, REFERENCES, UNSTEADY
from microbench.runner import Job, Outcome, Runner, Settings, graph_job, job_key
from microbench.timing import BUSY, Clock, Levels, levels

SETTINGS = Settings(rounds=6)
OK, DRIFTED, OTHER, UNSETTLED = "ok", "drifted", "another machine", "unsettled"
FEW = 3
SAME_COUNTS = ("acts", "inp", "flops", "weights")
"""A network of this name that counts otherwise is another one."""


@dataclass(frozen=True)
class Again:
    """A network then and now, ms."""

    point: Point
    now_ms: float

    @property
    def ratio(self) -> float:
        """New over learned time."""
        return self.now_ms / self.point.latency_ms


@dataclass(frozen=True)
class Examination:
    """What was measured. Without `again` nothing was: the device is another one, or not there.

    `unrest`: the most disturbed tenth of the run over the calmest; `others`: how many processors other
    programs used meanwhile; `seconds` in all and `starting_s` of them until the framework was there;
    `remark`: why there is no such device, or what the model does not say of it.
    """

    again: tuple[Again, ...] = ()
    differences: tuple[Difference, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    unrest: float | None = None
    others: float = 0.0
    seconds: float = 0.0
    starting_s: float = 0.0
    remark: str = ""

    @property
    def busy(self) -> bool:
        """Whether other programs were at work meanwhile."""
        return self.others > OTHERS


@dataclass(frozen=True)
class Reference:
    """A point of a model that is a whole network of this version, and the network."""

    point: Point
    graph: Graph

    @property
    def job(self) -> Job:
        """Measuring it again."""
        return graph_job(self.graph, self.point.name, self.point.batch_size, whole=True)


def references_of(
    points: Sequence[Point], networks: Sequence[Predefined] = NETWORKS
) -> list[Reference]:
    """The points that are REFERENCES of this version, one of each.

    Where none of those is there, all whole networks that are. InputError when there is none.
    """
    known = {n.name: n for n in networks}
    able: dict[str, Reference] = {}
    for point in points:
        if point.whole and point.name in known and point.name not in able:
            graph = known[point.name].make()
            now = count(graph).total(point.batch_size)._asdict()
            if all(point.counts.get(c) == now[c] for c in SAME_COUNTS):
                able[point.name] = Reference(point, graph)
    if not able:
        raise InputError(
            f"none of the model's {len(points)} points is a whole network of this version, so there is "
            "nothing to measure again; expected a model learned by measuring: lolat learn cpu"
        )
    return [r for name, r in able.items() if name in REFERENCES] or list(able.values())


def measured_again(references: Sequence[Reference], measured: Levels) -> tuple[Again, ...]:
    """Those of `references` that a run has measured."""
    keyed = [(r.point, job_key(r.point.name, r.point.batch_size)) for r in references]
    return tuple(
        Again(p, measured.jobs[key].latency_ms) for p, key in keyed if key in measured.jobs
    )


def once_more(
    points: Sequence[Point], backend: str, device: str, progress: Progress | None = None
) -> tuple[Again, ...]:
    """Some networks of `points` as a process of its own times them now, in some ten seconds.

    InputError where there is none among them, LolatError where they cannot be measured.
    """
    references = references_of(points, known_blocks(backend, NETWORKS))
    with Runner(backend, device, progress) as runner:
        return measured_again(references, levels(_timed(references, runner).visits))


def _timed(references: Sequence[Reference], runner: Runner) -> Outcome:
    """The networks in loops of their own, in rounds of random order."""
    jobs = [r.job for r in references]
    return runner.run(jobs, jobs, SETTINGS, None, runner.available_bytes())


def repeatability(again: Sequence[Again], noise: Mapping[str, Any]) -> float:
    """How far times of the same are apart, relative, as a standard deviation: at the end of learning, or
    from moment to moment of it, whichever is more.

    The root of the mean square of the logarithms of `again`; and of `noise` (`learn.noise_of`) the distance
    of `quiet` and `busy`, the first and the last tenth, as those of a normal distribution.
    """
    squares = [math.log(a.ratio) ** 2 for a in again]
    at_the_end = math.sqrt(statistics.fmean(squares)) if squares else 0.0
    tenth = statistics.NormalDist().inv_cdf(BUSY)
    return math.expm1(max(at_the_end, math.log(noise["busy"] / noise["quiet"]) / (2.0 * tenth)))


def ratio_to(former: Sequence[Point], points: Sequence[Point]) -> float | None:
    """How many times as long the networks of `points` took as in a `former` learning, the median.

    None where they have no network in common.
    """
    known = {(p.name, p.batch_size): p for p in former if p.whole}
    pairs = ((p, known.get((p.name, p.batch_size))) for p in points if p.whole)
    return median_ratio([Again(old, p.latency_ms) for p, old in pairs if old is not None])


def examine(
    points: Sequence[Point],
    label: str,
    learned: Mapping[str, Any],
    backend: str = "tensorflow",
    device: str = "cpu",
    progress: Progress | None = None,
    clock: Clock = time.monotonic,
    networks: Sequence[Predefined] = NETWORKS,
) -> Examination:
    """Measure some of a model's points again: see the module.

    `label` and `learned`: the model's device and environment. On another device nothing is measured, for
    nothing can be expected to hold; with another version, number of threads or flag of the framework
    it is, and that is listed. A GPU that is not there is a difference too. Raises InputError when there
    is nothing to measure again, LolatError when it cannot be done.
    """
    began = clock()
    references = references_of(points, known_blocks(backend, networks))
    here = environment.here(learned, device)
    remark = ""

    def unmeasured(other: tuple[Difference, ...], why: str = "") -> Examination:
        return Examination(differences=other, seconds=clock() - began, remark=why)

    if device == "cpu":
        if other := environment.differences_of_device(label, learned, here):
            return unmeasured(other)
        remark = environment.unsaid(learned)
    try:
        runner = Runner(backend, device, progress, clock=clock)
    except DeviceError as error:
        if device == "cpu":
            raise
        return unmeasured((Difference("device", label, None),), str(error))
    with runner:
        starting_s = clock() - began
        now = here | runner.environment
        if device != "cpu" and (other := environment.differences_of_device(label, learned, now)):
            return unmeasured(other)
        outcome = _timed(references, runner)
    measured = levels(outcome.visits)
    return Examination(
        again=measured_again(references, measured),
        differences=environment.differences(label, learned, now),
        failures=outcome.failures,
        unrest=measured.busy / measured.quiet,
        others=measured.others,
        seconds=clock() - began,
        starting_s=starting_s,
        remark=remark,
    )


# ---- The verdict


def diagnose(model: Model, examination: Examination) -> dict[str, Any]:
    """Everything `doctor --json` prints.

    `measured` is what the networks alone say, `verdict` the same unless the machine is another one.
    """
    again, limit = examination.again, limit_of(model.document)
    ratios, ratio = [a.ratio for a in again], median_ratio(again)
    measured = None if ratio is None else _of_networks(ratio, limit, examination)
    return {
        "model": model.name,
        "device": model.device,
        "verdict": OTHER if examination.differences or measured is None else measured,
        "ratio": ratio,
        "measured": measured,
        "spread": [min(ratios), max(ratios)] if ratios else None,
        "limit": limit,
        "networks": [
            {
                "name": a.point.name,
                "batch_size": a.point.batch_size,
                "learned_ms": a.point.latency_ms,
                "now_ms": a.now_ms,
                "ratio": a.ratio,
            }
            for a in again
        ],
        "unrest": examination.unrest,
        "seconds": round(examination.seconds, 2),
        "starting_seconds": round(examination.starting_s, 2),
        "differences": [asdict(d) for d in examination.differences],
        "failures": dict(examination.failures),
        "warnings": list(_warnings(examination)),
    }


def median_ratio(again: Sequence[Again]) -> float | None:
    """New over learned time, the median over networks; None without any."""
    return statistics.median(a.ratio for a in again) if again else None


def _of_networks(ratio: float, limit: float, examination: Examination) -> str:
    """What the measured networks say: OK, DRIFTED or UNSETTLED.

    Where they are off and other programs are at work, or the machine changes while it is looked at, that
    is its state and no drift.
    """
    if off(ratio) <= limit:
        return OK
    unsteady = examination.unrest is not None and examination.unrest > UNSTEADY
    return UNSETTLED if examination.busy or unsteady else DRIFTED


def _warnings(examination: Examination) -> Iterator[str]:
    if examination.remark:
        yield examination.remark
    for key, reason in examination.failures.items():
        yield f"{key} could not be measured again, or not to the end: {reason}"
    if examination.again and examination.busy:
        yield f"other programs used {examination.others:.1f} processors meanwhile: close them"
    if 0 < len(examination.again) < FEW:
        yield f"only {len(examination.again)} of the model's networks could be measured again"
