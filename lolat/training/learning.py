"""From what was measured of training to its coefficients: passes, updates, the loop, the start."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.fitting.intervals import interval_entry
from lolat.fitting.least_squares import fit_relative, leave_out, require_points
from lolat.training.terms import PASS_TERMS

# ---- What is measured to learn training, one point each: a pass, an update, an epoch, a start.


@dataclass(frozen=True)
class PassPoint:
    """A block's pass: `backward`: of both passes, else of the forward pass alone.

    `terms`: (PASS_TERMS,) of the block at `batch_size`; `latency_ms` from `samples_ms`, each beside a
    `reference_ms`; `spread` as of a `lolat.fitting.points.Point`.
    """

    name: str
    batch_size: int
    backward: bool
    terms: np.ndarray
    latency_ms: float
    samples_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    spread: float | None
    kinds: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a model file; terms that are 0 are left out."""
        terms = {t: _whole(v) for t, v in zip(PASS_TERMS, self.terms.tolist(), strict=True) if v}
        return {
            "name": self.name, "batch_size": self.batch_size, "backward": self.backward,
            "terms": terms, "latency_ms": self.latency_ms,
            "samples_ms": [round(t, 4) for t in self.samples_ms],
            "reference_ms": [round(t, 4) for t in self.reference_ms],
            "spread": self.spread, "kinds": list(self.kinds),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> PassPoint:
        """Read what `to_dict` wrote; KeyError, TypeError or ValueError where it is damaged."""
        terms = document["terms"]
        unknown = sorted(set(terms) - set(PASS_TERMS))
        if unknown:
            raise ValueError(f"a point has the unknown term {unknown[0]!r}")
        return cls(
            name=document["name"],
            batch_size=document["batch_size"],
            backward=bool(document["backward"]),
            terms=np.array([float(terms.get(t, 0.0)) for t in PASS_TERMS]),
            latency_ms=_time(document["latency_ms"]),
            samples_ms=tuple(document.get("samples_ms") or ()),
            reference_ms=tuple(document.get("reference_ms") or ()),
            spread=document.get("spread"),
            kinds=tuple(document.get("kinds") or ()),
        )


@dataclass(frozen=True)
class UpdatePoint:
    """An update of `variables` tensors with `parameters` numbers in all."""

    optimizer: str
    variables: int
    parameters: int
    latency_ms: float
    samples_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class EpochPoint:
    """An epoch of `steps` iterations with nothing to compute, on `elements` input numbers each."""

    steps: int
    elements: int
    latency_ms: float
    samples_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class StartPoint:
    """A network's first step: `operations` traced, `variables` updated."""

    optimizer: str
    operations: int
    variables: int
    latency_ms: float


Plain = TypeVar("Plain", UpdatePoint, EpochPoint, StartPoint)


def plain(point: UpdatePoint | EpochPoint | StartPoint) -> dict[str, Any]:
    """As it stands in a model file."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(point).items()}


def from_plain(kind: type[Plain], document: Mapping[str, Any]) -> Plain:
    """Read what `plain` wrote; KeyError, TypeError or ValueError where it is damaged."""
    _time(document["latency_ms"])
    known: dict[str, Any] = {f.name: document[f.name] for f in fields(kind) if f.name in document}
    known |= {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
    return kind(**known)


def _time(value: Any) -> float:
    """A finite time above 0, ms, or ValueError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value <= 0.0:
        raise ValueError(f"`latency_ms` of a point is {value!r}, not a time above 0")
    return float(value)


def _whole(value: float) -> int | float:
    return int(value) if value == int(value) else value


# ---- learning ----------------------------------------

SIMPLEST = "sgd"  # keeps nothing for a variable
LEAST_UPDATES = 3  # so many coefficients has an update
LOOP = ("epoch", "step", "element")


def fit_passes(points: Sequence[PassPoint]) -> dict[str, Any]:
    """Coefficients of both passes, and how far off they are for blocks left out.

    One fit of all points: a forward pass costs its terms' forward coefficients, both passes the sum of
    forward and backward ones, all from 0. So backward is never negative, and the sum, which is asked for
    most, is fitted itself. `residuals`: log(measured / predicted) of both passes of blocks left out.
    InputError for too few points, in either direction, or of a single block.
    """
    both = np.array([p.backward for p in points], bool)
    for directions in (both, ~both):
        require_points(int(directions.sum()), len(PASS_TERMS) + 1)
    names = [p.name for p in points]
    if len(set(names)) < 2:
        raise InputError(
            f"all passes are of the block {names[0]!r}; expected several blocks, to see how good a fit is "
            "for one left out"
        )
    terms = np.column_stack([np.array([p.terms for p in points]), np.ones(len(points))])
    rows = np.hstack([terms, terms * both[:, None]])
    measured = np.array([p.latency_ms for p in points])
    found = fit_relative(rows, measured)
    predicted = np.empty(len(points))
    for kept in leave_out(names):
        predicted[~kept] = rows[~kept] @ fit_relative(rows[kept], measured[kept])
    logarithms = np.log(measured / np.maximum(predicted, 1e-9))[both]
    forward, backward = found[: terms.shape[1]], found[terms.shape[1] :]
    error = np.abs(predicted / measured - 1.0)
    folds = list(leave_out([p.name for p in points if p.backward]))
    interval = interval_entry(logarithms, terms[both, PASS_TERMS.index("ops")], folds)
    return {
        "forward_ms": _named(forward),
        "backward_ms": _named(backward),
        "error": {
            "left_out_median": round(float(np.median(error[both])), 5),
            "left_out_forward_median": round(float(np.median(error[~both])), 5),
        },
        "residuals": [round(float(r), 6) for r in logarithms],
        **({} if interval is None else {"interval": interval}),
    }


def _named(coefficients: np.ndarray) -> dict[str, float]:
    """By term, `call` being the constant; those that are 0 are left out."""
    named = zip((*PASS_TERMS, "call"), coefficients.tolist(), strict=True)
    return {t: c for t, c in named if c > 0.0}


def fit_update(points: Sequence[UpdatePoint]) -> dict[str, dict[str, float]]:
    """Optimiser -> ms for each variable and for each parameter; what comes once is the call's.

    An optimiser of fewer than LEAST_UPDATES points is left out, as these could not be told apart.
    InputError where that leaves none.
    """
    found = {}
    for name in dict.fromkeys(p.optimizer for p in points):
        own = [p for p in points if p.optimizer == name]
        if len(own) < LEAST_UPDATES:
            continue
        rows = np.array([[p.variables, p.parameters, 1.0] for p in own])
        variable, parameter, _ = fit_relative(rows, np.array([p.latency_ms for p in own])).tolist()
        found[name] = {"variable": variable, "parameter": parameter}
    if not found:
        raise InputError(
            f"no optimiser has as many as {LEAST_UPDATES} measured updates, which it takes to tell a "
            "variable from a parameter; measure again with --restart"
        )
    return found


def fit_loop(points: Sequence[EpochPoint]) -> dict[str, float]:
    """ms that the framework's loop takes: for each epoch, each step, each input element of a step.

    Fewer points than that tell of the first ones alone: what cannot be told is 0.
    """
    known = LOOP[: len(points)]
    rows = np.array([[1.0, p.steps, p.steps * p.elements][: len(known)] for p in points])
    times = np.array([p.latency_ms for p in points])
    found = fit_relative(rows, times).tolist() if known else []
    return {**dict.fromkeys(LOOP, 0.0), **dict(zip(known, found, strict=True))}


def fit_start(points: Sequence[StartPoint]) -> dict[str, Any] | None:
    """ms before the first step is done: a constant, for each operation, for each variable by optimiser.

    Of SIMPLEST the variables' part is in that of the operations, and an optimiser without a point is left
    out. None where SIMPLEST has not started two networks of different numbers of operations: a constant
    could not be told from the rest then.
    """
    if len({p.operations for p in points if p.optimizer == SIMPLEST}) < 2:
        return None
    names = [n for n in dict.fromkeys(p.optimizer for p in points) if n != SIMPLEST]
    rows = np.array(
        [
            [1.0, p.operations, *(p.variables * float(p.optimizer == n) for n in names)]
            for p in points
        ]
    )
    found = fit_relative(rows, np.array([p.latency_ms for p in points])).tolist()
    variable = {SIMPLEST: 0.0, **dict(zip(names, found[2:], strict=True))}
    return {"constant": found[0], "operation": found[1], "variable": variable}


def training_section(
    passes: Sequence[PassPoint],
    updates: Sequence[UpdatePoint],
    epochs: Sequence[EpochPoint],
    starts: Sequence[StartPoint],
    environment: Mapping[str, Any],
    noise: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """What a model file has under "training". InputError where too little was measured."""
    return {
        **_fitted(passes, updates, epochs, starts),
        "environment": dict(environment),
        "noise": dict(noise),
        "warnings": list(warnings),
        "points": [p.to_dict() for p in passes],
        "update_points": [plain(p) for p in updates],
        "epoch_points": [plain(p) for p in epochs],
        "start_points": [plain(p) for p in starts],
    }


def _fitted(
    passes: Sequence[PassPoint],
    updates: Sequence[UpdatePoint],
    epochs: Sequence[EpochPoint],
    starts: Sequence[StartPoint],
) -> dict[str, Any]:
    """The part of a section that comes from its points."""
    return {
        **fit_passes(passes),
        "update_ms": fit_update(updates),
        "loop_ms": fit_loop(epochs),
        "start_ms": fit_start(starts),
        "kinds": sorted({k for p in passes for k in p.kinds}),
    }


def refitted(section: Mapping[str, Any], source: str) -> dict[str, Any]:
    """A model file's "training", fitted again on its own points; one without points as it is.

    ModelFileError, beginning with `source`, where a point is damaged or there are too few.
    """
    try:
        if not section.get("points"):
            return dict(section)
        found = _fitted(
            [PassPoint.from_dict(p) for p in section["points"]],
            [from_plain(UpdatePoint, p) for p in section["update_points"]],
            [from_plain(EpochPoint, p) for p in section["epoch_points"]],
            [from_plain(StartPoint, p) for p in section["start_points"]],
        )
    except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelFileError(
            f"{source}: its `training` cannot be fitted again ({what}); learn it again: lolat learn --mode "
            "training"
        ) from error
    return {**{k: v for k, v in section.items() if k != "interval"}, **found}
