"""Scaling a device's file that was made from tables, by a few more timed networks.

Another host, framework version, or card of the same name changes all times by about the same factor. A few
rows determine this factor, but nothing more. Host-bound networks determine the factor of the launch
overhead; device-bound networks of inference determine the factor of all device times. Training steps get a
factor of their own. The file keeps the time of each timed step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import numpy as np
from msgspec.structs import replace

from lolat.device.execution_modes import as_before_fit, before_fit
from lolat.device.file import DeviceFile
from lolat.device.predictors.host import FACTOR, FITTED, Steps
from lolat.device.predictors.roofline import OwnStep, Roofline
from lolat.errors import InputError
from lolat.fitting.cross_validation import error_figures
from lolat.fitting.roofline import common_ratio
from lolat.graph.modes import GRAPH, PRECISION_OF
from lolat.io.results import Remark
from lolat.tables.counted import Counted, numbered
from lolat.tables.networks import TimedNetwork
from lolat.units import digits, plural, rows_of

CountedRows = Sequence[tuple[TimedNetwork, Counted]]

OTHER_GPU = 3.0
"""Ratio of measured to predicted times (median), or of the memory of a row, above which the rows must be
from another GPU."""
OWN_TIMES = (
    "times of this device in ms, or samples_per_s of all GPUs and in gpus how many these are"
)
TrainingParts = Callable[[TimedNetwork], tuple[float, float, str]]
"""Function of a timed step that returns (predicted ms of its passes, predicted ms of the rest, key of its
work)."""


ROUNDS = 8  # most rounds, in which the levels of device and host are fitted in turn


@dataclass(frozen=True)
class Level:
    """Measured / predicted time, for the device and for its host."""

    device: float = 1.0
    host: float = 1.0

    @classmethod
    def fitted(cls, steps: Sequence[Steps], ms: np.ndarray) -> Level:
        """The level of timed networks: host-bound ones determine the host's, the others the device's.

        `steps`: each network's steps by the formula; `ms`: (networks,) measured.
        """
        found = cls()
        for _ in range(ROUNDS):
            now = [found.of(one) for one in steps]
            off, by_host = np.log(ms / latencies(now)), np.array([*map(_is_by_host, now)], bool)
            device, host = (
                common_ratio(off[which] + math.log(level)) if which.any() else level
                for which, level in ((~by_host, found.device), (by_host, found.host))
            )
            was, found = found, cls(device, host)
            if np.allclose((was.device, was.host), (device, host), rtol=1e-9):
                break
        return found

    def of(self, steps: Steps) -> Steps:
        """The steps of a network, with times multiplied by this level."""
        return changed(
            steps, run_ms=self.device * steps.run_ms, starts_ms=self.host * steps.starts_ms
        )

    def scaled(self, formula: Roofline) -> Roofline:
        """A formula with times multiplied by this level."""
        formula, host = formula.scaled(self.device), formula.host
        if host is None or self.host == 1.0:
            return formula
        times = {"start_ms": self.host * host.start_ms, "call_ms": self.host * host.call_ms}
        return replace(formula, host=replace(host, source=FITTED, factor=FACTOR[FITTED], **times))


def latencies(steps: Sequence[Steps]) -> np.ndarray:
    """(networks,) predicted latencies in ms; `steps`: each network's steps."""
    return np.array([one.latency_ms for one in steps])


def _is_by_host(steps: Steps) -> bool:
    """True if a network is bound by its host's launch overhead, which a CUDA graph avoids."""
    return bool(steps.host_bound) and steps.launch != GRAPH


def check_level(off: float, expected: str) -> None:
    """Raise InputError if the rows must be from another GPU.

    `off`: the median log(measured / predicted); `expected`: words for the rows that are expected.
    """
    if abs(off) > math.log(OTHER_GPU):
        raise InputError(
            f"the runs take {digits(math.exp(off))} times as long as predicted at the median; expected "
            f"{expected}",
            code="runs-unlike",
        )


def refined(
    file: DeviceFile, rows: CountedRows, source: str, of: Callable[[DeviceFile], TrainingParts]
) -> DeviceFile:
    """Scale a profile to `rows`, timed networks of inference and training.

    A remark states the median error of networks predicted with a factor from the other networks. If it is
    larger than the file's error, the intervals widen by the ratio. `source`: the names of the tables. `of`:
    file -> its TrainingParts. The file keeps a key of each row, so that a row counts once; without a new
    row the file is returned unchanged.
    """
    known = dict.fromkeys(file.environment.rows)
    keyed = {row.key: (row, counts) for row, counts in rows}
    rows = [row for key, row in keyed.items() if key not in known]
    if not rows:
        return file
    where = {**file.recorded, **_about(file, [*(known | keyed)], rows, source)}
    steps = [row for row in rows if row[0].mode.training]
    networks = [row for row in rows if not row[0].mode.training]
    remarks = [*file.warnings]
    if networks:
        file, words = _at_level(file, networks)
        named = rows_of(len(networks), len({*numbered(networks)}))
        remarks.append(f"{named} of {source}: {words}")
    if steps:
        file, words = _at_level_of_training(file, steps, of(file))
        remarks.append(f"{plural(len(steps), 'training step')} of {source}: {words}")
    return file.but(environment=where, warnings=remarks)


def _formulas(file: DeviceFile) -> list[Roofline]:
    """The rooflines of a file; the roofline of inference comes first."""
    formulas = [f for f in file.formulas.values() if isinstance(f, Roofline)]
    return sorted(formulas, key=lambda formula: formula.name)


