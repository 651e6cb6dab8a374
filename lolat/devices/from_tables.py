"""A device's model from what somebody timed on it: single operations, whole networks, or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from lolat.devices.fit import LEAST_STEPS, fit_kernels, predicted
from lolat.devices.sheets import OFF_OF_NOTHING, Facts, seen_facts
from lolat.devices.tables import MULTIPLYING, Counted, TimedNetwork, TimedOperation, family_of
from lolat.devices.times import Times
from lolat.errors import InputError, arg
from lolat.fitting.domain import Least
from lolat.fitting.intervals import as_dict, network_entry
from lolat.fitting.points import Point, known_features, matrix
from lolat.fitting.predictors.extended import NUMBERS, Extended
from lolat.fitting.predictors.host import ASSUMED, FACTOR, FITTED, USUAL_MS, Host
from lolat.fitting.predictors.kernels import Kernels, TrainingSteps
from lolat.graph.analysis import FLOAT_BYTES
from lolat.graph.modes import FLOAT32, Mode
from lolat.graph.work import CLASSES, PRODUCTS, work_of
from lolat.model.figures import errors
from lolat.model.learning import assembled

FOLDS = 5
DRAWN = 300  # networks of a few products each, for the errors of networks where none were timed
LEAST_ROWS, LEAST_WITH_FACTS, LEAST_NETWORKS = 20, 5, 5
LEAST_JUDGING_NETWORKS = 30  # to say from them alone how far off networks are, and how small
MOST_OF_A_NAME, MOST_OF_A_PRODUCT = 100, 1500  # rows of one operation: it is known long before
MOST_RESIDUALS = 1000  # of a model file
PRODUCTS_TOGETHER = 4  # different products make up most of a transformer's time
SIMPLER = 1.1  # times the error by operation, that the linear formula may have: it has no host
ELSEWHERE = 0.12
"""How far off, as a logarithm (a standard deviation), other hosts and versions of PyTorch are from a table.
The same networks on one RTX 3090 or 4090 by versions 1.13 to 2.9 differ by 0.05 to 0.17 (root mean square);
the first half of the networks of docs/results/index.md with published times are 0.13 off from batch 4
on."""
LEAST_CLASSES = 3  # of operations timed alone, to tell what a start takes
PASSED_OVER = 0.01  # of a table's rows: the smallest, which are few


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

    @property
    def batch_sizes(self) -> np.ndarray:
        """(times,)."""
        of_operations = [o.batch_size for o in self.operations]
        return np.array([*of_operations, *(n.batch_size for n, _ in self.networks)])

    def trained(self) -> np.ndarray:
        """(times,) whether each is of a training step."""
        networks = [n.mode.training for n, _ in self.networks]
        return np.array([False] * len(self.operations) + networks)


def usual_mode(networks: Sequence[TimedNetwork]) -> Mode:
    """How most networks of tables were run; of operations alone, in float32 one after the other."""
    modes = Counter(n.mode.inference for n in networks)
    return modes.most_common(1)[0][0] if networks else Mode()


def tables_document(
    name: str, device: str, timed: Timed, facts: Facts | None, source: Mapping[str, Any]
) -> dict[str, Any]:
    """A model file from what was timed, with one formula.

    That is by operation, or, of networks of a device of which nothing else is known, in float32, the linear
    one on their counts where that does as well on families left out, as on CPUs (SIMPLER). `source`: the
    `environment`. InputError for fewer than LEAST_ROWS operations (LEAST_WITH_FACTS where there is a data
    sheet) and fewer than LEAST_NETWORKS networks.
    """
    least = LEAST_ROWS if facts is None else LEAST_WITH_FACTS
    if len(timed.operations) < least and len(timed.networks) < LEAST_NETWORKS:
        raise InputError(
            f"{len(timed.operations)} operations and {len(timed.networks)} networks are too few to fit a "
            f"device; expected at least {LEAST_ROWS} operations ({LEAST_WITH_FACTS} with {arg('facts')}), "
            f"or {LEAST_NETWORKS} networks",
            code="too-few-points",
        )
    timed = replace(timed, operations=_thinned(timed.operations))
    times, fold, trained = timed.times, timed.folds(), timed.trained()
    known = facts or seen_facts(times)
    if timed.mode.product_bytes < FLOAT_BYTES:  # a data sheet's rate is of float32
        known = replace(known, width=OFF_OF_NOTHING)
    # Inference and training that are both known well have a formula each; else one helps the other.
    is_inference = times.whole & ~trained
    has_two_formulas = min(trained.sum(), is_inference.sum()) >= LEAST_JUDGING_NETWORKS
    main = ~trained if has_two_formulas else np.ones_like(trained)
    formula, off = _judged(times.take(main), fold[main], known, timed.mode)
    of_inference = ~trained if (~trained).any() else np.ones_like(trained)
    inference = times.take(of_inference)
    formula = in_networks(formula, inference, known)
    remarks = _remarks(formula, facts, timed)
    if facts is None and timed.mode.dtype == FLOAT32 and is_inference.all():
        linear = linear_entry(timed, times, fold)
        if linear is not None and np.abs(linear[1]).mean() < SIMPLER * np.abs(off).mean():
            predictors = {Extended.name: linear[0]}
            fitted = {"predictors": predictors, "default": Extended.name, "domain": {}}
            return assembled(name, device, source, remarks, fitted)
    entry = _entry(formula, times.take(main), off, trained[main]) | {"elsewhere": ELSEWHERE}
    predictors, of_steps = {Kernels.name: entry}, off[trained[main]]
    if has_two_formulas:
        steps, of_steps = _judged(times.take(trained), fold[trained], known, timed.mode)
        steps = msgspec.structs.replace(steps, host=formula.host)
        no_inference = np.zeros(int(trained.sum()), bool)
        predictors[TrainingSteps.name] = _entry(steps, times.take(trained), of_steps, no_inference)
    if len(of_steps):
        entry["training_residuals"] = _rounded(of_steps)
    domain = {"least": as_dict(least_of(inference, timed.batch_sizes[of_inference]))}
    fitted = {"predictors": predictors, "default": Kernels.name, "domain": domain}
    return assembled(name, device, source, remarks, fitted)


# ---- How far off a formula is on what it was not fitted to.


def _judged(times: Times, fold: np.ndarray, facts: Facts, mode: Mode) -> tuple[Kernels, np.ndarray]:
    """The formula, and (times,) log(measured / predicted) of each as the other folds have it."""
    formula = fit_kernels(times, facts, mode)
    ms = left_out_of_folds(times, fold, facts, formula)
    return formula, np.log(times.latency_ms / ms)


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
    """A formula's entry in a model file, judged by networks where there are enough, and by inference.

    `off`: (times,) log(measured / predicted) left out; `trained`: (times,) which not to judge by.
    """
    judged, networks = times.whole & ~trained, {}
    if judged.sum() < LEAST_JUDGING_NETWORKS:
        judged = ~trained if (~trained).sum() >= LEAST_JUDGING_NETWORKS else np.ones_like(trained)
        networks = _of_operations(off[~times.whole & (times.total(times.work.macs) > 0)])
    measured = times.latency_ms[judged]
    error = {
        "fitted": errors(predicted(formula, times)[judged], measured),
        "left_out": errors(measured / np.exp(off[judged]), measured),
    }
    return formula.to_dict() | networks | {"error": error, "residuals": _rounded(off[judged])}


def _of_operations(off: np.ndarray) -> dict[str, Any]:
    """The errors of networks where operations alone were timed, whose errors `off` partly cancel:
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


