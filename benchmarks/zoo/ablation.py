"""The accuracy of the default formula on the zoo without each of its terms; nothing is measured.

    python -m benchmarks run ablation            # some minutes
    python -m benchmarks run ablation eliminate=yes   # how the terms were chosen

Each device of a processor is learned from its predefined blocks and networks by each variant of the
formula, which then predicts the other networks and the blocks cut from them.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from benchmarks.runner import Tables, benchmark
from benchmarks.zoo import measure
from benchmarks.zoo.judge import HALVES, key, visits
from lolat.device.predictors.additive import APART, FAMILY, TERMS, UNUSED_TERMS
from lolat.fitting.least_squares import KIND_SPREAD, fit_families, fit_relative, point_weights
from lolat.graph.counts import COLUMNS, FEATURES, MEANINGS, MEMBERS, count
from lolat.microbench.timing import latencies

FOLDER = Path(__file__).resolve().parent / "results" / "epyc-26-2"
ALL = tuple(n for n in COLUMNS if n in (*TERMS, *UNUSED_TERMS))
OF = {**APART, **FAMILY}
COMPUTING = {*MEMBERS["flops"], "exps", "gelus"}
STARTING = {n for n in ALL if MEANINGS[n].group == "ops"}
CAP = 0.4  # an error, as a logarithm, counts as no more where the mean is told
TURNS = 8  # in which it is settled what takes longer


@dataclass(frozen=True)
class Jobs:
    """Timed jobs. `rows`: (operations of all jobs, COLUMNS) counts; `of`: the job of each; `ms`."""

    rows: np.ndarray
    of: np.ndarray
    ms: np.ndarray

    @cached_property
    def totals(self) -> np.ndarray:
        """(jobs, COLUMNS) sums over the operations of each."""
        found = np.zeros((len(self.ms), len(COLUMNS)))
        np.add.at(found, self.of, self.rows)
        return found

    def design(self, groups: Sequence[Sequence[str]]) -> np.ndarray:
        """(jobs, groups and one) sums of each group's counts, and ones."""
        sums = [self.totals[:, [COLUMNS.index(n) for n in group]].sum(axis=1) for group in groups]
        return np.column_stack([*sums, np.ones(len(self.ms))])

    def some(self, chosen: np.ndarray) -> Jobs:
        """Select jobs by a mask, (jobs,) bool."""
        rows = chosen[self.of]
        return Jobs(self.rows[rows], (np.cumsum(chosen) - 1)[self.of[rows]], self.ms[chosen])


@dataclass(frozen=True)
class Device:
    """The jobs that a device is learned from (`whole`: networks); by half the networks and cut blocks."""

    points: Jobs
    names: list[str]
    whole: np.ndarray
    networks: dict[str, Jobs]
    cut: dict[str, Jobs]


Predict = Callable[[Jobs], np.ndarray]
Variant = Callable[[Device], Predict]


def load(path: Path) -> Device:
    """The device whose results are in `path`."""
    document = json.loads(lzma.decompress(path.read_bytes()))
    backend = measure.DEVICES[document["device"]][0].partition("+")[0]
    graphs = {key(entry): graph for entry, graph in measure.jobs(backend)}
    found = latencies(visits(document)).jobs
    taken = [
        (
            entry,
            count(graphs[key(entry)]).at(entry["batch"]).astype(float),
            found[str(n)].latency_ms,
        )
        for n, entry in enumerate(document["jobs"])
        if str(n) in found and key(entry) in graphs
        if entry["what"] != "cut" or not entry["name"].startswith(measure.RECUT)
    ]

    def jobs(half: str | None, *what: str) -> Jobs:
        some = [t for t in taken if t[0]["what"] in what and t[0].get("half") == half]
        of = np.repeat(np.arange(len(some)), [len(rows) for _, rows, _ in some])
        return Jobs(np.vstack([t[1] for t in some]), of, np.array([t[2] for t in some]))

    points = [t[0] for t in taken if "half" not in t[0]]
    names, whole = [p["name"] for p in points], np.array([p["what"] == "level" for p in points])
    networks, cut = ({half: jobs(half, what) for half in HALVES} for what in ("network", "cut"))
    return Device(jobs(None, "block", "level"), names, whole, networks, cut)


# ---- Variants of the formula


def drawn(
    terms: Sequence[str],
    spread: float = KIND_SPREAD,
    one: Sequence[str] = (),
    of: dict[str, str] = OF,
) -> Variant:
    """The formula of some terms; `one`: of these there is one cost; `of`: to what each is drawn."""
    groups = [[t] for t in terms if t not in one] + ([[*one]] if one else [])
    families = [of[group[0]] for group in groups] + ["call"]

    def variant(device: Device) -> Predict:
        x = device.points.design(groups)
        cost = fit_families(x, device.points.ms, families, point_weights(device.whole), spread)
        cost[~x.any(axis=0) & [f[0] in APART for f in [*groups, [""]]]] = 0.0
        return lambda jobs: jobs.design(groups) @ cost

    return variant


def relative(groups: Sequence[Sequence[str]]) -> Variant:
    """Costs >= 0 by robust least squares on the relative error, drawn to nothing."""

    def variant(device: Device) -> Predict:
        cost = fit_relative(device.points.design(groups), device.points.ms)
        return lambda jobs: jobs.design(groups) @ cost

    return variant