def _at_level(file: DeviceFile, timed: CountedRows) -> tuple[DeviceFile, str]:
    """(the file scaled to the level of timed networks, a remark on it)."""
    formulas, ms = _formulas(file), np.array([row.latency_ms for row, _ in timed])
    steps = [formulas[0].steps(counts.work(row.batch_size)) for row, counts in timed]
    off = np.log(ms / latencies(steps))
    check_level(float(np.median(off)), OWN_TIMES)
    level, networks = Level.fitted(steps, ms), np.array(numbered(timed))
    others, by_host = np.empty(len(ms)), np.empty(len(ms), bool)
    for one in {*networks.tolist()}:
        left, kept = np.flatnonzero(networks == one), np.flatnonzero(networks != one)
        of_others = Level.fitted([steps[i] for i in kept], ms[kept])
        now = [of_others.of(steps[i]) for i in left]
        others[left] = np.log(ms[left] / latencies(now))
        by_host[left] = [_is_by_host(level.of(steps[i])) for i in left]
    of_device = others[~by_host]
    formulas = [level.scaled(formula) for formula in formulas]
    formulas[0] = _widened(formulas[0], "residuals", of_device)
    error = error_figures(ms / np.exp(others), ms)
    formulas[0] = replace(formulas[0], error=formulas[0].error | {"left_out": error})
    ratio = np.median(latencies([*map(level.of, steps)]) / latencies(steps))
    words = _words(off, float(ratio), error)
    if level.host != 1.0:
        words += (
            f"; the host bounds {by_host.sum()} of them, and its launch overhead is {level.host:.2f} times "
            "that of the file"
        )
    return _carried(file, level, of_device).with_formulas(*formulas), words


def _at_level_of_training(
    file: DeviceFile, timed: CountedRows, parts: TrainingParts
) -> tuple[DeviceFile, str]:
    """(the file scaled to the level of timed training steps, a remark on it)."""
    formulas, ms = _formulas(file), np.array([row.latency_ms for row, _ in timed])
    found, off = _steps(timed, parts)
    check_level(float(np.median(off)), OWN_TIMES)
    networks, factor = np.array(numbered(timed)), common_ratio(off)
    others = off - np.log([common_ratio(off[networks != one]) for one in networks])
    error = error_figures(ms / np.exp(others), ms)
    last = replace(formulas[-1], training=factor * formulas[-1].training)
    formulas[-1] = replace(last, error=last.error | {"left_out": error})
    own, level = (*formulas[0].own_steps, *found), factor * formulas[0].own_level
    formulas[0] = replace(formulas[0], own_steps=own, own_level=level)
    formulas[0] = _widened(formulas[0], "training_residuals", others)
    return file.with_formulas(*formulas), _words(off, factor, error)


def _words(off: np.ndarray, ratio: float, error: Mapping[str, float]) -> str:
    """A remark: measured / predicted time, the file's new level, and the error of networks left out."""
    return (
        f"{np.exp(np.median(off)):.2f} times as long as the device's file had said; its times are now "
        f"{ratio:.2f} times as long, as few rows move them only in part; each network, predicted from the "
        f"others, is {100 * error['median']:.1f} % off at the median"
    )


def _widened(formula: Roofline, name: str, others: np.ndarray) -> Roofline:
    """A formula whose residuals are scaled up to the errors `others`, if these are larger.

    `name`: the field that holds the residuals.
    """
    before = np.array(max(getattr(formula, name), others.tolist(), key=len))
    usual = float(np.median(np.abs(before))) if len(before) else 0.0
    if not usual or not len(others):  # rows that agree with each other say nothing of others
        return formula
    wider = max(1.0, float(np.median(np.abs(others))) / usual)
    return replace(formula, **{name: tuple((wider * before).round(5).tolist())})


def _carried(file: DeviceFile, level: Level, others: np.ndarray) -> DeviceFile:
    """Scale the file's part `before`, in another precision, too, unless it has own networks."""
    if "before" not in file.document or (old := as_before_fit(file)).environment.own_networks:
        return file
    formulas = [_widened(level.scaled(f), "residuals", others) for f in _formulas(old)]
    how = Remark(
        f"own networks were timed in {PRECISION_OF[file.mode.dtype]} alone",
        "their level is taken for other precisions too",
    )
    old = old.with_formulas(*formulas).but(estimated=str(how))
    return file.but(before=before_fit(old))


def _about(file: DeviceFile, keys: Sequence[str], rows: CountedRows, source: str) -> dict[str, Any]:
    """Fields of an environment: the keys of all rows, the number of own networks, the sources."""
    where, own = file.environment, sum(not row.mode.training for row, _ in rows)
    sources = ", ".join([*where.sources, source])
    return {"rows": keys, "own_networks": own + where.own_networks, "source": sources}


def _steps(timed: CountedRows, parts: TrainingParts) -> tuple[list[OwnStep], np.ndarray]:
    """(the timed steps, (steps,) log(measured / predicted) of their passes)."""
    found, off = [], []
    for row, _ in timed:
        passes, rest, key = parts(row)
        # The passes take at least half of a step, so that a wrong rest does not make them negative.
        ms = max(row.latency_ms - rest, 0.5 * row.latency_ms)
        off.append(math.log(ms / passes))
        found.append(OwnStep(*row.network[:2], key, row.batch_size, ms / row.accumulate))
    return found, np.array(off)
