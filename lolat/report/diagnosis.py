"""Whether a model still holds: the verdict on whole networks measured again, as figures.

A ratio is new over learned time. The model holds when the median ratio is within LIMIT of 1, or as far from
it as the machine was by itself while it was learned on, and every network within NETWORK times that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from lolat.intervals import machine_factor
from lolat.model import Model
from lolat.points import Point
from lolat.state import State, parts_of, state_of

OK, DRIFTED, OTHER, UNSETTLED = "ok", "drifted", "another machine", "unsettled"
LIMIT, NETWORK = 0.1, 2.0
UNSTEADY = 1.5  # most disturbed over calmest tenth of a run that says little
FEW = 3


class Again(Protocol):
    """A network measured again (`microbench.doctor.Again`)."""

    @property
    def point(self) -> Point:
        """The model's point."""

    @property
    def now_ms(self) -> float:
        """Its time now."""


class Difference(Protocol):
    """What is not as it was (`microbench.comparable.Difference`)."""

    @property
    def field(self) -> str:
        """What differs, such as `flags`, `processor` or `device`."""

    @property
    def learned(self) -> Any:
        """What it was."""

    @property
    def now(self) -> Any:
        """What it is; None for a device that is not there."""


class Examination(Protocol):
    """What measuring again found (`microbench.doctor.Examination`)."""

    @property
    def again(self) -> Sequence[Again]:
        """The networks; none where nothing was measured."""

    @property
    def differences(self) -> Sequence[Difference]:
        """What of the device and its framework is not as it was."""

    @property
    def failures(self) -> Mapping[str, str]:
        """Networks that could not be measured, or not to the end, and why."""

    @property
    def unrest(self) -> float | None:
        """Most disturbed over calmest tenth of the run."""

    @property
    def loaded(self) -> float:
        """By what factor all takes longer for the other programs at work, which `again` leaves out."""

    @property
    def load(self) -> float | None:
        """Load of the machine before."""

    @property
    def threads(self) -> int:
        """Threads of the machine."""

    @property
    def busy(self) -> bool:
        """Whether that load is that of other programs at work."""

    @property
    def seconds(self) -> float:
        """How long all of it took."""

    @property
    def starting_s(self) -> float:
        """How long of that the framework took to start."""

    @property
    def remark(self) -> str:
        """Why a device is not there, or what the model does not say of it."""


def off(ratio: float) -> float:
    """How far a ratio is from 1, the same for twice as slow and twice as fast."""
    return max(ratio, 1.0 / ratio) - 1.0


def state_now(model: Model, again: Sequence[Again], loaded: float = 1.0) -> State | None:
    """The state of the machine that networks measured again tell; None without any.

    `loaded`: by what factor all takes longer for other programs, if it is to be in it.
    """
    if not again:
        return None
    formula = model.predictor()
    parts = []
    for a in again:
        counts = a.point.counts
        terms = {
            f: c * counts.get(f, 0)
            for f, c in zip(formula.features, formula.coefficients, strict=True)
        }
        parts.append(parts_of(terms, formula.constant))
    return state_of(parts, [loaded * a.now_ms / a.point.latency_ms for a in again])


def diagnose(model: Model, found: Examination) -> dict[str, Any]:
    """Everything `doctor --json` prints.

    `measured` is what the networks alone say, `verdict` the same unless the machine is another one;
    `state`: what `predict --state` takes.
    """
    ratios = [a.now_ms / a.point.latency_ms for a in found.again]
    limit = limit_of(model)
    measured = _of_networks(ratios, found, limit) if ratios else None
    state = state_now(model, found.again, found.loaded)
    return {
        "model": model.name,
        "device": model.device,
        "verdict": OTHER if found.differences or measured is None else measured,
        "ratio": statistics.median(ratios) if ratios else None,
        "measured": measured,
        "spread": [min(ratios), max(ratios)] if ratios else None,
        "limit": limit,
        "network_limit": NETWORK * limit,
        "state": None if state is None else state.to_dict(),
        "networks": [
            {
                "name": a.point.name,
                "batch_size": a.point.batch_size,
                "learned_ms": a.point.latency_ms,
                "now_ms": a.now_ms,
                "ratio": a.now_ms / a.point.latency_ms,
            }
            for a in found.again
        ],
        "unrest": found.unrest,
        "loaded": found.loaded,
        "seconds": round(found.seconds, 2),
        "starting_seconds": round(found.starting_s, 2),
        "differences": [
            {"field": d.field, "learned": d.learned, "now": d.now} for d in found.differences
        ],
        "failures": dict(found.failures),
        "warnings": list(_warnings(found)),
    }


def limit_of(model: Model) -> float:
    """How far from 1 the median ratio may be: LIMIT, or the calmest or busiest tenth of learning."""
    seen = (machine_factor(model.document, name) for name in ("quiet", "busy"))
    return round(max([LIMIT, *(off(factor) for factor in seen if factor is not None)]), 4)


def holds(ratios: Sequence[float], limit: float) -> bool:
    """Whether the median is within `limit` of 1 and each ratio within NETWORK times that."""
    return off(statistics.median(ratios)) <= limit and max(map(off, ratios)) <= NETWORK * limit


def _of_networks(ratios: Sequence[float], found: Examination, limit: float) -> str:
    """What the measured networks say: OK, DRIFTED or UNSETTLED.

    Where they are off and other programs are at work, or the machine changes while it is looked at, that
    is its state and no drift.
    """
    if holds(ratios, limit):
        return OK
    unsteady = found.unrest is not None and found.unrest > UNSTEADY
    return UNSETTLED if found.busy or unsteady else DRIFTED


def _warnings(found: Examination) -> Iterator[str]:
    if found.remark:
        yield found.remark
    for key, reason in found.failures.items():
        yield f"{key} could not be measured again, or not to the end: {reason}"
    if not found.again:
        return
    if found.busy:
        yield (
            f"the machine was busy before (load {found.load} on {found.threads} threads): close "
            "other programs"
        )
    if len(found.again) < FEW:
        yield f"only {len(found.again)} of the model's networks could be measured again"
