"""Whether a model still holds: the verdict on blocks measured again, as figures.

A ratio is new over learned time. The model holds when the median ratio is within `limit` of 1 and every
block within BLOCK times that. The limit is FLOORS times the model's noise floor, MEDIAN_LIMIT at least:
predictions of models learned one after the other on one machine were at most 3 % apart, and the
reference block moves by up to 15 % among moments that count as calm, so that a tenth at the median of
five blocks of different kinds of work is more than an unchanged machine does. A single block may be
further off: small ones that move memory are, by up to a fifth.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from lolat.intervals import noise_floor
from lolat.model import Model
from lolat.report.words import enumeration

OK, DRIFTED, OTHER, UNSETTLED = "ok", "drifted", "another machine", "unsettled"
MEDIAN_LIMIT, FLOORS, BLOCK = 0.1, 4.0, 3.0
REFERENCE_FAR = 1.3  # what is slower than that by this factor is another state (microbench.timer)
STEADY = 1.3  # slowest over fastest tenth of the reference, in a run without disturbances
FEW = 5


class Again(Protocol):
    """A block measured again (`microbench.doctor.Again`)."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def batch_size(self) -> int:
        """Samples in a pass."""

    @property
    def role(self) -> str:
        """The kind of work that it stands for."""

    @property
    def learned_ms(self) -> float:
        """Its time in the model."""

    @property
    def now_ms(self) -> float:
        """Its time now."""

    @property
    def calm(self) -> bool:
        """Whether that is the time of calm moments."""


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
    def blocks(self) -> Sequence[Again]:
        """The blocks; none where nothing was measured."""

    @property
    def differences(self) -> Sequence[Difference]:
        """What of the device and its framework is not as it was."""

    @property
    def failures(self) -> Mapping[str, str]:
        """Blocks that could not be measured, or not to the end, and why."""

    @property
    def reference_ms(self) -> float | None:
        """The reference block now."""

    @property
    def unrest(self) -> float | None:
        """Slowest over fastest tenth of the reference block."""

    @property
    def at_known_calm(self) -> bool | None:
        """Whether moments as calm as those of learning were found; None where that is not known."""

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


def median_limit(floor: float | None) -> float:
    """How far the median ratio of an unchanged machine may be from 1; `floor`: the model's noise floor."""
    return max(MEDIAN_LIMIT, FLOORS * (floor or 0.0))


def diagnose(model: Model, found: Examination) -> dict[str, Any]:
    """Everything `doctor --json` prints.

    `measured` is what the blocks alone say, `verdict` the same unless the machine is another one.
    """
    limit = median_limit(noise_floor(model.document))
    learned_ms = model.document["noise"].get("reference_ms")
    reference = None
    if isinstance(learned_ms, (int, float)) and learned_ms > 0 and found.reference_ms:
        reference = found.reference_ms / learned_ms
    ratios = [b.now_ms / b.learned_ms for b in found.blocks if b.calm]
    ratios = ratios or [b.now_ms / b.learned_ms for b in found.blocks]
    measured = of_blocks(ratios, limit, reference, found) if ratios else None
    return {
        "model": model.name,
        "device": model.device,
        "verdict": OTHER if found.differences or measured is None else measured,
        "ratio": statistics.median(ratios) if ratios else None,
        "measured": measured,
        "spread": [min(ratios), max(ratios)] if ratios else None,
        "limit": limit,
        "block_limit": round(BLOCK * limit, 6),
        "blocks": [
            {
                "name": b.name,
                "batch_size": b.batch_size,
                "role": b.role,
                "learned_ms": b.learned_ms,
                "now_ms": b.now_ms,
                "ratio": b.now_ms / b.learned_ms,
                "calm": b.calm,
            }
            for b in found.blocks
        ],
        "reference": {"learned_ms": learned_ms, "now_ms": found.reference_ms, "ratio": reference},
        "seconds": round(found.seconds, 2),
        "starting_seconds": round(found.starting_s, 2),
        "differences": [
            {"field": d.field, "learned": d.learned, "now": d.now} for d in found.differences
        ],
        "failures": dict(found.failures),
        "warnings": list(_warnings(found, reference)),
    }


def holds(ratios: Sequence[float], limit: float) -> bool:
    """Whether the median is within `limit` of 1 and each ratio within BLOCK times that."""
    return off(statistics.median(ratios)) <= limit and max(map(off, ratios)) <= BLOCK * limit


def of_blocks(
    ratios: Sequence[float], limit: float, reference: float | None, found: Examination
) -> str:
    """What the measured blocks say: OK, DRIFTED or UNSETTLED.

    `reference`: ratio of the reference block, if known. Where the blocks are off and the machine is not as
    it was when learning (busy, or the reference block far from its time), that is no drift, but for
    one case: the blocks, the reference block and so the whole machine are off by one steady factor. A
    virtual machine whose processors were moved apart is not: what computes does not notice.
    """
    if holds(ratios, limit):
        return OK
    if found.busy:
        return UNSETTLED
    strange = found.at_known_calm is False or (
        reference is not None and off(reference) > REFERENCE_FAR - 1.0
    )
    return DRIFTED if not strange or _uniform(ratios, reference, found.unrest) else UNSETTLED


def _uniform(ratios: Sequence[float], reference: float | None, unrest: float | None) -> bool:
    """Whether everything is off by the same factor, and steadily so."""
    middle = statistics.median(ratios)
    everything = [*ratios, *([] if reference is None else [reference])]
    same = all(off(r / middle) <= MEDIAN_LIMIT for r in everything)
    return same and len(ratios) > 1 and unrest is not None and unrest <= STEADY


def _warnings(found: Examination, reference: float | None) -> Iterator[str]:
    if found.remark:
        yield found.remark
    for key, reason in found.failures.items():
        yield f"{key} could not be measured again, or not to the end: {reason}"
    if not found.blocks:
        return
    if found.busy:
        yield (
            f"the machine was busy before (load {found.load} on {found.threads} threads): close "
            "other programs"
        )
    if found.at_known_calm is None or reference is None:
        yield (
            "the model does not say how fast the machine was when it was learned, so that a busy "
            "machine cannot be told from one that has changed"
        )
    restless = [f"{b.name} x{b.batch_size}" for b in found.blocks if not b.calm]
    if restless:
        rest = "" if len(restless) == len(found.blocks) else " and does not count"
        yield f"no calm moment for {enumeration(restless)}: the fastest of disturbed times{rest}"
    if len(found.blocks) < FEW:
        yield f"only {len(found.blocks)} of the model's blocks could be measured again"
