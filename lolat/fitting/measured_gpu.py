"""Fitting a GPU that was measured here: its roofline, and the host that launches its operations.

A block of a few small operations takes as long as launching them (host-bound), a large block as long as
running them (device-bound; `lolat.device.predictors.host`). The launch overhead is fitted to host-bound
blocks, the roofline to device-bound ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

import msgspec
import numpy as np

from lolat.device.file import DeviceFile
from lolat.device.intervals import as_dict
from lolat.device.predictors.host import ASSUMED, FACTOR, FITTED, Host
from lolat.device.predictors.roofline import Roofline
from lolat.errors import InputError
from lolat.fitting.blocks import errors_of_points
from lolat.fitting.cross_validation import cross_validate, draw_folds
from lolat.fitting.from_tables import measured_minimum
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.roofline import fit_roofline
from lolat.fitting.times import Times, seen_specs
from lolat.graph import Graph
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode
from lolat.graph.work import Workload, work_of
from lolat.hardware.specs import Specs, listed_specs
from lolat.tables.blocks import Point, blocks_of, times

BLOCK_FOLDS = 8  # folds of the cross-validation; a block is left out with all its batch sizes
ROUNDS = 4  # times that device and host are fitted in turn
BOUND = 2.0
"""A block is device-bound if it takes more than BOUND times as long as the host's launches, and host-bound
if it takes more than BOUND times as long as the device's work."""
LEAST_HOSTED = 5  # host-bound blocks that a fit of the launch overhead needs


def device_times(parts: Sequence[Workload], latency_ms: np.ndarray, less_ms: float = 0.0) -> Times:
    """The points as Times, each shortened by `less_ms`, during which the device waits for the host.

    `parts`: the work of each point; `latency_ms`: (points,).
    """
    ms = np.maximum(latency_ms - less_ms, 0.5 * latency_ms)
    return Times.of(parts, ms, np.ones(len(ms), bool))


def with_operations(
    file: DeviceFile, points: Sequence[Point], graphs: Mapping[str, Graph]
) -> DeviceFile:
    """Add a roofline to the file of a measured GPU.

    It becomes the default if its median error on held-out networks is smaller. `graphs`: key or name of a
    point -> its graph; if a graph is missing, the file is returned unchanged.
    """
    known = [graphs.get(p.key) or graphs.get(p.name) for p in points]
    if None in known:
        return file
    mode = file.mode
    work = [
        work_of(graph, p.batch_size, mode) for graph, p in zip(known, points, strict=True) if graph
    ]
    ms = times(points)
    specs = _specs(file.product, device_times(work, ms), mode)

    def predict(kept: np.ndarray, out: np.ndarray) -> np.ndarray:
        formula = fit_hosted([*compress(work, kept)], ms[kept], specs, mode)
        return hosted_ms(formula, [*compress(work, out)])

    formula = fit_hosted(work, ms, specs, mode)
    folds = draw_folds(blocks_of(points), BLOCK_FOLDS, np.random.default_rng(0))
    left_out_ms = cross_validate(folds, predict)
    entry = formula.to_dict() | errors_of_points(points, hosted_ms(formula, work), left_out_ms)
    predictors = {**file.document["predictors"], Roofline.name: entry}

    def held_out_error(name: str) -> float:
        error = predictors[name]["error"]
        return float((error.get("networks_left_out") or error["left_out"])["median"])

    default = min(file.default, Roofline.name, key=held_out_error)
    sizes = np.array([p.batch_size for p in points], float)
    minimum = measured_minimum(device_times(work, ms), sizes)
    domain = as_dict(msgspec.structs.replace(file.domain, minimum=minimum))
    return file.but(predictors=predictors, default=default, domain=domain)


def _specs(device: str, whole: Times, mode: Mode) -> Specs:
    """The GPU's data sheet for the mode's data type, or else the rates of the fastest points."""
    try:
        specs = listed_specs(device)
    except InputError:
        return seen_specs(whole)
    if not mode.half:
        return specs
    has_rate = specs.gpu and specs.gpu.rate(mode.dtype)
    return specs.of_dtype(mode.dtype) if has_rate else seen_specs(whole, specs.gpu)


