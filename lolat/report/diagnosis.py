"""Whether a model still holds: the verdict on whole networks measured again, as figures.

A ratio is new over learned time. The model holds when the median ratio is within LIMIT of 1, or as far from
it as the machine was by itself while it was learned on, and every network within NETWORK times that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, Protocol

from lolat.fitting.intervals import machine_factor
from lolat.fitting.points import Point
from lolat.model import Model
from lolat.model.state import State, parts_of, state_of
from lolat.report.text import headline
from lolat.report.words import enumeration
from lolat.units import milliseconds, percent, plain

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
    """What is not as it was (`microbench.environment.Difference`)."""

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


# ---- What `lolat doctor` prints.

MEASURED = {
    OK: "The networks hold all the same",
    DRIFTED: "The networks do not hold",
    UNSETTLED: "The machine is busy or unsteady, so the networks say little",
}
FIELDS = {
    "l1d_bytes": "bytes of first-level cache",
    "l2_bytes": "bytes of second-level cache",
    "l3_bytes": "bytes of third-level cache",
    "framework_version": "framework version",
    "keras_version": "Keras version",
    "intra_op_threads": "threads within an operation",
    "inter_op_threads": "threads between operations",
}


def lines(model: Model, model_name: str, result: Mapping[str, Any]) -> Iterator[str]:
    """What `doctor` prints: the model, the blocks then and now, the verdict, what to do."""
    yield headline(model)
    if result["networks"]:
        yield ""
        yield from _table(result)
    yield ""
    yield from _answer(result)
    device = "gpu" if model.document["environment"].get("device") == "gpu" else "cpu"
    yield from _advice(result, quote(plain(model_name)), f"`python learn_model.py {device}`")
    starting = result["starting_seconds"]
    yield f"{result['seconds']:.1f} s" + (
        f", {starting:.1f} of them starting the framework" if starting else ""
    )


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    rows = [(plain(n["name"]), n) for n in result["networks"]]
    width = max(len(name) for name, _ in rows)
    yield f"{'network':{width}}  batch   learned       now  ratio"
    for name, n in rows:
        learned, now = (f"{milliseconds(n[k]):>8}" for k in ("learned_ms", "now_ms"))
        yield f"{name:{width}}  {n['batch_size']:>5}  {learned}  {now}  {n['ratio']:5.2f}"
    yield f"now, as factors of the usual: {state_words(result['state'])}"


def state_words(state: Mapping[str, float]) -> str:
    """A state in a line."""
    return ", ".join(f"{kind} {factor:.2f}" for kind, factor in state.items())


def _change(ratio: float) -> str:
    if abs(ratio - 1.0) < 0.0005:
        return "as fast as then"
    return f"{percent(abs(ratio - 1.0))} {'slower' if ratio > 1 else 'faster'}"


def _median(result: Mapping[str, Any]) -> str:
    low, high = result["spread"]
    return f"{_change(result['ratio'])} at the median ({low:.2f} to {high:.2f} times as long)"


def _answer(result: Mapping[str, Any]) -> Iterator[str]:
    """The verdict in a sentence or two."""
    said, limit = result["verdict"], result["limit"]
    if said == OTHER:
        yield "another machine: " + "; ".join(map(_difference, result["differences"]))
        if result["ratio"] is not None:
            yield f"{MEASURED[result['measured']]}: {_median(result)}."
    elif said == OK:
        yield "ok: the model holds on this machine."
        yield f"The networks are {_median(result)}; up to {percent(limit)} is noise."
    elif said == UNSETTLED:
        yield "cannot tell: the machine is busy or unsteady now."
        yield f"The networks are {_median(result)}."
    elif off(result["ratio"]) > limit:
        yield f"drifted by {100 * (result['ratio'] - 1):+.0f} %: {_median(result)}."
    else:
        wrong = [n for n in result["networks"] if off(n["ratio"]) > result["network_limit"]]
        names = enumeration([f"{plain(n['name'])} x{n['batch_size']}" for n in wrong])
        by = " and ".join(f"{100 * (n['ratio'] - 1):+.0f} %" for n in wrong)
        yield f"drifted by {by} in {names}; the networks together are {_median(result)}."


def _difference(d: Mapping[str, Any]) -> str:
    name = FIELDS.get(d["field"], plain(d["field"].replace("_", " ")))
    now = "not there" if d["now"] is None else plain(str(d["now"]) or "none")
    then = plain(str(d["learned"]) or "none")
    if d["field"] == "processor":
        return f"this is another processor: learned on {then}, here {now}"
    return f"learned with {name} {then}, here it is {now}"


def _advice(result: Mapping[str, Any], model: str, learn: str) -> Iterator[str]:
    """What to do, by verdict."""
    if result["verdict"] == OK:
        yield f"Next: lolat evaluate {model}"
    elif result["verdict"] == UNSETTLED:
        yield "What to do: close other programs and ask again in some minutes. If it stays so, the"
        yield f"machine has changed: learn again with {learn}. What a network takes as things are:"
        yield f"lolat predict {model} NETWORK --state now"
    else:
        yield f"What to do: learn a model of this machine as it is with {learn};"
        yield "`lolat models` lists those that there are."
    for remark in result["warnings"]:
        yield f"note: {plain(remark)}"
