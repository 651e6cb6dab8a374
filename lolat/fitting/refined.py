"""Scales a device's file that was made from tables, by a few more timed networks.

Another host, version of the framework, or card of the same name changes all times by about one factor. A
few rows tell this factor and no more. The factor of inference scales all times of the device; the factor of
training scales only training steps. The file keeps the time of each timed step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat.device.execution_modes import before_fit, exchanged
from lolat.device.file import DeviceFile
from lolat.device.predictors.roofline import OwnStep, Roofline
from lolat.errors import InputError
from lolat.fitting.cross_validation import error_figures
from lolat.fitting.roofline import common_ratio
from lolat.hardware.gpus import PRECISION_OF
from lolat.io.results import Remark
from lolat.tables.counted import Counted, numbered
from lolat.tables.networks import TimedNetwork
from lolat.units import plural, rows_of

CountedRows = Sequence[tuple[TimedNetwork, Counted]]

OTHER_GPU = 3.0
"""Largest ratio of measured to predicted times (median), or of a row's memory; beyond it the rows must be
from another GPU."""
OWN_TIMES = (
    "times of this device in ms, or samples_per_s of all GPUs and in gpus how many these are"
)
TrainingParts = Callable[[TimedNetwork], tuple[float, float, str]]
"""Timed step -> (predicted ms of its passes, predicted ms of its other parts, the key of its work)."""


def check_level(off: float, expected: str) -> None:
    """Raise InputError if `off`, the median log(measured / predicted), is so large that the rows are of
    another GPU."""
    if abs(off) > math.log(OTHER_GPU):
        raise InputError(
            f"the runs take {math.exp(off):.2g} times as long as predicted at the median; expected "
            f"{expected}",
            code="runs-unlike",
        )


def refined(
    file: DeviceFile, rows: CountedRows, source: str, of: Callable[[DeviceFile], TrainingParts]
) -> DeviceFile:
    """Scale a model file to `rows`, timed networks of inference and training.

    A remark has the median error of networks that were predicted with the factor of the other networks. If
    it is larger than the file's error, the intervals widen by the ratio. `source`: the names of the tables.
    `of`: file -> its TrainingParts. The file keeps a key of each row, so that a row counts once; without a
    new row it is returned unchanged.
    """
    known = dict.fromkeys(file.environment.rows)
    keyed = {row.key: (row, counts) for row, counts in rows}
    rows = [row for key, row in keyed.items() if key not in known]
    if not rows:
        return file
    remarks = [*file.warnings]
    formulas = [f for f in file.formulas.values() if isinstance(f, Roofline)]
    formulas.sort(key=lambda formula: formula.name)  # that of inference first
    for training in (False, True):
        timed = [row for row in rows if row[0].mode.training is training]
        if not timed:
            continue
        ms = np.array([row.latency_ms for row, _ in timed])
        if training:
            found, off = _steps(timed, of(file.with_formulas(*formulas)))
        else:
            each = [formulas[0].steps(c.work(row.batch_size)).latency_ms for row, c in timed]
            off = np.log(ms / each)
        check_level(float(np.median(off)), OWN_TIMES)
        networks = np.array(numbered(timed))
        factor = common_ratio(off)
        others = off - np.log([common_ratio(off[networks != one]) for one in networks])
        if training:
            formulas[-1] = replace(formulas[-1], training=factor * formulas[-1].training)
            own = (*formulas[0].own_steps, *found)
            level = factor * formulas[0].own_level
            formulas[0] = replace(formulas[0], own_steps=own, own_level=level)
        else:
            formulas = [formula.scaled(factor) for formula in formulas]
            file = _carried(file, factor, others)
        formulas[0] = _widened(
            formulas[0], "training_residuals" if training else "residuals", others
        )
        error = error_figures(ms / np.exp(others), ms)
        named = plural(len(timed), "training step")
        if not training:
            named = rows_of(len(timed), len({*networks.tolist()}))
        judged = formulas[-1 if training else 0]
        formulas[-1 if training else 0] = replace(judged, error=judged.error | {"left_out": error})
        remarks.append(
            f"{named} of {source}: {np.exp(np.median(off)):.2f} times as long as the "
            f"device's file had said; it now says {factor:.2f} times as long, as few rows tell little; "
            f"each network left out, {100 * error['median']:.1f} % off at the median"
        )
    where = {**file.recorded, **_about(file, [*(known | keyed)], rows, source)}
    return file.with_formulas(*formulas).but(environment=where, warnings=remarks)


def _widened(formula: Roofline, name: str, others: np.ndarray) -> Roofline:
    """Return a formula whose residuals `name` are as large as the errors `others`, if those are larger."""
    before = np.array(max(getattr(formula, name), others.tolist(), key=len))
    wider = max(1.0, float(np.median(np.abs(others)) / np.median(np.abs(before))))
    return replace(formula, **{name: tuple((wider * before).round(5).tolist())})


def _carried(file: DeviceFile, factor: float, others: np.ndarray) -> DeviceFile:
    """Scale the file's part `before`, of another precision, too, unless own networks were timed in that."""
    if "before" not in file.document or (old := exchanged(file)).environment.own_networks:
        return file
    formulas = [f.scaled(factor) for f in old.formulas.values() if isinstance(f, Roofline)]
    formulas = [_widened(formula, "residuals", others) for formula in formulas]
    how = Remark(
        f"own networks were timed in {PRECISION_OF[file.mode.dtype]} alone",
        "their level is taken for other precisions too",
    )
    old = old.with_formulas(*formulas).but(estimated=str(how))
    return file.but(before=before_fit(old))


def _about(file: DeviceFile, keys: Sequence[str], rows: CountedRows, source: str) -> dict[str, Any]:
    """Return fields of an environment: the keys of all rows, the number of networks, the sources."""
    where, own = file.environment, sum(not row.mode.training for row, _ in rows)
    sources = ", ".join([*where.sources, source])
    return {"rows": keys, "own_networks": own + where.own_networks, "source": sources}


def _steps(timed: CountedRows, parts: TrainingParts) -> tuple[list[OwnStep], np.ndarray]:
    """Return the timed steps, and (steps,) log(measured / predicted) of their passes."""
    found, off = [], []
    for row, _ in timed:
        passes, rest, key = parts(row)
        # The passes take at least half of a step, so that a wrong rest does not make them negative.
        ms = max(row.latency_ms - rest, 0.5 * row.latency_ms)
        off.append(math.log(ms / passes))
        found.append(OwnStep(*row.network[:2], key, row.batch_size, ms / row.accumulate))
    return found, np.array(off)
