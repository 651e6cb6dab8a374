"""Fitting a device to tables of times: single operations, whole networks, or both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import msgspec
import numpy as np

from lolat.device.domain import MACS, Domain, MeasuredMinimum, shares_of
from lolat.device.intervals import as_dict
from lolat.device.predictors.additive import FREE_PARAMETERS, AdditiveCosts
from lolat.device.predictors.host import ASSUMED, FACTOR, TIMING, Host, usual_ms
from lolat.device.predictors.roofline import NOTHING_MEASURED, Roofline, TrainingSteps
from lolat.errors import InputError, arg
from lolat.fitting.blocks import assembled
from lolat.fitting.cross_validation import (
    cross_validate,
    draw_folds,
    error_entry,
    log_errors,
    network_entry,
)
from lolat.fitting.linear import fit_additive_costs
from lolat.fitting.outliers import fastest_in_tf32, odd_time
from lolat.fitting.roofline import LEAST_OF_CLASS, fit_roofline, predicted
from lolat.fitting.times import Times, check_sheet, seen_specs
from lolat.graph.counts import COLUMNS
from lolat.graph.modes import FLOAT32, Mode
from lolat.graph.work import CLASSES, work_of
from lolat.hardware.card_names import find_gpu
from lolat.hardware.gpus import Gpu
from lolat.hardware.specs import LOG_ERROR_OF_UNKNOWN, Specs
from lolat.io.progress import Warn
from lolat.tables.blocks import family_of
from lolat.tables.counted import Counted, numbered
from lolat.tables.networks import TimedNetwork
from lolat.tables.operations import PRODUCT_NAMES, TimedOperation
from lolat.units import rows_of

FOLDS = 5
MADE_UP = 1000  # number of made-up networks, which give errors of networks if few were timed
LEAST_ROWS, LEAST_WITH_SPECS, LEAST_NETWORKS = 20, 5, 5
LEAST_JUDGING_NETWORKS = 30  # from this number on, errors and sizes come from networks alone
MOST_OF_A_NAME, MOST_OF_A_PRODUCT = 100, 1500  # rows of one operation; more change little
MOST_RESIDUALS = 1000  # most residuals in a profile
PRODUCTS_TOGETHER = 4  # operations of the smallest made-up network
SIMPLER = 1.1  # the linear formula is preferred up to this ratio of its error to the roofline's
OTHER_HOST_SPREAD = 0.12
"""Standard deviation of log times over other hosts and versions of PyTorch. The same networks on one RTX
3090 or 4090 with versions 1.13 to 2.9 differ by 0.05 to 0.17 (root mean square). On networks of the
development split of docs/results/index.md with published times, the log error is 0.13 from batch 4 on."""
MOST_ODD, MOST_LEFT_OUT = 0.05, 2  # most rows to leave out: as a share of all, and as a number
SMALLEST_SHARE = 0.01  # share of a table's rows that are smaller than its minimum


@dataclass(frozen=True)
class TimedRows:
    """Times of one device in one execution mode: operations, and networks with their counts.

    `is_cpu`: True for a CPU, on which no host launches operations.
    """

    operations: Sequence[TimedOperation]
    networks: Sequence[tuple[TimedNetwork, Counted]]
    mode: Mode
    is_cpu: bool = False

    @property
    def times(self) -> Times:
        """All times, operations first."""
        parts = [work_of(o.graph, o.batch_size, self.mode) for o in self.operations]
        parts += [counts.work(n.batch_size) for n, counts in self.networks]
        ms = [o.latency_ms for o in self.operations] + [n.latency_ms for n, _ in self.networks]
        return Times.of(parts, np.array(ms), np.arange(len(ms)) >= len(self.operations))

    @property
    def optimizer(self) -> str:
        """The optimizer of all training steps; "" if they differ or no row names one."""
        found = {network.optimizer for network, _ in self.networks if network.mode.training}
        return found.pop() if len(found) == 1 else ""

    @property
    def distinct(self) -> int:
        """The number of different networks."""
        return len({*numbered(self.networks)})

    def suffices(self, which: np.ndarray) -> bool:
        """True if the selected networks are enough to fit a formula; `which`: (times,) mask."""
        chosen = [*compress(self.networks, which[len(self.operations) :])]
        return len(chosen) >= LEAST_JUDGING_NETWORKS and len({*numbered(chosen)}) >= LEAST_NETWORKS

    def without(self, position: int) -> TimedRows:
        """The rows without the row at `position` in `times`."""
        operations, networks = [*self.operations], [*self.networks]
        if position < len(operations):
            del operations[position]
        else:
            del networks[position - len(operations)]
        return replace(self, operations=operations, networks=networks)

    def folds(self, which: np.ndarray | None = None) -> np.ndarray:
        """The cross-validation fold of each selected time, (selected,) numbers below FOLDS.

        `which`: (times,) mask of the selected times; None for all. An operation's fold is drawn at random;
        all networks of a family share a fold. Without operations, a single family is split by network.
        """
        if which is None:
            which = np.ones(len(self.operations) + len(self.networks), bool)
        draw, number = np.random.default_rng(0), int(which[: len(self.operations)].sum())
        networks = [*compress(self.networks, which[len(self.operations) :])]
        groups: list[Any] = [family_of(n.name) for n, _ in networks]
        if not number and len({*groups}) == 1:
            groups = numbered(networks)
        of_networks = draw_folds(groups, FOLDS, draw)
        return np.concatenate([draw.permutation(number) % FOLDS, of_networks])


def usual_mode(networks: Sequence[TimedNetwork], operations: Sequence[TimedOperation] = ()) -> Mode:
    """The execution mode of most networks in tables, or without networks of most operations."""
    modes = Counter(n.mode.inference for n in networks) or Counter(o.mode for o in operations)
    return modes.most_common(1)[0][0] if modes else Mode()


def tables_document(
    name: str, device: str, timed: TimedRows, specs: Specs | None, source: Mapping[str, Any], warn: Warn,
    left_out: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """A profile fitted to times, with one formula for inference; InputError for too few times.

    The formula is a roofline. A float32 device without a data sheet gets the linear formula if its error on
    held-out families is at most SIMPLER times the roofline's, as is usual for CPUs. `source`: the file's
    `environment`. `warn`: called with a sentence about a time that the other times contradict. `left_out`:
    number of such times that earlier calls left out.
    """
    _check_enough(timed, specs)
    timed = replace(timed, operations=_thinned(timed.operations))
    times = timed.times
    if specs is not None and timed.mode.half:
        specs = specs.of_dtype(timed.mode.dtype)
    known = specs or seen_specs(times, None if timed.is_cpu else find_gpu(device))
    if specs is not None:
        check_sheet(specs, times)
    if timed.mode.half and specs is None:
        known = replace(known, width=LOG_ERROR_OF_UNKNOWN)
    # Inference and training get a formula each if enough of both were timed; else they share a formula.
    trained, is_inference = times.trained, times.whole & ~times.trained
    has_two_formulas = timed.suffices(trained) and timed.suffices(is_inference)
    main = ~trained if has_two_formulas else np.ones_like(trained)
    is_open, fold = specs is None and bool(timed.operations), timed.folds(main)
    # A data sheet says whether the device computes in tiles, as GPUs do; without one, both are tried.
    tried = [known, replace(known, tile=1.0)] if is_open else [known]
    fits = [(*_fitted_with_errors(times.take(main), fold, s, timed.mode), s) for s in tried]
    formula, off, known = min(fits, key=lambda one: np.abs(one[1]).mean())
    rows: list[TimedOperation | TimedNetwork] = [*timed.operations]
    rows += [network for network, _ in timed.networks]
    few = left_out < min(MOST_ODD * len(rows), MOST_LEFT_OUT)
    of_main = [(r.row, r.name, r.latency_ms) for r in compress(rows, main)]
    if (odd := odd_time(of_main, off, warn, few)) is not None:
        rest = timed.without(int(np.flatnonzero(main)[odd]))
        return tables_document(name, device, rest, specs, source, warn, left_out + 1)
    of_inference = ~trained if (~trained).any() else np.ones_like(trained)
    inference = times.take(of_inference)
    if not timed.is_cpu:
        formula = started_by_a_host(formula, inference, usual_ms(known.gpu or find_gpu(device)))
    remarks = [WITHOUT_SPECS] if is_open else []
    batch_sizes = np.array([row.batch_size for row in rows])
    if specs is None and timed.mode.dtype == FLOAT32 and is_inference.all():
        linear = linear_entry(timed, times, fold)
        if linear is not None and np.abs(linear[1]).mean() < SIMPLER * np.abs(off).mean():
            predictors = {AdditiveCosts.name: linear[0]}
            domain = _domain(timed, measured_minimum(times, batch_sizes))
            fitted = {"default": AdditiveCosts.name, "predictors": predictors, "domain": domain}
            return assembled(name, device, source, remarks, fitted)
    entry = _entry(formula, times.take(main), off, trained[main]) | {"elsewhere": OTHER_HOST_SPREAD}
    predictors, of_steps = {Roofline.name: entry}, off[trained[main]]
    if has_two_formulas:
        predictors[TrainingSteps.name], of_steps = _training_entry(timed, times, known, formula)
    if len(of_steps):
        entry |= {"training_residuals": _rounded(of_steps), "training_optimizer": timed.optimizer}
    domain = _domain(timed, measured_minimum(inference, batch_sizes[of_inference]))
    fitted = {"predictors": predictors, "default": Roofline.name, "domain": domain}
    fitted |= _held_to_sheet(rows, times, timed.mode, known.gpu, entry["error"])
    return assembled(name, device, source, remarks, fitted)


def _held_to_sheet(
    rows: Sequence[TimedOperation | TimedNetwork], times: Times, mode: Mode, gpu: Gpu | None,
    error: Mapping[str, Any],
) -> dict[str, str]:  # fmt: skip
    """The remark on float32 rows that beat the data sheet's float32 peak, as the field `estimated`.

    The formula stays below that peak. The dict is empty without such rows.
    """
    fastest = fastest_in_tf32(times, gpu) if mode.dtype == FLOAT32 else None
    if fastest is None or gpu is None:
        return {}
    row, factor = rows[fastest[0]], fastest[1] / (gpu.fp32_tflops or 0.0)
    remark = (
        f"{row.row.where}: {row.name} computes {fastest[1]:.3g} TFLOPS, {factor:.3g} times the peak of "
        f"{gpu.name} in float32 ({gpu.fp32_tflops:g}): TF32 was probably allowed; if so, add a column "
        "precision with tf32 and fit again; products are now held to the sheet, and rows left out are "
        f"{100 * error['left_out']['median']:.0f} % off at the median"
    )
    return {"estimated": remark}


def _training_entry(
    timed: TimedRows, times: Times, specs: Specs, inference: Roofline
) -> tuple[dict[str, Any], np.ndarray]:
    """(entry of a formula for training steps alone, (steps,) its log(measured / predicted) held out)."""
    trained = times.trained
    own, fold = times.take(trained), timed.folds(trained)
    steps, off = _fitted_with_errors(own, fold, specs, timed.mode, TrainingSteps)
    steps = msgspec.structs.replace(steps, host=inference.host)
    return _entry(steps, own, off, np.zeros(len(off), bool)), off


def _check_enough(timed: TimedRows, specs: Specs | None) -> None:
    """Raise InputError if there are too few operations and too few networks.

    LEAST_ROWS operations (LEAST_WITH_SPECS with a data sheet), or LEAST_NETWORKS different networks, are
    enough.
    """
    least = LEAST_ROWS if specs is None else LEAST_WITH_SPECS
    if len(timed.operations) < least and timed.distinct < LEAST_NETWORKS:
        networks = rows_of(len(timed.networks), timed.distinct)
        raise InputError(
            f"{len(timed.operations)} operations and {networks} are too few to fit a device; expected at "
            f"least {LEAST_ROWS} operations ({LEAST_WITH_SPECS} with {arg('facts')}), or {LEAST_NETWORKS} "
            "different networks",
            code="too-few-points",
        )


# ---- Errors of a formula on held-out times


def _fitted_with_errors(
    times: Times, fold: np.ndarray, specs: Specs, mode: Mode, of: type[Roofline] = Roofline
) -> tuple[Roofline, np.ndarray]:
    """(fitted formula, (times,) log(measured / predicted) of held-out times)."""
    formula = fit_roofline(times, specs, mode, of)
    ms = held_out_of_folds(times, fold, specs, mode, of)
    return formula, np.log(times.latency_ms / ms)


def held_out_of_folds(
    times: Times, fold: np.ndarray, specs: Specs, mode: Mode, of: type[Roofline] = Roofline
) -> np.ndarray:
    """(times,) ms predicted by fits without the time's fold; `fold`: (times,) numbers, not all equal."""

    def predict(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        return predicted(fit_roofline(times.take(kept), specs, mode, of), times.take(out))

    return cross_validate(fold, predict)


def linear_entry(
    timed: TimedRows, times: Times, fold: np.ndarray
) -> tuple[dict[str, Any], np.ndarray] | None:
    """(entry of the linear formula on counts, its held-out residuals); None for too few networks.

    The residuals are (times,) log(measured / predicted), predicted by fits without the time's fold.
    """
    if min(int((fold != i).sum()) for i in np.unique(fold)) <= FREE_PARAMETERS:
        return None
    totals = [[*counts.total(n.batch_size).values()] for n, counts in timed.networks]
    counts, measured, whole = np.array(totals, float), times.latency_ms, times.whole

    def predict(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        other = fit_additive_costs(counts[kept], measured[kept], COLUMNS, whole[kept])
        return other.rows(counts[out][:, other.columns])

    formula = fit_additive_costs(counts, measured, COLUMNS, whole, with_six=True)
    off = log_errors(measured, cross_validate(fold, predict))
    fitted_ms = formula.rows(counts[:, formula.columns])
    return formula.to_dict() | _errors(fitted_ms, off, measured), off


def _entry(formula: Roofline, times: Times, off: np.ndarray, trained: np.ndarray) -> dict[str, Any]:
    """A formula's entry in a profile; its errors are on networks alone if enough networks were timed.

    `off`: (times,) log(measured / predicted) of held-out times; `trained`: (times,) mask of training steps,
    on which errors are not taken.
    """
    judged, networks = times.whole & ~trained, {}
    if judged.sum() < LEAST_JUDGING_NETWORKS:
        judged = ~trained if (~trained).sum() >= LEAST_JUDGING_NETWORKS else np.ones_like(trained)
        products = times.alone & (times.work.macs > 0)
        networks = _of_operations(off[times.owner[products]], times.work.kind[products])
    fitted_ms = predicted(formula, times)[judged]
    return formula.to_dict() | networks | _errors(fitted_ms, off[judged], times.latency_ms[judged])


def _errors(fitted_ms: np.ndarray, off: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """The `error` and `residuals` of an entry; `fitted_ms`, `measured`: (times,) ms.

    `off`: (times,) log(measured / predicted) of held-out times.
    """
    error = error_entry(measured, fitted_ms, measured / np.exp(off))
    return {"error": error, "residuals": _rounded(off)}


def _of_operations(off: np.ndarray, kind: np.ndarray) -> dict[str, Any]:
    """The NetworkErrors of made-up networks: one random product of each class, all taking equally long.

    Errors of products of one class add up in a network, errors of different classes partly cancel. `off`:
    (products,) log(measured / predicted); `kind`: (products,) indices into CLASSES.
    """
    if len(off) < LEAST_JUDGING_NETWORKS:
        return {}
    draw = np.random.default_rng(0)
    drawn = [draw.choice(off[kind == one], MADE_UP) for one in np.unique(kind)]
    residuals = np.log(np.exp(drawn).mean(axis=0))
    return {"networks": network_entry(residuals, np.full(MADE_UP, PRODUCTS_TOGETHER), len(off))}


def _rounded(residuals: np.ndarray) -> list[float]:
    """At most MOST_RESIDUALS rounded residuals, drawn at random."""
    if len(residuals) > MOST_RESIDUALS:
        residuals = np.random.default_rng(0).choice(residuals, MOST_RESIDUALS, replace=False)
    return [round(float(r), 5) for r in residuals]


def _thinned(rows: Sequence[TimedOperation]) -> list[TimedOperation]:
    """At most MOST_OF_A_NAME or MOST_OF_A_PRODUCT rows of each operation, drawn at random."""
    chosen, number = [], Counter[str]()
    for i in np.random.default_rng(0).permutation(len(rows)).tolist():
        name = rows[i].name
        number[name] += 1
        if number[name] <= (MOST_OF_A_PRODUCT if name in PRODUCT_NAMES else MOST_OF_A_NAME):
            chosen.append(i)
    return [rows[i] for i in sorted(chosen)]


# ---- The host of a table's times, and their minimum


def started_by_a_host(formula: Roofline, times: Times, usual: float) -> Roofline:
    """Add a host, which launches a network's operations, to a formula fitted to `times`.

    `usual`: the usual launch overhead, ms. With operations timed alone, the host's launch overhead is the
    geometric mean of theirs and the usual one, because a network may run on another host. Without them it
    is the usual one, but at most the fastest network's time per launch.
    """
    start_ms = usual
    of_class = np.bincount(times.work.kind[times.alone], minlength=len(CLASSES))
    if (of_class >= LEAST_OF_CLASS).any():
        start_ms = ((1.0 - TIMING) * formula.launch_ms * usual) ** 0.5
    elif times.whole.any():
        starts = times.total(Host(1.0, 1.0, ASSUMED).starts(times.work, formula.mode))
        fastest = float((times.latency_ms / starts)[times.whole].min())
        start_ms = max(min(usual, fastest), usual / FACTOR[ASSUMED])
    host = Host(round(start_ms, 4), FACTOR[ASSUMED], ASSUMED, formula.mode.launch)
    return msgspec.structs.replace(formula, host=host)


def _domain(timed: TimedRows, minimum: MeasuredMinimum) -> dict[str, Any]:
    """The measured domain of a table.

    If the table has only networks, the domain has the largest share of each kind in MACS too.
    """
    if timed.operations:
        return as_dict(Domain(minimum=minimum))
    each = [shares_of(np.array([*n.total(row.batch_size).values()])) for row, n in timed.networks]
    shares = {name: round(max(one[name] for one in each), 6) for name in MACS}
    return as_dict(Domain(minimum=minimum, shares=shares))


def measured_minimum(times: Times, batch_sizes: np.ndarray) -> MeasuredMinimum:
    """The smallest times of a table, as quantiles that leave out SMALLEST_SHARE of the rows.

    `batch_sizes`: (times,). The minimum has a network's ms if there are at least LEAST_JUDGING_NETWORKS
    networks, and `most_samples` if there are no operations.
    """
    whole = times.whole
    most = float(batch_sizes.max()) if whole.all() else None
    operation_ms = times.latency_ms / times.total((times.work.bytes > 0.0).astype(float))
    if whole.sum() < LEAST_JUDGING_NETWORKS:
        few = _smallest(operation_ms[~whole if not whole.all() else whole])
        return MeasuredMinimum(operation_ms=few, most_samples=most)
    return MeasuredMinimum(_smallest(times.latency_ms[whole]), _smallest(operation_ms[whole]), most)


def _smallest(values: np.ndarray) -> float:
    return float(f"{np.quantile(values[np.isfinite(values)], SMALLEST_SHARE):.3g}")


# ---- A data sheet alone

WITHOUT_SPECS = (
    "no data sheet of the device was given (`facts`, `name`): the number of its multiprocessors, and so "
    "the cost of small operations, is not known"
)

SHEET_ALONE = (
    -0.1, -0.16, -0.12, -0.11, -0.15, 0.01, -0.02, -0.06, -0.05, -0.07, 0.04, 0.1, 0.09, 0.1, 0.08, 0.09,
    0.1, 0.07, 0.04, 0.03, 0.01, 0.03, 0.25, 0.2, 0.1, 0.14, 0.34, 0.33, -0.1, -0.21, 0.02, -0.01, 0.36,
    0.16, 0.0,
)  # fmt: skip
"""log(measured / predicted) of whole transformers that were predicted from data sheets alone, on V100,
A100, H100, P100, MI100, MI210, T4 and P4 (docs/results/index.md)."""


def specs_document(
    name: str, device: str, specs: Specs, source: Mapping[str, Any]
) -> dict[str, Any]:
    """A profile made from a data sheet alone; its interval comes from SHEET_ALONE."""
    nothing = Times.of([], np.zeros(0), np.zeros(0, bool))
    formula = started_by_a_host(fit_roofline(nothing, specs), nothing, usual_ms(specs.gpu))
    entry = formula.to_dict() | {"residuals": list(SHEET_ALONE)}
    fitted = {"predictors": {Roofline.name: entry}, "default": Roofline.name, "domain": {}}
    return assembled(name, device, source, [NOTHING_MEASURED], fitted)
