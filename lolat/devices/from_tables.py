"""A device's model from what somebody timed on it: single operations, whole networks, or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from lolat.devices.fit import (
    OF_PEAK,
    OFF_OF_FASTEST,
    OFF_OF_NOTHING,
    Facts,
    Times,
    fit_kernels,
    predicted,
)
from lolat.devices.host import ELSEWHERE, in_networks, least_of
from lolat.devices.tables import (
    MULTIPLYING,
    Counted,
    TimedNetwork,
    TimedOperation,
    contradictions,
    family_of,
)
from lolat.errors import InputError, arg
from lolat.fitting.intervals import as_dict, network_entry
from lolat.fitting.points import Point, known_features, matrix
from lolat.fitting.predictors.extended import NUMBERS, Extended
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph.analysis import FLOAT_BYTES
from lolat.graph.modes import FLOAT32, Mode
from lolat.graph.work import PRODUCTS, work_of
from lolat.io.tables import read_table
from lolat.model.learning import assembled, errors

FOLDS = 5
DRAWN = 300  # networks of a few products each, for the errors of networks where none were timed
LEAST_ROWS, LEAST_WITH_FACTS, LEAST_NETWORKS = 20, 5, 5
LEAST_JUDGING_NETWORKS = 30  # to say from them alone how far off networks are
MOST_OF_A_NAME, MOST_OF_A_PRODUCT = 100, 1500  # rows of one operation: it is known long before
MOST_RESIDUALS = 1000  # of a model file
PRODUCTS_TOGETHER = 4  # different products make up most of a transformer's time
NEEDED_FACTS = {
    "multiprocessors": (1.0, 1e6, "a number"),
    "fp32_matrix_gflops": (1.0, 1e8, "GFLOP/s"),
    "bandwidth_gb_s": (0.5, 1e6, "GB/s"),
}
POWER_FACTS = {
    "power_w": (0.5, 1e5, "W"),
    "l2_mb": (0.01, 1e5, "MiB"),
    "fp32_vector_gflops": (1.0, 1e8, "GFLOP/s"),
}
"""Columns of a data sheet: least, most and unit of a device; a figure outside is in another."""
TF32_FACTS = {"tf32_gflops": (1.0, 1e8, "GFLOP/s")}
"""The same of GPUs that have TF32 (NVIDIA's from Ampere on), without sparsity."""
OF_TF32 = 0.5
"""What convolutions reach of a data sheet's rate in TF32, where large products of float32 reach OF_PEAK."""
GFLOPS_PER_WATT, CACHE_EXPONENT, POWER_EXPONENT = 44.0, 0.35, 0.65
FASTEST, FASTEST_HALF = 1.5e11, 3e12  # macs per ms that no device reaches, in float32 and in half
SIMPLER = 1.1  # times the error by operation, that the linear formula may have: it has no host
REACHED = 0.9  # of a data sheet's rates, by the fastest operation of a table
REACHED_WHOLE = 0.5  # the same by the fastest network


def read_facts(path: str | Path, device: str) -> Facts:
    """The facts of `device` from a table with the columns device and NEEDED_FACTS, and where known
    POWER_FACTS; InputError.
    """
    table = read_table(path, expected="expected a CSV table of devices")
    rows = {row.get("device", ""): row for row in table}
    if device not in rows:
        raise InputError(
            f"{path} has no device {device[:40]!r}; it has "
            f"{', '.join(sorted(rows))[:200] or 'no column device'}"
        )
    row = rows[device]
    more = {name: ends for name, ends in (POWER_FACTS | TF32_FACTS).items() if row.get(name)}
    said = {
        name: row.number(name, least, most, f"{least:g} to {most:,.0f} {unit} for {device}")
        for name, (least, most, unit) in (NEEDED_FACTS | more).items()
    }
    multiprocessors, gflops, gigabytes = (said[name] for name in NEEDED_FACTS)
    power = [said[name] for name in POWER_FACTS if name in said]
    kept = kept_up(gflops, *power) if len(power) == len(POWER_FACTS) else 1.0
    tf32 = max(OF_TF32 * said.get("tf32_gflops", 0.0) / (OF_PEAK * kept * gflops), 1.0)
    rate, bandwidth = kept * gflops * 1e6 / 2, gigabytes * 1e6
    return Facts(multiprocessors, rate, bandwidth, bound=kept < OF_PEAK, tf32=tf32)


def kept_up(gflops: float, watts: float, cache_mib: float, vector_gflops: float) -> float:
    """The part of its rate that a device keeps up on its power.

    What a watt computes grows with the generation, of which the size of the L2 cache is the only trace in
    a data sheet's usual columns: GFLOPS_PER_WATT at 3 MiB (of devices that power does not bind: some 38
    GFLOPS a watt of a P100 with 4 MiB, 56 of a V100 with 6, 78 of an A100 with 40, 96 of an H100 with 50);
    units for matrices compute as much more as their rate is higher. Where the rate would need more, clock
    and voltage go down, and the rate less than the power.
    """
    efficient = (
        GFLOPS_PER_WATT * (cache_mib / 3.0) ** CACHE_EXPONENT * max(1.0, gflops / vector_gflops)
    )
    return float(min(1.0, (efficient * watts / gflops) ** POWER_EXPONENT))


def seen_facts(times: Times) -> Facts:
    """What the fastest of a table reached, where no data sheet is at hand; waves are not told then."""
    reached = np.where(times.whole, REACHED_WHOLE, REACHED) * times.latency_ms
    macs = float((times.total(times.work.macs) / reached).max())
    moved = float((times.total(times.work.bytes) / reached).max())
    return Facts(1.0, macs or moved, moved, OFF_OF_NOTHING if times.whole.any() else OFF_OF_FASTEST)


@dataclass(frozen=True)
class Timed:
    """What was timed on a device: operations; networks, each with its counts; how it runs networks."""

    operations: Sequence[TimedOperation]
    networks: Sequence[tuple[TimedNetwork, Counted]]
    mode: Mode

    @property
    def times(self) -> Times:
        """All of it, operations first."""
        parts = [work_of(o.graph, o.batch_size) for o in self.operations]
        parts += [counts.work(n.batch_size) for n, counts in self.networks]
        ms = [o.latency_ms for o in self.operations] + [n.latency_ms for n, _ in self.networks]
        return Times.of(parts, np.array(ms), np.arange(len(ms)) >= len(self.operations))

    def folds(self) -> np.ndarray:
        """(times,) which fifth each is of: operations at random, networks by family."""
        draw = np.random.default_rng(0)
        families = [family_of(n.name) for n, _ in self.networks]
        distinct = sorted(set(families))
        number = dict(zip(distinct, draw.permutation(len(distinct)), strict=True))
        of_networks = [int(number[f]) % FOLDS for f in families]
        return np.concatenate([draw.permutation(len(self.operations)) % FOLDS, of_networks])

    def points(self) -> list[Point]:
        """The networks as points: counts and times."""
        return [
            Point(n.name, n.batch_size, known.total(n.batch_size), n.latency_ms, whole=True)
            for n, known in self.networks
        ]

    def trained(self) -> np.ndarray:
        """(times,) whether each is of a training step."""
        return np.array(
            [False] * len(self.operations) + [n.mode.training for n, _ in self.networks]
        )


def usual_mode(networks: Sequence[TimedNetwork]) -> Mode:
    """How most networks of tables were run; of operations alone, in float32 one after the other."""
    modes = Counter(n.mode.inference for n in networks)
    return modes.most_common(1)[0][0] if networks else Mode()


def refuse_contradictions(networks: Sequence[TimedNetwork]) -> None:
    """InputError for the first two rows of the same that are far apart."""
    for first, other in contradictions(list(networks)):
        raise InputError(
            f"{other.where}: {other.name} at batch {other.batch_size} takes {other.latency_ms:g} ms, and "
            f"{first.latency_ms:g} in {first.where}; expected one time for one device, or "
            f"{arg('skip')}"
        )


def tables_document(
    name: str, device: str, timed: Timed, facts: Facts | None, source: Mapping[str, Any]
) -> dict[str, Any]:
    """A model file from what was timed, with one formula: by operation, or, of networks of a device of
    which nothing else is known, in float32, the linear one on their counts where that does as well on
    families left out, as on CPUs (SIMPLER). `source`: what `environment` says of it.

    InputError for fewer than LEAST_ROWS operations (LEAST_WITH_FACTS where there is a data sheet) and fewer
    than LEAST_NETWORKS networks.
    """
    least = LEAST_ROWS if facts is None else LEAST_WITH_FACTS
    if len(timed.operations) < least and len(timed.networks) < LEAST_NETWORKS:
        raise InputError(
            f"{len(timed.operations)} operations and {len(timed.networks)} networks are too few to fit a "
            f"device; expected at least {LEAST_ROWS} operations ({LEAST_WITH_FACTS} with {arg('facts')}), "
            f"or {LEAST_NETWORKS} networks",
            code="too-few-points",
        )
    timed = replace(timed, operations=_some(timed.operations))
    times, fold = timed.times, timed.folds()
    _refuse_units(times, timed.mode)
    facts, told = facts or seen_facts(times), facts
    if timed.mode.product_bytes < FLOAT_BYTES:  # a data sheet's rate is of float32
        facts = replace(facts, width=OFF_OF_NOTHING)
    trained = timed.trained()
    # Two passes that are both known well have terms of their own; else one helps the other.
    apart = min(trained.sum(), (times.whole & ~trained).sum()) >= LEAST_JUDGING_NETWORKS
    rest = ~trained if apart else np.ones_like(trained)
    formula, off = _judged(times.take(rest), fold[rest], facts, timed.mode)
    of_steps = off[trained[rest]]
    inference = times.take(~trained) if (~trained).any() else times
    formula = in_networks(formula, inference, facts)
    sizes = np.array(
        [o.batch_size for o in timed.operations] + [n.batch_size for n, _ in timed.networks]
    )
    smallest = least_of(inference, sizes[~trained] if (~trained).any() else sizes)
    linear = None
    if told is None and timed.mode.dtype == FLOAT32 and times.whole.all() and not trained.any():
        linear = linear_entry(timed, times, fold)
    predictors = {Kernels.name: _entry(formula, times.take(rest), off, trained[rest])}
    if linear is not None and np.abs(linear[1]).mean() < SIMPLER * np.abs(off).mean():
        fitted = {"predictors": {Extended.name: linear[0]}, "default": Extended.name, "domain": {}}
        return assembled(name, device, source, _doubts(formula, told, timed), fitted)
    predictors[Kernels.name]["elsewhere"] = ELSEWHERE
    if apart:
        steps, of_steps = _judged(times.take(trained), fold[trained], facts, timed.mode)
        steps = msgspec.structs.replace(steps, host=formula.host)
        entry = _entry(steps, times.take(trained), of_steps, ~trained[trained])
        predictors[TrainingSteps.name] = entry
    if len(of_steps):
        predictors[Kernels.name]["training_residuals"] = _rounded(of_steps)
    domain = {"least": as_dict(smallest)}
    by_operation = {"predictors": predictors, "default": Kernels.name, "domain": domain}
    return assembled(name, device, source, _doubts(formula, told, timed), by_operation)


def _refuse_units(times: Times, mode: Mode) -> None:
    """InputError where the times are so short that they must be of another unit."""
    macs = times.total(times.work.macs)
    reached = float(np.median((macs / times.latency_ms)[macs > 0])) if (macs > 0).any() else 0.0
    most = FASTEST if mode.product_bytes == FLOAT_BYTES else FASTEST_HALF
    if reached > most:
        raise InputError(
            f"the times say {reached / 1e9:.0f} TMACs a second, more than any device in {mode.dtype}: are "
            "these seconds? expected milliseconds"
        )


def _judged(times: Times, fold: np.ndarray, facts: Facts, mode: Mode) -> tuple[Kernels, np.ndarray]:
    """The formula, and (times,) log(measured / predicted) of each as the other folds have it."""
    formula = fit_kernels(times, facts, mode)
    ms = left_out_of_folds(times, fold, facts, formula)
    return formula, np.log(times.latency_ms / ms)


def linear_entry(
    timed: Timed, times: Times, fold: np.ndarray
) -> tuple[dict[str, Any], np.ndarray] | None:
    """The entry of the linear formula on counts, and (times,) log(measured / predicted) of each as the
    other folds have it; None of too few networks.
    """
    points, measured = timed.points(), times.latency_ms
    known = known_features(points)
    features, whole = matrix(points, known), times.whole
    if min(int((fold != i).sum()) for i in range(FOLDS)) <= NUMBERS:
        return None
    formula, off = Extended.fit_with_six(features, measured, known, whole), np.empty(len(points))
    for i in range(FOLDS):
        kept = fold != i
        other = Extended.fit(features[kept], measured[kept], known, whole[kept])
        ms = np.maximum(other.rows(matrix(points, other.features)[~kept]), 1e-9)
        off[~kept] = np.log(measured[~kept] / ms)
    error = {
        "fitted": errors(formula.rows(matrix(points, formula.features)), measured),
        "left_out": errors(measured / np.exp(off), measured),
    }
    return formula.to_dict() | {"error": error, "residuals": _rounded(off)}, off


def _entry(formula: Kernels, times: Times, off: np.ndarray, trained: np.ndarray) -> dict[str, Any]:
    """A formula's entry in a model file, judged by networks where there are enough, and by inference."""
    judged = times.whole & ~trained
    networks = {}
    if judged.sum() < LEAST_JUDGING_NETWORKS:
        judged = ~trained if (~trained).sum() >= LEAST_JUDGING_NETWORKS else np.ones_like(trained)
        networks = _of_operations(off[~times.whole & (times.total(times.work.macs) > 0)])
    measured = times.latency_ms[judged]
    return (
        formula.to_dict()
        | networks
        | {
            "error": {
                "fitted": errors(predicted(formula, times)[judged], measured),
                "left_out": errors(measured / np.exp(off[judged]), measured),
            },
            "residuals": _rounded(off[judged]),
        }
    )


def _of_operations(off: np.ndarray) -> dict[str, Any]:
    """What is to be said of networks where operations alone were timed, whose errors `off` partly cancel:
    PRODUCTS_TOGETHER products drawn at random, each of which takes as long as the others.
    """
    if len(off) < LEAST_JUDGING_NETWORKS:
        return {}
    drawn = np.random.default_rng(0).choice(off, (DRAWN, PRODUCTS_TOGETHER))
    residuals = np.log(np.exp(drawn).mean(axis=1))
    return {"networks": network_entry(residuals, np.full(DRAWN, PRODUCTS_TOGETHER))}


def _rounded(residuals: np.ndarray) -> list[float]:
    """At most MOST_RESIDUALS of them, drawn at random."""
    if len(residuals) > MOST_RESIDUALS:
        residuals = np.random.default_rng(0).choice(residuals, MOST_RESIDUALS, replace=False)
    return [round(float(r), 5) for r in residuals]


def left_out_of_folds(times: Times, fold: np.ndarray, facts: Facts, formula: Kernels) -> np.ndarray:
    """(times,) ms as predicted from the other folds."""
    ms = np.empty(len(times.whole))
    for i in range(FOLDS):
        kept = fold != i
        if kept.all():
            continue
        if not kept.any():  # one family alone
            return predicted(formula, times)
        other = fit_kernels(times.take(kept), facts, formula.mode, near=formula)
        ms[~kept] = predicted(other, times.take(~kept))
    return ms


def _some(rows: Sequence[TimedOperation]) -> list[TimedOperation]:
    """At most so many rows of each operation, drawn at random, in their order."""
    of: dict[str, list[int]] = {}
    for i in np.random.default_rng(0).permutation(len(rows)):
        kept = of.setdefault(rows[i].name, [])
        if len(kept) < (MOST_OF_A_PRODUCT if rows[i].name in MULTIPLYING else MOST_OF_A_NAME):
            kept.append(int(i))
    return [rows[i] for i in sorted(i for kept in of.values() for i in kept)]


SHEET_ALONE = (
    -0.1, -0.16, -0.12, -0.11, -0.15, 0.01, -0.02, -0.06, -0.05, -0.07, 0.04, 0.1, 0.09, 0.1, 0.08, 0.09,
    0.1, 0.07, 0.04, 0.03, 0.01, 0.03, 0.25, 0.2, 0.1, 0.14, 0.34, 0.33, -0.1, -0.21, 0.02, -0.01, 0.36,
    0.16, 0.0,
)  # fmt: skip
"""log(measured / predicted) of whole transformers where nothing but the data sheet was known: V100, A100,
H100, P100, MI100, MI210, T4, P4 (docs/results/gpus.md)."""


def facts_document(
    name: str, device: str, facts: Facts, source: Mapping[str, Any]
) -> dict[str, Any]:
    """A model file from a data sheet alone, its interval as wide as such were off on known devices."""
    nothing = Times.of([], np.zeros(0), np.zeros(0, bool))
    formula = in_networks(fit_kernels(nothing, facts), nothing, facts)
    doubt = (
        "nothing was measured on this device, all is from its data sheet; operations timed there "
        "make it better (`lolat fit OPERATIONS.csv --facts FILE --name NAME`)"
    )
    entry = formula.to_dict() | {"residuals": list(SHEET_ALONE)}
    fitted = {"predictors": {Kernels.name: entry}, "default": Kernels.name, "domain": {}}
    return assembled(name, device, source, [doubt], fitted)


def _doubts(formula: Kernels, facts: Facts | None, timed: Timed) -> list[str]:
    doubts = []
    if facts is None and timed.operations:
        doubts.append(
            "no facts of the device were given (`facts`, `name`): how many multiprocessors it has, "
            "and so what small operations cost, is not known"
        )
    lacking = [called for c, called in PRODUCTS.items() if c not in formula.measured]
    if lacking and not timed.networks:
        doubts.append(
            f"no operations of the kind {', '.join(lacking)} were given; they are "
            "taken to be as on other GPUs"
        )
    families = {family_of(n.name) for n, _ in timed.networks}
    if len(families) == 1:
        doubts.append(
            f"all networks are of one family ({min(families)}): how far off others are is not known"
        )
    return doubts