def _thinned(rows: Sequence[TimedOperation]) -> list[TimedOperation]:
    """At most so many rows of each operation, drawn at random, in their order."""
    chosen: dict[str, list[int]] = {}
    for i in np.random.default_rng(0).permutation(len(rows)):
        of_name = chosen.setdefault(rows[i].name, [])
        most = MOST_OF_A_PRODUCT if rows[i].name in MULTIPLYING else MOST_OF_A_NAME
        if len(of_name) < most:
            of_name.append(int(i))
    return [rows[i] for i in sorted(i for of_name in chosen.values() for i in of_name)]


# ---- What a table says of the host that started its operations, and of the smallest steps.


def in_networks(formula: Kernels, times: Times, facts: Facts) -> Kernels:
    """A formula of a GPU that was fitted to `times`, for the operations of a network that a host starts."""
    return msgspec.structs.replace(formula, host=_host(formula, times), tf32=facts.tf32)


def _host(formula: Kernels, times: Times) -> Host:
    """The host of a table's operations, half way to what hosts usually take; or one that is assumed, and no
    slower than that of the table's fastest networks.
    """
    launch = formula.mode.launch
    of_class = np.bincount(times.work.kind[times.alone], minlength=len(CLASSES))
    if (of_class >= LEAST_STEPS).sum() >= LEAST_CLASSES:
        return Host(round((formula.launch_ms * USUAL_MS) ** 0.5, 4), FACTOR[FITTED], FITTED, launch)
    most = USUAL_MS
    if times.whole.sum() >= LEAST_JUDGING_NETWORKS:
        starts = times.total(Host(1.0, 1.0, ASSUMED).starts(times.work, launch))
        most = float((times.latency_ms / starts)[times.whole].min())
    start_ms = max(min(USUAL_MS, most), USUAL_MS / FACTOR[ASSUMED])
    return Host(round(start_ms, 4), FACTOR[ASSUMED], ASSUMED, launch)


