"""Measures the networks of a profile again, to check whether it still holds on this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.api.measuring import UNSETTLED, device_of, write_state
from lolat.device import execution_modes
from lolat.device.remedies import bundled_of
from lolat.device.schema import OTHERS
from lolat.device.state import LIMIT, age_of, check_now, is_noisy, limit_of
from lolat.errors import DeviceError, InputError, arg
from lolat.hardware.gpus import CPU
from lolat.io.progress import Progress
from lolat.io.results import Remark, Result, dict_of
from lolat.microbench import backends, check, environment, learn, probe
from lolat.microbench import runner as runners
from lolat.tables.blocks import points_of
from lolat.units import deviation, plain

if TYPE_CHECKING:
    from lolat.api.model import Model

FRESH = timedelta(minutes=10)
"""A profile whose learning began less than this long ago is not probed."""
OK, DRIFTED, OTHER = "ok", "drifted", "another machine"


@dataclass(frozen=True, repr=False)
class Diagnosis(Result):
    """The result of checking a profile on this machine.

    `verdict`: ok, drifted, another machine or unsettled. `ratio`: time now / learned time, the median over
    the networks. `limit`: how far the ratio may be from 1: 10 %, or the profile's own noise if that is
    larger, up to 20 %. `spread`: the smallest and the largest ratio. `differences`: of the machine,
    compared with its state at learning.
    """

    model: str
    device: str
    verdict: str
    ratio: float | None
    spread: tuple[float, float] | None
    limit: float
    networks: tuple[check.NetworkAgain, ...]
    differences: tuple[environment.Difference, ...]
    failures: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True if the verdict is ok."""
        return self.verdict == OK

    def words(self) -> str:
        """The verdict, and the ratio of the times now to the learned times."""
        times = "" if self.ratio is None else f": {self.ratio:.2f} times as long as learned"
        return f"{plain(self.model)}: {self.verdict}{times}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each measured network: learned_ms, now_ms, ratio."""
        return [dict_of(network) for network in self.networks]


def doctor(model: Model, progress: Progress) -> Diagnosis:
    """Measure some of the profile's networks again, to check whether it still holds on this machine.

    On another device, or without the GPU, nothing is measured. If the framework has another version, number
    of threads or flag, the networks are measured and the difference is listed. InputError if the profile
    has no networks to measure again.
    """
    where = model.latencies_file.recorded
    backend, device = backends.backend_of(where), device_of(model)
    references = check.references_of(points_of(model.latencies_file.document), backend)
    if not references:
        has = "has no whole network of this version to measure again"
        if not model.latencies_file.environment.is_learned:
            has = "was fitted to tables, so there is nothing to measure again"
        raise InputError(
            f"{model.name} {has}; expected a profile of `lolat learn`; one of tables is judged by times of "
            "other networks: lolat evaluate MODEL --table TIMES.csv"
        )
    here = environment.here(where, device)
    if device == CPU and (other := environment.differences_of_device(model.device, where, here)):
        there = bundled_of(here["processor"], model.file.environment.framework)
        return diagnosis(model, other, remark=there)
    try:
        runner = runners.Runner(backend, device, progress)
    except DeviceError as error:
        if device == CPU:
            raise
        return diagnosis(
            model, (environment.Difference("device", model.device, None),), remark=str(error)
        )
    with runner:
        found = environment.differences(model.device, where, here | runner.environment)
        if any(d.of_device for d in found):
            return diagnosis(model, found)
        others = {"others_at_start": environment.other_programs()}
        if remark := learn.busy(here | others, "run the check again if it does not say ok"):
            progress.note(remark)
        measured = check.measure(runner, backend, (), references)
    result = diagnosis(model, found, measured)
    if result.ratio is not None:
        write_state(model, "doctor", result.ratio, result.verdict != UNSETTLED)
    return result


