"""A device's model from operations that somebody timed one by one on it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.counts import behaviours, count
from lolat.devices.fit import alone, fit_kernels
from lolat.devices.operations import TimedOperation
from lolat.errors import InputError
from lolat.kernel_terms import CLASSES, PRODUCTS
from lolat.learning import errors, model_document
from lolat.points import Point, open_text
from lolat.predictors.kernels import Kernels
from lolat.schema import FORMAT_VERSION, SCHEMA
from lolat.work import Work, work_of

FOLDS = 5
MOST_POINTS = 300  # operations that the formulas on counts are fitted to, and the file holds
LEAST_ROWS = 20
MOST_OF_A_NAME = 500  # rows of one operation: the terms of its class are known long before
NEEDED_FACTS = ("multiprocessors", "fp32_matrix_gflops", "bandwidth_gb_s")
REACHED = 0.9  # of a data sheet's rates, by the fastest operation of a table


@dataclass(frozen=True)
class Facts:
    """Of a device: multiprocessors, macs per ms and bytes per ms, as its data sheet has them."""

    multiprocessors: float
    rate: float
    bandwidth: float


def read_facts(path: str | Path, device: str) -> Facts:
    """The facts of `device` from a table with the columns device and NEEDED_FACTS; InputError."""
    rows = {row.get("device", ""): row for row in csv.DictReader(open_text(path))}
    if device not in rows:
        raise InputError(
            f"{path} has no device {device[:40]!r}; it has "
            f"{', '.join(sorted(rows))[:200] or 'no column device'}"
        )
    found = []
    for name in NEEDED_FACTS:
        try:
            value = float(rows[device].get(name) or "")
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise InputError(
                f"{path}: {name} of {device} is {rows[device].get(name)!r}; expected a number above 0"
            )
        found.append(value)
    multiprocessors, gflops, gigabytes = found
    return Facts(multiprocessors, gflops * 1e6 / 2, gigabytes * 1e6)


def seen_facts(work: Work, times: np.ndarray) -> Facts:
    """What the operations of a table reached, where no data sheet is at hand; waves are not told then."""
    macs, moved = float((work.macs / times).max()), float((work.bytes / times).max())
    return Facts(1.0, (macs or moved) / REACHED, moved / REACHED)


def operations_document(
    name: str,
    device: str,
    rows: Sequence[TimedOperation],
    facts: Facts | None,
    source: Mapping[str, Any],
) -> dict[str, Any]:
    """A model file from timed operations; `source`: what `environment` says of them.

    InputError for fewer than LEAST_ROWS operations.
    """
    if len(rows) < LEAST_ROWS:
        raise InputError(
            f"{len(rows)} operations are too few to fit a device; expected at least {LEAST_ROWS}"
        )
    rows = _some(rows)
    work = Work.joined([work_of(r.graph, r.batch_size) for r in rows])
    times = np.array([r.latency_ms for r in rows])
    known = facts or seen_facts(work, times)
    fit = (known.multiprocessors, known.rate, known.bandwidth)
    formula = fit_kernels(work, times, *fit)
    left_out = np.empty(len(rows))
    fold = np.random.default_rng(0).permutation(len(rows)) % FOLDS
    for i in range(FOLDS):
        kept = np.flatnonzero(fold != i)
        other = fit_kernels(work.take(kept), times[kept], *fit)
        left_out[fold == i] = alone(other, work.take(np.flatnonzero(fold == i)))
    draw = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_POINTS])
    document = model_document(name, device, [_point(rows[i]) for i in draw], source, {})
    residuals = np.log(times / left_out)[draw]
    document["predictors"][Kernels.name] = formula.to_dict() | {
        "error": {
            "fitted": errors(alone(formula, work), times),
            "left_out": errors(left_out, times),
        },
        "residuals": [round(float(r), 6) for r in residuals],
    }
    return document | {
        "default": Kernels.name,
        "domain": {},
        "warnings": [*document["warnings"], *_doubts(formula, facts)],
    }


def _some(rows: Sequence[TimedOperation]) -> list[TimedOperation]:
    """At most MOST_OF_A_NAME rows of each operation, drawn at random, in their order."""
    of: dict[str, list[int]] = {}
    for i in np.random.default_rng(0).permutation(len(rows)):
        kept = of.setdefault(rows[i].name, [])
        if len(kept) < MOST_OF_A_NAME:
            kept.append(int(i))
    return [rows[i] for i in sorted(i for kept in of.values() for i in kept)]


SHEET_ALONE = (
    -0.12, -0.17, -0.13, -0.12, -0.15, 0.0, -0.04, -0.08, -0.05, -0.08, 0.03, 0.08, 0.05, 0.08, 0.07, 0.08,
    0.09, 0.34, 0.24, 0.42, 0.37, 0.67, 0.49, 0.29, 0.14, 0.12, 0.09, 0.07, 0.13, 0.22, 0.17, 0.08, 0.13,
    0.33, 0.31,
)  # fmt: skip
"""log(measured / predicted) of whole transformers where nothing but the data sheet was known: V100, A100,
H100, P100, T4, P4, MI100, MI210 (docs/gpus.md)."""


def facts_document(
    name: str, device: str, facts: Facts, source: Mapping[str, Any]
) -> dict[str, Any]:
    """A model file from a data sheet alone, its interval as wide as such were off on known devices."""
    formula = fit_kernels(
        Work.none(), np.zeros(0), facts.multiprocessors, facts.rate, facts.bandwidth
    )
    return {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "device": device,
        "points": [],
        "environment": dict(source),
        "noise": {},
        "domain": {},
        "warnings": [
            "nothing was measured on this device, all is from its data sheet; operations timed there "
            "make it better (lolat fit OPERATIONS.csv --facts ...)"
        ],
        "predictors": {
            Kernels.name: formula.to_dict() | {"residuals": list(SHEET_ALONE)},
        },
        "default": Kernels.name,
    }


def _doubts(formula: Kernels, facts: Facts | None) -> list[str]:
    found = []
    if facts is None:
        found.append(
            "no facts of the device were given (--facts, --device): how many multiprocessors it has, "
            "and so what small operations cost, is not known"
        )
    lacking = [c for c in CLASSES if c not in formula.classes and c in PRODUCTS]
    if lacking:
        found.append(
            f"no operations of the kind {', '.join(lacking)} were given; they are taken to be like "
            "the others"
        )
    return found


def _point(row: TimedOperation) -> Point:
    return Point(
        name=row.name,
        batch_size=row.batch_size,
        counts=count(row.graph).total(row.batch_size)._asdict(),
        latency_ms=row.latency_ms,
        kinds=tuple(sorted(behaviours(row.graph.operations))),
    )