def least_of(times: Times, batch_sizes: np.ndarray) -> Least:
    """The least that a table has but for PASSED_OVER of its rows; of operations alone, ms an operation.

    `batch_sizes`: (times,).
    """
    whole = times.whole
    operation_ms = times.latency_ms / times.total((times.work.bytes > 0.0).astype(float))
    if whole.sum() < LEAST_JUDGING_NETWORKS:
        return Least(operation_ms=_smallest(operation_ms[~whole if not whole.all() else whole]))
    return Least(
        *map(_smallest, (batch_sizes[whole], times.latency_ms[whole], operation_ms[whole]))
    )


def _smallest(values: np.ndarray) -> float:
    return float(f"{np.quantile(values[np.isfinite(values)], PASSED_OVER):.3g}")


# ---- A data sheet alone, and remarks.

SHEET_ALONE = (
    -0.1, -0.16, -0.12, -0.11, -0.15, 0.01, -0.02, -0.06, -0.05, -0.07, 0.04, 0.1, 0.09, 0.1, 0.08, 0.09,
    0.1, 0.07, 0.04, 0.03, 0.01, 0.03, 0.25, 0.2, 0.1, 0.14, 0.34, 0.33, -0.1, -0.21, 0.02, -0.01, 0.36,
    0.16, 0.0,
)  # fmt: skip
"""log(measured / predicted) of whole transformers where nothing but the data sheet was known: V100, A100,
H100, P100, MI100, MI210, T4, P4 (docs/results/index.md)."""


def facts_document(
    name: str, device: str, facts: Facts, source: Mapping[str, Any]
) -> dict[str, Any]:
    """A model file from a data sheet alone; its interval is as wide as SHEET_ALONE on known devices."""
    nothing = Times.of([], np.zeros(0), np.zeros(0, bool))
    formula = in_networks(fit_kernels(nothing, facts), nothing, facts)
    remark = (
        "nothing was measured on this device, all is from its data sheet; operations timed there "
        "make it better (`lolat fit OPERATIONS.csv --facts FILE --name NAME`)"
    )
    entry = formula.to_dict() | {"residuals": list(SHEET_ALONE)}
    fitted = {"predictors": {Kernels.name: entry}, "default": Kernels.name, "domain": {}}
    return assembled(name, device, source, [remark], fitted)


def _remarks(formula: Kernels, facts: Facts | None, timed: Timed) -> list[str]:
    """What a device's tables do not tell."""
    remarks = []
    if facts is None and timed.operations:
        remarks.append(
            "no facts of the device were given (`facts`, `name`): how many multiprocessors it has, "
            "and so what small operations cost, is not known"
        )
    lacking = [words for name, words in PRODUCTS.items() if name not in formula.measured]
    if lacking and not timed.networks:
        remarks.append(
            f"no operations of the kind {', '.join(lacking)} were given; they are "
            "taken to be as on other GPUs"
        )
    families = {family_of(n.name) for n, _ in timed.networks}
    if len(families) == 1:
        remarks.append(
            f"all networks are of one family ({min(families)}): how far off others are is not known"
        )
    return remarks