def as_now(model: Model, progress: Progress) -> Model:
    """The profile scaled to the machine's current speed by measuring some networks: see `Model.as_now`."""
    try:
        found = doctor(model, progress)
    except InputError as error:
        raise error.reworded(f"{arg('now')}: {error.message}") from error
    if found.ratio is None:
        remarks = [*map(str, found.differences), *found.warnings]
        raise InputError(
            f"{arg('now')}: {model.label} cannot be measured again here ({'; '.join(remarks)}); expected a "
            "profile that was learned on this machine",
            code="now",
        )
    logs = np.log([network.ratio for network in found.networks])
    spread = float(np.sqrt(((logs - math.log(found.ratio)) ** 2).mean()))
    # A machine that was unsteady while learning may change again right after the check.
    spread = math.hypot(spread, math.log1p(model.file.noise.repeatability or 0.0))
    remark = Remark(
        f"as the machine is now, {found.ratio:.2f} times as long as learned",
        "its own networks were measured for this answer",
    )
    return execution_modes.as_now(model, spread, remark, ratio=found.ratio)


def as_probed(model: Model) -> Model:
    """The profile with a warning and wider intervals, if a probe of a tenth of a second finds a change.

    The profile stays unchanged if it was learned minutes ago, if the probe (`lolat.microbench.probe`)
    predicts a change of at most LIMIT and other programs use the machine as before, and if the file has no
    probe (GPUs, CPUs with one thread). Latencies never change: on a quiet machine the probe varies more
    than the networks do (`python -m benchmarks run probe`).
    """
    file, state, found = model.file, model.state, []
    noise = file.noise
    if noise.probe is None or state is None or age_of(state.learned) < FRESH:
        return model
    threads = learn.probe_threads(file.recorded)
    others = environment.other_programs(sleep=lambda _: found.append(probe.probe(threads))) or 0.0
    waking_ms = probe.waking_ms(noise.probe["forks"], found[0])
    spread = math.hypot(probe.SPREAD, math.log1p(noise.repeatability or 0.0))
    networks = [p for p in file.points if p.whole] or file.points
    ratio = float(np.median([1.0 + waking_ms * (p.ops or 0) / p.latency_ms for p in networks]))
    ratio, beside = max(ratio, 0.5), ""
    if (apart := abs(others - noise.others)) > OTHERS:
        beside = f"; other programs use {others:.1f} processors (when learned {noise.others:.1f})"
        spread = math.hypot(spread, probe.BUSY_SPREAD * apart / environment.cpu_count())
    elif deviation(ratio) <= LIMIT:
        return model
    remark = Remark(
        f"the machine may take {ratio:.2f} times as long as when it was learned; the interval is wider",
        f"by a probe, threads take {abs(1e3 * waking_ms):.0f} µs {'more' if waking_ms > 0 else 'less'} to "
        f"start an operation{beside}; `--now` measures networks and answers for that",
    )
    return execution_modes.as_now(model, spread, remark, check=check_now("probe", ratio, LIMIT))


def diagnosis(
    model: Model,
    differences: Sequence[environment.Difference],
    measured: check.Measured | None = None,
    remark: str = "",
) -> Diagnosis:
    """The verdict. `measured`: None if the device differs or is absent; `remark` then says which."""
    again = measured.again if measured else ()
    failures = dict(measured.failures) if measured else {}
    limit, ratio = limit_of(model.file), check.median_ratio(again)
    warnings = [remark] if remark else []
    warnings += [f"{key} could not be measured again: {why}" for key, why in failures.items()]
    verdict = OTHER
    if measured and ratio is not None and not differences:
        # Other programs, and a machine that changes now or did while learning, are a state and no drift.
        unrest = "; ".join(learn.unrest(learn.noise_of(measured.latencies)))
        tells = not unrest and not is_noisy(model.file)
        moved = DRIFTED if tells else UNSETTLED
        verdict = OK if deviation(ratio) <= limit else moved
        if unrest:
            warnings.append(f"during this check {unrest}")
    ratios = [a.ratio for a in again]
    return Diagnosis(
        model=model.name,
        device=model.device,
        verdict=verdict,
        ratio=ratio,
        spread=(min(ratios), max(ratios)) if ratios else None,
        limit=limit,
        networks=again,
        differences=tuple(differences),
        failures=failures,
        warnings=tuple(warnings),
    )
