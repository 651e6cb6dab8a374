"""From what was measured of training to its coefficients: passes, updates, the loop, the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.fitting import fit_relative, leave_out, require_points
from lolat.intervals import interval_entry
from lolat.training.passes import PASS_TERMS
from lolat.training.points import (
    EpochPoint,
    PassPoint,
    StartPoint,
    UpdatePoint,
    from_plain,
    plain,
)

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