def fit_hosted(
    parts: Sequence[Workload], latency_ms: np.ndarray, specs: Specs, mode: Mode
) -> Roofline:
    """Fit the roofline and its host in turn; `parts`: the work of each point; `latency_ms`: (points,).

    With too few host-bound points, the launch overhead is the time per launch of the fastest point.
    """
    starts = np.array([Host(1.0, 1.0, ASSUMED).starts(part, mode).sum() for part in parts])
    each = latency_ms / np.maximum(starts, 1.0)
    host = Host(float(np.quantile(each, 0.1)), FACTOR[ASSUMED], ASSUMED, mode.launch)
    for _ in range(ROUNDS):
        of_host = host.start_ms * starts + host.call_ms
        by_device = latency_ms > BOUND * of_host
        if not by_device.any():
            by_device = each >= np.quantile(each, 0.5)
        waits_ms = host.start_ms + host.call_ms
        own = device_times([*compress(parts, by_device)], latency_ms[by_device], waits_ms)
        formula = fit_roofline(own, specs, mode)
        device_ms = np.array([formula.steps(part).device_ms for part in parts])
        by_host = latency_ms > BOUND * device_ms
        if by_host.sum() >= LEAST_HOSTED:
            terms = np.column_stack([starts, np.ones(len(starts))])[by_host]
            start_ms, call_ms = fit_relative(terms, latency_ms[by_host]).tolist()
            if start_ms > 0.0:
                host = Host(start_ms, FACTOR[FITTED], FITTED, mode.launch, call_ms)
        else:
            host = Host(float(each.min()), FACTOR[ASSUMED], ASSUMED, mode.launch)
    return msgspec.structs.replace(formula, host=host)


def with_training(file: DeviceFile, graphs: Mapping[str, Graph]) -> DeviceFile:
    """Fit the host's launch overheads in training to the timed passes in a measured GPU's file.

    The passes are in the section "training"; the device's time comes from the roofline of inference.
    `graphs`: name of a block -> its graph. A file without a host, or with too few host-bound passes, is
    returned unchanged.
    """
    passes = [p for p in (file.training or {}).get("points", ()) if p["name"] in graphs]
    formula = file.kernels
    if formula is None or formula.host is None or not passes:
        return file
    host, mode = formula.host, replace(formula.mode, training=True)
    work = [work_of(as_trained(graphs[p["name"]]), p["batch_size"], mode) for p in passes]
    both = np.array([p["backward"] for p in passes])
    ms = np.array([p["latency_ms"] for p in passes])
    alike = msgspec.structs.replace(host, training=(1.0, 1.0, 0.0))
    steps = [msgspec.structs.replace(formula, host=alike).steps(part) for part in work]
    forward, backward = (
        np.array([s.starts_ms[s.backward == is_back].sum() for s in steps])
        for is_back in (False, True)
    )
    device_ms = np.array(
        [s.run_ms[s.backward <= one].sum() for s, one in zip(steps, both, strict=True)]
    )
    by_host = ms > BOUND * device_ms
    if by_host.sum() < LEAST_HOSTED:
        return file
    terms = np.column_stack([forward, backward * both, np.ones(len(ms)), both])[by_host]
    each = [float(x) for x in fit_relative(terms, ms[by_host])]
    host = msgspec.structs.replace(host, training=(each[0], each[1], each[2] + each[3]))
    formula = msgspec.structs.replace(formula, host=host)
    steps_ms = hosted_ms(formula, [*compress(work, both)])
    off = np.log(ms[both] / steps_ms).round(6).tolist()
    of_steps = {"training_residuals": tuple(off), "training_optimizer": "none"}
    return file.with_formulas(msgspec.structs.replace(formula, **of_steps))


def hosted_ms(formula: Roofline, parts: Sequence[Workload]) -> np.ndarray:
    """(points,) ms predicted by a roofline with its host; `parts`: the work of each point."""
    return np.array([formula.steps(part).latency_ms for part in parts])
