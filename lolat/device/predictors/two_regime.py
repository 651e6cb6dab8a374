"""The published formula: t = a*ACTS + b*INP + c*FLOPs + d, and slope * t + offset below a breakpoint.

The two lines meet at the breakpoint. The lower line rises and is never negative, so that a ranking by
latency is the same with it as without.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import msgspec

from lolat.arrays import np
from lolat.device.predictors.formula import Formula
from lolat.io.documents import NotNegative, Positive

THREE = ("acts", "inp", "flops")


class TwoRegime(Formula, frozen=True, kw_only=True, dict=True):
    """The two-regime formula; `offset = breakpoint * (1 - slope)` makes it continuous."""

    name: ClassVar[str] = "two-regime"
    breakpoint_ms: NotNegative
    slope: Positive

    def scaled(self, factor: float) -> Self:
        """The formula of a device that takes `factor` times as long; see `Formula.scaled`."""
        breakpoint_ms = factor * self.breakpoint_ms
        return msgspec.structs.replace(super().scaled(factor), breakpoint_ms=breakpoint_ms)

    def bend(self, times: np.ndarray) -> np.ndarray:
        """Apply the line below the breakpoint, in place."""
        below = times < self.breakpoint_ms
        times[below] = self.breakpoint_ms - self.slope * (self.breakpoint_ms - times[below])
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number; rounding cannot lift the result above the breakpoint."""
        if time >= self.breakpoint_ms:
            return time
        return self.breakpoint_ms - self.slope * (self.breakpoint_ms - time)

    def to_dict(self) -> dict[str, Any]:
        """The formula as a dict for a profile's JSON, with the offset."""
        return super().to_dict() | {"offset_ms": self.breakpoint_ms * (1.0 - self.slope)}