def longer(device: Device) -> Predict:
    """Sum over operations the longer of computing and moving, and a start; add a call: as for GPUs.

    Which is longer, and what it costs, are found in turns.
    """
    at = [COLUMNS.index(t) for t in TERMS]
    part = np.array([0 if t in COMPUTING else 2 if t in STARTING else 1 for t in TERMS])
    families, groups = [*(OF[t] for t in TERMS), "call"], [[t] for t in TERMS]
    cost = np.zeros(len(TERMS) + 1)

    def without_shorter(jobs: Jobs) -> Jobs:
        rows = jobs.rows.copy()
        ms = rows[:, at] * cost[:-1]
        computes = ms[:, part == 0].sum(axis=1) > ms[:, part == 1].sum(axis=1)
        rows[:, at] *= (part == 2) | ((part == 0) == computes[:, None]) | ~cost.any()
        return Jobs(rows, jobs.of, jobs.ms)

    for turn in range(TURNS):
        x = without_shorter(device.points).design(groups)
        found = fit_families(x, device.points.ms, families, point_weights(device.whole))
        found[~device.points.design(groups).any(axis=0)] = 0.0
        cost = np.sqrt(cost * found) if turn else found
    return lambda jobs: without_shorter(jobs).design(groups) @ cost


def variants() -> Iterator[tuple[str, Variant]]:
    """Rows of the table."""
    yield f"the formula, {len(TERMS)} terms", drawn(TERMS)
    yield f"all {len(ALL)} terms", drawn(ALL)
    for term in TERMS:
        yield f"without `{term}`", drawn([t for t in TERMS if t != term])
    for term in UNUSED_TERMS:
        yield f"with `{term}` too", drawn([*TERMS, term])
    for family, kinds in MEMBERS.items():
        yield f"one cost for {family}", drawn(TERMS, one=[t for t in TERMS if t in kinds])
    yield "all cost what their family does", drawn(TERMS, 1e-3)
    yield "half as far from families", drawn(TERMS, KIND_SPREAD / 2)
    yield "drawn to hardly anything", drawn(TERMS, 20.0)
    bandwidth = {t: "bandwidth" if f in ("elements", "weights") else f for t, f in OF.items()}
    yield "drawn to a rate and a bandwidth", drawn(TERMS, of=bandwidth)
    yield "relative errors, drawn to nothing", relative([[t] for t in TERMS])
    yield "relative errors, six counts", relative([[t] for t in FEATURES])
    yield "relative errors, four families", relative([*MEMBERS.values()])
    yield "longer of computing and moving", longer


# ---- Judging


def cells(variant: Variant, devices: Sequence[Device]) -> Iterator[str]:
    """Errors, percent, over devices: of each half the mean, middle and worst median one of networks and the
    mean of cut blocks' ones; and the mean of predefined networks, each left out of the learning.
    """
    fitted = [variant(device) for device in devices]
    for half in HALVES:
        networks, cut = (
            [
                100.0 * float(np.median(np.abs(predict(jobs) / jobs.ms - 1.0)))
                for predict, device in zip(fitted, devices, strict=True)
                for jobs in [getattr(device, what)[half]]
            ]
            for what in ("networks", "cut")
        )
        found = (np.mean(networks), np.median(networks), max(networks), np.mean(cut))
        yield from (f"{value:.1f}" for value in found)
    yield f"{np.mean([left_out(variant, device) for device in devices]):.1f}"


def left_out(variant: Variant, device: Device) -> float:
    """The mean error of a device's predefined networks, each without itself at any batch size; percent."""
    found = []
    for name in {device.names[i] for i in np.flatnonzero(device.whole)}:
        kept = np.array([other != name for other in device.names])
        rest = replace(device, points=device.points.some(kept), whole=device.whole[kept])
        jobs = device.points.some(~kept)
        found += np.abs(np.log(variant(rest)(jobs) / jobs.ms)).tolist()
    return 100.0 * float(np.mean(np.minimum(found, CAP)))


def elimination(devices: Sequence[Device]) -> None:
    """Leave out the term without which predictions change least, again and again; no times are used."""

    def logarithms(terms: Sequence[str]) -> list[np.ndarray]:
        made = [(drawn(terms)(device), device) for device in devices]
        return [
            np.log(np.concatenate([p(getattr(d, what)[half]) for p, d in made for half in HALVES]))
            for what in ("networks", "cut")
        ]

    def changed(terms: Sequence[str]) -> float:
        networks, cut = (
            np.abs(new - old).mean() for new, old in zip(logarithms(terms), full, strict=True)
        )
        return float(networks + cut / 4)

    terms, full = list(ALL), logarithms(ALL)
    while len(terms) > 20:
        rest = {t: changed([o for o in terms if o != t]) for t in terms}
        least = min(rest, key=lambda t: rest[t])
        terms.remove(least)
        words = f"without {least}: changed by {rest[least]:.2%};"
        print(len(terms), words, *cells(drawn(terms), devices))


@benchmark("ablation", "accuracy", "extended")
def ablation(eliminate: str = "") -> Tables:
    """The formula with a term less, a term more, other priors and other errors, on family 26."""
    devices = [load(path) for path in sorted(FOLDER.glob("*.json.xz"))]
    if eliminate:
        elimination(devices)
        return {}
    kinds = ("mean", "middle", "worst", "cut blocks")
    columns = [f"{words}: {kind}" for words in HALVES.values() for kind in kinds]
    rows = [[words, *cells(variant, devices)] for words, variant in variants()]
    return {"ablation": (["what", *columns, "left out"], rows)}
